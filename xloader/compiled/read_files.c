/* Reads several parts of files in one call, one after the other into one buffer.

   xloader/sources/zarr/file_objects.py describes the arguments. */

#define _POSIX_C_SOURCE 200809L
#define _FILE_OFFSET_BITS 64

#include "export.h"
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/* Numbers that describe a part. */
#define PART_NUMBERS 4

/* Parts begin at multiples of this many bytes, so that arrays over them are aligned. */
#define ALIGNMENT 64

static int open_file(const char *path) {
    int file;
    do {
        /* Without O_NONBLOCK, opening a fifo would wait for a writer. */
        file = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    } while (file < 0 && errno == EINTR);
    return file;
}

static int is_absent(int error) { return error == ENOENT || error == ENOTDIR; }

int64_t read_part(int file, int64_t start, int64_t size, char *buffer) {
    int64_t filled = 0;
    while (filled < size) {
        const ssize_t more =
            pread(file, buffer + filled, (size_t)(size - filled), (off_t)(start + filled));
        if (more < 0 && errno == EINTR)
            continue;
        if (more < 0)
            return UNUSUAL;
        if (!more)
            break;
        filled += more;
    }
    return filled;
}

int64_t begin_file(const char *path, File *own) {
    struct stat info;
    own->descriptor = open_file(path);
    if (own->descriptor < 0)
        return is_absent(errno) ? ABSENT : UNUSUAL;
    if (fstat(own->descriptor, &info) || !S_ISREG(info.st_mode)) {
        close(own->descriptor);
        own->descriptor = -1;
        return UNUSUAL;
    }
    own->size = (int64_t)info.st_size;
    return 0;
}

/* The first byte of a part, and its number of bytes as far as they are in the file. */
static int64_t clip(const int64_t *part, int64_t file_size, int64_t *start) {
    const int64_t size = part[2];
    *start = part[1];
    if (*start < 0)
        *start = file_size + *start < 0 ? 0 : file_size + *start;
    const int64_t left = file_size > *start ? file_size - *start : 0;
    if (size < 0)
        return left;
    /* Some file systems tell a size of 0 for files that have contents. */
    return file_size && size > left ? left : size;
}

typedef struct {
    const char *paths;
    const int64_t *parts;
    int64_t num;
    char *buffer;
    int64_t capacity, used;
    int64_t *found;
} Reading;

/* Takes room for a part in the buffer; returns its offset there, or -1 where no room is left. A file may
   claim any size, so sizes are compared before they are added. */
static int64_t take_room(Reading *own, int64_t size) {
    const int64_t begin = own->used;
    if (size > own->capacity - begin)
        return -1;
    own->used = begin + (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return begin;
}

/* Reads the parts that lie in the same file as the first of them. Returns the number of the first part
   that is not read: of another file, or one that cannot be read. `is_over` tells which. */
static int64_t read_run(Reading *own, int64_t begin, int *is_over) {
    File file = {0};
    const int64_t path = own->parts[PART_NUMBERS * begin];
    const int64_t why = begin_file(own->paths + path, &file);
    int64_t at = begin;
    for (; at < own->num && own->parts[PART_NUMBERS * at] == path; at++) {
        int64_t *told = own->found + 2 * at;
        if (file.descriptor < 0) {
            told[0] = 0;
            told[1] = why;
            *is_over = why == UNUSUAL;
            if (*is_over)
                break;
            continue;
        }
        int64_t start;
        const int64_t *part = own->parts + PART_NUMBERS * at;
        const int64_t size = clip(part, file.size, &start);
        const int is_too_large = size > part[3];
        told[0] = is_too_large ? -1 : take_room(own, size);
        told[1] = is_too_large ? UNUSUAL : size;
        if (told[0] >= 0)
            told[1] = read_part(file.descriptor, start, size, own->buffer + told[0]);
        *is_over = told[0] < 0 || told[1] == UNUSUAL;
        if (*is_over)
            break;
    }
    if (file.descriptor >= 0)
        close(file.descriptor);
    return at;
}

/* Each of `parts` is the offset of its path in `paths`, its first byte, its size, and the most bytes
   that it may have; one with more is unusual. Without a size, which is negative then, it reaches to
   the end of the file; and a negative first byte counts from there. For each part, `found` gets its
   offset in the buffer and its size. Returns the number of parts before the first for which there was
   no room, or that is unusual; `found` has the size of that part too. What is unusual is left to the
   caller, who tells what it is. */
EXPORT int64_t xloader_read_files(
    const char *paths, const int64_t *parts, int64_t num, char *buffer, int64_t capacity,
    int64_t *found) {
    Reading own = {paths, parts, num, buffer, capacity, 0, found};
    int64_t num_read = 0;
    for (int is_over = 0; num_read < num && !is_over;)
        num_read = read_run(&own, num_read, &is_over);
    return num_read;
}
