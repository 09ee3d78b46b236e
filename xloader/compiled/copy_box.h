/* Copies boxes of numbers between two memories, with any steps along each dimension. */

#ifndef XLOADER_COPY_BOX_H
#define XLOADER_COPY_BOX_H

#include "program.h"

#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

/* As many as a NumPy array may have dimensions: field_places.py asks for no more. */
#define MOST_LOOPS 64

typedef struct {
    int64_t count, from, to; /* repetitions, and the bytes between them in source and target */
} Loop;

/* Stretches of at least this many bytes are written past the processor's cache. */
#define LONG_STRETCH 65536

/* Lines of at most this many bytes are short. Many short lines are copied in turns from several
   places of a box: the processor fetches all these places at the same time. Copies of patches from
   500 MB of blocks took two thirds of the time with 4 places, and no less with 6 or 8. */
#define SHORT_LINE 1024
#define MANY_LINES 16
#define NUM_PLACES 4

/* Where neighbours in the source are none in the target, tiles of this size are copied: a processor
   keeps the cache lines of so many rows until they are full, even if they lie a power of two
   apart. */
#define TILE_ROWS 8
#define TILE_COLUMNS 64

/* Copies a short line. Pieces of constant size become a few vector instructions, which take less
   time than a call of memcpy. Very short lines are left to it. */
static inline void copy_short(const char *source, char *target, int64_t nbytes) {
    int64_t at = 0;
    if (nbytes >= 64) {
        for (; at < nbytes - 64; at += 64)
            memcpy(target + at, source + at, 64);
        memcpy(target + nbytes - 64, source + nbytes - 64, 64);
    } else if (nbytes >= 16) {
        for (; at < nbytes - 16; at += 16)
            memcpy(target + at, source + at, 16);
        memcpy(target + nbytes - 16, source + nbytes - 16, 16);
    } else {
        memcpy(target, source, (size_t)nbytes);
    }
}

/* Copies bytes that lie side by side. Rows this long make batches that no cache holds, and memory
   that is written past the cache need not be read into it first. */
static void copy_stretch(const char *source, char *target, int64_t nbytes) {
#if defined(__SSE2__)
    if (nbytes >= LONG_STRETCH) {
        const int64_t head = (int64_t)(-(uintptr_t)target & 63);
        memcpy(target, source, (size_t)head);
        source += head;
        target += head;
        nbytes -= head;
        for (; nbytes >= 64; nbytes -= 64, source += 64, target += 64) {
            const __m128i *from = (const __m128i *)source;
            __m128i *to = (__m128i *)target;
            const __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1);
            const __m128i c = _mm_loadu_si128(from + 2), d = _mm_loadu_si128(from + 3);
            _mm_stream_si128(to, a);
            _mm_stream_si128(to + 1, b);
            _mm_stream_si128(to + 2, c);
            _mm_stream_si128(to + 3, d);
        }
        _mm_sfence();
    }
#endif
    memcpy(target, source, (size_t)nbytes);
}

/* Copies elements that do not lie side by side. The sizes are constants in each case, so that the
   compiler makes a load and a store of memcpy. */
#define COPY_EACH(size)                                                                            \
    case size:                                                                                     \
        for (int64_t i = 0; i < loop->count; i++)                                                  \
            memcpy(target + i * loop->to, source + i * loop->from, size);                          \
        return;

static void copy_same(const Loop *loop, const char *source, char *target, int64_t itemsize) {
    if (loop->from == itemsize && loop->to == itemsize) {
        copy_stretch(source, target, loop->count * itemsize);
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

#define LOOK_UP_EACH(type_from, type_to, value)                                                    \
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

/* Looks up 16-bit numbers in a table of floats, and writes the values past the cache, four in one
   store. */
static void look_up_stretch(
    const uint16_t *source, float *target, int64_t count, const float *table) {
#if defined(__SSE2__)
    for (; count && (uintptr_t)target & 15; count--)
        *target++ = table[*source++];
    for (; count >= 4; count -= 4, source += 4, target += 4)
        _mm_stream_ps(
            target,
            _mm_setr_ps(table[source[0]], table[source[1]], table[source[2]], table[source[3]]));
    _mm_sfence();
#endif
    for (int64_t i = 0; i < count; i++)
        target[i] = table[source[i]];
}

#define DEFINE_UNPACK(type)                                                                        \
    static inline type unpack_##type(const Conversion *own, type value) {                          \
        for (int64_t i = 0; i < own->num_fills; i++)                                               \
            if ((double)value == own->fills[i])                                                    \
                return (type)NAN;                                                                  \
        if (own->has_scale)                                                                        \
            value = own->is_scale_double ? (type)((double)value * own->scale)                      \
                                         : value * (type)own->scale;                               \
        if (own->has_offset)                                                                       \
            value = own->is_offset_double ? (type)((double)value + own->offset)                    \
                                          : value + (type)own->offset;                             \
        return value;                                                                              \
    }

DEFINE_UNPACK(float)
DEFINE_UNPACK(double)

#define CONVERT_AS(type_from, type_wide)                                                           \
    for (int64_t i = 0; i < loop->count; i++) {                                                    \
        const type_from stored = *(const type_from *)(source + i * loop->from);                    \
        const type_wide value = unpack_##type_wide(own, (type_wide)stored);                        \
        if (own->to == FLOAT32)                                                                    \
            *(float *)(target + i * loop->to) = (float)value;                                      \
        else                                                                                       \
            *(double *)(target + i * loop->to) = value;                                            \
    }

#define STORE_AS(number, type_to)                                                                  \
    case number:                                                                                   \
        *(type_to *)(target + i * loop->to) = (type_to)stored;                                     \
        break;

/* Numbers become floats, or whole numbers of a wider type. */
#define CONVERT_FROM(number, type_from)                                                            \
    case number:                                                                                   \
        if (own->wide == FLOAT32) {                                                                \
            CONVERT_AS(type_from, float)                                                           \
        } else if (own->wide == FLOAT64) {                                                         \
            CONVERT_AS(type_from, double)                                                          \
        } else {                                                                                   \
            for (int64_t i = 0; i < loop->count; i++) {                                            \
                const type_from stored = *(const type_from *)(source + i * loop->from);            \
                switch (own->to) {                                                                 \
                    STORE_AS(INT8, int8_t)                                                         \
                    STORE_AS(UINT8, uint8_t)                                                       \
                    STORE_AS(INT16, int16_t)                                                       \
                    STORE_AS(UINT16, uint16_t)                                                     \
                    STORE_AS(INT32, int32_t)                                                       \
                    STORE_AS(UINT32, uint32_t)                                                     \
                    STORE_AS(INT64, int64_t)                                                       \
                    STORE_AS(UINT64, uint64_t)                                                     \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
        break;

static void convert_line(
    const Conversion *own, const Loop *loop, const char *source, char *target) {
    switch (own->from) {
        CONVERT_FROM(INT8, int8_t)
        CONVERT_FROM(UINT8, uint8_t)
        CONVERT_FROM(INT16, int16_t)
        CONVERT_FROM(UINT16, uint16_t)
        CONVERT_FROM(INT32, int32_t)
        CONVERT_FROM(UINT32, uint32_t)
        CONVERT_FROM(INT64, int64_t)
        CONVERT_FROM(UINT64, uint64_t)
        CONVERT_FROM(FLOAT32, float)
        CONVERT_FROM(FLOAT64, double)
    }
}

#define IN_FLOATS(x) (((const float *)table)[x])
#define IN_DOUBLES(x) (((const double *)table)[x])

static void copy_line(
    int64_t conversion, const Loop *loop, const char *source, char *target, int64_t size_from,
    int64_t size_to, const char *table) {
    if (conversion == SAME)
        copy_same(loop, source, target, size_from);
    else if (conversion == CONVERT)
        convert_line((const Conversion *)table, loop, source, target);
    else if (size_from == 1 && size_to == 4)
        LOOK_UP_EACH(uint8_t, float, IN_FLOATS);
    else if (size_from == 1)
        LOOK_UP_EACH(uint8_t, double, IN_DOUBLES);
    else if (size_to == 4 && loop->from == 2 && loop->to == 4 && loop->count * 4 >= LONG_STRETCH)
        look_up_stretch(
            (const uint16_t *)source, (float *)target, loop->count, (const float *)table);
    else if (size_to == 4)
        LOOK_UP_EACH(uint16_t, float, IN_FLOATS);
    else
        LOOK_UP_EACH(uint16_t, double, IN_DOUBLES);
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

/* Goes on to the next repetition of all loops but the innermost one, and moves both memories with
   it. Returns 0 after the last one. */
static inline int next_line(
    const Loop *loops, int64_t num, int64_t *at, const char **source, char **target) {
    for (int64_t i = num - 2; i >= 0; i--) {
        *source += loops[i].from;
        *target += loops[i].to;
        if (++at[i] < loops[i].count)
            return 1;
        *source -= loops[i].count * loops[i].from;
        *target -= loops[i].count * loops[i].to;
        at[i] = 0;
    }
    return 0;
}

/* Where the copy of a box is: a line in both memories, and its index in each loop. */
typedef struct {
    const char *source;
    char *target;
    int64_t at[MOST_LOOPS];
} Place;

/* Goes to a line of a box, counted in the order of the copy. */
static void begin_at(
    Place *place, const Loop *loops, int64_t num, int64_t line, const char *source, char *target) {
    for (int64_t i = num - 2; i >= 0; i--) {
        place->at[i] = line % loops[i].count;
        line /= loops[i].count;
        source += place->at[i] * loops[i].from;
        target += place->at[i] * loops[i].to;
    }
    place->source = source;
    place->target = target;
}

/* Copies a line at a place, and goes on to the next one. */
static inline void copy_at(
    Place *place, int64_t conversion, const Loop *loops, int64_t num, int64_t size_from,
    int64_t size_to, const char *table, int is_short) {
    const Loop *inner = &loops[num - 1];
    if (is_short && conversion == SAME)
        copy_short(place->source, place->target, inner->count * size_from);
    else
        copy_line(conversion, inner, place->source, place->target, size_from, size_to, table);
    next_line(loops, num, place->at, &place->source, &place->target);
}

/* The loop over neighbours in the target, if it is not the innermost one, which runs over neighbours
   in the source; else -1. */
static int64_t find_crossed(const Loop *loops, int64_t num, int64_t itemsize) {
    if (loops[num - 1].from != itemsize || loops[num - 1].to == itemsize)
        return -1;
    for (int64_t i = num - 2; i >= 0; i--)
        if (loops[i].to == itemsize)
            return i;
    return -1;
}

/* Copies two loops in tiles: `down` runs over neighbours in the target, `across` over neighbours in
   the source. */
static void copy_tiles(
    const Loop *down, const Loop *across, const char *source, char *target, int64_t itemsize) {
    for (int64_t first = 0; first < down->count; first += TILE_COLUMNS)
        for (int64_t x = 0; x < across->count; x += TILE_ROWS) {
            const int64_t left = across->count - x, end = first + TILE_COLUMNS;
            const Loop line = {left < TILE_ROWS ? left : TILE_ROWS, across->from, across->to};
            for (int64_t y = first; y < end && y < down->count; y++)
                copy_same(
                    &line, source + x * across->from + y * down->from,
                    target + x * across->to + y * down->to, itemsize);
        }
}

/* Runs all loops but the innermost one, and copies a line in each of their repetitions. */
static void copy_box(
    int64_t conversion, const Loop *loops, int64_t num, const char *source, char *target,
    int64_t size_from, int64_t size_to, const char *table) {
    const Loop *inner = &loops[num - 1];
    const int64_t crossed = conversion == SAME ? find_crossed(loops, num, size_from) : -1;
    if (crossed >= 0) {
        Loop others[MOST_LOOPS];
        int64_t at[MOST_LOOPS] = {0};
        for (int64_t i = 0; i < num - 1; i++)
            others[i] = loops[i < crossed ? i : i + 1];
        do
            copy_tiles(&loops[crossed], inner, source, target, size_from);
        while (next_line(others, num - 1, at, &source, &target));
        return;
    }
    const int is_short = inner->from == size_from && inner->to == size_to &&
                         inner->count * size_from <= SHORT_LINE;
    /* A single short line, as of a pixel's series, needs no places. */
    if (num == 1 && is_short && conversion == SAME) {
        copy_short(source, target, inner->count * size_from);
        return;
    }
    int64_t num_lines = 1;
    for (int64_t i = 0; i < num - 1; i++)
        num_lines *= loops[i].count;
    const int64_t num_places = is_short && num_lines >= MANY_LINES ? NUM_PLACES : 1;
    const int64_t each = num_lines / num_places;
    Place places[NUM_PLACES];
    for (int64_t i = 0; i < num_places; i++)
        begin_at(&places[i], loops, num, i * each, source, target);
    for (int64_t line = 0; line < each; line++)
        for (int64_t i = 0; i < num_places; i++)
            copy_at(
                &places[i], conversion, loops, num, size_from, size_to, table, is_short);
    for (int64_t line = each * num_places; line < num_lines; line++)
        copy_at(
            &places[num_places - 1], conversion, loops, num, size_from, size_to, table, is_short);
}

#define CACHE_LINE 64

#if defined(__GNUC__)
#define ASK_FOR(place) __builtin_prefetch(place)
#else
#define ASK_FOR(place) ((void)(place))
#endif

/* The bytes between the cache lines of the innermost loop that are asked for. */
static inline int64_t hop_of(const Loop *inner) {
    return inner->from < CACHE_LINE ? CACHE_LINE : inner->from;
}

/* The cache lines that some loops go through in the source. */
static inline int64_t count_lines(const Loop *loops, int64_t num, int64_t size_from) {
    if (!num)
        return 0;
    const Loop *inner = &loops[num - 1];
    int64_t num_lines = 1 + ((inner->count - 1) * inner->from + size_from - 1) / hop_of(inner);
    for (int64_t i = 0; i < num - 1; i++)
        num_lines *= loops[i].count;
    return num_lines;
}

#endif
