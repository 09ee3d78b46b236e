/* Finds the ids of samples by their ranks within boxes of window positions. `Boxes.ids_of` in
   xloader/core/boxes.py describes it, and does the same with NumPy. Python's lock is free
   meanwhile. */

#include "divide.h"
#include "export.h"

/* `sizes` has a column of `num_boxes` numbers for each dimension but the first, the last dimension
   first; `weights` the number of ids between neighbours along each, and then along the first. */
EXPORT int64_t xloader_find_ids(
    const int64_t *lowest, const int64_t *sizes, const int64_t *weights, int64_t num_inner,
    int64_t num_boxes, const int64_t *which, const int64_t *ranks, int64_t num, int64_t *ids) {
    for (int64_t i = 0; i < num; i++) {
        const int64_t box = which[i];
        int64_t rank = ranks[i], id = lowest[box];
        for (int64_t d = 0; d < num_inner; d++) {
            const int64_t size = sizes[d * num_boxes + box], above = quotient_of(rank, size);
            id += (rank - above * size) * weights[d];
            rank = above;
        }
        ids[i] = id + rank * weights[num_inner];
    }
    return num;
}
