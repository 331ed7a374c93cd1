// content.h: everything of a plan but the placement and the bytes: model, limits, program, chat format, provenance.
#ifndef ATSI_PLANNER_CONTENT_H
#define ATSI_PLANNER_CONTENT_H

#include "formats/plan.h"
#include "planner/lower.h"

struct atsi_content_options {
    uint32_t n_ctx;     // planned context; 0: the model's, at most ATSI_DEFAULT_CTX
    uint32_t chunk;     // most tokens of a round; 0: ATSI_DEFAULT_CHUNK (chunk.h), or the context when that is shorter
    uint32_t n_threads; // 0: chosen at run time
    enum atsi_dtype kv_type; // F32, F16 or Q8_0
    const char *command;     // the command line, for the notes
};

// Fills *plan from a lowered model: the program moves out of `lowered` into the plan (the recipes stay), every unit is on the CPU,
// buffers have their offsets. ATSI_BAD_INPUT when a limit does not fit the model. Zeroes *plan first; free with
// atsi_plan_free whether it succeeds or not.
enum atsi_status atsi_content_make(const struct atsi_gguf *gguf, struct atsi_lowered *lowered,
                                   const struct atsi_content_options *options, struct atsi_plan *plan,
                                   struct atsi_error *err);

// The same for a plan that only tokenises.
enum atsi_status atsi_content_make_vocab(const struct atsi_gguf *gguf, const char *command, struct atsi_plan *plan,
                                         struct atsi_error *err);

#endif
