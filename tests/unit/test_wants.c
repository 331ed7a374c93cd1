// What is wanted of a router's experts: hit rates and counts against sums over the whole history, and when an exchange pays.
#include <math.h>
#include <string.h>

#include "runtime/wants.h"
#include "tests/support/check.h"
#include "tests/support/random.h"

enum {
    N = 16,
    USED = 3,
    N_TOKENS = 3000
};

static const int32_t first_four[N] = {0, 1, 2, 3, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};

static void start(struct atsi_wants *w, const int32_t *slots, double hit_rate) {
    struct atsi_error err = {0};
    check_ok(atsi_wants_start(w, N, USED, slots, hit_rate, &err), err);
}

// Three different experts, those of low numbers more often.
static void draw(uint64_t *random, int32_t *ids) {
    for (uint32_t i = 0; i < USED;) {
        double x = test_uniform(random);
        ids[i] = (int32_t)(x * x * N);
        bool again = false;
        for (uint32_t k = 0; k < i; k++) again |= ids[k] == ids[i];
        i += !again;
    }
}

static void older_choices_count_less(void **state) {
    (void)state;
    static int32_t ids[N_TOKENS][USED];
    struct atsi_wants w;
    uint64_t random = 5;
    uint32_t n_hits = 0;
    start(&w, first_four, 0.5);
    for (int t = 0; t < N_TOKENS; t++) {
        draw(&random, ids[t]);
        atsi_wants_note(&w, ids[t], first_four);
    }
    double keeps = 1 / (1 + 1.0 / ATSI_WANTS_TOKENS), prior = pow(keeps, N_TOKENS) * ATSI_WANTS_PRIOR * USED,
           hits = prior / 2, chosen = prior, wanted[N];
    for (int e = 0; e < N; e++) wanted[e] = e < 4 ? prior / 2 / 4 : prior / 2 / (N - 4);
    for (int t = 0; t < N_TOKENS; t++)
        for (int i = 0; i < USED; i++) {
            double weight = pow(keeps, N_TOKENS - 1 - t);
            wanted[ids[t][i]] += weight;
            chosen += weight;
            hits += ids[t][i] < 4 ? weight : 0;
            n_hits += ids[t][i] < 4;
        }
    assert_true(fabs(atsi_wants_hit_rate(&w) - hits / chosen) < 1e-9);
    for (int e = 0; e < N; e++) assert_true(fabs(w.counts[e] / w.weight - wanted[e]) < 1e-6 * (1 + wanted[e]));
    assert_true(w.n_chosen == (uint64_t)N_TOKENS * USED && w.n_hits == n_hits);
    atsi_wants_free(&w);
}

// Weights start again long before they overflow, and nobody notices.
static void texts_may_be_long(void **state) {
    (void)state;
    struct atsi_wants w;
    static const int32_t chosen[USED] = {0, 5, 1};
    start(&w, first_four, 0.5);
    for (int t = 0; t < 200000; t++) atsi_wants_note(&w, chosen, first_four);
    assert_true(isfinite(w.weight) && fabs(atsi_wants_hit_rate(&w) - 2.0 / 3) < 1e-9);
    assert_true(fabs(w.counts[5] / w.weight - (ATSI_WANTS_TOKENS + 1)) < 1e-3);
    struct atsi_wanted wanted = atsi_wants_exchange(&w, first_four, 3);
    assert_true(wanted.expert == 5 && (wanted.place == 2 || wanted.place == 3));
    assert_true(fabs(wanted.gain - (ATSI_WANTS_TOKENS + 1)) < 1e-3);
    atsi_wants_free(&w);
}

// Of experts that are all wanted alike hardly any are exchanged; those that become hot all are, once.
static void luck_is_no_reason(void **state) {
    (void)state;
    struct atsi_wants w;
    int32_t slots[N], ids[USED];
    uint64_t random = 9;
    uint32_t n_even = 0;
    memcpy(slots, first_four, sizeof slots);
    start(&w, slots, 4.0 / N);
    for (int t = 0; t < 2000; t++) {
        for (int i = 0; i < USED; i++) ids[i] = (int32_t)((test_below(&random, N / USED) * USED + (uint64_t)i) % N);
        atsi_wants_note(&w, ids, slots);
        n_even += t % 16 == 0 && atsi_wants_exchange(&w, slots, 3).gain > 0;
    }
    assert_true(n_even < 2000 / 16 / 5);
    for (int t = 0; t < 1000; t++) {
        for (int i = 0; i < USED; i++) ids[i] = 10 + i;
        atsi_wants_note(&w, ids, slots);
        struct atsi_wanted wanted = atsi_wants_exchange(&w, slots, 3);
        if (!(wanted.gain > 0)) continue;
        for (int e = 0; e < N; e++)
            if (slots[e] == (int32_t)wanted.place) slots[e] = -1;
        slots[wanted.expert] = (int32_t)wanted.place;
    }
    assert_true(slots[10] >= 0 && slots[11] >= 0 && slots[12] >= 0);
    assert_true(atsi_wants_hit_rate(&w) > 0.9);
    atsi_wants_free(&w);
}

static void all_or_nothing_resident_is_no_choice(void **state) {
    (void)state;
    struct atsi_wants w;
    int32_t all[N];
    for (int e = 0; e < N; e++) all[e] = e;
    start(&w, all, 1);
    assert_true(atsi_wants_exchange(&w, all, -1e9).gain == 0);
    atsi_wants_free(&w);
}

// ---- large exchanges ----------------------------------------------------------------------------------------------

enum {
    MANY = 64,
    ROOM = 16,
    CHOSEN = 4,
    PROMPT = 300
};

// Four different experts, e by its weight.
static void draw_by(const double *weights, uint64_t *random, int32_t *ids) {
    double left[MANY], sum = 0;
    for (int e = 0; e < MANY; e++) sum += left[e] = weights[e];
    for (int i = 0; i < CHOSEN; i++) {
        double x = test_uniform(random) * sum;
        int32_t e = 0;
        while (e + 1 < MANY && (x -= left[e]) >= 0) e++;
        while (left[e] == 0) e--; // rounding
        ids[i] = e;
        sum -= left[e];
        left[e] = 0;
    }
}

struct settled {
    double before, after; // hit rates, of 4000 other tokens
    uint32_t n_exchanged;
};

// A prompt is read while `slots` say what is resident; then whatever pays with 128 tokens to come is exchanged.
static struct settled settle(const double *weights, const int32_t *slots, uint64_t seed) {
    struct settled out = {0};
    struct atsi_wants w;
    struct atsi_error err = {0};
    double rates[MANY];
    int32_t now[MANY], ids[CHOSEN];
    uint64_t random = seed;
    memcpy(now, slots, sizeof now);
    check_ok(atsi_wants_start(&w, MANY, CHOSEN, slots, 0.4, &err), err);
    for (int t = 0; t < PROMPT; t++) {
        draw_by(weights, &random, ids);
        atsi_wants_note(&w, ids, slots);
    }
    atsi_wants_estimate(&w, slots, rates);
    for (;;) {
        struct atsi_wanted wanted = atsi_wants_exchange_by(rates, MANY, now);
        if (wanted.gain * 128 <= 1) break;
        for (int e = 0; e < MANY; e++)
            if (now[e] == (int32_t)wanted.place) now[e] = -1;
        now[wanted.expert] = (int32_t)wanted.place;
        out.n_exchanged++;
    }
    for (int t = 0; t < 4000; t++) {
        draw_by(weights, &random, ids);
        for (int i = 0; i < CHOSEN; i++) {
            out.before += slots[ids[i]] >= 0 ? 1.0 / (4000 * CHOSEN) : 0;
            out.after += now[ids[i]] >= 0 ? 1.0 / (4000 * CHOSEN) : 0;
        }
    }
    atsi_wants_free(&w);
    return out;
}

// Popular ones are those of low numbers; resident are the first ROOM, or the last.
static struct settled settle_many(double exponent, bool best, uint32_t n_runs) {
    struct settled sum = {0};
    double weights[MANY];
    int32_t slots[MANY];
    for (int e = 0; e < MANY; e++) {
        weights[e] = pow(1 + e, -exponent);
        slots[e] = best ? (e < ROOM ? e : -1) : (e < MANY - ROOM ? -1 : e - (MANY - ROOM));
    }
    for (uint32_t i = 0; i < n_runs; i++) {
        struct settled s = settle(weights, slots, 77 + i);
        sum.before += s.before / n_runs;
        sum.after += s.after / n_runs;
        sum.n_exchanged += s.n_exchanged;
    }
    return sum;
}

static void a_prompt_tells_the_wanted_from_the_lucky(void **state) {
    (void)state;
    enum {
        RUNS = 20
    };
    for (int i = 0; i < 2; i++) {
        double exponent = i ? 1 : 0.5;
        struct settled best = settle_many(exponent, true, RUNS), worst = settle_many(exponent, false, RUNS);
        assert_true(worst.before < best.before - 0.2);
        assert_true(worst.after > best.before - 0.03); // of what can be had hardly anything is missed
        assert_true(best.after > best.before - 0.005 && best.n_exchanged < RUNS); // and what is good stays
    }
    struct settled even = settle_many(0, false, RUNS);
    assert_true(even.n_exchanged < 3 * RUNS);
}

// By the definition: within a group the part of the distance to the mean that luck does not explain.
static void estimates_are_taken_back_towards_the_mean(void **state) {
    (void)state;
    struct atsi_wants w;
    uint64_t random = 21;
    int32_t ids[USED];
    double rates[N];
    start(&w, first_four, 0.5);
    for (int t = 0; t < 100; t++) {
        draw(&random, ids);
        atsi_wants_note(&w, ids, first_four);
    }
    atsi_wants_estimate(&w, first_four, rates);
    double keeps = 1 / (1 + 1.0 / ATSI_WANTS_TOKENS), tokens = pow(keeps, 100) * ATSI_WANTS_PRIOR,
           squares = pow(keeps, 200) * ATSI_WANTS_PRIOR;
    for (int t = 0; t < 100; t++) {
        tokens += pow(keeps, t);
        squares += pow(keeps, 2 * t);
    }
    for (int group = 0; group < 2; group++) {
        int first = group ? 4 : 0, end = group ? N : 4;
        double mean = 0, spread = 0;
        for (int e = first; e < end; e++) mean += w.counts[e] / w.weight / tokens / (end - first);
        for (int e = first; e < end; e++) spread += pow(w.counts[e] / w.weight / tokens - mean, 2) / (end - first);
        double kept = fmax(0, 1 - mean * squares / (tokens * tokens) / spread);
        for (int e = first; e < end; e++)
            assert_true(fabs(rates[e] - (mean + kept * (w.counts[e] / w.weight / tokens - mean))) < 1e-9);
    }
    atsi_wants_restart_hits(&w, 0.75);
    assert_true(fabs(atsi_wants_hit_rate(&w) - 0.75) < 1e-12 && fabs(atsi_wants_seen_hit_rate(&w) - 0.75) < 1e-12);
    static const int32_t one_hit[USED] = {0, 8, 9};
    atsi_wants_note(&w, one_hit, first_four);
    assert_true(fabs(atsi_wants_seen_hit_rate(&w) - 1.0 / 3) < 1e-12 && atsi_wants_hit_rate(&w) > 0.7);
    atsi_wants_free(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(older_choices_count_less),
        cmocka_unit_test(texts_may_be_long),
        cmocka_unit_test(luck_is_no_reason),
        cmocka_unit_test(all_or_nothing_resident_is_no_choice),
        cmocka_unit_test(a_prompt_tells_the_wanted_from_the_lucky),
        cmocka_unit_test(estimates_are_taken_back_towards_the_mean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
