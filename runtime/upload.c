#include "runtime/upload.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "formats/base/clock.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 // Linux 5.14
#endif

// ---- reading ------------------------------------------------------------------------------------------------------

enum {
    READ_PIECE_BYTES = 512 << 10
};

struct bulk {
    const struct atsi_plan_file *file;
    uint8_t *dst;
    const uint8_t *src;
    uint64_t bytes;
};

// Maps every page now: one call where the kernel has it, else a touch a page.
static void fault_in(const uint8_t *data, uint64_t bytes) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), first = (uintptr_t)data & ~(page - 1);
    uintptr_t end = (uintptr_t)data + bytes;
    if (madvise((void *)first, end - first, MADV_POPULATE_READ) == 0) return;
    for (uintptr_t p = (uintptr_t)data; p < end; p += page) (void)*(const volatile uint8_t *)p;
}

// Through the file where it can be: pages that are mapped for a single look cost more than the look.
static void read_bytes(const struct atsi_plan_file *file, uint8_t *dst, const uint8_t *src, uint64_t bytes) {
    if (dst && file && atsi_plan_file_fetch(file, src, bytes, dst)) return;
    fault_in(src, bytes);
    if (dst) memcpy(dst, src, bytes);
}

static void read_piece(const struct bulk *b, uint64_t i) {
    uint64_t begin = i * READ_PIECE_BYTES, left = b->bytes - begin;
    read_bytes(b->file, b->dst ? b->dst + begin : NULL, b->src + begin,
               left < READ_PIECE_BYTES ? left : READ_PIECE_BYTES);
}

static uint32_t count_pieces(void *context, uint32_t phase) {
    const struct bulk *b = context;
    (void)phase;
    return (uint32_t)((b->bytes + READ_PIECE_BYTES - 1) / READ_PIECE_BYTES);
}

static void read_item(void *context, uint32_t phase, uint32_t item, int i_thread) {
    (void)phase, (void)i_thread;
    read_piece(context, item);
}

// Pieces go to whoever is free: a thread that loses its core holds nobody up.
void atsi_bulk_read(struct atsi_pool *pool, const struct atsi_plan_file *file, void *dst, const void *src,
                    uint64_t bytes) {
    static const struct atsi_pool_work work = {.n_phases = 1, .begin = count_pieces, .item = read_item};
    struct bulk b = {file, dst, src, bytes};
    if (pool && bytes > READ_PIECE_BYTES) {
        atsi_pool_share(pool, &work, &b);
        return;
    }
    for (uint32_t i = 0; i < count_pieces(&b, 0); i++) read_piece(&b, i);
}

// ---- copying ------------------------------------------------------------------------------------------------------

enum atsi_status atsi_upload_open(struct atsi_upload *u, struct atsi_device *device, const struct atsi_pinned *pinned,
                                  const struct atsi_plan_file *file, uint32_t n_lanes, struct atsi_error *err) {
    *u = (struct atsi_upload){.pinned = pinned, .file = file, .n_lanes = n_lanes};
    u->lanes = calloc(n_lanes, sizeof *u->lanes);
    if (!u->lanes) return atsi_fail(err, ATSI_FAILED, "out of memory while loading");
    u->device = device;
    pthread_mutex_init(&u->lock, NULL);
    return device->ops->stream_create(device, &u->stream, err);
}

static void free_ring(struct atsi_upload *u) {
    for (uint32_t i = 0; i < u->n_lanes; i++)
        for (int k = 0; k < ATSI_STAGING_COUNT; k++) {
            if (u->lanes[i].free[k]) u->device->ops->event_destroy(u->lanes[i].free[k]);
            u->lanes[i].free[k] = NULL;
        }
    if (u->ring) u->device->ops->host_free(u->device, u->ring);
    u->ring = NULL;
    u->ring_refused = false;
}

void atsi_upload_close(struct atsi_upload *u) {
    if (!u->device) return;
    if (u->stream) u->device->ops->stream_sync(u->stream, NULL);
    free_ring(u);
    if (u->stream) u->device->ops->stream_destroy(u->stream);
    pthread_mutex_destroy(&u->lock);
    free(u->lanes);
    *u = (struct atsi_upload){0};
}

static bool create_events(struct atsi_upload *u) {
    for (uint32_t i = 0; i < u->n_lanes; i++)
        for (int k = 0; k < ATSI_STAGING_COUNT; k++)
            if (u->device->ops->event_create(u->device, false, &u->lanes[i].free[k], NULL) != ATSI_OK) return false;
    return true;
}

// Waiting is for microseconds, and threads that sleep take longer than that to wake.
static void wait_a_little(unsigned n_times) {
    enum {
        N_YIELDS = 2000
    };
    if (n_times < N_YIELDS)
        sched_yield();
    else
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
}

static void take_device(struct atsi_upload *u) {
    for (unsigned n = 0; pthread_mutex_trylock(&u->lock) != 0; n++) wait_a_little(n);
}

static void leave_device(struct atsi_upload *u) { pthread_mutex_unlock(&u->lock); }

// False when there is no pinned memory to be had.
static bool has_ring(struct atsi_upload *u) {
    void *host, *dev;
    take_device(u);
    if (!u->ring && !u->ring_refused) {
        double started_us = atsi_clock_us();
        uint64_t bytes = (uint64_t)u->n_lanes * ATSI_STAGING_COUNT * ATSI_STAGING_BYTES;
        if (create_events(u) && u->device->ops->host_alloc(u->device, bytes, &host, &dev, NULL) == ATSI_OK) {
            u->ring = host;
        } else {
            free_ring(u);
            u->ring_refused = true;
        }
        u->ring_us += atsi_clock_us() - started_us;
    }
    bool has = u->ring;
    leave_device(u);
    return has;
}

// A buffer of the lane whose last copy is done; NULL when there is no pinned memory. The device is left to others while it waits.
static uint8_t *claim_buffer(struct atsi_upload *u, uint32_t lane) {
    struct atsi_upload_lane *l = &u->lanes[lane];
    uint32_t k = l->n_staged % ATSI_STAGING_COUNT;
    if (l->n_staged == 0 && !has_ring(u)) return NULL;
    for (unsigned n = 0; !u->device->ops->event_passed(l->free[k]); n++) wait_a_little(n);
    return u->ring + ((uint64_t)lane * ATSI_STAGING_COUNT + k) * ATSI_STAGING_BYTES;
}

static enum atsi_status copy_directly(struct atsi_upload *u, void *dev, const void *host, uint64_t bytes,
                                      struct atsi_error *err) {
    take_device(u);
    enum atsi_status status = u->device->ops->copy_to_device(u->stream, dev, host, bytes, err);
    leave_device(u);
    return status;
}

static enum atsi_status send_buffer(struct atsi_upload *u, uint32_t lane, void *dev, const uint8_t *buffer,
                                    uint64_t bytes, struct atsi_error *err) {
    struct atsi_upload_lane *l = &u->lanes[lane];
    struct atsi_event *free = l->free[l->n_staged++ % ATSI_STAGING_COUNT];
    take_device(u);
    enum atsi_status status = u->device->ops->copy_to_device(u->stream, dev, buffer, bytes, err);
    if (status == ATSI_OK) status = u->device->ops->event_record(free, u->stream, err);
    leave_device(u);
    return status;
}

static enum atsi_status add_staged(struct atsi_upload *u, uint32_t lane, char *dev, const uint8_t *host, uint64_t bytes,
                                   struct atsi_error *err) {
    struct atsi_upload_lane *l = &u->lanes[lane];
    for (uint64_t done = 0; done < bytes;) {
        uint64_t piece = bytes - done < ATSI_STAGING_BYTES ? bytes - done : ATSI_STAGING_BYTES;
        double started_us = atsi_clock_us();
        uint8_t *buffer = claim_buffer(u, lane);
        if (!buffer) return copy_directly(u, dev + done, host + done, bytes - done, err);
        double claimed_us = atsi_clock_us();
        read_bytes(u->file, buffer, host + done, piece);
        double read_us = atsi_clock_us();
        ATSI_TRY(send_buffer(u, lane, dev + done, buffer, piece, err));
        l->times.wait_us += claimed_us - started_us + atsi_clock_us() - read_us;
        l->times.read_us += read_us - claimed_us;
        l->times.bytes += piece;
        done += piece;
    }
    return ATSI_OK;
}

enum atsi_status atsi_upload_add(struct atsi_upload *u, uint32_t lane, void *dev, const void *host, uint64_t bytes,
                                 struct atsi_error *err) {
    for (uint64_t done = 0; done < bytes;) {
        const uint8_t *src = (const uint8_t *)host + done;
        char *dst = (char *)dev + done;
        bool pinned;
        uint64_t run = atsi_pinned_run(u->pinned, src, bytes - done, &pinned);
        ATSI_TRY(pinned ? copy_directly(u, dst, src, run, err) : add_staged(u, lane, dst, src, run, err));
        done += run;
    }
    return ATSI_OK;
}

enum atsi_status atsi_upload_finish(struct atsi_upload *u, struct atsi_error *err) {
    return u->device->ops->stream_sync(u->stream, err);
}

enum atsi_status atsi_upload_rest(struct atsi_upload *u, struct atsi_error *err) {
    ATSI_TRY(atsi_upload_finish(u, err));
    free_ring(u);
    u->n_lanes = 1;
    u->ring_us = 0;
    u->lanes[0] = (struct atsi_upload_lane){0};
    return ATSI_OK;
}

struct atsi_upload_times atsi_upload_times(const struct atsi_upload *u) {
    struct atsi_upload_times sum = {.ring_us = u->ring_us};
    for (uint32_t i = 0; i < u->n_lanes; i++) {
        sum.bytes += u->lanes[i].times.bytes;
        sum.read_us += u->lanes[i].times.read_us;
        sum.wait_us += u->lanes[i].times.wait_us;
    }
    return sum;
}
