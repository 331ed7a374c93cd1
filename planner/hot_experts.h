// hot_experts.h: experts that a placement keeps on the GPU one by one while their operations are on the CPU (docs/placement.md, "Single
// experts"): which come first, what it is worth to have so many of a router's, and how many of each router a budget is for.
#ifndef ATSI_PLANNER_HOT_EXPERTS_H
#define ATSI_PLANNER_HOT_EXPERTS_H

#include "formats/plan.h"
#include "formats/routing.h"
#include "planner/objective.h"

// A router whose experts can be resident one by one, and those experts, the hottest first.
struct atsi_expert_router {
    uint32_t unit; // that holds it
    uint32_t n_experts, n_used;
    uint64_t expert_bytes; // of one expert in all operations behind the router
    uint64_t table_bytes;  // what the first resident one costs beside that: the table of slots, alignment
    uint64_t beside_bytes; // what the last one costs beside that: the operations move to the GPU, with their biases
    uint16_t *ids;         // [n_experts]
    float *shares;         // [n_experts] of the router's choices, in the order of ids; they add up to 1
    double *saved_us;      // [n_experts + 1] microseconds of the objective saved when so many are resident
};

// A part of what the experts of all routers can save, and what it takes; together one unit for the solver.
struct atsi_expert_block {
    uint64_t size_bytes;
    double value_us;
    double bulge_us; // how much more than its part of the value a part of the bytes saves at most
};

enum {
    ATSI_EXPERT_BLOCKS_MAX = 256,
    ATSI_EXPERT_GRANULES_MAX = 1 << 14 // of atsi_hot_experts_solve
};

// How unevenly routers are taken to choose when nothing has been counted: the hottest part x of the experts gets x^0.5 of the choices, the
// least uneven that has been measured (docs/placement.md), or, for placements that even routers would make slow, x^0.7.
enum atsi_expert_guess {
    ATSI_GUESS_BOLD = 0,
    ATSI_GUESS_CAUTIOUS = 1,
    ATSI_GUESSES = 2
};

struct atsi_hot_experts {
    bool counted;                 // by statistics; else shares are guessed
    enum atsi_expert_guess guess; // so
    struct atsi_expert_router *routers;
    uint32_t n_routers; // 0: nothing can be resident one by one
    // Set by atsi_hot_experts_solve:
    uint64_t granule_bytes;
    uint32_t n_granules;
    double *best_us; // [n_routers + 1][n_granules + 1] the most that the first routers can save with so many granules
    struct atsi_expert_block blocks[ATSI_EXPERT_BLOCKS_MAX];
    uint32_t n_blocks;
    uint32_t *n_resident; // [n_routers] as chosen last
};

// Ranks the experts of every router of the plan whose experts the GPU has kernels for and that have matrices of more than
// ATSI_SMALL_TENSOR_BYTES, but for routers behind which a unit is `held` [n_units] (pinned; NULL: none). By *stats, or NULL: in the order of
// their ids, with shares by the bold guess. ATSI_BAD_INPUT when the statistics know nothing of one of these routers (the message names its
// layer). Free with atsi_hot_experts_free whether it succeeds or not.
enum atsi_status atsi_hot_experts_rank(const struct atsi_plan *plan, const struct atsi_routing_stats *stats,
                                       const bool *held, struct atsi_hot_experts *out, struct atsi_error *err);
void atsi_hot_experts_free(struct atsi_hot_experts *h);

// Whether the router that unit i_unit depends on is among them.
bool atsi_hot_experts_has(const struct atsi_hot_experts *h, const struct atsi_plan *plan, uint32_t i_unit);

// Another guess from now on; nothing changes where experts have been counted. Numbers are to be priced and solved again.
void atsi_hot_experts_guess(struct atsi_hot_experts *h, enum atsi_expert_guess guess);

// Values every number of residents at the plan's times. A token: both processors work on the router's operations, divided as the runtime
// divides them (runtime/schedule/hits.h), with a hand-over unless the GPU computes all slots; with all resident the GPU works alone. A
// chunk, which touches nearly every expert, saves the streaming of what is resident; without `streamed` only what is all resident saves.
void atsi_hot_experts_price(struct atsi_hot_experts *h, const struct atsi_plan *plan,
                            const struct atsi_objective *objective, bool streamed);

// The best numbers of residents for every budget up to most_bytes, exactly: one number for each router, a dynamic program over routers and
// granules. Sizes are rounded up to granules of granule_bytes, or more where that would make over ATSI_EXPERT_GRANULES_MAX. Sets
// the blocks: what bytes would save if any part of an expert could be resident, a concave function that no numbers exceed, byte by byte,
// in pieces of whole granules, the most worthwhile first.
enum atsi_status atsi_hot_experts_solve(struct atsi_hot_experts *h, uint64_t most_bytes, uint64_t granule_bytes,
                                        struct atsi_error *err);

// Sets h->n_resident to the best numbers for a budget, of at most most_bytes, and fills what rounding left. Returns what they save.
double atsi_hot_experts_choose(struct atsi_hot_experts *h, uint64_t budget_bytes);

// Which hit rates a plan gets.
enum atsi_hit_rates {
    ATSI_HITS_EXPECTED, // the shares of what is resident, where nothing has been counted by the bold guess
    ATSI_HITS_EVEN      // as if every expert were chosen alike
};
// Makes what was chosen the plan's (plan->resident_experts). Units all of whose experts are resident go to the GPU instead.
enum atsi_status atsi_hot_experts_apply(const struct atsi_hot_experts *h, struct atsi_plan *plan,
                                        enum atsi_hit_rates rates, struct atsi_error *err);

#endif
