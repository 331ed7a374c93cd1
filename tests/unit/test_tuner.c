// The tuner against a made-up machine whose speeds for each use of the link are known and change.

#include <math.h>

#include "runtime/tuner.h"
#include "tests/support/check.h"

static const struct atsi_tuner_params with_choice = {true, true, 0.15, 5};

struct machine {
    double times_us[ATSI_LINK_USES];
    double ill_decided; // how much longer a round takes that was decided for other speeds than these
    struct atsi_scales scales;
    double promise; // of a decision for the use at work, against what is at work; 0: what it will take
};

static double round_us(const struct machine *m, const struct atsi_tuner_wish *wish) {
    bool fits = atsi_scales_deviation(&wish->scales, &m->scales) < 0.01;
    return m->times_us[wish->use] * (fits ? 1 : m->ill_decided);
}

static double promise_of(const struct machine *m, const struct atsi_tuner *t) {
    bool foretold = m->promise > 0 && t->wish.use == t->at_work.use && isfinite(t->most_ratio);
    return foretold ? m->promise : round_us(m, &t->wish) / round_us(m, &t->at_work);
}

// What was asked for, or what is asked for instead of what promises too little, is taken over. False when nothing is.
static bool answer(struct atsi_tuner *t, const struct machine *m) {
    while (promise_of(m, t) > t->most_ratio)
        if (!atsi_tuner_declined(t, promise_of(m, t))) return false;
    atsi_tuner_begun(t, t->wish.use, promise_of(m, t));
    return true;
}

struct run {
    uint32_t n_decisions;        // taken over
    uint32_t n_surprised;        // rounds behind which the devices are to be looked at
    struct atsi_tuner_wish last; // at work in the last round
};

// n rounds; a decision is at work `delay` rounds after it was asked for, and the first round under it takes ten times as long.
static struct run run(struct atsi_tuner *t, const struct machine *m, int n, int delay) {
    if (!t->has_begun) atsi_tuner_begun(t, t->wish.use, 0);
    struct run r = {.last = t->at_work};
    int waits = -1;
    bool fresh = t->n_rounds == 0;
    for (int i = 0; i < n; i++) {
        if (waits == 0 && answer(t, m)) {
            r.n_decisions++;
            fresh = true;
        }
        waits -= waits >= 0;
        r.last = t->at_work;
        if (atsi_tuner_record(t, round_us(m, &t->at_work) * (fresh ? 10 : 1), &m->scales)) waits = delay;
        r.n_surprised += atsi_tuner_is_surprised(t);
        fresh = false;
    }
    return r;
}

// A tuner whose first trials are over after n rounds on m; its last round.
static struct run settle(struct atsi_tuner *t, const struct machine *m, int n) {
    atsi_tuner_start(t, &with_choice);
    return run(t, m, n, 1);
}

static void finds_the_fastest_use_whichever_it_is(void **state) {
    (void)state;
    for (int best = 0; best < ATSI_LINK_USES; best++)
        for (int delay = 0; delay < 4; delay++) {
            struct machine m = {{40, 40}, 1, {1, 1, 1, 0}, 0};
            struct atsi_tuner t;
            m.times_us[best] = 30;
            atsi_tuner_start(&t, &with_choice);
            assert_int_equal(run(&t, &m, 60, delay).last.use, best);
            assert_true(atsi_tuner_is_settled(&t));
            assert_int_equal(run(&t, &m, 300, delay).n_decisions, 0);
        }
}

static void shares_are_decided_again_with_what_the_first_trial_showed(void **state) {
    (void)state;
    struct machine m = {{40, 30}, 1.1, {1.3, 1, 0.8, 0}, 0};
    struct atsi_tuner t;
    struct run r = settle(&t, &m, 60);
    assert_int_equal(r.last.use, ATSI_LINK_SHARES);
    assert_true(r.last.scales.cpu == 1.3 && r.last.scales.link == 0.8);
}

// The speeds of a few rounds may be luck: what is decided for them has to promise more than that, as later decisions do.
static void the_first_speeds_have_to_promise_something(void **state) {
    (void)state;
    double most_ratio[2];
    for (int noise = 0; noise < 2; noise++) {
        struct atsi_scales scales = {1.3, 1, 0.8, 0};
        struct atsi_tuner t;
        atsi_tuner_start(&t, &with_choice);
        atsi_tuner_begun(&t, ATSI_LINK_SHARES, 0);
        while (!atsi_tuner_record(&t, 30 + 3 * noise * (t.n_rounds % 3), &scales)) assert_true(t.n_rounds < 20);
        assert_true(t.wish.use == ATSI_LINK_SHARES && t.wish.scales.cpu == 1.3);
        most_ratio[noise] = t.most_ratio;
    }
    assert_true(most_ratio[0] > 0.98 && most_ratio[0] < 0.99 && most_ratio[1] < most_ratio[0] - 0.02);
}

static void what_was_better_by_the_plan_stays(void **state) {
    (void)state;
    struct machine m = {{40, 30}, 0.9, {1.3, 1, 0.8, 0}, 0}; // decided for measured speeds it is slower
    struct atsi_tuner t;
    struct run r = settle(&t, &m, 100);
    assert_int_equal(r.last.use, ATSI_LINK_SHARES);
    assert_true(r.last.scales.cpu == 1 && r.last.scales.link == 1);
}

// And when speeds change, it is decided for the plan's times and the change.
static void changes_count_from_what_was_better(void **state) {
    (void)state;
    struct machine m = {{40, 30}, 0.9, {1.3, 1, 0.8, 0}, 0};
    struct atsi_tuner t;
    settle(&t, &m, 60);
    m = (struct machine){{80, 60}, 0.9, {2.6, 1, 0.8, 0}, 0.8};
    struct run r = run(&t, &m, 30, 1);
    assert_true(r.last.scales.cpu == 2 && r.last.scales.link == 1);
}

// n rounds of us; how often something is asked for, all of which is declined.
static uint32_t decline_all(struct atsi_tuner *t, double us, const struct atsi_scales *scales, double promised, int n) {
    uint32_t n_asked = 0;
    for (int i = 0; i < n; i++) {
        bool due = atsi_tuner_record(t, us, scales);
        for (; due; n_asked++) due = atsi_tuner_declined(t, promised);
    }
    return n_asked;
}

// What a change of speeds asks for may be no better: then what was at work stays, and nothing is asked for again at speeds like these.
static void what_was_in_vain_is_remembered(void **state) {
    (void)state;
    struct machine m = {{40, 30}, 1, {1, 1, 1, 0}, 0};
    struct atsi_tuner t;
    settle(&t, &m, 60);
    assert_int_equal(decline_all(&t, 38, &(struct atsi_scales){2, 1, 1, 0}, 1, 60), 2); // the use at work, the other
    assert_true(atsi_tuner_is_settled(&t) && t.at_work.scales.cpu == 1 && t.most_ratio < 1);
    assert_int_equal(decline_all(&t, 38, &(struct atsi_scales){2.1, 1, 1, 0}, 1, 200), 0);
    assert_int_equal(decline_all(&t, 44, &(struct atsi_scales){2.6, 1, 1, 0}, 1, 60), 2);
}

// A load that is recorded little by little is asked for again, but not at once.
static void what_was_declined_is_left_alone_for_a_while(void **state) {
    (void)state;
    struct machine m = {{40, 30}, 1, {1, 1, 1, 0}, 0};
    struct atsi_tuner t;
    settle(&t, &m, 60);
    uint32_t n_asked = 0;
    for (int i = 0; i < 60 && n_asked == 0; i++) n_asked = decline_all(&t, 38, &(struct atsi_scales){2, 1, 1, 0}, 1, 1);
    assert_int_equal(n_asked, 2);
    assert_int_equal(decline_all(&t, 38, &(struct atsi_scales){2.2, 1, 1, 0}, 1, 2 * ATSI_TUNER_SECOND - 1), 0);
    assert_int_equal(decline_all(&t, 38, &(struct atsi_scales){2.2, 1, 1, 0}, 1, 16), 2);
}

// Nor does what was in vain long ago make a new load wait.
static void a_new_load_is_not_left_alone_for_longer(void **state) {
    (void)state;
    struct machine m = {{40, 30}, 1, {1, 1, 1, 0}, 0};
    struct atsi_tuner t;
    settle(&t, &m, 60);
    struct atsi_scales load = {2, 1, 1, 0};
    for (int i = 0; i < 5; i++, load.cpu *= 1.1) assert_int_equal(decline_all(&t, 38, &load, 1, 160), 2);
    assert_int_equal(decline_all(&t, 60, &(struct atsi_scales){4, 1, 1, 0}, 1, 40), 2);
    assert_int_equal(decline_all(&t, 60, &(struct atsi_scales){4.4, 1, 1, 0}, 1, 60), 2);
}

// What is forecast twice as long is asked for again when speeds have changed by so much that it may no longer be.
static void what_is_far_behind_is_left_alone(void **state) {
    (void)state;
    struct machine m = {{40, 30}, 1, {1, 1, 1, 0}, 0};
    struct atsi_tuner t;
    settle(&t, &m, 60);
    assert_int_equal(decline_all(&t, 38, &(struct atsi_scales){1.5, 1, 1, 0}, 2, 60), 2);
    assert_int_equal(decline_all(&t, 44, &(struct atsi_scales){2, 1, 1, 0}, 2, 60), 1);     // 2 > 1.08 * (2 / 1.5)^2
    assert_int_equal(decline_all(&t, 54, &(struct atsi_scales){2.4, 1, 1, 0}, 2, 60), 2);   // 2 < 1.08 * (2.4 / 1.5)^2
    assert_int_equal(decline_all(&t, 70, &(struct atsi_scales){2.4, 1, 1, 100}, 2, 60), 2); // which may count for more
    assert_int_equal(decline_all(&t, 86, &(struct atsi_scales){2.8, 1, 1, 100}, 2, 60), 1);
    assert_int_equal(decline_all(&t, 86, &(struct atsi_scales){2.8, 1, 1, 100}, 2, 100), 0);
    assert_int_equal(decline_all(&t, 99, &(struct atsi_scales){3.3, 1, 1, 100}, 2, 60), 2); // long ago
}

// Decided for the new speed a round takes longer than promised: the assignment before comes back, and what is decided for half of the
// change is tried, once.
static void what_was_at_work_comes_back_if_it_was_faster(void **state) {
    (void)state;
    struct machine m = {{40, 30}, 1, {1, 1, 1, 0}, 0};
    struct atsi_tuner t;
    settle(&t, &m, 60);
    m = (struct machine){{60, 45}, 0.9, {1, 1, 1.25, 0}, 0.8}; // what was decided for these speeds is the slower one
    struct run r = run(&t, &m, 40, 1);
    assert_true(r.n_decisions == 2 && r.last.scales.link == 1 && r.last.use == ATSI_LINK_SHARES);
    r = run(&t, &m, 60, 1);
    assert_true(r.n_decisions == 1 && fabs(r.last.scales.link - sqrt(1.25)) < 1e-9);
    assert_int_equal(run(&t, &m, 300, 1).n_decisions, 0);
}

// A resource may take longer without any round doing so.
static void speeds_that_lengthen_no_round_change_nothing(void **state) {
    (void)state;
    struct machine m = {{40, 30}, 1, {1, 1, 1, 0}, 0};
    struct atsi_tuner t;
    settle(&t, &m, 60);
    m.times_us[ATSI_LINK_SHARES] = 33; // under epsilon
    assert_int_equal(decline_all(&t, 33, &(struct atsi_scales){1.1, 1.5, 1.3, 200}, 1, 300), 0);
}

// Single rounds of three times the usual, and speeds recorded from a handful of stalled items.
static void stalls_change_nothing(void **state) {
    (void)state;
    struct machine m = {{40, 30}, 1, {1, 1, 1, 0}, 0};
    struct atsi_tuner t;
    settle(&t, &m, 60);
    for (int i = 0; i < 300; i++) {
        bool stalls = i % 10 < 4;
        struct atsi_scales scales = {stalls ? 3 : 1, 1, stalls ? 2 : 1, 0};
        assert_false(atsi_tuner_record(&t, stalls ? 90 : 30 + i % 2, &scales));
    }
}

// Where rounds differ a decision has to promise more.
static void noise_asks_for_more(void **state) {
    (void)state;
    double most_ratio[2];
    for (int noise = 0; noise < 2; noise++) {
        struct machine m = {{40, 30}, 1, {1, 1, 1, 0}, 0};
        struct atsi_tuner t;
        settle(&t, &m, 120);
        for (int i = 0; !atsi_tuner_record(&t, 60 + 10 * noise * (i % 3 - 1), &(struct atsi_scales){2, 1, 1, 0}); i++)
            assert_true(i < 100);
        most_ratio[noise] = t.most_ratio;
    }
    assert_true(most_ratio[0] < 0.99 && most_ratio[1] < most_ratio[0] - 0.02);
}

// The other use is tried at the start only where its forecast is near, and what it was off by counts from then on.
static void the_error_of_a_forecast_is_learned(void **state) {
    (void)state;
    for (int is_near = 0; is_near < 2; is_near++) {
        struct atsi_scales scales = {1, 1, 1, 0};
        struct atsi_tuner t;
        atsi_tuner_start(&t, &with_choice);
        atsi_tuner_begun(&t, ATSI_LINK_STREAMS, 0);
        while (!atsi_tuner_record(&t, 30, &scales)) assert_true(t.n_rounds < 20);
        assert_true(t.wish.use == ATSI_LINK_SHARES && t.most_ratio > 1 && t.most_ratio < 1.1);
        if (is_near)
            atsi_tuner_begun(&t, ATSI_LINK_SHARES, 1);
        else
            assert_false(atsi_tuner_declined(&t, 1));
        for (int i = 0; i < 60; i++)
            if (atsi_tuner_record(&t, t.at_work.use == ATSI_LINK_SHARES ? 36 : 30, &scales))
                atsi_tuner_begun(&t, t.wish.use, 1 / 1.2);
        assert_true(t.at_work.use == ATSI_LINK_STREAMS && atsi_tuner_is_settled(&t));
        scales.cpu = 2;
        while (!atsi_tuner_record(&t, 60, &scales)) assert_true(t.n_rounds < 200);
        while (t.wish.use == ATSI_LINK_STREAMS) assert_true(atsi_tuner_declined(&t, 1));
        assert_true(is_near ? t.most_ratio < 0.85 : t.most_ratio > 0.9);
    }
}

static void decides_again_when_a_speed_changes(void **state) {
    (void)state;
    struct machine m = {{40, 30}, 1.2, {1, 1, 1, 0}, 0};
    struct atsi_tuner t;
    settle(&t, &m, 60);
    m.scales.link = 2;
    struct run r = run(&t, &m, 30, 1);
    assert_true(r.n_decisions >= 1);
    assert_true(r.last.scales.link == 2);
    m.scales.link = 1;
    r = run(&t, &m, 40, 1);
    assert_true(r.last.scales.link == 1);
}

static void tries_the_other_use_when_the_load_changes(void **state) {
    (void)state;
    struct machine calm = {{40, 30}, 1, {1, 1, 1, 0}, 0}, loaded = {{60, 80}, 1, {1, 1, 2, 0}, 0};
    struct atsi_tuner t;
    assert_int_equal(settle(&t, &calm, 120).last.use, ATSI_LINK_SHARES);
    assert_int_equal(run(&t, &loaded, 80, 1).last.use, ATSI_LINK_STREAMS);
    assert_int_equal(run(&t, &calm, 80, 1).last.use, ATSI_LINK_SHARES);
}

// A use whose rounds have become shorter without anything showing it is found in the end.
static void the_other_use_is_tried_after_long(void **state) {
    (void)state;
    struct machine m = {{40, 30}, 1, {1, 1, 1, 0}, 0};
    struct atsi_tuner t;
    assert_int_equal(settle(&t, &m, 60).last.use, ATSI_LINK_SHARES);
    m.times_us[ATSI_LINK_STREAMS] = 20;
    struct run r = run(&t, &m, ATSI_TUNER_LONGEST - 60, 1);
    assert_true(r.n_decisions == 0 && r.last.use == ATSI_LINK_SHARES);
    assert_int_equal(run(&t, &m, 120, 1).last.use, ATSI_LINK_STREAMS);
}

// And no more often than that.
static void what_is_overdue_is_declined_once(void **state) {
    (void)state;
    struct machine m = {{40, 30}, 1, {1, 1, 1, 0}, 0};
    struct atsi_tuner t;
    settle(&t, &m, 60);
    assert_int_equal(decline_all(&t, 30, &m.scales, 1, ATSI_TUNER_LONGEST), 1);
}

// When a load has gone what is at home returns, though what is decided for the speeds of now promises as much.
static void what_is_at_home_returns_first(void **state) {
    (void)state;
    struct machine calm = {{60, 30}, 1, {1, 1, 1, 0}, 0}, loaded = {{80, 60}, 1, {3, 1, 1, 0}, 0.8};
    struct atsi_tuner t;
    settle(&t, &calm, 60);
    assert_true(run(&t, &loaded, 100, 1).last.scales.cpu == 3);
    calm.scales.cpu = 1.04;
    struct run r = run(&t, &calm, 60, 1);
    assert_true(r.last.scales.cpu == 1 && r.n_decisions == 1 && atsi_tuner_is_settled(&t));
}

// A load that goes little by little deviates by less than epsilon from what was decided for each time: away from home that is enough.
static void less_than_epsilon_leads_back_home(void **state) {
    (void)state;
    struct machine m = {{60, 30}, 1, {1, 1, 1, 0}, 0};
    struct atsi_tuner t;
    settle(&t, &m, 60);
    m = (struct machine){{80, 40}, 1, {1.3, 1, 1, 0}, 0.9};
    assert_true(run(&t, &m, 60, 1).last.scales.cpu == 1.3);
    m = (struct machine){{80, 38}, 1, {1.17, 1, 1, 0}, 0.99};
    assert_true(run(&t, &m, 120, 1).last.scales.cpu == 1);
}

// Another load comes while something is on trial: what returns is compared with what it took before.
static void a_change_during_a_trial_is_seen(void **state) {
    (void)state;
    struct machine m = {{60, 30}, 1, {1, 1, 1, 0}, 0};
    struct atsi_tuner t;
    settle(&t, &m, 60);
    m = (struct machine){{80, 40}, 1, {1.5, 1, 1, 0}, 0.9};
    assert_true(run(&t, &m, 60, 1).last.scales.cpu == 1.5);
    m = (struct machine){{90, 50}, 1, {2, 1, 1, 0}, 0.9};
    while (!atsi_tuner_record(&t, 50, &m.scales)) assert_true(t.n_rounds < 200);
    while (t.wish.scales.cpu != 2) assert_true(atsi_tuner_declined(&t, 1));
    atsi_tuner_begun(&t, t.wish.use, 0.9);
    m = (struct machine){{90, 70}, 1, {2, 1, 2, 0}, 0.9};
    while (!atsi_tuner_record(&t, 70, &m.scales)) assert_true(t.n_rounds < 60);
    assert_true(answer(&t, &m) && t.at_work.scales.cpu == 1.5); // slower than before: returned
    assert_true(run(&t, &m, 2 * ATSI_TUNER_MANY_ROUNDS, 1).n_decisions > 0);
}

// A resource that is faster at times, of which no round tells, is looked at more and more rarely.
static void what_is_seldom_of_use_is_seldom_looked_at(void **state) {
    (void)state;
    struct machine m = {{40, 30}, 1, {1, 1, 1, 0}, 0};
    struct atsi_tuner t;
    uint32_t n[2] = {0, 0};
    settle(&t, &m, 60);
    for (int i = 0; i < 40; i++) {
        double link = 1 / pow(1.2, i % 4);
        n[i >= 20] += decline_all(&t, 30, &(struct atsi_scales){1, 1, link, 0}, 1, 30);
    }
    assert_true(n[0] > 0 && n[0] + n[1] < 12);
}

// Rounds that differ by a third among each other are compared by twice as many.
static void noisy_rounds_are_counted_longer(void **state) {
    (void)state;
    for (int noise = 0; noise < 2; noise++) {
        struct atsi_scales scales = {1, 1, 1, 0};
        struct atsi_tuner t;
        atsi_tuner_start(&t, &with_choice);
        atsi_tuner_begun(&t, t.wish.use, 0);
        int n = 1;
        while (!atsi_tuner_record(&t, 30 + 20 * noise * (n % 2), &scales)) n++;
        assert_int_equal(n, noise ? ATSI_TUNER_MANY_ROUNDS + 1 : ATSI_TUNER_ROUNDS + 1);
    }
}

// What is at work after a load that makes rounds differ by 24 of 48 us, and under which a decision for the new speeds is 5 % slower by
// (bad) luck; the other use takes `other` times as long.
static struct atsi_tuner_wish under_noise(double other, uint32_t *n_decisions) {
    struct machine m = {{40, 30}, 1, {1, 1, 1, 0}, 0};
    struct atsi_tuner t;
    settle(&t, &m, 120);
    struct atsi_scales loaded = {2, 1, 1, 0};
    *n_decisions = 0;
    for (int i = 0; i < 160; i++) {
        double us = (36 + 12 * (i % 3)) * (t.at_work.scales.cpu == 2 ? 1.05 : 1) *
                    (t.at_work.use == ATSI_LINK_STREAMS ? other : 1);
        if (!atsi_tuner_record(&t, us, &loaded)) continue;
        if (++*n_decisions == 1) assert_true(t.most_ratio < 0.99 && i > ATSI_TUNER_CERTAIN);
        atsi_tuner_begun(&t, t.wish.use, 0);
    }
    return t.at_work;
}

// Under noise a decision for changed speeds is kept though its trial came out somewhat slower; the other use is tried once, and stays only if it
// is clearly faster.
static void noise_does_not_undo_a_decision(void **state) {
    (void)state;
    uint32_t n_decisions;
    struct atsi_tuner_wish at_work = under_noise(0.97, &n_decisions);
    assert_true(at_work.use == ATSI_LINK_SHARES && at_work.scales.cpu == 2 && n_decisions == 3);
    at_work = under_noise(0.8, &n_decisions);
    assert_true(at_work.use == ATSI_LINK_STREAMS && n_decisions == 2);
}

// What promised much and shows nothing of it was promised wrongly: luck excuses little.
static void a_great_promise_has_to_show(void **state) {
    (void)state;
    for (int great = 0; great < 2; great++) {
        struct machine m = {{40, 30}, 1, {1, 1, 1, 0}, 0};
        struct atsi_tuner t;
        struct atsi_scales loaded = {2, 1, 1, 0};
        settle(&t, &m, 120);
        for (int i = 0; i < 80; i++) {
            if (!atsi_tuner_record(&t, 40 + 6 * (i % 3), &loaded)) continue;
            while (t.wish.use == ATSI_LINK_STREAMS && t.asked) atsi_tuner_declined(&t, 1);
            if (t.asked) atsi_tuner_begun(&t, t.wish.use, isfinite(t.most_ratio) ? (great ? 0.6 : 0.9) : 1);
        }
        assert_true(t.at_work.scales.cpu == (great ? 1 : 2));
    }
}

// A trial was unlucky: what it made look slow is tried again as soon as what won turns out slower than that.
static void the_next_best_gets_a_second_chance(void **state) {
    (void)state;
    struct machine m = {{32, 30}, 1, {1, 1, 1, 0}, 0};
    struct atsi_tuner t;
    assert_int_equal(settle(&t, &m, 60).last.use, ATSI_LINK_SHARES);
    m.times_us[ATSI_LINK_SHARES] = 34.4; // under epsilon
    m.times_us[ATSI_LINK_STREAMS] = 31;
    assert_int_equal(run(&t, &m, 60, 1).last.use, ATSI_LINK_STREAMS);
}

// After some rounds speeds are known better; a decision for them is asked for, and not again soon.
static void speeds_known_better_are_decided_for(void **state) {
    (void)state;
    struct machine m = {{40, 30}, 1, {1.08, 1, 1, 0}, 0};
    struct atsi_tuner t;
    settle(&t, &m, 30);
    m.scales.cpu = 1.14;
    m.promise = 0.95;
    struct run r = run(&t, &m, 100, 1);
    assert_true(r.n_decisions == 1 && r.last.scales.cpu == 1.14);
    m.scales.cpu = 1.2;
    assert_int_equal(run(&t, &m, ATSI_TUNER_PATIENCE / 2, 1).n_decisions, 0);
}

// Algorithm 3's tau: no decision closer than that to the one before, but for the trials of one change.
static void waits_between_decisions(void **state) {
    (void)state;
    struct atsi_tuner_params params = {true, false, 0.15, 20};
    struct machine m = {{40, 40}, 1, {1, 1, 1, 0}, 0};
    struct atsi_tuner t;
    int since = 0, n_decisions = 0;
    atsi_tuner_start(&t, &params);
    atsi_tuner_begun(&t, t.wish.use, 0);
    for (int i = 0; i < 400; i++, since++) {
        m.scales.cpu = i / 30 % 2 ? 2 : 1;
        bool is_trial = !atsi_tuner_is_settled(&t);
        if (!atsi_tuner_record(&t, 40 * m.scales.cpu, &m.scales)) continue;
        assert_true(is_trial || since >= 20);
        since = 0;
        n_decisions++;
        atsi_tuner_begun(&t, t.wish.use, 0);
    }
    assert_true(n_decisions > 4);
}

static void small_changes_and_single_outliers_change_nothing(void **state) {
    (void)state;
    struct machine m = {{40, 30}, 1, {1, 1, 1, 0}, 0};
    struct atsi_tuner t;
    settle(&t, &m, 60);
    for (int i = 0; i < 200; i++) {
        struct atsi_scales scales = {1 + 0.1 * (i % 2), 1, 1 - 0.1 * (i % 3 == 0), 0};
        assert_false(atsi_tuner_record(&t, i % 50 == 20 ? 50 : 30 + i % 3, &scales));
        assert_false(atsi_tuner_is_surprised(&t));
    }
    for (int i = 1; i <= 5; i++) { // three of five are none
        atsi_tuner_record(&t, 40, &(struct atsi_scales){1, 1, 1, 0});
        assert_int_equal(atsi_tuner_is_surprised(&t), i >= 3);
    }
}

// Rounds that take longer for good, as with a long text, surprise until they have been looked at; or each of them would be timed.
static void what_lasts_is_no_surprise(void **state) {
    (void)state;
    struct machine m = {{30, 40}, 1, {1, 1, 1, 0}, 0};
    struct atsi_tuner t;
    settle(&t, &m, 100);
    static const double CHANGES[] = {1.3, 1.3, 1 / 1.69, 1.3}; // also when it is as it was in between
    for (int i = 0; i < 4; i++) {
        m.times_us[0] *= CHANGES[i]; // whatever is at work
        m.times_us[1] *= CHANGES[i];
        m.scales.cpu *= CHANGES[i];
        uint32_t n_surprised = run(&t, &m, 300, 1).n_surprised;
        assert_true(n_surprised <= 2 * ATSI_TUNER_SURPRISE);
        assert_true(n_surprised >= ATSI_TUNER_CERTAIN || CHANGES[i] < 1);
    }
}

static void a_static_placement_is_never_decided_again(void **state) {
    (void)state;
    struct atsi_tuner_params params = {false, false, 0.15, 5};
    struct atsi_scales scales = {9, 1, 5, 0};
    struct atsi_tuner t;
    atsi_tuner_start(&t, &params);
    atsi_tuner_begun(&t, t.wish.use, 0);
    for (int i = 0; i < 50; i++) assert_false(atsi_tuner_record(&t, 10 + i, &scales));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_the_fastest_use_whichever_it_is),
        cmocka_unit_test(shares_are_decided_again_with_what_the_first_trial_showed),
        cmocka_unit_test(the_first_speeds_have_to_promise_something),
        cmocka_unit_test(what_was_better_by_the_plan_stays),
        cmocka_unit_test(changes_count_from_what_was_better),
        cmocka_unit_test(what_was_in_vain_is_remembered),
        cmocka_unit_test(what_was_declined_is_left_alone_for_a_while),
        cmocka_unit_test(a_new_load_is_not_left_alone_for_longer),
        cmocka_unit_test(what_is_far_behind_is_left_alone),
        cmocka_unit_test(speeds_that_lengthen_no_round_change_nothing),
        cmocka_unit_test(stalls_change_nothing),
        cmocka_unit_test(noise_asks_for_more),
        cmocka_unit_test(the_error_of_a_forecast_is_learned),
        cmocka_unit_test(what_was_at_work_comes_back_if_it_was_faster),
        cmocka_unit_test(decides_again_when_a_speed_changes),
        cmocka_unit_test(tries_the_other_use_when_the_load_changes),
        cmocka_unit_test(the_other_use_is_tried_after_long),
        cmocka_unit_test(what_is_overdue_is_declined_once),
        cmocka_unit_test(what_is_at_home_returns_first),
        cmocka_unit_test(less_than_epsilon_leads_back_home),
        cmocka_unit_test(a_change_during_a_trial_is_seen),
        cmocka_unit_test(what_is_seldom_of_use_is_seldom_looked_at),
        cmocka_unit_test(noisy_rounds_are_counted_longer),
        cmocka_unit_test(noise_does_not_undo_a_decision),
        cmocka_unit_test(a_great_promise_has_to_show),
        cmocka_unit_test(the_next_best_gets_a_second_chance),
        cmocka_unit_test(speeds_known_better_are_decided_for),
        cmocka_unit_test(waits_between_decisions),
        cmocka_unit_test(small_changes_and_single_outliers_change_nothing),
        cmocka_unit_test(what_lasts_is_no_surprise),
        cmocka_unit_test(a_static_placement_is_never_decided_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
