#include "tests/support/op_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/half.h"
#include "kernels/layout.h"
#include "tests/support/check.h"

uint32_t test_random_u32(struct test_random *r) {
    r->state = r->state * 6364136223846793005u + 1442695040888963407u;
    uint32_t x = (uint32_t)(((r->state >> 18) ^ r->state) >> 27), turn = (uint32_t)(r->state >> 59);
    return x >> turn | x << (-turn & 31);
}

uint32_t test_random_below(struct test_random *r, uint32_t n) {
    return (uint32_t)((uint64_t)test_random_u32(r) * n >> 32);
}

float test_random_normal(struct test_random *r) {
    double u = (test_random_u32(r) + 1.0) / 4294967297.0, v = test_random_u32(r) / 4294967296.0;
    return (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
}

static void *zeroed(size_t bytes) {
    void *p = calloc(1, bytes + 64);
    if (p == NULL) abort();
    return p;
}

void op_case_init(struct op_case *c, uint32_t n_tokens, uint32_t n_outputs) {
    memset(c, 0, sizeof *c);
    c->n_tokens = n_tokens;
    c->n_outputs = n_outputs;
    c->capacity = 4096;
    c->kv_type = ATSI_F32;
}

void op_case_free(struct op_case *c) {
    for (int i = 0; i < OP_CASE_CAP; i++) {
        free(c->buffers[i]);
        free(c->tensors[i]);
        free(c->resident[i]);
        free(c->states[i][0]);
        free(c->states[i][1]);
    }
    free(c->resident_slots);
    free(c->chosen);
    free(c->gpu_slots);
    free(c->mine);
    atsi_program_free(&c->program);
}

size_t op_case_rows(const struct op_case *c, int32_t buffer) {
    return c->program.buffers[buffer].rows == ATSI_ROWS_OUTPUTS ? c->n_outputs : c->n_tokens;
}

int32_t op_case_buffer(struct op_case *c, uint32_t width, enum atsi_rows rows, bool is_int, struct test_random *r,
                       float scale) {
    char name[32];
    snprintf(name, sizeof name, "buffer.%u", c->program.n_buffers);
    int32_t index = atsi_program_add_buffer(&c->program, name, width, rows, is_int);
    size_t n = op_case_rows(c, index) * width;
    c->buffers[index] = zeroed(n * sizeof(float));
    for (size_t i = 0; i < n && !is_int && r != NULL; i++) c->buffers[index][i] = scale * test_random_normal(r);
    return index;
}

int32_t op_case_tensor(struct op_case *c, uint64_t ne0, uint64_t ne1, uint64_t ne2, struct test_random *r,
                       float scale) {
    struct atsi_tensor t = {.dtype = ATSI_F32, .layout = ATSI_LAYOUT_PLAIN, .ne = {ne0, ne1, ne2, 1}};
    snprintf(t.name, sizeof t.name, "tensor.%u", c->program.n_tensors);
    t.size_bytes = atsi_layout_bytes(t.dtype, t.layout, t.ne);
    int32_t index = atsi_program_add_tensor(&c->program, &t);
    float *values = c->tensors[index] = zeroed((size_t)t.size_bytes);
    for (uint64_t i = 0; i < ne0 * ne1 * ne2; i++) values[i] = scale * test_random_normal(r);
    return index;
}

int32_t op_case_q8_0(struct op_case *c, uint64_t ne0, uint64_t ne1, struct test_random *r, float scale) {
    enum {
        BLOCK = 32,
        BLOCK_BYTES = 34
    };
    struct atsi_tensor t = {.dtype = ATSI_Q8_0, .layout = atsi_layout_of(ATSI_Q8_0), .ne = {ne0, ne1, 1, 1}};
    snprintf(t.name, sizeof t.name, "tensor.%u", c->program.n_tensors);
    t.size_bytes = atsi_layout_bytes(t.dtype, t.layout, t.ne);
    int32_t index = atsi_program_add_tensor(&c->program, &t);
    size_t n_blocks = (size_t)(ne0 / BLOCK * ne1);
    uint8_t *blocks = zeroed(n_blocks * BLOCK_BYTES);
    for (size_t b = 0; b < n_blocks; b++) {
        uint16_t d = atsi_f32_to_f16(scale / 64);
        memcpy(blocks + b * BLOCK_BYTES, &d, sizeof d);
        for (int i = 0; i < BLOCK; i++)
            blocks[b * BLOCK_BYTES + 2 + (size_t)i] = (uint8_t)(test_random_below(r, 255) - 127);
    }
    c->tensors[index] = zeroed((size_t)t.size_bytes);
    atsi_layout_pack(t.dtype, t.layout, blocks, ne1, ne0, c->tensors[index]);
    free(blocks);
    return index;
}

int32_t op_case_state(struct op_case *c, enum atsi_state_kind kind, uint32_t n_heads, uint32_t k_dim, uint32_t v_dim,
                      uint32_t window) {
    struct atsi_state s = {.kind = kind, .n_heads = n_heads, .k_dim = k_dim, .v_dim = v_dim, .window = window};
    snprintf(s.name, sizeof s.name, "state.%u", c->program.n_states);
    return atsi_program_add_state(&c->program, &s);
}

// Experts in random order, the first *n of them resident.
static uint32_t *choose_resident(uint32_t n_experts, float share, struct test_random *r, uint32_t *n) {
    uint32_t *ids = zeroed(n_experts * sizeof *ids);
    *n = 1 + (uint32_t)(share * (float)(n_experts - 1));
    for (uint32_t i = 0; i < n_experts; i++) { // from the inside out
        uint32_t k = test_random_below(r, i + 1);
        ids[i] = ids[k];
        ids[k] = i;
    }
    return ids;
}

void op_case_make_resident(struct op_case *c, uint32_t n_experts, float share, struct test_random *r) {
    uint32_t n, *ids = choose_resident(n_experts, share, r, &n);
    c->resident_slots = zeroed(n_experts * sizeof *c->resident_slots);
    c->n_resident_slots = n_experts;
    for (uint32_t i = 0; i < n_experts; i++) c->resident_slots[ids[i]] = i < n ? (int32_t)i : -1;
    for (uint32_t i = 0; i < c->program.n_ops; i++) {
        const struct atsi_op *op = &c->program.ops[i];
        if (op->kind != ATSI_OP_EXPERTS) continue;
        size_t bytes = (size_t)(c->program.tensors[op->tensor[0]].size_bytes / n_experts);
        uint8_t *all = c->tensors[op->tensor[0]], *block = zeroed(n * bytes);
        c->resident[op->tensor[0]] = block;
        for (uint32_t k = 0; k < n; k++) {
            memcpy(block + k * bytes, all + ids[k] * bytes, bytes);
            memset(all + ids[k] * bytes, 0xff, bytes);
        }
    }
    free(ids);
}

void op_case_drop_resident(struct op_case *c, int32_t tensor) {
    size_t bytes = (size_t)(c->program.tensors[tensor].size_bytes / c->n_resident_slots);
    for (uint32_t e = 0; e < c->n_resident_slots; e++)
        if (c->resident_slots[e] >= 0)
            memcpy((uint8_t *)c->tensors[tensor] + e * bytes,
                   (uint8_t *)c->resident[tensor] + (size_t)c->resident_slots[e] * bytes, bytes);
    free(c->resident[tensor]);
    c->resident[tensor] = NULL;
}

void op_case_count_chosen(struct op_case *c, uint32_t n_used) {
    c->n_chosen = c->n_tokens * n_used;
    c->chosen = zeroed(c->n_chosen * sizeof *c->chosen);
}

void op_case_divide(struct op_case *c, uint32_t n_used, bool least, uint32_t whole_ops, struct test_random *r) {
    free(c->gpu_slots);
    free(c->mine);
    c->n_mine = c->n_tokens * n_used;
    c->mine = zeroed(c->n_mine * sizeof *c->mine);
    c->gpu_slots = zeroed(n_used + 1);
    c->whole_ops = whole_ops;
    for (uint32_t i = 0; i <= n_used; i++)
        c->gpu_slots[i] = (uint8_t)(least ? i : i + test_random_below(r, n_used + 1 - i));
}

struct atsi_op *op_case_op(struct op_case *c, enum atsi_op_kind kind) {
    struct atsi_op op = {.kind = kind, .state = ATSI_NONE};
    for (int i = 0; i < ATSI_OP_MAX_IN; i++) op.in[i].buffer = ATSI_NONE;
    for (int i = 0; i < ATSI_OP_MAX_OUT; i++) op.out[i].buffer = ATSI_NONE;
    for (int i = 0; i < ATSI_OP_MAX_TENSORS; i++) op.tensor[i] = ATSI_NONE;
    int32_t index = atsi_program_add_op(&c->program, &op); // may move the array
    return &c->program.ops[index];
}

struct atsi_view op_case_view(const struct op_case *c, int32_t buffer) {
    return (struct atsi_view){buffer, 0, c->program.buffers[buffer].width};
}

struct atsi_op *op_case_norm(struct op_case *c, const struct op_case_norm *norm, struct test_random *r) {
    const uint32_t width = norm->group * norm->n_groups, beside = 5;
    int32_t in = op_case_buffer(c, width + beside, ATSI_ROWS_TOKENS, false, r, 3.0f), out = in;
    if (!norm->in_place)
        out = op_case_buffer(c, width + (norm->out_is_part ? beside : 0), ATSI_ROWS_TOKENS, false, r, 1.0f);
    struct atsi_op *op = op_case_op(c, ATSI_OP_RMS_NORM);
    op->in[0] = (struct atsi_view){in, 2, width};
    op->out[0] = (struct atsi_view){out, norm->in_place ? 2 : norm->out_is_part ? 3 : 0, width};
    if (norm->weighted) op->tensor[0] = op_case_tensor(c, norm->group, 1, 1, r, 1.0f);
    op->add = norm->add;
    op->u.norm = (struct atsi_norm_params){norm->group, 1e-5f};
    return op;
}

struct atsi_op *op_case_delta_rule(struct op_case *c, const struct atsi_delta_params *delta, uint32_t k_dim,
                                   uint32_t v_dim, struct test_random *r) {
    const uint32_t n_v_heads = delta->n_v_heads, qk_width = delta->n_k_heads * k_dim, v_width = n_v_heads * v_dim;
    int32_t qk = op_case_buffer(c, 2 * qk_width, ATSI_ROWS_TOKENS, false, r, 1.0f);
    int32_t v = op_case_buffer(c, v_width, ATSI_ROWS_TOKENS, false, r, 1.0f);
    int32_t beta = op_case_buffer(c, n_v_heads, ATSI_ROWS_TOKENS, false, r, 1.0f),
            alpha = op_case_buffer(c, n_v_heads, ATSI_ROWS_TOKENS, false, r, 2.0f);
    int32_t out = op_case_buffer(c, v_width, ATSI_ROWS_TOKENS, false, r, 1.0f);
    int32_t rate = op_case_tensor(c, n_v_heads, 1, 1, r, 1.0f), bias = op_case_tensor(c, n_v_heads, 1, 1, r, 1.0f);
    float *rates = c->tensors[rate];
    for (uint32_t h = 0; h < n_v_heads; h++) rates[h] = -fabsf(rates[h]); // states decay
    struct atsi_op *op = op_case_op(c, ATSI_OP_DELTA_RULE);
    op->in[0] = (struct atsi_view){qk, 0, qk_width};
    op->in[1] = (struct atsi_view){qk, qk_width, qk_width};
    op->in[2] = op_case_view(c, v);
    op->in[3] = op_case_view(c, beta);
    op->in[4] = op_case_view(c, alpha);
    op->out[0] = op_case_view(c, out);
    op->tensor[0] = rate;
    op->tensor[1] = bias;
    op->state = op_case_state(c, ATSI_STATE_DELTA, n_v_heads, k_dim, v_dim, 0);
    op->u.delta = *delta;
    return op;
}

float *op_case_copy(const struct op_case *c, int32_t buffer) {
    size_t bytes = op_case_rows(c, buffer) * c->program.buffers[buffer].width * sizeof(float);
    return memcpy(zeroed(bytes), c->buffers[buffer], bytes);
}

void op_case_restore(struct op_case *c, int32_t buffer, const float *rows) {
    memcpy(c->buffers[buffer], rows, op_case_rows(c, buffer) * c->program.buffers[buffer].width * sizeof(float));
}

static size_t key_bytes(const struct op_case *c, const struct atsi_state *s) {
    if (s->kind != ATSI_STATE_KV) return (size_t)s->n_heads * s->k_dim * s->v_dim * sizeof(float);
    return (size_t)c->capacity * s->n_heads * (size_t)atsi_dtype_row_bytes(c->kv_type, s->k_dim);
}

static void reset_states(struct op_case *c) {
    for (uint32_t i = 0; i < c->program.n_states; i++) {
        const struct atsi_state *s = &c->program.states[i];
        free(c->states[i][0]);
        free(c->states[i][1]);
        c->states[i][0] = zeroed(key_bytes(c, s));
        c->states[i][1] = zeroed((size_t)c->capacity * s->n_heads * (size_t)atsi_dtype_row_bytes(c->kv_type, s->v_dim));
    }
}

struct atsi_op *op_case_router(struct op_case *c, const struct atsi_router_params *router, bool biased,
                               struct test_random *r) {
    int32_t logits = op_case_buffer(c, router->n_experts, ATSI_ROWS_TOKENS, false, r, 2.0f);
    int32_t ids = op_case_buffer(c, router->n_used, ATSI_ROWS_TOKENS, true, NULL, 0);
    int32_t weights = op_case_buffer(c, router->n_used, ATSI_ROWS_TOKENS, false, NULL, 0);
    int32_t bias = biased ? op_case_tensor(c, router->n_experts, 1, 1, r, 0.5f) : ATSI_NONE;
    struct atsi_op *op = op_case_op(c, ATSI_OP_ROUTER);
    op->in[0] = op_case_view(c, logits);
    op->out[0] = op_case_view(c, ids);
    op->out[1] = op_case_view(c, weights);
    op->tensor[0] = bias;
    op->u.router = *router;
    return op;
}

// ---- calls ------------------------------------------------------------------------------------------------------------

static struct atsi_rows_ref rows_of(const struct op_case *c, const struct op_case_operands *at,
                                    const struct atsi_view *view, uint32_t first_row) {
    if (view->buffer == ATSI_NONE) return (struct atsi_rows_ref){NULL, 0, 0};
    const struct atsi_buffer *b = &c->program.buffers[view->buffer];
    if (b->rows == ATSI_ROWS_OUTPUTS) first_row = 0;
    return (struct atsi_rows_ref){(float *)at->buffers[view->buffer] + (size_t)first_row * b->width + view->offset,
                                  b->width, view->width};
}

static void divide_call(const struct op_case *c, const struct op_case_operands *at, uint32_t first_row,
                        struct atsi_op_call *call) {
    const struct atsi_op *op = call->op;
    bool routes = op->kind == ATSI_OP_ROUTER && at->mine != NULL;
    bool divided = op->kind == ATSI_OP_EXPERTS && (c->whole_ops >> (op - c->program.ops) & 1) == 0;
    if (!routes && !divided) return;
    call->resident.gpu_slots = c->gpu_slots;
    if (at->mine == NULL) return;
    uint32_t n_used = routes ? op->u.router.n_used : op->u.experts.n_used;
    call->resident.mine = (int32_t *)at->mine + (size_t)first_row * n_used;
}

struct atsi_op_call op_case_call(const struct op_case *c, const struct op_case_operands *at, const struct atsi_op *op,
                                 uint32_t first_row) {
    struct atsi_op_call call = {.op = op};
    for (int i = 0; i < ATSI_OP_MAX_IN; i++) call.in[i] = rows_of(c, at, &op->in[i], first_row);
    for (int i = 0; i < ATSI_OP_MAX_OUT; i++) call.out[i] = rows_of(c, at, &op->out[i], first_row);
    for (int i = 0; i < ATSI_OP_MAX_TENSORS; i++)
        if (op->tensor[i] != ATSI_NONE)
            call.tensor[i] = (struct atsi_tensor_ref){at->tensors[op->tensor[i]], &c->program.tensors[op->tensor[i]]};
    if (op->state != ATSI_NONE)
        call.state = (struct atsi_state_ref){at->states[op->state][0], at->states[op->state][1],
                                             &c->program.states[op->state], c->kv_type, c->capacity};
    call.outputs_domain = c->program.buffers[op->out[0].buffer].rows == ATSI_ROWS_OUTPUTS;
    if (op->kind == ATSI_OP_ROUTER || op->kind == ATSI_OP_EXPERTS) call.resident.slots = at->resident_slots;
    if (op->kind == ATSI_OP_EXPERTS) call.resident.data = at->resident[op->tensor[0]];
    if (op->kind == ATSI_OP_ROUTER && at->chosen != NULL)
        call.resident.chosen = (int32_t *)at->chosen + (size_t)first_row * op->u.router.n_used;
    if (c->gpu_slots != NULL) divide_call(c, at, first_row, &call);
    call.round = (struct atsi_round_ref){at->round, (const int32_t *)at->token_ids + first_row, at->output_rows};
    return call;
}

// In the case's own memory.
static struct op_case_operands own_operands(struct op_case *c) {
    struct op_case_operands at = {.resident_slots = c->resident_slots,
                                  .chosen = c->chosen,
                                  .token_ids = c->token_ids,
                                  .output_rows = c->output_rows};
    for (int i = 0; i < OP_CASE_CAP; i++) {
        at.buffers[i] = c->buffers[i];
        at.tensors[i] = c->tensors[i];
        at.resident[i] = c->resident[i];
        memcpy(at.states[i], c->states[i], sizeof at.states[i]);
    }
    return at;
}

void op_case_run(struct op_case *c, const char *isa, int n_threads, uint32_t chunk, uint32_t first_pos) {
    struct atsi_error err = {.status = ATSI_OK};
    struct atsi_pool *pool = NULL;
    struct atsi_cpu *cpu = NULL;
    struct atsi_op_call calls[OP_CASE_CAP];
    check_ok(atsi_cpu_create(isa, &c->program, chunk, c->n_outputs, first_pos + c->n_tokens, n_threads, &cpu, &err),
             err);
    if (n_threads > 1) check_ok(atsi_pool_create_unbound(n_threads, &pool, &err), err);
    reset_states(c);
    struct op_case_operands at = own_operands(c);
    for (uint32_t row = 0; row < c->n_tokens; row += chunk) {
        struct atsi_round round = {.n_tokens = (int32_t)(c->n_tokens - row < chunk ? c->n_tokens - row : chunk),
                                   .n_outputs = (int32_t)c->n_outputs,
                                   .first_pos = (int32_t)(first_pos + row)};
        at.round = &round;
        for (uint32_t i = 0; i < c->program.n_ops; i++) calls[i] = op_case_call(c, &at, &c->program.ops[i], row);
        // A crowded machine and one that is not, in turn: the bits are the same.
        if (pool != NULL) atsi_pool_assume_crowded(pool, row / chunk % 2 == 0 ? 60e6 : 0);
        atsi_cpu_run(cpu, pool, calls, (int)c->program.n_ops);
    }
    atsi_pool_free(pool);
    atsi_cpu_free(cpu);
}
