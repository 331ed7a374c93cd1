#include "planner/chunk.h"

struct atsi_chunks atsi_chunks_of(const struct atsi_plan *plan) {
    struct atsi_chunks chunks = {.sizes = {plan->limits.chunk}, .n = 1};
    uint32_t most = plan->limits.n_ctx / 2;
    while (chunks.n < ATSI_CHUNKS_MAX && chunks.sizes[chunks.n - 1] <= most / 2) {
        chunks.sizes[chunks.n] = 2 * chunks.sizes[chunks.n - 1];
        chunks.n++;
    }
    return chunks;
}

enum atsi_status atsi_chunk_set(struct atsi_plan *plan, uint32_t chunk, struct atsi_error *err) {
    struct atsi_plan_limits *l = &plan->limits;
    l->chunk = chunk < l->n_ctx ? chunk : l->n_ctx;
    l->n_outputs = l->chunk < ATSI_DEFAULT_OUTPUTS ? l->chunk : ATSI_DEFAULT_OUTPUTS;
    return atsi_program_place_buffers(&plan->program, l->chunk, l->n_outputs, &l->compute_bytes, err);
}
