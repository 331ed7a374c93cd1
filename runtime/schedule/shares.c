#include "runtime/schedule/shares.h"

#include <math.h>

#include "runtime/schedule/round_units.h"

static double in_place_of(const struct atsi_unit_factors *factors, uint32_t i_unit) {
    return factors ? factors[i_unit].in_place : 1;
}

double atsi_even_part(double cpu_us, double cpu_fixed_us, double gpu_us, double gpu_fixed_us) {
    // cpu_fixed + (1 - part) * (cpu - cpu_fixed) = gpu_fixed + part * (gpu - gpu_fixed)
    double left_us = cpu_us - gpu_fixed_us, both_us = cpu_us - cpu_fixed_us + gpu_us - gpu_fixed_us;
    if (!(left_us > 0) || !(both_us > 0)) return 0;
    return left_us < both_us ? left_us / both_us : 1;
}

float atsi_share_of(const struct atsi_contention *contention, const struct atsi_schedule_unit *unit, double in_place) {
    double cpu_us = unit->t_cpu_us * contention->cpu_beside_link,
           gpu_us = (unit->transfer_us * contention->link_in_place + unit->t_gpu_us) * in_place;
    return (float)atsi_even_part(cpu_us, unit->cpu_fixed_us, gpu_us, unit->gpu_fixed_us);
}

void atsi_shares_even_out(const struct atsi_program *p, float *gpu_share) {
    for (uint32_t first = 0, end; first < p->n_units; first = end) {
        double bytes = 0, shared_bytes = 0;
        int32_t router = p->units[first].router_unit;
        for (end = first; end < p->n_units && p->units[end].router_unit == router; end++) {
            bool counts = router != ATSI_NONE && gpu_share[end] > 0;
            bytes += counts ? (double)p->units[end].weight_bytes : 0;
            shared_bytes += counts ? gpu_share[end] * (double)p->units[end].weight_bytes : 0;
        }
        for (uint32_t u = first; u < end; u++)
            if (bytes > 0 && gpu_share[u] > 0) gpu_share[u] = (float)(shared_bytes / bytes);
    }
}

// ---- experts that are resident one by one -------------------------------------------------------------------------

struct atsi_slot_times atsi_slot_times_start(const struct atsi_plan *plan) {
    return (struct atsi_slot_times){.cpu_us = plan->cpu_start_us, .cpu_fixed_us = plan->cpu_start_us};
}

struct atsi_slot_times atsi_slot_times_of(const struct atsi_plan *plan, uint32_t i_unit,
                                          const struct atsi_schedule_unit *unit, double in_place) {
    const struct atsi_contention *c = &plan->contention;
    double absent = atsi_absent_part(plan, i_unit, 1), all_us = absent > 0 ? unit->transfer_us / absent : 0;
    return (struct atsi_slot_times){.cpu_us = unit->t_cpu_us * c->cpu_beside_link,
                                    .gpu_us = unit->t_gpu_us * in_place,
                                    .link_us = all_us * c->link_in_place * in_place,
                                    .fetch_us = all_us * c->link_beside_cpu * in_place,
                                    .cpu_fixed_us = unit->cpu_fixed_us,
                                    .gpu_fixed_us = unit->gpu_fixed_us};
}

// By the number of slots with which both sides end best, the same for every token.
static float share_of_slots(const struct atsi_plan *plan, uint32_t i_unit, const struct atsi_schedule_unit *unit,
                            double in_place) {
    uint32_t n_used = atsi_unit_experts_op(&plan->program, &plan->program.units[i_unit])->u.experts.n_used;
    struct atsi_slot_times times = atsi_slot_times_of(plan, i_unit, unit, in_place);
    double hit_rate = atsi_plan_resident_experts(plan, i_unit)->hit_rate;
    return (float)atsi_best_slots(&times, n_used, hit_rate) / (float)n_used;
}

bool atsi_region_holds_slots(const struct atsi_plan *plan, uint32_t router_unit, uint64_t temp_bytes) {
    const struct atsi_program *p = &plan->program;
    for (uint32_t u = router_unit + 1; u < p->n_units; u++) {
        const struct atsi_op *op = atsi_unit_experts_op(p, &p->units[u]);
        if (p->units[u].router_unit != (int32_t)router_unit || !op || !op->u.experts.in_per_slot) continue;
        if (atsi_slots_bytes(p, op) > temp_bytes) return false;
    }
    return true;
}

bool atsi_expert_times_of(const struct atsi_plan *plan, uint32_t router_unit, const struct atsi_schedule_unit *units,
                          const struct atsi_unit_factors *factors, const float *counts, struct atsi_expert_times *out,
                          uint32_t *n_used) {
    const struct atsi_program *p = &plan->program;
    *out = (struct atsi_expert_times){.first = atsi_slot_times_start(plan),
                                      .can_fetch = atsi_region_holds_slots(plan, router_unit, plan->limits.temp_bytes)};
    *n_used = 0;
    for (uint32_t u = router_unit + 1; u < p->n_units; u++) {
        if (p->units[u].router_unit != (int32_t)router_unit || !atsi_plan_resident_experts(plan, u)) continue;
        if (counts && counts[u] == 0) return false;
        const struct atsi_experts_params *experts = &atsi_unit_experts_op(p, &p->units[u])->u.experts;
        struct atsi_slot_times t = atsi_slot_times_of(plan, u, &units[u], in_place_of(factors, u));
        atsi_slot_times_add(experts->in_per_slot ? &out->last : &out->first, &t);
        out->handover_us = fmax(out->handover_us, units[u].switch_us);
        *n_used = experts->n_used;
    }
    return *n_used > 0;
}

static void divide(const struct atsi_plan *plan, uint32_t router_unit, const struct atsi_schedule_unit *units,
                   const struct atsi_unit_factors *factors, const float *can_share, struct atsi_slot_division *out) {
    struct atsi_expert_times times;
    uint32_t n_used;
    out->n_used = 0;
    if (!plan->resident_experts || plan->resident_experts[router_unit].n == 0 || units[router_unit].home != ATSI_GPU)
        return;
    if (atsi_expert_times_of(plan, router_unit, units, factors, can_share, &times, &n_used) &&
        n_used <= ATSI_DIVIDED_SLOTS_MAX)
        atsi_divide_slots(&times, n_used, plan->resident_experts[router_unit].hit_rate, out);
}

// ---- all units ----------------------------------------------------------------------------------------------------

static float share_of(const struct atsi_plan *plan, uint32_t u, const struct atsi_schedule_unit *unit, double in_place,
                      const struct atsi_slot_division *divisions) {
    const struct atsi_resident_experts *r = atsi_plan_resident_experts(plan, u);
    if (!r) return atsi_share_of(&plan->contention, unit, in_place);
    const struct atsi_slot_division *d = &divisions[plan->program.units[u].router_unit];
    const struct atsi_op *op = atsi_unit_experts_op(&plan->program, &plan->program.units[u]);
    if (d->n_used && d->last_on_gpu && op->u.experts.in_per_slot) return 1;
    return d->n_used ? (float)atsi_divided_work(d, r->hit_rate).gpu_part : share_of_slots(plan, u, unit, in_place);
}

uint32_t atsi_share_units(const struct atsi_plan *plan, const struct atsi_schedule_unit *units,
                          const struct atsi_unit_factors *factors, float *gpu_share,
                          struct atsi_slot_division *divisions) {
    uint32_t n_shared = 0;
    for (uint32_t u = 0; u < plan->program.n_units; u++) divide(plan, u, units, factors, gpu_share, &divisions[u]);
    for (uint32_t u = 0; u < plan->program.n_units; u++) {
        if (gpu_share[u] != 0) gpu_share[u] = share_of(plan, u, &units[u], in_place_of(factors, u), divisions);
        n_shared += gpu_share[u] > 0;
    }
    atsi_shares_even_out(&plan->program, gpu_share);
    return n_shared;
}
