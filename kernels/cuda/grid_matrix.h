// grid_matrix.h: products of many input rows with the grid types on tensor cores (grid_matrix.cu).
#ifndef ATSI_KERNELS_CUDA_GRID_MATRIX_H
#define ATSI_KERNELS_CUDA_GRID_MATRIX_H

#include "kernels/cuda/tiled.h"

// As tiled_type.matrix, with a->codebook as grid_codebook gives it. False, and nothing launched, on cards whose shared memory is too small
// (compute capability 7.5): grid_product does it there.
bool grid_matrix(enum atsi_dtype dtype, const struct tiled_args *a, struct launch_stream stream);
cudaError_t grid_matrix_prepare(enum atsi_dtype dtype, int max_shared_bytes);

#endif
