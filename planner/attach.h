// attach.h: completing a plan that was made without weights.
#ifndef ATSI_PLANNER_ATTACH_H
#define ATSI_PLANNER_ATTACH_H

#include "formats/plan.h"
#include "planner/lower.h"

// Checks that `gguf` is the model of the plan (size and identity hash) and lowers it again for its recipes: the tensors of
// *lowered are those of the plan, in order. ATSI_BAD_INPUT says what differs.
enum atsi_status atsi_attach(const struct atsi_plan *plan, const struct atsi_gguf *gguf, struct atsi_lowered *lowered,
                             struct atsi_error *err);

#endif
