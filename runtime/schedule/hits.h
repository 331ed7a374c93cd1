// hits.h: what a token's experts cost when some experts are resident one by one (formats/plan.h, struct atsi_resident_experts). Pure.
//
// Of the n_used experts that a token chooses, R are resident, and they come first among its slots. R is taken as binomial with the
// hit rate h: experts that are chosen independently of each other. The GPU computes slots [0, k); those at R and beyond it reads over
// the link.
#ifndef ATSI_RUNTIME_SCHEDULE_HITS_H
#define ATSI_RUNTIME_SCHEDULE_HITS_H

#include "formats/program.h"

// Of the first n_slots slots, those that are expected not to be resident: E[max(0, n_slots - R)], R ~ Binomial(n_used, hit_rate).
// n_slots <= n_used; n_used * (1 - hit_rate) for all of them, n_slots without residents. hit_rate is 0..1.
double atsi_expected_misses(uint32_t n_slots, uint32_t n_used, double hit_rate);

// What a token's whole set of experts takes in some products: all on the CPU, all on the GPU from its own memory, and all over the link: read
// in place by the products, or fetched ahead of them.
struct atsi_slot_times {
    double cpu_us, gpu_us, link_us, fetch_us;
    double cpu_fixed_us,
        gpu_fixed_us; // of cpu_us and gpu_us, what a side takes for any slots at all: no more than those
};

// Adds what another operation takes on the same slots.
void atsi_slot_times_add(struct atsi_slot_times *sum, const struct atsi_slot_times *more);

// What it takes when both sides work and the GPU computes the first n_slots: the longer of the two. A side takes its fixed part and
// of the rest the part of its slots; nothing without slots.
double atsi_slots_us(const struct atsi_slot_times *t, uint32_t n_slots, uint32_t n_used, double hit_rate);
// The number of slots, 0..n_used, for which that is least; of equals the fewest.
uint32_t atsi_best_slots(const struct atsi_slot_times *t, uint32_t n_used, double hit_rate);

// What a token's experts take behind one router. The first products read the token (gate and up), the last ones what the first made of
// a slot (down, in_per_slot).
struct atsi_expert_times {
    struct atsi_slot_times first, last;
    double handover_us; // until the GPU has what the CPU computed
    bool can_fetch;     // the temporary region has room for the last products' experts of all slots
};

// Tokens differ in how many of their experts are resident, so the slots are better divided token by token.
struct atsi_slot_division {
    uint32_t n_used; // 0: not divided by token
    // The last products run on the GPU, whose absent experts are fetched over the link as soon as the router is known, while the CPU is at
    // its slots' first products: where a single slot is absent, both sides work on it. Else they are divided as the first ones are.
    bool last_on_gpu;
    uint8_t gpu_slots[ATSI_DIVIDED_SLOTS_MAX +
                      1]; // of a token with r resident experts, the slots that the GPU computes: r or more
};
// For each number of resident experts the number of slots with which a token's end is earliest, of equals the fewest; and the last products
// where the mean at this hit rate is shorter.
void atsi_divide_slots(const struct atsi_expert_times *t, uint32_t n_used, double hit_rate,
                       struct atsi_slot_division *out);

// What the slots of a division give each side on average, R as above. Parts of all slots, and of all that are not resident; and how likely a side
// has any slots.
struct atsi_divided_work {
    double gpu_part, absent_part;
    double any_on_cpu, any_on_gpu;
};
struct atsi_divided_work atsi_divided_work(const struct atsi_slot_division *d, double hit_rate);
// What a token takes so: the mean of the end, and by how much that is over the end of the means.
double atsi_divided_us(const struct atsi_expert_times *t, const struct atsi_slot_division *d, double hit_rate,
                       double *uneven_us);

#endif
