// shares.h: how CPU-resident units are divided between both processors in rounds of one token. Planner (predicting) and runtime
// (deciding) divide them here. Pure.
#ifndef ATSI_RUNTIME_SCHEDULE_SHARES_H
#define ATSI_RUNTIME_SCHEDULE_SHARES_H

#include "formats/plan.h"
#include "runtime/schedule/hits.h"
#include "runtime/schedule/schedule.h"
#include "runtime/schedule/script_cost.h"

// The part of a work that the GPU computes so that both sides end together, from what all of it takes on either side and what of that is
// taken for any part (no more than the whole). 0 or 1 where one side has better do all of it.
double atsi_even_part(double cpu_us, double cpu_fixed_us, double gpu_us, double gpu_fixed_us);

// The part of a unit that the GPU computes in place beside the CPU, so that both end together: they draw on the same host memory, and
// reading in place is slower than the copy engine (plan->contention). `in_place`: how much slower than that the GPU's part has turned out
// for this unit, 1 when nothing is known. 0: nothing to divide.
float atsi_share_of(const struct atsi_contention *contention, const struct atsi_schedule_unit *unit, double in_place);

// Before any operation behind a router is added: what the CPU takes to begin.
struct atsi_slot_times atsi_slot_times_start(const struct atsi_plan *plan);
// What a token's experts of unit i_unit take on either side; some of them are resident one by one, and `unit` is of a round of one token.
struct atsi_slot_times atsi_slot_times_of(const struct atsi_plan *plan, uint32_t i_unit,
                                          const struct atsi_schedule_unit *unit, double in_place);

// What a token's experts behind the router of unit router_unit take on either side; some of them are resident one by one, and `units` are of a
// round of one token. factors [n_units], NULL: 1 each. A unit u counts if it has residents and counts[u] is not 0 (NULL: all); false when one
// with residents does not, or there is none. *n_used: experts a token.
bool atsi_expert_times_of(const struct atsi_plan *plan, uint32_t router_unit, const struct atsi_schedule_unit *units,
                          const struct atsi_unit_factors *factors, const float *counts, struct atsi_expert_times *out,
                          uint32_t *n_used);
// Whether the temporary region has room for what fetching ahead brings for one token behind that router (hits.h, can_fetch).
bool atsi_region_holds_slots(const struct atsi_plan *plan, uint32_t router_unit, uint64_t temp_bytes);

// Experts behind one router are divided alike, by the mean of what suits each: the operations of a slot stay on one side, and nothing
// crosses between them. gpu_share [n_units].
void atsi_shares_even_out(const struct atsi_program *program, float *gpu_share);

// Shares of all units. gpu_share [n_units]: on entry whether a unit is on the CPU and can be shared (not 0), on return the part that the GPU
// computes, 0: nothing to divide, 1: all of it. Where some of the experts behind a router on the GPU are resident one by one and all of
// these units can be shared, a token's slots are divided by how many of its experts are resident: divisions [n_units] at the units that
// hold a router; the share is then the mean. `units` are of a round of one token; factors [n_units], NULL: 1 each. Returns how many are shared.
uint32_t atsi_share_units(const struct atsi_plan *plan, const struct atsi_schedule_unit *units,
                          const struct atsi_unit_factors *factors, float *gpu_share,
                          struct atsi_slot_division *divisions);

#endif
