// predict.h: how long a round of a placed plan takes, by the scheduler, the division and the script that the runtime works with.
#ifndef ATSI_PLANNER_PREDICT_H
#define ATSI_PLANNER_PREDICT_H

#include "formats/device_profile.h"
#include "formats/plan.h"
#include "runtime/schedule/round_units.h"
#include "runtime/schedule/script_cost.h"

// A predicted round, unit by unit.
struct atsi_forecast {
    struct atsi_scheduler *scheduler; // owns what `schedule` points to
    struct atsi_schedule_unit *units; // [n_units]
    struct atsi_schedule schedule;
};

// A round of the plan's placement under its times, with dynamic transfer as `policy` decides it, through a region of temp_bytes. Decode
// rounds that stream do so beside the CPU, and both are slower for it (plan->contention). Free with atsi_forecast_free whether it succeeds
// or not.
enum atsi_status atsi_forecast_round(const struct atsi_plan *plan, enum atsi_phase phase,
                                     enum atsi_schedule_policy policy, uint64_t temp_bytes, struct atsi_forecast *out,
                                     struct atsi_error *err);
void atsi_forecast_free(struct atsi_forecast *forecast);

// The end of such a round in microseconds.
enum atsi_status atsi_place_predict(const struct atsi_plan *plan, enum atsi_phase phase,
                                    enum atsi_schedule_policy policy, uint64_t temp_bytes, double *us,
                                    struct atsi_error *err);

// What a decode round takes in each way that the runtime tries; it keeps the fastest.
struct atsi_decode_forecast {
    double best_us;
    double static_us;               // everything where it is placed
    double streams_us;              // units of the CPU are promoted through the region
    double shares_us;               // both processors at once on every unit of the CPU; INFINITY: there is none
    struct atsi_script_terms terms; // of the round with shares, or without any
    double handover_us;             // of each wait
};
enum atsi_status atsi_forecast_decode(const struct atsi_plan *plan, uint64_t temp_bytes,
                                      struct atsi_decode_forecast *out, struct atsi_error *err);

#endif
