#include "planner/lower.h"

#include <stdlib.h>
#include <string.h>

#include "planner/arch/families.h"

static enum atsi_status unknown_family(struct atsi_str arch, struct atsi_error *err) {
    char known[400] = "";
    for (size_t i = 0, used = 0; atsi_family_at(i) && used < sizeof known; i++)
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", atsi_family_at(i)->arch);
    return atsi_fail(err, ATSI_BAD_INPUT, "general.architecture \"%s\" is not supported; supported: %s",
                     atsi_label(arch).text, known);
}

// The embedding may have more rows than there are tokens (padding), never fewer.
static enum atsi_status check_vocabulary(const struct atsi_builder *b, struct atsi_error *err) {
    struct atsi_gguf_array tokens;
    ATSI_TRY(atsi_gguf_array(b->gguf, "tokenizer.ggml.tokens", &tokens, err));
    if (tokens.n <= b->out->program.n_vocab) return ATSI_OK;
    return atsi_fail(err, ATSI_BAD_INPUT, "tensor token_embd.weight: %u rows for %llu tokens", b->out->program.n_vocab,
                     (unsigned long long)tokens.n);
}

// Distinct tensors that the ops of a unit use.
static uint64_t unit_bytes(const struct atsi_program *p, const struct atsi_unit *u, int32_t *seen) {
    uint64_t bytes = 0;
    uint32_t n_seen = 0;
    for (uint32_t i = u->first_op; i < u->first_op + u->n_ops; i++)
        for (int k = 0; k < ATSI_OP_MAX_TENSORS; k++) {
            int32_t t = p->ops[i].tensor[k];
            bool counted = t == ATSI_NONE;
            for (uint32_t j = 0; j < n_seen && !counted; j++) counted = seen[j] == t;
            if (counted) continue;
            seen[n_seen++] = t;
            bytes += p->tensors[t].size_bytes;
        }
    return bytes;
}

static enum atsi_status weigh_units(struct atsi_program *p, struct atsi_error *err) {
    int32_t *seen = malloc(((size_t)p->n_tensors + 1) * sizeof *seen);
    if (!seen) return atsi_fail(err, ATSI_FAILED, "out of memory while lowering");
    for (uint32_t i = 0; i < p->n_units; i++) p->units[i].weight_bytes = unit_bytes(p, &p->units[i], seen);
    free(seen);
    return ATSI_OK;
}

// ---- what was left out --------------------------------------------------------------------------------------------

static int compare_pointers(const void *a, const void *b) {
    uintptr_t x = (uintptr_t) * (void *const *)a, y = (uintptr_t) * (void *const *)b;
    return (x > y) - (x < y);
}

// Tensors whose content went into tables, and so are used though no op names them.
static bool is_absorbed(struct atsi_str name) {
    return atsi_str_is(name, "rope_freqs.weight") || atsi_str_is(name, "rope_factors_long.weight") ||
           atsi_str_is(name, "rope_factors_short.weight");
}

// One line for the tensors that the program does not use; and the parameters of those that it does.
static enum atsi_status account_for_tensors(struct atsi_builder *b, struct atsi_error *err) {
    struct atsi_lowered *out = b->out;
    const void **used = malloc(((size_t)out->program.n_tensors + 1) * sizeof *used);
    uint64_t n_used = 0, n_skipped = 0, skipped_bytes = 0;
    bool predicts_more = false; // a block of multi-token prediction is among the skipped
    const struct atsi_gguf_tensor *first_skipped = NULL;
    if (!used) return atsi_fail(err, ATSI_FAILED, "out of memory while lowering");
    for (uint32_t i = 0; i < out->program.n_tensors; i++)
        if (out->recipes[i].source) used[n_used++] = out->recipes[i].source;
    qsort(used, n_used, sizeof *used, compare_pointers);

    out->n_params = 0;
    for (uint64_t i = 0; i < atsi_gguf_n_tensors(b->gguf); i++) {
        const struct atsi_gguf_tensor *t = atsi_gguf_tensor_at(b->gguf, i);
        if (bsearch(&(const void *){t}, used, n_used, sizeof *used, compare_pointers)) {
            out->n_params += t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
        } else if (!is_absorbed(t->name)) {
            if (n_skipped++ == 0) first_skipped = t;
            skipped_bytes += t->size_bytes;
            predicts_more |= memmem(t->name.data, t->name.size, ".nextn.", 7) != NULL;
        }
    }
    free(used);
    if (n_skipped)
        fprintf(b->remarks, "skipped: %llu tensor%s that the model does not need (%s%s), %llu bytes%s\n",
                (unsigned long long)n_skipped, n_skipped > 1 ? "s" : "", atsi_label(first_skipped->name).text,
                n_skipped > 1 ? ", ..." : "", (unsigned long long)skipped_bytes,
                predicts_more ? ": multi-token prediction is not used" : "");
    return ATSI_OK;
}

// ---- the whole ----------------------------------------------------------------------------------------------------

static enum atsi_status run_family(struct atsi_builder *b, const struct atsi_family *family, struct atsi_error *err) {
    family->lower(b);
    ATSI_TRY(b->status);
    if (b->n_missing)
        return atsi_fail(err, ATSI_BAD_INPUT, "%u tensor%s missing for architecture %s: %s%s", b->n_missing,
                         b->n_missing > 1 ? "s" : "", b->arch, b->missing,
                         strlen(b->missing) > sizeof b->missing - 48 ? ", ..." : "");
    ATSI_TRY(check_vocabulary(b, err));
    ATSI_TRY(weigh_units(&b->out->program, err));
    ATSI_TRY(account_for_tensors(b, err));
    return atsi_program_check(&b->out->program, err);
}

static uint32_t planned_context(const struct atsi_lower_options *options, uint32_t n_ctx_train) {
    if (options->n_ctx) return options->n_ctx;
    return n_ctx_train < ATSI_DEFAULT_CTX ? n_ctx_train : ATSI_DEFAULT_CTX;
}

static enum atsi_status lower_into(const struct atsi_gguf *gguf, const struct atsi_lower_options *options,
                                   const struct atsi_family *family, FILE *remarks, struct atsi_lowered *out,
                                   struct atsi_error *err) {
    struct atsi_builder b = {.gguf = gguf,
                             .arch = family->arch,
                             .out = out,
                             .layer = ATSI_NONE,
                             .router_unit = ATSI_NONE,
                             .remarks = remarks,
                             .err = err};
    enum atsi_status status = atsi_hparams_read(gguf, family->arch, &b.hp, err);
    out->program.logits = ATSI_NONE;
    out->n_ctx_train = b.hp.n_ctx_train;
    out->n_ctx = planned_context(options, b.hp.n_ctx_train);
    snprintf(out->arch, sizeof out->arch, "%s", family->arch);
    if (status == ATSI_OK) status = run_family(&b, family, err);
    atsi_hparams_free(&b.hp);
    return status;
}

enum atsi_status atsi_lower(const struct atsi_gguf *gguf, const struct atsi_lower_options *options,
                            struct atsi_lowered *out, struct atsi_error *err) {
    struct atsi_str arch;
    struct atsi_error local; // the builder needs one to record into
    size_t remarks_size;
    if (!err) err = &local;
    memset(out, 0, sizeof *out);
    ATSI_TRY(atsi_gguf_str(gguf, "general.architecture", &arch, err));
    const struct atsi_family *family = atsi_family_find(arch);
    if (!family) return unknown_family(arch, err);
    FILE *remarks = open_memstream(&out->remarks, &remarks_size);
    if (!remarks) return atsi_fail(err, ATSI_FAILED, "out of memory while lowering");
    enum atsi_status status = lower_into(gguf, options, family, remarks, out, err);
    fclose(remarks);
    return status;
}

void atsi_lowered_free(struct atsi_lowered *lowered) {
    if (!lowered) return;
    for (uint32_t i = 0; i < lowered->n_recipes; i++) {
        free(lowered->recipes[i].row_order);
        free(lowered->recipes[i].table);
    }
    free(lowered->recipes);
    free(lowered->remarks);
    atsi_program_free(&lowered->program);
    memset(lowered, 0, sizeof *lowered);
}
