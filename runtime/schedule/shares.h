// shares.h: how CPU-resident units are divided between both processors in rounds of one token. Planner (predicting) and runtime
// (deciding) divide them here. Pure.
#ifndef ATSI_RUNTIME_SCHEDULE_SHARES_H
#define ATSI_RUNTIME_SCHEDULE_SHARES_H

#include "formats/plan.h"
#include "runtime/schedule/schedule.h"

// The part of a unit that the GPU computes in place beside the CPU, so that both end together: they draw on the same host memory, and
// reading in place is slower than the copy engine (plan->contention). `in_place`: how much slower than that the GPU's part has turned out
// for this unit, 1 when nothing is known. 0: nothing to divide.
float atsi_share_of(const struct atsi_contention *contention, const struct atsi_schedule_unit *unit, double in_place);

// The same for unit i_unit of a plan: of experts some of which are resident one by one, the number of slots with which both end best
// (hits.h), as a part of all; 1: the GPU computes the unit alone. `unit` is of a round of one token.
float atsi_share_of_unit(const struct atsi_plan *plan, uint32_t i_unit, const struct atsi_schedule_unit *unit,
                         double in_place);

// Experts behind one router are divided alike, by the mean of what suits each: the operations of a slot stay on one side, and nothing
// crosses between them. gpu_share [n_units].
void atsi_shares_even_out(const struct atsi_program *program, float *gpu_share);

// Shares of all units that are on the CPU and can be shared (script.h), into gpu_share [n_units], 0 for the others. Returns how many are.
uint32_t atsi_share_units(const struct atsi_plan *plan, const struct atsi_schedule_unit *units, float *gpu_share);

#endif
