// rows.cuh: which input rows a block of a matrix kernel computes, for dense products and for experts.
#ifndef ATSI_KERNELS_CUDA_ROWS_CUH
#define ATSI_KERNELS_CUDA_ROWS_CUH

#include "kernels/cuda/experts.h"

// Past the multiprocessor's own cache, so that it may be read before the wait where it is final by then.
__device__ inline int expert_of(const expert_args &e, uint32_t pair) {
    return __ldcg(e.ids + (uint64_t)(pair / e.n_slots) * e.ids_stride + pair % e.n_slots);
}
// The slot of an expert in the blocks of resident ones, -1: none.
__device__ inline int slot_of(const expert_args &e, int expert) { return e.slots ? __ldcg(e.slots + expert) : -1; }
// Its matrix in the whole tensor, or in what was fetched of it.
__device__ inline int place_of(const expert_args &e, uint32_t pair, int expert) {
    return e.fetched ? (int)pair : expert;
}
// That matrix, of `size` elements, or the one in the block.
template <class T>
__device__ inline const T *matrix_of(const T *tensor, const T *resident, uint64_t size, int place, int slot) {
    return slot >= 0 ? resident + slot * size : tensor + place * size;
}
__device__ inline float *out_of_pair(const expert_args &e, uint32_t pair, float *out, uint32_t out_stride,
                                     uint32_t n_out) {
    return out + (uint64_t)(pair / e.n_slots) * out_stride + (uint64_t)(pair % e.n_slots) * n_out;
}

// In shared memory. Rows behind `n` repeat the last and are not written.
template <int COLS> struct block_rows {
    uint32_t n;
    int expert; // 0 for dense products
    uint32_t in[COLS];
    float *out[COLS];
};

// Experts need COLS to be MATRIX_COLS. Fills `rows` for block blockIdx.x; false (for the whole block) when there is nothing to compute. Ends with a barrier.
template <int COLS>
__device__ inline bool choose_rows(block_rows<COLS> &rows, const expert_args &e, uint32_t n_in, float *out,
                                   uint32_t out_stride, uint32_t n_out) {
    uint32_t first = blockIdx.x * COLS, n = 0;
    int expert = 0;
    if (e.ids) {
        if ((int)blockIdx.x >= *e.groups.n_tiles) return false;
        group_tile tile = e.groups.tiles[blockIdx.x];
        expert = tile.expert;
        first = (uint32_t)tile.first;
        n = (uint32_t)tile.n;
    } else {
        n = min((uint32_t)COLS, n_in - first);
    }
    for (uint32_t i = threadIdx.x; i < COLS; i += blockDim.x) {
        uint32_t row = first + min(i, n - 1);
        if (e.ids) {
            uint32_t pair = (uint32_t)e.groups.pairs[row];
            rows.in[i] = pair / e.in_divisor;
            rows.out[i] = out_of_pair(e, pair, out, out_stride, n_out);
        } else {
            rows.in[i] = row;
            rows.out[i] = out + (uint64_t)row * out_stride;
        }
    }
    if (threadIdx.x == 0) {
        rows.n = n;
        rows.expert = expert;
    }
    __syncthreads();
    return true;
}

#endif
