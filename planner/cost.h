// cost.h: what each unit of a program costs on either side, from a device profile (docs/placement.md).
#ifndef ATSI_PLANNER_COST_H
#define ATSI_PLANNER_COST_H

#include "formats/device_profile.h"
#include "formats/plan.h"
#include "runtime/schedule/round_units.h"

// The work of one operation: bytes that must be read (weights, cache, activations) and floating-point operations.
struct atsi_work {
    double bytes, flops;
    uint32_t dtype; // of what is read
};

// Decode: one token; prefill: a chunk of which no or one row is turned into logits. Attention is priced with half of the planned
// context in the cache, so that a rate is that of the middle of a long answer.
struct atsi_work atsi_work_of_op(const struct atsi_plan *plan, const struct atsi_op *op, enum atsi_phase phase);

// Whether the GPU has kernels for the types of the matrices: floats and those packed in tiles.
bool atsi_op_runs_on_gpu(const struct atsi_program *program, const struct atsi_op *op);
bool atsi_unit_runs_on_gpu(const struct atsi_program *program, const struct atsi_unit *unit);

// What the GPU side of a unit that cannot run there costs: more than any round.
#define ATSI_NEVER_US 1e9

// times[plan->program.n_units]. switch_us: of the boundary before the unit (what it reads from before, copied, and the hand-over);
// transfer_us: of its weights to the GPU (experts: of the active ones). *n_estimated (may be NULL): operations priced by a fitted
// line and not by a measurement of exactly that work.
void atsi_cost_units(const struct atsi_plan *plan, const struct atsi_device_profile *profile, enum atsi_phase phase,
                     struct atsi_unit_times *times, uint32_t *n_estimated);

// Bytes that a promotion of the unit moves in a round.
uint64_t atsi_cost_transfer_bytes(const struct atsi_plan *plan, const struct atsi_unit *unit, enum atsi_phase phase);

#endif
