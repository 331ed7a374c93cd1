// launcher.h: a thread that launches captured rounds, so that the thread that runs the CPU's part never calls the driver inside one.
//
// The device's work of such a round waits for the CPU (kernels/device.h, marks) and for transfers. A launch may block until the device
// has room for more commands, or until all that it has is done, and any call may block behind one that another thread makes. So the
// CPU's part runs in another thread, and nothing is launched before the transfers that it waits for, nor a transfer before the work
// whose space it takes: what has been launched always comes to its end without further launches.
#ifndef ATSI_RUNTIME_LAUNCHER_H
#define ATSI_RUNTIME_LAUNCHER_H

#include "kernels/cpu/pool.h"
#include "runtime/transfers.h"

struct atsi_launcher;

// A part of a round, captured: launched once the transfers are issued whose space is free when the first n_consumed of the round have been.
struct atsi_launch_piece {
    void *graph;
    uint32_t n_consumed; // by the pieces before
};
// A whole round.
struct atsi_launch {
    struct atsi_launch_piece *pieces; // [n_pieces]
    uint32_t n_pieces;
};

// For `stream` (borrowed). While a launch is under way nobody else may use the stream. The thread keeps off the core that `pool` leaves for
// the one that calls it (NULL: off none).
enum atsi_status atsi_launcher_create(struct atsi_stream *stream, const struct atsi_pool *pool,
                                      struct atsi_launcher **out, struct atsi_error *err);
void atsi_launcher_free(struct atsi_launcher *l); // NULL fine

// Starts the launch of a round (borrowed) and of the transfers that it waits for (NULL: none); atsi_launcher_finish must follow.
void atsi_launcher_start(struct atsi_launcher *l, const struct atsi_launch *round, struct atsi_transfers *transfers);
// A round is soon to be started: the thread wakes up and stays awake for a millisecond or two. Waking it then would cost some 50 us.
void atsi_launcher_expect(struct atsi_launcher *l);
// Waits until everything is launched, not for its work, and tells how it went.
enum atsi_status atsi_launcher_finish(struct atsi_launcher *l, struct atsi_error *err);

// Between start and finish: until *word has reached `value` the calling thread spins, then yields, then sleeps. ATSI_FAILED when the stream
// has failed, or has come to its end without posting it.
enum atsi_status atsi_launcher_await(struct atsi_launcher *l, const int32_t *word, int32_t value,
                                     struct atsi_error *err);

#endif
