// recurrent.cu: operations with a state of fixed size: the short convolution and the gated delta rule.
#include "kernels/cuda/common.cuh"

namespace {

// ---- convolution ----------------------------------------------------------------------------------------------------------

constexpr int CONV_THREADS = 128;
constexpr int CONV_TOKENS = 32; // tokens of a block of a long round
constexpr int TAPS_CAP = 8;

struct conv_args {
    const float *in;
    float *out;
    const float *kernel; // [channels][taps]
    float *state;        // [taps - 1][channels], oldest first
    uint32_t in_stride, out_stride, n_channels, n_taps;
    int n_tokens, per_block;
};

// Input of the channel at token t, which is in the state when t < 0.
__device__ inline float conv_input(const conv_args &a, int t, uint32_t c) {
    return t >= 0 ? a.in[(uint64_t)t * a.in_stride + c] : a.state[(uint64_t)((int)a.n_taps - 1 + t) * a.n_channels + c];
}

// A thread takes one channel through per_block tokens. When those are all tokens of the round, it leaves the new state too, and the
// output may take the input's place. x: channels, y: tokens.
__global__ void conv_kernel(conv_args a) {
    begin_kernel();
    uint32_t c = blockIdx.x * CONV_THREADS + threadIdx.x;
    if (c >= a.n_channels) return;
    int first = blockIdx.y * a.per_block, last = min(first + a.per_block, a.n_tokens), n_taps = (int)a.n_taps;
    float window[TAPS_CAP], weight[TAPS_CAP]; // window[j]: the input that tap j meets
#pragma unroll
    for (int j = 0; j < TAPS_CAP; j++) {
        weight[j] = j < n_taps ? a.kernel[(uint64_t)c * n_taps + j] : 0.0f;
        window[j] = j < n_taps - 1 ? conv_input(a, first - (n_taps - 1) + j, c) : 0.0f;
    }
    for (int t = first; t < last; t++) {
        float newest = a.in[(uint64_t)t * a.in_stride + c], sum = 0.0f;
#pragma unroll
        for (int j = 0; j < TAPS_CAP; j++) {
            if (j == n_taps - 1) window[j] = newest;
            if (j < n_taps) sum += window[j] * weight[j];
        }
        a.out[(uint64_t)t * a.out_stride + c] = silu(sum);
#pragma unroll
        for (int j = 0; j < TAPS_CAP - 1; j++) window[j] = window[j + 1];
    }
    if (a.per_block < a.n_tokens) return;
#pragma unroll
    for (int j = 0; j < TAPS_CAP; j++)
        if (j < n_taps - 1) a.state[(uint64_t)j * a.n_channels + c] = window[j];
}

// After a round that was divided: the last taps - 1 inputs become the state.
__global__ void conv_state_kernel(conv_args a) {
    begin_kernel();
    uint32_t c = blockIdx.x * CONV_THREADS + threadIdx.x;
    if (c >= a.n_channels) return;
    int n_kept = (int)a.n_taps - 1;
    for (int j = 0; j < n_kept; j++)
        a.state[(uint64_t)j * a.n_channels + c] = conv_input(a, a.n_tokens - n_kept + j, c);
}

// ---- gated delta rule -----------------------------------------------------------------------------------------------------

constexpr int DELTA_COLS = WARP; // value columns of a block, one a lane
constexpr int DELTA_SLICES = 8;  // warps: slices of the key dimension
constexpr int DELTA_THREADS = DELTA_COLS * DELTA_SLICES;
constexpr int DELTA_K_CAP = 256;
constexpr int DELTA_SLICE_CAP = DELTA_K_CAP / DELTA_SLICES;

struct delta_args {
    const float *q, *k, *v, *beta, *alpha, *decay, *dt_bias;
    float *out, *state;
    uint32_t q_stride, k_stride, v_stride, beta_stride, alpha_stride, out_stride;
    int k_dim, v_dim, n_tokens;
    struct atsi_delta_params p;
};

__device__ inline float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

// 1 / |x| of a head's vector that every warp reads; eps as in x / sqrt(sum + eps).
__device__ inline float inverse_norm(const float *x, int n, float eps) {
    float squares = 0.0f;
    for (int i = threadIdx.x % WARP; i < n; i += WARP) squares += x[i] * x[i];
    return rsqrtf(lanes_sum(squares) + eps);
}

// A block keeps DELTA_COLS columns of one head's state in registers through all tokens of the round: columns of the
// value dimension never meet, rows meet in two sums a token. x: columns, y: head.
__global__ void __launch_bounds__(DELTA_THREADS) delta_kernel(delta_args a) {
    begin_kernel();
    __shared__ float q[DELTA_K_CAP], k[DELTA_K_CAP], partial[2][DELTA_SLICES][DELTA_COLS];
    int lane = threadIdx.x % WARP, slice = threadIdx.x / WARP, head = blockIdx.y;
    int column = blockIdx.x * DELTA_COLS + lane, per_slice = (a.k_dim + DELTA_SLICES - 1) / DELTA_SLICES;
    int key_head = a.p.tiled ? head % (int)a.p.n_k_heads : head / (int)(a.p.n_v_heads / a.p.n_k_heads);
    int first = slice * per_slice, n = max(0, min(per_slice, a.k_dim - first));
    bool valid = column < a.v_dim;
    float *state = a.state + ((uint64_t)head * a.k_dim + first) * a.v_dim + column;
    float s[DELTA_SLICE_CAP];
#pragma unroll
    for (int i = 0; i < DELTA_SLICE_CAP; i++) s[i] = i < n && valid ? state[(uint64_t)i * a.v_dim] : 0.0f;

    for (int t = 0; t < a.n_tokens; t++) {
        const float *q_in = a.q + (uint64_t)t * a.q_stride + key_head * a.k_dim;
        const float *k_in = a.k + (uint64_t)t * a.k_stride + key_head * a.k_dim;
        float q_scale = inverse_norm(q_in, a.k_dim, a.p.eps) * rsqrtf((float)a.k_dim);
        float k_scale = inverse_norm(k_in, a.k_dim, a.p.eps);
        __syncthreads(); // everyone has left the last token's q and k
        for (int i = threadIdx.x; i < a.k_dim; i += DELTA_THREADS) {
            q[i] = q_in[i] * q_scale;
            k[i] = k_in[i] * k_scale;
        }
        float step = softplus(a.alpha[(uint64_t)t * a.alpha_stride + head] + a.dt_bias[head]);
        float g = expf(a.decay[head] * step), b = sigmoid(a.beta[(uint64_t)t * a.beta_stride + head]);
        __syncthreads();

        float seen = 0.0f; // this slice's part of S' k
#pragma unroll
        for (int i = 0; i < DELTA_SLICE_CAP; i++)
            if (i < n) {
                s[i] *= g;
                seen += s[i] * k[first + i];
            }
        partial[0][slice][lane] = seen;
        __syncthreads();
        seen = 0.0f;
#pragma unroll
        for (int w = 0; w < DELTA_SLICES; w++) seen += partial[0][w][lane];

        float v = valid ? a.v[(uint64_t)t * a.v_stride + head * a.v_dim + column] : 0.0f;
        float change = b * (v - seen), result = 0.0f;
#pragma unroll
        for (int i = 0; i < DELTA_SLICE_CAP; i++)
            if (i < n) {
                s[i] += k[first + i] * change;
                result += s[i] * q[first + i];
            }
        partial[1][slice][lane] = result;
        __syncthreads();
        if (slice != 0 || !valid) continue;
        result = 0.0f;
#pragma unroll
        for (int w = 0; w < DELTA_SLICES; w++) result += partial[1][w][lane];
        a.out[(uint64_t)t * a.out_stride + head * a.v_dim + column] = result;
    }
#pragma unroll
    for (int i = 0; i < DELTA_SLICE_CAP; i++)
        if (i < n && valid) state[(uint64_t)i * a.v_dim] = s[i];
}

} // namespace

cudaError_t load_recurrent(void) {
    static const void *const KERNELS[] = {(const void *)conv_kernel, (const void *)conv_state_kernel,
                                          (const void *)delta_kernel};
    return load_kernels(KERNELS);
}

enum atsi_status launch_conv(struct launch_ctx *x, const struct atsi_op_call *call, struct atsi_error *err) {
    const struct atsi_rows_ref &v = call->in[0], &y = call->out[0];
    uint32_t n_taps = call->state.info->v_dim + 1;
    if (n_taps > TAPS_CAP)
        return atsi_fail(err, ATSI_FAILED, "GPU: a convolution of %u taps is not supported, at most %d", n_taps,
                         TAPS_CAP);
    conv_args a = {(const float *)v.data,
                   (float *)y.data,
                   (const float *)call->tensor[0].data,
                   (float *)call->state.k,
                   v.stride,
                   y.stride,
                   y.width,
                   n_taps,
                   x->n_rows,
                   CONV_TOKENS};
    bool whole = x->n_rows <= CONV_TOKENS || v.data == y.data;
    if (whole) a.per_block = x->n_rows;
    uint32_t n_blocks = ceil_div(y.width, CONV_THREADS);
    launch_overlapping(conv_kernel, dim3(n_blocks, ceil_div(x->n_rows, a.per_block)), CONV_THREADS, 0, x->stream, a);
    if (!whole) launch_overlapping(conv_state_kernel, n_blocks, CONV_THREADS, 0, x->stream, a);
    return ATSI_OK;
}

enum atsi_status launch_delta_rule(struct launch_ctx *x, const struct atsi_op_call *call, struct atsi_error *err) {
    const struct atsi_state *s = call->state.info;
    if (s->k_dim > DELTA_K_CAP)
        return atsi_fail(err, ATSI_FAILED, "GPU: a delta rule with key dimension %u is not supported, at most %d",
                         s->k_dim, DELTA_K_CAP);
    const struct atsi_rows_ref *in = call->in;
    delta_args a = {(const float *)in[0].data,
                    (const float *)in[1].data,
                    (const float *)in[2].data,
                    (const float *)in[3].data,
                    (const float *)in[4].data,
                    (const float *)call->tensor[0].data,
                    (const float *)call->tensor[1].data,
                    (float *)call->out[0].data,
                    (float *)call->state.k,
                    in[0].stride,
                    in[1].stride,
                    in[2].stride,
                    in[3].stride,
                    in[4].stride,
                    call->out[0].stride,
                    (int)s->k_dim,
                    (int)s->v_dim,
                    x->n_rows,
                    call->op->u.delta};
    dim3 grid(ceil_div(s->v_dim, DELTA_COLS), s->n_heads);
    launch_overlapping(delta_kernel, grid, DELTA_THREADS, 0, x->stream, a);
    return ATSI_OK;
}
