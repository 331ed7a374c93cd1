#include "planner/place_problem.h"

#include <math.h>
#include <regex.h>
#include <stdlib.h>
#include <string.h>

#include "planner/cost.h"

// ---- the units ----------------------------------------------------------------------------------------------------

static enum atsi_status apply_pin(struct atsi_problem *s, const struct atsi_pin *pin, struct atsi_error *err) {
    regex_t regex;
    uint32_t n_matches = 0;
    if (regcomp(&regex, pin->pattern, REG_EXTENDED | REG_NOSUB) != 0)
        return atsi_fail(err, ATSI_BAD_INPUT, "--pin: \"%s\" is no regular expression", pin->pattern);
    for (uint32_t i = 0; i < s->plan->program.n_units; i++) {
        const struct atsi_unit *u = &s->plan->program.units[i];
        if (regexec(&regex, u->name, 0, NULL, 0) != 0) continue;
        if (pin->side == ATSI_GPU && !atsi_unit_runs_on_gpu(&s->plan->program, u)) {
            regfree(&regex);
            return atsi_fail(err, ATSI_BAD_INPUT, "--pin: the GPU has no kernels for the type of unit %s", u->name);
        }
        s->units[i].fix = pin->side == ATSI_GPU ? ATSI_FIX_GPU : ATSI_FIX_CPU;
        n_matches++;
    }
    regfree(&regex);
    if (n_matches) return ATSI_OK;
    return atsi_fail(err, ATSI_BAD_INPUT, "--pin: \"%s\" matches no unit (their names are like %s)", pin->pattern,
                     s->plan->program.units[s->plan->program.n_units / 2].name);
}

static enum atsi_status apply_pins(struct atsi_problem *s, struct atsi_error *err) {
    for (uint32_t i = 0; i < s->options->n_pins; i++) ATSI_TRY(apply_pin(s, &s->options->pins[i], err));
    return ATSI_OK;
}

enum atsi_status atsi_problem_units(struct atsi_problem *s, bool streamed, struct atsi_error *err) {
    atsi_objective_units(&s->objective, s->plan, streamed, s->units);
    return apply_pins(s, err);
}

uint64_t atsi_problem_pinned_bytes(const struct atsi_problem *s, uint64_t granularity) {
    uint32_t last = s->plan->program.n_units - 1;
    bool both_ends = s->units[0].fix == ATSI_FIX_GPU && s->units[last].fix == ATSI_FIX_GPU;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i <= last; i++) {
        uint64_t size = s->units[i].size_bytes - (both_ends && i == last ? atsi_budget_shared(s->plan) : 0);
        if (s->units[i].fix == ATSI_FIX_GPU) bytes += (size + granularity - 1) / granularity * granularity;
    }
    return bytes;
}

// Prices depend on chunk, streaming and guess, of the region only on whether there is one. While candidates are searched, in granules four times as large: what
// that leaves is filled expert by expert anyway.
static enum atsi_status price_experts(struct atsi_problem *s, const struct atsi_candidate *c, uint64_t granularity,
                                      bool settles, struct atsi_error *err) {
    if (!settles) granularity *= 4;
    struct atsi_priced last = s->priced;
    struct atsi_priced now = {c->chunk, c->streamed, s->plan->limits.temp_bytes > 0, c->guess, granularity};
    if (last.chunk == now.chunk && last.streamed == now.streamed && last.has_region == now.has_region &&
        last.guess == now.guess && last.granularity == now.granularity)
        return ATSI_OK;
    s->priced = now;
    atsi_hot_experts_guess(&s->hot, c->guess);
    atsi_hot_experts_price(&s->hot, s->plan, &s->objective, c->streamed);
    return atsi_hot_experts_solve(&s->hot, s->free_bytes, granularity, err);
}

// The operations of experts that go one by one stay on the CPU. What single experts save is the gain of units of their own, which have no
// neighbours.
static enum atsi_status fill_single_experts(struct atsi_problem *s, const struct atsi_candidate *c,
                                            uint64_t granularity, bool settles, struct atsi_error *err) {
    uint32_t n = s->plan->program.n_units;
    ATSI_TRY(price_experts(s, c, granularity, settles, err));
    for (uint32_t i = 0; i < n; i++)
        if (atsi_hot_experts_has(&s->hot, s->plan, i)) s->units[i].fix = ATSI_FIX_CPU;
    for (uint32_t i = 0; i < s->hot.n_blocks; i++)
        s->units[n + i] = (struct atsi_solve_unit){
            .size_bytes = s->hot.blocks[i].size_bytes, .t_cpu_us = s->hot.blocks[i].value_us, .is_divisible = true};
    return ATSI_OK;
}

static uint32_t n_solved(const struct atsi_problem *s, const struct atsi_candidate *c) {
    return s->plan->program.n_units + (c->method == ATSI_PLACE_SINGLE_EXPERTS ? s->hot.n_blocks : 0);
}

void atsi_problem_set_backends(struct atsi_plan *plan, const uint8_t *placement) {
    for (uint32_t i = 0; i < plan->program.n_units; i++)
        plan->program.units[i].backend = (enum atsi_backend)placement[i];
}

// ---- solving it ---------------------------------------------------------------------------------------------------

// A head that reads the embedding's matrix costs no memory beside an embedding on the GPU. The solver knows no such pairs, so the
// embedding's side is decided here: one case for each, the better of which is the optimum.
struct tie {
    enum atsi_solve_fix sides[2];
    int n_sides;
    uint64_t bytes; // 0: no tie, one case that decides nothing
};

static struct tie find_tie(const struct atsi_problem *s) {
    struct tie tie = {.sides = {ATSI_FIX_CPU, ATSI_FIX_GPU}, .n_sides = 2, .bytes = atsi_budget_shared(s->plan)};
    if (tie.bytes == 0) return (struct tie){.sides = {ATSI_FIX_NONE}, .n_sides = 1};
    if (s->units[0].fix != ATSI_FIX_NONE) {
        tie.sides[0] = s->units[0].fix;
        tie.n_sides = 1;
    }
    return tie;
}

// One case, into case_placement.
static enum atsi_status solve_case(struct atsi_problem *s, const struct atsi_candidate *c, uint64_t granularity,
                                   const struct tie *tie, enum atsi_solve_fix side,
                                   const struct atsi_milp_options *milp, struct atsi_solve_result *result,
                                   struct atsi_error *err) {
    uint32_t n = s->plan->program.n_units;
    struct atsi_solve_instance inst = {.budget_bytes = s->free_bytes - c->temp_bytes,
                                       .granularity_bytes = granularity,
                                       .n_units = n_solved(s, c),
                                       .units = s->case_units};
    memcpy(s->case_units, s->units, inst.n_units * sizeof *s->case_units);
    if (side != ATSI_FIX_NONE) s->case_units[0].fix = side;
    if (side == ATSI_FIX_GPU) s->case_units[n - 1].size_bytes -= tie->bytes;
    if (c->method == ATSI_PLACE_PARTITION) atsi_solve_partition(&inst, s->case_units);
    if (milp) return atsi_solve(&inst, milp, s->case_placement, result, err);
    ATSI_TRY(atsi_solve_dp(&inst, s->case_placement, err));
    atsi_solve_evaluate(&inst, s->case_placement, &result->value);
    return ATSI_OK;
}

// The certificate of the better case, with a bound that holds for both.
static void merge_result(struct atsi_solve_result *best, const struct atsi_solve_result *other) {
    bool better = other->value.objective_us > best->value.objective_us;
    struct atsi_solve_result merged = better ? *other : *best;
    double objective = merged.value.objective_us;
    merged.milp.bound_us = fmax(best->milp.bound_us, other->milp.bound_us);
    merged.milp.seconds = best->milp.seconds + other->milp.seconds;
    merged.dp_seconds = best->dp_seconds + other->dp_seconds;
    if (best->milp.status > merged.milp.status) merged.milp.status = best->milp.status;
    if (other->milp.status > merged.milp.status) merged.milp.status = other->milp.status;
    merged.gap =
        merged.milp.status == ATSI_MILP_SKIPPED ? 0 : (merged.milp.bound_us - objective) / fmax(1, fabs(objective));
    *best = merged;
}

enum atsi_status atsi_problem_solve(struct atsi_problem *s, const struct atsi_candidate *c, uint64_t granularity,
                                    const struct atsi_milp_options *milp, struct atsi_solve_result *out,
                                    struct atsi_error *err) {
    enum atsi_status status = ATSI_OK;
    bool found = false;
    ATSI_TRY(atsi_problem_units(s, c->streamed, err));
    if (c->method == ATSI_PLACE_SINGLE_EXPERTS) ATSI_TRY(fill_single_experts(s, c, granularity, milp != NULL, err));
    struct tie tie = find_tie(s);
    for (int i = 0; i < tie.n_sides; i++) {
        struct atsi_solve_result result = {.milp.status = ATSI_MILP_SKIPPED};
        status = solve_case(s, c, granularity, &tie, tie.sides[i], milp, &result, err);
        if (status == ATSI_BAD_INPUT) continue; // what is fixed to the GPU does not fit in this case
        ATSI_TRY(status);
        if (!found || result.value.objective_us > out->value.objective_us)
            memcpy(s->placement, s->case_placement, n_solved(s, c));
        if (found)
            merge_result(out, &result);
        else
            *out = result;
        found = true;
    }
    return found ? ATSI_OK : status;
}

// What the units on the GPU leave for single experts.
static uint64_t bytes_for_experts(const struct atsi_problem *s, const struct atsi_candidate *c) {
    const struct atsi_program *p = &s->plan->program;
    uint64_t left = s->free_bytes - c->temp_bytes;
    for (uint32_t i = 0; i < p->n_units; i++)
        if (p->units[i].backend == ATSI_GPU) left -= atsi_budget_unit(s->plan, &p->units[i]);
    bool both_ends = p->units[0].backend == ATSI_GPU && p->units[p->n_units - 1].backend == ATSI_GPU;
    return left + (both_ends ? atsi_budget_shared(s->plan) : 0);
}

// The solver took blocks, the placement has numbers of experts. Blocks lie on a concave function that no numbers exceed (hot_experts.h); the
// bound holds for parts of blocks in proportion, which that function exceeds by the bulge of one block at most.
static void count_single_experts(const struct atsi_problem *s, double experts_us, struct atsi_solve_result *result) {
    double blocks_us = 0, bulge_us = 0;
    for (uint32_t i = 0; i < s->hot.n_blocks; i++) {
        if (s->placement[s->plan->program.n_units + i] == ATSI_GPU) blocks_us += s->hot.blocks[i].value_us;
        bulge_us = fmax(bulge_us, s->hot.blocks[i].bulge_us);
    }
    result->value.objective_us += experts_us - blocks_us;
    if (result->milp.status == ATSI_MILP_SKIPPED) return;
    result->milp.bound_us += bulge_us;
    result->milp.status = ATSI_MILP_BOUNDED;
    double objective = result->value.objective_us;
    result->gap = fmax(0, result->milp.bound_us - objective) / fmax(1, fabs(objective));
}

enum atsi_status atsi_problem_apply(struct atsi_problem *s, const struct atsi_candidate *c, enum atsi_hit_rates rates,
                                    struct atsi_solve_result *result, struct atsi_error *err) {
    atsi_problem_set_backends(s->plan, s->placement);
    atsi_plan_drop_resident_experts(s->plan);
    if (c->method != ATSI_PLACE_SINGLE_EXPERTS) return ATSI_OK;
    count_single_experts(s, atsi_hot_experts_choose(&s->hot, bytes_for_experts(s, c)), result);
    return atsi_hot_experts_apply(&s->hot, s->plan, rates, err);
}

// ---- opening and closing -------------------------------------------------------------------------------------------

static bool has_experts(const struct atsi_program *p) {
    for (uint32_t i = 0; i < p->n_units; i++)
        if (p->units[i].kind == ATSI_UNIT_EXPERTS) return true;
    return false;
}

enum atsi_status atsi_problem_open(struct atsi_problem *s, struct atsi_plan *plan,
                                   const struct atsi_device_profile *profile, const struct atsi_place_options *options,
                                   struct atsi_error *err) {
    size_t n = plan->program.n_units + ATSI_EXPERT_BLOCKS_MAX;
    *s = (struct atsi_problem){
        .plan = plan, .profile = profile, .options = options, .has_experts = has_experts(&plan->program)};
    s->units = calloc(n, sizeof *s->units);
    s->case_units = calloc(n, sizeof *s->case_units);
    s->placement = calloc(n, 1);
    s->case_placement = calloc(n, 1);
    if (s->units && s->case_units && s->placement && s->case_placement) return ATSI_OK;
    return atsi_fail(err, ATSI_FAILED, "out of memory while placing");
}

void atsi_problem_close(struct atsi_problem *s) {
    free(s->units);
    free(s->case_units);
    free(s->placement);
    free(s->case_placement);
    atsi_hot_experts_free(&s->hot);
}

enum atsi_status atsi_problem_rank_experts(struct atsi_problem *s, struct atsi_error *err) {
    uint32_t n = s->plan->program.n_units;
    bool *held = calloc(n, sizeof *held);
    if (!held) return atsi_fail(err, ATSI_FAILED, "out of memory while placing");
    enum atsi_status status = apply_pins(s, err);
    for (uint32_t i = 0; i < n; i++) held[i] = s->units[i].fix != ATSI_FIX_NONE;
    if (status == ATSI_OK) status = atsi_hot_experts_rank(s->plan, s->options->routing, held, &s->hot, err);
    free(held);
    if (status == ATSI_OK && s->options->experts == ATSI_EXPERTS_SINGLE && s->hot.n_routers == 0)
        status = atsi_fail(err, ATSI_BAD_INPUT, "--experts single: no expert of this model can be placed by itself");
    return status;
}
