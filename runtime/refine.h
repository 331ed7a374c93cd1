// refine.h: which units travel in rounds of one token, made better by what their script should take (docs/scheduling.md). Pure.
//
// The scheduler (runtime/schedule/schedule.h) sees the round as units one behind the other, each with a price for changing sides. The
// round's script knows more: neighbours that stay on one side share a hand-over, either side works on while the other is late, the
// region's ring holds copies up. So what was scheduled is a start, or where that should take longer, rounds in which nothing moves: unit
// by unit the other side is tried, and kept where the script's time (runtime/schedule/script_cost.h) is shorter by it.
#ifndef ATSI_RUNTIME_REFINE_H
#define ATSI_RUNTIME_REFINE_H

#include "formats/plan.h"
#include "runtime/schedule/round_units.h"

struct atsi_refinement {
    const struct atsi_plan *plan;   // with the experts that are resident now
    const enum atsi_backend *homes; // [n_units]
    const struct atsi_schedule_unit
        *units; // [n_units] of a round of one token at the plan's speeds; larger than the region: cannot travel
    const struct atsi_scales *scales; // the speeds that it is refined for
};

// promoted [n_units], of units at home on the CPU: changed where that makes the round shorter, and *round_us what it should take then. The
// same arguments, the same result; some 260 scripts are built at most.
enum atsi_status atsi_refine(const struct atsi_refinement *r, bool *promoted, double *round_us, struct atsi_error *err);

#endif
