/* Decompresses chunks, by the functions of numcodecs, which are given by their addresses. */

#define _POSIX_C_SOURCE 200809L

#include "codecs.h"
#include "export.h"

#include <stdatomic.h>
#include <string.h>
#include <time.h>

#define BLOSC_HEADER 16

/* Contexts of zstd that no call uses now. To make one takes 160 KB of fresh memory. As many are kept
   as threads have decoded at a time, and not freed. */
#define MOST_UNUSED 64
static void *_Atomic unused[MOST_UNUSED];

/* Nanoseconds to sleep for each decoded byte in place of decompressing; below 0 to decompress. */
static _Atomic int64_t pretended_ps = -1;

Codecs begin_codecs(const int64_t *functions) {
    return (Codecs){
        (MakeContext)(intptr_t)functions[0], (FreeContext)(intptr_t)functions[1],
        (DecompressZstd)(intptr_t)functions[2], (DecompressBlosc)(intptr_t)functions[3], NULL};
}

static void *take_context(const Codecs *codecs) {
    for (int i = 0; i < MOST_UNUSED; i++) {
        void *context = atomic_exchange(&unused[i], NULL);
        if (context)
            return context;
    }
    return codecs->make();
}

void end_codecs(Codecs *codecs) {
    if (!codecs->context)
        return;
    for (int i = 0; i < MOST_UNUSED; i++) {
        void *none = NULL;
        if (atomic_compare_exchange_strong(&unused[i], &none, codecs->context))
            return;
    }
    codecs->free(codecs->context);
}

static int64_t number_at(const unsigned char *data) {
    return (int64_t)data[0] | (int64_t)data[1] << 8 | (int64_t)data[2] << 16 | (int64_t)data[3] << 24;
}

/* Has native decoding only sleep, so many picoseconds for each decoded byte; a number below 0 ends
   that. */
EXPORT int64_t xloader_pretend_codec(int64_t picoseconds) {
    pretended_ps = picoseconds;
    return 0;
}

static int pretend(int64_t picoseconds, int64_t nbytes) {
    const int64_t ns = (int64_t)((double)picoseconds * (double)nbytes / 1e3);
    const struct timespec span = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    if (ns > 0)
        nanosleep(&span, NULL);
    return 1;
}

int decompress(
    Codecs *codecs, int64_t codec, const char *data, int64_t size, char *target, int64_t nbytes) {
    const int64_t picoseconds = pretended_ps;
    if (picoseconds >= 0)
        return pretend(picoseconds, nbytes);
    if (codec == ZSTD) {
        if (!codecs->context)
            codecs->context = take_context(codecs);
        if (!codecs->context)
            return 0;
        /* An error is a huge number. */
        return codecs->unzstd(
                   codecs->context, target, (size_t)nbytes, data, (size_t)size) == (size_t)nbytes;
    }
    if (codec == BLOSC) {
        const unsigned char *header = (const unsigned char *)data;
        /* blosc believes its header, so the two sizes there are compared with the true ones. It takes
           them for signed numbers. */
        if (size < BLOSC_HEADER || size > INT32_MAX || nbytes > INT32_MAX ||
            number_at(header + 4) != nbytes || number_at(header + 12) > size)
            return 0;
        return codecs->unblosc(data, target, (size_t)nbytes, 1) == nbytes;
    }
    if (codec != RAW || size != nbytes)
        return 0;
    memcpy(target, data, (size_t)nbytes);
    return 1;
}
