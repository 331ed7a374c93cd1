// write_plan.h: a finished plan and its recipes become a plan file.
#ifndef ATSI_PLANNER_WRITE_PLAN_H
#define ATSI_PLANNER_WRITE_PLAN_H

#include <signal.h>

#include "formats/plan.h"
#include "formats/plan_file.h"
#include "kernels/cpu/pool.h"
#include "planner/lower.h"

struct atsi_write_options {
    bool no_weights;                    // tensors are listed, their bytes left out
    bool ship;                          // every tensor compressed where that saves over 3 %
    struct atsi_plan_progress progress; // report may be NULL
    const volatile sig_atomic_t *stop;  // not 0: give up (ATSI_INTERRUPTED); NULL: never
};

struct atsi_write_result {
    uint64_t packed_bytes, stored_bytes; // of all tensors
    uint32_t n_compressed;
};

// Writes `path` (complete or not at all). Tensors that CPU units read are stored raw in the pinned section, because the runtime maps
// them; those that only GPU units read go to the resident section, 16 and 32-bit floats compressed where it pays.
// `recipes` [plan->program.n_tensors] may be NULL without weights. `tokenizer` may be empty.
enum atsi_status atsi_write_plan(const char *path, const struct atsi_plan *plan, const struct atsi_gguf *gguf,
                                 const struct atsi_recipe *recipes, struct atsi_str tokenizer, struct atsi_pool *pool,
                                 const struct atsi_write_options *options, struct atsi_write_result *result,
                                 struct atsi_error *err);

#endif
