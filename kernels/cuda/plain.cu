// plain.cu: products with float weights in plain rows. Inputs keep their float precision: the matrix kernel multiplies on
// tensor cores in TF32, with every operand that does not fit TF32 split into a high and a low part.
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/plain.h"
#include "kernels/cuda/rows.cuh"

namespace {

// ---- weights --------------------------------------------------------------------------------------------------------------

__device__ inline float as_float(float v) { return v; }
__device__ inline float as_float(__half v) { return __half2float(v); }
__device__ inline float as_float(__nv_bfloat16 v) { return __bfloat162float(v); }

// 16 bytes of weights as floats.
template <class T> struct pack {
    static constexpr int N = 16 / sizeof(T);
    float v[N];
    __device__ void load(const T *p) {
        union {
            uint4 bits;
            T t[N];
        } u;
        u.bits = *(const uint4 *)p;
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = as_float(u.t[i]);
    }
};

__device__ inline const float *in_row(const plain_args &a, uint32_t row) {
    return a.in + (uint64_t)(row / a.in_per_row) * a.in_stride + (uint64_t)(row % a.in_per_row) * a.n_cols;
}

// ---- up to 8 input rows ---------------------------------------------------------------------------------------------------

constexpr int WARPS = 4, WARP_ROWS = 4; // a warp computes 4 weight rows, so that inputs are read once for all of them

__device__ inline void store_result(const plain_args &a, uint32_t row, uint32_t in, float sum) {
    if (row >= a.n_out || in >= a.n_in) return;
    if (a.bias) sum += a.bias[row];
    float *y = a.out + (uint64_t)in * a.out_stride + row;
    *y = a.add ? *y + sum : sum;
}

// Blocks of one input row that a multiprocessor holds at once; Turing's has room for 1024 threads.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr int ROW_BLOCKS = 8;
#else
constexpr int ROW_BLOCKS = 12;
#endif

// x: 16 weight rows, 4 a warp, or with SHARED 4 rows whose columns the warps share, for matrices of few rows; y: pair (experts).
// N_IN: input rows computed, those behind a.n_in repeat the last; many need registers to have all their loads under way.
template <class T, int N_IN, bool ALIGNED, bool SHARED>
__global__ void __launch_bounds__(WARPS *WARP, N_IN > 1             ? 3
                                               : ALIGNED && !SHARED ? ROW_BLOCKS
                                                                    : 0) vector_kernel(plain_args a) {
    begin_kernel();
    __shared__ float partial[SHARED ? WARPS : 1][WARP_ROWS * N_IN];
    constexpr int STEP = ALIGNED ? pack<T>::N : 1, STRIDE = (SHARED ? WARPS : 1) * WARP * STEP;
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    uint32_t first = (SHARED ? blockIdx.x : blockIdx.x * WARPS + warp) * WARP_ROWS, pair = blockIdx.y, in_first = 0;
    const T *weight = (const T *)a.weight;
    if (a.experts.ids) {
        int expert = expert_of(a.experts, pair);
        if (expert < 0) return;
        weight = matrix_of(weight, (const T *)a.resident, (uint64_t)a.n_out * a.n_cols,
                           place_of(a.experts, pair, expert), slot_of(a.experts, expert));
        if (a.bias) a.bias += (uint64_t)expert * a.n_out;
        in_first = pair / a.experts.in_divisor;
        a.out = out_of_pair(a.experts, pair, a.out, a.out_stride, a.n_out);
    }
    if (!SHARED && first >= a.n_out) return;
    const float *in[N_IN];
#pragma unroll
    for (int c = 0; c < N_IN; c++) in[c] = in_row(a, in_first + min((uint32_t)c, a.n_in - 1));
    const T *row[WARP_ROWS];
#pragma unroll
    for (int r = 0; r < WARP_ROWS; r++) row[r] = weight + (uint64_t)min(first + r, a.n_out - 1) * a.n_cols;
    float acc[WARP_ROWS][N_IN] = {};
#pragma unroll(N_IN == 1 ? 2 : 1)
    for (uint32_t i = (SHARED ? warp * WARP + lane : lane) * STEP; i < a.n_cols; i += STRIDE) {
        float w[WARP_ROWS][STEP];
#pragma unroll
        for (int r = 0; r < WARP_ROWS; r++) {
            if constexpr (ALIGNED) {
                pack<T> p;
                p.load(row[r] + i);
#pragma unroll
                for (int k = 0; k < STEP; k++) w[r][k] = p.v[k];
            } else {
                w[r][0] = as_float(row[r][i]);
            }
        }
#pragma unroll
        for (int c = 0; c < N_IN; c++)
#pragma unroll
            for (int k = 0; k < STEP; k += ALIGNED ? 4 : 1) {
                if constexpr (ALIGNED) {
                    float4 x = *(const float4 *)(in[c] + i + k);
#pragma unroll
                    for (int r = 0; r < WARP_ROWS; r++)
                        acc[r][c] += w[r][k] * x.x + w[r][k + 1] * x.y + w[r][k + 2] * x.z + w[r][k + 3] * x.w;
                } else {
                    float x = in[c][i];
#pragma unroll
                    for (int r = 0; r < WARP_ROWS; r++) acc[r][c] += w[r][0] * x;
                }
            }
    }
#pragma unroll
    for (int r = 0; r < WARP_ROWS; r++)
#pragma unroll
        for (int c = 0; c < N_IN; c++) {
            float sum = lanes_sum(acc[r][c]);
            if (SHARED && lane == 0) partial[warp][r * N_IN + c] = sum;
            if (!SHARED && lane == 0) store_result(a, first + r, c, sum);
        }
    if (!SHARED) return;
    __syncthreads();
    if (threadIdx.x >= WARP_ROWS * N_IN) return;
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) sum += partial[SHARED ? w : 0][threadIdx.x];
    store_result(a, first + threadIdx.x / N_IN, threadIdx.x % N_IN, sum);
}

// 16-byte loads need rows of weights and inputs that start on 16 bytes.
template <class T> bool is_aligned(const plain_args &a) {
    return a.n_cols % pack<T>::N == 0 && ((uintptr_t)a.weight | (uintptr_t)a.resident | (uintptr_t)a.in) % 16 == 0 &&
           a.in_stride % 4 == 0;
}

template <class T, int N_IN> void run_vector(const plain_args &a, uint32_t n_pairs, struct launch_stream stream) {
    constexpr uint32_t FEW_BLOCKS = 6; // a multiprocessor: fewer do not keep the memory busy
    uint32_t n_blocks = ceil_div(a.n_out, WARPS * WARP_ROWS);
    bool shared = n_blocks * n_pairs < FEW_BLOCKS * (uint32_t)a.n_multiprocessors;
    dim3 grid(shared ? ceil_div(a.n_out, WARP_ROWS) : n_blocks, n_pairs);
    // An ordinary launch: these kernels load nothing before they wait, and blocks that wait crowd some multiprocessors (5120 x 17408
    // in F16 took 53 us overlapped, 44 so).
    auto *kernel = !is_aligned<T>(a)
                       ? (shared ? vector_kernel<T, N_IN, false, true> : vector_kernel<T, N_IN, false, false>)
                   : shared ? vector_kernel<T, N_IN, true, true>
                            : vector_kernel<T, N_IN, true, false>;
    kernel<<<grid, WARPS * WARP, 0, stream.handle>>>(a);
}

template <class T> void launch_vector(const plain_args &a, struct launch_stream stream) {
    if (a.experts.ids) {
        plain_args one = a;
        one.n_in = 1;
        run_vector<T, 1>(one, a.n_in, stream);
    } else if (a.n_in == 1) {
        run_vector<T, 1>(a, 1, stream);
    } else {
        run_vector<T, VECTOR_ROWS>(a, 1, stream);
    }
}

// ---- many input rows ------------------------------------------------------------------------------------------------------

constexpr int MATRIX_THREADS = 256, BLOCK_ROWS = 128, CHUNK = 32;
constexpr int STRIDE = CHUNK + 4; // padding spreads rows over the banks

struct matrix_shared {
    float weight[BLOCK_ROWS][STRIDE];
    float in[MATRIX_COLS][STRIDE];
};

constexpr int M_TILES = 2, N_TILES = 4; // 16 x 8 tiles of a warp's 32 x 32 results

// acc += a warp's part of one chunk; w, x: its first weight row and input row.
template <bool EXACT_WEIGHT>
__device__ inline void multiply_chunk(float acc[M_TILES][N_TILES][4], const float (*w)[STRIDE],
                                      const float (*x)[STRIDE], int g, int t) {
#if __CUDA_ARCH__ >= 800
#pragma unroll
    for (int k = 0; k < CHUNK; k += 8) {
        tf32_pair a[M_TILES][4], b[N_TILES][2];
#pragma unroll
        for (int m = 0; m < M_TILES; m++)
#pragma unroll
            for (int i = 0; i < 4; i++) a[m][i].split(w[16 * m + g + 8 * (i % 2)][k + t + 4 * (i / 2)]);
#pragma unroll
        for (int n = 0; n < N_TILES; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) b[n][i].split(x[8 * n + g][k + t + 4 * i]);
#pragma unroll
        for (int m = 0; m < M_TILES; m++)
#pragma unroll
            for (int n = 0; n < N_TILES; n++) mma_tf32_pairs<EXACT_WEIGHT>(acc[m][n], a[m], b[n]);
    }
#else
    for (int k = 0; k < CHUNK; k++)
#pragma unroll
        for (int m = 0; m < M_TILES; m++)
#pragma unroll
            for (int n = 0; n < N_TILES; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    acc[m][n][i] += w[16 * m + g + 8 * (i / 2)][k] * x[8 * n + 2 * t + i % 2][k];
#endif
}

// A thread's elements of one chunk on their way to shared memory: one column of every eighth row. Outside the matrix: zeros.
template <class T> struct chunk_data {
    static constexpr int STEP = MATRIX_THREADS / CHUNK;
    T weight[BLOCK_ROWS / STEP];
    float in[MATRIX_COLS / STEP];
    __device__ void load(const plain_args &a, const T *matrix, const block_rows<MATRIX_COLS> &rows, uint32_t first_row,
                         uint32_t first) {
        uint32_t column = first + threadIdx.x % CHUNK, r = threadIdx.x / CHUNK;
        bool valid = column < a.n_cols;
#pragma unroll
        for (int i = 0; i < BLOCK_ROWS / STEP; i++) {
            uint32_t row = first_row + r + i * STEP;
            weight[i] = valid && row < a.n_out ? matrix[(uint64_t)row * a.n_cols + column] : T(0.0f);
        }
#pragma unroll
        for (int i = 0; i < MATRIX_COLS / STEP; i++) in[i] = valid ? in_row(a, rows.in[r + i * STEP])[column] : 0.0f;
    }
    __device__ void store(matrix_shared &sh) const {
        uint32_t column = threadIdx.x % CHUNK, r = threadIdx.x / CHUNK;
#pragma unroll
        for (int i = 0; i < BLOCK_ROWS / STEP; i++) sh.weight[r + i * STEP][column] = as_float(weight[i]);
#pragma unroll
        for (int i = 0; i < MATRIX_COLS / STEP; i++) sh.in[r + i * STEP][column] = in[i];
    }
};

// x: 64 input rows, y: 128 weight rows. 8 warps, 4 by 2, of 32 x 32 results.
template <class T> __global__ void __launch_bounds__(MATRIX_THREADS) matrix_kernel(plain_args a) {
    begin_kernel();
    constexpr bool EXACT_WEIGHT = sizeof(T) == 2; // half and bfloat16 fit TF32
    __shared__ matrix_shared sh;
    __shared__ block_rows<MATRIX_COLS> rows;
    if (!choose_rows(rows, a.experts, a.n_in, a.out, a.out_stride, a.n_out)) return;
    const T *weight = matrix_of((const T *)a.weight, (const T *)a.resident, (uint64_t)a.n_out * a.n_cols, rows.expert,
                                slot_of(a.experts, rows.expert));
    if (a.bias) a.bias += (uint64_t)rows.expert * a.n_out;
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warp_row = warp / 2, warp_col = warp % 2, g = lane / 4,
        t = lane % 4;
    uint32_t first_row = blockIdx.y * BLOCK_ROWS;
    float acc[M_TILES][N_TILES][4] = {};
    chunk_data<T> data;
    data.load(a, weight, rows, first_row, 0);
    for (uint32_t first = 0; first < a.n_cols; first += CHUNK) {
        data.store(sh);
        __syncthreads();
        data.load(a, weight, rows, first_row, first + CHUNK); // under way while this chunk is multiplied
        multiply_chunk<EXACT_WEIGHT>(acc, &sh.weight[32 * warp_row], &sh.in[32 * warp_col], g, t);
        __syncthreads();
    }
#pragma unroll
    for (int m = 0; m < M_TILES; m++)
#pragma unroll
        for (int n = 0; n < N_TILES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t row = first_row + 32 * warp_row + 16 * m + g + 8 * (i / 2),
                         in = 32 * warp_col + 8 * n + 2 * t + i % 2;
                if (row >= a.n_out || in >= rows.n) continue;
                float *y = rows.out[in] + row, v = acc[m][n][i] + (a.bias ? a.bias[row] : 0.0f);
                *y = a.add ? *y + v : v;
            }
}

template <class T> void launch_matrix(const plain_args &a, struct launch_stream stream) {
    dim3 grid(n_row_blocks(a.experts, a.n_in, MATRIX_COLS), ceil_div(a.n_out, BLOCK_ROWS));
    launch_overlapping(matrix_kernel<T>, grid, MATRIX_THREADS, 0, stream, a);
}

// ---- rows of a table ------------------------------------------------------------------------------------------------------

template <class T>
__global__ void embed_kernel(const T *table, const int32_t *row_ids, uint32_t n_cols, float *out, uint32_t out_stride,
                             float scale) {
    begin_kernel();
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n_cols)
        out[(uint64_t)blockIdx.y * out_stride + i] =
            scale * as_float(table[(uint64_t)row_ids[blockIdx.y] * n_cols + i]);
}

template <class T> cudaError_t load_type(void) {
    static const void *const KERNELS[] = {(const void *)vector_kernel<T, 1, true, true>,
                                          (const void *)vector_kernel<T, 1, true, false>,
                                          (const void *)vector_kernel<T, 1, false, true>,
                                          (const void *)vector_kernel<T, 1, false, false>,
                                          (const void *)vector_kernel<T, VECTOR_ROWS, true, true>,
                                          (const void *)vector_kernel<T, VECTOR_ROWS, true, false>,
                                          (const void *)vector_kernel<T, VECTOR_ROWS, false, true>,
                                          (const void *)vector_kernel<T, VECTOR_ROWS, false, false>,
                                          (const void *)matrix_kernel<T>,
                                          (const void *)embed_kernel<T>};
    return load_kernels(KERNELS);
}

} // namespace

bool plain_supported(enum atsi_dtype dtype) { return dtype == ATSI_F32 || dtype == ATSI_F16 || dtype == ATSI_BF16; }

void plain_vector(enum atsi_dtype dtype, const struct plain_args *a, struct launch_stream stream) {
    if (dtype == ATSI_F32)
        launch_vector<float>(*a, stream);
    else if (dtype == ATSI_F16)
        launch_vector<__half>(*a, stream);
    else
        launch_vector<__nv_bfloat16>(*a, stream);
}

void plain_matrix(enum atsi_dtype dtype, const struct plain_args *a, struct launch_stream stream) {
    if (dtype == ATSI_F32)
        launch_matrix<float>(*a, stream);
    else if (dtype == ATSI_F16)
        launch_matrix<__half>(*a, stream);
    else
        launch_matrix<__nv_bfloat16>(*a, stream);
}

void plain_embed(enum atsi_dtype dtype, const void *table, const int32_t *row_ids, uint32_t n_cols, uint32_t n_rows,
                 float *out, uint32_t out_stride, float scale, struct launch_stream stream) {
    constexpr int THREADS = 256;
    dim3 grid(ceil_div(n_cols, THREADS), n_rows);
    if (dtype == ATSI_F32)
        launch_overlapping(embed_kernel<float>, grid, THREADS, 0, stream, (const float *)table, row_ids, n_cols, out,
                           out_stride, scale);
    else if (dtype == ATSI_F16)
        launch_overlapping(embed_kernel<__half>, grid, THREADS, 0, stream, (const __half *)table, row_ids, n_cols, out,
                           out_stride, scale);
    else
        launch_overlapping(embed_kernel<__nv_bfloat16>, grid, THREADS, 0, stream, (const __nv_bfloat16 *)table, row_ids,
                           n_cols, out, out_stride, scale);
}

cudaError_t plain_prepare(enum atsi_dtype dtype) {
    if (dtype == ATSI_F32) return load_type<float>();
    return dtype == ATSI_F16 ? load_type<__half>() : load_type<__nv_bfloat16>();
}
