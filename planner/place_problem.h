// place_problem.h: one placement as the solver sees it, for the search over regions, chunks and methods (private to place.c).
#ifndef ATSI_PLANNER_PLACE_PROBLEM_H
#define ATSI_PLANNER_PLACE_PROBLEM_H

#include "planner/hot_experts.h"
#include "planner/place.h"

// One point of the search.
struct atsi_candidate {
    uint32_t chunk;
    uint64_t temp_bytes;
    enum atsi_place_method method;
    bool streamed;
    enum atsi_expert_guess guess; // that numbers of single experts rest on where nothing has been counted
    double decode_us, prefill_us; // as predicted
};

// What single experts were priced for last.
struct atsi_priced {
    uint32_t chunk; // 0: nothing yet
    bool streamed, has_region;
    enum atsi_expert_guess guess;
    uint64_t granularity;
};

struct atsi_problem {
    struct atsi_plan *plan; // at the candidate's chunk; plan, profile and options are the caller's
    const struct atsi_device_profile *profile;
    const struct atsi_place_options *options;
    struct atsi_objective objective;
    // [n_units + ATSI_EXPERT_BLOCKS_MAX]: behind the plan's units those that stand for single experts
    struct atsi_solve_unit *units, *case_units; // case_units: with the fixes of one case
    uint8_t *placement, *case_placement;
    uint64_t free_bytes; // for residents and the temporary region
    bool has_experts;
    struct atsi_hot_experts hot; // of routers whose experts may be resident one by one
    struct atsi_priced priced;
};

// Close with atsi_problem_close whether it succeeds or not.
enum atsi_status atsi_problem_open(struct atsi_problem *s, struct atsi_plan *plan,
                                   const struct atsi_device_profile *profile, const struct atsi_place_options *options,
                                   struct atsi_error *err);
void atsi_problem_close(struct atsi_problem *s);

// Ranks the experts that no pin holds, by the options' statistics, so that ATSI_PLACE_SINGLE_EXPERTS can be tried. ATSI_BAD_INPUT when
// the options want that way and there is nothing to place so.
enum atsi_status atsi_problem_rank_experts(struct atsi_problem *s, struct atsi_error *err);

// The plan's units with the pins of the options.
enum atsi_status atsi_problem_units(struct atsi_problem *s, bool streamed, struct atsi_error *err);
// What those pinned to the GPU take, each rounded up to whole granules.
uint64_t atsi_problem_pinned_bytes(const struct atsi_problem *s, uint64_t granularity);
// The best placement of a candidate, left in s->placement. milp NULL: the dynamic program alone.
enum atsi_status atsi_problem_solve(struct atsi_problem *s, const struct atsi_candidate *c, uint64_t granularity,
                                    const struct atsi_milp_options *milp, struct atsi_solve_result *out,
                                    struct atsi_error *err);
void atsi_problem_set_backends(struct atsi_plan *plan, const uint8_t *placement);
// Makes what was solved the plan's placement. Single experts are taken one by one instead of by blocks, and *result then says so.
enum atsi_status atsi_problem_apply(struct atsi_problem *s, const struct atsi_candidate *c, enum atsi_hit_rates rates,
                                    struct atsi_solve_result *result, struct atsi_error *err);

#endif
