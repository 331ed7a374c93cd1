// executor_prepare.c: from an assignment to everything that its rounds need. Reads of the executor only what does not change, so it can
// run beside rounds in a thread of its own; the only device work is recording graphs in a stream that nothing else uses.
#include <stdlib.h>
#include <string.h>

#include "runtime/executor_internal.h"
#include "runtime/temp_ring.h"

// What is needed only while a round is prepared.
struct preparation {
    struct atsi_executor *x;
    struct atsi_prepared_round *out;
    const struct atsi_assignment *assignment;
    const float *gpu_share;      // [n_units] or NULL
    enum atsi_backend *backends; // [n_units]
    bool *promoted, *prefetched; // [n_units]
    const void *
        *tensors; // [n_tensors] what promoted units read: small tensors resident, the others in the region or in place
    struct atsi_transfer_unit *units;   // [n_units] the prefetched ones
    struct atsi_transfer_piece *pieces; // of all of them, one behind the other
    uint32_t n_pieces;
    struct atsi_travelling_tensor *placed; // [n_units * ATSI_TRAVELLING_TENSORS]
    uint32_t *n_placed;                    // [n_units]
};

static void free_preparation(struct preparation *q) {
    free(q->backends);
    free(q->promoted);
    free(q->prefetched);
    free(q->tensors);
    free(q->units);
    free(q->pieces);
    free(q->placed);
    free(q->n_placed);
}

// A piece a tensor, and of experts as many as there may be gaps between those that are resident.
static size_t count_pieces_max(const struct atsi_program *p) {
    size_t n = (size_t)p->n_units * ATSI_TRAVELLING_TENSORS;
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (p->ops[i].kind == ATSI_OP_EXPERTS) n += p->ops[i].u.experts.n_experts;
    return n;
}

static enum atsi_status begin(struct preparation *q, const struct atsi_assignment *a, struct atsi_error *err) {
    size_t n = q->x->p->n_units;
    q->backends = calloc(n, sizeof *q->backends);
    q->promoted = calloc(n, sizeof *q->promoted);
    q->prefetched = calloc(n, sizeof *q->prefetched);
    q->tensors = calloc(q->x->p->n_tensors + 1, sizeof *q->tensors);
    q->units = calloc(n, sizeof *q->units);
    q->pieces = calloc(count_pieces_max(q->x->p), sizeof *q->pieces);
    q->placed = calloc(n * ATSI_TRAVELLING_TENSORS, sizeof *q->placed);
    q->n_placed = calloc(n, sizeof *q->n_placed);
    q->out = calloc(1, sizeof *q->out);
    bool complete = q->backends && q->promoted && q->prefetched && q->tensors && q->units && q->pieces && q->placed &&
                    q->n_placed && q->out;
    if (!complete) return atsi_fail(err, ATSI_FAILED, "out of memory while preparing a round");
    q->out->device = q->x->device;
    q->out->n_tokens = a->n_tokens;
    q->assignment = a;
    return ATSI_OK;
}

// Whether some of the unit's weights cannot be copied from where they are.
static bool is_staged(const struct atsi_executor *x, const struct atsi_unit *unit) {
    uint32_t cursor = 0, t;
    while (atsi_unit_next_big_tensor(x->p, unit, &cursor, &t))
        if (!x->mapped[t]) return true;
    return false;
}

static bool can_be_prefetched(const struct atsi_executor *x, const struct atsi_unit *unit) {
    return x->transfers && unit->kind != ATSI_UNIT_HEAD && (x->ring || !is_staged(x, unit));
}

// ---- where units run ----------------------------------------------------------------------------------------------

static enum atsi_status take_assignment(struct preparation *q, const struct atsi_assignment *a,
                                        struct atsi_error *err) {
    const struct atsi_executor *x = q->x;
    for (uint32_t u = 0; u < x->p->n_units; u++) {
        const struct atsi_unit *unit = &x->p->units[u];
        bool stays = x->states_placed && atsi_unit_has_state(x->p, unit);
        q->backends[u] = stays ? x->backends[u] : x->device ? a->backends[u] : ATSI_CPU;
        enum atsi_promotion promotion =
            q->backends[u] == ATSI_GPU && a->promotions ? a->promotions[u] : ATSI_NOT_PROMOTED;
        q->promoted[u] = promotion != ATSI_NOT_PROMOTED;
        q->prefetched[u] = promotion == ATSI_PREFETCHED;
        if (q->prefetched[u] && !can_be_prefetched(x, unit))
            return atsi_fail(err, ATSI_FAILED, "unit %s cannot be prefetched", unit->name);
    }
    q->gpu_share = x->device ? a->gpu_share : NULL;
    return ATSI_OK;
}

static enum atsi_status place_states_once(struct preparation *q, struct atsi_error *err) {
    if (q->x->states_placed) return ATSI_OK;
    memcpy(q->x->backends, q->backends, q->x->p->n_units * sizeof *q->backends);
    return executor_place_states(q->x, err);
}

// ---- where promoted units find their weights ----------------------------------------------------------------------

static void add_piece(struct preparation *q, const struct atsi_travelling_tensor *placed, uint64_t begin,
                      uint64_t bytes) {
    const char *host = q->x->sides[ATSI_CPU].tensors[placed->tensor];
    q->pieces[q->n_pieces++] = (struct atsi_transfer_piece){.host = host + begin,
                                                            .bytes = bytes,
                                                            .offset = placed->offset + begin,
                                                            .staged = !q->x->mapped[placed->tensor]};
}

// Where each expert of a tensor is resident (kernels/op_call.h); NULL: none is. Rounds of one token may outlive an exchange of experts, so
// they bring all of them.
static const int32_t *resident_slots(const struct preparation *q, uint32_t i_unit, uint32_t tensor) {
    const struct atsi_executor *x = q->x;
    const struct atsi_op *op = atsi_unit_experts_op(x->p, &x->p->units[i_unit]);
    if (q->out->n_tokens == 1 || !op || op->tensor[0] != (int32_t)tensor || !x->sides[ATSI_GPU].experts) return NULL;
    return x->sides[ATSI_GPU].experts[i_unit].data ? x->sides[ATSI_CPU].experts[x->p->units[i_unit].router_unit].slots
                                                   : NULL;
}

// Runs of consecutive experts that are not resident.
static void add_absent(struct preparation *q, uint32_t i_unit, const struct atsi_travelling_tensor *placed,
                       const int32_t *slots) {
    const struct atsi_program *p = q->x->p;
    uint32_t n = atsi_unit_experts_op(p, &p->units[i_unit])->u.experts.n_experts;
    uint64_t bytes = p->tensors[placed->tensor].size_bytes / n;
    for (uint32_t e = 0, first; e < n; e++) {
        for (first = e; e < n && slots[e] < 0;) e++;
        if (e > first) add_piece(q, placed, first * bytes, (e - first) * bytes);
    }
}

static void list_transfer(struct preparation *q, uint32_t k, uint32_t i_unit) {
    const struct atsi_program *p = q->x->p;
    struct atsi_travelling_tensor *placed = &q->placed[k * ATSI_TRAVELLING_TENSORS];
    uint32_t first_piece = q->n_pieces;
    uint64_t bytes;
    q->n_placed[k] = atsi_temp_ring_list(p, &p->units[i_unit], placed, &bytes);
    for (uint32_t i = 0; i < q->n_placed[k]; i++) {
        const int32_t *slots = resident_slots(q, i_unit, placed[i].tensor);
        if (slots)
            add_absent(q, i_unit, &placed[i], slots);
        else
            add_piece(q, &placed[i], 0, p->tensors[placed[i].tensor].size_bytes);
    }
    q->units[k] = (struct atsi_transfer_unit){q->pieces + first_piece, q->n_pieces - first_piece, bytes};
}

// Gives the prefetched units their places in the temporary region and their tensors the addresses there.
static enum atsi_status plan_transfers(struct preparation *q, struct atsi_error *err) {
    uint32_t n = 0;
    for (uint32_t u = 0; u < q->x->p->n_units; u++)
        if (q->prefetched[u]) list_transfer(q, n++, u);
    ATSI_TRY(atsi_transfers_plan(q->x->transfers, q->units, n, &q->out->transfers, err));
    for (uint32_t k = 0; k < n; k++)
        for (uint32_t i = 0; i < q->n_placed[k]; i++) {
            const struct atsi_travelling_tensor *placed = &q->placed[k * ATSI_TRAVELLING_TENSORS + i];
            q->tensors[placed->tensor] = atsi_transfer_plan_address(q->out->transfers, k) + placed->offset;
        }
    return ATSI_OK;
}

// Every promoted unit reads what is resident from there and the rest in place, unless its transfer says otherwise.
static enum atsi_status place_promoted(struct preparation *q, struct atsi_error *err) {
    const struct atsi_executor *x = q->x;
    if (!x->device) return ATSI_OK;
    for (uint32_t t = 0; t < x->p->n_tensors; t++)
        q->tensors[t] = x->sides[ATSI_GPU].tensors[t] ? x->sides[ATSI_GPU].tensors[t] : x->mapped[t];
    return x->transfers ? plan_transfers(q, err) : ATSI_OK;
}

// ---- the script and its calls -------------------------------------------------------------------------------------

// What a router on the device and products with experts on either side are told of slots that are divided token by token; others nothing.
static void divide_call(const struct preparation *q, const struct atsi_step *s, struct atsi_op_call *call) {
    const struct atsi_program *p = q->x->p;
    const struct atsi_slot_division *divisions = q->out->script.divisions;
    uint32_t u = atsi_program_unit_of(p, s->op);
    bool routes =
        p->ops[s->op].kind == ATSI_OP_ROUTER && s->backend == ATSI_GPU && divisions && divisions[u].n_used > 0;
    if (routes) call->resident.gpu_slots = divisions[u].gpu_slots;
    if (s->by_token && s->backend == ATSI_CPU && p->ops[s->op].kind == ATSI_OP_EXPERTS)
        call->resident.gpu_slots = divisions[p->units[u].router_unit].gpu_slots;
    if (!routes && !(s->by_token && s->backend == ATSI_GPU)) call->resident.mine = NULL;
}

// Where the absent experts of one token are fetched to: the temporary region, when nothing else travels there and it has room for those of
// any operation. NULL: nowhere.
static char *find_fetch_place(const struct preparation *q) {
    const struct atsi_program *p = q->x->p;
    uint64_t region_bytes;
    if (!q->x->transfers || q->out->n_tokens > 1 || atsi_transfer_plan_n_units(q->out->transfers) > 0) return NULL;
    char *region = atsi_transfers_region(q->x->transfers, &region_bytes);
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (p->ops[i].kind == ATSI_OP_EXPERTS && atsi_slots_bytes(p, &p->ops[i]) > region_bytes) return NULL;
    return region;
}

static void build_calls(struct preparation *q) {
    const struct atsi_executor *x = q->x;
    struct atsi_prepared_round *out = q->out;
    struct atsi_side promoted_side = x->sides[ATSI_GPU];
    promoted_side.tensors = q->tensors;
    for (uint32_t i = 0; i < out->script.n_steps; i++) {
        const struct atsi_step *s = &out->script.steps[i];
        atsi_side_build_call(x->plan, x->n_ctx, s->promoted ? &promoted_side : &x->sides[s->backend], s->op,
                             &out->calls[i]);
        out->calls[i].resident.chosen = atsi_routing_place(x->routing, s->op, s->backend);
        divide_call(q, s, &out->calls[i]);
        if (s->fetches || s->fetched) out->calls[i].resident.fetched = out->fetched;
        if (s->begin > 0 || s->end < x->p->ops[s->op].out[0].width)
            atsi_narrow_call(&out->calls[i], s->begin, s->end, &out->parts[i]);
    }
}

static enum atsi_status build_script(struct preparation *q, struct atsi_error *err) {
    struct atsi_prepared_round *out = q->out;
    out->fetched = find_fetch_place(q);
    struct atsi_script_params params = {.program = q->x->p,
                                        .backends = q->backends,
                                        .promoted = q->promoted,
                                        .prefetched = q->prefetched,
                                        .gpu_share = q->gpu_share,
                                        .divisions = q->out->n_tokens == 1 ? q->assignment->divisions : NULL,
                                        .can_fetch = out->fetched != NULL,
                                        .n_tokens_max = q->x->plan->limits.chunk,
                                        .n_outputs_max = q->x->plan->limits.n_outputs};
    ATSI_TRY(atsi_script_build(&params, &out->script, err));
    out->calls = calloc(out->script.n_steps, sizeof *out->calls);
    out->parts = calloc(out->script.n_steps, sizeof *out->parts);
    out->graphs = calloc(out->script.n_actions, sizeof *out->graphs);
    out->timed = calloc(out->script.n_actions, sizeof *out->timed);
    out->recent_us = calloc(out->script.n_actions, sizeof *out->recent_us);
    if (!out->calls || !out->parts || !out->graphs || !out->timed || !out->recent_us)
        return atsi_fail(err, ATSI_FAILED, "out of memory while preparing a round");
    build_calls(q);
    return ATSI_OK;
}

// ---- what it should take ------------------------------------------------------------------------------------------

static enum atsi_status list_waits(const struct atsi_transfer_plan *transfers, struct atsi_ring_waits *ring,
                                   struct atsi_error *err) {
    uint32_t n = transfers ? atsi_transfer_plan_n_units(transfers) : 0, *waits_for = calloc(n + 1, sizeof *waits_for);
    *ring = (struct atsi_ring_waits){n, waits_for};
    if (!waits_for) return atsi_fail(err, ATSI_FAILED, "out of memory while pricing a round");
    for (uint32_t i = 0; i < n; i++) waits_for[i] = atsi_transfer_plan_waits_for(transfers, i);
    return ATSI_OK;
}

// Copies through the ring take longer than the plan's.
static void price_staging(const struct preparation *q, struct atsi_schedule_unit *units) {
    double slowdown = atsi_pinned_ring_slowdown(q->x->ring, q->x->plan);
    for (uint32_t u = 0; u < q->x->p->n_units; u++)
        if (q->prefetched[u] && is_staged(q->x, &q->x->p->units[u])) units[u].transfer_us *= slowdown;
}

// The plan as it is now, as far as experts are resident one by one.
static struct atsi_plan plan_with(const struct atsi_executor *x, struct atsi_resident_experts *residents) {
    struct atsi_plan plan = *x->plan;
    plan.resident_experts = residents;
    return plan;
}

static enum atsi_status price(struct preparation *q, struct atsi_error *err) {
    const struct atsi_plan plan = plan_with(q->x, q->assignment->residents);
    struct atsi_prepared_round *out = q->out;
    if (q->x->device && plan.decode_times && plan.prefill_times) {
        out->units = calloc(plan.program.n_units, sizeof *out->units);
        if (!out->units) return atsi_fail(err, ATSI_FAILED, "out of memory while pricing a round");
        atsi_round_units(&plan, out->n_tokens, plan.limits.temp_bytes, NULL, out->units);
        price_staging(q, out->units);
    }
    struct atsi_ring_waits ring;
    enum atsi_status status = list_waits(out->transfers, &ring, err);
    if (status == ATSI_OK)
        status = atsi_script_cost_build(&plan, &out->script, out->units, out->n_tokens, &ring, &out->cost, err);
    free((void *)ring.waits_for);
    return status;
}

// What is staged is never prefetched for one token: nothing of price_staging is lost.
void atsi_executor_reprice(struct atsi_executor *x, struct atsi_resident_experts *residents) {
    const struct atsi_plan plan = plan_with(x, residents);
    struct atsi_prepared_round *now = x->now;
    if (!now || !now->units || now->n_tokens != 1) return;
    atsi_round_units(&plan, 1, plan.limits.temp_bytes, NULL, now->units);
    atsi_script_cost_renew(&plan, &now->script, now->units, 1, &now->cost);
}

double atsi_prepared_round_time(const struct atsi_prepared_round *p, const struct atsi_scales *scales) {
    return atsi_script_time(&p->script, &p->cost, scales);
}

void atsi_executor_note_round(struct atsi_executor *x, double round_us) {
    const struct atsi_prepared_round *p = x->now;
    struct atsi_recorder *recorder = atsi_executor_recorder(x, true);
    struct atsi_round_times took = {round_us, x->waits_us, x->transfer_waits_us};
    struct atsi_recorder_round round = atsi_recorder_explain(recorder, &p->script, &p->cost, &took);
    atsi_recorder_note_round(recorder, &round);
}

void atsi_executor_unit_factors(const struct atsi_executor *x, const struct atsi_scales *scales,
                                struct atsi_unit_factors *factors) {
    const struct atsi_prepared_round *p = x->now;
    if (p && p->n_tokens == 1) atsi_script_unit_factors(x->plan, &p->script, &p->cost, p->recent_us, scales, factors);
}

struct atsi_round_figures atsi_prepared_round_figures(const struct atsi_prepared_round *p) {
    return (struct atsi_round_figures){p->cost.link_bytes, atsi_script_device_us(&p->script, &p->cost, p->recent_us),
                                       p->cost.n_handovers};
}

// ---- runs of device actions ---------------------------------------------------------------------------------------

// Decode rounds always launch the same work, so each run of device actions becomes one launch. A single copy is one launch anyway.
static enum atsi_status capture(struct preparation *q, uint32_t first, uint32_t n, struct atsi_error *err) {
    static const struct atsi_round single = {.n_tokens = 1, .n_outputs = 1};
    const struct atsi_device_ops *ops = q->x->device->ops;
    if (!q->x->capture || (n == 1 && q->out->script.actions[first].kind == ATSI_ACTION_CROSS)) return ATSI_OK;
    ATSI_TRY(ops->capture_begin(q->x->capture, err));
    enum atsi_status status = executor_enqueue(q->x, q->out, q->x->capture, &single, first, n, err);
    ATSI_TRY(ops->capture_end(q->x->capture, &q->out->graphs[first], status == ATSI_OK ? err : NULL));
    return status;
}

static enum atsi_status prepare_runs(struct preparation *q, bool single_tokens, struct atsi_error *err) {
    const struct atsi_script *s = &q->out->script;
    if (!q->x->device) return ATSI_OK;
    bool ahead = single_tokens && executor_can_run_ahead(q->x, s);
    for (uint32_t i = 0, n; i < s->n_actions; i += n ? n : 1) {
        n = atsi_script_device_run(s, i);
        if (!n) continue;
        ATSI_TRY(q->x->device->ops->event_create(q->x->device, true, &q->out->timed[i].began, err));
        ATSI_TRY(q->x->device->ops->event_create(q->x->device, true, &q->out->timed[i].ended, err));
        if (single_tokens && !ahead) ATSI_TRY(capture(q, i, n, err));
    }
    return ahead ? executor_record_ahead(q->x, q->out, err) : ATSI_OK;
}

// ---- the whole ----------------------------------------------------------------------------------------------------

static enum atsi_status prepare(struct preparation *q, const struct atsi_assignment *a, struct atsi_error *err) {
    ATSI_TRY(begin(q, a, err));
    ATSI_TRY(take_assignment(q, a, err));
    ATSI_TRY(place_states_once(q, err));
    ATSI_TRY(place_promoted(q, err));
    ATSI_TRY(build_script(q, err));
    return price(q, err);
}

enum atsi_status atsi_executor_prepare(struct atsi_executor *x, const struct atsi_assignment *assignment,
                                       struct atsi_prepared_round **out, struct atsi_error *err) {
    struct preparation q = {.x = x};
    enum atsi_status status = prepare(&q, assignment, err);
    if (status == ATSI_OK) status = prepare_runs(&q, assignment->n_tokens == 1, err);
    free_preparation(&q);
    *out = NULL;
    if (status == ATSI_OK)
        *out = q.out;
    else
        atsi_prepared_round_free(q.out);
    return status;
}

enum atsi_status atsi_executor_forecast(struct atsi_executor *x, const struct atsi_assignment *assignment,
                                        const struct atsi_scales *scales, double *round_us, struct atsi_error *err) {
    struct preparation q = {.x = x};
    enum atsi_status status = prepare(&q, assignment, err);
    if (status == ATSI_OK) *round_us = atsi_prepared_round_time(q.out, scales);
    free_preparation(&q);
    atsi_prepared_round_free(q.out);
    return status;
}

static void free_device_side(struct atsi_prepared_round *p) {
    const struct atsi_device_ops *ops = p->device->ops;
    for (uint32_t i = 0; p->timed && i < p->script.n_actions; i++) {
        if (p->timed[i].began) ops->event_destroy(p->timed[i].began);
        if (p->timed[i].ended) ops->event_destroy(p->timed[i].ended);
    }
    for (uint32_t i = 0; p->graphs && i < p->script.n_actions; i++)
        if (p->graphs[i]) ops->graph_destroy(p->device, p->graphs[i]);
    for (int timed = 0; timed < 2; timed++) executor_free_ahead(p->device, &p->ahead[timed]);
}

void atsi_prepared_round_free(struct atsi_prepared_round *p) {
    if (!p) return;
    if (p->device) free_device_side(p);
    free(p->timed);
    free(p->recent_us);
    free(p->units);
    atsi_script_cost_free(&p->cost);
    free(p->graphs);
    free(p->calls);
    free(p->parts);
    atsi_script_free(&p->script);
    atsi_transfer_plan_free(p->transfers);
    free(p);
}

enum atsi_status atsi_executor_adopt(struct atsi_executor *x, struct atsi_prepared_round *prepared,
                                     struct atsi_prepared_round **old, struct atsi_error *err) {
    *old = x->now;
    x->now = prepared;
    atsi_recorder_adopted(&x->recorders[prepared->n_tokens == 1]);
    if (!x->transfers) return ATSI_OK;
    ATSI_TRY(atsi_transfers_use(x->transfers, prepared->transfers, x->stream, err));
    return prepared->fetched ? atsi_transfers_lend(x->transfers, x->stream, err) : ATSI_OK;
}

enum atsi_status atsi_executor_settle(struct atsi_executor *x, struct atsi_error *err) {
    if (x->device) ATSI_TRY(x->device->ops->stream_sync(x->stream, err));
    return x->transfers ? atsi_transfers_drain(x->transfers, err) : ATSI_OK;
}

enum atsi_status atsi_executor_assign(struct atsi_executor *x, const struct atsi_assignment *assignment,
                                      struct atsi_error *err) {
    struct atsi_prepared_round *prepared, *old;
    ATSI_TRY(atsi_executor_prepare(x, assignment, &prepared, err));
    enum atsi_status status = atsi_executor_adopt(x, prepared, &old, err);
    atsi_prepared_round_free(old);
    return status;
}
