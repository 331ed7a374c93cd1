#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/schedule/improve.h"
#include "runtime/schedule/model.h"
#include "runtime/schedule/policies.h"
#include "runtime/schedule/search.h"

// Effort of ATSI_POLICY_FIFO, chosen for 450 units in well under 2 ms (docs/scheduling.md). Where the region holds
// two or three units, what was promoted last says all and the engine's time is worth nothing; where it holds many,
// the lag of the engine says all. One search for either, the second with the result of the first to beat; the first is
// cut short where the region is roomy (ROOMY_UNITS mean units) and few transfers wait for another unit.
enum {
    ROOMY_UNITS = 5,
    TIGHT_LAGS = 1,
    TIGHT_RECENT = 6,
    ROOMY_RECENT = 4,
    LOOSE_LAGS = 16,
    LOOSE_RECENT = 2,
    CELLS_MAX = 64,
    IMPROVE_STEPS_PER_UNIT = 100
};

struct atsi_scheduler {
    size_t n_units_max;
    double *numbers; // storage of timing and paper
    struct atsi_schedule_timing timing;
    struct paper_scratch paper;
    struct search *search;
    struct improver *improver;
    uint8_t *best, *trial; // [n_units_max]
};

static void carve(struct atsi_scheduler *s) {
    size_t n = s->n_units_max + 1;
    double **arrays[] = {&s->timing.start_us,        &s->timing.end_us,     &s->timing.transfer_start_us,
                         &s->timing.transfer_end_us, &s->timing.exposed_us, &s->paper.path_us,
                         &s->paper.best_us[0],       &s->paper.best_us[1]};
    for (size_t k = 0; k < sizeof arrays / sizeof *arrays; k++) *arrays[k] = s->numbers + k * n;
}

enum atsi_status atsi_scheduler_create(size_t n_units_max, struct atsi_scheduler **out, struct atsi_error *err) {
    struct atsi_scheduler *s = calloc(1, sizeof *s);
    *out = s;
    size_t n = n_units_max + 1;
    if (!s) return atsi_fail(err, ATSI_FAILED, "scheduler: out of memory");
    s->n_units_max = n_units_max;
    s->numbers = calloc(n, 8 * sizeof *s->numbers);
    s->paper.from = calloc(n, sizeof *s->paper.from);
    s->paper.before[0] = calloc(n, 1);
    s->paper.before[1] = calloc(n, 1);
    s->best = calloc(n, 1);
    s->trial = calloc(n, 1);
    s->search = search_create(n_units_max, CELLS_MAX);
    s->improver = improver_create(n_units_max);
    if (s->numbers && s->paper.from && s->paper.before[0] && s->paper.before[1] && s->best && s->trial && s->search &&
        s->improver) {
        carve(s);
        return ATSI_OK;
    }
    atsi_scheduler_free(s);
    *out = NULL;
    return atsi_fail(err, ATSI_FAILED, "scheduler: out of memory for %zu units", n_units_max);
}

void atsi_scheduler_free(struct atsi_scheduler *s) {
    if (!s) return;
    free(s->numbers);
    free(s->paper.from);
    free(s->paper.before[0]);
    free(s->paper.before[1]);
    search_free(s->search);
    improver_free(s->improver);
    free(s->best);
    free(s->trial);
    free(s);
}

static bool good_time(double us) { return isfinite(us) && us >= 0; }

static enum atsi_status check(const struct atsi_scheduler *s, const struct atsi_schedule_instance *inst,
                              struct atsi_error *err) {
    if (inst->n_units < 1 || inst->n_units > s->n_units_max)
        return atsi_fail(err, ATSI_BAD_INPUT, "scheduler: %zu units; it was made for 1 to %zu", inst->n_units,
                         s->n_units_max);
    for (size_t i = 0; i < inst->n_units; i++) {
        const struct atsi_schedule_unit *u = &inst->units[i];
        bool good = good_time(u->t_cpu_us) && good_time(u->t_gpu_us) && good_time(u->switch_us) &&
                    good_time(u->transfer_us) && u->after >= ATSI_AFTER_PREVIOUS && u->after < (int64_t)i;
        if (!good || (u->home != ATSI_CPU && u->home != ATSI_GPU) || u->size_bytes > INT64_MAX)
            return atsi_fail(err, ATSI_BAD_INPUT, "scheduler: unit %zu has a malformed size, time, side or dependency",
                             i);
    }
    return ATSI_OK;
}

static void set_home(const struct atsi_schedule_instance *inst, uint8_t *assignment) {
    for (size_t i = 0; i < inst->n_units; i++) assignment[i] = (uint8_t)inst->units[i].home;
}

static double time_of(struct atsi_scheduler *s, const struct atsi_schedule_instance *inst, const uint8_t *assignment) {
    struct atsi_schedule_timing brief = {.start_us = s->timing.start_us, .end_us = s->timing.end_us};
    return atsi_schedule_time(inst, assignment, &brief);
}

// Keeps `trial` as the best when it ends earlier.
static void offer_trial(struct atsi_scheduler *s, const struct atsi_schedule_instance *inst, double *best_us) {
    double trial_us = time_of(s, inst, s->trial);
    if (trial_us >= *best_us) return;
    *best_us = trial_us;
    memcpy(s->best, s->trial, inst->n_units);
}

static void offer_warm(struct atsi_scheduler *s, const struct atsi_schedule_instance *inst, const uint8_t *warm,
                       double *best_us) {
    set_home(inst, s->trial);
    for (size_t i = 0; i < inst->n_units; i++)
        if (warm[i] == ATSI_GPU && can_promote(inst, i)) s->trial[i] = ATSI_GPU;
    offer_trial(s, inst, best_us);
}

static void offer_search(struct atsi_scheduler *s, const struct atsi_schedule_instance *inst, size_t n_lags,
                         size_t n_recent, double clock_price, double *best_us) {
    struct search_effort effort = {n_lags, n_recent, clock_price, *best_us};
    if (search_policy(s->search, inst, &effort, s->trial)) offer_trial(s, inst, best_us);
}

static bool is_roomy(const struct atsi_schedule_instance *inst) {
    double bytes = 0;
    size_t n = 0, n_waiting = 0;
    for (size_t i = 0; i < inst->n_units; i++) {
        if (!can_promote(inst, i)) continue;
        bytes += (double)inst->units[i].size_bytes;
        n++;
        n_waiting += inst->units[i].after != ATSI_AFTER_START;
    }
    return (double)inst->temp_bytes * (double)n >= ROOMY_UNITS * bytes && n_waiting <= n / 4;
}

static void fifo_policy(struct atsi_scheduler *s, const struct atsi_schedule_instance *inst, const uint8_t *warm,
                        double clock_weight, struct atsi_schedule *out) {
    set_home(inst, s->best);
    double best_us = time_of(s, inst, s->best);
    paper_policy(inst, &s->paper, s->trial);
    offer_trial(s, inst, &best_us);
    if (warm) offer_warm(s, inst, warm, &best_us);
    if (exact_is_feasible(inst)) {
        out->lower_bound_us = exact_policy(inst, best_us, s->best);
        return;
    }
    offer_search(s, inst, TIGHT_LAGS, is_roomy(inst) ? ROOMY_RECENT : TIGHT_RECENT, 1, &best_us);
    offer_search(s, inst, LOOSE_LAGS, LOOSE_RECENT, clock_weight, &best_us);
    improve(s->improver, inst, IMPROVE_STEPS_PER_UNIT * inst->n_units, s->best);
}

enum atsi_status atsi_scheduler_run(struct atsi_scheduler *s, const struct atsi_schedule_instance *inst,
                                    enum atsi_schedule_policy policy, const uint8_t *warm, struct atsi_schedule *out,
                                    struct atsi_error *err) {
    *out = (struct atsi_schedule){.assignment = s->best, .timing = s->timing};
    ATSI_TRY(check(s, inst, err));
    double clock_weight;
    out->lower_bound_us = lower_bound(inst, &clock_weight);
    if (policy == ATSI_POLICY_NONE)
        set_home(inst, s->best);
    else if (policy == ATSI_POLICY_PAPER)
        out->paper_objective_us = paper_policy(inst, &s->paper, s->best);
    else
        fifo_policy(s, inst, warm, clock_weight, out);
    out->total_us = atsi_schedule_time(inst, s->best, &s->timing);
    // The bound and the total are different sums; rounding must not put one above the other.
    if (out->lower_bound_us > out->total_us) out->lower_bound_us = out->total_us;
    return ATSI_OK;
}
