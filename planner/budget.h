// budget.h: what a plan takes on the GPU (docs/placement.md, "The budget is a promise").
#ifndef ATSI_PLANNER_BUDGET_H
#define ATSI_PLANNER_BUDGET_H

#include "formats/device_profile.h"
#include "formats/plan.h"

struct atsi_device;

// Everything that counts against --vram, in bytes. They add up to vram.
struct atsi_budget {
    uint64_t vram;
    uint64_t driver;   // context, modules, handles
    uint64_t compute;  // activations and kernel scratch at the planned chunk
    uint64_t states;   // caches of the units on the GPU
    uint64_t temp;     // temporary region for promoted units
    uint64_t resident; // weights of the units on the GPU, and all small tensors
    uint64_t experts;  // those that are resident one by one, and their tables
    uint64_t spare;
};

// Bytes that are there whatever is placed: driver, activations and kernel scratch at the plan's chunk, small tensors. `device`:
// whose kernels' scratch counts; NULL: an estimate, for a device that is elsewhere.
uint64_t atsi_budget_base(const struct atsi_plan *plan, const struct atsi_device_profile *profile,
                          const struct atsi_device *device);
// The same in whole MiB: the smallest budget that works.
uint64_t atsi_budget_least(const struct atsi_plan *plan, const struct atsi_device_profile *profile,
                           const struct atsi_device *device);
// Bytes that a unit takes on the GPU: its matrices and states, aligned as the runtime allocates them.
uint64_t atsi_budget_unit(const struct atsi_plan *plan, const struct atsi_unit *unit);
// Bytes that two units need only once when both are on the GPU: the matrix of an embedding that the head reads too.
uint64_t atsi_budget_shared(const struct atsi_plan *plan);

// The table of a placed plan: limits and the units' backends are set.
struct atsi_budget atsi_budget_of(const struct atsi_plan *plan, const struct atsi_device_profile *profile,
                                  const struct atsi_device *device);

#endif
