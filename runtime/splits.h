// splits.h: cuts a program into runs of operations on one backend (design section 6). Pure: no device, no memory of a round.
#ifndef ATSI_RUNTIME_SPLITS_H
#define ATSI_RUNTIME_SPLITS_H

#include "formats/program.h"

// A buffer whose rows must be copied to this split's side before it runs.
struct atsi_crossing { uint32_t buffer; };

struct atsi_split {
    enum atsi_backend backend;
    uint32_t first_op, n_ops;             // n_ops may be 0 for the last split, which only fetches the logits
    uint32_t first_crossing, n_crossings;
    bool tail;                            // after the outputs were selected: repeated for each group of output rows
    bool promoted;                        // one unit whose weights stand in the temporary region this round
};

struct atsi_splits {
    struct atsi_split *splits;       uint32_t n_splits;
    struct atsi_crossing *crossings; uint32_t n_crossings;
};

// `backends` [n_units]; `promoted` [n_units], NULL for none: units on the GPU that get a split of their own, in which they wait for
// their weights. The program has passed atsi_program_check. Free with atsi_splits_free whether it succeeds or not.
enum atsi_status atsi_splits_build(const struct atsi_program *p, const enum atsi_backend *backends, const bool *promoted,
                                   struct atsi_splits *out, struct atsi_error *err);
void atsi_splits_free(struct atsi_splits *s);

#endif
