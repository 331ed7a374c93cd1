// tiled.h: products with weights in TILE16, one record of launchers a type (instances in tiled_*.cu).
#ifndef ATSI_KERNELS_CUDA_TILED_H
#define ATSI_KERNELS_CUDA_TILED_H

#include "kernels/cuda/experts.h"

// One weight and the rows that it makes.
struct tiled_part {
    const uint8_t *weight, *resident; // experts: the tensor, and the block of those that are resident one by one
    uint64_t expert_bytes;            // from expert to expert, in both
    const float *bias;                // [n_out] (experts: [n_experts][n_out]) or NULL
    float *out;
    uint32_t n_out, out_stride; // out_stride: floats from token to token
    bool add;
};
constexpr int TILED_PARTS_MAX = 3;

// out[r] (+)= W * in[r] (+ bias), r < n_in, for every part. With experts.ids: row r is a pair, W and bias those of its expert.
// Several parts: vector kernels only.
struct tiled_args {
    struct tiled_part parts[TILED_PARTS_MAX];
    int n_parts;
    struct acts in;
    uint32_t n_cols, n_in;
    struct expert_args experts;
    bool ids_are_final; // with experts.ids: no kernel that may still run when the launch starts writes them (waiting.h)
    const int32_t *row_ids;                              // embed only: [n_in]
    const uint32_t *codebook;                            // grid types only
    int n_multiprocessors, max_shared_bytes, capability; // of the card
};

// What a GLU makes of the rows of two parts, gate and up, and where it goes besides.
struct glu_args {
    struct atsi_glu_params params;
    float *out;
    uint32_t out_stride;
    int8_t *q; // quantised
    act_meta *meta;
};
constexpr uint32_t GLU_ROWS = 32; // of both parts in a block: as many as are quantised together

struct tiled_type {
    enum atsi_dtype dtype;
    // Dense: n_in <= VECTOR_ROWS; with ids: any.
    void (*vector)(const struct tiled_args *a, struct launch_stream stream);
    // With ids, two parts of the same n_out, a multiple of GLU_ROWS. False, and nothing is launched: the products alone are faster.
    bool (*vector_glu)(const struct tiled_args *a, const struct glu_args *glu, struct launch_stream stream);
    // With ids: groups are built.
    void (*matrix)(const struct tiled_args *a, struct launch_stream stream);
    // out[r] = scale * row row_ids[r] of the table [n_out rows, n_cols]
    void (*embed)(const struct tiled_args *a, float scale, struct launch_stream stream);
    cudaError_t (*prepare)(int max_shared_bytes); // loads the kernels, raises their shared-memory limits
};

// NULL when the type has no TILE16 kernels.
const struct tiled_type *tiled_type_of(enum atsi_dtype dtype);

extern const struct tiled_type TILED_Q8_0, TILED_Q4_0, TILED_Q4_1, TILED_Q5_0, TILED_Q5_1, TILED_IQ4_NL, TILED_MXFP4,
    TILED_Q2_K, TILED_Q3_K, TILED_Q4_K, TILED_Q5_K, TILED_Q6_K, TILED_IQ4_XS;

#endif
