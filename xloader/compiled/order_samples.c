/* Puts the next samples of several entries in the order of their keys. `LaneOrder` in
   xloader/order/lane_order.py describes keys and entries, and does the same with NumPy. Python's lock
   is free meanwhile. */

#include "export.h"

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
