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
    double *counts;                           // [n_experts] choices, each by its weight
    double weight;                            // of a choice made now: instead of all older ones losing, new ones gain
    double n_tokens_recent, n_squares_recent; // of the tokens counted: sums of their weights, and of these squared
    double n_chosen_recent, n_hits_recent;    // likewise
    double n_chosen_seen, n_hits_seen;        // likewise, without what was expected at first, since the last restart
    uint64_t n_chosen, n_hits;                // all alike
};

// `slots` [n_experts] as in kernels/op_call.h; hit_rate of those that have a place. Free with atsi_wants_free in any case.
enum atsi_status atsi_wants_start(struct atsi_wants *w, uint32_t n_experts, uint32_t n_used, const int32_t *slots,
                                  double hit_rate, struct atsi_error *err);
void atsi_wants_free(struct atsi_wants *w);

// One token has chosen ids [n_used].
void atsi_wants_note(struct atsi_wants *w, const int32_t *ids, const int32_t *slots);
// The part of what is chosen that is resident, lately.
double atsi_wants_hit_rate(const struct atsi_wants *w);
// The same as it was seen alone, for people; as long as nothing has been seen, as above.
double atsi_wants_seen_hit_rate(const struct atsi_wants *w);
// Others are resident now: hit_rate is what recent choices would have found there.
void atsi_wants_restart_hits(struct atsi_wants *w, double hit_rate);

// How many of the coming tokens will want each expert, as a part of them: rates [n_experts]. Counts of few tokens differ by luck, and the
// highest of many are lucky ones. So within those that are resident and within the others, each for themselves, counts are taken back
// towards the group's mean, the more the less they differ beyond luck: what is resident for good reasons stays.
void atsi_wants_estimate(const struct atsi_wants *w, const int32_t *slots, double *rates);

struct atsi_wanted {
    uint32_t expert,
        place;   // the one without a place that is wanted most, and the place of the one that is wanted least
    double gain; // choices by which the first is wanted more, as they are counted; 0: not clearly
};
// Clearly: by `sigmas` standard deviations of such a difference when both are wanted alike.
struct atsi_wanted atsi_wants_exchange(const struct atsi_wants *w, const int32_t *slots, double sigmas);
// By rates that were estimated; gain: tokens by which the first is wanted more, a token; 0: not more.
struct atsi_wanted atsi_wants_exchange_by(const double *rates, uint32_t n_experts, const int32_t *slots);

#endif
