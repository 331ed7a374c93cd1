// Attention against a double-precision softmax over the whole score row, for every cache type, window, sink and grouping;
// equal bits however tokens are batched, threads divided and instruction sets chosen.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/features.h"
#include "tests/support/check.h"
#include "tests/support/op_case.h"

struct shape {
    uint32_t n_tokens, n_heads, n_kv_heads, k_dim, v_dim, window, capacity;
    bool sinks;
    enum atsi_dtype kv_type;
};

static void build(struct op_case *c, const struct shape *s, struct test_random *r, float q_scale) {
    op_case_init(c, s->n_tokens, 0);
    c->capacity = s->capacity;
    c->kv_type = s->kv_type;
    int32_t q = op_case_buffer(c, s->n_heads * s->k_dim, ATSI_ROWS_TOKENS, false, r, q_scale);
    int32_t k = op_case_buffer(c, s->n_kv_heads * s->k_dim, ATSI_ROWS_TOKENS, false, r, 1.0f);
    int32_t v = op_case_buffer(c, s->n_kv_heads * s->v_dim, ATSI_ROWS_TOKENS, false, r, 1.0f);
    int32_t out = op_case_buffer(c, s->n_heads * s->v_dim, ATSI_ROWS_TOKENS, false, r, 1.0f);
    int32_t sinks = s->sinks ? op_case_tensor(c, s->n_heads, 1, 1, r, 2.0f) : ATSI_NONE;
    struct atsi_op *op = op_case_op(c, ATSI_OP_ATTENTION);
    op->in[0] = op_case_view(c, q);
    op->in[1] = op_case_view(c, k);
    op->in[2] = op_case_view(c, v);
    op->out[0] = op_case_view(c, out);
    op->tensor[0] = sinks;
    op->u.attention = (struct atsi_attention_params){s->n_heads, s->n_kv_heads, 1.0f / sqrtf((float)s->k_dim)};
    op->state = op_case_state(c, ATSI_STATE_KV, s->n_kv_heads, s->k_dim, s->v_dim, s->window);
}

// To the nearest number of eleven bits, or multiple of 2^-24.
static double to_half(double x) {
    int exponent;
    frexp(x, &exponent);
    int unit = exponent < -13 ? -24 : exponent - 11;
    return ldexp(nearbyint(ldexp(x, -unit)), unit);
}

// What a cache of this type gives back for n values (its formats in their own words: half by rounding in double precision, Q8_0 as 32 steps
// of a half-precision max / 127).
static void through_cache(enum atsi_dtype type, const float *in, uint32_t n, double *out) {
    for (uint32_t i = 0; i < n; i++) out[i] = type == ATSI_F16 ? to_half(in[i]) : in[i];
    if (type != ATSI_Q8_0) return;
    for (uint32_t b = 0; b < n; b += 32) {
        float most = 0;
        for (uint32_t i = b; i < b + 32; i++) most = fmaxf(most, fabsf(in[i]));
        float step = (float)to_half(most / 127);
        for (uint32_t i = b; i < b + 32; i++)
            out[i] = (double)step * fmin(127, fmax(-127, nearbyintf(in[i] * (1 / step))));
    }
}

// Token t, head h into `out`; returns how far floats may be off: a score is a sum of k_dim products in sixteen lanes, its error e
// moves the weights by 2 e (relative), and sums of weights and values round once a block.
static double attend(const struct op_case *c, const struct shape *s, const double *keys, const double *values,
                     uint32_t t, uint32_t h, double *out) {
    uint32_t kv = h / (s->n_heads / s->n_kv_heads), first = s->window != 0 && t >= s->window ? t - s->window + 1 : 0;
    const float *q = c->buffers[0] + ((size_t)t * s->n_heads + h) * s->k_dim;
    double *score = calloc(t + 1, sizeof *score), most = -INFINITY, sum = 0, products = 0, spread = 0;
    for (uint32_t p = first; p <= t; p++) {
        const double *k = keys + ((size_t)p * s->n_kv_heads + kv) * s->k_dim;
        double sizes = 0;
        for (uint32_t i = 0; i < s->k_dim; i++) score[p] += q[i] * k[i], sizes += fabs(q[i] * k[i]);
        score[p] /= sqrt(s->k_dim);
        products = fmax(products, sizes / sqrt(s->k_dim));
        most = fmax(most, score[p]);
    }
    for (uint32_t p = first; p <= t; p++) sum += exp(score[p] - most);
    if (s->sinks) sum += exp(((float *)c->tensors[0])[h] - most);
    memset(out, 0, s->v_dim * sizeof *out);
    for (uint32_t p = first; p <= t; p++)
        for (uint32_t i = 0; i < s->v_dim; i++) {
            double v = values[((size_t)p * s->n_kv_heads + kv) * s->v_dim + i];
            out[i] += exp(score[p] - most) / sum * v;
            spread = fmax(spread, fabs(v));
        }
    free(score);
    return spread * (2 * products * (s->k_dim / 16.0 + 6) * 0x1p-24 + (t / 64.0 + 16) * 0x1p-23);
}

static double *cached(const struct op_case *c, const struct shape *s, int buffer, uint32_t dim) {
    size_t n_rows = (size_t)s->n_tokens * s->n_kv_heads;
    double *out = calloc(n_rows * dim, sizeof *out);
    for (size_t r = 0; r < n_rows; r++) through_cache(s->kv_type, c->buffers[buffer] + r * dim, dim, out + r * dim);
    return out;
}

static void check_values(const struct op_case *c, const struct shape *s) {
    double *keys = cached(c, s, 1, s->k_dim), *values = cached(c, s, 2, s->v_dim),
           *wanted = calloc(s->v_dim, sizeof *wanted);
    for (uint32_t t = 0; t < s->n_tokens; t += t < 8 || t + 8 > s->n_tokens ? 1 : 7)
        for (uint32_t h = 0; h < s->n_heads; h++) {
            double allowed = attend(c, s, keys, values, t, h, wanted);
            for (uint32_t i = 0; i < s->v_dim; i++) {
                double found = c->buffers[3][((size_t)t * s->n_heads + h) * s->v_dim + i];
                if (!(fabs(found - wanted[i]) <= allowed))
                    fail_msg("token %u head %u element %u: %.9g, expected %.9g, allowed %.3g", t, h, i, found,
                             wanted[i], allowed);
            }
        }
    free(keys);
    free(values);
    free(wanted);
}

// chunks: the round sizes, 0-terminated; the capacity must hold window + chunk.
static void check_shape(const struct shape *s, const uint32_t *chunks, uint64_t seed) {
    static const char *const ISAS[] = {"reference", "avx2", "avx512"};
    struct test_random r = {seed};
    struct op_case c;
    enum atsi_isa isa;
    build(&c, s, &r, 1.5f);
    float *first = NULL;
    size_t bytes = (size_t)s->n_tokens * s->n_heads * s->v_dim * sizeof(float);
    for (size_t i = 0; i < sizeof ISAS / sizeof *ISAS; i++) {
        if (atsi_isa_select(ISAS[i], &isa, NULL) != ATSI_OK) continue;
        for (const uint32_t *chunk = chunks; *chunk != 0; chunk++)
            for (int n_threads = 1; n_threads <= 3; n_threads += 2) {
                if (isa == ATSI_ISA_REFERENCE && (*chunk == 1) != (n_threads == 3))
                    continue; // slow: two runs are enough
                memset(c.buffers[3], 0x7f, bytes);
                op_case_run(&c, ISAS[i], n_threads, *chunk, 0);
                if (first == NULL) {
                    check_values(&c, s);
                    first = op_case_copy(&c, 3);
                }
                if (!test_same_bits(first, c.buffers[3], bytes))
                    fail_msg("%s, %d threads, rounds of %u: other bits than the first run", ISAS[i], n_threads, *chunk);
            }
    }
    free(first);
    op_case_free(&c);
}

static const uint32_t WHOLE_AND_PARTS[] = {200, 1, 3, 64, 37, 0};
static const uint32_t SMALL_PARTS[] = {9, 1, 2, 7, 0};

static void every_cache_type(void **state) {
    (void)state;
    static const enum atsi_dtype TYPES[] = {ATSI_F32, ATSI_F16, ATSI_Q8_0};
    for (int i = 0; i < 3; i++) {
        struct shape s = {200, 4, 2, 64, 64, 0, 256, false, TYPES[i]};
        check_shape(&s, WHOLE_AND_PARTS, 1 + (uint64_t)i);
        s = (struct shape){70, 6, 1, 96, 32, 0, 128, true, TYPES[i]};
        check_shape(&s, SMALL_PARTS, 11 + (uint64_t)i);
    }
}

static void odd_sizes(void **state) {
    (void)state;
    static const struct shape SHAPES[] = {{70, 3, 3, 5, 7, 0, 100, false, ATSI_F32},
                                          {66, 10, 2, 80, 48, 0, 80, true, ATSI_F16},
                                          {65, 7, 1, 16, 33, 0, 65, false, ATSI_F16},
                                          {20, 80, 2, 24, 16, 0, 32, false, ATSI_F32},
                                          {5, 1, 1, 1, 1, 0, 5, true, ATSI_F32}};
    for (size_t i = 0; i < sizeof SHAPES / sizeof *SHAPES; i++) check_shape(&SHAPES[i], SMALL_PARTS, 20 + i);
}

// The ring is as small as allowed: window + chunk positions, and the sequence goes round it several times.
static void windows_in_a_ring(void **state) {
    (void)state;
    static const struct shape SHAPES[] = {{150, 4, 2, 32, 32, 16, 16 + 9, false, ATSI_F32},
                                          {150, 4, 1, 32, 64, 1, 1 + 9, true, ATSI_F16},
                                          {220, 2, 2, 64, 32, 100, 100 + 9, true, ATSI_Q8_0},
                                          {60, 2, 1, 32, 32, 64, 60, false, ATSI_F32}};
    for (size_t i = 0; i < sizeof SHAPES / sizeof *SHAPES; i++) check_shape(&SHAPES[i], SMALL_PARTS, 30 + i);
}

// Long enough that decoding divides a head's positions among threads (ranges of 512).
static void long_contexts(void **state) {
    (void)state;
    static const uint32_t PARTS[] = {1100, 1, 4, 300, 0};
    struct shape s = {1100, 2, 1, 32, 16, 0, 1100, true, ATSI_F16};
    check_shape(&s, PARTS, 40);
    s = (struct shape){1100, 2, 2, 16, 16, 700, 1100, false, ATSI_F32};
    check_shape(&s, PARTS, 41);
}

// Scores of several hundred: the running maximum is what keeps exp in range.
static void large_scores(void **state) {
    (void)state;
    struct test_random r = {50};
    struct shape s = {130, 2, 1, 64, 16, 0, 130, true, ATSI_F32};
    struct op_case c;
    build(&c, &s, &r, 300.0f);
    op_case_run(&c, NULL, 1, 130, 0);
    check_values(&c, &s);
    op_case_free(&c);
}

// A NaN in a key reaches the outputs of all tokens that see it and of no other.
static void broken_numbers_stay_visible(void **state) {
    (void)state;
    static const enum atsi_dtype TYPES[] = {ATSI_F32, ATSI_F16, ATSI_Q8_0};
    for (int type = 0; type < 3; type++) {
        struct test_random r = {60};
        struct shape s = {100, 2, 1, 32, 32, 0, 128, false, TYPES[type]};
        struct op_case c;
        build(&c, &s, &r, 1.0f);
        c.buffers[1][70 * 32 + 3] = NAN;
        op_case_run(&c, NULL, 1, 1, 0);
        for (uint32_t i = 0; i < 100 * 64; i++) assert_int_equal(isnan(c.buffers[3][i]) != 0, i / 64 >= 70);
        op_case_free(&c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_cache_type),  cmocka_unit_test(odd_sizes),
        cmocka_unit_test(windows_in_a_ring), cmocka_unit_test(long_contexts),
        cmocka_unit_test(large_scores),      cmocka_unit_test(broken_numbers_stay_visible),
    };
    return cmocka_run_group_tests_name("attention", tests, NULL, NULL);
}
