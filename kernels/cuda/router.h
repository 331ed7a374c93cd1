// router.h: a router's product and its choice in one launch.
#ifndef ATSI_KERNELS_CUDA_ROUTER_H
#define ATSI_KERNELS_CUDA_ROUTER_H

#include "kernels/cuda/plain.h"

// Bytes of device memory that count the blocks of such a launch: zero before the first, and every launch leaves them so.
constexpr uint64_t ROUTER_COUNTER_BYTES = 256;

// Whether a product is of a form that a router may join: one row, F32 weights in aligned rows, few results.
bool router_may_join(enum atsi_dtype dtype, const struct plain_args *product);
// Launches the product and the ROUTER call that reads it. False, and nothing is launched: it does not, or launch_router would refuse
// the call. counter: ROUTER_COUNTER_BYTES.
bool router_launch_with_product(struct launch_ctx *x, const struct plain_args *product,
                                const struct atsi_op_call *call, uint32_t *counter);

#endif
