// The tuner against a made-up machine whose speed for each use of the link is known and changes.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "runtime/tuner.h"

// Runs n rounds at these times and returns the use of the last one. A use's first round takes ten times as long.
static enum atsi_link_use run(struct atsi_tuner *t, const double *times_us, int n) {
    enum atsi_link_use last = t->use;
    bool fresh = t->n_rounds == 0;
    for (int i = 0; i < n; i++) {
        last = t->use;
        fresh = atsi_tuner_record(t, times_us[last] * (fresh ? 10 : 1));
    }
    return last;
}

static void finds_the_fastest_use_whichever_it_is(void **state) {
    (void)state;
    for (int best = 0; best < ATSI_LINK_USES; best++) {
        double times_us[ATSI_LINK_USES] = {40, 41, 42, 43};
        struct atsi_tuner t;
        times_us[best] = 30;
        atsi_tuner_start(&t, true);
        assert_int_equal(run(&t, times_us, 60), best);
    }
}

static void tries_again_when_the_load_changes(void **state) {
    (void)state;
    double times_us[ATSI_LINK_USES] = {40, 30, 35, 36}, loaded_us[ATSI_LINK_USES] = {60, 80, 90, 95};
    struct atsi_tuner t;
    atsi_tuner_start(&t, true);
    assert_int_equal(run(&t, times_us, 60), ATSI_LINK_SHARES);
    assert_int_equal(run(&t, loaded_us, 80), ATSI_LINK_STREAMS);
    assert_int_equal(run(&t, times_us, 80), ATSI_LINK_SHARES);
}

static void small_changes_and_single_outliers_change_nothing(void **state) {
    (void)state;
    double times_us[ATSI_LINK_USES] = {40, 30, 35, 36};
    struct atsi_tuner t;
    atsi_tuner_start(&t, true);
    run(&t, times_us, 60);
    for (int i = 0; i < 200; i++) assert_false(atsi_tuner_record(&t, i % 50 == 49 ? 50 : 30 + i % 3));
    assert_int_equal(t.use, ATSI_LINK_SHARES);
    assert_true(t.settled);
}

static void without_a_choice_it_streams(void **state) {
    (void)state;
    struct atsi_tuner t;
    atsi_tuner_start(&t, false);
    for (int i = 0; i < 50; i++) assert_false(atsi_tuner_record(&t, 10 + i));
    assert_int_equal(t.use, ATSI_LINK_STREAMS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_the_fastest_use_whichever_it_is),
        cmocka_unit_test(tries_again_when_the_load_changes),
        cmocka_unit_test(small_changes_and_single_outliers_change_nothing),
        cmocka_unit_test(without_a_choice_it_streams),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
