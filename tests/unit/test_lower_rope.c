// Rope tables against the published formulas, written out here a second time and in another form.
#include <math.h>
#include <stdlib.h>

#include "planner/arch/rope.h"
#include "tests/support/check.h"

static void check_near(double got, double want) {
    if (fabs(got - want) > 2e-7 * fabs(want)) fail_msg("got %.9g, want %.9g", got, want);
}

static void test_plain_and_linear(void **state) {
    (void)state;
    float got[32];
    struct atsi_rope_config config = {.base = 500000, .n_rot = 64};
    atsi_rope_inv_freq(&config, got);
    for (int i = 0; i < 32; i++) check_near(got[i], exp(-log(500000) * 2 * i / 64));
    config.scaling = ATSI_ROPE_LINEAR;
    config.factor = 8;
    atsi_rope_inv_freq(&config, got);
    for (int i = 0; i < 32; i++) check_near(got[i], exp(-log(500000) * 2 * i / 64) / 8);
}

// Llama 3.1's published rule, which its files carry as divisors.
static double llama3_frequency(double f, double factor, double low, double high, double n_ctx) {
    double wavelength = 2 * M_PI / f;
    if (wavelength < n_ctx / high) return f;
    if (wavelength > n_ctx / low) return f / factor;
    double smooth = (n_ctx / wavelength - low) / (high - low);
    return (1 - smooth) * f / factor + smooth * f;
}

static void test_divisors(void **state) {
    (void)state;
    float divisors[64], got[64];
    for (int i = 0; i < 64; i++) {
        double f = pow(500000, -i / 64.0);
        divisors[i] = (float)(f / llama3_frequency(f, 8, 1, 4, 8192));
    }
    struct atsi_rope_config config = {.base = 500000, .n_rot = 128, .divisors = divisors};
    atsi_rope_inv_freq(&config, got);
    for (int i = 0; i < 64; i++) check_near(got[i], llama3_frequency(pow(500000, -i / 64.0), 8, 1, 4, 8192));
}

// YaRN's blend, from the number of turns a pair makes within the original context.
static void test_yarn(void **state) {
    (void)state;
    float got[32];
    struct atsi_rope_config config = {.base = 150000,
                                      .n_rot = 64,
                                      .scaling = ATSI_ROPE_YARN,
                                      .factor = 32,
                                      .n_ctx_orig = 4096,
                                      .beta_fast = 32,
                                      .beta_slow = 1};
    for (int truncate = 0; truncate < 2; truncate++) {
        config.truncate = truncate;
        atsi_rope_inv_freq(&config, got);
        // turns(i) = n_ctx_orig * base^(-2i/64) / 2 pi = 32 and 1 at these pairs:
        double low = 32 * log(4096 / (32 * 2 * M_PI)) / log(150000), high = 32 * log(4096 / (2 * M_PI)) / log(150000);
        if (truncate) low = floor(low), high = ceil(high);
        for (int i = 0; i < 32; i++) {
            double f = pow(150000, -i / 32.0), blend = (i - low) / (high - low);
            blend = blend < 0 ? 0 : blend > 1 ? 1 : blend;
            check_near(got[i], f * (1 - blend) + f / 32 * blend);
        }
    }
    assert_true(got[0] == 1);
    check_near(got[31], pow(150000, -31 / 32.0) / 32);
}

static void test_yarn_with_an_empty_range_is_finite(void **state) {
    (void)state;
    float got[4];
    struct atsi_rope_config config = {.base = 1.0001,
                                      .n_rot = 8,
                                      .scaling = ATSI_ROPE_YARN,
                                      .factor = 4,
                                      .n_ctx_orig = 1,
                                      .beta_fast = 1,
                                      .beta_slow = 1,
                                      .truncate = true};
    atsi_rope_inv_freq(&config, got);
    for (int i = 0; i < 4; i++) assert_true(isfinite(got[i]) && got[i] > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_and_linear),
        cmocka_unit_test(test_divisors),
        cmocka_unit_test(test_yarn),
        cmocka_unit_test(test_yarn_with_an_empty_range_is_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
