// chunk.h: how many tokens a prefill round takes. A larger chunk spreads the streaming of weights over more tokens and costs memory for
// activations, so it is decided together with the placement (docs/placement.md).
#ifndef ATSI_PLANNER_CHUNK_H
#define ATSI_PLANNER_CHUNK_H

#include "formats/plan.h"

enum {
    ATSI_DEFAULT_CHUNK = 512, // where nothing is decided: a CPU-only plan
    ATSI_DEFAULT_OUTPUTS = 16,
    ATSI_CHUNKS_MAX = 4
};

struct atsi_chunks {
    uint32_t sizes[ATSI_CHUNKS_MAX]; // rising
    uint32_t n;
};

// What there is to choose from: the plan's chunk, and 2, 4 and 8 times as many tokens while a prompt of half the planned context
// fills such a round.
struct atsi_chunks atsi_chunks_of(const struct atsi_plan *plan);

// Sets limits.chunk (cut to the context), n_outputs and compute_bytes, and the buffers' offsets.
enum atsi_status atsi_chunk_set(struct atsi_plan *plan, uint32_t chunk, struct atsi_error *err);

#endif
