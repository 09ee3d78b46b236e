/* Counts the rows that are gathered, and finds the blocks that no row needs any more.

   It takes a microsecond or two, and is called with Python's lock. `Uses` in
   xloader/engine/uses.py does the same with NumPy. */

#include "export.h"

/* Counts one hit of each row in `rows`; or, without `left`, one of each row from 0 up to `num`.
   Writes the residences that are over to `over`, which has room for all, and returns how many. */
EXPORT int64_t xloader_count_rows(
    const int64_t *rows, int64_t shift, const int64_t *chosen, int64_t first, int64_t num,
    int64_t *left, const int64_t *entries, int64_t *rows_left, const int32_t *offsets,
    const int32_t *members, int32_t *entries_left, int64_t *over) {
    int64_t num_over = 0;
    for (int64_t i = 0; i < num; i++) {
        int64_t row = i;
        if (left) {
            row = rows[chosen ? chosen[i] : first + i] - shift;
            if (--left[row])
                continue;
        }
        const int64_t entry = entries[row];
        if (--rows_left[entry])
            continue;
        for (int32_t at = offsets[entry]; at < offsets[entry + 1]; at++)
            if (!--entries_left[members[at]])
                over[num_over++] = members[at];
    }
    return num_over;
}
