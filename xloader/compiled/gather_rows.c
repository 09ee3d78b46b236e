/* Copies the parts of decoded blocks that rows of a batch take, for many rows in one call.

   Python's lock is free meanwhile: the function is called through ctypes, and knows nothing of
   Python. xloader/engine/compiled_gather.py describes the arguments. */

#include "copy_box.h"
#include "export.h"

EXPORT void xloader_gather(
    const int64_t *layout, const char *table, char *target, const int64_t *hits, int64_t row_size,
    int64_t num_hits, int64_t shift, const int64_t *addresses) {
    const int64_t conversion = layout[0], size_from = layout[1], size_to = layout[2];
    const int64_t num_dims = layout[3], num_outer = layout[4], num_axes = layout[5];
    const int64_t row_stride = layout[6];
    const int64_t *outer = layout + 7;
    const int64_t *axes = outer + 2 * num_outer;
    const int64_t *los = hits + 3 * row_size, *sizes = los + num_dims * row_size;
    const int64_t *begins = sizes + num_dims * row_size, *extents = begins + num_dims * row_size;
    for (int64_t hit = 0; hit < num_hits; hit++) {
        Loop loops[MOST_LOOPS];
        const char *from = (const char *)(intptr_t)addresses[hit];
        char *to = target + (hits[hit] - shift) * row_stride;
        int64_t stride = size_from;
        for (int64_t axis = num_axes - 1; axis >= 0; axis--) {
            const int64_t dim = axes[4 * axis], step = axes[4 * axis + 1];
            const int64_t to_stride = axes[4 * axis + 3];
            Loop *loop = &loops[num_outer + axis];
            loop->to = to_stride;
            loop->from = stride * step;
            if (dim < 0) {
                loop->count = axes[4 * axis + 2];
                stride *= loop->count;
                continue;
            }
            const int64_t at = dim * row_size + hit;
            loop->count = sizes[at];
            from += begins[at] * stride;
            to += los[at] * to_stride;
            stride *= extents[at];
        }
        for (int64_t i = 0; i < num_outer; i++) {
            loops[i].count = outer[2 * i];
            /* The first of these goes over variables, which follow each other in the block. Along
               the others one value fills several elements. */
            loops[i].from = i ? 0 : stride;
            loops[i].to = outer[2 * i + 1];
        }
        const int64_t num = simplify(loops, num_outer + num_axes, size_from, size_to);
        if (num)
            copy_box(conversion, loops, num, from, to, size_from, size_to, table);
    }
}
