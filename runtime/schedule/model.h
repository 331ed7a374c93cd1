// model.h: one step of the timing model, shared by everything inside runtime/schedule that follows a round unit by
// unit.
#ifndef ATSI_RUNTIME_SCHEDULE_MODEL_H
#define ATSI_RUNTIME_SCHEDULE_MODEL_H

#include <stdbool.h>

#include "runtime/schedule/schedule.h"

// Where a round stands in front of unit `i`, given the sides and ends of the units before it. Space is given back
// lazily: `held_bytes` counts promoted units from index `tail` on, and a unit leaves when a transfer needs its space.
// Because transfers start in unit order and ends never decrease, this gives the same times as giving it back at once.
struct round_state {
    double clock_us;  // end of the unit before
    double engine_us; // end of the last transfer
    uint64_t held_bytes;
    size_t tail;
};

struct transfer {
    double start_us, end_us;
};

static inline double fmax2(double a, double b) { return a > b ? a : b; }

static inline bool can_promote(const struct atsi_schedule_instance *inst, size_t i) {
    return inst->units[i].home == ATSI_CPU && inst->units[i].size_bytes <= inst->temp_bytes;
}

static inline bool is_promoted(const struct atsi_schedule_instance *inst, const uint8_t *sides, size_t i) {
    return sides[i] == ATSI_GPU && inst->units[i].home == ATSI_CPU;
}

// When the bytes of unit i fit: the end of the last unit that has to leave first (0: none).
static inline double make_space(struct round_state *s, const struct atsi_schedule_instance *inst, const uint8_t *sides,
                                const double *end_us, size_t i) {
    double free_us = 0;
    uint64_t size = inst->units[i].size_bytes;
    while (s->held_bytes + size > inst->temp_bytes) {
        if (is_promoted(inst, sides, s->tail)) {
            s->held_bytes -= inst->units[s->tail].size_bytes;
            free_us = end_us[s->tail];
        }
        s->tail++;
    }
    s->held_bytes += size;
    return free_us;
}

static inline double after_us(const struct round_state *s, const struct atsi_schedule_unit *unit,
                              const double *end_us) {
    if (unit->after >= 0) return end_us[unit->after];
    return unit->after == ATSI_AFTER_PREVIOUS ? s->clock_us : 0;
}

static inline struct transfer step_transfer(struct round_state *s, const struct atsi_schedule_instance *inst,
                                            const uint8_t *sides, const double *end_us, size_t i) {
    const struct atsi_schedule_unit *unit = &inst->units[i];
    double space_us = make_space(s, inst, sides, end_us, i);
    double start_us = fmax2(fmax2(s->engine_us, after_us(s, unit, end_us)), space_us);
    s->engine_us = start_us + unit->transfer_us;
    return (struct transfer){start_us, s->engine_us};
}

// The earliest start of unit i on sides[i] as far as the unit before it is concerned.
static inline double ready_us(const struct round_state *s, const struct atsi_schedule_instance *inst,
                              const uint8_t *sides, size_t i) {
    return i && sides[i] != sides[i - 1] ? s->clock_us + inst->units[i].switch_us : s->clock_us;
}

// Runs unit i on sides[i]: reads sides and end_us of the units before, writes end_us[i]. Returns its start.
static inline double step_unit(struct round_state *s, const struct atsi_schedule_instance *inst, const uint8_t *sides,
                               double *end_us, size_t i) {
    const struct atsi_schedule_unit *unit = &inst->units[i];
    double start_us = ready_us(s, inst, sides, i);
    if (is_promoted(inst, sides, i)) start_us = fmax2(start_us, step_transfer(s, inst, sides, end_us, i).end_us);
    s->clock_us = end_us[i] = start_us + (sides[i] == ATSI_GPU ? unit->t_gpu_us : unit->t_cpu_us);
    return start_us;
}

#endif
