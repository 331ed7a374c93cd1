// The scheduler against a second reading of the timing model and against exhaustive search.
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/schedule/schedule.h"
#include "runtime/schedule/search.h"
#include "tests/support/check.h"
#include "tests/support/random.h"

#define N_MAX 16

struct problem {
    struct atsi_schedule_instance inst;
    struct atsi_schedule_unit units[N_MAX];
};

static int32_t random_after(uint64_t *rng, int style, size_t i) {
    if (style == 0 || i == 0) return test_below(rng, 8) ? ATSI_AFTER_START : ATSI_AFTER_PREVIOUS;
    if (style == 1) return ATSI_AFTER_PREVIOUS;
    return test_below(rng, 3) == 0 ? ATSI_AFTER_START : (int32_t)test_below(rng, i);
}

// Tight regions, ties (small integers), zero sizes and times, dependencies of every kind.
static void make_random(struct problem *p, uint64_t seed, size_t n_max) {
    uint64_t rng = seed * 1009 + 3;
    size_t n = 1 + test_below(&rng, n_max);
    int times = (int)test_below(&rng, 3), sizes = (int)test_below(&rng, 3), afters = (int)test_below(&rng, 4);
    double ratio = 0.2 + 3 * test_uniform(&rng), switching = test_below(&rng, 3) == 0 ? 0 : 20 * test_uniform(&rng);
    uint64_t size_sum = 0, n_gpu = test_below(&rng, 4);
    for (size_t i = 0; i < n; i++) {
        struct atsi_schedule_unit *u = &p->units[i];
        u->size_bytes = sizes == 0 ? 10 : sizes == 1 ? test_below(&rng, 3) * 5 : 1 + test_below(&rng, 100);
        u->t_cpu_us = times == 0 ? (double)test_below(&rng, 5) : 10 + 90 * test_uniform(&rng);
        u->t_gpu_us = times == 0 ? (double)test_below(&rng, 3) : u->t_cpu_us * (0.05 + 0.3 * test_uniform(&rng));
        if (times == 2 && test_below(&rng, 5) == 0) u->t_gpu_us = 2 * u->t_cpu_us;
        u->transfer_us = times == 0 ? (double)test_below(&rng, 6) : u->t_cpu_us * ratio * (0.5 + test_uniform(&rng));
        u->switch_us = times == 0 ? (double)test_below(&rng, 3) : switching;
        u->home = test_below(&rng, 4) < n_gpu && test_below(&rng, 2) ? ATSI_GPU : ATSI_CPU;
        u->after = random_after(&rng, afters, i);
        size_sum += u->size_bytes;
    }
    p->inst = (struct atsi_schedule_instance){
        test_below(&rng, 1 + (test_below(&rng, 2) ? size_sum : size_sum / 3 + 10)), n, p->units};
    if (test_below(&rng, 20) == 0) p->inst.temp_bytes = 0;
}

// ---- the oracle: the model read a second time, by looking at what is held at a moment ------------------------------

struct oracle {
    const struct atsi_schedule_instance *inst;
    double end[N_MAX], transfer_start[N_MAX], transfer_end[N_MAX], start[N_MAX];
    uint8_t side[N_MAX];
    double best;
};

static bool promoted(const struct oracle *o, size_t i) {
    return o->side[i] == ATSI_GPU && o->inst->units[i].home == ATSI_CPU;
}

static uint64_t held_at(const struct oracle *o, size_t n, double t) {
    uint64_t sum = 0;
    for (size_t k = 0; k < n; k++)
        if (promoted(o, k) && o->transfer_start[k] <= t && t < o->end[k]) sum += o->inst->units[k].size_bytes;
    return sum;
}

// Space can only appear when a unit ends, so the candidates are the earliest moment and those ends.
static double oracle_transfer_start(const struct oracle *o, size_t i) {
    const struct atsi_schedule_unit *u = &o->inst->units[i];
    double earliest = 0, best = INFINITY;
    for (size_t k = 0; k < i; k++)
        if (promoted(o, k)) earliest = fmax(earliest, o->transfer_end[k]);
    if (u->after >= 0) earliest = fmax(earliest, o->end[u->after]);
    if (u->after == ATSI_AFTER_PREVIOUS && i > 0) earliest = fmax(earliest, o->end[i - 1]);
    for (size_t k = 0; k <= i; k++) {
        double t = k == i ? earliest : fmax(earliest, o->end[k]);
        if (held_at(o, i, t) + u->size_bytes <= o->inst->temp_bytes) best = fmin(best, t);
    }
    return best;
}

static void oracle_unit(struct oracle *o, size_t i) {
    const struct atsi_schedule_unit *u = &o->inst->units[i];
    double start = i ? o->end[i - 1] : 0;
    if (i && o->side[i] != o->side[i - 1]) start += u->switch_us;
    if (promoted(o, i)) {
        o->transfer_start[i] = oracle_transfer_start(o, i);
        o->transfer_end[i] = o->transfer_start[i] + u->transfer_us;
        start = fmax(start, o->transfer_end[i]);
    }
    o->start[i] = start;
    o->end[i] = start + (o->side[i] ? u->t_gpu_us : u->t_cpu_us);
}

static void try_all(struct oracle *o, size_t i) {
    if (i == o->inst->n_units) {
        o->best = fmin(o->best, o->end[i - 1]);
        return;
    }
    const struct atsi_schedule_unit *u = &o->inst->units[i];
    for (int side = 0; side < 2; side++) {
        if (side == 0 && u->home == ATSI_GPU) continue;
        if (side == 1 && u->home == ATSI_CPU && u->size_bytes > o->inst->temp_bytes) continue;
        o->side[i] = (uint8_t)side;
        oracle_unit(o, i);
        try_all(o, i + 1);
    }
}

static double oracle_time(struct oracle *o, const struct atsi_schedule_instance *inst, const uint8_t *assignment) {
    o->inst = inst;
    memcpy(o->side, assignment, inst->n_units);
    for (size_t i = 0; i < inst->n_units; i++) oracle_unit(o, i);
    return o->end[inst->n_units - 1];
}

// The paper's T from its definition; infinite when a promoted unit has no admissible start.
static double oracle_paper(const struct atsi_schedule_instance *inst, const uint8_t *side) {
    const struct atsi_schedule_unit *u = inst->units - 1; // counted from 1, as in the paper
    double total = 0;
    size_t n = inst->n_units;
    for (size_t i = 1; i <= n; i++) {
        total += side[i - 1] ? u[i].t_gpu_us : u[i].t_cpu_us;
        if (i > 1 && side[i - 2] != side[i - 1]) total += u[i].switch_us;
        if (side[i - 1] == ATSI_CPU || u[i].home == ATSI_GPU) continue;
        double delta = INFINITY;
        for (size_t j = 0; j < i; j++) {
            bool admissible = j == 0 || (u[j].home == ATSI_CPU && side[j - 1] == ATSI_CPU);
            double seg = 0;
            for (size_t k = j + 1; k < i; k++) {
                admissible = admissible && side[k - 1] == u[k].home;
                seg += u[k].home ? u[k].t_gpu_us : u[k].t_cpu_us;
                if (k > 1 && u[k - 1].home != u[k].home) seg += u[k].switch_us;
            }
            if (admissible) delta = fmin(delta, fmax(u[i].transfer_us - seg, 0));
        }
        total += delta;
    }
    return total;
}

static double best_paper(const struct atsi_schedule_instance *inst) {
    double best = INFINITY;
    for (uint32_t mask = 0; mask < 1u << inst->n_units; mask++) {
        uint8_t side[N_MAX];
        bool allowed = true;
        for (size_t i = 0; i < inst->n_units; i++) {
            side[i] = mask >> i & 1;
            const struct atsi_schedule_unit *u = &inst->units[i];
            allowed = allowed && !(side[i] == 0 && u->home == ATSI_GPU);
            allowed = allowed && !(side[i] == 1 && u->home == ATSI_CPU && u->size_bytes > inst->temp_bytes);
        }
        if (allowed) best = fmin(best, oracle_paper(inst, side));
    }
    return best;
}

// ---- tests -------------------------------------------------------------------------------------------------------

static void check_equal(double got, double want, uint64_t seed, const char *what) {
    if (!(fabs(got - want) <= 1e-9 * fmax(1, fabs(want))))
        fail_msg("%s, seed %llu: %.12g, expected %.12g", what, (unsigned long long)seed, got, want);
}

static struct atsi_schedule run(struct atsi_scheduler *s, const struct problem *p, enum atsi_schedule_policy policy,
                                uint64_t seed) {
    struct atsi_schedule out;
    struct atsi_error err = {0};
    if (atsi_scheduler_run(s, &p->inst, policy, NULL, &out, &err) != ATSI_OK)
        fail_msg("seed %llu: %s", (unsigned long long)seed, err.text);
    return out;
}

static void check_timing(const struct problem *p, const struct atsi_schedule *out, uint64_t seed) {
    struct oracle o = {0};
    check_equal(out->total_us, oracle_time(&o, &p->inst, out->assignment), seed, "total");
    for (size_t i = 0; i < p->inst.n_units; i++) {
        check_equal(out->timing.start_us[i], o.start[i], seed, "start");
        check_equal(out->timing.end_us[i], o.end[i], seed, "end");
        if (!promoted(&o, i)) continue;
        check_equal(out->timing.transfer_start_us[i], o.transfer_start[i], seed, "transfer start");
        check_equal(out->timing.transfer_end_us[i], o.transfer_end[i], seed, "transfer end");
        double ready = i ? o.end[i - 1] + (o.side[i] != o.side[i - 1] ? p->units[i].switch_us : 0) : 0;
        check_equal(out->timing.exposed_us[i], fmax(0, o.transfer_end[i] - ready), seed, "exposed");
    }
}

static void timing_follows_the_model(void **state) {
    for (uint64_t seed = 0; seed < 4000; seed++) {
        struct problem p;
        make_random(&p, seed, N_MAX);
        uint64_t rng = seed;
        uint8_t assignment[N_MAX];
        double start[N_MAX], end[N_MAX];
        struct atsi_schedule_timing timing = {.start_us = start, .end_us = end};
        for (size_t i = 0; i < p.inst.n_units; i++) {
            bool open = p.units[i].home == ATSI_CPU && p.units[i].size_bytes <= p.inst.temp_bytes;
            assignment[i] = open ? (uint8_t)test_below(&rng, 2) : (uint8_t)p.units[i].home;
        }
        struct oracle o = {0};
        check_equal(atsi_schedule_time(&p.inst, assignment, &timing), oracle_time(&o, &p.inst, assignment), seed,
                    "time");
        struct atsi_schedule out = run(*state, &p, ATSI_POLICY_NONE, seed);
        check_timing(&p, &out, seed);
    }
}

static void fifo_equals_exhaustive_search(void **state) {
    for (uint64_t seed = 0; seed < 3000; seed++) {
        struct problem p;
        make_random(&p, seed + 10000, 12);
        struct oracle o = {.inst = &p.inst, .best = INFINITY};
        try_all(&o, 0);
        struct atsi_schedule out = run(*state, &p, ATSI_POLICY_FIFO, seed);
        check_equal(out.total_us, o.best, seed, "fifo");
        check_equal(out.lower_bound_us, o.best, seed, "proven bound");
        check_timing(&p, &out, seed);
        out = run(*state, &p, ATSI_POLICY_PAPER, seed);
        if (out.lower_bound_us > o.best * (1 + 1e-9))
            fail_msg("seed %llu: bound over the optimum", (unsigned long long)seed);
    }
}

static void paper_minimises_its_own_objective(void **state) {
    for (uint64_t seed = 0; seed < 2500; seed++) {
        struct problem p;
        make_random(&p, seed + 20000, 11);
        struct atsi_schedule out = run(*state, &p, ATSI_POLICY_PAPER, seed);
        check_equal(out.paper_objective_us, best_paper(&p.inst), seed, "paper");
        check_equal(out.paper_objective_us, oracle_paper(&p.inst, out.assignment), seed, "paper's assignment");
        check_timing(&p, &out, seed);
    }
}

static void bad_instances_are_refused(void **state) {
    struct atsi_schedule_unit units[2] = {{.t_cpu_us = 1, .after = ATSI_AFTER_START}, {.t_cpu_us = 1, .after = 0}};
    struct atsi_schedule_instance inst = {0, 2, units};
    struct atsi_schedule out;
    struct atsi_error err = {0};
    assert_int_equal(atsi_scheduler_run(*state, &inst, ATSI_POLICY_FIFO, NULL, &out, &err), ATSI_OK);
    units[1].after = 1;
    assert_int_equal(atsi_scheduler_run(*state, &inst, ATSI_POLICY_FIFO, NULL, &out, &err), ATSI_BAD_INPUT);
    units[1].after = ATSI_AFTER_PREVIOUS;
    units[1].transfer_us = NAN;
    assert_int_equal(atsi_scheduler_run(*state, &inst, ATSI_POLICY_FIFO, NULL, &out, &err), ATSI_BAD_INPUT);
    inst.n_units = 100000;
    assert_int_equal(atsi_scheduler_run(*state, &inst, ATSI_POLICY_FIFO, NULL, &out, &err), ATSI_BAD_INPUT);
}

static int make_scheduler(void **state) {
    return atsi_scheduler_create(450, (struct atsi_scheduler **)state, NULL) != ATSI_OK;
}

static int free_scheduler(void **state) {
    atsi_scheduler_free(*state);
    return 0;
}

// ---- larger rounds: against long runs of a plain annealing ----------------------------------------------------------

enum {
    N_LARGE = 450,
    LONG_CELLS = 512
};
static struct atsi_schedule_unit large_units[N_LARGE];

// 7 tensors a layer, a region of 2 to 6 of them, transfers of 1 to 3 times the CPU time; a part resident.
static struct atsi_schedule_instance make_large(uint64_t seed) {
    uint64_t rng = seed;
    double mib[7], speedup[7], mean = 0, ratio = 1 + 2 * test_uniform(&rng), resident = test_below(&rng, 3) * 0.25;
    double switch_us = 10 + 40 * test_uniform(&rng);
    for (int k = 0; k < 7; k++) {
        mib[k] = seed % 2 ? 5 + 40 * test_uniform(&rng) : (k % 6 < 4 ? 5 : 40) * (0.6 + 0.8 * test_uniform(&rng));
        speedup[k] = 6 + 12 * test_uniform(&rng);
        mean += mib[k] / 7;
    }
    for (size_t i = 0; i < N_LARGE; i++) {
        double size = mib[i % 7] * (1 + 0.05 * test_uniform(&rng));
        large_units[i] = (struct atsi_schedule_unit){.size_bytes = (uint64_t)(size * 1048576),
                                                     .t_cpu_us = 8 + 26 * size,
                                                     .t_gpu_us = 4 + 26 * size / speedup[i % 7],
                                                     .switch_us = switch_us,
                                                     .transfer_us = 5 + ratio * 26 * size,
                                                     .after = ATSI_AFTER_START,
                                                     .home = test_uniform(&rng) < resident ? ATSI_GPU : ATSI_CPU};
    }
    double region = 2 + 4 * test_uniform(&rng);
    return (struct atsi_schedule_instance){(uint64_t)(region * mean * 1048576), N_LARGE, large_units};
}

static double large_time(const struct atsi_schedule_instance *inst, const uint8_t *sides) {
    static double start[N_LARGE], end[N_LARGE];
    struct atsi_schedule_timing timing = {.start_us = start, .end_us = end};
    return atsi_schedule_time(inst, sides, &timing);
}

// Flips of up to three units within a layer, worse ones accepted with a probability that falls.
static double anneal(const struct atsi_schedule_instance *inst, const uint8_t *from, uint64_t seed, int n_moves) {
    static uint8_t sides[N_LARGE], trial[N_LARGE];
    memcpy(sides, from, N_LARGE);
    double now = large_time(inst, sides), best = now, heat = 2e-4 * now;
    for (int k = 0; k < n_moves; k++, heat *= 1 - 7.0 / n_moves) {
        memcpy(trial, sides, N_LARGE);
        size_t at = test_below(&seed, N_LARGE - 8), n_flips = 1 + test_below(&seed, 3);
        for (size_t f = 0; f < n_flips; f++) {
            size_t i = at + test_below(&seed, 8);
            const struct atsi_schedule_unit *u = &inst->units[i];
            if (u->home == ATSI_CPU && u->size_bytes <= inst->temp_bytes) trial[i] ^= 1;
        }
        double time = large_time(inst, trial);
        if (time > now && test_uniform(&seed) >= exp((now - time) / heat)) continue;
        now = time;
        memcpy(sides, trial, N_LARGE);
        best = fmin(best, now);
    }
    return best;
}

// The scheduler's own search with eight times the cells in four shapes, then the annealing of the best.
static double longer_search(struct search *search, const struct atsi_schedule_instance *inst, const uint8_t *from,
                            uint64_t seed) {
    static const size_t recent[] = {1, 4, 6, 8};
    static uint8_t sides[N_LARGE], best[N_LARGE];
    memcpy(best, from, N_LARGE);
    for (int k = 0; k < 4; k++) {
        struct search_effort effort = {LONG_CELLS >> recent[k], recent[k], 0.6 + 0.1 * k, INFINITY};
        assert_true(search_policy(search, inst, &effort, sides));
        if (large_time(inst, sides) < large_time(inst, best)) memcpy(best, sides, N_LARGE);
    }
    return anneal(inst, best, seed, 30000);
}

static void large_rounds_are_near_the_best_known(void **state) {
    struct atsi_schedule out;
    double gap_sum = 0, worst = 0;
    enum {
        N_ROUNDS = 24
    };
    struct search *search = search_create(N_LARGE, LONG_CELLS);
    assert_non_null(search);
    for (uint64_t seed = 0; seed < N_ROUNDS; seed++) {
        struct atsi_schedule_instance inst = make_large(seed);
        double total[3];
        for (int policy = 0; policy < 3; policy++) {
            assert_int_equal(atsi_scheduler_run(*state, &inst, policy, NULL, &out, NULL), ATSI_OK);
            total[policy] = out.total_us;
            assert_true(out.lower_bound_us <= out.total_us);
            assert_true(out.total_us == large_time(&inst, out.assignment));
        }
        assert_true(total[ATSI_POLICY_FIFO] <= fmin(total[ATSI_POLICY_NONE], total[ATSI_POLICY_PAPER]));
        double longer = longer_search(search, &inst, out.assignment, seed);
        worst = fmax(worst, out.total_us / longer - 1);
        gap_sum += out.total_us / out.lower_bound_us - 1;
    }
    search_free(search);
    print_message("n = 450: at most %.3f %% over a longer search, mean gap to the bound %.2f %%\n", 100 * worst,
                  100 * gap_sum / N_ROUNDS);
    assert_true(worst <= 0.01);
}

static void warm_starts_are_never_lost(void **state) {
    struct atsi_schedule out;
    static uint8_t warm[N_LARGE];
    struct atsi_schedule_instance inst = make_large(99);
    assert_int_equal(atsi_scheduler_run(*state, &inst, ATSI_POLICY_FIFO, NULL, &out, NULL), ATSI_OK);
    memcpy(warm, out.assignment, sizeof warm);
    for (size_t i = 0; i < N_LARGE; i++) large_units[i].transfer_us *= 1.3; // the link became slower
    double before = large_time(&inst, warm);
    assert_int_equal(atsi_scheduler_run(*state, &inst, ATSI_POLICY_FIFO, warm, &out, NULL), ATSI_OK);
    assert_true(out.total_us <= before);
    memset(warm, ATSI_GPU, sizeof warm); // also where nothing of it is allowed
    inst.temp_bytes = 0;
    assert_int_equal(atsi_scheduler_run(*state, &inst, ATSI_POLICY_FIFO, warm, &out, NULL), ATSI_OK);
    for (size_t i = 0; i < N_LARGE; i++) assert_int_equal(out.assignment[i], large_units[i].home);
}

// Beyond the exact search on instances of every kind: times follow the model, the bound holds, no policy does better.
static void any_instance_is_scheduled(void **state) {
    static struct atsi_schedule_unit units[300];
    for (uint64_t seed = 0; seed < 300; seed++) {
        struct problem p;
        uint64_t rng = seed, n = 65 + test_below(&rng, 236);
        for (size_t i = 0; i < n; i++) {
            if (i % N_MAX == 0) make_random(&p, seed * 31 + i, N_MAX);
            units[i] = p.units[i % p.inst.n_units];
            units[i].after = random_after(&rng, (int)(seed % 4), i);
        }
        struct atsi_schedule_instance inst = {p.inst.temp_bytes, n, units};
        struct atsi_schedule out;
        double total[3], bound = 0;
        for (int policy = 0; policy < 3; policy++) {
            assert_int_equal(atsi_scheduler_run(*state, &inst, policy, NULL, &out, NULL), ATSI_OK);
            total[policy] = out.total_us;
            bound = out.lower_bound_us;
        }
        assert_true(total[2] <= total[0] && total[2] <= total[1] && bound <= total[2]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(timing_follows_the_model),
        cmocka_unit_test(fifo_equals_exhaustive_search),
        cmocka_unit_test(paper_minimises_its_own_objective),
        cmocka_unit_test(bad_instances_are_refused),
        cmocka_unit_test(large_rounds_are_near_the_best_known),
        cmocka_unit_test(warm_starts_are_never_lost),
        cmocka_unit_test(any_instance_is_scheduled),
    };
    return cmocka_run_group_tests(tests, make_scheduler, free_scheduler);
}
