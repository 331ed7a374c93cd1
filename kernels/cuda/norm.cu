// norm.cu: RMS norm in groups, quantising its result for the matrices that read it.
#include "kernels/cuda/common.cuh"

namespace {

struct norm_args {
    const float *in;
    float *out;
    const float *weight; // [group] or NULL
    uint32_t in_stride, out_stride, group, width;
    float eps;
    bool add, aligned;
    acts_out acts;
};

// x: group of the row, y: row. Every thread keeps up to four elements at a time and reads them again for the second pass; a row
// is in the cache then.
__global__ void norm_kernel(norm_args a) {
    begin_kernel();
    __shared__ float partial[WARP];
    uint64_t row = blockIdx.y;
    uint32_t first = blockIdx.x * a.group;
    const float *in = a.in + row * a.in_stride + first;
    float *out = a.out + row * a.out_stride + first;
    float squares = 0.0f;
    for (uint32_t i = threadIdx.x * 4; i < a.group; i += blockDim.x * 4) {
        float4 v = load4(in + i, (int)(a.group - i), a.aligned);
        squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
    squares = block_sum(squares, partial);
    float scale = rsqrtf(squares / (float)a.group + a.eps);
    // Whole warps run every step, for quantise4's exchanges.
    uint32_t n_steps = (a.group + blockDim.x * 4 - 1) / (blockDim.x * 4);
    for (uint32_t step = 0; step < n_steps; step++) {
        uint32_t i = (step * blockDim.x + threadIdx.x) * 4;
        int n = i < a.group ? (int)(a.group - i) : 0;
        float4 v = load4(in + i, n, a.aligned);
        v = make_float4(v.x * scale, v.y * scale, v.z * scale, v.w * scale);
        if (a.weight) {
            float4 w = load4(a.weight + i, n, a.aligned);
            v = make_float4(v.x * w.x, v.y * w.y, v.z * w.z, v.w * w.w);
        }
        if (a.add) {
            float4 y = load4(out + i, n, a.aligned);
            v = make_float4(v.x + y.x, v.y + y.y, v.z + y.z, v.w + y.w);
        }
        store4(out + i, v, n, a.aligned);
        if (a.acts.q)
            quantise4(v, a.acts.q + row * a.width + first + i, a.acts.meta + row * (a.width / 32) + (first + i) / 32,
                      n > 0);
    }
}

} // namespace

cudaError_t load_norm(void) {
    static const void *const KERNELS[] = {(const void *)norm_kernel};
    return load_kernels(KERNELS);
}

void launch_rms_norm(struct launch_ctx *x, const struct atsi_op_call *call) {
    const struct atsi_rows_ref &v = call->in[0], &y = call->out[0];
    norm_args a;
    a.in = (const float *)v.data;
    a.out = (float *)y.data;
    a.weight = (const float *)call->tensor[0].data;
    a.in_stride = v.stride;
    a.out_stride = y.stride;
    a.group = call->op->u.norm.group;
    a.width = y.width;
    a.eps = call->op->u.norm.eps;
    a.add = call->op->add;
    a.aligned = rows_aligned(v) && rows_aligned(y) && a.group % 4 == 0 && (uintptr_t)a.weight % 16 == 0;
    a.acts.q = NULL;
    a.acts.meta = NULL;
    if (a.group % 32 == 0) a.acts = acts_reserve(x->device, y, x->n_rows);
    uint32_t threads = ceil_div(ceil_div(a.group, 4), WARP) * WARP;
    if (threads > 1024) threads = 1024;
    launch_overlapping(norm_kernel, dim3(y.width / a.group, x->n_rows), threads, 0, x->stream, a);
}
