// norm.cu: RMS norm in groups, quantising its result for the matrices that read it; also of experts' sums, which it adds up itself.
#include "kernels/cuda/expert_sum.cuh"
#include "kernels/cuda/norm.cuh"
#include "kernels/cuda/waiting.h"

namespace {

// x: group of the row, y: row. Every thread keeps up to four elements at a time and reads them again for the second pass; a row
// is in the cache then. The first weights load before the wait.
__global__ void norm_kernel(norm_args a) {
    start_successor();
    __shared__ float partial[WARP];
    float4 weights = weights_at(a, threadIdx.x * 4);
    wait_for_predecessor();
    uint64_t row = blockIdx.y;
    uint32_t first = blockIdx.x * a.group;
    const float *in = a.in + row * a.in_stride + first;
    float squares = 0.0f;
    for (uint32_t i = threadIdx.x * 4; i < a.group; i += blockDim.x * 4) {
        float4 v = load4(in + i, n_left(a, i), a.aligned);
        squares += squares_of(v);
    }
    float scale = norm_scale(block_sum(squares, partial), a);
    // Whole warps run every step, for quantise4's exchanges.
    uint32_t n_steps = (a.group + blockDim.x * 4 - 1) / (blockDim.x * 4);
    for (uint32_t step = 0; step < n_steps; step++) {
        uint32_t i = (step * blockDim.x + threadIdx.x) * 4;
        if (step > 0) weights = weights_at(a, i);
        put_normed(a, row, first, i, normed(load4(in + i, n_left(a, i), a.aligned), weights, scale));
    }
}

constexpr int THREADS_MAX = 1024, SUM_STEPS_MAX = 2, SUM_SLOTS_MAX = WARP;
constexpr uint32_t FEW_SLOTS = 4, MANY_SLOTS = 8; // whose loads are under way at once

// A row's slots in the order of its sum: where each starts in the row, and what it is weighted with. Behind the last: what may be read, and is left
// out.
struct sum_order {
    uint32_t at[SUM_SLOTS_MAX];
    float weight[SUM_SLOTS_MAX];
};

// The first warp calls, a lane a slot.
__device__ inline void put_in_order(sum_order &order, const expert_sum_args &s, uint64_t row) {
    uint32_t slot = threadIdx.x;
    if (slot >= s.n_slots) {
        order.at[slot] = 0;
        order.weight[slot] = 0.0f;
        return;
    }
    uint32_t rank = s.ids ? rank_of_slot(s.ids + row * s.ids_stride, s.n_slots, slot) : slot;
    order.at[rank] = slot * s.width;
    order.weight[rank] = __ldcg(s.weights + row * s.weights_stride + slot);
}

// A row's elements i .. i + 3, added to `old`, with the roundings of expert_sum_kernel: products are rounded before they are added.
template <uint32_t AHEAD>
__device__ inline float4 sum_of_slots(const expert_sum_args &s, const sum_order &order, uint64_t row, uint32_t i,
                                      float4 old) {
    const float *slots = s.slots + row * s.slots_stride + i;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (uint32_t first = 0; first < s.n_slots; first += AHEAD) {
        float4 v[AHEAD];
#pragma unroll
        for (uint32_t k = 0; k < AHEAD; k++) v[k] = *(const float4 *)(slots + order.at[first + k]);
        asm volatile("" ::: "memory"); // no load is put off until a sum is there
#pragma unroll
        for (uint32_t k = 0; k < AHEAD; k++) {
            bool there = first + k < s.n_slots;
            float w = order.weight[first + k];
            sum.x = there ? __fadd_rn(sum.x, __fmul_rn(v[k].x, w)) : sum.x;
            sum.y = there ? __fadd_rn(sum.y, __fmul_rn(v[k].y, w)) : sum.y;
            sum.z = there ? __fadd_rn(sum.z, __fmul_rn(v[k].z, w)) : sum.z;
            sum.w = there ? __fadd_rn(sum.w, __fmul_rn(v[k].w, w)) : sum.w;
        }
    }
    return make_float4(old.x + sum.x, old.y + sum.y, old.z + sum.z, old.w + sum.w);
}

// A block a row, of whole and aligned fours. A thread has the elements that it has in norm_kernel, and keeps their sums for the second
// pass.
template <int STEPS, uint32_t AHEAD>
__global__ void __launch_bounds__(THREADS_MAX)
    sum_and_norm_kernel(const __grid_constant__ expert_sum_args s, const __grid_constant__ norm_args a) {
    start_successor();
    __shared__ float partial[WARP];
    __shared__ __align__(16) sum_order order;
    uint64_t row = blockIdx.x;
    float4 v[STEPS], weights[STEPS];
#pragma unroll
    for (int step = 0; step < STEPS; step++) weights[step] = weights_at(a, (step * blockDim.x + threadIdx.x) * 4);
    if (!s.inputs_are_final) wait_for_predecessor();
    if (threadIdx.x < WARP) put_in_order(order, s, row);
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        uint32_t i = (step * blockDim.x + threadIdx.x) * 4;
        v[step] = s.add && i < a.group ? __ldcg((const float4 *)(s.out + row * s.out_stride + i))
                                       : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    __syncthreads();
    wait_for_predecessor();
    float squares = 0.0f;
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        uint32_t i = (step * blockDim.x + threadIdx.x) * 4;
        if (i >= a.group) continue;
        v[step] = sum_of_slots<AHEAD>(s, order, row, i, v[step]);
        *(float4 *)(s.out + row * s.out_stride + i) = v[step];
        squares += squares_of(v[step]);
    }
    float scale = norm_scale(block_sum(squares, partial), a);
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        uint32_t i = (step * blockDim.x + threadIdx.x) * 4;
        put_normed(a, row, 0, i, normed(v[step], weights[step], scale));
    }
}

} // namespace

cudaError_t load_norm(void) {
    static const void *const KERNELS[] = {(const void *)norm_kernel, (const void *)sum_and_norm_kernel<1, FEW_SLOTS>,
                                          (const void *)sum_and_norm_kernel<1, MANY_SLOTS>,
                                          (const void *)sum_and_norm_kernel<SUM_STEPS_MAX, MANY_SLOTS>};
    return load_kernels(KERNELS);
}

// Reserves room for the quantised rows.
static norm_args args_of(struct launch_ctx *x, const struct atsi_op_call *call) {
    const struct atsi_rows_ref &v = call->in[0], &y = call->out[0];
    norm_args a = {};
    a.in = (const float *)v.data;
    a.out = (float *)y.data;
    a.weight = (const float *)call->tensor[0].data;
    a.in_stride = v.stride;
    a.out_stride = y.stride;
    a.group = call->op->u.norm.group;
    a.width = y.width;
    a.eps = call->op->u.norm.eps;
    a.add = call->op->add;
    a.aligned = rows_aligned(v) && rows_aligned(y) && a.group % 4 == 0 && (uintptr_t)a.weight % 16 == 0;
    a.n_rows = x->n_rows;
    if (a.group % 32 == 0) a.acts = acts_reserve(x->device, y, x->n_rows);
    return a;
}

static uint32_t threads_of(uint32_t group) {
    uint32_t threads = ceil_div(ceil_div(group, 4), WARP) * WARP;
    return threads < THREADS_MAX ? threads : THREADS_MAX;
}

void norm_launch(const struct norm_args *a, struct launch_stream stream) {
    launch_overlapping(norm_kernel, dim3(a->width / a->group, a->n_rows), threads_of(a->group), 0, stream, *a);
}

// That of one token waits for a router.
void launch_rms_norm(struct launch_ctx *x, const struct atsi_op_call *call) {
    norm_args a = args_of(x, call);
    if (x->n_rows == 1)
        x->waiting->norm = a;
    else
        norm_launch(&a, x->stream);
}

struct sum_rows {
    struct atsi_rows_ref slots, weights, ids, out;
};

static sum_rows rows_of(const struct expert_sum_args *s) {
    sum_rows rows = {{(void *)s->slots, s->slots_stride, s->n_slots * s->width},
                     {(void *)s->weights, s->weights_stride, s->n_slots},
                     {(void *)s->ids, s->ids_stride, s->n_slots},
                     {s->out, s->out_stride, s->width}};
    return rows;
}

// A norm of the sum's rows, each as a whole. Its own may lie where the slots do if there is one row: they are written when all slots are
// read.
static bool reads_sum(const sum_rows &rows, const struct atsi_op_call *call, int n_rows) {
    const struct atsi_rows_ref *const reads[] = {&rows.slots, &rows.weights, &rows.ids};
    for (const struct atsi_rows_ref *r : reads)
        if (n_rows > 1 && r->data && rows_overlap(call->out[0], *r, (uint32_t)n_rows)) return false;
    const struct atsi_rows_ref &v = call->in[0];
    return v.data == rows.out.data && v.stride == rows.out.stride && v.width == rows.out.width &&
           call->op->u.norm.group == v.width;
}

bool norm_launch_with_sum(struct launch_ctx *x, const struct expert_sum_args *sum, const struct atsi_op_call *call) {
    constexpr uint32_t STEP = 4 * THREADS_MAX;
    if (call->op->kind != ATSI_OP_RMS_NORM || x->n_rows != sum->n_rows || sum->n_slots > SUM_SLOTS_MAX ||
        sum->width > SUM_STEPS_MAX * STEP || sum->width % 4 != 0)
        return false;
    sum_rows rows = rows_of(sum);
    if (!rows_aligned(rows.slots) || !rows_aligned(rows.out) || !reads_sum(rows, call, x->n_rows)) return false;
    norm_args a = args_of(x, call);
    auto *kernel = sum->width > STEP           ? sum_and_norm_kernel<SUM_STEPS_MAX, MANY_SLOTS>
                   : sum->n_slots <= FEW_SLOTS ? sum_and_norm_kernel<1, FEW_SLOTS>
                                               : sum_and_norm_kernel<1, MANY_SLOTS>;
    launch_overlapping(kernel, x->n_rows, threads_of(a.group), 0, x->stream, *sum, a);
    return true;
}
