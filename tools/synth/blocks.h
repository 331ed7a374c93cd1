// blocks.h: random weights of any tensor type, made in their stored form: nothing is quantised.
#ifndef ATSI_TOOLS_SYNTH_BLOCKS_H
#define ATSI_TOOLS_SYNTH_BLOCKS_H

#include "formats/base/error.h"
#include "formats/dtype.h"
#include "tools/synth/random.h"

// A type, and the spread of its weights when the block scale is 1.
struct synth_blocks {
    enum atsi_dtype dtype;
    float unit_rms;
};

// Measures unit_rms on a sample. ATSI_BAD_INPUT for a type of which no random blocks can be made.
enum atsi_status synth_blocks_init(struct synth_blocks *out, enum atsi_dtype dtype, struct atsi_error *err);

// n_elems (a multiple of the type's block) weights with mean 0 and standard deviation `std` to `out`. Every bit of the format
// that carries weight is random, so whatever a kernel may read wrongly shows.
void synth_blocks_fill(const struct synth_blocks *blocks, struct synth_random *r, float std, uint64_t n_elems,
                       uint8_t *out);

#endif
