// Products with every weight type, dense and by experts, and rows of tables.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/cuda_suite.h"
#include "tests/support/check.h"
#include "tests/support/division_case.h"
#include "tests/support/gpu_case.h"

static const enum atsi_dtype TYPES[] = {
    ATSI_F32, ATSI_F16, ATSI_BF16, ATSI_Q8_0, ATSI_Q4_0, ATSI_Q4_1, ATSI_Q5_0, ATSI_Q5_1, ATSI_Q2_K, ATSI_Q3_K,
    ATSI_Q4_K, ATSI_Q5_K, ATSI_Q6_K, ATSI_IQ4_NL, ATSI_IQ4_XS, ATSI_MXFP4,
    // The grid types: no tables of tokens.
    ATSI_IQ3_S, ATSI_IQ3_XXS, ATSI_IQ2_S, ATSI_IQ2_XS, ATSI_IQ2_XXS, ATSI_IQ1_S, ATSI_IQ1_M};
enum {
    N_TYPES = sizeof TYPES / sizeof *TYPES,
    N_TABLE_TYPES = N_TYPES - 7
};

// Types that stand for others in the small form: one for each kind of kernel and of unpacking.
static bool stands_for_others(enum atsi_dtype dtype) {
    return dtype == ATSI_F16 || dtype == ATSI_Q8_0 || dtype == ATSI_IQ4_NL || dtype == ATSI_Q3_K ||
           dtype == ATSI_IQ3_XXS;
}
// Tokens of products that the kernels of matrices take, as few as possible in the small form.
static uint32_t many_tokens(const struct suite *s, uint32_t large) { return s->small ? 9 : large; }
// Of rounds that those of vectors take; in the small form the last round has one.
static uint32_t few_tokens(const struct suite *s, uint32_t n_tokens) {
    uint32_t few = s->small ? 8 : 3;
    return few < n_tokens ? few : n_tokens;
}

static uint32_t block_of(enum atsi_dtype dtype) { return atsi_dtype_info(dtype)->block_elems; }
static uint32_t expert_width(const struct suite *s, enum atsi_dtype dtype) {
    return s->small && block_of(dtype) < 64 ? 64 : 256;
}

// ---- matrices ------------------------------------------------------------------------------------------------------------

static void matmul_case(const struct suite *s, enum atsi_dtype dtype, uint32_t n_cols, uint32_t n_out,
                        uint32_t n_tokens, bool bias, bool add, enum quant_fill fill) {
    char what[80];
    snprintf(what, sizeof what, "matmul %s %ux%u, %u tokens%s%s", atsi_dtype_name(dtype), n_cols, n_out, n_tokens,
             bias ? ", bias" : "", add ? ", add" : "");
    struct test_random r = {n_cols + n_out * 7 + n_tokens};
    struct quant_rng rng = {(uint64_t)dtype * 31 + n_cols};
    struct op_case c;
    op_case_init(&c, n_tokens, 0);
    int32_t x = op_case_buffer(&c, n_cols + 4, ATSI_ROWS_TOKENS, false, &r, 2.0f);
    int32_t y = op_case_buffer(&c, n_out, ATSI_ROWS_TOKENS, false, &r, 1.0f);
    int32_t weight = gpu_case_weight(&c, dtype, n_cols, n_out, 1, fill, &rng);
    int32_t b = bias ? op_case_tensor(&c, n_out, 1, 1, &r, 1.0f) : ATSI_NONE;
    struct atsi_op *op = op_case_op(&c, ATSI_OP_MATMUL);
    op->in[0] = (struct atsi_view){x, 4, n_cols};
    op->out[0] = op_case_view(&c, y);
    op->tensor[0] = weight;
    op->tensor[1] = b;
    op->add = add;
    bool split = block_of(dtype) == 1 && n_tokens > 8;
    gpu_case_check(&c, s->device, (const uint32_t[]){n_tokens}, 1, split ? SPLIT_TOLERANCE : FLOAT_TOLERANCE, what);
    op_case_free(&c);
}

void matrices(void **state) {
    const struct suite *s = *state;
    for (int i = 0; i < N_TYPES; i++) {
        uint32_t block = block_of(TYPES[i]), odd = block == 256 ? 768 : block == 32 ? 352 : 100;
        matmul_case(s, TYPES[i], odd, 40, 1, true, false, QUANT_RANDOM);
        matmul_case(s, TYPES[i], odd, 33, 7, false, true, QUANT_ALL_ONES);
        matmul_case(s, TYPES[i], odd, s->small ? 40 : 150, many_tokens(s, 70), true, true, QUANT_RANDOM);
        if (s->small) continue;
        matmul_case(s, TYPES[i], 4096, 512, 1, false, false, QUANT_RANDOM);
        for (uint32_t n_tokens = 2; n_tokens <= 8; n_tokens++)
            matmul_case(s, TYPES[i], 2048, 300, n_tokens, false, false, QUANT_RANDOM);
        matmul_case(s, TYPES[i], 2560, 1030, 200, false, false, QUANT_RANDOM);
        matmul_case(s, TYPES[i], 512, 128, 64, false, false, QUANT_TINY);
        matmul_case(s, TYPES[i], odd, 40000, 1, false, false, QUANT_RANDOM); // several tiles a block
    }
}

// Matrices that share an input, an input that changes between two of them, results that feed the next: what a device may
// keep of a quantised input and what not.
static void chain_case(const struct suite *s, enum atsi_dtype dtype) {
    enum {
        WIDTH = 512
    };
    const uint32_t n_tokens = s->small ? 19 : 37;
    struct test_random r = {3};
    struct quant_rng rng = {4};
    struct op_case c;
    op_case_init(&c, n_tokens, 0);
    int32_t x = op_case_buffer(&c, WIDTH, ATSI_ROWS_TOKENS, false, &r, 1.0f),
            h = op_case_buffer(&c, WIDTH, ATSI_ROWS_TOKENS, false, &r, 1.0f);
    int32_t a = op_case_buffer(&c, WIDTH, ATSI_ROWS_TOKENS, false, &r, 1.0f),
            b = op_case_buffer(&c, WIDTH, ATSI_ROWS_TOKENS, false, &r, 1.0f);
    int32_t last = op_case_buffer(&c, WIDTH, ATSI_ROWS_TOKENS, false, &r, 1.0f),
            norm = op_case_tensor(&c, WIDTH, 1, 1, &r, 1.0f);
    int32_t w[4];
    for (int i = 0; i < 4; i++) w[i] = gpu_case_weight(&c, dtype, WIDTH, WIDTH, 1, QUANT_RANDOM, &rng);
    add_op(&c, ATSI_OP_RMS_NORM, x, ATSI_NONE, h, norm);
    c.program.ops[0].u.norm = (struct atsi_norm_params){WIDTH, 1e-6f};
    add_op(&c, ATSI_OP_MATMUL, h, ATSI_NONE, a, w[0]);
    add_op(&c, ATSI_OP_MATMUL, h, ATSI_NONE, b, w[1]);
    add_op(&c, ATSI_OP_GLU, a, b, h, ATSI_NONE);
    add_op(&c, ATSI_OP_MATMUL, h, ATSI_NONE, b, w[2]);
    add_op(&c, ATSI_OP_ADD, h, b, h, ATSI_NONE);
    add_op(&c, ATSI_OP_MATMUL, h, ATSI_NONE, last, w[3]);
    // A last-bit difference before a rounding to int8 is a whole step behind it.
    gpu_case_check(&c, s->device, (const uint32_t[]){n_tokens, single(s, n_tokens), 16, 4}, 4, 3e-3,
                   atsi_dtype_name(dtype));
    op_case_free(&c);
}

void chains(void **state) {
    chain_case(*state, ATSI_Q4_K);
    chain_case(*state, ATSI_Q8_0);
    chain_case(*state, ATSI_F16);
}

// With half of the experts resident, and nothing but garbage where they stood, the device's sums are the same to the bit: in one round and
// in rounds of few tokens, which take other kernels.
static void check_resident(const struct suite *s, struct op_case *c, int32_t ids, int32_t sums, const char *what) {
    const uint32_t chunks[] = {c->n_tokens, few_tokens(s, c->n_tokens)};
    struct test_random r = {c->n_tokens};
    size_t bytes = op_case_rows(c, sums) * c->program.buffers[sums].width * sizeof(float);
    float *before = op_case_copy(c, sums), *wanted[2];
    for (int k = 0; k < 2; k++) {
        op_case_restore(c, sums, before);
        gpu_case_run(c, s->device, chunks[k], 0, false);
        wanted[k] = op_case_copy(c, sums);
    }
    op_case_make_resident(c, c->program.ops[0].u.router.n_experts, 0.5f, &r);
    op_case_count_chosen(c, c->program.buffers[ids].width);
    for (int k = 0; k < 4; k++) {
        if (k == 2) op_case_drop_resident(c, c->program.ops[1].tensor[0]); // one of two products that join
        op_case_restore(c, sums, before);
        gpu_case_run(c, s->device, chunks[k % 2], 0, true);
        if (!test_same_bits(c->buffers[sums], wanted[k % 2], bytes))
            fail_msg("%s, rounds of %u: other results with experts resident", what, chunks[k % 2]);
        assert_memory_equal(c->chosen, c->buffers[ids], c->n_chosen * sizeof *c->chosen);
    }
    free(before);
    free(wanted[0]);
    free(wanted[1]);
}

static void experts_case(const struct suite *s, enum atsi_dtype dtype, uint32_t n_tokens, uint32_t n_experts,
                         uint32_t n_used) {
    enum {
        HIDDEN = 256
    };
    const uint32_t n_rows = expert_width(s, dtype);
    char what[80];
    snprintf(what, sizeof what, "experts %s, %u of %u, %u tokens", atsi_dtype_name(dtype), n_used, n_experts, n_tokens);
    struct test_random r = {n_tokens};
    struct quant_rng rng = {(uint64_t)dtype};
    struct op_case c;
    op_case_init(&c, n_tokens, 0);
    int32_t logits = op_case_buffer(&c, n_experts, ATSI_ROWS_TOKENS, false, &r, 1.0f),
            ids = op_case_buffer(&c, n_used, ATSI_ROWS_TOKENS, true, NULL, 0);
    int32_t weights = op_case_buffer(&c, n_used, ATSI_ROWS_TOKENS, false, &r, 1.0f),
            x = op_case_buffer(&c, HIDDEN, ATSI_ROWS_TOKENS, false, &r, 1.0f);
    int32_t up = op_case_buffer(&c, n_used * n_rows, ATSI_ROWS_TOKENS, false, &r, 1.0f),
            gate = op_case_buffer(&c, n_used * n_rows, ATSI_ROWS_TOKENS, false, &r, 1.0f);
    int32_t down = op_case_buffer(&c, n_used * 40, ATSI_ROWS_TOKENS, false, &r, 1.0f),
            out = op_case_buffer(&c, 40, ATSI_ROWS_TOKENS, false, &r, 1.0f);
    int32_t w_up = gpu_case_weight(&c, dtype, HIDDEN, n_rows, n_experts, QUANT_RANDOM, &rng),
            b_up = op_case_tensor(&c, n_rows, n_experts, 1, &r, 0.3f);
    int32_t w_gate = gpu_case_weight(&c, dtype, HIDDEN, n_rows, n_experts, QUANT_RANDOM, &rng);
    int32_t w_down = gpu_case_weight(&c, dtype, n_rows, 40, n_experts, QUANT_RANDOM, &rng);
    struct atsi_op *op = op_case_op(&c, ATSI_OP_ROUTER);
    op->in[0] = op_case_view(&c, logits);
    op->out[0] = op_case_view(&c, ids);
    op->out[1] = op_case_view(&c, weights);
    op->u.router = (struct atsi_router_params){n_experts, n_used, ATSI_ROUTER_SOFTMAX, true, 1.0f};
    add_op(&c, ATSI_OP_EXPERTS, x, ids, up, w_up);
    c.program.ops[1].tensor[1] = b_up;
    c.program.ops[1].u.experts = (struct atsi_experts_params){n_experts, n_used, false};
    add_op(&c, ATSI_OP_EXPERTS, x, ids, gate, w_gate);
    c.program.ops[2].u.experts = c.program.ops[1].u.experts;
    add_op(&c, ATSI_OP_EXPERTS, up, ids, down, w_down);
    c.program.ops[3].u.experts = (struct atsi_experts_params){n_experts, n_used, true};
    add_op(&c, ATSI_OP_EXPERT_SUM, down, weights, out, ATSI_NONE);
    c.program.ops[4].in[2] = op_case_view(&c, ids);
    c.program.ops[4].add = true;
    gpu_case_check(&c, s->device, (const uint32_t[]){n_tokens, few_tokens(s, n_tokens)}, 2, 3e-3, what);
    if (!s->small || stands_for_others(dtype)) check_resident(s, &c, ids, out, what);
    op_case_free(&c);
}

void experts(void **state) {
    const struct suite *s = *state;
    for (int i = 0; i < N_TYPES; i++) {
        experts_case(s, TYPES[i], many_tokens(s, 21), 6, s->small ? 2 : 3);
        if (s->small) continue;
        experts_case(s, TYPES[i], 1, 6, 2);
        experts_case(s, TYPES[i], 300, 32, 4);
    }
}

// One token, few, and as many as take the kernels of matrices.
void divided_experts(void **state) {
    const struct suite *s = *state;
    for (int i = 0; i < N_TYPES; i++)
        for (int k = 0; k < 3; k++) {
            const uint32_t n_tokens[] = {1, 5, many_tokens(s, 37)};
            if (s->small && (k < 2 || !stands_for_others(TYPES[i])))
                continue; // the last is run in rounds of few as well
            struct division_case x = {.dtype = TYPES[i],
                                      .n_tokens = n_tokens[k],
                                      .n_experts = s->small ? 6 : 6 + 2 * (uint32_t)i,
                                      .n_used = s->small ? 2 : 1 + (uint32_t)i % 6,
                                      .width = expert_width(s, TYPES[i]),
                                      .resident = 0.25f * (float)((i + k) % 5),
                                      .least = (i + k) % 3 == 0,
                                      .part = (i + k) % 2 == 0};
            division_case_check(&x, s->device);
        }
    division_case_check(&(struct division_case){ATSI_Q8_0, 3, 80, 64, 32, 0.6f, false, false}, s->device);
}

static void embed_case(const struct suite *s, enum atsi_dtype dtype) {
    char what[80];
    snprintf(what, sizeof what, "embed %s", atsi_dtype_name(dtype));
    struct test_random r = {5};
    struct quant_rng rng = {(uint64_t)dtype};
    struct op_case c;
    op_case_init(&c, 19, 0);
    int32_t out = op_case_buffer(&c, 768, ATSI_ROWS_TOKENS, false, &r, 1.0f),
            table = gpu_case_weight(&c, dtype, 768, 100, 1, QUANT_RANDOM, &rng);
    for (int t = 0; t < 19; t++) c.token_ids[t] = (int32_t)test_random_below(&r, 100);
    struct atsi_op *op = op_case_op(&c, ATSI_OP_EMBED);
    op->out[0] = op_case_view(&c, out);
    op->tensor[0] = table;
    op->u.embed_scale = 3.5f;
    gpu_case_check(&c, s->device, (const uint32_t[]){19, single(s, 19)}, 2, 1e-6, what);
    op_case_free(&c);
}

void embeddings(void **state) {
    for (int i = 0; i < N_TABLE_TYPES; i++) embed_case(*state, TYPES[i]);
}

// What is not a number in the inputs is not one in the results either, at the same places as on the CPU.
static void nan_case(const struct suite *s, enum atsi_dtype dtype, uint32_t n_tokens) {
    enum {
        N_COLS = 768,
        N_OUT = 40
    };
    struct test_random r = {n_tokens};
    struct quant_rng rng = {(uint64_t)dtype};
    struct op_case c;
    op_case_init(&c, n_tokens, 0);
    int32_t x = op_case_buffer(&c, N_COLS, ATSI_ROWS_TOKENS, false, &r, 1.0f),
            y = op_case_buffer(&c, N_OUT, ATSI_ROWS_TOKENS, false, &r, 1.0f);
    add_op(&c, ATSI_OP_MATMUL, x, ATSI_NONE, y, gpu_case_weight(&c, dtype, N_COLS, N_OUT, 1, QUANT_RANDOM, &rng));
    c.buffers[x][5] = NAN;
    if (n_tokens > 1) c.buffers[x][(n_tokens - 1) * N_COLS + 700] = INFINITY;
    op_case_run(&c, NULL, 1, n_tokens, 0);
    float *wanted = op_case_copy(&c, y);
    gpu_case_run(&c, s->device, n_tokens, 0, false);
    for (uint32_t i = 0; i < n_tokens * N_OUT; i++)
        if (isfinite(wanted[i]) != isfinite(c.buffers[y][i]))
            fail_msg("%s, %u tokens: result %u is %g where the CPU has %g", atsi_dtype_name(dtype), n_tokens, i,
                     (double)c.buffers[y][i], (double)wanted[i]);
    free(wanted);
    op_case_free(&c);
}

void not_a_number_survives(void **state) {
    const struct suite *s = *state;
    for (int i = 0; i < N_TYPES; i++) {
        if (s->small && !stands_for_others(TYPES[i])) continue;
        nan_case(s, TYPES[i], 1);
        nan_case(s, TYPES[i], 3);
        nan_case(s, TYPES[i], 40);
    }
}
