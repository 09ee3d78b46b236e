/* Codecs that sleep for each decoded byte, or do nothing, in the place of those of numcodecs. */

#define _POSIX_C_SOURCE 200809L

#include <stddef.h>
#include <time.h>

static double seconds_per_byte;

void set_seconds_per_byte(double seconds) { seconds_per_byte = seconds; }

static void pass(size_t num_bytes) {
    const double seconds = seconds_per_byte * (double)num_bytes;
    struct timespec span;
    span.tv_sec = (time_t)seconds;
    span.tv_nsec = (long)((seconds - (double)span.tv_sec) * 1e9);
    if (seconds > 0)
        nanosleep(&span, NULL);
}

size_t pretend_zstd(void *context, void *target, size_t size, const void *data, size_t num) {
    (void)context, (void)target, (void)data, (void)num;
    pass(size);
    return size;
}

int pretend_blosc(const void *data, void *target, size_t size, int num_threads) {
    (void)data, (void)target, (void)num_threads;
    pass(size);
    return (int)size;
}
