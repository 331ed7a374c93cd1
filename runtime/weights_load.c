// weights_load.c: bringing a plan's tensors to where they belong, before the first round.
//
// What goes to the GPU is read from the file by all threads into pinned buffers, never through the mapping: pages that are mapped for a
// single look, or pinned for a single copy, cost several times the copy itself. What stays is mapped by all threads first, and then
// pinned, because pinning alone would map it page by page in one thread. Both are lists of pieces (weights_pieces.h).
#include <stdlib.h>
#include <string.h>

#include "formats/base/clock.h"
#include "runtime/weights_internal.h"
#include "runtime/weights_pieces.h"

struct loader {
    struct atsi_weights *w;
    const struct atsi_weights_params *params;
    const struct atsi_program *p;
    const struct atsi_plan_file *file;
    struct atsi_pool *pool; // reads, maps and unpacks
    struct weights_pieces pieces;
    uint64_t done_bytes, total_bytes;
    uint64_t block_bytes, block_used; // of the pinned block
    void *held;                       // device memory for what comes after the weights
    void *held_pinned;                // the same of pinned memory
};

static enum atsi_status advance(void *context, uint64_t bytes, struct atsi_error *err) {
    struct loader *l = context;
    l->done_bytes += bytes;
    bool goes_on = !l->params->progress || l->params->progress(l->params->context, l->done_bytes, l->total_bytes);
    return goes_on ? ATSI_OK : atsi_fail(err, ATSI_INTERRUPTED, "interrupted");
}

static const struct atsi_plan_blob *blob_of(const struct loader *l, uint32_t t) {
    return atsi_plan_file_find(l->file, l->p->tensors[t].name);
}

static enum atsi_status bring_pieces(struct loader *l, struct atsi_error *err) {
    struct weights_pieces_run run = {.pool = l->pool, .upload = &l->w->upload, .advance = advance, .context = l};
    return weights_pieces_bring(&l->pieces, &run, err);
}

// ---- room on the card ---------------------------------------------------------------------------------------------

static enum atsi_status no_room(const struct loader *l, uint64_t bytes, struct atsi_error *err) {
    uint64_t mib = 1 << 20, free_bytes = 0;
    if (l->w->owner->ops->free_bytes(l->w->owner, &free_bytes, err) != ATSI_OK) return err->status;
    return atsi_fail(err, ATSI_FAILED,
                     "the card has %llu MiB free, and %llu MiB have to be there for buffers, caches and small tensors: "
                     "end what else uses it, plan with a smaller --vram, or use --device cpu",
                     (unsigned long long)(free_bytes / mib), (unsigned long long)((bytes + mib - 1) / mib));
}

// Backs the range for as many items as there is room for beside the reserve; whatever happens what always stays.
static enum atsi_status back_range(struct loader *l, struct atsi_error *err) {
    struct atsi_weights *w = l->w;
    const struct atsi_device_ops *ops = w->owner->ops;
    uint64_t free_bytes, reserve = l->params->reserve_bytes;
    ATSI_TRY(ops->free_bytes(w->owner, &free_bytes, err));
    uint32_t n = atsi_resident_fit(&w->resident, free_bytes > reserve ? free_bytes - reserve : 0);
    for (;;) {
        enum atsi_status status = ops->range_back(w->owner, w->range, w->resident.end_bytes[n], err);
        if (status == ATSI_OK) break;
        if (n == 0) return no_room(l, l->params->beside_bytes + w->resident.end_bytes[0], err);
        // Somebody else was faster. A range without chunks is all or nothing, so the next try is for less.
        uint64_t less = w->range->chunk_bytes ? w->range->backed_bytes : w->resident.end_bytes[n] / 8 * 7;
        uint32_t fits = atsi_resident_fit(&w->resident, less);
        n = fits < n ? fits : n - 1;
    }
    weights_set_homes(w, n);
    w->filled_bytes = w->resident.end_bytes[n];
    if (n == w->resident.n_items || !l->params->strict) return ATSI_OK;
    char text[2 * ATSI_TEXT_CAP];
    atsi_weights_describe_cut(w, text, sizeof text);
    return atsi_fail(err, ATSI_FAILED, "--strict: %s", text);
}

// What the run takes later is held until everything is loaded, so that neither the range nor another program takes its room.
static enum atsi_status take_room(struct loader *l, struct atsi_error *err) {
    struct atsi_weights *w = l->w;
    const struct atsi_device_ops *ops = w->owner->ops;
    ATSI_TRY(atsi_resident_arrange(&w->resident, &l->params->model->plan, w->homes, &w->experts, err));
    ATSI_TRY(ops->range_create(w->owner, w->resident.end_bytes[w->resident.n_items], &w->range, err));
    if (l->params->beside_bytes && ops->alloc(w->owner, l->params->beside_bytes, &l->held, err) != ATSI_OK)
        return no_room(l, l->params->beside_bytes + w->resident.end_bytes[0], err);
    return back_range(l, err);
}

// ---- pinned memory ------------------------------------------------------------------------------------------------

enum {
    N_TRIES = 4,    // a driver that refuses all may allow half
    N_MEASURED = 4, // tensors, as samples of the ring's rate
    PAGE_BYTES = 2 << 20
};

static bool timed_register(struct loader *l, const uint8_t *data, uint64_t bytes) {
    double started_us = atsi_clock_us();
    bool done = atsi_pinned_register(&l->w->pinned_memory, data, bytes);
    l->w->times.pin_us += atsi_clock_us() - started_us;
    return done;
}

// A unit that the plan has on the GPU and that did not fit.
static bool has_unit_left(const struct atsi_weights *w) {
    for (uint32_t k = w->n_resident; k < w->resident.n_items; k++)
        if (!w->resident.items[k].experts) return true;
    return false;
}

static void register_host_part(struct loader *l) {
    uint64_t bytes;
    const uint8_t *data = atsi_plan_file_section(l->file, ATSI_PLAN_PINNED, &bytes);
    for (int i = 0; i < N_TRIES && !timed_register(l, data, bytes); i++) bytes = bytes / 2 / PAGE_BYTES * PAGE_BYTES;
    if (!has_unit_left(l->w)) return;
    double started_us = atsi_clock_us();
    weights_pin_resident(l->w, l->pool);
    l->w->times.pin_us += atsi_clock_us() - started_us;
}

// A tensor that the host reads, is stored as it is, and lies in no pinned memory.
static bool wants_copy(const struct loader *l, uint32_t t) {
    const struct atsi_plan_blob *blob = blob_of(l, t);
    return l->w->host_reads[t] && blob->encoding == ATSI_PLAN_RAW && !atsi_tensor_is_small(&l->p->tensors[t]) &&
           !atsi_pinned_address(&l->w->pinned_memory, atsi_plan_file_stored(l->file, blob), blob->tensor.size_bytes);
}

static bool allocate_block(struct loader *l, uint64_t bytes) {
    if (!atsi_pinned_allocate(&l->w->pinned_memory, bytes)) return false;
    l->block_bytes = bytes;
    return true;
}

// All of it, else a ring, through which anything travels in prefill, and then as much as can still be had: what is pinned travels at the
// link's rate and is read in place.
static void pin_bytes(struct loader *l, uint64_t bytes) {
    if (allocate_block(l, bytes)) return;
    l->w->ring = atsi_pinned_ring_open(l->w->owner, bytes);
    for (int i = 1; i < N_TRIES && !allocate_block(l, bytes >> i); i++) {}
}

// What the run pins later is held until the host's part is loaded: it does not start without.
static bool hold_pinned(struct loader *l) {
    const struct atsi_device *d = l->w->owner;
    void *dev;
    if (!l->params->beside_host_bytes) return true;
    return d->ops->host_alloc(l->w->owner, l->params->beside_host_bytes, &l->held_pinned, &dev, NULL) == ATSI_OK;
}

static void pin_what_is_not(struct loader *l) {
    uint64_t bytes = 0;
    for (uint32_t t = 0; t < l->p->n_tensors; t++)
        if (wants_copy(l, t)) bytes += atsi_aligned(l->p->tensors[t].size_bytes);
    if (hold_pinned(l) && bytes > 0) pin_bytes(l, bytes);
}

// With tensors of which nothing is in the processor's caches yet.
static void measure_ring(struct loader *l) {
    uint32_t n = 0;
    for (uint32_t t = 0; t < l->p->n_tensors && l->w->ring && n < N_MEASURED; t++) {
        if (!l->w->host[t] || l->w->mapped[t] || atsi_tensor_is_small(&l->p->tensors[t])) continue;
        atsi_pinned_ring_measure(l->w->ring, l->w->host[t], l->p->tensors[t].size_bytes);
        n++;
    }
}

static void name_host_memory(struct atsi_weights *w) {
    const struct atsi_program *p = &w->model->plan.program;
    uint32_t n_big = 0, n_pinned = 0;
    for (uint32_t t = 0; t < p->n_tensors; t++) {
        if (!w->host_reads[t] || atsi_tensor_is_small(&p->tensors[t])) continue;
        n_big++;
        n_pinned += w->mapped[t] != NULL;
    }
    w->host_memory = n_pinned == 0 && n_big > 0 ? ATSI_HOST_PLAIN
                     : n_pinned < n_big         ? ATSI_HOST_PARTLY
                     : w->pinned_memory.block   ? ATSI_HOST_COPIED
                                                : ATSI_HOST_REGISTERED;
}

// ---- host side ----------------------------------------------------------------------------------------------------

static void copy_to_block(struct loader *l, uint32_t t, const struct atsi_plan_blob *blob) {
    struct atsi_weights *w = l->w;
    uint64_t bytes = blob->tensor.size_bytes;
    uint8_t *at = w->pinned_memory.block + l->block_used;
    l->block_used += atsi_aligned(bytes);
    w->host[t] = at;
    w->mapped[t] = atsi_pinned_address(&w->pinned_memory, at, bytes);
    w->unpacked_bytes += bytes;
    atsi_bulk_read(l->pool, l->file, at, atsi_plan_file_stored(l->file, blob), bytes);
}

static enum atsi_status load_host_tensor(struct loader *l, uint32_t t, struct atsi_error *err) {
    struct atsi_weights *w = l->w;
    const struct atsi_plan_blob *blob = blob_of(l, t);
    uint64_t bytes = blob->tensor.size_bytes;
    if (wants_copy(l, t) && atsi_aligned(bytes) <= l->block_bytes - l->block_used) {
        copy_to_block(l, t, blob);
        return ATSI_OK;
    }
    if (weights_use_mapping(w, t)) return ATSI_OK;
    ATSI_TRY(weights_alloc_host(w, t, err));
    ATSI_TRY(atsi_plan_file_read(l->file, blob, (uint32_t)atsi_pool_n_threads(l->pool), w->unpacked[t], err));
    return advance(l, bytes, err);
}

static enum atsi_status map_host_part(struct loader *l, struct atsi_error *err) {
    double started_us = atsi_clock_us();
    for (uint32_t t = 0; t < l->p->n_tensors; t++)
        if (l->w->host_reads[t]) ATSI_TRY(weights_pieces_add(&l->pieces, blob_of(l, t), NULL, err));
    ATSI_TRY(bring_pieces(l, err));
    l->w->times.map_us = atsi_clock_us() - started_us;
    return ATSI_OK;
}

static enum atsi_status load_host_part(struct loader *l, struct atsi_error *err) {
    enum atsi_status status = map_host_part(l, err);
    if (status == ATSI_OK && l->w->owner) {
        register_host_part(l);
        pin_what_is_not(l);
    }
    for (uint32_t t = 0; status == ATSI_OK && t < l->p->n_tensors; t++)
        if (l->w->host_reads[t]) status = load_host_tensor(l, t, err);
    if (l->w->owner && l->held_pinned) l->w->owner->ops->host_free(l->w->owner, l->held_pinned);
    l->held_pinned = NULL;
    if (status == ATSI_OK) measure_ring(l);
    return status;
}

// ---- device side --------------------------------------------------------------------------------------------------

static enum atsi_status add_experts(struct loader *l, const struct atsi_router_experts *r, uint32_t unit,
                                    struct atsi_error *err) {
    uint64_t bytes = atsi_expert_bytes(l->p, unit);
    const struct atsi_plan_blob *blob = blob_of(l, (uint32_t)atsi_unit_experts_op(l->p, &l->p->units[unit])->tensor[0]);
    char *dev = (char *)l->w->range->dev + l->w->resident.blocks[unit];
    for (uint32_t i = 0; i < r->n; i++)
        ATSI_TRY(weights_pieces_add_part(&l->pieces, blob, r->ids[i] * bytes, bytes, dev + i * bytes, err));
    return ATSI_OK;
}

// Tables of places always stay, whether the experts have room or not.
static enum atsi_status add_router(struct loader *l, const struct atsi_router_experts *r, struct atsi_error *err) {
    char *table = (char *)l->w->range->dev + l->w->resident.tables[r->unit];
    ATSI_TRY(atsi_upload_add(&l->w->upload, 0, table, r->slots, r->n_experts * sizeof *r->slots, err));
    for (uint32_t u = 0; r->are_there && u < l->p->n_units; u++)
        if (atsi_router_experts_has(&l->params->model->plan, r, u)) ATSI_TRY(add_experts(l, r, u, err));
    return ATSI_OK;
}

static enum atsi_status load_resident_part(struct loader *l, struct atsi_error *err) {
    struct atsi_weights *w = l->w;
    double started_us = atsi_clock_us();
    ATSI_TRY(atsi_upload_open(&w->upload, w->owner, &w->pinned_memory, l->file, (uint32_t)atsi_pool_n_threads(l->pool),
                              err));
    for (uint32_t t = 0; t < l->p->n_tensors; t++)
        if (w->device[t]) ATSI_TRY(weights_pieces_add(&l->pieces, blob_of(l, t), (void *)(uintptr_t)w->device[t], err));
    for (uint32_t i = 0; i < w->experts.n_routers; i++) ATSI_TRY(add_router(l, &w->experts.routers[i], err));
    ATSI_TRY(bring_pieces(l, err));
    w->times.upload = atsi_upload_times(&w->upload);
    ATSI_TRY(atsi_upload_rest(&w->upload, err));
    w->times.upload_us = atsi_clock_us() - started_us;
    return ATSI_OK;
}

// ---- all of it ----------------------------------------------------------------------------------------------------

static uint64_t bytes_there(const struct loader *l, const struct atsi_router_experts *r) {
    uint64_t bytes = 0;
    for (uint32_t u = 0; r->are_there && u < l->p->n_units; u++)
        if (atsi_router_experts_has(&l->params->model->plan, r, u))
            bytes += atsi_router_experts_block_bytes(&l->params->model->plan, r, u);
    return bytes;
}

static void count_bytes(struct loader *l) {
    for (uint32_t t = 0; t < l->p->n_tensors; t++) {
        if (l->w->host_reads[t]) l->total_bytes += l->p->tensors[t].size_bytes;
        if (l->w->device[t]) l->total_bytes += l->p->tensors[t].size_bytes;
    }
    for (uint32_t i = 0; i < l->w->experts.n_routers; i++) l->total_bytes += bytes_there(l, &l->w->experts.routers[i]);
}

static enum atsi_status load_all(struct loader *l, struct atsi_error *err) {
    struct atsi_weights *w = l->w;
    double started_us = atsi_clock_us();
    if (w->owner)
        ATSI_TRY(take_room(l, err));
    else
        weights_set_homes(w, 0);
    w->times.room_us = atsi_clock_us() - started_us;
    count_bytes(l);
    if (w->owner) ATSI_TRY(load_resident_part(l, err));
    ATSI_TRY(load_host_part(l, err));
    weights_update(w);
    name_host_memory(w);
    return ATSI_OK;
}

static bool create_tables(struct atsi_weights *w, uint32_t n_tensors, uint32_t n_units) {
    w->host = calloc(n_tensors + 1, sizeof *w->host);
    w->device = calloc(n_tensors + 1, sizeof *w->device);
    w->mapped = calloc(n_tensors + 1, sizeof *w->mapped);
    w->unpacked = calloc(n_tensors + 1, sizeof *w->unpacked);
    w->unpacked_is_pinned = calloc(n_tensors + 1, sizeof *w->unpacked_is_pinned);
    w->host_reads = calloc(n_tensors + 1, sizeof *w->host_reads);
    w->homes = calloc(n_units + 1, sizeof *w->homes);
    w->travel = calloc(n_units + 1, sizeof *w->travel);
    return w->host && w->device && w->mapped && w->unpacked && w->unpacked_is_pinned && w->host_reads && w->homes &&
           w->travel;
}

enum atsi_status atsi_weights_load(struct atsi_weights *w, const struct atsi_weights_params *params,
                                   struct atsi_error *err) {
    enum {
        MOST_THREADS = 16
    }; // more do not read faster
    const struct atsi_program *p = &params->model->plan.program;
    double started_us = atsi_clock_us();
    struct loader l = {
        .w = w, .params = params, .p = p, .file = params->model->file, .pieces.file = params->model->file};
    *w = (struct atsi_weights){.owner = params->device, .model = params->model, .n_tensors = p->n_tensors};
    if (!atsi_plan_file_has_weights(l.file))
        return atsi_fail(err, ATSI_BAD_INPUT, "%s holds no weights: complete it with atsi-plan --attach MODEL.gguf",
                         atsi_plan_file_path(l.file));
    if (!create_tables(w, p->n_tensors, p->n_units)) return atsi_fail(err, ATSI_FAILED, "out of memory while loading");
    w->pinned_memory.device = w->owner;
    for (uint32_t u = 0; u < p->n_units; u++) w->homes[u] = w->owner ? p->units[u].backend : ATSI_CPU;
    ATSI_TRY(atsi_experts_open(&w->experts, params->model, w->owner, err));
    int n_threads = atsi_pool_default_threads();
    ATSI_TRY(atsi_pool_create_unbound(n_threads < MOST_THREADS ? n_threads : MOST_THREADS, &l.pool, err));
    w->times.n_threads = (uint32_t)atsi_pool_n_threads(l.pool);
    enum atsi_status status = load_all(&l, err);
    if (l.held) w->owner->ops->free(w->owner, l.held);
    weights_pieces_free(&l.pieces);
    atsi_pool_free(l.pool);
    w->times.all_us = atsi_clock_us() - started_us;
    return status;
}
