#include "runtime/tuner.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// By their predictions: the same use for other speeds has to promise something; the other use must not be out of the question.
static const double gain = 0.99, hopeless = 1.25;

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
    return deviation(t->reference_us, last_us) > t->params.epsilon;
}

// `now`: the speeds recorded at this moment, from which on changes count.
static bool ask(struct atsi_tuner *t, const struct atsi_tuner_wish *wish, const struct atsi_scales *now,
                double most_ratio, const char *reason) {
    t->wish = *wish;
    t->most_ratio = most_ratio;
    t->reference = *now;
    t->reason = reason;
    t->asked = true;
    return true;
}

void atsi_tuner_begun(struct atsi_tuner *t) {
    t->at_work = t->wish;
    t->at_work_reference = t->reference;
    t->asked = false;
    t->n_rounds = t->n_deviating = 0;
    t->reference_us = 0;
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
    struct atsi_tuner_wish first = {params->has_choice ? ATSI_LINK_SHARES : ATSI_LINK_STREAMS, as_planned};
    ask(t, &first, &as_planned, INFINITY, "start");
    t->at_work = first;
    t->at_work_reference = as_planned;
    t->asked = false; // the first decision comes without being asked for
}

// Another look at the use at hand is only worth it when speeds turned out different from what it was decided for.
static bool is_repeat(const struct atsi_tuner *t, const struct atsi_scales *now) {
    return t->trials[t->i_trial] == t->at_work.use &&
           atsi_scales_deviation(&t->at_work.scales, now) < t->params.epsilon / 3;
}

// Of equals the newest, which is at work.
static bool settle(struct atsi_tuner *t, const struct atsi_scales *now) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < t->n_trials; i++)
        if (t->results[i].median_us > 0 && t->results[i].median_us <= t->results[best].median_us) best = i;
    return best != t->i_newest && ask(t, &t->results[best].wish, now, INFINITY, "the fastest of those tried");
}

static bool next_trial(struct atsi_tuner *t, const struct atsi_scales *now) {
    while (t->i_trial < t->n_trials && is_repeat(t, now)) t->i_trial++;
    if (t->i_trial == t->n_trials) return settle(t, now);
    struct atsi_tuner_wish wish = {t->trials[t->i_trial], *now};
    return ask(t, &wish, now, wish.use == t->at_work.use ? gain : hopeless, "trial");
}

static bool end_trial(struct atsi_tuner *t, const struct atsi_scales *now) {
    if (t->i_trial == 0) t->reference = t->at_work_reference = *now; // decided for the plan's times: only now is known what they mean
    t->i_newest = t->i_trial;
    t->results[t->i_trial++] = (struct atsi_tuner_result){t->at_work, atsi_tuner_recent_us(t)};
    return next_trial(t, now);
}

bool atsi_tuner_declined(struct atsi_tuner *t, const struct atsi_scales *now) {
    // For the use at work, what is at work is as good as if it had been decided for these speeds; of the other use nothing is known.
    if (t->wish.use != t->at_work.use) {
        t->reference = t->at_work_reference;
        t->wish = t->at_work;
    }
    atsi_tuner_begun(t);
    t->i_trial++;
    return next_trial(t, now);
}

// What the assignment at work was decided for, as far as speeds have changed since: where the plan's times are off, but were the better
// guide, they stay the guide.
static struct atsi_scales scale_wish(const struct atsi_tuner *t, const struct atsi_scales *now) {
    const struct atsi_scales *w = &t->at_work.scales, *r = &t->reference;
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
    t->results[t->i_trial++] = (struct atsi_tuner_result){t->at_work, longest_us(t)};
    t->i_newest = 0;
    t->n_settled = n > 2 ? 0 : t->n_settled;
}

static bool may_try_other(const struct atsi_tuner *t) {
    return t->params.has_choice && t->n_settled >= ATSI_TUNER_PATIENCE;
}

static enum atsi_link_use other(enum atsi_link_use use) {
    return use == ATSI_LINK_STREAMS ? ATSI_LINK_SHARES : ATSI_LINK_STREAMS;
}

static bool follow_speeds(struct atsi_tuner *t, const struct atsi_scales *now) {
    enum atsi_link_use use = t->at_work.use, uses[] = {use, use, other(use)};
    struct atsi_tuner_wish wish = {use, scale_wish(t, now)};
    begin_again(t, uses, may_try_other(t) ? 3 : 2);
    return ask(t, &wish, now, gain, "speeds have changed");
}

// At the same speeds only the other use of the link can be better.
static bool try_other(struct atsi_tuner *t, const struct atsi_scales *now) {
    enum atsi_link_use uses[] = {t->at_work.use, other(t->at_work.use)};
    struct atsi_tuner_wish wish = {uses[1], *now};
    t->reference_us = 0; // to be taken anew
    if (!may_try_other(t)) return false;
    begin_again(t, uses, 2);
    t->n_settled = 0;
    return ask(t, &wish, now, hopeless, "rounds take another time");
}

static bool deviates(const struct atsi_tuner *t, const struct atsi_scales *now) {
    return atsi_scales_deviation(&t->reference, now) > t->params.epsilon ||
           deviation(t->reference_us, atsi_tuner_recent_us(t)) > t->params.epsilon;
}

static bool watch(struct atsi_tuner *t, const struct atsi_scales *now) {
    t->n_settled++;
    if (t->n_rounds <= ATSI_TUNER_ROUNDS || t->n_rounds < t->params.tau) return false;
    if (t->reference_us == 0) t->reference_us = atsi_tuner_recent_us(t);
    t->n_deviating = deviates(t, now) ? t->n_deviating + 1 : 0;
    if (t->n_deviating < ATSI_TUNER_CERTAIN) return false;
    t->n_deviating = 0;
    return atsi_scales_deviation(&t->reference, now) > t->params.epsilon ? follow_speeds(t, now) : try_other(t, now);
}

bool atsi_tuner_record(struct atsi_tuner *t, double round_us, const struct atsi_scales *scales) {
    if (!t->params.is_dynamic || t->asked) return false;
    t->times_us[t->n_rounds++ % ATSI_TUNER_ROUNDS] = round_us;
    if (atsi_tuner_is_settled(t)) return watch(t, scales);
    return t->n_rounds > ATSI_TUNER_ROUNDS && end_trial(t, scales);
}
