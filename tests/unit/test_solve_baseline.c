// The baselines on small models where the right placement can be read off.
#include <string.h>

#include "planner/solve/baseline.h"
#include "tests/support/check.h"

// An embedding, three layers of attention (2), dense matrix (3) and experts (10), a head (4) numbered as layer 3.
enum {
    N = 11
};
static const int32_t layer_of[N] = {-1, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3};

static struct atsi_solve_instance make(struct atsi_solve_unit *units, uint64_t budget) {
    static const uint64_t sizes[3] = {2, 3, 10};
    memset(units, 0, N * sizeof *units);
    for (size_t i = 0; i < N; i++) {
        units[i] =
            (struct atsi_solve_unit){.size_bytes = sizes[(i + 2) % 3], .t_cpu_us = 20, .t_gpu_us = 2, .switch_us = 1};
        units[i].is_expert = layer_of[i] >= 0 && layer_of[i] < 3 && i % 3 == 0;
    }
    units[0].size_bytes = 1;
    units[10].size_bytes = 4;
    return (struct atsi_solve_instance){budget, 1, N, units};
}

static void expect(enum atsi_baseline baseline, uint64_t budget, const char *want) {
    struct atsi_solve_unit units[N];
    struct atsi_solve_instance inst = make(units, budget);
    uint8_t placement[N];
    char got[N + 1] = {0};
    assert_int_equal(atsi_solve_baseline(&inst, layer_of, baseline, placement, NULL), ATSI_OK);
    for (size_t i = 0; i < N; i++) got[i] = placement[i] == ATSI_GPU ? 'g' : '.';
    assert_string_equal(got, want);
    struct atsi_solve_value value;
    atsi_solve_evaluate(&inst, placement, &value);
    assert_true(value.used_granules <= budget);
}

static void whole_layers(void **state) {
    (void)state;
    expect(ATSI_BASELINE_LAYERS_LAST, 3, "...........");
    expect(ATSI_BASELINE_LAYERS_LAST, 18, "..........g");
    expect(ATSI_BASELINE_LAYERS_LAST, 33, ".......gggg");
    expect(ATSI_BASELINE_LAYERS_LAST, 34, "....ggggggg");
    expect(ATSI_BASELINE_LAYERS_LAST, 100, ".gggggggggg");
    expect(ATSI_BASELINE_LAYERS_FIRST, 14, "...........");
    expect(ATSI_BASELINE_LAYERS_FIRST, 44, ".gggggg....");
    expect(ATSI_BASELINE_LAYERS_FIRST, 49, ".gggggggggg");
}

static void experts(void **state) {
    (void)state;
    expect(ATSI_BASELINE_EXPERTS, 18, "....gg.gg.g");
    expect(ATSI_BASELINE_EXPERTS, 19, ".gg.gg.gg.g");
    expect(ATSI_BASELINE_EXPERTS, 38, ".gg.gg.gggg");
    expect(ATSI_BASELINE_EXPERTS, 39, ".gg.ggggggg");
    expect(ATSI_BASELINE_EXPERTS, 49, ".gggggggggg");
}

static void density(void **state) {
    (void)state;
    expect(ATSI_BASELINE_DENSITY, 6, ".g..g..g...");
    expect(ATSI_BASELINE_DENSITY, 12, ".gg.gg.g...");
    expect(ATSI_BASELINE_DENSITY, 19, ".gg.gg.gg.g");
    expect(ATSI_BASELINE_DENSITY, 0, "...........");
}

static void fixed_units_keep_their_side(void **state) {
    (void)state;
    struct atsi_solve_unit units[N];
    struct atsi_solve_instance inst = make(units, 20);
    uint8_t placement[N];
    units[3].fix = ATSI_FIX_GPU;
    units[10].fix = ATSI_FIX_CPU;
    for (int baseline = 0; baseline < 4; baseline++) {
        assert_int_equal(atsi_solve_baseline(&inst, layer_of, (enum atsi_baseline)baseline, placement, NULL), ATSI_OK);
        assert_int_equal(placement[3], ATSI_GPU);
        assert_int_equal(placement[10], ATSI_CPU);
        struct atsi_solve_value value;
        atsi_solve_evaluate(&inst, placement, &value);
        assert_true(value.used_granules <= 20);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_layers),
        cmocka_unit_test(experts),
        cmocka_unit_test(density),
        cmocka_unit_test(fixed_units_keep_their_side),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
