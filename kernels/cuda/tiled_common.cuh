// tiled_common.cuh: what the vector and the matrix kernels of tiled weights share.
//
// Both are the same int8 matrix instruction: 16 weight rows times 8 columns over 32 values, exact integer sums that meet their
// scales in float once a span (the arithmetic of kernels/matmul.h, in another order of the columns).
#ifndef ATSI_KERNELS_CUDA_TILED_COMMON_CUH
#define ATSI_KERNELS_CUDA_TILED_COMMON_CUH

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
    __device__ void clear() {
#pragma unroll
        for (int h = 0; h < W::SCALES; h++)
#pragma unroll
            for (int i = 0; i < 4; i++) c[h][i] = SUM_ZERO;
    }
    __device__ void add(const span_sums &others) {
#pragma unroll
        for (int h = 0; h < W::SCALES; h++)
#pragma unroll
            for (int i = 0; i < 4; i++) c[h][i] += others.c[h][i];
    }
    // Adds the product of a span.
    __device__ void multiply(const uint32_t a[4], uint32_t b0, uint32_t b1) {
        if (W::SCALES == 2) {
            mma_k16<W::UNSIGNED>(c[0], a[0], a[1], b0);
            mma_k16<W::UNSIGNED>(c[W::SCALES - 1], a[2], a[3], b1);
        } else {
            mma_k32<W::UNSIGNED>(c[0], a, b0, b1);
        }
    }
};

// What turns a scale's sums, read as floats (SUM_ZERO), into scaled numbers: scale * (v - 1.5 * 2^23) is one multiply-add, and exact
// but for its one rounding, because scales have at most 19 bits, so that the product of theirs with 1.5 * 2^23 is a float.
__device__ inline float scale_shift(float scale) { return -12582912.0f * scale; }

// y + the weights' part of one row and one input column: `i` is the result's index in the C fragment. Without MINS the mins are
// subtracted elsewhere.
template <class W, int MINS = W::MINS>
__device__ inline float scaled(float y, const span_sums<W> &sums, int i, const float scale[2], const float min[2],
                               const column<W> &c) {
#pragma unroll
    for (int h = 0; h < W::SCALES; h++)
        y = fmaf(fmaf(__int_as_float(sums.c[h][i]), scale[h], scale_shift(scale[h])), c.d, y);
#pragma unroll
    for (int h = 0; h < MINS; h++) y = fmaf(-min[h], c.sums[h], y);
    return y;
}

__device__ inline void move_to_expert(tiled_part &p, int expert, int slot) {
    p.weight = matrix_of(p.weight, p.resident, p.expert_bytes, expert, slot);
    if (p.bias) p.bias += (uint64_t)expert * p.n_out;
}

#endif
