/* Checks that tables and segments only point to what is there, before anything is done with them. So a
   mistake in what made them cannot lead out of the memory of blocks and batches. */

#include "check_program.h"
#include "row_copies.h"

#include <stddef.h>

#define MOST_LAYOUT_LOOPS 64
#define MOST_NUMBER ((int64_t)1 << 40)
#define MOST_ITEMSIZE 64

static int is_within(int64_t begin, int64_t num, int64_t size) {
    return begin >= 0 && num >= 0 && begin <= size && num <= size - begin;
}

/* Whether a list of so many numbers is there, none below `least` or above `most`. */
static int are_numbers(const Tables *t, int64_t begin, int64_t num, int64_t least, int64_t most) {
    if (!is_within(begin, num, t->num_numbers))
        return 0;
    for (int64_t i = begin; i < begin + num; i++)
        if (t->numbers[i] < least || t->numbers[i] > most)
            return 0;
    return 1;
}

/* Whether edges ascend from 0. */
static int are_edges(const Tables *t, int64_t begin, int64_t num_blocks) {
    if (!are_numbers(t, begin, num_blocks + 1, 0, MOST_NUMBER) || t->numbers[begin])
        return 0;
    for (int64_t i = begin; i < begin + num_blocks; i++)
        if (t->numbers[i] > t->numbers[i + 1])
            return 0;
    return 1;
}

/* The product of two sizes, or more than any size that is allowed. */
static int64_t times(int64_t a, int64_t b) {
    if (a <= 0 || b <= 0)
        return 0;
    return b > MOST_NUMBER / a ? MOST_NUMBER + 1 : a * b;
}

/* Whether numbers are so small that sums of some of them fit. */
static int are_small(const void *table, int64_t num) {
    const int64_t *numbers = table;
    for (int64_t i = 0; i < num; i++)
        if (numbers[i] < -MOST_NUMBER || numbers[i] > MOST_NUMBER)
            return 0;
    return 1;
}

#define ROW_NUMBERS(type) ((int64_t)(sizeof(type) / sizeof(int64_t)))

static int are_all_small(const Tables *t) {
    /* The addresses of tables of values are no numbers. */
    for (int64_t i = 0; i < t->num_stacks; i++)
        if (!are_small(&t->stacks[i].layout, 1) || !are_small(&t->stacks[i].array, 4))
            return 0;
    return are_small(t->groups, t->num_groups * ROW_NUMBERS(Group)) &&
           are_small(t->kinds, t->num_kinds * ROW_NUMBERS(Kind)) &&
           are_small(t->demands, t->num_demands * ROW_NUMBERS(Demand)) &&
           are_small(t->axes, t->num_axes * ROW_NUMBERS(StoredAxis)) &&
           are_small(t->shardings, t->num_shardings * ROW_NUMBERS(Sharding)) &&
           are_small(t->routes, t->num_routes * ROW_NUMBERS(Route)) &&
           are_small(t->numbers, t->num_numbers);
}

/* Whether the elements that a block takes of each chunk are in there. */
static int are_cuts(const Tables *t, const StoredAxis *axis) {
    if (axis->step < 1 || axis->step > MOST_NUMBER ||
        !are_numbers(t, axis->chunks, axis->num, 0, MOST_NUMBER) ||
        !are_numbers(t, axis->firsts, axis->num, 0, MOST_NUMBER) ||
        !are_numbers(t, axis->stored, axis->num, 1, MOST_NUMBER))
        return 0;
    for (int64_t i = 0; i < axis->num; i++) {
        const int64_t *edges = t->numbers + axis->edges + i, count = edges[1] - edges[0];
        if (count && t->numbers[axis->firsts + i] + times(count - 1, axis->step) >=
                         t->numbers[axis->stored + i])
            return 0;
    }
    return 1;
}

static int is_axis(const Tables *t, const Group *group, const StoredAxis *axis, int is_native) {
    if (axis->dim < -1 || axis->dim >= t->num_dims || axis->num < 0 ||
        !are_edges(t, axis->edges, axis->num))
        return 0;
    if (axis->dim >= 0) {
        const int64_t edges = t->numbers[group->edges + axis->dim];
        if (edges < 0 || t->numbers[group->counts + axis->dim] != axis->num)
            return 0;
        for (int64_t i = 0; i <= axis->num; i++)
            if (t->numbers[edges + i] != t->numbers[axis->edges + i])
                return 0;
    }
    return !is_native || are_cuts(t, axis);
}

static int is_sharding(const Tables *t, const Demand *demand) {
    if (demand->shards < 0)
        return demand->shards == -1;
    if (demand->shards >= t->num_shardings)
        return 0;
    const Sharding *own = &t->shardings[demand->shards];
    if (!are_numbers(t, own->counts, demand->num_axes, 1, MOST_NUMBER) ||
        !are_numbers(t, own->object_counts, demand->num_axes, 1, MOST_NUMBER))
        return 0;
    int64_t num_chunks = 1, num_shards = 1;
    for (int64_t i = 0; i < demand->num_axes; i++) {
        const int64_t count = t->numbers[own->counts + i];
        const int64_t objects = t->numbers[own->object_counts + i];
        const StoredAxis *axis = &t->axes[demand->first_axis + i];
        num_chunks = times(num_chunks, count);
        num_shards = times(num_shards, objects);
        for (int64_t j = 0; demand->is_native && j < axis->num; j++)
            if (t->numbers[axis->chunks + j] / count >= objects)
                return 0;
    }
    return num_chunks == own->num_chunks && num_shards == own->num_shards &&
           num_shards <= MOST_NUMBER && num_chunks <= MOST_NUMBER / 32 &&
           own->index_nbytes == 16 * num_chunks + (own->is_checked ? 4 : 0);
}

/* Whether a row of a batch has room for the largest block that a demand is decoded into one. */
static int is_row_target(const Tables *t, const Demand *demand) {
    if (demand->row_step < 0 || demand->row_offset < 0 || demand->row_array < 0 ||
        demand->row_array >= t->num_arrays)
        return 0;
    if (!is_within(demand->row_steps, 0, t->num_numbers))
        return 0;
    return !demand->has_rows ||
           are_numbers(t, demand->row_steps, demand->num_axes, 0, MOST_NUMBER);
}

static int is_demand(const Tables *t, const Group *group, const Demand *own, int64_t *num_parts) {
    if (own->num_axes < 0 || own->num_axes > MOST_PROGRAM_DIMS || own->itemsize < 1 ||
        own->itemsize > MOST_ITEMSIZE || !is_within(own->first_axis, own->num_axes, t->num_axes) ||
        !is_within(own->prefix, 1, t->num_text) ||
        !are_numbers(t, own->order, own->num_axes, 0, own->num_axes - 1))
        return 0;
    int64_t parts = 1, stored = own->itemsize, seen = 0;
    for (int64_t i = 0; i < own->num_axes; i++) {
        const StoredAxis *axis = &t->axes[own->first_axis + i];
        if (!is_axis(t, group, axis, own->is_native != 0))
            return 0;
        parts = axis->dim < 0 ? times(parts, axis->num) : parts;
        int64_t most = 1;
        for (int64_t j = 0; own->is_native && j < axis->num; j++)
            most = t->numbers[axis->stored + j] > most ? t->numbers[axis->stored + j] : most;
        stored = times(stored, most);
        seen |= (int64_t)1 << t->numbers[own->order + i];
    }
    *num_parts += own->num_parts;
    return seen == ((int64_t)1 << own->num_axes) - 1 && parts == own->num_parts &&
           parts <= MOST_NUMBER && stored <= MOST_NUMBER && is_sharding(t, own) &&
           is_row_target(t, own);
}

static int is_group(const Tables *t, const Group *own) {
    int64_t num_parts = 0, num_members = 0;
    if (!is_within(own->first_demand, own->num_demands, t->num_demands) ||
        !is_within(own->first_kind, own->num_kinds, t->num_kinds) || own->num_demands < 1 ||
        !are_numbers(t, own->counts, t->num_dims, 1, MOST_NUMBER) ||
        !are_numbers(t, own->edges, t->num_dims, -1, t->num_numbers))
        return 0;
    int64_t num_blocks = 1;
    for (int64_t d = 0; d < t->num_dims; d++) {
        const int64_t edges = t->numbers[own->edges + d], count = t->numbers[own->counts + d];
        num_blocks = times(num_blocks, count);
        if (edges < 0 ? count != 1 : !are_edges(t, edges, count))
            return 0;
    }
    for (int64_t i = 0; i < own->num_demands; i++) {
        const Demand *demand = &t->demands[own->first_demand + i];
        if (!is_demand(t, own, demand, &num_parts) ||
            !is_within(demand->kind - own->first_kind, 1, own->num_kinds) ||
            !is_within(demand->number, 1, t->kinds[demand->kind].num))
            return 0;
    }
    for (int64_t i = 0; i < own->num_kinds; i++) {
        const Kind *kind = &t->kinds[own->first_kind + i];
        if (kind->num < 1 || !is_within(kind->demand - own->first_demand, 1, own->num_demands))
            return 0;
        num_members += kind->num;
    }
    return num_parts == own->num_parts && num_members == own->num_demands &&
           num_blocks <= MOST_NUMBER;
}

static int is_alike(const Tables *t, const Demand *a, const Demand *b) {
    if (a->itemsize != b->itemsize || a->num_axes != b->num_axes)
        return 0;
    for (int64_t i = 0; i < a->num_axes; i++) {
        const StoredAxis *one = &t->axes[a->first_axis + i], *other = &t->axes[b->first_axis + i];
        const int64_t size = t->numbers[one->edges + one->num];
        if (one->dim != other->dim ||
            (one->dim < 0 && size != t->numbers[other->edges + other->num]) ||
            t->numbers[a->order + i] != t->numbers[b->order + i])
            return 0;
    }
    return 1;
}

static int is_conversion(const Conversion *own, int64_t size_from, int64_t size_to) {
    static const int64_t sizes[] = {1, 1, 2, 2, 4, 4, 8, 8, 4, 8};
    const int is_float = own->wide == FLOAT32 || own->wide == FLOAT64;
    return is_within(own->from, 1, FLOAT64 + 1) && is_within(own->to, 1, FLOAT64 + 1) &&
           sizes[own->from] == size_from && sizes[own->to] == size_to && own->num_fills >= 0 &&
           (is_float ? own->to >= FLOAT32 : own->to < FLOAT32 && own->from < FLOAT32);
}

static int is_stack(const Tables *t, const Route *route, const Stack *own) {
    const Group *group = &t->groups[route->group];
    if (!is_within(own->kind - group->first_kind, 1, group->num_kinds) ||
        !is_within(own->array, 1, t->num_arrays) || own->offset < 0 ||
        !is_within(own->layout, 7, t->num_numbers))
        return 0;
    const int64_t *layout = t->numbers + own->layout;
    const Kind *kind = &t->kinds[own->kind];
    const Demand *demand = &t->demands[kind->demand];
    const int64_t conversion = layout[0], num_outer = layout[4], num_axes = layout[5];
    if (num_outer < 1 || num_axes != demand->num_axes || num_outer + num_axes > MOST_LAYOUT_LOOPS ||
        !is_within(own->layout, 7 + 2 * num_outer + 4 * num_axes, t->num_numbers) ||
        layout[1] != demand->itemsize || layout[2] < 1 || layout[2] > MOST_ITEMSIZE ||
        layout[3] != t->num_dims || layout[6] < 0 || layout[6] > MOST_NUMBER)
        return 0;
    if (conversion == SAME ? layout[1] != layout[2]
        : !own->lookup     ? 1
        : conversion == CONVERT
            ? !is_conversion((const Conversion *)(intptr_t)own->lookup, layout[1], layout[2])
            : conversion != LOOK_UP || layout[1] > 2 || (layout[2] != 4 && layout[2] != 8))
        return 0;
    int64_t last = 0;
    for (int64_t i = 0; i < num_outer; i++) {
        const int64_t count = layout[7 + 2 * i], step = layout[8 + 2 * i];
        if (count < 1 || step < 0 || (!i && !is_within(own->number, count, kind->num)))
            return 0;
        last += times(count - 1, step);
    }
    for (int64_t i = 0; i < num_axes; i++) {
        const int64_t *row = layout + 7 + 2 * num_outer + 4 * i;
        const StoredAxis *axis = &t->axes[demand->first_axis + t->numbers[demand->order + i]];
        if (row[0] != axis->dim || row[1] < 1 || row[3] < 0 || row[3] > MOST_NUMBER ||
            (row[0] < 0 && (row[1] != 1 || row[2] != t->numbers[axis->edges + axis->num])))
            return 0;
        last += row[0] < 0 ? times(row[2] - 1, row[3]) : 0;
    }
    return last >= 0 && last <= MOST_NUMBER && own->offset <= MOST_NUMBER;
}

EXPORT int64_t xloader_check_tables(const Tables *t) {
    if (t->num_dims < 0 || t->num_dims > MOST_PROGRAM_DIMS || t->num_arrays < 0 ||
        t->num_text < 1 || t->text[t->num_text - 1] || !are_all_small(t) ||
        !are_numbers(t, t->array_nbytes, t->num_arrays, 0, MOST_NUMBER))
        return 0;
    for (int64_t i = 0; i < t->num_groups; i++)
        if (!is_group(t, &t->groups[i]))
            return 0;
    for (int64_t i = 0; i < t->num_demands; i++)
        if (!is_within(t->demands[i].kind, 1, t->num_kinds) ||
            !is_alike(t, &t->demands[i], &t->demands[t->kinds[t->demands[i].kind].demand]))
            return 0;
    for (int64_t i = 0; i < t->num_routes; i++) {
        const Route *route = &t->routes[i];
        if (!is_within(route->group, 1, t->num_groups) ||
            !is_within(route->first_stack, route->num_stacks, t->num_stacks))
            return 0;
        for (int64_t j = 0; j < route->num_stacks; j++)
            if (!is_stack(t, route, &t->stacks[route->first_stack + j]))
                return 0;
    }
    return 1;
}

/* Whether a demand has room for a block in the row of a batch. */
static int fits_row(const Tables *t, const Demand *demand, const int64_t *extents, int64_t row) {
    if (!demand->has_rows)
        return 0;
    int64_t last = demand->row_offset + times(row, demand->row_step) + demand->itemsize;
    for (int64_t i = 0; i < demand->num_axes; i++) {
        const StoredAxis *axis = &t->axes[demand->first_axis + i];
        const int64_t size = axis->dim < 0 ? t->numbers[axis->edges + axis->num] : extents[axis->dim];
        last += times(size - 1, t->numbers[demand->row_steps + i]);
    }
    return last <= t->numbers[t->array_nbytes + demand->row_array];
}

static int is_load(const Tables *t, const SegmentRows *rows, const LoadRow *own) {
    if (!is_within(own->group, 1, t->num_groups) || own->batch < -1 || own->read_nbytes < 0 ||
        own->read_nbytes > MOST_NUMBER ||
        own->batch >= rows->num_batches || own->row < 0 || own->row > MOST_NUMBER)
        return 0;
    const Group *group = &t->groups[own->group];
    int64_t extents[MOST_PROGRAM_DIMS], num_blocks = 1;
    for (int64_t d = 0; d < t->num_dims; d++)
        num_blocks *= t->numbers[group->counts + d];
    if (!is_within(own->block, 1, num_blocks))
        return 0;
    find_extents(t, own->group, own->block, extents);
    if (own->nbytes != find_kind(t, group, group->first_kind + group->num_kinds, extents) ||
        (own->address && (own->batch >= 0 || !t->is_resident)))
        return 0;
    for (int64_t i = 0; own->batch >= 0 && i < group->num_demands; i++)
        if (!fits_row(t, &t->demands[group->first_demand + i], extents, own->row))
            return 0;
    return 1;
}

/* Whether a copy lies within its block, and within the arrays of its batch. */
static int is_copy(const Tables *t, const int32_t *copy, const LoadRow *load, int64_t batch) {
    if (!is_within(copy[COPY_ROUTE], 1, t->num_routes) || copy[COPY_BATCH] != batch ||
        copy[COPY_ROW] < 0 || load->batch >= 0)
        return 0;
    const Route *route = &t->routes[copy[COPY_ROUTE]];
    const int32_t *lows = copy + COPY_LOWS, *sizes = lows + t->num_dims, *begins = sizes + t->num_dims;
    int64_t extents[MOST_PROGRAM_DIMS];
    if (route->group != load->group)
        return 0;
    find_extents(t, load->group, load->block, extents);
    for (int64_t i = 0; i < route->num_stacks; i++) {
        const Stack *stack = &t->stacks[route->first_stack + i];
        const int64_t *layout = t->numbers + stack->layout, *outer = layout + 7;
        const int64_t *axes = outer + 2 * layout[4];
        int64_t last = stack->offset + copy[COPY_ROW] * layout[6] + layout[2];
        for (int64_t j = 0; j < layout[4]; j++)
            last += (outer[2 * j] - 1) * outer[2 * j + 1];
        for (int64_t j = 0; j < layout[5]; j++) {
            const int64_t dim = axes[4 * j], step = axes[4 * j + 1], to = axes[4 * j + 3];
            if (dim < 0) {
                last += times(axes[4 * j + 2] - 1, to);
                continue;
            }
            if (lows[dim] < 0 || sizes[dim] < 1 || begins[dim] < 0 ||
                begins[dim] + (sizes[dim] - 1) * step >= extents[dim])
                return 0;
            last += times(lows[dim] + (int64_t)sizes[dim] - 1, to);
        }
        if (last > t->numbers[t->array_nbytes + stack->array])
            return 0;
    }
    return 1;
}

int check_segment(const Tables *t, const SegmentRows *rows, FindLoad find, const void *context) {
    const int64_t size = COPY_LOWS + 3 * t->num_dims;
    if (rows->num_loads < 0 || rows->num_batches < 0 || rows->num_copies < 0 || rows->num_ends < 0)
        return 0;
    for (int64_t i = 0; i < rows->num_loads; i++)
        if (!is_load(t, rows, &rows->loads[i]))
            return 0;
    int64_t at = 0;
    for (int64_t batch = 0; batch < rows->num_batches; batch++) {
        if (rows->copy_ends[batch] < at || rows->copy_ends[batch] > rows->num_copies)
            return 0;
        for (; at < rows->copy_ends[batch]; at++) {
            const int32_t *copy = rows->copies + at * size;
            const int64_t number = copy[COPY_LOAD];
            const LoadRow *load = number >= rows->first_load
                                      ? number - rows->first_load < rows->num_loads
                                            ? &rows->loads[number - rows->first_load]
                                            : NULL
                                      : find(context, number);
            if (!load || !is_copy(t, copy, load, batch))
                return 0;
        }
    }
    return at == rows->num_copies;
}
