#include "runtime/schedule/shares.h"

#include "runtime/schedule/script.h"

float atsi_share_of(const struct atsi_contention *contention, const struct atsi_schedule_unit *unit, double in_place) {
    double cpu_us = unit->t_cpu_us * contention->cpu_beside_link,
           gpu_us = (unit->transfer_us * contention->link_in_place + unit->t_gpu_us) * in_place;
    return cpu_us + gpu_us > 0 ? (float)(cpu_us / (cpu_us + gpu_us)) : 0;
}

uint32_t atsi_share_units(const struct atsi_plan *plan, const struct atsi_schedule_unit *units, float *gpu_share) {
    uint32_t n_shared = 0;
    for (uint32_t u = 0; u < plan->program.n_units; u++) {
        bool can = units[u].home == ATSI_CPU && atsi_script_can_share(&plan->program, u);
        gpu_share[u] = can ? atsi_share_of(&plan->contention, &units[u], 1) : 0;
        n_shared += gpu_share[u] > 0;
    }
    return n_shared;
}
