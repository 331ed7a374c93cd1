#include "runtime/tuner.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double epsilon = 0.15;

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
    enum atsi_link_use best = ATSI_LINK_STREAMS;
    for (int use = 1; use < ATSI_LINK_USES; use++)
        if (t->median_us[use] < t->median_us[best]) best = (enum atsi_link_use)use;
    bool changed = best != t->use;
    t->settled = true;
    t->n_watched = 0;
    begin(t, best);
    return changed;
}

// After settling, the median of the last rounds stands for the recent time, so that one slow round changes nothing.
static bool watch(struct atsi_tuner *t, double round_us) {
    t->times_us[t->n_watched++ % ATSI_TUNER_ROUNDS] = round_us;
    if (t->n_watched < ATSI_TUNER_ROUNDS) return false; // tau: five tokens since the decision
    double deviation = fabs(median(t->times_us) / t->median_us[t->use] - 1);
    if (deviation < epsilon) return false;
    t->settled = false; // measure this use first, then the others
    memset(t->median_us, 0, sizeof t->median_us);
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
    for (int use = 0; use < ATSI_LINK_USES; use++)
        if (t->median_us[use] == 0) {
            begin(t, (enum atsi_link_use)use);
            return true;
        }
    return settle(t);
}
