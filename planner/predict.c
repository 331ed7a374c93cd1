#include "planner/predict.h"

#include <stdlib.h>

enum atsi_status atsi_place_predict(const struct atsi_plan *plan, enum atsi_phase phase,
                                    enum atsi_schedule_policy policy, uint64_t temp_bytes, double *us,
                                    struct atsi_error *err) {
    uint32_t n = plan->program.n_units;
    struct atsi_scheduler *scheduler = NULL;
    struct atsi_schedule schedule;
    struct atsi_schedule_unit *units = calloc(n, sizeof *units);
    if (!units) return atsi_fail(err, ATSI_FAILED, "out of memory while predicting");
    atsi_round_units(plan, phase == ATSI_DECODE ? 1 : plan->limits.chunk, temp_bytes, NULL, units);
    struct atsi_schedule_instance inst = {.temp_bytes = temp_bytes, .n_units = n, .units = units};
    enum atsi_status status = atsi_scheduler_create(n, &scheduler, err);
    if (status == ATSI_OK) status = atsi_scheduler_run(scheduler, &inst, policy, NULL, &schedule, err);
    if (status == ATSI_OK) *us = schedule.total_us;
    atsi_scheduler_free(scheduler);
    free(units);
    return status;
}
