// Profiling on the CPU and on the simulated device: every operation gets a point once, the lines can price them, and the copies
// of a device with modelled link speeds come out as they were set.
#include <math.h>
#include <stdlib.h>

#include "formats/base/clock.h"
#include "kernels/sim/sim_device.h"
#include "planner/content.h"
#include "planner/cost.h"
#include "planner/measure.h"
#include "planner/profile_fit.h"
#include "runtime/schedule/round_units.h"
#include "tests/support/check.h"
#include "tests/support/random.h"
#include "tests/support/tiny_plan.h"

static void check_all_priced(const struct atsi_plan *plan, const struct atsi_device_profile *p,
                             enum atsi_backend side) {
    for (int phase = ATSI_DECODE; phase <= ATSI_PREFILL; phase++)
        for (uint32_t i = 0; i < plan->program.n_ops; i++) {
            const struct atsi_op *op = &plan->program.ops[i];
            struct atsi_work w = atsi_work_of_op(plan, op, (enum atsi_phase)phase);
            assert_true(atsi_profile_has_point(p, side, op->kind, w.dtype, (enum atsi_phase)phase, w.bytes, w.flops));
            assert_true(atsi_device_profile_price(p, side, op->kind, w.dtype, (enum atsi_phase)phase, w.bytes, w.flops)
                            .is_measured);
        }
}

enum {
    UNLIMITED_S = 3600 // a sanitizer on a busy machine takes minutes for what takes a second
};

static void test_every_operation_once(void **state) {
    (void)state;
    static const char *const archs[] = {"llama", "qwen3moe", "gpt-oss", "qwen3next", "qwen35"};
    for (unsigned a = 0; a < sizeof archs / sizeof *archs; a++) {
        struct tiny_plan f;
        struct atsi_error err = {0};
        struct atsi_device_profile profile;
        struct atsi_measure_result result;
        struct atsi_measure_options options = {.n_threads = 1, .seconds_max = UNLIMITED_S};
        tiny_plan_open(&f, archs[a], NULL, 32);
        check_ok(atsi_measure_identify(&options, &profile, &err), err);
        check_ok(atsi_measure(&f.plan, &options, &profile, &result, &err), err);
        assert_true(result.n_measured > 10 && result.n_skipped == 0);
        check_all_priced(&f.plan, &profile, ATSI_CPU);
        check_ok(atsi_measure(&f.plan, &options, &profile, &result, &err), err);
        assert_int_equal(result.n_measured, 0); // all of it is known
        atsi_device_profile_free(&profile);
        tiny_plan_close(&f);
    }
}

// A plan of a tiny model, with a simulated device to measure it on and the profile that comes out.
struct on_device {
    struct tiny_plan f;
    struct atsi_error err;
    struct atsi_sim_params sim;
    struct atsi_device *device;
    struct atsi_measure_options options;
    struct atsi_device_profile profile;
    struct atsi_measure_result result;
};

static void open_on_device(struct on_device *m, const char *arch) {
    memset(m, 0, sizeof *m);
    m->sim = (struct atsi_sim_params){
        .memory_bytes = 1 << 30, .h2d_bytes_per_us = 4000, .d2h_bytes_per_us = 2000, .copy_latency_us = 5};
    check_ok(atsi_sim_open(&m->sim, &m->device, &m->err), m->err);
    m->options = (struct atsi_measure_options){.n_threads = 1, .device = m->device, .seconds_max = UNLIMITED_S};
    tiny_plan_open(&m->f, arch, NULL, 32);
    check_ok(atsi_measure_identify(&m->options, &m->profile, &m->err), m->err);
}

static void measure_on_device(struct on_device *m) {
    check_ok(atsi_measure(&m->f.plan, &m->options, &m->profile, &m->result, &m->err), m->err);
}

static void close_on_device(struct on_device *m) {
    atsi_device_profile_free(&m->profile);
    tiny_plan_close(&m->f);
    m->device->ops->close(m->device);
}

static uint32_t n_slots_of(const struct atsi_op *op) {
    return op->kind == ATSI_OP_EXPERTS ? op->u.experts.n_used : op->out[0].width / 128;
}

// With matrices as large as those of real models every one that rounds divide says what of its time is fixed, on both sides, and no other
// operation does.
static void test_parts_of_what_is_divided(void **state) {
    (void)state;
    struct on_device m;
    open_on_device(&m, "qwen3moe");
    const struct atsi_program *p = &m.f.plan.program;
    const struct atsi_device_profile *profile = &m.profile;
    for (uint32_t i = 0; i < p->n_tensors; i++) p->tensors[i].size_bytes += ATSI_SMALL_TENSOR_BYTES;
    measure_on_device(&m);
    uint32_t n_divided = 0;
    for (uint32_t i = 0; i < p->n_ops; i++)
        for (int side = ATSI_CPU; side <= ATSI_GPU; side++) {
            const struct atsi_op *op = &p->ops[i];
            struct atsi_work w = atsi_work_of_op(&m.f.plan, op, ATSI_DECODE);
            struct atsi_price price = atsi_device_profile_price(profile, (enum atsi_backend)side, op->kind, w.dtype,
                                                                ATSI_DECODE, w.bytes, w.flops);
            bool divided = atsi_op_is_divisible(p, op) && n_slots_of(op) >= 2 &&
                           atsi_unit_is_promotable(&p->units[atsi_program_unit_of(p, i)]);
            assert_true(price.fixed_us >= 0 && price.fixed_us <= price.us);
            assert_true(divided || price.fixed_us == 0 || op->kind == ATSI_OP_MATMUL);
            n_divided += divided;
        }
    assert_true(n_divided > 4);
    assert_true(atsi_device_profile_knows_parts(profile, ATSI_CPU));
    assert_true(atsi_device_profile_knows_parts(profile, ATSI_GPU));
    assert_true(profile->cpu_start_us >= 0 && profile->gpu_joined_us >= 0);
    close_on_device(&m);
}

// Times of parts that take fixed_us + part * rest_us, each up to 5 % off and one of every four samples twice as long.
static double noisy_fixed(double fixed_us, double rest_us, int n, uint64_t *rng) {
    double parts[8], us[8];
    int wild = n > 3 ? (int)test_below(rng, (uint64_t)n) : -1;
    for (int i = 0; i < n; i++) {
        parts[i] = (i + 1.0) / n;
        us[i] = (fixed_us + parts[i] * rest_us) * (0.95 + 0.1 * test_uniform(rng)) * (i == wild ? 2 : 1);
    }
    double found = atsi_profile_fixed_of(parts, us, n), least = us[0];
    for (int i = 0; i < n; i++) least = fmin(least, us[i]);
    assert_true(found >= 0 && found <= least); // so that prices rise from it to any part
    return found;
}

// Known fixed parts come out of noisy times: on the mark without noise, within a tenth of the whole with it.
static void test_fixed_parts_are_found(void **state) {
    (void)state;
    enum {
        TRIALS = 200
    };
    uint64_t rng = 3;
    static const double parts[4] = {0.125, 0.25, 0.5, 1};
    for (int fixed = 0; fixed <= 40; fixed += 8) {
        double us[4], found[TRIALS], spread;
        for (int i = 0; i < 4; i++) us[i] = fixed + 60 * parts[i];
        assert_true(fabs(atsi_profile_fixed_of(parts, us, 4) - fixed) < 1e-9);
        assert_true(fabs(atsi_profile_fixed_of(parts + 2, us + 2, 2) - fixed) < 1e-9);
        us[1] += 500; // one of four that was disturbed
        assert_true(fabs(atsi_profile_fixed_of(parts, us, 4) - fixed) <= 15);
        for (int i = 0; i < TRIALS; i++) found[i] = noisy_fixed(fixed, 60, 8, &rng);
        assert_true(fabs(atsi_median(found, TRIALS, &spread) - fixed) < 0.1 * (fixed + 60));
    }
    static const double falling[4] = {40, 30, 20, 10};
    assert_true(atsi_profile_fixed_of(parts, falling, 4) == 10); // no slope below zero: the least of them
    static const double steep[4] = {1, 10, 30, 70};
    assert_true(atsi_profile_fixed_of(parts, steep, 4) == 0); // nothing below zero
}

static void test_no_time_means_no_points(void **state) {
    (void)state;
    struct tiny_plan f;
    struct atsi_error err = {0};
    struct atsi_device_profile profile;
    struct atsi_measure_result result;
    struct atsi_measure_options options = {.n_threads = 1};
    tiny_plan_open(&f, "llama", NULL, 32);
    check_ok(atsi_measure_identify(&options, &profile, &err), err);
    check_ok(atsi_measure(&f.plan, &options, &profile, &result, &err), err);
    assert_true(result.n_measured == 0 && result.n_skipped > 10);
    atsi_device_profile_free(&profile);
    tiny_plan_close(&f);
}

enum {
    MOVED_BYTES = 64 << 20 // by the larger of the copies that are timed
};

// What moving the bytes themselves takes here and now: under a sanitizer or beside other programs it is no small part.
static double time_to_move_us(void) {
    uint8_t *from = calloc(1, MOVED_BYTES), *to = calloc(1, MOVED_BYTES);
    double best = 1e12;
    assert_true(from && to);
    for (int i = 0; i < 3; i++) {
        double start = atsi_clock_us();
        memcpy(to, from, MOVED_BYTES);
        best = fmin(best, atsi_clock_us() - start);
        from[i] = to[i] + 1; // the copies are not the same one
    }
    free(from);
    free(to);
    return best;
}

// The simulated device takes the modelled time and then moves the bytes: never faster than it was set, slower on a busy machine.
static void check_link(const struct atsi_profile_link *link, double bytes_per_us) {
    double quiet_us = MOVED_BYTES / bytes_per_us + time_to_move_us(), busy = 10;
    if (link->bytes_per_us >= 1.1 * bytes_per_us || link->bytes_per_us <= MOVED_BYTES / quiet_us / busy)
        fail_msg("a link of %g bytes/us came out with %g, a copy should take about %g us", bytes_per_us,
                 link->bytes_per_us, quiet_us);
}

static bool is_contention_known(const struct atsi_device_profile *p) {
    const struct atsi_contention none = ATSI_CONTENTION_DEFAULT;
    return memcmp(&p->contention, &none, sizeof none) != 0;
}

// A CPU that takes 100 us and 130 beside copies, copies of 50 us and 60 beside it, and a matrix of half their bytes that costs the device
// 5 us resident and 35 from the host's memory: (35 - 5) / 25.
static void test_factors(void **state) {
    (void)state;
    struct atsi_contention_times t = {.cpu_us = 100,
                                      .cpu_beside_us = 130,
                                      .copy_us = 50,
                                      .copy_beside_us = 60,
                                      .in_place_us = 35,
                                      .resident_us = 5,
                                      .matrix_bytes = 1e6,
                                      .copied_bytes = 2e6};
    struct atsi_contention c = atsi_contention_of(&t);
    assert_true(fabs(c.cpu_beside_link - 1.3) < 1e-12 && fabs(c.link_beside_cpu - 1.2) < 1e-12);
    assert_true(fabs(c.link_in_place - 1.2) < 1e-12);
    t.cpu_beside_us = 90, t.copy_beside_us = 5000,
    t.in_place_us = 4; // faster together, a disturbance, faster than resident
    c = atsi_contention_of(&t);
    assert_true(c.cpu_beside_link == 1 && c.link_beside_cpu == 10 && c.link_in_place == 1);
    c = atsi_contention_of(&(struct atsi_contention_times){0}); // nothing was timed
    assert_true(c.cpu_beside_link == 1 && c.link_beside_cpu == 1 && c.link_in_place == 1);
}

static void test_a_device_and_its_link(void **state) {
    (void)state;
    struct on_device m;
    open_on_device(&m, "llama");
    measure_on_device(&m);
    check_all_priced(&m.f.plan, &m.profile, ATSI_CPU);
    check_all_priced(&m.f.plan, &m.profile, ATSI_GPU);
    check_link(&m.profile.to_device, m.sim.h2d_bytes_per_us);
    check_link(&m.profile.to_host, m.sim.d2h_bytes_per_us);
    assert_true(m.profile.switch_us > 0);
    assert_true(is_contention_known(&m.profile));

    // Where time has run out it stays at the default, and is measured when there is time again.
    m.profile.contention = ATSI_CONTENTION_DEFAULT;
    m.options.seconds_max = 0;
    measure_on_device(&m);
    assert_false(is_contention_known(&m.profile));
    m.options.seconds_max = UNLIMITED_S;
    measure_on_device(&m);
    assert_true(is_contention_known(&m.profile) && m.result.n_measured == 0);
    close_on_device(&m);
}

// Points on a known line give it back.
static void test_fit(void **state) {
    (void)state;
    struct atsi_device_profile p = {0};
    struct atsi_error err = {0};
    for (int i = 1; i <= 5; i++) {
        struct atsi_profile_point point = {.bytes = i * 1e6, .flops = i * 1e3, .us = i * 1e6 / 50};
        check_ok(atsi_profile_add_point(&p, ATSI_CPU, ATSI_OP_MATMUL, ATSI_Q4_K, ATSI_DECODE, point, &err), err);
    }
    check_ok(atsi_profile_fit(&p, &err), err);
    assert_true(fabs(atsi_device_profile_price(&p, ATSI_CPU, ATSI_OP_MATMUL, ATSI_Q4_K, ATSI_DECODE, 7e6, 0).us -
                     7e6 / 50) < 1e-6);
    assert_true(fabs(atsi_device_profile_price(&p, ATSI_CPU, ATSI_OP_MATMUL, ATSI_Q8_0, ATSI_DECODE, 7e6, 0).us -
                     7e6 / 50) < 1e-6);
    assert_true(
        fabs(atsi_device_profile_price(&p, ATSI_CPU, ATSI_OP_GLU, ATSI_F32, ATSI_DECODE, 7e6, 0).us - 7e6 / 50) < 1e-6);
    atsi_device_profile_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_operation_once),
        cmocka_unit_test(test_parts_of_what_is_divided),
        cmocka_unit_test(test_fixed_parts_are_found),
        cmocka_unit_test(test_no_time_means_no_points),
        cmocka_unit_test(test_a_device_and_its_link),
        cmocka_unit_test(test_factors),
        cmocka_unit_test(test_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
