// transfers.h: weights of promoted units on their way to the GPU, beside the rounds that use them (docs/architecture.md).
//
// One transfer stream fills the temporary region in unit order, as early as the ring allows and across the round's end: what
// the next round needs first travels in this round's tail. Two marks in device memory keep order (kernels/device.h):
//   arrived   counted in the transfer stream after a unit's copies; the compute stream waits for it before the unit
//   consumed  counted in the compute stream after a unit; the transfer stream waits for it before its space is filled again
#ifndef ATSI_RUNTIME_TRANSFERS_H
#define ATSI_RUNTIME_TRANSFERS_H

#include "kernels/device.h"
#include "runtime/pinned_ring.h"

struct atsi_transfers;
struct atsi_transfer_plan; // which units travel and where they lie in the region

// What a promoted unit needs on the device.
struct atsi_transfer_piece {
    const void *host;
    uint64_t bytes, offset; // offset: where it lies in what the unit has of the region
    bool staged;            // through the ring; else it is pinned
};
struct atsi_transfer_unit {
    const struct atsi_transfer_piece *pieces; // borrowed during atsi_transfers_plan
    uint32_t n_pieces;
    uint64_t bytes; // of the region; where there is no piece nothing is copied
};

struct atsi_transfers_params {
    struct atsi_device *device;
    struct atsi_pinned_ring *ring; // for pieces that are not pinned, borrowed; NULL: there are none
    uint64_t temp_bytes;           // of the region
    uint32_t max_units;            // of any later plan
    bool no_overlap; // for comparison: a transfer starts when its unit is reached and everything before it is done
};
// Takes the region and the transfer stream at once, and events for all units; nothing grows afterwards.
enum atsi_status atsi_transfers_create(const struct atsi_transfers_params *params, struct atsi_transfers **out,
                                       struct atsi_error *err);
void atsi_transfers_free(struct atsi_transfers *t); // NULL fine; the compute stream must be idle

// Lays units out in the region; changes nothing in `t`, so it may run in another thread beside transfers. Free with
// atsi_transfer_plan_free, once it is used no more.
enum atsi_status atsi_transfers_plan(const struct atsi_transfers *t, const struct atsi_transfer_unit *units,
                                     uint32_t n_units, struct atsi_transfer_plan **out, struct atsi_error *err);
void atsi_transfer_plan_free(struct atsi_transfer_plan *plan); // NULL fine
// The device address of what unit i_unit has of the region.
char *atsi_transfer_plan_address(const struct atsi_transfer_plan *plan, uint32_t i_unit);

uint32_t atsi_transfer_plan_n_units(const struct atsi_transfer_plan *plan);
// The transfer this many before that of unit u must have been consumed before it may start (temp_ring.h).
uint32_t atsi_transfer_plan_waits_for(const struct atsi_transfer_plan *plan, uint32_t i_unit);

// Between rounds: the coming ones transfer by `plan` (borrowed; NULL: nothing). Nobody waits: what is still under way ends first in the
// transfer stream, and new transfers wait for what `compute` has been given so far. What is not in the ring yet need not be read any more.
enum atsi_status atsi_transfers_use(struct atsi_transfers *t, const struct atsi_transfer_plan *plan,
                                    struct atsi_stream *compute, struct atsi_error *err);

// The region itself, for whoever needs scratch on the device while the plan in use transfers nothing; `compute` waits until what is still under way
// from earlier plans has ended. Later plans wait for what `compute` does with it (atsi_transfers_use).
char *atsi_transfers_region(const struct atsi_transfers *t, uint64_t *bytes);
enum atsi_status atsi_transfers_lend(struct atsi_transfers *t, struct atsi_stream *compute, struct atsi_error *err);

// Starts every transfer whose space is known to become free. Called at a round's start and by atsi_transfers_consumed.
enum atsi_status atsi_transfers_issue(struct atsi_transfers *t, struct atsi_error *err);
// The compute stream waits until the next unit in order has arrived.
enum atsi_status atsi_transfers_await(struct atsi_transfers *t, struct atsi_stream *compute, struct atsi_error *err);
// The compute stream has been given the unit's work: marks its end and issues what that frees.
enum atsi_status atsi_transfers_consumed(struct atsi_transfers *t, struct atsi_stream *compute, struct atsi_error *err);

// Rounds that are launched at once: the plan's units are consumed once a round. What a capture of the compute stream waits for before the
// k-th of them and says after it; *base_dev must be atsi_transfers_mark in that round.
enum atsi_status atsi_transfers_capture_await(const struct atsi_transfers *t, struct atsi_stream *compute,
                                              const int32_t *base_dev, uint32_t k, struct atsi_error *err);
enum atsi_status atsi_transfers_capture_consumed(const struct atsi_transfers *t, struct atsi_stream *compute,
                                                 const int32_t *base_dev, uint32_t k, struct atsi_error *err);
int32_t atsi_transfers_mark(const struct atsi_transfers *t);
bool atsi_transfers_overlap(const struct atsi_transfers *t); // else no round can be launched at once
// Starts all transfers whose space is free once the first n_consumed of the round's have been (at most all of them), which must have been
// launched. Once the round is over, round_done.
enum atsi_status atsi_transfers_issue_round(struct atsi_transfers *t, uint32_t n_consumed, struct atsi_error *err);
void atsi_transfers_round_done(struct atsi_transfers *t);

// Waits for transfers under way.
enum atsi_status atsi_transfers_drain(struct atsi_transfers *t, struct atsi_error *err);

// With `timing`, transfers started from now on are timed.
void atsi_transfers_time(struct atsi_transfers *t, bool timing);
// Between rounds, once the compute stream has come to rest: whether unit u's transfer for the round behind was timed, and what its copies took.
enum atsi_status atsi_transfers_took(const struct atsi_transfers *t, uint32_t i_unit, bool *timed, float *us,
                                     struct atsi_error *err);
// Of one that was timed: how much later than `since` its copies began; negative where they were ahead of it.
enum atsi_status atsi_transfers_began_after(const struct atsi_transfers *t, uint32_t i_unit, struct atsi_event *since,
                                            float *us, struct atsi_error *err);

#endif
