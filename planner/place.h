// place.h: which units live on the GPU under a hard budget, and how many tokens a prefill round takes (docs/placement.md).
#ifndef ATSI_PLANNER_PLACE_H
#define ATSI_PLANNER_PLACE_H

#include "formats/routing.h"
#include "planner/budget.h"
#include "planner/chunk.h"
#include "planner/objective.h"
#include "planner/predict.h"
#include "planner/solve/baseline.h"

struct atsi_pin {
    const char *pattern; // POSIX extended regular expression over unit names, matched anywhere
    enum atsi_backend side;
};

enum atsi_place_goal {
    ATSI_PLACE_DYNAMIC = 0, // units, so that rounds with dynamic transfer are fast
    // For comparison, without a temporary region:
    ATSI_PLACE_STATIC = 1,      // units, so that rounds that promote nothing are fast
    ATSI_PLACE_WHOLE_LAYERS = 2 // as others place
};

// How experts are placed.
enum atsi_experts_way {
    ATSI_EXPERTS_AUTO = 0,   // whichever is predicted to be better
    ATSI_EXPERTS_UNIT = 1,   // all experts of an operation on one side
    ATSI_EXPERTS_SINGLE = 2, // one by one (hot_experts.h)
};

struct atsi_place_options {
    uint64_t vram_bytes; // the most that the process may hold
    enum atsi_place_goal goal;
    bool choose_chunk;     // else the plan's chunk stays
    double prefill_weight; // 0..1: weight of prefill time in what is minimised, the rest is decode time
    enum atsi_experts_way experts;
    const struct atsi_routing_stats *routing; // which experts are chosen most often; NULL: not known
    const struct atsi_pin *pins;
    uint32_t n_pins;
    const struct atsi_device *device; // as for atsi_budget_base
    double certify_seconds;           // most that the cross-check by GLPK may take; 0: none
};

enum atsi_place_method {
    ATSI_PLACE_UNDIVIDED = 0,      // all units together
    ATSI_PLACE_PARTITION = 1,      // the paper's Algorithm 1
    ATSI_PLACE_SINGLE_EXPERTS = 2, // experts one by one, the other units together with them
    ATSI_PLACE_LAYERS = 3          // the best of the baselines that take whole layers or their experts
};

enum {
    ATSI_PLACE_SEARCHED = 3
}; // methods before ATSI_PLACE_LAYERS, which are tried beside each other

// The best that was found for one chunk.
struct atsi_chunk_option {
    uint32_t chunk;
    bool fits; // else there is no room for activations of so many tokens and what is pinned, and the rest is 0
    double decode_us, prefill_us, objective_us;
};

struct atsi_placement {
    struct atsi_budget budget;
    enum atsi_place_method method;
    bool streamed; // the placement was solved with the times that streaming leaves of the CPU side
    double method_decode_us[ATSI_PLACE_SEARCHED]; // predicted for the best placement of each method; 0: not tried
    double decode_us;                             // predicted: a token, with dynamic transfer, in the fastest way
    double prefill_us;                            // predicted: a chunk
    double decode_static_us;                      // the same without dynamic transfer
    double prefill_static_us;
    struct atsi_decode_forecast decode; // each way; zero where the placement is static (--placement)
    bool experts_counted;               // those that are resident one by one are the hottest by statistics
    uint32_t n_estimated;               // operations priced by a fitted line
    struct atsi_objective objective;
    struct atsi_chunk_option chunks[ATSI_CHUNKS_MAX]; // what was tried
    uint32_t n_chunks;
};

// Places the units of *plan: sets their backends, vram and temp limits, times, certificate, device name and predictions; with
// choose_chunk also the chunk and what follows from it (chunk.h), and the experts that are resident one by one. The temporary region's
// size is searched. ATSI_BAD_INPUT when the budget is under atsi_budget_least (the message names the smallest budget that works), a
// pattern matches nothing, pinned units do not fit (likewise), or the statistics lack a layer. Sizes are rounded up to 256 KiB in the solver (budgets over 32 GiB: to more).
enum atsi_status atsi_place(struct atsi_plan *plan, const struct atsi_device_profile *profile,
                            const struct atsi_place_options *options, struct atsi_placement *out,
                            struct atsi_error *err);

// What a placement as others make it would take (planner/solve/baseline.h), without dynamic transfer and without a temporary
// region. *plan is placed (its times are used) and stays as it is.
enum atsi_status atsi_place_baseline(const struct atsi_plan *plan, const struct atsi_device_profile *profile,
                                     const struct atsi_place_options *options, enum atsi_baseline baseline,
                                     double *decode_us, double *prefill_us, struct atsi_error *err);

#endif
