/* Reads chunks out of files and shards, and decodes them to where they belong.

   It does what goes well. A chunk that is absent, damaged or unusual is left to Python, which tells what
   is wrong with it, or tries again. */

#define _POSIX_C_SOURCE 200809L
#define _FILE_OFFSET_BITS 64

#include "chunk_reader.h"
#include "copy_box.h"
#include "export.h"
#include "files.h"
#include "row_copies.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define MOST_PATH 4096
#define LEFT_TO_PYTHON (-1)

/* A compressor may enlarge a chunk: at most twice its size, and these bytes. */
#define SPARE_NBYTES 65536

/* The most bytes of an object, and of all indexes that are kept. */
#define MOST_OBJECT_NBYTES ((int64_t)1 << 40)
#define MOST_INDEX_NBYTES (16 << 20)

/* Nanoseconds that each read sleeps before. */
static _Atomic int64_t pretended_ns;

EXPORT int64_t xloader_pretend_disk(int64_t nanoseconds) {
    pretended_ns = nanoseconds;
    return 0;
}

/* The index of one shard: where it begins, its size, and the next one that was read. While it is being
   read, `is_there` is 0. */
typedef struct Index {
    struct Index **home, *next;
    int64_t num_users, nbytes;
    int is_there, is_failed;
    uint64_t places[];
} Index;

struct ShardIndexes {
    const Tables *tables;
    pthread_mutex_t lock;
    pthread_cond_t has_come;
    /* Per demand with shards, the index of each shard, if it is kept. */
    Index ***known;
    Index *oldest, *newest;
    int64_t nbytes;
};

struct ChunkReader {
    const Tables *tables;
    ShardIndexes *indexes;
    Codecs codecs;
    char *stored, *scratch;
    int64_t stored_room, scratch_room, size, num_requests, most_decoded;
    char path[MOST_PATH];
};

EXPORT int64_t xloader_make_indexes(const Tables *tables) {
    ShardIndexes *own = calloc(1, sizeof(ShardIndexes));
    if (!own)
        return 0;
    own->tables = tables;
    own->known = calloc((size_t)tables->num_demands, sizeof(Index **));
    pthread_mutex_init(&own->lock, NULL);
    pthread_cond_init(&own->has_come, NULL);
    return (int64_t)(intptr_t)own;
}

EXPORT int64_t xloader_drop_indexes(int64_t address) {
    ShardIndexes *own = (ShardIndexes *)(intptr_t)address;
    for (Index *index = own->oldest, *next; index; index = next) {
        next = index->next;
        free(index);
    }
    for (int64_t i = 0; own->known && i < own->tables->num_demands; i++)
        free(own->known[i]);
    free(own->known);
    pthread_cond_destroy(&own->has_come);
    pthread_mutex_destroy(&own->lock);
    free(own);
    return 0;
}

ChunkReader *make_reader(const Tables *tables, ShardIndexes *indexes) {
    ChunkReader *reader = calloc(1, sizeof(ChunkReader));
    if (reader) {
        reader->tables = tables;
        reader->indexes = indexes;
        reader->codecs = begin_codecs(tables->functions);
    }
    return reader;
}

void drop_reader(ChunkReader *reader) {
    if (!reader)
        return;
    end_codecs(&reader->codecs);
    free(reader->stored);
    free(reader->scratch);
    free(reader);
}

int64_t held_nbytes(const ChunkReader *reader) { return reader->stored_room + reader->scratch_room; }

int64_t planned_nbytes(const ChunkReader *reader) {
    const int64_t held = held_nbytes(reader);
    return held < reader->most_decoded ? held : reader->most_decoded;
}

int64_t count_requests(const ChunkReader *reader) { return reader->num_requests; }

int64_t find_demand(const Tables *tables, int64_t group, int64_t part) {
    const Group *own = &tables->groups[group];
    int64_t demand = own->first_demand;
    while (part >= tables->demands[demand].num_parts)
        part -= tables->demands[demand++].num_parts;
    return demand;
}

/* Makes room for so many bytes; what was there is lost. Returns 0 if there is no memory. */
static int grow(char **memory, int64_t *room, int64_t nbytes) {
    if (nbytes <= *room)
        return 1;
    free(*memory);
    *memory = NULL;
    *room = 0;
    void *more = NULL;
    if (posix_memalign(&more, 64, (size_t)nbytes))
        return 0;
    *memory = more;
    *room = nbytes;
    return 1;
}

/* A chunk along each dimension of its variable: the number of the block there. */
typedef struct {
    const Demand *demand;
    int64_t at[MOST_PROGRAM_DIMS];
} ChunkPlace;

static void find_place(const Tables *tables, const Chunk *chunk, ChunkPlace *place) {
    const Group *group = &tables->groups[chunk->group];
    const int64_t *counts = tables->numbers + group->counts;
    const int64_t number = find_demand(tables, chunk->group, chunk->part);
    int64_t part = chunk->part, block = chunk->block, along[MOST_PROGRAM_DIMS];
    for (int64_t i = group->first_demand; i < number; i++)
        part -= tables->demands[i].num_parts;
    for (int64_t d = tables->num_dims - 1; d >= 0; d--) {
        along[d] = block % counts[d];
        block /= counts[d];
    }
    place->demand = &tables->demands[number];
    for (int64_t i = place->demand->num_axes - 1; i >= 0; i--) {
        const StoredAxis *axis = &tables->axes[place->demand->first_axis + i];
        if (axis->dim >= 0) {
            place->at[i] = along[axis->dim];
        } else {
            place->at[i] = part % axis->num;
            part /= axis->num;
        }
    }
}

static const StoredAxis *axis_of(const Tables *tables, const Demand *demand, int64_t i) {
    return &tables->axes[demand->first_axis + i];
}

static int64_t decoded_nbytes(const Tables *tables, const ChunkPlace *place) {
    int64_t nbytes = place->demand->itemsize;
    for (int64_t i = 0; i < place->demand->num_axes; i++)
        nbytes *= tables->numbers[axis_of(tables, place->demand, i)->stored + place->at[i]];
    return nbytes;
}

/* Writes the name of a chunk's file, or of that of its shard. Returns 0 if it is too long. */
static int name_file(ChunkReader *reader, const ChunkPlace *place, const int64_t *counts) {
    const Tables *tables = reader->tables;
    const Demand *demand = place->demand;
    int at = snprintf(reader->path, MOST_PATH, "%s", tables->text + demand->prefix);
    for (int64_t i = 0; i < demand->num_axes && at < MOST_PATH; i++) {
        int64_t index = tables->numbers[axis_of(tables, demand, i)->chunks + place->at[i]];
        index /= counts ? counts[i] : 1;
        if (i)
            reader->path[at++] = (char)demand->separator;
        if (at < MOST_PATH)
            at += snprintf(reader->path + at, (size_t)(MOST_PATH - at), "%lld", (long long)index);
    }
    return at < MOST_PATH;
}

static uint32_t checksum_of(const unsigned char *data, int64_t size) {
    uint32_t sum = ~(uint32_t)0;
    for (int64_t i = 0; i < size; i++) {
        sum ^= data[i];
        for (int bit = 0; bit < 8; bit++)
            sum = sum >> 1 ^ (sum & 1 ? 0x82F63B78u : 0);
    }
    return ~sum;
}

static uint64_t wide_number(const unsigned char *data) {
    uint64_t number = 0;
    for (int i = 7; i >= 0; i--)
        number = number << 8 | data[i];
    return number;
}

/* Reads the index of a shard. Returns 0 where it cannot be used. */
static int load_index(ChunkReader *reader, const Sharding *shards, Index *index) {
    File file = {0};
    if (begin_file(reader->path, &file))
        return 0;
    reader->num_requests++;
    const int64_t nbytes = shards->index_nbytes, begin = shards->is_at_start ? 0 : file.size - nbytes;
    const int is_read =
        nbytes <= file.size && grow(&reader->stored, &reader->stored_room, nbytes) &&
        read_part(file.descriptor, begin, nbytes, reader->stored) == nbytes;
    close(file.descriptor);
    const unsigned char *data = (const unsigned char *)reader->stored;
    const int64_t num = 2 * shards->num_chunks;
    if (!is_read)
        return 0;
    if (shards->is_checked) {
        const unsigned char *end = data + 8 * num;
        const uint32_t told = (uint32_t)end[0] | (uint32_t)end[1] << 8 | (uint32_t)end[2] << 16 |
                              (uint32_t)end[3] << 24;
        if (told != checksum_of(data, 8 * num))
            return 0;
    }
    for (int64_t i = 0; i < num; i++)
        index->places[i] = wide_number(data + 8 * i);
    return 1;
}

/* Takes an index off the list of those that are kept. The lock must be held. */
static void unlist(ShardIndexes *own, Index *index) {
    Index **at = &own->oldest, *before = NULL;
    while (*at && *at != index) {
        before = *at;
        at = &before->next;
    }
    if (!*at)
        return;
    *at = index->next;
    if (own->newest == index)
        own->newest = before;
    own->nbytes -= index->nbytes;
    *index->home = NULL;
}

/* Drops the indexes that were read first, if there are too many. The lock must be held. */
static void drop_oldest(ShardIndexes *own) {
    for (Index *index = own->oldest, *next; index && own->nbytes > MOST_INDEX_NBYTES; index = next) {
        next = index->next;
        if (index->num_users || !index->is_there)
            continue;
        unlist(own, index);
        free(index);
    }
}

/* The index of the shard that `reader->path` names, for use until `leave_index`; NULL if there is none. */
static Index *use_index(ChunkReader *reader, const Demand *demand, int64_t shard) {
    ShardIndexes *own = reader->indexes;
    const Sharding *shards = &reader->tables->shardings[demand->shards];
    const int64_t at = demand - reader->tables->demands;
    pthread_mutex_lock(&own->lock);
    if (!own->known[at])
        own->known[at] = calloc((size_t)shards->num_shards, sizeof(Index *));
    Index **home = own->known[at] ? &own->known[at][shard] : NULL;
    Index *index = home ? *home : NULL;
    if (index) {
        index->num_users++;
        while (!index->is_there)
            pthread_cond_wait(&own->has_come, &own->lock);
        const int is_failed = index->is_failed;
        if (is_failed && !--index->num_users)
            free(index);
        pthread_mutex_unlock(&own->lock);
        return is_failed ? NULL : index;
    }
    const int64_t nbytes = 16 * shards->num_chunks;
    index = home ? calloc(1, sizeof(Index) + (size_t)nbytes) : NULL;
    if (!index) {
        pthread_mutex_unlock(&own->lock);
        return NULL;
    }
    *index = (Index){.home = home, .num_users = 1, .nbytes = nbytes};
    *home = index;
    *(own->newest ? &own->newest->next : &own->oldest) = index;
    own->newest = index;
    own->nbytes += nbytes;
    pthread_mutex_unlock(&own->lock);
    const int is_read = load_index(reader, shards, index);
    pthread_mutex_lock(&own->lock);
    index->is_there = 1;
    if (!is_read) {
        index->is_failed = 1;
        unlist(own, index);
        if (!--index->num_users)
            free(index);
        index = NULL;
    }
    pthread_cond_broadcast(&own->has_come);
    drop_oldest(own);
    pthread_mutex_unlock(&own->lock);
    return index;
}

static void leave_index(ShardIndexes *own, Index *index) {
    pthread_mutex_lock(&own->lock);
    index->num_users--;
    pthread_mutex_unlock(&own->lock);
}

/* Finds a chunk in its shard. Returns 0 where that is left to Python. */
static int find_in_shard(ChunkReader *reader, const ChunkPlace *place, int64_t *start, int64_t *size) {
    const Tables *tables = reader->tables;
    const Demand *demand = place->demand;
    const Sharding *shards = &tables->shardings[demand->shards];
    const int64_t *counts = tables->numbers + shards->counts;
    const int64_t *objects = tables->numbers + shards->object_counts;
    int64_t shard = 0, within = 0;
    for (int64_t i = 0; i < demand->num_axes; i++) {
        const int64_t chunk = tables->numbers[axis_of(tables, demand, i)->chunks + place->at[i]];
        shard = shard * objects[i] + chunk / counts[i];
        within = within * counts[i] + chunk % counts[i];
    }
    Index *index = use_index(reader, demand, shard);
    if (!index)
        return 0;
    const uint64_t begin = index->places[2 * within], nbytes = index->places[2 * within + 1];
    leave_index(reader->indexes, index);
    const uint64_t first = shards->is_at_start ? (uint64_t)shards->index_nbytes : 0;
    const uint64_t most = (uint64_t)(2 * decoded_nbytes(tables, place) + SPARE_NBYTES);
    if (begin < first || begin > (uint64_t)MOST_OBJECT_NBYTES ||
        nbytes < (uint64_t)shards->fewest_nbytes || nbytes > most)
        return 0;
    *start = (int64_t)begin;
    *size = (int64_t)nbytes;
    return 1;
}

int64_t read_chunk(ChunkReader *reader, const Chunk *chunk) {
    const Tables *tables = reader->tables;
    ChunkPlace place;
    find_place(tables, chunk, &place);
    const Demand *demand = place.demand;
    const Sharding *shards = demand->shards < 0 ? NULL : &tables->shardings[demand->shards];
    int64_t start = 0, size = -1;
    if (!demand->is_native || !name_file(reader, &place, shards ? tables->numbers + shards->counts : NULL))
        return LEFT_TO_PYTHON;
    if (shards && !find_in_shard(reader, &place, &start, &size))
        return LEFT_TO_PYTHON;
    const int64_t wait_ns = pretended_ns;
    if (wait_ns > 0)
        nanosleep(&(struct timespec){wait_ns / 1000000000, wait_ns % 1000000000}, NULL);
    File file = {0};
    if (begin_file(reader->path, &file))
        return LEFT_TO_PYTHON;
    reader->num_requests++;
    const int64_t nbytes = decoded_nbytes(tables, &place);
    reader->most_decoded = nbytes > reader->most_decoded ? nbytes : reader->most_decoded;
    const int64_t guard =
        shards && !shards->is_checked && !shards->is_at_start ? shards->index_nbytes : 0;
    if (!shards)
        size = file.size;
    const int is_usual = size <= 2 * nbytes + SPARE_NBYTES && size <= file.size - start - guard;
    const int is_read = is_usual && grow(&reader->stored, &reader->stored_room, size ? size : 1) &&
                        read_part(file.descriptor, start, size, reader->stored) == size;
    close(file.descriptor);
    reader->size = is_read ? size : LEFT_TO_PYTHON;
    return reader->size;
}

/* Where a chunk's elements go: the loops over them, and the first byte of both memories. */
typedef struct {
    Loop loops[MOST_LOOPS];
    int64_t num, from;
    char *to;
} Target;

static void find_target(const Tables *tables, const Chunk *chunk, const ChunkPlace *place, Target *target) {
    const Demand *demand = place->demand;
    const Group *group = &tables->groups[chunk->group];
    const int64_t num_axes = demand->num_axes;
    int64_t extents[MOST_PROGRAM_DIMS], steps[MOST_PROGRAM_DIMS];
    find_extents(tables, chunk->group, chunk->block, extents);
    if (chunk->memory) {
        const int64_t *order = tables->numbers + demand->order;
        int64_t step = demand->itemsize;
        for (int64_t i = num_axes - 1; i >= 0; i--) {
            const StoredAxis *axis = axis_of(tables, demand, order[i]);
            steps[order[i]] = step;
            step *= axis->dim < 0 ? tables->numbers[axis->edges + axis->num] : extents[axis->dim];
        }
        target->to = chunk->memory + find_kind(tables, group, demand->kind, extents) + demand->number * step;
    } else {
        for (int64_t i = 0; i < num_axes; i++)
            steps[i] = tables->numbers[demand->row_steps + i];
        target->to = chunk->arrays[demand->row_array] + demand->row_offset + chunk->row * demand->row_step;
    }
    target->from = 0;
    int64_t stride = demand->itemsize;
    for (int64_t i = num_axes - 1; i >= 0; i--) {
        const StoredAxis *axis = axis_of(tables, demand, i);
        const int64_t *edges = tables->numbers + axis->edges, at = place->at[i];
        target->from += tables->numbers[axis->firsts + at] * stride;
        if (axis->dim < 0)
            target->to += edges[at] * steps[i];
        target->loops[i] = (Loop){edges[at + 1] - edges[at], axis->step * stride, steps[i]};
        stride *= tables->numbers[axis->stored + at];
    }
    target->num = simplify(target->loops, num_axes, demand->itemsize, demand->itemsize);
}

/* Whether a chunk is decompressed straight to where it belongs. */
static int is_in_place(const Target *target, int64_t itemsize, int64_t nbytes) {
    const Loop *loop = &target->loops[0];
    return target->num == 1 && loop->from == itemsize && loop->to == itemsize &&
           loop->count * itemsize == nbytes;
}

int needs_scratch(const Tables *tables, const Chunk *chunk) {
    ChunkPlace place;
    Target target;
    find_place(tables, chunk, &place);
    find_target(tables, chunk, &place, &target);
    const int64_t nbytes = decoded_nbytes(tables, &place);
    return target.num && place.demand->codec != RAW &&
           !is_in_place(&target, place.demand->itemsize, nbytes);
}

int decode_stored(ChunkReader *reader, const Chunk *chunk, const char *stored, int64_t size) {
    const Tables *tables = reader->tables;
    ChunkPlace place;
    Target target;
    find_place(tables, chunk, &place);
    find_target(tables, chunk, &place, &target);
    const Demand *demand = place.demand;
    const int64_t itemsize = demand->itemsize, nbytes = decoded_nbytes(tables, &place);
    if (!target.num)
        return 1;
    if (is_in_place(&target, itemsize, nbytes))
        return decompress(&reader->codecs, demand->codec, stored, size, target.to, nbytes);
    const char *decoded = stored;
    if (demand->codec == RAW) {
        if (size != nbytes)
            return 0;
    } else {
        if (!grow(&reader->scratch, &reader->scratch_room, nbytes) ||
            !decompress(&reader->codecs, demand->codec, stored, size, reader->scratch, nbytes))
            return 0;
        decoded = reader->scratch;
    }
    copy_box(
        SAME, target.loops, target.num, decoded + target.from, target.to, itemsize, itemsize, NULL);
    return 1;
}

int decode_chunk(ChunkReader *reader, const Chunk *chunk) {
    return decode_stored(reader, chunk, reader->stored, reader->size);
}
