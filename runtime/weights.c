#include "runtime/weights.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 // Linux 5.14
#endif

enum {
    STAGING_BYTES = 8 << 20,
    STAGING_COUNT = 2,
    FAULT_PIECE_BYTES = 32 << 20
};

struct loader {
    struct atsi_weights *w;
    const struct atsi_model *model;
    const enum atsi_backend *backends;
    struct atsi_device *device;
    bool (*used)[2]; // [n_tensors][backend]
    atsi_load_progress *progress;
    void *context;
    uint64_t done_bytes, total_bytes;
    const uint8_t *sections[2]; // of the mapped file
    const char *mapped[2];      // their device addresses, NULL where not registered
    uint64_t section_bytes[2];
    struct atsi_stream *stream;
    struct {
        void *host;
        struct atsi_event *free; // passed when the copy out of it is done
    } staging[STAGING_COUNT];
    int i_staging;
};

static enum atsi_status advance(struct loader *l, uint64_t bytes, struct atsi_error *err) {
    l->done_bytes += bytes;
    bool goes_on = !l->progress || l->progress(l->context, l->done_bytes, l->total_bytes);
    return goes_on ? ATSI_OK : atsi_fail(err, ATSI_INTERRUPTED, "interrupted");
}

static void find_users(struct loader *l) {
    const struct atsi_program *p = &l->model->plan.program;
    for (uint32_t u = 0; u < p->n_units; u++) {
        enum atsi_backend side = l->device ? l->backends[u] : ATSI_CPU;
        for (uint32_t i = p->units[u].first_op; i < p->units[u].first_op + p->units[u].n_ops; i++)
            for (int k = 0; k < ATSI_OP_MAX_TENSORS; k++)
                if (p->ops[i].tensor[k] != ATSI_NONE) l->used[p->ops[i].tensor[k]][side] = true;
    }
    for (uint32_t i = 0; i < p->n_tensors; i++) {
        if (l->device && atsi_tensor_is_small(&p->tensors[i])) l->used[i][ATSI_CPU] = l->used[i][ATSI_GPU] = true;
        for (int side = 0; side < 2; side++)
            if (l->used[i][side]) l->total_bytes += p->tensors[i].size_bytes;
    }
}

// ---- pinned memory ------------------------------------------------------------------------------------------------

// The mapped file itself becomes pinned memory where the driver allows it; refusal is normal (memory limits, old drivers).
static void register_sections(struct loader *l, const uint8_t *sections[2], const char *mapped[2], uint64_t bytes[2]) {
    for (int i = 0; i < 2; i++) {
        const void *dev;
        sections[i] = atsi_plan_file_section(l->model->file, (enum atsi_plan_section)i, &bytes[i]);
        mapped[i] = NULL;
        if (!bytes[i] || l->device->ops->host_register(l->device, sections[i], bytes[i], &dev, NULL) != ATSI_OK)
            continue;
        l->w->registered[i] = sections[i];
        mapped[i] = dev;
    }
}

static const void *mapped_address(const struct loader *l, const void *host) {
    for (int i = 0; i < 2; i++) {
        uintptr_t offset = (uintptr_t)host - (uintptr_t)l->sections[i];
        if (l->mapped[i] && offset < l->section_bytes[i]) return l->mapped[i] + offset;
    }
    return NULL;
}

// ---- host side ----------------------------------------------------------------------------------------------------

// Maps every page now, so that generation never faults: one call where the kernel has it, else a touch a page.
static void fault_in(const uint8_t *data, uint64_t bytes) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), first = (uintptr_t)data & ~(page - 1);
    uintptr_t end = (uintptr_t)data + bytes;
    if (madvise((void *)first, end - first, MADV_POPULATE_READ) == 0) return;
    for (uintptr_t p = (uintptr_t)data; p < end; p += page) (void)*(const volatile uint8_t *)p;
}

// Memory of its own for a tensor that cannot stay in the mapping: pinned where a device is to read it, if that can be had.
static enum atsi_status alloc_host_tensor(struct loader *l, uint32_t i, uint64_t bytes, struct atsi_error *err) {
    void *dev;
    if (l->device && l->device->ops->host_alloc(l->device, bytes, &l->w->unpacked[i], &dev, NULL) == ATSI_OK)
        l->w->mapped[i] = dev;
    else if (posix_memalign(&l->w->unpacked[i], 64, bytes))
        return atsi_fail(err, ATSI_FAILED, "no memory for %llu bytes of weights", (unsigned long long)bytes);
    l->w->host[i] = l->w->unpacked[i];
    l->w->unpacked_bytes += bytes;
    return ATSI_OK;
}

static enum atsi_status load_host_tensor(struct loader *l, uint32_t i, const struct atsi_plan_blob *blob,
                                         struct atsi_error *err) {
    uint64_t bytes = blob->tensor.size_bytes;
    const uint8_t *data = atsi_plan_file_stored(l->model->file, blob);
    bool stays = blob->encoding == ATSI_PLAN_RAW && (!l->device || mapped_address(l, data));
    l->w->host_bytes += bytes;
    if (!stays) {
        ATSI_TRY(alloc_host_tensor(l, i, bytes, err));
        ATSI_TRY(advance(l, bytes, err));
        return atsi_plan_file_read_by(l->model->file, blob, 0, l->w->unpacked[i], err);
    }
    l->w->host[i] = data;
    l->w->mapped[i] = l->device ? mapped_address(l, data) : NULL;
    for (uint64_t done = 0; done < bytes;) {
        uint64_t piece = bytes - done < FAULT_PIECE_BYTES ? bytes - done : FAULT_PIECE_BYTES;
        fault_in(data + done, piece);
        done += piece;
        ATSI_TRY(advance(l, piece, err));
    }
    return ATSI_OK;
}

// ---- device side --------------------------------------------------------------------------------------------------

static enum atsi_status open_staging(struct loader *l, struct atsi_error *err) {
    const struct atsi_device_ops *ops = l->device->ops;
    ATSI_TRY(ops->stream_create(l->device, &l->stream, err));
    for (int i = 0; i < STAGING_COUNT; i++) {
        void *dev;
        ATSI_TRY(ops->host_alloc(l->device, STAGING_BYTES, &l->staging[i].host, &dev, err));
        ATSI_TRY(ops->event_create(l->device, false, &l->staging[i].free, err));
    }
    return ATSI_OK;
}

static void close_staging(struct loader *l) {
    if (l->stream) l->device->ops->stream_sync(l->stream, NULL);
    for (int i = 0; i < STAGING_COUNT; i++) {
        if (l->staging[i].free) l->device->ops->event_destroy(l->staging[i].free);
        if (l->staging[i].host) l->device->ops->host_free(l->device, l->staging[i].host);
    }
    if (l->stream) l->device->ops->stream_destroy(l->stream);
}

// Reading the next piece into one buffer overlaps the copy out of the other.
static enum atsi_status upload(struct loader *l, char *dst, const uint8_t *data, uint64_t bytes,
                               struct atsi_error *err) {
    const struct atsi_device_ops *ops = l->device->ops;
    if (mapped_address(l, data)) { // pinned already: no staging
        ATSI_TRY(advance(l, bytes, err));
        return ops->copy_to_device(l->stream, dst, data, bytes, err);
    }
    for (uint64_t done = 0; done < bytes;) {
        int s = l->i_staging++ % STAGING_COUNT;
        uint64_t piece = bytes - done < STAGING_BYTES ? bytes - done : STAGING_BYTES;
        ATSI_TRY(ops->event_sync(l->staging[s].free, err));
        memcpy(l->staging[s].host, data + done, piece);
        ATSI_TRY(ops->copy_to_device(l->stream, dst + done, l->staging[s].host, piece, err));
        ATSI_TRY(ops->event_record(l->staging[s].free, l->stream, err));
        done += piece;
        ATSI_TRY(advance(l, piece, err));
    }
    return ATSI_OK;
}

static enum atsi_status load_device_tensor(struct loader *l, uint32_t i, const struct atsi_plan_blob *blob,
                                           struct atsi_error *err) {
    char *dst = (char *)l->w->device[i];
    if (blob->encoding == ATSI_PLAN_RAW)
        return upload(l, dst, atsi_plan_file_stored(l->model->file, blob), blob->tensor.size_bytes, err);
    void *unpacked = malloc(blob->tensor.size_bytes);
    if (!unpacked) return atsi_fail(err, ATSI_FAILED, "no memory for tensor %s", blob->tensor.name);
    enum atsi_status status = atsi_plan_file_read_by(l->model->file, blob, 0, unpacked, err);
    if (status == ATSI_OK) status = upload(l, dst, unpacked, blob->tensor.size_bytes, err);
    free(unpacked);
    return status;
}

static enum atsi_status place_resident(struct loader *l, struct atsi_error *err) {
    const struct atsi_program *p = &l->model->plan.program;
    for (uint32_t i = 0; i < p->n_tensors; i++)
        if (l->used[i][ATSI_GPU]) l->w->resident_bytes += (p->tensors[i].size_bytes + 255) & ~(uint64_t)255;
    if (!l->w->resident_bytes) return ATSI_OK;
    ATSI_TRY(l->device->ops->alloc(l->device, l->w->resident_bytes, &l->w->resident, err));
    char *at = l->w->resident;
    for (uint32_t i = 0; i < p->n_tensors; i++) {
        if (!l->used[i][ATSI_GPU]) continue;
        l->w->device[i] = at;
        at += (p->tensors[i].size_bytes + 255) & ~(uint64_t)255;
    }
    return open_staging(l, err);
}

// ---- all of it ----------------------------------------------------------------------------------------------------

static enum atsi_status load_all(struct loader *l, struct atsi_error *err) {
    const struct atsi_program *p = &l->model->plan.program;
    find_users(l);
    if (l->device) register_sections(l, l->sections, l->mapped, l->section_bytes);
    if (l->device) ATSI_TRY(place_resident(l, err));
    for (uint32_t i = 0; i < p->n_tensors; i++) {
        const struct atsi_plan_blob *blob = atsi_plan_file_find(l->model->file, p->tensors[i].name);
        if (l->used[i][ATSI_CPU]) ATSI_TRY(load_host_tensor(l, i, blob, err));
        if (l->used[i][ATSI_GPU]) ATSI_TRY(load_device_tensor(l, i, blob, err));
    }
    l->w->pinned = l->device != NULL;
    for (uint32_t i = 0; i < p->n_tensors; i++)
        if (l->used[i][ATSI_CPU] && !l->w->mapped[i] && !atsi_tensor_is_small(&p->tensors[i])) l->w->pinned = false;
    return l->device && l->stream ? l->device->ops->stream_sync(l->stream, err) : ATSI_OK;
}

enum atsi_status atsi_weights_load(struct atsi_weights *w, const struct atsi_model *model,
                                   const enum atsi_backend *backends, struct atsi_device *device,
                                   atsi_load_progress *progress, void *context, struct atsi_error *err) {
    uint32_t n = model->plan.program.n_tensors ? model->plan.program.n_tensors : 1;
    memset(w, 0, sizeof *w);
    if (!atsi_plan_file_has_weights(model->file))
        return atsi_fail(err, ATSI_BAD_INPUT, "%s holds no weights: complete it with atsi-plan --attach MODEL.gguf",
                         atsi_plan_file_path(model->file));
    w->owner = device;
    w->n_tensors = model->plan.program.n_tensors;
    w->host = calloc(n, sizeof *w->host);
    w->device = calloc(n, sizeof *w->device);
    w->mapped = calloc(n, sizeof *w->mapped);
    w->unpacked = calloc(n, sizeof *w->unpacked);
    struct loader l = {
        .w = w, .model = model, .backends = backends, .device = device, .progress = progress, .context = context};
    l.used = calloc(n, sizeof *l.used);
    enum atsi_status status = w->host && w->device && w->mapped && w->unpacked && l.used
                                  ? load_all(&l, err)
                                  : atsi_fail(err, ATSI_FAILED, "out of memory while loading");
    if (device) close_staging(&l);
    free(l.used);
    return status;
}

static void free_host_tensor(struct atsi_weights *w, uint32_t i) {
    if (!w->unpacked[i]) return;
    if (w->mapped[i])
        w->owner->ops->host_free(w->owner, w->unpacked[i]);
    else
        free(w->unpacked[i]);
}

void atsi_weights_free(struct atsi_weights *w) {
    if (w->resident) w->owner->ops->free(w->owner, w->resident);
    for (uint32_t i = 0; w->unpacked && i < w->n_tensors; i++) free_host_tensor(w, i);
    for (int i = 0; i < 2; i++)
        if (w->registered[i]) w->owner->ops->host_unregister(w->owner, w->registered[i]);
    free(w->unpacked);
    free(w->host);
    free(w->device);
    free(w->mapped);
    memset(w, 0, sizeof *w);
}
