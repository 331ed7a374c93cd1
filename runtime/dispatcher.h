// dispatcher.h: decides, before prefill and between decode rounds, where each unit runs (docs/scheduling.md, docs/load.md).
#ifndef ATSI_RUNTIME_DISPATCHER_H
#define ATSI_RUNTIME_DISPATCHER_H

#include "runtime/executor.h"
#include "runtime/pinned_ring.h"
#include "runtime/schedule/round_units.h"

struct atsi_dispatcher;

struct atsi_dispatcher_params {
    const struct atsi_plan *plan;     // borrowed; without times: the static placement always
    enum atsi_schedule_policy policy; // ATSI_POLICY_NONE: the static placement always
    bool has_device;
    bool no_split_rows;     // units are never shared
    double staged_slowdown; // of copies that are staged (pinned_ring.h); at least 1 where there are any
};
enum atsi_status atsi_dispatcher_create(const struct atsi_dispatcher_params *params, struct atsi_dispatcher **out,
                                        struct atsi_error *err);
// Where units are at home from now on (at first: where the plan has them), and how the weights of those on the CPU travel (at first: not
// at all). Both [n_units], copied.
void atsi_dispatcher_move_homes(struct atsi_dispatcher *d, const enum atsi_backend *homes,
                                const enum atsi_travel *travel);
// Which experts are resident one by one from now on (at first: those of the plan). [n_units] as in a plan, borrowed; it stays as it is
// while something is decided and what was decided is prepared.
void atsi_dispatcher_take_residents(struct atsi_dispatcher *d, struct atsi_resident_experts *residents);
void atsi_dispatcher_free(struct atsi_dispatcher *d); // NULL fine

// How CPU-resident units use the link in decode rounds.
enum atsi_link_use {
    ATSI_LINK_STREAMS = 0, // whole units are promoted by the policy
    // Every CPU unit is divided: the GPU reads its part in place while the CPU computes the rest, in parts that end together.
    ATSI_LINK_SHARES = 1,
    ATSI_LINK_USES = 2
};
const char *atsi_link_use_name(enum atsi_link_use use); // "streams", "shares"
// Whether decisions depend on speeds at all; and whether a decode round can use the link in either way, so that the faster one has to
// be found by trying.
bool atsi_dispatcher_is_dynamic(const struct atsi_dispatcher *d);
bool atsi_dispatcher_has_choice(const struct atsi_dispatcher *d);

// The assignment of a round of n_tokens under the given speeds. `use` and `factors` ([n_units], NULL: 1 each) matter for single tokens only.
// Streams of single tokens are scheduled, then refined (runtime/refine.h) but for ATSI_POLICY_PAPER.
// The arrays belong to the dispatcher and hold until its next call.
enum atsi_status atsi_dispatcher_decide(struct atsi_dispatcher *d, uint32_t n_tokens, enum atsi_link_use use,
                                        const struct atsi_scales *scales, const struct atsi_unit_factors *factors,
                                        struct atsi_assignment *out, struct atsi_error *err);
// Of the last decision: what refined streams should take at the speeds that they were decided for (0: none were refined), promoted and shared
// units.
struct atsi_decision {
    double refined_us;
    uint32_t n_promoted, n_shared;
};
struct atsi_decision atsi_dispatcher_last(const struct atsi_dispatcher *d);

#endif
