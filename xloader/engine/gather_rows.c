/* Copies the parts of decoded blocks that rows of a batch take, for many rows in one call.

   Python's lock is free meanwhile: the function is called through ctypes, and knows nothing of
   Python. xloader/engine/compiled_gather.py describes the arguments. */

#include <stdint.h>
#include <string.h>

/* As many as a NumPy array may have dimensions: compiled_gather.py asks for no more. */
#define MOST_LOOPS 64

/* A number made from this file when it is compiled. Another one means another release. */
#ifndef SOURCE_HASH
#define SOURCE_HASH 0
#endif

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

/* How numbers are converted, as in compiled_gather.py. */
enum { SAME = 0, WIDEN = 1, LOOK_UP = 2 };

typedef struct {
    int64_t count, from, to; /* repetitions, and the bytes between them in source and target */
} Loop;

EXPORT int64_t xloader_gather_source(void) { return SOURCE_HASH; }

/* Copies elements that do not lie side by side. The sizes are constants in each case, so that the
   compiler makes a load and a store of memcpy. */
#define COPY_EACH(size)                                                                            \
    case size:                                                                                     \
        for (int64_t i = 0; i < loop->count; i++)                                                  \
            memcpy(target + i * loop->to, source + i * loop->from, size);                          \
        return;

static void copy_same(const Loop *loop, const char *source, char *target, int64_t itemsize) {
    if (loop->from == itemsize && loop->to == itemsize) {
        memcpy(target, source, (size_t)(loop->count * itemsize));
        return;
    }
    switch (itemsize) {
        COPY_EACH(1)
        COPY_EACH(2)
        COPY_EACH(4)
        COPY_EACH(8)
        COPY_EACH(16)
    default:
        for (int64_t i = 0; i < loop->count; i++)
            memcpy(target + i * loop->to, source + i * loop->from, (size_t)itemsize);
    }
}

#define CONVERT_EACH(type_from, type_to, value)                                                    \
    do {                                                                                           \
        if (loop->from == sizeof(type_from) && loop->to == sizeof(type_to)) {                      \
            const type_from *restrict old = (const type_from *)source;                             \
            type_to *restrict new = (type_to *)target;                                             \
            for (int64_t i = 0; i < loop->count; i++)                                              \
                new[i] = value(old[i]);                                                            \
        } else {                                                                                   \
            for (int64_t i = 0; i < loop->count; i++)                                              \
                *(type_to *)(target + i * loop->to) =                                              \
                    value(*(const type_from *)(source + i * loop->from));                          \
        }                                                                                          \
    } while (0)

#define AS_DOUBLE(x) ((double)(x))
#define IN_FLOATS(x) (((const float *)table)[x])
#define IN_DOUBLES(x) (((const double *)table)[x])

static void copy_line(
    int64_t conversion, const Loop *loop, const char *source, char *target, int64_t size_from,
    int64_t size_to, const char *table) {
    if (conversion == SAME)
        copy_same(loop, source, target, size_from);
    else if (conversion == WIDEN)
        CONVERT_EACH(float, double, AS_DOUBLE);
    else if (size_from == 1 && size_to == 4)
        CONVERT_EACH(uint8_t, float, IN_FLOATS);
    else if (size_from == 1)
        CONVERT_EACH(uint8_t, double, IN_DOUBLES);
    else if (size_to == 4)
        CONVERT_EACH(uint16_t, float, IN_FLOATS);
    else
        CONVERT_EACH(uint16_t, double, IN_DOUBLES);
}

/* Drops loops that run once, and joins those that together run over one stretch of both memories.
   The innermost loop comes last. Returns their number, which is 1 at least, or 0 if nothing is
   to be copied. */
static int64_t simplify(Loop *loops, int64_t num, int64_t size_from, int64_t size_to) {
    int64_t kept = 0;
    for (int64_t i = 0; i < num; i++) {
        Loop loop = loops[i];
        if (loop.count <= 0)
            return 0;
        if (loop.count == 1)
            continue;
        if (kept) {
            Loop *outer = &loops[kept - 1];
            if (outer->from == loop.count * loop.from && outer->to == loop.count * loop.to) {
                outer->count *= loop.count;
                outer->from = loop.from;
                outer->to = loop.to;
                continue;
            }
        }
        loops[kept++] = loop;
    }
    if (!kept) {
        loops[0].count = 1;
        loops[0].from = size_from;
        loops[0].to = size_to;
        kept = 1;
    }
    return kept;
}

/* Runs all loops but the innermost one, and copies a line in each of their repetitions. */
static void copy_box(
    int64_t conversion, const Loop *loops, int64_t num, const char *source, char *target,
    int64_t size_from, int64_t size_to, const char *table) {
    int64_t at[MOST_LOOPS] = {0};
    const Loop *inner = &loops[num - 1];
    for (;;) {
        copy_line(conversion, inner, source, target, size_from, size_to, table);
        int64_t i = num - 2;
        while (i >= 0) {
            source += loops[i].from;
            target += loops[i].to;
            if (++at[i] < loops[i].count)
                break;
            source -= loops[i].count * loops[i].from;
            target -= loops[i].count * loops[i].to;
            at[i--] = 0;
        }
        if (i < 0)
            return;
    }
}

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
