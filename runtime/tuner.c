#include "runtime/tuner.h"

#include <math.h>
#include <string.h>

#include "formats/base/sort.h"

// What a decision has to promise at least: what a switch and a few rounds that may be worse cost, and what medians of rounds differ by luck.
static const double switch_gain = 0.015, luck_weight = 0.75, most_gain = 0.15;
// A forecast of the other use leans on speeds that were recorded under this one. At the start and after long, a trial may show that it is
// better than its forecast, if that is near enough to what is at work for the trial to cost little.
static const double near = 1.08;
// When nothing has changed, and the speeds that the same use was decided for were recorded too, a little better is not worth it.
static const double polish = 0.97;
// Where rounds differ much among each other, a trial of some rounds says less than the forecast for the same use: then it is enough if
// this part of what was promised is seen, less what may be bad luck. The other use has to turn out clearly better.
static const double kept_part = 0.25;
static const double clear_gain = 0.95, clearly_worse = 1.15;
// What is at home was the fastest in many rounds: a trial of a few in which it is no slower than this says no other.
static const double proven = 1.02;
// A decision for all of a change may turn out worse than its forecast where one for half of it does not.
enum {
    enough_in_vain = 2
};
// Rounds that differ by this part of their median among each other need more of them to be compared.
static const double noisy = 0.3, much_luck = 0.02;
// More than this is no error of a forecast, but of a trial.
static const double most_error = 1.25;

// ---- rounds -------------------------------------------------------------------------------------------------------

// Of the last n rounds, of which there are that many. Luck is reckoned from the quartiles, which single rounds of three times the usual leave alone.
static struct atsi_tuner_summary sum_up(const struct atsi_tuner *t, uint32_t n) {
    double sorted[ATSI_TUNER_MANY_ROUNDS];
    for (uint32_t back = 0; back < n; back++)
        sorted[back] = t->times_us[(t->n_rounds - 1 - back) % ATSI_TUNER_MANY_ROUNDS];
    atsi_sort_doubles(sorted, n);
    double median_us = sorted[n / 2], deviation = (sorted[3 * n / 4] - sorted[n / 4]) / 1.35;
    return (struct atsi_tuner_summary){median_us, (sorted[n - 1] - sorted[0]) / median_us,
                                       1.25 * deviation / sqrt(n) / median_us};
}

// The first round under an assignment does not count.
static bool has_rounds(const struct atsi_tuner *t, uint32_t n) { return t->n_rounds > n; }

double atsi_tuner_recent_us(const struct atsi_tuner *t) {
    return has_rounds(t, ATSI_TUNER_ROUNDS) ? t->few.median_us : 0;
}

// The median of rounds enough to compare what is at work with something else; 0 before.
static double measured_us(const struct atsi_tuner *t) {
    if (!has_rounds(t, ATSI_TUNER_ROUNDS)) return 0;
    if (t->is_noisy) return has_rounds(t, ATSI_TUNER_MANY_ROUNDS) ? t->many.median_us : 0;
    if (!t->has_home) return t->few.median_us;
    return has_rounds(t, ATSI_TUNER_MORE_ROUNDS) ? sum_up(t, ATSI_TUNER_MORE_ROUNDS).median_us : 0;
}

bool atsi_tuner_is_settled(const struct atsi_tuner *t) { return !t->trying; }

static double deviation(double from, double to) { return from > 0 ? fabs(to / from - 1) : 0; }

bool atsi_tuner_is_surprised(const struct atsi_tuner *t) { return t->n_off > 0; }

// What lasts has been looked at: timing the device in every round costs more than it still tells.
static void watch_few(struct atsi_tuner *t) {
    double few_us = t->few.median_us;
    bool as_usual = deviation(t->reference_us, few_us) <= t->params.epsilon;
    if (as_usual) t->known_us = 0;
    bool is_known = t->known_us > 0 && deviation(t->known_us, few_us) <= t->params.epsilon;
    t->n_off = as_usual || is_known ? 0 : t->n_off + 1;
    if (t->n_off <= ATSI_TUNER_SURPRISE) return;
    t->known_us = few_us;
    t->n_off = 0;
}

static double median_of(double *values, uint32_t n) {
    atsi_sort_doubles(values, n);
    return values[n / 2];
}

// A few rounds with items that waited for a time slice are no other speed.
static struct atsi_scales median_speeds(const struct atsi_tuner *t) {
    double cpu[ATSI_TUNER_SPEEDS], gpu[ATSI_TUNER_SPEEDS], link[ATSI_TUNER_SPEEDS], handover[ATSI_TUNER_SPEEDS];
    uint32_t n = t->n_rounds < ATSI_TUNER_SPEEDS ? t->n_rounds : ATSI_TUNER_SPEEDS;
    for (uint32_t i = 0; i < n; i++) {
        cpu[i] = t->speeds[i].cpu;
        gpu[i] = t->speeds[i].gpu;
        link[i] = t->speeds[i].link;
        handover[i] = t->speeds[i].handover_us;
    }
    return (struct atsi_scales){median_of(cpu, n), median_of(gpu, n), median_of(link, n), median_of(handover, n)};
}

static void note_round(struct atsi_tuner *t, double round_us, const struct atsi_scales *scales) {
    t->times_us[t->n_rounds % ATSI_TUNER_MANY_ROUNDS] = round_us;
    t->speeds[t->n_rounds % ATSI_TUNER_SPEEDS] = *scales;
    t->n_rounds++;
    t->n_recorded++;
    t->now = median_speeds(t);
    bool has_few = has_rounds(t, ATSI_TUNER_ROUNDS), has_many = has_rounds(t, ATSI_TUNER_MANY_ROUNDS);
    if (has_few) {
        t->few = sum_up(t, ATSI_TUNER_ROUNDS);
        watch_few(t);
    }
    if (has_many) t->many = sum_up(t, ATSI_TUNER_MANY_ROUNDS);
    t->is_noisy = (has_few && t->few.spread > noisy) || (has_many && t->many.luck > much_luck);
}

// ---- asking -------------------------------------------------------------------------------------------------------

// `speeds`: recorded under what is asked for, as far as known: changes count from them once it is at work.
static bool ask(struct atsi_tuner *t, const struct atsi_tuner_wish *wish, const struct atsi_scales *speeds,
                double most_ratio, const char *reason) {
    t->wish = *wish;
    t->most_ratio = most_ratio;
    t->asked_at = *speeds;
    t->asked_us = 0;
    t->reason = reason;
    t->asked = true;
    return true;
}

void atsi_tuner_begun(struct atsi_tuner *t, enum atsi_link_use use, double promised) {
    if (!t->has_begun) {
        t->wish.use = use;
        t->n_left[use]--;
        t->has_begun = true;
    }
    t->recorded_under = t->at_work.use;
    t->at_work = t->wish;
    t->reference = t->asked_at;
    t->promised = promised;
    t->asked = t->has_reference = false;
    t->n_rounds = t->n_deviating = t->n_behind = t->n_steady = t->n_off = 0;
    t->reference_us = t->asked_us;
    t->known_us = 0;
}

void atsi_tuner_start(struct atsi_tuner *t, const struct atsi_tuner_params *params) {
    static const struct atsi_scales as_planned = {1, 1, 1, 0};
    struct atsi_tuner_wish first = {params->has_choice ? ATSI_LINK_SHARES : ATSI_LINK_STREAMS, as_planned, false};
    *t = (struct atsi_tuner){.params = *params,
                             .trying = params->is_dynamic,
                             .now = as_planned,
                             .error = {1, 1},
                             .second_wait = ATSI_TUNER_SECOND,
                             .follow_wait = ATSI_TUNER_SECOND,
                             .polish_wait = ATSI_TUNER_SECOND,
                             .polish_step = ATSI_TUNER_PATIENCE,
                             .part = 1};
    t->n_left[ATSI_LINK_STREAMS] = 2;
    t->n_left[ATSI_LINK_SHARES] = params->has_choice ? 2 : 0;
    ask(t, &first, &as_planned, INFINITY, "start");
    t->at_work = first;
    t->asked = false; // the first decision comes without being asked for
}

static bool is_alike(const struct atsi_tuner *t, const struct atsi_scales *a, const struct atsi_scales *b) {
    return atsi_scales_deviation(a, b) < t->params.epsilon / 3;
}

static bool are_alike(const struct atsi_tuner *t, const struct atsi_tuner_wish *a, const struct atsi_tuner_wish *b) {
    return a->use == b->use && is_alike(t, &a->scales, &b->scales);
}

static enum atsi_link_use other(enum atsi_link_use use) {
    return use == ATSI_LINK_STREAMS ? ATSI_LINK_SHARES : ATSI_LINK_STREAMS;
}

static double least_promise(const struct atsi_tuner *t) {
    double luck = has_rounds(t, ATSI_TUNER_MANY_ROUNDS) ? t->many.luck : sum_up(t, t->n_rounds - 1).luck;
    return 1 - fmin(most_gain, switch_gain + luck_weight * luck);
}

// ---- what is remembered -------------------------------------------------------------------------------------------

static bool is_same(const struct atsi_tuner_wish *a, const struct atsi_tuner_wish *b) {
    return a->use == b->use && a->by_unit == b->by_unit && atsi_scales_deviation(&a->scales, &b->scales) == 0;
}

static void remember(struct atsi_tuner *t, const struct atsi_tuner_wish *wish, const struct atsi_scales *speeds,
                     bool tried) {
    t->memory[t->i_memory] = (struct atsi_tuner_memory){*wish, *speeds, t->n_recorded, tried};
    t->i_memory = (t->i_memory + 1) % ATSI_TUNER_MEMORY;
}

// How often that was in vain, in trials or by forecasts, under what is at work, at speeds that deviate by less than that, and not long ago.
static uint32_t in_vain(const struct atsi_tuner *t, bool tried, double nearness) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < ATSI_TUNER_MEMORY; i++) {
        const struct atsi_tuner_memory *m = &t->memory[i];
        if (m->round == 0 || t->n_recorded - m->round > ATSI_TUNER_LONGEST || !is_same(&m->wish, &t->at_work)) continue;
        n += m->tried == tried && atsi_scales_deviation(&m->speeds, &t->now) < nearness;
    }
    return n;
}

// ---- trials -------------------------------------------------------------------------------------------------------

// How long rounds of a result may take, against those of an earlier one, for it to be the better one.
static double tolerance(const struct atsi_tuner *t, const struct atsi_tuner_result *result) {
    if (!t->was_noisy) return t->has_home && is_same(&result->wish, &t->home) ? proven : 1;
    if (result->wish.use != t->results[0].wish.use) return clear_gain;
    double missing = result->promised > 0 ? fmax(0, 1 - result->promised) : 0;
    return fmin(clearly_worse, 1 + t->luck - kept_part * missing);
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

// Since the trials began.
static bool has_changed_since(const struct atsi_tuner *t) {
    return atsi_scales_deviation(&t->began_at, &t->now) > 2 * t->params.epsilon;
}

static void move_home(struct atsi_tuner *t, const struct atsi_tuner_wish *wish) {
    t->has_home = true;
    t->home = *wish;
    t->home_scales.cpu = t->home_us = 0;
}

static void note_outcome(struct atsi_tuner *t, bool is_better) {
    bool is_new = is_better || has_changed_since(t);
    t->follow_wait = is_new                                     ? ATSI_TUNER_SECOND
                     : t->follow_wait < 2 * ATSI_TUNER_PATIENCE ? 2 * t->follow_wait
                                                                : t->follow_wait;
    if (!is_better) remember(t, &t->results[0].wish, &t->began_at, t->n_results > 1);
}

static bool settle(struct atsi_tuner *t) {
    uint32_t best = find_best(t);
    t->trying = false;
    t->n_settled = 0;
    t->second = find_second(t, best);
    t->second_scales = t->now;
    if (t->n_results > 1) {
        memcpy(t->finished, t->results, sizeof t->finished);
        t->n_finished = t->n_results;
    }
    // Nothing had changed: what is better than what was at home is better there.
    bool was_home = t->has_home && !t->follows && is_same(&t->results[0].wish, &t->home);
    if (!t->has_home || (was_home && best > 0)) move_home(t, &t->results[best].wish);
    if (t->follows) note_outcome(t, best > 0);
    if (best == t->i_newest) return false;
    ask(t, &t->results[best].wish, best == 0 ? &t->began_at : &t->now, INFINITY, "the fastest of those tried");
    t->asked_us = t->results[best].median_us;
    return true;
}

static bool try_use(struct atsi_tuner *t, enum atsi_link_use use, double most_ratio, const char *reason) {
    // The first shares of all show what single units take in two parts.
    struct atsi_tuner_wish wish = {use, t->now, use == ATSI_LINK_STREAMS || t->n_left[use] == 1};
    t->n_left[use]--;
    return ask(t, &wish, &t->now, most_ratio, reason);
}

static bool try_other(struct atsi_tuner *t, double most_ratio, const char *reason) {
    enum atsi_link_use here = t->at_work.use, there = other(here);
    t->n_since_other = 0;
    return try_use(t, there, most_ratio * t->error[here] / t->error[there], reason);
}

// The other use was forecast so far behind that it still is, whatever has become of the processors and the link since: a forecast changes by no
// more than the one that has changed the most, this one and that of what is at work. What hand-overs take may count for more, and hit rates
// change by themselves, so it holds for as long as the former are as they were, and for some rounds only.
static bool is_far_behind(const struct atsi_tuner *t, enum atsi_link_use use) {
    const struct atsi_tuner_behind *b = &t->behind[use];
    struct atsi_scales prompt = b->speeds;
    prompt.handover_us = t->now.handover_us;
    bool holds = t->n_recorded - b->round <= 2 * ATSI_TUNER_PATIENCE &&
                 atsi_scales_deviation(&b->speeds, &prompt) < t->params.epsilon / 2;
    double change = 1 + fmax(atsi_scales_deviation(&b->speeds, &t->now), atsi_scales_deviation(&t->now, &b->speeds));
    return holds && b->ratio > near * change * change;
}

static bool was_tried(const struct atsi_tuner *t, const struct atsi_tuner_wish *wish) {
    for (uint32_t i = 0; i < t->n_results; i++)
        if (are_alike(t, &t->results[i].wish, wish)) return true;
    return false;
}

// Another look at the use at hand is only worth it when speeds turned out different from what it was decided for.
static bool is_as_decided(const struct atsi_tuner *t) { return is_alike(t, &t->at_work.scales, &t->now); }

// What has been tried is too far behind for a better decision to help.
static bool is_hopeless(const struct atsi_tuner *t) {
    return t->results[t->i_newest].median_us > near * t->results[find_best(t)].median_us;
}

static bool next_of_first_trials(struct atsi_tuner *t) {
    enum atsi_link_use use = t->at_work.use;
    if (t->n_left[use] > 0 && !is_as_decided(t) && !is_hopeless(t)) return try_use(t, use, least_promise(t), "trial");
    t->n_left[use] = 0;
    return t->n_left[other(use)] > 0 ? try_other(t, near, "trial") : settle(t);
}

// What is at home was decided for, as far as speeds have changed since: where the plan's times are off, but were the better guide, they
// stay the guide. Speeds look different under the other use; for that one they are what was recorded.
static struct atsi_scales scale_wish(const struct atsi_tuner *t) {
    const struct atsi_scales *w = &t->home.scales, *r = &t->home_scales, *now = &t->now;
    if (t->at_work.use != t->home.use || !(r->cpu > 0)) return *now;
    return (struct atsi_scales){w->cpu * pow(now->cpu / r->cpu, t->part), w->gpu * pow(now->gpu / r->gpu, t->part),
                                w->link * pow(now->link / r->link, t->part), now->handover_us};
}

// At speeds like those under which it was the fastest, what is at home is that whatever is forecast while what was recorded under a load
// fades.
static bool is_as_at_home(const struct atsi_tuner *t) {
    return t->home_scales.cpu > 0 && atsi_scales_deviation(&t->home_scales, &t->now) < t->params.epsilon / 2;
}

static double most_of_home(const struct atsi_tuner *t) {
    return t->is_noisy ? least_promise(t) : is_as_at_home(t) ? near : 1;
}

// Home comes first: it has proved itself, and what is decided for speeds near those of home has to be better than that.
static bool next_of_changed_speeds(struct atsi_tuner *t) {
    enum atsi_link_use use = t->at_work.use;
    bool home_left = t->home_left && !was_tried(t, &t->home), same_left = t->n_left[use] > 0;
    struct atsi_tuner_wish same = {use, scale_wish(t), t->at_work.by_unit};
    if (find_best(t) != t->i_newest) return settle(t);
    t->home_left = false;
    if (home_left) return ask(t, &t->home, &t->now, most_of_home(t), "as at the start");
    t->n_left[use] = 0;
    if (same_left && !was_tried(t, &same) && !are_alike(t, &same, &t->home))
        return ask(t, &same, &t->now, least_promise(t), t->change);
    bool other_left = t->n_left[other(use)] > 0 && !is_far_behind(t, other(use));
    return other_left ? try_other(t, least_promise(t), "trial") : settle(t);
}

static bool next_trial(struct atsi_tuner *t) {
    return t->has_home ? next_of_changed_speeds(t) : next_of_first_trials(t);
}

static void note_result(struct atsi_tuner *t, double median_us) {
    t->i_newest = t->n_results;
    t->results[t->n_results++] = (struct atsi_tuner_result){t->at_work, median_us, t->promised};
}

static double clamp(double value, double most) { return fmin(most, fmax(1 / most, value)); }

// What was promised of the other use, against what it took: so much are forecasts of it off.
static void learn_error(struct atsi_tuner *t) {
    const struct atsi_tuner_result *before = &t->results[t->n_results - 2], *newest = &t->results[t->i_newest];
    double *error = &t->error[newest->wish.use];
    if (!(t->promised > 0) || t->was_noisy || t->is_noisy || before->wish.use == newest->wish.use) return;
    *error = clamp(t->error[before->wish.use] * newest->median_us / before->median_us / t->promised, most_error);
}

static bool end_trial(struct atsi_tuner *t, double median_us) {
    // Decided for the plan's times: only now is known what they mean.
    if (t->n_results == 0) t->reference = t->began_at = t->now;
    note_result(t, median_us);
    if (t->n_results > 1) learn_error(t);
    // What else was to be tried is for speeds that are no more.
    return t->follows && has_changed_since(t) ? settle(t) : next_trial(t);
}

bool atsi_tuner_declined(struct atsi_tuner *t, double promised) {
    if (t->wish.use != t->at_work.use)
        t->behind[t->wish.use] = (struct atsi_tuner_behind){promised, t->now, t->n_recorded};
    if (!t->has_home) t->n_left[t->wish.use] = 0;
    t->wish = t->at_work;
    t->asked = false;
    return next_trial(t);
}

// ---- changes ------------------------------------------------------------------------------------------------------

// The assignment at work is the first of the trials and already over; its last rounds count.
static void begin_again(struct atsi_tuner *t) {
    memset(t->results, 0, sizeof t->results);
    t->n_results = 0;
    t->was_noisy = t->is_noisy;
    t->luck = t->many.luck;
    note_result(t, sum_up(t, ATSI_TUNER_MANY_ROUNDS - 1).median_us); // a change that is certain began before these
    t->began_at = t->now;
    t->trying = true;
    t->follows = t->home_left = false;
    t->n_left[ATSI_LINK_STREAMS] = t->n_left[ATSI_LINK_SHARES] = 0;
}

// `part`: of the change, that is decided for.
static bool follow(struct atsi_tuner *t, double part, const char *reason) {
    t->second_wait = t->polish_wait = ATSI_TUNER_SECOND;
    t->polish_step = ATSI_TUNER_PATIENCE;
    begin_again(t);
    t->follows = t->home_left = true;
    t->n_left[t->at_work.use] = 1;
    t->n_left[other(t->at_work.use)] = t->params.has_choice;
    t->change = reason;
    t->part = part;
    t->reference = t->now;
    return next_trial(t);
}

static bool try_second(struct atsi_tuner *t) {
    t->second_wait *= 2;
    begin_again(t);
    return ask(t, &t->second.wish, &t->now, near, "the next best was faster");
}

// Away from home less than epsilon is looked at, after a while: what was decided for a load outlives it otherwise. And when speeds are again
// as they were at home, soon.
static bool look_back(struct atsi_tuner *t, bool as_it_was) {
    bool as_at_home = is_as_at_home(t);
    if (are_alike(t, &t->at_work, &t->home) || (as_it_was && !as_at_home)) return false;
    if (t->n_settled < (as_at_home ? t->follow_wait : ATSI_TUNER_PATIENCE + t->follow_wait)) return false;
    bool was_in_vain = in_vain(t, true, t->params.epsilon / 3) + in_vain(t, false, t->params.epsilon / 3) > 0;
    return !was_in_vain && follow(t, 1, "speeds have changed somewhat");
}

// Something like it was tried lately, and is not at work.
static bool has_lost(const struct atsi_tuner *t, const struct atsi_tuner_wish *wish) {
    return was_tried(t, wish) && !is_alike(t, &t->at_work.scales, &wish->scales);
}

// The same use as decided for what is known by now. True when it is asked for.
static bool try_to_polish(struct atsi_tuner *t) {
    struct atsi_tuner_wish wish = {t->at_work.use, t->now, true};
    if (t->n_settled < t->polish_wait || t->part < 1) return false; // all of the change has lost
    t->polish_wait = t->n_settled + t->polish_step;
    if (t->polish_step < ATSI_TUNER_LONGEST) t->polish_step *= 2;
    if (atsi_scales_deviation(&t->at_work.scales, &t->now) < t->params.epsilon / 10 || has_lost(t, &wish)) return false;
    begin_again(t);
    return ask(t, &wish, &t->now, fmin(least_promise(t), polish), "speeds are known better");
}

// Every time that it came out too far behind counts for less.
static bool try_what_is_overdue(struct atsi_tuner *t) {
    enum atsi_link_use there = other(t->at_work.use);
    t->error[there] = sqrt(t->error[there] * t->error[t->at_work.use]);
    begin_again(t);
    t->n_left[there] = 1;
    return try_other(t, near, "not tried for long");
}

// A resource that has become faster may be used more, though no round tells. One that has become slower is of no concern as long as rounds
// are not.
static bool is_relieved(const struct atsi_tuner *t) {
    const struct atsi_scales *r = &t->reference, *now = &t->now;
    struct atsi_scales prompt = *r;
    prompt.handover_us = fmin(r->handover_us, now->handover_us);
    double faster = fmax(r->cpu / now->cpu, fmax(r->gpu / now->gpu, r->link / now->link)) - 1,
           prompter = atsi_scales_deviation(r, &prompt);
    return fmax(faster, prompter) > (t->is_noisy ? 2 : 1) * t->params.epsilon;
}

// Speeds look somewhat different under every assignment: changes count from what was recorded under the one at work. What is more than
// that has changed since it was asked for. At home they count from what it was when it became that.
static void take_reference(struct atsi_tuner *t, double median_us) {
    bool at_home = is_same(&t->at_work, &t->home);
    if (at_home && t->home_us == 0) {
        t->home_us = median_us;
        t->home_scales = t->now;
    }
    t->has_reference = true;
    if (at_home)
        t->reference_us = t->home_us;
    else if (t->reference_us == 0)
        t->reference_us = median_us;
    double handover_us =
        fmax(t->reference.handover_us, t->now.handover_us); // what is recorded of a load that has gone fades slowly
    bool was_relieved = t->recorded_under == t->at_work.use && is_relieved(t);
    if (was_relieved || atsi_scales_deviation(&t->reference, &t->now) > 2 * t->params.epsilon) return;
    t->reference = t->now;
    t->reference.handover_us = handover_us;
}

// Speeds that still move are none to decide for: they are smoothed, and threads adapt themselves to a load.
static bool is_steady(struct atsi_tuner *t) {
    bool moves = t->n_steady == 0 || atsi_scales_deviation(&t->steady, &t->now) > t->params.epsilon / 2;
    if (moves) t->steady = t->now;
    t->n_steady = moves ? 1 : t->n_steady + 1;
    return t->n_steady >= ATSI_TUNER_CERTAIN / 2;
}

// Speeds of noisy rounds are never steady; then trials take long, too, and come more rarely.
static bool is_certain(const struct atsi_tuner *t, bool steady) {
    if (t->is_noisy && t->n_settled < ATSI_TUNER_PATIENCE / 2) return false;
    return t->n_deviating >= ATSI_TUNER_CERTAIN && (steady || t->is_noisy || t->n_deviating >= ATSI_TUNER_PATIENCE);
}

static bool is_behind_second(const struct atsi_tuner *t, double median_us) {
    return t->second.median_us > 0 && median_us > (1 + t->params.epsilon / 3) * t->second.median_us &&
           t->n_settled >= t->second_wait && atsi_scales_deviation(&t->second_scales, &t->now) < t->params.epsilon / 2;
}

// What is worth a trial although nothing has changed. True when it is asked for.
static bool improve(struct atsi_tuner *t, double median_us, bool steady) {
    bool as_it_was = atsi_scales_deviation(&t->reference, &t->now) < t->params.epsilon / 2;
    t->n_behind = is_behind_second(t, median_us) ? t->n_behind + 1 : 0;
    if (t->n_behind >= ATSI_TUNER_CERTAIN) return try_second(t);
    if (steady && look_back(t, as_it_was)) return true;
    if (!steady || !as_it_was) return false;
    if (t->params.has_choice && t->n_since_other >= ATSI_TUNER_LONGEST) return try_what_is_overdue(t);
    return deviation(t->reference_us, median_us) < t->params.epsilon / 2 && try_to_polish(t);
}

static bool watch(struct atsi_tuner *t) {
    t->n_settled++;
    t->n_since_other++;
    if (t->n_rounds < t->params.tau || !has_rounds(t, ATSI_TUNER_MANY_ROUNDS)) return false;
    double median_us = t->many.median_us;
    if (!t->has_reference) take_reference(t, median_us);
    bool other_times = deviation(t->reference_us, median_us) > t->params.epsilon, relieved = is_relieved(t),
         steady = is_steady(t);
    t->n_deviating = other_times || relieved ? t->n_deviating + 1 : 0;
    if (t->n_deviating == 0) return !t->is_noisy && improve(t, median_us, steady);
    if (!is_certain(t, steady)) return false;
    t->n_deviating = 0;
    double nearness = (t->is_noisy ? 2 : 1) * t->params.epsilon;
    uint32_t n_lost = in_vain(t, true, nearness), n_declined = in_vain(t, false, nearness);
    if (n_lost >= enough_in_vain || in_vain(t, false, nearness / 2) > 0) return false;
    if ((!other_times || n_declined > 0) && t->n_settled < t->follow_wait) return false;
    if (n_lost + n_declined == 0) t->follow_wait = ATSI_TUNER_SECOND; // a change that is new
    bool other_speeds = atsi_scales_deviation(&t->reference, &t->now) > t->params.epsilon;
    return follow(t, n_lost > 0 ? 0.5 : 1, other_speeds ? "speeds have changed" : "rounds take another time");
}

bool atsi_tuner_record(struct atsi_tuner *t, double round_us, const struct atsi_scales *scales) {
    if (!t->params.is_dynamic || t->asked) return false;
    note_round(t, round_us, scales);
    if (atsi_tuner_is_settled(t)) return watch(t);
    double median_us = measured_us(t);
    return median_us > 0 && end_trial(t, median_us);
}
