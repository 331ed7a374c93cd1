// common.cuh: device helpers that several kernels use: warp sums, four-element access, quantising inputs.
#ifndef ATSI_KERNELS_CUDA_COMMON_CUH
#define ATSI_KERNELS_CUDA_COMMON_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/internal.h"

constexpr int WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;

// Sum over groups of WIDTH consecutive lanes; every lane of the group gets it. All lanes of the warp call.
template <int WIDTH = WARP> __device__ inline float lanes_sum(float v) {
#pragma unroll
    for (int step = WIDTH / 2; step > 0; step /= 2) v += __shfl_xor_sync(ALL_LANES, v, step);
    return v;
}
// The sums of N values over the warp, each with lanes_sum's additions but with few exchanges: lane l gets that of value l / (WARP / N). N: a
// power of two. All lanes call.
template <int N, int STEP = WARP / 2> __device__ inline float lanes_sums(const float v[N]) {
    if constexpr (N == 1) {
        return lanes_sum<2 * STEP>(v[0]);
    } else {
        float half[N / 2];
        bool upper = threadIdx.x & STEP; // goes on with the upper half of the values
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            float kept = upper ? v[i + N / 2] : v[i], given = upper ? v[i] : v[i + N / 2];
            half[i] = kept + __shfl_xor_sync(ALL_LANES, given, STEP);
        }
        return lanes_sums<N / 2, STEP / 2>(half);
    }
}
template <int WIDTH = WARP> __device__ inline float lanes_max(float v) {
#pragma unroll
    for (int step = WIDTH / 2; step > 0; step /= 2) v = fmaxf(v, __shfl_xor_sync(ALL_LANES, v, step));
    return v;
}

// Sum over the block; every thread gets it. `partial`: WARP floats of shared memory, free again after the next barrier.
__device__ inline float block_sum(float v, float *partial) {
    int lane = threadIdx.x % WARP, n_warps = (blockDim.x + WARP - 1) / WARP;
    v = lanes_sum(v);
    if (lane == 0) partial[threadIdx.x / WARP] = v;
    __syncthreads();
    return lanes_sum(lane < n_warps ? partial[lane] : 0.0f);
}

// ---- overlapping launches ---------------------------------------------------------------------------------------------------
//
// From compute capability 9.0 on a kernel may be started while the one before it in the stream still runs (programmatic dependent
// launch): its blocks take their places and load what no kernel writes. Kernels call start_successor() first thing, those that say so
// behind their own wait (waiting.h), and wait_for_predecessor() before they read or write anything that other kernels touch; when that
// returns, all kernels before it are complete.

__device__ inline void start_successor() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
__device__ inline void wait_for_predecessor() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Has the compiler compute here, before a wait, what it would put off until it is used. Not for pointers: what they point into would
// be forgotten.
__device__ inline void settle(uint32_t &v) { asm volatile("" : "+r"(v)); }

// What most kernels begin with. Before any return: a kernel that ends without having waited would let its successor overtake the
// kernels before it.
__device__ inline void begin_kernel() {
    start_successor();
    wait_for_predecessor();
}

// Where the stream does not overlap launches an ordinary one. Errors are found by the check behind every operation.
template <class... PARAMS, class... ARGS>
static inline void launch_overlapping(void (*kernel)(PARAMS...), dim3 grid, uint32_t n_threads, size_t shared_bytes,
                                      struct launch_stream stream, ARGS... args) {
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(n_threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream.handle;
    config.attrs = &attribute;
    config.numAttrs = stream.overlaps ? 1 : 0;
    (void)cudaLaunchKernelEx(&config, kernel, PARAMS(args)...);
}

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ inline float silu(float x) { return x / (1.0f + expf(-x)); }

// Four consecutive floats, of which the first n count; the others read as 0 and are not written.
__device__ inline float4 load4(const float *p, int n, bool aligned) {
    if (aligned && n >= 4) return *(const float4 *)p;
    float4 v;
    v.x = n > 0 ? p[0] : 0.0f;
    v.y = n > 1 ? p[1] : 0.0f;
    v.z = n > 2 ? p[2] : 0.0f;
    v.w = n > 3 ? p[3] : 0.0f;
    return v;
}
__device__ inline void store4(float *p, float4 v, int n, bool aligned) {
    if (aligned && n >= 4) {
        *(float4 *)p = v;
        return;
    }
    if (n > 0) p[0] = v.x;
    if (n > 1) p[1] = v.y;
    if (n > 2) p[2] = v.z;
    if (n > 3) p[3] = v.w;
}
// Host: rows that load4 may read as float4.
static inline bool rows_aligned(const struct atsi_rows_ref &r) {
    return (uintptr_t)r.data % 16 == 0 && r.stride % 4 == 0;
}

// The largest magnitude of the values of 8 consecutive lanes; NaN if one is. Magnitudes are compared by their bits, where NaN stands
// above infinity.
__device__ inline float largest_of_8_lanes(float4 v) {
    int largest = max(max(__float_as_int(fabsf(v.x)), __float_as_int(fabsf(v.y))),
                      max(__float_as_int(fabsf(v.z)), __float_as_int(fabsf(v.w))));
#pragma unroll
    for (int step = 4; step > 0; step /= 2) largest = max(largest, __shfl_xor_sync(ALL_LANES, largest, step));
    return __int_as_float(largest);
}

// Quantises 32 values held by 8 consecutive lanes, 4 a lane (kernels/matmul.h states the arithmetic): d = max|x| / 127,
// q = nearest(x * (127 / max|x|)), all zero below 2^-100; a NaN among them makes d NaN. All lanes of the warp call; lanes with
// `store` false only take part.
// q: where this lane's 4 codes go; meta: the record of the 32 values.
__device__ inline void quantise4(float4 v, int8_t *q, act_meta *meta, bool store) {
    int lane = threadIdx.x % WARP;
    float largest = largest_of_8_lanes(v);
    bool tiny = largest <= 0x1p-100f;
    float inverse = largest > 0x1p-100f ? __fdiv_rn(127.0f, largest) : 0.0f;
    int x = __float2int_rn(v.x * inverse), y = __float2int_rn(v.y * inverse);
    int z = __float2int_rn(v.z * inverse), w = __float2int_rn(v.w * inverse);
    int sum = x + y + z + w;
    sum += __shfl_xor_sync(ALL_LANES, sum, 1);
    sum += __shfl_xor_sync(ALL_LANES, sum, 2);
    int other = __shfl_xor_sync(ALL_LANES, sum, 4);
    if (!store) return;
    *(uint32_t *)q =
        (uint32_t)(x & 0xff) | (uint32_t)(y & 0xff) << 8 | (uint32_t)(z & 0xff) << 16 | (uint32_t)(w & 0xff) << 24;
    if (lane % 8 == 0) {
        act_meta m;
        m.d = tiny ? 0.0f : __fdiv_rn(largest, 127.0f);
        m.sum[0] = (int16_t)sum;
        m.sum[1] = (int16_t)other;
        *meta = m;
    }
}

// Where a kernel that computes rows also leaves them quantised; q NULL: nowhere.
struct acts_out {
    int8_t *q;
    act_meta *meta;
};

// Host: the place in scratch for n_rows rows of n_cols, or nowhere when they cannot be quantised or do not fit; sets the
// device's record of what scratch holds.
static inline acts_out acts_reserve(struct cuda_device *d, const struct atsi_rows_ref &rows, int n_rows) {
    acts_out out = {NULL, NULL};
    if (rows.width % 32 != 0 || !acts_fit(d, n_rows, rows.width)) return out;
    d->acts = acts_key_of(&rows, n_rows);
    struct acts a = acts_in_scratch(d, n_rows, rows.width);
    out.q = (int8_t *)a.q;
    out.meta = (act_meta *)a.meta;
    return out;
}

#endif
