#include "runtime/reserve.h"

#include <math.h>

#include "formats/base/clock.h"
#include "runtime/routing.h"
#include "runtime/side.h"

static const double poll_us = 1e4;       // at most so often,
static const double looks_share = 200;   // and no more than this part of the time, where a driver is slow to answer,
static const double poll_us_most = 1e5;  // within limits
static const double refill_us = 4e3;     // copying between two rounds, while tensors come back
static const double hold_us_least = 1e6; // room must last that long before anything comes back
static const double hold_us_most = 6e7;  // after having come back too early again and again
static const uint64_t mib = 1 << 20;

// ---- sizes --------------------------------------------------------------------------------------------------------

static uint64_t bytes_of_states(const struct atsi_plan *plan, enum atsi_backend backend, uint32_t n_ctx) {
    const struct atsi_plan_limits *l = &plan->limits;
    const struct atsi_program *p = &plan->program;
    uint64_t bytes = 0;
    if (n_ctx == 0) n_ctx = l->n_ctx;
    for (uint32_t u = 0; u < p->n_units; u++)
        for (uint32_t i = p->units[u].first_op; i < p->units[u].first_op + p->units[u].n_ops; i++)
            if (p->ops[i].state != ATSI_NONE && p->units[u].backend == backend)
                bytes += atsi_side_state_bytes(&p->states[p->ops[i].state], n_ctx, l->chunk, l->kv_type);
    return bytes;
}

uint64_t atsi_vram_of_states(const struct atsi_plan *plan, uint32_t n_ctx) {
    return bytes_of_states(plan, ATSI_GPU, n_ctx);
}

uint64_t atsi_pinned_beside_weights(const struct atsi_plan *plan, uint32_t n_ctx) {
    const uint64_t marks_and_rows = 64 << 10; // and what the driver rounds up
    return plan->limits.compute_bytes + bytes_of_states(plan, ATSI_CPU, n_ctx) +
           atsi_routing_pinned_bytes(&plan->program, plan->limits.chunk) + marks_and_rows;
}

uint64_t atsi_vram_beside_weights(const struct atsi_plan *plan, struct atsi_device *device, uint32_t n_ctx) {
    const struct atsi_plan_limits *l = &plan->limits;
    uint64_t bytes = l->compute_bytes + l->temp_bytes + atsi_vram_of_states(plan, n_ctx);
    if (n_ctx == 0) n_ctx = l->n_ctx;
    bytes += device->ops->scratch_bytes(&plan->program, l->chunk, l->n_outputs, n_ctx);
    if (device->ops->capture_begin) bytes += ATSI_GRAPHS_BYTES;
    return bytes;
}

// ---- what to do ---------------------------------------------------------------------------------------------------

static const struct atsi_resident *resident_of(const struct atsi_reserve *b) { return &b->weights->resident; }

// The most units whose memory fits `bytes`, counted in whole chunks.
static uint32_t fit_chunks(const struct atsi_reserve *b, uint64_t bytes) {
    const struct atsi_range *range = b->weights->range;
    if (bytes < range->size_bytes) bytes = bytes / range->chunk_bytes * range->chunk_bytes;
    return atsi_resident_fit(resident_of(b), bytes);
}

static void decide(struct atsi_reserve *b, enum atsi_reserve_change change, uint32_t n_resident, uint64_t free_bytes) {
    b->next = (struct atsi_reserve_move){
        .change = change, .free_bytes = free_bytes, .n_resident = n_resident, .n_removable = resident_of(b)->n_items};
}

// Tensors that came back in vain are no loss: they are dropped first, and without a new assignment.
static enum atsi_status shrink(struct atsi_reserve *b, uint64_t free_bytes, struct atsi_error *err) {
    struct atsi_weights *w = b->weights;
    uint64_t missing = b->bytes - free_bytes, backed = w->range->backed_bytes;
    uint32_t n = fit_chunks(b, missing < backed ? backed - missing : 0);
    if (n < w->n_resident)
        decide(b, ATSI_RESERVE_SHRINKS, n, free_bytes);
    else if (w->filled_bytes > resident_of(b)->end_bytes[w->n_resident])
        return atsi_weights_release(w, w->n_resident, err);
    return ATSI_OK;
}

static enum atsi_status end_refill(struct atsi_reserve *b, uint64_t free_bytes, struct atsi_error *err) {
    struct atsi_weights *w = b->weights;
    uint32_t n = atsi_resident_fit(resident_of(b), w->filled_bytes);
    if (n > w->n_resident)
        decide(b, ATSI_RESERVE_GROWS, n, free_bytes);
    else if (w->filled_bytes > resident_of(b)->end_bytes[w->n_resident])
        return atsi_weights_release(w, w->n_resident, err);
    return ATSI_OK;
}

// A new assignment costs a round or two, so little steps do not pay, except the last one.
static bool is_worth_it(const struct atsi_reserve *b, uint32_t n_target) {
    const struct atsi_resident *r = resident_of(b);
    uint64_t now = r->end_bytes[b->weights->n_resident], all = r->end_bytes[r->n_items];
    return n_target == r->n_items || (r->end_bytes[n_target] - now) >= (all - now) / 8;
}

static enum atsi_status grow(struct atsi_reserve *b, uint64_t spare_bytes, uint64_t free_bytes, double now_us,
                             struct atsi_error *err) {
    struct atsi_weights *w = b->weights;
    uint32_t target = fit_chunks(b, w->range->backed_bytes + spare_bytes);
    bool refused = false;
    if (target > w->n_resident && w->filled_bytes < resident_of(b)->end_bytes[target]) {
        if (w->filled_bytes == resident_of(b)->end_bytes[w->n_resident] && !is_worth_it(b, target)) return ATSI_OK;
        ATSI_TRY(atsi_weights_refill(w, target, atsi_clock_us() + refill_us, &refused, err));
        if (!refused && w->filled_bytes < resident_of(b)->end_bytes[target]) return ATSI_OK; // goes on next time
    }
    if (refused) b->tight_us = now_us;
    return end_refill(b, free_bytes, err);
}

// ---- looking ------------------------------------------------------------------------------------------------------

static enum atsi_status look(struct atsi_reserve *b, double now_us, struct atsi_error *err) {
    struct atsi_weights *w = b->weights;
    uint64_t free_bytes, margin = b->bytes / 4;
    double started_us = atsi_clock_us();
    ATSI_TRY(w->owner->ops->free_bytes(w->owner, &free_bytes, err));
    free_bytes -= b->pending_bytes < free_bytes ? b->pending_bytes : free_bytes;
    double took_us = atsi_clock_us() - started_us;
    b->polling_us += took_us;
    b->wait_us = fmin(fmax(looks_share * took_us, poll_us), poll_us_most);
    b->n_polls++;
    if (free_bytes < b->bytes + margin) b->tight_us = now_us;
    if (free_bytes < b->bytes) return shrink(b, free_bytes, err);
    if (now_us - b->tight_us >= b->hold_us && w->n_resident < resident_of(b)->n_items)
        return grow(b, free_bytes - b->bytes - margin, free_bytes, now_us, err);
    return b->tight_us == now_us ? end_refill(b, free_bytes, err) : ATSI_OK;
}

enum atsi_status atsi_reserve_poll(struct atsi_reserve *b, double now_us, enum atsi_reserve_change *change,
                                   struct atsi_error *err) {
    *change = ATSI_RESERVE_STAYS;
    if (b->bytes == 0 || !b->weights->range || b->weights->range->chunk_bytes == 0) return ATSI_OK;
    if (b->n_polls > 0 && now_us - b->polled_us < b->wait_us) return ATSI_OK;
    if (b->n_polls == 0) {
        b->tight_us = now_us;
        b->hold_us = hold_us_least;
    }
    b->polled_us = now_us;
    b->next = (struct atsi_reserve_move){0};
    ATSI_TRY(look(b, now_us, err));
    *change = b->next.change;
    return ATSI_OK;
}

// ---- moving -------------------------------------------------------------------------------------------------------

// Who has just come back and has to leave again came back too early.
static void learn(struct atsi_reserve *b) {
    if (b->next.change == ATSI_RESERVE_GROWS) {
        b->n_grown++;
        b->grown_us = b->polled_us;
        return;
    }
    b->n_shrunk++;
    bool too_early = b->n_grown > 0 && b->polled_us - b->grown_us < 10 * b->hold_us;
    b->hold_us = too_early ? 2 * b->hold_us : hold_us_least;
    if (b->hold_us > hold_us_most) b->hold_us = hold_us_most;
}

enum atsi_status atsi_reserve_apply(struct atsi_reserve *b, struct atsi_error *err) {
    char name[96];
    double started_us = atsi_clock_us();
    const struct atsi_resident *r = resident_of(b);
    bool shrinks = b->next.change == ATSI_RESERVE_SHRINKS;
    uint32_t before = b->weights->n_resident;
    if (b->next.change == ATSI_RESERVE_STAYS) return ATSI_OK;
    ATSI_TRY(shrinks ? atsi_weights_release(b->weights, b->next.n_resident, err)
                     : atsi_weights_settle(b->weights, err));
    uint32_t after = b->weights->n_resident, low = after < before ? after : before,
             high = after < before ? before : after;
    b->next.n_resident = after;
    b->next.n_units = high - low;
    b->next.bytes = r->end_bytes[high] - r->end_bytes[low];
    b->next.took_us = atsi_clock_us() - started_us;
    if (after == before) b->bytes = 0; // the host has no memory for them: asking again would change nothing
    learn(b);
    snprintf(name, sizeof name, "%s %u units, %llu MiB", shrinks ? "gave back" : "took again", b->next.n_units,
             (unsigned long long)(b->next.bytes / mib));
    atsi_trace_span(b->trace, ATSI_LANE_ROUND, name, started_us, b->next.took_us);
    if (b->tell) b->tell(b->context, &b->next);
    return ATSI_OK;
}

void atsi_reserve_report(FILE *f, const struct atsi_reserve *b) {
    if (b->n_polls == 0) return;
    fprintf(f,
            "reserve  %u of %u units that can leave are on the GPU; given back %u times, taken again %u times; a look "
            "at the card took %.0f us\n",
            b->weights->n_resident, resident_of(b)->n_items, b->n_shrunk, b->n_grown, b->polling_us / b->n_polls);
}
