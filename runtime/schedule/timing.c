#include <stdlib.h>

#include "runtime/schedule/model.h"

static void put(double *array, size_t i, double value) {
    if (array) array[i] = value;
}

// The transfer of unit i, started on a copy of the state because step_unit starts it again.
static void report_transfer(const struct atsi_schedule_instance *inst, const uint8_t *assignment,
                            const struct atsi_schedule_timing *timing, struct round_state s, size_t i) {
    struct transfer t = step_transfer(&s, inst, assignment, timing->end_us, i);
    double exposed_us = t.end_us - ready_us(&s, inst, assignment, i);
    put(timing->transfer_start_us, i, t.start_us);
    put(timing->transfer_end_us, i, t.end_us);
    put(timing->exposed_us, i, exposed_us > 0 ? exposed_us : 0);
}

double atsi_schedule_time(const struct atsi_schedule_instance *inst, const uint8_t *assignment,
                          const struct atsi_schedule_timing *timing) {
    struct round_state s = {0};
    for (size_t i = 0; i < inst->n_units; i++) {
        if (is_promoted(inst, assignment, i)) report_transfer(inst, assignment, timing, s, i);
        timing->start_us[i] = step_unit(&s, inst, assignment, timing->end_us, i);
    }
    return s.clock_us;
}
