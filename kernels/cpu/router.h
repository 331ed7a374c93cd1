// router.h: which experts a token uses and with what weights.
#ifndef ATSI_KERNELS_CPU_ROUTER_H
#define ATSI_KERNELS_CPU_ROUTER_H

#include "kernels/cpu/vec.h"

// logits, bias (may be NULL): [n_experts]; scores: scratch [n_experts]; out: ids, weights [n_used], best first. Equal scores: the
// lower number first. The ids are distinct and in range whatever the logits are.
void atsi_route(const struct atsi_vec_kernels *vec, const struct atsi_router_params *p, const float *logits,
                const float *bias, float *scores, int32_t *ids, float *weights);

#endif
