// solve.h: static placement (docs/placement.md): which units live on the GPU.
//
//     max  sum r_i [i on GPU]  -  sum over i >= 2 of c_i [side of i differs from side of i-1]
//     s.t. sum of s_i [i on GPU] <= M          r_i = t_cpu_us - t_gpu_us, c_i = switch_us, i = 1..n in execution order
//
// Sizes are rounded up to whole granules and the budget down, here and in everything that tests what fits. The library
// knows no models: a unit is a size, two times and a flag. Functions may run in several threads on different data, except
// that atsi_solve_milp and atsi_solve use GLPK, which keeps state of its own: one call at a time, and the caller holds no
// GLPK objects meanwhile.
#ifndef ATSI_PLANNER_SOLVE_SOLVE_H
#define ATSI_PLANNER_SOLVE_SOLVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/backend.h"
#include "formats/base/error.h"

#define ATSI_SOLVE_GRANULES_MAX (UINT64_C(1) << 20) // largest budget in granules

// A decision made before the solver runs (a user's pin, Algorithm 1's class).
enum atsi_solve_fix {
    ATSI_FIX_NONE = 0,
    ATSI_FIX_CPU = 1,
    ATSI_FIX_GPU = 2
};

struct atsi_solve_unit {
    uint64_t size_bytes;
    double t_cpu_us, t_gpu_us; // time on either side, >= 0
    double switch_us;          // cost of the boundary in front of this unit, >= 0; ignored for the first
    bool is_expert;
    bool
        is_divisible; // stands for something finer: bounds hold even if any part of it may be taken. Placements take it whole
    enum atsi_solve_fix fix;
};

// Units belong to the caller. granularity_bytes >= 1, n_units >= 1.
struct atsi_solve_instance {
    uint64_t budget_bytes, granularity_bytes;
    size_t n_units;
    const struct atsi_solve_unit *units;
};

// What a placement is worth. A placement is n_units entries of enum atsi_backend.
struct atsi_solve_value {
    double objective_us; // as above
    double baseline_us;  // everything on the CPU
    double predicted_us; // this placement, switches included: baseline - objective
    uint64_t used_granules, used_bytes;
};

// Whole granules of a unit, rounded up; of the budget, rounded down.
uint64_t atsi_solve_unit_granules(const struct atsi_solve_instance *inst, size_t i);
uint64_t atsi_solve_budget_granules(const struct atsi_solve_instance *inst);

bool atsi_solve_has_divisible(const struct atsi_solve_instance *inst);

// What a placement ([n_units], enum atsi_backend) is worth, whether or not it fits the budget.
void atsi_solve_evaluate(const struct atsi_solve_instance *inst, const uint8_t *placement,
                         struct atsi_solve_value *out);

// The optimum by dynamic programming over (unit, granules, side): O(n M) time, two bits a state for backtracking.
// Writes n_units entries to `placement`. ATSI_BAD_INPUT when the units fixed to the GPU do not fit or the budget has
// more than ATSI_SOLVE_GRANULES_MAX granules, ATSI_FAILED without memory.
enum atsi_status atsi_solve_dp(const struct atsi_solve_instance *inst, uint8_t *placement, struct atsi_error *err);

// The paper's Algorithm 1 as fixes: when all non-expert units fit they are fixed to the GPU and the experts stay open,
// else the experts are fixed to the CPU. Units that are fixed already keep their fix. Copies inst's units to `units`
// (n_units entries) with the fixes set; without experts it is a plain copy.
void atsi_solve_partition(const struct atsi_solve_instance *inst, struct atsi_solve_unit *units);

enum atsi_milp_status {
    ATSI_MILP_OPTIMAL = 0,
    ATSI_MILP_BOUNDED = 1,
    ATSI_MILP_SKIPPED = 2
};

struct atsi_milp_options {
    double seconds_max;    // of the whole cross-check; 0 skips it
    double seconds_enough; // stop here once the gap is at most gap_target
    double gap_target;     // (bound - objective) / max(1, |objective|)
    // In what sizes are rounded for bounds with divisible units, which fill what rounding leaves; 0: as the instance says
    uint64_t fine_bytes;
    const uint8_t *incumbent; // a known placement (the DP's) that the search may prune with, or NULL
};

struct atsi_milp_result {
    enum atsi_milp_status status;
    double objective_us; // of the best placement that GLPK holds, evaluated exactly; valid unless skipped
    double
        bound_us; // no placement is worth more (tree bound), with parts of divisible units either; valid unless skipped
    double lp_bound_us; // the root relaxation's
    double seconds;
};

// What atsi_solve uses: stop after 2 s with a gap of at most 0.5 %, after 60 s in any case.
struct atsi_milp_options atsi_milp_defaults(void);

// The same problem as a mixed integer program for GLPK (silenced). `placement` (n_units entries or NULL) receives
// GLPK's best, without units of which it takes a part. With divisible units nothing is proven optimal, only bounded. Failure to build or solve is ATSI_MILP_SKIPPED, not an error; ATSI_FAILED without memory.
enum atsi_status atsi_solve_milp(const struct atsi_solve_instance *inst, const struct atsi_milp_options *options,
                                 uint8_t *placement, struct atsi_milp_result *out, struct atsi_error *err);

// The certificate that every plan carries.
struct atsi_solve_result {
    struct atsi_solve_value value; // of the placement returned
    struct atsi_milp_result milp;
    double gap; // (bound - objective) / max(1, |objective|); 0 when the cross-check was skipped
    double dp_seconds;
};

// DP, then the cross-check. When GLPK proves an optimum that differs from the DP's by more than 1e-6 relative, the call
// fails (ATSI_FAILED) with both values in the message. `options` may be NULL for the defaults; options->incumbent is
// ignored (it is the DP's placement).
enum atsi_status atsi_solve(const struct atsi_solve_instance *inst, const struct atsi_milp_options *options,
                            uint8_t *placement, struct atsi_solve_result *out, struct atsi_error *err);

#endif
