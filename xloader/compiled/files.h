#ifndef XLOADER_FILES_H
#define XLOADER_FILES_H

#include <stdint.h>

/* What is told in place of a size, as in file_objects.py. */
enum { ABSENT = -1, UNUSUAL = -2 };

/* A file that is to be read; without a descriptor, which is negative then, it is not open. */
typedef struct {
    int descriptor;
    int64_t size;
} File;

/* Opens an ordinary file; returns a size of 0, or else why it is not open. */
int64_t begin_file(const char *path, File *own);

/* The number of bytes read, which is smaller where the file ends before; or UNUSUAL. */
int64_t read_part(int file, int64_t start, int64_t size, char *buffer);

#endif
