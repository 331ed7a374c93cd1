#include "runtime/refine.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/schedule/script_cost.h"
#include "runtime/temp_ring.h"

enum {
    REACH = 4, // of units that change sides together
    MOST_TRIALS = 256
};
// Less than this part of a round is nothing that a forecast knows.
static const double least_gain = 0.0005;

struct trial {
    const struct atsi_refinement *of;
    uint32_t n_left;      // scripts that may yet be built
    uint32_t *free_units; // those that may change sides, n_free
    uint32_t n_free;
    // Scratch, [n_units] each.
    enum atsi_backend *backends;
    bool *prefetched, *nothing;
    uint64_t *unit_bytes; // what each unit has of the region
    uint64_t *bytes;      // of those that are prefetched, one behind the other, as slots and waits_for
    struct atsi_temp_slot *slots;
    uint32_t *waits_for;
};

static void free_trial(struct trial *t) {
    if (!t) return;
    free(t->free_units);
    free(t->backends);
    free(t->prefetched);
    free(t->nothing);
    free(t->unit_bytes);
    free(t->bytes);
    free(t->slots);
    free(t->waits_for);
    free(t);
}

static bool may_change(const struct trial *t, uint32_t u) {
    const struct atsi_plan *plan = t->of->plan;
    bool fits = t->of->units[u].size_bytes <= plan->limits.temp_bytes &&
                (atsi_unit_runs_in_place(&plan->program.units[u], 1) || t->unit_bytes[u] <= plan->limits.temp_bytes);
    return t->of->homes[u] == ATSI_CPU && atsi_unit_is_promotable(&plan->program.units[u]) && fits;
}

static bool allocate(struct trial *t, size_t n) {
    t->free_units = calloc(n, sizeof *t->free_units);
    t->backends = calloc(n, sizeof *t->backends);
    t->prefetched = calloc(n, sizeof *t->prefetched);
    t->nothing = calloc(n, sizeof *t->nothing);
    t->unit_bytes = calloc(n, sizeof *t->unit_bytes);
    t->bytes = calloc(n, sizeof *t->bytes);
    t->slots = calloc(n, sizeof *t->slots);
    t->waits_for = calloc(n, sizeof *t->waits_for);
    return t->free_units && t->backends && t->prefetched && t->nothing && t->unit_bytes && t->bytes && t->slots &&
           t->waits_for;
}

static enum atsi_status begin_trial(struct trial **out, const struct atsi_refinement *r, struct atsi_error *err) {
    uint32_t n = r->plan->program.n_units;
    struct trial *t = *out = calloc(1, sizeof *t);
    if (!t || !allocate(t, n)) return atsi_fail(err, ATSI_FAILED, "out of memory while refining an assignment");
    t->of = r;
    t->n_left = MOST_TRIALS;
    for (uint32_t u = 0; u < n; u++) {
        struct atsi_travelling_tensor travelling[ATSI_TRAVELLING_TENSORS];
        atsi_temp_ring_list(&r->plan->program, &r->plan->program.units[u], travelling, &t->unit_bytes[u]);
        if (may_change(t, u)) t->free_units[t->n_free++] = u;
    }
    return ATSI_OK;
}

static enum atsi_status list_ring(struct trial *t, const bool *promoted, struct atsi_ring_waits *ring,
                                  struct atsi_error *err) {
    const struct atsi_plan *plan = t->of->plan;
    uint32_t n = 0;
    for (uint32_t u = 0; u < plan->program.n_units; u++) {
        t->backends[u] = promoted[u] ? ATSI_GPU : t->of->homes[u];
        t->prefetched[u] = promoted[u] && !atsi_unit_runs_in_place(&plan->program.units[u], 1);
        if (t->prefetched[u]) t->bytes[n++] = t->unit_bytes[u];
    }
    ATSI_TRY(atsi_temp_ring_plan(t->bytes, n, plan->limits.temp_bytes, t->slots, err));
    for (uint32_t i = 0; i < n; i++) t->waits_for[i] = t->slots[i].waits_for;
    *ring = (struct atsi_ring_waits){n, t->waits_for};
    return ATSI_OK;
}

static enum atsi_status time_of(struct trial *t, const bool *promoted, double *round_us, struct atsi_error *err) {
    const struct atsi_plan *plan = t->of->plan;
    struct atsi_ring_waits ring;
    struct atsi_script script;
    struct atsi_script_cost cost;
    ATSI_TRY(list_ring(t, promoted, &ring, err));
    const struct atsi_script_params params = {.program = &plan->program,
                                              .backends = t->backends,
                                              .promoted = promoted,
                                              .prefetched = t->prefetched,
                                              .n_tokens_max = plan->limits.chunk,
                                              .n_outputs_max = plan->limits.n_outputs};
    enum atsi_status status = atsi_script_build(&params, &script, err);
    if (status == ATSI_OK) {
        status = atsi_script_cost_build(plan, &script, t->of->units, 1, &ring, &cost, err);
        if (status == ATSI_OK) *round_us = atsi_script_time(&script, &cost, t->of->scales);
        atsi_script_cost_free(&cost);
    }
    atsi_script_free(&script);
    return status;
}

// The other side for a unit, and for another one with it; kept where the round is shorter so. u itself: it alone.
static enum atsi_status flip(struct trial *t, bool *promoted, uint32_t u, uint32_t other, double *round_us,
                             bool *better, struct atsi_error *err) {
    double us;
    promoted[u] = !promoted[u];
    if (other != u) promoted[other] = !promoted[other];
    ATSI_TRY(time_of(t, promoted, &us, err));
    t->n_left--;
    if (us < (1 - least_gain) * *round_us) {
        *round_us = us;
        *better = true;
        return ATSI_OK;
    }
    promoted[u] = !promoted[u];
    if (other != u) promoted[other] = !promoted[other];
    return ATSI_OK;
}

// Every unit once, alone (reach 0), or with each of the next few that may change; as long as trials are left.
static enum atsi_status pass(struct trial *t, bool *promoted, uint32_t reach, double *round_us, bool *better,
                             struct atsi_error *err) {
    *better = false;
    for (uint32_t i = 0; i < t->n_free; i++)
        for (uint32_t k = reach > 0; k <= reach && i + k < t->n_free && t->n_left > 0; k++)
            ATSI_TRY(flip(t, promoted, t->free_units[i], t->free_units[i + k], round_us, better, err));
    return ATSI_OK;
}

// Leaves the better one in promoted: what was scheduled, or nothing.
static enum atsi_status choose_start(struct trial *t, bool *promoted, double *round_us, struct atsi_error *err) {
    double resting_us;
    ATSI_TRY(time_of(t, promoted, round_us, err));
    ATSI_TRY(time_of(t, t->nothing, &resting_us, err));
    if (resting_us >= *round_us) return ATSI_OK;
    memcpy(promoted, t->nothing, t->of->plan->program.n_units * sizeof *promoted);
    *round_us = resting_us;
    return ATSI_OK;
}

enum atsi_status atsi_refine(const struct atsi_refinement *r, bool *promoted, double *round_us,
                             struct atsi_error *err) {
    struct trial *t;
    bool better = true;
    enum atsi_status status = begin_trial(&t, r, err);
    if (status == ATSI_OK) status = choose_start(t, promoted, round_us, err);
    while (better && status == ATSI_OK && t->n_left > 0) {
        while (better && status == ATSI_OK) status = pass(t, promoted, 0, round_us, &better, err);
        if (status == ATSI_OK) status = pass(t, promoted, REACH, round_us, &better, err);
    }
    free_trial(t);
    return status;
}
