// policies.h: the parts of the scheduler. Internal to runtime/schedule.
#ifndef ATSI_RUNTIME_SCHEDULE_POLICIES_H
#define ATSI_RUNTIME_SCHEDULE_POLICIES_H

#include <stdbool.h>

#include "runtime/schedule/schedule.h"

enum {
    EXACT_OPEN_MAX = 12,
    EXACT_UNITS_MAX = 64
}; // what the exact search takes on: promotable units, all units

// Scratch of the paper's dynamic program, for n units counted from 1.
struct paper_scratch {
    double *path_us;    // [n + 1] time of units 1..i on their homes, switches included
    double *best_us[2]; // [side][n + 1] least T of the first i units with unit i on `side`
    int32_t *from;      // [n + 1] promoted: where its transfer starts (0 the round's start, else a unit)
    uint8_t *before[2]; // [side][n + 1] side of the unit before, for units that are not promoted
};

// The paper's Algorithm 2 restated (docs/scheduling.md). Writes the assignment that minimises T and returns T.
double paper_policy(const struct atsi_schedule_instance *inst, struct paper_scratch *scratch, uint8_t *assignment);

// Whether the instance is small enough for exact_policy, whose time grows as 2^n.
bool exact_is_feasible(const struct atsi_schedule_instance *inst);
// Finds the best assignment under the model. `assignment` enters with one that ends at `known_us` and leaves with the
// optimum, whose end is returned.
double exact_policy(const struct atsi_schedule_instance *inst, double known_us, uint8_t *assignment);

// No assignment ends before this. *clock_weight is the weight of the compute chain at which the bound peaks (bound.c).
double lower_bound(const struct atsi_schedule_instance *inst, double *clock_weight);

#endif
