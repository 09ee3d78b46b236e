/* Divides whole numbers. */

#ifndef XLOADER_DIVIDE_H
#define XLOADER_DIVIDE_H

#include <stdint.h>

/* The quotient of numbers from 0 on. Processors divide small ones several times as fast. */
static inline int64_t quotient_of(int64_t number, int64_t divisor) {
    if (!((number | divisor) >> 32))
        return (uint32_t)number / (uint32_t)divisor;
    return number / divisor;
}

#endif
