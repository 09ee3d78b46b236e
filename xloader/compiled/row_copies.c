/* Copies the parts of decoded blocks that rows take into batches. */

#include "row_copies.h"
#include "copy_box.h"
#include "divide.h"

#include <stdlib.h>

/* The memory of copies of at most FEW_LINES cache lines is asked for FAR_AHEAD copies before. Larger
   ones would drive each other out of the cache. Those of up to MANY_LINES are asked for SHORTLY_AHEAD,
   and the processor foresees still larger ones by itself. */
#define FEW_LINES 8
#define MANY_CACHE_LINES 64

/* How a stack is copied, for the sizes and extents that the last copy of it had. `from` and `to` are
   the bytes between neighbours along each windowed dimension. */
typedef struct {
    int32_t sizes[MOST_PROGRAM_DIMS];
    int64_t extents[MOST_PROGRAM_DIMS], from[MOST_PROGRAM_DIMS], to[MOST_PROGRAM_DIMS];
    int64_t offset, num, distance, is_known;
    Loop loops[MOST_LOOPS];
} Shape;

struct Copier {
    const Tables *tables;
    int64_t group, block;
    /* The distances at which some stack is asked for. */
    int64_t distances;
    int64_t extents[MOST_PROGRAM_DIMS];
    Shape shapes[];
};

Copier *make_copier(const Tables *tables) {
    Copier *copier = calloc(1, sizeof(Copier) + (size_t)tables->num_stacks * sizeof(Shape));
    if (copier) {
        copier->tables = tables;
        copier->group = -1;
    }
    return copier;
}

void drop_copier(Copier *copier) { free(copier); }

void find_extents(const Tables *tables, int64_t group, int64_t block, int64_t *extents) {
    const Group *own = &tables->groups[group];
    const int64_t *counts = tables->numbers + own->counts, *edges = tables->numbers + own->edges;
    for (int64_t d = tables->num_dims - 1; d >= 0; d--) {
        const int64_t above = quotient_of(block, counts[d]), at = block - above * counts[d];
        block = above;
        const int64_t *dim_edges = tables->numbers + edges[d];
        extents[d] = edges[d] < 0 ? 0 : dim_edges[at + 1] - dim_edges[at];
    }
}

int64_t part_nbytes(const Tables *tables, const Demand *demand, const int64_t *extents) {
    int64_t nbytes = demand->itemsize;
    for (int64_t i = 0; i < demand->num_axes; i++) {
        const StoredAxis *axis = &tables->axes[demand->first_axis + i];
        nbytes *= axis->dim < 0 ? tables->numbers[axis->edges + axis->num] : extents[axis->dim];
    }
    return nbytes;
}

int64_t find_kind(
    const Tables *tables, const Group *group, int64_t kind, const int64_t *extents) {
    int64_t offset = 0;
    for (int64_t i = group->first_kind; i < kind; i++) {
        const Kind *own = &tables->kinds[i];
        offset += own->num * part_nbytes(tables, &tables->demands[own->demand], extents);
    }
    return offset;
}

/* Finds the loops of a stack for new sizes and extents. */
static void find_loops(Copier *copier, const Stack *stack, Shape *shape, const int32_t *sizes) {
    const Tables *tables = copier->tables;
    const int64_t *layout = tables->numbers + stack->layout;
    const int64_t size_from = layout[1], size_to = layout[2];
    const int64_t num_outer = layout[4], num_axes = layout[5];
    const int64_t *outer = layout + 7, *axes = outer + 2 * num_outer;
    const Kind *kind = &tables->kinds[stack->kind];
    const Group *group = &tables->groups[copier->group];
    int64_t stride = size_from;
    for (int64_t d = 0; d < tables->num_dims; d++) {
        shape->sizes[d] = sizes[d];
        shape->extents[d] = copier->extents[d];
        shape->from[d] = shape->to[d] = 0;
    }
    for (int64_t i = num_axes - 1; i >= 0; i--) {
        const int64_t dim = axes[4 * i], step = axes[4 * i + 1], to = axes[4 * i + 3];
        int64_t count = axes[4 * i + 2], extent = count;
        if (dim >= 0) {
            shape->from[dim] = stride;
            shape->to[dim] = to;
            count = sizes[dim];
            extent = copier->extents[dim];
        }
        shape->loops[num_outer + i] = (Loop){count, stride * step, to};
        stride *= extent;
    }
    /* The first of these goes over variables, which follow each other in the block. Along the
       others one value fills several elements. */
    for (int64_t i = 0; i < num_outer; i++)
        shape->loops[i] = (Loop){outer[2 * i], i ? 0 : stride, outer[2 * i + 1]};
    shape->num = simplify(shape->loops, num_outer + num_axes, size_from, size_to);
    shape->offset = find_kind(tables, group, stack->kind, copier->extents) +
                    stack->number * part_nbytes(tables, &tables->demands[kind->demand], copier->extents);
    const int64_t num_lines = count_lines(shape->loops, shape->num, size_from);
    shape->distance = num_lines <= FEW_LINES          ? FAR_AHEAD
                      : num_lines <= MANY_CACHE_LINES ? SHORTLY_AHEAD
                                                      : 0;
    copier->distances |= shape->distance;
    shape->is_known = 1;
}

static int is_same(const Copier *copier, const Shape *shape, const int32_t *sizes) {
    if (!shape->is_known)
        return 0;
    for (int64_t d = 0; d < copier->tables->num_dims; d++)
        if (shape->sizes[d] != sizes[d] || shape->extents[d] != copier->extents[d])
            return 0;
    return 1;
}

int is_asked_for(const Copier *copier, int64_t distance) {
    return (copier->distances & distance) != 0;
}

void ask_for_copy(Copier *copier, const int32_t *copy, const char *memory, int64_t distance) {
    const Tables *tables = copier->tables;
    const Route *route = &tables->routes[copy[COPY_ROUTE]];
    const int32_t *begins = copy + COPY_LOWS + 2 * tables->num_dims;
    for (int64_t i = 0; i < route->num_stacks; i++) {
        /* The shape of the last copy is a good guess, and a wrong one does no harm. */
        const Shape *shape = &copier->shapes[route->first_stack + i];
        if (!shape->is_known || shape->distance != distance || !shape->num)
            continue;
        const char *source = memory + shape->offset;
        for (int64_t d = 0; d < tables->num_dims; d++)
            source += begins[d] * shape->from[d];
        const Loop *inner = &shape->loops[shape->num - 1];
        const int64_t hop = hop_of(inner);
        const int64_t num_outer = shape->num > 1 ? shape->loops[shape->num - 2].count : 1;
        const int64_t step = shape->num > 1 ? shape->loops[shape->num - 2].from : 0;
        for (int64_t j = 0; j < num_outer; j++)
            for (int64_t k = 0; k < inner->count * inner->from; k += hop)
                ASK_FOR(source + j * step + k);
    }
}

void copy_row(
    Copier *copier, const int32_t *copy, int64_t block, const char *memory, char *const *arrays) {
    const Tables *tables = copier->tables;
    const Route *route = &tables->routes[copy[COPY_ROUTE]];
    const int32_t *lows = copy + COPY_LOWS, *sizes = lows + tables->num_dims;
    const int32_t *begins = sizes + tables->num_dims;
    if (copier->group != route->group || copier->block != block) {
        copier->group = route->group;
        copier->block = block;
        find_extents(tables, route->group, block, copier->extents);
    }
    for (int64_t i = 0; i < route->num_stacks; i++) {
        const Stack *stack = &tables->stacks[route->first_stack + i];
        Shape *shape = &copier->shapes[route->first_stack + i];
        if (!is_same(copier, shape, sizes))
            find_loops(copier, stack, shape, sizes);
        if (!shape->num)
            continue;
        const int64_t *layout = tables->numbers + stack->layout;
        const char *from = memory + shape->offset;
        char *to = arrays[stack->array] + stack->offset + copy[COPY_ROW] * layout[6];
        for (int64_t d = 0; d < tables->num_dims; d++) {
            from += begins[d] * shape->from[d];
            to += lows[d] * shape->to[d];
        }
        copy_box(
            layout[0], shape->loops, shape->num, from, to, layout[1], layout[2],
            (const char *)(intptr_t)stack->lookup);
    }
}
