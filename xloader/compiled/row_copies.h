#ifndef XLOADER_ROW_COPIES_H
#define XLOADER_ROW_COPIES_H

#include "program.h"

/* What one thread needs to copy parts of blocks into rows of batches. */
typedef struct Copier Copier;

/* Makes it; NULL if there is no memory. */
Copier *make_copier(const Tables *tables);
void drop_copier(Copier *copier);

/* The sizes of a block along the windowed dimensions, 0 where its group lacks one. */
void find_extents(const Tables *tables, int64_t group, int64_t block, int64_t *extents);

/* Bytes of one variable's part of a block, given the sizes of that. */
int64_t part_nbytes(const Tables *tables, const Demand *demand, const int64_t *extents);

/* Where the part of a block's first variable of a kind begins. */
int64_t find_kind(
    const Tables *tables, const Group *group, int64_t kind, const int64_t *extents);

/* Whether copies that were made are asked for so many copies before. */
int is_asked_for(const Copier *copier, int64_t distance);

/* Asks for the memory that a copy of a loaded block reads, so that it comes meanwhile. */
void ask_for_copy(Copier *copier, const int32_t *copy, const char *memory, int64_t distance);

/* Copies what one row takes of a block. `arrays` are those of its batch. */
void copy_row(
    Copier *copier, const int32_t *copy, int64_t block, const char *memory, char *const *arrays);

/* As many copies ahead as `ask_for_copy` is called, for small and for large ones: different bits. */
#define FAR_AHEAD 8
#define SHORTLY_AHEAD 2

#endif
