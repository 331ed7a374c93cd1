// clock.h: the monotonic clock that every measurement uses.
#ifndef ATSI_FORMATS_BASE_CLOCK_H
#define ATSI_FORMATS_BASE_CLOCK_H

#include <time.h>

// Microseconds since some fixed moment; differences are meaningful, absolute values are not.
static inline double atsi_clock_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

#endif
