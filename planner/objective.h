// objective.h: what a placement minimises, and what each unit contributes to it (docs/placement.md, "The problem").
#ifndef ATSI_PLANNER_OBJECTIVE_H
#define ATSI_PLANNER_OBJECTIVE_H

#include "formats/device_profile.h"
#include "formats/plan.h"
#include "planner/solve/solve.h"

// (1 - W) * decode + W * prefill, both a token and both relative to what the CPU alone takes, in microseconds of a decode round: a
// weight means the same for every model, machine and chunk, and halving either phase from there is worth its weight.
struct atsi_objective {
    double prefill_weight;     // W, 0..1
    double decode_per_prefill; // decode over prefill time of a token, all on the CPU
};

// From the plan's times. Objectives that are compared come from one call: the chunk may differ, the yardstick may not.
struct atsi_objective atsi_objective_of(const struct atsi_plan *plan, double prefill_weight);
// Of a decode round and a prefill chunk.
double atsi_objective_us(const struct atsi_objective *o, const struct atsi_plan *plan, double decode_us,
                         double prefill_us);

// What a unit that stays on the CPU costs a round in which the link carries such units too. A token: both processors work through it
// at the same time, each slower for the other (plan->contention), and end together, each having paid its fixed part. A chunk: the link alone keeps up with the GPU, or
// it does not.
double atsi_streamed_us(const struct atsi_plan *plan, uint32_t i_unit, enum atsi_phase phase);

// Sizes, times and switches of units[n_units] for the solver. With `streamed` the CPU's times are what the link leaves of them in
// rounds with dynamic transfer, so that a placement leaves to the link what it can carry and gives residency to what cannot
// move. Units without GPU kernels are fixed to the CPU; other fixes are the caller's.
void atsi_objective_units(const struct atsi_objective *o, const struct atsi_plan *plan, bool streamed,
                          struct atsi_solve_unit *units);

#endif
