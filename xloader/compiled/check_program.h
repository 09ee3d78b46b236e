#ifndef XLOADER_CHECK_PROGRAM_H
#define XLOADER_CHECK_PROGRAM_H

#include "export.h"
#include "program.h"

/* Whether all lists that the tables point into are there. */
EXPORT int64_t xloader_check_tables(const Tables *tables);

/* Whether a segment only points to what is there. `find` tells the row of an earlier load, by its
   number; NULL if there is none. */
typedef const LoadRow *(*FindLoad)(const void *context, int64_t number);
int check_segment(const Tables *tables, const SegmentRows *rows, FindLoad find, const void *context);

#endif
