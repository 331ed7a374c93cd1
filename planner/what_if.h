// what_if.h: the same model on the same machine with another budget or context. No weights are read.
#ifndef ATSI_PLANNER_WHAT_IF_H
#define ATSI_PLANNER_WHAT_IF_H

#include <stdio.h>

#include "planner/place.h"

enum {
    ATSI_WHAT_IF_MAX_BUDGETS = 12
};

// Predictions for another budget and context at the plan's chunk; *fits is false when the budget is too small for any placement.
// *plan stays as it is.
enum atsi_status atsi_place_elsewhere(const struct atsi_plan *plan, const struct atsi_device_profile *profile,
                                      const struct atsi_place_options *options, uint64_t vram, uint32_t n_ctx,
                                      bool *fits, struct atsi_placement *out, struct atsi_error *err);

// Budgets that people have, up to the card's, which ends the list. Returns how many.
uint32_t atsi_what_if_budgets(const struct atsi_device_profile *profile, uint64_t budgets[ATSI_WHAT_IF_MAX_BUDGETS]);

// Budgets x contexts -> predicted prefill and decode rates. With `json` one object.
enum atsi_status atsi_what_if(FILE *out, const struct atsi_plan *plan, const struct atsi_device_profile *profile,
                              const struct atsi_place_options *options, bool json, struct atsi_error *err);

#endif
