/* What every C file of the library needs. */

#ifndef XLOADER_EXPORT_H
#define XLOADER_EXPORT_H

#include <stdint.h>

/* Other functions are hidden, as if they were in no library. */
#define EXPORT __attribute__((visibility("default")))

#endif
