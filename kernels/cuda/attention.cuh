// attention.cuh: device helpers of the attention kernels.
#ifndef ATSI_KERNELS_CUDA_ATTENTION_CUH
#define ATSI_KERNELS_CUDA_ATTENTION_CUH

#include "kernels/cuda/attention.h"
#include "kernels/cuda/common.cuh"

constexpr float LOG2_E = 1.4426950408889634f;

__device__ inline void prefetch(const void *p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

// First position that the token at `pos` sees.
__device__ inline int first_seen(const attention_args &a, int pos) {
    return a.window > 0 ? max(0, pos - a.window + 1) : 0;
}

// Warps of a split's block: what shared memory of 64 KiB holds.
constexpr int split_warps(int dim) { return dim > 128 ? 2 : 4; }
template <int D> constexpr int SPLIT_WARPS = split_warps(D);
constexpr int SPLIT_ROWS = 16; // of a block
constexpr int SPLIT_KEYS = 16; // a warp's step

// How the keys `begin` to `last` that a tile of SPLIT_ROWS rows sees are divided: `per_split` for each of the first `n_used` splits (fewer
// for the last of them), none for the others.
struct division {
    int begin, last, per_split, n_used;
};
// first_pos: the round's. Rows from `first_row` on, in the order of attention.h.
template <int D> __device__ inline division divide_context(const attention_args &a, int first_pos, int first_row) {
    int n_rows = a.n_tokens * a.group;
    division d;
    d.begin = first_seen(a, first_pos + first_row / a.group);
    d.last = first_pos + (min(first_row + SPLIT_ROWS, n_rows) - 1) / a.group;
    int n_keys = d.last - d.begin + 1, least = SPLIT_KEYS * SPLIT_WARPS<D>; // fewer keys are not worth a block
    d.per_split = max((n_keys + a.n_splits - 1) / a.n_splits, least);
    d.per_split = (d.per_split + SPLIT_KEYS - 1) / SPLIT_KEYS * SPLIT_KEYS;
    d.n_used = (n_keys + d.per_split - 1) / d.per_split;
    return d;
}

// What the used splits of a row leave to be joined. Sums and records of all rows stand in arrays of their own: a row's records are few
// lines, and sums start on 16 bytes.
template <int D> struct partial_results {
    float *sums;     // [split][D] of weight * value
    float2 *records; // [split]: the largest logit (base 2), -infinity where the row saw no key, and the sum of weights
    // row: of the key head, in the order of attention.h
    __device__ partial_results(const attention_args &a, uint32_t kv_head, uint32_t row) {
        uint32_t n_rows = a.n_tokens * a.group, first = (kv_head * n_rows + row) * a.n_splits;
        sums = a.partial + first * D;
        records = (float2 *)(a.partial + a.n_kv_heads * n_rows * a.n_splits * D) + first;
    }
};

__device__ inline const uint8_t *cached(const uint8_t *cache, uint32_t row_bytes, const attention_args &a, int pos,
                                        int kv_head) {
    return cache + ((uint64_t)((uint32_t)pos % a.capacity) * a.n_kv_heads + kv_head) * row_bytes;
}

// Cached elements d..d+3 of a head's row (d a multiple of 4).
template <enum atsi_dtype KV> __device__ inline float4 cached_floats(const uint8_t *row, int d);
template <> __device__ inline float4 cached_floats<ATSI_F32>(const uint8_t *row, int d) {
    const float *p = (const float *)row + d;
    return make_float4(p[0], p[1], p[2], p[3]);
}
template <> __device__ inline float4 cached_floats<ATSI_F16>(const uint8_t *row, int d) {
    const __half *p = (const __half *)row + d;
    return make_float4(__half2float(p[0]), __half2float(p[1]), __half2float(p[2]), __half2float(p[3]));
}
constexpr int Q8_BYTES = 34; // d half, 32 int8
template <> __device__ inline float4 cached_floats<ATSI_Q8_0>(const uint8_t *row, int d) {
    const uint8_t *block = row + d / 32 * Q8_BYTES;
    float scale = __half2float(*(const __half *)block);
    const int8_t *q = (const int8_t *)block + 2 + d % 32;
    return make_float4(scale * q[0], scale * q[1], scale * q[2], scale * q[3]);
}

// Row `head` of the round's token `token` into its slot, 4 elements a lane.
template <enum atsi_dtype KV> __device__ inline void store_row(const float *src, uint8_t *dst, int dim) {
    int lane = threadIdx.x % WARP;
    for (int first = 0; first < dim; first += 4 * WARP) {
        int d = first + 4 * lane, n = d < dim ? dim - d : 0;
        float4 v = load4(src + d, n, false);
        if constexpr (KV == ATSI_F32) {
            store4((float *)dst + d, v, n, false);
        } else if constexpr (KV == ATSI_F16) {
            const float values[4] = {v.x, v.y, v.z, v.w};
            for (int i = 0; i < 4 && i < n; i++) ((__half *)dst)[d + i] = __float2half_rn(values[i]);
        } else {
            float largest = largest_of_8_lanes(v);
            __half scale = __float2half_rn(__fdiv_rn(largest, 127.0f));
            float inverse = __half2float(scale) > 0.0f ? __fdiv_rn(1.0f, __half2float(scale)) : 0.0f;
            if (n <= 0) continue;
            uint8_t *block = dst + d / 32 * Q8_BYTES;
            if (d % 32 == 0) *(__half *)block = scale;
            int8_t *q = (int8_t *)block + 2 + d % 32;
            const float values[4] = {v.x, v.y, v.z, v.w};
            for (int i = 0; i < 4; i++)
                q[i] = (int8_t)__float2int_rn(fminf(fmaxf(values[i] * inverse, -127.0f), 127.0f));
        }
    }
}

// The same as four halves.
template <enum atsi_dtype KV> __device__ inline uint2 cached_halves(const uint8_t *row, int d);
template <> __device__ inline uint2 cached_halves<ATSI_F16>(const uint8_t *row, int d) {
    return *(const uint2 *)(row + 2 * d);
}
template <> __device__ inline uint2 cached_halves<ATSI_Q8_0>(const uint8_t *row, int d) {
    const uint8_t *block = row + d / 32 * Q8_BYTES;
    __half2 scale = __half2half2(*(const __half *)block);
    const uint16_t *q = (const uint16_t *)(block + 2 + d % 32);
    uint32_t bytes = ((uint32_t)q[0] | (uint32_t)q[1] << 16) ^ 0x80808080u;
    // The half 0x6400 | u is 1024 + u, so subtracting 1024 + 128 leaves the signed code exactly.
    union {
        uint32_t bits;
        __half2 h;
    } low, high, offset;
    low.bits = __byte_perm(bytes, 0x64646464u, 0x4140);
    high.bits = __byte_perm(bytes, 0x64646464u, 0x4342);
    offset.bits = 0x64806480u;
    low.h = __hmul2(__hsub2(low.h, offset.h), scale);
    high.h = __hmul2(__hsub2(high.h, offset.h), scale);
    return make_uint2(low.bits, high.bits);
}

__device__ inline uint32_t halves(float a, float b) {
    union {
        __half2 h;
        uint32_t bits;
    } u;
    u.h = __floats2half2_rn(a, b);
    return u.bits;
}

#endif
