// tiled_matrix.cuh: tiled weights times many input rows.
#ifndef ATSI_KERNELS_CUDA_TILED_MATRIX_CUH
#define ATSI_KERNELS_CUDA_TILED_MATRIX_CUH

#include "kernels/cuda/tiled_common.cuh"

constexpr int MATRIX_TILES = 8; // tiles of 16 weight rows of a block
constexpr int MATRIX_ROWS = MATRIX_TILES * ATSI_TILE_ROWS;
constexpr int CHUNK_SPANS = 8; // columns go through shared memory 256 at a time
constexpr int CHUNK_COLS = 32 * CHUNK_SPANS;
constexpr int IN_STRIDE = CHUNK_COLS + 16; // bytes of an input row in shared memory: 8 rows fall into different banks
constexpr int WARP_N_TILES = 4;            // a warp computes 2 tiles of weight rows by 4 times 8 input rows
constexpr int WARP_COLS = 8 * WARP_N_TILES;

// COLS: input rows of a block, 64 or 128; a warp for 32 weight rows and 32 input rows.
template <int COLS> constexpr int matrix_threads = COLS / WARP_COLS *(MATRIX_TILES / 2) * WARP;

// One chunk as it comes from memory.
template <class W, int COLS> struct matrix_stage {
    static constexpr int TILE_CHUNK = W::TILE_BYTES * (CHUNK_SPANS / W::BLOCK_SPANS);
    uint8_t weight[MATRIX_TILES][TILE_CHUNK];
    int8_t in[COLS][IN_STRIDE];
    // One more than needed, so that 16 rows fall into different banks; Q8_0 does without to fit compute capability 7.5's 64 KiB.
    static constexpr int META_STRIDE = CHUNK_SPANS + (COLS == MATRIX_COLS && TILE_CHUNK >= 4352 ? 0 : 1);
    act_meta meta[COLS][META_STRIDE];
};
// What the chunk in work is scaled with, and behind it the stages: two where they fit, so that one loads while the other is used.
template <class W, int COLS> struct matrix_shared {
    float scale[CHUNK_SPANS][W::SCALES + W::MINS][MATRIX_ROWS]; // scales, then mins
    column<W> columns[CHUNK_SPANS][COLS];
    matrix_stage<W, COLS> stages[1];
};
template <class W, int COLS> constexpr size_t matrix_shared_bytes(int n_stages) {
    return sizeof(matrix_shared<W, COLS>) + (size_t)(n_stages - 1) * sizeof(matrix_stage<W, COLS>) + W::CODEBOOK_BYTES;
}
// With n_stages a block fits the card's limit for dynamic and static shared memory together.
template <class W, int COLS> static inline bool matrix_fits(int n_stages, int max_shared_bytes) {
    static_assert(W::UNPACKED || matrix_shared_bytes<W, MATRIX_COLS>(1) + sizeof(block_rows<MATRIX_COLS>) <= 65536,
                  "fits every card");
    return matrix_shared_bytes<W, COLS>(n_stages) + sizeof(block_rows<COLS>) <= (size_t)max_shared_bytes;
}

// What a thread copies of every chunk, found once: from chunk to chunk all places move on alike.
template <class W, int COLS> struct chunk_copies {
    static constexpr int THREADS = matrix_threads<COLS>, UNITS = matrix_stage<W, COLS>::TILE_CHUNK / 16,
                         N_WEIGHT = (MATRIX_TILES * UNITS + THREADS - 1) / THREADS,
                         N_IN = COLS * CHUNK_COLS / 16 / THREADS, N_META = COLS * CHUNK_SPANS / THREADS;
    uint32_t weight[N_WEIGHT], in[N_IN], meta[N_META]; // in units of a copy: 16, 16 and 8 bytes

    __device__ chunk_copies(const tiled_args &a, const block_rows<COLS> &rows, uint32_t first_tile,
                            uint32_t last_tile) {
        uint32_t row_spans = a.n_cols / 32, tile_units = row_spans / W::BLOCK_SPANS * (W::TILE_BYTES / 16);
#pragma unroll
        for (int i = 0; i < (W::UNPACKED ? 0 : N_WEIGHT); i++) {
            uint32_t u = threadIdx.x + i * THREADS;
            weight[i] = min(first_tile + u / UNITS, last_tile) * tile_units + u % UNITS;
        }
#pragma unroll
        for (int i = 0; i < N_IN; i++) {
            uint32_t u = threadIdx.x + i * THREADS;
            in[i] = rows.in[u / (CHUNK_COLS / 16)] * (a.n_cols / 16) + u % (CHUNK_COLS / 16);
        }
#pragma unroll
        for (int i = 0; i < N_META; i++) {
            uint32_t u = threadIdx.x + i * THREADS;
            meta[i] = rows.in[u / CHUNK_SPANS] * row_spans + u % CHUNK_SPANS;
        }
    }

    // Starts copying columns [first_span, first_span + n_spans) of weights (unless they are unpacked) and inputs.
    __device__ void start(matrix_stage<W, COLS> &to, const uint8_t *weights, const acts &inputs, uint32_t first_span,
                          uint32_t n_spans) const {
        uint32_t n_units = n_spans / W::BLOCK_SPANS * (W::TILE_BYTES / 16);
        const uint4 *weight_from = (const uint4 *)block_of<W>(weights, first_span);
        const uint4 *in_from = (const uint4 *)(inputs.q + 32 * first_span);
        const act_meta *meta_from = inputs.meta + first_span;
#pragma unroll
        for (int i = 0; i < (W::UNPACKED ? 0 : N_WEIGHT); i++) { // stages hold tiles without gaps
            uint32_t u = threadIdx.x + i * THREADS;
            bool there = (i + 1) * THREADS <= MATRIX_TILES * UNITS || u < MATRIX_TILES * UNITS;
            if (there && u % UNITS < n_units) copy16_async(&to.weight[0][0] + 16 * u, weight_from + weight[i]);
        }
#pragma unroll
        for (int i = 0; i < N_IN; i++) {
            uint32_t u = threadIdx.x + i * THREADS, row = u / (CHUNK_COLS / 16), at = u % (CHUNK_COLS / 16);
            if (at < 2 * n_spans) copy16_async(&to.in[row][16 * at], in_from + in[i]);
        }
#pragma unroll
        for (int i = 0; i < N_META; i++) {
            uint32_t u = threadIdx.x + i * THREADS, row = u / CHUNK_SPANS, at = u % CHUNK_SPANS;
            if (at < n_spans) copy8_async(&to.meta[row][at], meta_from + meta[i]);
        }
        copy_commit();
    }
};

// Scales of all rows and columns of a chunk, once for all warps; zeros behind its last span.
template <class W, int COLS>
__device__ inline void matrix_unpack(matrix_shared<W, COLS> &sh, const matrix_stage<W, COLS> &from, uint32_t n_spans) {
    constexpr int THREADS = matrix_threads<COLS>;
#pragma unroll
    for (int i = 0; i < COLS * CHUNK_SPANS / THREADS; i++) {
        uint32_t u = threadIdx.x + i * THREADS, row = u % COLS, at = u / COLS;
        if (at < n_spans)
            sh.columns[at][row].set(from.meta[row][at]);
        else
            sh.columns[at][row] = {};
    }
#pragma unroll
    for (int i = 0; i < MATRIX_TILES * CHUNK_SPANS * 8 / THREADS; i++) { // rows 2g, 2g + 1 of a tile
        uint32_t u = threadIdx.x + i * THREADS, g = u % 8, tile = u / 8 % MATRIX_TILES, at = u / (8 * MATRIX_TILES);
        typename W::packed_scales packed;
        span_scales s = {};
        if (at < n_spans) {
            packed.load(&from.weight[tile][at / W::BLOCK_SPANS * W::TILE_BYTES], (int)(at % W::BLOCK_SPANS), (int)g);
            packed.unpack(s);
        }
        uint32_t row = tile * ATSI_TILE_ROWS + 2 * g;
#pragma unroll
        for (int h = 0; h < W::SCALES; h++)
            *(float2 *)&sh.scale[at][h][row] = make_float2(s.scale[0][h], s.scale[1][h]);
#pragma unroll
        for (int h = 0; h < W::MINS; h++)
            *(float2 *)&sh.scale[at][W::SCALES + h][row] = make_float2(s.min[0][h], s.min[1][h]);
    }
}

// Mins that are subtracted span by span: none where tensor cores take them by the chunk.
#if __CUDA_ARCH__ >= 800
template <class W> constexpr int STEP_MINS = 0;
#else
template <class W> constexpr int STEP_MINS = W::MINS;
#endif

template <class W, int COLS>
__device__ inline void read_scales(span_scales &s, const matrix_shared<W, COLS> &sh, int span, int row) {
#pragma unroll
    for (int h = 0; h < W::SCALES + STEP_MINS<W>; h++) {
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
            signed_codes<W>(words[m], i, codes[m]);
            read_scales<W, COLS>(s[m], sh, at, (2 * warp_row + m) * ATSI_TILE_ROWS + 2 * g);
        }
#pragma unroll
        for (int n = 0; n < WARP_N_TILES; n++) {
            const column<W> *c = &sh.columns[at][warp_col * WARP_COLS + 8 * n + 2 * t];
            column<W> columns[2] = {c[0], c[1]};
#pragma unroll
            for (int m = 0; m < 2; m++) {
                span_sums<W> sums;
                sums.clear();
                sums.multiply(codes[m], b[n][0], b[n][1]);
#pragma unroll
                for (int k = 0; k < 4; k++)
                    acc[m][n][k / 2][k % 2] = scaled<W, STEP_MINS<W>>(
                        acc[m][n][k / 2][k % 2], sums, k, s[m].scale[k / 2], s[m].min[k / 2], columns[k % 2]);
            }
        }
    }
}

#if __CUDA_ARCH__ >= 800
// The mins of a chunk: for every tile a product of [16 rows, 8 spans] and [8 spans, 8 columns] on tensor cores, instead of a
// multiply-add for every result and span.
template <class W, int COLS>
__device__ inline void subtract_mins(float acc[2][WARP_N_TILES][2][2], const matrix_shared<W, COLS> &sh, int warp_row,
                                     int warp_col, int lane) {
    int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int h = 0; h < W::MINS; h++) {
        tf32_pair a[2][4];
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int k = 0; k < 2; k++) {
                float2 min =
                    *(const float2 *)&sh.scale[t + 4 * k][W::SCALES + h][(2 * warp_row + m) * ATSI_TILE_ROWS + 2 * g];
                a[m][2 * k].split(min.x);
                a[m][2 * k + 1].split(min.y);
            }
#pragma unroll
        for (int n = 0; n < WARP_N_TILES; n++) {
            tf32_pair b[2];
#pragma unroll
            for (int k = 0; k < 2; k++) b[k].split(sh.columns[t + 4 * k][warp_col * WARP_COLS + 8 * n + g].sums[h]);
#pragma unroll
            for (int m = 0; m < 2; m++) {
                float mins[4] = {}; // apart, because tensor cores cut sums off instead of rounding them
                mma_tf32_pairs<false>(mins, a[m], b);
#pragma unroll
                for (int k = 0; k < 4; k++) acc[m][n][k / 2][k % 2] -= mins[k];
            }
        }
    }
}
#endif

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
__device__ inline void matrix_store(const float acc[2][WARP_N_TILES][2][2], const tiled_part &part,
                                    const block_rows<COLS> &rows, uint32_t first_tile, int warp_row, int warp_col,
                                    int lane) {
    int g = lane / 4, t = lane % 4;
    bool aligned = ((uintptr_t)part.out / 4 % 2 | part.out_stride % 2 | part.n_out % 2) == 0;
#pragma unroll
    for (int m = 0; m < 2; m++) {
        uint32_t out_row = (first_tile + 2 * warp_row + m) * ATSI_TILE_ROWS + 2 * g;
        if (out_row >= part.n_out) continue;
        bool second = out_row + 1 < part.n_out;
        float2 bias =
            make_float2(part.bias ? part.bias[out_row] : 0.0f, part.bias && second ? part.bias[out_row + 1] : 0.0f);
#pragma unroll
        for (int n = 0; n < WARP_N_TILES; n++)
#pragma unroll
            for (int col = 0; col < 2; col++) {
                uint32_t in = warp_col * WARP_COLS + 8 * n + 2 * t + col;
                float2 v = make_float2(acc[m][n][0][col] + bias.x, acc[m][n][1][col] + bias.y);
                if (in < rows.n) store_pair(rows.out[in] + out_row, v, second, aligned, part.add);
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
    tiled_part part = a.parts[0];
    if constexpr (W::UNPACKED) W::fill_codebook(&sh.stages[n_stages], a.codebook);
    if (!choose_rows(rows, a.experts, a.n_in, part.out, part.out_stride, part.n_out)) return;
    move_to_expert(part, rows.expert, COLS == MATRIX_COLS ? slot_of(a.experts, rows.expert) : -1);
    constexpr int COL_WARPS = COLS / WARP_COLS;
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warp_row = warp / COL_WARPS, warp_col = warp % COL_WARPS,
        stage = 0;
    uint32_t first_tile = blockIdx.y * MATRIX_TILES, last_tile = (part.n_out - 1) / ATSI_TILE_ROWS,
             n_spans = a.n_cols / 32;
    float acc[2][WARP_N_TILES][2][2] = {};
    chunk_copies<W, COLS> copies(a, rows, first_tile, last_tile);
    auto load = [&](int to, uint32_t first) {
        copies.start(sh.stages[to], part.weight, a.in, first, min((uint32_t)CHUNK_SPANS, n_spans - first));
        if constexpr (W::UNPACKED)
            W::template unpack<matrix_threads<COLS> / WARP>(sh.stages[to].weight, part.weight,
                                                            first_tile * ATSI_TILE_ROWS, part.n_out, a.n_cols,
                                                            first / CHUNK_SPANS, &sh.stages[n_stages]);
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
#if __CUDA_ARCH__ >= 800
        subtract_mins<W, COLS>(acc, sh, warp_row, warp_col, lane);
#endif
        if (n_stages == 2) {
            stage ^= 1;
        } else if (next < n_spans) {
            __syncthreads();
            load(0, next);
        }
    }
    matrix_store<COLS>(acc, part, rows, first_tile, warp_row, warp_col, lane);
}

template <class W, int COLS> void run_matrix(const tiled_args &a, struct launch_stream stream) {
    int n_stages = matrix_fits<W, COLS>(2, a.max_shared_bytes) ? 2 : 1;
    dim3 grid(n_row_blocks(a.experts, a.n_in, COLS), ceil_div(a.parts[0].n_out, MATRIX_ROWS));
    launch_overlapping(matrix_kernel<W, COLS>, grid, matrix_threads<COLS>, matrix_shared_bytes<W, COLS>(n_stages),
                       stream, a, n_stages);
}

// Blocks of 128 input rows move fewest bytes, but one takes a whole multiprocessor: they pay when their last turn of the card is
// not mostly empty. Blocks of 64 go two by two, and waste less of an expert's rows.
template <class W> void launch_matrix(const struct tiled_args *a, struct launch_stream stream) {
    uint32_t n_wide = ceil_div(a->n_in, 128) * ceil_div(a->parts[0].n_out, MATRIX_ROWS),
             n_slots = (uint32_t)a->n_multiprocessors;
    bool filled = 4 * n_wide >= 3 * ceil_div(n_wide, n_slots) * n_slots;
    bool wide = !a->experts.ids && a->n_in > MATRIX_COLS && filled && matrix_fits<W, 128>(1, a->max_shared_bytes);
    if (wide)
        run_matrix<W, 128>(*a, stream);
    else
        run_matrix<W, MATRIX_COLS>(*a, stream);
}

template <class W, int COLS> cudaError_t prepare_matrix(int max_shared_bytes) {
    if (!matrix_fits<W, COLS>(1, max_shared_bytes)) return cudaSuccess; // never launched
    size_t wanted = matrix_shared_bytes<W, COLS>(matrix_fits<W, COLS>(2, max_shared_bytes) ? 2 : 1);
    return cudaFuncSetAttribute(matrix_kernel<W, COLS>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)wanted);
}

#endif
