#include "runtime/lookup.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double right_at_first = 0.6, right_weight = 0.1, time_weight = 0.2;
static const double least_gain = 1.03; // of tokens a time, or the guesses stay unchecked
enum {
    FIRST_GUESSES = 3, // as long as it is not known what one costs
    ENOUGH_MEASURED = 4,
    CHECKED_AGAIN =
        256 // tokens after which a guess is checked although it was not worth it: another program may be gone
};

enum atsi_status atsi_lookup_create(uint32_t n_ctx, uint32_t n_most, struct atsi_lookup **out, struct atsi_error *err) {
    struct atsi_lookup *l = *out = calloc(1, sizeof *l);
    if (l) l->ids = calloc(n_ctx, sizeof *l->ids);
    if (!l || !l->ids) {
        atsi_lookup_free(l);
        *out = NULL;
        return atsi_fail(err, ATSI_FAILED, "out of memory while creating the session");
    }
    l->cap = n_ctx;
    l->n_most = n_most < ATSI_LOOKUP_MOST ? n_most : ATSI_LOOKUP_MOST;
    l->pace.right = right_at_first;
    return ATSI_OK;
}

void atsi_lookup_free(struct atsi_lookup *l) {
    if (!l) return;
    free(l->ids);
    free(l);
}

void atsi_lookup_append(struct atsi_lookup *l, const int32_t *ids, uint32_t n) {
    memcpy(l->ids + l->n, ids, n * sizeof *ids);
    l->n += n;
}

void atsi_lookup_truncate(struct atsi_lookup *l, uint32_t n) { l->n = n < l->n ? n : l->n; }

// ---- guessing -----------------------------------------------------------------------------------------------------

// How many tokens up to `end` (not included) are the newest ones, at most ATSI_LOOKUP_CONTEXT.
static uint32_t n_alike(const struct atsi_lookup *l, uint32_t end) {
    uint32_t n = 0;
    while (n < ATSI_LOOKUP_CONTEXT && n < end && l->ids[end - 1 - n] == l->ids[l->n - 1 - n]) n++;
    return n;
}

uint32_t atsi_lookup_guess(const struct atsi_lookup *l, int32_t *guess, uint32_t n) {
    uint32_t best = 0, from = 0;
    for (uint32_t end = l->n; end-- > 1 && best < ATSI_LOOKUP_CONTEXT;) {
        uint32_t alike = n_alike(l, end);
        if (alike <= best || alike < ATSI_LOOKUP_LEAST) continue;
        best = alike;
        from = end;
    }
    if (best == 0) return 0;
    for (uint32_t i = 0; i < n; i++) guess[i] = from + i < l->n ? l->ids[from + i] : guess[from + i - l->n];
    return n;
}

// ---- how many -----------------------------------------------------------------------------------------------------

// Tokens that a round with n guesses brings on average.
static double tokens_of(const struct atsi_lookup_pace *p, uint32_t n) {
    double sum = 1, all_right = 1;
    for (uint32_t i = 0; i < n; i++) sum += all_right *= p->right;
    return sum;
}

uint32_t atsi_lookup_pace_choose(const struct atsi_lookup_pace *p, uint32_t n_most) {
    uint32_t best = 0, first = n_most < FIRST_GUESSES ? n_most : FIRST_GUESSES;
    if (!(p->single_us > 0)) return 0;
    if (p->n_measured < ENOUGH_MEASURED) return first;
    double best_rate = least_gain;
    for (uint32_t n = 1; n <= n_most; n++) {
        double rate = tokens_of(p, n) * p->single_us / (p->single_us + n * p->more_us);
        if (rate <= best_rate) continue;
        best_rate = rate;
        best = n;
    }
    return best == 0 && p->n_unchecked >= CHECKED_AGAIN ? first : best;
}

void atsi_lookup_pace_judge(struct atsi_lookup_pace *p, bool right) { p->right += right_weight * (right - p->right); }

void atsi_lookup_pace_time(struct atsi_lookup_pace *p, uint32_t n, double round_us) {
    if (n == 0) {
        p->single_us += (p->single_us > 0 ? time_weight : 1) * (round_us - p->single_us);
        p->n_unchecked++;
        return;
    }
    double more_us = fmax(0, (round_us - p->single_us) / n), weight = p->n_measured ? time_weight : 1;
    p->more_us += weight * (more_us - p->more_us);
    p->n_measured++;
    p->n_unchecked = 0;
}
