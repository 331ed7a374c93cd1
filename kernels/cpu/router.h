// router.h: which experts a token uses and with what weights, and in which order.
#ifndef ATSI_KERNELS_CPU_ROUTER_H
#define ATSI_KERNELS_CPU_ROUTER_H

#include "kernels/cpu/vec.h"

// logits, bias (may be NULL): [n_experts]; scores: scratch [n_experts]; out: ids, weights [n_used], best first. Equal scores: the
// lower number first. The ids are distinct and in range whatever the logits are.
void atsi_route(const struct atsi_vec_kernels *vec, const struct atsi_router_params *p, const float *logits,
                const float *bias, float *scores, int32_t *ids, float *weights);
// Moves the experts with resident_slots[id] >= 0 (struct atsi_experts_ref) and their weights before the others; both groups keep their
// order. Returns how many they are.
uint32_t atsi_route_resident_first(const int32_t *resident_slots, uint32_t n_used, int32_t *ids, float *weights);

#endif
