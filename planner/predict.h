// predict.h: how long a round of a placed plan takes, by the scheduler that the runtime decides with.
#ifndef ATSI_PLANNER_PREDICT_H
#define ATSI_PLANNER_PREDICT_H

#include "formats/device_profile.h"
#include "formats/plan.h"
#include "runtime/schedule/round_units.h"

// Microseconds of a round of the plan's placement under its times, with dynamic transfer as `policy` decides it, through a
// region of temp_bytes.
enum atsi_status atsi_place_predict(const struct atsi_plan *plan, enum atsi_phase phase,
                                    enum atsi_schedule_policy policy, uint64_t temp_bytes, double *us,
                                    struct atsi_error *err);

#endif
