/* Finds the parts of blocks that the windows of rows take. xloader/engine/overlaps.py describes them,
   and does the same with NumPy. Python's lock is free meanwhile. */

#include "export.h"

/* As many as a NumPy array may have dimensions: overlaps.py asks for no more. */
#define MOST_DIMS 64

/* A windowed dimension, as overlaps.py lays it out. If `chunk` is 0, blocks are found among their
   edges. */
typedef struct {
    int64_t is_there, offset, step, count, num_blocks, scale, shift, chunk, edges;
} Dim;

/* What a row takes of one block along one dimension. */
typedef struct {
    int64_t low, size, begin, extent;
} Part;

static int64_t floor_of(int64_t number, int64_t divisor) {
    if (divisor == 1)
        return number;
    /* Processors divide small numbers several times as fast. */
    if (!((number | divisor) >> 32))
        return (uint32_t)number / (uint32_t)divisor;
    const int64_t quotient = number / divisor;
    return quotient - (number % divisor < 0);
}

static const int64_t *edges_of(const Dim *dim) { return (const int64_t *)(intptr_t)dim->edges; }

static int64_t block_of(const Dim *dim, int64_t element) {
    if (dim->chunk)
        return floor_of(element * dim->scale + dim->shift, dim->chunk);
    const int64_t *edges = edges_of(dim);
    int64_t low = 0, high = dim->num_blocks;
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        if (edges[middle] <= element)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static Part part_of(const Dim *dim, int64_t window, int64_t block) {
    const int64_t *edges = edges_of(dim);
    const int64_t extent = edges[block + 1] - edges[block];
    const int64_t first = window + dim->offset - edges[block];
    int64_t low = -floor_of(first, dim->step);
    if (low < 0)
        low = 0;
    int64_t end = -floor_of(first - extent, dim->step);
    if (end > dim->count)
        end = dim->count;
    return (Part){low, end - low, first + low * dim->step, extent};
}

/* Writes the hits of all rows, in order, to columns of `capacity` numbers. `firsts` has a column of
   `num_rows` numbers for each dimension. Returns how many hits there are, which may be more than were
   written. */
EXPORT int64_t xloader_find_hits(
    const Dim *dims, int64_t num_dims, const int64_t *firsts, int64_t num_rows, int64_t *table,
    int64_t capacity) {
    int64_t at[MOST_DIMS], low[MOST_DIMS], high[MOST_DIMS];
    Part parts[MOST_DIMS];
    int64_t num = 0;
    for (int64_t row = 0; row < num_rows; row++) {
        for (int64_t d = 0; d < num_dims; d++) {
            const Dim *dim = &dims[d];
            if (!dim->is_there) {
                low[d] = high[d] = 0;
            } else {
                const int64_t first = firsts[d * num_rows + row] + dim->offset;
                const int64_t last = first + dim->step * (dim->count - 1);
                low[d] = high[d] = block_of(dim, first);
                if (last >= edges_of(dim)[low[d] + 1])
                    high[d] = block_of(dim, last);
            }
            at[d] = low[d];
        }
        for (int64_t changed = 0; changed >= 0;) {
            int64_t block = 0, is_hit = 1, is_whole = 1;
            for (int64_t d = 0; d < num_dims; d++) {
                const Dim *dim = &dims[d];
                if (!dim->is_there) {
                    parts[d] = (Part){0, 0, 0, 0};
                    continue;
                }
                if (d >= changed)
                    parts[d] = part_of(dim, firsts[d * num_rows + row], at[d]);
                block = block * dim->num_blocks + at[d];
                is_hit &= parts[d].size > 0;
                is_whole &= parts[d].size == dim->count && parts[d].extent == dim->count;
            }
            if (is_hit && num < capacity) {
                int64_t *column = table + num;
                column[0] = row;
                column[capacity] = block;
                column[2 * capacity] = is_whole;
                for (int64_t d = 0; d < num_dims; d++) {
                    column = table + num + (3 + d) * capacity;
                    column[0] = parts[d].low;
                    column[num_dims * capacity] = parts[d].size;
                    column[2 * num_dims * capacity] = parts[d].begin;
                    column[3 * num_dims * capacity] = parts[d].extent;
                }
            }
            num += is_hit;
            for (changed = num_dims - 1; changed >= 0; changed--) {
                if (at[changed] < high[changed]) {
                    at[changed]++;
                    break;
                }
                at[changed] = low[changed];
            }
            /* All inner dimensions began anew, so their parts are found anew as well. */
        }
    }
    return num;
}
