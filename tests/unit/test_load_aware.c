// Algorithm 3 as a whole on a made-up machine: dispatcher, script, costs, recorder and tuner, rounds that take what the costs say at speeds
// that the test knows and changes. A second copy keeps its first assignment, as a static schedule does.
#include <math.h>
#include <stdlib.h>

#include "runtime/dispatcher.h"
#include "runtime/recorder.h"
#include "runtime/tuner.h"
#include "tests/support/check.h"
#include "tests/support/small_model.h"

struct rounds { // under one assignment
    struct atsi_script script;
    struct atsi_script_cost cost;
    float *recent_us;
};

struct machine {
    struct atsi_plan plan;
    struct atsi_dispatcher *dispatcher;
    struct atsi_schedule_unit units[TEST_MODEL_UNITS];
    struct atsi_tuner tuner;
    struct atsi_recorder recorder;
    struct rounds aware, fixed;
    uint64_t random;
    uint32_t n_decisions;
};

static void invent_times(struct atsi_plan *plan) {
    uint32_t n = plan->program.n_units;
    plan->decode_times = calloc(n, sizeof *plan->decode_times);
    plan->prefill_times = calloc(n, sizeof *plan->prefill_times);
    plan->contention = ATSI_CONTENTION_DEFAULT;
    for (uint32_t u = 0; u < n; u++) {
        bool light = plan->program.units[u].weight_bytes < 100000;
        float cpu_us = light ? 20 : 800;
        plan->decode_times[u] = (struct atsi_unit_times){
            .cpu_us = cpu_us, .gpu_us = cpu_us / 30, .switch_us = 5, .transfer_us = cpu_us * 1.4f};
        plan->prefill_times[u] = (struct atsi_unit_times){
            .cpu_us = cpu_us * 8, .gpu_us = cpu_us / 4, .switch_us = 8, .transfer_us = cpu_us * 1.4f};
    }
}

static void decide(struct machine *m, const struct atsi_tuner_wish *wish, struct rounds *out) {
    struct atsi_assignment a;
    bool promoted[TEST_MODEL_UNITS];
    assert_int_equal(atsi_dispatcher_decide(m->dispatcher, 1, wish->use, &wish->scales, NULL, &a, NULL), ATSI_OK);
    for (uint32_t u = 0; u < m->plan.program.n_units; u++) promoted[u] = a.promotions[u] != ATSI_NOT_PROMOTED;
    struct atsi_script_params params = {.program = &m->plan.program,
                                        .backends = a.backends,
                                        .promoted = promoted,
                                        .gpu_share = a.gpu_share,
                                        .n_tokens_max = m->plan.limits.chunk,
                                        .n_outputs_max = m->plan.limits.n_outputs};
    assert_int_equal(atsi_script_build(&params, &out->script, NULL), ATSI_OK);
    assert_int_equal(atsi_script_cost_build(&m->plan, &out->script, m->units, 1, NULL, &out->cost, NULL), ATSI_OK);
    out->recent_us = calloc(out->script.n_actions, sizeof *out->recent_us);
}

static void forget(struct rounds *r) {
    free(r->recent_us);
    atsi_script_cost_free(&r->cost);
    atsi_script_free(&r->script);
}

static void open_machine(struct machine *m, uint64_t seed) {
    *m = (struct machine){.random = seed};
    test_build_plan(&m->plan);
    m->plan.limits.temp_bytes = 1700 << 10;
    invent_times(&m->plan);
    atsi_round_units(&m->plan, 1, m->plan.limits.temp_bytes, NULL, m->units);
    struct atsi_dispatcher_params params = {.plan = &m->plan, .policy = ATSI_POLICY_FIFO, .has_device = true};
    assert_int_equal(atsi_dispatcher_create(&params, &m->dispatcher, NULL), ATSI_OK);
    enum atsi_backend homes[TEST_MODEL_UNITS] = {ATSI_CPU};
    enum atsi_travel travel[TEST_MODEL_UNITS];
    for (uint32_t u = 0; u < TEST_MODEL_UNITS; u++) travel[u] = ATSI_TRAVELS_PINNED;
    atsi_dispatcher_move_homes(m->dispatcher, homes, travel);
    struct atsi_tuner_params tuning = {true, atsi_dispatcher_has_choice(m->dispatcher), 0.15, 5};
    atsi_tuner_start(&m->tuner, &tuning);
    atsi_tuner_begun(&m->tuner, m->tuner.wish.use);
    atsi_recorder_start(&m->recorder);
    decide(m, &m->tuner.wish, &m->aware);
    decide(m, &m->tuner.wish, &m->fixed);
}

static void close_machine(struct machine *m) {
    forget(&m->aware);
    forget(&m->fixed);
    atsi_dispatcher_free(m->dispatcher);
    atsi_plan_free(&m->plan);
}

static double shaken(struct machine *m, double value, double by) {
    return value * (1 + by * ((double)(test_random(&m->random) % 2001) / 1000 - 1));
}

static void record(struct machine *m, const struct atsi_scales *s) {
    struct rounds *r = &m->aware;
    bool times_device = atsi_recorder_times_device(&m->recorder);
    for (uint32_t i = 0; i < r->cost.n_actions; i++) {
        const struct atsi_split_cost *c = &r->cost.splits[i];
        double us = shaken(m, c->cpu_us * s->cpu + c->gpu_us * s->gpu + c->link_us * s->link, 0.1);
        if (c->cpu_us > 0)
            atsi_recorder_note_cpu(&m->recorder, &r->recent_us[i], us, 0);
        else if (us > 0 && times_device)
            atsi_recorder_note_device(&m->recorder, &r->recent_us[i], us, 0);
    }
    atsi_recorder_end_round(&m->recorder, &r->cost, r->recent_us);
}

static void take_over(struct machine *m) {
    struct rounds next;
    bool due = true;
    while (due) {
        decide(m, &m->tuner.wish, &next);
        double now_us = atsi_script_time(&m->aware.script, &m->aware.cost, &m->tuner.wish.scales),
               then_us = atsi_script_time(&next.script, &next.cost, &m->tuner.wish.scales);
        bool wanted = then_us <= now_us * m->tuner.most_ratio;
        m->n_decisions++;
        due = false;
        forget(wanted ? &m->aware : &next);
        if (!wanted) {
            due = atsi_tuner_declined(&m->tuner, &m->recorder.scales);
            continue;
        }
        m->aware = next;
        atsi_tuner_begun(&m->tuner, m->tuner.wish.use);
        atsi_recorder_adopted(&m->recorder);
    }
}

// The mean times of the last half of n rounds.
struct means {
    double aware_us, fixed_us;
};

static struct means run(struct machine *m, const struct atsi_scales *truth, int n) {
    struct means means = {0};
    int first = n / 2;
    for (int i = 0; i < n; i++) {
        struct atsi_scales now = {shaken(m, truth->cpu, 0.03), shaken(m, truth->gpu, 0.03),
                                  shaken(m, truth->link, 0.03), truth->handover_us};
        double aware_us = atsi_script_time(&m->aware.script, &m->aware.cost, &now),
               fixed_us = atsi_script_time(&m->fixed.script, &m->fixed.cost, &now);
        if (i >= first) {
            means.aware_us += aware_us / (n - first);
            means.fixed_us += fixed_us / (n - first);
        }
        record(m, &now);
        atsi_recorder_note_round(&m->recorder, aware_us,
                                 atsi_script_time(&m->aware.script, &m->aware.cost, &m->recorder.scales),
                                 m->aware.cost.n_handovers);
        if (atsi_tuner_record(&m->tuner, aware_us, &m->recorder.scales)) take_over(m);
        if (atsi_tuner_is_surprised(&m->tuner)) atsi_recorder_look(&m->recorder);
    }
    return means;
}

// Decided by who knows the speeds: the better use of the link.
static double best_us(struct machine *m, const struct atsi_scales *truth) {
    double best = INFINITY;
    for (int use = 0; use < ATSI_LINK_USES; use++) {
        struct rounds r;
        decide(m, &(struct atsi_tuner_wish){(enum atsi_link_use)use, *truth, false}, &r);
        best = fmin(best, atsi_script_time(&r.script, &r.cost, truth));
        forget(&r);
    }
    return best;
}

// As in figure 13 of the paper a load comes, goes, and another comes: 60 % of the CPU, then half of GPU and link; then a card whose turns
// others have, so that hand-overs take long.
static void rounds_are_nearly_as_fast_as_with_known_speeds(void **state) {
    (void)state;
    static const struct atsi_scales phases[] = {{1, 1, 1, 0}, {2.5, 1, 1, 0}, {1, 1, 1, 0},
                                                {1, 2, 2, 0}, {1, 1, 1, 0},   {1, 1, 1, 400}};
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct machine m;
        open_machine(&m, seed * 2654435761u);
        for (int k = 0; k < 6; k++) {
            struct means means = run(&m, &phases[k], 120);
            assert_true(means.aware_us < 1.05 * best_us(&m, &phases[k]));
            assert_true(means.aware_us < 1.02 * means.fixed_us);
            if (k == 1) assert_true(means.aware_us < 0.95 * means.fixed_us);
        }
        assert_true(m.n_decisions < 40);
        close_machine(&m);
    }
}

// The plan's times are wrong from the start: what is recorded makes better shares.
static void a_wrong_profile_is_corrected(void **state) {
    (void)state;
    static const struct atsi_scales truth = {0.6, 1.2, 1.5, 0};
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct machine m;
        open_machine(&m, seed * 2654435761u);
        struct means means = run(&m, &truth, 80);
        assert_true(means.aware_us < 0.95 * means.fixed_us);
        assert_true(means.aware_us < 1.02 * best_us(&m, &truth));
        close_machine(&m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounds_are_nearly_as_fast_as_with_known_speeds),
        cmocka_unit_test(a_wrong_profile_is_corrected),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
