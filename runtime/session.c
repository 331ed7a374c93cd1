#include "runtime/session.h"

#include <math.h>
#include <stdlib.h>

#include "formats/base/clock.h"

// Ids that the embedding has a row for.
static uint32_t count_token_ids(const struct atsi_program *p) {
    uint32_t n = p->n_vocab;
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (p->ops[i].kind == ATSI_OP_EMBED && p->tensors[p->ops[i].tensor[0]].ne[1] < n)
            n = (uint32_t)p->tensors[p->ops[i].tensor[0]].ne[1];
    return n;
}

static enum atsi_status open_exchange(struct atsi_session *s, const struct atsi_exchange_params *params,
                                      struct atsi_trace *trace, struct atsi_error *err) {
    struct atsi_exchange_params p = *params;
    p.executor = s->executor;
    p.trace = trace;
    if (!p.weights || p.weights->experts.n_routers == 0) return ATSI_OK;
    return atsi_exchange_create(&p, &s->exchange, err);
}

static enum atsi_status open_session(struct atsi_session *s, const struct atsi_session_params *params,
                                     struct atsi_error *err) {
    struct atsi_executor_params p = *params->executor;
    const struct atsi_plan_limits *l = &p.plan->limits;
    if (p.n_ctx > l->n_ctx)
        return atsi_fail(err, ATSI_BAD_INPUT,
                         "--ctx %u: the plan was made for at most %u; plan the model again with --ctx %u", p.n_ctx,
                         l->n_ctx, p.n_ctx);
    p.n_ctx = s->n_ctx = p.n_ctx ? p.n_ctx : l->n_ctx;
    s->n_token_ids = count_token_ids(&p.plan->program);
    s->output_rows = calloc(s->chunk, sizeof *s->output_rows);
    if (!s->output_rows) return atsi_fail(err, ATSI_FAILED, "out of memory while creating the session");
    ATSI_TRY(atsi_executor_create(&p, &s->executor, err));
    ATSI_TRY(open_exchange(s, &params->exchange, p.trace, err));
    return atsi_rescheduler_open(&s->rescheduler, s->executor, s->dispatcher, p.trace, &params->rescheduling, err);
}

enum atsi_status atsi_session_create(const struct atsi_session_params *params, struct atsi_session **out,
                                     struct atsi_error *err) {
    struct atsi_session *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s) {
        atsi_dispatcher_free(params->dispatcher);
        return atsi_fail(err, ATSI_FAILED, "out of memory while creating the session");
    }
    uint32_t most = params->executor->plan->limits.chunk, chunk = params->chunk;
    *s = (struct atsi_session){.plan = params->executor->plan,
                               .dispatcher = params->dispatcher,
                               .stop = params->stop,
                               .chunk = chunk && chunk < most ? chunk : most};
    enum atsi_status status = open_session(s, params, err);
    if (status == ATSI_OK)
        *out = s;
    else
        atsi_session_free(s);
    return status;
}

// Another set of units on the CPU is another problem.
static void take_homes(struct atsi_session *s) {
    atsi_dispatcher_move_homes(s->dispatcher, s->reserve->weights->homes, s->reserve->weights->travel);
    atsi_rescheduler_restart(&s->rescheduler);
}

void atsi_session_follow(struct atsi_session *s, struct atsi_reserve *reserve) {
    s->reserve = reserve;
    take_homes(s);
}

// Another program may have taken memory of the card, or have given some back.
static enum atsi_status follow_reserve(struct atsi_session *s, struct atsi_error *err) {
    enum atsi_reserve_change change;
    if (!s->reserve) return ATSI_OK;
    ATSI_TRY(atsi_reserve_poll(s->reserve, atsi_clock_us(), &change, err));
    if (change == ATSI_RESERVE_STAYS) return ATSI_OK;
    ATSI_TRY(atsi_rescheduler_pause(&s->rescheduler, err));
    ATSI_TRY(atsi_reserve_apply(s->reserve, err));
    take_homes(s);
    return ATSI_OK;
}

void atsi_session_expect(struct atsi_session *s, uint32_t n_tokens) { atsi_exchange_expect(s->exchange, n_tokens); }

enum atsi_status atsi_session_idle(struct atsi_session *s, struct atsi_error *err) { return follow_reserve(s, err); }

void atsi_session_free(struct atsi_session *s) {
    if (!s) return;
    atsi_rescheduler_close(&s->rescheduler);
    atsi_exchange_free(s->exchange);
    atsi_executor_free(s->executor);
    atsi_dispatcher_free(s->dispatcher);
    free(s->output_rows);
    free(s);
}

// Takes a round's logits: hands them on and remembers where the newest row stands.
struct logits_sink {
    struct atsi_session *session;
    atsi_on_logits *on_logits;
    void *context;
    uint32_t first; // output 0 of this round counts as this one of the call
};

static void take_logits(void *context, const float *logits, uint32_t first_output, uint32_t n_outputs) {
    struct logits_sink *sink = context;
    size_t n_vocab = sink->session->plan->program.n_vocab;
    if (sink->on_logits) sink->on_logits(sink->context, logits, sink->first + first_output, n_outputs);
    sink->session->last_logits = logits + (n_outputs - 1) * n_vocab;
}

static enum atsi_status check_tokens(const struct atsi_session *s, const int32_t *ids, uint32_t n,
                                     struct atsi_error *err) {
    if (n > s->n_ctx - s->n_past)
        return atsi_fail(err, ATSI_BAD_INPUT, "%u tokens do not fit: the context holds %u and %u are used", n, s->n_ctx,
                         s->n_past);
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= s->n_token_ids)
            return atsi_fail(err, ATSI_BAD_INPUT, "token %u: id %d is out of range, the model has ids 0 to %u", i,
                             ids[i], s->n_token_ids - 1);
    return ATSI_OK;
}

static enum atsi_status run_round(struct atsi_session *s, const struct atsi_round_request *r, struct atsi_error *err) {
    double started_us = atsi_clock_us();
    ATSI_TRY(atsi_executor_round(s->executor, r, err));
    s->n_past += r->n_tokens;
    double round_us = atsi_clock_us() - started_us;
    atsi_rescheduler_after_round(&s->rescheduler, r->n_tokens, round_us);
    atsi_exchange_after_round(s->exchange, r->n_tokens, round_us);
    return ATSI_OK;
}

// Behind a prompt the assignment is taken over while the experts that it wanted are on their way.
static enum atsi_status assign_round(struct atsi_session *s, uint32_t n_tokens, struct atsi_error *err) {
    ATSI_TRY(atsi_exchange_before_text(s->exchange, n_tokens, err));
    ATSI_TRY(atsi_rescheduler_before_round(&s->rescheduler, n_tokens, err));
    return atsi_exchange_before_round(s->exchange, n_tokens, err);
}

// One round of the next n tokens, the last n_outputs of which give logits, under an assignment for n_assigned.
static enum atsi_status read_round(struct atsi_session *s, const int32_t *ids, uint32_t n, uint32_t n_outputs,
                                   uint32_t n_assigned, struct logits_sink *sink, struct atsi_error *err) {
    struct atsi_round_request r = {.token_ids = ids,
                                   .n_tokens = n,
                                   .first_pos = s->n_past,
                                   .output_rows = s->output_rows,
                                   .n_outputs = n_outputs,
                                   .on_logits = take_logits,
                                   .context = sink};
    for (uint32_t i = 0; i < n_outputs; i++) s->output_rows[i] = (int32_t)(n - n_outputs + i);
    if (s->stop && *s->stop) return atsi_fail(err, ATSI_INTERRUPTED, "interrupted");
    ATSI_TRY(follow_reserve(s, err));
    ATSI_TRY(assign_round(s, n_assigned, err));
    if (s->reserve) s->reserve->pending_bytes = 0; // the states have their places now
    return run_round(s, &r, err);
}

enum atsi_status atsi_session_append(struct atsi_session *s, const int32_t *ids, uint32_t n, atsi_on_logits *on_logits,
                                     void *context, struct atsi_error *err) {
    ATSI_TRY(check_tokens(s, ids, n, err));
    for (uint32_t done = 0; done < n;) {
        uint32_t n_round = n - done < s->chunk ? n - done : s->chunk, last = done + n_round == n;
        struct logits_sink sink = {s, on_logits, context, done};
        ATSI_TRY(read_round(s, ids + done, n_round, on_logits ? n_round : last, n_round, &sink, err));
        done += n_round;
    }
    return ATSI_OK;
}

static bool has_experts(const struct atsi_program *p) {
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (p->ops[i].kind == ATSI_OP_EXPERTS) return true;
    return false;
}

uint32_t atsi_session_most_checked(const struct atsi_session *s) {
    const struct atsi_program *p = &s->plan->program;
    uint32_t most = s->plan->limits.n_outputs < s->chunk ? s->plan->limits.n_outputs : s->chunk;
    for (uint32_t i = 0; i < p->n_states; i++)
        if (p->states[i].kind != ATSI_STATE_KV) return 0;
    return atsi_executor_has_device(s->executor) && has_experts(p) ? 0 : most;
}

enum atsi_status atsi_session_check(struct atsi_session *s, const int32_t *ids, uint32_t n, const float **rows,
                                    struct atsi_error *err) {
    struct logits_sink sink = {s, NULL, NULL, 0};
    ATSI_TRY(check_tokens(s, ids, n, err));
    ATSI_TRY(read_round(s, ids, n, n, 1, &sink, err));
    *rows = s->last_logits - (size_t)(n - 1) * s->plan->program.n_vocab;
    return ATSI_OK;
}

enum atsi_status atsi_session_check_logits(struct atsi_session *s, struct atsi_error *err) {
    bool any_finite = false, any_nan = false;
    for (uint32_t i = 0; i < s->plan->program.n_vocab; i++) {
        any_nan |= isnan(s->last_logits[i]) || s->last_logits[i] == INFINITY;
        any_finite |= isfinite(s->last_logits[i]);
    }
    if (any_finite && !any_nan) return ATSI_OK;
    char unit[ATSI_NAME_CAP];
    atsi_executor_blame(s->executor, unit, sizeof unit);
    return atsi_fail(err, ATSI_FAILED, "non-finite logits at token %u%s%s", s->n_past - 1, unit[0] ? ", first in " : "",
                     unit);
}

// A ring keeps the newest positions: what the window of an older one saw may be overwritten.
static bool can_go_back(const struct atsi_session *s, const struct atsi_state *state, uint32_t n) {
    if (state->kind != ATSI_STATE_KV) return false;
    uint32_t capacity = atsi_state_capacity(state, s->n_ctx, s->plan->limits.chunk);
    return capacity >= s->n_past || s->n_past - n <= capacity - state->window;
}

bool atsi_session_truncate(struct atsi_session *s, uint32_t n) {
    for (uint32_t i = 0; n && i < s->plan->program.n_states; i++) {
        const struct atsi_state *state = &s->plan->program.states[i];
        if (n < s->n_past && !can_go_back(s, state, n)) return false;
    }
    if (n == 0 && atsi_executor_reset(s->executor, NULL) != ATSI_OK) return false;
    s->n_past = n;
    return true;
}
