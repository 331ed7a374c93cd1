// grow.h: arrays that grow by doubling.
#ifndef ATSI_FORMATS_BASE_GROW_H
#define ATSI_FORMATS_BASE_GROW_H

#include <stdbool.h>
#include <stdlib.h>

#include "formats/base/checked.h"

// Makes room for one more item in *array, which the caller frees: a pointer to items of item_bytes each, *cap of them, n in use. False,
// with everything as it was, when there is no memory.
static inline bool atsi_grow(void **array, size_t n, size_t *cap, size_t item_bytes) {
    if (n < *cap) return true;
    size_t more = *cap ? 2 * *cap : 64;
    uint64_t bytes;
    if (!atsi_mul_u64(more, item_bytes, &bytes)) return false;
    void *grown = realloc(*array, bytes);
    if (!grown) return false;
    *array = grown;
    *cap = more;
    return true;
}

#endif
