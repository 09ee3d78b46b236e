/* What native threads carry out: the tables of a run, which are made once, and the segments of its
   program, which follow one after the other. xloader/engine/tables.py and program.py make them, and
   describe every column.

   All tables hold whole numbers. `numbers` holds lists of them, which other tables point into, and
   `text` the names of files. */

#ifndef XLOADER_PROGRAM_H
#define XLOADER_PROGRAM_H

#include <stdint.h>

/* The most windowed dimensions, and the most dimensions of a variable. */
#define MOST_PROGRAM_DIMS 16

/* Variables whose chunks are needed together. `extents` is where the sizes of blocks begin along each
   windowed dimension, or -1 along one that the group lacks. `is_native` tells whether native threads read
   and decode any of its chunks, and `is_fetched` whether Python fetches them before their blocks have memory. */
typedef struct {
    int64_t first_demand, num_demands, num_parts, first_kind, num_kinds, counts, edges;
    int64_t is_native, is_fetched;
} Group;

/* Variables of a group whose parts of a block lie side by side: the first of them, and how many. */
typedef struct {
    int64_t demand, num;
} Kind;

/* A variable: how its chunks are stored, and where its part of a block lies, or where it goes in a row
   of a batch if it may be decoded there. `is_native` tells whether native threads decode its chunks. */
typedef struct {
    int64_t is_native, codec, itemsize, first_axis, num_axes, num_parts, kind, number, order;
    int64_t prefix, separator, shards;
    int64_t has_rows, row_array, row_offset, row_step, row_steps;
} Demand;

/* A dimension of a variable: its windowed dimension, or -1 if it is taken whole; then per block where
   it begins, its stored chunk, the first element taken of that, and the size of that; and the step
   between elements taken. */
typedef struct {
    int64_t dim, num, edges, chunks, firsts, stored, step;
} StoredAxis;

/* How chunks of a variable lie in shards, all of one shape. */
typedef struct {
    int64_t counts, num_shards, num_chunks, index_nbytes, is_at_start, is_checked, fewest_nbytes;
    int64_t object_counts;
} Sharding;

/* The variables of a group that some fields take alike. */
typedef struct {
    int64_t group, first_stack, num_stacks;
} Route;

/* Variables side by side, in blocks and in batches, that are copied together. `layout` is as in
   field_places.py. */
typedef struct {
    int64_t layout, lookup, array, offset, kind, number;
} Stack;

/* `array_nbytes` is where the sizes of the arrays of a batch are listed. */
typedef struct {
    int64_t num_dims, num_arrays, array_nbytes, is_resident, num_groups, num_kinds, num_demands, num_axes;
    int64_t num_shardings, num_routes, num_stacks, num_numbers, num_text;
    const Group *groups;
    const Kind *kinds;
    const Demand *demands;
    const StoredAxis *axes;
    const Sharding *shardings;
    const Route *routes;
    const Stack *stacks;
    const int64_t *numbers;
    const char *text;
    /* Of the codecs, as in compiled_decoding.py. */
    const int64_t *functions;
} Tables;

/* A block to load: of which group, its number there, and its decoded bytes; then the batch of the
   segment and the row that it is decoded into, or -1 for memory of its own; where it lies, if it is
   there from an earlier run, or else 0; the decoded bytes of its chunks, not cut down; and the row of the
   segment that is the first to need it, or -1. */
typedef struct {
    int64_t group, block, nbytes, batch, row, address, read_nbytes, first_row;
} LoadRow;

/* The parts of a copy: numbers of the load and of the route, the batch within the segment and the row
   in it; then along each windowed dimension the first element of the window, the number of elements,
   and the first element of the block. */
#define COPY_LOAD 0
#define COPY_ROUTE 1
#define COPY_BATCH 2
#define COPY_ROW 3
#define COPY_LOWS 4

/* Successive batches: which blocks are loaded because of them, what is copied into each, and which
   blocks no later segment needs. Loads are numbered from `first_load` on. */
typedef struct {
    int64_t first_load, num_loads, first_batch, num_batches, num_copies, num_ends;
    const LoadRow *loads;
    /* In the order of the batches. */
    const int32_t *copies;
    /* Of each batch, the end of its copies, and whether Python finishes it. */
    const int64_t *copy_ends, *is_finished;
    const int64_t *ends;
} SegmentRows;

/* How numbers are converted, as in field_places.py. */
enum { SAME = 0, CONVERT = 1, LOOK_UP = 2 };

/* Types of numbers, in the order of field_places.py. */
enum { INT8, UINT8, INT16, UINT16, INT32, UINT32, INT64, UINT64, FLOAT32, FLOAT64 };

/* How stored numbers become values: as `wide`, NaN in place of each fill, times the scale, plus the offset,
   and then as `to`. `Packing` in xloader/core/packing.py says in which precision each step is. */
typedef struct {
    int64_t from, wide, to, num_fills, has_scale, has_offset, is_scale_double, is_offset_double;
    double scale, offset, fills[];
} Conversion;

#endif
