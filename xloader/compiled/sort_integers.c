/* Sorts integers of a known number of bits, digit by digit from the lowest one on.

   `sort_integers` in xloader/core/sorting.py calls NumPy's sort where there is no library. */

#include "export.h"

#include <string.h>

#define MOST_BITS 11
#define MOST_DIGITS (1 << MOST_BITS)

/* `scratch` has room for as many integers. It ends up with no particular ones. */
EXPORT int64_t xloader_sort_integers(
    int64_t *values, int64_t *scratch, int64_t num, int64_t num_bits) {
    const int64_t num_passes = (num_bits + MOST_BITS - 1) / MOST_BITS;
    const int64_t own_bits = num_passes ? (num_bits + num_passes - 1) / num_passes : 0;
    const int64_t num_digits = (int64_t)1 << own_bits;
    int64_t *from = values, *to = scratch;
    for (int64_t pass = 0; pass < num_passes; pass++) {
        const int64_t shift = pass * own_bits;
        int64_t places[MOST_DIGITS] = {0}, place = 0;
        for (int64_t i = 0; i < num; i++)
            places[(from[i] >> shift) & (num_digits - 1)]++;
        for (int64_t digit = 0; digit < num_digits; digit++) {
            const int64_t count = places[digit];
            places[digit] = place;
            place += count;
        }
        for (int64_t i = 0; i < num; i++)
            to[places[(from[i] >> shift) & (num_digits - 1)]++] = from[i];
        int64_t *const swapped = from;
        from = to;
        to = swapped;
    }
    if (from != values)
        memcpy(values, from, (size_t)num * sizeof *values);
    return num;
}
