// expert_sum.cuh: in which order a token's slots are added.
#ifndef ATSI_KERNELS_CUDA_EXPERT_SUM_CUH
#define ATSI_KERNELS_CUDA_EXPERT_SUM_CUH

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/expert_sum.h"

// Slots with a lower id, and of those with the same one the slots before. Past the multiprocessor's own cache, so that it may be asked
// before the wait where ids are final by then.
__device__ inline uint32_t rank_of_slot(const int32_t *ids, uint32_t n_slots, uint32_t slot) {
    int32_t id = __ldcg(ids + slot);
    uint32_t rank = 0;
#pragma unroll 8
    for (uint32_t s = 0; s < n_slots; s++) rank += __ldcg(ids + s) < id + (s < slot);
    return rank;
}

#endif
