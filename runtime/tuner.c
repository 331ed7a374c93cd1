#include "runtime/tuner.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double atsi_tuner_recent_us(const struct atsi_tuner *t) {
    double sorted[ATSI_TUNER_ROUNDS];
    if (t->n_rounds <= ATSI_TUNER_ROUNDS) return 0;
    memcpy(sorted, t->times_us, sizeof sorted);
    qsort(sorted, ATSI_TUNER_ROUNDS, sizeof *sorted, compare);
    return sorted[ATSI_TUNER_ROUNDS / 2];
}

bool atsi_tuner_is_settled(const struct atsi_tuner *t) { return t->i_trial == t->n_trials; }

static double deviation(double from, double to) { return from > 0 ? fabs(to / from - 1) : 0; }

bool atsi_tuner_is_surprised(const struct atsi_tuner *t) {
    double last_us = t->times_us[(t->n_rounds + ATSI_TUNER_ROUNDS - 1) % ATSI_TUNER_ROUNDS];
    return t->has_reference && deviation(t->reference_us, last_us) > t->params.epsilon;
}

static bool ask(struct atsi_tuner *t, enum atsi_link_use use, const struct atsi_scales *scales, const char *reason) {
    t->wish = (struct atsi_tuner_wish){use, *scales};
    t->reason = reason;
    t->asked = true;
    return true;
}

void atsi_tuner_begun(struct atsi_tuner *t) {
    t->asked = t->may_decline = false;
    t->n_rounds = 0;
    t->has_reference = false;
}

static void list_trials(struct atsi_tuner *t, const enum atsi_link_use *uses, uint32_t n) {
    memset(t->results, 0, sizeof t->results);
    memcpy(t->trials, uses, n * sizeof *uses);
    t->n_trials = n;
    t->i_trial = 0;
}

void atsi_tuner_start(struct atsi_tuner *t, const struct atsi_tuner_params *params) {
    static const struct atsi_scales as_planned = {1, 1, 1};
    static const enum atsi_link_use both[] = {ATSI_LINK_SHARES, ATSI_LINK_SHARES, ATSI_LINK_STREAMS};
    *t = (struct atsi_tuner){.params = *params};
    if (params->is_dynamic && params->has_choice) list_trials(t, both, 3);
    ask(t, params->has_choice ? ATSI_LINK_SHARES : ATSI_LINK_STREAMS, &as_planned, "start");
    t->asked = false; // the first decision comes without being asked for
}

// Another look at the use at hand is only worth it when speeds turned out different from what it was decided for.
static bool is_repeat(const struct atsi_tuner *t, const struct atsi_scales *scales) {
    return t->trials[t->i_trial] == t->wish.use &&
           atsi_scales_deviation(&t->wish.scales, scales) < t->params.epsilon / 3;
}

// Of equals the newest, which is at work.
static bool settle(struct atsi_tuner *t) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < t->n_trials; i++)
        if (t->results[i].median_us > 0 && t->results[i].median_us <= t->results[best].median_us) best = i;
    struct atsi_tuner_wish wish = t->results[best].wish;
    return best != t->i_newest && ask(t, wish.use, &wish.scales, "the fastest of those tried");
}

static bool end_trial(struct atsi_tuner *t, const struct atsi_scales *scales) {
    t->i_newest = t->i_trial;
    t->results[t->i_trial++] = (struct atsi_tuner_result){t->wish, atsi_tuner_recent_us(t)};
    while (t->i_trial < t->n_trials && is_repeat(t, scales)) t->i_trial++;
    if (t->i_trial < t->n_trials) return ask(t, t->trials[t->i_trial], scales, "trial");
    return settle(t);
}

// What the assignment at work was decided for, as far as speeds have changed since: where the plan's times are off, but were the better
// guide, they stay the guide.
static struct atsi_scales scale_wish(const struct atsi_tuner *t, const struct atsi_scales *now) {
    const struct atsi_scales *w = &t->wish.scales, *r = &t->reference;
    return (struct atsi_scales){w->cpu * now->cpu / r->cpu, w->gpu * now->gpu / r->gpu, w->link * now->link / r->link};
}

// Of the last three rounds: a load that has just begun is in the last ones only.
static double longest_us(const struct atsi_tuner *t) {
    double longest = 0;
    for (uint32_t back = 1; back <= 3; back++)
        longest = fmax(longest, t->times_us[(t->n_rounds - back) % ATSI_TUNER_ROUNDS]);
    return longest;
}

// The assignment at work is the first of the trials and already over.
static void begin_again(struct atsi_tuner *t, const enum atsi_link_use *uses, uint32_t n) {
    list_trials(t, uses, n);
    t->results[t->i_trial++] = (struct atsi_tuner_result){t->wish, longest_us(t)};
    t->n_settled = n > 2 ? 0 : t->n_settled;
}

static bool may_try_other(const struct atsi_tuner *t) {
    return t->params.has_choice && t->n_settled >= ATSI_TUNER_PATIENCE;
}

static enum atsi_link_use other(enum atsi_link_use use) {
    return use == ATSI_LINK_STREAMS ? ATSI_LINK_SHARES : ATSI_LINK_STREAMS;
}

static bool follow_speeds(struct atsi_tuner *t, const struct atsi_scales *now) {
    enum atsi_link_use uses[] = {t->wish.use, t->wish.use, other(t->wish.use)};
    struct atsi_scales scales = scale_wish(t, now);
    begin_again(t, uses, may_try_other(t) ? 3 : 2);
    t->may_decline = true;
    return ask(t, t->wish.use, &scales, "speeds have changed");
}

// At the same speeds only the other use of the link can be better.
static bool try_other(struct atsi_tuner *t, const struct atsi_scales *now) {
    enum atsi_link_use uses[] = {t->wish.use, other(t->wish.use)};
    t->has_reference = false;
    if (!may_try_other(t)) return false;
    begin_again(t, uses, 2);
    t->n_settled = 0;
    return ask(t, uses[1], now, "rounds take another time");
}

void atsi_tuner_declined(struct atsi_tuner *t) {
    t->wish = t->results[0].wish;
    t->i_trial = t->n_trials;
    atsi_tuner_begun(t);
}

static bool watch(struct atsi_tuner *t, const struct atsi_scales *scales) {
    t->n_settled++;
    if (t->n_rounds <= ATSI_TUNER_ROUNDS || t->n_rounds < t->params.tau) return false;
    if (!t->has_reference) {
        t->has_reference = true;
        t->reference = *scales;
        t->reference_us = atsi_tuner_recent_us(t);
        return false;
    }
    if (atsi_scales_deviation(&t->reference, scales) > t->params.epsilon) return follow_speeds(t, scales);
    if (deviation(t->reference_us, atsi_tuner_recent_us(t)) > t->params.epsilon) return try_other(t, scales);
    return false;
}

bool atsi_tuner_record(struct atsi_tuner *t, double round_us, const struct atsi_scales *scales) {
    if (!t->params.is_dynamic || t->asked) return false;
    t->times_us[t->n_rounds++ % ATSI_TUNER_ROUNDS] = round_us;
    if (atsi_tuner_is_settled(t)) return watch(t, scales);
    return t->n_rounds > ATSI_TUNER_ROUNDS && end_trial(t, scales);
}
