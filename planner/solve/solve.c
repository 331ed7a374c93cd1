#include "planner/solve/solve.h"

#include <math.h>
#include <string.h>

#include "formats/base/clock.h"

uint64_t atsi_solve_unit_granules(const struct atsi_solve_instance *inst, size_t i) {
    uint64_t size = inst->units[i].size_bytes;
    return size / inst->granularity_bytes + (size % inst->granularity_bytes != 0);
}

uint64_t atsi_solve_budget_granules(const struct atsi_solve_instance *inst) {
    return inst->budget_bytes / inst->granularity_bytes;
}

void atsi_solve_evaluate(const struct atsi_solve_instance *inst, const uint8_t *placement,
                         struct atsi_solve_value *out) {
    *out = (struct atsi_solve_value){0};
    for (size_t i = 0; i < inst->n_units; i++) {
        const struct atsi_solve_unit *unit = &inst->units[i];
        out->baseline_us += unit->t_cpu_us;
        if (placement[i] == ATSI_GPU) {
            out->objective_us += unit->t_cpu_us - unit->t_gpu_us;
            out->used_granules += atsi_solve_unit_granules(inst, i);
        }
        if (i && placement[i] != placement[i - 1]) out->objective_us -= unit->switch_us;
    }
    out->predicted_us = out->baseline_us - out->objective_us;
    out->used_bytes = out->used_granules * inst->granularity_bytes;
}

void atsi_solve_partition(const struct atsi_solve_instance *inst, struct atsi_solve_unit *units) {
    uint64_t left = atsi_solve_budget_granules(inst);
    bool has_experts = false, fits = true;
    for (size_t i = 0; i < inst->n_units; i++) {
        units[i] = inst->units[i];
        has_experts |= units[i].is_expert;
        bool wanted = units[i].fix == ATSI_FIX_GPU || (!units[i].is_expert && units[i].fix == ATSI_FIX_NONE);
        uint64_t granules = wanted ? atsi_solve_unit_granules(inst, i) : 0;
        fits = fits && granules <= left;
        if (fits) left -= granules;
    }
    if (!has_experts) return;
    for (size_t i = 0; i < inst->n_units; i++) {
        if (units[i].fix != ATSI_FIX_NONE) continue;
        if (fits && !units[i].is_expert) units[i].fix = ATSI_FIX_GPU;
        if (!fits && units[i].is_expert) units[i].fix = ATSI_FIX_CPU;
    }
}

bool atsi_solve_has_divisible(const struct atsi_solve_instance *inst) {
    for (size_t i = 0; i < inst->n_units; i++)
        if (inst->units[i].is_divisible) return true;
    return false;
}

static bool differ(double a, double b) { return fabs(a - b) > 1e-6 * fmax(1, fabs(a)); }

enum atsi_status atsi_solve(const struct atsi_solve_instance *inst, const struct atsi_milp_options *options,
                            uint8_t *placement, struct atsi_solve_result *out, struct atsi_error *err) {
    *out = (struct atsi_solve_result){.milp.status = ATSI_MILP_SKIPPED};
    double start_us = atsi_clock_us();
    ATSI_TRY(atsi_solve_dp(inst, placement, err));
    atsi_solve_evaluate(inst, placement, &out->value);
    out->dp_seconds = (atsi_clock_us() - start_us) * 1e-6;

    struct atsi_milp_options milp = options ? *options : atsi_milp_defaults();
    milp.incumbent = placement;
    struct atsi_solve_instance fine = *inst; // what fits in coarse granules fits in fine ones
    if (milp.fine_bytes && atsi_solve_has_divisible(inst)) fine.granularity_bytes = milp.fine_bytes;
    ATSI_TRY(atsi_solve_milp(&fine, &milp, NULL, &out->milp, err));
    double objective = out->value.objective_us;
    if (out->milp.status == ATSI_MILP_OPTIMAL && differ(objective, out->milp.objective_us))
        return atsi_fail(
            err, ATSI_FAILED,
            "placement: the dynamic program found %.9g us but GLPK proved %.9g us optimal: please report this",
            objective, out->milp.objective_us);
    if (out->milp.status != ATSI_MILP_SKIPPED) out->gap = (out->milp.bound_us - objective) / fmax(1, fabs(objective));
    return ATSI_OK;
}
