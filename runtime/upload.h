// upload.h: bytes from host memory to the device through one stream, as fast as the link allows: pinned memory goes by itself, anything
// else through pinned buffers, two a thread, that the threads fill from the file while the engine empties the others.
#ifndef ATSI_RUNTIME_UPLOAD_H
#define ATSI_RUNTIME_UPLOAD_H

#include <pthread.h>

#include "formats/plan_file.h"
#include "kernels/cpu/pool.h"
#include "runtime/pinned.h"

enum {
    ATSI_STAGING_COUNT = 2,      // buffers a thread: one is filled, one travels
    ATSI_STAGING_BYTES = 1 << 20 // the engine is near its rate with 1 MiB, and pinned memory takes time to get
};

// What went through buffers, for the report. Times of several threads are added up.
struct atsi_upload_times {
    uint64_t bytes;
    double read_us,
        wait_us;    // filling buffers; waiting for one to be free, and for other threads that talk to the device
    double ring_us; // getting the buffers
};

// What one thread has of the ring.
struct atsi_upload_lane {
    struct atsi_event *free[ATSI_STAGING_COUNT]; // passed when the copy out of the buffer is done
    uint32_t n_staged;                           // through this ring
    struct atsi_upload_times times;
};

struct atsi_upload {
    struct atsi_device *device;
    const struct atsi_pinned *pinned;  // borrowed
    const struct atsi_plan_file *file; // borrowed; what lies in its mapping is read from the file
    struct atsi_stream *stream;
    pthread_mutex_t lock; // whoever holds it drives the device
    uint8_t *ring;        // [n_lanes * ATSI_STAGING_COUNT * ATSI_STAGING_BYTES] pinned; NULL until first needed
    bool ring_refused;
    double ring_us;                 // the time that it took to get it, in all
    struct atsi_upload_lane *lanes; // [n_lanes]
    uint32_t n_lanes;
};

// For up to n_lanes threads at once.
enum atsi_status atsi_upload_open(struct atsi_upload *u, struct atsi_device *device, const struct atsi_pinned *pinned,
                                  const struct atsi_plan_file *file, uint32_t n_lanes, struct atsi_error *err);
void atsi_upload_close(struct atsi_upload *u); // waits; fine on a zeroed or half-open one

// Queues a copy. Pinned source bytes must stay as they are until atsi_upload_finish, others have been read on return. Threads may call it
// at the same time, each with a lane (0 .. n_lanes - 1) of its own; nobody else uses the device meanwhile. Without pinned memory for
// the ring the driver copies from where the bytes are, which takes it several times as long.
enum atsi_status atsi_upload_add(struct atsi_upload *u, uint32_t lane, void *dev, const void *host, uint64_t bytes,
                                 struct atsi_error *err);
// Waits until everything has arrived and frees the ring. It comes back when it is needed, for lane 0 alone from then on, and times
// begin anew.
enum atsi_status atsi_upload_rest(struct atsi_upload *u, struct atsi_error *err);
// Waits until everything has arrived.
enum atsi_status atsi_upload_finish(struct atsi_upload *u, struct atsi_error *err);

// Of everything so far.
struct atsi_upload_times atsi_upload_times(const struct atsi_upload *u);

// By all threads of the pool (NULL: the caller) at the same time: copies host memory, that of `file` (NULL: none) by reading the file; or
// maps pages (dst NULL), so that reading them never waits afterwards.
void atsi_bulk_read(struct atsi_pool *pool, const struct atsi_plan_file *file, void *dst, const void *src,
                    uint64_t bytes);

#endif
