// elementwise.cu: operations that touch every element once: activations, gates, sums of two, row copies.
#include "kernels/cuda/glu.cuh"
#include "kernels/cuda/waiting.h"

namespace {

constexpr int THREADS = 256;

// A grid of one thread for 4 elements of a row; rows along y.
dim3 grid_of(uint32_t width, uint32_t n_rows) { return dim3(ceil_div(width, 4 * THREADS), n_rows); }

__device__ inline uint32_t first_element() { return (blockIdx.x * THREADS + threadIdx.x) * 4; }

// ---- GLU ----------------------------------------------------------------------------------------------------------------

// Quantises its result on the way: a down projection reads it next. starts_late: waiting.h.
template <enum atsi_glu_act ACT>
__global__ void glu_kernel(const float *gate, uint32_t gate_stride, const float *up, uint32_t up_stride, float *out,
                           uint32_t out_stride, uint32_t width, bool aligned, float alpha, float limit,
                           bool starts_late, acts_out acts) {
    if (!starts_late) start_successor();
    wait_for_predecessor();
    if (starts_late) start_successor();
    uint32_t i = first_element();
    uint64_t row = blockIdx.y;
    int n = i < width ? (int)(width - i) : 0;
    float4 g = load4(gate + row * gate_stride + i, n, aligned), u = load4(up + row * up_stride + i, n, aligned), y;
    y.x = glu<ACT>(g.x, u.x, alpha, limit);
    y.y = glu<ACT>(g.y, u.y, alpha, limit);
    y.z = glu<ACT>(g.z, u.z, alpha, limit);
    y.w = glu<ACT>(g.w, u.w, alpha, limit);
    store4(out + row * out_stride + i, y, n, aligned);
    if (acts.q) quantise4(y, acts.q + row * width + i, acts.meta + row * (width / 32) + i / 32, n > 0);
}

// ---- gate, add ----------------------------------------------------------------------------------------------------------

__global__ void gate_kernel(const float *x, uint32_t x_stride, const float *g, uint32_t g_stride, float *out,
                            uint32_t out_stride, uint32_t width, uint32_t per_gate) {
    begin_kernel();
    uint64_t row = blockIdx.y;
    uint32_t i = first_element();
    for (uint32_t k = i; k < width && k < i + 4; k++)
        out[row * out_stride + k] = x[row * x_stride + k] * sigmoid(g[row * g_stride + k / per_gate]);
}

__global__ void add_kernel(const float *a, uint32_t a_stride, const float *b, uint32_t b_stride, float *out,
                           uint32_t out_stride, uint32_t width, bool aligned) {
    begin_kernel();
    uint64_t row = blockIdx.y;
    uint32_t i = first_element();
    if (i >= width) return;
    int n = (int)(width - i);
    float4 u = load4(a + row * a_stride + i, n, aligned), v = load4(b + row * b_stride + i, n, aligned);
    store4(out + row * out_stride + i, make_float4(u.x + v.x, u.y + v.y, u.z + v.z, u.w + v.w), n, aligned);
}

// ---- rows ---------------------------------------------------------------------------------------------------------------

__global__ void select_kernel(const float *in, uint32_t in_stride, float *out, uint32_t out_stride, uint32_t width,
                              bool aligned, const int32_t *rows) {
    begin_kernel();
    uint32_t i = first_element();
    if (i >= width) return;
    int n = (int)(width - i);
    store4(out + (uint64_t)blockIdx.y * out_stride + i,
           load4(in + (uint64_t)rows[blockIdx.y] * in_stride + i, n, aligned), n, aligned);
}

__global__ void copy_kernel(float *dst, uint32_t dst_stride, const float *src, uint32_t src_stride, uint32_t width,
                            bool aligned) {
    begin_kernel();
    uint32_t i = first_element();
    if (i >= width) return;
    int n = (int)(width - i);
    store4(dst + (uint64_t)blockIdx.y * dst_stride + i, load4(src + (uint64_t)blockIdx.y * src_stride + i, n, aligned),
           n, aligned);
}

struct copy_slots_args {
    float *dst;
    const float *src;
    const int32_t *mine;
    uint32_t dst_stride, src_stride, width;
    bool to_device, aligned;
};

// x: pieces of a slot, y: slots, z: rows.
__global__ void copy_slots_kernel(copy_slots_args a) {
    begin_kernel();
    uint32_t i = first_element(), slot = blockIdx.y;
    uint64_t row = blockIdx.z;
    if (i >= a.width || (a.mine[row * gridDim.y + slot] < 0) != a.to_device) return;
    uint64_t at = (uint64_t)slot * a.width + i;
    store4(a.dst + row * a.dst_stride + at, load4(a.src + row * a.src_stride + at, (int)(a.width - i), a.aligned),
           (int)(a.width - i), a.aligned);
}

} // namespace

cudaError_t load_elementwise(void) {
    static const void *const KERNELS[] = {(const void *)glu_kernel<ATSI_GLU_SILU>,
                                          (const void *)glu_kernel<ATSI_GLU_GELU_TANH>,
                                          (const void *)glu_kernel<ATSI_GLU_CLAMPED>,
                                          (const void *)gate_kernel,
                                          (const void *)add_kernel,
                                          (const void *)select_kernel,
                                          (const void *)copy_kernel,
                                          (const void *)copy_slots_kernel};
    return load_kernels(KERNELS);
}

void launch_glu(struct launch_ctx *x, const struct atsi_op_call *call) {
    const struct atsi_rows_ref &g = call->in[0], &u = call->in[1], &y = call->out[0];
    const struct atsi_glu_params *p = &call->op->u.glu;
    bool aligned = rows_aligned(g) && rows_aligned(u) && rows_aligned(y);
    acts_out acts = acts_reserve(x->device, y, x->n_rows);
    auto *kernel = p->act == ATSI_GLU_SILU        ? glu_kernel<ATSI_GLU_SILU>
                   : p->act == ATSI_GLU_GELU_TANH ? glu_kernel<ATSI_GLU_GELU_TANH>
                                                  : glu_kernel<ATSI_GLU_CLAMPED>;
    launch_overlapping(kernel, grid_of(y.width, x->n_rows), THREADS, 0, x->stream, (const float *)g.data, g.stride,
                       (const float *)u.data, u.stride, (float *)y.data, y.stride, y.width, aligned, p->alpha, p->limit,
                       x->waiting->before == EXPERTS_START_LATE, acts);
}

void launch_gate(struct launch_ctx *x, const struct atsi_op_call *call) {
    const struct atsi_rows_ref &v = call->in[0], &g = call->in[1], &y = call->out[0];
    launch_overlapping(gate_kernel, grid_of(y.width, x->n_rows), THREADS, 0, x->stream, (const float *)v.data, v.stride,
                       (const float *)g.data, g.stride, (float *)y.data, y.stride, y.width, v.width / g.width);
}

void launch_add(struct launch_ctx *x, const struct atsi_op_call *call) {
    const struct atsi_rows_ref &a = call->in[0], &b = call->in[1], &y = call->out[0];
    bool aligned = rows_aligned(a) && rows_aligned(b) && rows_aligned(y);
    launch_overlapping(add_kernel, grid_of(y.width, x->n_rows), THREADS, 0, x->stream, (const float *)a.data, a.stride,
                       (const float *)b.data, b.stride, (float *)y.data, y.stride, y.width, aligned);
}

void launch_select(struct launch_ctx *x, const struct atsi_op_call *call) {
    const struct atsi_rows_ref &v = call->in[0], &y = call->out[0];
    launch_overlapping(select_kernel, grid_of(y.width, x->n_rows), THREADS, 0, x->stream, (const float *)v.data,
                       v.stride, (float *)y.data, y.stride, y.width, rows_aligned(v) && rows_aligned(y),
                       call->round.output_rows);
}

void launch_copy_rows(struct launch_stream stream, void *dst, uint32_t dst_stride, const void *src, uint32_t src_stride,
                      uint32_t width, uint32_t n_rows) {
    bool aligned = ((uintptr_t)dst | (uintptr_t)src) % 16 == 0 && (dst_stride | src_stride) % 4 == 0;
    launch_overlapping(copy_kernel, grid_of(width, n_rows), THREADS, 0, stream, (float *)dst, dst_stride,
                       (const float *)src, src_stride, width, aligned);
}

void launch_copy_slots(struct launch_stream stream, void *dst, uint32_t dst_stride, const void *src,
                       uint32_t src_stride, uint32_t slot_width, uint32_t n_slots, const int32_t *mine, bool to_device,
                       uint32_t n_rows) {
    copy_slots_args a = {(float *)dst, (const float *)src, mine, dst_stride, src_stride, slot_width, to_device, false};
    a.aligned = ((uintptr_t)dst | (uintptr_t)src) % 16 == 0 && (dst_stride | src_stride | slot_width) % 4 == 0;
    launch_overlapping(copy_slots_kernel, dim3(ceil_div(slot_width, 4 * THREADS), n_slots, n_rows), THREADS, 0, stream,
                       a);
}
