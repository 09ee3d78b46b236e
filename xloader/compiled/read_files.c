/* Reads several parts of files in one call, one after the other into one buffer.

   xloader/sources/zarr/compiled_files.py describes the arguments. */

#define _POSIX_C_SOURCE 200809L
#define _FILE_OFFSET_BITS 64

#include "export.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/* What is told in place of a size, as in compiled_files.py. */
enum { ABSENT = -1, UNUSUAL = -2 };

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

/* The number of bytes read, which is smaller where the file ends before; or UNUSUAL. */
static int64_t read_part(int file, int64_t start, int64_t size, char *buffer) {
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

/* Each of `parts` is the offset of its path in `paths`, its first byte and its size. Without a
   size, which is negative then, it reaches to the end of the file; and a negative first byte counts
   from there. For each part, `found` gets its offset in the buffer and its size. Returns the number
   of parts before the first for which there was no room, or that is unusual; `found` has the size of
   that part too. What is unusual is left to the caller, who tells what it is. */
EXPORT int64_t xloader_read_files(
    const char *paths, const int64_t *parts, int64_t num, char *buffer, int64_t capacity,
    int64_t *found) {
    int64_t used = 0, is_open = 0, at = 0, file_size = 0;
    int file = -1;
    for (; at < num; at++) {
        const int64_t *part = parts + 3 * at;
        int64_t start = part[1], size = part[2];
        if (!at || part[0] != part[-3]) {
            struct stat info;
            if (is_open)
                close(file);
            file = open_file(paths + part[0]);
            is_open = file >= 0;
            if (!is_open) {
                found[2 * at + 1] = is_absent(errno) ? ABSENT : UNUSUAL;
            } else if (fstat(file, &info) || !S_ISREG(info.st_mode)) {
                close(file);
                is_open = 0;
                found[2 * at + 1] = UNUSUAL;
            } else {
                file_size = (int64_t)info.st_size;
            }
        } else if (!is_open) {
            found[2 * at + 1] = found[2 * at - 1];
        }
        found[2 * at] = used;
        if (!is_open && found[2 * at + 1] == UNUSUAL)
            break;
        if (!is_open)
            continue;
        if (size < 0) {
            if (start < 0)
                start = file_size + start < 0 ? 0 : file_size + start;
            size = file_size > start ? file_size - start : 0;
        } else if (file_size && start + size > file_size) {
            /* Some file systems tell a size of 0 for files that have contents. */
            size = file_size > start ? file_size - start : 0;
        }
        if (used + size > capacity) {
            found[2 * at + 1] = size;
            break;
        }
        found[2 * at + 1] = read_part(file, start, size, buffer + used);
        if (found[2 * at + 1] == UNUSUAL)
            break;
        used += (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
    if (is_open)
        close(file);
    return at;
}
