// values.h: the bytes of a synthetic model's tensors, row by row.
#ifndef ATSI_TOOLS_SYNTH_VALUES_H
#define ATSI_TOOLS_SYNTH_VALUES_H

#include "tools/synth/blocks.h"
#include "tools/synth/tensors.h"

// What all threads read. `model` must outlive it.
struct synth_values {
    const struct synth_model *model;
    uint64_t seed;
    struct synth_blocks blocks[ATSI_DTYPE_LIMIT]; // of the types in use
    uint8_t *common_bytes;                        // the shared start of embedding rows, as stored
    float *common; // [n_common] its values, over their sum of squares, times the embedding's size
    uint64_t common_size_bytes;
};

// Free with synth_values_free whether it succeeds or not.
enum atsi_status synth_values_init(struct synth_values *out, const struct synth_model *model, uint64_t seed,
                                   struct atsi_error *err);
void synth_values_free(struct synth_values *values);

// Rows [first, first + n) of tensor `index`, whose matrices follow each other, to `out`. The result depends on the seed, the
// tensor and the first row: callers that cut a tensor alike get the same bytes. Threads may call it at once.
void synth_values_rows(const struct synth_values *values, uint32_t index, uint64_t first, uint64_t n, uint8_t *out);

#endif
