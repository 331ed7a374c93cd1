// attention.h: what the attention kernels share.
//
// Rows. The query heads that read one key head are computed together: row r of key head h is token r / group, query head
// h * group + r % group, so that its keys and values are loaded once for the whole group.
#ifndef ATSI_KERNELS_CUDA_ATTENTION_H
#define ATSI_KERNELS_CUDA_ATTENTION_H

#include "kernels/cuda/internal.h"

struct attention_args {
    const float *q;
    float *out;
    const float *sinks; // [n_heads] or NULL
    uint8_t *k_cache, *v_cache;
    float *partial; // divided attention: what the splits leave (attention.cuh)
    const struct atsi_round *round;
    uint32_t q_stride, out_stride;
    uint32_t k_row_bytes, v_row_bytes; // of one head at one position
    int n_tokens, n_kv_heads, group, k_dim, v_dim, window, n_splits;
    uint32_t capacity;    // position p stands in slot p % capacity
    int max_shared_bytes; // of a block
    float scale;          // of the logits; for exp2 it already holds the factor 1 / ln 2
};

// Floats of what a split leaves of one row: v_dim sums and a record.
static inline int partial_floats(int v_dim) { return v_dim + 2; }
constexpr int SPLITS_CAP = 64;
constexpr int SPLIT_ROWS_CAP = 64; // rows of a key head up to which the context is divided among blocks

// Tensor-core kernels (attention_mma_*.cu), for what attention_has_mma says there are: some equal key and value sizes.
bool attention_has_mma(int k_dim, int v_dim, enum atsi_dtype kv_type);
void attention_split_mma(const struct attention_args *a, enum atsi_dtype kv_type, struct launch_stream stream);
void attention_tiled_mma(const struct attention_args *a, enum atsi_dtype kv_type, struct launch_stream stream);
cudaError_t attention_mma_prepare(int dim, enum atsi_dtype kv_type, int max_shared_bytes);

#endif
