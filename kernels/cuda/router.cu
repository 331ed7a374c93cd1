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

// A key a float, in the same order; 0 for none of them. Both zeros have the same key.
__device__ inline uint32_t key_of(float v) {
    uint32_t bits = __float_as_uint(v + 0.0f);
    return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}

// The index that stands beside the largest key of the warp, the smallest one of several.
__device__ inline uint32_t index_of_largest(uint32_t key, uint32_t index) {
#if __CUDA_ARCH__ >= 800
    uint32_t largest = __reduce_max_sync(ALL_LANES, key);
    return __reduce_min_sync(ALL_LANES, key == largest ? index : UINT32_MAX);
#else
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2) {
        uint32_t other = __shfl_xor_sync(ALL_LANES, key, step), i = __shfl_xor_sync(ALL_LANES, index, step);
        if (other > key || (other == key && i < index)) {
            key = other;
            index = i;
        }
    }
    return index;
#endif
}

// What is known of lane l's experts l, l + 32, ... before their scores.
template <int PER_LANE> struct lane_experts {
    float bias[PER_LANE];
    bool resident[PER_LANE];
    // What no kernel writes: may be called before the wait.
    __device__ void load_biases(const router_args &a) {
#pragma unroll
        for (int k = 0; k < PER_LANE; k++) {
            uint32_t e = threadIdx.x + k * WARP;
            bias[k] = a.bias && e < a.p.n_experts ? a.bias[e] : 0.0f;
        }
    }
    __device__ void load_residents(const router_args &a) {
#pragma unroll
        for (int k = 0; k < PER_LANE; k++) {
            uint32_t e = threadIdx.x + k * WARP;
            resident[k] = a.slots && e < a.p.n_experts && a.slots[e] >= 0;
        }
    }
};

// Where a token's slots go: its experts that are resident before the others; both groups keep their order. Returns how many they are. All
// lanes of the warp call. id: lane l keeps slots l, l + 32, ..., -1 behind the last; is_resident: of every expert.
template <int PER_LANE>
__device__ inline int resident_first(const bool *is_resident, const int id[PER_LANE], int to[PER_LANE]) {
    int n_resident = 0;
    unsigned resident[PER_LANE], lower = (1u << threadIdx.x) - 1; // a bit a lane
#pragma unroll
    for (int k = 0; k < PER_LANE; k++) {
        resident[k] = __ballot_sync(ALL_LANES, id[k] >= 0 && is_resident[id[k]]);
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

// The experts with the largest ranks, in their order, as slots: lane l gets slots l, l + 32, ..., -1 behind the last. rank: keys of lane l's
// experts.
template <int PER_LANE> __device__ inline void choose_largest(uint32_t rank[PER_LANE], int n_used, int id[PER_LANE]) {
    int lane = threadIdx.x;
#pragma unroll
    for (int k = 0; k < PER_LANE; k++) id[k] = -1;
    for (int s = 0; s < n_used; s++) {
        uint32_t largest = 0, index = 0;
#pragma unroll
        for (int k = 0; k < PER_LANE; k++) largest = max(largest, rank[k]);
#pragma unroll
        for (int k = PER_LANE - 1; k >= 0; k--)
            if (rank[k] == largest) index = lane + k * WARP;
        int taken = (int)index_of_largest(largest, index);
#pragma unroll
        for (int k = 0; k < PER_LANE; k++) {
            if (taken == lane + k * WARP) rank[k] = 0;
            if (s == lane + k * WARP) id[k] = taken;
        }
    }
}

// A warp a token. score: the logits of lane l's experts l, l + 32, ..., -infinity behind the last.
template <int PER_LANE>
__device__ inline void choose(const router_args &a, uint64_t row, const lane_experts<PER_LANE> &experts,
                              float score[PER_LANE]) {
    __shared__ float score_of[WARP * PER_LANE]; // what the weight is made of
    __shared__ bool is_resident[WARP * PER_LANE];
    int lane = threadIdx.x, n_experts = (int)a.p.n_experts, n_used = (int)a.p.n_used;
    float largest = -INFINITY, total = 0.0f;
#pragma unroll
    for (int k = 0; k < PER_LANE; k++) largest = fmaxf(largest, score[k]);
    largest = lanes_max(largest);
    if (a.p.score == ATSI_ROUTER_SOFTMAX) {
#pragma unroll
        for (int k = 0; k < PER_LANE; k++) {
            score[k] = lane + k * WARP < n_experts ? expf(score[k] - largest) : 0.0f;
            total += score[k];
        }
        total = lanes_sum(total);
    }
    uint32_t rank[PER_LANE]; // what is selected by
#pragma unroll
    for (int k = 0; k < PER_LANE; k++) {
        int e = lane + k * WARP;
        rank[k] = 0;
        if (k * WARP >= n_experts) continue;
        if (a.p.score == ATSI_ROUTER_SOFTMAX) score[k] /= total;
        if (a.p.score == ATSI_ROUTER_SIGMOID) score[k] = sigmoid(score[k]);
        float by = score[k] + experts.bias[k];
        if (!(by > -3e38f)) by = -3e38f; // NaN stands below every number, above a taken expert
        if (e < n_experts) rank[k] = key_of(by);
        score_of[e] = score[k];
        is_resident[e] = experts.resident[k];
    }
    __syncwarp();
    int id[PER_LANE], to[PER_LANE], n_resident = 0;
    choose_largest<PER_LANE>(rank, n_used, id);
    float weight[PER_LANE], sum = 0.0f;
#pragma unroll
    for (int k = 0; k < PER_LANE; k++) {
        weight[k] = id[k] < 0 ? 0.0f : score_of[id[k]];
        // The first slot holds the largest logit, unless a bias reordered them: `largest` serves as the offset either way.
        if (id[k] >= 0 && a.p.score == ATSI_ROUTER_SOFTMAX_SELECTED) weight[k] = expf(weight[k] - largest);
        sum += weight[k];
        to[k] = lane + k * WARP;
    }
    sum = lanes_sum(sum);
    bool divide = a.p.normalise || a.p.score == ATSI_ROUTER_SOFTMAX_SELECTED;
    if (a.slots) n_resident = resident_first<PER_LANE>(is_resident, id, to);
    int32_t *ids = a.ids + row * a.ids_stride;
    float *weights = a.weights + row * a.weights_stride;
#pragma unroll
    for (int k = 0; k < PER_LANE; k++) {
        if (id[k] < 0) continue;
        ids[to[k]] = id[k];
        weights[to[k]] = (divide ? weight[k] / sum : weight[k]) * a.p.scale;
        if (a.chosen) a.chosen[row * n_used + to[k]] = id[k];
        if (a.mine) a.mine[row * n_used + to[k]] = to[k] < a.gpu_slots[n_resident] ? id[k] : -1;
    }
}

template <int PER_LANE> __global__ void router_kernel(const __grid_constant__ router_args a) {
    start_successor();
    lane_experts<PER_LANE> experts;
    experts.load_biases(a);
    wait_for_predecessor();
    experts.load_residents(a);
    const float *logits = a.logits + (uint64_t)blockIdx.x * a.logits_stride;
    float score[PER_LANE];
#pragma unroll
    for (int k = 0; k < PER_LANE; k++) {
        uint32_t e = threadIdx.x + k * WARP;
        score[k] = e < a.p.n_experts ? logits[e] : -INFINITY;
    }
    choose<PER_LANE>(a, blockIdx.x, experts, score);
}

// ---- with its scores --------------------------------------------------------------------------------------------------------

constexpr int WARPS = 4, BLOCK_ROWS = 2, STRIDE = WARPS * WARP * 4; // columns that a block takes at a time
constexpr int FEW_STEPS = 4, MANY_STEPS = 8;                        // whose weights load before the wait

struct scores_args {
    const float *weight, *bias, *in;
    float *out;
    uint32_t n_out, n_cols;
    uint64_t *posts; // router.h
};

// Whose score a thread ends up with, of the first BLOCK_ROWS.
__device__ inline uint32_t expert_of_thread() { return blockIdx.x * BLOCK_ROWS + threadIdx.x; }

__device__ inline float4 four(const float *p) { return *(const float4 *)p; }

// Zeros behind the last column add nothing to a sum.
__device__ inline float4 four_or_zeros(const float *row, uint32_t column, const scores_args &s) {
    return column < s.n_cols ? four(row + column) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

// A step's part of the block's rows, the expression of plain.cu's kernel.
__device__ inline void add_products(float acc[BLOCK_ROWS], const float4 w[BLOCK_ROWS], float4 x) {
#pragma unroll
    for (int r = 0; r < BLOCK_ROWS; r++) acc[r] += w[r].x * x.x + w[r].y * x.y + w[r].z * x.z + w[r].w * x.w;
}

// The block's rows of weights, of which the first steps are loaded early, and the bias that the thread adds.
template <int STEPS> struct score_rows {
    const float *row[BLOCK_ROWS];
    float4 ahead[STEPS][BLOCK_ROWS];
    float bias;
    __device__ score_rows(const scores_args &s) {
#pragma unroll
        for (int r = 0; r < BLOCK_ROWS; r++)
            row[r] = s.weight + (uint64_t)min(blockIdx.x * BLOCK_ROWS + r, s.n_out - 1) * s.n_cols;
#pragma unroll
        for (int k = 0; k < STEPS; k++)
#pragma unroll
            for (int r = 0; r < BLOCK_ROWS; r++) ahead[k][r] = four_or_zeros(row[r], threadIdx.x * 4 + k * STRIDE, s);
        bias = s.bias && threadIdx.x < BLOCK_ROWS ? s.bias[min(expert_of_thread(), s.n_out - 1)] : 0.0f;
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
    constexpr int LANES = WARP / BLOCK_ROWS; // with the same sum
    float mine = lanes_sums<BLOCK_ROWS>(acc);
    if (lane % LANES == 0) partial[warp][lane / LANES] = mine;
    __syncthreads();
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) sum += partial[w][lane % BLOCK_ROWS];
    return sum;
}

// Scores go to the block that chooses in words that also say that they are there, so that nobody waits for a fence or a count.
constexpr uint64_t POSTED = 1ull << 32; // above the score's bits

__device__ inline void post_score(uint64_t *post, float score) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(post), "l"(POSTED | __float_as_uint(score)) : "memory");
}
__device__ inline uint64_t look_at(const uint64_t *post) {
    uint64_t word;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(post) : "memory");
    return word;
}

// A block's scores, of the first BLOCK_ROWS threads. All threads call.
__device__ inline void put_scores(const float acc[BLOCK_ROWS], float bias, const scores_args &s) {
    float sum = sum_of_row(acc);
    uint32_t expert = expert_of_thread();
    if (threadIdx.x >= BLOCK_ROWS || expert >= s.n_out) return;
    float score = s.bias ? sum + bias : sum;
    post_score(s.posts + expert, score);
    s.out[expert] = score;
}

// The last block of a launch chooses when all scores are there, and sets their places back for the next launch. Blocks that it waits for
// need not run at the same time: it takes one place of the many that a card has, and their successor starts when all of them have.
template <int PER_LANE> __device__ inline void choose_posted(const scores_args &s, const router_args &a) {
    lane_experts<PER_LANE> experts;
    if (threadIdx.x < WARP) experts.load_biases(a);
    wait_for_predecessor();
    if (threadIdx.x >= WARP) return;
    experts.load_residents(a);
    float score[PER_LANE];
    bool all;
    do {
        all = true;
#pragma unroll
        for (int k = 0; k < PER_LANE; k++) {
            uint32_t e = threadIdx.x + k * WARP;
            uint64_t word = e < s.n_out ? look_at(s.posts + e) : POSTED | __float_as_uint(-INFINITY);
            score[k] = __uint_as_float((uint32_t)word);
            all = all && word >= POSTED;
        }
    } while (!__all_sync(ALL_LANES, all));
#pragma unroll
    for (int k = 0; k < PER_LANE; k++)
        if (threadIdx.x + k * WARP < s.n_out) s.posts[threadIdx.x + k * WARP] = 0;
    choose<PER_LANE>(a, 0, experts, score);
}

__device__ inline bool is_choosing_block() { return blockIdx.x == gridDim.x - 1; }

// x: BLOCK_ROWS experts, and the choice.
template <int PER_LANE>
__global__ void __launch_bounds__(WARPS *WARP, 1)
    scores_kernel(const __grid_constant__ scores_args s, const __grid_constant__ router_args a) {
    start_successor();
    if (is_choosing_block()) return choose_posted<PER_LANE>(s, a);
    score_rows<FEW_STEPS> rows(s);
    wait_for_predecessor();
    float acc[BLOCK_ROWS] = {};
    uint32_t column = threadIdx.x * 4;
#pragma unroll
    for (int k = 0; k < FEW_STEPS; k++, column += STRIDE)
        add_products(acc, rows.ahead[k], four_or_zeros(s.in, column, s));
    for (; column < s.n_cols; column += STRIDE) {
        rows.load(rows.ahead[0], column);
        add_products(acc, rows.ahead[0], four(s.in + column));
    }
    put_scores(acc, rows.bias, s);
}

// The scale of the row's norm, in the order of sums of norm.cu's kernel, of which each of its warps has 128 columns. v: this thread's
// columns, zeros behind the last.
template <int STEPS> __device__ inline float scale_of_row(const float4 v[STEPS], const norm_args &n) {
    __shared__ float partial[WARP];
    static_assert(STEPS * WARPS <= WARP, "a sum for every 128 columns");
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    constexpr int LANES = WARP / STEPS; // with the same sum
    float squares[STEPS];
#pragma unroll
    for (int k = 0; k < STEPS; k++) squares[k] = squares_of(v[k]);
    float mine = lanes_sums<STEPS>(squares);
    if (lane % LANES == 0) partial[lane / LANES * WARPS + warp] = mine;
    __syncthreads();
    return norm_scale(lanes_sum(lane < STEPS * WARPS ? partial[lane] : 0.0f), n);
}

// The same of a row that every block norms for itself, and of which it writes a step or none when its scores are on their way.
template <int PER_LANE, int STEPS>
__global__ void __launch_bounds__(WARPS *WARP, 1)
    norm_and_scores_kernel(const __grid_constant__ norm_args n, const __grid_constant__ scores_args s,
                           const __grid_constant__ router_args a) {
    start_successor();
    if (is_choosing_block()) return choose_posted<PER_LANE>(s, a);
    score_rows<STEPS> rows(s);
    float4 v[STEPS], weights[STEPS];
    uint32_t column = threadIdx.x * 4;
#pragma unroll
    for (int k = 0; k < STEPS; k++) weights[k] = weights_at(n, column + k * STRIDE);
    wait_for_predecessor();
#pragma unroll
    for (int k = 0; k < STEPS; k++) v[k] = four_or_zeros(n.in, column + k * STRIDE, s);
    float scale = scale_of_row<STEPS>(v, n), acc[BLOCK_ROWS] = {};
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
        v[k] = normed(v[k], weights[k], scale);
        add_products(acc, rows.ahead[k], v[k]);
    }
    put_scores(acc, rows.bias, s);
#pragma unroll 1
    for (uint32_t step = blockIdx.x; step < STEPS; step += gridDim.x - 1) {
        float4 mine = v[0];
#pragma unroll
        for (uint32_t k = 1; k < STEPS; k++)
            if (step == k) mine = v[k];
        put_normed(n, 0, 0, column + step * STRIDE, mine);
    }
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
                               const struct atsi_op_call *call, uint64_t *posts) {
    if (call->op->kind != ATSI_OP_ROUTER || x->n_rows != 1 || !is_supported(call) || call->in[0].data != p->out ||
        call->op->u.router.n_experts != p->n_out)
        return false;
    scores_args s = {(const float *)p->weight, p->bias, p->in, p->out, p->n_out, p->n_cols, posts};
    bool norms = norm->n_rows > 0 && can_norm(norm, p);
    if (norm->n_rows > 0 && !norms) norm_launch(norm, x->stream);
    dim3 grid(ceil_div(p->n_out, BLOCK_ROWS) + 1);
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
