/* A number made from all C files when they are compiled. Another one means another release. */

#include "export.h"

#ifndef SOURCE_HASH
#define SOURCE_HASH 0
#endif

EXPORT int64_t xloader_source_hash(void) { return SOURCE_HASH; }
