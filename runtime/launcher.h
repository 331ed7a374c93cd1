// launcher.h: a thread that launches captured rounds, so that the thread that runs the CPU's part never calls the driver inside one.
//
// The device's work of such a round waits for the CPU (kernels/device.h, marks). A launch may block until the device has room for
// more commands, and any call may block behind one that another thread makes; were the CPU's part in the same thread, neither would
// ever go on.
#ifndef ATSI_RUNTIME_LAUNCHER_H
#define ATSI_RUNTIME_LAUNCHER_H

#include "runtime/transfers.h"

struct atsi_launcher;

// For `stream` (borrowed). While a launch is under way nobody else may use the stream.
enum atsi_status atsi_launcher_create(struct atsi_stream *stream, struct atsi_launcher **out, struct atsi_error *err);
void atsi_launcher_free(struct atsi_launcher *l); // NULL fine

// Starts the launch of a graph, and then of the transfers that it waits for (NULL: none); atsi_launcher_finish must follow.
void atsi_launcher_start(struct atsi_launcher *l, void *graph, struct atsi_transfers *transfers);
// Waits until everything is launched, not for its work, and tells how it went.
enum atsi_status atsi_launcher_finish(struct atsi_launcher *l, struct atsi_error *err);

// Whatever may make the driver wait for all that runs on the device (building graphs, freeing them) stands between hold and release, in any
// thread: no round is then half launched, for whose rest the device would wait while the driver keeps the launcher out. NULL fine.
void atsi_launcher_hold(struct atsi_launcher *l);
void atsi_launcher_release(struct atsi_launcher *l);

// Between start and finish: until *word has reached `value` the calling thread spins, then yields, then sleeps. ATSI_FAILED when the stream
// has failed, or has come to its end without posting it.
enum atsi_status atsi_launcher_await(struct atsi_launcher *l, const int32_t *word, int32_t value,
                                     struct atsi_error *err);

#endif
