// Algorithm 3 as a whole on a made-up machine (made_up_machine.h) whose speeds the test changes, beside one on which what comes out of the
// first trials stays, as a static schedule does.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/check.h"
#include "tests/support/made_up_machine.h"
#include "tests/support/program_builder.h"
#include "tests/support/small_model.h"

enum {
    SEEDS = 20,
    MOST_PHASES = 8
};

static const double second = 1e6;

struct model {
    struct atsi_plan plan;
    enum atsi_backend *homes;
};

static void close_model(struct model *m) {
    free(m->homes);
    atsi_plan_free(&m->plan);
}

static void make_room(struct model *m) {
    uint32_t n = m->plan.program.n_units;
    m->homes = calloc(n, sizeof *m->homes);
    m->plan.decode_times = calloc(n, sizeof *m->plan.decode_times);
    m->plan.prefill_times = calloc(n, sizeof *m->plan.prefill_times);
    m->plan.contention = ATSI_CONTENTION_DEFAULT;
}

// One layer, all of it at home on the CPU.
static void open_small_model(struct model *m) {
    test_build_plan(&m->plan);
    make_room(m);
    m->plan.limits.temp_bytes = 1700 << 10;
    for (uint32_t u = 0; u < m->plan.program.n_units; u++) {
        bool light = m->plan.program.units[u].weight_bytes < 100000;
        float cpu_us = light ? 20 : 800;
        m->homes[u] = ATSI_CPU;
        m->plan.decode_times[u] = (struct atsi_unit_times){
            .cpu_us = cpu_us, .gpu_us = cpu_us / 30, .switch_us = 5, .transfer_us = cpu_us * 1.4f};
        m->plan.prefill_times[u] = (struct atsi_unit_times){
            .cpu_us = cpu_us * 8, .gpu_us = cpu_us / 4, .switch_us = 8, .transfer_us = cpu_us * 1.4f};
    }
}

// Qwen3-14B in 6 GiB on the machine of docs/performance.md: 72 units of the network on the CPU, of which streams move some 30; 30 ms a token.
static void open_large_model(struct model *m) {
    static const struct atsi_unit_times mix = {.cpu_us = 400, .gpu_us = 45, .switch_us = 8, .transfer_us = 600},
                                        network = {.cpu_us = 545, .gpu_us = 20, .switch_us = 8, .transfer_us = 910};
    uint32_t n_left = 72;
    test_build_dense_plan(&m->plan, 40);
    make_room(m);
    for (uint32_t u = 0; u < m->plan.program.n_units; u++) {
        const struct atsi_unit *unit = &m->plan.program.units[u];
        bool is_network = unit->kind == ATSI_UNIT_MATRIX && strcmp(unit->name, "mix") != 0;
        m->plan.decode_times[u] = is_network ? network : mix;
        m->plan.prefill_times[u] =
            (struct atsi_unit_times){.cpu_us = 8000, .gpu_us = 300, .switch_us = 8, .transfer_us = 910};
        m->homes[u] = is_network && n_left > 0 ? ATSI_CPU : ATSI_GPU;
        n_left -= m->homes[u] == ATSI_CPU;
        if (is_network) m->plan.limits.temp_bytes = 5 * unit->weight_bytes;
    }
}

// Experts some of which cross the link: 24 layers, all of whose networks both processors share, 4 ms a token.
static void open_shared_model(struct model *m) {
    static const struct atsi_unit_times mix = {.cpu_us = 100, .gpu_us = 25, .switch_us = 4, .transfer_us = 100},
                                        network = {.cpu_us = 105, .gpu_us = 6, .switch_us = 4, .transfer_us = 75};
    test_build_dense_plan(&m->plan, 24);
    make_room(m);
    for (uint32_t u = 0; u < m->plan.program.n_units; u++) {
        const struct atsi_unit *unit = &m->plan.program.units[u];
        bool is_network = unit->kind == ATSI_UNIT_MATRIX && strcmp(unit->name, "mix") != 0;
        m->plan.decode_times[u] = is_network ? network : mix;
        m->plan.prefill_times[u] =
            (struct atsi_unit_times){.cpu_us = 8000, .gpu_us = 300, .switch_us = 8, .transfer_us = 75};
        m->homes[u] = is_network ? ATSI_CPU : ATSI_GPU;
        if (is_network) m->plan.limits.temp_bytes = unit->weight_bytes + 4096;
    }
}

struct pair {
    struct made_up_machine aware, fixed;
};

static void open_pair(struct pair *p, struct model *m, uint64_t seed) {
    made_up_open(&p->aware, &m->plan, m->homes, seed * 2654435761u, seed);
    made_up_open(&p->fixed, &m->plan, m->homes, seed * 0x9e3779b97f4a7c15u, seed);
    p->fixed.stays = true;
}

static void close_pair(struct pair *p) {
    made_up_close(&p->aware);
    made_up_close(&p->fixed);
}

struct medians { // of what a round takes
    double aware_us, fixed_us;
};

static struct medians run(struct pair *p, const struct made_up_load *load, double us) {
    double aware_us = made_up_run(&p->aware, load, us);
    return (struct medians){aware_us, made_up_run(&p->fixed, load, us)};
}

// ---- speeds as such ------------------------------------------------------------------------------------------------

static struct made_up_load plain(const struct atsi_scales *scales) {
    return (struct made_up_load){.scales = *scales, .shaking = 0.03};
}

// A load comes, goes, and another comes: 60 % of the CPU, then half of GPU and link; then a card whose turns others have, so that
// hand-overs take long.
static void rounds_are_nearly_as_fast_as_with_known_speeds(void **state) {
    (void)state;
    static const struct atsi_scales phases[] = {{1, 1, 1, 0}, {2.5, 1, 1, 0}, {1, 1, 1, 0},
                                                {1, 2, 2, 0}, {1, 1, 1, 0},   {1, 1, 1, 400}};
    struct model model;
    open_small_model(&model);
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct pair p;
        open_pair(&p, &model, seed);
        for (int k = 0; k < 6; k++) {
            struct made_up_load load = plain(&phases[k]);
            struct medians medians = run(&p, &load, 2 * second);
            double most_us =
                fmin(1.05 * made_up_best_us(&p.aware, &phases[k]), (k == 1 ? 0.95 : 1.02) * medians.fixed_us);
            if (medians.aware_us > most_us)
                fail_msg("seed %d, phase %d: %.0f us, static %.0f, best %.0f", (int)seed, k, medians.aware_us,
                         medians.fixed_us, made_up_best_us(&p.aware, &phases[k]));
        }
        assert_true(p.aware.n_decided < 60);
        close_pair(&p);
    }
    close_model(&model);
}

// The example of docs/load.md, which tells one of these runs: how many matrices travel, and how many rounds after a change they do.
static void the_example_is_as_documented(void **state) {
    (void)state;
    const struct made_up_load none = plain(&(struct atsi_scales){1, 1, 1, 0}),
                              load = plain(&(struct atsi_scales){2.5, 1, 1, 0});
    struct model model;
    open_large_model(&model);
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct made_up_machine m;
        made_up_open(&m, &model.plan, model.homes, seed * 2654435761u, seed);
        made_up_run_rounds(&m, &none, 100);
        assert_int_equal(m.at_work.n_promoted, 31);
        made_up_run_rounds(&m, &load, 12);
        assert_int_equal(m.at_work.n_promoted, 31);
        made_up_run_rounds(&m, &load, 18);
        assert_in_range(m.at_work.n_promoted, 45, 49);
        made_up_run_rounds(&m, &load, 70);
        assert_in_range(m.at_work.n_promoted, 45, 49);
        made_up_run_rounds(&m, &none, 15);
        assert_in_range(m.at_work.n_promoted, 45, 49);
        made_up_run_rounds(&m, &none, 65); // in most runs some 20, but not where something was tried just before
        assert_int_equal(m.at_work.n_promoted, 31);
        made_up_close(&m);
    }
    close_model(&model);
}

// The plan's times are wrong from the start: what is recorded makes better shares.
static void a_wrong_profile_is_corrected(void **state) {
    (void)state;
    static const struct atsi_scales truth = {0.6, 1.2, 1.5, 0};
    struct model model;
    open_small_model(&model);
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct made_up_machine m;
        struct made_up_load load = plain(&truth);
        made_up_open(&m, &model.plan, model.homes, seed * 2654435761u, seed);
        double as_planned_us = made_up_time(&m, &m.tuner.at_work, &truth);
        made_up_run(&m, &load, second / 2);
        double us = made_up_run(&m, &load, second / 2);
        assert_true(us < 0.95 * as_planned_us && us < 1.02 * made_up_best_us(&m, &truth));
        made_up_close(&m);
    }
    close_model(&model);
}

// ---- under load ----------------------------------------------------------------------------------------------------

// What the profile was off by when nothing else ran, and how speeds wander then.
static const struct made_up_load idle = {.scales = {0.95, 1.18, 0.95, 10}, .shaking = 0.02, .wandering = 0.02};

// The figure's phases: nothing, 60 % of every processor, card and link, nothing. What of a rise is to be saved: of the CPU's, of the
// card's.
struct figure {
    const char *name;
    struct made_up_load cpu, card;
    double cpu_saved, card_saved;
    double behind; // how much longer than static rounds may be in a single run
};

static const struct figure figures[] = {
    {"a slower CPU; hand-overs behind another's kernels",
     {{1.8, 1.18, 0.95, 10}, 0.1, 0.1, 1500, 0.1, 0, 0, 0, 0, 0},
     {{1.05, 1.4, 1, 70}, 0.03, 0.02, 2000, 0, 0, 0.03, 0, 0, 0},
     0.38,
     0.13,
     1.04},
    {"time slices of 3 ms in the middle of work; half of card and link",
     {{1.4, 1.18, 0.95, 60}, 0.15, 0.15, 3000, 0.8, 0, 0, 0, 0, 0},
     {{1, 2, 2, 60}, 0.05, 0.02, 2000, 0, 0, 0.03, 0, 0, 0},
     0.38,
     0.38,
     1.04},
    {"slices that are mostly done again by others; a card that is hardly loaded",
     {{1.15, 1.1, 0.95, 15}, 0.1, 0.1, 2000, 0.25, 0.05, 0, 0, 0, 0},
     {{1, 1.3, 1, 35}, 0.05, 0.02, 1000, 0, 0, 0.01, 0, 0, 0},
     0.3,
     0,
     1.04},
    {"slices at the beginning of work, which no speed says",
     {{1, 1.18, 0.95, 150}, 0.2, 0.25, 4000, 0, 0.7, 0, 0, 0, 0},
     {{1, 1.3, 1, 40}, 0.05, 0.02, 1000, 0, 0, 0.01, 0, 0, 0},
     0.38,
     0,
     1.04},
    {"a CPU that is the slower the less it has to do, by half of what was promised",
     {{1.47, 1.1, 0.95, 15}, 0.1, 0.1, 1000, 0.1, 0, 0, 0.02, 0, 0},
     {{1, 1.3, 1, 35}, 0.05, 0.02, 1000, 0, 0, 0.01, 0, 0, 0},
     0.1,
     0,
     1.04},
    {"and by all of it: nothing can be saved",
     {{1.47, 1.1, 0.95, 15}, 0.1, 0.1, 1000, 0.1, 0, 0, 0.04, 0, 0},
     {{1, 1.3, 1, 35}, 0.05, 0.02, 1000, 0, 0, 0.01, 0, 0, 0},
     0,
     0,
     1.08},
    {"a link whose turns others have, which transfers only show by what waits for them",
     {{1.8, 1.18, 0.95, 10}, 0.1, 0.1, 1500, 0.1, 0, 0, 0, 0, 0},
     {{1.05, 1.3, 1.4, 45}, 0.03, 0.02, 1500, 0, 0, 0.03, 0, 0, 0.32},
     0.38,
     0.38,
     1.04},
};

static void add(struct medians *sum, const struct medians *m) {
    sum->aware_us += m->aware_us / SEEDS;
    sum->fixed_us += m->fixed_us / SEEDS;
}

// Means of the phases' medians over the seeds. No single run is behind by more than trials cost.
static void run_figure(const struct figure *f, struct model *model, struct medians means[4]) {
    const struct made_up_load phases[] = {idle, f->cpu, f->card, idle};
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct pair p;
        open_pair(&p, model, seed);
        for (int k = 0; k < 4; k++) {
            struct medians m = run(&p, &phases[k], 6 * second);
            if (m.aware_us > f->behind * m.fixed_us)
                fail_msg("%s, seed %d, phase %d: %.1f ms, static %.1f", f->name, (int)seed, k, m.aware_us * 1e-3,
                         m.fixed_us * 1e-3);
            add(&means[k], &m);
        }
        close_pair(&p);
    }
}

static double saved(const struct medians means[4], int phase) {
    return 1 - (means[phase].aware_us - means[0].aware_us) / (means[phase].fixed_us - means[0].fixed_us);
}

static void rises_are_smaller_than_those_of_a_static_schedule(void **state) {
    (void)state;
    struct model model;
    open_large_model(&model);
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++) {
        struct medians means[4] = {{0, 0}};
        run_figure(&figures[i], &model, means);
        print_message("%s: saved %.0f %% of the CPU's rise, %.0f %% of the card's\n", figures[i].name,
                      100 * saved(means, 1), 100 * saved(means, 2));
        for (int k = 0; k < 4; k++) assert_true(means[k].aware_us < 1.03 * means[k].fixed_us);
        if (figures[i].cpu_saved > 0) assert_true(saved(means, 1) >= figures[i].cpu_saved);
        if (figures[i].card_saved > 0) assert_true(saved(means, 2) >= figures[i].card_saved);
    }
    close_model(&model);
}

// A load that lengthens rounds by less than epsilon is left alone, and so is everything when it goes. (Before the other use is overdue.)
static void a_light_load_changes_nothing(void **state) {
    (void)state;
    static const struct made_up_load light = {{1, 1.3, 1, 30}, 0.05, 0.02, 1000, 0, 0, 0.01, 0, 0, 0};
    struct model model;
    open_large_model(&model);
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct pair p;
        open_pair(&p, &model, seed);
        run(&p, &idle, 4 * second);
        uint32_t n_taken_over = p.aware.n_taken_over;
        for (int k = 0; k < 2; k++) {
            struct medians m = run(&p, k ? &idle : &light, 4 * second);
            assert_true(m.aware_us < 1.03 * m.fixed_us);
            if (k == 0) assert_true(m.fixed_us > 1.05 * made_up_best_us(&p.fixed, &idle.scales));
        }
        assert_int_equal(p.aware.n_taken_over, n_taken_over);
        close_pair(&p);
    }
    close_model(&model);
}

// Where the parts that cross the link differ from token to token, rounds do and so do recorded speeds: a short text has few decisions, a
// longer one hardly more.
static void uneven_shares_settle(void **state) {
    (void)state;
    static const struct made_up_load uneven = {{0.9, 1.06, 0.75, 0}, 0.05, 0.1, 300, 0.2, 0.02, 1, 0, 0, 0};
    struct model model;
    struct medians mean = {0, 0};
    open_shared_model(&model);
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct pair p;
        open_pair(&p, &model, seed);
        p.aware.deciding_us = p.fixed.deciding_us = 8000;
        run(&p, &uneven, 0.7 * second);
        assert_true(p.aware.n_decided <= 6 && p.aware.n_taken_over <= 5);
        struct medians m = run(&p, &uneven, 3 * second);
        assert_true(p.aware.n_decided <= 15 && p.aware.n_taken_over <= 12);
        assert_true(m.aware_us < 1.12 * m.fixed_us);
        add(&mean, &m);
        close_pair(&p);
    }
    assert_true(mean.aware_us < 1.01 * mean.fixed_us);
    close_model(&model);
}

// What the plan's times are off by on a machine that nothing else uses, and what is to be saved of 129 tokens by deciding for it, of those
// under the first assignment. Less than nothing: what decisions and trials may cost.
struct truth {
    const char *name;
    struct atsi_scales scales;
    double saved;
};

static const struct truth truths[] = {
    {"a profile that is right", {1, 1, 1, 0}, -0.012}, {"all of it slower", {1.7, 1.18, 1.6, 2}, -0.012},
    {"and by less", {1.35, 1.15, 1.3, 1}, -0.012},     {"a faster link", {0.8, 1.2, 0.65, 1}, 0.002},
    {"a slower CPU", {1.6, 1.1, 1, 0}, 0.07},          {"a slower link", {1, 1.1, 1.6, 0}, 0.02},
};

// 129 rounds that differ by luck as those of divided slots do on the card, by 10 %; a decision takes 17 ms, a core of those that compute.
static double time_of_short_text(struct model *model, const struct atsi_scales *scales, uint64_t seed, bool never) {
    const struct made_up_load load = {.scales = *scales,
                                      .shaking = 0.25,
                                      .wandering = 0.05,
                                      .stall_us = 300,
                                      .stalls = 0.2,
                                      .stalled_starts = 0.02,
                                      .uneven = 1};
    struct made_up_machine m;
    made_up_open(&m, &model->plan, model->homes, seed * (never ? 0x9e3779b97f4a7c15u : 2654435761u), seed);
    m.never = never;
    m.deciding_us = 17000;
    m.slowed_deciding = 1.3;
    double us = made_up_run_rounds(&m, &load, 129);
    made_up_close(&m);
    return us;
}

static void a_short_text_loses_little(void **state) {
    (void)state;
    struct model model;
    open_shared_model(&model);
    for (size_t i = 0; i < sizeof truths / sizeof *truths; i++) {
        double aware_us = 0, first_us = 0;
        for (uint64_t seed = 1; seed <= 5 * SEEDS; seed++) {
            aware_us += time_of_short_text(&model, &truths[i].scales, seed, false);
            first_us += time_of_short_text(&model, &truths[i].scales, seed, true);
        }
        print_message("%s: %.1f %% saved\n", truths[i].name, 100 * (1 - aware_us / first_us));
        assert_true(1 - aware_us / first_us >= truths[i].saved);
    }
    close_model(&model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounds_are_nearly_as_fast_as_with_known_speeds),
        cmocka_unit_test(the_example_is_as_documented),
        cmocka_unit_test(a_wrong_profile_is_corrected),
        cmocka_unit_test(rises_are_smaller_than_those_of_a_static_schedule),
        cmocka_unit_test(a_light_load_changes_nothing),
        cmocka_unit_test(uneven_shares_settle),
        cmocka_unit_test(a_short_text_loses_little),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
