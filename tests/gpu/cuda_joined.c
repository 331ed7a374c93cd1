// Operations that go in one launch with their neighbours: the same bits as alone where the order of sums is the same, the CPU's results
// anyway.
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/cuda_suite.h"
#include "tests/support/check.h"
#include "tests/support/gpu_case.h"

// ---- a router's scores and its choice ------------------------------------------------------------------------------------

struct router_shape {
    uint32_t n_cols, n_experts, n_used;
    bool normed, biased;
};

// Two routers one behind the other: the second finds the launch's counter as the first has left it. What a norm leaves quantised is read by
// a product behind the router.
static void router_case(const struct suite *s, struct router_shape a) {
    enum {
        TOKENS = 3
    };
    char what[80];
    snprintf(what, sizeof what, "scores %u x %u, %u chosen%s%s", a.n_cols, a.n_experts, a.n_used,
             a.normed ? ", norm" : "", a.biased ? ", biases" : "");
    struct test_random r = {a.n_cols + a.n_experts};
    struct op_case c;
    op_case_init(&c, TOKENS, 0);
    for (int i = 0; i < 2; i++) {
        int32_t x = op_case_buffer(&c, a.n_cols, ATSI_ROWS_TOKENS, false, &r, 1.0f), h = x;
        int32_t logits = op_case_buffer(&c, a.n_experts, ATSI_ROWS_TOKENS, false, &r, 1.0f),
                ids = op_case_buffer(&c, a.n_used, ATSI_ROWS_TOKENS, true, NULL, 0),
                weights = op_case_buffer(&c, a.n_used, ATSI_ROWS_TOKENS, false, &r, 1.0f);
        if (a.normed) {
            h = op_case_buffer(&c, a.n_cols, ATSI_ROWS_TOKENS, false, &r, 1.0f);
            add_op(&c, ATSI_OP_RMS_NORM, x, ATSI_NONE, h, op_case_tensor(&c, a.n_cols, 1, 1, &r, 1.0f));
            c.program.ops[c.program.n_ops - 1].u.norm = (struct atsi_norm_params){a.n_cols, 1e-6f};
        }
        add_op(&c, ATSI_OP_MATMUL, h, ATSI_NONE, logits, op_case_tensor(&c, a.n_cols, a.n_experts, 1, &r, 0.1f));
        if (a.biased) c.program.ops[c.program.n_ops - 1].tensor[1] = op_case_tensor(&c, a.n_experts, 1, 1, &r, 0.3f);
        add_op(&c, ATSI_OP_ROUTER, logits, ATSI_NONE, ids,
               a.biased ? op_case_tensor(&c, a.n_experts, 1, 1, &r, 0.1f) : ATSI_NONE);
        c.program.ops[c.program.n_ops - 1].out[1] = op_case_view(&c, weights);
        c.program.ops[c.program.n_ops - 1].u.router = (struct atsi_router_params){
            a.n_experts, a.n_used, i == 0 ? ATSI_ROUTER_SOFTMAX : ATSI_ROUTER_SOFTMAX_SELECTED, true, 1.5f};
        if (a.n_cols % 32 != 0) continue;
        int32_t out = op_case_buffer(&c, 48, ATSI_ROWS_TOKENS, false, &r, 1.0f);
        add_op(&c, ATSI_OP_MATMUL, h, ATSI_NONE, out, op_case_q8_0(&c, a.n_cols, 48, &r, 0.1f));
    }
    gpu_case_check(&c, s->device, (const uint32_t[]){single(s, TOKENS), single(s, TOKENS), TOKENS}, 3, 3e-3, what);
    gpu_case_check_alone(&c, s->device, single(s, TOKENS), what);
    op_case_free(&c);
}

void scores_and_routers(void **state) {
    const struct suite *s = *state;
    router_case(s, (struct router_shape){100, 6, 2, true, true});
    router_case(s, (struct router_shape){64, 33, 33, false, false});
    router_case(s, (struct router_shape){2048, 128, 8, true, false});
    router_case(s, (struct router_shape){2880, 32, 4, true, true});
    router_case(s, (struct router_shape){2048, 128, 8, false, true});
    router_case(s, (struct router_shape){2051, 128, 8, true, false}); // rows that are not aligned do not join
    if (s->small) return;
    router_case(s, (struct router_shape){4096, 512, 10, true, true});
    router_case(s, (struct router_shape){96, 256, 8, true, false});
    router_case(s, (struct router_shape){7168, 1024, 8, true, false}); // too wide for a norm in every block
}

// ---- sums of experts and their norms -------------------------------------------------------------------------------------

static void sum_case(const struct suite *s, uint32_t width, uint32_t n_slots, bool add) {
    enum {
        TOKENS = 9
    };
    char what[80];
    snprintf(what, sizeof what, "norm of %u sums of %u%s", width, n_slots, add ? ", added" : "");
    struct test_random r = {width + n_slots};
    struct op_case c;
    op_case_init(&c, TOKENS, 0);
    int32_t slots = op_case_buffer(&c, n_slots * width, ATSI_ROWS_TOKENS, false, &r, 2.0f),
            weights = op_case_buffer(&c, n_slots, ATSI_ROWS_TOKENS, false, &r, 1.0f),
            ids = op_case_buffer(&c, n_slots, ATSI_ROWS_TOKENS, true, NULL, 0);
    int32_t x = op_case_buffer(&c, width, ATSI_ROWS_TOKENS, false, &r, 1.0f),
            h = op_case_buffer(&c, width, ATSI_ROWS_TOKENS, false, &r, 1.0f),
            out = op_case_buffer(&c, 40, ATSI_ROWS_TOKENS, false, &r, 1.0f);
    for (uint32_t i = 0; i < TOKENS * n_slots; i++)
        ((int32_t *)(void *)c.buffers[ids])[i] = (int32_t)test_random_below(&r, 40);
    add_op(&c, ATSI_OP_EXPERT_SUM, slots, weights, x, ATSI_NONE);
    c.program.ops[0].in[2] = op_case_view(&c, ids);
    c.program.ops[0].add = add;
    add_op(&c, ATSI_OP_RMS_NORM, x, ATSI_NONE, h, op_case_tensor(&c, width, 1, 1, &r, 1.0f));
    c.program.ops[1].u.norm = (struct atsi_norm_params){width, 1e-6f};
    if (width % 32 == 0) add_op(&c, ATSI_OP_MATMUL, h, ATSI_NONE, out, op_case_q8_0(&c, width, 40, &r, 0.1f));
    // A last-bit difference before a rounding to int8 is a whole step behind it.
    gpu_case_check(&c, s->device, (const uint32_t[]){TOKENS, single(s, TOKENS), 3}, 3, 3e-3, what);
    gpu_case_check_alone(&c, s->device, single(s, TOKENS), what);
    if (!s->small) gpu_case_check_alone(&c, s->device, 4, what);
    op_case_free(&c);
}

void sums_and_norms(void **state) {
    const struct suite *s = *state;
    sum_case(s, 64, 1, false);
    sum_case(s, 100, 5, true);
    sum_case(s, 37, 2, true); // does not join
    sum_case(s, 2048, 8, true);
    sum_case(s, 2880, 4, true);
    if (s->small) return;
    sum_case(s, 5120, 10, true);
    sum_case(s, 8192, 32, false);
    sum_case(s, 256, 40, true); // nor do these: too many slots, too wide
    sum_case(s, 12288, 3, true);
}

// ---- heads between products ----------------------------------------------------------------------------------------------

// As a layer has them: every product is followed by its heads' norm and rotation. With `crossed` k's product reads what q's heads leave, so
// that it must not go ahead of them.
static void heads_case(const struct suite *s, enum atsi_dtype dtype, enum atsi_dtype v_dtype, enum atsi_dtype kv_type,
                       bool normed, bool crossed) {
    enum {
        N_HEADS = 8,
        N_KV_HEADS = 2,
        DIM = 64,
        TOKENS = 21,
        HIDDEN = 512
    };
    char what[100];
    snprintf(what, sizeof what, "heads between products, %s and %s, %s cache%s%s", atsi_dtype_name(dtype),
             atsi_dtype_name(v_dtype), atsi_dtype_name(kv_type), normed ? ", norms" : "", crossed ? ", crossed" : "");
    struct test_random r = {(uint32_t)dtype + 1};
    struct quant_rng rng = {(uint64_t)dtype + 1};
    struct op_case c;
    op_case_init(&c, TOKENS, 0);
    c.kv_type = kv_type;
    c.capacity = TOKENS + 8;
    const uint32_t widths[3] = {N_HEADS * DIM, N_KV_HEADS * DIM, N_KV_HEADS * DIM};
    int32_t x = op_case_buffer(&c, HIDDEN, ATSI_ROWS_TOKENS, false, &r, 1.0f),
            h = op_case_buffer(&c, HIDDEN, ATSI_ROWS_TOKENS, false, &r, 1.0f), rows[3];
    for (int i = 0; i < 3; i++) rows[i] = op_case_buffer(&c, widths[i], ATSI_ROWS_TOKENS, false, &r, 1.0f);
    int32_t mixed = op_case_buffer(&c, N_HEADS * DIM, ATSI_ROWS_TOKENS, false, &r, 1.0f),
            out = op_case_buffer(&c, HIDDEN, ATSI_ROWS_TOKENS, false, &r, 1.0f);
    int32_t norm = op_case_tensor(&c, DIM, 1, 1, &r, 1.0f), table = op_case_tensor(&c, DIM / 2, 1, 1, &r, 1.0f);
    add_op(&c, ATSI_OP_RMS_NORM, x, ATSI_NONE, h, op_case_tensor(&c, HIDDEN, 1, 1, &r, 0.3f));
    c.program.ops[0].u.norm = (struct atsi_norm_params){HIDDEN, 1e-6f};
    for (int i = 0; i < 3; i++) {
        enum atsi_dtype type = i == 2 ? v_dtype : dtype;
        add_op(&c, ATSI_OP_MATMUL, crossed && i == 1 ? rows[0] : h, ATSI_NONE, rows[i],
               gpu_case_weight(&c, type, HIDDEN, widths[i], 1, QUANT_RANDOM, &rng));
        if (normed && i < 2) {
            add_op(&c, ATSI_OP_RMS_NORM, rows[i], ATSI_NONE, rows[i], norm);
            c.program.ops[c.program.n_ops - 1].u.norm = (struct atsi_norm_params){DIM, 1e-6f};
        }
        if (i == 2) continue;
        add_op(&c, ATSI_OP_ROPE, rows[i], ATSI_NONE, rows[i], table);
        c.program.ops[c.program.n_ops - 1].u.rope =
            (struct atsi_rope_params){widths[i] / DIM, DIM, DIM, ATSI_ROPE_HALF_SPLIT, 1.0f};
    }
    add_attention(&c, &(struct attention_heads){N_HEADS, N_KV_HEADS, DIM, DIM, 0, 0.125f}, rows[0], rows[1], rows[2],
                  mixed);
    add_op(&c, ATSI_OP_MATMUL, mixed, ATSI_NONE, out,
           gpu_case_weight(&c, dtype, N_HEADS * DIM, HIDDEN, 1, QUANT_RANDOM, &rng));
    gpu_case_check(&c, s->device, (const uint32_t[]){TOKENS, single(s, TOKENS), 7}, 3, 2 * CODES_TOLERANCE, what);
    op_case_free(&c);
}

void heads_in_order(void **state) {
    const struct suite *s = *state;
    heads_case(s, ATSI_Q4_K, ATSI_Q6_K, ATSI_F16, true, false);
    heads_case(s, ATSI_Q8_0, ATSI_Q8_0, ATSI_Q8_0, false, false);
    heads_case(s, ATSI_Q4_K, ATSI_Q4_K, ATSI_F16, true, true);
    if (s->small) return;
    heads_case(s, ATSI_F16, ATSI_F16, ATSI_F32, true, false);
    heads_case(s, ATSI_F32, ATSI_Q4_K, ATSI_F16, true, false);
    heads_case(s, ATSI_IQ3_S, ATSI_Q6_K, ATSI_F16, true, true);
    heads_case(s, ATSI_Q4_K, ATSI_F16, ATSI_Q8_0, true, false);
}

// ---- layers of experts ---------------------------------------------------------------------------------------------------

enum {
    LAYERS = 3,
    EMBED = 512,
    FFN = 256
};

// What the layers share, as those of a program do.
struct layer_buffers {
    int32_t h, logits, ids, weights, gate, up, slots, x, normed;
};

static struct atsi_op *experts_op(struct op_case *c, int32_t in, int32_t ids, int32_t out, int32_t weight,
                                  struct atsi_experts_params params) {
    add_op(c, ATSI_OP_EXPERTS, in, ids, out, weight);
    struct atsi_op *op = &c->program.ops[c->program.n_ops - 1];
    op->u.experts = params;
    return op;
}

static void add_layer(struct op_case *c, const struct layer_buffers *b, enum atsi_dtype dtype, uint32_t n_experts,
                      uint32_t n_used, struct test_random *r, struct quant_rng *rng) {
    const struct atsi_experts_params wide = {n_experts, n_used, false}, narrow = {n_experts, n_used, true};
    int32_t own = op_case_buffer(c, EMBED, ATSI_ROWS_TOKENS, false, r,
                                 1.0f), // no choice hangs on another layer's roundings
        out = op_case_buffer(c, 40, ATSI_ROWS_TOKENS, false, r, 1.0f);
    add_op(c, ATSI_OP_RMS_NORM, own, ATSI_NONE, b->h, op_case_tensor(c, EMBED, 1, 1, r, 1.0f));
    c->program.ops[c->program.n_ops - 1].u.norm = (struct atsi_norm_params){EMBED, 1e-6f};
    add_op(c, ATSI_OP_MATMUL, b->h, ATSI_NONE, b->logits, op_case_tensor(c, EMBED, n_experts, 1, r, 0.1f));
    add_op(c, ATSI_OP_ROUTER, b->logits, ATSI_NONE, b->ids, ATSI_NONE);
    c->program.ops[c->program.n_ops - 1].out[1] = op_case_view(c, b->weights);
    c->program.ops[c->program.n_ops - 1].u.router =
        (struct atsi_router_params){n_experts, n_used, ATSI_ROUTER_SOFTMAX, true, 1.0f};
    int32_t w[3];
    for (int i = 0; i < 2; i++) w[i] = gpu_case_weight(c, dtype, EMBED, FFN, n_experts, QUANT_RANDOM, rng);
    w[2] = gpu_case_weight(c, dtype, FFN, EMBED, n_experts, QUANT_RANDOM, rng);
    experts_op(c, b->h, b->ids, b->gate, w[0], wide);
    experts_op(c, b->h, b->ids, b->up, w[1], wide);
    add_op(c, ATSI_OP_GLU, b->gate, b->up, b->gate, ATSI_NONE);
    experts_op(c, b->gate, b->ids, b->slots, w[2], narrow);
    add_op(c, ATSI_OP_EXPERT_SUM, b->slots, b->weights, b->x, ATSI_NONE);
    c->program.ops[c->program.n_ops - 1].in[2] = op_case_view(c, b->ids);
    c->program.ops[c->program.n_ops - 1].add = true;
    add_op(c, ATSI_OP_RMS_NORM, b->x, ATSI_NONE, b->normed, op_case_tensor(c, EMBED, 1, 1, r, 1.0f));
    c->program.ops[c->program.n_ops - 1].u.norm = (struct atsi_norm_params){EMBED, 1e-6f};
    add_op(c, ATSI_OP_MATMUL, b->normed, ATSI_NONE, out, op_case_q8_0(c, EMBED, 40, r, 0.1f));
}

static void layers_case(const struct suite *s, enum atsi_dtype dtype, uint32_t n_experts, uint32_t n_used) {
    enum {
        TOKENS = 6
    };
    char what[80];
    snprintf(what, sizeof what, "layers of experts %s, %u of %u", atsi_dtype_name(dtype), n_used, n_experts);
    struct test_random r = {n_experts};
    struct quant_rng rng = {(uint64_t)dtype + 5};
    struct op_case c;
    op_case_init(&c, TOKENS, 0);
    const struct layer_buffers b = {.h = op_case_buffer(&c, EMBED, ATSI_ROWS_TOKENS, false, &r, 1.0f),
                                    .logits = op_case_buffer(&c, n_experts, ATSI_ROWS_TOKENS, false, &r, 1.0f),
                                    .ids = op_case_buffer(&c, n_used, ATSI_ROWS_TOKENS, true, NULL, 0),
                                    .weights = op_case_buffer(&c, n_used, ATSI_ROWS_TOKENS, false, &r, 1.0f),
                                    .gate = op_case_buffer(&c, n_used * FFN, ATSI_ROWS_TOKENS, false, &r, 1.0f),
                                    .up = op_case_buffer(&c, n_used * FFN, ATSI_ROWS_TOKENS, false, &r, 1.0f),
                                    .slots = op_case_buffer(&c, n_used * EMBED, ATSI_ROWS_TOKENS, false, &r, 1.0f),
                                    .x = op_case_buffer(&c, EMBED, ATSI_ROWS_TOKENS, false, &r, 1.0f),
                                    .normed = op_case_buffer(&c, EMBED, ATSI_ROWS_TOKENS, false, &r, 1.0f)};
    for (int i = 0; i < LAYERS; i++) add_layer(&c, &b, dtype, n_experts, n_used, &r, &rng);
    gpu_case_check(&c, s->device, (const uint32_t[]){1, 1, TOKENS}, 3, 2 * CODES_TOLERANCE, what);
    op_case_free(&c);
}

void layers_of_experts(void **state) {
    const struct suite *s = *state;
    layers_case(s, ATSI_Q4_K, 16, 4);
    if (s->small) return;
    layers_case(s, ATSI_MXFP4, 32, 4);
    layers_case(s, ATSI_Q6_K, 24, 8);
    layers_case(s, ATSI_IQ3_S, 8, 2);
    layers_case(s, ATSI_F16, 8, 3);
}

// ---- experts' gate, up and activation -------------------------------------------------------------------------------------

struct glu_shape {
    enum atsi_dtype dtype;
    uint32_t n_cols, n_rows, n_experts, n_used; // of gate and up
    struct atsi_glu_params glu;
    bool biased, apart; // apart: the result does not replace gate's rows
};

// The codes of h, which gate and up read, are needed once more behind those of the activation.
static void glu_case(const struct suite *s, struct glu_shape a) {
    enum {
        TOKENS = 6
    };
    char what[100];
    snprintf(what, sizeof what, "gate, up and activation %d, %s %u x %u, %u of %u", (int)a.glu.act,
             atsi_dtype_name(a.dtype), a.n_cols, a.n_rows, a.n_used, a.n_experts);
    struct test_random r = {a.n_cols + a.n_rows};
    struct quant_rng rng = {(uint64_t)a.dtype + 9};
    struct op_case c;
    op_case_init(&c, TOKENS, 0);
    int32_t x = op_case_buffer(&c, a.n_cols, ATSI_ROWS_TOKENS, false, &r, 1.0f),
            h = op_case_buffer(&c, a.n_cols, ATSI_ROWS_TOKENS, false, &r, 1.0f),
            logits = op_case_buffer(&c, a.n_experts, ATSI_ROWS_TOKENS, false, &r, 1.0f),
            ids = op_case_buffer(&c, a.n_used, ATSI_ROWS_TOKENS, true, NULL, 0),
            weights = op_case_buffer(&c, a.n_used, ATSI_ROWS_TOKENS, false, &r, 1.0f), rows[3],
            down = op_case_buffer(&c, a.n_used * 40, ATSI_ROWS_TOKENS, false, &r, 1.0f),
            out = op_case_buffer(&c, 48, ATSI_ROWS_TOKENS, false, &r, 1.0f);
    for (int i = 0; i < 3; i++) rows[i] = op_case_buffer(&c, a.n_used * a.n_rows, ATSI_ROWS_TOKENS, false, &r, 1.0f);
    add_op(&c, ATSI_OP_ROUTER, logits, ATSI_NONE, ids, ATSI_NONE);
    c.program.ops[0].out[1] = op_case_view(&c, weights);
    c.program.ops[0].u.router = (struct atsi_router_params){a.n_experts, a.n_used, ATSI_ROUTER_SOFTMAX, true, 1.0f};
    add_op(&c, ATSI_OP_RMS_NORM, x, ATSI_NONE, h, op_case_tensor(&c, a.n_cols, 1, 1, &r, 1.0f));
    c.program.ops[1].u.norm = (struct atsi_norm_params){a.n_cols, 1e-6f};
    for (int i = 0; i < 2; i++) {
        struct atsi_op *op = experts_op(
            &c, h, ids, rows[i], gpu_case_weight(&c, a.dtype, a.n_cols, a.n_rows, a.n_experts, QUANT_RANDOM, &rng),
            (struct atsi_experts_params){a.n_experts, a.n_used, false});
        if (a.biased) op->tensor[1] = op_case_tensor(&c, a.n_rows, a.n_experts, 1, &r, 0.3f);
    }
    int32_t active = rows[a.apart ? 2 : 0];
    add_op(&c, ATSI_OP_GLU, rows[0], rows[1], active, ATSI_NONE);
    c.program.ops[c.program.n_ops - 1].u.glu = a.glu;
    experts_op(&c, active, ids, down, gpu_case_weight(&c, a.dtype, a.n_rows, 40, a.n_experts, QUANT_RANDOM, &rng),
               (struct atsi_experts_params){a.n_experts, a.n_used, true});
    add_op(&c, ATSI_OP_MATMUL, h, ATSI_NONE, out, op_case_q8_0(&c, a.n_cols, 48, &r, 0.1f));
    gpu_case_check(&c, s->device, (const uint32_t[]){TOKENS, single(s, TOKENS), 3}, 3, 2 * CODES_TOLERANCE, what);
    // With few tiles all three products have a warp a group, so sums have one order.
    if (a.n_cols <= 1024 && a.n_rows <= 256) gpu_case_check_alone(&c, s->device, 1, what);
    op_case_free(&c);
}

void activations_of_experts(void **state) {
    const struct suite *s = *state;
    const struct atsi_glu_params silu = {ATSI_GLU_SILU, 0, 0}, gelu = {ATSI_GLU_GELU_TANH, 0, 0},
                                 clamped = {ATSI_GLU_CLAMPED, 1.702f, 7};
    glu_case(s, (struct glu_shape){ATSI_MXFP4, 352, 64, 6, 2, clamped, true, false}); // a group that is not full
    glu_case(s, (struct glu_shape){ATSI_Q4_K, 1024, 256, 6, 2, silu, false, true});
    if (s->small) return;
    glu_case(s, (struct glu_shape){ATSI_Q8_0, 768, 96, 8, 4, gelu, true, false});
    glu_case(s, (struct glu_shape){ATSI_IQ4_NL, 64, 32, 8, 8, clamped, true, true});
    glu_case(s, (struct glu_shape){ATSI_Q4_0, 992, 160, 3, 1, silu, true, false});
    glu_case(s, (struct glu_shape){ATSI_Q6_K, 512, 256, 8, 3, silu, false, false});
    glu_case(s, (struct glu_shape){ATSI_Q2_K, 1024, 256, 5, 2, gelu, true, false});
    glu_case(s, (struct glu_shape){ATSI_Q3_K, 256, 256, 5, 2, silu, false, true});
    glu_case(s, (struct glu_shape){ATSI_Q5_K, 768, 512, 5, 2, silu, false, false});
    glu_case(s, (struct glu_shape){ATSI_IQ4_XS, 512, 256, 5, 2, silu, false, false});
    glu_case(s, (struct glu_shape){ATSI_Q4_K, 2048, 768, 9, 8, silu, false, false});
    glu_case(s, (struct glu_shape){ATSI_MXFP4, 2880, 2880, 5, 4, clamped, true, false});
    glu_case(s, (struct glu_shape){ATSI_Q5_1, 64, 96, 4, 2, silu, false, false});
}

// ---- copies and marks ----------------------------------------------------------------------------------------------------

enum {
    WIDTH = 1028,
    N_SLOTS = 5,
    SLOT = 260,
    N_ROUNDS = 200
};

// What lies in mapped memory.
struct meeting {
    int32_t from_host, from_device; // marks
    int32_t mine[N_SLOTS];
    float in[WIDTH], slots[N_SLOTS * SLOT], back[WIDTH], back_slots[N_SLOTS * SLOT];
};

// A round: the device waits for the host's mark, fetches a row and the slots that it lacks, hands back both and its mark.
static void record_round(const struct suite *s, struct atsi_stream *stream, const struct meeting *host, char *mapped,
                         float *dev, int32_t *dev_mine, const int32_t *base, struct atsi_error *err) {
    const struct atsi_device_ops *ops = s->device->ops;
#define AT(member) (mapped + ((const char *)host->member - (const char *)host))
    check_ok(ops->await_mark(stream, mapped, base, 1, err), *err);
    check_ok(ops->copy_rows(stream, dev, WIDTH, AT(in), WIDTH, WIDTH, 1, err), *err);
    check_ok(ops->copy_rows(stream, dev_mine, N_SLOTS, AT(mine), N_SLOTS, N_SLOTS, 1, err), *err);
    check_ok(ops->copy_slots(stream, dev + WIDTH, N_SLOTS * SLOT, AT(slots), N_SLOTS * SLOT, SLOT, N_SLOTS, dev_mine,
                             true, 1, err),
             *err);
    check_ok(ops->copy_rows(stream, AT(back), WIDTH, dev, WIDTH, WIDTH, 1, err), *err);
    check_ok(
        ops->copy_rows(stream, AT(back_slots), N_SLOTS * SLOT, dev + WIDTH, N_SLOTS * SLOT, N_SLOTS * SLOT, 1, err),
        *err);
    check_ok(ops->post_mark(stream, mapped + sizeof(int32_t), base, 1, err), *err);
#undef AT
}

static void fill_round(struct meeting *m, int round) {
    for (int i = 0; i < WIDTH; i++) m->in[i] = (float)(round * 7 + i);
    for (int i = 0; i < N_SLOTS * SLOT; i++) m->slots[i] = (float)(round * 11 + i);
    for (int k = 0; k < N_SLOTS; k++) m->mine[k] = (round + k) % 3 == 0 ? k : -1;
}

static void check_round(const struct meeting *m, float *kept, int round) {
    for (int k = 0; k < N_SLOTS; k++)
        if (m->mine[k] < 0) memcpy(kept + k * SLOT, m->slots + k * SLOT, SLOT * sizeof *kept);
    if (memcmp(m->back, m->in, sizeof m->in) != 0) fail_msg("round %d: the row came back otherwise", round);
    if (memcmp(m->back_slots, kept, sizeof m->slots) != 0) fail_msg("round %d: the slots came back otherwise", round);
}

// Captured once and replayed, while host and device hand every round to and fro. Where launches block, the host's mark comes first.
void copies_and_marks(void **state) {
    const struct suite *s = *state;
    const struct atsi_device_ops *ops = s->device->ops;
    struct atsi_error err = {.status = ATSI_OK};
    struct atsi_stream *stream = NULL;
    void *host = NULL, *mapped = NULL, *graph = NULL, *memory[3] = {NULL};
    static float kept[N_SLOTS * SLOT];
    struct atsi_device_info info;
    check_ok(ops->info(s->device, &info, &err), err);
    check_ok(ops->stream_create(s->device, &stream, &err), err);
    check_ok(ops->host_alloc(s->device, sizeof(struct meeting), &host, &mapped, &err), err);
    check_ok(ops->alloc(s->device, sizeof(struct meeting), &memory[0], &err), err);
    check_ok(ops->alloc(s->device, N_SLOTS * sizeof(int32_t), &memory[1], &err), err);
    check_ok(ops->alloc(s->device, sizeof(int32_t), &memory[2], &err), err);
    struct meeting *m = host;
    memset(m, 0, sizeof *m);
    memset(kept, 0, sizeof kept);
    check_ok(ops->copy_to_device(stream, memory[0], m, sizeof *m, &err), err);
    check_ok(ops->stream_sync(stream, &err), err);
    check_ok(ops->capture_begin(stream, &err), err);
    record_round(s, stream, m, mapped, memory[0], memory[1], memory[2], &err);
    check_ok(ops->capture_end(stream, &graph, &err), err);
    for (int32_t round = 0; round < (s->small ? 5 : N_ROUNDS); round++) {
        check_ok(ops->copy_to_device(stream, memory[2], &round, sizeof round, &err), err);
        check_ok(ops->stream_sync(stream, &err), err);
        if (!info.launches_block) check_ok(ops->graph_launch(stream, graph, &err), err);
        fill_round(m, round);
        __atomic_store_n(&m->from_host, round + 1, __ATOMIC_RELEASE);
        if (info.launches_block) check_ok(ops->graph_launch(stream, graph, &err), err);
        while (__atomic_load_n(&m->from_device, __ATOMIC_ACQUIRE) != round + 1) sched_yield();
        check_round(m, kept, round);
    }
    check_ok(ops->stream_sync(stream, &err), err);
    ops->graph_destroy(s->device, graph);
    for (int i = 0; i < 3; i++) ops->free(s->device, memory[i]);
    ops->host_free(s->device, host);
    ops->stream_destroy(stream);
}
