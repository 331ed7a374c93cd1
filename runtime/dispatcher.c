#include "runtime/dispatcher.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/refine.h"
#include "runtime/schedule/script.h"
#include "runtime/schedule/shares.h"

struct atsi_dispatcher {
    struct atsi_plan plan; // the caller's, but for what is resident one by one now
    enum atsi_schedule_policy policy;
    bool no_split_rows;
    struct atsi_scheduler *scheduler; // NULL: static placement
    struct atsi_schedule_unit *units; // [n_units]
    bool *streamed;                   // [n_units] scratch
    enum atsi_backend *homes;         // [n_units]
    enum atsi_travel *travel;         // [n_units]
    double staged_slowdown;
    uint8_t *warm[2]; // [phase][n_units]: the last assignment of decode and of prefill rounds
    bool is_warm[2];
    enum atsi_backend *backends;          // [n_units]
    enum atsi_promotion *promotions;      // [n_units]
    float *gpu_share;                     // [n_units]
    struct atsi_slot_division *divisions; // [n_units]
    struct atsi_decision last;
};

enum atsi_status atsi_dispatcher_create(const struct atsi_dispatcher_params *params, struct atsi_dispatcher **out,
                                        struct atsi_error *err) {
    const struct atsi_plan *plan = params->plan;
    uint32_t n = plan->program.n_units;
    bool dynamic =
        params->has_device && params->policy != ATSI_POLICY_NONE && plan->decode_times && plan->prefill_times;
    struct atsi_dispatcher *d = calloc(1, sizeof *d);
    *out = NULL;
    if (!d) return atsi_fail(err, ATSI_FAILED, "out of memory while creating the dispatcher");
    *d = (struct atsi_dispatcher){.plan = *plan,
                                  .policy = params->policy,
                                  .no_split_rows = params->no_split_rows,
                                  .staged_slowdown = params->staged_slowdown};
    d->units = calloc(n, sizeof *d->units);
    d->streamed = calloc(n, sizeof *d->streamed);
    d->homes = calloc(n, sizeof *d->homes);
    d->travel = calloc(n, sizeof *d->travel);
    d->warm[0] = calloc(n, sizeof *d->warm[0]);
    d->warm[1] = calloc(n, sizeof *d->warm[1]);
    d->backends = calloc(n, sizeof *d->backends);
    d->promotions = calloc(n, sizeof *d->promotions);
    d->gpu_share = calloc(n, sizeof *d->gpu_share);
    d->divisions = calloc(n, sizeof *d->divisions);
    bool complete = d->gpu_share && d->divisions && d->units && d->streamed && d->homes && d->travel && d->warm[0] &&
                    d->warm[1] && d->backends && d->promotions;
    enum atsi_status status =
        complete ? ATSI_OK : atsi_fail(err, ATSI_FAILED, "out of memory while creating the dispatcher");
    for (uint32_t u = 0; status == ATSI_OK && u < n; u++)
        d->homes[u] = params->has_device ? plan->program.units[u].backend : ATSI_CPU;
    if (status == ATSI_OK && dynamic) status = atsi_scheduler_create(n, &d->scheduler, err);
    if (status == ATSI_OK)
        *out = d;
    else
        atsi_dispatcher_free(d);
    return status;
}

void atsi_dispatcher_free(struct atsi_dispatcher *d) {
    if (!d) return;
    atsi_scheduler_free(d->scheduler);
    free(d->units);
    free(d->streamed);
    free(d->homes);
    free(d->travel);
    free(d->warm[0]);
    free(d->warm[1]);
    free(d->backends);
    free(d->promotions);
    free(d->gpu_share);
    free(d->divisions);
    free(d);
}

void atsi_dispatcher_move_homes(struct atsi_dispatcher *d, const enum atsi_backend *homes,
                                const enum atsi_travel *travel) {
    memcpy(d->homes, homes, d->plan.program.n_units * sizeof *homes);
    memcpy(d->travel, travel, d->plan.program.n_units * sizeof *travel);
    d->is_warm[0] = d->is_warm[1] = false;
}

void atsi_dispatcher_take_residents(struct atsi_dispatcher *d, struct atsi_resident_experts *residents) {
    d->plan.resident_experts = residents;
}

static void stay_home(struct atsi_dispatcher *d) {
    for (uint32_t u = 0; u < d->plan.program.n_units; u++) {
        d->backends[u] = d->homes[u];
        d->promotions[u] = ATSI_NOT_PROMOTED;
        d->gpu_share[u] = 0;
        d->divisions[u].n_used = 0;
    }
}

static void promote(struct atsi_dispatcher *d, const bool *streamed, uint32_t n_tokens) {
    for (uint32_t u = 0; u < d->plan.program.n_units; u++) {
        const struct atsi_unit *unit = &d->plan.program.units[u];
        if (!streamed[u]) continue;
        d->backends[u] = ATSI_GPU;
        d->promotions[u] = atsi_unit_runs_in_place(unit, n_tokens) ? ATSI_IN_PLACE : ATSI_PREFETCHED;
        d->last.n_promoted++;
    }
}

static bool can_be_shared(const struct atsi_dispatcher *d, uint32_t u) {
    return !d->no_split_rows && d->homes[u] == ATSI_CPU && d->travel[u] == ATSI_TRAVELS_PINNED &&
           atsi_script_can_share(&d->plan.program, u);
}

static void share(struct atsi_dispatcher *d, const struct atsi_unit_factors *factors) {
    for (uint32_t u = 0; u < d->plan.program.n_units; u++) d->gpu_share[u] = can_be_shared(d, u);
    d->last.n_shared = atsi_share_units(&d->plan, d->units, factors, d->gpu_share, d->divisions);
}

const char *atsi_link_use_name(enum atsi_link_use use) { return use == ATSI_LINK_STREAMS ? "streams" : "shares"; }

bool atsi_dispatcher_is_dynamic(const struct atsi_dispatcher *d) { return d->scheduler != NULL; }

bool atsi_dispatcher_has_choice(const struct atsi_dispatcher *d) {
    if (!d->scheduler) return false;
    for (uint32_t u = 0; u < d->plan.program.n_units; u++)
        if (can_be_shared(d, u)) return true;
    return false;
}

// What copies through a ring of pinned memory take, and where units are now. What cannot travel does not fit the temporary region.
static void adapt_units(struct atsi_dispatcher *d, uint32_t n_tokens) {
    for (uint32_t u = 0; u < d->plan.program.n_units; u++) {
        d->units[u].home = d->homes[u];
        if (d->travel[u] == ATSI_TRAVELS_STAGED) d->units[u].transfer_us *= d->staged_slowdown;
        if (d->homes[u] == ATSI_CPU && !atsi_travels_for(d->travel[u], n_tokens))
            d->units[u].size_bytes = d->plan.limits.temp_bytes + 1;
    }
}

// The round as the plan has it, but for where units are now. Rounds of one token that stream do so beside the CPU; shares are divided with
// that in mind (shares.h).
static void list_units(struct atsi_dispatcher *d, uint32_t n_tokens, enum atsi_link_use use,
                       const struct atsi_scales *scales, const struct atsi_unit_factors *factors) {
    struct atsi_scales contended = atsi_scales_contended(&d->plan, scales);
    bool contends = n_tokens == 1 && use == ATSI_LINK_STREAMS;
    atsi_round_units(&d->plan, n_tokens, d->plan.limits.temp_bytes, contends ? &contended : scales, d->units);
    if (contends) atsi_units_read_in_place(&d->plan, d->units);
    adapt_units(d, n_tokens);
    for (uint32_t u = 0; factors && u < d->plan.program.n_units; u++) {
        d->units[u].t_cpu_us *= factors[u].cpu;
        d->units[u].cpu_fixed_us *= factors[u].cpu;
    }
}

static enum atsi_status schedule(struct atsi_dispatcher *d, uint32_t n_tokens, struct atsi_error *err) {
    struct atsi_schedule_instance inst = {d->plan.limits.temp_bytes, d->plan.program.n_units, d->units};
    struct atsi_schedule schedule;
    int phase = n_tokens > 1;
    ATSI_TRY(
        atsi_scheduler_run(d->scheduler, &inst, d->policy, d->is_warm[phase] ? d->warm[phase] : NULL, &schedule, err));
    for (uint32_t u = 0; u < d->plan.program.n_units; u++) {
        d->warm[phase][u] = schedule.assignment[u];
        d->streamed[u] = d->homes[u] == ATSI_CPU && schedule.assignment[u] == ATSI_GPU;
    }
    d->is_warm[phase] = true;
    return ATSI_OK;
}

static enum atsi_status stream(struct atsi_dispatcher *d, uint32_t n_tokens, const struct atsi_scales *scales,
                               struct atsi_error *err) {
    ATSI_TRY(schedule(d, n_tokens, err));
    if (n_tokens == 1 && d->policy == ATSI_POLICY_FIFO) {
        const struct atsi_refinement refinement = {&d->plan, d->homes, d->units, scales};
        atsi_round_units(&d->plan, 1, d->plan.limits.temp_bytes, NULL, d->units);
        adapt_units(d, 1);
        ATSI_TRY(atsi_refine(&refinement, d->streamed, &d->last.refined_us, err));
    }
    promote(d, d->streamed, n_tokens);
    return ATSI_OK;
}

enum atsi_status atsi_dispatcher_decide(struct atsi_dispatcher *d, uint32_t n_tokens, enum atsi_link_use use,
                                        const struct atsi_scales *scales, const struct atsi_unit_factors *factors,
                                        struct atsi_assignment *out, struct atsi_error *err) {
    d->last = (struct atsi_decision){0};
    stay_home(d);
    if (d->scheduler) {
        list_units(d, n_tokens, use, scales, n_tokens == 1 ? factors : NULL);
        if (use != ATSI_LINK_STREAMS && n_tokens == 1)
            share(d, factors);
        else
            ATSI_TRY(stream(d, n_tokens, scales, err));
    }
    *out = (struct atsi_assignment){d->backends,  d->promotions, d->gpu_share,
                                    d->divisions, n_tokens,      d->plan.resident_experts};
    return ATSI_OK;
}

struct atsi_decision atsi_dispatcher_last(const struct atsi_dispatcher *d) {
    return d->last;
}
