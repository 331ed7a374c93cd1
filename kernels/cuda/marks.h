// marks.h: words by which streams that run ahead of the host, and the host, wait for each other (post_mark and await_mark of
// kernels/device.h).
#ifndef ATSI_KERNELS_CUDA_MARKS_H
#define ATSI_KERNELS_CUDA_MARKS_H

#include "kernels/cuda/internal.h"

// *word is *base + offset once it is posted.
struct mark {
    int32_t *word;
    const int32_t *base; // NULL: 0
    int32_t offset;
};

#endif
