#include "runtime/rescheduler.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "formats/base/clock.h"

static const double default_epsilon = 0.15, default_tau = 5;

static void start_tuner(struct atsi_rescheduler *r) {
    struct atsi_tuner_params params = {.is_dynamic = atsi_dispatcher_is_dynamic(r->dispatcher) && !r->params.never,
                                       .has_choice = atsi_dispatcher_has_choice(r->dispatcher),
                                       .epsilon = r->params.epsilon > 0 ? r->params.epsilon : default_epsilon,
                                       .tau = r->params.tau > 0 ? r->params.tau : default_tau};
    atsi_tuner_start(&r->tuner, &params);
}

enum atsi_status atsi_rescheduler_open(struct atsi_rescheduler *r, struct atsi_executor *executor,
                                       struct atsi_dispatcher *dispatcher, struct atsi_trace *trace,
                                       const struct atsi_rescheduler_params *params, struct atsi_error *err) {
    *r = (struct atsi_rescheduler){.executor = executor, .dispatcher = dispatcher, .trace = trace, .params = *params};
    uint32_t n = atsi_executor_n_units(executor);
    r->factors = calloc(n, sizeof *r->factors);
    r->residents = params->experts ? calloc(n, sizeof *r->residents) : NULL;
    if (!r->factors || (params->experts && !r->residents))
        return atsi_fail(err, ATSI_FAILED, "out of memory while creating the session");
    for (uint32_t u = 0; u < n; u++) r->factors[u] = (struct atsi_unit_factors){1, 1};
    start_tuner(r);
    bool beside = atsi_dispatcher_is_dynamic(dispatcher) && !params->in_turn;
    return atsi_assigner_create(executor, dispatcher, beside, &r->assigner, err);
}

static void drop_ahead(struct atsi_rescheduler *r) {
    if (r->has_ahead) atsi_prepared_round_free(r->ahead.prepared);
    r->has_ahead = false;
}

static void drop_best(struct atsi_rescheduler *r) {
    if (r->has_best) atsi_assigner_discard(r->assigner, r->best.prepared);
    r->has_best = r->returns = false;
}

void atsi_rescheduler_close(struct atsi_rescheduler *r) {
    if (r->assigner) drop_best(r);
    atsi_assigner_free(r->assigner);
    r->assigner = NULL;
    drop_ahead(r);
    free(r->factors);
    free(r->residents);
    r->factors = NULL;
    r->residents = NULL;
}

// ---- taking over --------------------------------------------------------------------------------------------------

static enum atsi_status check(const struct atsi_assigner_result *result, struct atsi_error *err) {
    return result->err.status == ATSI_OK ? ATSI_OK : atsi_fail(err, result->err.status, "%s", result->err.text);
}

static void trace_decision(const struct atsi_rescheduler *r, const struct atsi_assigner_result *result,
                           const char *verdict) {
    const struct atsi_scales *s = &result->job.wish.scales;
    char name[200];
    snprintf(name, sizeof name, "decide for %u tokens (%s): cpu x%.2f gpu x%.2f link x%.2f; %u promoted, %u shared; %s",
             result->job.n_tokens, result->job.n_tokens == 1 ? r->tuner.reason : "prompt", s->cpu, s->gpu, s->link,
             result->decision.n_promoted, result->decision.n_shared, verdict);
    atsi_trace_span(r->trace, ATSI_LANE_DECISION, name, result->began_us, result->took_us);
}

static void log_decision(const struct atsi_rescheduler *r, const struct atsi_assigner_result *result,
                         const char *verdict) {
    if (!r->params.log || result->job.n_tokens != 1) return;
    const struct atsi_tuner_wish *wish = &result->job.wish;
    bool after_decode = r->at_work && r->assigned_for == 1;
    struct atsi_decision_entry entry = {.time_us = atsi_clock_us(),
                                        .verdict = verdict,
                                        .reason = r->tuner.reason,
                                        .wish = *wish,
                                        .recorded = result->job.now,
                                        .decision = result->decision,
                                        .forecast_us = result->forecast_us,
                                        .at_work_forecast_us =
                                            after_decode ? atsi_prepared_round_time(r->at_work, &result->job.now) : 0,
                                        .at_work_us = atsi_tuner_recent_us(&r->tuner),
                                        .at_work_rounds = r->tuner.n_rounds};
    atsi_decision_log_note(r->params.log, &entry);
}

static void count(struct atsi_rescheduler *r, const struct atsi_assigner_result *result, double handover_us) {
    struct atsi_rescheduler_stats *s = &r->stats;
    if (result->took_us > s->most_took_us) s->most_took_us = result->took_us;
    if (handover_us > s->most_handover_us) s->most_handover_us = handover_us;
    s->decision = result->decision;
    s->scales = result->job.wish.scales;
    s->reason = r->tuner.reason;
    s->n_adopted += result->job.n_tokens == 1;
}

// What is at work leaves. As long as something else is tried, the best so far is kept.
static void put_aside(struct atsi_rescheduler *r, struct atsi_prepared_round *old) {
    bool keep = old && r->assigned_for == 1 && atsi_tuner_may_return(&r->tuner);
    if (!keep) {
        atsi_assigner_discard(r->assigner, old);
        return;
    }
    drop_best(r);
    r->best = (struct atsi_assigner_result){
        .job = {.n_tokens = 1, .wish = r->tuner.at_work}, .prepared = old, .decision = r->stats.decision};
    r->has_best = true;
}

// What its rounds should take of what those at work should; 0: unknown.
static double promise_of(const struct atsi_rescheduler *r, const struct atsi_assigner_result *result) {
    if (!r->at_work || r->assigned_for != 1) return 0;
    double at_work_us = atsi_prepared_round_time(r->at_work, &result->job.now);
    return at_work_us > 0 ? result->forecast_us / at_work_us : 0;
}

static enum atsi_status adopt(struct atsi_rescheduler *r, const struct atsi_assigner_result *result,
                              const char *verdict, struct atsi_error *err) {
    struct atsi_prepared_round *old;
    ATSI_TRY(check(result, err));
    log_decision(r, result, verdict);
    double started_us = atsi_clock_us(), promised = promise_of(r, result);
    enum atsi_status status = atsi_executor_adopt(r->executor, result->prepared, &old, err);
    put_aside(r, old);
    r->at_work = result->prepared;
    r->assigned_for = result->job.n_tokens;
    if (result->job.n_tokens == 1) atsi_tuner_begun(&r->tuner, result->job.wish.use, promised);
    count(r, result, atsi_clock_us() - started_us);
    trace_decision(r, result, verdict);
    return status;
}

// ---- another kind of rounds ---------------------------------------------------------------------------------------

static struct atsi_assigner_job decode_job(struct atsi_rescheduler *r) {
    struct atsi_assigner_job job = {.n_tokens = 1, .wish = r->tuner.wish, .now = r->tuner.now};
    atsi_executor_unit_factors(r->executor, &atsi_executor_recorder(r->executor, true)->scales, r->factors);
    job.choose = !r->tuner.has_begun && r->tuner.params.has_choice;
    if (job.wish.by_unit) job.factors = r->factors;
    if (r->assigned_for == 1 && isfinite(r->tuner.most_ratio))
        job.most_us = r->tuner.most_ratio * atsi_prepared_round_time(r->at_work, &job.now);
    return job;
}

static struct atsi_assigner_job prefill_job(const struct atsi_rescheduler *r, uint32_t n_tokens) {
    struct atsi_assigner_job job = {.n_tokens = n_tokens, .wish.scales = {1, 1, 1, 0}};
    if (!r->params.never) job.wish.scales = atsi_executor_recorder(r->executor, false)->scales;
    job.now = job.wish.scales;
    return job;
}

static void ask(struct atsi_rescheduler *r, uint32_t n_tokens) {
    struct atsi_assigner_job job = n_tokens == 1 ? decode_job(r) : prefill_job(r, n_tokens);
    r->stats.n_decided += n_tokens == 1;
    if (r->residents) atsi_experts_describe(r->params.experts, r->residents);
    job.residents = r->residents;
    atsi_assigner_ask(r->assigner, &job);
}

static bool is_declined(const struct atsi_assigner_result *result) {
    return !result->prepared && result->err.status == ATSI_OK;
}

// What is under way or waits is a decode assignment; it is kept for later.
static void take_ahead(struct atsi_rescheduler *r) {
    if (!atsi_assigner_is_busy(r->assigner)) return;
    drop_ahead(r);
    r->has_ahead = atsi_assigner_take(r->assigner, true, &r->ahead) && !is_declined(&r->ahead);
}

static enum atsi_status assign_prefill(struct atsi_rescheduler *r, uint32_t n_tokens, struct atsi_error *err) {
    struct atsi_assigner_result result;
    take_ahead(r);
    ask(r, n_tokens);
    atsi_assigner_take(r->assigner, true, &result);
    ATSI_TRY(adopt(r, &result, "taken over", err));
    if (!r->has_ahead && !r->returns) ask(r, 1); // while the prompt is read
    return ATSI_OK;
}

static enum atsi_status assign_decode(struct atsi_rescheduler *r, struct atsi_error *err) {
    double started_us = atsi_clock_us();
    take_ahead(r);
    if (!r->has_ahead) {
        ask(r, 1);
        take_ahead(r);
    }
    r->stats.waited_us += atsi_clock_us() - started_us;
    r->has_ahead = false;
    ATSI_TRY(adopt(r, &r->ahead, "taken over", err));
    if (r->residents) { // of which others may be there since it was decided
        atsi_experts_describe(r->params.experts, r->residents);
        atsi_executor_reprice(r->executor, r->residents);
    }
    return ATSI_OK;
}

// ---- another load -------------------------------------------------------------------------------------------------

static bool is_same(const struct atsi_tuner_wish *a, const struct atsi_tuner_wish *b) {
    return a->use == b->use && a->by_unit == b->by_unit && atsi_scales_deviation(&a->scales, &b->scales) == 0;
}

static void ask_or_return(struct atsi_rescheduler *r) {
    r->returns = r->has_best && is_same(&r->best.job.wish, &r->tuner.wish);
    if (!r->returns) ask(r, 1);
}

static enum atsi_status take_best(struct atsi_rescheduler *r, struct atsi_error *err) {
    struct atsi_assigner_result best = r->best;
    r->has_best = r->returns = false;
    best.began_us = atsi_clock_us();
    best.job.now = r->tuner.now;
    best.forecast_us = atsi_prepared_round_time(best.prepared, &best.job.now);
    r->stats.n_decided++;
    return adopt(r, &best, "returned", err);
}

static enum atsi_status take_decided(struct atsi_rescheduler *r, struct atsi_error *err) {
    struct atsi_assigner_result result;
    if (!atsi_assigner_take(r->assigner, false, &result)) return ATSI_OK;
    if (!is_declined(&result)) return adopt(r, &result, "taken over", err);
    if (result.took_us > r->stats.most_took_us) r->stats.most_took_us = result.took_us;
    trace_decision(r, &result, "declined: promises too little");
    log_decision(r, &result, "declined");
    if (atsi_tuner_declined(&r->tuner, promise_of(r, &result))) ask_or_return(r);
    return ATSI_OK;
}

// Units may change sides between a prefill round and a decode round, and between prefills of very different length.
enum atsi_status atsi_rescheduler_before_round(struct atsi_rescheduler *r, uint32_t n_tokens, struct atsi_error *err) {
    bool same_kind = r->assigned_for && (r->assigned_for == 1) == (n_tokens == 1);
    if (n_tokens == 1 && r->returns) return take_best(r, err);
    if (n_tokens == 1) return same_kind ? take_decided(r, err) : assign_decode(r, err);
    bool suits = same_kind && n_tokens <= 2 * r->assigned_for && r->assigned_for <= 2 * n_tokens;
    return suits ? ATSI_OK : assign_prefill(r, n_tokens, err);
}

void atsi_rescheduler_after_round(struct atsi_rescheduler *r, uint32_t n_tokens, double round_us) {
    struct atsi_recorder *recorder = atsi_executor_recorder(r->executor, true);
    if (n_tokens != 1) return;
    atsi_executor_note_round(r->executor, round_us);
    bool due = atsi_tuner_record(&r->tuner, round_us, &recorder->scales);
    if (atsi_tuner_is_surprised(&r->tuner)) atsi_recorder_look(recorder);
    if (due) ask_or_return(r);
    // What a declined decision returns to waits for the next round.
    if (!due && !r->returns && atsi_tuner_is_settled(&r->tuner)) drop_best(r);
}

// ---- other homes --------------------------------------------------------------------------------------------------

enum atsi_status atsi_rescheduler_pause(struct atsi_rescheduler *r, struct atsi_error *err) {
    take_ahead(r);
    drop_ahead(r);
    drop_best(r);
    return atsi_executor_settle(r->executor, err);
}

void atsi_rescheduler_restart(struct atsi_rescheduler *r) {
    start_tuner(r);
    r->assigned_for = 0;
}
