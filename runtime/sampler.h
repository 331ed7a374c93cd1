// sampler.h: logits -> token id.
#ifndef ATSI_RUNTIME_SAMPLER_H
#define ATSI_RUNTIME_SAMPLER_H

#include <stdint.h>

#include "formats/base/error.h"

struct atsi_sampler_params {
    float temp;           // 0: greedy, the rest is then ignored except the penalty
    int32_t top_k;        // 0: all
    float top_p;          // 1: all
    float min_p;          // 0: all; relative to the most likely token
    float repeat_penalty; // 1: none; over the last ATSI_PENALTY_WINDOW tokens of prompt and output
    uint64_t seed;
};
enum {
    ATSI_PENALTY_WINDOW = 64
};
struct atsi_sampler_params atsi_sampler_defaults(void); // cli.md's; seed 0

struct atsi_sampler;
// banned: ids that must never come out (unused and padding rows of the vocabulary), n_banned of them, copied.
enum atsi_status atsi_sampler_create(const struct atsi_sampler_params *params, uint32_t n_vocab, const int32_t *banned,
                                     uint32_t n_banned, struct atsi_sampler **out, struct atsi_error *err);
void atsi_sampler_free(struct atsi_sampler *s); // NULL fine

// Tells the sampler of a token of the text (prompt or output), for the penalty.
void atsi_sampler_accept(struct atsi_sampler *s, int32_t id);
// Picks the next token. `logits` [n_vocab] is not changed. Order: penalty, top-k, top-p, min-p, temperature. Equal logits:
// the lower id is the greater. ATSI_FAILED when any logit is NaN or positive infinity, or none is finite. Allocates nothing.
enum atsi_status atsi_sampler_pick(struct atsi_sampler *s, const float *logits, int32_t *id, struct atsi_error *err);

#endif
