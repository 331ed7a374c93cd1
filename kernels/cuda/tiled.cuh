// tiled.cuh: the record of tiled.h for a weight type of unpack.cuh.
#ifndef ATSI_KERNELS_CUDA_TILED_CUH
#define ATSI_KERNELS_CUDA_TILED_CUH

#include "kernels/cuda/tiled_glu.cuh"
#include "kernels/cuda/tiled_matrix.cuh"
#include "kernels/cuda/tiled_vector.cuh"

// ---- rows of a table ------------------------------------------------------------------------------------------------------

template <class W> __device__ inline float code_of(uint32_t byte) {
    return W::UNSIGNED ? (float)byte : (float)(int8_t)byte;
}

// A thread decodes one step's words of quarter t of a row. x: pieces of the row, y: output row.
template <class W> __global__ void embed_kernel(tiled_args a, float scale) {
    begin_kernel();
    constexpr int BLOCK_STEPS = W::BLOCK_SPANS / W::STEP_SPANS;
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x, step = i / 4, n_spans = a.n_cols / 32;
    int t = (int)(i % 4);
    if (step >= n_spans / W::STEP_SPANS) return;
    uint32_t row = (uint32_t)a.row_ids[blockIdx.y], in_tile = row % ATSI_TILE_ROWS;
    int g = (int)(in_tile / 2), odd = (int)(in_tile % 2);
    const uint8_t *tile =
        a.parts[0].weight + (uint64_t)(row / ATSI_TILE_ROWS) * (n_spans / W::BLOCK_SPANS) * W::TILE_BYTES;
    const uint8_t *block = block_of<W>(tile, step * W::STEP_SPANS);
    typename W::words words;
    words.load(block, (int)(step % BLOCK_STEPS), g, t);
    float *out = a.parts[0].out + (uint64_t)blockIdx.y * a.parts[0].out_stride + step * W::STEP_SPANS * 32 + 4 * t;
#pragma unroll
    for (int k = 0; k < W::STEP_SPANS; k++) {
        typename W::packed_scales packed;
        span_scales s;
        uint32_t codes[4];
        packed.load(block, (int)(step * W::STEP_SPANS + k) % W::BLOCK_SPANS, g);
        packed.unpack(s);
        signed_codes<W>(words, k, codes);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            constexpr int LAST_SCALE = W::SCALES - 1, LAST_MIN = W::MINS > 0 ? W::MINS - 1 : 0;
            float unit = odd ? s.scale[1][h & LAST_SCALE] : s.scale[0][h & LAST_SCALE];
            float min = W::MINS == 0 ? 0.0f : odd ? s.min[1][h & LAST_MIN] : s.min[0][h & LAST_MIN];
            uint32_t four = odd ? codes[2 * h + 1] : codes[2 * h];
#pragma unroll
            for (int b = 0; b < 4; b++)
                out[32 * k + 16 * h + b] = scale * (unit * code_of<W>(four >> 8 * b & 0xff) - min);
        }
    }
}

template <class W> void launch_tiled_embed(const struct tiled_args *a, float scale, struct launch_stream stream) {
    constexpr int THREADS = 128;
    dim3 grid(ceil_div(a->n_cols / 32 / W::STEP_SPANS * 4, THREADS), a->n_in);
    launch_overlapping(embed_kernel<W>, grid, THREADS, 0, stream, *a, scale);
}

template <class W> cudaError_t prepare_tiled(int max_shared_bytes) {
    static const void *const KERNELS[] = {
        (const void *)vector_kernel<W, 1>,           (const void *)vector_kernel<W, 2>,
        (const void *)vector_kernel<W, 4>,           (const void *)vector_kernel<W, 8>,
        (const void *)vector_glu_kernel<W>,          (const void *)matrix_kernel<W, 128>,
        (const void *)matrix_kernel<W, MATRIX_COLS>, (const void *)embed_kernel<W>};
    const cudaError_t steps[] = {load_kernels(KERNELS),
                                 prepare_shared(vector_kernel<W, 1>, max_shared_bytes),
                                 prepare_shared(vector_glu_kernel<W>, max_shared_bytes),
                                 prepare_shared(vector_kernel<W, 2>, max_shared_bytes),
                                 prepare_shared(vector_kernel<W, 4>, max_shared_bytes),
                                 prepare_shared(vector_kernel<W, 8>, max_shared_bytes),
                                 prepare_matrix<W, MATRIX_COLS>(max_shared_bytes),
                                 prepare_matrix<W, 128>(max_shared_bytes)};
    for (cudaError_t status : steps)
        if (status != cudaSuccess) return status;
    return cudaSuccess;
}

#define DEFINE_TILED_TYPE(RECORD, WEIGHT)                                                                           \
    const struct tiled_type RECORD = {WEIGHT::DTYPE,         launch_vector<WEIGHT>,      launch_vector_glu<WEIGHT>, \
                                      launch_matrix<WEIGHT>, launch_tiled_embed<WEIGHT>, prepare_tiled<WEIGHT>};

#endif
