// The vector kernels by themselves: the exponential against libm in double precision, equal bits in every instruction set.
#include <math.h>
#include <stdlib.h>

#include "kernels/cpu/vec.h"
#include "tests/support/check.h"
#include "tests/support/op_case.h"

static const enum atsi_isa ISAS[] = {ATSI_ISA_REFERENCE, ATSI_ISA_AVX2, ATSI_ISA_AVX512};

enum {
    N = 4096
};

// exp(x - max) with a 0 among the inputs, so that max is 0 and the inputs are what is exponentiated.
static void exponential(void **state) {
    (void)state;
    struct test_random r = {1};
    float *in = calloc(N, sizeof *in), *out = calloc(N, sizeof *out);
    double worst = 0;
    for (int round = 0; round < 100; round++) {
        double sum = 1, found_sum;
        for (int i = 1; i < N; i++) in[i] = -(float)(ldexp(test_random_u32(&r), -32) * (round % 2 ? 87.3 : 2));
        in[0] = 0;
        found_sum = atsi_vec_kernels(ATSI_ISA_REFERENCE)->exp_shifted(in, N, out);
        assert_true(out[0] == 1.0f);
        for (int i = 1; i < N; i++) {
            sum += exp((double)in[i]);
            worst = fmax(worst, fabs(out[i] / exp((double)in[i]) - 1));
        }
        assert_true(fabs(found_sum / sum - 1) < 1e-5);
    }
    print_message("largest relative error of exp: %.3g\n", worst);
    assert_true(worst < 1.2e-7);
    free(in);
    free(out);
}

static void ends_of_the_range(void **state) {
    (void)state;
    for (size_t k = 0; k < sizeof ISAS / sizeof *ISAS; k++) {
        if (!atsi_isa_supported(ISAS[k])) continue;
        const struct atsi_vec_kernels *vec = atsi_vec_kernels(ISAS[k]);
        float in[8] = {0, -100, -103.5f, -104, -1000, -INFINITY, NAN, -87.5f}, out[8];
        vec->exp_shifted(in, 6, out);
        for (int i = 0; i < 6; i++)
            assert_true(fabs(out[i] - exp((double)in[i])) <= 1.5e-45); // a unit of the subnormals
        vec->exp_shifted(in, 8, out);
        assert_true(isnan(out[6]));
        float big[4] = {-1000, 1000, -INFINITY, INFINITY}, sigmoids[4];
        vec->sigmoid(big, 4, sigmoids);
        assert_true(sigmoids[0] == 0 && sigmoids[1] == 1 && sigmoids[2] == 0 && sigmoids[3] == 1);
        vec->silu(big, 2, sigmoids);
        assert_true(sigmoids[0] == 0 && sigmoids[1] == 1000);
    }
}

// The largest of rows of every length, with whatever stands below it; and one bad value is enough, wherever it stands.
static void largest_of_a_row(void **state) {
    (void)state;
    static const float BAD[] = {NAN, -NAN, INFINITY};
    struct test_random r = {3};
    float in[100];
    for (size_t k = 0; k < sizeof ISAS / sizeof *ISAS; k++) {
        if (!atsi_isa_supported(ISAS[k])) continue;
        const struct atsi_vec_kernels *vec = atsi_vec_kernels(ISAS[k]);
        for (uint32_t n = 1; n <= 100; n++) {
            float expected = -INFINITY;
            for (uint32_t i = 0; i < n; i++) {
                in[i] = test_random_below(&r, 4) == 0 ? -INFINITY : -test_random_normal(&r) - 3;
                expected = fmaxf(expected, in[i]);
            }
            assert_true(vec->largest(in, n) == expected);
            uint32_t at = test_random_below(&r, n);
            float kept = in[at];
            for (int b = 0; b < 3; b++) {
                in[at] = BAD[b];
                assert_true(isnan(vec->largest(in, n)));
            }
            in[at] = kept;
        }
    }
}

// Extreme and special values through every element-wise kernel and the cache formats: the same bits everywhere. NaNs count as
// equal: the hardware picks which operand's payload goes on.
static void same_bits(const float *a, const float *b, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!test_same_bits(&a[i], &b[i], sizeof *a) && !(isnan(a[i]) && isnan(b[i])))
            fail_msg("element %zu: %a and %a", i, a[i], b[i]);
}

static void every_instruction_set_agrees(void **state) {
    (void)state;
    static const float SPECIAL[] = {0.0f,  -0.0f,  1e-45f,   -1e-38f,   65504.0f, 65520.0f,
                                    1e30f, -3e38f, INFINITY, -INFINITY, NAN};
    static const uint32_t ORDER[] = {2, 0, 1};
    struct test_random r = {2};
    float in[320], other[320], out[2][320];
    uint8_t cache[2][2048];
    for (int round = 0; round < 200; round++) {
        uint32_t n = 1 + test_random_below(&r, 300);
        for (uint32_t i = 0; i < n; i++) {
            bool special = round % 2 && test_random_below(&r, 8) == 0;
            in[i] = special ? SPECIAL[test_random_below(&r, 11)]
                            : ldexpf(test_random_normal(&r), (int)test_random_below(&r, 12) - 6);
            other[i] = test_random_normal(&r);
        }
        for (size_t k = 1; k < sizeof ISAS / sizeof *ISAS; k++) {
            if (!atsi_isa_supported(ISAS[k])) continue;
            const struct atsi_vec_kernels *vec[2] = {atsi_vec_kernels(ATSI_ISA_REFERENCE), atsi_vec_kernels(ISAS[k])};
#define AGREE(n_out, call)                    \
    do {                                      \
        for (int w = 0; w < 2; w++) { call; } \
        same_bits(out[0], out[1], n_out);     \
    } while (0)
            for (int act = 0; act < 3; act++) {
                struct atsi_glu_params p = {(enum atsi_glu_act)act, 1.702f, 7.0f};
                AGREE(n, vec[w]->glu(&p, in, other, n, out[w]));
            }
            AGREE(n, vec[w]->rms_norm(in, other, n, 1e-6f, false, out[w]));
            AGREE(n, vec[w]->l2_norm(in, n, 1e-6f, 0.5f, out[w]));
            AGREE(n, vec[w]->gate(in, other[0], n, out[w]));
            AGREE(n, vec[w]->gate_each(other, in, n, out[w]));
            AGREE(n, out[w][0] = vec[w]->exp_shifted(in, n, out[w]));
            AGREE(1, out[w][0] = vec[w]->largest(in, n));
            AGREE(n / 3, vec[w]->weighted_sum(in, other, ORDER, 3, n / 3, false, out[w]));
            static const enum atsi_dtype TYPES[] = {ATSI_F32, ATSI_F16, ATSI_Q8_0};
            for (int t = 0; t < 3; t++) {
                uint32_t n_stored = TYPES[t] == ATSI_Q8_0 ? n / 32 * 32 : n;
                if (round % 2) continue; // NaN payloads differ
                for (int w = 0; w < 2; w++) vec[w]->kv_store(TYPES[t], in, n_stored, cache[w]);
                assert_memory_equal(cache[0], cache[1], (size_t)atsi_dtype_row_bytes(TYPES[t], n_stored));
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exponential),
        cmocka_unit_test(ends_of_the_range),
        cmocka_unit_test(largest_of_a_row),
        cmocka_unit_test(every_instruction_set_agrees),
    };
    return cmocka_run_group_tests_name("vector kernels", tests, NULL, NULL);
}
