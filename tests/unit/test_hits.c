// Expected misses against enumeration of every outcome, and the best number of slots against a reading of the definition.
#include <math.h>

#include "runtime/schedule/hits.h"
#include "tests/support/check.h"
#include "tests/support/random.h"

// Every subset of the n_used experts that may be resident, with its probability.
static double misses_by_enumeration(uint32_t n_slots, uint32_t n_used, double h) {
    double sum = 0;
    for (uint32_t set = 0; set < 1u << n_used; set++) {
        uint32_t hits = (uint32_t)__builtin_popcount(set);
        double probability = pow(h, hits) * pow(1 - h, n_used - hits);
        if (n_slots > hits) sum += probability * (n_slots - hits);
    }
    return sum;
}

static void misses_are_expectations(void **state) {
    (void)state;
    static const double rates[] = {0, 0.05, 0.3, 0.5, 0.77, 0.99, 1};
    for (uint32_t n = 1; n <= 12; n++)
        for (uint32_t k = 0; k <= n; k++)
            for (size_t i = 0; i < sizeof rates / sizeof *rates; i++)
                assert_true(fabs(atsi_expected_misses(k, n, rates[i]) - misses_by_enumeration(k, n, rates[i])) < 1e-12);
}

static void all_slots_miss_what_is_not_resident(void **state) {
    (void)state;
    for (uint32_t n = 1; n <= 64; n++) {
        assert_true(fabs(atsi_expected_misses(n, n, 0.8) - 0.2 * n) < 1e-9);
        assert_true(atsi_expected_misses(n, n, 0) == n);
    }
}

// Half of them have fixed parts.
static struct atsi_slot_times random_times(uint64_t *rng) {
    struct atsi_slot_times t = {
        .cpu_us = 100 * test_uniform(rng), .gpu_us = 20 * test_uniform(rng), .link_us = 300 * test_uniform(rng)};
    bool fixed = test_below(rng, 2) == 1;
    t.fetch_us = t.link_us * (0.5 + test_uniform(rng));
    t.cpu_fixed_us = fixed ? t.cpu_us * test_uniform(rng) : 0;
    t.gpu_fixed_us = fixed ? t.gpu_us * test_uniform(rng) : 0;
    return t;
}

// A side that has slots pays what is fixed, and of the rest what its slots are of all n.
static double cpu_us(const struct atsi_slot_times *t, uint32_t g, uint32_t n) {
    return g < n ? t->cpu_fixed_us + (t->cpu_us - t->cpu_fixed_us) * (n - g) / n : 0;
}

static double gpu_us(const struct atsi_slot_times *t, uint32_t g, uint32_t n, double n_absent) {
    return g > 0 ? t->gpu_fixed_us + (t->gpu_us - t->gpu_fixed_us) * g / n + t->link_us * n_absent / n : 0;
}

static double longer_us(const struct atsi_slot_times *t, uint32_t g, uint32_t n, double n_absent) {
    return fmax(cpu_us(t, g, n), gpu_us(t, g, n, n_absent));
}

static void the_best_number_ends_both_sides_first(void **state) {
    (void)state;
    uint64_t rng = 7;
    for (int i = 0; i < 2000; i++) {
        struct atsi_slot_times t = random_times(&rng);
        uint32_t n = 1 + (uint32_t)test_below(&rng, 12);
        double h = test_uniform(&rng), least = INFINITY;
        for (uint32_t k = 0; k <= n; k++) least = fmin(least, longer_us(&t, k, n, misses_by_enumeration(k, n, h)));
        double best = atsi_slots_us(&t, atsi_best_slots(&t, n, h), n, h);
        assert_true(fabs(best - least) < 1e-9 * (1 + least));
    }
}

static void the_extremes_choose_one_side(void **state) {
    (void)state;
    struct atsi_slot_times t = {.cpu_us = 100, .gpu_us = 1, .link_us = 400};
    assert_int_equal(atsi_best_slots(&t, 8, 1), 8); // all resident: the GPU alone
    t.link_us = 1e9;
    assert_int_equal(atsi_best_slots(&t, 8, 0), 0); // no link: the CPU alone
}

// The end of one token with r resident experts, by the definition: the CPU computes its slots' first products, or all of them; what it has
// made crosses; the GPU reads what is absent over the link, and with the last products of all slots it waits for the CPU.
static double end_of_token(const struct atsi_expert_times *t, uint32_t n, uint32_t r, uint32_t g, bool last_on_gpu) {
    double crossing = g < n ? t->handover_us : 0;
    double first_cpu = cpu_us(&t->first, g, n), first_gpu = gpu_us(&t->first, g, n, g - r);
    if (last_on_gpu) { // what it lacks for them crosses beside what it computes before
        double in_place = t->first.link_us * (g - r) / n, fetch = t->last.fetch_us * (n - r) / n;
        return fmax(first_cpu + crossing, in_place + fmax(first_gpu - in_place, fetch)) + t->last.gpu_us;
    }
    return fmax(first_cpu + cpu_us(&t->last, g, n) + crossing, first_gpu + gpu_us(&t->last, g, n, g - r));
}

// What a token takes with a division, by every subset of its experts that may be resident.
static double divided_by_enumeration(const struct atsi_expert_times *t, const struct atsi_slot_division *d, double h,
                                     struct atsi_divided_work *work) {
    double us = 0, absent = 0;
    uint32_t n = d->n_used;
    *work = (struct atsi_divided_work){0};
    for (uint32_t set = 0; set < 1u << n; set++) {
        uint32_t r = (uint32_t)__builtin_popcount(set), g = d->gpu_slots[r];
        double probability = pow(h, r) * pow(1 - h, n - r);
        us += probability * end_of_token(t, n, r, g, d->last_on_gpu);
        work->any_on_cpu += g < n ? probability : 0;
        work->any_on_gpu += g > 0 ? probability : 0;
        work->gpu_part += probability * g / n;
        work->absent_part += probability * (g - r);
        absent += probability * (n - r);
    }
    work->absent_part = absent > 0 ? work->absent_part / absent : 0;
    return us;
}

static void a_division_by_token_is_the_best_for_every_token(void **state) {
    (void)state;
    uint64_t rng = 8;
    uint32_t n_fetching = 0;
    for (int i = 0; i < 1000; i++) {
        struct atsi_expert_times t = {random_times(&rng), random_times(&rng), 10 * test_uniform(&rng), i % 3 > 0};
        uint32_t n = 1 + (uint32_t)test_below(&rng, 10);
        double h = i % 10 ? test_uniform(&rng) : i % 20 == 0, uneven_us;
        struct atsi_slot_division d;
        struct atsi_divided_work expected;
        atsi_divide_slots(&t, n, h, &d);
        assert_true(t.can_fetch || !d.last_on_gpu);
        n_fetching += d.last_on_gpu;
        for (uint32_t r = 0; r <= n; r++) {
            double us = end_of_token(&t, n, r, d.gpu_slots[r], d.last_on_gpu);
            assert_true(d.gpu_slots[r] >= r && d.gpu_slots[r] <= n);
            for (uint32_t g = r; g <= n; g++) // no other number is better
                assert_true(us <= end_of_token(&t, n, r, g, d.last_on_gpu) * (1 + 1e-12));
        }
        double us = divided_by_enumeration(&t, &d, h, &expected);
        struct atsi_divided_work work = atsi_divided_work(&d, h);
        assert_true(fabs(atsi_divided_us(&t, &d, h, &uneven_us) - us) < 1e-9 * (1 + us));
        assert_true(fabs(work.gpu_part - expected.gpu_part) < 1e-9 &&
                    fabs(work.absent_part - expected.absent_part) < 1e-9);
        assert_true(fabs(work.any_on_cpu - expected.any_on_cpu) < 1e-9 &&
                    fabs(work.any_on_gpu - expected.any_on_gpu) < 1e-9);
        assert_true(uneven_us > -1e-9);
        for (uint32_t k = 0; k <= n; k++) // the same for all tokens, as far as it may be, is no better, in either form
            for (int last_on_gpu = 0; last_on_gpu <= t.can_fetch; last_on_gpu++) {
                struct atsi_slot_division same = {.n_used = n, .last_on_gpu = last_on_gpu != 0};
                for (uint32_t r = 0; r <= n; r++) same.gpu_slots[r] = (uint8_t)(k > r ? k : r);
                assert_true(us <= divided_by_enumeration(&t, &same, h, &expected) + 1e-9);
            }
    }
    assert_true(n_fetching > 50);
}

// GPT-OSS-20B on the machine of docs/performance.md: with one expert absent both sides work on it.
static void one_absent_expert_is_divided_between_both_sides(void **state) {
    (void)state;
    struct atsi_expert_times t = {{.cpu_us = 4 * 148, .gpu_us = 28, .link_us = 4 * 216},
                                  {.cpu_us = 4 * 74, .gpu_us = 14, .link_us = 4 * 108, .fetch_us = 4 * 108},
                                  .handover_us = 9,
                                  .can_fetch = true};
    struct atsi_slot_division d;
    double uneven_us;
    atsi_divide_slots(&t, 4, 0.7, &d);
    assert_true(d.last_on_gpu);
    assert_int_equal(d.gpu_slots[3], 3);
    double us = atsi_divided_us(&t, &d, 0.7, &uneven_us);
    t.can_fetch = false;
    atsi_divide_slots(&t, 4, 0.7, &d);
    assert_true(us < 0.9 * atsi_divided_us(&t, &d, 0.7, &uneven_us));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(misses_are_expectations),
        cmocka_unit_test(all_slots_miss_what_is_not_resident),
        cmocka_unit_test(the_best_number_ends_both_sides_first),
        cmocka_unit_test(the_extremes_choose_one_side),
        cmocka_unit_test(a_division_by_token_is_the_best_for_every_token),
        cmocka_unit_test(one_absent_expert_is_divided_between_both_sides),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
