// Operations along a sequence: convolutions, delta rules, attention and what its heads go through before.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/cuda_suite.h"
#include "tests/support/check.h"
#include "tests/support/gpu_case.h"

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
    gpu_case_check(&c, s->device, (const uint32_t[]){n_tokens, single(s, n_tokens), 7, 50}, 4, 2e-6, "convolution");
    op_case_free(&c);
}

void convolutions(void **state) {
    conv_case(*state, 75, 300, 4, false);
    conv_case(*state, 120, 64, 4, true);
    conv_case(*state, 9, 5, 3, false);
}

static void delta_case(const struct suite *s, struct atsi_delta_params delta, uint32_t k_dim, uint32_t v_dim) {
    struct test_random r = {k_dim};
    struct op_case c;
    op_case_init(&c, 21, 0);
    op_case_delta_rule(&c, &delta, k_dim, v_dim, &r);
    gpu_case_check(&c, s->device, (const uint32_t[]){21, single(s, 21), 8}, 3, 1e-5, "delta rule");
    op_case_free(&c);
}

void delta_rules(void **state) {
    delta_case(*state, (struct atsi_delta_params){2, 4, false, 1e-6f}, 128, 128);
    delta_case(*state, (struct atsi_delta_params){2, 4, true, 1e-6f}, 16, 80);
    delta_case(*state, (struct atsi_delta_params){3, 3, true, 1e-6f}, 5, 7);
}

struct atsi_op *add_attention(struct op_case *c, const struct attention_heads *heads, int32_t q, int32_t k, int32_t v,
                              int32_t out) {
    add_op(c, ATSI_OP_ATTENTION, q, k, out, ATSI_NONE);
    struct atsi_op *op = &c->program.ops[c->program.n_ops - 1];
    op->in[2] = op_case_view(c, v);
    op->state = op_case_state(c, ATSI_STATE_KV, heads->n_kv_heads, heads->k_dim, heads->v_dim, heads->window);
    op->u.attention = (struct atsi_attention_params){heads->n_heads, heads->n_kv_heads, heads->scale};
    return op;
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
    const struct attention_heads heads = {a.n_heads, a.n_kv_heads, a.k_dim,
                                          a.v_dim,   a.window,     1.5f / sqrtf((float)a.k_dim)};
    struct atsi_op *op = add_attention(&c, &heads, q, k, v, out);
    if (a.sinks) op->tensor[0] = op_case_tensor(&c, a.n_heads, 1, 1, &r, 1.0f);
    gpu_case_check(&c, s->device, (const uint32_t[]){a.n_tokens, single(s, a.n_tokens), 24}, 3,
                   kv_type == ATSI_F32   ? 3e-6
                   : kv_type == ATSI_F16 ? HALF_TOLERANCE
                                         : CODES_TOLERANCE,
                   what);
    op_case_free(&c);
}

void attention(void **state) {
    const struct suite *s = *state;
    static const struct attention_shape SHAPES[] = {
        {8, 2, 64, 64, 0, 60, false},     {6, 2, 80, 80, 0, 45, true},
        {4, 4, 96, 96, 9, 70, false},     {10, 2, 128, 128, 0, 90, true},
        {4, 1, 256, 256, 0, 50, false},   {16, 2, 64, 64, 33, 130, true},
        {3, 1, 48, 48, 0, 40, false},     {4, 2, 64, 32, 7, 40, true},
        {40, 8, 128, 128, 0, 700, false}, {16, 4, 256, 256, 128, 600, false},
        {64, 8, 64, 64, 128, 500, true},  {2, 1, 64, 64, 0, 4150, true}, // as many splits as there may be
    };
    for (size_t i = 0; i < sizeof SHAPES / sizeof *SHAPES; i++) {
        if (s->small && SHAPES[i].n_tokens > 150) continue;
        attention_case(s, SHAPES[i], ATSI_F16);
        // Of a F32 cache every shape takes the plain kernel, the only one where the sizes differ.
        if (!s->small || SHAPES[i].k_dim != SHAPES[i].v_dim) attention_case(s, SHAPES[i], ATSI_F32);
        if (SHAPES[i].k_dim % 32 == 0) attention_case(s, SHAPES[i], ATSI_Q8_0);
    }
}

// Norms and rotations of heads before an attention that reads them: what a device may collect into one launch and what not.
static void heads_case(const struct suite *s, enum atsi_dtype kv_type, bool normed, bool in_place, uint32_t n_rot) {
    enum {
        N_HEADS = 6,
        N_KV_HEADS = 2,
        DIM = 64,
        HIDDEN = 256
    };
    char what[100];
    snprintf(what, sizeof what, "heads, %s cache%s%s, %u rotated", atsi_dtype_name(kv_type), normed ? ", norms" : "",
             in_place ? "" : ", copied", n_rot);
    const uint32_t n_tokens = s->small ? 25 : 45;
    struct test_random r = {n_rot};
    struct op_case c;
    op_case_init(&c, n_tokens, 0);
    c.kv_type = kv_type;
    c.capacity = n_tokens + 8;
    const uint32_t widths[3] = {N_HEADS * DIM, N_KV_HEADS * DIM, N_KV_HEADS * DIM};
    int32_t x = op_case_buffer(&c, HIDDEN, ATSI_ROWS_TOKENS, false, &r, 1.0f), rows[3], turned[2];
    for (int i = 0; i < 3; i++) rows[i] = op_case_buffer(&c, widths[i], ATSI_ROWS_TOKENS, false, &r, 1.0f);
    for (int i = 0; i < 2; i++)
        turned[i] = in_place ? rows[i] : op_case_buffer(&c, widths[i], ATSI_ROWS_TOKENS, false, &r, 1.0f);
    int32_t out = op_case_buffer(&c, N_HEADS * DIM, ATSI_ROWS_TOKENS, false, &r, 1.0f);
    int32_t norm = op_case_tensor(&c, DIM, 1, 1, &r, 1.0f), table = op_case_tensor(&c, n_rot / 2, 1, 1, &r, 1.0f);
    for (int i = 0; i < 3; i++)
        add_op(&c, ATSI_OP_MATMUL, x, ATSI_NONE, rows[i], op_case_q8_0(&c, HIDDEN, widths[i], &r, 0.06f));
    for (int i = 0; i < 2 && normed; i++) {
        add_op(&c, ATSI_OP_RMS_NORM, rows[i], ATSI_NONE, rows[i], norm);
        c.program.ops[c.program.n_ops - 1].u.norm = (struct atsi_norm_params){DIM, 1e-6f};
    }
    for (int i = 0; i < 2; i++) {
        add_op(&c, ATSI_OP_ROPE, rows[i], ATSI_NONE, turned[i], table);
        c.program.ops[c.program.n_ops - 1].u.rope =
            (struct atsi_rope_params){widths[i] / DIM, DIM, n_rot, ATSI_ROPE_HALF_SPLIT, 1.0f};
    }
    add_attention(&c, &(struct attention_heads){N_HEADS, N_KV_HEADS, DIM, DIM, 0, 0.125f}, turned[0], turned[1],
                  rows[2], out);
    gpu_case_check(&c, s->device, (const uint32_t[]){n_tokens, single(s, n_tokens), 7}, 3,
                   kv_type == ATSI_F32   ? 1e-5
                   : kv_type == ATSI_F16 ? HALF_TOLERANCE
                                         : CODES_TOLERANCE,
                   what);
    op_case_free(&c);
}

void heads(void **state) {
    const struct suite *s = *state;
    static const enum atsi_dtype KV_TYPES[] = {ATSI_F16, ATSI_Q8_0, ATSI_F32};
    for (int i = 0; i < 3; i++) {
        heads_case(s, KV_TYPES[i], true, true, 64);
        if (s->small && i > 0) continue; // what joins is the same for all of them
        heads_case(s, KV_TYPES[i], false, true, 32);
        heads_case(s, KV_TYPES[i], true, false, 64);
    }
}
