// predict.h: how long a round of a placed plan takes, by the scheduler that the runtime decides with.
#ifndef ATSI_PLANNER_PREDICT_H
#define ATSI_PLANNER_PREDICT_H

#include "formats/device_profile.h"
#include "formats/plan.h"
#include "runtime/schedule/round_units.h"

// A predicted round, unit by unit.
struct atsi_forecast {
    struct atsi_scheduler *scheduler; // owns what `schedule` points to
    struct atsi_schedule_unit *units; // [n_units]
    struct atsi_schedule schedule;
};

// A round of the plan's placement under its times, with dynamic transfer as `policy` decides it, through a region of temp_bytes. Free with
// atsi_forecast_free whether it succeeds or not.
enum atsi_status atsi_forecast_round(const struct atsi_plan *plan, enum atsi_phase phase,
                                     enum atsi_schedule_policy policy, uint64_t temp_bytes, struct atsi_forecast *out,
                                     struct atsi_error *err);
void atsi_forecast_free(struct atsi_forecast *forecast);

// The end of such a round in microseconds.
enum atsi_status atsi_place_predict(const struct atsi_plan *plan, enum atsi_phase phase,
                                    enum atsi_schedule_policy policy, uint64_t temp_bytes, double *us,
                                    struct atsi_error *err);

#endif
