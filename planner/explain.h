// explain.h: a placement in words and numbers.
#ifndef ATSI_PLANNER_EXPLAIN_H
#define ATSI_PLANNER_EXPLAIN_H

#include <stdio.h>

#include "planner/place.h"

// The budget as a table, one line an item, the method, the predicted rates and the certificate.
void atsi_explain_budget(FILE *out, const struct atsi_plan *plan, const struct atsi_placement *placement);

// Every unit: bytes on the GPU, times and density on both sides, where it is, and what the other side would change ("value":
// microseconds of the objective lost by moving this unit alone, at the times the placement was solved with). Before that the best
// of every chunk that was tried, what 1 GiB more would bring, and what the options' routing statistics say (formats/routing.h). With
// `json` one object.
enum atsi_status atsi_explain(FILE *out, const struct atsi_plan *plan, const struct atsi_device_profile *profile,
                              const struct atsi_place_options *options, const struct atsi_placement *placement,
                              bool json, struct atsi_error *err);

#endif
