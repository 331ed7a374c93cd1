#include "tests/support/program_builder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/check.h"

enum {
    WIDTH = 320,
    HEADS = 2,
    HEAD_DIM = 160,
    EXPERTS = 4,
    USED = 2,
    FFN = 320,
    VOCAB = 48
};

static int32_t tensor(struct atsi_program *p, const char *name, uint64_t ne0, uint64_t ne1, uint64_t ne2) {
    struct atsi_tensor t = {.dtype = ATSI_F32, .layout = ATSI_LAYOUT_PLAIN, .ne = {ne0, ne1, ne2, 1}};
    snprintf(t.name, sizeof t.name, "%s", name);
    t.size_bytes = atsi_layout_bytes(t.dtype, t.layout, t.ne);
    return atsi_program_add_tensor(p, &t);
}

static struct atsi_view view(int32_t buffer, uint32_t width) { return (struct atsi_view){buffer, 0, width}; }

static struct atsi_op *op(struct atsi_program *p, enum atsi_op_kind kind) {
    struct atsi_op o = {.kind = kind, .state = ATSI_NONE};
    for (int i = 0; i < ATSI_OP_MAX_IN; i++) o.in[i].buffer = ATSI_NONE;
    for (int i = 0; i < ATSI_OP_MAX_OUT; i++) o.out[i].buffer = ATSI_NONE;
    for (int i = 0; i < ATSI_OP_MAX_TENSORS; i++) o.tensor[i] = ATSI_NONE;
    int32_t index = atsi_program_add_op(p, &o);
    return &p->ops[index];
}

static void matmul(struct atsi_program *p, const char *name, int32_t in, uint32_t n_in, int32_t out, uint32_t n_out,
                   bool add) {
    int32_t t = tensor(p, name, n_in, n_out, 1);
    struct atsi_op *o = op(p, ATSI_OP_MATMUL);
    o->in[0] = view(in, n_in);
    o->out[0] = view(out, n_out);
    o->tensor[0] = t;
    o->add = add;
}

static void unit(struct atsi_program *p, const char *name, enum atsi_unit_kind kind, uint32_t n_ops,
                 int32_t router_unit) {
    struct atsi_unit u = {
        .kind = kind, .layer = 0, .first_op = p->n_ops - n_ops, .n_ops = n_ops, .router_unit = router_unit};
    snprintf(u.name, sizeof u.name, "%s", name);
    for (uint32_t i = u.first_op; i < p->n_ops; i++)
        for (int k = 0; k < ATSI_OP_MAX_TENSORS; k++)
            if (p->ops[i].tensor[k] != ATSI_NONE) u.weight_bytes += p->tensors[p->ops[i].tensor[k]].size_bytes;
    atsi_program_add_unit(p, &u);
}

static void norm(struct atsi_program *p, int32_t in, int32_t out) {
    struct atsi_op *o = op(p, ATSI_OP_RMS_NORM);
    o->in[0] = view(in, WIDTH);
    o->out[0] = view(out, WIDTH);
    o->u.norm = (struct atsi_norm_params){WIDTH, 1e-5f};
}

static void build_attention(struct atsi_program *p, int32_t x, int32_t h) {
    int32_t q = atsi_program_add_buffer(p, "q", WIDTH, ATSI_ROWS_TOKENS, false);
    int32_t k = atsi_program_add_buffer(p, "k", HEAD_DIM, ATSI_ROWS_TOKENS, false);
    int32_t v = atsi_program_add_buffer(p, "v", HEAD_DIM, ATSI_ROWS_TOKENS, false);
    int32_t a = atsi_program_add_buffer(p, "attention", WIDTH, ATSI_ROWS_TOKENS, false);
    struct atsi_state kv = {.name = "kv.0", .kind = ATSI_STATE_KV, .n_heads = 1, .k_dim = HEAD_DIM, .v_dim = HEAD_DIM};
    int32_t state = atsi_program_add_state(p, &kv);
    norm(p, x, h);
    matmul(p, "q", h, WIDTH, q, WIDTH, false);
    unit(p, "q", ATSI_UNIT_MATRIX, 2, ATSI_NONE);
    matmul(p, "k", h, WIDTH, k, HEAD_DIM, false);
    unit(p, "k", ATSI_UNIT_MATRIX, 1, ATSI_NONE);
    matmul(p, "v", h, WIDTH, v, HEAD_DIM, false);
    unit(p, "v", ATSI_UNIT_MATRIX, 1, ATSI_NONE);
    struct atsi_op *o = op(p, ATSI_OP_ATTENTION);
    o->in[0] = view(q, WIDTH);
    o->in[1] = view(k, HEAD_DIM);
    o->in[2] = view(v, HEAD_DIM);
    o->out[0] = view(a, WIDTH);
    o->state = state;
    o->u.attention = (struct atsi_attention_params){HEADS, 1, 0.25f};
    unit(p, "attention", ATSI_UNIT_STATE, 1, ATSI_NONE);
    matmul(p, "o", a, WIDTH, x, WIDTH, true);
}

// Products with experts: of the whole row, or of each slot what it has in `in`.
static void experts(struct atsi_program *p, const char *name, struct atsi_view in, bool in_per_slot, int32_t ids,
                    int32_t out, uint32_t n_out) {
    int32_t t = tensor(p, name, in_per_slot ? in.width / USED : in.width, n_out, EXPERTS);
    struct atsi_op *o = op(p, ATSI_OP_EXPERTS);
    o->in[0] = in;
    o->in[1] = view(ids, USED);
    o->out[0] = view(out, USED * n_out);
    o->tensor[0] = t;
    o->u.experts = (struct atsi_experts_params){EXPERTS, USED, in_per_slot};
}

struct routed {
    int32_t unit, ids, weights;
};

// The end of the output projection's unit: the norm and the router.
static struct routed build_router(struct atsi_program *p, int32_t x, int32_t h) {
    int32_t logits = atsi_program_add_buffer(p, "router", EXPERTS, ATSI_ROWS_TOKENS, false);
    struct routed r = {.ids = atsi_program_add_buffer(p, "ids", USED, ATSI_ROWS_TOKENS, true),
                       .weights = atsi_program_add_buffer(p, "weights", USED, ATSI_ROWS_TOKENS, false)};
    norm(p, x, h);
    matmul(p, "gate_inp", h, WIDTH, logits, EXPERTS, false);
    struct atsi_op *o = op(p, ATSI_OP_ROUTER);
    o->in[0] = view(logits, EXPERTS);
    o->out[0] = view(r.ids, USED);
    o->out[1] = view(r.weights, USED);
    o->u.router = (struct atsi_router_params){EXPERTS, USED, ATSI_ROUTER_SOFTMAX, true, 1.0f};
    unit(p, "o", ATSI_UNIT_MATRIX, 4, ATSI_NONE);
    r.unit = (int32_t)p->n_units - 1;
    return r;
}

static void sum_experts(struct atsi_program *p, const struct routed *r, int32_t slots, int32_t x) {
    struct atsi_op *o = op(p, ATSI_OP_EXPERT_SUM);
    o->in[0] = view(slots, USED * WIDTH);
    o->in[1] = view(r->weights, USED);
    o->in[2] = view(r->ids, USED);
    o->out[0] = view(x, WIDTH);
    o->add = true;
}

static void build_experts(struct atsi_program *p, int32_t x, int32_t h) {
    struct routed r = build_router(p, x, h);
    int32_t slots = atsi_program_add_buffer(p, "slots", USED * WIDTH, ATSI_ROWS_TOKENS, false);
    experts(p, "exps", view(h, WIDTH), false, r.ids, slots, WIDTH);
    sum_experts(p, &r, slots, x);
    unit(p, "exps", ATSI_UNIT_EXPERTS, 2, r.unit);
}

static void build_gated_experts(struct atsi_program *p, int32_t x, int32_t h) {
    struct routed r = build_router(p, x, h);
    int32_t gate = atsi_program_add_buffer(p, "gate", USED * FFN, ATSI_ROWS_TOKENS, false);
    int32_t up = atsi_program_add_buffer(p, "up", USED * FFN, ATSI_ROWS_TOKENS, false);
    int32_t slots = atsi_program_add_buffer(p, "slots", USED * WIDTH, ATSI_ROWS_TOKENS, false);
    experts(p, "gate_exps", view(h, WIDTH), false, r.ids, gate, FFN);
    unit(p, "gate_exps", ATSI_UNIT_EXPERTS, 1, r.unit);
    experts(p, "up_exps", view(h, WIDTH), false, r.ids, up, FFN);
    struct atsi_op *o = op(p, ATSI_OP_GLU);
    o->in[0] = view(gate, USED * FFN);
    o->in[1] = view(up, USED * FFN);
    o->out[0] = view(up, USED * FFN);
    unit(p, "up_exps", ATSI_UNIT_EXPERTS, 2, r.unit);
    experts(p, "down_exps", view(up, USED * FFN), true, r.ids, slots, WIDTH);
    sum_experts(p, &r, slots, x);
    unit(p, "down_exps", ATSI_UNIT_EXPERTS, 2, r.unit);
}

struct stream { // the residual stream and its norm
    int32_t x, h;
};

static struct stream begin_plan(struct atsi_plan *plan) {
    memset(plan, 0, sizeof *plan);
    struct atsi_program *p = &plan->program;
    plan->limits = (struct atsi_plan_limits){.n_ctx = 64, .chunk = 8, .n_outputs = 2, .kv_type = ATSI_F16};
    strcpy(plan->model.arch, "test");
    strcpy(plan->certificate.milp_status, "skipped");
    struct stream s = {.x = atsi_program_add_buffer(p, "x", WIDTH, ATSI_ROWS_TOKENS, false),
                       .h = atsi_program_add_buffer(p, "h", WIDTH, ATSI_ROWS_TOKENS, false)};
    int32_t table = tensor(p, "token_embd", WIDTH, VOCAB, 1);
    struct atsi_op *o = op(p, ATSI_OP_EMBED);
    o->out[0] = view(s.x, WIDTH);
    o->tensor[0] = table;
    o->u.embed_scale = 1.0f;
    unit(p, "token_embd", ATSI_UNIT_EMBED, 1, ATSI_NONE);
    return s;
}

static void end_plan(struct atsi_plan *plan, int32_t x) {
    struct atsi_program *p = &plan->program;
    int32_t y = atsi_program_add_buffer(p, "y", WIDTH, ATSI_ROWS_OUTPUTS, false);
    p->logits = atsi_program_add_buffer(p, "logits", VOCAB, ATSI_ROWS_OUTPUTS, false);
    p->n_vocab = VOCAB;
    struct atsi_op *o = op(p, ATSI_OP_SELECT);
    o->in[0] = view(x, WIDTH);
    o->out[0] = view(y, WIDTH);
    norm(p, y, y);
    matmul(p, "output", y, WIDTH, p->logits, VOCAB, false);
    unit(p, "output", ATSI_UNIT_HEAD, 3, ATSI_NONE);
    atsi_program_place_buffers(p, plan->limits.chunk, plan->limits.n_outputs, &plan->limits.compute_bytes, NULL);
}

void test_build_plan(struct atsi_plan *plan) {
    struct stream s = begin_plan(plan);
    build_attention(&plan->program, s.x, s.h);
    build_experts(&plan->program, s.x, s.h);
    end_plan(plan, s.x);
}

void test_build_gated_plan(struct atsi_plan *plan) {
    struct stream s = begin_plan(plan);
    build_attention(&plan->program, s.x, s.h);
    build_gated_experts(&plan->program, s.x, s.h);
    end_plan(plan, s.x);
}

static void build_layer(struct atsi_program *p, struct stream s, int32_t gate, int32_t up) {
    norm(p, s.x, s.h);
    matmul(p, "mix", s.h, WIDTH, s.x, WIDTH, true);
    unit(p, "mix", ATSI_UNIT_MATRIX, 2, ATSI_NONE);
    norm(p, s.x, s.h);
    matmul(p, "gate", s.h, WIDTH, gate, FFN, false);
    unit(p, "gate", ATSI_UNIT_MATRIX, 2, ATSI_NONE);
    matmul(p, "up", s.h, WIDTH, up, FFN, false);
    struct atsi_op *o = op(p, ATSI_OP_GLU);
    o->in[0] = view(gate, FFN);
    o->in[1] = view(up, FFN);
    o->out[0] = view(up, FFN);
    unit(p, "up", ATSI_UNIT_MATRIX, 2, ATSI_NONE);
    matmul(p, "down", up, FFN, s.x, WIDTH, true);
    unit(p, "down", ATSI_UNIT_MATRIX, 1, ATSI_NONE);
}

void test_build_dense_plan(struct atsi_plan *plan, uint32_t n_layers) {
    struct stream s = begin_plan(plan);
    struct atsi_program *p = &plan->program;
    int32_t gate = atsi_program_add_buffer(p, "gate", FFN, ATSI_ROWS_TOKENS, false);
    int32_t up = atsi_program_add_buffer(p, "up", FFN, ATSI_ROWS_TOKENS, false);
    for (uint32_t l = 0; l < n_layers; l++) build_layer(p, s, gate, up);
    end_plan(plan, s.x);
}

void check_plan_refused(const struct atsi_plan *plan, const char *word) {
    struct atsi_plan back;
    struct atsi_error err = {0};
    char *json;
    size_t size;
    check_ok(atsi_plan_to_json(plan, &json, &size, &err), err);
    check_refused(atsi_plan_from_json(json, size, &back, &err), err, word);
    free(json);
    atsi_plan_free(&back);
}
