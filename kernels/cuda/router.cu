// router.cu: the experts that each token uses, and their weights; for one token together with the product that scores them.
#include <string.h>

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/norm.cuh"
#include "kernels/cuda/router.h"

namespace {

// Logits that a lane keeps: for the usual number of experts, and for the most.
constexpr int PER_LANE_FEW = 4, PER_LANE_MANY = 32;
static_assert(EXPERTS_CAP == WARP * PER_LANE_MANY, "a warp keeps every expert's score");

struct router_args {
    const float *logits;
    const float *bias;     // [n_experts] or NULL: counts for the selection only
    const int32_t *slots;  // [n_experts] or NULL: the experts with one >= 0 come first
    int32_t *ids, *chosen; // chosen: [row][n_used] or NULL, the ids once more
    int32_t *
        mine; // [row][n_used] or NULL: the ids of a token's first gpu_slots[number of its resident ones] slots, then -1
    float *weights;
    uint32_t logits_stride, ids_stride, weights_stride;
    struct atsi_router_params p;
    uint8_t gpu_slots[ATSI_DIVIDED_SLOTS_MAX + 1];
};

// The lane-wise best of (value, index): larger value, then smaller index. NaN never wins over a number.
__device__ inline void warp_argmax(float &value, int &index) {
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2) {
        float v = __shfl_xor_sync(ALL_LANES, value, step);
        int i = __shfl_xor_sync(ALL_LANES, index, step);
        if (v > value || (v == value && i < index)) {
            value = v;
            index = i;
        }
    }
}

// A token's slots: lane l keeps slots l, l + 32, ...; id -1 behind the last.
template <int PER_LANE> struct chosen_slots {
    int id[PER_LANE];
    float weight[PER_LANE];
    __device__ void clear() {
#pragma unroll
        for (int k = 0; k < PER_LANE; k++) {
            id[k] = -1;
            weight[k] = 0.0f;
        }
    }
    __device__ void set(int slot, int expert, float score) {
#pragma unroll
        for (int k = 0; k < PER_LANE; k++)
            if (slot == (int)threadIdx.x + k * WARP) {
                id[k] = expert;
                weight[k] = score;
            }
    }
};

// Where a token's slots go: its experts that are resident before the others; both groups keep their order. Returns how many they are. All
// lanes of the warp call.
template <int PER_LANE>
__device__ inline int resident_first(const int32_t *slots, const chosen_slots<PER_LANE> &chosen, int to[PER_LANE]) {
    int n_resident = 0;
    unsigned resident[PER_LANE], lower = (1u << threadIdx.x) - 1; // a bit a lane
#pragma unroll
    for (int k = 0; k < PER_LANE; k++) {
        resident[k] = __ballot_sync(ALL_LANES, chosen.id[k] >= 0 && slots[chosen.id[k]] >= 0);
        n_resident += __popc(resident[k]);
    }
    int first = 0, behind = n_resident;
#pragma unroll
    for (int k = 0; k < PER_LANE; k++) {
        to[k] = resident[k] >> threadIdx.x & 1 ? first + __popc(resident[k] & lower)
                                               : behind + __popc(~resident[k] & lower);
        first += __popc(resident[k]);
        behind += WARP - __popc(resident[k]);
    }
    return n_resident;
}

// A warp a token. Lane l keeps experts l, l + 32, ...: `score` is what the weight is made of, `rank` what is selected by. Logits are not
// looked for in the multiprocessor's own cache: other blocks of the launch may have made them.
template <int PER_LANE> __device__ inline void choose(const router_args &a, uint64_t row) {
    int lane = threadIdx.x, n_experts = (int)a.p.n_experts, n_used = (int)a.p.n_used;
    const float *logits = a.logits + row * a.logits_stride;
    int32_t *ids = a.ids + row * a.ids_stride;
    float *weights = a.weights + row * a.weights_stride;
    float score[PER_LANE], rank[PER_LANE], largest = -INFINITY, total = 0.0f;
#pragma unroll
    for (int k = 0; k < PER_LANE; k++) {
        int e = lane + k * WARP;
        score[k] = e < n_experts ? __ldcg(logits + e) : -INFINITY;
        largest = fmaxf(largest, score[k]);
    }
    largest = lanes_max(largest);
    if (a.p.score == ATSI_ROUTER_SOFTMAX) {
#pragma unroll
        for (int k = 0; k < PER_LANE; k++) {
            score[k] = lane + k * WARP < n_experts ? expf(score[k] - largest) : 0.0f;
            total += score[k];
        }
        total = lanes_sum(total);
    }
#pragma unroll
    for (int k = 0; k < PER_LANE; k++) {
        int e = lane + k * WARP;
        if (a.p.score == ATSI_ROUTER_SOFTMAX) score[k] /= total;
        if (a.p.score == ATSI_ROUTER_SIGMOID) score[k] = sigmoid(score[k]);
        rank[k] = e < n_experts ? score[k] + (a.bias ? a.bias[e] : 0.0f) : -INFINITY;
        if (e < n_experts && !(rank[k] > -3e38f)) rank[k] = -3e38f; // below every number, above a taken expert
    }
    float sum = 0.0f;
    chosen_slots<PER_LANE> chosen;
    chosen.clear();
    for (int s = 0; s < n_used; s++) {
        float best = -INFINITY;
        int index = EXPERTS_CAP;
#pragma unroll
        for (int k = 0; k < PER_LANE; k++)
            if (rank[k] > best) {
                best = rank[k];
                index = lane + k * WARP;
            }
        warp_argmax(best, index);
        float taken = 0.0f;
#pragma unroll
        for (int k = 0; k < PER_LANE; k++)
            if (index == lane + k * WARP) {
                taken = score[k];
                rank[k] = -INFINITY;
            }
        taken = __shfl_sync(ALL_LANES, taken, index % WARP);
        // The first slot holds the largest logit, unless a bias reordered them: `largest` serves as the offset either way.
        if (a.p.score == ATSI_ROUTER_SOFTMAX_SELECTED) taken = expf(taken - largest);
        sum += taken;
        chosen.set(s, index, taken);
    }
    bool divide = a.p.normalise || a.p.score == ATSI_ROUTER_SOFTMAX_SELECTED;
    int to[PER_LANE], n_resident = 0;
#pragma unroll
    for (int k = 0; k < PER_LANE; k++) to[k] = lane + k * WARP;
    if (a.slots) n_resident = resident_first<PER_LANE>(a.slots, chosen, to);
#pragma unroll
    for (int k = 0; k < PER_LANE; k++) {
        if (chosen.id[k] < 0) continue;
        ids[to[k]] = chosen.id[k];
        weights[to[k]] = (divide ? chosen.weight[k] / sum : chosen.weight[k]) * a.p.scale;
        if (a.chosen) a.chosen[row * n_used + to[k]] = chosen.id[k];
        if (a.mine) a.mine[row * n_used + to[k]] = to[k] < a.gpu_slots[n_resident] ? chosen.id[k] : -1;
    }
}

template <int PER_LANE> __global__ void router_kernel(const __grid_constant__ router_args a) {
    begin_kernel();
    choose<PER_LANE>(a, blockIdx.x);
}

// ---- with its scores --------------------------------------------------------------------------------------------------------

constexpr int WARPS = 4, BLOCK_ROWS = 4, STRIDE = WARPS * WARP * 4; // columns that a block takes at a time
constexpr int FEW_STEPS = 4, MANY_STEPS = 8;                        // whose weights load before the wait

struct scores_args {
    const float *weight, *bias, *in;
    float *out;
    uint32_t n_out, n_cols;
    uint32_t *n_done; // blocks of this launch
};

__device__ inline float4 four(const float *p) { return *(const float4 *)p; }

// A step's part of the block's rows, the expression of plain.cu's kernel.
__device__ inline void add_products(float acc[BLOCK_ROWS], const float4 w[BLOCK_ROWS], float4 x) {
#pragma unroll
    for (int r = 0; r < BLOCK_ROWS; r++) acc[r] += w[r].x * x.x + w[r].y * x.y + w[r].z * x.z + w[r].w * x.w;
}

// The block's rows of weights, of which the first steps are loaded early.
template <int STEPS> struct score_rows {
    const float *row[BLOCK_ROWS];
    float4 ahead[STEPS][BLOCK_ROWS];
    __device__ score_rows(const scores_args &s) {
#pragma unroll
        for (int r = 0; r < BLOCK_ROWS; r++)
            row[r] = s.weight + (uint64_t)min(blockIdx.x * BLOCK_ROWS + r, s.n_out - 1) * s.n_cols;
#pragma unroll
        for (int k = 0; k < STEPS; k++)
            if (threadIdx.x * 4 + k * STRIDE < s.n_cols) load(ahead[k], threadIdx.x * 4 + k * STRIDE);
    }
    __device__ void load(float4 w[BLOCK_ROWS], uint32_t column) const {
#pragma unroll
        for (int r = 0; r < BLOCK_ROWS; r++) w[r] = four(row[r] + column);
    }
};

// The sums of the block's rows, whose columns the warps share, in the order of plain.cu's kernel. The first BLOCK_ROWS lanes get them.
__device__ inline float sum_of_row(const float acc[BLOCK_ROWS]) {
    __shared__ float partial[WARPS][BLOCK_ROWS];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
#pragma unroll
    for (int r = 0; r < BLOCK_ROWS; r++) {
        float sum = lanes_sum(acc[r]);
        if (lane == 0) partial[warp][r] = sum;
    }
    __syncthreads();
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) sum += partial[w][lane % BLOCK_ROWS];
    return sum;
}

// Whether the calling warp's block is the last of the launch to come here; what the others wrote before is visible to it then. Leaves the
// counter as it was at first.
__device__ inline bool is_last_block(uint32_t *n_done) {
    uint32_t ticket = 0;
    __threadfence();
    __syncwarp();
    if (threadIdx.x % WARP == 0) ticket = atomicAdd(n_done, 1u);
    if (__shfl_sync(ALL_LANES, ticket, 0) != gridDim.x - 1) return false;
    __threadfence();
    if (threadIdx.x % WARP == 0) *n_done = 0;
    return true;
}

// Ends a block: its scores, and behind the last block the choice.
template <int PER_LANE>
__device__ inline void finish(const float acc[BLOCK_ROWS], const scores_args &s, const router_args &a) {
    float sum = sum_of_row(acc);
    if (threadIdx.x >= WARP) return;
    uint32_t expert = blockIdx.x * BLOCK_ROWS + threadIdx.x;
    if (threadIdx.x < BLOCK_ROWS && expert < s.n_out) s.out[expert] = s.bias ? sum + s.bias[expert] : sum;
    if (is_last_block(s.n_done)) choose<PER_LANE>(a, 0);
}

// x: BLOCK_ROWS experts.
template <int PER_LANE>
__global__ void __launch_bounds__(WARPS *WARP, 1)
    scores_kernel(const __grid_constant__ scores_args s, const __grid_constant__ router_args a) {
    start_successor();
    score_rows<FEW_STEPS> rows(s);
    wait_for_predecessor();
    float acc[BLOCK_ROWS] = {};
    uint32_t column = threadIdx.x * 4;
#pragma unroll
    for (int k = 0; k < FEW_STEPS; k++, column += STRIDE)
        if (column < s.n_cols) add_products(acc, rows.ahead[k], four(s.in + column));
    for (; column < s.n_cols; column += STRIDE) {
        rows.load(rows.ahead[0], column);
        add_products(acc, rows.ahead[0], four(s.in + column));
    }
    finish<PER_LANE>(acc, s, a);
}

// The scale of the row's norm, in the order of sums of norm.cu's kernel, of which each of its warps has 128 columns. v: this thread's
// columns, zeros behind the last.
template <int STEPS> __device__ inline float scale_of_row(const float4 v[STEPS], const norm_args &n) {
    __shared__ float partial[WARP];
    static_assert(STEPS * WARPS <= WARP, "a sum for every 128 columns");
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
        float squares = lanes_sum(squares_of(v[k]));
        if (lane == 0) partial[k * WARPS + warp] = squares;
    }
    __syncthreads();
    return norm_scale(lanes_sum(lane < STEPS * WARPS ? partial[lane] : 0.0f), n);
}

// The same of a row that every block norms for itself, and of which it writes a step or none.
template <int PER_LANE, int STEPS>
__global__ void __launch_bounds__(WARPS *WARP, 1)
    norm_and_scores_kernel(const __grid_constant__ norm_args n, const __grid_constant__ scores_args s,
                           const __grid_constant__ router_args a) {
    start_successor();
    score_rows<STEPS> rows(s);
    float4 v[STEPS], weights[STEPS];
    uint32_t column = threadIdx.x * 4;
#pragma unroll
    for (int k = 0; k < STEPS; k++) weights[k] = weights_at(n, column + k * STRIDE);
    wait_for_predecessor();
#pragma unroll
    for (int k = 0; k < STEPS; k++)
        v[k] = column + k * STRIDE < s.n_cols ? four(n.in + column + k * STRIDE) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float scale = scale_of_row<STEPS>(v, n), acc[BLOCK_ROWS] = {};
#pragma unroll
    for (int k = 0; k < STEPS; k++, column += STRIDE) {
        v[k] = normed(v[k], weights[k], scale);
        if (blockIdx.x == k % gridDim.x) put_normed(n, 0, 0, column, v[k]);
        if (column < s.n_cols) add_products(acc, rows.ahead[k], v[k]);
    }
    finish<PER_LANE>(acc, s, a);
}

// ---- arguments --------------------------------------------------------------------------------------------------------------

bool is_supported(const struct atsi_op_call *call) {
    const struct atsi_router_params &p = call->op->u.router;
    return p.n_experts <= EXPERTS_CAP && !(call->resident.mine && p.n_used > ATSI_DIVIDED_SLOTS_MAX);
}

router_args args_of(const struct atsi_op_call *call) {
    const struct atsi_rows_ref &v = call->in[0], &ids = call->out[0], &w = call->out[1];
    router_args a = {};
    a.logits = (const float *)v.data;
    a.bias = (const float *)call->tensor[0].data;
    a.slots = call->resident.slots;
    a.ids = (int32_t *)ids.data;
    a.chosen = call->resident.chosen;
    a.mine = call->resident.mine;
    a.weights = (float *)w.data;
    a.logits_stride = v.stride;
    a.ids_stride = ids.stride;
    a.weights_stride = w.stride;
    a.p = call->op->u.router;
    if (a.mine) memcpy(a.gpu_slots, call->resident.gpu_slots, a.p.n_used + 1);
    return a;
}

bool is_few(const struct atsi_op_call *call) { return call->op->u.router.n_experts <= WARP * PER_LANE_FEW; }

} // namespace

cudaError_t load_router(void) {
    static const void *const KERNELS[] = {(const void *)router_kernel<PER_LANE_FEW>,
                                          (const void *)router_kernel<PER_LANE_MANY>,
                                          (const void *)scores_kernel<PER_LANE_FEW>,
                                          (const void *)scores_kernel<PER_LANE_MANY>,
                                          (const void *)norm_and_scores_kernel<PER_LANE_FEW, FEW_STEPS>,
                                          (const void *)norm_and_scores_kernel<PER_LANE_FEW, MANY_STEPS>,
                                          (const void *)norm_and_scores_kernel<PER_LANE_MANY, MANY_STEPS>};
    return load_kernels(KERNELS);
}

bool router_may_join(enum atsi_dtype dtype, const struct plain_args *s) {
    return dtype == ATSI_F32 && s->n_in == 1 && !s->experts.ids && !s->add && s->n_out <= EXPERTS_CAP &&
           s->n_cols % 4 == 0 && ((uintptr_t)s->weight | (uintptr_t)s->in) % 16 == 0;
}

// What the first block writes must not meet the others' input.
static bool can_norm(const struct norm_args *n, const struct plain_args *scores) {
    const struct atsi_rows_ref in = {(void *)n->in, n->in_stride, n->width}, out = {n->out, n->out_stride, n->width},
                               scored = {scores->out, scores->n_out, scores->n_out};
    return n->aligned && !n->add && n->group == n->width && n->width <= MANY_STEPS * STRIDE &&
           !rows_overlap(in, out, 1) && !rows_overlap(in, scored, 1);
}

bool router_launch_with_scores(struct launch_ctx *x, const struct plain_args *p, const struct norm_args *norm,
                               const struct atsi_op_call *call, uint32_t *counter) {
    if (call->op->kind != ATSI_OP_ROUTER || x->n_rows != 1 || !is_supported(call) || call->in[0].data != p->out ||
        call->op->u.router.n_experts != p->n_out)
        return false;
    scores_args s = {(const float *)p->weight, p->bias, p->in, p->out, p->n_out, p->n_cols, counter};
    bool norms = norm->n_rows > 0 && can_norm(norm, p);
    if (norm->n_rows > 0 && !norms) norm_launch(norm, x->stream);
    dim3 grid(ceil_div(p->n_out, BLOCK_ROWS));
    if (norms) {
        auto *kernel = !is_few(call)                     ? norm_and_scores_kernel<PER_LANE_MANY, MANY_STEPS>
                       : p->n_cols <= FEW_STEPS * STRIDE ? norm_and_scores_kernel<PER_LANE_FEW, FEW_STEPS>
                                                         : norm_and_scores_kernel<PER_LANE_FEW, MANY_STEPS>;
        launch_overlapping(kernel, grid, WARPS * WARP, 0, x->stream, *norm, s, args_of(call));
    } else {
        auto *kernel = is_few(call) ? scores_kernel<PER_LANE_FEW> : scores_kernel<PER_LANE_MANY>;
        launch_overlapping(kernel, grid, WARPS * WARP, 0, x->stream, s, args_of(call));
    }
    return true;
}

enum atsi_status launch_router(struct launch_ctx *x, const struct atsi_op_call *call, struct atsi_error *err) {
    const struct atsi_router_params &p = call->op->u.router;
    if (p.n_experts > EXPERTS_CAP)
        return atsi_fail(err, ATSI_FAILED, "GPU: a router over %u experts is not supported, at most %d", p.n_experts,
                         EXPERTS_CAP);
    if (!is_supported(call))
        return atsi_fail(err, ATSI_FAILED, "GPU: %u slots of a token are not divided, at most %d", p.n_used,
                         ATSI_DIVIDED_SLOTS_MAX);
    launch_overlapping(is_few(call) ? router_kernel<PER_LANE_FEW> : router_kernel<PER_LANE_MANY>, x->n_rows, WARP, 0,
                       x->stream, args_of(call));
    return ATSI_OK;
}
