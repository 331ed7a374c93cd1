// executor_round.c: runs a round's script, and tells of it.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "formats/base/clock.h"
#include "runtime/executor_internal.h"

// ---- one round ----------------------------------------------------------------------------------------------------

static uint32_t rows_of(const struct atsi_buffer *b, const struct atsi_round *round) {
    return (uint32_t)(b->rows == ATSI_ROWS_TOKENS ? round->n_tokens : round->n_outputs);
}

// Copies columns of a buffer's rows to the other side, by a kernel.
// The slots of a buffer that the other side has computed for the token at hand.
static enum atsi_status cross_slots(const struct atsi_executor *x, const struct atsi_action *a, char *on_device,
                                    char *on_host, struct atsi_stream *stream, uint32_t n_rows,
                                    struct atsi_error *err) {
    uint32_t router_unit = atsi_program_unit_of(x->p, (uint32_t)a->slots_of);
    uint32_t n_slots = x->p->ops[a->slots_of].u.router.n_used, width = x->p->buffers[a->buffer].width;
    const int32_t *mine = x->sides[ATSI_GPU].experts[router_unit].mine;
    bool to_device = a->backend == ATSI_GPU;
    return x->device->ops->copy_slots(stream, to_device ? on_device : on_host, width, to_device ? on_host : on_device,
                                      width, width / n_slots, n_slots, mine, to_device, n_rows, err);
}

static enum atsi_status cross(const struct atsi_executor *x, const struct atsi_action *a, struct atsi_stream *stream,
                              const struct atsi_round *round, struct atsi_error *err) {
    const struct atsi_buffer *b = &x->p->buffers[a->buffer];
    uint64_t offset = b->offset_bytes + (uint64_t)a->offset * 4;
    char *on_device = x->sides[ATSI_GPU].compute + offset, *on_host = (char *)x->host_compute_dev + offset;
    bool to_device = a->backend == ATSI_GPU;
    if (a->slots_of != ATSI_NONE) return cross_slots(x, a, on_device, on_host, stream, rows_of(b, round), err);
    return x->device->ops->copy_rows(stream, to_device ? on_device : on_host, b->width, to_device ? on_host : on_device,
                                     b->width, a->width, rows_of(b, round), err);
}

enum atsi_status executor_enqueue(const struct atsi_executor *x, const struct atsi_prepared_round *p,
                                  struct atsi_stream *stream, const struct atsi_round *round, uint32_t first,
                                  uint32_t n, struct atsi_error *err) {
    for (uint32_t i = first; i < first + n; i++) {
        const struct atsi_action *a = &p->script.actions[i];
        if (a->kind == ATSI_ACTION_CROSS) ATSI_TRY(cross(x, a, stream, round, err));
        for (uint32_t k = a->first; a->kind == ATSI_ACTION_GPU && k < a->first + a->n; k++)
            ATSI_TRY(p->script.steps[k].fetches ? x->device->ops->fetch_experts(stream, &p->calls[k], err)
                                                : x->device->ops->launch(stream, &p->calls[k], round, err));
    }
    return ATSI_OK;
}

static enum atsi_status run_on_device(struct atsi_executor *x, uint32_t first, uint32_t n, struct atsi_error *err) {
    void *graph = x->now->graphs[first];
    bool one_row = x->round->n_tokens == 1 && (first < x->now->script.tail || x->round->n_outputs == 1);
    if (graph && one_row) return x->device->ops->graph_launch(x->stream, graph, err);
    return executor_enqueue(x, x->now, x->stream, x->round, first, n, err);
}

// Slots that are divided token by token may all be the device's; what stands between the products works on those slots alone.
static bool has_nothing_to_do(const struct atsi_prepared_round *p, const struct atsi_action *a) {
    for (uint32_t i = a->first; i < a->first + a->n; i++) {
        if (!p->script.steps[i].by_token) return false;
        if (p->calls[i].op->kind == ATSI_OP_EXPERTS && !atsi_cpu_has_no_slots(&p->calls[i])) return false;
    }
    return true;
}

void executor_run_cpu(struct atsi_executor *x, const struct atsi_action *a) {
    if (!has_nothing_to_do(x->now, a)) atsi_cpu_run(x->cpu, x->pool, &x->now->calls[a->first], (int)a->n);
}

static enum atsi_status run_action(struct atsi_executor *x, const struct atsi_action *a, struct atsi_error *err) {
    switch (a->kind) {
    case ATSI_ACTION_CPU: executor_run_cpu(x, a); return ATSI_OK;
    case ATSI_ACTION_RECORD: return x->device->ops->event_record(x->arrived, x->stream, err);
    case ATSI_ACTION_WAIT: return x->device->ops->event_sync(x->arrived, err);
    case ATSI_ACTION_AWAIT: return atsi_transfers_await(x->transfers, x->stream, err);
    case ATSI_ACTION_CONSUMED: return atsi_transfers_consumed(x->transfers, x->stream, err);
    default: return ATSI_OK; // device actions run in runs
    }
}

enum atsi_status executor_publish_round(const struct atsi_executor *x, struct atsi_stream *stream,
                                        struct atsi_error *err) {
    if (!x->device) return ATSI_OK;
    return x->device->ops->copy_rows(stream, x->staging.device, x->staging.n_ints, x->staging.dev, x->staging.n_ints,
                                     x->staging.n_ints, 1, err);
}

static const char *unit_name_of(const struct atsi_program *p, uint32_t i_op) {
    return p->units[atsi_program_unit_of(p, i_op)].name;
}

// "blk.0.attn_q … blk.0.attn_output", or "copies" for a run without steps.
static void name_actions(const struct atsi_executor *x, uint32_t first, uint32_t n, char *name, size_t cap) {
    const struct atsi_step *from = NULL, *to = NULL;
    for (uint32_t i = first; i < first + n; i++) {
        const struct atsi_action *a = &x->now->script.actions[i];
        if (a->n == 0 || (a->kind != ATSI_ACTION_GPU && a->kind != ATSI_ACTION_CPU)) continue;
        if (!from) from = &x->now->script.steps[a->first];
        to = &x->now->script.steps[a->first + a->n - 1];
    }
    if (!from)
        snprintf(name, cap, "copies");
    else if (from->op == to->op)
        snprintf(name, cap, "%s", unit_name_of(x->p, from->op));
    else
        snprintf(name, cap, "%s \xE2\x80\xA6 %s", unit_name_of(x->p, from->op), unit_name_of(x->p, to->op));
}

static enum atsi_status run_timed_on_device(struct atsi_executor *x, uint32_t first, uint32_t n,
                                            struct atsi_error *err) {
    struct atsi_timed_run *timed = &x->now->timed[first];
    ATSI_TRY(x->device->ops->event_record(timed->began, x->stream, err));
    ATSI_TRY(run_on_device(x, first, n, err));
    timed->n = n;
    return x->device->ops->event_record(timed->ended, x->stream, err);
}

static struct atsi_recorder *recorder_of(struct atsi_executor *x) { return &x->recorders[x->now->n_tokens == 1]; }

// Rounds of another size than the assignment was made for say nothing about its costs.
static bool is_recorded(const struct atsi_executor *x) {
    return x->device && (uint32_t)x->round->n_tokens == x->now->n_tokens;
}

static double most_us(const struct atsi_executor *x, uint32_t i_action) {
    return x->now->cost.splits[i_action].most_us;
}

static void note_wait(struct atsi_executor *x, uint32_t i, double took_us) {
    x->waits_us += took_us;
    if (atsi_script_waits_for_transfers(&x->now->script, i)) x->transfer_waits_us += took_us;
}

void executor_note_host(struct atsi_executor *x, uint32_t i, double started_us) {
    const struct atsi_action *a = &x->now->script.actions[i];
    char name[2 * ATSI_NAME_CAP + 8] = "wait";
    double took_us = atsi_clock_us() - started_us;
    if (a->kind == ATSI_ACTION_CPU && is_recorded(x))
        atsi_recorder_note_cpu(recorder_of(x), &x->now->recent_us[i], took_us, most_us(x, i));
    if (a->kind == ATSI_ACTION_WAIT) note_wait(x, i, took_us);
    if (!x->trace || (a->kind != ATSI_ACTION_CPU && a->kind != ATSI_ACTION_WAIT)) return;
    if (a->kind == ATSI_ACTION_CPU) name_actions(x, i, 1, name, sizeof name);
    atsi_trace_span(x->trace, a->kind == ATSI_ACTION_CPU ? ATSI_LANE_CPU : ATSI_LANE_WAIT, name, started_us, took_us);
}

static enum atsi_status run_timed_action(struct atsi_executor *x, uint32_t i, struct atsi_error *err) {
    double started_us = atsi_clock_us();
    ATSI_TRY(run_action(x, &x->now->script.actions[i], err));
    executor_note_host(x, i, started_us);
    return ATSI_OK;
}

static enum atsi_status trace_run(struct atsi_executor *x, uint32_t i, const struct atsi_timed_run *run, double took_us,
                                  struct atsi_error *err) {
    char name[2 * ATSI_NAME_CAP + 8];
    float after_us;
    ATSI_TRY(x->device->ops->event_elapsed_us(x->round_began, run->began, &after_us, err));
    name_actions(x, i, run->n, name, sizeof name);
    atsi_trace_span(x->trace, ATSI_LANE_GPU, name, x->round_began_us + after_us, took_us);
    return ATSI_OK;
}

// After the stream has come to rest: what the device did in this part of the round.
static enum atsi_status report_device(struct atsi_executor *x, struct atsi_error *err) {
    for (uint32_t i = 0; i < x->now->script.n_actions; i++) {
        struct atsi_timed_run *run = &x->now->timed[i];
        float took_us;
        if (!run->n) continue;
        ATSI_TRY(x->device->ops->event_elapsed_us(run->began, run->ended, &took_us, err));
        if (is_recorded(x)) atsi_recorder_note_device(recorder_of(x), &x->now->recent_us[i], took_us, most_us(x, i));
        if (x->trace) ATSI_TRY(trace_run(x, i, run, took_us, err));
        run->n = 0;
    }
    return ATSI_OK;
}

static enum atsi_status begin_timing(struct atsi_executor *x, struct atsi_error *err) {
    x->round_began_us = atsi_clock_us();
    if (!x->device) return ATSI_OK;
    x->times_device = x->trace || (is_recorded(x) && atsi_recorder_times_device(recorder_of(x)));
    if (x->transfers) atsi_transfers_time(x->transfers, x->times_device);
    return x->trace ? x->device->ops->event_record(x->round_began, x->stream, err) : ATSI_OK;
}

static enum atsi_status end_timing(struct atsi_executor *x, bool tail, struct atsi_error *err) {
    char name[64];
    if (x->trace) {
        snprintf(name, sizeof name, tail ? "output of %d rows" : "round of %d tokens",
                 tail ? x->round->n_outputs : x->round->n_tokens);
        atsi_trace_span(x->trace, ATSI_LANE_ROUND, name, x->round_began_us, atsi_clock_us() - x->round_began_us);
    }
    return x->times_device ? report_device(x, err) : ATSI_OK;
}

static enum atsi_status run_actions(struct atsi_executor *x, uint32_t first, uint32_t end, struct atsi_error *err) {
    ATSI_TRY(begin_timing(x, err));
    ATSI_TRY(executor_publish_round(x, x->stream, err));
    if (x->transfers && first == 0) ATSI_TRY(atsi_transfers_issue(x->transfers, err));
    for (uint32_t i = first; i < end;) {
        uint32_t n = atsi_script_device_run(&x->now->script, i);
        if (n)
            ATSI_TRY(x->times_device ? run_timed_on_device(x, i, n, err) : run_on_device(x, i, n, err));
        else
            ATSI_TRY(run_timed_action(x, i, err));
        if (n && x->no_overlap) ATSI_TRY(x->device->ops->stream_sync(x->stream, err));
        i += n ? n : 1;
    }
    // The next round's host writes must not meet copies that still read them.
    if (x->device) ATSI_TRY(x->device->ops->stream_sync(x->stream, err));
    return end_timing(x, first > 0, err);
}

static enum atsi_status trace_transfer(struct atsi_executor *x, uint32_t i_await, uint32_t k, double took_us,
                                       struct atsi_error *err) {
    const struct atsi_script *s = &x->now->script;
    float after_us;
    uint32_t i = i_await;
    while (i < s->n_actions && s->actions[i].kind != ATSI_ACTION_GPU) i++; // its steps say whose it is
    if (i == s->n_actions) return ATSI_OK;
    ATSI_TRY(atsi_transfers_began_after(x->transfers, k, x->round_began, &after_us, err));
    // A round's times are early by what it takes until its first event is reached: what seems to overlap came later.
    double started_us = fmax(x->round_began_us + after_us, x->transfers_traced_us);
    x->transfers_traced_us = started_us + took_us;
    atsi_trace_span(x->trace, ATSI_LANE_COPY, unit_name_of(x->p, s->steps[s->actions[i].first].op), started_us,
                    took_us);
    return ATSI_OK;
}

// Transfers for this round that were timed when they started, in it or in the one before. The k-th AWAIT is unit k's.
static enum atsi_status record_transfers(struct atsi_executor *x, struct atsi_error *err) {
    uint32_t k = 0;
    for (uint32_t i = 0; x->now->transfers && i < x->now->script.n_actions; i++) {
        bool timed;
        float us;
        if (x->now->script.actions[i].kind != ATSI_ACTION_AWAIT) continue;
        ATSI_TRY(atsi_transfers_took(x->transfers, k, &timed, &us, err));
        if (timed && is_recorded(x)) atsi_recorder_note_device(recorder_of(x), &x->now->recent_us[i], us, 0);
        if (timed && x->trace) ATSI_TRY(trace_transfer(x, i, k, us, err));
        k++;
    }
    return ATSI_OK;
}

static enum atsi_status end_recording(struct atsi_executor *x, struct atsi_error *err) {
    ATSI_TRY(record_transfers(x, err));
    if (is_recorded(x)) atsi_recorder_end_round(recorder_of(x), &x->now->cost, x->now->recent_us);
    return ATSI_OK;
}

// One token in, one row of logits out: launched at once where the assignment allows it.
static enum atsi_status round_ahead(struct atsi_executor *x, struct atsi_error *err) {
    x->round->n_outputs = 1;
    x->round->mark = x->marks.next;
    x->round->transfers = x->transfers ? atsi_transfers_mark(x->transfers) : 0;
    x->marks.next = (int32_t)((uint32_t)x->marks.next + x->now->script.n_actions + 2);
    ATSI_TRY(begin_timing(x, err));
    ATSI_TRY(executor_run_ahead(x, err));
    return end_timing(x, false, err);
}

enum atsi_status atsi_executor_round(struct atsi_executor *x, const struct atsi_round_request *r,
                                     struct atsi_error *err) {
    const struct atsi_plan_limits *l = &x->plan->limits;
    int32_t *token_ids = (int32_t *)x->sides[ATSI_CPU].round.token_ids,
            *output_rows = (int32_t *)x->sides[ATSI_CPU].round.output_rows;
    const float *logits = (const float *)(x->sides[ATSI_CPU].compute + x->p->buffers[x->p->logits].offset_bytes);
    bool ahead = x->now->ahead[0].n_pieces && r->n_tokens == 1 && r->n_outputs == 1;
    if (r->n_tokens > 1 && atsi_executor_divided_routers(x).n > 0) // the router's table has room for one token's slots
        return atsi_fail(err, ATSI_FAILED, "a round of %u tokens under an assignment for one", r->n_tokens);
    *x->round = (struct atsi_round){.n_tokens = (int32_t)r->n_tokens, .first_pos = (int32_t)r->first_pos};
    x->waits_us = x->transfer_waits_us = 0;
    memcpy(token_ids, r->token_ids, r->n_tokens * sizeof *token_ids);
    if (ahead) {
        output_rows[0] = r->output_rows[0];
        ATSI_TRY(round_ahead(x, err));
        atsi_routing_end_round(x->routing, 1);
        r->on_logits(r->context, logits, 0, 1);
        return end_recording(x, err);
    }
    ATSI_TRY(run_actions(x, 0, x->now->script.tail, err));
    atsi_routing_end_round(x->routing, r->n_tokens);
    for (uint32_t done = 0; done < r->n_outputs;) {
        uint32_t n = r->n_outputs - done < l->n_outputs ? r->n_outputs - done : l->n_outputs;
        x->round->n_outputs = (int32_t)n;
        memcpy(output_rows, r->output_rows + done, n * sizeof *output_rows);
        ATSI_TRY(run_actions(x, x->now->script.tail, x->now->script.n_actions, err));
        r->on_logits(r->context, logits, done, n);
        done += n;
    }
    return end_recording(x, err);
}

// ---- after the fact -----------------------------------------------------------------------------------------------

static bool rows_are_finite(const struct atsi_rows_ref *rows, int32_t n_rows) {
    for (int32_t r = 0; rows->data && r < n_rows; r++)
        for (uint32_t i = 0; i < rows->width; i++)
            if (!isfinite(((const float *)rows->data)[(size_t)r * rows->stride + i])) return false;
    return true;
}

void atsi_executor_blame(struct atsi_executor *x, char *unit_name, size_t cap) {
    snprintf(unit_name, cap, "%s", "");
    for (uint32_t i = 0; i < x->now->script.n_steps; i++) {
        const struct atsi_op_call *call = &x->now->calls[i];
        if (x->now->script.steps[i].backend != ATSI_CPU) return; // only a CPU run can be looked into
        atsi_cpu_run(x->cpu, x->pool, call, 1);
        int32_t n_rows = call->outputs_domain ? x->round->n_outputs : x->round->n_tokens;
        bool ids = call->op->kind == ATSI_OP_ROUTER; // its first output is integer
        if (rows_are_finite(&call->out[ids], n_rows)) continue;
        snprintf(unit_name, cap, "%s", unit_name_of(x->p, x->now->script.steps[i].op));
        return;
    }
}
