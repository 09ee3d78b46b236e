/* Copies the parts of decoded blocks that rows of a batch take, for many rows in one call.

   Python's lock is free meanwhile: the function is called through ctypes, and knows nothing of
   Python. xloader/engine/compiled_gather.py describes the arguments. */

#include "copy_box.h"
#include "export.h"
#include "helpers.h"

#include <stdatomic.h>

/* The memory of hits of at most FEW_LINES cache lines is asked for NUM_AHEAD hits before they are
   copied: series of 24 numbers that lie side by side took two thirds of the time of two hits ahead.
   Larger hits would drive each other out of the cache. Those of up to MOST_LINES are asked for
   SHORTLY_AHEAD, and the processor foresees still larger ones by itself. */
#define FEW_LINES 8
#define NUM_AHEAD 8
#define MOST_LINES 64
#define SHORTLY_AHEAD 2

typedef struct {
    const int64_t *layout, *hits, *addresses, *chosen;
    const int32_t *slots;
    int64_t row_size, shift, first;
    char *target;
    const char *table;
} Task;

/* A windowed dimension: the columns of hits along it, the bytes between neighbours in block and batch,
   and the size and extent of the last hit. */
typedef struct {
    const int64_t *los, *sizes, *begins, *extents;
    int64_t from, to, size, extent;
} Span;

/* What a hit copies, wherever that lies. Successive hits mostly have the same shape. Its memory is
   asked for `ahead` hits before the copy, or never if that is 0. */
typedef struct {
    Span spans[MOST_LOOPS];
    Loop loops[MOST_LOOPS];
    int64_t num_spans, num, ahead;
} Shape;

typedef struct {
    Loop loops[MOST_LOOPS];
    int64_t num, ahead;
    const char *from;
    char *to;
} Box;

/* Lists the windowed dimensions, the innermost first. No hit has been seen yet. */
static void begin_shape(const Task *task, Shape *shape) {
    const int64_t num_dims = task->layout[3], num_outer = task->layout[4];
    const int64_t num_axes = task->layout[5], column = task->row_size;
    const int64_t *axes = task->layout + 7 + 2 * num_outer;
    shape->num_spans = 0;
    shape->num = -1;
    for (int64_t axis = num_axes - 1; axis >= 0; axis--) {
        const int64_t dim = axes[4 * axis];
        if (dim < 0)
            continue;
        const int64_t *los = task->hits + (3 + dim) * column;
        shape->spans[shape->num_spans++] = (Span){
            .los = los,
            .sizes = los + num_dims * column,
            .begins = los + 2 * num_dims * column,
            .extents = los + 3 * num_dims * column,
            .to = axes[4 * axis + 3],
        };
    }
}

/* Finds the loops of a shape, from the sizes and extents of its dimensions. */
static void find_loops(const Task *task, Shape *shape) {
    const int64_t *layout = task->layout;
    const int64_t size_from = layout[1], size_to = layout[2];
    const int64_t num_outer = layout[4], num_axes = layout[5];
    const int64_t *outer = layout + 7;
    const int64_t *axes = outer + 2 * num_outer;
    Loop *loops = shape->loops;
    Span *span = shape->spans;
    int64_t stride = size_from;
    for (int64_t axis = num_axes - 1; axis >= 0; axis--) {
        const int64_t dim = axes[4 * axis], step = axes[4 * axis + 1];
        int64_t count = axes[4 * axis + 2], extent = count;
        if (dim >= 0) {
            span->from = stride;
            count = span->size;
            extent = span->extent;
            span++;
        }
        loops[num_outer + axis] = (Loop){count, stride * step, axes[4 * axis + 3]};
        stride *= extent;
    }
    /* The first of these goes over variables, which follow each other in the block. Along the
       others one value fills several elements. */
    for (int64_t i = 0; i < num_outer; i++)
        loops[i] = (Loop){outer[2 * i], i ? 0 : stride, outer[2 * i + 1]};
    shape->num = simplify(loops, num_outer + num_axes, size_from, size_to);
    const int64_t num_lines = count_lines(loops, shape->num, size_from);
    shape->ahead = num_lines <= FEW_LINES ? NUM_AHEAD : num_lines <= MOST_LINES ? SHORTLY_AHEAD : 0;
}

/* Finds what a hit copies, and whereto. */
static void find_box(const Task *task, int64_t number, Shape *shape, Box *box) {
    const int64_t hit = task->chosen ? task->chosen[number] : task->first + number;
    int64_t is_new = shape->num < 0;
    for (int64_t i = 0; i < shape->num_spans; i++) {
        Span *span = &shape->spans[i];
        is_new |= span->sizes[hit] != span->size || span->extents[hit] != span->extent;
        span->size = span->sizes[hit];
        span->extent = span->extents[hit];
    }
    if (is_new)
        find_loops(task, shape);
    box->from = (const char *)(intptr_t)task->addresses[task->slots[hit]];
    box->to = task->target + (task->hits[hit] - task->shift) * task->layout[6];
    for (int64_t i = 0; i < shape->num_spans; i++) {
        const Span *span = &shape->spans[i];
        box->from += span->begins[hit] * span->from;
        box->to += span->los[hit] * span->to;
    }
    box->num = shape->num;
    box->ahead = shape->ahead;
    for (int64_t i = 0; i < shape->num; i++)
        box->loops[i] = shape->loops[i];
}

/* Asks for the memory that a hit copies, so that it comes while other hits are copied. */
static void ask_for_box(const Box *box, int64_t size_from) {
    if (!box->num)
        return;
    const Loop *inner = &box->loops[box->num - 1];
    const int64_t extent = (inner->count - 1) * inner->from + size_from, hop = hop_of(inner);
    int64_t at[MOST_LOOPS];
    for (int64_t i = 0; i < box->num - 1; i++)
        at[i] = 0;
    const char *source = box->from;
    char *target = box->to;
    do
        for (int64_t i = 0; i < extent; i += hop)
            ASK_FOR(source + i);
    while (next_line(box->loops, box->num, at, &source, &target));
}

/* Copies the hits from one number to another. */
static void gather(const Task *task, int64_t begin, int64_t end) {
    const int64_t *layout = task->layout;
    const int64_t conversion = layout[0], size_from = layout[1], size_to = layout[2];
    Shape shape;
    Box boxes[NUM_AHEAD + 1];
    begin_shape(task, &shape);
    for (int64_t number = begin - NUM_AHEAD; number < end; number++) {
        const int64_t later = number + NUM_AHEAD, soon = number + SHORTLY_AHEAD;
        if (later < end) {
            Box *box = &boxes[later % (NUM_AHEAD + 1)];
            find_box(task, later, &shape, box);
            if (box->ahead == NUM_AHEAD)
                ask_for_box(box, size_from);
        }
        if (soon >= begin && soon < end) {
            const Box *box = &boxes[soon % (NUM_AHEAD + 1)];
            if (box->ahead == SHORTLY_AHEAD)
                ask_for_box(box, size_from);
        }
        if (number < begin)
            continue;
        const Box *box = &boxes[number % (NUM_AHEAD + 1)];
        if (box->num)
            copy_box(
                conversion, box->loops, box->num, box->from, box->to, size_from, size_to,
                task->table);
    }
}

typedef struct {
    const Task *task;
    int64_t num, per_part;
    _Atomic int64_t next;
} Parts;

static void gather_some(void *context) {
    Parts *parts = context;
    for (;;) {
        const int64_t begin = atomic_fetch_add(&parts->next, parts->per_part);
        if (begin >= parts->num)
            break;
        const int64_t end = begin + parts->per_part;
        gather(parts->task, begin, end < parts->num ? end : parts->num);
    }
}

/* The number of hits whose copies are worth a helper, by the size of the first. */
static int64_t count_per_part(const Task *task) {
    Shape shape;
    Box box;
    begin_shape(task, &shape);
    find_box(task, 0, &shape, &box);
    int64_t nbytes = task->layout[2];
    for (int64_t i = 0; i < box.num; i++)
        nbytes *= box.loops[i].count;
    return nbytes < SHARE_NBYTES ? SHARE_NBYTES / (nbytes > 0 ? nbytes : 1) : 1;
}

EXPORT int64_t xloader_gather(
    const int64_t *layout, const char *table, char *target, const int64_t *hits, int64_t row_size,
    int64_t shift, const int64_t *chosen, int64_t first, int64_t num, const int32_t *slots,
    const int64_t *addresses) {
    const Task task = {
        .layout = layout,
        .hits = hits,
        .addresses = addresses,
        .chosen = chosen,
        .slots = slots,
        .row_size = row_size,
        .shift = shift,
        .first = first,
        .target = target,
        .table = table,
    };
    if (num > 0) {
        const int64_t per_part = has_helpers() ? count_per_part(&task) : num;
        Parts parts = {.task = &task, .num = num, .per_part = per_part};
        share_work(gather_some, &parts, (num - 1) / parts.per_part);
    }
    return num;
}
