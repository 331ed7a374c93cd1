#include "runtime/upload.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

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

static void read_piece(const struct bulk *b, uint64_t i) {
    uint64_t begin = i * READ_PIECE_BYTES, left = b->bytes - begin;
    uint64_t bytes = left < READ_PIECE_BYTES ? left : READ_PIECE_BYTES;
    if (b->dst && b->file && atsi_plan_file_fetch(b->file, b->src + begin, bytes, b->dst + begin)) return;
    fault_in(b->src + begin, bytes);
    if (b->dst) memcpy(b->dst + begin, b->src + begin, bytes);
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
    static const struct atsi_pool_work work = {1, count_pieces, read_item};
    struct bulk b = {file, dst, src, bytes};
    if (pool && bytes > READ_PIECE_BYTES) {
        atsi_pool_share(pool, &work, &b);
        return;
    }
    for (uint32_t i = 0; i < count_pieces(&b, 0); i++) read_piece(&b, i);
}

// ---- copying ------------------------------------------------------------------------------------------------------

enum atsi_status atsi_upload_open(struct atsi_upload *u, struct atsi_device *device, const struct atsi_pinned *pinned,
                                  const struct atsi_plan_file *file, struct atsi_error *err) {
    *u = (struct atsi_upload){.device = device, .pinned = pinned, .file = file};
    return device->ops->stream_create(device, &u->stream, err);
}

static void free_staging(struct atsi_upload *u) {
    for (int i = 0; i < ATSI_STAGING_COUNT; i++) {
        if (u->staging[i].free) u->device->ops->event_destroy(u->staging[i].free);
        if (u->staging[i].host) u->device->ops->host_free(u->device, u->staging[i].host);
        u->staging[i].free = NULL;
        u->staging[i].host = NULL;
    }
}

void atsi_upload_close(struct atsi_upload *u) {
    if (!u->device) return;
    if (u->stream) u->device->ops->stream_sync(u->stream, NULL);
    free_staging(u);
    if (u->stream) u->device->ops->stream_destroy(u->stream);
    *u = (struct atsi_upload){0};
}

// False when there is no pinned memory to be had.
static bool open_staging(struct atsi_upload *u, uint32_t i) {
    const struct atsi_device_ops *ops = u->device->ops;
    void *dev;
    if (!u->staging[i].free && ops->event_create(u->device, false, &u->staging[i].free, NULL) != ATSI_OK) return false;
    return u->staging[i].host ||
           ops->host_alloc(u->device, ATSI_STAGING_BYTES, &u->staging[i].host, &dev, NULL) == ATSI_OK;
}

static enum atsi_status add_staged(struct atsi_upload *u, struct atsi_pool *pool, char *dev, const uint8_t *host,
                                   uint64_t bytes, struct atsi_error *err) {
    const struct atsi_device_ops *ops = u->device->ops;
    for (uint64_t done = 0; done < bytes;) {
        uint32_t i = u->i_staging++ % ATSI_STAGING_COUNT;
        uint64_t piece = bytes - done < ATSI_STAGING_BYTES ? bytes - done : ATSI_STAGING_BYTES;
        if (!open_staging(u, i)) return ops->copy_to_device(u->stream, dev + done, host + done, bytes - done, err);
        ATSI_TRY(ops->event_sync(u->staging[i].free, err));
        atsi_bulk_read(pool, u->file, u->staging[i].host, host + done, piece);
        ATSI_TRY(ops->copy_to_device(u->stream, dev + done, u->staging[i].host, piece, err));
        ATSI_TRY(ops->event_record(u->staging[i].free, u->stream, err));
        done += piece;
    }
    return ATSI_OK;
}

enum atsi_status atsi_upload_add(struct atsi_upload *u, struct atsi_pool *pool, void *dev, const void *host,
                                 uint64_t bytes, struct atsi_error *err) {
    for (uint64_t done = 0; done < bytes;) {
        const uint8_t *src = (const uint8_t *)host + done;
        char *dst = (char *)dev + done;
        bool pinned;
        uint64_t run = atsi_pinned_run(u->pinned, src, bytes - done, &pinned);
        if (pinned)
            ATSI_TRY(u->device->ops->copy_to_device(u->stream, dst, src, run, err));
        else
            ATSI_TRY(add_staged(u, pool, dst, src, run, err));
        done += run;
    }
    return ATSI_OK;
}

enum atsi_status atsi_upload_finish(struct atsi_upload *u, struct atsi_error *err) {
    return u->device->ops->stream_sync(u->stream, err);
}

enum atsi_status atsi_upload_rest(struct atsi_upload *u, struct atsi_error *err) {
    ATSI_TRY(atsi_upload_finish(u, err));
    free_staging(u);
    return ATSI_OK;
}
