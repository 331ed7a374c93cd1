// tiled.cuh: the kernels behind tiled.h for a weight type of unpack.cuh.
//
// Both products are the same int8 matrix instruction: 16 weight rows times 8 columns over 32 values, exact integer sums that
// meet their scales in float once a span (the arithmetic of kernels/matmul.h, in another order of the columns).
#ifndef ATSI_KERNELS_CUDA_TILED_CUH
#define ATSI_KERNELS_CUDA_TILED_CUH

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/tiled.h"
#include "kernels/cuda/unpack.cuh"

// The block that holds a span of a tile's rows.
template <class W> __device__ inline const uint8_t *block_of(const uint8_t *tile, uint32_t span) {
    return tile + (uint64_t)(span / W::BLOCK_SPANS) * W::TILE_BYTES;
}

// What a span of an input row brings beside its codes; sums: d times the sums of its codes that the mins meet.
template <class W> struct column {
    float d, sums[W::MINS > 0 ? W::MINS : 1];
    __device__ void set(const act_meta &m) {
        d = m.d;
        if (W::MINS == 2) {
            sums[0] = m.d * (float)m.sum[0];
            sums[W::MINS > 1 ? 1 : 0] = m.d * (float)m.sum[1];
        } else {
            sums[0] = W::MINS == 1 ? m.d * (float)(m.sum[0] + m.sum[1]) : 0.0f;
        }
    }
};

// Integer sums of 16 rows and 8 columns over a span, apart for each scale.
template <class W> struct span_sums {
    int c[W::SCALES][4];
    // The product of a span, or its sum with what is there.
    __device__ void multiply(const uint32_t a[4], uint32_t b0, uint32_t b1, bool add) {
        if (W::SCALES == 2) {
            int *second = c[W::SCALES - 1];
            if (add) {
                mma_s8_k16_add(c[0], a[0], a[1], b0);
                mma_s8_k16_add(second, a[2], a[3], b1);
            } else {
                mma_s8_k16(c[0], a[0], a[1], b0);
                mma_s8_k16(second, a[2], a[3], b1);
            }
        } else if (add) {
            mma_s8_k32_add(c[0], a, b0, b1);
        } else {
            mma_s8_k32(c[0], a, b0, b1);
        }
    }
};

// y + the weights' part of one row and one input column: `i` is the result's index in the C fragment.
template <class W>
__device__ inline float scaled(float y, const span_sums<W> &sums, int i, const float scale[2], const float min[2],
                               const column<W> &c) {
#pragma unroll
    for (int h = 0; h < W::SCALES; h++) y = fmaf(sum_value(sums.c[h][i]), scale[h] * c.d, y);
#pragma unroll
    for (int h = 0; h < W::MINS; h++) y = fmaf(-min[h], c.sums[h], y);
    return y;
}

__device__ inline void move_to_expert(tiled_args &a, int expert) {
    a.weight += (uint64_t)expert * a.experts.weight_bytes;
    if (a.bias) a.bias += (uint64_t)expert * a.n_out;
}

// ---- up to 8 input rows ---------------------------------------------------------------------------------------------------
//
// The matrix instruction has 8 columns. With fewer input rows the columns that are left take further spans: column n stands
// for input row n / SHARE and span n % SHARE of a set of SHARE = 8 / N_IN spans, and the instruction for span s of the set
// gets zeros in all columns but those of span s. So its sums come out apart, every lane has its own to scale, and a group of 8
// spans is scaled N_IN times instead of 8 times.

constexpr int GROUP_SPANS = 8, VECTOR_WARPS_MAX = 16;

// A lane's weights of one group of 8 spans: words, and scales of spans 2t and 2t + 1. A last group may be cut short, where blocks are
// of one span: then the last span is repeated, and the inputs count as zeros.
template <class W> struct group_weights {
    typename W::words words[GROUP_SPANS / W::STEP_SPANS];
    typename W::packed_scales scales[2];

    __device__ void load(const uint8_t *tile, uint32_t first, uint32_t n_spans, int g, int t) {
#pragma unroll
        for (int i = 0; i < GROUP_SPANS / W::STEP_SPANS; i++) {
            uint32_t span = W::BLOCK_SPANS == 1 ? min(first + i, n_spans - 1) : first + i * W::STEP_SPANS;
            words[i].load(block_of<W>(tile, span), W::BLOCK_SPANS == 1 ? 0 : i, g, t);
        }
#pragma unroll
        for (int c = 0; c < 2; c++) {
            uint32_t span = W::BLOCK_SPANS == 1 ? min(first + 2 * t + c, n_spans - 1) : first + 2 * t + c;
            scales[c].load(block_of<W>(tile, span), W::BLOCK_SPANS == 1 ? 0 : 2 * t + c, g);
        }
    }

    // The sums of SHARE spans from `first` on (within the group); b: the lane's input codes.
    template <int SHARE> __device__ void multiply(span_sums<W> &sums, int first, const uint32_t b[2], int g) const {
#pragma unroll
        for (int s = 0; s < SHARE; s++) {
            int i = first + s;
            uint32_t codes[4];
            words[i / W::STEP_SPANS].codes(i % W::STEP_SPANS, codes);
            bool mine = SHARE == 1 || g % SHARE == s;
            sums.multiply(codes, mine ? b[0] : 0, mine ? b[1] : 0, s > 0);
        }
    }
};

// The input codes and records that a lane needs for one set of spans.
template <class W, int N_IN> struct set_inputs {
    static constexpr int SHARE = GROUP_SPANS / N_IN;
    uint32_t b[2];
    act_meta meta[2];

    // first: the set's first span. Spans behind the last one count as zeros.
    __device__ void load(const tiled_args &a, uint32_t in_row, uint32_t first, uint32_t n_spans, int g, int t) {
        uint32_t last_in = a.n_in - 1, last = n_spans - 1, b_span = first + g % SHARE;
        const int8_t *codes = a.in.q + (uint64_t)(in_row + min((uint32_t)(g / SHARE), last_in)) * a.n_cols + 32 * min(b_span, last) + 4 * t;
        b[0] = *(const uint32_t *)codes;
        b[1] = *(const uint32_t *)(codes + 16);
        if (b_span > last) b[0] = b[1] = 0;
#pragma unroll
        for (int c = 0; c < 2; c++) {
            uint32_t span = first + (2 * t + c) % SHARE, in = in_row + min((uint32_t)((2 * t + c) / SHARE), last_in);
            meta[c] = a.in.meta[(uint64_t)in * n_spans + min(span, last)];
            if (span > last) meta[c].sum[0] = meta[c].sum[1] = 0;
        }
    }
};

// Scales of the span whose sums stand in the lane's column c of set q: they were unpacked by lane `span / 2` of the row's four.
template <class W, int N_IN>
__device__ inline span_scales scales_of(const span_scales unpacked[2], int q, int c, int t) {
    constexpr int SHARE = GROUP_SPANS / N_IN;
    if (N_IN == 1) return unpacked[c];
    span_scales s;
    int source = (q * SHARE + 2 * t % SHARE) / 2;
    const span_scales &from = unpacked[SHARE == 1 ? q % 2 : c];
#pragma unroll
    for (int row = 0; row < 2; row++) {
#pragma unroll
        for (int h = 0; h < W::SCALES; h++) s.scale[row][h] = __shfl_sync(ALL_LANES, from.scale[row][h], source, 4);
#pragma unroll
        for (int h = 0; h < W::MINS; h++) s.min[row][h] = __shfl_sync(ALL_LANES, from.min[row][h], source, 4);
    }
    return s;
}

// acc[row][column] += a group's part; the two columns are of one input row unless there are 8.
template <class W, int N_IN>
__device__ inline void multiply_set(float acc[2][2], const group_weights<W> &weights, const span_scales unpacked[2],
                                    const set_inputs<W, N_IN> &in, int q, int g, int t) {
    constexpr int SHARE = GROUP_SPANS / N_IN;
    span_sums<W> sums;
    weights.template multiply<SHARE>(sums, q * SHARE, in.b, g);
    span_scales s = scales_of<W, N_IN>(unpacked, q, 0, t);
#pragma unroll
    for (int c = 0; c < 2; c++) {
        if (c == 1 && SHARE > 1) s = scales_of<W, N_IN>(unpacked, q, 1, t);
        column<W> input;
        input.set(in.meta[c]);
#pragma unroll
        for (int row = 0; row < 2; row++) acc[row][c] = scaled<W>(acc[row][c], sums, 2 * row + c, s.scale[row], s.min[row], input);
    }
}

// A block computes one tile of 16 weight rows, its warps shares of the columns. x: tile, y: pair (experts). N_IN: 1, 2, 4 or 8;
// input rows behind a.n_in repeat the last and are not written. AHEAD: weights of the next group are loaded before this one is
// multiplied, for matrices through which a warp streams for long; else more warps fit and hide the latency.
template <class W, int N_IN, bool AHEAD>
__global__ void __launch_bounds__(VECTOR_WARPS_MAX *WARP, N_IN == 1 && !AHEAD ? 2 : 1) vector_kernel(tiled_args a) {
    constexpr int SHARE = GROUP_SPANS / N_IN;
    __shared__ float partial[VECTOR_WARPS_MAX][ATSI_TILE_ROWS * N_IN];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, n_warps = blockDim.x / WARP, g = lane / 4, t = lane % 4;
    uint32_t n_spans = a.n_cols / 32, in_row = 0, pair = blockIdx.y;
    start_successor();
    if (a.experts.ids) {
        wait_for_predecessor();
        int expert = expert_of(a.experts, pair);
        if (expert < 0) return;
        move_to_expert(a, expert);
        in_row = pair / a.experts.in_divisor;
        a.out = out_of_pair(a.experts, pair, a.out, a.out_stride, a.n_out);
    }
    const uint8_t *tile = a.weight + (uint64_t)blockIdx.x * (n_spans / W::BLOCK_SPANS) * W::TILE_BYTES;
    uint32_t n_groups = (n_spans + GROUP_SPANS - 1) / GROUP_SPANS, group = warp;
    float acc[2][2] = {};
    group_weights<W> now, next;
    now.load(tile, group * GROUP_SPANS, n_spans, g, t); // no warp is without a group; weights do not depend on other kernels
    wait_for_predecessor();
    while (true) {
        uint32_t after = group + n_warps;
        if (AHEAD && after < n_groups) next.load(tile, after * GROUP_SPANS, n_spans, g, t);
        span_scales unpacked[2];
        now.scales[0].unpack(unpacked[0]);
        now.scales[1].unpack(unpacked[1]);
#pragma unroll
        for (int q = 0; q < N_IN; q++) {
            set_inputs<W, N_IN> in;
            in.load(a, in_row, group * GROUP_SPANS + q * SHARE, n_spans, g, t);
            multiply_set<W, N_IN>(acc, now, unpacked, in, q, g, t);
        }
        group = after;
        if (group >= n_groups) break;
        if (AHEAD) now = next;
        else now.load(tile, group * GROUP_SPANS, n_spans, g, t);
    }
#pragma unroll
    for (int row = 0; row < 2; row++) {
        float *out = &partial[warp][(2 * g + row) * N_IN];
        if (SHARE == 1) {
            out[2 * t] = acc[row][0];
            out[2 * t + (N_IN > 1 ? 1 : 0)] = acc[row][1];
        } else { // SHARE / 2 lanes hold parts of the same input row
            float sum = lanes_sum<(SHARE > 1 ? SHARE / 2 : 1)>(acc[row][0] + acc[row][1]);
            if (2 * t % SHARE == 0) out[2 * t / SHARE] = sum;
        }
    }
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

// Warps that a multiprocessor's registers hold (64 Ki of them from compute capability 7.5 on, given out in eights a thread).
static inline int warps_by_registers(const void *kernel) {
    struct cudaFuncAttributes attributes = {};
    if (cudaFuncGetAttributes(&attributes, kernel) != cudaSuccess) return VECTOR_WARPS_MAX; // the launch will say why
    int n = 65536 / WARP / ((attributes.numRegs + 7) / 8 * 8);
    return n < VECTOR_WARPS_MAX ? VECTOR_WARPS_MAX : n;
}

// The number of warps a tile that needs the fewest turns of the card: every warp of a block takes `turns` groups, about one more for
// its start and the sum over warps; n_resident warps fit on a multiprocessor.
static inline int vector_warps(int n_groups, int n_tiles, int n_multiprocessors, int n_resident) {
    int most = n_groups < VECTOR_WARPS_MAX ? n_groups : VECTOR_WARPS_MAX, best = 1;
    int64_t best_cost = INT64_MAX;
    for (int n = 1; n <= most; n++) {
        int n_slots = n_multiprocessors * (n_resident / n), turns = (n_groups + n - 1) / n;
        int64_t cost = (int64_t)((n_tiles + n_slots - 1) / n_slots) * (turns + 1);
        if (cost < best_cost) {
            best = n;
            best_cost = cost;
        }
    }
    return best;
}

template <class W, int N_IN, bool AHEAD> void run_vector(const tiled_args &a, uint32_t n_pairs, cudaStream_t stream) {
    uint32_t n_tiles = ceil_div(a.n_out, ATSI_TILE_ROWS);
    int n_groups = (int)ceil_div(a.n_cols / 32, GROUP_SPANS);
    int n_warps = vector_warps(n_groups, (int)(n_tiles * n_pairs), a.n_multiprocessors,
                               warps_by_registers((const void *)vector_kernel<W, N_IN, AHEAD>));
    launch_overlapping(vector_kernel<W, N_IN, AHEAD>, dim3(n_tiles, n_pairs), n_warps * WARP, 0, stream, a);
}

template <class W> void launch_vector(const struct tiled_args *a, cudaStream_t stream) {
    constexpr uint32_t LONG_GROUPS = 24 * 16; // groups a multiprocessor from which 16 warps that load ahead win
    uint64_t n_groups = (uint64_t)ceil_div(a->n_cols / 32, GROUP_SPANS) * ceil_div(a->n_out, ATSI_TILE_ROWS);
    if (a->experts.ids) {
        struct tiled_args one = *a;
        one.n_in = 1;
        run_vector<W, 1, false>(one, a->n_in, stream);
    } else if (a->n_in == 1) {
        if (n_groups >= (uint64_t)LONG_GROUPS * a->n_multiprocessors) run_vector<W, 1, true>(*a, 1, stream);
        else run_vector<W, 1, false>(*a, 1, stream);
    } else if (a->n_in == 2) {
        run_vector<W, 2, false>(*a, 1, stream);
    } else if (a->n_in <= 4) {
        run_vector<W, 4, false>(*a, 1, stream);
    } else {
        run_vector<W, 8, false>(*a, 1, stream);
    }
}

// ---- many input rows ------------------------------------------------------------------------------------------------------

constexpr int MATRIX_TILES = 8;                    // tiles of 16 weight rows of a block
constexpr int MATRIX_ROWS = MATRIX_TILES * ATSI_TILE_ROWS;
constexpr int CHUNK_SPANS = 8;                     // columns go through shared memory 256 at a time
constexpr int CHUNK_COLS = 32 * CHUNK_SPANS;
constexpr int IN_STRIDE = CHUNK_COLS + 16;         // bytes of an input row in shared memory: 8 rows fall into different banks
constexpr int WARP_N_TILES = 4;                    // a warp computes 2 tiles of weight rows by 4 times 8 input rows
constexpr int WARP_COLS = 8 * WARP_N_TILES;

// COLS: input rows of a block, 64 or 128; a warp for 32 weight rows and 32 input rows.
template <int COLS> constexpr int matrix_threads = COLS / WARP_COLS * (MATRIX_TILES / 2) * WARP;

// One chunk as it comes from memory.
template <class W, int COLS> struct matrix_stage {
    static constexpr int TILE_CHUNK = W::TILE_BYTES * (CHUNK_SPANS / W::BLOCK_SPANS);
    uint8_t weight[MATRIX_TILES][TILE_CHUNK];
    int8_t in[COLS][IN_STRIDE];
    act_meta meta[COLS][CHUNK_SPANS + 1]; // one more: 16 rows fall into different banks
};
// What the chunk in work is scaled with, and behind it the stages: two where they fit, so that one loads while the other is used.
template <class W, int COLS> struct matrix_shared {
    float scale[CHUNK_SPANS][W::SCALES + W::MINS][MATRIX_ROWS]; // scales, then mins
    column<W> columns[CHUNK_SPANS][COLS];
    matrix_stage<W, COLS> stages[1];
};
template <class W, int COLS> static inline size_t matrix_shared_bytes(int n_stages) {
    return sizeof(matrix_shared<W, COLS>) + (size_t)(n_stages - 1) * sizeof(matrix_stage<W, COLS>);
}

// Starts copying columns [first_span, first_span + n_spans) of weights and inputs.
template <class W, int COLS>
__device__ inline void matrix_load(matrix_stage<W, COLS> &to, const tiled_args &a, const block_rows<COLS> &rows, uint32_t first_tile,
                                   uint32_t last_tile, uint32_t first_span, uint32_t n_spans) {
    constexpr int THREADS = matrix_threads<COLS>, UNITS = matrix_stage<W, COLS>::TILE_CHUNK / 16;
    uint32_t row_spans = a.n_cols / 32, n_units = n_spans / W::BLOCK_SPANS * (W::TILE_BYTES / 16);
    uint32_t tile_units = row_spans / W::BLOCK_SPANS * (W::TILE_BYTES / 16);
    const uint4 *weight = (const uint4 *)block_of<W>(a.weight, first_span);
#pragma unroll
    for (int i = 0; i < (MATRIX_TILES * UNITS + THREADS - 1) / THREADS; i++) {
        uint32_t u = threadIdx.x + i * THREADS, tile = u / UNITS, at = u % UNITS;
        if (tile < MATRIX_TILES && at < n_units)
            copy16_async(&to.weight[tile][16 * at], weight + (uint64_t)min(first_tile + tile, last_tile) * tile_units + at);
    }
    const int8_t *in = a.in.q + 32 * first_span;
#pragma unroll
    for (int i = 0; i < COLS * CHUNK_COLS / 16 / THREADS; i++) {
        uint32_t u = threadIdx.x + i * THREADS, row = u / (CHUNK_COLS / 16), at = u % (CHUNK_COLS / 16);
        if (at < 2 * n_spans) copy16_async(&to.in[row][16 * at], in + (uint64_t)rows.in[row] * a.n_cols + 16 * at);
    }
    const act_meta *meta = a.in.meta + first_span;
#pragma unroll
    for (int i = 0; i < COLS * CHUNK_SPANS / THREADS; i++) {
        uint32_t u = threadIdx.x + i * THREADS, row = u / CHUNK_SPANS, at = u % CHUNK_SPANS;
        if (at < n_spans) copy8_async(&to.meta[row][at], meta + (uint64_t)rows.in[row] * row_spans + at);
    }
    copy_commit();
}

// Scales of all rows and columns of a chunk, once for all warps.
template <class W, int COLS>
__device__ inline void matrix_unpack(matrix_shared<W, COLS> &sh, const matrix_stage<W, COLS> &from, uint32_t n_spans) {
    constexpr int THREADS = matrix_threads<COLS>;
#pragma unroll
    for (int i = 0; i < COLS * CHUNK_SPANS / THREADS; i++) {
        uint32_t u = threadIdx.x + i * THREADS, row = u % COLS, at = u / COLS;
        if (at < n_spans) sh.columns[at][row].set(from.meta[row][at]);
    }
#pragma unroll
    for (int i = 0; i < MATRIX_TILES * CHUNK_SPANS * 8 / THREADS; i++) { // rows 2g, 2g + 1 of a tile
        uint32_t u = threadIdx.x + i * THREADS, g = u % 8, tile = u / 8 % MATRIX_TILES, at = u / (8 * MATRIX_TILES);
        if (at >= n_spans) continue;
        typename W::packed_scales packed;
        span_scales s;
        packed.load(&from.weight[tile][at / W::BLOCK_SPANS * W::TILE_BYTES], (int)(at % W::BLOCK_SPANS), (int)g);
        packed.unpack(s);
        uint32_t row = tile * ATSI_TILE_ROWS + 2 * g;
#pragma unroll
        for (int h = 0; h < W::SCALES; h++) *(float2 *)&sh.scale[at][h][row] = make_float2(s.scale[0][h], s.scale[1][h]);
#pragma unroll
        for (int h = 0; h < W::MINS; h++)
            *(float2 *)&sh.scale[at][W::SCALES + h][row] = make_float2(s.min[0][h], s.min[1][h]);
    }
}

template <class W, int COLS>
__device__ inline void read_scales(span_scales &s, const matrix_shared<W, COLS> &sh, int span, int row) {
#pragma unroll
    for (int h = 0; h < W::SCALES + W::MINS; h++) {
        float2 v = *(const float2 *)&sh.scale[span][h][row];
        (h < W::SCALES ? s.scale[0][h] : s.min[0][h - W::SCALES]) = v.x;
        (h < W::SCALES ? s.scale[1][h] : s.min[1][h - W::SCALES]) = v.y;
    }
}

template <class W, int COLS>
__device__ inline void matrix_step(float acc[2][WARP_N_TILES][2][2], const matrix_shared<W, COLS> &sh,
                                   const matrix_stage<W, COLS> &stage, int step, int warp_row, int warp_col, int lane) {
    constexpr int BLOCK_STEPS = W::BLOCK_SPANS / W::STEP_SPANS;
    int g = lane / 4, t = lane % 4;
    typename W::words words[2];
#pragma unroll
    for (int m = 0; m < 2; m++)
        words[m].load(&stage.weight[2 * warp_row + m][step / BLOCK_STEPS * W::TILE_BYTES], step % BLOCK_STEPS, g, t);
#pragma unroll
    for (int i = 0; i < W::STEP_SPANS; i++) {
        int at = step * W::STEP_SPANS + i;
        uint32_t b[WARP_N_TILES][2];
#pragma unroll
        for (int n = 0; n < WARP_N_TILES; n += 2) { // two 8-row tiles of 32 bytes: matrices (tile, half)
            uint32_t v[4];
            int row = warp_col * WARP_COLS + 8 * (n + lane / 16) + lane % 8;
            load_matrices(v, &stage.in[row][32 * at + 16 * (lane / 8 % 2)]);
            b[n][0] = v[0];
            b[n][1] = v[1];
            b[n + 1][0] = v[2];
            b[n + 1][1] = v[3];
        }
        uint32_t codes[2][4];
        span_scales s[2];
#pragma unroll
        for (int m = 0; m < 2; m++) {
            words[m].codes(i, codes[m]);
            read_scales<W, COLS>(s[m], sh, at, (2 * warp_row + m) * ATSI_TILE_ROWS + 2 * g);
        }
#pragma unroll
        for (int n = 0; n < WARP_N_TILES; n++) {
            const column<W> *c = &sh.columns[at][warp_col * WARP_COLS + 8 * n + 2 * t];
            column<W> columns[2] = {c[0], c[1]};
#pragma unroll
            for (int m = 0; m < 2; m++) {
                span_sums<W> sums;
                sums.multiply(codes[m], b[n][0], b[n][1], false);
#pragma unroll
                for (int k = 0; k < 4; k++)
                    acc[m][n][k / 2][k % 2] =
                        scaled<W>(acc[m][n][k / 2][k % 2], sums, k, s[m].scale[k / 2], s[m].min[k / 2], columns[k % 2]);
            }
        }
    }
}

// Two results of one input row that stand side by side.
__device__ inline void store_pair(float *y, float2 v, bool second, bool aligned, bool add) {
    if (second && aligned) {
        float2 old = add ? *(const float2 *)y : make_float2(0.0f, 0.0f);
        *(float2 *)y = make_float2(old.x + v.x, old.y + v.y);
        return;
    }
    y[0] = add ? y[0] + v.x : v.x;
    if (second) y[1] = add ? y[1] + v.y : v.y;
}

template <int COLS>
__device__ inline void matrix_store(const float acc[2][WARP_N_TILES][2][2], const tiled_args &a, const block_rows<COLS> &rows,
                                    uint32_t first_tile, int warp_row, int warp_col, int lane) {
    int g = lane / 4, t = lane % 4;
    bool aligned = ((uintptr_t)a.out / 4 % 2 | a.out_stride % 2 | a.n_out % 2) == 0;
#pragma unroll
    for (int m = 0; m < 2; m++) {
        uint32_t out_row = (first_tile + 2 * warp_row + m) * ATSI_TILE_ROWS + 2 * g;
        if (out_row >= a.n_out) continue;
        bool second = out_row + 1 < a.n_out;
        float2 bias = make_float2(a.bias ? a.bias[out_row] : 0.0f, a.bias && second ? a.bias[out_row + 1] : 0.0f);
#pragma unroll
        for (int n = 0; n < WARP_N_TILES; n++)
#pragma unroll
            for (int col = 0; col < 2; col++) {
                uint32_t in = warp_col * WARP_COLS + 8 * n + 2 * t + col;
                float2 v = make_float2(acc[m][n][0][col] + bias.x, acc[m][n][1][col] + bias.y);
                if (in < rows.n) store_pair(rows.out[in] + out_row, v, second, aligned, a.add);
            }
    }
}

// x: COLS input rows, so that neighbouring blocks read the same weights; y: 128 weight rows.
template <class W, int COLS>
__global__ void __launch_bounds__(matrix_threads<COLS>, 128 / COLS) matrix_kernel(tiled_args a, int n_stages) {
    begin_kernel();
    extern __shared__ __align__(16) uint8_t dynamic[];
    matrix_shared<W, COLS> &sh = *(matrix_shared<W, COLS> *)dynamic;
    __shared__ block_rows<COLS> rows;
    if (!choose_rows(rows, a.experts, a.n_in, a.out, a.out_stride, a.n_out)) return;
    move_to_expert(a, rows.expert);
    constexpr int COL_WARPS = COLS / WARP_COLS;
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warp_row = warp / COL_WARPS, warp_col = warp % COL_WARPS, stage = 0;
    uint32_t first_tile = blockIdx.y * MATRIX_TILES, last_tile = (a.n_out - 1) / ATSI_TILE_ROWS, n_spans = a.n_cols / 32;
    float acc[2][WARP_N_TILES][2][2] = {};
    auto load = [&](int to, uint32_t first) {
        matrix_load<W, COLS>(sh.stages[to], a, rows, first_tile, last_tile, first, min((uint32_t)CHUNK_SPANS, n_spans - first));
    };
    load(0, 0);
    for (uint32_t first = 0; first < n_spans; first += CHUNK_SPANS) {
        uint32_t n = min((uint32_t)CHUNK_SPANS, n_spans - first), next = first + CHUNK_SPANS;
        copy_wait<0>();
        __syncthreads(); // the chunk is there, and no warp works on the one before it any more
        if (n_stages == 2 && next < n_spans) load(stage ^ 1, next);
        matrix_unpack<W, COLS>(sh, sh.stages[stage], n);
        __syncthreads();
        for (int step = 0; step < (int)(n / W::STEP_SPANS); step++)
            matrix_step<W, COLS>(acc, sh, sh.stages[stage], step, warp_row, warp_col, lane);
        if (n_stages == 2) {
            stage ^= 1;
        } else if (next < n_spans) {
            __syncthreads();
            load(0, next);
        }
    }
    matrix_store<COLS>(acc, a, rows, first_tile, warp_row, warp_col, lane);
}

template <class W, int COLS> void run_matrix(const tiled_args &a, cudaStream_t stream) {
    int n_stages = matrix_shared_bytes<W, COLS>(2) <= (size_t)a.max_shared_bytes ? 2 : 1;
    dim3 grid(n_row_blocks(a.experts, a.n_in, COLS), ceil_div(a.n_out, MATRIX_ROWS));
    launch_overlapping(matrix_kernel<W, COLS>, grid, matrix_threads<COLS>, matrix_shared_bytes<W, COLS>(n_stages), stream, a, n_stages);
}

// Blocks of 128 input rows move fewest bytes; blocks of 64 fill the card where there are few, and waste less of an expert's rows.
template <class W> void launch_matrix(const struct tiled_args *a, cudaStream_t stream) {
    uint64_t n_wide = (uint64_t)ceil_div(a->n_in, 128) * ceil_div(a->n_out, MATRIX_ROWS);
#ifdef NARROW
    bool wide = false && n_wide >=
#else
    bool wide = !a->experts.ids && a->n_in > MATRIX_COLS && n_wide >=
#endif
           (uint64_t)a->n_multiprocessors &&
                matrix_shared_bytes<W, 128>(1) <= (size_t)a->max_shared_bytes;
    if (wide) run_matrix<W, 128>(*a, stream);
    else run_matrix<W, MATRIX_COLS>(*a, stream);
}

template <class W, int COLS> cudaError_t prepare_matrix(int max_shared_bytes) {
    size_t wanted = matrix_shared_bytes<W, COLS>(matrix_shared_bytes<W, COLS>(2) <= (size_t)max_shared_bytes ? 2 : 1);
    if (wanted > (size_t)max_shared_bytes) return cudaSuccess; // never launched
    return cudaFuncSetAttribute(matrix_kernel<W, COLS>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)wanted);
}

// ---- rows of a table ------------------------------------------------------------------------------------------------------

// A thread decodes one step's words of quarter t of a row. x: pieces of the row, y: output row.
template <class W> __global__ void embed_kernel(tiled_args a, float scale) {
    begin_kernel();
    constexpr int BLOCK_STEPS = W::BLOCK_SPANS / W::STEP_SPANS;
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x, step = i / 4, n_spans = a.n_cols / 32;
    int t = (int)(i % 4);
    if (step >= n_spans / W::STEP_SPANS) return;
    uint32_t row = (uint32_t)a.row_ids[blockIdx.y], in_tile = row % ATSI_TILE_ROWS;
    int g = (int)(in_tile / 2), odd = (int)(in_tile % 2);
    const uint8_t *tile = a.weight + (uint64_t)(row / ATSI_TILE_ROWS) * (n_spans / W::BLOCK_SPANS) * W::TILE_BYTES;
    const uint8_t *block = block_of<W>(tile, step * W::STEP_SPANS);
    typename W::words words;
    words.load(block, (int)(step % BLOCK_STEPS), g, t);
    float *out = a.out + (uint64_t)blockIdx.y * a.out_stride + step * W::STEP_SPANS * 32 + 4 * t;
#pragma unroll
    for (int k = 0; k < W::STEP_SPANS; k++) {
        typename W::packed_scales packed;
        span_scales s;
        uint32_t codes[4];
        packed.load(block, (int)(step * W::STEP_SPANS + k) % W::BLOCK_SPANS, g);
        packed.unpack(s);
        words.codes(k, codes);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            constexpr int LAST_SCALE = W::SCALES - 1, LAST_MIN = W::MINS > 0 ? W::MINS - 1 : 0;
            float unit = odd ? s.scale[1][h & LAST_SCALE] : s.scale[0][h & LAST_SCALE];
            float min = W::MINS == 0 ? 0.0f : odd ? s.min[1][h & LAST_MIN] : s.min[0][h & LAST_MIN];
            uint32_t four = odd ? codes[2 * h + 1] : codes[2 * h];
#pragma unroll
            for (int b = 0; b < 4; b++) out[32 * k + 16 * h + b] = scale * (unit * (float)(int8_t)(four >> 8 * b & 0xff) - min);
        }
    }
}

template <class W> void launch_tiled_embed(const struct tiled_args *a, float scale, cudaStream_t stream) {
    constexpr int THREADS = 128;
    dim3 grid(ceil_div(a->n_cols / 32 / W::STEP_SPANS * 4, THREADS), a->n_in);
    launch_overlapping(embed_kernel<W>, grid, THREADS, 0, stream, *a, scale);
}

template <class W> cudaError_t prepare_tiled(int max_shared_bytes) {
    static const void *const KERNELS[] = {(const void *)vector_kernel<W, 1, true>,  (const void *)vector_kernel<W, 1, false>,
                                          (const void *)vector_kernel<W, 2, false>, (const void *)vector_kernel<W, 4, false>,
                                          (const void *)vector_kernel<W, 8, false>, (const void *)matrix_kernel<W, 128>,
                                          (const void *)matrix_kernel<W, MATRIX_COLS>, (const void *)embed_kernel<W>};
    cudaError_t status = load_kernels(KERNELS);
    if (status == cudaSuccess) status = prepare_matrix<W, MATRIX_COLS>(max_shared_bytes);
    return status == cudaSuccess ? prepare_matrix<W, 128>(max_shared_bytes) : status;
}

#define DEFINE_TILED_TYPE(RECORD, WEIGHT)                                                                                       \
    const struct tiled_type RECORD = {WEIGHT::DTYPE, launch_vector<WEIGHT>, launch_matrix<WEIGHT>, launch_tiled_embed<WEIGHT>, \
                                      prepare_tiled<WEIGHT>};

#endif
