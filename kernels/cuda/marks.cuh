// marks.cuh: posting a mark within a kernel.
#ifndef ATSI_KERNELS_CUDA_MARKS_CUH
#define ATSI_KERNELS_CUDA_MARKS_CUH

#include "kernels/cuda/marks.h"

__device__ inline int32_t value_of(const mark &m) {
    return (int32_t)((m.base ? (uint32_t)*m.base : 0) + (uint32_t)m.offset);
}

// All that the calling thread knows to be written becomes visible to the host with the mark.
__device__ inline void post_here(const mark &m) {
    __threadfence_system();
    *(volatile int32_t *)m.word = value_of(m);
}

#endif
