/* Memory of decoded blocks: one region of addresses for each size of block. A region is reserved once,
   for as many blocks as may be in use, so that nothing is searched for and nothing breaks into pieces.
   It takes memory only where blocks were written. What is free keeps its memory for the next block of
   its size, unless others need the room. */

#define _DEFAULT_SOURCE

#include "blocks.h"
#include "export.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ALIGNMENT 64
#define PAGE_NBYTES 4096

#ifndef MAP_NORESERVE
#define MAP_NORESERVE 0
#endif

typedef struct {
    int64_t nbytes, step, num_reserved, num_begun, num_free;
    char *memory;
    /* Those that may be taken again, the last one first. The first `num_bare` hold no memory. */
    char **free;
    int64_t num_bare;
} Region;

struct Blocks {
    int64_t capacity, used, kept;
    Region *regions;
    int64_t num_regions;
};

/* Makes memory of which at most `capacity` bytes are in use at a time. Returns 0 if there is none. */
EXPORT int64_t xloader_make_blocks(int64_t capacity) {
    Blocks *blocks = calloc(1, sizeof(Blocks));
    if (blocks)
        blocks->capacity = capacity;
    return (int64_t)(intptr_t)blocks;
}

/* Releases all of it. Nothing may use it any more. */
EXPORT int64_t xloader_drop_blocks(int64_t address) {
    Blocks *blocks = (Blocks *)(intptr_t)address;
    for (int64_t i = 0; i < blocks->num_regions; i++) {
        Region *own = &blocks->regions[i];
        munmap(own->memory, (size_t)(own->step * own->num_reserved));
        free(own->free);
    }
    free(blocks->regions);
    free(blocks);
    return 0;
}

int64_t used_nbytes(const Blocks *blocks) { return blocks->used; }

int has_room(const Blocks *blocks, int64_t nbytes) {
    return nbytes <= blocks->capacity - blocks->used;
}

/* Huge pages are not asked for: on virtual machines whose host gives memory page by page, they make the first
   touch three times as slow, and nothing faster. */
static char *reserve(int64_t nbytes) {
    void *memory = mmap(
        NULL, (size_t)nbytes, PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
#ifdef MADV_DONTFORK
    madvise(memory, (size_t)nbytes, MADV_DONTFORK);
#endif
    return memory;
}

/* The region of blocks of one size; a new one if there is none. */
static Region *find_region(Blocks *blocks, int64_t nbytes) {
    for (int64_t i = 0; i < blocks->num_regions; i++)
        if (blocks->regions[i].nbytes == nbytes)
            return &blocks->regions[i];
    Region *more = realloc(blocks->regions, (size_t)(blocks->num_regions + 1) * sizeof(Region));
    if (!more)
        return NULL;
    blocks->regions = more;
    const int64_t step = (nbytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT + ALIGNMENT * !nbytes;
    const int64_t fitting = blocks->capacity / (nbytes > 0 ? nbytes : 1);
    const int64_t num = fitting > 0 ? fitting : 1;
    Region own = {.nbytes = nbytes, .step = step, .num_reserved = num};
    own.free = malloc((size_t)num * sizeof(char *));
    own.memory = own.free ? reserve(step * num) : NULL;
    if (!own.memory) {
        free(own.free);
        return NULL;
    }
    blocks->regions[blocks->num_regions] = own;
    return &blocks->regions[blocks->num_regions++];
}

/* Has the system take back the memory of a free block. */
static void strip(const char *memory, int64_t step) {
    const uintptr_t from = ((uintptr_t)memory + PAGE_NBYTES - 1) / PAGE_NBYTES * PAGE_NBYTES;
    const uintptr_t to = ((uintptr_t)memory + (uintptr_t)step) / PAGE_NBYTES * PAGE_NBYTES;
    if (to > from)
        madvise((void *)from, to - from, MADV_DONTNEED);
}

/* Releases memory of free blocks of other sizes until all is within the capacity. */
static void shrink(Blocks *blocks) {
    for (int64_t i = 0; i < blocks->num_regions; i++) {
        Region *own = &blocks->regions[i];
        while (own->num_bare < own->num_free && blocks->used + blocks->kept > blocks->capacity) {
            strip(own->free[own->num_bare++], own->step);
            blocks->kept -= own->nbytes;
        }
    }
}

char *take_block(Blocks *blocks, int64_t nbytes) {
    Region *own = find_region(blocks, nbytes);
    if (!own || (!own->num_free && own->num_begun == own->num_reserved))
        return NULL;
    blocks->used += nbytes;
    if (own->num_free > own->num_bare) {
        blocks->kept -= nbytes;
        return own->free[--own->num_free];
    }
    shrink(blocks);
    if (own->num_free) {
        own->num_free--;
        own->num_bare = own->num_free < own->num_bare ? own->num_free : own->num_bare;
        return own->free[own->num_free];
    }
    return own->memory + own->step * own->num_begun++;
}

void give_block(Blocks *blocks, char *memory, int64_t nbytes) {
    Region *own = find_region(blocks, nbytes);
    blocks->used -= nbytes;
    blocks->kept += nbytes;
    own->free[own->num_free++] = memory;
}
