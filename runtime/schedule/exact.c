// exact.c: the optimum of small instances by depth-first search over all assignments.
#include <string.h>

#include "runtime/schedule/model.h"
#include "runtime/schedule/policies.h"

struct search {
    const struct atsi_schedule_instance *inst;
    const double *rest_us; // [n + 1] least compute time of units i..n-1
    double *end_us;        // of the units decided so far
    uint8_t *sides, *best_sides;
    double best_us;
};

static void visit(struct search *s, size_t i, struct round_state state);

static void try_side(struct search *s, size_t i, struct round_state state, enum atsi_backend side) {
    s->sides[i] = (uint8_t)side;
    step_unit(&state, s->inst, s->sides, s->end_us, i);
    visit(s, i + 1, state);
}

static void visit(struct search *s, size_t i, struct round_state state) {
    if (state.clock_us + s->rest_us[i] >= s->best_us) return;
    if (i == s->inst->n_units) {
        s->best_us = state.clock_us;
        memcpy(s->best_sides, s->sides, i);
        return;
    }
    try_side(s, i, state, s->inst->units[i].home);
    if (can_promote(s->inst, i)) try_side(s, i, state, ATSI_GPU);
}

bool exact_is_feasible(const struct atsi_schedule_instance *inst) {
    size_t n_open = 0;
    for (size_t i = 0; i < inst->n_units; i++) n_open += can_promote(inst, i);
    return n_open <= EXACT_OPEN_MAX && inst->n_units <= EXACT_UNITS_MAX;
}

double exact_policy(const struct atsi_schedule_instance *inst, double known_us, uint8_t *assignment) {
    double rest_us[EXACT_UNITS_MAX + 1], end_us[EXACT_UNITS_MAX] = {0};
    uint8_t sides[EXACT_UNITS_MAX];
    size_t n = inst->n_units;
    rest_us[n] = 0;
    for (size_t i = n; i-- > 0;) {
        const struct atsi_schedule_unit *unit = &inst->units[i];
        double least = unit->home == ATSI_GPU ? unit->t_gpu_us : unit->t_cpu_us;
        if (can_promote(inst, i) && unit->t_gpu_us < least) least = unit->t_gpu_us;
        rest_us[i] = rest_us[i + 1] + least;
    }
    struct search s = {inst, rest_us, end_us, sides, assignment, known_us};
    visit(&s, 0, (struct round_state){0});
    return s.best_us;
}
