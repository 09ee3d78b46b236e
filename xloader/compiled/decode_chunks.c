/* Decompresses several chunks in one call, and puts each where its values belong.

   xloader/sources/zarr/compiled_decoding.py describes the arguments. */

#include "codecs.h"
#include "copy_box.h"
#include "export.h"

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

/* Each row of `chunks` holds: codec, address and size of the stored bytes, decoded bytes, bytes of
   an element, target, number of loops, offset of the first element in the decoded bytes; then for
   each loop its count and its steps in bytes, in the chunk and in the target. Without loops the
   whole chunk is decompressed into the target. With some, it is first decompressed into `scratch`,
   which has room for each of these chunks; one that is not compressed is copied from where it lies.
   The codec becomes DONE where a chunk is decoded. The caller tells what is wrong with the others.
   Returns the number of chunks that are decoded. */
EXPORT int64_t xloader_decode_chunks(
    int64_t *chunks, int64_t row_size, int64_t num, const int64_t *functions, char *scratch) {
    Codecs codecs = begin_codecs(functions);
    int64_t num_done = 0;
    for (int64_t at = 0; at < num; at++)
        num_done += decode_chunk(&codecs, chunks + at * row_size, scratch);
    end_codecs(&codecs);
    return num_done;
}
