// baseline.h: how others place, for comparison with the solver on the same instance.
#ifndef ATSI_PLANNER_SOLVE_BASELINE_H
#define ATSI_PLANNER_SOLVE_BASELINE_H

#include "planner/solve/solve.h"

enum atsi_baseline {
    ATSI_BASELINE_LAYERS_LAST = 0,  // whole layers from the last one down, as many as fit ("-ngl")
    ATSI_BASELINE_LAYERS_FIRST = 1, // whole layers from the first one up
    ATSI_BASELINE_EXPERTS = 2, // everything but the experts of the first N layers, least N that fits ("--n-cpu-moe")
    ATSI_BASELINE_DENSITY = 3  // single units by gain per byte while they fit, without regard to switches
};

// `layer` holds the layer of every unit; units of layer -1 (a token embedding) stay on the CPU, an output head counts as
// the layer after the last one when the caller numbers it so. Fixed units keep their side. When not even the units
// without experts fit, ATSI_BASELINE_EXPERTS leaves all experts on the CPU and places the rest by whole layers from the last.
// Writes n_units entries to `placement`; what is fixed to the GPU must fit. ATSI_FAILED without memory.
enum atsi_status atsi_solve_baseline(const struct atsi_solve_instance *inst, const int32_t *layer,
                                     enum atsi_baseline baseline, uint8_t *placement, struct atsi_error *err);

#endif
