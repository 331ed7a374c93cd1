// Matmul kernels: the reference against a product in double precision, the fast ones against the reference bit for bit, on
// random and extreme weights, odd shapes, every batching.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/dequant.h"
#include "kernels/layout.h"
#include "kernels/matmul.h"
#include "tests/support/check.h"
#include "tests/support/emulated_amx.h"
#include "tests/support/matmul_problem.h"
#include "tests/support/quant_data.h"

static float input_value(const struct problem *p, uint32_t t, uint32_t c) {
    if (p->from_floats || atsi_matmul_input(p->args.dtype) == ATSI_INPUT_F32)
        return p->in[(size_t)t * p->args.n_cols + c];
    const struct atsi_act_block *b = (const void *)((const uint8_t *)p->quantised + t * p->args.in_stride);
    return b[c / 32].d * (float)b[c / 32].q[c % 32];
}

// Within `units` of 2^-24 of the sum of the products' sizes. (A weight that is a difference near zero is off by what its parts round.)
static void check_against_double(const struct problem *p, const float *out, double units) {
    uint32_t n_cols = p->args.n_cols;
    float *w = malloc(n_cols * sizeof(float));
    for (uint32_t r = 0; r < p->args.n_rows; r++) {
        atsi_dequant(p->args.dtype, (const uint8_t *)p->rows + r * atsi_dtype_row_bytes(p->args.dtype, n_cols), n_cols,
                     w);
        double largest = 0;
        for (uint32_t c = 0; c < n_cols; c++) largest = fmax(largest, fabs((double)w[c]));
        for (uint32_t t = 0; t < p->args.n_tokens; t++) {
            double sum = p->args.bias != NULL ? (double)p->args.bias[r] : 0, size = fabs(sum);
            for (uint32_t c = 0; c < n_cols; c++) {
                double x = (double)input_value(p, t, c);
                sum += (double)w[c] * x;
                size += (fabs((double)w[c]) + 0x1p-12 * largest) * fabs(x);
            }
            double got = (double)out[(size_t)t * p->args.out_stride + r], allowed = 0x1p-24 * units * size + 1e-37;
            if (!(fabs(got - sum) <= allowed))
                fail_msg("%s row %u token %u of %u: got %.9g, expected %.9g +- %.2g", atsi_dtype_name(p->args.dtype), r,
                         t, p->args.n_tokens, got, sum, allowed);
        }
    }
    free(w);
}

// Each product and each addition may be off by 2^-24 of its size, in blocks of 32. A min moves whole blocks: what cancels between q
// and min still rounds.
static double units_of_reference(const struct problem *p) { return 16 * (4 + p->args.n_cols / 16.0); }

static const uint32_t ROWS[] = {1, 15, 16, 17, 40};

static uint32_t some_cols(enum atsi_dtype dtype, uint64_t salt) {
    uint32_t block = atsi_dtype_info(dtype)->block_elems;
    static const uint32_t counts[] = {1, 2, 3, 8, 9, 20};
    if (block == 1) return 32 * counts[salt % 6] + (salt % 3 == 0 ? 7 : 0); // float rows may have any length
    return block * counts[salt % (block == 256 ? 4 : 6)];
}

static void test_reference(void **state) {
    (void)state;
    struct atsi_matmul_kernels ref;
    atsi_matmul_kernels_init(&ref, ATSI_ISA_REFERENCE);
    struct quant_rng rng = {7};
    for (int i = 0; i < QUANT_DATA_N_TYPES; i++)
        for (int fill = 0; fill < QUANT_N_FILLS; fill++)
            for (unsigned r = 0; r < sizeof ROWS / sizeof ROWS[0]; r++) {
                enum atsi_dtype dtype = QUANT_DATA_TYPES[i];
                assert_true(atsi_matmul_input(dtype) != ATSI_INPUT_UNSUPPORTED && ref.matmul[dtype] != NULL);
                struct problem p =
                    problem_make(dtype, (enum quant_fill)fill, ROWS[r], some_cols(dtype, quant_next(&rng)),
                                 1 + (uint32_t)(quant_next(&rng) % 5), &rng, &ref);
                float *out = malloc((size_t)p.args.n_tokens * p.args.n_rows * sizeof(float));
                problem_run(&ref, p.args, out);
                check_against_double(&p, out, units_of_reference(&p));
                free(out);
                problem_free(&p);
            }
}

static void assert_same(const char *what, const struct problem *p, const float *got, const float *expected, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (memcmp(&got[i], &expected[i], sizeof(float)) != 0)
            fail_msg("%s %s [%u x %u] tokens %u: element %zu is %a, expected %a", what, atsi_dtype_name(p->args.dtype),
                     p->args.n_rows, p->args.n_cols, p->args.n_tokens, i, (double)got[i], (double)expected[i]);
}

// A fast kernel, all tokens at once, each alone (with weights asked for ahead and not), and with bias and add; every result has the
// reference's bits.
static void check_fast(const struct atsi_matmul_kernels *ref, const struct atsi_matmul_kernels *fast,
                       struct problem *p) {
    size_t n = (size_t)p->args.n_tokens * p->args.n_rows;
    float *expected = problem_memory(n * sizeof(float)), *got = problem_memory(n * sizeof(float));
    const char *isa = atsi_isa_name(fast->isa);
    problem_run(ref, p->args, expected);
    memset(got, 0xff, n * sizeof(float));
    problem_run(fast, p->args, got);
    assert_same(isa, p, got, expected, n);

    for (int read_ahead = 0; read_ahead < 2; read_ahead++) {
        struct atsi_matmul_kernels kernels;
        atsi_matmul_kernels_init_ahead(&kernels, fast->isa, read_ahead == 1);
        memset(got, 0xff, n * sizeof(float));
        for (uint32_t t = 0; t < p->args.n_tokens; t++) {
            struct atsi_matmul_args one = p->args;
            one.in = (const uint8_t *)p->args.in + t * p->args.in_stride;
            one.n_tokens = 1;
            problem_run(&kernels, one, got + (size_t)t * p->args.n_rows);
        }
        assert_same(isa, p, got, expected, n);
    }

    struct atsi_matmul_args biased = p->args;
    biased.bias = p->bias;
    biased.add = true;
    for (size_t i = 0; i < n; i++) expected[i] = got[i] = (float)i;
    problem_run(ref, biased, expected);
    problem_run(fast, biased, got);
    assert_same(isa, p, got, expected, n);
    free(expected);
    free(got);
}

static void test_fast(void **state) {
    (void)state;
    struct atsi_matmul_kernels ref, fast;
    atsi_matmul_kernels_init(&ref, ATSI_ISA_REFERENCE);
    for (int isa = ATSI_ISA_REFERENCE + 1; isa < ATSI_ISA_LIMIT; isa++) {
        if (!atsi_isa_supported((enum atsi_isa)isa)) {
            print_message("%s is not checked: this CPU lacks it\n", atsi_isa_name((enum atsi_isa)isa));
            continue;
        }
        atsi_matmul_kernels_init(&fast, (enum atsi_isa)isa);
        struct quant_rng rng = {11};
        for (int i = 0; i < QUANT_DATA_N_TYPES; i++)
            for (int fill = 0; fill < QUANT_N_FILLS; fill++)
                for (uint32_t n_tokens = 1; n_tokens <= 9; n_tokens++) {
                    enum atsi_dtype dtype = QUANT_DATA_TYPES[i];
                    uint32_t rows = ROWS[quant_next(&rng) % (sizeof ROWS / sizeof ROWS[0])];
                    struct problem p = problem_make(dtype, (enum quant_fill)fill, rows,
                                                    some_cols(dtype, quant_next(&rng)), n_tokens, &rng, &fast);
                    check_fast(&ref, &fast, &p);
                    problem_free(&p);
                }
    }
}

// Many tokens pass through the blocking of a prefill.
static void test_prefill(void **state) {
    (void)state;
    struct atsi_matmul_kernels ref, fast;
    atsi_matmul_kernels_init(&ref, ATSI_ISA_REFERENCE);
    atsi_matmul_kernels_init(&fast, atsi_isa_best());
    struct quant_rng rng = {13};
    for (int i = 0; i < QUANT_DATA_N_TYPES; i++) {
        enum atsi_dtype dtype = QUANT_DATA_TYPES[i];
        struct problem p = problem_make(dtype, QUANT_RANDOM, 33, 512, 203, &rng, &fast);
        check_fast(&ref, &fast, &p);
        problem_free(&p);
    }
}

static void test_quantise(void **state) {
    (void)state;
    struct quant_rng rng = {17};
    enum {
        N = 96
    };
    float in[N];
    struct atsi_act_block expected[N / 32], got[N / 32];
    for (int round = 0; round < 200; round++) {
        for (int i = 0; i < N; i++)
            in[i] = quant_uniform(&rng) * ldexpf(1, (int)(quant_next(&rng) % 40) - 20 - 4 * (round % 40));
        if (round % 7 == 0) memset(in, 0, 32 * sizeof(float));
        struct atsi_matmul_kernels k;
        atsi_matmul_kernels_init(&k, ATSI_ISA_REFERENCE);
        k.quantise(in, N, expected);
        for (int b = 0; b < N / 32; b++) {
            int sum = 0;
            for (int i = 0; i < 32; i++) {
                assert_true(fabsf(expected[b].d * (float)expected[b].q[i] - in[32 * b + i]) <=
                            0.501f * expected[b].d + 1e-28f);
                sum += expected[b].q[i];
            }
            assert_int_equal(sum, expected[b].sum[0] + expected[b].sum[1]);
        }
        for (int isa = 1; isa < ATSI_ISA_LIMIT; isa++) {
            if (!atsi_isa_supported((enum atsi_isa)isa)) continue;
            atsi_matmul_kernels_init(&k, (enum atsi_isa)isa);
            k.quantise(in, N, got);
            assert_memory_equal(got, expected, sizeof got);
        }
    }
}

// What is broken upstream must not look like a zero: a NaN input reaches every output of its row, and no other row.
static void test_nan(void **state) {
    (void)state;
    struct quant_rng rng = {37};
    for (int isa = 0; isa < ATSI_ISA_LIMIT; isa++) {
        if (!atsi_isa_supported((enum atsi_isa)isa)) continue;
        struct atsi_matmul_kernels k;
        atsi_matmul_kernels_init(&k, (enum atsi_isa)isa);
        for (uint32_t at = 0; at < 32; at += 5) {
            struct problem p = problem_make(ATSI_Q8_0, QUANT_RANDOM, 16, 64, 2, &rng, &k);
            float out[32];
            p.in[32 + at] = NAN;
            atsi_quantise_rows(&k, p.in, 64, 2, 64, p.quantised, 0, 1);
            problem_run(&k, p.args, out);
            for (int r = 0; r < 16; r++) assert_true(isnan(out[r]) && !isnan(out[16 + r]));
            problem_free(&p);
        }
    }
}

// However a row of inputs is shared out among threads, all of it is quantised.
static void test_quantise_shares(void **state) {
    (void)state;
    struct atsi_matmul_kernels k;
    atsi_matmul_kernels_init(&k, atsi_isa_best());
    struct quant_rng rng = {19};
    enum {
        ROWS_IN = 3,
        COLS = 2880
    };
    float *in = malloc(ROWS_IN * COLS * sizeof(float));
    for (int i = 0; i < ROWS_IN * COLS; i++) in[i] = quant_uniform(&rng);
    size_t bytes = ROWS_IN * atsi_act_row_bytes(COLS);
    uint8_t *whole = calloc(1, bytes), *shared = calloc(1, bytes);
    atsi_quantise_rows(&k, in, COLS, ROWS_IN, COLS, whole, 0, 1);
    for (int n_threads = 1; n_threads <= 19; n_threads += 3) {
        memset(shared, 0, bytes);
        for (int i = 0; i < n_threads; i++) atsi_quantise_rows(&k, in, COLS, ROWS_IN, COLS, shared, i, n_threads);
        assert_memory_equal(whole, shared, bytes);
    }
    free(in);
    free(whole);
    free(shared);
}

// Adds up all chunks, in reverse order: a row that is computed twice shows. Inputs for kernels of many tokens are prepared here.
static void run_chunks(const struct atsi_matmul_kernels *k, const struct problem *p, int n_threads, float *out) {
    struct atsi_matmul_args args = p->args;
    enum atsi_input_kind kind = atsi_matmul_input_of(k, args.dtype, args.n_tokens);
    void *prepared = NULL;
    if (kind != atsi_matmul_input(args.dtype)) {
        args.in_stride = atsi_input_row_bytes(kind, args.n_cols);
        args.in = prepared = problem_memory(args.n_tokens * args.in_stride);
        for (uint32_t t = 0; t < args.n_tokens; t++)
            atsi_prepare_input(k, kind, p->in + (size_t)t * args.n_cols, args.n_cols,
                               (uint8_t *)prepared + t * args.in_stride);
    }
    memset(out, 0, (size_t)args.n_tokens * args.n_rows * sizeof *out);
    args.out = out;
    args.add = true;
    for (uint32_t i = atsi_matmul_n_chunks(k, &args, n_threads); i-- > 0;) atsi_matmul_chunk(k, &args, n_threads, i);
    free(prepared);
}

// The chunks of a matmul cover every row and token once, for any number of threads.
static void test_chunks(void **state) {
    (void)state;
    struct atsi_matmul_kernels k;
    atsi_matmul_kernels_init(&k, atsi_isa_best());
    struct quant_rng rng = {23};
    struct problem p = problem_make(ATSI_Q8_0, QUANT_RANDOM, 1000, 1024, 2, &rng, &k);
    size_t n = (size_t)p.args.n_tokens * p.args.n_rows;
    float *whole = problem_memory(n * sizeof(float)), *chunks = problem_memory(n * sizeof(float));
    problem_run(&k, p.args, whole);
    for (int n_threads = 1; n_threads < 100; n_threads += 7) {
        run_chunks(&k, &p, n_threads, chunks);
        assert_memory_equal(whole, chunks, n * sizeof(float));
    }
    free(whole);
    free(chunks);
    problem_free(&p);
}

// What kernels/cpu/matmul_avx512amx.c promises, and two more roundings: chunks are added to zero, after the bias.
static double units_of_many(const struct problem *p) {
    bool is_float = atsi_matmul_input(p->args.dtype) == ATSI_INPUT_F32;
    double n_products = !is_float ? 1 : p->args.dtype == ATSI_BF16 ? 2 : 3;
    double left_out = !is_float ? 0x1p-7 + 0x1p-16 : p->args.dtype == ATSI_BF16 ? 0x1p-17 : 0x1p-16 + 0x1p-17;
    return 0x1p24 * left_out + n_products * ceil(p->args.n_cols / 32.0) + 17 + 2;
}

// Chunks of many tokens, which may take kernels of their own, against the true product or the kernels for any number.
static void check_chunks(const struct atsi_matmul_kernels *k, const struct problem *p, int n_threads) {
    size_t n = (size_t)p->args.n_tokens * p->args.n_rows;
    float *whole = problem_memory(n * sizeof(float)), *chunks = problem_memory(n * sizeof(float));
    struct problem from_floats = *p;
    from_floats.from_floats = true;
    problem_run(k, p->args, whole);
    run_chunks(k, p, n_threads, chunks);
    if (atsi_matmul_input_of(k, p->args.dtype, p->args.n_tokens) != atsi_matmul_input(p->args.dtype))
        check_against_double(&from_floats, chunks, units_of_many(p));
    else
        assert_memory_equal(whole, chunks, n * sizeof(float));
    free(whole);
    free(chunks);
}

static void check_many_tokens(const struct atsi_matmul_kernels *k) {
    static const uint32_t N_TOKENS[] = {15, 16, 17, 31, 65, 130, 203, 271};
    struct quant_rng rng = {31};
    for (int i = 0; i < QUANT_DATA_N_TYPES; i++)
        for (size_t j = 0; j < sizeof N_TOKENS / sizeof *N_TOKENS; j++) {
            enum atsi_dtype dtype = QUANT_DATA_TYPES[i];
            struct problem p = problem_make(dtype, (enum quant_fill)(j % QUANT_N_FILLS), 16 * 6 + 9,
                                            some_cols(dtype, quant_next(&rng)), N_TOKENS[j], &rng, k);
            if (j % 2) p.args.bias = p.bias;
            check_chunks(k, &p, 1 + (int)j);
            problem_free(&p);
        }
}

// Every token has one input that is not zero, each its own: every weight stands alone.
static void check_single_weights(const struct atsi_matmul_kernels *k) {
    enum {
        COLS = 512
    };
    struct quant_rng rng = {43};
    for (int i = 0; i < QUANT_DATA_N_TYPES; i++) {
        struct problem p = problem_make(QUANT_DATA_TYPES[i], QUANT_RANDOM, 16 + 5, COLS, COLS, &rng, k);
        for (int t = 0; t < COLS; t++)
            for (int c = 0; c < COLS; c++) p.in[t * COLS + c] = c == t ? (float)(1 + t % 3) : 0;
        if (atsi_matmul_input(p.args.dtype) == ATSI_INPUT_INT8)
            atsi_quantise_rows(k, p.in, COLS, COLS, COLS, p.quantised, 0, 1);
        check_chunks(k, &p, 2);
        problem_free(&p);
    }
}

// Inputs of all sizes, and one that is no number: it shows in its own row and nowhere else.
static void check_many_floats(const struct atsi_matmul_kernels *k, enum atsi_dtype dtype) {
    enum {
        TOKENS = 128 + 40, // a block of inputs and a part of one
        ROWS_OUT = 16 * 17 + 5,
        COLS = 300,
        NAN_TOKEN = 33
    };
    struct quant_rng rng = {41};
    struct problem p = problem_make(dtype, QUANT_TINY, ROWS_OUT, COLS, TOKENS, &rng, k);
    for (int i = 0; i < TOKENS * COLS; i++) p.in[i] = ldexpf(quant_uniform(&rng), (int)(quant_next(&rng) % 140) - 70);
    check_chunks(k, &p, 1);
    float *out = problem_memory((size_t)TOKENS * ROWS_OUT * sizeof(float));
    p.in[NAN_TOKEN * COLS + 290] = NAN;
    run_chunks(k, &p, 1, out);
    for (int i = 0; i < TOKENS * ROWS_OUT; i++) assert_int_equal(isnan(out[i]), i / ROWS_OUT == NAN_TOKEN);
    free(out);
    problem_free(&p);
}

static void check_many(const struct atsi_matmul_kernels *k) {
    check_many_tokens(k);
    check_single_weights(k);
    check_many_floats(k, ATSI_F16);
    check_many_floats(k, ATSI_BF16);
}

static void test_many_tokens(void **state) {
    (void)state;
    struct atsi_matmul_kernels k;
    atsi_matmul_kernels_init(&k, atsi_isa_best());
    check_many(&k);
}

#if defined(__x86_64__)
static void test_emulated_amx(void **state) {
    (void)state;
    if (!atsi_isa_supported(ATSI_ISA_AVX512)) {
        print_message("skipped: this CPU lacks AVX-512, beside which AMX is emulated\n");
        skip();
    }
    if (atsi_cpu_has_amx()) {
        print_message("skipped: this CPU has AMX, test_many_tokens tests it\n");
        skip();
    }
    struct atsi_matmul_kernels k;
    atsi_matmul_kernels_init(&k, ATSI_ISA_AVX512);
    emulated_amx_fill(&k);
    for (int i = 0; i < QUANT_DATA_N_TYPES; i++) {
        enum atsi_dtype dtype = QUANT_DATA_TYPES[i];
        if (atsi_layout_of(dtype) == ATSI_LAYOUT_TILE16 || dtype == ATSI_F16 || dtype == ATSI_BF16)
            assert_non_null(k.many[dtype]);
    }
    check_many(&k);
}
#endif

enum {
    N_EXPERTS = 7,
    N_SLOTS = 3,
    N_TOKENS = 13
};

static void make_ids(int32_t *ids, struct quant_rng *rng) {
    for (int t = 0; t < N_TOKENS; t++)
        for (int s = 0; s < N_SLOTS; s++) {
            int32_t id = (int32_t)((uint64_t)(t % 3 + 2 * s) % N_EXPERTS);
            ids[t * N_SLOTS + s] = quant_next(rng) % 5 == 0 ? -1 : id;
        }
}

static void test_expert_groups(void **state) {
    (void)state;
    struct quant_rng rng = {29};
    int32_t ids[N_TOKENS * N_SLOTS];
    make_ids(ids, &rng);
    size_t n_words = atsi_expert_groups_words(N_EXPERTS, N_TOKENS * N_SLOTS);
    uint32_t *words = malloc(n_words * sizeof *words), n_seen = 0, n_valid = 0;
    struct atsi_expert_groups g;
    atsi_expert_groups_build(&g, words, N_EXPERTS, ids, N_SLOTS, N_TOKENS, N_SLOTS, NULL);
    for (uint32_t e = 0; e < N_EXPERTS; e++)
        for (uint32_t i = g.first[e]; i < g.first[e + 1]; i++, n_seen++) {
            assert_int_equal(ids[g.pairs[i]], e);
            if (i > g.first[e]) assert_true(g.pairs[i] > g.pairs[i - 1]);
        }
    for (int i = 0; i < N_TOKENS * N_SLOTS; i++) n_valid += ids[i] >= 0;
    assert_int_equal(n_seen, n_valid);
    for (uint32_t i = 1; i < g.n_active; i++) {
        uint32_t e = g.active[i], before = g.active[i - 1];
        assert_true(g.first[before + 1] - g.first[before] >= g.first[e + 1] - g.first[e]);
    }
    free(words);
}

// Experts against one dense product a pair.
static void check_experts(enum atsi_dtype dtype, bool in_per_slot) {
    struct atsi_matmul_kernels k;
    atsi_matmul_kernels_init(&k, atsi_isa_best());
    struct quant_rng rng = {31};
    enum {
        EXPERT_ROWS = 35,
        COLS = 256
    };
    uint32_t n_in = in_per_slot ? N_TOKENS * N_SLOTS : N_TOKENS;
    int32_t ids[N_TOKENS * N_SLOTS];
    make_ids(ids, &rng);
    // N_EXPERTS matrices of 48 packed rows each, filled as one matrix.
    struct problem p = problem_make(dtype, QUANT_RANDOM, N_EXPERTS * 48, COLS, n_in, &rng, &k);
    size_t expert_bytes = 48 * atsi_dtype_row_bytes(dtype, COLS);
    uint32_t *words = malloc(atsi_expert_groups_words(N_EXPERTS, N_TOKENS * N_SLOTS) * sizeof *words);
    struct atsi_expert_groups g;
    atsi_expert_groups_build(&g, words, N_EXPERTS, ids, N_SLOTS, N_TOKENS, N_SLOTS, NULL);

    enum {
        OUT_STRIDE = N_SLOTS * EXPERT_ROWS + 5
    };
    float *got = calloc(N_TOKENS * OUT_STRIDE, sizeof(float)), *expected = calloc(N_TOKENS * OUT_STRIDE, sizeof(float));
    struct atsi_experts_args e = {.matmul = p.args, .expert_bytes = expert_bytes, .groups = &g};
    e.matmul.n_rows = EXPERT_ROWS;
    e.matmul.bias = p.bias;
    e.matmul.out = got;
    e.matmul.out_stride = OUT_STRIDE;
    e.matmul.out_slot_stride = EXPERT_ROWS;
    e.matmul.n_slots = N_SLOTS;
    e.matmul.in_slot_stride = in_per_slot ? p.args.in_stride : 0;
    e.matmul.in_stride = in_per_slot ? N_SLOTS * p.args.in_stride : p.args.in_stride;
    uint32_t n_chunks = atsi_experts_n_chunks(&k, &e, 3);
    for (uint32_t i = 0; i < n_chunks; i++) atsi_experts_chunk(&k, &e, 3, i);

    for (uint32_t pair = 0; pair < N_TOKENS * N_SLOTS; pair++) {
        if (ids[pair] < 0) continue;
        struct atsi_matmul_args one = p.args;
        one.weight = (const uint8_t *)p.packed + (size_t)ids[pair] * expert_bytes;
        one.n_rows = EXPERT_ROWS;
        one.bias = p.bias + ids[pair] * EXPERT_ROWS;
        one.in = (const uint8_t *)p.args.in + (in_per_slot ? pair : pair / N_SLOTS) * p.args.in_stride;
        one.n_tokens = 1;
        problem_run(&k, one, expected + pair / N_SLOTS * OUT_STRIDE + pair % N_SLOTS * EXPERT_ROWS);
    }
    assert_memory_equal(got, expected, N_TOKENS * OUT_STRIDE * sizeof(float));
    free(got);
    free(expected);
    free(words);
    problem_free(&p);
}

static void test_experts(void **state) {
    (void)state;
    check_experts(ATSI_MXFP4, false);
    check_experts(ATSI_Q4_K, true);
    check_experts(ATSI_F16, false);
    check_experts(ATSI_F32, true);
}

// One expert, and only some of many tokens want it: how it is cut must not depend on the others.
static void test_lone_expert(void **state) {
    (void)state;
    enum {
        TOKENS = 300,
        ROWS = 16 * 70
    };
    struct atsi_matmul_kernels k;
    atsi_matmul_kernels_init(&k, atsi_isa_best());
    struct quant_rng rng = {37};
    struct problem p = problem_make(ATSI_Q4_K, QUANT_RANDOM, ROWS, 256, TOKENS, &rng, &k);
    size_t n = (size_t)TOKENS * ROWS;
    float *whole = problem_memory(n * sizeof(float)), *got = problem_memory(n * sizeof(float));
    problem_run(&k, p.args, whole);
    for (int every = 1; every <= 4; every++) {
        int32_t ids[TOKENS];
        for (int t = 0; t < TOKENS; t++) ids[t] = t % every == 0 ? 0 : -1;
        uint32_t *words = malloc(atsi_expert_groups_words(1, TOKENS) * sizeof *words);
        struct atsi_expert_groups g;
        atsi_expert_groups_build(&g, words, 1, ids, 1, TOKENS, 1, NULL);
        memset(got, 0, n * sizeof(float));
        struct atsi_experts_args e = {.matmul = p.args, .groups = &g};
        e.matmul.out = got;
        e.matmul.n_slots = 1;
        e.matmul.add = true;
        for (uint32_t i = atsi_experts_n_chunks(&k, &e, 3); i-- > 0;) atsi_experts_chunk(&k, &e, 3, i);
        for (int t = 0; t < TOKENS; t++)
            for (int r = 0; r < ROWS; r++) assert_true(got[t * ROWS + r] == (ids[t] == 0 ? whole[t * ROWS + r] : 0.0f));
        free(words);
    }
    free(whole);
    free(got);
    problem_free(&p);
}

static void test_isa_names(void **state) {
    (void)state;
    struct atsi_error err;
    enum atsi_isa isa;
    assert_int_equal(atsi_isa_select("reference", &isa, &err), ATSI_OK);
    assert_int_equal(isa, ATSI_ISA_REFERENCE);
    assert_int_equal(atsi_isa_select(NULL, &isa, &err), ATSI_OK);
    assert_int_equal(isa, atsi_isa_best());
    assert_int_equal(atsi_isa_select("avx9", &isa, &err), ATSI_BAD_INPUT);
    for (int i = 0; i < ATSI_ISA_LIMIT; i++) {
        bool selected = atsi_isa_select(atsi_isa_name((enum atsi_isa)i), &isa, &err) == ATSI_OK;
        assert_int_equal(selected, atsi_isa_supported((enum atsi_isa)i));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quantise),
        cmocka_unit_test(test_quantise_shares),
        cmocka_unit_test(test_nan),
        cmocka_unit_test(test_reference),
        cmocka_unit_test(test_fast),
        cmocka_unit_test(test_prefill),
        cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_many_tokens),
#if defined(__x86_64__)
        cmocka_unit_test(test_emulated_amx),
#endif
        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_lone_expert),
        cmocka_unit_test(test_expert_groups),
        cmocka_unit_test(test_isa_names),
    };
    return cmocka_run_group_tests_name("matmul", tests, NULL, NULL);
}
