#include "planner/objective.h"

#include <math.h>

#include "planner/budget.h"
#include "planner/cost.h"
#include "runtime/schedule/shares.h"

struct atsi_objective atsi_objective_of(const struct atsi_plan *plan, double prefill_weight) {
    double decode_us = 0, prefill_us = 0;
    for (uint32_t i = 0; i < plan->program.n_units; i++) {
        decode_us += plan->decode_times[i].cpu_us;
        prefill_us += plan->prefill_times[i].cpu_us / plan->limits.chunk;
    }
    return (struct atsi_objective){.prefill_weight = prefill_weight,
                                   .decode_per_prefill = prefill_us > 0 ? decode_us / prefill_us : 0};
}

double atsi_objective_us(const struct atsi_objective *o, const struct atsi_plan *plan, double decode_us,
                         double prefill_us) {
    double w = o->prefill_weight;
    return (1 - w) * decode_us + w * o->decode_per_prefill * prefill_us / plan->limits.chunk;
}

double atsi_streamed_us(const struct atsi_plan *plan, uint32_t i_unit, enum atsi_phase phase) {
    const struct atsi_unit_times *t = phase == ATSI_DECODE ? &plan->decode_times[i_unit] : &plan->prefill_times[i_unit];
    if (phase == ATSI_PREFILL) return fminf(t->cpu_us, fmaxf(t->transfer_us, t->gpu_us));
    double cpu_us = t->cpu_us * plan->contention.cpu_beside_link,
           gpu_us = t->transfer_us * plan->contention.link_in_place + t->gpu_us;
    double part = atsi_even_part(cpu_us, t->cpu_fixed_us, gpu_us, t->gpu_fixed_us);
    return part < 1 ? fmin(t->cpu_us, t->cpu_fixed_us + (1 - part) * (cpu_us - t->cpu_fixed_us)) : gpu_us;
}

void atsi_objective_units(const struct atsi_objective *o, const struct atsi_plan *plan, bool streamed,
                          struct atsi_solve_unit *units) {
    for (uint32_t i = 0; i < plan->program.n_units; i++) {
        const struct atsi_unit *u = &plan->program.units[i];
        const struct atsi_unit_times *d = &plan->decode_times[i], *p = &plan->prefill_times[i];
        bool moves = streamed && atsi_unit_is_promotable(u), runs = atsi_unit_runs_on_gpu(&plan->program, u);
        units[i] = (struct atsi_solve_unit){
            .size_bytes = atsi_budget_unit(plan, u),
            .t_cpu_us = atsi_objective_us(o, plan, moves ? atsi_streamed_us(plan, i, ATSI_DECODE) : d->cpu_us,
                                          moves ? atsi_streamed_us(plan, i, ATSI_PREFILL) : p->cpu_us),
            // ATSI_NEVER_US would drown the others in GLPK's arithmetic
            .t_gpu_us = runs ? atsi_objective_us(o, plan, d->gpu_us, p->gpu_us) : 0,
            .switch_us = atsi_objective_us(o, plan, d->switch_us, p->switch_us),
            .is_expert = u->kind == ATSI_UNIT_EXPERTS,
            .fix = runs ? ATSI_FIX_NONE : ATSI_FIX_CPU};
    }
}
