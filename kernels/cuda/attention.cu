// attention.cu: chooses the kernel that fits: divided context for few rows, tiles for many, a plain kernel for head sizes and cache
// types without tensor-core forms.
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/heads.h"

namespace {

// ---- joining a divided context ----------------------------------------------------------------------------------------------

constexpr int JOIN_THREADS = 256, JOIN_PARTS = 4; // a quarter of the splits each

// x: head, y: token. Threads take four elements each of a quarter of the splits. Quantises its result where asked: the output
// projection reads it next.
__global__ void __launch_bounds__(JOIN_THREADS) join_kernel(attention_args a, acts_out acts) {
    begin_kernel();
    __shared__ float weight[SPLITS_CAP], total;
    __shared__ int n_used; // splits up to the last that saw a key
    __shared__ float4 sums[JOIN_PARTS][JOIN_THREADS / JOIN_PARTS];
    int head = blockIdx.x, n_heads = gridDim.x, record = a.v_dim + 2;
    const float *partial = a.partial + ((uint64_t)blockIdx.y * n_heads + head) * a.n_splits * record;
    if (threadIdx.x < WARP) {
        float largest = -INFINITY, sum = 0.0f;
        for (int s = threadIdx.x; s < a.n_splits; s += WARP)
            largest = fmaxf(largest, partial[(uint64_t)s * record + a.v_dim]);
        largest = lanes_max(largest);
        float sink = a.sinks ? a.sinks[head] * LOG2_E : -INFINITY;
        largest = fmaxf(largest, sink);
        for (int s = threadIdx.x; s < a.n_splits; s += WARP) {
            weight[s] = exp2f(partial[(uint64_t)s * record + a.v_dim] - largest);
            sum += weight[s] * partial[(uint64_t)s * record + a.v_dim + 1];
        }
        sum = lanes_sum(sum);
        float used = 0.0f;
        for (int s = threadIdx.x; s < a.n_splits; s += WARP)
            if (partial[(uint64_t)s * record + a.v_dim + 1] != 0.0f) used = (float)(s + 1);
        used = lanes_max(used);
        if (threadIdx.x == 0) {
            total = sum + exp2f(sink - largest);
            n_used = (int)used;
        }
    }
    __syncthreads();
    int part = threadIdx.x / (JOIN_THREADS / JOIN_PARTS), lane = threadIdx.x % (JOIN_THREADS / JOIN_PARTS);
    for (int first = 0; first < a.v_dim; first += JOIN_THREADS / JOIN_PARTS * 4) {
        int d = first + 4 * lane;
        float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (d < a.v_dim) {
#pragma unroll 4
            for (int s = part; s < n_used; s += JOIN_PARTS) {
                const float2 *p = (const float2 *)(partial + (uint64_t)s * record + d); // records are of even length
                float2 low = p[0], high = p[1];
                float w = weight[s];
                v = make_float4(v.x + w * low.x, v.y + w * low.y, v.z + w * high.x, v.w + w * high.y);
            }
        }
        sums[part][lane] = v;
        __syncthreads();
        if (part == 0) {
#pragma unroll
            for (int i = 1; i < JOIN_PARTS; i++) {
                float4 u = sums[i][lane];
                v = make_float4(v.x + u.x, v.y + u.y, v.z + u.z, v.w + u.w);
            }
            v = make_float4(v.x / total, v.y / total, v.z / total, v.w / total);
            uint64_t row = blockIdx.y, width = (uint64_t)n_heads * a.v_dim, at = (uint64_t)head * a.v_dim + d;
            bool there = d < a.v_dim;
            if (there) store4(a.out + row * a.out_stride + at, v, 4, false);
            if (acts.q) quantise4(v, acts.q + row * width + at, acts.meta + row * (width / 32) + at / 32, there);
        }
        __syncthreads();
    }
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

// Enough blocks for three a multiprocessor, none with less than 64 keys when the cache is full.
int choose_splits(const struct cuda_device *d, const attention_args &a) {
    int n_tiles = (int)ceil_div(a.n_tokens * a.group, 16), wanted = 3 * d->n_multiprocessors / (a.n_kv_heads * n_tiles);
    int useful = (int)ceil_div(a.capacity, 64);
    int n = wanted < useful ? wanted : useful;
    return n < 1 ? 1 : n > SPLITS_CAP ? SPLITS_CAP : n;
}

void attend_divided(struct launch_ctx *x, attention_args &a, enum atsi_dtype kv_type, acts_out acts) {
    a.n_splits = choose_splits(x->device, a);
    a.partial = (float *)(x->device->scratch.base + x->device->scratch.attention_offset);
    attention_split_mma(&a, kv_type, x->stream);
    launch_overlapping(join_kernel, dim3(a.n_kv_heads * a.group, a.n_tokens), JOIN_THREADS, 0, x->stream, a, acts);
}

// Bytes of the partial results that attend_divided needs at most for these heads.
uint64_t partial_bytes(uint32_t n_kv_heads, uint32_t group, uint32_t v_dim, uint32_t n_tokens_max) {
    uint64_t tokens = SPLIT_ROWS_CAP / group < n_tokens_max ? SPLIT_ROWS_CAP / group : n_tokens_max;
    return tokens * n_kv_heads * group * SPLITS_CAP * partial_floats((int)v_dim) * sizeof(float);
}

} // namespace

cudaError_t load_attention(const struct cuda_device *d, const struct atsi_program *p) {
    static const void *const KERNELS[] = {(const void *)plain_kernel<ATSI_F32>, (const void *)plain_kernel<ATSI_F16>,
                                          (const void *)plain_kernel<ATSI_Q8_0>, (const void *)join_kernel};
    cudaError_t status = load_kernels(KERNELS);
    for (uint32_t i = 0; i < p->n_states && status == cudaSuccess; i++) {
        if (p->states[i].kind != ATSI_STATE_KV) continue;
        status = attention_mma_prepare((int)p->states[i].v_dim, ATSI_F16, d->max_shared_bytes);
        if (status == cudaSuccess)
            status = attention_mma_prepare((int)p->states[i].v_dim, ATSI_Q8_0, d->max_shared_bytes);
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
    if (attention_has_mma(a.k_dim, a.v_dim, s->kv_type)) {
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
