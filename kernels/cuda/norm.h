// norm.h: RMS norm of rows, where it does not go in a launch of its own.
#ifndef ATSI_KERNELS_CUDA_NORM_H
#define ATSI_KERNELS_CUDA_NORM_H

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/expert_sum.h"

// out (+)= the norm of each group of in's rows, and quantised to `acts`.
struct norm_args {
    const float *in;
    float *out;
    const float *weight; // [group] or NULL
    uint32_t in_stride, out_stride, group, width;
    float eps;
    bool add, aligned; // aligned: rows and weights may be read four elements at a time
    struct acts_out acts;
    int n_rows;
};

void norm_launch(const struct norm_args *a, struct launch_stream stream);
// The sum and, in the same launch, the norm of an RMS_NORM call. False, and nothing is launched: the call does not read the sum's rows
// whole.
bool norm_launch_with_sum(struct launch_ctx *x, const struct expert_sum_args *sum, const struct atsi_op_call *call);

#endif
