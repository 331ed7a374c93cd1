// pinned_ring.h: weights that the driver does not pin, on their way to the device through a bounded ring of pinned memory.
//
// Threads of the ring copy what is sent into its slots, each piece by whoever is free; the stream moves each slot on to its place. Marks
// keep order (kernels/device.h), in mapped memory, so that the threads never call the driver:
//   filled    one a slot, set by the thread that has filled it; the stream waits for it before it copies the slot
//   drained   counted in the stream behind each such copy; a thread waits for it before the slot is filled again
// What the stream has been given therefore comes to its end without another call, as launches ahead need it (launcher.h).
#ifndef ATSI_RUNTIME_PINNED_RING_H
#define ATSI_RUNTIME_PINNED_RING_H

#include "formats/plan.h"
#include "kernels/device.h"

// How the weights of a unit on the CPU get to the device.
enum atsi_travel {
    ATSI_TRAVELS_NOT = 0,
    ATSI_TRAVELS_STAGED = 1, // some of them are not pinned and go through a ring: only copied, never read in place
    ATSI_TRAVELS_PINNED = 2  // by the copy engine from where they are, or read in place
};
// Whether a round of n_tokens can promote such a unit. A token reads every weight once, which is all that the CPU needs to compute with
// it. Staging reads it as well, writes it and has it read again by the engine: it takes more of the host's memory, which bounds
// the CPU, than computing does. A chunk computes for many tokens with each weight.
static inline bool atsi_travels_for(enum atsi_travel travel, uint32_t n_tokens) {
    return travel == ATSI_TRAVELS_PINNED || (travel == ATSI_TRAVELS_STAGED && n_tokens > 1);
}

struct atsi_pinned_ring;

struct atsi_pinned_ring_params {
    struct atsi_device *device; // outlives the ring
    uint64_t slot_bytes;        // a multiple of 256
    uint32_t n_slots, n_threads;
};
// Takes the memory and starts the threads; nothing grows afterwards. ATSI_FAILED when the driver has no such memory to give: not sticky.
enum atsi_status atsi_pinned_ring_create(const struct atsi_pinned_ring_params *params, struct atsi_pinned_ring **out,
                                         struct atsi_error *err);
// The largest ring that the driver gives for weights of `bytes` in all, at most 64 MiB; NULL when it does not even give 1 MiB.
struct atsi_pinned_ring *atsi_pinned_ring_open(struct atsi_device *device, uint64_t bytes);
void atsi_pinned_ring_free(struct atsi_pinned_ring *s); // NULL fine; streams that have something from it must be idle

// Queues a copy of host memory, any that can be read, which stays as it is until the copy is done. One thread at a time, and all in one
// stream until that is idle.
enum atsi_status atsi_pinned_ring_send(struct atsi_pinned_ring *s, struct atsi_stream *stream, void *dev,
                                       const void *host, uint64_t bytes, struct atsi_error *err);
// Nobody needs any more what has been sent: what is not in a slot yet is not read, and its copies bring anything. By the thread that sends.
void atsi_pinned_ring_forget(struct atsi_pinned_ring *s);

// Times the filling of all slots from host memory. Before anything is sent; the best of several calls counts.
void atsi_pinned_ring_measure(struct atsi_pinned_ring *s, const void *host, uint64_t bytes);

struct atsi_pinned_ring_figures {
    uint64_t ring_bytes, sent_bytes;
    double bytes_per_us; // all threads together, as measured; 0: never
    uint32_t n_threads;
};
struct atsi_pinned_ring_figures atsi_pinned_ring_figures(const struct atsi_pinned_ring *s);
// How much longer than the plan says a staged transfer takes, at least 1: filling and the engine overlap, so the slower of the two sets the
// pace. What both lose by sharing the host's memory is left to the recorder (recorder.h). s NULL, or a plan without times: 1.
double atsi_pinned_ring_slowdown(const struct atsi_pinned_ring *s, const struct atsi_plan *plan);

#endif
