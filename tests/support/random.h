// random.h: splitmix64, the same numbers on every machine. Any state is a good seed.
#ifndef ATSI_TESTS_SUPPORT_RANDOM_H
#define ATSI_TESTS_SUPPORT_RANDOM_H

#include <stdint.h>

static inline uint64_t test_next(uint64_t *state) {
    uint64_t z = *state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}

static inline uint64_t test_below(uint64_t *state, uint64_t n) { return test_next(state) % n; }
static inline double test_uniform(uint64_t *state) { return (double)(test_next(state) >> 11) * 0x1p-53; } // [0, 1)

#endif
