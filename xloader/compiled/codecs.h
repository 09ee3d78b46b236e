#ifndef XLOADER_CODECS_H
#define XLOADER_CODECS_H

#include <stddef.h>
#include <stdint.h>

/* Codecs, as in compiled_decoding.py, where others are UNKNOWN; and what is told of a chunk that is
   decoded. */
enum { UNKNOWN = -2, DONE = -1, RAW = 0, ZSTD = 1, BLOSC = 2 };

typedef void *(*MakeContext)(void);
typedef size_t (*FreeContext)(void *);
typedef size_t (*DecompressZstd)(void *, void *, size_t, const void *, size_t);
typedef int (*DecompressBlosc)(const void *, void *, size_t, int);

/* The functions of the codecs, and what one thread needs for them. */
typedef struct {
    MakeContext make;
    FreeContext free;
    DecompressZstd unzstd;
    DecompressBlosc unblosc;
    void *context;
} Codecs;

/* Makes them ready for a thread, from the addresses of their functions. */
Codecs begin_codecs(const int64_t *functions);

/* Gives back what a thread needed. */
void end_codecs(Codecs *codecs);

/* Whether the stored bytes decompress to exactly `nbytes`. Nothing is written past them. */
int decompress(
    Codecs *codecs, int64_t codec, const char *data, int64_t size, char *target, int64_t nbytes);

#endif
