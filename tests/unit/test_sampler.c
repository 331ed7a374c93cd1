// The sampler against plain re-computations and expected frequencies.
#include <math.h>
#include <stdbool.h>

#include "runtime/sampler.h"
#include "tests/support/check.h"
#include "tests/support/random.h"

static int32_t pick(struct atsi_sampler *s, const float *logits) {
    int32_t id = -1;
    assert_int_equal(atsi_sampler_pick(s, logits, &id, NULL), ATSI_OK);
    return id;
}

static struct atsi_sampler *create(struct atsi_sampler_params params, uint32_t n_vocab, const int32_t *banned,
                                   uint32_t n_banned) {
    struct atsi_sampler *s;
    assert_int_equal(atsi_sampler_create(&params, n_vocab, banned, n_banned, &s, NULL), ATSI_OK);
    return s;
}

static void greedy_takes_the_lowest_of_equals_and_no_banned(void **state) {
    (void)state;
    struct atsi_sampler_params params = atsi_sampler_defaults();
    params.temp = 0;
    const float logits[5] = {1, 3, 9, 3, 2};
    const int32_t banned[] = {2, 77, -1};
    struct atsi_sampler *s = create(params, 5, banned, 3);
    assert_int_equal(pick(s, logits), 1);
    atsi_sampler_free(s);
}

// 200,000 draws at temperature 2 from 4 of 6 tokens: each frequency within 5 standard deviations of its probability.
static void frequencies_follow_the_filters(void **state) {
    (void)state;
    enum {
        DRAWS = 200000,
        N = 6
    };
    const float logits[N] = {2.0f, 1.0f, 0.5f, 1.5f, -9.0f, 0.4f};
    struct atsi_sampler_params params = {
        .temp = 2.0f, .top_k = 4, .top_p = 1, .min_p = 0, .repeat_penalty = 1, .seed = 5};
    struct atsi_sampler *s = create(params, N, NULL, 0);
    int counts[N] = {0};
    double p[N] = {0}, sum = 0;
    for (int i = 0; i < 4; i++) sum += p[i] = exp(logits[i] / 2.0); // the four largest are 0..3
    for (int i = 0; i < DRAWS; i++) counts[pick(s, logits)]++;
    for (int i = 0; i < N; i++) {
        double expected = p[i] / sum * DRAWS;
        assert_true(fabs(counts[i] - expected) <= 5 * sqrt(expected * (1 - p[i] / sum)) + 0.5);
    }
    atsi_sampler_free(s);
}

static void top_p_and_min_p_cut_the_tail(void **state) {
    (void)state;
    // Probabilities .5, .25, .125, .125: top-p .7 keeps two; min-p .4 of the best keeps two; min-p .6 keeps one.
    const float logits[4] = {logf(8), logf(4), logf(2), logf(2)};
    struct atsi_sampler_params params = {
        .temp = 1, .top_k = 0, .top_p = 0.7f, .min_p = 0, .repeat_penalty = 1, .seed = 1};
    struct atsi_sampler *s = create(params, 4, NULL, 0);
    int seen = 0;
    for (int i = 0; i < 2000; i++) seen |= 1 << pick(s, logits);
    assert_int_equal(seen, 3);
    atsi_sampler_free(s);
    params.top_p = 1;
    params.min_p = 0.4f;
    s = create(params, 4, NULL, 0);
    seen = 0;
    for (int i = 0; i < 2000; i++) seen |= 1 << pick(s, logits);
    assert_int_equal(seen, 3);
    atsi_sampler_free(s);
    params.min_p = 0.6f;
    s = create(params, 4, NULL, 0);
    for (int i = 0; i < 200; i++) assert_int_equal(pick(s, logits), 0);
    atsi_sampler_free(s);
}

static void penalty_counts_the_window_only(void **state) {
    (void)state;
    struct atsi_sampler_params params = {.temp = 0, .top_p = 1, .repeat_penalty = 2};
    const float logits[3] = {3, 2, -1};
    struct atsi_sampler *s = create(params, 3, NULL, 0);
    atsi_sampler_accept(s, 0);
    assert_int_equal(pick(s, logits), 1); // 3 / 2 < 2
    for (int i = 0; i < ATSI_PENALTY_WINDOW; i++) atsi_sampler_accept(s, 2);
    assert_int_equal(pick(s, logits), 0); // forgotten
    atsi_sampler_free(s);
}

static void same_seed_same_draws_and_bad_logits_fail(void **state) {
    (void)state;
    struct atsi_sampler_params params = atsi_sampler_defaults();
    params.seed = 42;
    float logits[100];
    for (int i = 0; i < 100; i++) logits[i] = (float)(i * 37 % 100) / 25.0f;
    struct atsi_sampler *a = create(params, 100, NULL, 0), *b = create(params, 100, NULL, 0);
    for (int i = 0; i < 100; i++) assert_int_equal(pick(a, logits), pick(b, logits));
    int32_t id;
    struct atsi_error err;
    logits[7] = NAN;
    assert_int_equal(atsi_sampler_pick(a, logits, &id, &err), ATSI_FAILED);
    for (int i = 0; i < 100; i++) logits[i] = -INFINITY;
    assert_int_equal(atsi_sampler_pick(a, logits, &id, &err), ATSI_FAILED);
    atsi_sampler_free(a);
    atsi_sampler_free(b);
}

static float penalised(const float *logits, int32_t id, const int32_t *recent, int n_recent, float penalty) {
    for (int k = 0; k < n_recent; k++)
        if (recent[k] == id) return logits[id] > 0 ? logits[id] / penalty : logits[id] * penalty;
    return logits[id];
}

// How many tokens rank before `id`, by the definition.
static int rank_of(int32_t id, const float *logits, const bool *banned, int n, const int32_t *recent, int n_recent,
                   float penalty) {
    float own = penalised(logits, id, recent, n_recent, penalty);
    int rank = 0;
    for (int32_t i = 0; i < n; i++) {
        float logit = penalised(logits, i, recent, n_recent, penalty);
        rank += !banned[i] && (logit > own || (logit == own && i < id));
    }
    return rank;
}

// Vocabularies of whole and broken blocks, with ties, both zeros, infinities downwards, banned and repeated tokens.
static void picks_are_among_the_best_by_definition(void **state) {
    (void)state;
    uint64_t random = 1;
    for (int run = 0; run < 400; run++) {
        float logits[700];
        bool banned[700] = {false};
        int32_t banned_ids[700], recent[ATSI_PENALTY_WINDOW], n_banned = 0;
        int n = 2 + (int)test_below(&random, 699), n_recent = (int)test_below(&random, ATSI_PENALTY_WINDOW);
        for (int i = 0; i < n; i++) {
            int value = (int)test_below(&random, 41) - 20;
            logits[i] = value == -20 ? -INFINITY : value == 0 && i % 2 ? -0.0f : (float)value / 4;
            if (i > 0 && test_below(&random, 8) == 0) banned[banned_ids[n_banned++] = i] = true;
        }
        logits[0] = 0.5f; // one is always left
        struct atsi_sampler_params params = atsi_sampler_defaults();
        int k = 1 + (int)test_below(&random, 9);
        params.temp = run % 2 ? 0 : 100;
        params.top_k = k;
        params.top_p = 1;
        params.min_p = 0;
        params.repeat_penalty = run % 3 ? 1.0f : 1.5f;
        struct atsi_sampler *s = create(params, (uint32_t)n, banned_ids, (uint32_t)n_banned);
        for (int i = 0; i < n_recent; i++) atsi_sampler_accept(s, recent[i] = (int32_t)test_below(&random, 800) - 20);
        for (int draw = 0; draw < 8; draw++) { // again and again: nothing of a pick is left behind
            int32_t id = pick(s, logits);
            assert_false(banned[id]);
            int rank = rank_of(id, logits, banned, n, recent, n_recent, params.repeat_penalty);
            assert_true(rank < (params.temp > 0 ? k : 1));
        }
        atsi_sampler_free(s);
    }
}

static void a_logit_that_is_no_number_fails_wherever_it_stands(void **state) {
    (void)state;
    static const float bad[] = {NAN, -NAN, INFINITY};
    struct atsi_sampler_params params = atsi_sampler_defaults();
    params.temp = 0;
    for (int i = 0; i < 600; i += 37)
        for (int b = 0; b < 3; b++) {
            float logits[600] = {0};
            int32_t id;
            logits[i] = bad[b];
            struct atsi_sampler *s = create(params, 600, (int32_t[]){i}, 1); // also a banned one
            assert_int_equal(atsi_sampler_pick(s, logits, &id, NULL), ATSI_FAILED);
            atsi_sampler_free(s);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(picks_are_among_the_best_by_definition),
        cmocka_unit_test(a_logit_that_is_no_number_fails_wherever_it_stands),
        cmocka_unit_test(greedy_takes_the_lowest_of_equals_and_no_banned),
        cmocka_unit_test(frequencies_follow_the_filters),
        cmocka_unit_test(top_p_and_min_p_cut_the_tail),
        cmocka_unit_test(penalty_counts_the_window_only),
        cmocka_unit_test(same_seed_same_draws_and_bad_logits_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
