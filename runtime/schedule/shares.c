#include "runtime/schedule/shares.h"

#include "runtime/schedule/hits.h"
#include "runtime/schedule/round_units.h"
#include "runtime/schedule/script.h"

float atsi_share_of(const struct atsi_contention *contention, const struct atsi_schedule_unit *unit, double in_place) {
    double cpu_us = unit->t_cpu_us * contention->cpu_beside_link,
           gpu_us = (unit->transfer_us * contention->link_in_place + unit->t_gpu_us) * in_place;
    return cpu_us + gpu_us > 0 ? (float)(cpu_us / (cpu_us + gpu_us)) : 0;
}

float atsi_share_of_unit(const struct atsi_plan *plan, uint32_t i_unit, const struct atsi_schedule_unit *unit,
                         double in_place) {
    const struct atsi_contention *c = &plan->contention;
    const struct atsi_resident_experts *r = atsi_plan_resident_experts(plan, i_unit);
    if (!r) return atsi_share_of(c, unit, in_place);
    uint32_t n_used = atsi_unit_experts_op(&plan->program, &plan->program.units[i_unit])->u.experts.n_used;
    double absent = atsi_absent_part(plan, i_unit, 1), all_us = absent > 0 ? unit->transfer_us / absent : 0;
    struct atsi_slot_times times = {.cpu_us = unit->t_cpu_us * c->cpu_beside_link,
                                    .gpu_us = unit->t_gpu_us * in_place,
                                    .link_us = all_us * c->link_in_place * in_place};
    return (float)atsi_best_slots(&times, n_used, r->hit_rate) / (float)n_used;
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

uint32_t atsi_share_units(const struct atsi_plan *plan, const struct atsi_schedule_unit *units, float *gpu_share) {
    uint32_t n_shared = 0;
    for (uint32_t u = 0; u < plan->program.n_units; u++) {
        bool can = units[u].home == ATSI_CPU && atsi_script_can_share(&plan->program, u);
        gpu_share[u] = can ? atsi_share_of_unit(plan, u, &units[u], 1) : 0;
        n_shared += gpu_share[u] > 0;
    }
    atsi_shares_even_out(&plan->program, gpu_share);
    return n_shared;
}
