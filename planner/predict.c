#include "planner/predict.h"

#include <stdlib.h>
#include <string.h>

enum atsi_status atsi_forecast_round(const struct atsi_plan *plan, enum atsi_phase phase,
                                     enum atsi_schedule_policy policy, uint64_t temp_bytes, struct atsi_forecast *out,
                                     struct atsi_error *err) {
    uint32_t n = plan->program.n_units;
    *out = (struct atsi_forecast){.units = calloc(n, sizeof *out->units)};
    if (!out->units) return atsi_fail(err, ATSI_FAILED, "out of memory while predicting");
    atsi_round_units(plan, phase == ATSI_DECODE ? 1 : plan->limits.chunk, temp_bytes, NULL, out->units);
    struct atsi_schedule_instance inst = {.temp_bytes = temp_bytes, .n_units = n, .units = out->units};
    ATSI_TRY(atsi_scheduler_create(n, &out->scheduler, err));
    return atsi_scheduler_run(out->scheduler, &inst, policy, NULL, &out->schedule, err);
}

void atsi_forecast_free(struct atsi_forecast *forecast) {
    atsi_scheduler_free(forecast->scheduler);
    free(forecast->units);
    memset(forecast, 0, sizeof *forecast);
}

enum atsi_status atsi_place_predict(const struct atsi_plan *plan, enum atsi_phase phase,
                                    enum atsi_schedule_policy policy, uint64_t temp_bytes, double *us,
                                    struct atsi_error *err) {
    struct atsi_forecast forecast;
    enum atsi_status status = atsi_forecast_round(plan, phase, policy, temp_bytes, &forecast, err);
    if (status == ATSI_OK) *us = forecast.schedule.total_us;
    atsi_forecast_free(&forecast);
    return status;
}
