// Guesses from the text so far against a search that tries every place, and how many of them are checked on made-up machines.
#include <math.h>
#include <string.h>

#include "runtime/lookup.h"
#include "tests/support/check.h"
#include "tests/support/random.h"

enum {
    MOST_TEXT = 300
};

// ---- guesses ------------------------------------------------------------------------------------------------------

// By the definition: of all places before the end, the one with the most newest tokens before it, of equals the last.
static uint32_t find_place(const int32_t *text, uint32_t n) {
    uint32_t best = 0, place = 0;
    for (uint32_t p = 1; p < n; p++) {
        uint32_t alike = 0;
        while (alike < ATSI_LOOKUP_CONTEXT && alike < p && text[p - 1 - alike] == text[n - 1 - alike]) alike++;
        if (alike >= ATSI_LOOKUP_LEAST && alike >= best) {
            best = alike;
            place = p;
        }
    }
    return place;
}

static void check_guess(struct atsi_lookup *l, const int32_t *text, uint32_t n_text, uint32_t n) {
    int32_t guess[ATSI_LOOKUP_MOST], endless[MOST_TEXT + ATSI_LOOKUP_MOST];
    uint32_t place = find_place(text, n_text), n_guessed = atsi_lookup_guess(l, guess, n);
    assert_int_equal(n_guessed, place ? n : 0);
    memcpy(endless, text, n_text * sizeof *text);
    for (uint32_t i = 0; i < n_guessed; i++) {
        endless[n_text + i] = endless[place + i];
        assert_int_equal(guess[i], endless[n_text + i]);
    }
}

static void guesses_are_what_followed(void **state) {
    (void)state;
    uint64_t random = 11;
    uint32_t n_found = 0;
    for (int round = 0; round < 400; round++) {
        struct atsi_lookup *l;
        struct atsi_error err = {0};
        int32_t text[MOST_TEXT];
        uint32_t n_text = 0, n_words = 2 + (uint32_t)test_below(&random, 20);
        check_ok(atsi_lookup_create(MOST_TEXT, ATSI_LOOKUP_MOST, &l, &err), err);
        while (n_text < MOST_TEXT) {
            uint32_t n = 1 + (uint32_t)test_below(&random, 9);
            if (n > MOST_TEXT - n_text) n = MOST_TEXT - n_text;
            for (uint32_t i = 0; i < n; i++) text[n_text + i] = (int32_t)test_below(&random, n_words);
            atsi_lookup_append(l, text + n_text, n);
            n_text += n;
            uint32_t n_guesses = 1 + (uint32_t)test_below(&random, ATSI_LOOKUP_MOST);
            n_found += find_place(text, n_text) > 0;
            check_guess(l, text, n_text, n_guesses);
            if (test_below(&random, 8)) continue;
            n_text = (uint32_t)test_below(&random, (n_text + 1));
            atsi_lookup_truncate(l, n_text);
        }
        atsi_lookup_free(l);
    }
    assert_true(n_found > 1000);
}

// ---- how many -----------------------------------------------------------------------------------------------------

// A text whose guesses are right with that chance, on a machine on which every guess costs so much of a round of one token.
struct machine {
    double right, more;
    uint64_t random;
};

struct pace_result {
    double speed;    // tokens a time, of one that guesses nothing
    uint32_t n_last; // guesses in the last round
};

static struct pace_result run_pace(struct atsi_lookup_pace *p, struct machine *m, uint32_t n_tokens) {
    struct pace_result result = {0, 0};
    double time_us = 0;
    for (uint32_t done = 0; done < n_tokens;) {
        uint32_t n = atsi_lookup_pace_choose(p, ATSI_LOOKUP_MOST), n_right = 0;
        double round_us = 1000 * (1 + n * m->more) * (0.95 + 0.1 * test_uniform(&m->random));
        while (n_right < n && test_uniform(&m->random) < m->right) n_right++;
        for (uint32_t i = 0; i < n_right; i++) atsi_lookup_pace_judge(p, true);
        if (n_right < n) atsi_lookup_pace_judge(p, false);
        if (n == 0) atsi_lookup_pace_judge(p, test_uniform(&m->random) < m->right);
        atsi_lookup_pace_time(p, n, round_us);
        time_us += round_us;
        done += 1 + n_right;
        result.n_last = n;
    }
    result.speed = n_tokens * 1000 / time_us;
    return result;
}

// Of a fixed number of guesses in every round.
static double best_speed(const struct machine *m) {
    double best = 1;
    for (uint32_t n = 1; n <= ATSI_LOOKUP_MOST; n++)
        best = fmax(best, (1 - pow(m->right, n + 1)) / (1 - m->right) / (1 + n * m->more));
    return best;
}

static void as_many_are_checked_as_pay(void **state) {
    (void)state;
    static const double rights[] = {0.05, 0.3, 0.6, 0.9, 0.98}, mores[] = {0.01, 0.1, 0.3, 1.2};
    for (size_t r = 0; r < sizeof rights / sizeof *rights; r++)
        for (size_t k = 0; k < sizeof mores / sizeof *mores; k++) {
            struct machine m = {rights[r], mores[k], 77 + r + 10 * k};
            struct atsi_lookup_pace p = {.right = 0.6};
            run_pace(&p, &m, 300);
            struct pace_result result = run_pace(&p, &m, 6000);
            double best = best_speed(&m);
            if (result.speed < 0.93 * best || result.speed < 0.98)
                fail_msg("right %.2f, more %.2f: %.3f, could be %.3f", m.right, m.more, result.speed, best);
        }
}

// Texts change from quoting to new words and back, and guesses become cheap again when another program is gone.
static void changes_are_followed(void **state) {
    (void)state;
    struct machine quoting = {0.97, 0.1, 5}, new_words = {0.03, 0.1, 6}, crowded = {0.97, 3, 7};
    struct atsi_lookup_pace p = {.right = 0.6};
    assert_int_equal(atsi_lookup_pace_choose(&p, ATSI_LOOKUP_MOST), 0); // nothing has been timed
    for (int i = 0; i < 3; i++) {
        run_pace(&p, &quoting, 150);
        assert_true(run_pace(&p, &quoting, 300).speed > 2.5);
        run_pace(&p, &new_words, 150);
        assert_true(run_pace(&p, &new_words, 2000).speed > 0.98);
        run_pace(&p, &crowded, 150);
        assert_true(run_pace(&p, &crowded, 3000).speed > 0.96);
        run_pace(&p, &quoting, 1500); // guesses are checked again only now and then
        assert_true(run_pace(&p, &quoting, 300).speed > 2.5);
    }
    assert_int_equal(atsi_lookup_pace_choose(&p, 2), 2);
    assert_int_equal(atsi_lookup_pace_choose(&p, 0), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(guesses_are_what_followed),
                                       cmocka_unit_test(as_many_are_checked_as_pay),
                                       cmocka_unit_test(changes_are_followed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
