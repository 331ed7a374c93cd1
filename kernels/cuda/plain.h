// plain.h: products with F32, F16 and BF16 weights in plain rows (plain.cu). Inputs are float rows as they are.
#ifndef ATSI_KERNELS_CUDA_PLAIN_H
#define ATSI_KERNELS_CUDA_PLAIN_H

#include "kernels/cuda/experts.h"

// out[r] (+)= W * in[r] (+ bias), as struct tiled_args. Prepared input row r (of a pair p: r = p / in_divisor) is at
// in + (r / in_per_row) * in_stride + (r % in_per_row) * n_cols.
struct plain_args {
    const void *weight, *resident;
    const float *bias, *in;
    float *out;
    uint32_t n_out, n_cols, n_in, in_stride, in_per_row, out_stride;
    bool add;
    struct expert_args experts;
    int n_multiprocessors; // of the card
};

bool plain_supported(enum atsi_dtype dtype);
// As tiled_type.vector and tiled_type.matrix.
void plain_vector(enum atsi_dtype dtype, const struct plain_args *a, struct launch_stream stream);
void plain_matrix(enum atsi_dtype dtype, const struct plain_args *a, struct launch_stream stream);
// The same for F16 and BF16 with aligned rows, several times as fast; false: this case has no such kernel. capability: 90 for 9.0.
bool half_matrix(enum atsi_dtype dtype, const struct plain_args *a, int capability, struct launch_stream stream);
cudaError_t half_matrix_prepare(void);
// out[r] = scale * row row_ids[r] of the table [n_cols]
void plain_embed(enum atsi_dtype dtype, const void *table, const int32_t *row_ids, uint32_t n_cols, uint32_t n_rows,
                 float *out, uint32_t out_stride, float scale, struct launch_stream stream);
cudaError_t plain_prepare(enum atsi_dtype dtype);

#endif
