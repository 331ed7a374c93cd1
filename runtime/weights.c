#include "runtime/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/clock.h"
#include "runtime/weights_internal.h"

static const struct atsi_program *program_of(const struct atsi_weights *w) { return &w->model->plan.program; }

// ---- host memory --------------------------------------------------------------------------------------------------

enum atsi_status weights_alloc_host(struct atsi_weights *w, uint32_t t, struct atsi_error *err) {
    uint64_t bytes = program_of(w)->tensors[t].size_bytes;
    void *dev;
    if (w->owner && w->owner->ops->host_alloc(w->owner, bytes, &w->unpacked[t], &dev, NULL) == ATSI_OK) {
        w->mapped[t] = dev;
        w->unpacked_is_pinned[t] = true;
    } else if (posix_memalign(&w->unpacked[t], 64, bytes)) {
        w->unpacked[t] = NULL;
        return atsi_fail(err, ATSI_FAILED, "no memory for %llu bytes of weights", (unsigned long long)bytes);
    }
    w->host[t] = w->unpacked[t];
    w->unpacked_bytes += bytes;
    return ATSI_OK;
}

bool weights_use_mapping(struct atsi_weights *w, uint32_t t) {
    const struct atsi_tensor *tensor = &program_of(w)->tensors[t];
    const struct atsi_plan_blob *blob = atsi_plan_file_find(w->model->file, tensor->name);
    if (blob->encoding != ATSI_PLAN_RAW) return false;
    w->host[t] = atsi_plan_file_stored(w->model->file, blob);
    w->mapped[t] = atsi_pinned_address(&w->pinned_memory, w->host[t], tensor->size_bytes);
    return true;
}

static void free_unpacked(struct atsi_weights *w, uint32_t t) {
    if (w->unpacked_is_pinned[t])
        w->owner->ops->host_free(w->owner, w->unpacked[t]);
    else
        free(w->unpacked[t]);
}

void atsi_weights_free(struct atsi_weights *w) {
    atsi_upload_close(&w->upload);
    if (w->range) w->owner->ops->range_destroy(w->owner, w->range);
    for (uint32_t t = 0; w->unpacked && w->unpacked_is_pinned && t < w->n_tensors; t++) free_unpacked(w, t);
    atsi_pinned_free(&w->pinned_memory);
    atsi_pinned_ring_free(w->ring);
    atsi_resident_free(&w->resident);
    atsi_experts_free(&w->experts);
    free(w->unpacked);
    free(w->unpacked_is_pinned);
    free(w->host);
    free(w->device);
    free(w->mapped);
    free(w->homes);
    free(w->host_reads);
    free(w->travel);
    memset(w, 0, sizeof *w);
}

// ---- telling ------------------------------------------------------------------------------------------------------

void atsi_weights_describe_cut(const struct atsi_weights *w, char *text, size_t cap) {
    const struct atsi_resident *r = &w->resident;
    uint64_t mib = 1 << 20, missing = w->owner ? r->end_bytes[r->n_items] - r->end_bytes[w->n_resident] : 0;
    uint64_t vram = w->model->plan.limits.vram_bytes;
    text[0] = 0;
    if (missing == 0) return;
    snprintf(text, cap,
             "the card has %llu MiB less free than the plan needs: %u of its %u resident units stay on the CPU; "
             "atsi-plan MODEL.gguf --vram %lluM plans for that",
             (unsigned long long)((missing + mib - 1) / mib), r->n_items - w->n_resident, r->n_items,
             (unsigned long long)((vram > missing ? vram - missing : 0) / mib));
}

// A round in which every unit runs where it lives: what is left when nothing can travel.
static double still_round_us(const struct atsi_weights *w, const struct atsi_unit_times *times) {
    double us = 0;
    for (uint32_t u = 0; times && u < program_of(w)->n_units; u++) {
        us += w->homes[u] == ATSI_GPU ? times[u].gpu_us : times[u].cpu_us;
        if (u > 0 && w->homes[u] != w->homes[u - 1]) us += times[u].switch_us;
    }
    return us;
}

// What that costs at most, by the plan; nothing when the plan has no times. A round whose transfers alone take longer takes no more than
// as many times as long.
static void describe_cost(const struct atsi_weights *w, char *text, size_t cap) {
    const struct atsi_plan *plan = &w->model->plan;
    double token_us = still_round_us(w, plan->decode_times), chunk_us = still_round_us(w, plan->prefill_times);
    double staged_us = plan->predicted_prefill_us * atsi_pinned_ring_slowdown(w->ring, plan);
    if (w->ring && staged_us < chunk_us) chunk_us = staged_us;
    text[0] = 0;
    if (token_us <= plan->predicted_decode_us || plan->predicted_decode_us <= 0 || plan->predicted_prefill_us <= 0)
        return;
    snprintf(text, cap, "; a token may take %.1f ms instead of %.1f, %u tokens of a prompt %.1f instead of %.1f",
             token_us * 1e-3, plan->predicted_decode_us * 1e-3, plan->limits.chunk, chunk_us * 1e-3,
             plan->predicted_prefill_us * 1e-3);
}

static void describe_others(const struct atsi_weights *w, char *text, size_t cap) {
    if (!w->ring) {
        snprintf(text, cap, "the GPU cannot help with the others");
        return;
    }
    struct atsi_pinned_ring_figures f = atsi_pinned_ring_figures(w->ring);
    snprintf(
        text, cap,
        "of a prompt the others travel through a pinned ring of %.1f MiB, %.1f GB/s by %u threads, x%.1f the planned "
        "time; of single tokens the GPU cannot help with them",
        (double)f.ring_bytes / 0x1p20, f.bytes_per_us * 1e-3, f.n_threads,
        atsi_pinned_ring_slowdown(w->ring, &w->model->plan));
}

void atsi_weights_describe_pinning(const struct atsi_weights *w, char *text, size_t cap) {
    double all = (double)w->host_bytes / 0x1p20, pinned = (double)w->pinned_bytes / 0x1p20;
    char cost[ATSI_TEXT_CAP], others[ATSI_TEXT_CAP];
    text[0] = 0;
    if (!w->owner || w->host_memory == ATSI_HOST_REGISTERED) return;
    describe_cost(w, cost, sizeof cost);
    describe_others(w, others, sizeof others);
    if (w->host_memory == ATSI_HOST_COPIED)
        snprintf(text, cap, "the driver does not pin the plan file: %.1f MiB of it were copied to pinned memory",
                 (double)w->unpacked_bytes / 0x1p20);
    else
        snprintf(text, cap, "%.1f of %.1f MiB of the weights on the CPU are pinned: %s%s", pinned, all, others, cost);
}

// ---- who is where -------------------------------------------------------------------------------------------------

// Every big tensor of the unit can be read by the device where it is.
static bool is_reachable(const struct atsi_weights *w, const struct atsi_unit *u) {
    uint32_t cursor = 0, t;
    while (atsi_unit_next_big_tensor(program_of(w), u, &cursor, &t))
        if (!w->mapped[t] && !w->device[t]) return false;
    return true;
}

static enum atsi_travel travel_of(const struct atsi_weights *w, const struct atsi_unit *u) {
    if (!w->owner) return ATSI_TRAVELS_NOT;
    if (is_reachable(w, u)) return ATSI_TRAVELS_PINNED;
    return w->ring ? ATSI_TRAVELS_STAGED : ATSI_TRAVELS_NOT;
}

static void find_host_readers(struct atsi_weights *w) {
    const struct atsi_program *p = program_of(w);
    for (uint32_t t = 0; t < p->n_tensors; t++) w->host_reads[t] = atsi_tensor_is_small(&p->tensors[t]);
    for (uint32_t u = 0; u < p->n_units; u++) {
        uint32_t cursor = 0, t;
        while (w->homes[u] == ATSI_CPU && atsi_unit_next_big_tensor(p, &p->units[u], &cursor, &t))
            w->host_reads[t] = true;
    }
}

void weights_set_homes(struct atsi_weights *w, uint32_t n_resident) {
    const struct atsi_resident *r = &w->resident;
    w->n_resident = n_resident;
    for (uint32_t k = 0; k < r->n_items; k++)
        if (!r->items[k].experts) w->homes[r->items[k].unit] = k < n_resident ? ATSI_GPU : ATSI_CPU;
    for (uint32_t i = 0; i < r->n_tensors; i++) {
        uint64_t offset = r->offsets[r->tensors[i]];
        bool resident = offset < r->end_bytes[n_resident];
        w->device[r->tensors[i]] = resident ? (const char *)w->range->dev + offset : NULL;
    }
    w->resident_bytes = w->owner ? r->end_bytes[n_resident] : 0;
    if (w->owner) atsi_experts_place(&w->experts, &w->model->plan, r, w->range->dev, n_resident);
    find_host_readers(w);
}

void weights_update(struct atsi_weights *w) {
    const struct atsi_program *p = program_of(w);
    w->host_bytes = w->pinned_bytes = 0;
    for (uint32_t t = 0; t < p->n_tensors; t++) {
        if (w->host_reads[t]) w->host_bytes += p->tensors[t].size_bytes;
        if (w->host_reads[t] && w->mapped[t]) w->pinned_bytes += p->tensors[t].size_bytes;
    }
    for (uint32_t u = 0; u < p->n_units; u++) w->travel[u] = travel_of(w, &p->units[u]);
}

// ---- leaving ------------------------------------------------------------------------------------------------------

// The plan file holds most tensors as they are; one that it holds compressed is copied back once. *kept is false when the host has no
// memory for that.
static enum atsi_status keep_on_host(struct atsi_weights *w, uint32_t t, bool *kept, struct atsi_error *err) {
    *kept = true;
    if (w->host[t] || weights_use_mapping(w, t)) return ATSI_OK;
    *kept = weights_alloc_host(w, t, NULL) == ATSI_OK;
    if (!*kept) return ATSI_OK;
    return w->owner->ops->copy_to_host(w->upload.stream, w->unpacked[t], w->device[t],
                                       program_of(w)->tensors[t].size_bytes, err);
}

static enum atsi_status keep_unit_on_host(struct atsi_weights *w, uint32_t unit, bool *kept, struct atsi_error *err) {
    uint32_t cursor = 0, t;
    *kept = true;
    while (*kept && atsi_unit_next_big_tensor(program_of(w), &program_of(w)->units[unit], &cursor, &t))
        ATSI_TRY(keep_on_host(w, t, kept, err));
    return ATSI_OK;
}

// Of single experts the host has the whole all the time.
static enum atsi_status keep_item_on_host(struct atsi_weights *w, const struct atsi_resident_item *item, bool *kept,
                                          struct atsi_error *err) {
    *kept = true;
    return item->experts ? ATSI_OK : keep_unit_on_host(w, item->unit, kept, err);
}

// Pages of the plan file that nobody has pinned, so that the next round does not fetch them one by one.
static void read_unit(const struct atsi_weights *w, uint32_t unit) {
    uint32_t cursor = 0, t;
    while (atsi_unit_next_big_tensor(program_of(w), &program_of(w)->units[unit], &cursor, &t))
        if (!w->mapped[t] && !w->unpacked[t])
            atsi_bulk_read(NULL, NULL, NULL, w->host[t], program_of(w)->tensors[t].size_bytes);
}

void weights_pin_resident(struct atsi_weights *w, struct atsi_pool *pool) {
    struct atsi_pool *own = NULL;
    uint64_t bytes;
    const uint8_t *data = atsi_plan_file_section(w->model->file, ATSI_PLAN_RESIDENT, &bytes);
    if (w->tried_to_pin_resident) return;
    w->tried_to_pin_resident = true;
    if (!pool && atsi_pool_create_unbound(atsi_pool_default_threads(), &own, NULL) == ATSI_OK) pool = own;
    atsi_bulk_read(pool, NULL, NULL, data, bytes);
    atsi_pinned_register(&w->pinned_memory, data, bytes);
    atsi_pool_free(own);
}

// Units that have left: their tensors' addresses for the device, which still reads them there.
static void pin_unit(struct atsi_weights *w, uint32_t unit) {
    uint32_t cursor = 0, t;
    while (atsi_unit_next_big_tensor(program_of(w), &program_of(w)->units[unit], &cursor, &t))
        if (!w->unpacked[t] && !w->mapped[t]) weights_use_mapping(w, t);
}

// A unit that has left: from now on both sides read its tensors on the host.
static void reach_unit(struct atsi_weights *w, uint32_t unit) {
    weights_pin_resident(w, NULL);
    pin_unit(w, unit);
    read_unit(w, unit);
}

enum atsi_status atsi_weights_release(struct atsi_weights *w, uint32_t n_keep, struct atsi_error *err) {
    uint32_t before = w->n_resident, n = before;
    for (bool kept = true; kept && n > n_keep;) {
        ATSI_TRY(keep_item_on_host(w, &w->resident.items[n - 1], &kept, err));
        n -= kept;
    }
    ATSI_TRY(atsi_upload_finish(&w->upload, err));
    if (n < before) weights_set_homes(w, n);
    w->filled_bytes = w->resident.end_bytes[n];
    ATSI_TRY(w->owner->ops->range_back(w->owner, w->range, w->filled_bytes, err)); // others wait for it
    for (uint32_t k = n; k < before; k++)
        if (!w->resident.items[k].experts) reach_unit(w, w->resident.items[k].unit);
    weights_update(w);
    return ATSI_OK;
}

// ---- coming back --------------------------------------------------------------------------------------------------

// What of the range is to be filled.
struct gap {
    uint64_t begin, end;
};

// Queues the copy of what of `bytes` at `host` has its place, from `offset` of the range on, in the gap.
static enum atsi_status fill_part(struct atsi_weights *w, const struct gap *gap, uint64_t offset, const char *host,
                                  uint64_t bytes, struct atsi_error *err) {
    uint64_t from = offset > gap->begin ? offset : gap->begin, end = offset + bytes,
             to = end < gap->end ? end : gap->end;
    if (from >= to) return ATSI_OK;
    return atsi_upload_add(&w->upload, 0, (char *)w->range->dev + from, host + (from - offset), to - from, err);
}

static enum atsi_status fill_experts(struct atsi_weights *w, const struct gap *gap, const struct atsi_router_experts *r,
                                     uint32_t unit, struct atsi_error *err) {
    uint64_t bytes = atsi_expert_bytes(program_of(w), unit);
    const char *host = w->host[atsi_unit_experts_op(program_of(w), &program_of(w)->units[unit])->tensor[0]];
    for (uint32_t i = 0; i < r->n; i++)
        ATSI_TRY(fill_part(w, gap, w->resident.blocks[unit] + i * bytes, host + r->ids[i] * bytes, bytes, err));
    return ATSI_OK;
}

// From the tensors' host memory.
static enum atsi_status fill(struct atsi_weights *w, const struct gap *gap, struct atsi_error *err) {
    const struct atsi_resident *r = &w->resident;
    for (uint32_t i = 0; i < r->n_tensors; i++) {
        uint32_t t = r->tensors[i];
        ATSI_TRY(fill_part(w, gap, r->offsets[t], w->host[t], program_of(w)->tensors[t].size_bytes, err));
    }
    for (uint32_t i = 0; i < w->experts.n_routers; i++)
        for (uint32_t u = 0; u < program_of(w)->n_units; u++)
            if (atsi_router_experts_has(&w->model->plan, &w->experts.routers[i], u))
                ATSI_TRY(fill_experts(w, gap, &w->experts.routers[i], u, err));
    return ATSI_OK;
}

enum atsi_status atsi_weights_refill(struct atsi_weights *w, uint32_t n_target, double until_us, bool *refused,
                                     struct atsi_error *err) {
    uint64_t end = w->resident.end_bytes[n_target], chunk = w->range->chunk_bytes;
    *refused = false;
    do {
        uint64_t next = (w->filled_bytes / chunk + 1) * chunk;
        if (next > end) next = end;
        if (w->owner->ops->range_back(w->owner, w->range, next, NULL) != ATSI_OK) {
            *refused = true;
            return ATSI_OK;
        }
        ATSI_TRY(fill(w, &(struct gap){w->filled_bytes, next}, err));
        ATSI_TRY(atsi_upload_finish(&w->upload, err));
        w->filled_bytes = next;
    } while (w->filled_bytes < end && atsi_clock_us() < until_us);
    return ATSI_OK;
}

enum atsi_status atsi_weights_settle(struct atsi_weights *w, struct atsi_error *err) {
    uint32_t n = atsi_resident_fit(&w->resident, w->filled_bytes);
    if (n > w->n_resident) {
        weights_set_homes(w, n);
        weights_update(w);
    }
    w->filled_bytes = w->resident.end_bytes[w->n_resident];
    ATSI_TRY(atsi_upload_rest(&w->upload, err));
    return w->owner->ops->range_back(w->owner, w->range, w->filled_bytes, err);
}
