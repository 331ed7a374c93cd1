#include "runtime/tuner.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double epsilon = 0.15, tau_rounds = 5, weight_of_new = 0.2;

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const double *times) {
    double sorted[ATSI_TUNER_ROUNDS];
    memcpy(sorted, times, sizeof sorted);
    qsort(sorted, ATSI_TUNER_ROUNDS, sizeof *sorted, compare);
    return sorted[ATSI_TUNER_ROUNDS / 2];
}

static void begin(struct atsi_tuner *t, enum atsi_link_use use) {
    t->use = use;
    t->n_rounds = 0;
}

void atsi_tuner_start(struct atsi_tuner *t, bool has_choice) {
    *t = (struct atsi_tuner){.has_choice = has_choice, .settled = !has_choice};
    begin(t, has_choice ? ATSI_LINK_SHARES : ATSI_LINK_STREAMS);
}

static bool settle(struct atsi_tuner *t) {
    enum atsi_link_use best = t->median_us[ATSI_LINK_SHARES] <= t->median_us[ATSI_LINK_STREAMS] ? ATSI_LINK_SHARES : ATSI_LINK_STREAMS;
    bool changed = best != t->use;
    t->settled = true;
    t->recent_us = t->median_us[best];
    t->since_settled_us = 0;
    begin(t, best);
    return changed;
}

static bool watch(struct atsi_tuner *t, double round_us) {
    t->recent_us += weight_of_new * (round_us - t->recent_us);
    t->since_settled_us += round_us;
    double deviation = fabs(t->recent_us / t->median_us[t->use] - 1);
    if (deviation < epsilon || t->since_settled_us < tau_rounds * t->recent_us) return false;
    t->settled = false; // measure this use first, then the other one
    t->median_us[0] = t->median_us[1] = 0;
    t->n_rounds = 1;
    return false;
}

bool atsi_tuner_record(struct atsi_tuner *t, double round_us) {
    if (!t->has_choice) return false;
    t->n_rounds++;
    if (t->settled) return t->n_rounds > 1 && watch(t, round_us);
    if (t->n_rounds == 1) return false;
    t->times_us[t->n_rounds - 2] = round_us;
    if (t->n_rounds <= ATSI_TUNER_ROUNDS) return false;
    t->median_us[t->use] = median(t->times_us);
    if (t->median_us[!t->use] > 0) return settle(t);
    begin(t, (enum atsi_link_use)!t->use);
    return true;
}
