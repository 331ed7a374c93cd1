// expert_sum.h: the weighted sum of a token's slots, alone or with the norm that reads it.
#ifndef ATSI_KERNELS_CUDA_EXPERT_SUM_H
#define ATSI_KERNELS_CUDA_EXPERT_SUM_H

#include "kernels/cuda/internal.h"

// out[i] (+)= the sum over slots s of weights[s] * slots[s * width + i] in ascending order of their ids, for every row.
struct expert_sum_args {
    const float *slots, *weights;
    const int32_t *ids; // NULL: slots are summed as they stand
    float *out;
    uint32_t slots_stride, weights_stride, ids_stride, out_stride, width, n_slots;
    bool add;
    int n_rows;
};

void expert_sum_launch(const struct expert_sum_args *a, struct launch_stream stream);
// norm.cu: the sum and, in the same launch, the norm of an RMS_NORM call. False, and nothing is launched: the call does not read the
// sum's rows whole, or one of the two is too wide.
bool expert_sum_launch_with_norm(struct launch_ctx *x, const struct expert_sum_args *sum,
                                 const struct atsi_op_call *call);
cudaError_t load_expert_sum(void);

#endif
