/* Copies the parts of decoded blocks that rows of a batch take, for many rows in one call.

   Python's lock is free meanwhile: the function is called through ctypes, and knows nothing of
   Python. xloader/engine/compiled_gather.py describes the arguments. */

#include "copy_box.h"
#include "export.h"
#include "helpers.h"

#include <stdatomic.h>

#define CACHE_LINE 64

/* How many hits ahead of the copy their memory is asked for, and the most cache lines of a hit. The
   processor foresees larger parts by itself. Parts of 24 numbers that lie 400 bytes apart took 0.8 to
   1.0 ms for 4096 rows, and 1.1 to 1.3 ms without. */
#define NUM_AHEAD 2
#define MOST_LINES 64

#if defined(__GNUC__)
#define ASK_FOR(place) __builtin_prefetch(place)
#else
#define ASK_FOR(place) ((void)(place))
#endif

typedef struct {
    Loop loops[MOST_LOOPS];
    int64_t num;
    const char *from;
    char *to;
} Box;

typedef struct {
    const int64_t *layout, *hits, *addresses, *chosen;
    const int32_t *slots;
    int64_t row_size, shift, first;
    char *target;
    const char *table;
} Task;

/* Finds what a hit copies, and whereto. */
static void find_box(const Task *task, int64_t number, Box *box) {
    const int64_t *layout = task->layout;
    const int64_t size_from = layout[1], size_to = layout[2];
    const int64_t num_dims = layout[3], num_outer = layout[4], num_axes = layout[5];
    const int64_t row_stride = layout[6], row_size = task->row_size;
    const int64_t *outer = layout + 7;
    const int64_t *axes = outer + 2 * num_outer;
    const int64_t *los = task->hits + 3 * row_size, *sizes = los + num_dims * row_size;
    const int64_t *begins = sizes + num_dims * row_size, *extents = begins + num_dims * row_size;
    const int64_t hit = task->chosen ? task->chosen[number] : task->first + number;
    const char *from = (const char *)(intptr_t)task->addresses[task->slots[hit]];
    char *to = task->target + (task->hits[hit] - task->shift) * row_stride;
    int64_t stride = size_from;
    for (int64_t axis = num_axes - 1; axis >= 0; axis--) {
        const int64_t dim = axes[4 * axis], step = axes[4 * axis + 1];
        const int64_t to_stride = axes[4 * axis + 3];
        Loop *loop = &box->loops[num_outer + axis];
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
        box->loops[i].count = outer[2 * i];
        /* The first of these goes over variables, which follow each other in the block. Along
           the others one value fills several elements. */
        box->loops[i].from = i ? 0 : stride;
        box->loops[i].to = outer[2 * i + 1];
    }
    box->num = simplify(box->loops, num_outer + num_axes, size_from, size_to);
    box->from = from;
    box->to = to;
}

/* Asks for the memory that a hit copies, so that it comes while other hits are copied. */
static void ask_for_box(const Box *box, int64_t size_from) {
    if (!box->num)
        return;
    const Loop *inner = &box->loops[box->num - 1];
    const int64_t extent = (inner->count - 1) * inner->from + size_from;
    const int64_t hop = inner->from < CACHE_LINE ? CACHE_LINE : inner->from;
    int64_t num_lines = 1 + (extent - 1) / hop;
    for (int64_t i = 0; i < box->num - 1; i++)
        num_lines *= box->loops[i].count;
    if (num_lines > MOST_LINES)
        return;
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
    Box boxes[NUM_AHEAD + 1];
    for (int64_t ahead = begin; ahead < end + NUM_AHEAD; ahead++) {
        if (ahead < end) {
            Box *box = &boxes[ahead % (NUM_AHEAD + 1)];
            find_box(task, ahead, box);
            ask_for_box(box, size_from);
        }
        if (ahead < begin + NUM_AHEAD)
            continue;
        const Box *box = &boxes[(ahead - NUM_AHEAD) % (NUM_AHEAD + 1)];
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
    Box box;
    find_box(task, 0, &box);
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
