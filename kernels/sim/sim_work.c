// What streams of the simulated device do: copies in modelled time, and operations on the CPU kernels.
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "formats/base/clock.h"
#include "kernels/sim/sim_internal.h"

// Makes a failed check the device's sticky error.
static enum atsi_status stick(struct sim_device *d, enum atsi_status status, const struct atsi_error *failure,
                              struct atsi_error *err) {
    return status == ATSI_OK ? ATSI_OK : sim_poison(d, failure, err);
}

// ---- copies -----------------------------------------------------------------------------------------------------------

enum atsi_status sim_copy_to_device(struct atsi_stream *s, void *dev, const void *host, uint64_t bytes,
                                    struct atsi_error *err) {
    struct sim_device *d = sim_of(s->device);
    struct sim_item item = {.kind = SIM_ITEM_COPY, .u.copy = {.src = host, .bytes = bytes, .direction = SIM_TO_DEVICE}};
    struct atsi_error failure;
    ATSI_TRY(sim_state(d, err));
    if (bytes == 0) return ATSI_OK;
    ATSI_TRY(stick(d, sim_translate(d, dev, bytes, true, &item.u.copy.dst, &failure), &failure, err));
    if (!sim_is_pinned(d, host, bytes)) {
        item.u.copy.src = item.u.copy.staged = malloc((size_t)bytes);
        if (item.u.copy.staged == NULL)
            return atsi_fail(err, ATSI_FAILED, "out of memory for the copy of unpinned memory");
        memcpy(item.u.copy.staged, host, (size_t)bytes);
    }
    enum atsi_status status = sim_enqueue(s, &item, err);
    if (status != ATSI_OK) free(item.u.copy.staged);
    return status;
}

enum atsi_status sim_copy_to_host(struct atsi_stream *s, void *host, const void *dev, uint64_t bytes,
                                  struct atsi_error *err) {
    struct sim_device *d = sim_of(s->device);
    struct sim_item item = {.kind = SIM_ITEM_COPY, .u.copy = {.dst = host, .bytes = bytes, .direction = SIM_TO_HOST}};
    void *src;
    struct atsi_error failure;
    ATSI_TRY(sim_state(d, err));
    if (bytes == 0) return ATSI_OK;
    ATSI_TRY(stick(d, sim_translate(d, dev, bytes, false, &src, &failure), &failure, err));
    item.u.copy.src = src;
    ATSI_TRY(sim_enqueue(s, &item, err));
    return sim_is_pinned(d, host, bytes) ? ATSI_OK : sim_stream_sync(s, err);
}

static uint64_t rows_bytes(uint32_t stride, uint32_t width, uint32_t n_rows) {
    return n_rows == 0 ? 0 : ((uint64_t)(n_rows - 1) * stride + width) * 4;
}

// Where rows are written and where they are read; what is wrong with either stays the device's error.
static enum atsi_status translate_ends(struct sim_device *d, void *dst_dev, uint64_t dst_bytes, const void *src_dev,
                                       uint64_t src_bytes, void **dst, void **src, struct atsi_error *err) {
    struct atsi_error failure;
    ATSI_TRY(stick(d, sim_translate(d, dst_dev, dst_bytes, true, dst, &failure), &failure, err));
    return stick(d, sim_translate(d, src_dev, src_bytes, false, src, &failure), &failure, err);
}

enum atsi_status sim_copy_rows(struct atsi_stream *s, void *dst_dev, uint32_t dst_stride, const void *src_dev,
                               uint32_t src_stride, uint32_t width, uint32_t n_rows, struct atsi_error *err) {
    struct sim_device *d = sim_of(s->device);
    void *dst, *src;
    ATSI_TRY(sim_state(d, err));
    if (width == 0 || n_rows == 0) return ATSI_OK;
    ATSI_TRY(translate_ends(d, dst_dev, rows_bytes(dst_stride, width, n_rows), src_dev,
                            rows_bytes(src_stride, width, n_rows), &dst, &src, err));
    struct sim_item item = {.kind = SIM_ITEM_ROWS, .u.rows = {dst, src, dst_stride, src_stride, width, n_rows}};
    return sim_enqueue(s, &item, err);
}

enum atsi_status sim_copy_slots(struct atsi_stream *s, void *dst_dev, uint32_t dst_stride, const void *src_dev,
                                uint32_t src_stride, uint32_t slot_width, uint32_t n_slots, const int32_t *mine_dev,
                                bool to_device, uint32_t n_rows, struct atsi_error *err) {
    struct sim_device *d = sim_of(s->device);
    struct atsi_error failure;
    void *dst, *src, *mine;
    uint32_t width = slot_width * n_slots;
    ATSI_TRY(sim_state(d, err));
    if (width == 0 || n_rows == 0) return ATSI_OK;
    ATSI_TRY(translate_ends(d, dst_dev, rows_bytes(dst_stride, width, n_rows), src_dev,
                            rows_bytes(src_stride, width, n_rows), &dst, &src, err));
    ATSI_TRY(stick(d, sim_translate(d, mine_dev, rows_bytes(n_slots, n_slots, n_rows), false, &mine, &failure),
                   &failure, err));
    struct sim_item item = {
        .kind = SIM_ITEM_SLOTS,
        .u.slots = {dst, src, mine, dst_stride, src_stride, slot_width, n_slots, n_rows, to_device}};
    return sim_enqueue(s, &item, err);
}

// ---- operations -------------------------------------------------------------------------------------------------------

static enum atsi_status translate_rows(struct sim_device *d, struct atsi_rows_ref *rows, uint32_t n_rows, bool write,
                                       struct atsi_error *err) {
    return rows->data == NULL
               ? ATSI_OK
               : sim_translate(d, rows->data, rows_bytes(rows->stride, rows->width, n_rows), write, &rows->data, err);
}

static enum atsi_status translate_const(struct sim_device *d, const void **data, uint64_t bytes,
                                        struct atsi_error *err) {
    void *host;
    ATSI_TRY(sim_translate(d, *data, bytes, false, &host, err));
    *data = host;
    return ATSI_OK;
}

static enum atsi_status translate_state(struct sim_device *d, struct atsi_state_ref *state, struct atsi_error *err) {
    const struct atsi_state *info = state->info;
    if (state->k == NULL) return ATSI_OK;
    if (info->kind != ATSI_STATE_KV)
        return sim_translate(d, state->k, (uint64_t)info->n_heads * info->k_dim * info->v_dim * sizeof(float), true,
                             &state->k, err);
    uint64_t n_rows = (uint64_t)state->capacity * info->n_heads;
    ATSI_TRY(
        sim_translate(d, state->k, n_rows * atsi_dtype_row_bytes(state->kv_type, info->k_dim), true, &state->k, err));
    return sim_translate(d, state->v, n_rows * atsi_dtype_row_bytes(state->kv_type, info->v_dim), true, &state->v, err);
}

static enum atsi_status translate_slots(struct sim_device *d, const int32_t **slots, uint32_t n_experts,
                                        struct atsi_error *err) {
    const void *address = *slots;
    if (address == NULL) return ATSI_OK;
    ATSI_TRY(translate_const(d, &address, (uint64_t)n_experts * sizeof **slots, err));
    *slots = address;
    return ATSI_OK;
}

static enum atsi_status translate_ids(struct sim_device *d, int32_t **ids, uint64_t n, bool write,
                                      struct atsi_error *err) {
    void *host;
    if (*ids == NULL) return ATSI_OK;
    ATSI_TRY(sim_translate(d, *ids, n * sizeof **ids, write, &host, err));
    *ids = host;
    return ATSI_OK;
}

static enum atsi_status translate_router(struct sim_device *d, struct atsi_op_call *call, uint32_t n_rows,
                                         struct atsi_error *err) {
    const struct atsi_router_params *p = &call->op->u.router;
    uint64_t n_ids = (uint64_t)n_rows * p->n_used;
    ATSI_TRY(translate_slots(d, &call->resident.slots, p->n_experts, err));
    ATSI_TRY(translate_ids(d, &call->resident.chosen, n_ids, true, err));
    return translate_ids(d, &call->resident.mine, n_ids, true, err);
}

static enum atsi_status translate_experts(struct sim_device *d, struct atsi_op_call *call, uint32_t n_rows,
                                          bool fetches, struct atsi_error *err) {
    uint32_t n_experts = call->op->u.experts.n_experts;
    uint64_t expert_bytes = call->tensor[0].info->size_bytes / n_experts;
    if (call->resident.fetched != NULL) {
        if (n_rows != 1) return atsi_fail(err, ATSI_FAILED, "simulated device: experts are fetched for one row only");
        ATSI_TRY(sim_translate(d, call->resident.fetched, call->op->u.experts.n_used * expert_bytes, fetches,
                               &call->resident.fetched, err));
    }
    ATSI_TRY(translate_slots(d, &call->resident.slots, n_experts, err));
    ATSI_TRY(translate_ids(d, &call->resident.mine, (uint64_t)n_rows * call->op->u.experts.n_used, false, err));
    if (call->resident.data == NULL) return ATSI_OK;
    // How many are resident stands in the table, which may still be on its way: one at least is.
    return translate_const(d, &call->resident.data, expert_bytes, err);
}

// Turns every address of the call into a host address, checked for the extent that the operation touches.
static enum atsi_status translate_call(struct sim_device *d, struct atsi_op_call *call, const struct atsi_round *round,
                                       bool fetches, struct atsi_error *err) {
    uint32_t n_rows = (uint32_t)(call->outputs_domain ? round->n_outputs : round->n_tokens);
    uint32_t n_in_rows = call->op->kind == ATSI_OP_SELECT ? (uint32_t)round->n_tokens : n_rows;
    const void *address = call->round.round;
    for (int i = 0; i < ATSI_OP_MAX_IN; i++) ATSI_TRY(translate_rows(d, &call->in[i], n_in_rows, false, err));
    for (int i = 0; i < ATSI_OP_MAX_OUT; i++) ATSI_TRY(translate_rows(d, &call->out[i], n_rows, true, err));
    for (int i = 0; i < ATSI_OP_MAX_TENSORS; i++)
        if (call->tensor[i].data != NULL)
            ATSI_TRY(translate_const(d, &call->tensor[i].data, call->tensor[i].info->size_bytes, err));
    ATSI_TRY(translate_state(d, &call->state, err));
    if (call->op->kind == ATSI_OP_ROUTER) ATSI_TRY(translate_router(d, call, n_rows, err));
    if (call->op->kind == ATSI_OP_EXPERTS) ATSI_TRY(translate_experts(d, call, n_rows, fetches, err));
    ATSI_TRY(translate_const(d, &address, sizeof *round, err));
    call->round.round = address;
    if (call->op->kind == ATSI_OP_EMBED) {
        address = call->round.token_ids;
        ATSI_TRY(translate_const(d, &address, (uint64_t)round->n_tokens * sizeof(int32_t), err));
        call->round.token_ids = address;
    }
    if (call->op->kind == ATSI_OP_SELECT) {
        address = call->round.output_rows;
        ATSI_TRY(translate_const(d, &address, (uint64_t)round->n_outputs * sizeof(int32_t), err));
        call->round.output_rows = address;
    }
    return ATSI_OK;
}

// A router's part of what divides a token's slots is read now. To experts on a device it says nothing: they have their own ids.
static enum atsi_status take_gpu_slots(struct sim_item *item, struct atsi_error *err) {
    struct atsi_op_call *call = &item->u.launch.call;
    bool routes = call->op->kind == ATSI_OP_ROUTER && call->resident.mine != NULL;
    if (routes && call->op->u.router.n_used > ATSI_DIVIDED_SLOTS_MAX)
        return atsi_fail(err, ATSI_FAILED, "simulated device: %u slots of a token are not divided, at most %d",
                         call->op->u.router.n_used, ATSI_DIVIDED_SLOTS_MAX);
    if (routes) memcpy(item->u.launch.gpu_slots, call->resident.gpu_slots, (size_t)call->op->u.router.n_used + 1);
    call->resident.gpu_slots = NULL;
    return ATSI_OK;
}

static enum atsi_status enqueue_call(struct atsi_stream *s, const struct atsi_op_call *call,
                                     const struct atsi_round *round, bool fetches, struct atsi_error *err) {
    struct sim_device *d = sim_of(s->device);
    struct sim_item item = {.kind = SIM_ITEM_LAUNCH,
                            .u.launch = {.call = *call, .sized_for = *round, .fetches = fetches}};
    struct atsi_error failure;
    ATSI_TRY(sim_state(d, err));
    if (d->cpu == NULL) return atsi_fail(err, ATSI_FAILED, "simulated device: launch before prepare");
    ATSI_TRY(take_gpu_slots(&item, err));
    ATSI_TRY(stick(d, translate_call(d, &item.u.launch.call, round, fetches, &failure), &failure, err));
    return sim_enqueue(s, &item, err);
}

enum atsi_status sim_launch(struct atsi_stream *s, const struct atsi_op_call *call, const struct atsi_round *round,
                            struct atsi_error *err) {
    return enqueue_call(s, call, round, false, err);
}

enum atsi_status sim_fetch_experts(struct atsi_stream *s, const struct atsi_op_call *call, struct atsi_error *err) {
    static const struct atsi_round single = {.n_tokens = 1, .n_outputs = 1};
    return enqueue_call(s, call, &single, true, err);
}

// ---- on the stream's thread -----------------------------------------------------------------------------------------------

static void sleep_until(double us) {
    double left = us - atsi_clock_us();
    if (left <= 0) return;
    nanosleep(&(struct timespec){.tv_sec = (time_t)(left / 1e6),
                                 .tv_nsec = (long)((left - 1e6 * (double)(time_t)(left / 1e6)) * 1e3)},
              NULL);
}

static double copy_time_us(const struct sim_device *d, uint64_t bytes, enum sim_direction direction) {
    double rate = direction == SIM_TO_DEVICE ? d->params.h2d_bytes_per_us : d->params.d2h_bytes_per_us;
    return rate > 0 ? d->params.copy_latency_us + (double)bytes / rate : 0;
}

// Copies of one direction share an engine, first come, first served. The bytes move at the end.
static void perform_copy(struct sim_device *d, const struct sim_item *item) {
    double end = atsi_clock_us(), *free_us = &d->engine_free_us[item->u.copy.direction];
    pthread_mutex_lock(&d->lock);
    if (*free_us > end) end = *free_us;
    end += copy_time_us(d, item->u.copy.bytes, item->u.copy.direction);
    *free_us = end;
    pthread_mutex_unlock(&d->lock);
    sleep_until(end);
    memcpy(item->u.copy.dst, item->u.copy.src, (size_t)item->u.copy.bytes);
}

// A kernel: it takes the link's time but waits for no engine.
static void perform_rows(const struct sim_device *d, const struct sim_item *item) {
    uint32_t n_rows = item->u.rows.n_rows, width = item->u.rows.width;
    sleep_until(atsi_clock_us() + copy_time_us(d, (uint64_t)n_rows * width * 4, SIM_TO_DEVICE));
    for (uint32_t r = 0; r < n_rows; r++)
        memcpy(item->u.rows.dst + (size_t)r * item->u.rows.dst_stride,
               item->u.rows.src + (size_t)r * item->u.rows.src_stride, (size_t)width * 4);
}

static void perform_slots(const struct sim_device *d, const struct sim_item *item) {
    uint32_t n_slots = item->u.slots.n_slots, width = item->u.slots.slot_width, n_copied = 0;
    for (uint32_t i = 0; i < item->u.slots.n_rows * n_slots; i++)
        n_copied += (item->u.slots.mine[i] < 0) == item->u.slots.to_device;
    sleep_until(atsi_clock_us() + copy_time_us(d, (uint64_t)n_copied * width * 4, SIM_TO_DEVICE));
    for (uint32_t i = 0; i < item->u.slots.n_rows * n_slots; i++) {
        size_t row = i / n_slots, first = (size_t)(i % n_slots) * width;
        if ((item->u.slots.mine[i] < 0) == item->u.slots.to_device)
            memcpy(item->u.slots.dst + row * item->u.slots.dst_stride + first,
                   item->u.slots.src + row * item->u.slots.src_stride + first, (size_t)width * 4);
    }
}

// A kernel too.
static void perform_fetch(const struct sim_device *d, const struct atsi_op_call *call) {
    const struct atsi_experts_ref *r = &call->resident;
    const struct atsi_experts_params *p = &call->op->u.experts;
    const int32_t *ids = r->mine != NULL ? r->mine : call->in[1].data;
    size_t bytes = (size_t)(call->tensor[0].info->size_bytes / p->n_experts), n_fetched = 0;
    for (uint32_t s = 0; s < p->n_used; s++) {
        if (ids[s] < 0 || (r->data != NULL && r->slots[ids[s]] >= 0)) continue;
        memcpy((char *)r->fetched + s * bytes, (const char *)call->tensor[0].data + (size_t)ids[s] * bytes, bytes);
        n_fetched++;
    }
    sleep_until(atsi_clock_us() + copy_time_us(d, n_fetched * bytes, SIM_TO_DEVICE));
}

static enum atsi_status perform_launch(struct sim_device *d, const struct sim_item *item, struct atsi_error *err) {
    const struct atsi_round *now = item->u.launch.call.round.round, *then = &item->u.launch.sized_for;
    bool same_rows =
        item->u.launch.call.outputs_domain ? now->n_outputs == then->n_outputs : now->n_tokens == then->n_tokens;
    bool same_round =
        now->n_tokens == then->n_tokens && now->n_outputs == then->n_outputs && now->first_pos == then->first_pos;
    if (item->u.launch.replayed || item->u.launch.fetches ? !same_rows : !same_round)
        return atsi_fail(
            err, ATSI_FAILED,
            "simulated device: %s was launched for %d tokens at %d, the device's own copy of the round says %d at %d",
            atsi_op_name(item->u.launch.call.op->kind), then->n_tokens, then->first_pos, now->n_tokens, now->first_pos);
    struct atsi_op_call call = item->u.launch.call;
    if (call.op->kind == ATSI_OP_ROUTER && call.resident.mine != NULL)
        call.resident.gpu_slots = item->u.launch.gpu_slots;
    if (item->u.launch.fetches) {
        perform_fetch(d, &call);
        return ATSI_OK;
    }
    pthread_mutex_lock(&d->kernel_lock);
    atsi_cpu_run(d->cpu, NULL, &call, 1);
    pthread_mutex_unlock(&d->kernel_lock);
    return ATSI_OK;
}

enum atsi_status sim_perform(struct sim_device *d, const struct sim_item *item, struct atsi_error *err) {
    switch (item->kind) {
    case SIM_ITEM_COPY: perform_copy(d, item); return ATSI_OK;
    case SIM_ITEM_ROWS: perform_rows(d, item); return ATSI_OK;
    case SIM_ITEM_SLOTS: perform_slots(d, item); return ATSI_OK;
    case SIM_ITEM_LAUNCH: return perform_launch(d, item, err);
    default: return ATSI_OK; // events are the stream's own
    }
}
