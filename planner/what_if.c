#include "planner/what_if.h"

#include <stdlib.h>
#include <string.h>

#include "formats/base/json.h"
#include "formats/base/size.h"

static void *copy_of(const void *from, size_t n, size_t size) {
    void *copy = calloc(n ? n : 1, size);
    if (copy) memcpy(copy, from, n * size);
    return copy;
}

static void return_plan(struct atsi_plan *borrowed) {
    free(borrowed->program.units);
    free(borrowed->program.buffers);
    free(borrowed->decode_times);
    free(borrowed->prefill_times);
    atsi_plan_drop_resident_experts(borrowed);
}

// The plan with units, buffers and times of its own, which a placement changes; everything else is shared with `from` and stays with it.
static enum atsi_status borrow_plan(const struct atsi_plan *from, struct atsi_plan *to, struct atsi_error *err) {
    const struct atsi_program *p = &from->program;
    *to = *from;
    to->decode_times = NULL;
    to->prefill_times = NULL;
    to->resident_experts = NULL;
    to->program.units = copy_of(p->units, p->n_units, sizeof *p->units);
    to->program.buffers = copy_of(p->buffers, p->n_buffers, sizeof *p->buffers);
    if (to->program.units && to->program.buffers) return ATSI_OK;
    return_plan(to);
    return atsi_out_of_memory(err);
}

static bool nothing_waits(const struct atsi_plan *plan, const struct atsi_budget *budget) {
    uint64_t waiting = 0;
    for (uint32_t i = 0; i < plan->program.n_units; i++)
        if (plan->program.units[i].backend == ATSI_CPU) waiting += atsi_budget_unit(plan, &plan->program.units[i]);
    return waiting <= budget->spare + budget->experts;
}

// Patterns that matched before match again, so what is wrong with pinned units now is their size.
static bool pins_are_too_large(const struct atsi_place_options *options, enum atsi_status status) {
    return status == ATSI_BAD_INPUT && options->n_pins > 0;
}

static enum atsi_status place_borrowed(struct atsi_plan *plan, const struct atsi_device_profile *profile,
                                       const struct atsi_place_options *options, struct atsi_elsewhere *out,
                                       struct atsi_error *err) {
    struct atsi_placement p;
    if (options->choose_chunk) ATSI_TRY(atsi_chunk_set(plan, ATSI_DEFAULT_CHUNK, err)); // where the choice starts
    if (options->vram_bytes < atsi_budget_least(plan, profile, options->device)) return ATSI_OK;
    enum atsi_status status = atsi_place(plan, profile, options, &p, err);
    if (pins_are_too_large(options, status)) return ATSI_OK;
    ATSI_TRY(status);
    *out = (struct atsi_elsewhere){.fits = true,
                                   .nothing_waits = nothing_waits(plan, &p.budget),
                                   .chunk = plan->limits.chunk,
                                   .decode_us = p.decode_us,
                                   .prefill_us = p.prefill_us};
    return ATSI_OK;
}

enum atsi_status atsi_place_elsewhere(const struct atsi_plan *plan, const struct atsi_device_profile *profile,
                                      const struct atsi_place_options *options, uint64_t vram, uint32_t n_ctx,
                                      struct atsi_elsewhere *out, struct atsi_error *err) {
    struct atsi_plan other;
    struct atsi_place_options changed = *options;
    changed.vram_bytes = vram;
    changed.certify_seconds = 0;
    *out = (struct atsi_elsewhere){0};
    ATSI_TRY(borrow_plan(plan, &other, err));
    other.limits.n_ctx = n_ctx;
    enum atsi_status status = place_borrowed(&other, profile, &changed, out, err);
    return_plan(&other);
    return status;
}

enum {
    MAX_CONTEXTS = 8
};

uint32_t atsi_what_if_budgets(const struct atsi_device_profile *profile, uint64_t budgets[ATSI_WHAT_IF_MAX_BUDGETS]) {
    static const uint32_t gib[] = {1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 80};
    uint32_t n = 0;
    for (uint32_t i = 0; i < sizeof gib / sizeof *gib; i++)
        if ((uint64_t)gib[i] << 30 < profile->gpu_bytes) budgets[n++] = (uint64_t)gib[i] << 30;
    budgets[n++] = profile->gpu_bytes;
    return n;
}

// Up to what the model was trained for, and at least a whole chunk.
static uint32_t list_contexts(const struct atsi_plan *plan, bool choose_chunk, uint32_t *contexts) {
    static const uint32_t sizes[] = {1024, 4096, 16384, 32768, 65536, 131072};
    uint32_t least = choose_chunk ? ATSI_DEFAULT_CHUNK : plan->limits.chunk, n = 0;
    for (uint32_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i] <= plan->model.n_ctx_train && sizes[i] >= least) contexts[n++] = sizes[i];
    if (n == 0) contexts[n++] = plan->limits.n_ctx;
    return n;
}

struct table {
    FILE *out;
    const struct atsi_plan *plan;
    const struct atsi_device_profile *profile;
    cJSON *rows; // NULL: text
    bool good;   // no JSON item failed
};

static void add_json_row(struct table *t, uint64_t vram, uint32_t n_ctx, const struct atsi_elsewhere *e) {
    cJSON *o = cJSON_CreateObject();
    t->good = t->good && o && cJSON_AddItemToArray(t->rows, o) && atsi_json_put(o, "vram_bytes", (double)vram) &&
              atsi_json_put(o, "n_ctx", n_ctx) && cJSON_AddBoolToObject(o, "fits", e->fits) &&
              (!e->fits || (atsi_json_put(o, "chunk", e->chunk) && atsi_json_put_figure(o, "decode_us", e->decode_us) &&
                            atsi_json_put_figure(o, "prefill_us", e->prefill_us)));
}

static void print_row(struct table *t, uint64_t vram, uint32_t n_ctx, const struct atsi_elsewhere *e) {
    char size[32];
    fprintf(t->out, "%-10s %9u ", atsi_size_format(size, sizeof size, vram), n_ctx);
    if (e->fits)
        fprintf(t->out, "%7u %14.2f %14.1f\n", e->chunk, 1e6 / e->decode_us, 1e6 * e->chunk / e->prefill_us);
    else
        fprintf(t->out, "%7s %14s\n", "", "too small");
}

// The rows of one budget; *all_placed: a larger budget changes none of them.
static enum atsi_status fill_rows(struct table *t, const struct atsi_place_options *options, uint64_t vram,
                                  bool *all_placed, struct atsi_error *err) {
    uint32_t contexts[MAX_CONTEXTS], n_contexts = list_contexts(t->plan, options->choose_chunk, contexts);
    *all_placed = true;
    for (uint32_t c = 0; c < n_contexts; c++) {
        struct atsi_elsewhere e;
        ATSI_TRY(atsi_place_elsewhere(t->plan, t->profile, options, vram, contexts[c], &e, err));
        *all_placed = *all_placed && e.nothing_waits;
        if (t->rows)
            add_json_row(t, vram, contexts[c], &e);
        else
            print_row(t, vram, contexts[c], &e);
    }
    return ATSI_OK;
}

static enum atsi_status fill_table(struct table *t, const struct atsi_place_options *options, struct atsi_error *err) {
    uint64_t budgets[ATSI_WHAT_IF_MAX_BUDGETS];
    uint32_t n_budgets = atsi_what_if_budgets(t->profile, budgets);
    bool all_placed = false;
    for (uint32_t b = 0; b < n_budgets && !all_placed; b++)
        ATSI_TRY(fill_rows(t, options, budgets[b], &all_placed, err));
    return ATSI_OK;
}

static enum atsi_status write_json(struct table *t, const struct atsi_place_options *options, struct atsi_error *err) {
    cJSON *root = cJSON_CreateObject();
    t->rows = cJSON_AddArrayToObject(root, "rows");
    t->good = t->rows != NULL;
    enum atsi_status status = t->good ? fill_table(t, options, err) : ATSI_OK;
    if (status == ATSI_OK) return atsi_json_print(t->out, root, t->good, err);
    cJSON_Delete(root);
    return status;
}

enum atsi_status atsi_what_if(FILE *out, const struct atsi_plan *plan, const struct atsi_device_profile *profile,
                              const struct atsi_place_options *options, bool json, struct atsi_error *err) {
    struct table t = {.out = out, .plan = plan, .profile = profile};
    if (json) return write_json(&t, options, err);
    fprintf(out, "%-10s %9s %7s %14s %14s   tokens/s, predicted for %s\n", "budget", "context", "chunk", "decode",
            "prefill", profile->name);
    return fill_table(&t, options, err);
}
