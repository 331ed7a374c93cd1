// marks.h: words by which streams that run ahead of the host, and the host, wait for each other (post_mark and await_mark of
// kernels/device.h).
#ifndef ATSI_KERNELS_CUDA_MARKS_H
#define ATSI_KERNELS_CUDA_MARKS_H

#include "kernels/cuda/internal.h"

// *word is *base + offset once it is posted. word NULL: no mark.
struct mark {
    int32_t *word;
    const int32_t *base; // NULL: 0
    int32_t offset;
};

// Launches of their own.
void mark_post(struct mark m, struct launch_stream stream);
void mark_await(struct mark m, struct launch_stream stream);

#endif
