#include "planner/predict.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/schedule/shares.h"

// ---- the scheduler's model ----------------------------------------------------------------------------------------

enum atsi_status atsi_forecast_round(const struct atsi_plan *plan, enum atsi_phase phase,
                                     enum atsi_schedule_policy policy, uint64_t temp_bytes, struct atsi_forecast *out,
                                     struct atsi_error *err) {
    uint32_t n = plan->program.n_units;
    bool contended = phase == ATSI_DECODE && policy != ATSI_POLICY_NONE;
    struct atsi_scales scales = {1, 1, 1, 0};
    if (contended) scales = atsi_scales_contended(plan, &scales);
    *out = (struct atsi_forecast){.units = calloc(n, sizeof *out->units)};
    if (!out->units) return atsi_fail(err, ATSI_FAILED, "out of memory while predicting");
    atsi_round_units(plan, phase == ATSI_DECODE ? 1 : plan->limits.chunk, temp_bytes, &scales, out->units);
    if (contended) atsi_units_read_in_place(plan, out->units);
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

// ---- shares, by the script ----------------------------------------------------------------------------------------

struct shared_round {
    struct atsi_schedule_unit *units;     // [n_units]
    enum atsi_backend *backends;          // [n_units]
    float *gpu_share;                     // [n_units]
    struct atsi_slot_division *divisions; // [n_units]
    struct atsi_script script;
    struct atsi_script_cost cost;
};

static void free_shared_round(struct shared_round *r) {
    free(r->units);
    free(r->backends);
    free(r->gpu_share);
    free(r->divisions);
    atsi_script_free(&r->script);
    atsi_script_cost_free(&r->cost);
}

static enum atsi_status build_shared_round(const struct atsi_plan *plan, struct shared_round *r, bool *any,
                                           struct atsi_error *err) {
    uint32_t n = plan->program.n_units;
    r->units = calloc(n, sizeof *r->units);
    r->backends = calloc(n, sizeof *r->backends);
    r->gpu_share = calloc(n, sizeof *r->gpu_share);
    r->divisions = calloc(n, sizeof *r->divisions);
    if (!r->units || !r->backends || !r->gpu_share || !r->divisions)
        return atsi_fail(err, ATSI_FAILED, "out of memory while predicting");
    atsi_round_units(plan, 1, 0, NULL, r->units);
    for (uint32_t u = 0; u < n; u++) r->backends[u] = plan->program.units[u].backend;
    for (uint32_t u = 0; u < n; u++)
        r->gpu_share[u] = r->backends[u] == ATSI_CPU && atsi_script_can_share(&plan->program, u);
    *any = atsi_share_units(plan, r->units, NULL, r->gpu_share, r->divisions) > 0;
    struct atsi_script_params params = {.program = &plan->program,
                                        .backends = r->backends,
                                        .gpu_share = r->gpu_share,
                                        .divisions = r->divisions,
                                        .can_fetch = true, // where a division says so there is
                                        .n_tokens_max = plan->limits.chunk,
                                        .n_outputs_max = plan->limits.n_outputs};
    ATSI_TRY(atsi_script_build(&params, &r->script, err));
    return atsi_script_cost_build(plan, &r->script, r->units, 1, NULL, &r->cost, err);
}

static enum atsi_status forecast_shares(const struct atsi_plan *plan, struct atsi_decode_forecast *out,
                                        struct atsi_error *err) {
    static const struct atsi_scales as_planned = {1, 1, 1, 0};
    struct shared_round round = {0};
    bool any = false;
    enum atsi_status status = build_shared_round(plan, &round, &any, err);
    if (status == ATSI_OK) {
        double us = atsi_script_time(&round.script, &round.cost, &as_planned);
        out->shares_us = any ? us : INFINITY;
        out->terms = atsi_script_terms_of(&round.script, &round.cost);
        out->handover_us = round.cost.handover_us;
    }
    free_shared_round(&round);
    return status;
}

enum atsi_status atsi_forecast_decode(const struct atsi_plan *plan, uint64_t temp_bytes,
                                      struct atsi_decode_forecast *out, struct atsi_error *err) {
    ATSI_TRY(atsi_place_predict(plan, ATSI_DECODE, ATSI_POLICY_NONE, 0, &out->static_us, err));
    ATSI_TRY(atsi_place_predict(plan, ATSI_DECODE, ATSI_POLICY_FIFO, temp_bytes, &out->streams_us, err));
    ATSI_TRY(forecast_shares(plan, out, err));
    out->best_us = fmin(out->static_us, fmin(out->streams_us, out->shares_us));
    return ATSI_OK;
}
