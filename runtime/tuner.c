#include "runtime/tuner.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// By their predictions: the same use for other speeds has to promise something; the other use must not be out of the question.
static const double gain = 0.99, hopeless = 1.15;
// A forecast of the other use leans on speeds that were recorded under this one, where both sides may get in each other's way more or
// less; once a load has changed, only a trial tells.
static const double far_off = 1.3;

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

bool atsi_tuner_is_settled(const struct atsi_tuner *t) { return !t->trying; }

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

void atsi_tuner_begun(struct atsi_tuner *t, enum atsi_link_use use) {
    if (!t->has_begun) {
        t->wish.use = use;
        t->n_left[use]--;
        t->has_begun = true;
    }
    t->at_work = t->wish;
    t->at_work_reference = t->reference;
    t->asked = false;
    t->n_rounds = t->n_deviating = 0;
    t->reference_us = 0;
}

void atsi_tuner_start(struct atsi_tuner *t, const struct atsi_tuner_params *params) {
    static const struct atsi_scales as_planned = {1, 1, 1};
    struct atsi_tuner_wish first = {params->has_choice ? ATSI_LINK_SHARES : ATSI_LINK_STREAMS, as_planned, false};
    *t = (struct atsi_tuner){.params = *params, .trying = params->is_dynamic};
    t->n_left[ATSI_LINK_STREAMS] = 2;
    t->n_left[ATSI_LINK_SHARES] = params->has_choice ? 2 : 0;
    ask(t, &first, &as_planned, INFINITY, "start");
    t->at_work = first;
    t->asked = false; // the first decision comes without being asked for
}

// Another look at the use at hand is only worth it when speeds turned out different from what it was decided for.
static bool is_as_decided(const struct atsi_tuner *t, const struct atsi_scales *now) {
    bool known = t->at_work.use == ATSI_LINK_STREAMS || t->at_work.by_unit;
    return known && atsi_scales_deviation(&t->at_work.scales, now) < t->params.epsilon / 3;
}

// Of equals the newest, which is at work.
static uint32_t find_best(const struct atsi_tuner *t) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < t->n_results; i++)
        if (t->results[i].median_us <= t->results[best].median_us) best = i;
    return best;
}

bool atsi_tuner_may_return(const struct atsi_tuner *t) {
    return t->trying && t->n_results > 0 && find_best(t) == t->i_newest;
}

static bool settle(struct atsi_tuner *t, const struct atsi_scales *now) {
    uint32_t best = find_best(t);
    t->trying = false;
    if (t->n_results > 1) {
        memcpy(t->finished, t->results, sizeof t->finished);
        t->n_finished = t->n_results;
    }
    return best != t->i_newest && ask(t, &t->results[best].wish, now, INFINITY, "the fastest of those tried");
}

static enum atsi_link_use other(enum atsi_link_use use) {
    return use == ATSI_LINK_STREAMS ? ATSI_LINK_SHARES : ATSI_LINK_STREAMS;
}

static bool try_use(struct atsi_tuner *t, enum atsi_link_use use, const struct atsi_scales *now, double most_ratio,
                    const char *reason) {
    // The first shares of all show what single units take in two parts.
    struct atsi_tuner_wish wish = {use, *now, use == ATSI_LINK_STREAMS || t->n_left[use] == 1};
    t->n_left[use]--;
    return ask(t, &wish, now, most_ratio, reason);
}

// What has been tried is too far behind for a better decision to help.
static bool is_hopeless(const struct atsi_tuner *t) {
    return t->n_results > 0 && t->results[t->i_newest].median_us > hopeless * t->results[find_best(t)].median_us;
}

static bool next_trial(struct atsi_tuner *t, const struct atsi_scales *now) {
    enum atsi_link_use use = t->at_work.use;
    if (t->n_left[use] > 0 && !is_as_decided(t, now) && !is_hopeless(t)) return try_use(t, use, now, INFINITY, "trial");
    t->n_left[use] = 0;
    if (t->n_left[other(use)] > 0) return try_use(t, other(use), now, t->again ? far_off : hopeless, "trial");
    return settle(t, now);
}

static void note_result(struct atsi_tuner *t, double median_us) {
    t->i_newest = t->n_results;
    t->results[t->n_results++] = (struct atsi_tuner_result){t->at_work, median_us};
}

static bool end_trial(struct atsi_tuner *t, const struct atsi_scales *now) {
    // Decided for the plan's times: only now is known what they mean.
    if (t->n_results == 0) t->reference = t->at_work_reference = *now;
    note_result(t, atsi_tuner_recent_us(t));
    return next_trial(t, now);
}

bool atsi_tuner_declined(struct atsi_tuner *t, const struct atsi_scales *now) {
    // For the use at work, what is at work is as good as if it had been decided for these speeds; of the other use nothing is known.
    if (t->wish.use != t->at_work.use) {
        t->n_left[t->wish.use] = 0;
        t->reference = t->at_work_reference;
        t->wish = t->at_work;
    }
    atsi_tuner_begun(t, t->wish.use);
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
static void begin_again(struct atsi_tuner *t, bool with_other) {
    memset(t->results, 0, sizeof t->results);
    t->n_results = 0;
    note_result(t, longest_us(t));
    t->trying = t->again = true;
    t->n_left[t->at_work.use] = 0;
    t->n_left[other(t->at_work.use)] = with_other;
    if (with_other) t->n_settled = 0;
}

static bool may_try_other(const struct atsi_tuner *t) {
    return t->params.has_choice && t->n_settled >= ATSI_TUNER_PATIENCE;
}

static bool follow_speeds(struct atsi_tuner *t, const struct atsi_scales *now) {
    struct atsi_tuner_wish wish = {t->at_work.use, scale_wish(t, now), t->at_work.by_unit};
    begin_again(t, may_try_other(t));
    return ask(t, &wish, now, gain, "speeds have changed");
}

// At the same speeds only the other use of the link can be better.
static bool try_other(struct atsi_tuner *t, const struct atsi_scales *now) {
    t->reference_us = 0; // to be taken anew
    if (!may_try_other(t)) return false;
    begin_again(t, true);
    return try_use(t, other(t->at_work.use), now, far_off, "rounds take another time");
}

static bool deviates(const struct atsi_tuner *t, const struct atsi_scales *now) {
    return atsi_scales_deviation(&t->reference, now) > t->params.epsilon ||
           deviation(t->reference_us, atsi_tuner_recent_us(t)) > t->params.epsilon;
}

static bool watch(struct atsi_tuner *t, const struct atsi_scales *now) {
    t->n_settled++;
    if (t->n_rounds <= ATSI_TUNER_ROUNDS || t->n_rounds < t->params.tau) return false;
    if (t->reference_us == 0) t->reference_us = atsi_tuner_recent_us(t);
    if (t->params.has_choice && t->n_settled >= ATSI_TUNER_LONGEST) {
        begin_again(t, true);
        return try_use(t, other(t->at_work.use), now, INFINITY, "not tried for long");
    }
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
