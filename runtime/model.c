#include "runtime/model.h"

#include <stdlib.h>
#include <string.h>

// The manifest and the tensor index are written together; a plan whose two halves differ is damaged.
static enum atsi_status check_tensors(const struct atsi_model *m, struct atsi_error *err) {
    for (uint32_t i = 0; i < m->plan.program.n_tensors; i++) {
        const struct atsi_tensor *t = &m->plan.program.tensors[i];
        const struct atsi_plan_blob *blob = atsi_plan_file_find(m->file, t->name);
        if (!blob)
            return atsi_fail(err, ATSI_BAD_INPUT, "tensor %s stands in the manifest but not in the file", t->name);
        if (blob->tensor.dtype != t->dtype || blob->tensor.layout != t->layout ||
            blob->tensor.size_bytes != t->size_bytes || memcmp(blob->tensor.ne, t->ne, sizeof t->ne) != 0)
            return atsi_fail(err, ATSI_BAD_INPUT, "tensor %s: manifest and file disagree on type, layout or shape",
                             t->name);
    }
    return ATSI_OK;
}

static enum atsi_status check_vocabulary(const struct atsi_model *m, struct atsi_error *err) {
    if (m->plan.vocab_only || !m->tokenizer || atsi_tokenizer_n_tokens(m->tokenizer) <= m->plan.program.n_vocab)
        return ATSI_OK;
    return atsi_fail(err, ATSI_BAD_INPUT, "the vocabulary has %u tokens, the output matrix %u rows",
                     atsi_tokenizer_n_tokens(m->tokenizer), m->plan.program.n_vocab);
}

static enum atsi_status open_parts(struct atsi_model *m, struct atsi_error *err) {
    struct atsi_str manifest = atsi_plan_file_manifest(m->file), tables = atsi_plan_file_tokenizer(m->file);
    ATSI_TRY(atsi_plan_from_json(manifest.data, manifest.size, &m->plan, err));
    ATSI_TRY(check_tensors(m, err));
    if (tables.size) ATSI_TRY(atsi_tokenizer_open(&m->tokenizer, tables.data, tables.size, err));
    return check_vocabulary(m, err);
}

enum atsi_status atsi_model_open(struct atsi_model *model, const char *path, struct atsi_error *err) {
    memset(model, 0, sizeof *model);
    ATSI_TRY(atsi_plan_file_open(&model->file, path, err));
    if (open_parts(model, err) == ATSI_OK) return ATSI_OK;
    return atsi_fail_prefix(err, "%s", path);
}

void atsi_model_close(struct atsi_model *model) {
    atsi_tokenizer_close(model->tokenizer);
    atsi_plan_free(&model->plan);
    atsi_plan_file_close(model->file);
    memset(model, 0, sizeof *model);
}

enum atsi_status atsi_model_banned_ids(const struct atsi_model *model, int32_t **ids, uint32_t *n,
                                       struct atsi_error *err) {
    uint32_t n_vocab = model->plan.program.n_vocab;
    *n = 0;
    *ids = malloc((n_vocab ? n_vocab : 1) * sizeof **ids);
    if (!*ids) return atsi_fail(err, ATSI_FAILED, "out of memory while reading the vocabulary");
    for (uint32_t i = 0; model->tokenizer && i < n_vocab; i++)
        if (atsi_tokenizer_kind(model->tokenizer, i) == ATSI_TOKEN_UNUSED) (*ids)[(*n)++] = (int32_t)i;
    return ATSI_OK;
}
