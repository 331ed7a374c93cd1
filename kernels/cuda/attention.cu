// attention.cu: chooses the kernel that fits: divided context for few rows, tiles for many, a plain kernel for head sizes and cache
// types without tensor-core forms.
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/heads.h"

namespace {

// ---- joining a divided context ----------------------------------------------------------------------------------------------

constexpr int JOIN_PARTS = 4; // a quarter of the splits each

// A thread has two elements of a quarter of the splits.
constexpr int join_threads(int dim) { return JOIN_PARTS * dim / 2; }

// x: head, y: token. All loads of a thread are under way at once: none waits for the weights that others of them make, and every warp makes
// these for itself. Quantises its result where asked: the output projection reads it next.
// Its predecessor is split_kernel, which starts when all before heads_kernel is complete: the position may be read before the wait.
template <int D> __global__ void __launch_bounds__(join_threads(D)) join_kernel(attention_args a, acts_out acts) {
    start_successor();
    constexpr int PER_LANE = SPLITS_CAP / WARP, PER_PART = SPLITS_CAP / JOIN_PARTS;
    __shared__ __align__(16) float sums[JOIN_PARTS][D];
    int lane = threadIdx.x % WARP, head = blockIdx.x, token = blockIdx.y, row = token * a.group + head % a.group;
    int part = threadIdx.x / (D / 2), d = threadIdx.x % (D / 2) * 2;
    int n_used = divide_context<D>(a, __ldcg(&a.round->first_pos), row / SPLIT_ROWS * SPLIT_ROWS).n_used;
    float sink = a.sinks ? a.sinks[head] * LOG2_E : -INFINITY;
    partial_results<D> from(a, head / a.group, row);
    const float *of_part = from.sums + part * D + d;
    const float2 *of_lane = from.records + lane;
    int n_of_part = (n_used - part + JOIN_PARTS - 1) / JOIN_PARTS;
    if (n_used < 1) { // no round is like that, but what is asked before the wait is computed before it
        wait_for_predecessor();
        return;
    }
    wait_for_predecessor();
    float2 record[PER_LANE], v[PER_PART]; // of splits lane, lane + 32, ..., and of part, part + 4, ...
#pragma unroll
    for (int k = 0; k < PER_LANE; k++)
        record[k] = lane + k * WARP < n_used ? of_lane[k * WARP] : make_float2(-INFINITY, 0.0f);
#pragma unroll
    for (int k = 0; k < PER_PART; k++)
        if (k < n_of_part) v[k] = *(const float2 *)(of_part + k * JOIN_PARTS * D);
    float largest = -INFINITY, weight[PER_LANE], total = 0.0f;
#pragma unroll
    for (int k = 0; k < PER_LANE; k++) largest = fmaxf(largest, record[k].x);
    largest = fmaxf(lanes_max(largest), sink);
#pragma unroll
    for (int k = 0; k < PER_LANE; k++) {
        weight[k] = exp2f(record[k].x - largest);
        total += weight[k] * record[k].y;
    }
    float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int k = 0; k < PER_PART; k++) {
        float w = __shfl_sync(ALL_LANES, weight[k * JOIN_PARTS / WARP], k * JOIN_PARTS % WARP + part);
        if (k < n_of_part) sum = make_float2(sum.x + w * v[k].x, sum.y + w * v[k].y);
    }
    total = lanes_sum(total) + exp2f(sink - largest);
    *(float2 *)&sums[part][d] = sum;
    __syncthreads();
    if (threadIdx.x / WARP * (4 * WARP) >= D) return; // whole warps go on, for quantise4's exchanges
    d = 4 * threadIdx.x;
    bool there = d < D;
    float4 y = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (there) {
        y = *(const float4 *)&sums[0][d];
#pragma unroll
        for (int i = 1; i < JOIN_PARTS; i++) {
            float4 u = *(const float4 *)&sums[i][d];
            y = make_float4(y.x + u.x, y.y + u.y, y.z + u.z, y.w + u.w);
        }
        y = make_float4(y.x / total, y.y / total, y.z / total, y.w / total);
    }
    uint32_t width = gridDim.x * D, at = head * D + d;
    if (there) store4(a.out + (uint64_t)token * a.out_stride + at, y, 4, true);
    if (acts.q)
        quantise4(y, acts.q + (uint64_t)token * width + at, acts.meta + (uint64_t)token * (width / 32) + at / 32,
                  there);
}

typedef void join_function(attention_args a, acts_out acts);

// Of the sizes that have tensor-core kernels; NULL of others.
join_function *join_of(int dim) {
    switch (dim) {
    case 64: return join_kernel<64>;
    case 80: return join_kernel<80>;
    case 96: return join_kernel<96>;
    case 128: return join_kernel<128>;
    case 256: return join_kernel<256>;
    }
    return NULL;
}

// ---- any head size ----------------------------------------------------------------------------------------------------------

constexpr int PLAIN_WARPS = 8, DIM_CAP = 512, QUADS = DIM_CAP / (4 * WARP); // a lane keeps QUADS groups of 4 elements

// x: head, y: token. Warps take every eighth key and merge at the end.
template <enum atsi_dtype KV> __global__ void __launch_bounds__(PLAIN_WARPS *WARP) plain_kernel(attention_args a) {
    begin_kernel();
    __shared__ float sums[PLAIN_WARPS][DIM_CAP], largest_of[PLAIN_WARPS], sum_of[PLAIN_WARPS];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, head = blockIdx.x, token = blockIdx.y,
        kv_head = head / a.group;
    int pos = a.round->first_pos + token;
    const float *q_row = a.q + (uint64_t)token * a.q_stride + head * a.k_dim;
    float4 q[QUADS], o[QUADS];
#pragma unroll
    for (int i = 0; i < QUADS; i++) {
        int d = 4 * (lane + WARP * i);
        q[i] = load4(q_row + d, a.k_dim - d, false);
        o[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    float largest = -INFINITY, sum = 0.0f;
    for (int key = first_seen(a, pos) + warp; key <= pos; key += PLAIN_WARPS) {
        const uint8_t *k_row = cached(a.k_cache, a.k_row_bytes, a, key, kv_head);
        const uint8_t *v_row = cached(a.v_cache, a.v_row_bytes, a, key, kv_head);
        float logit = 0.0f;
#pragma unroll
        for (int i = 0; i < QUADS; i++) {
            int d = 4 * (lane + WARP * i);
            if (d >= a.k_dim) break;
            float4 k = cached_floats<KV>(k_row, d);
            logit += q[i].x * k.x + q[i].y * k.y + q[i].z * k.z + q[i].w * k.w;
        }
        logit = lanes_sum(logit) * a.scale;
        float top = fmaxf(largest, logit), shrink = exp2f(largest - top), weight = exp2f(logit - top);
        largest = top;
        sum = sum * shrink + weight;
#pragma unroll
        for (int i = 0; i < QUADS; i++) {
            int d = 4 * (lane + WARP * i);
            if (d >= a.v_dim) break;
            float4 v = cached_floats<KV>(v_row, d);
            o[i] = make_float4(o[i].x * shrink + weight * v.x, o[i].y * shrink + weight * v.y,
                               o[i].z * shrink + weight * v.z, o[i].w * shrink + weight * v.w);
        }
    }
    if (lane == 0) {
        largest_of[warp] = largest;
        sum_of[warp] = sum;
    }
#pragma unroll
    for (int i = 0; i < QUADS; i++) {
        int d = 4 * (lane + WARP * i);
        if (d < a.v_dim) *(float4 *)&sums[warp][d] = o[i];
    }
    __syncthreads();
    float top = a.sinks ? a.sinks[head] * LOG2_E : -INFINITY, total = 0.0f;
    float sink = top;
    for (int w = 0; w < PLAIN_WARPS; w++) top = fmaxf(top, largest_of[w]);
    for (int w = 0; w < PLAIN_WARPS; w++) total += sum_of[w] * exp2f(largest_of[w] - top);
    total += exp2f(sink - top);
    for (int d = threadIdx.x; d < a.v_dim; d += PLAIN_WARPS * WARP) {
        float result = 0.0f;
        for (int w = 0; w < PLAIN_WARPS; w++) result += sums[w][d] * exp2f(largest_of[w] - top);
        a.out[(uint64_t)token * a.out_stride + head * a.v_dim + d] = result / total;
    }
}

template <enum atsi_dtype KV> void attend_plain(const attention_args &a, struct launch_stream stream) {
    launch_overlapping(plain_kernel<KV>, dim3(a.n_kv_heads * a.group, a.n_tokens), PLAIN_WARPS * WARP, 0, stream, a);
}

// ---- choice -----------------------------------------------------------------------------------------------------------------

enum atsi_status check_shape(const struct atsi_state_ref *s, struct atsi_error *err) {
    uint32_t k_dim = s->info->k_dim, v_dim = s->info->v_dim;
    if (s->kv_type != ATSI_F32 && s->kv_type != ATSI_F16 && s->kv_type != ATSI_Q8_0)
        return atsi_fail(err, ATSI_FAILED, "GPU: a key/value cache of type %s is not supported: use f16, q8_0 or f32",
                         atsi_dtype_name(s->kv_type));
    uint32_t multiple = s->kv_type == ATSI_Q8_0 ? 32 : 4;
    if (k_dim > DIM_CAP || v_dim > DIM_CAP || k_dim % multiple != 0 || v_dim % multiple != 0)
        return atsi_fail(err, ATSI_FAILED,
                         "GPU: attention heads of %u and %u elements with a %s cache are not supported: multiples "
                         "of %u up to %d",
                         k_dim, v_dim, atsi_dtype_name(s->kv_type), multiple, DIM_CAP);
    return ATSI_OK;
}

// Enough blocks for three a multiprocessor, none with less than a step of its warps when as many keys are seen as may be.
int choose_splits(const struct cuda_device *d, const attention_args &a) {
    int n_tiles = (int)ceil_div(a.n_tokens * a.group, SPLIT_ROWS),
        wanted = 3 * d->n_multiprocessors / (a.n_kv_heads * n_tiles);
    uint32_t n_seen = a.window > 0 ? (uint32_t)(a.window + a.n_tokens - 1) : a.capacity; // at most
    int useful = (int)ceil_div(n_seen < a.capacity ? n_seen : a.capacity, SPLIT_KEYS * split_warps(a.v_dim));
    int n = wanted < useful ? wanted : useful;
    return n < 1 ? 1 : n > SPLITS_CAP ? SPLITS_CAP : n;
}

void attend_divided(struct launch_ctx *x, attention_args &a, enum atsi_dtype kv_type, acts_out acts) {
    a.n_splits = choose_splits(x->device, a);
    a.partial = (float *)(x->device->scratch.base + x->device->scratch.attention_offset);
    attention_split_mma(&a, kv_type, x->stream);
    launch_overlapping(join_of(a.v_dim), dim3(a.n_kv_heads * a.group, a.n_tokens), join_threads(a.v_dim), 0, x->stream,
                       a, acts);
}

// Bytes of the partial results that attend_divided needs at most for these heads.
uint64_t partial_bytes(uint32_t n_kv_heads, uint32_t group, uint32_t v_dim, uint32_t n_tokens_max) {
    uint64_t tokens = SPLIT_ROWS_CAP / group < n_tokens_max ? SPLIT_ROWS_CAP / group : n_tokens_max;
    return tokens * n_kv_heads * group * SPLITS_CAP * partial_floats((int)v_dim) * sizeof(float);
}

} // namespace

cudaError_t load_attention(const struct cuda_device *d, const struct atsi_program *p) {
    static const void *const KERNELS[] = {(const void *)plain_kernel<ATSI_F32>, (const void *)plain_kernel<ATSI_F16>,
                                          (const void *)plain_kernel<ATSI_Q8_0>};
    cudaError_t status = load_kernels(KERNELS);
    for (uint32_t i = 0; i < p->n_states && status == cudaSuccess; i++) {
        if (p->states[i].kind != ATSI_STATE_KV) continue;
        int dim = (int)p->states[i].v_dim;
        const void *const JOIN[] = {(const void *)join_of(dim)};
        if (JOIN[0]) status = load_kernels(JOIN);
        if (status == cudaSuccess) status = attention_mma_prepare(dim, ATSI_F16, d->max_shared_bytes);
        if (status == cudaSuccess) status = attention_mma_prepare(dim, ATSI_Q8_0, d->max_shared_bytes);
    }
    return status;
}

enum atsi_status launch_attention(struct launch_ctx *x, const struct atsi_op_call *call, struct atsi_error *err) {
    const struct atsi_state_ref *s = &call->state;
    const struct atsi_attention_params *p = &call->op->u.attention;
    ATSI_TRY(check_shape(s, err));
    attention_args a = {};
    a.q = (const float *)call->in[0].data;
    a.out = (float *)call->out[0].data;
    a.sinks = (const float *)call->tensor[0].data;
    a.k_cache = (uint8_t *)s->k;
    a.v_cache = (uint8_t *)s->v;
    a.round = call->round.round;
    a.q_stride = call->in[0].stride;
    a.out_stride = call->out[0].stride;
    a.k_row_bytes = (uint32_t)atsi_dtype_row_bytes(s->kv_type, s->info->k_dim);
    a.v_row_bytes = (uint32_t)atsi_dtype_row_bytes(s->kv_type, s->info->v_dim);
    a.n_tokens = x->n_rows;
    a.n_kv_heads = (int)p->n_kv_heads;
    a.group = (int)(p->n_heads / p->n_kv_heads);
    a.k_dim = (int)s->info->k_dim;
    a.v_dim = (int)s->info->v_dim;
    a.window = (int)s->info->window;
    a.capacity = s->capacity;
    a.max_shared_bytes = x->device->max_shared_bytes;
    a.scale = p->scale * LOG2_E;

    if (!x->kv_stored) heads_store(call, x->n_rows, x->stream);

    bool few = a.n_tokens * a.group <= SPLIT_ROWS_CAP &&
               partial_bytes(p->n_kv_heads, (uint32_t)a.group, s->info->v_dim, (uint32_t)x->n_rows) <=
                   x->device->scratch.attention_bytes;
    if (attention_has_mma(a.k_dim, a.v_dim, s->kv_type) && rows_aligned(call->in[0]) && rows_aligned(call->out[0])) {
        if (few)
            attend_divided(x, a, s->kv_type,
                           a.v_dim % 32 == 0 ? acts_reserve(x->device, call->out[0], a.n_tokens) : acts_out());
        else
            attention_tiled_mma(&a, s->kv_type, x->stream);
    } else if (s->kv_type == ATSI_F16) {
        attend_plain<ATSI_F16>(a, x->stream);
    } else if (s->kv_type == ATSI_Q8_0) {
        attend_plain<ATSI_Q8_0>(a, x->stream);
    } else {
        attend_plain<ATSI_F32>(a, x->stream);
    }
    return ATSI_OK;
}

uint64_t attention_scratch_bytes(const struct atsi_program *p, uint32_t n_tokens_max) {
    uint64_t most = 0;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const struct atsi_op *op = &p->ops[i];
        if (op->kind != ATSI_OP_ATTENTION) continue;
        const struct atsi_attention_params *a = &op->u.attention;
        uint64_t bytes =
            partial_bytes(a->n_kv_heads, a->n_heads / a->n_kv_heads, p->states[op->state].v_dim, n_tokens_max);
        if (bytes > most) most = bytes;
    }
    return most;
}
