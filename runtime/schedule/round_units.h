// round_units.h: the units of a plan as one round's scheduling instance. Planner (predicting) and runtime (deciding) build it here,
// so that both see the same round. Pure.
#ifndef ATSI_RUNTIME_SCHEDULE_ROUND_UNITS_H
#define ATSI_RUNTIME_SCHEDULE_ROUND_UNITS_H

#include "formats/plan.h"
#include "runtime/schedule/schedule.h"

// Whether a round can move the unit's weights to the GPU: attention has its cache where it lives, and embedding and head are too
// large a part.
static inline bool atsi_unit_is_promotable(const struct atsi_unit *u) {
    return u->kind == ATSI_UNIT_MATRIX || u->kind == ATSI_UNIT_EXPERTS;
}

// One token chooses its experts only after their router ran, so the GPU reads those in place instead of waiting for a copy.
static inline bool atsi_unit_runs_in_place(const struct atsi_unit *u, uint32_t n_tokens) {
    return u->kind == ATSI_UNIT_EXPERTS && n_tokens == 1;
}

// Share of the experts that a round of n_tokens reads: n_used / n_experts for one token, for n independent ones
// 1 - (1 - n_used / n_experts)^n.
double atsi_active_experts(const struct atsi_experts_params *experts, uint32_t n_tokens);
// Bytes that promoting the unit moves over the link in such a round.
uint64_t atsi_transfer_bytes(const struct atsi_program *p, const struct atsi_unit *u, uint32_t n_tokens);

// The part of that which still crosses the link where some of the unit's experts are resident one by one (formats/plan.h): for one
// token, which reads what it has chosen, 1 - the hit rate; for more, which bring all that is absent, 1 - n / n_experts. 1 for other units.
double atsi_absent_part(const struct atsi_plan *plan, uint32_t i_unit, uint32_t n_tokens);

// How much slower than profiled each resource is now; 1 each when unloaded. And what a hand-over from one side to the other takes beyond
// the planned time: when another program's kernels have their turn on the card, each costs up to a time slice; 0 when unloaded.
struct atsi_scales {
    double cpu, gpu, link;
    double handover_us;
};

// The same for a decode round whose CPU units run beside copies of weights: both sides are slower for it (plan->contention).
struct atsi_scales atsi_scales_contended(const struct atsi_plan *plan, const struct atsi_scales *scales);

// Units of a decode round that streams, filled with contended scales: those that run in place are read more slowly than copies go.
void atsi_units_read_in_place(const struct atsi_plan *plan, struct atsi_schedule_unit *units);

// Fills units[n_units] for a round of n_tokens with `temp_bytes` of temporary region. Times: decode_times for one token; for
// more, prefill_times in proportion to the chunk, but never below a decode round's (launches and weights are paid whatever
// the number of tokens). The plan has both. transfer_us is that of what is absent. scales NULL: as profiled.
void atsi_round_units(const struct atsi_plan *plan, uint32_t n_tokens, uint64_t temp_bytes,
                      const struct atsi_scales *scales, struct atsi_schedule_unit *units);

#endif
