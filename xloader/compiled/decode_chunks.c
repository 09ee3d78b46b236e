/* Decompresses several chunks in one call, and puts each where its values belong.

   xloader/sources/zarr/compiled_decoding.py describes the arguments. */

#include "codecs.h"
#include "copy_box.h"
#include "export.h"
#include "helpers.h"

#include <stdatomic.h>

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
    Codecs codecs = begin_codecs(chunks->functions);
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
    end_codecs(&codecs);
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
