// expert_sum.cu: what the experts of a token made, weighted and added.
#include "kernels/cuda/expert_sum.cuh"
#include "kernels/cuda/waiting.h"

namespace {

constexpr uint32_t THREADS = 256, FLOATS_MAX = 48 * 1024 / sizeof(float), // every card's shared memory
    SLOTS_MAX = FLOATS_MAX / WARP;

// A thread an element. It loads several slots at once, before their order is known, and puts what they add into shared memory (dynamic, [slots]
// [threads]) in ascending order of their ids, to add it up from there. Lane l knows about slots l, l + 32, ...
__global__ void expert_sum_kernel(expert_sum_args a) {
    begin_kernel();
    extern __shared__ float parts[];
    constexpr uint32_t AHEAD = 8;
    uint64_t row = blockIdx.y;
    uint32_t lane = threadIdx.x % WARP, i = blockIdx.x * blockDim.x + threadIdx.x, last = a.n_slots - 1;
    const float *slots = a.slots + row * a.slots_stride + min(i, a.width - 1);
    const float *weights = a.weights + row * a.weights_stride;
    const int32_t *ids = a.ids ? a.ids + row * a.ids_stride : NULL;
    float *y = a.out + row * a.out_stride + i, *mine = parts + threadIdx.x, weight = 0.0f;
    float old = a.add && i < a.width ? *y : 0.0f, sum = 0.0f;
    uint32_t rank = 0;
    for (uint32_t first = 0; first < a.n_slots; first += AHEAD) {
        float v[AHEAD];
#pragma unroll
        for (uint32_t k = 0; k < AHEAD; k++) v[k] = slots[min(first + k, last) * a.width];
        if (first % WARP == 0) {
            uint32_t slot = min(first + lane, last);
            weight = weights[slot];
            rank = ids ? rank_of_slot(ids, a.n_slots, slot) : slot;
        }
#pragma unroll
        for (uint32_t k = 0; k < AHEAD; k++) {
            uint32_t to = __shfl_sync(ALL_LANES, rank, (first + k) % WARP);
            float part = v[k] * __shfl_sync(ALL_LANES, weight, (first + k) % WARP);
            if (first + k <= last) mine[to * blockDim.x] = part;
        }
    }
    if (i >= a.width) return;
#pragma unroll 8
    for (uint32_t k = 0; k < a.n_slots; k++) sum += mine[k * blockDim.x];
    *y = old + sum;
}

} // namespace

cudaError_t load_expert_sum(void) {
    static const void *const KERNELS[] = {(const void *)expert_sum_kernel};
    return load_kernels(KERNELS);
}

void expert_sum_launch(const struct expert_sum_args *a, struct launch_stream stream) {
    uint32_t n_threads = a->n_slots * THREADS <= FLOATS_MAX ? THREADS : WARP;
    launch_overlapping(expert_sum_kernel, dim3(ceil_div(a->width, n_threads), a->n_rows), n_threads,
                       a->n_slots * n_threads * sizeof(float), stream, *a);
}

// Sums of few rows wait for their norm.
enum atsi_status launch_expert_sum(struct launch_ctx *x, const struct atsi_op_call *call, struct atsi_error *err) {
    const struct atsi_rows_ref &s = call->in[0], &w = call->in[1], &ids = call->in[2], &y = call->out[0];
    expert_sum_args a = {};
    a.slots = (const float *)s.data;
    a.weights = (const float *)w.data;
    a.ids = (const int32_t *)ids.data;
    a.out = (float *)y.data;
    a.slots_stride = s.stride;
    a.weights_stride = w.stride;
    a.ids_stride = ids.stride;
    a.out_stride = y.stride;
    a.width = y.width;
    a.n_slots = w.width;
    a.add = call->op->add;
    a.inputs_are_final = x->waiting->before == EXPERTS_START_LATE;
    a.n_rows = x->n_rows;
    if (a.n_slots > SLOTS_MAX)
        return atsi_fail(err, ATSI_FAILED, "GPU: a sum of %u experts a token is not supported, at most %u", a.n_slots,
                         SLOTS_MAX);
    if (x->n_rows <= VECTOR_ROWS)
        x->waiting->sum = a;
    else
        expert_sum_launch(&a, x->stream);
    return ATSI_OK;
}
