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
                             .n_tokens_recent = ATSI_WANTS_PRIOR,
                             .n_squares_recent = ATSI_WANTS_PRIOR,
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
    w->n_chosen_seen /= w->weight;
    w->n_hits_seen /= w->weight;
    w->n_tokens_recent /= w->weight;
    w->n_squares_recent /= w->weight * w->weight;
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
    w->n_tokens_recent += w->weight;
    w->n_squares_recent += w->weight * w->weight;
    w->n_chosen += w->n_used;
    w->n_hits += n_hits;
    w->n_chosen_recent += w->weight * w->n_used;
    w->n_hits_recent += w->weight * n_hits;
    w->n_chosen_seen += w->weight * w->n_used;
    w->n_hits_seen += w->weight * n_hits;
}

double atsi_wants_hit_rate(const struct atsi_wants *w) { return w->n_hits_recent / w->n_chosen_recent; }

double atsi_wants_seen_hit_rate(const struct atsi_wants *w) {
    return w->n_chosen_seen > 0 ? w->n_hits_seen / w->n_chosen_seen : atsi_wants_hit_rate(w);
}

void atsi_wants_restart_hits(struct atsi_wants *w, double hit_rate) {
    w->n_hits_recent = hit_rate * w->n_chosen_recent;
    w->n_chosen_seen = w->n_hits_seen = 0;
}

// ---- what to expect -----------------------------------------------------------------------------------------------

// Of one group. Choices that come by chance alone would spread its rates by luck's variance, mean * luck; what there is beyond is real, and a
// rate keeps that part of its distance to the mean.
static void estimate_group(const struct atsi_wants *w, const int32_t *slots, bool resident, double *rates) {
    double n = 0, mean = 0, spread = 0, luck = w->n_squares_recent / (w->n_tokens_recent * w->n_tokens_recent);
    for (uint32_t e = 0; e < w->n_experts; e++) {
        if ((slots[e] >= 0) != resident) continue;
        rates[e] = w->counts[e] / w->n_tokens_recent;
        mean += rates[e];
        n++;
    }
    if (n == 0) return;
    mean /= n;
    for (uint32_t e = 0; e < w->n_experts; e++)
        if ((slots[e] >= 0) == resident) spread += (rates[e] - mean) * (rates[e] - mean) / n;
    double kept = spread > mean * luck ? 1 - mean * luck / spread : 0;
    for (uint32_t e = 0; e < w->n_experts; e++)
        if ((slots[e] >= 0) == resident) rates[e] = mean + kept * (rates[e] - mean);
}

void atsi_wants_estimate(const struct atsi_wants *w, const int32_t *slots, double *rates) {
    estimate_group(w, slots, true, rates);
    estimate_group(w, slots, false, rates);
}

// ---- exchanges ----------------------------------------------------------------------------------------------------

// The expert without a place for which `values` is highest and the one with a place for which it is lowest: gain is by how much, 0 when
// there are no two.
static struct atsi_wanted find_pair(const double *values, uint32_t n_experts, const int32_t *slots, double *least) {
    struct atsi_wanted best = {0};
    double most = -1;
    *least = INFINITY;
    for (uint32_t e = 0; e < n_experts; e++) {
        if (slots[e] < 0 && values[e] > most) {
            most = values[e];
            best.expert = e;
        } else if (slots[e] >= 0 && values[e] < *least) {
            *least = values[e];
            best.place = (uint32_t)slots[e];
        }
    }
    if (most >= 0 && *least < INFINITY) best.gain = most - *least;
    return best;
}

struct atsi_wanted atsi_wants_exchange(const struct atsi_wants *w, const int32_t *slots, double sigmas) {
    double least;
    struct atsi_wanted best = find_pair(w->counts, w->n_experts, slots, &least);
    if (least == INFINITY) return best;
    // Decayed counts of two experts that are chosen alike differ by as much as half of their sum of undecayed ones would.
    best.gain /= w->weight;
    double sum = best.gain + 2 * least / w->weight;
    if (!(best.gain > sigmas * sqrt(sum / 2))) best.gain = 0;
    return best;
}

struct atsi_wanted atsi_wants_exchange_by(const double *rates, uint32_t n_experts, const int32_t *slots) {
    double least;
    struct atsi_wanted best = find_pair(rates, n_experts, slots, &least);
    best.gain = fmax(0, best.gain);
    return best;
}
