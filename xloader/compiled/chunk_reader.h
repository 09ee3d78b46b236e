#ifndef XLOADER_CHUNK_READER_H
#define XLOADER_CHUNK_READER_H

#include "codecs.h"
#include "program.h"

/* The indexes of shards that were read, for all threads and all runs of the same tables. */
typedef struct ShardIndexes ShardIndexes;

/* What one thread needs to read and decode chunks. */
typedef struct ChunkReader ChunkReader;

/* A chunk of a block, and the memory that it is decoded into: that of the block, or else a row of a
   batch, whose arrays are given. */
typedef struct {
    int64_t group, block, part;
    char *memory;
    char *const *arrays;
    int64_t row;
} Chunk;

ChunkReader *make_reader(const Tables *tables, ShardIndexes *indexes);
void drop_reader(ChunkReader *reader);

/* The demand that a chunk belongs to, by its number in the block. */
int64_t find_demand(const Tables *tables, int64_t group, int64_t part);

/* Reads the stored bytes of a chunk into the reader's own memory. Returns their size; below 0 where that
   is left to Python, as for an absent chunk. */
int64_t read_chunk(ChunkReader *reader, const Chunk *chunk);

/* Decodes what was read last to where it belongs. Returns 0 where that is left to Python. */
int decode_chunk(ChunkReader *reader, const Chunk *chunk);

/* Whether the chunk is decoded to memory of the reader first, as large as all of it. */
int needs_scratch(const Tables *tables, const Chunk *chunk);

/* The same as `decode_chunk` for stored bytes that lie elsewhere. */
int decode_stored(ChunkReader *reader, const Chunk *chunk, const char *stored, int64_t size);

/* Bytes of memory that the reader holds; the same as it is planned for, at most those of the largest
   chunk that it has read: a tiny chunk may take more as it is stored; and requests made so far. */
int64_t held_nbytes(const ChunkReader *reader);
int64_t planned_nbytes(const ChunkReader *reader);
int64_t count_requests(const ChunkReader *reader);

#endif
