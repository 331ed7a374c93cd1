#include "runtime/wants.h"

#include <math.h>
#include <stdlib.h>

static const double largest_weight = 1e100;

enum atsi_status atsi_wants_start(struct atsi_wants *w, uint32_t n_experts, uint32_t n_used, const int32_t *slots,
                                  double hit_rate, struct atsi_error *err) {
    double n_chosen = (double)ATSI_WANTS_PRIOR * n_used;
    uint32_t n = 0;
    *w = (struct atsi_wants){.n_experts = n_experts,
                             .n_used = n_used,
                             .counts = calloc(n_experts, sizeof *w->counts),
                             .weight = 1,
                             .n_chosen_recent = n_chosen,
                             .n_hits_recent = n_chosen * hit_rate};
    if (!w->counts) return atsi_fail(err, ATSI_FAILED, "out of memory for what experts are wanted");
    for (uint32_t e = 0; e < n_experts; e++) n += slots[e] >= 0;
    for (uint32_t e = 0; e < n_experts; e++)
        w->counts[e] = slots[e] >= 0 ? n_chosen * hit_rate / n : n_chosen * (1 - hit_rate) / (n_experts - n);
    return ATSI_OK;
}

void atsi_wants_free(struct atsi_wants *w) {
    free(w->counts);
    *w = (struct atsi_wants){0};
}

// All counts in units of a new choice again.
static void rescale(struct atsi_wants *w) {
    for (uint32_t e = 0; e < w->n_experts; e++) w->counts[e] /= w->weight;
    w->n_chosen_recent /= w->weight;
    w->n_hits_recent /= w->weight;
    w->weight = 1;
}

void atsi_wants_note(struct atsi_wants *w, const int32_t *ids, const int32_t *slots) {
    w->weight *= 1 + 1.0 / ATSI_WANTS_TOKENS;
    if (w->weight > largest_weight) rescale(w);
    uint32_t n_hits = 0;
    for (uint32_t i = 0; i < w->n_used; i++) {
        w->counts[ids[i]] += w->weight;
        n_hits += slots[ids[i]] >= 0;
    }
    w->n_chosen += w->n_used;
    w->n_hits += n_hits;
    w->n_chosen_recent += w->weight * w->n_used;
    w->n_hits_recent += w->weight * n_hits;
}

double atsi_wants_hit_rate(const struct atsi_wants *w) { return w->n_hits_recent / w->n_chosen_recent; }

struct atsi_wanted atsi_wants_exchange(const struct atsi_wants *w, const int32_t *slots, double sigmas) {
    struct atsi_wanted best = {0};
    double most = -1, least = INFINITY;
    for (uint32_t e = 0; e < w->n_experts; e++) {
        if (slots[e] < 0 && w->counts[e] > most) {
            most = w->counts[e];
            best.expert = e;
        } else if (slots[e] >= 0 && w->counts[e] < least) {
            least = w->counts[e];
            best.place = (uint32_t)slots[e];
        }
    }
    if (most < 0 || least == INFINITY) return best;
    // Decayed counts of two experts that are chosen alike differ by as much as half of their sum of undecayed ones would.
    double gain = (most - least) / w->weight, sum = (most + least) / w->weight;
    if (gain > sigmas * sqrt(sum / 2)) best.gain = gain;
    return best;
}
