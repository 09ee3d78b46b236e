/* Sorts integers of a known number of bits, some bits at a time from the lowest ones on.

   `sort_integers` in xloader/core/sorting.py calls NumPy's sort where there is no library. */

#include "export.h"

#include <string.h>

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
