// norm.cuh: pieces of the kernels that norm rows.
#ifndef ATSI_KERNELS_CUDA_NORM_CUH
#define ATSI_KERNELS_CUDA_NORM_CUH

#include "kernels/cuda/norm.h"

__device__ inline int n_left(const norm_args &a, uint32_t i) { return i < a.group ? (int)(a.group - i) : 0; }

__device__ inline float4 weights_at(const norm_args &a, uint32_t i) {
    return a.weight ? load4(a.weight + i, n_left(a, i), a.aligned) : make_float4(1.0f, 1.0f, 1.0f, 1.0f);
}

__device__ inline float4 normed(float4 v, float4 w, float scale) {
    return make_float4(v.x * scale * w.x, v.y * scale * w.y, v.z * scale * w.z, v.w * scale * w.w);
}

// Writes elements i .. i + 3 of a row's group, the one that starts at `first`, and their codes. All lanes of the warp call.
__device__ inline void put_normed(const norm_args &a, uint64_t row, uint32_t first, uint32_t i, float4 v) {
    float *out = a.out + row * a.out_stride + first + i;
    int n = n_left(a, i);
    if (a.add) {
        float4 y = load4(out, n, a.aligned);
        v = make_float4(v.x + y.x, v.y + y.y, v.z + y.z, v.w + y.w);
    }
    store4(out, v, n, a.aligned);
    if (a.acts.q)
        quantise4(v, a.acts.q + row * a.width + first + i, a.acts.meta + row * (a.width / 32) + (first + i) / 32,
                  n > 0);
}

__device__ inline float norm_scale(float squares, const norm_args &a) {
    return rsqrtf(squares / (float)a.group + a.eps);
}

// What a thread's four elements add to its sum of squares.
__device__ inline float squares_of(float4 v) { return v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w; }

#endif
