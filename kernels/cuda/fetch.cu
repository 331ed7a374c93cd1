// fetch.cu: experts that a token will need, copied out of host memory before their turn.
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/experts.h"

namespace {

constexpr int THREADS = 256, BLOCKS = 32; // a slot: half a megabyte under way, several times what a link has in flight

struct fetch_args {
    const uint8_t *tensor;
    uint8_t *to; // [n_used] experts
    const int32_t *ids, *slots;
    uint64_t expert_bytes;
};

// y: slots.
template <class T> __global__ void fetch_kernel(fetch_args a) {
    constexpr int AHEAD = 4;
    int expert = a.ids[blockIdx.y];
    if (expert < 0 || (a.slots && a.slots[expert] >= 0)) return;
    const T *from = (const T *)(a.tensor + expert * a.expert_bytes);
    T *to = (T *)(a.to + blockIdx.y * a.expert_bytes);
    uint64_t n = a.expert_bytes / sizeof(T), step = BLOCKS * THREADS;
    for (uint64_t first = blockIdx.x * THREADS + threadIdx.x; first < n; first += AHEAD * step) {
        T v[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            if (first + k * step < n) v[k] = from[first + k * step];
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            if (first + k * step < n) to[first + k * step] = v[k];
    }
}

} // namespace

cudaError_t load_fetch(void) {
    static const void *const KERNELS[] = {(const void *)fetch_kernel<uint4>, (const void *)fetch_kernel<uint8_t>};
    return load_kernels(KERNELS);
}

void launch_fetch_experts(cudaStream_t stream, const struct atsi_op_call *call) {
    const struct atsi_experts_params *p = &call->op->u.experts;
    fetch_args a = {};
    a.tensor = (const uint8_t *)call->tensor[0].data;
    a.to = (uint8_t *)call->resident.fetched;
    a.ids = call->resident.mine ? call->resident.mine : (const int32_t *)call->in[1].data;
    a.slots = call->resident.data ? call->resident.slots : NULL;
    a.expert_bytes = call->tensor[0].info->size_bytes / p->n_experts;
    bool aligned = ((uintptr_t)a.tensor | (uintptr_t)a.to | a.expert_bytes) % sizeof(uint4) == 0;
    (aligned ? fetch_kernel<uint4> : fetch_kernel<uint8_t>)<<<dim3(BLOCKS, p->n_used), THREADS, 0, stream>>>(a);
}
