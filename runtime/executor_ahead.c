// executor_ahead.c: a decode round whose device work is launched at once. The stream and the host then wait for each other by marks
// in mapped memory, a few microseconds a hand-over, where a launch and an event would cost twenty.
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

static enum atsi_status record(const struct atsi_executor *x, struct atsi_prepared_round *p, bool timed,
                               struct atsi_error *err) {
    const struct atsi_script *s = &p->script;
    const int32_t *transfers = &x->sides[ATSI_GPU].round.round->transfers;
    struct walk w = {0, 0};
    uint32_t k = 0; // of the units that are prefetched
    ATSI_TRY(executor_publish_round(x, x->capture, err));
    for (uint32_t i = 0, n; i < s->n_actions; i += n ? n : 1) {
        const struct atsi_action *a = &s->actions[i];
        if (a->kind == ATSI_ACTION_CPU) w.host_done = i + 1;
        if (a->kind == ATSI_ACTION_RECORD) ATSI_TRY(post_from_stream(x, i + 1, err));
        if (a->kind == ATSI_ACTION_AWAIT)
            ATSI_TRY(atsi_transfers_capture_await(x->transfers, x->capture, transfers, k, err));
        if (a->kind == ATSI_ACTION_CONSUMED)
            ATSI_TRY(atsi_transfers_capture_consumed(x->transfers, x->capture, transfers, k++, err));
        n = atsi_script_device_run(s, i);
        if (n) ATSI_TRY(record_run(x, p, &w, i, n, timed, err));
    }
    return ends_with_wait(s) ? ATSI_OK : post_from_stream(x, s->n_actions + 1, err);
}

static enum atsi_status build(const struct atsi_executor *x, struct atsi_prepared_round *p, bool timed,
                              struct atsi_error *err) {
    const struct atsi_device_ops *ops = x->device->ops;
    ATSI_TRY(ops->capture_begin(x->capture, err));
    enum atsi_status status = record(x, p, timed, err);
    ATSI_TRY(ops->capture_end(x->capture, &p->ahead[timed], status == ATSI_OK ? err : NULL));
    return status;
}

enum atsi_status executor_record_ahead(const struct atsi_executor *x, struct atsi_prepared_round *p,
                                       struct atsi_error *err) {
    for (int timed = 0; timed < 2; timed++) {
        atsi_launcher_hold(x->launcher);
        enum atsi_status status = build(x, p, timed, err);
        atsi_launcher_release(x->launcher);
        ATSI_TRY(status);
    }
    return ATSI_OK;
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

static enum atsi_status run_host(struct atsi_executor *x, struct atsi_error *err) {
    const struct atsi_script *s = &x->now->script;
    uint32_t recorded = 0;
    for (uint32_t i = 0; i < s->n_actions; i++) {
        enum atsi_action_kind kind = s->actions[i].kind;
        if (kind == ATSI_ACTION_RECORD) recorded = i + 1;
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
    return ends_with_wait(s) ? ATSI_OK : await(x, s->n_actions + 1, err);
}

enum atsi_status executor_run_ahead(struct atsi_executor *x, struct atsi_error *err) {
    const struct atsi_script *s = &x->now->script;
    for (uint32_t i = 0; x->times_device && i < s->n_actions; i++)
        if (x->now->timed[i].began) // a run starts here
            x->now->timed[i].n = atsi_script_device_run(s, i);
    atsi_launcher_start(x->launcher, x->now->ahead[x->times_device], x->transfers);
    enum atsi_status status = run_host(x, err);
    if (status != ATSI_OK) post(x, s->n_actions + 1); // nothing that is still queued may wait for ever
    ATSI_TRY(atsi_launcher_finish(x->launcher, status == ATSI_OK ? err : NULL));
    if (x->transfers) atsi_transfers_round_done(x->transfers);
    if (status == ATSI_OK && x->times_device) return x->device->ops->stream_sync(x->stream, err); // the last event
    return status;
}
