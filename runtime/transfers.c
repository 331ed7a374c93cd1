#include "runtime/transfers.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/temp_ring.h"

struct unit_state {
    uint32_t first_piece, n_pieces;
    struct atsi_event *arrived, *consumed;
};

struct atsi_transfers {
    struct atsi_device *device;
    struct atsi_stream *stream;
    char *region;
    uint64_t region_bytes;
    uint32_t max_units, max_pieces, n_units, n_pieces;
    struct unit_state *units;           // [max_units]
    struct atsi_temp_slot *slots;       // [max_units]
    uint64_t *unit_bytes;               // [max_units]
    struct atsi_transfer_piece *pieces; // [max_pieces]
    uint64_t *piece_offsets;            // [max_pieces] in the region
    uint64_t n_issued, n_consumed;      // since the plan was made, through all rounds
};

static enum atsi_status create(struct atsi_transfers *t, struct atsi_error *err) {
    const struct atsi_device_ops *ops = t->device->ops;
    void *region;
    ATSI_TRY(ops->alloc(t->device, t->region_bytes, &region, err));
    t->region = region;
    ATSI_TRY(ops->stream_create(t->device, &t->stream, err));
    for (uint32_t i = 0; i < t->max_units; i++) {
        ATSI_TRY(ops->event_create(t->device, false, &t->units[i].arrived, err));
        ATSI_TRY(ops->event_create(t->device, false, &t->units[i].consumed, err));
    }
    return ATSI_OK;
}

enum atsi_status atsi_transfers_create(struct atsi_device *device, uint64_t temp_bytes, uint32_t max_units,
                                       uint32_t max_pieces, struct atsi_transfers **out, struct atsi_error *err) {
    struct atsi_transfers *t = calloc(1, sizeof *t);
    *out = NULL;
    if (!t) return atsi_fail(err, ATSI_FAILED, "out of memory while creating transfers");
    *t = (struct atsi_transfers){
        .device = device, .region_bytes = temp_bytes, .max_units = max_units, .max_pieces = max_pieces};
    t->units = calloc(max_units, sizeof *t->units);
    t->slots = calloc(max_units, sizeof *t->slots);
    t->unit_bytes = calloc(max_units, sizeof *t->unit_bytes);
    t->pieces = calloc(max_pieces, sizeof *t->pieces);
    t->piece_offsets = calloc(max_pieces, sizeof *t->piece_offsets);
    bool complete = t->units && t->slots && t->unit_bytes && t->pieces && t->piece_offsets;
    enum atsi_status status =
        complete ? create(t, err) : atsi_fail(err, ATSI_FAILED, "out of memory while creating transfers");
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
    for (uint32_t i = 0; t->units && i < t->max_units; i++) {
        if (t->units[i].arrived) ops->event_destroy(t->units[i].arrived);
        if (t->units[i].consumed) ops->event_destroy(t->units[i].consumed);
    }
    if (t->stream) ops->stream_destroy(t->stream);
    if (t->region) ops->free(t->device, t->region);
    free(t->units);
    free(t->slots);
    free(t->unit_bytes);
    free(t->pieces);
    free(t->piece_offsets);
    free(t);
}

static uint64_t aligned(uint64_t bytes) { return (bytes + 255) & ~(uint64_t)255; }

enum atsi_status atsi_transfers_plan(struct atsi_transfers *t, const struct atsi_transfer_unit *units, uint32_t n_units,
                                     struct atsi_error *err) {
    t->n_units = t->n_pieces = 0;
    t->n_issued = t->n_consumed = 0;
    for (uint32_t u = 0; u < n_units; u++) {
        if (u == t->max_units || units[u].n_pieces > t->max_pieces - t->n_pieces)
            return atsi_fail(err, ATSI_FAILED, "more promoted tensors than the tables hold");
        t->units[u].first_piece = t->n_pieces;
        t->units[u].n_pieces = units[u].n_pieces;
        t->unit_bytes[u] = 0;
        for (uint32_t i = 0; i < units[u].n_pieces; i++) {
            t->pieces[t->n_pieces] = units[u].pieces[i];
            t->piece_offsets[t->n_pieces++] = t->unit_bytes[u];
            t->unit_bytes[u] += aligned(units[u].pieces[i].bytes);
        }
    }
    ATSI_TRY(atsi_temp_ring_plan(t->unit_bytes, n_units, t->region_bytes, t->slots, err));
    for (uint32_t u = 0; u < n_units; u++)
        for (uint32_t i = 0; i < t->units[u].n_pieces; i++)
            t->piece_offsets[t->units[u].first_piece + i] += t->slots[u].offset;
    t->n_units = n_units;
    return ATSI_OK;
}

void *atsi_transfers_address(const struct atsi_transfers *t, uint32_t i_unit, uint32_t i_piece) {
    return t->region + t->piece_offsets[t->units[i_unit].first_piece + i_piece];
}

static enum atsi_status issue_one(struct atsi_transfers *t, uint32_t u, struct atsi_error *err) {
    const struct atsi_device_ops *ops = t->device->ops;
    // The event of the unit whose space this is; in the first round nobody was there before.
    if (t->n_issued >= t->slots[u].waits_for)
        ATSI_TRY(
            ops->stream_wait(t->stream, t->units[(t->n_issued - t->slots[u].waits_for) % t->n_units].consumed, err));
    for (uint32_t i = 0; i < t->units[u].n_pieces; i++) {
        const struct atsi_transfer_piece *piece = &t->pieces[t->units[u].first_piece + i];
        ATSI_TRY(ops->copy_to_device(t->stream, atsi_transfers_address(t, u, i), piece->host, piece->bytes, err));
    }
    ATSI_TRY(ops->event_record(t->units[u].arrived, t->stream, err));
    t->n_issued++;
    return ATSI_OK;
}

enum atsi_status atsi_transfers_issue(struct atsi_transfers *t, struct atsi_error *err) {
    // A wait takes an event as last recorded, so transfer T may be issued once consumption T - waits_for has been.
    while (t->n_units) {
        uint32_t u = (uint32_t)(t->n_issued % t->n_units);
        if (t->n_issued >= t->n_consumed + t->slots[u].waits_for) return ATSI_OK;
        ATSI_TRY(issue_one(t, u, err));
    }
    return ATSI_OK;
}

enum atsi_status atsi_transfers_await(struct atsi_transfers *t, struct atsi_stream *compute, struct atsi_error *err) {
    ATSI_TRY(atsi_transfers_issue(t, err));
    return t->device->ops->stream_wait(compute, t->units[t->n_consumed % t->n_units].arrived, err);
}

enum atsi_status atsi_transfers_consumed(struct atsi_transfers *t, struct atsi_stream *compute,
                                         struct atsi_error *err) {
    ATSI_TRY(t->device->ops->event_record(t->units[t->n_consumed % t->n_units].consumed, compute, err));
    t->n_consumed++;
    return atsi_transfers_issue(t, err);
}

enum atsi_status atsi_transfers_drain(struct atsi_transfers *t, struct atsi_error *err) {
    return t->device->ops->stream_sync(t->stream, err);
}
