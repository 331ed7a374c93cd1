// marks.cuh: posting and awaiting a mark within a kernel.
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

// What was written before the mark was posted is visible behind it. An acquiring load: fences of the whole system by several blocks at
// once wait for one another (16 blocks: 13 us, H200).
__device__ inline uint32_t load_acquired(const int32_t *word) {
    uint32_t value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
}

__device__ inline void await_here(const mark &m) {
    uint32_t value = (uint32_t)value_of(m);
    while ((int32_t)(load_acquired(m.word) - value) < 0) __nanosleep(100); // atsi_mark_reached
}

#endif
