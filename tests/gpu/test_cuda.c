// Every operation and every weight type on the card against the CPU kernels, and the device interface itself. Runs on a machine with
// a card only: tests/gpu/run.sh. `test_cuda small` leaves the larger shapes out, for compute-sanitizer.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/cuda/cuda_device.h"
#include "tests/gpu/gpu_case.h"
#include "tests/support/check.h"

struct suite {
    struct atsi_device *device;
    bool small;
};

static const enum atsi_dtype TYPES[] = {ATSI_F32,  ATSI_F16,    ATSI_BF16,   ATSI_Q8_0, ATSI_Q4_0, ATSI_Q4_1,
                                        ATSI_Q5_0, ATSI_Q5_1,   ATSI_Q2_K,   ATSI_Q3_K, ATSI_Q4_K, ATSI_Q5_K,
                                        ATSI_Q6_K, ATSI_IQ4_NL, ATSI_IQ4_XS, ATSI_MXFP4};
enum {
    N_TYPES = sizeof TYPES / sizeof *TYPES
};
#define FLOAT_TOLERANCE 3e-6 // the same numbers summed in another order
#define SPLIT_TOLERANCE 4e-5 // float weights on tensor cores, whose sums are cut off rather than rounded
#define HALF_TOLERANCE  2e-3 // queries and attention weights rounded to half
#define CODES_TOLERANCE 5e-3 // and a value between two codes may be rounded to the other one

static uint32_t block_of(enum atsi_dtype dtype) { return atsi_dtype_info(dtype)->block_elems; }

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

static void matrices(void **state) {
    const struct suite *s = *state;
    for (int i = 0; i < N_TYPES; i++) {
        uint32_t block = block_of(TYPES[i]), odd = block == 256 ? 768 : block == 32 ? 352 : 100;
        matmul_case(s, TYPES[i], odd, 40, 1, true, false, QUANT_RANDOM);
        matmul_case(s, TYPES[i], odd, 33, 7, false, true, QUANT_ALL_ONES);
        matmul_case(s, TYPES[i], odd, 150, 70, true, true, QUANT_RANDOM);
        if (s->small) continue;
        matmul_case(s, TYPES[i], 4096, 512, 1, false, false, QUANT_RANDOM);
        for (uint32_t n_tokens = 2; n_tokens <= 8; n_tokens++)
            matmul_case(s, TYPES[i], 2048, 300, n_tokens, false, false, QUANT_RANDOM);
        matmul_case(s, TYPES[i], 2560, 1030, 200, false, false, QUANT_RANDOM);
        matmul_case(s, TYPES[i], 512, 128, 64, false, false, QUANT_TINY);
    }
}

static void add_op(struct op_case *c, enum atsi_op_kind kind, int32_t in, int32_t in1, int32_t out, int32_t tensor) {
    struct atsi_op *op = op_case_op(c, kind);
    op->in[0] = op_case_view(c, in);
    if (in1 != ATSI_NONE) op->in[1] = op_case_view(c, in1);
    op->out[0] = op_case_view(c, out);
    op->tensor[0] = tensor;
}

// Matrices that share an input, an input that changes between two of them, results that feed the next: what a device may
// keep of a quantised input and what not.
static void chain_case(const struct suite *s, enum atsi_dtype dtype) {
    enum {
        WIDTH = 512,
        TOKENS = 37
    };
    struct test_random r = {3};
    struct quant_rng rng = {4};
    struct op_case c;
    op_case_init(&c, TOKENS, 0);
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
    gpu_case_check(&c, s->device, (const uint32_t[]){TOKENS, 1, 16, 4}, 4, 3e-3, atsi_dtype_name(dtype));
    op_case_free(&c);
}

static void chains(void **state) {
    chain_case(*state, ATSI_Q4_K);
    chain_case(*state, ATSI_Q8_0);
    chain_case(*state, ATSI_F16);
}

static void experts_case(const struct suite *s, enum atsi_dtype dtype, uint32_t n_tokens, uint32_t n_experts,
                         uint32_t n_used) {
    enum {
        HIDDEN = 256,
        ROWS = 256
    };
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
    int32_t up = op_case_buffer(&c, n_used * ROWS, ATSI_ROWS_TOKENS, false, &r, 1.0f);
    int32_t down = op_case_buffer(&c, n_used * 40, ATSI_ROWS_TOKENS, false, &r, 1.0f),
            out = op_case_buffer(&c, 40, ATSI_ROWS_TOKENS, false, &r, 1.0f);
    int32_t w_up = gpu_case_weight(&c, dtype, HIDDEN, ROWS, n_experts, QUANT_RANDOM, &rng),
            b_up = op_case_tensor(&c, ROWS, n_experts, 1, &r, 0.3f);
    int32_t w_down = gpu_case_weight(&c, dtype, ROWS, 40, n_experts, QUANT_RANDOM, &rng);
    struct atsi_op *op = op_case_op(&c, ATSI_OP_ROUTER);
    op->in[0] = op_case_view(&c, logits);
    op->out[0] = op_case_view(&c, ids);
    op->out[1] = op_case_view(&c, weights);
    op->u.router = (struct atsi_router_params){n_experts, n_used, ATSI_ROUTER_SOFTMAX, true, 1.0f};
    add_op(&c, ATSI_OP_EXPERTS, x, ids, up, w_up);
    c.program.ops[1].tensor[1] = b_up;
    c.program.ops[1].u.experts = (struct atsi_experts_params){n_experts, n_used, false};
    add_op(&c, ATSI_OP_EXPERTS, up, ids, down, w_down);
    c.program.ops[2].u.experts = (struct atsi_experts_params){n_experts, n_used, true};
    add_op(&c, ATSI_OP_EXPERT_SUM, down, weights, out, ATSI_NONE);
    c.program.ops[3].add = true;
    gpu_case_check(&c, s->device, (const uint32_t[]){n_tokens, 3}, 2, 3e-3, what);
    op_case_free(&c);
}

static void experts(void **state) {
    const struct suite *s = *state;
    for (int i = 0; i < N_TYPES; i++) {
        experts_case(s, TYPES[i], 1, 6, 2);
        experts_case(s, TYPES[i], 21, 6, 3);
        if (!s->small) experts_case(s, TYPES[i], 300, 32, 4);
    }
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
    gpu_case_check(&c, s->device, (const uint32_t[]){19, 1}, 2, 1e-6, what);
    op_case_free(&c);
}

static void embeddings(void **state) {
    for (int i = 0; i < N_TYPES; i++) embed_case(*state, TYPES[i]);
}

// ---- rows ----------------------------------------------------------------------------------------------------------------

static void norm_case(const struct suite *s, uint32_t group, uint32_t n_groups, bool add, bool in_place,
                      bool weighted) {
    char what[80];
    snprintf(what, sizeof what, "norm %u groups of %u", n_groups, group);
    struct test_random r = {group};
    struct op_case c;
    op_case_init(&c, 9, 0);
    uint32_t width = group * n_groups;
    int32_t in = op_case_buffer(&c, width + 5, ATSI_ROWS_TOKENS, false, &r, 3.0f);
    int32_t out = in_place ? in : op_case_buffer(&c, width, ATSI_ROWS_TOKENS, false, &r, 1.0f);
    int32_t weight = weighted ? op_case_tensor(&c, group, 1, 1, &r, 1.0f) : ATSI_NONE;
    struct atsi_op *op = op_case_op(&c, ATSI_OP_RMS_NORM);
    op->in[0] = (struct atsi_view){in, 2, width};
    op->out[0] = (struct atsi_view){out, in_place ? 2 : 0, width};
    op->tensor[0] = weight;
    op->add = add;
    op->u.norm = (struct atsi_norm_params){group, 1e-5f};
    gpu_case_check(&c, s->device, (const uint32_t[]){9, 1, 4}, 3, 1e-6, what);
    op_case_free(&c);
}

static void norms(void **state) {
    norm_case(*state, 64, 1, false, false, true);
    norm_case(*state, 1, 3, false, false, true);
    norm_case(*state, 37, 3, true, false, true);
    norm_case(*state, 128, 40, false, true, false);
    norm_case(*state, 5120, 1, false, false, true);
    norm_case(*state, 3000, 1, true, false, true);
}

static void rows_ops(void **state) {
    const struct suite *s = *state;
    struct test_random r = {8};
    for (uint32_t width = 5; width <= 1024; width = width * 4 + 12) {
        struct op_case c;
        op_case_init(&c, 9, 3);
        int32_t a = op_case_buffer(&c, width, ATSI_ROWS_TOKENS, false, &r, 4.0f),
                b = op_case_buffer(&c, width, ATSI_ROWS_TOKENS, false, &r, 4.0f);
        int32_t y = op_case_buffer(&c, width, ATSI_ROWS_TOKENS, false, &r, 1.0f),
                gates = op_case_buffer(&c, 3, ATSI_ROWS_TOKENS, false, &r, 3.0f);
        int32_t wide = op_case_buffer(&c, 3 * width, ATSI_ROWS_TOKENS, false, &r, 2.0f),
                sums = op_case_buffer(&c, width, ATSI_ROWS_TOKENS, false, &r, 1.0f);
        int32_t picked = op_case_buffer(&c, width, ATSI_ROWS_OUTPUTS, false, &r, 1.0f);
        for (int act = ATSI_GLU_SILU; act <= ATSI_GLU_CLAMPED; act++) {
            add_op(&c, ATSI_OP_GLU, a, b, act == ATSI_GLU_SILU ? y : a, ATSI_NONE);
            c.program.ops[c.program.n_ops - 1].u.glu = (struct atsi_glu_params){(enum atsi_glu_act)act, 1.702f, 7.0f};
        }
        add_op(&c, ATSI_OP_GATE, wide, gates, wide, ATSI_NONE);
        add_op(&c, ATSI_OP_EXPERT_SUM, wide, gates, sums, ATSI_NONE);
        c.program.ops[c.program.n_ops - 1].add = width % 2 != 0;
        add_op(&c, ATSI_OP_ADD, y, sums, y, ATSI_NONE);
        add_op(&c, ATSI_OP_SELECT, y, ATSI_NONE, picked, ATSI_NONE);
        memcpy(c.output_rows, (const int32_t[]){8, 0, 3}, 3 * sizeof(int32_t));
        gpu_case_check(&c, s->device, (const uint32_t[]){9}, 1, 2e-6, "glu, gate, expert sum, add, select");
        op_case_free(&c);
    }
}

static void rope_case(const struct suite *s, enum atsi_rope_pairing pairing, uint32_t head_dim, uint32_t n_rot,
                      bool in_place) {
    struct test_random r = {n_rot};
    struct op_case c;
    op_case_init(&c, 8, 0);
    int32_t in = op_case_buffer(&c, 3 * head_dim, ATSI_ROWS_TOKENS, false, &r, 2.0f);
    int32_t out = in_place ? in : op_case_buffer(&c, 3 * head_dim, ATSI_ROWS_TOKENS, false, &r, 1.0f);
    int32_t table = op_case_tensor(&c, n_rot / 2, 1, 1, &r, 9000.0f); // large angles, as at far positions
    add_op(&c, ATSI_OP_ROPE, in, ATSI_NONE, out, table);
    c.program.ops[0].u.rope = (struct atsi_rope_params){3, head_dim, n_rot, pairing, 1.25f};
    gpu_case_check(&c, s->device, (const uint32_t[]){8, 1}, 2, 2e-6, "rope");
    op_case_free(&c);
}

static void ropes(void **state) {
    for (int pairing = 0; pairing < 2; pairing++) {
        rope_case(*state, (enum atsi_rope_pairing)pairing, 128, 128, false);
        rope_case(*state, (enum atsi_rope_pairing)pairing, 40, 10, true);
        rope_case(*state, (enum atsi_rope_pairing)pairing, 81, 34, false);
    }
}

static void router_case(const struct suite *s, enum atsi_router_score score, uint32_t n_experts, uint32_t n_used,
                        bool biased, bool normalise) {
    struct test_random r = {n_experts + (uint32_t)score};
    struct op_case c;
    op_case_init(&c, 11, 0);
    int32_t logits = op_case_buffer(&c, n_experts, ATSI_ROWS_TOKENS, false, &r, 2.0f);
    int32_t ids = op_case_buffer(&c, n_used, ATSI_ROWS_TOKENS, true, NULL, 0),
            weights = op_case_buffer(&c, n_used, ATSI_ROWS_TOKENS, false, &r, 1.0f);
    int32_t bias = biased ? op_case_tensor(&c, n_experts, 1, 1, &r, 0.5f) : ATSI_NONE;
    for (uint32_t e = 0; e < n_experts; e++) c.buffers[logits][e] = (float)(e % 2); // ties go to the lower number
    struct atsi_op *op = op_case_op(&c, ATSI_OP_ROUTER);
    op->in[0] = op_case_view(&c, logits);
    op->out[0] = op_case_view(&c, ids);
    op->out[1] = op_case_view(&c, weights);
    op->tensor[0] = bias;
    op->u.router = (struct atsi_router_params){n_experts, n_used, score, normalise, 2.5f};
    gpu_case_check(&c, s->device, (const uint32_t[]){11, 1}, 2, 2e-6, "router");
    op_case_free(&c);
}

static void routers(void **state) {
    for (int score = ATSI_ROUTER_SOFTMAX; score <= ATSI_ROUTER_SOFTMAX_SELECTED; score++) {
        router_case(*state, (enum atsi_router_score)score, 128, 8, false, true);
        router_case(*state, (enum atsi_router_score)score, 33, 33, true, false);
        router_case(*state, (enum atsi_router_score)score, 512, 40, true, true);
        router_case(*state, (enum atsi_router_score)score, 4, 1, false, false);
    }
}

// ---- sequences -----------------------------------------------------------------------------------------------------------

static void conv_case(const struct suite *s, uint32_t n_tokens, uint32_t n_channels, uint32_t n_taps, bool in_place) {
    struct test_random r = {n_channels};
    struct op_case c;
    op_case_init(&c, n_tokens, 0);
    int32_t in = op_case_buffer(&c, n_channels, ATSI_ROWS_TOKENS, false, &r, 1.0f);
    int32_t out = in_place ? in : op_case_buffer(&c, n_channels, ATSI_ROWS_TOKENS, false, &r, 1.0f);
    int32_t kernel = op_case_tensor(&c, n_taps, n_channels, 1, &r, 1.0f);
    add_op(&c, ATSI_OP_CONV, in, ATSI_NONE, out, kernel);
    c.program.ops[0].state = op_case_state(&c, ATSI_STATE_CONV, 1, n_channels, n_taps - 1, 0);
    gpu_case_check(&c, s->device, (const uint32_t[]){n_tokens, 1, 7, 50}, 4, 2e-6, "convolution");
    op_case_free(&c);
}

static void convolutions(void **state) {
    conv_case(*state, 75, 300, 4, false);
    conv_case(*state, 120, 64, 4, true);
    conv_case(*state, 9, 5, 3, false);
}

static void delta_case(const struct suite *s, uint32_t n_k_heads, uint32_t n_v_heads, uint32_t k_dim, uint32_t v_dim,
                       bool tiled) {
    struct test_random r = {k_dim};
    struct op_case c;
    op_case_init(&c, 21, 0);
    int32_t qk = op_case_buffer(&c, 2 * n_k_heads * k_dim, ATSI_ROWS_TOKENS, false, &r, 1.0f);
    int32_t v = op_case_buffer(&c, n_v_heads * v_dim, ATSI_ROWS_TOKENS, false, &r, 1.0f);
    int32_t beta = op_case_buffer(&c, n_v_heads, ATSI_ROWS_TOKENS, false, &r, 1.0f),
            alpha = op_case_buffer(&c, n_v_heads, ATSI_ROWS_TOKENS, false, &r, 2.0f);
    int32_t out = op_case_buffer(&c, n_v_heads * v_dim, ATSI_ROWS_TOKENS, false, &r, 1.0f);
    int32_t rate = op_case_tensor(&c, n_v_heads, 1, 1, &r, 1.0f), bias = op_case_tensor(&c, n_v_heads, 1, 1, &r, 1.0f);
    for (uint32_t h = 0; h < n_v_heads; h++) ((float *)c.tensors[rate])[h] = -fabsf(((float *)c.tensors[rate])[h]);
    struct atsi_op *op = op_case_op(&c, ATSI_OP_DELTA_RULE);
    op->in[0] = (struct atsi_view){qk, 0, n_k_heads * k_dim};
    op->in[1] = (struct atsi_view){qk, n_k_heads * k_dim, n_k_heads * k_dim};
    op->in[2] = op_case_view(&c, v);
    op->in[3] = op_case_view(&c, beta);
    op->in[4] = op_case_view(&c, alpha);
    op->out[0] = op_case_view(&c, out);
    op->tensor[0] = rate;
    op->tensor[1] = bias;
    op->state = op_case_state(&c, ATSI_STATE_DELTA, n_v_heads, k_dim, v_dim, 0);
    op->u.delta = (struct atsi_delta_params){n_k_heads, n_v_heads, tiled, 1e-6f};
    gpu_case_check(&c, s->device, (const uint32_t[]){21, 1, 8}, 3, 1e-5, "delta rule");
    op_case_free(&c);
}

static void delta_rules(void **state) {
    delta_case(*state, 2, 4, 128, 128, false);
    delta_case(*state, 2, 4, 16, 80, true);
    delta_case(*state, 3, 3, 5, 7, true);
}

struct attention_shape {
    uint32_t n_heads, n_kv_heads, k_dim, v_dim, window, n_tokens;
    bool sinks;
};

static void attention_case(const struct suite *s, struct attention_shape a, enum atsi_dtype kv_type) {
    char what[100];
    snprintf(what, sizeof what, "attention %u/%u heads of %u, %s%s, window %u, %u tokens", a.n_heads, a.n_kv_heads,
             a.k_dim, atsi_dtype_name(kv_type), a.sinks ? ", sinks" : "", a.window, a.n_tokens);
    struct test_random r = {a.k_dim + a.n_tokens};
    struct op_case c;
    op_case_init(&c, a.n_tokens, 0);
    c.kv_type = kv_type;
    uint32_t longest = a.n_tokens;
    c.capacity = a.window != 0 ? a.window + longest : longest + 8; // positions start at 5
    int32_t q = op_case_buffer(&c, a.n_heads * a.k_dim, ATSI_ROWS_TOKENS, false, &r, 1.0f),
            k = op_case_buffer(&c, a.n_kv_heads * a.k_dim, ATSI_ROWS_TOKENS, false, &r, 1.0f);
    int32_t v = op_case_buffer(&c, a.n_kv_heads * a.v_dim, ATSI_ROWS_TOKENS, false, &r, 1.0f),
            out = op_case_buffer(&c, a.n_heads * a.v_dim, ATSI_ROWS_TOKENS, false, &r, 1.0f);
    struct atsi_op *op = op_case_op(&c, ATSI_OP_ATTENTION);
    op->in[0] = op_case_view(&c, q);
    op->in[1] = op_case_view(&c, k);
    op->in[2] = op_case_view(&c, v);
    op->out[0] = op_case_view(&c, out);
    if (a.sinks) op->tensor[0] = op_case_tensor(&c, a.n_heads, 1, 1, &r, 1.0f);
    op->state = op_case_state(&c, ATSI_STATE_KV, a.n_kv_heads, a.k_dim, a.v_dim, a.window);
    op->u.attention = (struct atsi_attention_params){a.n_heads, a.n_kv_heads, 1.5f / sqrtf((float)a.k_dim)};
    gpu_case_check(&c, s->device, (const uint32_t[]){a.n_tokens, 1, 24}, 3,
                   kv_type == ATSI_F32   ? 3e-6
                   : kv_type == ATSI_F16 ? HALF_TOLERANCE
                                         : CODES_TOLERANCE,
                   what);
    op_case_free(&c);
}

static void attention(void **state) {
    const struct suite *s = *state;
    static const struct attention_shape SHAPES[] = {
        {8, 2, 64, 64, 0, 60, false},       {6, 2, 80, 80, 0, 45, true},     {4, 4, 96, 96, 9, 70, false},
        {10, 2, 128, 128, 0, 90, true},     {4, 1, 256, 256, 0, 50, false},  {16, 2, 64, 64, 33, 130, true},
        {3, 1, 48, 48, 0, 40, false},       {4, 2, 64, 32, 7, 40, true},     {40, 8, 128, 128, 0, 700, false},
        {16, 4, 256, 256, 128, 600, false}, {64, 8, 64, 64, 128, 500, true},
    };
    for (size_t i = 0; i < sizeof SHAPES / sizeof *SHAPES; i++) {
        if (s->small && SHAPES[i].n_tokens > 150) continue;
        attention_case(s, SHAPES[i], ATSI_F16);
        attention_case(s, SHAPES[i], ATSI_F32);
        if (SHAPES[i].k_dim % 32 == 0) attention_case(s, SHAPES[i], ATSI_Q8_0);
    }
}

// ---- the interface ---------------------------------------------------------------------------------------------------------

static void refused_memory_is_not_sticky(void **state) {
    struct atsi_device *d = ((struct suite *)*state)->device;
    struct atsi_error err = {.status = ATSI_OK};
    void *dev = NULL;
    assert_int_equal(d->ops->alloc(d, (uint64_t)1 << 50, &dev, &err), ATSI_FAILED);
    check_message(err, "refused");
    check_ok(d->ops->alloc(d, 4096, &dev, &err), err);
    assert_int_equal((uintptr_t)dev % 256, 0);
    d->ops->free(d, dev);
}

// What is behind a range comes from the card and goes back to it, chunk by chunk; the beginning stays as it is and where it is.
static void ranges_give_memory_back(void **state) {
    enum {
        SIZE = 200 << 20,
        KEPT = 70 << 20,
        WORDS = 4
    };
    const struct suite *s = *state;
    const struct atsi_device_ops *ops = s->device->ops;
    struct atsi_error err = {.status = ATSI_OK};
    struct atsi_range *r;
    struct atsi_stream *stream;
    uint64_t at_first, full, less;
    uint32_t in[WORDS] = {1, 2, 3, 4}, out[WORDS] = {0};
    check_ok(ops->stream_create(s->device, &stream, &err), err);
    check_ok(ops->free_bytes(s->device, &at_first, &err), err);
    check_ok(ops->range_create(s->device, SIZE, &r, &err), err);
    check_ok(ops->range_back(s->device, r, SIZE, &err), err);
    assert_true(r->backed_bytes >= SIZE);
    check_ok(ops->free_bytes(s->device, &full, &err), err);
    char *last = (char *)r->dev + SIZE - sizeof in, *kept = (char *)r->dev + KEPT - sizeof in;
    check_ok(ops->copy_to_device(stream, last, in, sizeof in, &err), err);
    check_ok(ops->copy_to_device(stream, kept, in, sizeof in, &err), err);
    check_ok(ops->stream_sync(stream, &err), err);
    if (r->chunk_bytes) { // another program may use the card too, so the figures are no more than likely
        assert_in_range(at_first - full, SIZE / 2, 2 * (uint64_t)SIZE);
        check_ok(ops->range_back(s->device, r, KEPT, &err), err);
        check_ok(ops->free_bytes(s->device, &less, &err), err);
        assert_in_range(r->backed_bytes, KEPT, KEPT + r->chunk_bytes - 1);
        assert_in_range(less - full, (SIZE - KEPT) / 2, SIZE);
        check_ok(ops->range_back(s->device, r, SIZE, &err), err);
        check_ok(ops->copy_to_device(stream, last, in, sizeof in, &err), err);
    }
    assert_int_equal(ops->range_back(s->device, r, r->size_bytes + 1, &err), ATSI_FAILED); // not sticky
    check_ok(ops->copy_to_host(stream, out, kept, sizeof out, &err), err);
    check_ok(ops->stream_sync(stream, &err), err);
    assert_memory_equal(in, out, sizeof in);
    ops->range_destroy(s->device, r);
    ops->stream_destroy(stream);
}

// A read-only shared mapping of a file without write permission becomes pinned memory that a copy reads.
static void mapped_file_is_registered(void **state) {
    enum {
        BYTES = 1 << 20
    };
    struct atsi_device *d = ((struct suite *)*state)->device;
    struct atsi_error err = {.status = ATSI_OK};
    struct atsi_device_info info;
    check_ok(d->ops->info(d, &info, &err), err);
    printf("# %s: %.1f GiB, %.1f free, process %.0f MiB, %d copy engines, registers files: %s\n", info.name,
           info.total_bytes / 0x1p30, info.free_bytes / 0x1p30, info.used_by_process_bytes / 0x1p20,
           info.n_copy_engines, info.can_register_host ? "yes" : "no");
    if (!info.can_register_host) skip();
    char path[] = "/tmp/atsi-test-XXXXXX";
    int fd = mkstemp(path);
    unlink(path);
    uint32_t *written = malloc(BYTES), *back = calloc(1, BYTES);
    for (uint32_t i = 0; i < BYTES / 4; i++) written[i] = i * 2654435761u;
    assert_int_equal(write(fd, written, BYTES), BYTES);
    void *map = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(map, MAP_FAILED);
    const void *registered = NULL;
    struct atsi_stream *s = NULL;
    void *dev = NULL;
    check_ok(d->ops->host_register(d, map, BYTES, &registered, &err), err);
    check_ok(d->ops->stream_create(d, &s, &err), err);
    check_ok(d->ops->alloc(d, BYTES, &dev, &err), err);
    check_ok(d->ops->copy_to_device(s, dev, map, BYTES, &err), err);
    check_ok(d->ops->copy_to_host(s, back, dev, BYTES, &err), err);
    check_ok(d->ops->stream_sync(s, &err), err);
    assert_memory_equal(back, written, BYTES);
    d->ops->host_unregister(d, map);
    d->ops->free(d, dev);
    d->ops->stream_destroy(s);
    munmap(map, BYTES);
    close(fd);
    free(written);
    free(back);
}

static void rows_move_through_mapped_memory(void **state) {
    enum {
        WIDTH = 37,
        ROWS = 11,
        STRIDE = 50
    };
    struct atsi_device *d = ((struct suite *)*state)->device;
    struct atsi_error err = {.status = ATSI_OK};
    struct atsi_stream *s = NULL;
    struct atsi_event *e = NULL;
    void *host = NULL, *mapped = NULL, *dev = NULL;
    check_ok(d->ops->stream_create(d, &s, &err), err);
    check_ok(d->ops->event_create(d, false, &e, &err), err);
    check_ok(d->ops->event_sync(e, &err), err); // never recorded: passed
    check_ok(d->ops->host_alloc(d, 2 * ROWS * STRIDE * 4, &host, &mapped, &err), err);
    check_ok(d->ops->alloc(d, ROWS * STRIDE * 4, &dev, &err), err);
    float *from = host, *to = from + ROWS * STRIDE;
    for (int i = 0; i < ROWS * STRIDE; i++) from[i] = (float)i, to[i] = -1;
    check_ok(d->ops->copy_rows(s, dev, WIDTH, mapped, STRIDE, WIDTH, ROWS, &err), err);
    check_ok(d->ops->copy_rows(s, (float *)mapped + ROWS * STRIDE, STRIDE, dev, WIDTH, WIDTH, ROWS, &err), err);
    check_ok(d->ops->event_record(e, s, &err), err);
    check_ok(d->ops->event_sync(e, &err), err);
    for (int i = 0; i < ROWS * STRIDE; i++) assert_true(to[i] == (i % STRIDE < WIDTH ? (float)i : -1));
    d->ops->host_free(d, host);
    d->ops->free(d, dev);
    d->ops->event_destroy(e);
    d->ops->stream_destroy(s);
}

// A weight type without a kernel is refused by name and leaves the device usable.
static void unsupported_type_is_named(void **state) {
    struct suite *s = *state;
    struct atsi_error err = {.status = ATSI_OK};
    struct atsi_stream *stream = NULL;
    struct atsi_tensor weight = {
        .name = "blk.0.w", .dtype = ATSI_IQ2_XXS, .layout = ATSI_LAYOUT_PLAIN, .ne = {256, 16, 1, 1}};
    struct atsi_op op = {.kind = ATSI_OP_MATMUL};
    struct atsi_op_call call = {.op = &op, .in = {{&op, 256, 256}}, .out = {{&op, 16, 16}}, .tensor = {{&op, &weight}}};
    struct atsi_round round = {.n_tokens = 1};
    check_ok(s->device->ops->stream_create(s->device, &stream, &err), err);
    assert_int_equal(s->device->ops->launch(stream, &call, &round, &err), ATSI_FAILED);
    check_message(err, "IQ2_XXS", "blk.0.w");
    check_ok(s->device->ops->stream_sync(stream, &err), err);
    s->device->ops->stream_destroy(stream);
}

int main(int argc, char **argv) {
    struct suite suite = {.small = argc > 1 && strcmp(argv[1], "small") == 0};
    struct atsi_error err = {.status = ATSI_OK};
    if (atsi_cuda_open(&suite.device, &err) != ATSI_OK) {
        fprintf(stderr, "test_cuda: %s\n", err.text);
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(refused_memory_is_not_sticky, &suite),
        cmocka_unit_test_prestate(ranges_give_memory_back, &suite),
        cmocka_unit_test_prestate(mapped_file_is_registered, &suite),
        cmocka_unit_test_prestate(rows_move_through_mapped_memory, &suite),
        cmocka_unit_test_prestate(unsupported_type_is_named, &suite),
        cmocka_unit_test_prestate(norms, &suite),
        cmocka_unit_test_prestate(rows_ops, &suite),
        cmocka_unit_test_prestate(ropes, &suite),
        cmocka_unit_test_prestate(routers, &suite),
        cmocka_unit_test_prestate(embeddings, &suite),
        cmocka_unit_test_prestate(matrices, &suite),
        cmocka_unit_test_prestate(chains, &suite),
        cmocka_unit_test_prestate(experts, &suite),
        cmocka_unit_test_prestate(convolutions, &suite),
        cmocka_unit_test_prestate(delta_rules, &suite),
        cmocka_unit_test_prestate(attention, &suite),
    };
    int n_failed = cmocka_run_group_tests_name("cuda", tests, NULL, NULL);
    suite.device->ops->close(suite.device);
    return n_failed;
}
