/* Decompresses several chunks in one call, and puts each where its values belong.

   The functions that decompress are those of numcodecs. They are given by their addresses.
   xloader/sources/zarr/compiled_decoding.py describes the arguments. */

#include "copy_box.h"
#include "export.h"
#include "helpers.h"

#include <stdatomic.h>

/* Codecs, as in compiled_decoding.py, where others are UNKNOWN; and what is told of a chunk that is
   decoded. */
enum { UNKNOWN = -2, DONE = -1, RAW = 0, ZSTD = 1, BLOSC = 2 };

typedef void *(*MakeContext)(void);
typedef size_t (*FreeContext)(void *);
typedef size_t (*DecompressZstd)(void *, void *, size_t, const void *, size_t);
typedef int (*DecompressBlosc)(const void *, void *, size_t, int);

typedef struct {
    MakeContext make;
    FreeContext free;
    DecompressZstd unzstd;
    DecompressBlosc unblosc;
    void *context;
} Codecs;

#define BLOSC_HEADER 16

/* Contexts of zstd that no call uses now. To make one takes 160 KB of fresh memory. As many are kept
   as threads have decoded at a time, and not freed. */
#define MOST_UNUSED 64
static void *_Atomic unused[MOST_UNUSED];

static void *take_context(const Codecs *codecs) {
    for (int i = 0; i < MOST_UNUSED; i++) {
        void *context = atomic_exchange(&unused[i], NULL);
        if (context)
            return context;
    }
    return codecs->make();
}

static void give_back(const Codecs *codecs) {
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

/* Whether the stored bytes decompress to exactly `nbytes`. Nothing is written past them. */
static int decompress(
    Codecs *codecs, int64_t codec, const char *data, int64_t size, char *target, int64_t nbytes) {
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

typedef struct {
    int64_t *chunks;
    int64_t row_size, num;
    const int64_t *functions;
    char *scratch;
    atomic_flag is_scratch_taken;
    _Atomic int64_t next, num_done;
} Chunks;

static int decode_chunk(Codecs *codecs, int64_t *row, char *scratch) {
    const char *data = (const char *)(intptr_t)row[1];
    char *target = (char *)(intptr_t)row[5];
    const int64_t size = row[2], nbytes = row[3], itemsize = row[4], num_loops = row[6];
    char *decoded = num_loops ? scratch : target;
    const int is_there = row[0] == RAW && num_loops && size == nbytes;
    if (!is_there && !decompress(codecs, row[0], data, size, decoded, nbytes))
        return 0;
    row[0] = DONE;
    if (num_loops) {
        Loop loops[MOST_LOOPS];
        memcpy(loops, row + 8, (size_t)num_loops * sizeof(Loop));
        const int64_t kept = simplify(loops, num_loops, itemsize, itemsize);
        if (kept)
            copy_box(
                SAME, loops, kept, (is_there ? data : decoded) + row[7], target, itemsize,
                itemsize, 0);
    }
    return 1;
}

static void decode_some(void *context) {
    Chunks *chunks = context;
    const int64_t *functions = chunks->functions;
    Codecs codecs = {
        (MakeContext)(intptr_t)functions[0], (FreeContext)(intptr_t)functions[1],
        (DecompressZstd)(intptr_t)functions[2], (DecompressBlosc)(intptr_t)functions[3], 0};
    /* One thread has the scratch memory, and decodes all chunks with loops. */
    if (!atomic_flag_test_and_set(&chunks->is_scratch_taken))
        for (int64_t at = 0; at < chunks->num; at++) {
            int64_t *row = chunks->chunks + at * chunks->row_size;
            if (row[6])
                chunks->num_done += decode_chunk(&codecs, row, chunks->scratch);
        }
    for (;;) {
        const int64_t at = atomic_fetch_add(&chunks->next, 1);
        if (at >= chunks->num)
            break;
        int64_t *row = chunks->chunks + at * chunks->row_size;
        if (!row[6])
            chunks->num_done += decode_chunk(&codecs, row, chunks->scratch);
    }
    if (codecs.context)
        give_back(&codecs);
}

/* Each row of `chunks` holds: codec, address and size of the stored bytes, decoded bytes, bytes of
   an element, target, number of loops, offset of the first element in the decoded bytes; then for
   each loop its count and its steps in bytes, in the chunk and in the target. Without loops the
   whole chunk is decompressed into the target. With some, it is first decompressed into `scratch`,
   which has room for each of these chunks; one that is not compressed is copied from where it lies.
   The codec becomes DONE where a chunk is decoded. The caller tells what is wrong with the others.
   Helpers decode some of the chunks without loops. Returns the number of chunks that are decoded. */
EXPORT int64_t xloader_decode_chunks(
    int64_t *chunks, int64_t row_size, int64_t num, const int64_t *functions, char *scratch) {
    Chunks own = {
        .chunks = chunks,
        .row_size = row_size,
        .num = num,
        .functions = functions,
        .scratch = scratch,
        .is_scratch_taken = ATOMIC_FLAG_INIT,
    };
    /* Not beyond what is worth all chunks: sizes of chunks far larger than memory would overflow. */
    int64_t nbytes = 0;
    for (int64_t at = 0; at < num && nbytes / SHARE_NBYTES < num; at++)
        nbytes += chunks[at * row_size + 3];
    const int64_t shares = nbytes / SHARE_NBYTES;
    share_work(decode_some, &own, (shares < num ? shares : num) - 1);
    return own.num_done;
}
