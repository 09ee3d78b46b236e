/* The order of samples: random permutations, keys, ids of ranks, and sorting. The files in `core` and `order`
   that call these functions describe them, and do the same with NumPy. Python's lock is free meanwhile. */

#include "divide.h"
#include "export.h"

#include <string.h>

/* Permutations. `bijection` in xloader/core/counter_rng.py describes them. */

#define NUM_ROUNDS 12
#define MOST_LANES 32

/* All of `permute` is compiled once more for AVX-512. */
#define INLINE static inline __attribute__((always_inline))

static const uint64_t GOLDEN = 0x9E3779B97F4A7C15u;

INLINE uint64_t mix(uint64_t x) {
    x ^= x >> 30;
    x *= 0xBF58476D1CE4E5B9u;
    x ^= x >> 27;
    x *= 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

/* Adds a random number to one half, modulo its size. */
INLINE uint64_t shifted(uint64_t half, uint64_t other, uint64_t size, uint64_t key) {
    const uint64_t sum = half + (((mix(other * GOLDEN + key) >> 32) * size) >> 32);
    return sum < size ? sum : sum - size;
}

/* Permutes `num_lanes` ranks side by side: each round waits for the one before it, so the processor
   has time for several. */
INLINE int64_t permute(
    const int64_t num_lanes, const uint64_t *round_keys, const uint64_t *bounds,
    const uint64_t *num_rows, const uint64_t *num_columns, const int64_t *which, int64_t num,
    uint64_t *values) {
    uint64_t rows[MOST_LANES], columns[MOST_LANES];
    uint64_t rows_sizes[MOST_LANES], columns_sizes[MOST_LANES], keys[NUM_ROUNDS][MOST_LANES];
    for (int64_t begin = 0; begin < num; begin += num_lanes) {
        const int64_t left = num - begin;
        const int64_t num_used = left < num_lanes ? left : num_lanes;
        for (int64_t lane = 0; lane < num_lanes; lane++) {
            /* Lanes without a rank repeat the last one. */
            const int64_t at = begin + (lane < num_used ? lane : num_used - 1);
            const int64_t own = which[at];
            for (int64_t i = 0; i < NUM_ROUNDS; i++)
                keys[i][lane] = round_keys[NUM_ROUNDS * own + i];
            rows_sizes[lane] = num_rows[own];
            columns_sizes[lane] = num_columns[own];
            rows[lane] = (uint64_t)quotient_of((int64_t)values[at], (int64_t)num_columns[own]);
            columns[lane] = values[at] - rows[lane] * num_columns[own];
        }
        /* Until all ranks are within their bounds. Those that are go on, and are not looked at. */
        int64_t is_outside = 1;
        for (int64_t turn = 0; is_outside; turn++) {
            is_outside = 0;
            for (int64_t i = 0; i < NUM_ROUNDS; i += 2)
                for (int64_t lane = 0; lane < num_lanes; lane++) {
                    rows[lane] =
                        shifted(rows[lane], columns[lane], rows_sizes[lane], keys[i][lane]);
                    columns[lane] = shifted(
                        columns[lane], rows[lane], columns_sizes[lane], keys[i + 1][lane]);
                }
            for (int64_t lane = 0; lane < num_used; lane++) {
                const int64_t at = begin + lane, own = which[at];
                if (turn && values[at] < bounds[own])
                    continue;
                values[at] = rows[lane] * columns_sizes[lane] + columns[lane];
                is_outside |= values[at] >= bounds[own];
            }
        }
    }
    return num;
}

#if defined(__x86_64__)
/* Processors with AVX-512 multiply eight numbers of 64 bits in one instruction. */
__attribute__((target("avx512f,avx512dq"))) static int64_t permute_wide(
    const uint64_t *round_keys, const uint64_t *bounds, const uint64_t *num_rows,
    const uint64_t *num_columns, const int64_t *which, int64_t num, uint64_t *values) {
    return permute(32, round_keys, bounds, num_rows, num_columns, which, num, values);
}
#endif

EXPORT int64_t xloader_permute_ranks(
    const uint64_t *round_keys, const uint64_t *bounds, const uint64_t *num_rows,
    const uint64_t *num_columns, const int64_t *which, int64_t num, uint64_t *values) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512dq"))
        return permute_wide(round_keys, bounds, num_rows, num_columns, which, num, values);
#endif
    return permute(8, round_keys, bounds, num_rows, num_columns, which, num, values);
}

/* The next samples of several entries, in the order of their keys. `LaneOrder` in
   xloader/order/lane_order.py describes keys and entries. */

/* What an entry hands out: the ranks from `begin` up to `end`. */
typedef struct {
    int64_t entry, begin, end;
} Ranks;

/* The numbers that give keys to the samples of an entry. */
typedef struct {
    double start, length, phase, count;
} Pace;

typedef struct {
    double key;
    int64_t entry, rank;
} Sample;

/* After the buckets, samples are nearly sorted. If the rest takes more moves for each sample than this,
   keys are not spread evenly. */
#define MOST_MOVES 16

/* The same operations as NumPy's, one by one, so that the bits are the same. */
static double key_of(const Pace *pace, int64_t rank) {
    const double share = ((double)rank + pace->phase) / pace->count;
    return pace->start + pace->length * share;
}

static int64_t bucket_of(double key, double least, double scale, int64_t num) {
    const int64_t bucket = (int64_t)((key - least) * scale);
    return bucket < num ? bucket : num - 1;
}

/* Sorts samples that are nearly sorted already. Equal keys stay as they are. Returns 0 if that takes
   too many moves. */
static int64_t sort_nearly(Sample *samples, int64_t num) {
    int64_t moves = 0;
    for (int64_t i = 1; i < num; i++) {
        const Sample own = samples[i];
        int64_t at = i;
        for (; at > 0 && samples[at - 1].key > own.key; at--)
            samples[at] = samples[at - 1];
        samples[at] = own;
        moves += i - at;
        if (moves > MOST_MOVES * num)
            return 0;
    }
    return 1;
}

/* Writes entries and ranks of samples, sorted by key, and those with equal keys in the order given.
   `num` is the number of ranks of all entries together; there is room for as many of everything, and
   for one more edge. Samples are first put into as many buckets as there are samples, each for an
   equally long interval of keys. Returns 0 if their keys are not spread evenly enough for that. */
EXPORT int64_t xloader_order_samples(
    const Ranks *ranks, const Pace *paces, int64_t num_entries, int64_t num, double *keys,
    int64_t *edges, Sample *samples, int64_t *found_entries, int64_t *found_ranks) {
    double least = 0, most = 0;
    int64_t at = 0;
    for (int64_t e = 0; e < num_entries; e++)
        for (int64_t rank = ranks[e].begin; rank < ranks[e].end; rank++) {
            const double key = key_of(&paces[e], rank);
            least = at && least < key ? least : key;
            most = at && most > key ? most : key;
            keys[at++] = key;
        }
    const double scale = most > least ? (double)num / (most - least) : 0;
    for (int64_t i = 0; i <= num; i++)
        edges[i] = 0;
    for (int64_t i = 0; i < num; i++)
        edges[bucket_of(keys[i], least, scale, num) + 1]++;
    for (int64_t i = 0; i < num; i++)
        edges[i + 1] += edges[i];
    at = 0;
    for (int64_t e = 0; e < num_entries; e++)
        for (int64_t rank = ranks[e].begin; rank < ranks[e].end; rank++, at++) {
            const int64_t place = edges[bucket_of(keys[at], least, scale, num)]++;
            samples[place] = (Sample){keys[at], ranks[e].entry, rank};
        }
    if (!sort_nearly(samples, num))
        return 0;
    for (int64_t i = 0; i < num; i++) {
        found_entries[i] = samples[i].entry;
        found_ranks[i] = samples[i].rank;
    }
    return 1;
}

/* Ids of samples by their ranks within boxes of window positions: see `Boxes.ids_of` in
   xloader/core/boxes.py. */

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

/* Integers of a known number of bits, sorted some bits at a time from the lowest ones on: see
   `sort_integers` in xloader/core/sorting.py. */

/* The places of 2048 values, 16 KB, stay in a core's nearest cache. */
#define MOST_BITS 11
#define MOST_VALUES (1 << MOST_BITS)

/* Sorts by the bits from `first_bit` up to `end_bit`; integers that are equal there keep their order.
   `scratch` has room for as many integers. */
EXPORT int64_t xloader_sort_integers(
    int64_t *integers, int64_t *scratch, int64_t num, int64_t first_bit, int64_t end_bit) {
    const int64_t num_bits = end_bit - first_bit;
    const int64_t num_passes = (num_bits + MOST_BITS - 1) / MOST_BITS;
    const int64_t bits_per_pass = num_passes ? (num_bits + num_passes - 1) / num_passes : 0;
    const int64_t num_values = (int64_t)1 << bits_per_pass;
    int64_t *from = integers, *to = scratch;
    for (int64_t pass = 0; pass < num_passes; pass++) {
        const int64_t shift = first_bit + pass * bits_per_pass;
        int64_t places[MOST_VALUES] = {0}, place = 0;
        for (int64_t i = 0; i < num; i++)
            places[(from[i] >> shift) & (num_values - 1)]++;
        for (int64_t value = 0; value < num_values; value++) {
            const int64_t count = places[value];
            places[value] = place;
            place += count;
        }
        for (int64_t i = 0; i < num; i++)
            to[places[(from[i] >> shift) & (num_values - 1)]++] = from[i];
        int64_t *const swapped = from;
        from = to;
        to = swapped;
    }
    if (from != integers)
        memcpy(integers, from, (size_t)num * sizeof *integers);
    return num;
}
