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

// What a promoted unit needs on the device.
struct atsi_transfer_piece {
    const void *host;
    uint64_t bytes;
}; // pinned host memory
struct atsi_transfer_unit {
    const struct atsi_transfer_piece *pieces; // borrowed during atsi_transfers_plan
    uint32_t n_pieces;
};

// Takes `temp_bytes` of device memory and the transfer stream at once; nothing grows afterwards. max_units and max_pieces bound
// any later plan (events and tables are made now).
enum atsi_status atsi_transfers_create(struct atsi_device *device, uint64_t temp_bytes, uint32_t max_units,
                                       uint32_t max_pieces, struct atsi_transfers **out, struct atsi_error *err);
void atsi_transfers_free(struct atsi_transfers *t); // NULL fine; the compute stream must be idle

// Replaces the plan. Both streams must be idle (between rounds; atsi_transfers_drain). Afterwards atsi_transfers_address(t, u, i)
// is the device address of piece i of unit u.
enum atsi_status atsi_transfers_plan(struct atsi_transfers *t, const struct atsi_transfer_unit *units, uint32_t n_units,
                                     struct atsi_error *err);
void *atsi_transfers_address(const struct atsi_transfers *t, uint32_t i_unit, uint32_t i_piece);

// Starts every transfer whose space is known to become free. Called at a round's start and by atsi_transfers_consumed.
enum atsi_status atsi_transfers_issue(struct atsi_transfers *t, struct atsi_error *err);
// The compute stream waits until the next unit in order has arrived.
enum atsi_status atsi_transfers_await(struct atsi_transfers *t, struct atsi_stream *compute, struct atsi_error *err);
// The compute stream has been given the unit's work: marks its end and issues what that frees.
enum atsi_status atsi_transfers_consumed(struct atsi_transfers *t, struct atsi_stream *compute, struct atsi_error *err);
// Waits for transfers under way.
enum atsi_status atsi_transfers_drain(struct atsi_transfers *t, struct atsi_error *err);

#endif
