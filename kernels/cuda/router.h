// router.h: a router's scores, the norm before them and the choice behind them in one launch.
#ifndef ATSI_KERNELS_CUDA_ROUTER_H
#define ATSI_KERNELS_CUDA_ROUTER_H

#include "kernels/cuda/norm.h"
#include "kernels/cuda/plain.h"

// Bytes of device memory through which the blocks of such a launch hand their scores on: zero before the first, and every launch leaves
// them so.
constexpr uint64_t ROUTER_POST_BYTES = EXPERTS_CAP * sizeof(uint64_t);

// Whether a product is of a form that a router may join: one row, F32 weights in aligned rows, few results.
bool router_may_join(enum atsi_dtype dtype, const struct plain_args *scores);
// Launches the product and the ROUTER call that reads it. norm: what makes the product's input, launched too (n_rows 0: it is made). False,
// and nothing is launched: the call reads something else, or launch_router would refuse it. posts: ROUTER_POST_BYTES.
bool router_launch_with_scores(struct launch_ctx *x, const struct plain_args *scores, const struct norm_args *norm,
                               const struct atsi_op_call *call, uint64_t *posts);
// matmul.cu: holds the product of a MATMUL call back if a router may join it. A norm that waits must be that of its input.
bool product_waits_for_router(struct launch_ctx *x, const struct atsi_op_call *call);

#endif
