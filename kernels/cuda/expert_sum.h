// expert_sum.h: the weighted sum of a token's slots (norm.h: with the norm that reads it).
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
    bool
        inputs_are_final; // no kernel that may still run when the launch starts writes weights, ids or, with `add`, out (waiting.h)
    int n_rows;
};

void expert_sum_launch(const struct expert_sum_args *a, struct launch_stream stream);
cudaError_t load_expert_sum(void);

#endif
