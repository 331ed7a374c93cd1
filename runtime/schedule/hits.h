// hits.h: what a token's experts cost when some experts are resident one by one (formats/plan.h, struct atsi_resident_experts). Pure.
//
// Of the n_used experts that a token chooses, R are resident, and they come first among its slots. R is taken as binomial with the
// hit rate h: experts that are chosen independently of each other. The GPU computes slots [0, k); those at R and beyond it reads over
// the link.
#ifndef ATSI_RUNTIME_SCHEDULE_HITS_H
#define ATSI_RUNTIME_SCHEDULE_HITS_H

#include <stdint.h>

// Of the first n_slots slots, those that are expected not to be resident: E[max(0, n_slots - R)], R ~ Binomial(n_used, hit_rate).
// n_slots <= n_used; n_used * (1 - hit_rate) for all of them, n_slots without residents. hit_rate is 0..1.
double atsi_expected_misses(uint32_t n_slots, uint32_t n_used, double hit_rate);

// What a token's whole set of experts takes: all on the CPU, all on the GPU from its own memory, and all over the link.
struct atsi_slot_times {
    double cpu_us, gpu_us, link_us;
};

// What it takes when both sides work and the GPU computes the first n_slots: the longer of the two.
double atsi_slots_us(const struct atsi_slot_times *t, uint32_t n_slots, uint32_t n_used, double hit_rate);
// The number of slots, 0..n_used, for which that is least; of equals the fewest.
uint32_t atsi_best_slots(const struct atsi_slot_times *t, uint32_t n_used, double hit_rate);

#endif
