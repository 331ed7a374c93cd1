// upload.h: bytes from host memory to the device through one stream, as fast as the link allows: pinned memory goes by itself, anything
// else through a ring of pinned buffers that several threads fill while the engine empties the others.
#ifndef ATSI_RUNTIME_UPLOAD_H
#define ATSI_RUNTIME_UPLOAD_H

#include "formats/plan_file.h"
#include "kernels/cpu/pool.h"
#include "runtime/pinned.h"

enum {
    ATSI_STAGING_COUNT = 2,
    ATSI_STAGING_BYTES = 16 << 20
};

struct atsi_upload {
    struct atsi_device *device;
    const struct atsi_pinned *pinned;  // borrowed
    const struct atsi_plan_file *file; // borrowed; what lies in its mapping is read from the file
    struct atsi_stream *stream;
    struct {
        void *host;              // NULL until first needed
        struct atsi_event *free; // passed when the copy out of it is done
    } staging[ATSI_STAGING_COUNT];
    uint32_t i_staging;
};

enum atsi_status atsi_upload_open(struct atsi_upload *u, struct atsi_device *device, const struct atsi_pinned *pinned,
                                  const struct atsi_plan_file *file, struct atsi_error *err);
void atsi_upload_close(struct atsi_upload *u); // waits; fine on a zeroed or half-open one

// Queues a copy. Pinned source bytes must stay as they are until atsi_upload_finish, others have been read on return. `pool` fills
// the ring; NULL: the calling thread.
enum atsi_status atsi_upload_add(struct atsi_upload *u, struct atsi_pool *pool, void *dev, const void *host,
                                 uint64_t bytes, struct atsi_error *err);
// Waits until everything has arrived and frees the ring, which comes back when it is needed.
enum atsi_status atsi_upload_rest(struct atsi_upload *u, struct atsi_error *err);
// Waits until everything has arrived.
enum atsi_status atsi_upload_finish(struct atsi_upload *u, struct atsi_error *err);

// By all threads of the pool (NULL: the caller) at the same time: copies host memory, that of `file` (NULL: none) by reading the file; or
// maps pages (dst NULL), so that reading them never waits afterwards.
void atsi_bulk_read(struct atsi_pool *pool, const struct atsi_plan_file *file, void *dst, const void *src,
                    uint64_t bytes);

#endif
