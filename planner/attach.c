#include "planner/attach.h"

#include <string.h>

static enum atsi_status check_identity(const struct atsi_plan *plan, const struct atsi_gguf *gguf,
                                       struct atsi_error *err) {
    uint64_t hash, bytes = atsi_gguf_size_bytes(gguf);
    if (bytes != plan->model.gguf_bytes)
        return atsi_fail(err, ATSI_BAD_INPUT, "the plan was made for a model of %llu bytes, %s has %llu",
                         (unsigned long long)plan->model.gguf_bytes, atsi_gguf_part_path(gguf, 0),
                         (unsigned long long)bytes);
    ATSI_TRY(atsi_gguf_identity_hash(gguf, &hash, err));
    if (hash != plan->model.gguf_hash)
        return atsi_fail(
            err, ATSI_BAD_INPUT, "the plan was made for another model than %s: identity hash %016llx, expected %016llx",
            atsi_gguf_part_path(gguf, 0), (unsigned long long)hash, (unsigned long long)plan->model.gguf_hash);
    return ATSI_OK;
}

static bool same_tensor(const struct atsi_tensor *a, const struct atsi_tensor *b) {
    return !strcmp(a->name, b->name) && a->dtype == b->dtype && a->layout == b->layout &&
           a->size_bytes == b->size_bytes && !memcmp(a->ne, b->ne, sizeof a->ne);
}

enum atsi_status atsi_attach(const struct atsi_plan *plan, const struct atsi_gguf *gguf, struct atsi_lowered *lowered,
                             struct atsi_error *err) {
    memset(lowered, 0, sizeof *lowered);
    ATSI_TRY(check_identity(plan, gguf, err));
    ATSI_TRY(atsi_lower(gguf, &(struct atsi_lower_options){.n_ctx = plan->limits.n_ctx}, lowered, err));
    if (lowered->program.n_tensors != plan->program.n_tensors)
        return atsi_fail(err, ATSI_BAD_INPUT,
                         "the plan has %u tensors, the model as this version lowers it %u: make the plan again",
                         plan->program.n_tensors, lowered->program.n_tensors);
    for (uint32_t i = 0; i < plan->program.n_tensors; i++)
        if (!same_tensor(&plan->program.tensors[i], &lowered->program.tensors[i]))
            return atsi_fail(err, ATSI_BAD_INPUT,
                             "tensor %s: plan and model as this version lowers it differ: make the plan again",
                             plan->program.tensors[i].name);
    return ATSI_OK;
}
