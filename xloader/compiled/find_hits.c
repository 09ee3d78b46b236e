/* Finds the parts of blocks that the windows of rows take. xloader/engine/overlaps.py describes them,
   and does the same with NumPy. Python's lock is free meanwhile. */

#include "divide.h"
#include "export.h"

#include <string.h>

/* As many as a NumPy array may have dimensions: overlaps.py asks for no more. */
#define MOST_DIMS 64

/* Rows that are looked at together, dimension by dimension. */
#define NUM_TOGETHER 256

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
    return number < 0 ? -((divisor - 1 - number) / divisor) : quotient_of(number, divisor);
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

/* Where the hits go: columns of `capacity` numbers, and how many hits there are, which may be more. */
typedef struct {
    int64_t *table, capacity, num;
} Found;

static int64_t *column_of(const Found *found, int64_t column) {
    return found->table + column * found->capacity + found->num;
}

/* Finds the block of each window's first element. */
static void find_blocks(const Dim *dim, const int64_t *windows, int64_t num, int64_t *blocks) {
    /* A copy, because `blocks` might lie over it, for all that the compiler knows. */
    const Dim copy = *dim;
    for (int64_t i = 0; i < num; i++)
        blocks[i] = copy.num_blocks == 1 ? 0 : block_of(&copy, windows[i] + copy.offset);
}

/* Finds what rows take along one dimension, if the first and the last element of each are in one
   block. Otherwise returns 0, and what was written does not count. `found` has room for the rows. */
static int64_t find_within_dim(
    const Dim *dim, int64_t d, int64_t num_dims, const int64_t *windows, int64_t num,
    const Found *found) {
    int64_t *blocks = column_of(found, 1), *wholes = column_of(found, 2);
    int64_t *lows = column_of(found, 3 + d), *sizes = column_of(found, 3 + num_dims + d);
    int64_t *begins = column_of(found, 3 + 2 * num_dims + d);
    int64_t *extents = column_of(found, 3 + 3 * num_dims + d);
    const int64_t *edges = edges_of(dim), reach = dim->step * (dim->count - 1);
    int64_t numbers[NUM_TOGETHER], is_beyond = 0;
    find_blocks(dim, windows, num, numbers);
    for (int64_t i = 0; i < num; i++) {
        const int64_t edge = edges[numbers[i]], extent = edges[numbers[i] + 1] - edge;
        const int64_t begin = windows[i] + dim->offset - edge;
        lows[i] = 0;
        sizes[i] = dim->count;
        begins[i] = begin;
        extents[i] = extent;
        blocks[i] = blocks[i] * dim->num_blocks + numbers[i];
        wholes[i] &= extent == dim->count;
        is_beyond |= (begin < 0) | (begin + reach >= extent);
    }
    return !is_beyond;
}

/* Finds the hits of rows, if each lies within one block. Otherwise returns 0. It goes through them
   dimension by dimension, which takes half the time of row by row. */
static int64_t find_within(
    const Dim *dims, int64_t num_dims, const int64_t *firsts, int64_t num_rows, int64_t row,
    int64_t num, Found *found) {
    if (found->num + num > found->capacity)
        return 0;
    int64_t *rows = column_of(found, 0), *blocks = column_of(found, 1), *wholes = column_of(found, 2);
    for (int64_t i = 0; i < num; i++) {
        rows[i] = row + i;
        blocks[i] = 0;
        wholes[i] = 1;
    }
    for (int64_t d = 0; d < num_dims; d++)
        if (!dims[d].is_there)
            for (int64_t part = 0; part < 4; part++)
                memset(column_of(found, 3 + part * num_dims + d), 0, (size_t)num * sizeof(int64_t));
        else if (!find_within_dim(&dims[d], d, num_dims, firsts + d * num_rows + row, num, found))
            return 0;
    found->num += num;
    return 1;
}

/* Finds the hits of one row. */
static void find_row(
    const Dim *dims, int64_t num_dims, const int64_t *firsts, int64_t num_rows, int64_t row,
    Found *found) {
    int64_t at[MOST_DIMS], low[MOST_DIMS], high[MOST_DIMS];
    Part parts[MOST_DIMS];
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
        if (is_hit && found->num < found->capacity) {
            *column_of(found, 0) = row;
            *column_of(found, 1) = block;
            *column_of(found, 2) = is_whole;
            for (int64_t d = 0; d < num_dims; d++) {
                *column_of(found, 3 + d) = parts[d].low;
                *column_of(found, 3 + num_dims + d) = parts[d].size;
                *column_of(found, 3 + 2 * num_dims + d) = parts[d].begin;
                *column_of(found, 3 + 3 * num_dims + d) = parts[d].extent;
            }
        }
        found->num += is_hit;
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

/* Writes the hits of all rows, in order, to columns of `capacity` numbers. `firsts` has a column of
   `num_rows` numbers for each dimension. Returns how many hits there are, which may be more than were
   written. */
EXPORT int64_t xloader_find_hits(
    const Dim *dims, int64_t num_dims, const int64_t *firsts, int64_t num_rows, int64_t *table,
    int64_t capacity) {
    Found found = {table, capacity, 0};
    for (int64_t row = 0; row < num_rows; row += NUM_TOGETHER) {
        const int64_t left = num_rows - row, num = left < NUM_TOGETHER ? left : NUM_TOGETHER;
        if (find_within(dims, num_dims, firsts, num_rows, row, num, &found))
            continue;
        for (int64_t i = 0; i < num; i++)
            find_row(dims, num_dims, firsts, num_rows, row + i, &found);
    }
    return found.num;
}
