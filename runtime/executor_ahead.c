// executor_ahead.c: a decode round whose device work is launched at once. The stream and the host then wait for each other by marks
// in mapped memory, a few microseconds a hand-over, where a launch and an event would cost twenty.
#include <stdlib.h>

#include "formats/base/clock.h"
#include "runtime/executor_internal.h"

// ---- recording ----------------------------------------------------------------------------------------------------

// Where the walk over the actions stands: host actions are counted by 1 + their index, as their marks are.
struct walk {
    uint32_t host_done, awaited;
};

static enum atsi_status await_host(const struct atsi_executor *x, struct walk *w, struct atsi_error *err) {
    w->awaited = w->host_done;
    return x->device->ops->await_mark(x->capture, x->marks.cpu_dev, &x->sides[ATSI_GPU].round.round->mark,
                                      (int32_t)w->host_done, err);
}

static enum atsi_status post_from_stream(const struct atsi_executor *x, uint32_t offset, struct atsi_error *err) {
    return x->device->ops->post_mark(x->capture, x->marks.gpu_dev, &x->sides[ATSI_GPU].round.round->mark,
                                     (int32_t)offset, err);
}

static bool must_await(const struct walk *w, const struct atsi_action *a) {
    return a->kind == ATSI_ACTION_CROSS && w->host_done > w->awaited;
}

// A copy reads what the CPU has computed, or overwrites what it has read: all CPU work before it must be done. Launches touch
// memory of the device only and need not wait.
static enum atsi_status enqueue_run(const struct atsi_executor *x, const struct atsi_prepared_round *p, struct walk *w,
                                    uint32_t first, uint32_t n, struct atsi_error *err) {
    static const struct atsi_round single = {.n_tokens = 1, .n_outputs = 1};
    uint32_t k = 0;
    while (k < n && !must_await(w, &p->script.actions[first + k])) k++;
    ATSI_TRY(executor_enqueue(x, p, x->capture, &single, first, k, err));
    if (k == n) return ATSI_OK;
    ATSI_TRY(await_host(x, w, err));
    return executor_enqueue(x, p, x->capture, &single, first + k, n - k, err);
}

static enum atsi_status record_run(const struct atsi_executor *x, struct atsi_prepared_round *p, struct walk *w,
                                   uint32_t first, uint32_t n, bool timed, struct atsi_error *err) {
    const struct atsi_device_ops *ops = x->device->ops;
    if (must_await(w, &p->script.actions[first])) ATSI_TRY(await_host(x, w, err)); // not a part of the run's time
    if (timed) ATSI_TRY(ops->event_record(p->timed[first].began, x->capture, err));
    ATSI_TRY(enqueue_run(x, p, w, first, n, err));
    return timed ? ops->event_record(p->timed[first].ended, x->capture, err) : ATSI_OK;
}

// The host's last wait covers everything that the device does.
static bool ends_with_wait(const struct atsi_script *s) {
    bool waited = false;
    for (uint32_t i = s->n_actions; i-- > 0;) {
        enum atsi_action_kind kind = s->actions[i].kind;
        if (kind == ATSI_ACTION_WAIT) waited = true;
        if (kind == ATSI_ACTION_RECORD) return waited;
        if (kind == ATSI_ACTION_CROSS || kind == ATSI_ACTION_GPU) return false;
    }
    return false;
}

// ---- pieces -------------------------------------------------------------------------------------------------------

// A round that is being recorded, and how far its transfers would have been issued when the piece at work is launched.
struct recording {
    const struct atsi_executor *x;
    struct atsi_prepared_round *p;
    struct atsi_launch *round;
    struct walk walk;
    uint32_t n_issued, n_consumed; // transfers of this round; consumed by what is recorded so far
    bool open;                     // a piece has been begun
    bool lacks_memory;             // the card has none left for one of them
};

static enum atsi_status begin_piece(struct recording *r, struct atsi_error *err) {
    uint32_t n = r->p->transfers ? atsi_transfer_plan_n_units(r->p->transfers) : 0;
    r->round->pieces[r->round->n_pieces].n_consumed = r->n_consumed;
    while (r->n_issued < n && r->n_issued < r->n_consumed + atsi_transfer_plan_waits_for(r->p->transfers, r->n_issued))
        r->n_issued++;
    ATSI_TRY(r->x->device->ops->capture_begin(r->x->capture, err));
    r->open = true;
    return ATSI_OK;
}

// A capture is ended in any case; the status of what was recorded goes first.
static enum atsi_status end_piece(struct recording *r, enum atsi_status recorded, struct atsi_error *err) {
    struct atsi_launch_piece *piece = &r->round->pieces[r->round->n_pieces];
    if (!r->open) return recorded;
    r->open = false;
    enum atsi_status ended =
        r->x->device->ops->capture_end(r->x->capture, &piece->graph, recorded == ATSI_OK ? err : NULL);
    if (piece->graph) r->round->n_pieces++;
    r->lacks_memory |= ended == ATSI_OK && !piece->graph;
    return recorded != ATSI_OK ? recorded : ended;
}

// The piece must not wait for a transfer that can be issued only after it has been launched (launcher.h).
static enum atsi_status await_transfer(struct recording *r, struct atsi_error *err) {
    if (r->n_consumed >= r->n_issued) {
        ATSI_TRY(end_piece(r, ATSI_OK, err));
        ATSI_TRY(begin_piece(r, err));
    }
    return atsi_transfers_capture_await(r->x->transfers, r->x->capture, &r->x->sides[ATSI_GPU].round.round->transfers,
                                        r->n_consumed, err);
}

static enum atsi_status consumed(struct recording *r, struct atsi_error *err) {
    return atsi_transfers_capture_consumed(r->x->transfers, r->x->capture,
                                           &r->x->sides[ATSI_GPU].round.round->transfers, r->n_consumed++, err);
}

static enum atsi_status record(struct recording *r, bool timed, struct atsi_error *err) {
    const struct atsi_script *s = &r->p->script;
    ATSI_TRY(executor_publish_round(r->x, r->x->capture, err));
    for (uint32_t i = 0, n; i < s->n_actions; i += n ? n : 1) {
        enum atsi_action_kind kind = s->actions[i].kind;
        if (kind == ATSI_ACTION_CPU) r->walk.host_done = i + 1;
        if (kind == ATSI_ACTION_RECORD) ATSI_TRY(post_from_stream(r->x, i + 1, err));
        if (kind == ATSI_ACTION_AWAIT) ATSI_TRY(await_transfer(r, err));
        if (kind == ATSI_ACTION_CONSUMED) ATSI_TRY(consumed(r, err));
        n = atsi_script_device_run(s, i);
        if (n) ATSI_TRY(record_run(r->x, r->p, &r->walk, i, n, timed, err));
    }
    return ends_with_wait(s) ? ATSI_OK : post_from_stream(r->x, s->n_actions + 1, err);
}

static enum atsi_status build(const struct atsi_executor *x, struct atsi_prepared_round *p, bool timed,
                              bool *lacks_memory, struct atsi_error *err) {
    struct recording r = {.x = x, .p = p, .round = &p->ahead[timed]};
    uint32_t max_pieces = 1 + (p->transfers ? atsi_transfer_plan_n_units(p->transfers) : 0);
    r.round->pieces = calloc(max_pieces, sizeof *r.round->pieces);
    if (!r.round->pieces) return atsi_fail(err, ATSI_FAILED, "out of memory while preparing a round");
    ATSI_TRY(begin_piece(&r, err));
    enum atsi_status status = end_piece(&r, record(&r, timed, err), err);
    *lacks_memory |= r.lacks_memory;
    return status;
}

enum atsi_status executor_record_ahead(const struct atsi_executor *x, struct atsi_prepared_round *p,
                                       struct atsi_error *err) {
    bool lacks_memory = false;
    ATSI_TRY(build(x, p, false, &lacks_memory, err));
    if (!lacks_memory) ATSI_TRY(build(x, p, true, &lacks_memory, err));
    for (int timed = 0; lacks_memory && timed < 2; timed++) executor_free_ahead(x->device, &p->ahead[timed]);
    return ATSI_OK;
}

void executor_free_ahead(struct atsi_device *device, struct atsi_launch *round) {
    for (uint32_t i = 0; i < round->n_pieces; i++) device->ops->graph_destroy(device, round->pieces[i].graph);
    free(round->pieces);
    *round = (struct atsi_launch){0};
}

bool executor_can_run_ahead(const struct atsi_executor *x, const struct atsi_script *s) {
    if (!x->capture || !x->launcher) return false;
    for (uint32_t i = 0; i < s->n_actions; i++)
        if (s->actions[i].kind == ATSI_ACTION_AWAIT) return atsi_transfers_overlap(x->transfers);
    return true;
}

// ---- running ------------------------------------------------------------------------------------------------------

static void post(const struct atsi_executor *x, uint32_t offset) {
    __atomic_store_n(x->marks.cpu, (int32_t)((uint32_t)x->round->mark + offset), __ATOMIC_RELEASE);
}

static enum atsi_status await(struct atsi_executor *x, uint32_t offset, struct atsi_error *err) {
    int32_t value = (int32_t)((uint32_t)x->round->mark + offset);
    return atsi_launcher_await(x->launcher, x->marks.gpu, value, err);
}

// Behind the CPU's last action, while the device ends the round: what is left until the next one is launched is mostly a token's choice. At
// the end of a round without any.
static uint32_t cpu_end(const struct atsi_script *s) {
    for (uint32_t end = s->n_actions; end > 0; end--)
        if (s->actions[end - 1].kind == ATSI_ACTION_CPU) return end;
    return s->n_actions;
}

static enum atsi_status run_host(struct atsi_executor *x, struct atsi_error *err) {
    const struct atsi_script *s = &x->now->script;
    uint32_t recorded = 0, expects_at = cpu_end(s);
    for (uint32_t i = 0; i < s->n_actions; i++) {
        enum atsi_action_kind kind = s->actions[i].kind;
        if (kind == ATSI_ACTION_RECORD) recorded = i + 1;
        if (i == expects_at) atsi_launcher_expect(x->launcher);
        if (kind != ATSI_ACTION_CPU && kind != ATSI_ACTION_WAIT) continue;
        double started_us = atsi_clock_us();
        if (kind == ATSI_ACTION_WAIT) {
            ATSI_TRY(await(x, recorded, err));
        } else {
            executor_run_cpu(x, &s->actions[i]);
            post(x, i + 1);
        }
        executor_note_host(x, i, started_us);
    }
    if (!ends_with_wait(s)) ATSI_TRY(await(x, s->n_actions + 1, err));
    if (expects_at == s->n_actions) atsi_launcher_expect(x->launcher);
    return ATSI_OK;
}

enum atsi_status executor_run_ahead(struct atsi_executor *x, struct atsi_error *err) {
    const struct atsi_script *s = &x->now->script;
    for (uint32_t i = 0; x->times_device && i < s->n_actions; i++)
        if (x->now->timed[i].began) // a run starts here
            x->now->timed[i].n = atsi_script_device_run(s, i);
    atsi_launcher_start(x->launcher, &x->now->ahead[x->times_device], x->transfers);
    enum atsi_status status = run_host(x, err);
    if (status != ATSI_OK) post(x, s->n_actions + 1); // nothing that is still queued may wait for ever
    ATSI_TRY(atsi_launcher_finish(x->launcher, status == ATSI_OK ? err : NULL));
    if (x->transfers) atsi_transfers_round_done(x->transfers);
    if (status == ATSI_OK && x->times_device) return x->device->ops->stream_sync(x->stream, err); // the last event
    return status;
}
