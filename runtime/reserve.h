// reserve.h: a VRAM budget that moves. Between rounds the card's free memory is looked at; when other programs leave less than the
// reserve, the least valuable resident units go to the CPU and their memory back to the card, and when there is room again they
// return. Text, caches and the promise of --vram are not touched: a unit whose state lives on the GPU stays there.
#ifndef ATSI_RUNTIME_RESERVE_H
#define ATSI_RUNTIME_RESERVE_H

#include <stdio.h>

#include "runtime/trace.h"
#include "runtime/weights.h"

// Device memory that a run takes beside the weights, once they are loaded: buffers, scratch, caches of the units on the GPU, the temporary
// region, captured rounds. n_ctx 0: the plan's.
uint64_t atsi_vram_of_states(const struct atsi_plan *plan, uint32_t n_ctx); // the caches alone
uint64_t atsi_vram_beside_weights(const struct atsi_plan *plan, struct atsi_device *device, uint32_t n_ctx);
// Pinned host memory that it takes beside the weights: the CPU's buffers and caches.
uint64_t atsi_pinned_beside_weights(const struct atsi_plan *plan, uint32_t n_ctx);

enum atsi_reserve_change {
    ATSI_RESERVE_STAYS = 0,
    ATSI_RESERVE_SHRINKS = 1,
    ATSI_RESERVE_GROWS = 2
};

struct atsi_reserve_move {
    enum atsi_reserve_change change;
    uint32_t n_units;                 // that left or came back
    uint64_t bytes;                   // of their weights
    uint64_t free_bytes;              // of the card when it was decided
    uint32_t n_resident, n_removable; // units on the GPU now, of how many that can leave
    double took_us;                   // between two rounds; what came back was copied before, in small steps
};

struct atsi_reserve {
    struct atsi_weights *weights;
    uint64_t pending_bytes; // that this run is going to take: they do not count as free
    uint64_t bytes;         // of the card that others find free; 0: nothing is looked at
    void (*tell)(void *context, const struct atsi_reserve_move *move); // of every move; may be NULL
    void *context;
    struct atsi_trace *trace; // may be NULL
    // What follows belongs to reserve.c; zero at first.
    double polled_us, wait_us, tight_us, grown_us, hold_us;
    struct atsi_reserve_move next;
    uint32_t n_polls, n_shrunk, n_grown;
    double polling_us;
};

// Looks at the card, at most every 10 ms or half a percent of the time (now_us: atsi_clock_us()), and between rounds only. While there is room it brings tensors back, a few
// milliseconds at a time; nothing that a round uses changes by that. *change other than ATSI_RESERVE_STAYS: the caller ends whatever still
// reads the arrays of the weights, calls atsi_reserve_apply, and makes a new assignment before the next round.
enum atsi_status atsi_reserve_poll(struct atsi_reserve *b, double now_us, enum atsi_reserve_change *change,
                                   struct atsi_error *err);
enum atsi_status atsi_reserve_apply(struct atsi_reserve *b, struct atsi_error *err);

// For --stats: how often it moved and what looking costs. Nothing when it never looked.
void atsi_reserve_report(FILE *f, const struct atsi_reserve *b);

#endif
