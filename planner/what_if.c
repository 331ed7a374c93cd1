#include "planner/what_if.h"

#include <stdlib.h>
#include <string.h>

#include "formats/base/json.h"
#include "formats/base/size.h"

// The plan with room for a placement and times of its own; everything else is shared with `from` and stays with it.
static enum atsi_status borrow_plan(const struct atsi_plan *from, struct atsi_plan *to, struct atsi_error *err) {
    *to = *from;
    to->decode_times = NULL;
    to->prefill_times = NULL;
    to->program.units = malloc(from->program.n_units * sizeof *to->program.units);
    if (!to->program.units) return atsi_fail(err, ATSI_FAILED, "out of memory");
    memcpy(to->program.units, from->program.units, from->program.n_units * sizeof *to->program.units);
    return ATSI_OK;
}

static void return_plan(struct atsi_plan *borrowed) {
    free(borrowed->program.units);
    free(borrowed->decode_times);
    free(borrowed->prefill_times);
}

enum atsi_status atsi_place_elsewhere(const struct atsi_plan *plan, const struct atsi_device_profile *profile,
                                      const struct atsi_place_options *options, uint64_t vram, uint32_t n_ctx,
                                      bool *fits, struct atsi_placement *out, struct atsi_error *err) {
    struct atsi_plan other;
    struct atsi_place_options changed = *options;
    changed.vram_bytes = vram;
    changed.certify_seconds = 0;
    changed.choose_chunk = false;
    ATSI_TRY(borrow_plan(plan, &other, err));
    other.limits.n_ctx = n_ctx;
    *fits = vram >= atsi_budget_least(&other, profile, options->device);
    enum atsi_status status = *fits ? atsi_place(&other, profile, &changed, out, err) : ATSI_OK;
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

static uint32_t list_contexts(const struct atsi_plan *plan, uint32_t *contexts) {
    static const uint32_t sizes[] = {1024, 4096, 16384, 32768, 65536, 131072};
    uint32_t n = 0;
    for (uint32_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i] <= plan->model.n_ctx_train && sizes[i] >= plan->limits.chunk) contexts[n++] = sizes[i];
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

static void add_json_row(struct table *t, uint64_t vram, uint32_t n_ctx, bool fits, const struct atsi_placement *p) {
    cJSON *o = cJSON_CreateObject();
    t->good = t->good && o && cJSON_AddItemToArray(t->rows, o) && atsi_json_put(o, "vram_bytes", (double)vram) &&
              atsi_json_put(o, "n_ctx", n_ctx) && cJSON_AddBoolToObject(o, "fits", fits) &&
              (!fits || (atsi_json_put(o, "decode_us", p->decode_us) && atsi_json_put(o, "prefill_us", p->prefill_us)));
}

static void print_row(struct table *t, uint64_t vram, uint32_t n_ctx, bool fits, const struct atsi_placement *p) {
    char size[32];
    fprintf(t->out, "%-10s %9u ", atsi_size_format(size, sizeof size, vram), n_ctx);
    if (fits)
        fprintf(t->out, "%14.2f %14.1f\n", 1e6 / p->decode_us, 1e6 * t->plan->limits.chunk / p->prefill_us);
    else
        fprintf(t->out, "%14s %14s\n", "too small", "");
}

static enum atsi_status fill_table(struct table *t, const struct atsi_place_options *options, struct atsi_error *err) {
    uint64_t budgets[ATSI_WHAT_IF_MAX_BUDGETS];
    uint32_t contexts[MAX_CONTEXTS];
    uint32_t n_budgets = atsi_what_if_budgets(t->profile, budgets), n_contexts = list_contexts(t->plan, contexts);
    for (uint32_t b = 0; b < n_budgets; b++)
        for (uint32_t c = 0; c < n_contexts; c++) {
            struct atsi_placement p = {0};
            bool fits;
            ATSI_TRY(atsi_place_elsewhere(t->plan, t->profile, options, budgets[b], contexts[c], &fits, &p, err));
            if (t->rows)
                add_json_row(t, budgets[b], contexts[c], fits, &p);
            else
                print_row(t, budgets[b], contexts[c], fits, &p);
        }
    return ATSI_OK;
}

static enum atsi_status write_json(struct table *t, const struct atsi_place_options *options, struct atsi_error *err) {
    cJSON *root = cJSON_CreateObject();
    t->rows = cJSON_AddArrayToObject(root, "rows");
    t->good = t->rows != NULL;
    enum atsi_status status = t->good ? fill_table(t, options, err) : ATSI_OK;
    char *text = status == ATSI_OK && t->good ? cJSON_PrintUnformatted(root) : NULL;
    if (text)
        fprintf(t->out, "%s\n", text);
    else if (status == ATSI_OK)
        status = atsi_fail(err, ATSI_FAILED, "out of memory");
    cJSON_free(text);
    cJSON_Delete(root);
    return status;
}

enum atsi_status atsi_what_if(FILE *out, const struct atsi_plan *plan, const struct atsi_device_profile *profile,
                              const struct atsi_place_options *options, bool json, struct atsi_error *err) {
    struct table t = {.out = out, .plan = plan, .profile = profile};
    if (json) return write_json(&t, options, err);
    fprintf(out, "%-10s %9s %14s %14s   tokens/s, predicted for %s\n", "budget", "context", "decode", "prefill",
            profile->name);
    return fill_table(&t, options, err);
}
