#include "runtime/schedule/improve.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/schedule/model.h"

// The estimate by longest paths does not see that a move changes which promotion gives space to which, so a move is
// rejected only this many units after its last one.
enum {
    SETTLE_UNITS = 4
};
enum {
    REACH_UNITS = 14
}; // the two units of a move are at most this far apart: two layers

struct improver {
    struct round_state *state; // [n + 1] of the current round, in front of every unit
    double *end_us;            // [n] of the current round
    double *trial_end_us;      // [n] the same, but for what a move under test has overwritten
    double *clock_rest_us;     // [n + 1] longest path from the end of unit i - 1 to the end of the round
    double *engine_rest_us;    // [n + 1] from the engine's clock in front of unit i
    int32_t *space_from;       // [n] promoted: the unit whose end gave it space, -1 when there was room
    // of the run
    const struct atsi_schedule_instance *inst;
    uint8_t *sides;
    double total_us;
    size_t n_steps, n_steps_max;
};

struct improver *improver_create(size_t n_units_max) {
    struct improver *m = calloc(1, sizeof *m);
    if (!m) return NULL;
    size_t n = n_units_max + 1;
    m->state = malloc(n * sizeof *m->state);
    m->end_us = malloc(n * sizeof(double));
    m->trial_end_us = malloc(n * sizeof(double));
    m->clock_rest_us = malloc(n * sizeof(double));
    m->engine_rest_us = malloc(n * sizeof(double));
    m->space_from = malloc(n * sizeof *m->space_from);
    if (m->state && m->end_us && m->trial_end_us && m->clock_rest_us && m->engine_rest_us && m->space_from) return m;
    improver_free(m);
    return NULL;
}

void improver_free(struct improver *m) {
    if (!m) return;
    free(m->state);
    free(m->end_us);
    free(m->trial_end_us);
    free(m->clock_rest_us);
    free(m->engine_rest_us);
    free(m->space_from);
    free(m);
}

// Unit `tail` - 1 is the last that had to leave when the tail moved, else there was room.
static void follow_round(struct improver *m) {
    size_t n = m->inst->n_units;
    struct round_state s = {0};
    for (size_t i = 0; i < n; i++) {
        m->state[i] = s;
        step_unit(&s, m->inst, m->sides, m->end_us, i);
        m->trial_end_us[i] = m->end_us[i];
        m->space_from[i] = s.tail != m->state[i].tail ? (int32_t)s.tail - 1 : -1;
    }
    m->state[n] = s;
    m->total_us = s.clock_us;
    m->n_steps += n;
}

static void raise_to(double *value, double candidate) {
    if (candidate > *value) *value = candidate;
}

static void measure_paths(struct improver *m) {
    size_t n = m->inst->n_units;
    memset(m->clock_rest_us, 0, (n + 1) * sizeof *m->clock_rest_us);
    m->engine_rest_us[n] = -1e300; // nothing waits for the engine any more
    for (size_t i = n; i-- > 0;) {
        const struct atsi_schedule_unit *unit = &m->inst->units[i];
        double from_start = (m->sides[i] == ATSI_GPU ? unit->t_gpu_us : unit->t_cpu_us) + m->clock_rest_us[i + 1];
        double switch_us = i && m->sides[i] != m->sides[i - 1] ? unit->switch_us : 0;
        raise_to(&m->clock_rest_us[i], switch_us + from_start);
        m->engine_rest_us[i] = m->engine_rest_us[i + 1];
        if (!is_promoted(m->inst, m->sides, i)) continue;
        double from_transfer = unit->transfer_us + fmax2(from_start, m->engine_rest_us[i + 1]);
        m->engine_rest_us[i] = from_transfer;
        if (m->space_from[i] >= 0) raise_to(&m->clock_rest_us[m->space_from[i] + 1], from_transfer);
        if (unit->after >= 0) raise_to(&m->clock_rest_us[unit->after + 1], from_transfer);
        if (unit->after == ATSI_AFTER_PREVIOUS) raise_to(&m->clock_rest_us[i], from_transfer);
    }
    m->n_steps += n;
}

// Whether the round with the sides as they are now, which differ in units first..last only, ends earlier.
static bool is_better(struct improver *m, size_t first, size_t last) {
    struct round_state s = m->state[first];
    size_t i = first, n = m->inst->n_units;
    double target_us = m->total_us * (1 - 1e-9);
    bool better = true;
    for (; i < n && better; i++) {
        step_unit(&s, m->inst, m->sides, m->trial_end_us, i);
        if (i < last + SETTLE_UNITS && i + 1 < n) continue;
        double end_us = fmax2(s.clock_us + m->clock_rest_us[i + 1], s.engine_us + m->engine_rest_us[i + 1]);
        better = end_us < target_us;
    }
    m->n_steps += i - first;
    memcpy(m->trial_end_us + first, m->end_us + first, (i - first) * sizeof *m->end_us);
    return better;
}

static void flip(struct improver *m, size_t i) { m->sides[i] ^= 1; }

// Tries the flip of units i and j (the same: of one); keeps it and returns true when it helps.
static bool try_move(struct improver *m, size_t i, size_t j) {
    flip(m, i);
    if (j != i) flip(m, j);
    if (is_better(m, i, j)) {
        follow_round(m);
        measure_paths(m);
        return true;
    }
    flip(m, i);
    if (j != i) flip(m, j);
    return false;
}

static bool sweep(struct improver *m) {
    bool helped = false;
    for (size_t i = 0; i < m->inst->n_units; i++) {
        if (!can_promote(m->inst, i)) continue;
        for (size_t j = i; j < m->inst->n_units && j <= i + REACH_UNITS && m->n_steps < m->n_steps_max; j++)
            if (can_promote(m->inst, j) && try_move(m, i, j)) helped = true;
    }
    return helped;
}

double improve(struct improver *m, const struct atsi_schedule_instance *inst, size_t n_steps_max, uint8_t *assignment) {
    m->inst = inst;
    m->sides = assignment;
    m->n_steps = 0;
    m->n_steps_max = n_steps_max;
    follow_round(m);
    measure_paths(m);
    while (m->n_steps < n_steps_max && sweep(m)) {}
    return m->total_us;
}
