/* Looks up single elements of random permutations. `bijection` in xloader/core/counter_rng.py
   describes it, and does the same with NumPy. Python's lock is free meanwhile. */

#include "divide.h"
#include "export.h"

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
