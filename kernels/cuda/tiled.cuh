// tiled.cuh: the kernels behind tiled.h for a weight type of unpack.cuh.
//
// Both products are the same int8 matrix instruction: 16 weight rows times 8 input rows over 32 columns, exact integer sums that
// meet their scales in float once a span (the arithmetic of kernels/matmul.h, in another order of the columns).
#ifndef ATSI_KERNELS_CUDA_TILED_CUH
#define ATSI_KERNELS_CUDA_TILED_CUH

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/tiled.h"
#include "kernels/cuda/unpack.cuh"

// What a span of an input row brings beside its codes.
struct column {
    float d;
    uint32_t sums; // MINS 1: bits of the float d * sum; MINS 2: the two int16 sums
};

template <class W> __device__ inline column column_of(const act_meta &m) {
    column c;
    c.d = m.d;
    if (W::MINS == 2) c.sums = (uint16_t)m.sum[0] | (uint32_t)(uint16_t)m.sum[1] << 16;
    else c.sums = W::MINS == 1 ? __float_as_uint(m.d * (float)(m.sum[0] + m.sum[1])) : 0;
    return c;
}

// acc[row][col] += the lane's rows 2g, 2g + 1 times input rows 2t, 2t + 1 over one span; N_COLS 1: only column 2t.
template <class W, int N_COLS>
__device__ inline void multiply_span(float acc[2][N_COLS], const span &s, uint32_t b0, uint32_t b1, const column c[N_COLS]) {
    int sum[W::SPLIT ? 2 : 1][4];
#pragma unroll
    for (int h = 0; h < (W::SPLIT ? 2 : 1); h++)
#pragma unroll
        for (int i = 0; i < 4; i++) sum[h][i] = SUM_ZERO;
    if (W::SPLIT) {
        mma_s8_k16(sum[0], s.a[0], s.a[1], b0);
        mma_s8_k16(sum[W::SPLIT ? 1 : 0], s.a[2], s.a[3], b1);
    } else {
        mma_s8_k32(sum[0], s.a, b0, b1);
    }
#pragma unroll
    for (int row = 0; row < 2; row++)
#pragma unroll
        for (int col = 0; col < N_COLS; col++) {
            float &y = acc[row][col];
#pragma unroll
            for (int h = 0; h < (W::SPLIT ? 2 : 1); h++)
                y = fmaf(sum_value(sum[h][2 * row + col]), s.scale[row][h] * c[col].d, y);
            if (W::MINS == 1) y = fmaf(-s.min[row], __uint_as_float(c[col].sums), y);
            if (W::MINS == 2) {
                int mins = s.min_q[row][0] * (int16_t)(c[col].sums & 0xffff) + s.min_q[row][1] * (int16_t)(c[col].sums >> 16);
                y = fmaf(-(float)mins, s.min[row] * c[col].d, y);
            }
        }
}

__device__ inline void move_to_expert(tiled_args &a, int expert) {
    a.weight += (uint64_t)expert * a.experts.weight_bytes;
    if (a.bias) a.bias += (uint64_t)expert * a.n_out;
}

// ---- up to 8 input rows ---------------------------------------------------------------------------------------------------

// Steps that a warp loads before it computes: about 2 KiB in flight.
template <class W> struct vector_shape {
    static constexpr int AT_ONCE = W::SPANS == 4 ? 2 : 4;
};
constexpr int VECTOR_WARPS_MAX = 16;

// A block computes one tile of 16 weight rows, its warps shares of the columns. x: tile, y: pair (experts).
// ONE: a single input row, so that only column 0 of the matrix instruction counts.
template <class W, bool ONE> __global__ void __launch_bounds__(VECTOR_WARPS_MAX *WARP) vector_kernel(tiled_args a) {
    constexpr int N_COLS = ONE ? 1 : 2, AT_ONCE = vector_shape<W>::AT_ONCE, BLOCK_STEPS = W::BLOCK_SPANS / W::SPANS;
    constexpr int N_IN = ONE ? 1 : VECTOR_ROWS;
    __shared__ float partial[VECTOR_WARPS_MAX][ATSI_TILE_ROWS * N_IN];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, n_warps = blockDim.x / WARP, g = lane / 4, t = lane % 4;
    uint32_t n_spans = a.n_cols / 32, in_row = 0, pair = blockIdx.y;
    int n_steps = (int)(n_spans / W::SPANS);
    if (a.experts.ids) {
        int expert = expert_of(a.experts, pair);
        if (expert < 0) return;
        move_to_expert(a, expert);
        in_row = pair / a.experts.in_divisor;
        a.out = out_of_pair(a.experts, pair, a.out, a.out_stride, a.n_out);
    }
    const uint8_t *tile = a.weight + (uint64_t)blockIdx.x * (n_spans / W::BLOCK_SPANS) * W::TILE_BYTES;
    uint32_t last = a.n_in - 1;
    uint32_t b_row = ONE ? in_row : min((uint32_t)g, last);
    const int8_t *b = a.in.q + (uint64_t)b_row * a.n_cols + 4 * t;
    const act_meta *meta[N_COLS];
#pragma unroll
    for (int c = 0; c < N_COLS; c++) meta[c] = a.in.meta + (uint64_t)(ONE ? in_row : min(2u * t + c, last)) * n_spans;

    float acc[2][N_COLS] = {};
    for (int first = warp * AT_ONCE; first < n_steps; first += n_warps * AT_ONCE) {
        typename W::raw raw[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            int step = min(first + k, n_steps - 1);
            W::load(raw[k], tile + (uint64_t)(step / BLOCK_STEPS) * W::TILE_BYTES, step % BLOCK_STEPS, g, t);
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            if (first + k >= n_steps) break;
#pragma unroll
            for (int i = 0; i < W::SPANS; i++) {
                int at = (first + k) * W::SPANS + i;
                uint32_t b0 = *(const uint32_t *)(b + 32 * at), b1 = *(const uint32_t *)(b + 32 * at + 16);
                column columns[N_COLS];
#pragma unroll
                for (int c = 0; c < N_COLS; c++) columns[c] = column_of<W>(meta[c][at]);
                span s;
                W::unpack(raw[k], i, s);
                multiply_span<W, N_COLS>(acc, s, b0, b1, columns);
            }
        }
    }
#pragma unroll
    for (int row = 0; row < 2; row++)
#pragma unroll
        for (int c = 0; c < N_COLS; c++)
            if (!ONE || t == 0) partial[warp][(2 * g + row) * N_IN + 2 * t + c] = acc[row][c];
    __syncthreads();
    for (int i = threadIdx.x; i < ATSI_TILE_ROWS * N_IN; i += blockDim.x) {
        uint32_t row = blockIdx.x * ATSI_TILE_ROWS + i / N_IN, in = i % N_IN;
        if (row >= a.n_out || in >= a.n_in) continue;
        float sum = 0.0f;
        for (int w = 0; w < n_warps; w++) sum += partial[w][i];
        if (a.bias) sum += a.bias[row];
        float *y = a.out + (uint64_t)in * a.out_stride + row;
        *y = a.add ? *y + sum : sum;
    }
}

// As many warps as share the loads evenly: few idle in the last turn.
template <class W> int vector_warps(uint32_t n_cols) {
    int n_loads = (int)ceil_div(n_cols / 32 / W::SPANS, vector_shape<W>::AT_ONCE), best = 1;
    for (int n = 2; n <= VECTOR_WARPS_MAX && n <= n_loads; n++) {
        int turns = (n_loads + n - 1) / n, best_turns = (n_loads + best - 1) / best;
        // Compare n_loads / (turns * warps), allowing a tenth less for more warps, which hide more latency.
        if (10 * best_turns * best >= 9 * turns * n) best = n;
    }
    return best;
}

template <class W> void launch_vector(const struct tiled_args *a, cudaStream_t stream) {
    dim3 grid(ceil_div(a->n_out, ATSI_TILE_ROWS), a->experts.ids ? a->n_in : 1);
    int threads = vector_warps<W>(a->n_cols) * WARP;
    if (a->experts.ids) {
        struct tiled_args one = *a;
        one.n_in = 1;
        vector_kernel<W, true><<<grid, threads, 0, stream>>>(one);
    } else if (a->n_in == 1) {
        vector_kernel<W, true><<<grid, threads, 0, stream>>>(*a);
    } else {
        vector_kernel<W, false><<<grid, threads, 0, stream>>>(*a);
    }
}

// ---- many input rows ------------------------------------------------------------------------------------------------------

constexpr int MATRIX_THREADS = 8 * WARP;
constexpr int MATRIX_TILES = 8;   // tiles of 16 weight rows of a block: 4 warp rows of 2
constexpr int CHUNK_SPANS = 8;    // columns go through shared memory 256 at a time
constexpr int CHUNK_COLS = 32 * CHUNK_SPANS;
constexpr int IN_STRIDE = CHUNK_COLS + 16; // bytes of an input row in shared memory: 8 rows fall into different banks
constexpr int WARP_COLS = MATRIX_COLS / 2, WARP_N_TILES = WARP_COLS / 8;

template <class W> struct matrix_shared {
    static constexpr int TILE_CHUNK = W::TILE_BYTES * (CHUNK_SPANS / W::BLOCK_SPANS);
    uint8_t weight[MATRIX_TILES][TILE_CHUNK];
    int8_t in[MATRIX_COLS][IN_STRIDE];
    column columns[CHUNK_SPANS][MATRIX_COLS];
};

// Copies columns [first_span, first_span + n_spans) of weights and inputs.
template <class W>
__device__ inline void matrix_load(matrix_shared<W> &sh, const tiled_args &a, const block_rows &rows, uint32_t first_tile,
                                   uint32_t last_tile, uint32_t first_span, uint32_t n_spans) {
    uint32_t row_spans = a.n_cols / 32, units = n_spans / W::BLOCK_SPANS * (W::TILE_BYTES / 16);
    for (int i = 0; i < MATRIX_TILES; i++) {
        uint64_t tile = min(first_tile + i, last_tile);
        const uint8_t *src = a.weight + (tile * (row_spans / W::BLOCK_SPANS) + first_span / W::BLOCK_SPANS) * W::TILE_BYTES;
        for (uint32_t u = threadIdx.x; u < units; u += MATRIX_THREADS) copy16_async(&sh.weight[i][16 * u], src + 16 * u);
    }
    for (uint32_t u = threadIdx.x; u < MATRIX_COLS * CHUNK_COLS / 16; u += MATRIX_THREADS) {
        uint32_t row = u / (CHUNK_COLS / 16), at = u % (CHUNK_COLS / 16);
        if (at < 2 * n_spans)
            copy16_async(&sh.in[row][16 * at], a.in.q + (uint64_t)rows.in[row] * a.n_cols + 32 * first_span + 16 * at);
    }
    copy_commit();
    for (uint32_t u = threadIdx.x; u < MATRIX_COLS * CHUNK_SPANS; u += MATRIX_THREADS) {
        uint32_t row = u / CHUNK_SPANS, at = u % CHUNK_SPANS;
        if (at < n_spans)
            sh.columns[at][row] = column_of<W>(a.in.meta[(uint64_t)rows.in[row] * row_spans + first_span + at]);
    }
    copy_wait<0>();
}

template <class W>
__device__ inline void matrix_step(float acc[2][WARP_N_TILES][2][2], const matrix_shared<W> &sh, int step, int warp_row,
                                   int warp_col, int lane) {
    constexpr int BLOCK_STEPS = W::BLOCK_SPANS / W::SPANS;
    int g = lane / 4, t = lane % 4;
    typename W::raw raw[2];
#pragma unroll
    for (int m = 0; m < 2; m++)
        W::load(raw[m], &sh.weight[2 * warp_row + m][step / BLOCK_STEPS * W::TILE_BYTES], step % BLOCK_STEPS, g, t);
#pragma unroll
    for (int i = 0; i < W::SPANS; i++) {
        int at = step * W::SPANS + i;
        uint32_t b[WARP_N_TILES][2];
#pragma unroll
        for (int n = 0; n < WARP_N_TILES; n += 2) { // two 8-row tiles of 32 bytes: matrices (tile, half)
            uint32_t v[4];
            int row = warp_col * WARP_COLS + 8 * (n + lane / 16) + lane % 8;
            load_matrices(v, &sh.in[row][32 * at + 16 * (lane / 8 % 2)]);
            b[n][0] = v[0];
            b[n][1] = v[1];
            b[n + 1][0] = v[2];
            b[n + 1][1] = v[3];
        }
        span s[2];
        W::unpack(raw[0], i, s[0]);
        W::unpack(raw[1], i, s[1]);
#pragma unroll
        for (int n = 0; n < WARP_N_TILES; n++) {
            const column *c = &sh.columns[at][warp_col * WARP_COLS + 8 * n + 2 * t];
            column columns[2] = {c[0], c[1]};
            multiply_span<W, 2>(acc[0][n], s[0], b[n][0], b[n][1], columns);
            multiply_span<W, 2>(acc[1][n], s[1], b[n][0], b[n][1], columns);
        }
    }
}

// x: 64 input rows, so that neighbouring blocks read the same weights; y: 128 weight rows.
template <class W> __global__ void __launch_bounds__(MATRIX_THREADS, 2) matrix_kernel(tiled_args a) {
    extern __shared__ __align__(16) uint8_t dynamic[];
    matrix_shared<W> &sh = *(matrix_shared<W> *)dynamic;
    __shared__ block_rows rows;
    if (!choose_rows(rows, a.experts, a.n_in, a.out, a.out_stride, a.n_out)) return;
    move_to_expert(a, rows.expert);
    __syncthreads();
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warp_row = warp / 2, warp_col = warp % 2, g = lane / 4, t = lane % 4;
    uint32_t first_tile = blockIdx.y * MATRIX_TILES, last_tile = (a.n_out - 1) / ATSI_TILE_ROWS, n_spans = a.n_cols / 32;
    float acc[2][WARP_N_TILES][2][2] = {};
    for (uint32_t first = 0; first < n_spans; first += CHUNK_SPANS) {
        uint32_t n = min((uint32_t)CHUNK_SPANS, n_spans - first);
        matrix_load<W>(sh, a, rows, first_tile, last_tile, first, n);
        __syncthreads();
        for (int step = 0; step < (int)(n / W::SPANS); step++) matrix_step<W>(acc, sh, step, warp_row, warp_col, lane);
        __syncthreads();
    }
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int row = 0; row < 2; row++) {
            uint32_t out_row = (first_tile + 2 * warp_row + m) * ATSI_TILE_ROWS + 2 * g + row;
            if (out_row >= a.n_out) continue;
            float bias = a.bias ? a.bias[out_row] : 0.0f;
#pragma unroll
            for (int n = 0; n < WARP_N_TILES; n++)
#pragma unroll
                for (int col = 0; col < 2; col++) {
                    uint32_t in = warp_col * WARP_COLS + 8 * n + 2 * t + col;
                    if (in >= rows.n) continue;
                    float *y = rows.out[in] + out_row, v = acc[m][n][row][col] + bias;
                    *y = a.add ? *y + v : v;
                }
        }
}

template <class W> void launch_matrix(const struct tiled_args *a, cudaStream_t stream) {
    dim3 grid(n_row_blocks(a->experts, a->n_in), ceil_div(a->n_out, MATRIX_TILES * ATSI_TILE_ROWS));
    matrix_kernel<W><<<grid, MATRIX_THREADS, sizeof(matrix_shared<W>), stream>>>(*a);
}

// ---- rows of a table ------------------------------------------------------------------------------------------------------

// A thread decodes one step's words of quarter t of a row. x: pieces of the row, y: output row.
template <class W> __global__ void embed_kernel(tiled_args a, float scale) {
    constexpr int BLOCK_STEPS = W::BLOCK_SPANS / W::SPANS;
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x, step = i / 4, n_spans = a.n_cols / 32;
    int t = (int)(i % 4);
    if (step >= n_spans / W::SPANS) return;
    uint32_t row = (uint32_t)a.row_ids[blockIdx.y], in_tile = row % ATSI_TILE_ROWS;
    int g = (int)(in_tile / 2), odd = (int)(in_tile % 2);
    const uint8_t *tile = a.weight + (uint64_t)(row / ATSI_TILE_ROWS) * (n_spans / W::BLOCK_SPANS) * W::TILE_BYTES;
    typename W::raw raw;
    W::load(raw, tile + (uint64_t)(step / BLOCK_STEPS) * W::TILE_BYTES, (int)(step % BLOCK_STEPS), g, t);
    float *out = a.out + (uint64_t)blockIdx.y * a.out_stride;
#pragma unroll
    for (int k = 0; k < W::SPANS; k++) {
        span s;
        W::unpack(raw, k, s);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t codes = odd ? s.a[2 * h + 1] : s.a[2 * h];
            constexpr int SECOND = W::SPLIT ? 1 : 0;
            float unit = h && W::SPLIT ? (odd ? s.scale[1][SECOND] : s.scale[0][SECOND]) : (odd ? s.scale[1][0] : s.scale[0][0]);
            float min = W::MINS == 0 ? 0.0f : odd ? s.min[1] : s.min[0];
            if (W::MINS == 2) min *= (float)(odd ? s.min_q[1][h] : s.min_q[0][h]);
#pragma unroll
            for (int b = 0; b < 4; b++) {
                float q = (float)(int8_t)(codes >> 8 * b & 0xff);
                out[32 * (step * W::SPANS + k) + 16 * h + 4 * t + b] = scale * (unit * q - min);
            }
        }
    }
}

template <class W> void launch_tiled_embed(const struct tiled_args *a, float scale, cudaStream_t stream) {
    constexpr int THREADS = 128;
    dim3 grid(ceil_div(a->n_cols / 32 / W::SPANS * 4, THREADS), a->n_in);
    embed_kernel<W><<<grid, THREADS, 0, stream>>>(*a, scale);
}

template <class W> cudaError_t prepare_tiled(void) {
    static const void *const KERNELS[] = {(const void *)vector_kernel<W, true>, (const void *)vector_kernel<W, false>,
                                          (const void *)matrix_kernel<W>, (const void *)embed_kernel<W>};
    cudaError_t status = load_kernels(KERNELS);
    if (status != cudaSuccess) return status;
    return cudaFuncSetAttribute(matrix_kernel<W>, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(matrix_shared<W>));
}

#define DEFINE_TILED_TYPE(RECORD, WEIGHT)                                                                                       \
    const struct tiled_type RECORD = {WEIGHT::DTYPE, launch_vector<WEIGHT>, launch_matrix<WEIGHT>, launch_tiled_embed<WEIGHT>, \
                                      prepare_tiled<WEIGHT>};

#endif
