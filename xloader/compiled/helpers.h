#ifndef XLOADER_HELPERS_H
#define XLOADER_HELPERS_H

#include <stdint.h>

/* Does parts of some work, and returns once all parts are begun. Several threads may do so at the
   same time. */
typedef void (*Work)(void *context);

/* Bytes for which it is worth waking a thread. */
#define SHARE_NBYTES (1 << 18)

/* Nanoseconds on a clock whose zero is arbitrary. */
int64_t now_ns(void);

/* Whether helpers may help the calling thread. Helpers themselves have none. */
int has_helpers(void);

/* Does some work on the calling thread, and on up to so many helpers of it that are idle. Returns
   when all of it is done. */
void share_work(Work work, void *context, int64_t most_helpers);

#endif
