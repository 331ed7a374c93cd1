#include "runtime/transfers.h"

#include <stdlib.h>

#include "runtime/temp_ring.h"

struct planned_unit {
    uint32_t first_piece, n_pieces;
    uint64_t bytes;
};

struct atsi_transfer_plan {
    char *region;
    uint32_t n_units, n_pieces;
    struct planned_unit *units;         // [n_units]
    struct atsi_temp_slot *slots;       // [n_units]
    struct atsi_transfer_piece *pieces; // [n_pieces]
};

// Events around the copies of a transfer, the n-th under this plan.
struct timing {
    struct atsi_event *began, *ended;
    bool timed;
    uint64_t n;
};

struct atsi_transfers {
    struct atsi_device *device;
    struct atsi_pinned_ring *ring; // NULL: all pieces are pinned
    struct atsi_stream *stream;
    char *region;
    uint64_t region_bytes;
    uint32_t max_units;
    struct timing *timings;     // [ROUNDS_TIMED x max_units]
    struct atsi_event *reached; // of the compute stream: where transfers may start
    struct atsi_event *left;    // of the transfer stream: nothing writes to the region any more
    char *marks;                // two words of device memory: transfers that have arrived, and that have been consumed
    uint32_t base;              // what both count from under this plan
    const struct atsi_transfer_plan *plan;
    uint64_t n_issued, n_consumed; // since the plan was taken, through all rounds
    bool timing, no_overlap;
};

enum {
    CONSUMED_OFFSET = 256, // of the second word, in a cache line of its own
    ROUNDS_TIMED = 2       // at once: the one at work and the next, further ahead no ring lets transfers go
};

static uint32_t n_timings(const struct atsi_transfers *t) { return ROUNDS_TIMED * t->max_units; }

static enum atsi_status create_marks(struct atsi_transfers *t, struct atsi_error *err) {
    const struct atsi_device_ops *ops = t->device->ops;
    void *marks;
    ATSI_TRY(ops->alloc(t->device, 2 * CONSUMED_OFFSET, &marks, err));
    t->marks = marks;
    ATSI_TRY(ops->post_mark(t->stream, t->marks, NULL, 0, err));
    ATSI_TRY(ops->post_mark(t->stream, t->marks + CONSUMED_OFFSET, NULL, 0, err));
    return ops->stream_sync(t->stream, err);
}

static enum atsi_status create(struct atsi_transfers *t, struct atsi_error *err) {
    const struct atsi_device_ops *ops = t->device->ops;
    void *region;
    ATSI_TRY(ops->alloc(t->device, t->region_bytes, &region, err));
    t->region = region;
    ATSI_TRY(ops->stream_create(t->device, &t->stream, err));
    ATSI_TRY(ops->event_create(t->device, false, &t->reached, err));
    ATSI_TRY(ops->event_create(t->device, false, &t->left, err));
    for (uint32_t i = 0; i < n_timings(t); i++) {
        ATSI_TRY(ops->event_create(t->device, true, &t->timings[i].began, err));
        ATSI_TRY(ops->event_create(t->device, true, &t->timings[i].ended, err));
    }
    return create_marks(t, err);
}

enum atsi_status atsi_transfers_create(const struct atsi_transfers_params *params, struct atsi_transfers **out,
                                       struct atsi_error *err) {
    struct atsi_transfers *t = calloc(1, sizeof *t);
    *out = NULL;
    if (!t) return atsi_fail(err, ATSI_FAILED, "out of memory while creating transfers");
    *t = (struct atsi_transfers){.device = params->device,
                                 .ring = params->ring,
                                 .region_bytes = params->temp_bytes,
                                 .max_units = params->max_units,
                                 .no_overlap = params->no_overlap};
    t->timings = calloc(n_timings(t), sizeof *t->timings);
    enum atsi_status status =
        t->timings ? create(t, err) : atsi_fail(err, ATSI_FAILED, "out of memory while creating transfers");
    if (status == ATSI_OK)
        *out = t;
    else
        atsi_transfers_free(t);
    return status;
}

void atsi_transfers_free(struct atsi_transfers *t) {
    if (!t) return;
    const struct atsi_device_ops *ops = t->device->ops;
    if (t->stream) ops->stream_sync(t->stream, NULL);
    for (uint32_t i = 0; t->timings && i < n_timings(t); i++) {
        if (t->timings[i].began) ops->event_destroy(t->timings[i].began);
        if (t->timings[i].ended) ops->event_destroy(t->timings[i].ended);
    }
    if (t->reached) ops->event_destroy(t->reached);
    if (t->left) ops->event_destroy(t->left);
    if (t->stream) ops->stream_destroy(t->stream);
    if (t->marks) ops->free(t->device, t->marks);
    if (t->region) ops->free(t->device, t->region);
    free(t->timings);
    free(t);
}

// ---- the plan -----------------------------------------------------------------------------------------------------

static enum atsi_status lay_out(struct atsi_transfer_plan *p, const struct atsi_transfer_unit *units,
                                uint64_t region_bytes, uint64_t *unit_bytes, struct atsi_error *err) {
    uint32_t n = 0;
    for (uint32_t u = 0; u < p->n_units; u++) {
        p->units[u] = (struct planned_unit){.first_piece = n, .n_pieces = units[u].n_pieces};
        for (uint32_t i = 0; i < units[u].n_pieces; i++) p->pieces[n++] = units[u].pieces[i];
        unit_bytes[u] = units[u].bytes;
    }
    return atsi_temp_ring_plan(unit_bytes, p->n_units, region_bytes, p->slots, err);
}

enum atsi_status atsi_transfers_plan(const struct atsi_transfers *t, const struct atsi_transfer_unit *units,
                                     uint32_t n_units, struct atsi_transfer_plan **out, struct atsi_error *err) {
    struct atsi_transfer_plan *p = calloc(1, sizeof *p);
    uint64_t *unit_bytes = calloc(n_units + 1, sizeof *unit_bytes);
    enum atsi_status status = atsi_fail(err, ATSI_FAILED, "out of memory while planning transfers");
    *out = NULL;
    if (p) {
        *p = (struct atsi_transfer_plan){.region = t->region, .n_units = n_units};
        for (uint32_t u = 0; u < n_units; u++) p->n_pieces += units[u].n_pieces;
        p->units = calloc(n_units + 1, sizeof *p->units);
        p->slots = calloc(n_units + 1, sizeof *p->slots);
        p->pieces = calloc(p->n_pieces + 1, sizeof *p->pieces);
        if (n_units > t->max_units)
            status = atsi_fail(err, ATSI_FAILED, "more promoted units than the tables hold");
        else if (p->units && p->slots && p->pieces && unit_bytes)
            status = lay_out(p, units, t->region_bytes, unit_bytes, err);
    }
    free(unit_bytes);
    if (status == ATSI_OK)
        *out = p;
    else
        atsi_transfer_plan_free(p);
    return status;
}

void atsi_transfer_plan_free(struct atsi_transfer_plan *p) {
    if (!p) return;
    free(p->units);
    free(p->slots);
    free(p->pieces);
    free(p);
}

char *atsi_transfer_plan_address(const struct atsi_transfer_plan *p, uint32_t i_unit) {
    return p->region + p->slots[i_unit].offset;
}

uint32_t atsi_transfer_plan_n_units(const struct atsi_transfer_plan *p) { return p->n_units; }

uint32_t atsi_transfer_plan_waits_for(const struct atsi_transfer_plan *p, uint32_t i_unit) {
    return p->slots[i_unit].waits_for;
}

enum atsi_status atsi_transfers_use(struct atsi_transfers *t, const struct atsi_transfer_plan *plan,
                                    struct atsi_stream *compute, struct atsi_error *err) {
    t->plan = plan;
    t->base += (uint32_t)t->n_issued; // beyond every mark of the plan before
    t->n_issued = t->n_consumed = 0;
    if (t->ring) atsi_pinned_ring_forget(t->ring);
    for (uint32_t i = 0; i < n_timings(t); i++) t->timings[i].timed = false;
    ATSI_TRY(t->device->ops->event_record(t->reached, compute, err));
    return t->device->ops->stream_wait(t->stream, t->reached, err);
}

char *atsi_transfers_region(const struct atsi_transfers *t, uint64_t *bytes) {
    *bytes = t->region_bytes;
    return t->region;
}

enum atsi_status atsi_transfers_lend(struct atsi_transfers *t, struct atsi_stream *compute, struct atsi_error *err) {
    ATSI_TRY(t->device->ops->event_record(t->left, t->stream, err));
    return t->device->ops->stream_wait(compute, t->left, err);
}

// ---- rounds -------------------------------------------------------------------------------------------------------

static uint32_t n_units(const struct atsi_transfers *t) { return t->plan ? t->plan->n_units : 0; }

static enum atsi_status copy(struct atsi_transfers *t, uint32_t u, struct atsi_error *err) {
    const struct planned_unit *unit = &t->plan->units[u];
    for (uint32_t i = 0; i < unit->n_pieces; i++) {
        const struct atsi_transfer_piece *piece = &t->plan->pieces[unit->first_piece + i];
        void *dev = atsi_transfer_plan_address(t->plan, u) + piece->offset;
        ATSI_TRY(piece->staged ? atsi_pinned_ring_send(t->ring, t->stream, dev, piece->host, piece->bytes, err)
                               : t->device->ops->copy_to_device(t->stream, dev, piece->host, piece->bytes, err));
    }
    return ATSI_OK;
}

static struct timing *timing_of(const struct atsi_transfers *t, uint64_t n) {
    uint32_t a_round = t->plan->n_units;
    return &t->timings[n / a_round % ROUNDS_TIMED * t->max_units + n % a_round];
}

static enum atsi_status copy_timed(struct atsi_transfers *t, uint32_t u, struct atsi_error *err) {
    struct timing *timing = timing_of(t, t->n_issued);
    ATSI_TRY(t->device->ops->event_record(timing->began, t->stream, err));
    ATSI_TRY(copy(t, u, err));
    timing->timed = true;
    timing->n = t->n_issued;
    return t->device->ops->event_record(timing->ended, t->stream, err);
}

// The mark of the n-th transfer under this plan, as the words count.
static int32_t mark_of(const struct atsi_transfers *t, uint64_t n) { return (int32_t)(t->base + (uint32_t)n + 1); }

static enum atsi_status issue_one(struct atsi_transfers *t, uint32_t u, struct atsi_error *err) {
    const struct atsi_device_ops *ops = t->device->ops;
    uint32_t back = t->plan->slots[u].waits_for;
    // The unit whose space this is; in the first round nobody was there before.
    if (t->n_issued >= back)
        ATSI_TRY(ops->await_mark(t->stream, t->marks + CONSUMED_OFFSET, NULL, mark_of(t, t->n_issued - back), err));
    ATSI_TRY(t->timing ? copy_timed(t, u, err) : copy(t, u, err));
    ATSI_TRY(ops->post_mark(t->stream, t->marks, NULL, mark_of(t, t->n_issued), err));
    t->n_issued++;
    return ATSI_OK;
}

// Starts every transfer whose space is free once the first n_consumed have been consumed.
static enum atsi_status issue_until(struct atsi_transfers *t, uint64_t n_consumed, struct atsi_error *err) {
    while (n_units(t)) {
        uint32_t u = (uint32_t)(t->n_issued % n_units(t));
        if (t->n_issued >= n_consumed + t->plan->slots[u].waits_for) return ATSI_OK;
        ATSI_TRY(issue_one(t, u, err));
    }
    return ATSI_OK;
}

// A transfer waits in its stream for work that the compute stream has already been given, so nobody waits for what never comes.
enum atsi_status atsi_transfers_issue(struct atsi_transfers *t, struct atsi_error *err) {
    return t->no_overlap ? ATSI_OK : issue_until(t, t->n_consumed, err);
}

// The transfer stream joins the compute stream, then the compute stream the transfer.
static enum atsi_status issue_in_turn(struct atsi_transfers *t, struct atsi_stream *compute, struct atsi_error *err) {
    ATSI_TRY(t->device->ops->event_record(t->reached, compute, err));
    ATSI_TRY(t->device->ops->stream_wait(t->stream, t->reached, err));
    uint32_t n = n_units(t);
    return n ? issue_one(t, (uint32_t)(t->n_issued % n), err) : ATSI_OK;
}

enum atsi_status atsi_transfers_await(struct atsi_transfers *t, struct atsi_stream *compute, struct atsi_error *err) {
    ATSI_TRY(t->no_overlap ? issue_in_turn(t, compute, err) : atsi_transfers_issue(t, err));
    return t->device->ops->await_mark(compute, t->marks, NULL, mark_of(t, t->n_consumed), err);
}

enum atsi_status atsi_transfers_consumed(struct atsi_transfers *t, struct atsi_stream *compute,
                                         struct atsi_error *err) {
    ATSI_TRY(t->device->ops->post_mark(compute, t->marks + CONSUMED_OFFSET, NULL, mark_of(t, t->n_consumed), err));
    t->n_consumed++;
    return atsi_transfers_issue(t, err);
}

// ---- rounds that are launched at once -----------------------------------------------------------------------------

bool atsi_transfers_overlap(const struct atsi_transfers *t) { return !t->no_overlap; }

enum atsi_status atsi_transfers_capture_await(const struct atsi_transfers *t, struct atsi_stream *compute,
                                              const int32_t *base_dev, uint32_t k, struct atsi_error *err) {
    return t->device->ops->await_mark(compute, t->marks, base_dev, (int32_t)k + 1, err);
}

enum atsi_status atsi_transfers_capture_consumed(const struct atsi_transfers *t, struct atsi_stream *compute,
                                                 const int32_t *base_dev, uint32_t k, struct atsi_error *err) {
    return t->device->ops->post_mark(compute, t->marks + CONSUMED_OFFSET, base_dev, (int32_t)k + 1, err);
}

int32_t atsi_transfers_mark(const struct atsi_transfers *t) { return (int32_t)(t->base + (uint32_t)t->n_consumed); }

enum atsi_status atsi_transfers_issue_round(struct atsi_transfers *t, uint32_t n_consumed, struct atsi_error *err) {
    return issue_until(t, t->n_consumed + (n_consumed < n_units(t) ? n_consumed : n_units(t)), err);
}

void atsi_transfers_round_done(struct atsi_transfers *t) { t->n_consumed += n_units(t); }

// ---- waiting, and times -------------------------------------------------------------------------------------------

enum atsi_status atsi_transfers_drain(struct atsi_transfers *t, struct atsi_error *err) {
    return t->device->ops->stream_sync(t->stream, err);
}

void atsi_transfers_time(struct atsi_transfers *t, bool timing) { t->timing = timing; }

// Of unit u, the transfer that the round behind has consumed.
static const struct timing *timing_behind(const struct atsi_transfers *t, uint32_t u) {
    uint64_t n = t->n_consumed - t->plan->n_units + u;
    const struct timing *timing = timing_of(t, n);
    return timing->timed && timing->n == n ? timing : NULL;
}

enum atsi_status atsi_transfers_took(const struct atsi_transfers *t, uint32_t i_unit, bool *timed, float *us,
                                     struct atsi_error *err) {
    const struct timing *timing = timing_behind(t, i_unit);
    *timed = timing != NULL;
    return timing ? t->device->ops->event_elapsed_us(timing->began, timing->ended, us, err) : ATSI_OK;
}

enum atsi_status atsi_transfers_began_after(const struct atsi_transfers *t, uint32_t i_unit, struct atsi_event *since,
                                            float *us, struct atsi_error *err) {
    return t->device->ops->event_elapsed_us(since, timing_behind(t, i_unit)->began, us, err);
}
