// dispatcher.h: decides, before prefill and between decode rounds, where each unit runs (docs/scheduling.md, tuner.h).
#ifndef ATSI_RUNTIME_DISPATCHER_H
#define ATSI_RUNTIME_DISPATCHER_H

#include "runtime/executor.h"
#include "runtime/schedule/round_units.h"

struct atsi_dispatcher;

// policy ATSI_POLICY_NONE or a plan without times: the static placement always.
enum atsi_status atsi_dispatcher_create(const struct atsi_plan *plan, enum atsi_schedule_policy policy, bool has_device,
                                        struct atsi_dispatcher **out, struct atsi_error *err);
// Where units are at home from now on (at first: where the plan has them), and whether the weights of those on the CPU are in pinned
// memory, so that they can travel or be read in place (at first: none). Both [n_units], copied.
void atsi_dispatcher_move_homes(struct atsi_dispatcher *d, const enum atsi_backend *homes, const bool *can_travel);
void atsi_dispatcher_free(struct atsi_dispatcher *d); // NULL fine

// How CPU-resident units use the link in decode rounds.
enum atsi_link_use {
    ATSI_LINK_STREAMS = 0, // whole units are promoted by the policy
    // Every CPU unit is divided: the GPU reads its part in place while the CPU computes the rest. The parts are such that both
    // end together at the profiled speeds, or with a link that is slower or faster than profiled beside a working CPU.
    ATSI_LINK_SHARES = 1,
    ATSI_LINK_SHARES_LESS = 2,
    ATSI_LINK_SHARES_MORE = 3,
    ATSI_LINK_USES = 4
};
// Whether a decode round can do either, so that the fastest has to be found by trying.
bool atsi_dispatcher_has_choice(const struct atsi_dispatcher *d);

// The assignment of a round of n_tokens under the given speeds (`use` matters for single tokens only). The arrays belong to the dispatcher and hold until its next call.
enum atsi_status atsi_dispatcher_decide(struct atsi_dispatcher *d, uint32_t n_tokens, enum atsi_link_use use,
                                        const struct atsi_scales *scales, struct atsi_assignment *out,
                                        struct atsi_error *err);
// Of the last decision: predicted end of the round, promoted and shared units, and what deciding took.
struct atsi_decision {
    double predicted_us, lower_bound_us, deciding_us;
    uint32_t n_promoted, n_shared;
};
struct atsi_decision atsi_dispatcher_last(const struct atsi_dispatcher *d);

#endif
