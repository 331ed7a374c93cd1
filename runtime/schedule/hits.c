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

void atsi_slot_times_add(struct atsi_slot_times *sum, const struct atsi_slot_times *more) {
    sum->cpu_us += more->cpu_us;
    sum->gpu_us += more->gpu_us;
    sum->link_us += more->link_us;
    sum->cpu_fixed_us += more->cpu_fixed_us;
    sum->gpu_fixed_us += more->gpu_fixed_us;
}

static double cpu_us(const struct atsi_slot_times *t, uint32_t n_used, uint32_t n_slots) {
    if (n_slots == n_used) return 0;
    return t->cpu_fixed_us + (t->cpu_us - t->cpu_fixed_us) * (n_used - n_slots) / n_used;
}

static double gpu_us(const struct atsi_slot_times *t, uint32_t n_used, uint32_t n_slots, double n_absent) {
    if (n_slots == 0) return 0;
    return t->gpu_fixed_us + ((t->gpu_us - t->gpu_fixed_us) * n_slots + t->link_us * n_absent) / n_used;
}

double atsi_slots_us(const struct atsi_slot_times *t, uint32_t n_slots, uint32_t n_used, double hit_rate) {
    double n_absent = atsi_expected_misses(n_slots, n_used, hit_rate);
    return fmax(cpu_us(t, n_used, n_slots), gpu_us(t, n_used, n_slots, n_absent));
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

// ---- token by token -----------------------------------------------------------------------------------------------

void atsi_divide_slots(const struct atsi_slot_times *t, uint32_t n_used, struct atsi_slot_division *out) {
    *out = (struct atsi_slot_division){.n_used = n_used};
    for (uint32_t r = 0; r <= n_used; r++) {
        double best_us = INFINITY;
        for (uint32_t g = r; g <= n_used; g++) {
            double us = fmax(cpu_us(t, n_used, g), gpu_us(t, n_used, g, g - r));
            if (us >= best_us) continue;
            best_us = us;
            out->gpu_slots[r] = (uint8_t)g;
        }
    }
}

// Probabilities of R = 0..n_used, one expert after the other.
static void distribute(uint32_t n_used, double hit_rate, double *probabilities) {
    probabilities[0] = 1;
    for (uint32_t n = 1; n <= n_used; n++) {
        probabilities[n] = probabilities[n - 1] * hit_rate;
        for (uint32_t r = n - 1; r > 0; r--)
            probabilities[r] = probabilities[r] * (1 - hit_rate) + probabilities[r - 1] * hit_rate;
        probabilities[0] *= 1 - hit_rate;
    }
}

struct atsi_divided_work atsi_divided_work(const struct atsi_slot_division *d, double hit_rate) {
    double p[ATSI_DIVIDED_SLOTS_MAX + 1], slots = 0, absent = 0, all_absent = d->n_used * (1 - hit_rate);
    struct atsi_divided_work work = {0};
    distribute(d->n_used, hit_rate, p);
    for (uint32_t r = 0; r <= d->n_used; r++) {
        slots += p[r] * d->gpu_slots[r];
        absent += p[r] * (d->gpu_slots[r] - r);
        work.any_on_cpu += d->gpu_slots[r] < d->n_used ? p[r] : 0;
        work.any_on_gpu += d->gpu_slots[r] > 0 ? p[r] : 0;
    }
    work.gpu_part = slots / d->n_used;
    work.absent_part = all_absent > 0 ? absent / all_absent : 0;
    return work;
}

double atsi_divided_us(const struct atsi_slot_times *t, const struct atsi_slot_division *d, double hit_rate,
                       double *uneven_us) {
    double p[ATSI_DIVIDED_SLOTS_MAX + 1], us = 0, on_cpu_us = 0, on_gpu_us = 0;
    distribute(d->n_used, hit_rate, p);
    for (uint32_t r = 0; r <= d->n_used; r++) {
        double c = cpu_us(t, d->n_used, d->gpu_slots[r]),
               g = gpu_us(t, d->n_used, d->gpu_slots[r], d->gpu_slots[r] - r);
        us += p[r] * fmax(c, g);
        on_cpu_us += p[r] * c;
        on_gpu_us += p[r] * g;
    }
    *uneven_us = us - fmax(on_cpu_us, on_gpu_us);
    return us;
}
