// predict.h: how long a round of a placed plan takes, by the scheduler that the runtime decides with.
#ifndef ATSI_PLANNER_PREDICT_H
#define ATSI_PLANNER_PREDICT_H

#include "formats/device_profile.h"
#include "formats/plan.h"

// Whether a round can move the unit's weights to the GPU: attention has its cache where it lives, and embedding and head are too
// large a part.
static inline bool atsi_unit_is_promotable(const struct atsi_unit *u) {
    return u->kind == ATSI_UNIT_MATRIX || u->kind == ATSI_UNIT_EXPERTS;
}

// Microseconds of a round of the plan's placement under `times` [n_units], with dynamic transfer through a region of
// temp_bytes (0: none).
enum atsi_status atsi_place_predict(const struct atsi_plan *plan, const struct atsi_unit_times *times,
                                    enum atsi_phase phase, uint64_t temp_bytes, double *us, struct atsi_error *err);

#endif
