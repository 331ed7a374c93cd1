// checked.h: size arithmetic that reports overflow instead of wrapping.
#ifndef ATSI_FORMATS_BASE_CHECKED_H
#define ATSI_FORMATS_BASE_CHECKED_H

#include <stdbool.h>
#include <stdint.h>

// Each returns false on overflow and then leaves *out unspecified.
static inline bool atsi_mul_u64(uint64_t a, uint64_t b, uint64_t *out) { return !__builtin_mul_overflow(a, b, out); }
static inline bool atsi_add_u64(uint64_t a, uint64_t b, uint64_t *out) { return !__builtin_add_overflow(a, b, out); }
// `alignment` is a power of two.
static inline bool atsi_align_u64(uint64_t a, uint64_t alignment, uint64_t *out) {
    if (!atsi_add_u64(a, alignment - 1, out)) return false;
    *out &= ~(alignment - 1);
    return true;
}

#endif
