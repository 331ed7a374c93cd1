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
    sum->fetch_us += more->fetch_us;
    sum->cpu_fixed_us += more->cpu_fixed_us;
    sum->gpu_fixed_us += more->gpu_fixed_us;
}

static double cpu_us(const struct atsi_slot_times *t, uint32_t n_used, uint32_t n_slots) {
    if (n_slots == n_used) return 0;
    return t->cpu_fixed_us + (t->cpu_us - t->cpu_fixed_us) * (n_used - n_slots) / n_used;
}

// Without what it reads over the link.
static double gpu_us(const struct atsi_slot_times *t, uint32_t n_used, uint32_t n_slots) {
    if (n_slots == 0) return 0;
    return t->gpu_fixed_us + (t->gpu_us - t->gpu_fixed_us) * n_slots / n_used;
}

double atsi_slots_us(const struct atsi_slot_times *t, uint32_t n_slots, uint32_t n_used, double hit_rate) {
    double n_absent = atsi_expected_misses(n_slots, n_used, hit_rate);
    return fmax(cpu_us(t, n_used, n_slots), gpu_us(t, n_used, n_slots) + t->link_us * n_absent / n_used);
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

// What both sides do of a token's experts. The GPU reads in place and computes, and what is fetched crosses beside that, before it needs
// what the CPU computes; it has `after_us` to do behind that.
struct sides {
    double cpu_us, gpu_us, in_place_us, fetch_us, after_us;
};

static double end_of(const struct sides *s) {
    return fmax(s->cpu_us, s->in_place_us + fmax(s->gpu_us, s->fetch_us)) + s->after_us;
}

static struct sides sides_of(const struct atsi_expert_times *t, const struct atsi_slot_division *d, uint32_t n_resident,
                             uint32_t n_slots) {
    const uint32_t n_used = d->n_used;
    const double absent_part = (double)(n_slots - n_resident) / n_used;
    struct sides s = {.cpu_us = cpu_us(&t->first, n_used, n_slots),
                      .gpu_us = gpu_us(&t->first, n_used, n_slots),
                      .in_place_us = t->first.link_us * absent_part};
    if (d->last_on_gpu) {
        s.fetch_us = t->last.fetch_us * (n_used - n_resident) / n_used;
        s.after_us = t->last.gpu_us;
    } else {
        s.cpu_us += cpu_us(&t->last, n_used, n_slots);
        s.gpu_us += gpu_us(&t->last, n_used, n_slots);
        s.in_place_us += t->last.link_us * absent_part;
    }
    if (n_slots < n_used) s.cpu_us += t->handover_us;
    return s;
}

static void choose_slots(const struct atsi_expert_times *t, struct atsi_slot_division *d) {
    for (uint32_t r = 0; r <= d->n_used; r++) {
        double best_us = INFINITY;
        for (uint32_t g = r; g <= d->n_used; g++) {
            struct sides sides = sides_of(t, d, r, g);
            if (end_of(&sides) >= best_us) continue;
            best_us = end_of(&sides);
            d->gpu_slots[r] = (uint8_t)g;
        }
    }
}

void atsi_divide_slots(const struct atsi_expert_times *t, uint32_t n_used, double hit_rate,
                       struct atsi_slot_division *out) {
    struct atsi_slot_division fetching = {.n_used = n_used, .last_on_gpu = true};
    double uneven_us;
    *out = (struct atsi_slot_division){.n_used = n_used};
    choose_slots(t, out);
    if (!t->can_fetch) return;
    choose_slots(t, &fetching);
    if (atsi_divided_us(t, &fetching, hit_rate, &uneven_us) < atsi_divided_us(t, out, hit_rate, &uneven_us))
        *out = fetching;
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

double atsi_divided_us(const struct atsi_expert_times *t, const struct atsi_slot_division *d, double hit_rate,
                       double *uneven_us) {
    double p[ATSI_DIVIDED_SLOTS_MAX + 1], us = 0;
    struct sides means = {0};
    distribute(d->n_used, hit_rate, p);
    for (uint32_t r = 0; r <= d->n_used; r++) {
        struct sides sides = sides_of(t, d, r, d->gpu_slots[r]);
        us += p[r] * end_of(&sides);
        means.cpu_us += p[r] * sides.cpu_us;
        means.gpu_us += p[r] * sides.gpu_us;
        means.in_place_us += p[r] * sides.in_place_us;
        means.fetch_us += p[r] * sides.fetch_us;
        means.after_us += p[r] * sides.after_us;
    }
    *uneven_us = us - end_of(&means);
    return us;
}
