#include "runtime/tuner.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// By their predictions: the same use for other speeds has to promise something; at the start, the other use must not be out of the
// question. Later its forecast says little: it leans on speeds that were recorded under this one, where both sides may get in each
// other's way more or less.
static const double gain = 0.99, hopeless = 1.15, far_off = 1.5;
// Where rounds differ much among each other, a trial of some rounds says less than the forecast for the same use: then a decision that
// promises clearly more is kept unless it turns out clearly worse. The forecast of the other use says nothing, so that one has to turn
// out clearly better.
static const double clear_gain = 0.95, clearly_worse = 1.15;
// Once speeds have been recorded for a while they are known better than after the few rounds of a trial; a little more counts than
// after a change, since nothing is wrong.
static const double polish = 0.98;
// Rounds that differ by this part of their median among each other need more of them to be compared.
static const double noisy = 0.3;

// ---- times of rounds ----------------------------------------------------------------------------------------------

struct summary {
    double median_us, spread; // (longest - shortest) / median
};

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// Of the last n rounds, of which there are that many.
static struct summary sum_up(const struct atsi_tuner *t, uint32_t n) {
    double sorted[ATSI_TUNER_MANY_ROUNDS];
    for (uint32_t back = 0; back < n; back++)
        sorted[back] = t->times_us[(t->n_rounds - 1 - back) % ATSI_TUNER_MANY_ROUNDS];
    qsort(sorted, n, sizeof *sorted, compare);
    return (struct summary){sorted[n / 2], (sorted[n - 1] - sorted[0]) / sorted[n / 2]};
}

// The first round under an assignment does not count.
static bool has_rounds(const struct atsi_tuner *t, uint32_t n) { return t->n_rounds > n; }

double atsi_tuner_recent_us(const struct atsi_tuner *t) {
    return has_rounds(t, ATSI_TUNER_ROUNDS) ? sum_up(t, ATSI_TUNER_ROUNDS).median_us : 0;
}

// Whether there are rounds enough to compare what is at work with something else, and their median.
static bool is_measured(const struct atsi_tuner *t, double *median_us) {
    if (!has_rounds(t, ATSI_TUNER_ROUNDS)) return false;
    uint32_t n = t->is_noisy ? ATSI_TUNER_MANY_ROUNDS : ATSI_TUNER_ROUNDS;
    if (has_rounds(t, n)) *median_us = sum_up(t, n).median_us;
    return has_rounds(t, n);
}

bool atsi_tuner_is_settled(const struct atsi_tuner *t) { return !t->trying; }

static double deviation(double from, double to) { return from > 0 ? fabs(to / from - 1) : 0; }

bool atsi_tuner_is_surprised(const struct atsi_tuner *t) {
    double last_us = t->n_rounds > 0 ? t->times_us[(t->n_rounds - 1) % ATSI_TUNER_MANY_ROUNDS] : 0;
    return deviation(t->reference_us, last_us) > t->params.epsilon;
}

// ---- asking -------------------------------------------------------------------------------------------------------

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
    t->n_rounds = t->n_deviating = t->n_behind = 0;
    t->reference_us = 0;
}

void atsi_tuner_start(struct atsi_tuner *t, const struct atsi_tuner_params *params) {
    static const struct atsi_scales as_planned = {1, 1, 1, 0};
    struct atsi_tuner_wish first = {params->has_choice ? ATSI_LINK_SHARES : ATSI_LINK_STREAMS, as_planned, false};
    *t = (struct atsi_tuner){.params = *params,
                             .trying = params->is_dynamic,
                             .other_scales = as_planned,
                             .second_wait = ATSI_TUNER_SECOND,
                             .polish_wait = ATSI_TUNER_SECOND};
    t->n_left[ATSI_LINK_STREAMS] = 2;
    t->n_left[ATSI_LINK_SHARES] = params->has_choice ? 2 : 0;
    ask(t, &first, &as_planned, INFINITY, "start");
    t->at_work = first;
    t->asked = false; // the first decision comes without being asked for
}

static bool is_alike(const struct atsi_tuner *t, const struct atsi_scales *a, const struct atsi_scales *b) {
    return atsi_scales_deviation(a, b) < t->params.epsilon / 3;
}

// Another look at the use at hand is only worth it when speeds turned out different from what it was decided for.
static bool is_as_decided(const struct atsi_tuner *t, const struct atsi_scales *now) {
    bool known = t->at_work.use == ATSI_LINK_STREAMS || t->at_work.by_unit;
    return known && is_alike(t, &t->at_work.scales, now);
}

static enum atsi_link_use other(enum atsi_link_use use) {
    return use == ATSI_LINK_STREAMS ? ATSI_LINK_SHARES : ATSI_LINK_STREAMS;
}

// ---- trials -------------------------------------------------------------------------------------------------------

// How long rounds of a result may take, against those of an earlier one, for it to be the better one.
static double tolerance(const struct atsi_tuner *t, const struct atsi_tuner_result *result) {
    if (!t->was_noisy) return 1;
    return result->wish.use == t->results[0].wish.use ? clearly_worse : clear_gain;
}

// Of equals the newest, which is at work.
static uint32_t find_best(const struct atsi_tuner *t) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < t->n_results; i++)
        if (t->results[i].median_us <= tolerance(t, &t->results[i]) * t->results[best].median_us) best = i;
    return best;
}

bool atsi_tuner_may_return(const struct atsi_tuner *t) {
    return t->trying && t->n_results > 0 && find_best(t) == t->i_newest;
}

static bool are_alike(const struct atsi_tuner *t, const struct atsi_tuner_wish *a, const struct atsi_tuner_wish *b) {
    return a->use == b->use && is_alike(t, &a->scales, &b->scales);
}

// The fastest of those that differ from the best in more than their luck.
static struct atsi_tuner_result find_second(const struct atsi_tuner *t, uint32_t best) {
    struct atsi_tuner_result second = {.median_us = 0};
    for (uint32_t i = 0; i < t->n_results; i++) {
        const struct atsi_tuner_result *r = &t->results[i];
        if (are_alike(t, &r->wish, &t->results[best].wish)) continue;
        if (second.median_us == 0 || r->median_us < second.median_us) second = *r;
    }
    return second;
}

static bool settle(struct atsi_tuner *t, const struct atsi_scales *now) {
    uint32_t best = find_best(t);
    t->trying = false;
    t->n_settled = 0;
    t->second = find_second(t, best);
    if (t->n_results > 1) {
        memcpy(t->finished, t->results, sizeof t->finished);
        t->n_finished = t->n_results;
    }
    if (!t->has_home) t->home = t->results[best].wish;
    t->has_home = true;
    return best != t->i_newest && ask(t, &t->results[best].wish, now, INFINITY, "the fastest of those tried");
}

static bool try_use(struct atsi_tuner *t, enum atsi_link_use use, const struct atsi_scales *now, double most_ratio,
                    const char *reason) {
    // The first shares of all show what single units take in two parts.
    struct atsi_tuner_wish wish = {use, *now, use == ATSI_LINK_STREAMS || t->n_left[use] == 1};
    t->n_left[use]--;
    return ask(t, &wish, now, most_ratio, reason);
}

static bool try_other(struct atsi_tuner *t, const struct atsi_scales *now, const char *reason) {
    t->other_scales = *now;
    t->n_since_other = 0;
    return try_use(t, other(t->at_work.use), now, t->has_home ? far_off : hopeless, reason);
}

// What has been tried is too far behind for a better decision to help.
static bool is_hopeless(const struct atsi_tuner *t) {
    return t->n_results > 0 && t->results[t->i_newest].median_us > hopeless * t->results[find_best(t)].median_us;
}

static bool was_tried(const struct atsi_tuner *t, const struct atsi_tuner_wish *wish) {
    for (uint32_t i = 0; i < t->n_results; i++)
        if (are_alike(t, &t->results[i].wish, wish)) return true;
    return false;
}

static bool next_trial(struct atsi_tuner *t, const struct atsi_scales *now) {
    enum atsi_link_use use = t->at_work.use;
    // The forecast of streams tells whether other streams are better; that of shares knows nothing of what single units took.
    double most_ratio = use == ATSI_LINK_STREAMS ? 1 : INFINITY;
    if (t->n_left[use] > 0 && !is_as_decided(t, now) && !is_hopeless(t))
        return try_use(t, use, now, most_ratio, "trial");
    t->n_left[use] = 0;
    if (t->n_left[other(use)] > 0) return try_other(t, now, "trial");
    bool home_left = t->home_left && !was_tried(t, &t->home);
    t->home_left = false;
    if (home_left) return ask(t, &t->home, now, INFINITY, "as at the start");
    return settle(t, now);
}

static void note_result(struct atsi_tuner *t, double median_us) {
    t->i_newest = t->n_results;
    t->results[t->n_results++] = (struct atsi_tuner_result){t->at_work, median_us};
}

static bool end_trial(struct atsi_tuner *t, double median_us, const struct atsi_scales *now) {
    // Decided for the plan's times: only now is known what they mean.
    if (t->n_results == 0) t->reference = t->at_work_reference = *now;
    note_result(t, median_us);
    return next_trial(t, now);
}

bool atsi_tuner_declined(struct atsi_tuner *t, const struct atsi_scales *now) {
    // What is at work is as good as anything that would be decided for these speeds for the same use; of the other use nothing is known.
    if (t->wish.use != t->at_work.use) t->reference = t->at_work_reference;
    t->n_left[t->wish.use] = 0;
    t->wish = t->at_work;
    atsi_tuner_begun(t, t->wish.use);
    return next_trial(t, now);
}

// ---- changes ------------------------------------------------------------------------------------------------------

// What is at home was decided for, as far as speeds have changed since: where the plan's times are off, but were the better guide, they
// stay the guide. Speeds look different under the other use; for that one they are what was recorded.
static struct atsi_scales scale_wish(const struct atsi_tuner *t, const struct atsi_scales *now) {
    const struct atsi_scales *w = &t->home.scales, *r = &t->home_scales;
    if (t->at_work.use != t->home.use || !(r->cpu > 0)) return *now;
    return (struct atsi_scales){w->cpu * now->cpu / r->cpu, w->gpu * now->gpu / r->gpu, w->link * now->link / r->link,
                                now->handover_us};
}

// The assignment at work is the first of the trials and already over; its last n rounds count, as a load that has just begun is in no
// other.
static void begin_again(struct atsi_tuner *t, uint32_t n, bool with_other, bool with_home) {
    memset(t->results, 0, sizeof t->results);
    t->n_results = 0;
    t->was_noisy = t->is_noisy;
    note_result(t, sum_up(t, n).median_us);
    t->trying = true;
    t->n_left[t->at_work.use] = 0;
    t->n_left[other(t->at_work.use)] = with_other;
    t->home_left = with_home;
}

// The last trial of the other use was long ago or under another load. Under noise a trial takes longer, and speeds change all the time.
static bool may_try_other(const struct atsi_tuner *t, const struct atsi_scales *now) {
    if (!t->params.has_choice) return false;
    if (t->is_noisy && t->n_since_other < ATSI_TUNER_PATIENCE) return false;
    return t->n_since_other >= (t->is_noisy ? ATSI_TUNER_LONGEST / 2 : ATSI_TUNER_PATIENCE) ||
           atsi_scales_deviation(&t->other_scales, now) > 2 * t->params.epsilon;
}

static bool follow(struct atsi_tuner *t, uint32_t n, const struct atsi_scales *now, const char *reason) {
    struct atsi_tuner_wish wish = {t->at_work.use, scale_wish(t, now), t->at_work.by_unit};
    bool calm = !t->is_noisy;
    t->second_wait = t->polish_wait = ATSI_TUNER_SECOND;
    begin_again(t, n, may_try_other(t, now), calm);
    return ask(t, &wish, now, calm ? gain : clear_gain, reason);
}

static bool try_second(struct atsi_tuner *t, uint32_t n, const struct atsi_scales *now) {
    t->second_wait *= 2;
    begin_again(t, n, false, false);
    return ask(t, &t->second.wish, now, INFINITY, "the next best was faster");
}

// Something like it was tried lately, and is not at work.
static bool has_lost(const struct atsi_tuner *t, const struct atsi_tuner_wish *wish) {
    return was_tried(t, wish) && !is_alike(t, &t->at_work.scales, &wish->scales);
}

// The same use as decided for what is known by now. True when it is asked for.
static bool try_to_polish(struct atsi_tuner *t, uint32_t n, const struct atsi_scales *now) {
    struct atsi_tuner_wish wish = {t->at_work.use, *now, true};
    if (t->n_settled < t->polish_wait) return false;
    t->polish_wait = t->n_settled + ATSI_TUNER_PATIENCE;
    if (atsi_scales_deviation(&t->at_work.scales, now) < t->params.epsilon / 10 || has_lost(t, &wish)) return false;
    begin_again(t, n, false, false);
    return ask(t, &wish, now, polish, "speeds are known better");
}

static bool try_what_is_overdue(struct atsi_tuner *t, uint32_t n, const struct atsi_scales *now) {
    begin_again(t, n, true, false);
    return try_other(t, now, "not tried for long");
}

static bool is_behind_second(const struct atsi_tuner *t, double median_us) {
    return t->second.median_us > 0 && median_us > (1 + t->params.epsilon / 3) * t->second.median_us &&
           t->n_settled >= t->second_wait;
}

// Speeds look somewhat different under every assignment: changes count from what was recorded under the one at work. What is more than
// that has changed since it was asked for.
static void take_reference(struct atsi_tuner *t, double median_us, const struct atsi_scales *now) {
    t->reference_us = median_us;
    if (t->home_scales.cpu == 0 && are_alike(t, &t->at_work, &t->home)) t->home_scales = *now;
    if (atsi_scales_deviation(&t->reference, now) <= 2 * t->params.epsilon) t->reference = t->at_work_reference = *now;
}

// Speeds that still move are none to decide for: they are smoothed, and threads adapt themselves to a load.
static bool is_steady(struct atsi_tuner *t, const struct atsi_scales *now) {
    bool moves = t->n_steady == 0 || atsi_scales_deviation(&t->steady, now) > t->params.epsilon / 2;
    if (moves) t->steady = *now;
    t->n_steady = moves ? 1 : t->n_steady + 1;
    return t->n_steady >= ATSI_TUNER_CERTAIN;
}

// Whether a change has lasted long enough to be decided for.
static bool is_certain(const struct atsi_tuner *t, uint32_t n, bool steady) {
    // Speeds of noisy rounds are never steady; but then n is larger.
    if (t->is_noisy && t->n_settled < ATSI_TUNER_PATIENCE / 2) return false;
    return t->n_deviating >= n && (steady || t->is_noisy || t->n_deviating >= ATSI_TUNER_PATIENCE);
}

// What is worth a trial although nothing has changed. True when it is asked for.
static bool improve(struct atsi_tuner *t, double median_us, bool steady, const struct atsi_scales *now) {
    t->n_behind = is_behind_second(t, median_us) ? t->n_behind + 1 : 0;
    if (t->n_behind >= ATSI_TUNER_CERTAIN) return try_second(t, ATSI_TUNER_CERTAIN, now);
    return steady && try_to_polish(t, ATSI_TUNER_CERTAIN, now);
}

static bool watch(struct atsi_tuner *t, const struct atsi_scales *now) {
    double median_us;
    t->n_settled++;
    t->n_since_other++;
    if (t->n_rounds < t->params.tau || !is_measured(t, &median_us)) return false;
    if (t->reference_us == 0) take_reference(t, median_us, now);
    uint32_t n = t->is_noisy ? ATSI_TUNER_MANY_ROUNDS : ATSI_TUNER_CERTAIN;
    if (t->params.has_choice && t->n_since_other >= ATSI_TUNER_LONGEST) return try_what_is_overdue(t, n, now);
    bool other_speeds = atsi_scales_deviation(&t->reference, now) > t->params.epsilon,
         other_times = deviation(t->reference_us, median_us) > t->params.epsilon, steady = is_steady(t, now);
    t->n_deviating = other_speeds || other_times ? t->n_deviating + 1 : 0;
    if (t->n_deviating == 0 && !t->is_noisy) return improve(t, median_us, steady, now);
    if (!is_certain(t, n, steady)) return false;
    t->n_deviating = 0;
    return follow(t, n - 1, now, other_speeds ? "speeds have changed" : "rounds take another time");
}

bool atsi_tuner_record(struct atsi_tuner *t, double round_us, const struct atsi_scales *scales) {
    double median_us;
    if (!t->params.is_dynamic || t->asked) return false;
    t->times_us[t->n_rounds++ % ATSI_TUNER_MANY_ROUNDS] = round_us;
    t->is_noisy = has_rounds(t, ATSI_TUNER_ROUNDS) && sum_up(t, ATSI_TUNER_ROUNDS).spread > noisy;
    if (atsi_tuner_is_settled(t)) return watch(t, scales);
    return is_measured(t, &median_us) && end_trial(t, median_us, scales);
}
