// half_matrix.cu: F16 and BF16 weights times many input rows on tensor cores.
//
// Inputs keep about 22 (F16) or 16 (BF16) bits: each is split into a high and a low half-precision part and multiplied twice.
// Inputs beyond the range of half floats, 65504, are cut there; no model comes near.
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/plain.h"
#include "kernels/cuda/rows.cuh"

namespace {

constexpr int THREADS = 256, BLOCK_ROWS = 128, CHUNK = 32;
constexpr int STRIDE = CHUNK + 8; // halves of a row in shared memory: 8 rows fall into different banks
constexpr int M_TILES = 2;        // a warp computes 32 weight rows by COLS / 2 input rows; 8 warps, 4 by 2

struct f16 {
    typedef __half type;
    // What is no number stays none.
    __device__ static float cut(float v) { return fabsf(v) < INFINITY ? fminf(fmaxf(v, -65504.0f), 65504.0f) : v; }
    __device__ static uint32_t pack(float a, float b) {
        __half2 h = __floats2half2_rn(cut(a), cut(b));
        return *(uint32_t *)&h;
    }
    __device__ static float2 value(uint32_t v) { return __half22float2(*(__half2 *)&v); }
    __device__ static void mma(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) { mma_f16_k16(c, a, b0, b1); }
};
struct bf16 {
    typedef __nv_bfloat16 type;
    __device__ static uint32_t pack(float a, float b) {
        __nv_bfloat162 h = __floats2bfloat162_rn(a, b);
        return *(uint32_t *)&h;
    }
    __device__ static float2 value(uint32_t v) { return __bfloat1622float2(*(__nv_bfloat162 *)&v); }
    __device__ static void mma(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 800
        mma_bf16_k16(c, a, b0, b1);
#endif
    }
};

template <int COLS> struct chunk_shared {
    uint16_t weight[BLOCK_ROWS][STRIDE];
    uint16_t in[2][COLS][STRIDE]; // high and low parts
};

// A thread's share of one chunk on its way to shared memory. Behind the last column: zeros.
template <class T, int COLS> struct chunk_data {
    static constexpr int WEIGHTS = BLOCK_ROWS * CHUNK / 8 / THREADS, INPUTS = COLS * CHUNK / 4 / THREADS;
    uint4 weight[WEIGHTS];
    float4 in[INPUTS];

    __device__ void load(const plain_args &a, const uint16_t *matrix, const block_rows<COLS> &rows, uint32_t first_row,
                         uint32_t first) {
#pragma unroll
        for (int i = 0; i < WEIGHTS; i++) {
            uint32_t u = threadIdx.x + i * THREADS, row = min(first_row + u / (CHUNK / 8), a.n_out - 1),
                     column = first + u % (CHUNK / 8) * 8;
            weight[i] = column < a.n_cols ? *(const uint4 *)(matrix + (uint64_t)row * a.n_cols + column)
                                          : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int i = 0; i < INPUTS; i++) {
            uint32_t u = threadIdx.x + i * THREADS, row = rows.in[u / (CHUNK / 4)],
                     column = first + u % (CHUNK / 4) * 4;
            const float *src = a.in + (uint64_t)(row / a.in_per_row) * a.in_stride +
                               (uint64_t)(row % a.in_per_row) * a.n_cols + column;
            in[i] = column < a.n_cols ? *(const float4 *)src : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
    }
    __device__ void store(chunk_shared<COLS> &sh) const {
#pragma unroll
        for (int i = 0; i < WEIGHTS; i++) {
            uint32_t u = threadIdx.x + i * THREADS;
            *(uint4 *)&sh.weight[u / (CHUNK / 8)][u % (CHUNK / 8) * 8] = weight[i];
        }
#pragma unroll
        for (int i = 0; i < INPUTS; i++) {
            uint32_t u = threadIdx.x + i * THREADS, row = u / (CHUNK / 4), column = u % (CHUNK / 4) * 4;
            uint2 high = make_uint2(T::pack(in[i].x, in[i].y), T::pack(in[i].z, in[i].w));
            float2 x = T::value(high.x), y = T::value(high.y);
            *(uint2 *)&sh.in[0][row][column] = high;
            *(uint2 *)&sh.in[1][row][column] =
                make_uint2(T::pack(in[i].x - x.x, in[i].y - x.y), T::pack(in[i].z - y.x, in[i].w - y.y));
        }
    }
};

template <class T, int COLS, int N_TILES>
__device__ inline void multiply_chunk(float acc[M_TILES][N_TILES][4], const chunk_shared<COLS> &sh, int warp_row,
                                      int warp_col, int lane) {
#pragma unroll
    for (int k = 0; k < CHUNK; k += 16) {
        uint32_t a[M_TILES][4];
#pragma unroll
        for (int m = 0; m < M_TILES; m++) // matrices: rows 0-7 and 8-15 of columns 0-7, then of columns 8-15
            load_matrices(a[m], &sh.weight[32 * warp_row + 16 * m + lane % 16][k + 8 * (lane / 16)]);
#pragma unroll
        for (int part = 1; part >= 0; part--)
#pragma unroll
            for (int n = 0; n < N_TILES;
                 n += 2) { // matrices: (8 input rows, columns 0-7), (the same, 8-15), then the next 8 rows
                uint32_t b[4];
                load_matrices(
                    b, &sh.in[part][8 * (N_TILES * warp_col + n + lane / 16) + lane % 8][k + 8 * (lane / 8 % 2)]);
#pragma unroll
                for (int m = 0; m < M_TILES; m++) {
                    T::mma(acc[m][n], a[m], b[0], b[1]);
                    T::mma(acc[m][n + 1], a[m], b[2], b[3]);
                }
            }
    }
}

// x: COLS input rows, y: 128 weight rows.
template <class T, int COLS> __global__ void __launch_bounds__(THREADS) matrix_kernel(plain_args a) {
    begin_kernel();
    constexpr int N_TILES = COLS / 16;
    __shared__ __align__(16) chunk_shared<COLS> sh;
    __shared__ block_rows<COLS> rows;
    if (!choose_rows(rows, a.experts, a.n_in, a.out, a.out_stride, a.n_out)) return;
    int slot = COLS == MATRIX_COLS ? slot_of(a.experts, rows.expert) : -1;
    const uint16_t *weight = matrix_of((const uint16_t *)a.weight, (const uint16_t *)a.resident,
                                       (uint64_t)a.n_out * a.n_cols, rows.expert, slot);
    if (a.bias) a.bias += (uint64_t)rows.expert * a.n_out;
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warp_row = warp / 2, warp_col = warp % 2, g = lane / 4,
        t = lane % 4;
    uint32_t first_row = blockIdx.y * BLOCK_ROWS;
    float acc[M_TILES][N_TILES][4] = {};
    chunk_data<T, COLS> data;
    data.load(a, weight, rows, first_row, 0);
    for (uint32_t first = 0; first < a.n_cols; first += CHUNK) {
        data.store(sh);
        __syncthreads();
        data.load(a, weight, rows, first_row, first + CHUNK); // under way while this chunk is multiplied
        multiply_chunk<T, COLS, N_TILES>(acc, sh, warp_row, warp_col, lane);
        __syncthreads();
    }
#pragma unroll
    for (int m = 0; m < M_TILES; m++)
#pragma unroll
        for (int n = 0; n < N_TILES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t row = first_row + 32 * warp_row + 16 * m + g + 8 * (i / 2),
                         in = 8 * (N_TILES * warp_col + n) + 2 * t + i % 2;
                if (row >= a.n_out || in >= rows.n) continue;
                float *y = rows.out[in] + row, v = acc[m][n][i] + (a.bias ? a.bias[row] : 0.0f);
                *y = a.add ? *y + v : v;
            }
}

template <class T> void launch(const plain_args &a, struct launch_stream stream) {
    uint32_t n_row_tiles = ceil_div(a.n_out, BLOCK_ROWS);
    if (a.experts.ids || a.n_in <= MATRIX_COLS)
        launch_overlapping(matrix_kernel<T, MATRIX_COLS>,
                           dim3(n_row_blocks(a.experts, a.n_in, MATRIX_COLS), n_row_tiles), THREADS, 0, stream, a);
    else
        launch_overlapping(matrix_kernel<T, 128>, dim3(n_row_blocks(a.experts, a.n_in, 128), n_row_tiles), THREADS, 0,
                           stream, a);
}

// Rows of weights and inputs start on 16 bytes.
bool is_aligned(const plain_args &a) {
    return a.n_cols % 8 == 0 && ((uintptr_t)a.weight | (uintptr_t)a.resident | (uintptr_t)a.in) % 16 == 0 &&
           a.in_stride % 4 == 0;
}

} // namespace

bool half_matrix(enum atsi_dtype dtype, const struct plain_args *a, int capability, struct launch_stream stream) {
    if (!is_aligned(*a) || (dtype != ATSI_F16 && (dtype != ATSI_BF16 || capability < 80))) return false;
    if (dtype == ATSI_F16)
        launch<f16>(*a, stream);
    else
        launch<bf16>(*a, stream);
    return true;
}

cudaError_t half_matrix_prepare(void) {
    static const void *const KERNELS[] = {
        (const void *)matrix_kernel<f16, MATRIX_COLS>, (const void *)matrix_kernel<f16, 128>,
        (const void *)matrix_kernel<bf16, MATRIX_COLS>, (const void *)matrix_kernel<bf16, 128>};
    return load_kernels(KERNELS);
}
