// wants.h: how much each expert of a router has been wanted lately, and which exchange of a resident one for another pays. Pure.
#ifndef ATSI_RUNTIME_WANTS_H
#define ATSI_RUNTIME_WANTS_H

#include <stdbool.h>
#include <stdint.h>

#include "formats/base/error.h"

enum {
    ATSI_WANTS_TOKENS = 256, // after so many tokens a choice counts for 1 / e of a new one
    ATSI_WANTS_PRIOR = 16    // tokens that what the plan expects counts for at first
};

struct atsi_wants {
    uint32_t n_experts, n_used;
    double *counts;                        // [n_experts] choices, each by its weight
    double weight;                         // of a choice made now: instead of all older ones losing, new ones gain
    double n_chosen_recent, n_hits_recent; // likewise
    uint64_t n_chosen, n_hits;             // all alike
};

// `slots` [n_experts] as in kernels/op_call.h; hit_rate of those that have a place. Free with atsi_wants_free in any case.
enum atsi_status atsi_wants_start(struct atsi_wants *w, uint32_t n_experts, uint32_t n_used, const int32_t *slots,
                                  double hit_rate, struct atsi_error *err);
void atsi_wants_free(struct atsi_wants *w);

// One token has chosen ids [n_used].
void atsi_wants_note(struct atsi_wants *w, const int32_t *ids, const int32_t *slots);
// The part of what is chosen that is resident, lately.
double atsi_wants_hit_rate(const struct atsi_wants *w);

struct atsi_wanted {
    uint32_t expert,
        place;   // the one without a place that is wanted most, and the place of the one that is wanted least
    double gain; // choices by which the first is wanted more, as they are counted; 0: not clearly
};
// Clearly: by `sigmas` standard deviations of such a difference when both are wanted alike.
struct atsi_wanted atsi_wants_exchange(const struct atsi_wants *w, const int32_t *slots, double sigmas);

#endif
