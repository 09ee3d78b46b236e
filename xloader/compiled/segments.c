/* Makes the segments of a program: from the rows of batches, and the parts of blocks that each takes,
   the blocks to load, the copies, and the blocks that are over. xloader/engine/program.py describes the
   arguments, and does the same with NumPy. */

#include "export.h"
#include "program.h"
#include "row_copies.h"

#include <stdlib.h>
#include <string.h>

/* The stays in memory of the blocks of one group, as in group_needs.py; with the load of each, or -1
   before that; how many entries to come need it; and, for groups whose blocks may be decoded into rows,
   how many samples need it, or else NULL. `address_of` is given where blocks stay in memory: where each
   lies already, or 0. */
typedef struct {
    const int32_t *offsets, *members, *short_blocks;
    const int64_t *long_blocks;
    int32_t *load_of, *entries_left;
    const int64_t *num_samples, *address_of;
} Needs;

/* Hits of one route, as in overlaps.py. */
typedef struct {
    const int64_t *table;
    int64_t column, num;
} RouteHits;

/* Tables that grow. */
typedef struct {
    LoadRow *loads;
    int32_t *copies;
    int64_t *ends;
    int64_t num_loads, num_copies, num_ends, room_loads, room_copies, room_ends;
} Made;

typedef struct {
    const Tables *tables;
    const Needs *needs;
    const RouteHits *hits;
    /* The entry of each row; the rows at which batches begin, with the end of the last one. */
    const int64_t *entries, *edges;
    int64_t num_batches, first_load;
    /* Per entry, whether it has begun, and its rows to come. */
    unsigned char *is_begun;
    int64_t *rows_left, *copy_ends;
    Made *made;
} Making;

/* Frees the tables. */
EXPORT int64_t xloader_free_made(Made *made) {
    free(made->loads);
    free(made->copies);
    free(made->ends);
    return 0;
}

/* Makes room for one more row of a table. Returns 0 if there is no memory. */
static int grow(void *table, int64_t num, int64_t *room, size_t row_nbytes) {
    if (num < *room)
        return 1;
    const int64_t more = *room ? 2 * *room : 1024;
    void *larger = realloc(*(void **)table, (size_t)more * row_nbytes);
    if (!larger)
        return 0;
    *(void **)table = larger;
    *room = more;
    return 1;
}

static int64_t block_of(const Needs *needs, int64_t residence) {
    return needs->short_blocks ? needs->short_blocks[residence] : needs->long_blocks[residence];
}

static int64_t block_nbytes(const Tables *tables, int64_t number, int64_t block) {
    const Group *group = &tables->groups[number];
    int64_t extents[MOST_PROGRAM_DIMS];
    find_extents(tables, number, block, extents);
    return find_kind(tables, group, group->first_kind + group->num_kinds, extents);
}

/* Lists the blocks that an entry is the first to need. */
static int begin_entry(const Making *making, int64_t entry) {
    Made *made = making->made;
    for (int64_t g = 0; g < making->tables->num_groups; g++) {
        const Needs *needs = &making->needs[g];
        for (int64_t at = needs->offsets[entry]; at < needs->offsets[entry + 1]; at++) {
            const int64_t residence = needs->members[at], block = block_of(needs, residence);
            if (needs->load_of[residence] >= 0)
                continue;
            if (!grow(&made->loads, made->num_loads, &made->room_loads, sizeof(LoadRow)))
                return 0;
            needs->load_of[residence] = (int32_t)(making->first_load + made->num_loads);
            made->loads[made->num_loads++] = (LoadRow){
                g, block, block_nbytes(making->tables, g, block), -1, 0,
                needs->address_of ? needs->address_of[residence] : 0, 0, -1};
        }
    }
    return 1;
}

/* The residence in which a row of an entry finds a block. An entry's residences are sorted by block. */
static int64_t find_residence(const Making *making, int64_t group, int64_t entry, int64_t block) {
    const Needs *needs = &making->needs[group];
    if (making->tables->is_resident)
        return block;
    int64_t low = needs->offsets[entry], high = needs->offsets[entry + 1];
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        if (block_of(needs, needs->members[middle]) <= block)
            low = middle;
        else
            high = middle;
    }
    return needs->members[low];
}

/* Whether a block is exactly the window of one row, and no other row needs it. */
static int is_row(const Making *making, int64_t group, int64_t residence, int64_t load, int64_t is_whole) {
    const Needs *needs = &making->needs[group];
    return is_whole && needs->num_samples && needs->num_samples[residence] == 1 &&
           load >= making->first_load;
}

static int add_copy(const Making *making, int64_t route, int64_t batch, int64_t hit) {
    const int64_t num_dims = making->tables->num_dims, group = making->tables->routes[route].group;
    const RouteHits *hits = &making->hits[route];
    const int64_t *column = hits->table + hit;
    Made *made = making->made;
    const int64_t row = column[0], entry = making->entries[row];
    const int64_t residence = find_residence(making, group, entry, column[hits->column]);
    const int64_t load = making->needs[group].load_of[residence];
    if (load >= making->first_load && made->loads[load - making->first_load].first_row < 0)
        made->loads[load - making->first_load].first_row = row;
    if (is_row(making, group, residence, load, column[2 * hits->column])) {
        LoadRow *own = &made->loads[load - making->first_load];
        own->batch = batch;
        own->row = row - making->edges[batch];
        return 1;
    }
    const int64_t size = COPY_LOWS + 3 * num_dims;
    if (!grow(&made->copies, made->num_copies, &made->room_copies, (size_t)size * sizeof(int32_t)))
        return 0;
    int32_t *copy = made->copies + size * made->num_copies++;
    copy[COPY_LOAD] = (int32_t)load;
    copy[COPY_ROUTE] = (int32_t)route;
    copy[COPY_BATCH] = (int32_t)batch;
    copy[COPY_ROW] = (int32_t)(row - making->edges[batch]);
    for (int64_t i = 0; i < 3 * num_dims; i++)
        copy[COPY_LOWS + i] = (int32_t)column[(3 + i) * hits->column];
    return 1;
}

/* Counts a row of an entry, and lists the blocks that no later row needs. */
static int end_row(const Making *making, int64_t entry) {
    Made *made = making->made;
    if (--making->rows_left[entry] || making->tables->is_resident)
        return 1;
    for (int64_t g = 0; g < making->tables->num_groups; g++) {
        const Needs *needs = &making->needs[g];
        for (int64_t at = needs->offsets[entry]; at < needs->offsets[entry + 1]; at++) {
            if (--needs->entries_left[needs->members[at]])
                continue;
            if (!grow(&made->ends, made->num_ends, &made->room_ends, sizeof(int64_t)))
                return 0;
            made->ends[made->num_ends++] = needs->load_of[needs->members[at]];
        }
    }
    return 1;
}

/* Makes one segment. Returns 0 if there is no memory. */
EXPORT int64_t xloader_make_segment(const Making *making) {
    const Tables *tables = making->tables;
    Made *made = making->made;
    int64_t next[1 + tables->num_routes];
    const int64_t num_rows = making->edges[making->num_batches];
    made->num_loads = made->num_copies = made->num_ends = 0;
    memset(next, 0, sizeof(next));
    for (int64_t row = 0; row < num_rows; row++) {
        const int64_t entry = making->entries[row];
        if (making->is_begun[entry])
            continue;
        making->is_begun[entry] = 1;
        if (!begin_entry(making, entry))
            return 0;
    }
    for (int64_t batch = 0; batch < making->num_batches; batch++) {
        for (int64_t route = 0; route < tables->num_routes; route++) {
            const RouteHits *hits = &making->hits[route];
            for (; next[route] < hits->num && hits->table[next[route]] < making->edges[batch + 1];
                 next[route]++)
                if (!add_copy(making, route, batch, next[route]))
                    return 0;
        }
        making->copy_ends[batch] = made->num_copies;
    }
    for (int64_t row = 0; row < num_rows; row++)
        if (!end_row(making, making->entries[row]))
            return 0;
    return 1;
}
