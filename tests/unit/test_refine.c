// Refined assignments against every assignment there is, whose rounds are timed here from the script and its costs.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/refine.h"
#include "runtime/schedule/script_cost.h"
#include "runtime/temp_ring.h"
#include "tests/support/check.h"
#include "tests/support/program_builder.h"
#include "tests/support/random.h"

enum {
    N_LAYERS = 3,
    N_UNITS_MAX = 32,
    N_ROUNDS = 120
};

struct round {
    struct atsi_plan plan;
    uint32_t n_units;
    enum atsi_backend homes[N_UNITS_MAX];
    struct atsi_schedule_unit units[N_UNITS_MAX];
    struct atsi_scales scales;
    uint32_t free_units[N_UNITS_MAX], n_free; // those that can travel
    bool scheduled[N_UNITS_MAX];
};

static double draw(uint64_t *random, double low, double high) { return low + (high - low) * test_uniform(random); }

static void invent_times(struct round *r, uint64_t *random) {
    r->plan.decode_times = calloc(r->n_units, sizeof *r->plan.decode_times);
    r->plan.prefill_times = calloc(r->n_units, sizeof *r->plan.prefill_times);
    r->plan.contention = ATSI_CONTENTION_DEFAULT;
    r->plan.cpu_start_us = (float)draw(random, 0, 20);
    for (uint32_t u = 0; u < r->n_units; u++) {
        double cpu_us = draw(random, 50, 800);
        r->plan.decode_times[u] = (struct atsi_unit_times){.cpu_us = (float)cpu_us,
                                                           .gpu_us = (float)(cpu_us * draw(random, 0.02, 0.2)),
                                                           .switch_us = (float)draw(random, 2, 40),
                                                           .transfer_us = (float)(cpu_us * draw(random, 0.4, 2.5))};
    }
}

// What the scheduler makes of it, as the runtime asks it.
static void schedule(struct round *r) {
    struct atsi_schedule_unit units[N_UNITS_MAX];
    struct atsi_scales contended = atsi_scales_contended(&r->plan, &r->scales);
    struct atsi_scheduler *scheduler;
    struct atsi_schedule out;
    atsi_round_units(&r->plan, 1, r->plan.limits.temp_bytes, &contended, units);
    for (uint32_t u = 0; u < r->n_units; u++) {
        units[u].home = r->homes[u];
        units[u].size_bytes = r->units[u].size_bytes;
    }
    const struct atsi_schedule_instance instance = {r->plan.limits.temp_bytes, r->n_units, units};
    assert_int_equal(atsi_scheduler_create(r->n_units, &scheduler, NULL), ATSI_OK);
    assert_int_equal(atsi_scheduler_run(scheduler, &instance, ATSI_POLICY_FIFO, NULL, &out, NULL), ATSI_OK);
    for (uint32_t u = 0; u < r->n_units; u++)
        r->scheduled[u] = r->homes[u] == ATSI_CPU && out.assignment[u] == ATSI_GPU;
    atsi_scheduler_free(scheduler);
}

// Norms and biases, which count for what a unit weighs and stay where they are.
static void add_small_tensors(struct atsi_program *p, uint64_t *random) {
    for (uint32_t u = 0; u < p->n_units; u++)
        p->units[u].weight_bytes += test_next(random) % 2 ? test_next(random) % ATSI_SMALL_TENSOR_BYTES : 0;
}

// Some units are resident, some cannot travel.
static void open_round(struct round *r, uint64_t seed) {
    uint64_t random = seed;
    memset(r, 0, sizeof *r);
    test_build_dense_plan(&r->plan, N_LAYERS);
    r->n_units = r->plan.program.n_units;
    assert_in_range(r->n_units, 1, N_UNITS_MAX);
    invent_times(r, &random);
    r->scales = (struct atsi_scales){draw(&random, 0.8, 2), draw(&random, 0.8, 2), draw(&random, 0.8, 2),
                                     seed % 2 ? 0 : draw(&random, 0, 100)};
    add_small_tensors(&r->plan.program, &random);
    uint64_t largest = 0;
    for (uint32_t u = 0; u < r->n_units; u++)
        if (atsi_unit_is_promotable(&r->plan.program.units[u]) && r->plan.program.units[u].weight_bytes > largest)
            largest = r->plan.program.units[u].weight_bytes;
    r->plan.limits.temp_bytes = atsi_aligned(largest) * (1 + test_next(&random) % 4);
    atsi_round_units(&r->plan, 1, r->plan.limits.temp_bytes, NULL, r->units);
    for (uint32_t u = 0; u < r->n_units; u++) {
        bool can_travel = atsi_unit_is_promotable(&r->plan.program.units[u]);
        r->homes[u] = test_next(&random) % 4 ? ATSI_CPU : ATSI_GPU;
        if (can_travel && test_next(&random) % 8 == 0) r->units[u].size_bytes = r->plan.limits.temp_bytes + 1;
        if (r->homes[u] == ATSI_GPU || !can_travel || r->units[u].size_bytes > r->plan.limits.temp_bytes) continue;
        r->free_units[r->n_free++] = u;
    }
    schedule(r);
}

static uint64_t copied_bytes(const struct atsi_program *p, const struct atsi_unit *u) {
    uint64_t bytes = 0;
    for (uint32_t cursor = 0, t; atsi_unit_next_big_tensor(p, u, &cursor, &t);)
        bytes += p->tensors[t].size_bytes; // one a unit
    return bytes;
}

static double time_of(const struct round *r, const bool *promoted) {
    enum atsi_backend backends[N_UNITS_MAX];
    uint64_t bytes[N_UNITS_MAX] = {0};
    struct atsi_temp_slot slots[N_UNITS_MAX];
    uint32_t waits_for[N_UNITS_MAX], n = 0;
    struct atsi_script script;
    struct atsi_script_cost cost;
    for (uint32_t u = 0; u < r->n_units; u++) {
        backends[u] = promoted[u] ? ATSI_GPU : r->homes[u];
        if (promoted[u]) bytes[n++] = copied_bytes(&r->plan.program, &r->plan.program.units[u]);
    }
    assert_int_equal(atsi_temp_ring_plan(bytes, n, r->plan.limits.temp_bytes, slots, NULL), ATSI_OK);
    for (uint32_t i = 0; i < n; i++) waits_for[i] = slots[i].waits_for;
    const struct atsi_script_params params = {.program = &r->plan.program,
                                              .backends = backends,
                                              .promoted = promoted,
                                              .prefetched = promoted,
                                              .n_tokens_max = r->plan.limits.chunk,
                                              .n_outputs_max = r->plan.limits.n_outputs};
    const struct atsi_ring_waits ring = {n, waits_for};
    assert_int_equal(atsi_script_build(&params, &script, NULL), ATSI_OK);
    assert_int_equal(atsi_script_cost_build(&r->plan, &script, r->units, 1, &ring, &cost, NULL), ATSI_OK);
    double us = atsi_script_time(&script, &cost, &r->scales);
    atsi_script_cost_free(&cost);
    atsi_script_free(&script);
    return us;
}

static double shortest(const struct round *r) {
    double best_us = INFINITY;
    for (uint32_t set = 0; set < 1u << r->n_free; set++) {
        bool promoted[N_UNITS_MAX] = {false};
        for (uint32_t i = 0; i < r->n_free; i++) promoted[r->free_units[i]] = set >> i & 1;
        best_us = fmin(best_us, time_of(r, promoted));
    }
    return best_us;
}

static double refine(const struct round *r, bool *promoted) {
    const struct atsi_refinement refinement = {&r->plan, r->homes, r->units, &r->scales};
    double us = 0;
    memcpy(promoted, r->scheduled, sizeof r->scheduled);
    assert_int_equal(atsi_refine(&refinement, promoted, &us, NULL), ATSI_OK);
    return us;
}

// What is said is what it takes, no longer than what was scheduled or than nothing, and no unit that cannot travel does.
static void refined_rounds_are_no_longer(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= N_ROUNDS; seed++) {
        struct round r;
        bool promoted[N_UNITS_MAX], again[N_UNITS_MAX], nothing[N_UNITS_MAX] = {false}, is_free[N_UNITS_MAX] = {false};
        open_round(&r, seed);
        double us = refine(&r, promoted);
        assert_float_equal(us, time_of(&r, promoted), 1e-9 * us);
        assert_true(us <= time_of(&r, r.scheduled) && us <= time_of(&r, nothing));
        assert_true(refine(&r, again) == us && memcmp(promoted, again, r.n_units * sizeof *again) == 0);
        for (uint32_t i = 0; i < r.n_free; i++) is_free[r.free_units[i]] = true;
        for (uint32_t u = 0; u < r.n_units; u++) assert_true(!promoted[u] || is_free[u]);
        atsi_plan_free(&r.plan);
    }
}

// Whatever it begins with: where hand-overs are dear single changes do not lead from all to nothing.
static void nothing_is_a_start_too(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= N_ROUNDS; seed++) {
        struct round r;
        bool promoted[N_UNITS_MAX], nothing[N_UNITS_MAX] = {false};
        open_round(&r, seed);
        r.scales.handover_us = 100 * (double)(seed % 40);
        for (uint32_t i = 0; i < r.n_free; i++) r.scheduled[r.free_units[i]] = true;
        assert_true(refine(&r, promoted) <= time_of(&r, nothing));
        atsi_plan_free(&r.plan);
    }
}

// No single unit can change sides for the better by more than what does not count, and little is left to the best of all assignments.
static void little_is_left_to_the_best_assignment(void **state) {
    (void)state;
    double refined = 0, scheduled = 0;
    uint32_t n_best = 0;
    for (uint64_t seed = 1; seed <= N_ROUNDS; seed++) {
        struct round r;
        bool promoted[N_UNITS_MAX];
        open_round(&r, seed);
        double us = refine(&r, promoted), best_us = shortest(&r);
        assert_true(us >= best_us * (1 - 1e-9));
        refined += us / best_us / N_ROUNDS;
        scheduled += time_of(&r, r.scheduled) / best_us / N_ROUNDS;
        n_best += us < 1.0005 * best_us;
        for (uint32_t i = 0; i < r.n_free; i++) {
            uint32_t u = r.free_units[i];
            promoted[u] = !promoted[u];
            assert_true(time_of(&r, promoted) > 0.999 * us);
            promoted[u] = !promoted[u];
        }
        atsi_plan_free(&r.plan);
    }
    print_message("over the best: %.3f refined, %.3f before; %u of %d are the best\n", refined, scheduled, n_best,
                  N_ROUNDS);
    assert_true(refined < 1.02 && scheduled > 1.04);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refined_rounds_are_no_longer),
        cmocka_unit_test(nothing_is_a_start_too),
        cmocka_unit_test(little_is_left_to_the_best_assignment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
