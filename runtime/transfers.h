// transfers.h: weights of promoted units on their way to the GPU, beside the rounds that use them (docs/architecture.md).
//
// One transfer stream fills the temporary region in unit order, as early as the ring allows and across the round's end: what
// the next round needs first travels in this round's tail. Two events a unit keep order:
//   arrived   recorded in the transfer stream after the copies; the compute stream waits for it before the unit
//   consumed  recorded in the compute stream after the unit; the transfer stream waits for it before the space is filled again
#ifndef ATSI_RUNTIME_TRANSFERS_H
#define ATSI_RUNTIME_TRANSFERS_H

#include "kernels/device.h"

struct atsi_transfers;
struct atsi_transfer_plan; // which units travel and where they lie in the region

// What a promoted unit needs on the device.
struct atsi_transfer_piece {
    const void *host;
    uint64_t bytes;
}; // pinned host memory
struct atsi_transfer_unit {
    const struct atsi_transfer_piece *pieces; // borrowed during atsi_transfers_plan
    uint32_t n_pieces;
};

// Takes `temp_bytes` of device memory and the transfer stream at once; nothing grows afterwards. max_units bounds any later plan (events
// are made now). `no_overlap`: for comparison, a transfer starts when its unit is reached and everything before it is done.
enum atsi_status atsi_transfers_create(struct atsi_device *device, uint64_t temp_bytes, uint32_t max_units,
                                       bool no_overlap, struct atsi_transfers **out, struct atsi_error *err);
void atsi_transfers_free(struct atsi_transfers *t); // NULL fine; the compute stream must be idle

// Lays units out in the region; changes nothing in `t`, so it may run in another thread beside transfers. Free with
// atsi_transfer_plan_free, once it is used no more.
enum atsi_status atsi_transfers_plan(const struct atsi_transfers *t, const struct atsi_transfer_unit *units,
                                     uint32_t n_units, struct atsi_transfer_plan **out, struct atsi_error *err);
void atsi_transfer_plan_free(struct atsi_transfer_plan *plan); // NULL fine
// The device address of piece i of unit u.
void *atsi_transfer_plan_address(const struct atsi_transfer_plan *plan, uint32_t i_unit, uint32_t i_piece);

uint32_t atsi_transfer_plan_n_units(const struct atsi_transfer_plan *plan);
// The transfer this many before that of unit u must have been consumed before it may start (temp_ring.h).
uint32_t atsi_transfer_plan_waits_for(const struct atsi_transfer_plan *plan, uint32_t i_unit);

// Between rounds: the coming ones transfer by `plan` (borrowed; NULL: nothing). Nobody waits: what is still under way ends first in the
// transfer stream, and new transfers wait for what `compute` has been given so far.
enum atsi_status atsi_transfers_use(struct atsi_transfers *t, const struct atsi_transfer_plan *plan,
                                    struct atsi_stream *compute, struct atsi_error *err);

// Starts every transfer whose space is known to become free. Called at a round's start and by atsi_transfers_consumed.
enum atsi_status atsi_transfers_issue(struct atsi_transfers *t, struct atsi_error *err);
// The compute stream waits until the next unit in order has arrived.
enum atsi_status atsi_transfers_await(struct atsi_transfers *t, struct atsi_stream *compute, struct atsi_error *err);
// The compute stream has been given the unit's work: marks its end and issues what that frees.
enum atsi_status atsi_transfers_consumed(struct atsi_transfers *t, struct atsi_stream *compute, struct atsi_error *err);
// Waits for transfers under way.
enum atsi_status atsi_transfers_drain(struct atsi_transfers *t, struct atsi_error *err);

// With `timing`, transfers started from now on are timed, each once.
void atsi_transfers_time(struct atsi_transfers *t, bool timing);
// After the compute stream has come to rest: whether unit u of the plan was timed and consumed since the last call, and what its
// copies took.
enum atsi_status atsi_transfers_took(struct atsi_transfers *t, uint32_t i_unit, bool *timed, float *us,
                                     struct atsi_error *err);

#endif
