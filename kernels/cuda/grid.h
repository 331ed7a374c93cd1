// grid.h: products with the grid types (IQ1, IQ2, IQ3), which stand in plain rows (grid.cu).
#ifndef ATSI_KERNELS_CUDA_GRID_H
#define ATSI_KERNELS_CUDA_GRID_H

#include "kernels/cuda/experts.h"

// out[r] (+)= W * in[r] (+ bias), as struct tiled_args. With experts.ids: row r is a pair.
struct grid_args {
    const uint8_t *weight, *resident;
    uint64_t expert_bytes;
    const float *bias;
    struct acts in;
    float *out;
    uint32_t n_out, n_cols, n_in, out_stride;
    bool add;
    struct expert_args experts;
    const uint8_t *tables;                   // of the device, as grid_tables_upload left them
    int n_multiprocessors, max_shared_bytes; // of the card
};

// Products of one input row, or of pairs (grid_row.cu). words: grid_codebook's. False, and nothing launched, where the card's shared memory is
// too small for the input row.
bool grid_row(enum atsi_dtype dtype, const struct grid_args *a, const uint32_t *words, struct launch_stream stream);
cudaError_t grid_row_prepare(enum atsi_dtype dtype, int max_shared_bytes);

bool grid_supported(enum atsi_dtype dtype);
// False, and nothing launched, for experts whose input row is too long for the card's shared memory (more than 16384 with compute capability
// 7.5).
bool grid_product(enum atsi_dtype dtype, const struct grid_args *a, struct launch_stream stream);
cudaError_t grid_prepare(enum atsi_dtype dtype, int max_shared_bytes);

// The codebooks of all types in device memory.
uint64_t grid_tables_bytes(void);
cudaError_t grid_tables_upload(uint8_t *dev);
// The type's among them.
const uint32_t *grid_codebook(enum atsi_dtype dtype, const uint8_t *tables);

#endif
