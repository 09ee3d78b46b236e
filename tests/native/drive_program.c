/* Carries out a saved program without Python, so that sanitizers see all of it.

   drive_program FILE run SECONDS     runs it again and again with other numbers of threads, with chunks
                                      that cannot be read, and with a close in the middle; every batch
                                      must be the same as in the first run
   drive_program FILE fuzz SECONDS    changes numbers of its tables, which must be refused or harmless */

#define _GNU_SOURCE

#include "../../xloader/compiled/program.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct {
    int64_t batch_nbytes, in_flight_nbytes, most_chunk_nbytes, num_threads, num_held, num_known;
    int64_t most_scratch, most_loading_hands;
} Options;

int64_t xloader_check_tables(const Tables *);
int64_t xloader_make_blocks(int64_t);
int64_t xloader_drop_blocks(int64_t);
int64_t xloader_make_indexes(const Tables *);
int64_t xloader_drop_indexes(int64_t);
int64_t xloader_begin_run(const Tables *, int64_t, int64_t, const Options *);
int64_t xloader_start_run(int64_t);
int64_t xloader_add_segment(int64_t, const SegmentRows *, int64_t);
int64_t xloader_give_slot(int64_t, int64_t, const int64_t *);
int64_t xloader_take_batch(int64_t, int64_t, int64_t *);
int64_t xloader_next_work(int64_t, int64_t, int64_t, int64_t *);
int64_t xloader_find_load(int64_t, int64_t, int64_t *);
int64_t xloader_chunks_done(int64_t, int64_t, int64_t, int64_t);
int64_t xloader_note_fetched(int64_t, int64_t);
int64_t xloader_give_chunks(int64_t, int64_t, const int64_t *, int64_t);
int64_t xloader_take_empty(int64_t, int64_t *, int64_t);
int64_t xloader_gaps(int64_t, int64_t, int64_t *, int64_t);
int64_t xloader_batch_done(int64_t, int64_t);
int64_t xloader_run_figures(int64_t, int64_t *, int64_t *, int64_t *);
int64_t xloader_close_run(int64_t);
int64_t xloader_join_run(int64_t, int64_t);
int64_t xloader_keep_blocks(int64_t, int64_t *, int64_t);
int64_t xloader_drop_run(int64_t);
int64_t xloader_pretend_codec(int64_t);

#define NUM_TABLES 10
#define NUM_COUNTS 13
#define MOST_WORK 64

/* A saved program, in one piece of memory. */
typedef struct {
    int64_t *words;
    int64_t num_words;
    Tables tables;
    int64_t capacity, num_slots, num_segments;
    Options options;
    SegmentRows *segments;
} Saved;

static int64_t *section(int64_t **at, int64_t *nbytes) {
    *nbytes = *(*at)++;
    int64_t *begin = *at;
    *at += (*nbytes + 7) / 8;
    return begin;
}

/* Finds the tables in memory that was read, or changed. The sizes of sections are taken as they are. */
static void find_tables(Saved *saved) {
    int64_t *at = saved->words + 1, nbytes;
    memcpy(&saved->tables, at, NUM_COUNTS * sizeof(int64_t));
    at += NUM_COUNTS;
    const void **tables = (const void **)&saved->tables.groups;
    for (int i = 0; i < NUM_TABLES; i++)
        tables[i] = section(&at, &nbytes);
    const int64_t num_lookups = *at++;
    for (int64_t i = 0; i < num_lookups; i++) {
        const int64_t stack = *at++;
        ((Stack *)saved->tables.stacks)[stack].lookup = (int64_t)(intptr_t)section(&at, &nbytes);
    }
    saved->capacity = *at++;
    saved->num_slots = *at++;
    memcpy(&saved->options, at, sizeof(Options));
    at += sizeof(Options) / 8;
    saved->num_segments = *at++;
    saved->segments = calloc((size_t)saved->num_segments + 1, sizeof(SegmentRows));
    for (int64_t i = 0; i < saved->num_segments; i++) {
        SegmentRows *rows = &saved->segments[i];
        memcpy(rows, at, 6 * sizeof(int64_t));
        at += 6;
        rows->loads = (const LoadRow *)section(&at, &nbytes);
        rows->copies = (const int32_t *)section(&at, &nbytes);
        rows->copy_ends = section(&at, &nbytes);
        rows->is_finished = section(&at, &nbytes);
        rows->ends = section(&at, &nbytes);
    }
}

typedef struct {
    const Saved *saved;
    int64_t run;
    unsigned seed;
    int percent_failing;
    _Atomic int64_t next_segment, is_wrong;
    /* Stored bytes, by the first of their loads. */
    char **held;
    int64_t num_loads;
} Python;

static int64_t stored_nbytes(const Tables *tables, const Demand *demand) {
    int64_t nbytes = demand->itemsize;
    for (int64_t i = 0; i < demand->num_axes; i++)
        nbytes *= tables->numbers[tables->axes[demand->first_axis + i].stored];
    return nbytes;
}

/* Gives the stored bytes of one or two successive blocks of a group; they are not compressed. A few are cut
   short. */
static void give(Python *python, const SegmentRows *rows, int64_t at, int64_t num, unsigned *seed) {
    const Tables *tables = &python->saved->tables;
    const Group *group = &tables->groups[rows->loads[at].group];
    int64_t most = 1;
    for (int64_t d = group->first_demand; d < group->first_demand + group->num_demands; d++) {
        const int64_t nbytes = stored_nbytes(tables, &tables->demands[d]);
        most = nbytes > most ? nbytes : most;
    }
    char *bytes = malloc((size_t)(most * num * group->num_parts));
    int64_t(*chunks)[4] = calloc((size_t)(num * group->num_parts), sizeof(*chunks)), size = 0;
    for (int64_t i = 0; i < num * group->num_parts; i++) {
        const int64_t load = at + i / group->num_parts, part = i % group->num_parts;
        int64_t demand = group->first_demand, left = part;
        for (; left >= tables->demands[demand].num_parts; demand++)
            left -= tables->demands[demand].num_parts;
        const int64_t nbytes = stored_nbytes(tables, &tables->demands[demand]);
        const int is_cut = (int)(rand_r(seed) % 100) < python->percent_failing;
        memset(bytes + size, (int)(rows->loads[load].block * 7 + part) & 127, (size_t)nbytes);
        int64_t *chunk = chunks[i];
        chunk[0] = rows->first_load + load;
        chunk[1] = part;
        chunk[2] = (int64_t)(intptr_t)(bytes + size);
        chunk[3] = nbytes - is_cut;
        size += nbytes;
    }
    python->held[rows->first_load + at] = bytes;
    xloader_give_chunks(python->run, rows->first_load + at, chunks[0], num * group->num_parts);
    free(chunks);
}

/* The group of a load, which may be over. */
static int64_t group_of(const Saved *saved, int64_t number) {
    const SegmentRows *rows = saved->segments;
    while (number >= rows->first_load + rows->num_loads)
        rows++;
    return rows->loads[number - rows->first_load].group;
}

/* Does what threads that fetch ahead do, for the loads of a segment. */
static void fetch(Python *python, const SegmentRows *rows, unsigned *seed) {
    for (int64_t at = 0; at < rows->num_loads; at++) {
        const int64_t group = rows->loads[at].group;
        if (!python->saved->tables.groups[group].is_fetched || rows->loads[at].address)
            continue;
        const int has_next = at + 1 < rows->num_loads && rows->loads[at + 1].group == group &&
                             !rows->loads[at + 1].address;
        const int64_t num = 1 + (has_next && rand_r(seed) % 2);
        give(python, rows, at, num, seed);
        at += num - 1;
    }
}

/* What threads of Python do. */
static void *work(void *argument) {
    Python *python = argument;
    const Saved *saved = python->saved;
    unsigned seed = python->seed;
    int64_t told[5], place[5], was_working = 0;
    while (xloader_next_work(python->run, was_working, 0, told)) {
        was_working = told[0] == 0 || told[0] == 4 ? 2 : 1;
        if (told[0] == 2) {
            const int64_t at = python->next_segment++;
            const int is_last = at + 1 >= saved->num_segments;
            if (at >= saved->num_segments ||
                xloader_add_segment(python->run, &saved->segments[at], is_last) != 1) {
                python->is_wrong = 1;
                xloader_close_run(python->run);
            } else if (python->held) {
                fetch(python, &saved->segments[at], &seed);
            }
        } else if (told[0] == 1) {
            int64_t gaps[2 * MOST_WORK];
            xloader_gaps(python->run, told[1], gaps, MOST_WORK);
            xloader_batch_done(python->run, told[1]);
        } else if (told[0] == 4) {
            /* The chunk is in the first of the two blocks, or in the second. */
            const int64_t num = saved->tables.groups[group_of(saved, told[1])].num_parts;
            xloader_chunks_done(python->run, told[1] + told[2] / num, 1, 1);
        } else if (told[0] == 5) {
            int64_t tokens[2 * MOST_WORK];
            const int64_t num = xloader_take_empty(python->run, tokens, MOST_WORK);
            for (int64_t i = 0; i < num; i++) {
                free(python->held[tokens[2 * i]]);
                python->held[tokens[2 * i]] = NULL;
            }
        } else {
            for (int64_t at = told[1]; at < told[1] + told[3]; at++) {
                xloader_find_load(python->run, at, place);
                const int64_t num = told[2] < 0 ? saved->tables.groups[place[0]].num_parts : 1;
                const int has_failed = (int)(rand_r(&seed) % 100) < python->percent_failing;
                xloader_chunks_done(python->run, at, num, has_failed);
            }
        }
    }
    return NULL;
}

static uint64_t hash_of(uint64_t hash, const char *data, int64_t nbytes) {
    for (int64_t i = 0; i < nbytes; i++)
        hash = (hash ^ (unsigned char)data[i]) * 1099511628211u;
    return hash;
}

/* Carries out the program, or a part of it. Writes the hash of each batch; returns how many there were. */
static int64_t carry_out(
    const Saved *saved, unsigned seed, int num_threads, int num_hands, int percent_failing,
    int64_t most_batches, uint64_t *hashes, int64_t room) {
    const Tables *tables = &saved->tables;
    const int64_t *nbytes = tables->numbers + tables->array_nbytes;
    Options options = saved->options;
    options.num_threads = num_threads;
    const int64_t blocks = xloader_make_blocks(saved->capacity), indexes = xloader_make_indexes(tables);
    Python python = {
        .saved = saved, .seed = seed, .percent_failing = percent_failing,
        .run = xloader_begin_run(tables, blocks, indexes, &options)};
    const SegmentRows *last = saved->segments + saved->num_segments - 1;
    /* Changed programs are not fetched ahead: what they say of chunks is not true. */
    if (room) {
        python.num_loads = saved->num_segments ? last->first_load + last->num_loads : 0;
        python.held = calloc((size_t)python.num_loads + 1, sizeof(char *));
    }
    char ***slots = calloc((size_t)saved->num_slots + 1, sizeof(char **));
    int64_t *addresses = calloc((size_t)tables->num_arrays + 1, sizeof(int64_t));
    for (int64_t i = 0; i < saved->num_slots; i++) {
        slots[i] = calloc((size_t)tables->num_arrays + 1, sizeof(char *));
        for (int64_t j = 0; j < tables->num_arrays; j++) {
            slots[i][j] = calloc((size_t)nbytes[j] + 1, 1);
            addresses[j] = (int64_t)(intptr_t)slots[i][j];
        }
        xloader_give_slot(python.run, i, addresses);
    }
    pthread_t hands[4];
    for (int i = 0; i < num_hands; i++)
        pthread_create(&hands[i], NULL, work, &python);
    xloader_start_run(python.run);
    int64_t num = 0, num_reads, patience = 50;
    while (num < most_batches && patience) {
        const int64_t slot = xloader_take_batch(python.run, 20000000, &num_reads);
        if (slot == -1) {
            /* A changed program may wait for what never comes. */
            patience -= room == 0;
            continue;
        }
        if (slot < 0)
            break;
        uint64_t hash = 14695981039346656037u;
        for (int64_t j = 0; j < tables->num_arrays; j++) {
            hash = hash_of(hash, slots[slot][j], nbytes[j]);
            memset(slots[slot][j], 0, (size_t)nbytes[j]);
            addresses[j] = (int64_t)(intptr_t)slots[slot][j];
        }
        if (num < room)
            hashes[num] = hash;
        num++;
        xloader_give_slot(python.run, slot, addresses);
    }
    int64_t figures[32];
    int64_t *reads = calloc((size_t)tables->num_demands + 1, sizeof(int64_t));
    int64_t *groups = calloc((size_t)tables->num_groups + 1, sizeof(int64_t));
    xloader_run_figures(python.run, figures, reads, groups);
    xloader_close_run(python.run);
    for (int i = 0; i < num_hands; i++)
        pthread_join(hands[i], NULL);
    while (xloader_join_run(python.run, 1000000000))
        ;
    xloader_keep_blocks(python.run, NULL, 0);
    xloader_drop_run(python.run);
    for (int64_t i = 0; i < python.num_loads; i++)
        free(python.held[i]);
    free(python.held);
    xloader_drop_indexes(indexes);
    xloader_drop_blocks(blocks);
    for (int64_t i = 0; i < saved->num_slots; i++) {
        for (int64_t j = 0; j < tables->num_arrays; j++)
            free(slots[i][j]);
        free(slots[i]);
    }
    free(slots);
    free(addresses);
    free(reads);
    free(groups);
    return python.is_wrong ? -1 : num;
}

static int64_t count_batches(const Saved *saved) {
    int64_t num = 0;
    for (int64_t i = 0; i < saved->num_segments; i++)
        num += saved->segments[i].num_batches;
    return num;
}

static int run_again(const Saved *saved, time_t until) {
    const int64_t num = count_batches(saved);
    uint64_t *first = calloc((size_t)num + 1, sizeof(uint64_t));
    uint64_t *hashes = calloc((size_t)num + 1, sizeof(uint64_t));
    if (carry_out(saved, 1, 1, 1, 0, num, first, num) != num)
        return 1;
    unsigned seed = 1;
    int64_t num_runs = 0, num_batches = 0;
    for (; time(NULL) < until; num_runs++) {
        const int kind = num_runs % 3, num_threads = 1 + rand_r(&seed) % 4;
        const int64_t most = kind == 1 ? rand_r(&seed) % (num + 1) : num;
        const int64_t made = carry_out(
            saved, seed, num_threads, 1 + rand_r(&seed) % 2, kind == 2 ? 30 : 0, most, hashes, num);
        num_batches += made;
        if (made != most)
            return 2;
        for (int64_t i = 0; kind != 2 && i < made; i++)
            if (hashes[i] != first[i])
                return 3;
    }
    printf("%ld runs, %ld batches, all alike\n", (long)num_runs, (long)num_batches);
    free(first);
    free(hashes);
    return 0;
}

static int fuzz(const Saved *saved, time_t until) {
    int64_t num_refused = 0, num_run = 0;
    unsigned seed = 1;
    xloader_pretend_codec(0);
    for (; time(NULL) < until; num_run++) {
        Saved changed = *saved;
        changed.words = malloc((size_t)saved->num_words * sizeof(int64_t));
        memcpy(changed.words, saved->words, (size_t)saved->num_words * sizeof(int64_t));
        find_tables(&changed);
        const int num_changes = 1 + rand_r(&seed) % 3;
        for (int i = 0; i < num_changes; i++) {
            static const int64_t odd[] = {0, -1, 1, 2, 7, 1 << 20, INT64_MAX, INT64_MIN, 255, -2};
            int64_t *tables[] = {
                (int64_t *)changed.tables.groups, (int64_t *)changed.tables.kinds,
                (int64_t *)changed.tables.demands, (int64_t *)changed.tables.axes,
                (int64_t *)changed.tables.shardings, (int64_t *)changed.tables.routes,
                (int64_t *)changed.tables.stacks, (int64_t *)changed.tables.numbers};
            const int64_t sizes[] = {
                changed.tables.num_groups * (int64_t)sizeof(Group) / 8,
                changed.tables.num_kinds * (int64_t)sizeof(Kind) / 8,
                changed.tables.num_demands * (int64_t)sizeof(Demand) / 8,
                changed.tables.num_axes * (int64_t)sizeof(StoredAxis) / 8,
                changed.tables.num_shardings * (int64_t)sizeof(Sharding) / 8,
                changed.tables.num_routes * (int64_t)sizeof(Route) / 8,
                changed.tables.num_stacks * (int64_t)sizeof(Stack) / 8,
                changed.tables.num_numbers};
            const int which = rand_r(&seed) % 10;
            int64_t value = odd[rand_r(&seed) % 10], *place = NULL;
            if (which < 8 && sizes[which] > 0) {
                place = tables[which] + rand_r(&seed) % sizes[which];
                /* An address cannot be checked. */
                if (which == 6 && (place - tables[6]) % 6 == 1)
                    continue;
            } else if (changed.num_segments) {
                SegmentRows *rows = &changed.segments[rand_r(&seed) % changed.num_segments];
                const int64_t row = 4 + 3 * changed.tables.num_dims;
                if (which == 8 && rows->num_copies) {
                    int32_t *copies = (int32_t *)rows->copies;
                    copies[rand_r(&seed) % (rows->num_copies * row)] = (int32_t)value;
                } else if (rows->num_loads) {
                    const int64_t num_words = (int64_t)sizeof(LoadRow) / 8;
                    place = (int64_t *)rows->loads + rand_r(&seed) % (rows->num_loads * num_words);
                    if (place == &((LoadRow *)rows->loads)[(place - (int64_t *)rows->loads) / num_words].address)
                        continue;
                }
            }
            if (place)
                *place = rand_r(&seed) % 2 ? value : (int64_t)((uint64_t)*place + (uint64_t)value);
        }
        int is_right = xloader_check_tables(&changed.tables) == 1;
        const int64_t *nbytes = changed.tables.numbers + changed.tables.array_nbytes;
        for (int64_t i = 0; is_right && i < changed.tables.num_arrays; i++)
            is_right = nbytes[i] < 1 << 24;
        if (is_right) {
            uint64_t none;
            is_right = carry_out(&changed, seed, 2, 1, 10, count_batches(&changed), &none, 0) >= 0;
        }
        num_refused += !is_right;
        free(changed.segments);
        free(changed.words);
    }
    printf("%ld changed programs: %ld refused, the others harmless\n", (long)num_run, (long)num_refused);
    return 0;
}

int main(int num, char **words) {
    Saved saved = {0};
    FILE *file = num == 4 ? fopen(words[1], "rb") : NULL;
    if (!file)
        return 10;
    fseek(file, 0, SEEK_END);
    saved.num_words = ftell(file) / 8;
    rewind(file);
    saved.words = malloc((size_t)saved.num_words * 8);
    if (fread(saved.words, 8, (size_t)saved.num_words, file) != (size_t)saved.num_words)
        return 11;
    fclose(file);
    find_tables(&saved);
    if (!xloader_check_tables(&saved.tables))
        return 12;
    const time_t until = time(NULL) + atoi(words[3]);
    const int answer = strcmp(words[2], "fuzz") ? run_again(&saved, until) : fuzz(&saved, until);
    free(saved.segments);
    free(saved.words);
    if (answer)
        printf("failed: %d\n", answer);
    return answer;
}
