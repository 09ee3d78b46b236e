/* Divides whole numbers. */

#ifndef XLOADER_DIVIDE_H
#define XLOADER_DIVIDE_H

#include <stdint.h>

/* The quotient of two numbers: the first is at least 0, the second at least 1. Processors divide small
   numbers several times as fast. */
static inline int64_t quotient_of(int64_t number, int64_t divisor) {
    if (!((number | divisor) >> 32))
        return (uint32_t)number / (uint32_t)divisor;
    return number / divisor;
}

#endif
