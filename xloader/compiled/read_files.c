/* Reads several parts of files in one call, one after the other into one buffer.

   xloader/sources/zarr/file_objects.py describes the arguments. */

#define _POSIX_C_SOURCE 200809L
#define _FILE_OFFSET_BITS 64

#include "export.h"
#include "files.h"
#include "helpers.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

/* Nanoseconds of reading that are worth waking helpers. Files in the system's memory take less. */
#define LONG_NS 500000

/* Bytes of one file that are read by one thread, as each opens the file for itself. */
#define RUN_NBYTES (1 << 20)

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
    int64_t capacity;
    int64_t *found;
    int may_share;
    _Atomic int64_t next, used, num_read;
} Reading;

/* Takes room for a part in the buffer; returns its offset there, or -1 where no room is left. A file may
   claim any size, so sizes are compared before they are added. */
static int64_t take_room(Reading *own, int64_t size) {
    int64_t begin = own->used, room;
    do {
        if (size > own->capacity - begin)
            return -1;
        room = (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    } while (!atomic_compare_exchange_weak(&own->used, &begin, begin + room));
    return begin;
}

/* Reads some parts that lie in the same file. Where a part cannot be read, `num_read` becomes its
   number, if it is not smaller already. */
static void read_run(Reading *own, int64_t begin, int64_t end) {
    File file = {0};
    const int64_t why = begin_file(own->paths + own->parts[PART_NUMBERS * begin], &file);
    int64_t at = begin;
    for (; at < end; at++) {
        int64_t *told = own->found + 2 * at;
        if (file.descriptor < 0) {
            told[0] = 0;
            told[1] = why;
            if (why == UNUSUAL)
                break;
            continue;
        }
        int64_t start;
        const int64_t *part = own->parts + PART_NUMBERS * at;
        const int64_t size = clip(part, file.size, &start);
        const int is_too_large = size > part[3];
        told[0] = is_too_large ? -1 : take_room(own, size);
        if (told[0] < 0) {
            told[1] = is_too_large ? UNUSUAL : size;
            break;
        }
        told[1] = read_part(file.descriptor, start, size, own->buffer + told[0]);
        if (told[1] == UNUSUAL)
            break;
    }
    if (file.descriptor >= 0)
        close(file.descriptor);
    if (at < end) {
        int64_t least = own->num_read;
        while (at < least && !atomic_compare_exchange_weak(&own->num_read, &least, at))
            ;
    }
}

/* The end of the parts that one thread reads from a number on. */
static int64_t end_of_run(const Reading *own, int64_t begin) {
    const int64_t *first = own->parts + PART_NUMBERS * begin, *part = first;
    int64_t end = begin, nbytes = 0;
    do {
        /* A part may be asked for of any size, so no more than matters is added. */
        nbytes += part[2] < 0 ? 0 : part[2] < RUN_NBYTES ? part[2] : RUN_NBYTES;
        part += PART_NUMBERS;
        end++;
    } while (end < own->num && part[0] == first[0] && (!own->may_share || nbytes < RUN_NBYTES));
    return end;
}

/* Reads the next parts of one file; returns 0 if there are none. */
static int read_next(Reading *own) {
    int64_t begin = own->next, end;
    do {
        /* After a part that could not be read, nothing is begun. */
        if (begin >= own->num_read)
            return 0;
        end = end_of_run(own, begin);
    } while (!atomic_compare_exchange_weak(&own->next, &begin, end));
    read_run(own, begin, end);
    return 1;
}

static void read_some(void *context) {
    while (read_next(context))
        ;
}

/* Reads parts while the rest takes less time than waking helpers is worth. */
static void read_quickly(Reading *own) {
    const int64_t begin_ns = now_ns();
    while (read_next(own)) {
        const int64_t num_read = own->next, num_left = own->num - num_read;
        if ((now_ns() - begin_ns) * num_left > LONG_NS * num_read)
            return;
    }
}

/* Each of `parts` is the offset of its path in `paths`, its first byte, its size, and the most bytes
   that it may have; one with more is unusual. Without a size, which is negative then, it reaches to
   the end of the file; and a negative first byte counts from there. For each part, `found` gets its
   offset in the buffer and its size. Returns the number of parts before the first for which there was
   no room, or that is unusual; `found` has the size of that part too. What is unusual is left to the
   caller, who tells what it is. Helpers read some of the parts, so these lie in the buffer in any
   order. */
EXPORT int64_t xloader_read_files(
    const char *paths, const int64_t *parts, int64_t num, char *buffer, int64_t capacity,
    int64_t *found) {
    Reading own = {
        .paths = paths,
        .parts = parts,
        .num = num,
        .buffer = buffer,
        .capacity = capacity,
        .found = found,
        .may_share = has_helpers(),
        .num_read = num,
    };
    if (own.may_share)
        read_quickly(&own);
    share_work(read_some, &own, own.num_read - own.next - 1);
    return own.num_read;
}
