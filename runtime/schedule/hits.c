#include "runtime/schedule/hits.h"

#include <math.h>

double atsi_expected_misses(uint32_t n_slots, uint32_t n_used, double hit_rate) {
    if (hit_rate >= 1) return 0;
    double odds = hit_rate / (1 - hit_rate), misses = 0, probability = pow(1 - hit_rate, n_used); // of R = r
    for (uint32_t r = 0; r < n_slots; r++) {
        misses += (n_slots - r) * probability;
        probability *= odds * (n_used - r) / (r + 1);
    }
    return misses;
}

double atsi_slots_us(const struct atsi_slot_times *t, uint32_t n_slots, uint32_t n_used, double hit_rate) {
    double cpu_us = t->cpu_us * (n_used - n_slots) / n_used;
    double gpu_us = (t->gpu_us * n_slots + t->link_us * atsi_expected_misses(n_slots, n_used, hit_rate)) / n_used;
    return fmax(cpu_us, gpu_us);
}

uint32_t atsi_best_slots(const struct atsi_slot_times *t, uint32_t n_used, double hit_rate) {
    uint32_t best = 0;
    double best_us = INFINITY;
    for (uint32_t k = 0; k <= n_used; k++) {
        double us = atsi_slots_us(t, k, n_used, hit_rate);
        if (us >= best_us) continue;
        best_us = us;
        best = k;
    }
    return best;
}
