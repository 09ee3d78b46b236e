#ifndef XLOADER_BLOCKS_H
#define XLOADER_BLOCKS_H

#include <stdint.h>

/* Memory of decoded blocks, which outlives a run. Its user holds a lock. */
typedef struct Blocks Blocks;

/* Whether so many bytes more may be taken. */
int has_room(const Blocks *blocks, int64_t nbytes);

/* Takes memory for a block of so many bytes; NULL if the system gives none. */
char *take_block(Blocks *blocks, int64_t nbytes);

/* Gives a block's memory back. */
void give_block(Blocks *blocks, char *memory, int64_t nbytes);

/* Bytes in use. */
int64_t used_nbytes(const Blocks *blocks);

#endif
