// model.h: an opened plan: file, manifest and tokenizer. Read-only once open: any number of threads and sessions may use one.
#ifndef ATSI_RUNTIME_MODEL_H
#define ATSI_RUNTIME_MODEL_H

#include "formats/plan.h"
#include "formats/plan_file.h"
#include "runtime/tokenizer/tokenizer.h"

struct atsi_model {
    struct atsi_plan_file *file;
    struct atsi_plan plan;
    struct atsi_tokenizer *tokenizer; // NULL when the plan has none
};

// Opens and checks a plan. Zeroes *model first; free with atsi_model_close whether it succeeds or not.
enum atsi_status atsi_model_open(struct atsi_model *model, const char *path, struct atsi_error *err);
void atsi_model_close(struct atsi_model *model);

// Ids that must never be sampled: unused tokens, and rows of the output matrix beyond the vocabulary. *ids is freed with free().
enum atsi_status atsi_model_banned_ids(const struct atsi_model *model, int32_t **ids, uint32_t *n,
                                       struct atsi_error *err);

#endif
