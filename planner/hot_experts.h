// hot_experts.h: experts that a placement keeps on the GPU one by one while their operations are on the CPU (docs/placement.md, "Single
// experts"): which come first, what they are worth, and how many of each router fit.
#ifndef ATSI_PLANNER_HOT_EXPERTS_H
#define ATSI_PLANNER_HOT_EXPERTS_H

#include "formats/plan.h"
#include "formats/routing.h"
#include "planner/objective.h"

// A router whose experts can be resident one by one, and those experts, the hottest first.
struct atsi_expert_router {
    uint32_t unit; // that holds it
    uint32_t n_experts;
    uint64_t expert_bytes; // of one expert in all operations behind the router
    uint64_t table_bytes;  // what the first resident one costs beside that: the table of slots, alignment
    uint16_t *ids;         // [n_experts]
    float *shares;         // [n_experts] of the router's choices, in the order of ids; they add up to 1
};

// One expert: ids[rank] of routers[router].
struct atsi_single_expert {
    uint32_t router, rank;
    double value_us; // microseconds of the objective saved by having it resident
    double value_per_byte;
};

// Experts that follow each other by value a byte, together one unit for the solver.
struct atsi_expert_block {
    uint64_t size_bytes;
    double value_us;
};

enum {
    ATSI_EXPERT_BLOCKS_MAX = 256
};

struct atsi_hot_experts {
    bool counted; // by statistics; else shares are the prior's
    struct atsi_expert_router *routers;
    uint32_t n_routers; // 0: nothing can be resident one by one
    // Set by atsi_hot_experts_price:
    struct atsi_single_expert *experts; // of all routers, by value a byte
    uint32_t n_experts;
    struct atsi_expert_block blocks[ATSI_EXPERT_BLOCKS_MAX];
    uint32_t n_blocks;
    uint32_t *n_resident; // [n_routers] as chosen last
};

// The part of a router's choices that goes to the expert of this rank when nothing has been counted: uneven as the rank to the power of
// -ATSI_PRIOR_EXPONENT (docs/placement.md says which measurements that is below).
#define ATSI_PRIOR_EXPONENT 0.3

// Ranks the experts of every router of the plan whose experts the GPU has kernels for and that have matrices of more than
// ATSI_SMALL_TENSOR_BYTES, but for routers behind which a unit is `held` [n_units] (pinned; NULL: none). By *stats, or NULL: in the order of
// their ids, with the prior's shares. ATSI_BAD_INPUT when the statistics know nothing of one of these routers (the message names its
// layer). Free with atsi_hot_experts_free whether it succeeds or not.
enum atsi_status atsi_hot_experts_rank(const struct atsi_plan *plan, const struct atsi_routing_stats *stats,
                                       const bool *held, struct atsi_hot_experts *out, struct atsi_error *err);
void atsi_hot_experts_free(struct atsi_hot_experts *h);

// Whether the router that unit i_unit depends on is among them.
bool atsi_hot_experts_has(const struct atsi_hot_experts *h, const struct atsi_plan *plan, uint32_t i_unit);

// Values every expert at the plan's times and makes the blocks. A token saves, whenever it chooses the expert, the expert's part of what
// the CPU side of the operations takes beyond the GPU's; a chunk, which touches nearly all of them, saves its part of the streaming. With
// `streamed` the CPU's side is atsi_streamed_us, else a chunk saves nothing (planner/objective.h).
void atsi_hot_experts_price(struct atsi_hot_experts *h, const struct atsi_plan *plan,
                            const struct atsi_objective *objective, bool streamed);

// Takes experts by value a byte while they fit into budget_bytes, into h->n_resident. Returns what they are worth together: less than the
// most that is possible by one expert at most.
double atsi_hot_experts_choose(struct atsi_hot_experts *h, uint64_t budget_bytes);

// Which hit rates a plan gets.
enum atsi_hit_rates {
    ATSI_HITS_EXPECTED, // the shares of what is resident
    ATSI_HITS_EVEN      // as if every expert were chosen alike
};
// Makes what was chosen the plan's (plan->resident_experts). Units all of whose experts are resident go to the GPU instead.
enum atsi_status atsi_hot_experts_apply(const struct atsi_hot_experts *h, struct atsi_plan *plan,
                                        enum atsi_hit_rates rates, struct atsi_error *err);

#endif
