// Static placement against exhaustive search and against GLPK.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "planner/solve/solve.h"
#include "tests/support/check.h"
#include "tests/support/random.h"

#define N_MAX 64

struct problem {
    struct atsi_solve_instance inst;
    struct atsi_solve_unit units[N_MAX];
};

// Every kind of trouble in turn: equal sizes, zero sizes, no gain, negative gain, free and huge switches, no budget.
static void make_random(struct problem *p, uint64_t seed, size_t n_max) {
    uint64_t rng = seed * 977 + 5;
    size_t n = 1 + test_below(&rng, n_max);
    uint64_t granularity = test_below(&rng, 3) == 0 ? 1 : 1 + test_below(&rng, 1000);
    int sizes = (int)test_below(&rng, 4), gains = (int)test_below(&rng, 4), switches = (int)test_below(&rng, 5);
    uint64_t total = 0;
    for (size_t i = 0; i < n; i++) {
        struct atsi_solve_unit *u = &p->units[i];
        *u = (struct atsi_solve_unit){0};
        u->size_bytes = sizes == 0 ? 7 * granularity : test_below(&rng, sizes == 1 ? 5 : 100 * granularity);
        if (sizes == 3 && test_below(&rng, 3) == 0) u->size_bytes = 0;
        u->t_gpu_us = 10 * test_uniform(&rng);
        u->t_cpu_us = gains == 0   ? u->t_gpu_us
                      : gains == 1 ? 20 * test_uniform(&rng)
                      : gains == 2 ? 10 + (double)test_below(&rng, 5)
                                   : u->t_gpu_us + 50 * test_uniform(&rng);
        if (gains == 2) u->t_gpu_us = (double)test_below(&rng, 12);
        u->switch_us = switches == 0   ? 0
                       : switches == 1 ? 1e12
                       : switches == 2 ? 5 * test_uniform(&rng)
                                       : 30 * test_uniform(&rng);
        if (switches == 4) u->switch_us = (double)test_below(&rng, 4);
        u->is_expert = test_below(&rng, 3) == 0;
        total += u->size_bytes / granularity + 1;
    }
    uint64_t budget = test_below(&rng, 8) == 0 ? 0 : test_below(&rng, total * granularity + 1);
    p->inst = (struct atsi_solve_instance){budget, granularity, n, p->units};
}

// ---- the oracle: every placement, valued from the definition ------------------------------------------------------

struct oracle {
    const struct atsi_solve_instance *inst;
    double best;
};

static void try_all(struct oracle *o, size_t i, int before, uint64_t left, double value) {
    if (i == o->inst->n_units) {
        if (value > o->best) o->best = value;
        return;
    }
    const struct atsi_solve_unit *u = &o->inst->units[i];
    uint64_t g = o->inst->granularity_bytes, need = (u->size_bytes + g - 1) / g;
    for (int side = 0; side < 2; side++) {
        if ((u->fix == ATSI_FIX_CPU && side == 1) || (u->fix == ATSI_FIX_GPU && side == 0)) continue;
        if (side == 1 && need > left) continue;
        double gain = (side ? u->t_cpu_us - u->t_gpu_us : 0) - (i && side != before ? u->switch_us : 0);
        try_all(o, i + 1, side, side ? left - need : left, value + gain);
    }
}

static double best_of_all(const struct atsi_solve_instance *inst) {
    struct oracle o = {inst, -INFINITY};
    try_all(&o, 0, 0, inst->budget_bytes / inst->granularity_bytes, 0);
    return o.best;
}

static void check_equal(double got, double want, uint64_t seed, const char *what) {
    if (!(fabs(got - want) <= 1e-9 * fmax(1, fabs(want))))
        fail_msg("%s, seed %llu: %.12g, expected %.12g", what, (unsigned long long)seed, got, want);
}

static double dp_value(const struct atsi_solve_instance *inst, uint64_t seed) {
    uint8_t placement[N_MAX];
    struct atsi_error err = {0};
    struct atsi_solve_value value;
    if (atsi_solve_dp(inst, placement, &err) != ATSI_OK) fail_msg("seed %llu: %s", (unsigned long long)seed, err.text);
    atsi_solve_evaluate(inst, placement, &value);
    if (value.used_granules > inst->budget_bytes / inst->granularity_bytes)
        fail_msg("seed %llu: over budget", (unsigned long long)seed);
    for (size_t i = 0; i < inst->n_units; i++)
        if (inst->units[i].fix != ATSI_FIX_NONE) assert_int_equal(placement[i], inst->units[i].fix == ATSI_FIX_GPU);
    return value.objective_us;
}

static void dp_equals_exhaustive_search(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 3000; seed++) {
        struct problem p;
        make_random(&p, seed, 14);
        check_equal(dp_value(&p.inst, seed), best_of_all(&p.inst), seed, "dp");
    }
}

static void dp_respects_fixed_units(void **state) {
    (void)state;
    int n_refused = 0;
    for (uint64_t seed = 0; seed < 1000; seed++) {
        struct problem p;
        make_random(&p, seed + 10000, 12);
        uint64_t rng = seed;
        for (size_t i = 0; i < p.inst.n_units; i++) p.units[i].fix = (enum atsi_solve_fix)test_below(&rng, 3);
        double best = best_of_all(&p.inst);
        uint8_t placement[N_MAX];
        struct atsi_error err = {0};
        if (isinf(best)) {
            assert_int_equal(atsi_solve_dp(&p.inst, placement, &err), ATSI_BAD_INPUT);
            assert_non_null(strstr(err.text, "do not fit"));
            n_refused++;
        } else
            check_equal(dp_value(&p.inst, seed), best, seed, "dp with fixes");
    }
    assert_true(n_refused > 50);
}

// Algorithm 1 restated: the class that is decided first, then the best of the other class over the full sequence.
static double best_partitioned(struct problem *p) {
    uint64_t need = 0, g = p->inst.granularity_bytes;
    size_t n_experts = 0;
    for (size_t i = 0; i < p->inst.n_units; i++) {
        if (p->units[i].is_expert)
            n_experts++;
        else
            need += (p->units[i].size_bytes + g - 1) / g;
    }
    if (n_experts == 0) return best_of_all(&p->inst);
    bool fits = need <= p->inst.budget_bytes / g;
    struct problem fixed = *p;
    fixed.inst.units = fixed.units;
    for (size_t i = 0; i < p->inst.n_units; i++) {
        if (fits && !p->units[i].is_expert) fixed.units[i].fix = ATSI_FIX_GPU;
        if (!fits && p->units[i].is_expert) fixed.units[i].fix = ATSI_FIX_CPU;
    }
    return best_of_all(&fixed.inst);
}

static void partition_is_algorithm_1(void **state) {
    (void)state;
    int n_negative = 0;
    for (uint64_t seed = 0; seed < 1000; seed++) {
        struct problem p;
        make_random(&p, seed + 20000, 12);
        double want = best_partitioned(&p);
        struct atsi_solve_unit units[N_MAX];
        atsi_solve_partition(&p.inst, units);
        struct atsi_solve_instance inst = p.inst;
        inst.units = units;
        check_equal(dp_value(&inst, seed), want, seed, "partition");
        n_negative += want < 0;
    }
    assert_true(n_negative > 20);
}

// GLPK searches without knowing the DP's placement, so the two are independent.
static void glpk_agrees(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 400; seed++) {
        struct problem p;
        make_random(&p, seed + 30000, seed < 200 ? 20 : 60);
        if (seed % 4 == 3) { atsi_solve_partition(&p.inst, p.units); }
        double dp = dp_value(&p.inst, seed);
        struct atsi_milp_options options = {.seconds_max = 60, .seconds_enough = 60};
        struct atsi_milp_result milp;
        struct atsi_error err = {0};
        assert_int_equal(atsi_solve_milp(&p.inst, &options, NULL, &milp, &err), ATSI_OK);
        if (milp.status != ATSI_MILP_OPTIMAL) fail_msg("seed %llu: not proven", (unsigned long long)seed);
        if (!(fabs(dp - milp.objective_us) <= 1e-6 * fmax(1, fabs(dp))))
            fail_msg("seed %llu: dp %.12g, milp %.12g", (unsigned long long)seed, dp, milp.objective_us);
        assert_true(milp.lp_bound_us >= dp - 1e-6 * fmax(1, fabs(dp)));
    }
}

static void certificate_bounds_the_optimum(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 200; seed++) {
        struct problem p;
        make_random(&p, seed + 40000, 14);
        uint8_t placement[N_MAX];
        struct atsi_solve_result r;
        struct atsi_error err = {0};
        if (atsi_solve(&p.inst, NULL, placement, &r, &err) != ATSI_OK) fail_msg("%s", err.text);
        check_equal(r.value.objective_us, best_of_all(&p.inst), seed, "solve");
        check_equal(r.value.predicted_us + r.value.objective_us, r.value.baseline_us, seed, "sum");
        assert_int_equal(r.milp.status, ATSI_MILP_OPTIMAL);
        assert_true(r.gap >= 0 && r.gap < 1e-6);
        struct atsi_milp_options none = {0};
        assert_int_equal(atsi_solve(&p.inst, &none, placement, &r, &err), ATSI_OK);
        assert_int_equal(r.milp.status, ATSI_MILP_SKIPPED);
    }
}

// Times and switch costs over fourteen orders of magnitude, each on its own: the two solvers must still agree.
static void any_scale_is_certified(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 1500; seed++) {
        struct problem p;
        make_random(&p, seed + 50000, 60);
        uint64_t rng = seed;
        double times = pow(10, 14 * test_uniform(&rng) - 4), switches = pow(10, 14 * test_uniform(&rng) - 4);
        for (size_t i = 0; i < p.inst.n_units; i++) {
            struct atsi_solve_unit *u = &p.units[i];
            double spread = test_below(&rng, 8) ? 1 : 100;
            u->t_cpu_us *= times * spread;
            u->t_gpu_us *= times * spread;
            u->switch_us = fmin(1e12, u->switch_us * switches);
        }
        if (seed % 2) atsi_solve_partition(&p.inst, p.units);
        uint8_t placement[N_MAX];
        struct atsi_solve_result r;
        struct atsi_error err = {0};
        if (atsi_solve(&p.inst, NULL, placement, &r, &err) != ATSI_OK)
            fail_msg("seed %llu: %s", (unsigned long long)seed, err.text);
        if (r.milp.status != ATSI_MILP_OPTIMAL) fail_msg("seed %llu: not proven", (unsigned long long)seed);
        assert_true(r.gap >= 0 && r.gap <= 1e-6);
    }
}

// Of the processor, so that other programs do not count.
static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static const double instrumented = 10;
#else
static const double instrumented = 1;
#endif

static void large_instances_are_fast(void **state) {
    (void)state;
    enum {
        N = 700
    };
    static struct atsi_solve_unit units[N];
    static uint8_t placement[N];
    uint64_t rng = 1;
    for (size_t i = 0; i < N; i++)
        units[i] = (struct atsi_solve_unit){.size_bytes = (10 + test_below(&rng, 90)) << 20,
                                            .t_cpu_us = 100 + 900 * test_uniform(&rng),
                                            .t_gpu_us = 100 * test_uniform(&rng),
                                            .switch_us = 30};
    struct atsi_solve_instance inst = {UINT64_C(24576) << 20, 1 << 20, N, units};
    struct atsi_milp_options options = {.seconds_max = 10, .seconds_enough = 0, .gap_target = 0.005};
    struct atsi_solve_result r;
    struct atsi_error err = {0};
    assert_int_equal(atsi_solve(&inst, &options, placement, &r, &err), ATSI_OK);
    assert_true(r.gap <= 0.005);
    double start = cpu_seconds();
    assert_int_equal(atsi_solve_dp(&inst, placement, &err), ATSI_OK);
    double dp_seconds = cpu_seconds() - start;
    print_message("n = 700, M = 24576: DP %.3f s, gap %.5f %% after %.2f s\n", dp_seconds, 100 * r.gap, r.milp.seconds);
    assert_true(dp_seconds < 1 * instrumented);
    inst.granularity_bytes = 1 << 14;
    assert_int_equal(atsi_solve_dp(&inst, placement, &err), ATSI_BAD_INPUT);
}

// ---- divisible units ----------------------------------------------------------------------------------------------

// The best of the others by exhaustive search, with the rest of the budget filled by parts of the divisible units, the densest first.
static double best_with_parts(const struct problem *p, size_t n_whole) {
    uint64_t g = p->inst.granularity_bytes, all = p->inst.budget_bytes / g;
    double best = -INFINITY;
    for (uint64_t left = 0; left <= all; left++) {
        struct atsi_solve_instance whole = {(all - left) * g, g, n_whole, p->units};
        double value = best_of_all(&whole), room = (double)left;
        bool taken[N_MAX] = {false};
        for (size_t k = n_whole; k < p->inst.n_units && room > 0; k++) {
            size_t densest = 0;
            for (size_t i = n_whole; i < p->inst.n_units; i++)
                if (!taken[i] && (!densest || p->units[i].t_cpu_us * (double)p->units[densest].size_bytes >
                                                  p->units[densest].t_cpu_us * (double)p->units[i].size_bytes))
                    densest = i;
            double need = (double)(p->units[densest].size_bytes / g), part = fmin(1, room / need);
            taken[densest] = true;
            value += part * p->units[densest].t_cpu_us;
            room -= part * need;
        }
        best = fmax(best, value);
    }
    return best;
}

static void bounds_hold_for_parts(void **state) {
    (void)state;
    enum {
        DIVISIBLE = 3
    };
    for (uint64_t seed = 0; seed < 150; seed++) {
        struct problem p;
        struct atsi_solve_result result;
        struct atsi_error err = {0};
        uint8_t placement[N_MAX];
        uint64_t rng = seed + 77;
        make_random(&p, seed + 20000, 6);
        uint64_t g = p.inst.granularity_bytes = 100, total = 0;
        for (size_t i = 0; i < p.inst.n_units; i++) total += p.units[i].size_bytes = g * test_below(&rng, 12);
        size_t n_whole = p.inst.n_units;
        for (size_t i = 0; i < DIVISIBLE; i++) {
            struct atsi_solve_unit *u = &p.units[p.inst.n_units++];
            *u = (struct atsi_solve_unit){.size_bytes = g * (1 + test_below(&rng, 20)),
                                          .t_cpu_us = 60 * test_uniform(&rng),
                                          .is_divisible = true};
            total += u->size_bytes;
        }
        p.inst.budget_bytes = test_below(&rng, total);
        check_ok(atsi_solve(&p.inst, NULL, placement, &result, &err), err);
        double best = best_with_parts(&p, n_whole);
        assert_int_equal(result.milp.status, ATSI_MILP_BOUNDED);
        if (fabs(result.milp.bound_us - best) > 1e-6 * fmax(1, fabs(best)))
            fail_msg("seed %llu: bound %.9g, best with parts %.9g", (unsigned long long)seed, result.milp.bound_us,
                     best);
        assert_true(result.value.objective_us <= best + 1e-9 && result.gap >= -1e-9);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dp_equals_exhaustive_search),    cmocka_unit_test(dp_respects_fixed_units),
        cmocka_unit_test(partition_is_algorithm_1),       cmocka_unit_test(glpk_agrees),
        cmocka_unit_test(certificate_bounds_the_optimum), cmocka_unit_test(any_scale_is_certified),
        cmocka_unit_test(large_instances_are_fast),       cmocka_unit_test(bounds_hold_for_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
