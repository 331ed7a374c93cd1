#include "planner/predict.h"

#include <stdlib.h>

#include "planner/cost.h"
#include "runtime/schedule/schedule.h"

static void fill(const struct atsi_plan *plan, const struct atsi_unit_times *times, enum atsi_phase phase,
                 uint64_t temp_bytes, struct atsi_schedule_unit *units) {
    for (uint32_t i = 0; i < plan->program.n_units; i++) {
        const struct atsi_unit *u = &plan->program.units[i];
        units[i] = (struct atsi_schedule_unit){
            .size_bytes = atsi_unit_is_promotable(u) ? atsi_cost_transfer_bytes(plan, u, phase) : temp_bytes + 1,
            .t_cpu_us = times[i].cpu_us,
            .t_gpu_us = times[i].gpu_us,
            .switch_us = times[i].switch_us,
            .transfer_us = times[i].transfer_us,
            .after = u->router_unit == ATSI_NONE || u->router_unit >= (int32_t)i ? ATSI_AFTER_START : u->router_unit,
            .home = u->backend};
    }
}

enum atsi_status atsi_place_predict(const struct atsi_plan *plan, const struct atsi_unit_times *times,
                                    enum atsi_phase phase, uint64_t temp_bytes, double *us, struct atsi_error *err) {
    uint32_t n = plan->program.n_units;
    struct atsi_scheduler *scheduler = NULL;
    struct atsi_schedule schedule;
    struct atsi_schedule_unit *units = calloc(n, sizeof *units);
    if (!units) return atsi_fail(err, ATSI_FAILED, "out of memory while predicting");
    fill(plan, times, phase, temp_bytes, units);
    struct atsi_schedule_instance inst = {.temp_bytes = temp_bytes, .n_units = n, .units = units};
    enum atsi_status status = atsi_scheduler_create(n, &scheduler, err);
    if (status == ATSI_OK)
        status = atsi_scheduler_run(scheduler, &inst, temp_bytes ? ATSI_POLICY_FIFO : ATSI_POLICY_NONE, NULL, &schedule,
                                    err);
    if (status == ATSI_OK) *us = schedule.total_us;
    atsi_scheduler_free(scheduler);
    free(units);
    return status;
}
