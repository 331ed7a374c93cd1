// heads.h: what attention does to its heads one by one before it reads them, in one launch: norm, rotation, storing in the cache.
#ifndef ATSI_KERNELS_CUDA_HEADS_H
#define ATSI_KERNELS_CUDA_HEADS_H

#include "kernels/cuda/internal.h"

constexpr int HEAD_DIM_MAX = 1024, HEAD_PARTS_MAX = 4;

// n_heads heads of `dim` elements in every row. The steps, each only if asked for: RMS norm, rotation, writing to `out`, storing in
// the slots of a key/value cache.
struct head_part {
    const float *in;
    float *out; // NULL: not written; may be `in`
    uint32_t in_stride, out_stride, n_heads, dim;
    bool normed;
    const float *norm_weight; // [dim] or NULL
    float eps;
    const float *inv_freq; // [rope.n_rot / 2]; NULL: not rotated
    struct atsi_rope_params rope;
    uint8_t *cache; // NULL: not stored; [capacity][n_heads] rows of row_bytes
    uint32_t row_bytes;
};

struct heads_args {
    struct head_part parts[HEAD_PARTS_MAX]; // none reads or writes what another writes
    int n_parts, n_tokens;
    const struct atsi_round *round; // on the device
    uint32_t capacity;              // of the cache
    enum atsi_dtype kv_type;        // F32, F16 or Q8_0
};

// The call's operation becomes a part of `waiting`, or a further step of one of its parts. False: it is another operation, its heads
// are longer than HEAD_DIM_MAX, or it depends on a part in another way.
bool heads_join(struct heads_args *waiting, const struct atsi_op_call *call, int n_rows);
// Whether the call's operation may run ahead of `waiting`: it writes nothing that a part reads or writes, and reads nothing that one writes.
bool heads_independent(const struct heads_args *waiting, const struct atsi_op_call *call, int n_rows);
// The keys and values of an attention call are stored by the parts that make its keys. False: they are not made here.
bool heads_join_store(struct heads_args *waiting, const struct atsi_op_call *call, int n_rows);
// Stores the keys and values of an attention call in a launch of their own.
void heads_store(const struct atsi_op_call *call, int n_rows, struct launch_stream stream);
void heads_launch(const struct heads_args *a, struct launch_stream stream);
cudaError_t load_heads(void);

#endif
