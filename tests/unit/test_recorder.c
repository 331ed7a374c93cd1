// From what splits take to what is slow: the costs of a script's splits, the time of a round, and the recorder on a made-up machine
// whose speeds are known.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/recorder.h"
#include "tests/support/check.h"
#include "tests/support/small_model.h"

static const struct atsi_scales as_planned = {1, 1, 1, 0};

// ---- a round ------------------------------------------------------------------------------------------------------

struct round {
    struct atsi_plan plan;
    struct atsi_schedule_unit units[TEST_MODEL_UNITS];
    enum atsi_backend backends[TEST_MODEL_UNITS];
    bool promoted[TEST_MODEL_UNITS];
    float share[TEST_MODEL_UNITS];
    struct atsi_script script;
    struct atsi_script_cost cost;
    float *recent_us;
};

static void open_round(struct round *r) {
    memset(r, 0, sizeof *r);
    test_build_plan(&r->plan);
    r->plan.contention = (struct atsi_contention){1.25, 1.1, 1.05};
    for (uint32_t u = 0; u < r->plan.program.n_units; u++)
        r->units[u] =
            (struct atsi_schedule_unit){.t_cpu_us = 100 + u, .t_gpu_us = 10, .switch_us = 4, .transfer_us = 80};
}

static void build_round(struct round *r) {
    struct atsi_script_params params = {.program = &r->plan.program,
                                        .backends = r->backends,
                                        .promoted = r->promoted,
                                        .gpu_share = r->share,
                                        .n_tokens_max = r->plan.limits.chunk,
                                        .n_outputs_max = r->plan.limits.n_outputs};
    assert_int_equal(atsi_script_build(&params, &r->script, NULL), ATSI_OK);
    assert_int_equal(atsi_script_cost_build(&r->plan, &r->script, r->units, 1, NULL, &r->cost, NULL), ATSI_OK);
    r->recent_us = calloc(r->script.n_actions, sizeof *r->recent_us);
}

static void close_round(struct round *r) {
    free(r->recent_us);
    atsi_script_cost_free(&r->cost);
    atsi_script_free(&r->script);
    atsi_plan_free(&r->plan);
}

static struct atsi_split_cost sum_of(const struct atsi_script_cost *cost) {
    struct atsi_split_cost sum = {0};
    for (uint32_t i = 0; i < cost->n_actions; i++) {
        sum.cpu_us += cost->splits[i].cpu_us;
        sum.gpu_us += cost->splits[i].gpu_us;
        sum.link_us += cost->splits[i].link_us;
    }
    return sum;
}

static uint32_t find_unit(const struct round *r, const char *name) {
    uint32_t u = 0;
    while (strcmp(r->plan.program.units[u].name, name) != 0) u++;
    return u;
}

static void splits_add_up_to_the_units(void **state) {
    (void)state;
    struct round r;
    double cpu_us = 0;
    open_round(&r);
    for (uint32_t u = 0; u < r.plan.program.n_units; u++) cpu_us += r.units[u].t_cpu_us;
    build_round(&r);
    assert_float_equal(sum_of(&r.cost).cpu_us, cpu_us, 0.1); // alone, the CPU does not share its memory
    assert_float_equal(atsi_script_time(&r.script, &r.cost, &as_planned), cpu_us, 0.1);
    assert_float_equal(atsi_script_time(&r.script, &r.cost, &(struct atsi_scales){2, 9, 9, 0}), 2 * cpu_us, 0.2);
    close_round(&r);
}

static void a_shared_unit_is_divided_and_ends_with_the_longer_part(void **state) {
    (void)state;
    struct round r;
    open_round(&r);
    uint32_t q = find_unit(&r, "q");
    r.share[q] = 0.5f;
    double others_us = 0;
    for (uint32_t u = 0; u < r.plan.program.n_units; u++) others_us += u == q ? 0 : r.units[u].t_cpu_us;
    build_round(&r);
    struct atsi_split_cost sum = sum_of(&r.cost);
    assert_float_equal(sum.cpu_us, 1.25 * (others_us + 0.5 * r.units[q].t_cpu_us), 0.2);
    assert_float_equal(sum.link_us, 1.1 * 0.5 * 80, 0.01);
    assert_float_equal(sum.gpu_us, 0.5 * 10, 0.01);
    double both_us = atsi_script_time(&r.script, &r.cost, &as_planned),
           slow_link_us = atsi_script_time(&r.script, &r.cost, &(struct atsi_scales){1, 1, 10, 0});
    assert_true(both_us >= sum.cpu_us && both_us <= sum.cpu_us + 4 * r.cost.handover_us);
    // The GPU's part is the longer one now: k and v do not read it and still run beside it, the attention waits.
    double late_us = 10 * sum.link_us + sum.gpu_us -
                     1.25 * (0.5 * r.units[q].t_cpu_us + r.units[q + 1].t_cpu_us + r.units[q + 2].t_cpu_us);
    assert_true(fabs(slow_link_us - both_us - late_us) <= 4 * r.cost.handover_us);
    close_round(&r);
}

static void no_times_no_costs(void **state) {
    (void)state;
    struct round r;
    struct atsi_script_cost cost;
    open_round(&r);
    build_round(&r);
    assert_int_equal(atsi_script_cost_build(&r.plan, &r.script, NULL, 1, NULL, &cost, NULL), ATSI_OK);
    assert_true(atsi_script_time(&r.script, &cost, &as_planned) == 0);
    atsi_script_cost_free(&cost);
    close_round(&r);
}

// ---- recording ----------------------------------------------------------------------------------------------------

// Rounds on a machine with these speeds; every split is noisy by up to 5 %.
static void run_rounds(struct round *r, struct atsi_recorder *recorder, const struct atsi_scales *truth, int n,
                       uint64_t *random) {
    for (int k = 0; k < n; k++) {
        bool times_device = atsi_recorder_times_device(recorder);
        for (uint32_t i = 0; i < r->cost.n_actions; i++) {
            const struct atsi_split_cost *c = &r->cost.splits[i];
            double noise = 1 + ((double)(test_random(random) % 1000) / 1000 - 0.5) / 10;
            double us = noise * (c->cpu_us * truth->cpu + c->gpu_us * truth->gpu + c->link_us * truth->link);
            if (c->cpu_us > 0)
                atsi_recorder_note_cpu(recorder, &r->recent_us[i], us, 0);
            else if (us > 0 && times_device)
                atsi_recorder_note_device(recorder, &r->recent_us[i], us, 0);
        }
        atsi_recorder_end_round(recorder, &r->cost, r->recent_us);
    }
}

static void open_mixed_round(struct round *r) {
    open_round(r);
    r->backends[find_unit(r, "k")] = r->backends[find_unit(r, "v")] = ATSI_GPU;
    r->backends[find_unit(r, "attention")] = ATSI_GPU;
    r->share[find_unit(r, "q")] = r->share[find_unit(r, "exps")] = 0.5f;
    build_round(r);
}

static void assert_scales(const struct atsi_recorder *recorder, const struct atsi_scales *truth, double tolerance) {
    assert_true(fabs(recorder->scales.cpu / truth->cpu - 1) < tolerance);
    assert_true(fabs(recorder->scales.gpu / truth->gpu - 1) < tolerance);
    assert_true(fabs(recorder->scales.link / truth->link - 1) < tolerance);
}

static void speeds_are_found_and_followed(void **state) {
    (void)state;
    static const struct atsi_scales truths[] = {{1, 1, 1, 0}, {1.6, 1, 1, 0}, {1.6, 1.2, 2.5, 0}, {0.8, 1, 1, 0}};
    struct round r;
    struct atsi_recorder recorder;
    uint64_t random = 12345;
    open_mixed_round(&r);
    atsi_recorder_start(&recorder);
    for (int k = 0; k < 4; k++) {
        run_rounds(&r, &recorder, &truths[k], 80, &random);
        assert_scales(&recorder, &truths[k], 0.1);
    }
    close_round(&r);
}

// What a round takes beyond its splits is put on its hand-overs, and is gone when it is.
static void held_up_handovers_are_found(void **state) {
    (void)state;
    static const double truths_us[] = {0, 400, 250, 0};
    struct round r;
    struct atsi_recorder recorder;
    open_mixed_round(&r);
    assert_true(r.cost.n_handovers > 0);
    atsi_recorder_start(&recorder);
    recorder.n_rounds = 2;
    for (int k = 0; k < 4; k++) {
        struct atsi_scales truth = {1, 1, 1, truths_us[k]}, before = recorder.scales;
        struct atsi_round_times took = atsi_script_times(&r.script, &r.cost, &truth);
        for (int i = 0; i < 80; i++) {
            struct atsi_recorder_round round = atsi_recorder_explain(&recorder, &r.script, &r.cost, &took);
            atsi_recorder_note_round(&recorder, &round);
        }
        assert_float_equal(recorder.scales.handover_us, truths_us[k], 5);
        if (k > 0) assert_true(atsi_scales_deviation(&before, &recorder.scales) > 0.15);
    }
    close_round(&r);
}

// Rounds that would be as long without what hand-overs took once say nothing of it: it fades.
static void handovers_that_are_not_seen_are_forgotten(void **state) {
    (void)state;
    struct atsi_recorder recorder;
    atsi_recorder_start(&recorder);
    recorder.n_rounds = 2;
    recorder.scales.handover_us = 400;
    struct atsi_recorder_round round = {.took.round_us = 50000, .expected.round_us = 50000, .n_handovers = 20};
    for (int i = 0; i < 60; i++) {
        round.prompt_us = 50000 - 20 * recorder.scales.handover_us;
        atsi_recorder_note_round(&recorder, &round);
    }
    assert_float_equal(recorder.scales.handover_us, 400, 1); // seen
    for (int i = 0; i < 60; i++) {
        round.prompt_us = 50000 - 40 * recorder.scales.handover_us; // twice as much is no more than seen
        atsi_recorder_note_round(&recorder, &round);
    }
    assert_float_equal(recorder.scales.handover_us, 400, 1);
    round.prompt_us = 50000;
    for (int i = 0; i < 60; i++) atsi_recorder_note_round(&recorder, &round);
    assert_true(recorder.scales.handover_us < 20);
    struct atsi_recorder other = recorder;
    atsi_recorder_note_round(&recorder, &round);
    round.prompt_us = 60000; // longer without them: no less than not seen
    atsi_recorder_note_round(&other, &round);
    assert_float_equal(other.scales.handover_us, recorder.scales.handover_us, 1e-9);
}

static void a_hiccup_is_no_load(void **state) {
    (void)state;
    struct round r;
    struct atsi_recorder recorder;
    uint64_t random = 777;
    open_mixed_round(&r);
    atsi_recorder_start(&recorder);
    run_rounds(&r, &recorder, &as_planned, 20, &random);
    uint32_t i = 0;
    while (!(r.cost.splits[i].cpu_us > 0)) i++;
    atsi_recorder_note_cpu(&recorder, &r.recent_us[i], 1e6, 0);
    atsi_recorder_end_round(&recorder, &r.cost, r.recent_us);
    assert_true(recorder.scales.cpu < 1.5);
    close_round(&r);
}

// A split of a division: 15 us for tokens all of whose experts are resident, 125 for three of ten with one that crosses the link. Its mean
// is found, and a hiccup counts no more than all slots would take.
static void two_kinds_of_times_have_their_mean(void **state) {
    (void)state;
    enum {
        SAMPLES = 2000
    };
    struct atsi_recorder recorder;
    uint64_t random = 5;
    float alike = 0, uneven = 0;
    double taken_us = 0, alike_us = 0, uneven_us = 0;
    atsi_recorder_start(&recorder);
    recorder.n_rounds = 2;
    for (int i = 0; i < SAMPLES; i++) {
        double us = test_random(&random) % 10 < 3 ? 125 : 15;
        atsi_recorder_note_device(&recorder, &alike, us, 0);
        atsi_recorder_note_device(&recorder, &uneven, us, 500);
        taken_us += us / SAMPLES;
        alike_us += alike / SAMPLES;
        uneven_us += uneven / SAMPLES;
    }
    assert_true(fabs(uneven_us / taken_us - 1) < 0.03);
    assert_true(alike_us < 0.85 * taken_us); // what clipping would make of it
    uneven = 15;
    atsi_recorder_note_device(&recorder, &uneven, 1e5, 500);
    assert_true(uneven <= 15 + 0.2 * 500);
    recorder.scales.link = 2; // twice as long now
    uneven = 15;
    atsi_recorder_note_device(&recorder, &uneven, 1e5, 500);
    assert_true(uneven > 15 + 0.19 * (1000 - 15) && uneven <= 15 + 0.2 * 1000);
}

// A resource that is not used any more is taken for free again after a while, so that it is tried.
static void what_is_not_seen_is_forgotten(void **state) {
    (void)state;
    struct round mixed, alone;
    struct atsi_recorder recorder;
    uint64_t random = 99;
    open_mixed_round(&mixed);
    open_round(&alone);
    build_round(&alone);
    atsi_recorder_start(&recorder);
    run_rounds(&mixed, &recorder, &(struct atsi_scales){1, 1, 3, 0}, 60, &random);
    assert_true(recorder.scales.link > 2.5);
    run_rounds(&alone, &recorder, &as_planned, 50, &random);
    assert_true(recorder.scales.link > 2);
    run_rounds(&alone, &recorder, &as_planned, 1000, &random);
    assert_true(recorder.scales.link < 1.05);
    close_round(&mixed);
    close_round(&alone);
}

// One unit's parts take longer than the others' on either side.
static void single_units_are_told_apart(void **state) {
    (void)state;
    struct round r;
    struct atsi_unit_factors factors[TEST_MODEL_UNITS];
    open_mixed_round(&r);
    uint32_t q = find_unit(&r, "q"), exps = find_unit(&r, "exps");
    for (uint32_t u = 0; u < TEST_MODEL_UNITS; u++) factors[u] = (struct atsi_unit_factors){1, 1};
    for (uint32_t i = 0; i < r.cost.n_actions; i++) {
        const struct atsi_split_cost *c = &r.cost.splits[i];
        r.recent_us[i] = 2 * c->cpu_us + c->gpu_us + 3 * c->link_us;
        if (c->link_us == 0) continue;
        r.recent_us[i] *= 1.4f; // q is the first in place
        break;
    }
    atsi_script_unit_factors(&r.plan, &r.script, &r.cost, r.recent_us, &(struct atsi_scales){2, 1, 3, 0}, factors);
    assert_float_equal(factors[q].in_place, 1.4, 1e-3);
    assert_float_equal(factors[exps].in_place, 1, 1e-3); // not recorded
    close_round(&r);
}

static void the_device_is_timed_now_and_then(void **state) {
    (void)state;
    struct atsi_recorder recorder;
    struct atsi_script_cost nothing = {0};
    int n_timed = 0;
    atsi_recorder_start(&recorder);
    assert_false(atsi_recorder_times_device(&recorder)); // the first round under an assignment is none to go by
    for (int i = 0; i < 80; i++) {
        n_timed += atsi_recorder_times_device(&recorder);
        atsi_recorder_end_round(&recorder, &nothing, NULL);
    }
    assert_int_equal(n_timed, 3 + 10);
    atsi_recorder_look(&recorder);
    assert_true(atsi_recorder_times_device(&recorder));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(splits_add_up_to_the_units),
        cmocka_unit_test(a_shared_unit_is_divided_and_ends_with_the_longer_part),
        cmocka_unit_test(no_times_no_costs),
        cmocka_unit_test(speeds_are_found_and_followed),
        cmocka_unit_test(held_up_handovers_are_found),
        cmocka_unit_test(handovers_that_are_not_seen_are_forgotten),
        cmocka_unit_test(a_hiccup_is_no_load),
        cmocka_unit_test(two_kinds_of_times_have_their_mean),
        cmocka_unit_test(what_is_not_seen_is_forgotten),
        cmocka_unit_test(single_units_are_told_apart),
        cmocka_unit_test(the_device_is_timed_now_and_then),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
