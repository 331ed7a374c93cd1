// what_if.h: the same model on the same machine with another budget or context. No weights are read.
#ifndef ATSI_PLANNER_WHAT_IF_H
#define ATSI_PLANNER_WHAT_IF_H

#include <stdio.h>

#include "planner/place.h"

enum {
    ATSI_WHAT_IF_MAX_BUDGETS = 12
};

// What the plan would be with another budget and context.
struct atsi_elsewhere {
    bool fits;          // else the budget is too small for any placement, and the rest is 0
    bool nothing_waits; // no unit is on the CPU for lack of room: a larger budget changes nothing
    uint32_t chunk;     // tokens of a prefill round
    double decode_us;   // predicted: a token
    double prefill_us;  // predicted: a chunk
};

// Places the plan, which has been placed with these options, for another budget and context; with choose_chunk the chunk is chosen
// anew. *plan stays as it is.
enum atsi_status atsi_place_elsewhere(const struct atsi_plan *plan, const struct atsi_device_profile *profile,
                                      const struct atsi_place_options *options, uint64_t vram, uint32_t n_ctx,
                                      struct atsi_elsewhere *out, struct atsi_error *err);

// Budgets that people have, up to the card's, which ends the list. Returns how many.
uint32_t atsi_what_if_budgets(const struct atsi_device_profile *profile, uint64_t budgets[ATSI_WHAT_IF_MAX_BUDGETS]);

// Budgets x contexts -> predicted prefill and decode rates. The table ends where a larger budget changes nothing. With `json` one object.
enum atsi_status atsi_what_if(FILE *out, const struct atsi_plan *plan, const struct atsi_device_profile *profile,
                              const struct atsi_place_options *options, bool json, struct atsi_error *err);

#endif
