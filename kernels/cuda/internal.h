// internal.h: what the files of kernels/cuda share on the host side: the device, its scratch memory, one launcher an op family.
//
// Launchers enqueue on the stream and return; cuda_launch (launch.cu) checks the driver's verdict once behind them. They
// allocate nothing. Sizes that the host knows (rows, widths) shape the grid; the position of the round is read by the kernels from
// device memory, so that a captured graph is valid for every later round with the same number of rows.
#ifndef ATSI_KERNELS_CUDA_INTERNAL_H
#define ATSI_KERNELS_CUDA_INTERNAL_H

#include <cuda.h>
#include <cuda_runtime.h>
#include <stdint.h>

extern "C" {
#include "formats/base/error.h"
#include "formats/dtype.h"
#include "formats/program.h"
#include "kernels/cpu/steps.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/device.h"
#include "kernels/layout.h"
#include "kernels/op_call.h"
}

// Rows up to which a matrix product runs as matrix times vectors (one tensor-core column tile).
constexpr int VECTOR_ROWS = 8;

// What is common to 32 quantised input values beside their int8 codes.
struct act_meta {
    float d;        // x ~ d * q
    int16_t sum[2]; // of q[0..15] and of q[16..31]
};

// Inputs prepared for matrix products: row r of n_cols int8 codes at q + r * n_cols, its n_cols / 32 records at
// meta + r * (n_cols / 32).
struct acts {
    const int8_t *q;
    const act_meta *meta;
};

// Device memory behind the launchers, carved from one allocation by prepare().
struct scratch {
    uint8_t *base;
    uint64_t size_bytes;
    uint64_t acts_offset, acts_bytes;           // quantised (or split half) inputs
    uint64_t attention_offset, attention_bytes; // partial results of divided attention
    uint64_t groups_offset, groups_bytes;       // expert groups
    uint64_t grids_offset, grids_bytes;         // codebooks of the grid types
};

// Which float rows the quantised inputs in scratch stand for; data NULL: none.
struct acts_key {
    const void *data;
    uint32_t stride, width, n_rows;
    uint64_t offset; // where they begin in scratch.acts
};

// The driver's memory operations of streams (cuda.h), NULL where it has none.
struct mark_calls {
    CUresult (*write)(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags);
    CUresult (*wait)(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags);
};

struct cuda_device {
    struct atsi_device base;
    struct atsi_error sticky; // status ATSI_OK: healthy
    int ordinal;
    int n_multiprocessors;
    int max_shared_bytes; // a block may ask for
    int capability;       // compute capability times 10
    struct scratch scratch;
    struct acts_key acts;        // contents of scratch.acts, in stream order
    void *nvml;                  // dlopen handle, NULL without
    struct nvml_card *nvml_card; // for looks at the free memory; NULL: the runtime is asked
    struct mark_calls mark_calls;
};

struct waiting; // waiting.h

struct cuda_stream {
    struct atsi_stream base;
    cudaStream_t handle;
    bool owns_device; // base.device is this stream's own copy
    bool capturing;
    struct waiting *waiting;
};

// Where launches go.
struct launch_stream {
    cudaStream_t handle;
    bool overlaps; // a kernel may start while its predecessor ends (common.cuh)
};

// One launch: where it goes and how many rows the host knows of.
struct launch_ctx {
    struct cuda_device *device;
    struct launch_stream stream;
    int n_rows; // tokens, or outputs for a call of the outputs domain
    struct waiting *waiting;
    bool kv_stored; // attention: keys and values stand in the cache already
};

static inline struct cuda_device *cuda_device_of(struct atsi_device *d) { return (struct cuda_device *)d; }
static inline struct launch_stream launch_stream_of(struct atsi_stream *s) {
    struct launch_stream stream = {((struct cuda_stream *)s)->handle, cuda_device_of(s->device)->capability >= 90};
    return stream;
}

// ---- launchers, by file -----------------------------------------------------------------------------------------------
// Every one: shapes were checked by atsi_program_check; in and out may share rows where the op reads an element before it
// writes it (add, norm in place). ATSI_FAILED only for what the kernels do not support, named in the message.

// Every file also loads its kernels when asked, so that none loads during generation.

void open_marks(struct cuda_device *d); // marks.cu: finds the driver's calls
// driver.cu: a function of the driver's library as of that version (11020: 11.2); NULL: it has none.
void *cuda_driver_call(const char *name, unsigned version);

// elementwise.cu
cudaError_t load_elementwise(void);
void launch_glu(struct launch_ctx *x, const struct atsi_op_call *call);
void launch_gate(struct launch_ctx *x, const struct atsi_op_call *call);
void launch_add(struct launch_ctx *x, const struct atsi_op_call *call);
void launch_select(struct launch_ctx *x, const struct atsi_op_call *call);
void launch_copy_rows(struct launch_stream stream, void *dst, uint32_t dst_stride, const void *src, uint32_t src_stride,
                      uint32_t width, uint32_t n_rows);
void launch_copy_slots(struct launch_stream stream, void *dst, uint32_t dst_stride, const void *src,
                       uint32_t src_stride, uint32_t slot_width, uint32_t n_slots, const int32_t *mine, bool to_device,
                       uint32_t n_rows);
// expert_sum.cu
enum atsi_status launch_expert_sum(struct launch_ctx *x, const struct atsi_op_call *call, struct atsi_error *err);
// fetch.cu
cudaError_t load_fetch(void);
// On a stream where the ids are there when it comes to it.
void launch_fetch_experts(cudaStream_t stream, const struct atsi_op_call *call);
// norm.cu
cudaError_t load_norm(void);
void launch_rms_norm(struct launch_ctx *x, const struct atsi_op_call *call);
// embed.cu
enum atsi_status launch_embed(struct launch_ctx *x, const struct atsi_op_call *call, struct atsi_error *err);
// router.cu
cudaError_t load_router(void);
enum atsi_status launch_router(struct launch_ctx *x, const struct atsi_op_call *call, struct atsi_error *err);
// recurrent.cu
cudaError_t load_recurrent(void);
enum atsi_status launch_conv(struct launch_ctx *x, const struct atsi_op_call *call, struct atsi_error *err);
enum atsi_status launch_delta_rule(struct launch_ctx *x, const struct atsi_op_call *call, struct atsi_error *err);
// attention.cu
cudaError_t load_attention(const struct cuda_device *d, const struct atsi_program *p);
enum atsi_status launch_attention(struct launch_ctx *x, const struct atsi_op_call *call, struct atsi_error *err);
uint64_t attention_scratch_bytes(const struct atsi_program *p, uint32_t n_tokens_max);
// matmul.cu
cudaError_t load_matmul(const struct cuda_device *d, const struct atsi_program *p);
enum atsi_status launch_matmul(struct launch_ctx *x, const struct atsi_op_call *call, struct atsi_error *err);
enum atsi_status launch_experts(struct launch_ctx *x, const struct atsi_op_call *call, struct atsi_error *err);
// A product of the same few inputs as those that wait joins them.
bool product_joins(struct launch_ctx *x, const struct atsi_op_call *call);
// A GLU of experts' gate and up that wait is launched with them.
bool glu_joins(struct launch_ctx *x, const struct atsi_op_call *call);
uint64_t matmul_tables_bytes(const struct atsi_program *p); // codebooks; 0 when no weight needs them
uint64_t matmul_acts_bytes(const struct atsi_program *p, uint32_t n_tokens_max, uint32_t n_outputs_max);
uint64_t experts_groups_bytes(const struct atsi_program *p, uint32_t n_tokens_max);
// launch.cu
// Launches what waits on the stream (waiting.h). Before anything else touches the stream.
enum atsi_status cuda_flush(struct atsi_stream *s, struct atsi_error *err);
enum atsi_status cuda_launch(struct atsi_stream *s, const struct atsi_op_call *call, const struct atsi_round *round,
                             struct atsi_error *err);
uint64_t cuda_scratch_bytes(const struct atsi_program *p, uint32_t n_tokens_max, uint32_t n_outputs_max,
                            uint32_t n_ctx);
enum atsi_status cuda_prepare(struct atsi_device *d, const struct atsi_program *p, uint32_t n_tokens_max,
                              uint32_t n_outputs_max, uint32_t n_ctx, struct atsi_error *err);
// range.cu
enum atsi_status cuda_range_create(struct atsi_device *d, uint64_t bytes, struct atsi_range **out,
                                   struct atsi_error *err);
enum atsi_status cuda_range_back(struct atsi_device *d, struct atsi_range *r, uint64_t bytes, struct atsi_error *err);
void cuda_range_destroy(struct atsi_device *d, struct atsi_range *r);
// marks.cu
cudaError_t load_marks(void);
enum atsi_status cuda_post_mark(struct atsi_stream *s, void *word_dev, const int32_t *base_dev, int32_t offset,
                                struct atsi_error *err);
enum atsi_status cuda_await_mark(struct atsi_stream *s, const void *word_dev, const int32_t *base_dev, int32_t offset,
                                 struct atsi_error *err);
// driver.cu
void nvml_open(struct cuda_device *d);
void nvml_close(struct cuda_device *d);
// Free bytes of the card without a call into the CUDA context, whose lock another thread may hold for long (recording graphs). False when
// the library cannot tell.
bool nvml_free_bytes(const struct cuda_device *d, uint64_t *bytes);
uint64_t nvml_process_bytes(const struct cuda_device *d); // 0 when the driver does not tell

// ---- errors -----------------------------------------------------------------------------------------------------------
// Fails with the sticky error when the device has one, else records this one as sticky when `status` is a failure.
enum atsi_status cuda_check(struct cuda_device *d, cudaError_t status, const char *what, struct atsi_error *err);
// The sticky error, or ATSI_OK.
enum atsi_status cuda_healthy(const struct cuda_device *d, struct atsi_error *err);

// Quantised inputs whose float rows lie in these bytes are stale.
void forget_acts(struct cuda_device *d, const void *written, uint64_t bytes);

// Makes the driver load kernels by asking for their attributes.
template <int N> static inline cudaError_t load_kernels(const void *const (&kernels)[N]) {
    struct cudaFuncAttributes attributes;
    cudaError_t status = cudaSuccess;
    for (const void *kernel : kernels)
        if (status == cudaSuccess) status = cudaFuncGetAttributes(&attributes, kernel);
    return status;
}

// The quantised inputs of `key` are in scratch already.
static inline bool acts_are(const struct cuda_device *d, struct acts_key key) {
    return d->acts.data != NULL && d->acts.data == key.data && d->acts.stride == key.stride &&
           d->acts.width == key.width && d->acts.n_rows == key.n_rows;
}
static inline struct acts_key acts_key_of(const struct atsi_rows_ref *rows, int n_rows) {
    struct acts_key key = {rows->data, rows->stride, rows->width, (uint32_t)n_rows, 0};
    return key;
}
// Those of the device's record.
static inline struct acts acts_in_scratch(const struct cuda_device *d, uint32_t n_rows, uint32_t n_cols) {
    struct acts a;
    a.q = (const int8_t *)(d->scratch.base + d->scratch.acts_offset + d->acts.offset);
    a.meta = (const act_meta *)(a.q + (uint64_t)n_rows * n_cols);
    return a;
}
// Bytes of n_rows quantised rows.
static inline uint64_t acts_bytes(uint64_t n_rows, uint64_t n_cols) {
    return n_rows * (n_cols + n_cols / 32 * sizeof(act_meta));
}
// True when such rows fit into the scratch region (an op of the prepared program never misses).
static inline bool acts_fit(const struct cuda_device *d, uint64_t n_rows, uint64_t n_cols) {
    return acts_bytes(n_rows, n_cols) <= d->scratch.acts_bytes;
}

// Bytes from the first to the last element of rows.
static inline uint64_t rows_bytes(uint32_t stride, uint32_t width, uint32_t n_rows) {
    return n_rows == 0 ? 0 : 4 * ((uint64_t)(n_rows - 1) * stride + width);
}

// Whether n_rows rows of each share an element, as the CPU's steps see it.
static inline bool rows_overlap(struct atsi_rows_ref a, struct atsi_rows_ref b, uint32_t n_rows) {
    const struct atsi_span x = {a.data, a.stride, a.width, n_rows, true, false},
                           y = {b.data, b.stride, b.width, n_rows, true, false};
    return atsi_spans_overlap(&x, &y);
}

static inline uint32_t ceil_div(uint32_t a, uint32_t b) { return (a + b - 1) / b; }

#endif
