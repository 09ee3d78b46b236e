/* Carries out a program: native threads load blocks, and copy parts of them into batches.

   A copy is due when its block is loaded and its batch is open; whichever comes second makes it. A block
   whose copies are all made gives its memory back, and a batch whose copies are all made is ready.
   Threads take what is next: they open the next batch if there is memory for it, or else load a part of
   the next block if there is memory for that, or else wait. Nothing else is decided during a run.

   What C cannot do becomes due like anything else, and is handed to threads of Python: chunks that do
   not read or decode here, batches to be finished, and further segments of the program. Where stores have
   to be waited for, Python fetches chunks ahead, and they are decoded here. */

#define _GNU_SOURCE
#define _DARWIN_C_SOURCE

#include "blocks.h"
#include "check_program.h"
#include "chunk_reader.h"
#include "export.h"
#include "program.h"
#include "row_copies.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <string.h>
#include <time.h>

/* Loads are kept in pages, which are freed as a whole. */
#define PAGE_LOADS 1024

/* The most copies that are known before their batches are open, unless few batches are. */
#define MOST_COPIES_AHEAD (1 << 16)

/* Decoded bytes of small chunks that a thread takes at a time. */
#define TAKEN_NBYTES (1 << 18)

/* Decoded bytes of small blocks that a thread of Python loads together. */
#define SHARED_NBYTES (1 << 20)

/* Reads after which the memory of later ones is foretold. */
#define FEWEST_READS 16

/* Nanoseconds of a read that are worth further threads, and the most threads that read. */
#define LONG_NS 300000
#define MOST_READERS 64

enum { IS_LOADED = 1, IS_OPEN = 2 };

/* What is told in place of a number. */
enum { NOTHING_YET = -1, IS_OVER = -2, NO_MEMORY = -3, EVERY_CHUNK = -1, WRONG = -1 };

/* The clock of waits with an end, and the thread whose waits are counted. */
#if defined(__linux__)
#define WAIT_CLOCK CLOCK_MONOTONIC
#define OWN_USAGE RUSAGE_THREAD
#else
#define WAIT_CLOCK CLOCK_REALTIME
#define OWN_USAGE RUSAGE_SELF
#endif

/* The turn of a thread that opens a batch, before those that load. */
enum { OPENS = -1 };

/* States of a worker's read. */
enum { NO_READ = 0, READING = 1, GIVEN_UP = 2 };

/* Kinds of work for Python. */
enum { LOAD_CHUNK = 0, FINISH_BATCH = 1, MAKE_SEGMENT = 2, DECODE_FETCHED = 3, DECODE_ALONE = 4, LET_GO = 5 };

/* What a thread of Python has done before it asks for more. */
enum { WAS_IDLE = 0, WAS_WORKING = 1, WAS_LOADING = 2 };

typedef struct Segment Segment;

typedef struct Bundle Bundle;

/* Copies of one segment that take parts of one block: they are `order[begin]` up to `order[end]`. */
typedef struct Use {
    Segment *segment;
    int64_t begin, end;
    struct Use *next;
} Use;

typedef struct {
    LoadRow row;
    int64_t number;
    char *memory;
    /* Chunks that are not there yet; and copies that are not made, with one more until the block is
       loaded, and one more until no later segment can need it. */
    _Atomic int64_t chunks_left, copies_left;
    Use *uses;
    Segment *segment;
    int64_t place, is_loaded, has_failed, is_ended;
    /* Of what was fetched before the block has memory: whether Python decodes some, and what C does. */
    int64_t is_for_python;
    Bundle *bundles;
} Load;

/* A chunk whose stored bytes lie in memory, and its number in the block. */
typedef struct {
    Load *load;
    int64_t part, size;
    const char *bytes;
} StoredChunk;

/* Chunks that were fetched together. Python holds their bytes until all are decoded, and knows them by
   `token`. */
struct Bundle {
    int64_t token, num, num_taken, num_left, num_failed;
    Bundle *next;
    StoredChunk chunks[];
};

typedef struct {
    Load loads[PAGE_LOADS];
    int64_t num_over;
} Page;

/* A row that lacks something, because the block of a load could not be read. */
typedef struct Gap {
    int64_t row, load;
    struct Gap *next;
} Gap;

/* Memory of a batch: its number, and where each of its arrays begins. */
typedef struct Slot {
    int64_t number;
    struct Slot *next;
    char *arrays[];
} Slot;

typedef struct {
    Slot *slot;
    /* Copies that are not made yet, and row loads; with one more until the batch is open. */
    _Atomic int64_t left;
    Gap *gaps;
    int is_open, is_final, is_finished;
} Batch;

struct Segment {
    int64_t first_batch, num_batches, num_copies;
    int32_t *copies;
    int64_t *copy_ends, *order;
    _Atomic unsigned char *flags;
    Batch *batches;
    Load **loads;
    /* Batches that are not taken, and uses that are under way. */
    _Atomic int64_t num_users;
    Segment *next;
};

typedef struct Work {
    int64_t kind, number, part;
    struct Work *next;
} Work;

typedef struct {
    Work *first, *last;
    int64_t num;
} Queue;

/* What a thread of Python is told to do: a kind of work, the number of a batch or of a load, a chunk of the
   block or all, and how many loads from that one on; and the nanoseconds for which it waited. */
typedef struct {
    int64_t kind, number, part, num, waited_ns;
} Told;

/* A thread that waits for a core. What has the least `turn` is needed first. */
typedef struct CoreWaiter {
    int64_t turn;
    int has_core;
    pthread_cond_t core;
    struct CoreWaiter *next;
} CoreWaiter;

typedef struct Run Run;

typedef struct {
    Run *run;
    pthread_t thread;
    Copier *copier;
    /* For chunks that Python has fetched; made when the first comes. */
    ChunkReader *decoder;
    /* Read by others at any time. */
    _Atomic int64_t read_ns, decode_ns, copy_ns;
    /* The read under way: whether there is one, when it began, and of which chunk. Those up to `end`
       are taken as well. */
    _Atomic int64_t state, since_ns;
    _Atomic(Load *) load;
    _Atomic int64_t part, end;
    int64_t num_reads;
    int is_over;
} Worker;

/* Figures of a run, in the order in which native_executor.py names them. */
typedef struct {
    int64_t num_requests, read_ns, decode_ns, copy_ns, cpu_ns, awaited_ns, unasked_ns, peak_nbytes;
    int64_t flight_nbytes, num_threads, num_ready, num_working, peak_working, num_loading;
} Figures;

/* What a run is told besides the tables. */
typedef struct {
    int64_t batch_nbytes, in_flight_nbytes, most_chunk_nbytes, num_threads, num_held;
    /* The program is made further where fewer loads than that are known and not begun. */
    int64_t num_known;
    /* Threads that may decode fetched chunks by way of memory as large as the chunk. Python takes that off
       the bytes that it fetches ahead. */
    int64_t most_scratch;
    /* Threads of Python that load at a time. */
    int64_t most_loading_hands;
} Options;

struct Run {
    const Tables *tables;
    Blocks *blocks;
    ShardIndexes *indexes;
    Options options;

    pthread_mutex_t lock;
    pthread_cond_t work, ready, foreign, scratch, has_ended;
    /* Threads of Python that have nothing to do, and that load. */
    int64_t num_idle_hands, num_loading_hands;

    Page **pages;
    /* Per page, the loads that no later segment needs. */
    int64_t *num_ended;
    /* Up to the first batch, no more loads are begun than it needs, or than keep all threads busy. */
    int64_t num_loads, next_load, next_chunk, num_first_loads;
    /* Of the segments whose batches are not all taken, the first, that of the next batch to open, and
       the last. */
    Segment *oldest, *opening, *newest;
    int64_t num_batches, next_batch, num_taken, num_slots_used, num_copies_ahead;
    Slot *slots;
    int is_complete, is_segment_under_way;

    Queue chunks, finishes;
    /* Chunks to decode; and those that are decoded, whose bytes Python may let go. */
    Bundle *first_bundle, *last_bundle, *empty_bundles;

    /* Readers that no thread uses now. */
    ChunkReader *readers[MOST_READERS + 1];
    int64_t num_readers, num_idle_readers, most_held_nbytes, num_reads, num_waits;
    int64_t num_decoded;
    /* Those with scratch memory, for what Python has fetched. */
    ChunkReader *decoders[MOST_READERS];
    int64_t num_decoders, num_idle_decoders;
    _Atomic int64_t cores_left, num_core_waiters;
    CoreWaiter *core_waiters;

    Worker **workers;
    int64_t num_workers, num_running, num_stuck, num_waiting, is_awaited, since_ns;
    int64_t *demand_reads, *group_nbytes;
    Figures figures;
    int is_closing, lacks_memory;
};

static int64_t now_of(clockid_t clock) {
    struct timespec now;
    if (clock_gettime(clock, &now))
        return 0;
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int64_t now(void) { return now_of(CLOCK_MONOTONIC); }

static Load *load_of(const Run *run, int64_t number) {
    return &run->pages[number / PAGE_LOADS]->loads[number % PAGE_LOADS];
}

static int is_row(const Load *load) { return load->row.batch >= 0; }

static int64_t count_chunks(const Run *run, const Load *load) {
    return run->tables->groups[load->row.group].num_parts;
}

/* Figures. The lock must be held. */

/* Adds the time since the last call to the time in which threads were at work. */
static void pass_time(Run *run) {
    const int64_t then = now(), spent = (then - run->since_ns) * run->figures.num_working;
    *(run->is_awaited ? &run->figures.awaited_ns : &run->figures.unasked_ns) += spent;
    run->since_ns = then;
}

static void mark(Run *run, int64_t change) {
    pass_time(run);
    run->figures.num_working += change;
    if (run->figures.peak_working < run->figures.num_working)
        run->figures.peak_working = run->figures.num_working;
}

static void weigh(Run *run) {
    const int64_t num_held = run->num_taken < run->options.num_held ? run->num_taken : run->options.num_held;
    const int64_t batches = (run->num_slots_used + num_held) * run->options.batch_nbytes;
    const int64_t nbytes = batches + used_nbytes(run->blocks) + run->figures.flight_nbytes;
    if (run->figures.peak_nbytes < nbytes)
        run->figures.peak_nbytes = nbytes;
}

/* Ends a run for which the system has no memory. The lock must be held. */
static void give_up(Run *run) {
    run->is_closing = run->lacks_memory = 1;
    pthread_cond_broadcast(&run->work);
    pthread_cond_broadcast(&run->ready);
    pthread_cond_broadcast(&run->foreign);
}

/* Work for Python. The lock must be held. */

static void push(Run *run, Queue *queue, int64_t kind, int64_t number, int64_t part) {
    Work *work = malloc(sizeof(Work));
    if (!work) {
        give_up(run);
        return;
    }
    *work = (Work){kind, number, part, NULL};
    *(queue->last ? &queue->last->next : &queue->first) = work;
    queue->last = work;
    queue->num++;
    pthread_cond_signal(&run->foreign);
}

static int pop(Queue *queue, Told *told) {
    Work *work = queue->first;
    if (!work)
        return 0;
    queue->first = work->next;
    if (!queue->first)
        queue->last = NULL;
    queue->num--;
    told->kind = work->kind;
    told->number = work->number;
    told->part = work->part;
    told->num = 1;
    free(work);
    return 1;
}

/* Whether the program should be made further: few batches are left to open, or few blocks to load. */
static int wants_segment(const Run *run) {
    if (run->is_complete || run->is_segment_under_way || run->is_closing)
        return 0;
    const int64_t unopened = run->num_batches - run->next_batch;
    const int64_t unloaded = run->num_loads - run->next_load;
    if (unopened < 2)
        return 1;
    const int is_short = unopened <= run->options.num_threads || unloaded <= run->options.num_known;
    return is_short && run->num_copies_ahead < MOST_COPIES_AHEAD;
}

static void want_segment(Run *run) {
    if (wants_segment(run))
        pthread_cond_signal(&run->foreign);
}

/* Memory. The lock must be held. */

static void leave_segment(Segment *segment) {
    if (atomic_fetch_sub(&segment->num_users, 1) != 1)
        return;
    for (int64_t i = 0; i < segment->num_batches; i++)
        for (Gap *gap = segment->batches[i].gaps, *next; gap; gap = next) {
            next = gap->next;
            free(gap);
        }
    free(segment->copies);
    free(segment->copy_ends);
    free(segment->order);
    free((void *)segment->flags);
    free(segment->batches);
    free(segment->loads);
    free(segment);
}

/* Ends a load that nothing needs any more. */
static void end_load(Run *run, Load *load) {
    Page **page = &run->pages[load->number / PAGE_LOADS];
    if (load->memory)
        give_block(run->blocks, load->memory, load->row.nbytes);
    load->memory = NULL;
    if (++(*page)->num_over == PAGE_LOADS) {
        free(*page);
        *page = NULL;
    }
}

/* Notes that so many copies of a block are made. The lock must not be held. */
static void count_down(Run *run, Load *load, int64_t num) {
    /* Blocks that stay are never given back. */
    if (!num || run->tables->is_resident || atomic_fetch_sub(&load->copies_left, num) != num)
        return;
    pthread_mutex_lock(&run->lock);
    end_load(run, load);
    pthread_cond_signal(&run->work);
    pthread_mutex_unlock(&run->lock);
}

/* Batches */

static Batch *batch_of(const Run *run, int64_t number) {
    for (Segment *segment = run->oldest; segment; segment = segment->next)
        if (number < segment->first_batch + segment->num_batches)
            return number < segment->first_batch ? NULL
                                                 : &segment->batches[number - segment->first_batch];
    return NULL;
}

/* Notes that so many parts of a batch are there. The lock must not be held. */
static void fill(Run *run, Batch *batch, int64_t number, int64_t num) {
    if (!num || atomic_fetch_sub(&batch->left, num) != num)
        return;
    pthread_mutex_lock(&run->lock);
    if (batch->is_finished || batch->gaps) {
        push(run, &run->finishes, FINISH_BATCH, number, 0);
    } else {
        batch->is_final = 1;
        if (number == run->num_taken)
            pthread_cond_signal(&run->ready);
    }
    pthread_mutex_unlock(&run->lock);
}

static void note_gap(Run *run, Batch *batch, int64_t row, int64_t load) {
    Gap *gap = malloc(sizeof(Gap));
    pthread_mutex_lock(&run->lock);
    if (gap) {
        *gap = (Gap){row, load, batch->gaps};
        batch->gaps = gap;
    } else {
        give_up(run);
    }
    pthread_mutex_unlock(&run->lock);
}

static void copy(Run *run, Worker *worker, const Load *load, const int32_t *row, Batch *batch) {
    if (load->has_failed)
        note_gap(run, batch, row[COPY_ROW], load->number);
    else
        copy_row(worker->copier, row, load->row.block, load->memory, batch->slot->arrays);
}

static const int32_t *row_of(const Run *run, const Segment *segment, int64_t at) {
    return segment->copies + at * (COPY_LOWS + 3 * run->tables->num_dims);
}

/* Asks for the memory of a copy to come, if its block is there. */
static void look_ahead(
    const Run *run, Worker *worker, const Segment *segment, int64_t at, int64_t distance) {
    const int32_t *row = row_of(run, segment, at);
    if (segment->flags[at] & IS_LOADED)
        ask_for_copy(worker->copier, row, segment->loads[row[COPY_LOAD]]->memory, distance);
}

/* Opens a batch that has memory: makes the copies whose blocks are there. */
static void open_batch(Run *run, Worker *worker, Segment *segment, int64_t at) {
    Batch *batch = &segment->batches[at];
    const int64_t begin = at ? segment->copy_ends[at - 1] : 0, end = segment->copy_ends[at];
    Load *last = NULL;
    int64_t num_made = 0, num_last = 0;
    for (int64_t i = begin; i < end; i++) {
        if (is_asked_for(worker->copier, FAR_AHEAD) && i + FAR_AHEAD < end)
            look_ahead(run, worker, segment, i + FAR_AHEAD, FAR_AHEAD);
        if (is_asked_for(worker->copier, SHORTLY_AHEAD) && i + SHORTLY_AHEAD < end)
            look_ahead(run, worker, segment, i + SHORTLY_AHEAD, SHORTLY_AHEAD);
        /* An atomic operation waits for all stores before it, so there is none where the block is loaded. */
        if (!(atomic_load(&segment->flags[i]) & IS_LOADED) &&
            !(atomic_fetch_or(&segment->flags[i], IS_OPEN) & IS_LOADED))
            continue;
        const int32_t *row = row_of(run, segment, i);
        Load *load = segment->loads[row[COPY_LOAD]];
        if (load != last) {
            count_down(run, last, num_last);
            last = load;
            num_last = 0;
        }
        copy(run, worker, load, row, batch);
        num_last++;
        num_made++;
    }
    count_down(run, last, num_last);
    fill(run, batch, segment->first_batch + at, num_made + 1);
}

/* Makes the copies of a loaded block whose batches are open. */
static void copy_block(Run *run, Worker *worker, Load *load, Use *use) {
    int64_t num_made = 1;
    while (use) {
        Segment *segment = use->segment;
        Use *done = use;
        int64_t last = 0, num_last = 0;
        for (int64_t i = use->begin; i < use->end; i++) {
            const int64_t at = segment->order[i];
            const int32_t *row = row_of(run, segment, at);
            if (!(atomic_fetch_or(&segment->flags[at], IS_LOADED) & IS_OPEN))
                continue;
            const int64_t number = row[COPY_BATCH];
            if (number != last) {
                fill(run, &segment->batches[last], segment->first_batch + last, num_last);
                last = number;
                num_last = 0;
            }
            copy(run, worker, load, row, &segment->batches[number]);
            num_last++;
            num_made++;
        }
        fill(run, &segment->batches[last], segment->first_batch + last, num_last);
        leave_segment(segment);
        use = use->next;
        free(done);
    }
    count_down(run, load, num_made);
}

/* Notes that some chunks of a block are there, or will never be. The lock must not be held. */
static void pass_chunks(Run *run, Worker *worker, Load *load, int64_t num) {
    if (!num || atomic_fetch_sub(&load->chunks_left, num) != num)
        return;
    pthread_mutex_lock(&run->lock);
    load->is_loaded = 1;
    run->group_nbytes[load->row.group] += load->row.read_nbytes;
    Use *uses = load->uses;
    load->uses = NULL;
    pthread_mutex_unlock(&run->lock);
    if (is_row(load)) {
        Batch *batch = &load->segment->batches[load->row.batch];
        const int64_t number = load->segment->first_batch + load->row.batch;
        if (load->has_failed)
            note_gap(run, batch, load->row.row, load->number);
        fill(run, batch, number, 1);
        count_down(run, load, 1);
    } else {
        copy_block(run, worker, load, uses);
    }
}

/* Tasks of the native threads */

static int can_open(const Run *run) { return run->slots && run->next_batch < run->num_batches; }

/* The next block with chunks that nobody has taken, and memory to decode them to; else NULL. */
static Load *next_load(Run *run) {
    while (run->next_load < run->num_loads && load_of(run, run->next_load)->is_loaded)
        run->next_load++;
    if (run->next_load == run->num_loads || (!run->num_taken && run->next_load >= run->num_first_loads))
        return NULL;
    Load *load = load_of(run, run->next_load);
    if (is_row(load))
        return load->segment->batches[load->row.batch].is_open ? load : NULL;
    return load->memory || has_room(run->blocks, load->row.nbytes) ? load : NULL;
}

/* Notes that so many more chunks of the next block are taken. A block whose chunks are all taken may be
   over at any time, so that it is not looked at again. */
static void pass_taken(Run *run, const Load *load, int64_t num) {
    run->next_chunk += num;
    if (run->next_chunk < count_chunks(run, load))
        return;
    run->next_load++;
    run->next_chunk = 0;
}

/* Foretold bytes of a read of native threads. */
static int64_t foretold_nbytes(const Run *run) {
    const int64_t known = run->most_held_nbytes * 5 / 4, unknown = run->options.most_chunk_nbytes;
    const int64_t each = run->num_reads < FEWEST_READS ? unknown : known;
    return each > 0 ? each : 1;
}

/* Whether there is memory for so many more reads of native threads, and of Python. One goes always. */
static int has_reading_room(const Run *run, int64_t more_reads, int64_t more_hands) {
    const int64_t num = run->figures.num_loading, num_hands = run->num_loading_hands;
    const int64_t nbytes = (num + more_reads) * foretold_nbytes(run) +
                           (num_hands + more_hands) * run->options.most_chunk_nbytes;
    return !(num + num_hands) || nbytes <= run->options.in_flight_nbytes;
}

static int64_t most_loading(const Run *run) {
    const int64_t most = run->options.in_flight_nbytes / foretold_nbytes(run);
    return most < 1 ? 1 : most < MOST_READERS ? most : MOST_READERS;
}

static int can_load(Run *run) {
    return run->figures.num_loading < MOST_READERS && has_reading_room(run, 1, 0) &&
           next_load(run) != NULL;
}

static ChunkReader *take_reader(Run *run) {
    if (run->num_idle_readers)
        return run->readers[--run->num_idle_readers];
    ChunkReader *reader = make_reader(run->tables, run->indexes);
    run->num_readers += reader != NULL;
    return reader;
}

/* Drops readers that no thread uses, as far as memory for reads is lacking, or while Python reads. */
static void fit_readers(Run *run) {
    while (run->num_idle_readers &&
           (run->num_loading_hands || run->num_readers > most_loading(run))) {
        ChunkReader *reader = run->readers[--run->num_idle_readers];
        run->figures.flight_nbytes -= planned_nbytes(reader);
        run->num_readers--;
        drop_reader(reader);
    }
}

static void give_reader(Run *run, ChunkReader *reader) {
    run->readers[run->num_idle_readers++] = reader;
    fit_readers(run);
}

/* Takes loads for a thread of Python: several of small blocks that the same row is the first to need, but
   a share of those that wait. */
static int pop_loads(Run *run, Told *told) {
    Queue *queue = &run->chunks;
    const int64_t most = queue->num / (run->num_idle_hands + 1);
    if (run->num_loading_hands >= run->options.most_loading_hands ||
        !has_reading_room(run, 0, 1) || !pop(queue, told))
        return 0;
    run->num_loading_hands++;
    fit_readers(run);
    /* Its load may be over by now. */
    if (told->kind != LOAD_CHUNK)
        return 1;
    const LoadRow *first = &load_of(run, told->number)->row;
    const Segment *segment = load_of(run, told->number)->segment;
    int64_t nbytes = first->nbytes;
    while (told->part == EVERY_CHUNK && told->num < most && queue->first) {
        const Work *next = queue->first;
        if (next->kind != LOAD_CHUNK || next->part != EVERY_CHUNK || next->number != told->number + told->num)
            break;
        const LoadRow *row = &load_of(run, next->number)->row;
        nbytes += row->nbytes;
        if (row->group != first->group || row->first_row != first->first_row ||
            row->first_row < 0 || load_of(run, next->number)->segment != segment ||
            nbytes > SHARED_NBYTES)
            break;
        Told taken;
        pop(queue, &taken);
        told->num++;
    }
    return 1;
}

static int try_core(Run *run) {
    int64_t left = run->cores_left;
    while (left > 0)
        if (atomic_compare_exchange_weak(&run->cores_left, &left, left - 1))
            return 1;
    return 0;
}

/* Gives cores to those whose turn it is. The lock must be held. */
static void hand_out_cores(Run *run) {
    while (run->core_waiters && try_core(run)) {
        CoreWaiter *next = run->core_waiters;
        run->core_waiters = next->next;
        next->has_core = 1;
        pthread_cond_signal(&next->core);
    }
}

/* Waits for a core. Of many that have read ahead, the one goes on that is needed first: else a batch would
   wait for chunks of much later ones. */
static void take_core(Run *run, int64_t turn) {
    if (!run->num_core_waiters && try_core(run))
        return;
    CoreWaiter own = {.turn = turn};
    pthread_cond_init(&own.core, NULL);
    pthread_mutex_lock(&run->lock);
    run->num_core_waiters++;
    CoreWaiter **place = &run->core_waiters;
    while (*place && (*place)->turn <= turn)
        place = &(*place)->next;
    own.next = *place;
    *place = &own;
    hand_out_cores(run);
    while (!own.has_core)
        pthread_cond_wait(&own.core, &run->lock);
    run->num_core_waiters--;
    pthread_mutex_unlock(&run->lock);
    pthread_cond_destroy(&own.core);
}

static void give_core(Run *run) {
    run->cores_left++;
    if (!run->num_core_waiters)
        return;
    pthread_mutex_lock(&run->lock);
    hand_out_cores(run);
    pthread_mutex_unlock(&run->lock);
}

/* Whether a read of this thread has just waited for the disk. */
static int has_waited(int64_t begin_switches, int64_t spent_ns) {
    struct rusage usage;
    if (spent_ns < LONG_NS || begin_switches < 0 || getrusage(OWN_USAGE, &usage))
        return 0;
    return usage.ru_nvcsw > begin_switches;
}

static int64_t count_switches(void) {
    struct rusage usage;
    return getrusage(OWN_USAGE, &usage) ? -1 : (int64_t)usage.ru_nvcsw;
}

/* Reads and decodes some chunks of a block. Returns the number of reads that waited for the disk; or
   below 0 if the thread was given up meanwhile, and others do its work. */
static int64_t load_chunks(
    Run *run, Worker *worker, ChunkReader *reader, Load *load, int64_t first, int64_t end,
    char *const *arrays) {
    int64_t num_waits = 0;
    for (int64_t part = first; part < end; part++) {
        const Chunk chunk = {
            load->row.group, load->row.block, part, load->memory, arrays, load->row.row};
        const int64_t switches = worker->num_reads++ % 8 ? -1 : count_switches();
        const int64_t begin_ns = now();
        worker->load = load;
        worker->part = part;
        worker->end = end;
        worker->since_ns = begin_ns;
        worker->state = READING;
        const int64_t size = read_chunk(reader, &chunk);
        int64_t state = READING;
        if (!atomic_compare_exchange_strong(&worker->state, &state, NO_READ))
            return -1;
        const int64_t read_ns = now();
        num_waits += has_waited(switches, read_ns - begin_ns);
        take_core(run, load->number);
        const int64_t core_ns = now();
        const int is_there = size >= 0 && decode_chunk(reader, &chunk);
        worker->read_ns += read_ns - begin_ns;
        worker->decode_ns += now() - core_ns;
        if (is_there) {
            const int64_t copy_ns = now();
            pass_chunks(run, worker, load, 1);
            worker->copy_ns += now() - copy_ns;
        } else {
            pthread_mutex_lock(&run->lock);
            push(run, &run->chunks, LOAD_CHUNK, load->number, part);
            pthread_mutex_unlock(&run->lock);
        }
        give_core(run);
    }
    return num_waits;
}

static void start_workers(Run *run, int64_t most);

/* Has a bundle decoded whose blocks all have memory. The lock must be held. */
static void add_bundle(Run *run, Bundle *bundle) {
    bundle->next = NULL;
    *(run->first_bundle ? &run->last_bundle->next : &run->first_bundle) = bundle;
    run->last_bundle = bundle;
    pthread_cond_signal(&run->work);
}

/* Hands a whole block to Python, or as far as it has been fetched. The lock must be held. */
static void hand_over(Run *run, Load *load) {
    const Group *group = &run->tables->groups[load->row.group];
    for (int64_t i = 0; i < group->num_demands; i++)
        run->demand_reads[group->first_demand + i] +=
            run->tables->demands[group->first_demand + i].num_parts;
    pass_taken(run, load, group->num_parts);
    if (!group->is_fetched)
        push(run, &run->chunks, LOAD_CHUNK, load->number, EVERY_CHUNK);
    else if (load->is_for_python)
        push(run, &run->chunks, DECODE_FETCHED, load->number, EVERY_CHUNK);
    for (Bundle *bundle = load->bundles, *next; bundle; bundle = next) {
        next = bundle->next;
        add_bundle(run, bundle);
    }
    load->bundles = NULL;
}

/* Takes some chunks of the next block, and loads them. The lock is held, and released meanwhile. */
static void do_load(Run *run, Worker *worker) {
    Load *load = next_load(run);
    const int64_t num_chunks = count_chunks(run, load), first = run->next_chunk;
    if (!is_row(load) && !load->memory) {
        load->memory = take_block(run->blocks, load->row.nbytes);
        if (!load->memory) {
            give_up(run);
            return;
        }
        weigh(run);
    }
    if (!run->tables->groups[load->row.group].is_native) {
        hand_over(run, load);
        want_segment(run);
        return;
    }
    const int64_t each = load->row.nbytes / num_chunks;
    int64_t num = each < TAKEN_NBYTES ? TAKEN_NBYTES / (each > 0 ? each : 1) : 1;
    const int64_t share = (num_chunks - first) / (run->num_waiting + 1);
    num = num < share ? num : share > 1 ? share : 1;
    num = num < num_chunks - first ? num : num_chunks - first;
    pass_taken(run, load, num);
    for (int64_t i = first; i < first + num; i++)
        run->demand_reads[find_demand(run->tables, load->row.group, i)]++;
    char *const *arrays =
        is_row(load) ? load->segment->batches[load->row.batch].slot->arrays : NULL;
    ChunkReader *reader = take_reader(run);
    if (!reader) {
        give_up(run);
        return;
    }
    run->figures.num_loading++;
    const int64_t planned = planned_nbytes(reader), num_requests = count_requests(reader);
    want_segment(run);
    pthread_mutex_unlock(&run->lock);
    const int64_t num_waits = load_chunks(run, worker, reader, load, first, first + num, arrays);
    pthread_mutex_lock(&run->lock);
    if (num_waits < 0) {
        run->figures.flight_nbytes -= planned;
        run->num_readers--;
        drop_reader(reader);
        return;
    }
    const int64_t held_now = held_nbytes(reader);
    run->figures.num_requests += count_requests(reader) - num_requests;
    run->figures.flight_nbytes += planned_nbytes(reader) - planned;
    run->figures.num_loading--;
    run->num_reads += num;
    run->most_held_nbytes = held_now > run->most_held_nbytes ? held_now : run->most_held_nbytes;
    weigh(run);
    give_reader(run, reader);
    if (run->chunks.first)
        pthread_cond_signal(&run->foreign);
    run->num_waits += num_waits;
    if (run->num_waits >= 3 && !run->is_closing) {
        run->num_waits = 0;
        start_workers(run, most_loading(run) + run->options.num_threads);
    }
}

static int can_decode(const Run *run) { return run->first_bundle != NULL; }

/* Decodes a chunk by way of scratch memory, once there is some. */
static int decode_by_scratch(Run *run, const Chunk *chunk, const StoredChunk *stored) {
    pthread_mutex_lock(&run->lock);
    while (!run->num_idle_decoders && run->num_decoders && run->num_decoders >= run->options.most_scratch)
        pthread_cond_wait(&run->scratch, &run->lock);
    ChunkReader *decoder = NULL;
    if (run->num_idle_decoders)
        decoder = run->decoders[--run->num_idle_decoders];
    else if ((decoder = make_reader(run->tables, run->indexes)))
        run->num_decoders++;
    pthread_mutex_unlock(&run->lock);
    if (!decoder)
        return 0;
    const int is_there = decode_stored(decoder, chunk, stored->bytes, stored->size);
    pthread_mutex_lock(&run->lock);
    run->decoders[run->num_idle_decoders++] = decoder;
    pthread_cond_signal(&run->scratch);
    pthread_mutex_unlock(&run->lock);
    return is_there;
}

/* Decodes some chunks that Python has fetched. Returns how many are left to Python. */
static int64_t decode_bundle(Run *run, Worker *worker, const Bundle *bundle, int64_t first, int64_t end) {
    int64_t num_failed = 0;
    if (!worker->decoder)
        worker->decoder = make_reader(run->tables, run->indexes);
    for (int64_t i = first; i < end; i++) {
        const StoredChunk *stored = &bundle->chunks[i];
        Load *load = stored->load;
        const Chunk chunk = {load->row.group, load->row.block, stored->part, load->memory, NULL, 0};
        const int64_t begin_ns = now();
        const int is_there =
            needs_scratch(run->tables, &chunk)
                ? decode_by_scratch(run, &chunk, stored)
                : worker->decoder &&
                      decode_stored(worker->decoder, &chunk, stored->bytes, stored->size);
        const int64_t copy_ns = now();
        worker->decode_ns += copy_ns - begin_ns;
        if (is_there) {
            pass_chunks(run, worker, load, 1);
            worker->copy_ns += now() - copy_ns;
            continue;
        }
        num_failed++;
        pthread_mutex_lock(&run->lock);
        push(run, &run->chunks, DECODE_ALONE, bundle->token, i);
        pthread_mutex_unlock(&run->lock);
    }
    return num_failed;
}

/* Takes some chunks of the next bundle, and decodes them. The lock is held, and released meanwhile. */
static void do_decode(Run *run, Worker *worker) {
    Bundle *bundle = run->first_bundle;
    const int64_t first = bundle->num_taken, share = (bundle->num - first) / (run->num_waiting + 1);
    int64_t end = first, nbytes = 0;
    do {
        const Load *load = bundle->chunks[end++].load;
        nbytes += load->row.nbytes / count_chunks(run, load);
    } while (end < first + share && nbytes < TAKEN_NBYTES);
    bundle->num_taken = end;
    if (end == bundle->num)
        run->first_bundle = bundle->next;
    if (run->num_waiting && can_decode(run))
        pthread_cond_signal(&run->work);
    pthread_mutex_unlock(&run->lock);
    take_core(run, bundle->chunks[first].load->number);
    const int64_t num_failed = decode_bundle(run, worker, bundle, first, end);
    give_core(run);
    pthread_mutex_lock(&run->lock);
    run->num_decoded += end - first - num_failed;
    bundle->num_failed += num_failed;
    bundle->num_left -= end - first;
    if (bundle->num_left)
        return;
    if (!run->empty_bundles)
        pthread_cond_signal(&run->foreign);
    bundle->next = run->empty_bundles;
    run->empty_bundles = bundle;
}

/* Gives memory to the next batch, and opens it. The lock is held, and released meanwhile. */
static void do_open(Run *run, Worker *worker) {
    Segment *segment = run->opening;
    while (run->next_batch == segment->first_batch + segment->num_batches)
        segment = run->opening = segment->next;
    const int64_t at = run->next_batch++ - segment->first_batch;
    run->num_copies_ahead -= segment->copy_ends[at] - (at ? segment->copy_ends[at - 1] : 0);
    Slot *slot = run->slots;
    run->slots = slot->next;
    Batch *batch = &segment->batches[at];
    batch->slot = slot;
    batch->is_open = 1;
    run->num_slots_used++;
    weigh(run);
    want_segment(run);
    pthread_mutex_unlock(&run->lock);
    take_core(run, OPENS);
    const int64_t begin_ns = now();
    open_batch(run, worker, segment, at);
    worker->copy_ns += now() - begin_ns;
    give_core(run);
    pthread_mutex_lock(&run->lock);
}

static void *work(void *argument) {
    Worker *worker = argument;
    Run *run = worker->run;
    pthread_mutex_lock(&run->lock);
    while (!run->is_closing && worker->state != GIVEN_UP) {
        const int opens = can_open(run), decodes = !opens && can_decode(run);
        if (!opens && !decodes && !can_load(run)) {
            mark(run, -1);
            run->num_waiting++;
            pthread_cond_wait(&run->work, &run->lock);
            run->num_waiting--;
            mark(run, 1);
            continue;
        }
        if (opens)
            do_open(run, worker);
        else if (decodes)
            do_decode(run, worker);
        else
            do_load(run, worker);
        /* Each thread wakes the next one: none is woken that would find nothing to do. */
        if (run->num_waiting && (can_open(run) || can_decode(run) || can_load(run)))
            pthread_cond_signal(&run->work);
    }
    mark(run, -1);
    struct timespec spent;
    if (!clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent))
        run->figures.cpu_ns += (int64_t)spent.tv_sec * 1000000000 + spent.tv_nsec;
    worker->is_over = 1;
    *(worker->state == GIVEN_UP ? &run->num_stuck : &run->num_running) -= 1;
    pthread_cond_broadcast(&run->has_ended);
    pthread_mutex_unlock(&run->lock);
    return NULL;
}

/* Starts threads until there are so many, or the system allows no more. The lock must be held. */
static void start_workers(Run *run, int64_t most) {
    sigset_t all, before;
    if (most <= run->num_workers)
        return;
    Worker **more = realloc(run->workers, (size_t)most * sizeof(Worker *));
    if (!more)
        return;
    run->workers = more;
    /* Signals are for Python's threads. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (run->num_workers < most && !run->is_closing) {
        Worker *worker = calloc(1, sizeof(Worker));
        if (worker)
            *worker = (Worker){.run = run, .copier = make_copier(run->tables)};
        if (!worker || !worker->copier || pthread_create(&worker->thread, NULL, work, worker)) {
            if (worker)
                drop_copier(worker->copier);
            free(worker);
            break;
        }
        run->workers[run->num_workers++] = worker;
        run->num_running++;
        mark(run, 1);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* What Python calls */

EXPORT int64_t xloader_begin_run(
    const Tables *tables, int64_t blocks, int64_t indexes, const Options *options) {
    Run *run = calloc(1, sizeof(Run));
    if (!run)
        return 0;
    run->tables = tables;
    run->blocks = (Blocks *)(intptr_t)blocks;
    run->indexes = (ShardIndexes *)(intptr_t)indexes;
    run->options = *options;
    run->cores_left = options->num_threads;
    if (run->options.most_scratch > MOST_READERS)
        run->options.most_scratch = MOST_READERS;
    run->demand_reads = calloc((size_t)tables->num_demands + 1, sizeof(int64_t));
    run->group_nbytes = calloc((size_t)tables->num_groups + 1, sizeof(int64_t));
    pthread_mutex_init(&run->lock, NULL);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
#if defined(__linux__)
    pthread_condattr_setclock(&attributes, WAIT_CLOCK);
#endif
    pthread_cond_t *conditions[] = {
        &run->work, &run->ready, &run->foreign, &run->scratch, &run->has_ended};
    for (int i = 0; i < 5; i++)
        pthread_cond_init(conditions[i], &attributes);
    pthread_condattr_destroy(&attributes);
    run->since_ns = now();
    return (int64_t)(intptr_t)run;
}

static Run *run_of(int64_t address) { return (Run *)(intptr_t)address; }

/* Starts the threads; returns how many the system allowed. */
EXPORT int64_t xloader_start_run(int64_t address) {
    Run *run = run_of(address);
    pthread_mutex_lock(&run->lock);
    run->since_ns = now();
    start_workers(run, run->options.num_threads);
    const int64_t num = run->num_workers;
    pthread_mutex_unlock(&run->lock);
    return num;
}

static void *copied(const void *from, size_t nbytes) {
    void *to = malloc(nbytes ? nbytes : 1);
    return to ? memcpy(to, from, nbytes) : NULL;
}

/* Makes room for the loads of a segment. The lock must be held. */
static int add_pages(Run *run, int64_t num_loads) {
    const int64_t num_before = (run->num_loads + PAGE_LOADS - 1) / PAGE_LOADS;
    const int64_t num = (run->num_loads + num_loads + PAGE_LOADS - 1) / PAGE_LOADS;
    Page **pages = realloc(run->pages, (size_t)(num + 1) * sizeof(Page *));
    run->pages = pages ? pages : run->pages;
    int64_t *num_ended = realloc(run->num_ended, (size_t)(num + 1) * sizeof(int64_t));
    run->num_ended = num_ended ? num_ended : run->num_ended;
    if (!pages || !num_ended)
        return 0;
    for (int64_t i = num_before; i < num; i++) {
        num_ended[i] = 0;
        if (!(pages[i] = calloc(1, sizeof(Page))))
            return 0;
    }
    return 1;
}

/* Sorts the copies of a segment by load, but for those of blocks that are there from an earlier run. Returns
   the number of different loads, or -1. */
static int64_t sort_copies(Run *run, Segment *segment, int64_t **ends) {
    const int64_t num = segment->num_copies, row_size = COPY_LOWS + 3 * run->tables->num_dims;
    segment->loads = malloc((size_t)(num + 1) * sizeof(Load *));
    segment->order = malloc((size_t)(num + 1) * sizeof(int64_t));
    int64_t *counts = *ends = calloc((size_t)num + 1, sizeof(int64_t));
    if (!segment->loads || !segment->order || !counts)
        return -1;
    int64_t num_loads = 0;
    for (int64_t i = 0; i < num; i++) {
        int32_t *row = segment->copies + i * row_size;
        Load *load = load_of(run, row[COPY_LOAD]);
        if (load->place >= num_loads || segment->loads[load->place] != load) {
            load->place = num_loads;
            segment->loads[num_loads++] = load;
        }
        row[COPY_LOAD] = (int32_t)load->place;
        if (load->row.address)
            segment->flags[i] = IS_LOADED;
        else
            counts[load->place]++;
    }
    int64_t begin = 0;
    for (int64_t i = 0; i < num_loads; i++) {
        const int64_t count = counts[i];
        counts[i] = begin;
        begin += count;
    }
    for (int64_t i = 0; i < num; i++)
        if (!segment->flags[i])
            segment->order[counts[segment->copies[i * row_size + COPY_LOAD]]++] = i;
    return num_loads;
}

static void begin_load(Run *run, Segment *segment, const LoadRow *row) {
    Load *load = load_of(run, run->num_loads);
    *load = (Load){.row = *row, .number = run->num_loads++, .segment = segment};
    load->chunks_left = count_chunks(run, load);
    load->copies_left = 2;
    if (row->address) {
        load->memory = (char *)(intptr_t)row->address;
        load->is_loaded = 1;
        load->copies_left = 1;
    } else if (is_row(load)) {
        segment->batches[row->batch].left++;
    }
}

/* Has the blocks of a segment's copies know of them. Returns 0 if there is no memory. */
static int link_copies(Segment *segment, int64_t num_loads, const int64_t *ends) {
    for (int64_t i = 0; i < num_loads; i++) {
        Load *load = segment->loads[i];
        const int64_t begin = i ? ends[i - 1] : 0;
        load->copies_left += ends[i] - begin;
        if (load->is_loaded) {
            for (int64_t at = begin; at < ends[i]; at++)
                segment->flags[segment->order[at]] = IS_LOADED;
            continue;
        }
        Use *use = malloc(sizeof(Use));
        if (!use)
            return 0;
        *use = (Use){segment, begin, ends[i], load->uses};
        load->uses = use;
        segment->num_users++;
    }
    return 1;
}

/* A load that a segment may refer to: it is there, and no earlier segment was the last to need it. A
   page may be freed once all its loads are ended. */
static Load *find_begun(const Run *run, int64_t number) {
    if (number < 0 || number >= run->num_loads || run->num_ended[number / PAGE_LOADS] == PAGE_LOADS)
        return NULL;
    Load *load = load_of(run, number);
    return load->is_ended ? NULL : load;
}

static const LoadRow *find_row(const void *context, int64_t number) {
    const Load *load = find_begun(context, number);
    return load ? &load->row : NULL;
}

/* Ends loads that no later segment needs. Returns 0 if one is not there. */
static int end_loads(Run *run, const SegmentRows *rows) {
    for (int64_t i = 0; i < rows->num_ends; i++) {
        Load *load = find_begun(run, rows->ends[i]);
        if (!load)
            return 0;
        load->is_ended = 1;
        run->num_ended[load->number / PAGE_LOADS]++;
        count_down(run, load, 1);
    }
    return 1;
}

/* Adds the next segment of the program, whose tables are copied. Returns 0 if there is no memory, and
   WRONG if the segment does not follow those before it, or points to what is not there. */
EXPORT int64_t xloader_add_segment(int64_t address, const SegmentRows *rows, int64_t is_last) {
    Run *run = run_of(address);
    if (rows->first_load != run->num_loads || rows->first_batch != run->num_batches ||
        !check_segment(run->tables, rows, find_row, run))
        return WRONG;
    const int64_t row_nbytes = (COPY_LOWS + 3 * run->tables->num_dims) * (int64_t)sizeof(int32_t);
    const size_t num_batches = (size_t)rows->num_batches, num_copies = (size_t)rows->num_copies;
    Segment *segment = calloc(1, sizeof(Segment));
    if (!segment)
        return 0;
    segment->first_batch = rows->first_batch;
    segment->num_batches = rows->num_batches;
    segment->num_copies = rows->num_copies;
    segment->num_users = rows->num_batches + 1;
    segment->copies = copied(rows->copies, num_copies * (size_t)row_nbytes);
    segment->copy_ends = copied(rows->copy_ends, num_batches * sizeof(int64_t));
    segment->flags = calloc(num_copies + 1, 1);
    segment->batches = calloc(num_batches + 1, sizeof(Batch));
    if (!segment->copies || !segment->copy_ends || !segment->flags || !segment->batches)
        return 0;
    for (int64_t i = 0; i < rows->num_batches; i++) {
        const int64_t begin = i ? rows->copy_ends[i - 1] : 0;
        segment->batches[i].left = rows->copy_ends[i] - begin + 1;
        segment->batches[i].is_finished = rows->is_finished[i] != 0;
    }
    int64_t *ends = NULL;
    pthread_mutex_lock(&run->lock);
    const int64_t num_busy = 2 * run->options.num_threads;
    if (!run->num_batches)
        run->num_first_loads = rows->num_loads > num_busy ? rows->num_loads : num_busy;
    int is_added = add_pages(run, rows->num_loads);
    for (int64_t i = 0; is_added && i < rows->num_loads; i++)
        begin_load(run, segment, &rows->loads[i]);
    pthread_mutex_unlock(&run->lock);
    const int64_t num_loads = is_added ? sort_copies(run, segment, &ends) : -1;
    pthread_mutex_lock(&run->lock);
    is_added = num_loads >= 0 && link_copies(segment, num_loads, ends);
    *(run->newest ? &run->newest->next : &run->oldest) = segment;
    run->newest = segment;
    if (!run->opening)
        run->opening = segment;
    run->num_batches += rows->num_batches;
    run->num_copies_ahead += rows->num_copies;
    run->is_complete = is_last != 0;
    if (can_open(run) || can_load(run))
        pthread_cond_signal(&run->work);
    pthread_mutex_unlock(&run->lock);
    free(ends);
    const int is_right = end_loads(run, rows);
    pthread_mutex_lock(&run->lock);
    leave_segment(segment);
    /* Only now, as the next segment is checked against the loads that this one ends. */
    run->is_segment_under_way = 0;
    want_segment(run);
    pthread_mutex_unlock(&run->lock);
    return is_right ? is_added : WRONG;
}

/* Gives memory for one more batch. */
EXPORT int64_t xloader_give_slot(int64_t address, int64_t number, const int64_t *arrays) {
    Run *run = run_of(address);
    const int64_t num = run->tables->num_arrays;
    Slot *slot = malloc(sizeof(Slot) + (size_t)num * sizeof(char *));
    if (!slot)
        return 0;
    *slot = (Slot){.number = number};
    for (int64_t i = 0; i < num; i++)
        slot->arrays[i] = (char *)(intptr_t)arrays[i];
    pthread_mutex_lock(&run->lock);
    slot->next = run->slots;
    run->slots = slot;
    pthread_cond_signal(&run->work);
    pthread_mutex_unlock(&run->lock);
    return 1;
}

static struct timespec after(int64_t wait_ns) {
    const int64_t until = now_of(WAIT_CLOCK) + wait_ns;
    return (struct timespec){(time_t)(until / 1000000000), (long)(until % 1000000000)};
}

/* Waits for the next batch, and takes it. Returns the number of its memory; NOTHING_YET after some
   time, or IS_OVER once the run is closed. Tells the number of chunks that were read so far. */
EXPORT int64_t xloader_take_batch(int64_t address, int64_t wait_ns, int64_t *num_reads) {
    Run *run = run_of(address);
    int64_t answer = NOTHING_YET;
    const struct timespec until = after(wait_ns);
    pthread_mutex_lock(&run->lock);
    Batch *batch = batch_of(run, run->num_taken);
    if (!(batch && batch->is_final)) {
        pass_time(run);
        run->is_awaited = 1;
        while (!run->is_closing) {
            batch = batch_of(run, run->num_taken);
            if ((batch && batch->is_final) ||
                pthread_cond_timedwait(&run->ready, &run->lock, &until) == ETIMEDOUT)
                break;
        }
        pass_time(run);
        run->is_awaited = 0;
        batch = batch_of(run, run->num_taken);
    }
    if (run->is_closing) {
        answer = run->lacks_memory ? NO_MEMORY : IS_OVER;
    } else if (batch && batch->is_final) {
        answer = batch->slot->number;
        free(batch->slot);
        batch->slot = NULL;
        if (!run->num_taken++)
            pthread_cond_signal(&run->work);
        run->num_slots_used--;
        Segment *segment = run->oldest;
        if (run->num_taken == segment->first_batch + segment->num_batches) {
            run->oldest = segment->next;
            if (!run->oldest)
                run->newest = NULL;
            if (run->opening == segment)
                run->opening = segment->next;
        }
        leave_segment(segment);
    }
    *num_reads = run->num_reads + run->num_decoded;
    pthread_mutex_unlock(&run->lock);
    return answer;
}

/* Waits for work for Python, up to a time if there is one. The caller tells whether it was at work until
   now, and loading: its memory for reads is free then. Returns 1 if there is some, NOTHING_YET after that
   time, and 0 once the run is closed. */
EXPORT int64_t xloader_next_work(
    int64_t address, int64_t was_working, int64_t most_ns, Told *told) {
    Run *run = run_of(address);
    const struct timespec until = after(most_ns);
    int is_late = 0;
    pthread_mutex_lock(&run->lock);
    if (was_working)
        mark(run, -1);
    if (was_working == WAS_LOADING) {
        run->num_loading_hands--;
        pthread_cond_signal(&run->work);
    }
    *told = (Told){0};
    while (!run->is_closing && !is_late) {
        if (pop(&run->finishes, told) || pop_loads(run, told))
            break;
        if (run->empty_bundles) {
            told->kind = LET_GO;
            break;
        }
        if (wants_segment(run)) {
            run->is_segment_under_way = 1;
            told->kind = MAKE_SEGMENT;
            break;
        }
        const int64_t begin_ns = now();
        run->num_idle_hands++;
        if (most_ns)
            is_late = pthread_cond_timedwait(&run->foreign, &run->lock, &until) == ETIMEDOUT;
        else
            pthread_cond_wait(&run->foreign, &run->lock);
        run->num_idle_hands--;
        told->waited_ns += now() - begin_ns;
    }
    const int is_open = !run->is_closing;
    if (is_open && !is_late)
        mark(run, 1);
    if (is_open && (run->finishes.first || run->chunks.first))
        pthread_cond_signal(&run->foreign);
    pthread_mutex_unlock(&run->lock);
    return is_open && is_late ? NOTHING_YET : is_open;
}

/* Notes that Python has fetched chunks of a block, and maybe of some before it. It decodes them once these
   blocks have memory, which is given in order. */
EXPORT int64_t xloader_note_fetched(int64_t address, int64_t number) {
    Run *run = run_of(address);
    pthread_mutex_lock(&run->lock);
    if (number < run->next_load)
        push(run, &run->chunks, DECODE_FETCHED, number, EVERY_CHUNK);
    else
        load_of(run, number)->is_for_python = 1;
    pthread_mutex_unlock(&run->lock);
    return 0;
}

/* Gives the stored bytes of chunks that were fetched together: number of the load, number of the chunk there,
   address and size of each, in the order of the loads. They are decoded once their blocks have memory.
   Returns 0 if there is no memory. */
EXPORT int64_t xloader_give_chunks(
    int64_t address, int64_t token, const int64_t (*rows)[4], int64_t num) {
    Run *run = run_of(address);
    Bundle *bundle = malloc(sizeof(Bundle) + (size_t)num * sizeof(StoredChunk));
    if (!bundle)
        return 0;
    *bundle = (Bundle){.token = token, .num = num, .num_left = num};
    const int64_t last = rows[num - 1][0];
    pthread_mutex_lock(&run->lock);
    for (int64_t i = 0; i < num; i++) {
        const int64_t *row = rows[i];
        bundle->chunks[i] =
            (StoredChunk){load_of(run, row[0]), row[1], row[3], (const char *)(intptr_t)row[2]};
    }
    if (last < run->next_load) {
        add_bundle(run, bundle);
    } else {
        bundle->next = load_of(run, last)->bundles;
        load_of(run, last)->bundles = bundle;
    }
    pthread_mutex_unlock(&run->lock);
    return 1;
}

/* Tells the tokens of chunks that were given and are over, each with the number of chunks that are left to
   Python; and forgets them. Returns how many there were, at most `room`. */
EXPORT int64_t xloader_take_empty(int64_t address, int64_t *told, int64_t room) {
    Run *run = run_of(address);
    int64_t num = 0;
    pthread_mutex_lock(&run->lock);
    while (num < room && run->empty_bundles) {
        Bundle *bundle = run->empty_bundles;
        run->empty_bundles = bundle->next;
        told[2 * num] = bundle->token;
        told[2 * num++ + 1] = bundle->num_failed;
        free(bundle);
    }
    pthread_mutex_unlock(&run->lock);
    return num;
}

/* Adds to the bytes that are being read, for a thread of Python. */
EXPORT int64_t xloader_add_flight(int64_t address, int64_t nbytes) {
    Run *run = run_of(address);
    pthread_mutex_lock(&run->lock);
    run->figures.flight_nbytes += nbytes;
    /* Once it is closed, the blocks may be gone. */
    if (!run->is_closing)
        weigh(run);
    pthread_mutex_unlock(&run->lock);
    return 0;
}

/* Tells of a load: group, block, batch, row, the address of its memory, and the number of its slot. */
EXPORT int64_t xloader_find_load(int64_t address, int64_t number, int64_t *told) {
    Run *run = run_of(address);
    pthread_mutex_lock(&run->lock);
    const Load *load = load_of(run, number);
    const Batch *batch = is_row(load) ? &load->segment->batches[load->row.batch] : NULL;
    told[0] = load->row.group;
    told[1] = load->row.block;
    told[2] = load->row.row;
    told[3] = (int64_t)(intptr_t)load->memory;
    told[4] = batch ? batch->slot->number : -1;
    pthread_mutex_unlock(&run->lock);
    return 0;
}

/* Notes that Python has loaded some chunks of a block, or could not. */
EXPORT int64_t xloader_chunks_done(
    int64_t address, int64_t number, int64_t num, int64_t has_failed) {
    Run *run = run_of(address);
    Worker worker = {.run = run, .copier = make_copier(run->tables)};
    if (!worker.copier)
        return 0;
    pthread_mutex_lock(&run->lock);
    Load *load = load_of(run, number);
    load->has_failed |= has_failed;
    pthread_mutex_unlock(&run->lock);
    pass_chunks(run, &worker, load, num);
    drop_copier(worker.copier);
    return 1;
}

/* The number of the memory of a batch that Python finishes, or -1 before it is open. */
EXPORT int64_t xloader_slot_of(int64_t address, int64_t number) {
    Run *run = run_of(address);
    pthread_mutex_lock(&run->lock);
    const Batch *batch = batch_of(run, number);
    const int64_t slot = batch && batch->slot ? batch->slot->number : -1;
    pthread_mutex_unlock(&run->lock);
    return slot;
}

/* Tells the rows of a batch that lack something, each with the number of the load. Returns how many
   there are, of which at most `room` are told. */
EXPORT int64_t xloader_gaps(int64_t address, int64_t number, int64_t *told, int64_t room) {
    Run *run = run_of(address);
    int64_t num = 0;
    pthread_mutex_lock(&run->lock);
    const Batch *batch = batch_of(run, number);
    for (const Gap *gap = batch ? batch->gaps : NULL; gap; gap = gap->next, num++)
        if (num < room) {
            told[2 * num] = gap->row;
            told[2 * num + 1] = gap->load;
        }
    pthread_mutex_unlock(&run->lock);
    return num;
}

/* Notes that Python has finished a batch. */
EXPORT int64_t xloader_batch_done(int64_t address, int64_t number) {
    Run *run = run_of(address);
    pthread_mutex_lock(&run->lock);
    Batch *batch = batch_of(run, number);
    if (batch)
        batch->is_final = 1;
    if (number == run->num_taken)
        pthread_cond_signal(&run->ready);
    pthread_mutex_unlock(&run->lock);
    return 0;
}

/* Tells the figures so far, the chunks that were read of each variable, and the decoded bytes of each
   group. */
EXPORT int64_t xloader_run_figures(
    int64_t address, Figures *figures, int64_t *demand_reads, int64_t *group_nbytes) {
    Run *run = run_of(address);
    pthread_mutex_lock(&run->lock);
    pass_time(run);
    *figures = run->figures;
    figures->num_threads = run->num_workers < run->options.num_threads ? run->num_workers
                                                                       : run->options.num_threads;
    figures->num_ready = 0;
    for (int64_t at = run->num_taken; at < run->next_batch && batch_of(run, at)->is_final; at++)
        figures->num_ready++;
    for (int64_t i = 0; i < run->num_workers; i++) {
        const Worker *worker = run->workers[i];
        figures->read_ns += worker->read_ns;
        figures->decode_ns += worker->decode_ns;
        figures->copy_ns += worker->copy_ns;
#if defined(__linux__)
        clockid_t clock;
        if (!worker->is_over && !pthread_getcpuclockid(worker->thread, &clock))
            figures->cpu_ns += now_of(clock);
#endif
    }
    memcpy(demand_reads, run->demand_reads, (size_t)run->tables->num_demands * sizeof(int64_t));
    memcpy(group_nbytes, run->group_nbytes, (size_t)run->tables->num_groups * sizeof(int64_t));
    pthread_mutex_unlock(&run->lock);
    return 0;
}

/* Gives up threads whose read takes longer than a time: Python reads their chunks, and other threads
   take their place. Returns how many there were. */
EXPORT int64_t xloader_give_up_reads(int64_t address, int64_t most_ns) {
    Run *run = run_of(address);
    int64_t num = 0;
    const int64_t then = now();
    pthread_mutex_lock(&run->lock);
    for (int64_t i = 0; i < run->num_workers && !run->is_closing; i++) {
        Worker *worker = run->workers[i];
        int64_t state = READING;
        /* In this order: a read is begun after its time is noted. */
        if (worker->state != READING || then - worker->since_ns < most_ns ||
            !atomic_compare_exchange_strong(&worker->state, &state, GIVEN_UP))
            continue;
        for (int64_t part = worker->part; part < worker->end; part++)
            push(run, &run->chunks, LOAD_CHUNK, worker->load->number, part);
        run->num_running--;
        run->num_stuck++;
        run->figures.num_loading--;
        num++;
    }
    if (num)
        start_workers(run, run->num_workers + num);
    pthread_mutex_unlock(&run->lock);
    return num;
}

/* Tells group, block and chunk of a read that takes longer than a time. Returns its nanoseconds so far, 0
   if there is none. */
EXPORT int64_t xloader_find_slow_read(int64_t address, int64_t least_ns, int64_t *told) {
    Run *run = run_of(address);
    int64_t spent_ns = 0;
    const int64_t then = now();
    pthread_mutex_lock(&run->lock);
    for (int64_t i = 0; i < run->num_workers && !spent_ns; i++) {
        Worker *worker = run->workers[i];
        /* In this order: a read is begun after its time is noted. */
        if (worker->state != READING || then - worker->since_ns < least_ns)
            continue;
        const Load *load = worker->load;
        spent_ns = then - worker->since_ns;
        told[0] = load->row.group;
        told[1] = load->row.block;
        told[2] = worker->part;
    }
    pthread_mutex_unlock(&run->lock);
    return spent_ns;
}

/* The number of threads that were given up and have not come back. */
EXPORT int64_t xloader_count_stuck(int64_t address) {
    Run *run = run_of(address);
    pthread_mutex_lock(&run->lock);
    const int64_t num = run->num_stuck;
    pthread_mutex_unlock(&run->lock);
    return num;
}

/* Has all threads end, and wakes those of Python that wait. May be repeated. */
EXPORT int64_t xloader_close_run(int64_t address) {
    Run *run = run_of(address);
    pthread_mutex_lock(&run->lock);
    run->is_closing = 1;
    pthread_cond_broadcast(&run->work);
    pthread_cond_broadcast(&run->ready);
    pthread_cond_broadcast(&run->foreign);
    pthread_mutex_unlock(&run->lock);
    return 0;
}

/* Waits for the native threads to end, up to a time. Returns how many are still at work. */
EXPORT int64_t xloader_join_run(int64_t address, int64_t most_ns) {
    Run *run = run_of(address);
    const struct timespec until = after(most_ns);
    pthread_mutex_lock(&run->lock);
    while (run->num_running &&
           pthread_cond_timedwait(&run->has_ended, &run->lock, &until) != ETIMEDOUT)
        ;
    const int64_t num = run->num_running;
    pthread_mutex_unlock(&run->lock);
    return num;
}

/* Tells the blocks that stay in memory after a run: group, block, bytes and address of each. Returns how
   many there are. The memory of all others is given back. All threads have ended. */
EXPORT int64_t xloader_keep_blocks(int64_t address, int64_t *told, int64_t room) {
    Run *run = run_of(address);
    int64_t num = 0;
    for (int64_t i = 0; i < run->num_loads; i++) {
        Page *page = run->pages[i / PAGE_LOADS];
        Load *load = page ? &page->loads[i % PAGE_LOADS] : NULL;
        if (!load || !load->memory)
            continue;
        if (!run->tables->is_resident || !load->is_loaded || load->has_failed) {
            give_block(run->blocks, load->memory, load->row.nbytes);
            load->memory = NULL;
            continue;
        }
        if (num < room) {
            const int64_t row[] = {
                load->row.group, load->row.block, load->row.nbytes,
                (int64_t)(intptr_t)load->memory};
            memcpy(told + 4 * num, row, sizeof(row));
        }
        num++;
    }
    return num;
}

static void drop_bundles(Bundle *bundle) {
    for (Bundle *next; bundle; bundle = next) {
        next = bundle->next;
        free(bundle);
    }
}

static void drop_queue(Queue *queue) {
    Told told;
    while (pop(queue, &told))
        ;
}

/* Frees a run whose threads have all ended. Returns 0 where one is stuck in a read: nothing is freed
   then, and the tables must stay. */
EXPORT int64_t xloader_drop_run(int64_t address) {
    Run *run = run_of(address);
    if (xloader_count_stuck(address))
        return 0;
    for (int64_t i = 0; i < run->num_workers; i++) {
        pthread_join(run->workers[i]->thread, NULL);
        drop_copier(run->workers[i]->copier);
        drop_reader(run->workers[i]->decoder);
        free(run->workers[i]);
    }
    for (Segment *segment = run->oldest, *next; segment; segment = next) {
        next = segment->next;
        for (int64_t i = 0; i < segment->num_batches; i++)
            free(segment->batches[i].slot);
    }
    for (int64_t i = 0; i < run->num_loads; i++) {
        Page *page = run->pages[i / PAGE_LOADS];
        if (page)
            drop_bundles(page->loads[i % PAGE_LOADS].bundles);
        for (Use *use = page ? page->loads[i % PAGE_LOADS].uses : NULL, *next; use; use = next) {
            next = use->next;
            leave_segment(use->segment);
            free(use);
        }
    }
    for (int64_t i = 0; i * PAGE_LOADS < run->num_loads; i++)
        free(run->pages[i]);
    for (Segment *segment = run->oldest, *next; segment; segment = next) {
        next = segment->next;
        segment->num_users = 1;
        leave_segment(segment);
    }
    for (Slot *slot = run->slots, *next; slot; slot = next) {
        next = slot->next;
        free(slot);
    }
    for (int64_t i = 0; i < run->num_idle_readers; i++)
        drop_reader(run->readers[i]);
    for (int64_t i = 0; i < run->num_idle_decoders; i++)
        drop_reader(run->decoders[i]);
    drop_bundles(run->first_bundle);
    drop_bundles(run->empty_bundles);
    drop_queue(&run->chunks);
    drop_queue(&run->finishes);
    pthread_cond_t *conditions[] = {
        &run->work, &run->ready, &run->foreign, &run->scratch, &run->has_ended};
    for (int i = 0; i < 5; i++)
        pthread_cond_destroy(conditions[i]);
    pthread_mutex_destroy(&run->lock);
    free(run->pages);
    free(run->num_ended);
    free(run->workers);
    free(run->demand_reads);
    free(run->group_nbytes);
    free(run);
    return 1;
}
