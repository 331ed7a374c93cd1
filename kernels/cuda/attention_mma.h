// attention_mma.h: one record of launchers a head size, per cache type; the lists end with dim 0.
#ifndef ATSI_KERNELS_CUDA_ATTENTION_MMA_H
#define ATSI_KERNELS_CUDA_ATTENTION_MMA_H

#include "kernels/cuda/attention.h"

struct attention_kernels {
    int dim;
    void (*split)(const struct attention_args &a, struct launch_stream stream);
    void (*tiled)(const struct attention_args &a, struct launch_stream stream);
    cudaError_t (*prepare)(int max_shared_bytes);
};

extern const struct attention_kernels ATTENTION_F16[], ATTENTION_Q8_0[];

#endif
