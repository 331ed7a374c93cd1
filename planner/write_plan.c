#include "planner/write_plan.h"

#include <stdlib.h>
#include <string.h>

#include "formats/plan_writer.h"
#include "planner/pack.h"

struct writing {
    struct atsi_plan_writer *writer;
    const struct atsi_plan *plan;
    const struct atsi_gguf *gguf;
    const struct atsi_recipe *recipes;
    struct atsi_pool *pool;
    const struct atsi_write_options *options;
    bool *mapped; // [n_tensors] whether a CPU unit reads it
    uint64_t done_bytes, total_bytes;
};

static enum atsi_status take_piece(void *user, const void *data, uint64_t size_bytes, struct atsi_error *err) {
    struct writing *w = user;
    if (w->options->stop && *w->options->stop)
        return atsi_fail(err, ATSI_INTERRUPTED, "interrupted; no plan was written");
    ATSI_TRY(atsi_plan_writer_append(w->writer, data, size_bytes, err));
    w->done_bytes += size_bytes;
    if (w->options->progress.report)
        w->options->progress.report(w->options->progress.user, w->done_bytes, w->total_bytes);
    return ATSI_OK;
}

static bool is_float(enum atsi_dtype dtype) { return dtype == ATSI_F32 || dtype == ATSI_F16 || dtype == ATSI_BF16; }

static enum atsi_status write_tensor(struct writing *w, uint32_t i, enum atsi_plan_section section,
                                     struct atsi_error *err) {
    const struct atsi_tensor *t = &w->plan->program.tensors[i];
    const struct atsi_recipe *r = &w->recipes[i];
    bool compress = w->options->ship || (section == ATSI_PLAN_RESIDENT && is_float(t->dtype));
    ATSI_TRY(atsi_plan_writer_begin(w->writer, t, section, compress, err));
    if (r->source) atsi_gguf_prefetch(w->gguf, r->source);
    ATSI_TRY(atsi_pack_tensor(w->pool, t, r, take_piece, w, err));
    if (r->source) atsi_gguf_drop(w->gguf, r->source);
    return atsi_plan_writer_end(w->writer, err);
}

static enum atsi_status write_section(struct writing *w, enum atsi_plan_section section, struct atsi_error *err) {
    const struct atsi_program *p = &w->plan->program;
    for (uint32_t i = 0; i < p->n_tensors; i++) {
        if (w->mapped[i] != (section == ATSI_PLAN_PINNED)) continue;
        if (w->options->no_weights)
            ATSI_TRY(atsi_plan_writer_declare(w->writer, &p->tensors[i], section, err));
        else
            ATSI_TRY(write_tensor(w, i, section, err));
    }
    return ATSI_OK;
}

static void find_mapped(struct writing *w) {
    const struct atsi_program *p = &w->plan->program;
    for (uint32_t u = 0; u < p->n_units; u++) {
        if (p->units[u].backend != ATSI_CPU) continue;
        for (uint32_t i = p->units[u].first_op; i < p->units[u].first_op + p->units[u].n_ops; i++)
            for (int k = 0; k < ATSI_OP_MAX_TENSORS; k++)
                if (p->ops[i].tensor[k] != ATSI_NONE) w->mapped[p->ops[i].tensor[k]] = true;
    }
}

static enum atsi_status write_all(struct writing *w, struct atsi_str tokenizer, struct atsi_write_result *result,
                                  struct atsi_error *err) {
    char *manifest;
    size_t manifest_size;
    find_mapped(w);
    ATSI_TRY(write_section(w, ATSI_PLAN_RESIDENT, err));
    ATSI_TRY(write_section(w, ATSI_PLAN_PINNED, err));
    memset(result, 0, sizeof *result);
    for (uint32_t i = 0; i < atsi_plan_writer_n_blobs(w->writer); i++) {
        const struct atsi_plan_blob *blob = atsi_plan_writer_blob(w->writer, i);
        result->packed_bytes += blob->tensor.size_bytes;
        result->stored_bytes += blob->stored_bytes;
        result->n_compressed += blob->encoding != ATSI_PLAN_RAW;
    }
    ATSI_TRY(atsi_plan_to_json(w->plan, &manifest, &manifest_size, err));
    enum atsi_status status =
        atsi_plan_writer_finish(w->writer, (struct atsi_str){manifest, manifest_size}, tokenizer, err);
    free(manifest);
    return status;
}

static uint64_t tensor_bytes(const struct atsi_program *p) {
    uint64_t total = 0;
    for (uint32_t i = 0; i < p->n_tensors; i++) total += p->tensors[i].size_bytes;
    return total;
}

enum atsi_status atsi_write_plan(const char *path, const struct atsi_plan *plan, const struct atsi_gguf *gguf,
                                 const struct atsi_recipe *recipes, struct atsi_str tokenizer, struct atsi_pool *pool,
                                 const struct atsi_write_options *options, struct atsi_write_result *result,
                                 struct atsi_error *err) {
    uint64_t total_bytes = tensor_bytes(&plan->program);
    struct atsi_plan_writer_options writer_options = {.no_weights = options->no_weights || plan->vocab_only,
                                                      .shipped = options->ship,
                                                      .section_alignment = atsi_plan_section_alignment(total_bytes)};
    struct writing w = {
        .plan = plan, .gguf = gguf, .recipes = recipes, .pool = pool, .options = options, .total_bytes = total_bytes};
    w.mapped = calloc(plan->program.n_tensors + 1, sizeof *w.mapped);
    if (!w.mapped) return atsi_fail(err, ATSI_FAILED, "out of memory while writing %s", path);
    enum atsi_status status = atsi_plan_writer_create(&w.writer, path, &writer_options, err);
    if (status == ATSI_OK) status = write_all(&w, tokenizer, result, err);
    atsi_plan_writer_free(w.writer);
    free(w.mapped);
    return status;
}
