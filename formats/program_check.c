// program_check.c: what must hold before a kernel may trust a program of unknown origin.
#include <string.h>

#include "formats/program.h"

struct checker {
    const struct atsi_program *p;
    struct atsi_error *err;
    uint32_t i_op;
    const struct atsi_op *op;
};

static enum atsi_status bad_op(const struct checker *c, const char *what) {
    return atsi_fail(c->err, ATSI_BAD_INPUT, "program: op %u (%s): %s", c->i_op, atsi_op_name(c->op->kind), what);
}

#define REQUIRE(condition, what)                  \
    do {                                          \
        if (!(condition)) return bad_op(c, what); \
    } while (0)

// ---- operands -----------------------------------------------------------------------------------------------------

static bool view_fits(const struct atsi_program *p, const struct atsi_view *v) {
    if (v->buffer < 0 || (uint32_t)v->buffer >= p->n_buffers) return false;
    uint32_t width = p->buffers[v->buffer].width;
    return v->width > 0 && v->offset <= width && v->width <= width - v->offset;
}

// Exactly the first n_in and n_out views stand, inside their buffers, all in one row domain.
static enum atsi_status check_views(const struct checker *c, int n_in, int n_out) {
    const struct atsi_op *op = c->op;
    for (int i = 0; i < ATSI_OP_MAX_IN; i++) {
        if (i >= n_in)
            REQUIRE(op->in[i].buffer == ATSI_NONE, "an input too many");
        else
            REQUIRE(view_fits(c->p, &op->in[i]), "an input is missing or leaves its buffer");
    }
    for (int i = 0; i < ATSI_OP_MAX_OUT; i++) {
        if (i >= n_out)
            REQUIRE(op->out[i].buffer == ATSI_NONE, "an output too many");
        else
            REQUIRE(view_fits(c->p, &op->out[i]), "an output is missing or leaves its buffer");
    }
    if (op->kind == ATSI_OP_SELECT) return ATSI_OK;
    enum atsi_rows rows = c->p->buffers[op->out[0].buffer].rows;
    for (int i = 0; i < n_in; i++) REQUIRE(c->p->buffers[op->in[i].buffer].rows == rows, "row domains differ");
    for (int i = 1; i < n_out; i++) REQUIRE(c->p->buffers[op->out[i].buffer].rows == rows, "row domains differ");
    return ATSI_OK;
}

static bool is_int(const struct checker *c, const struct atsi_view *v) { return c->p->buffers[v->buffer].is_int; }

// Integer operands stand only where ids belong: the router's first output, the experts' second input,
// the third of their sum.
static enum atsi_status check_int_operands(const struct checker *c) {
    const struct atsi_op *op = c->op;
    for (int i = 0; i < ATSI_OP_MAX_IN && op->in[i].buffer != ATSI_NONE; i++)
        REQUIRE(is_int(c, &op->in[i]) ==
                    ((op->kind == ATSI_OP_EXPERTS && i == 1) || (op->kind == ATSI_OP_EXPERT_SUM && i == 2)),
                "an input has the wrong element type");
    for (int i = 0; i < ATSI_OP_MAX_OUT && op->out[i].buffer != ATSI_NONE; i++)
        REQUIRE(is_int(c, &op->out[i]) == (op->kind == ATSI_OP_ROUTER && i == 0),
                "an output has the wrong element type");
    return ATSI_OK;
}

static const struct atsi_tensor *tensor_at(const struct checker *c, int i) {
    int32_t index = c->op->tensor[i];
    return index >= 0 && (uint32_t)index < c->p->n_tensors ? &c->p->tensors[index] : NULL;
}

static enum atsi_status check_tensor_indices(const struct checker *c) {
    for (int i = 0; i < ATSI_OP_MAX_TENSORS; i++)
        REQUIRE(c->op->tensor[i] == ATSI_NONE || tensor_at(c, i), "a tensor index is out of range");
    return ATSI_OK;
}

static bool has_shape(const struct atsi_tensor *t, uint64_t ne0, uint64_t ne1, uint64_t ne2) {
    return t->ne[0] == ne0 && t->ne[1] == ne1 && t->ne[2] == ne2 && t->ne[3] == 1;
}

// A small float32 table of the given shape; absent is fine when `optional`.
static bool is_table(const struct atsi_tensor *t, bool optional, uint64_t ne0, uint64_t ne1) {
    if (!t) return optional;
    return t->dtype == ATSI_F32 && t->layout == ATSI_LAYOUT_PLAIN && has_shape(t, ne0, ne1, 1);
}

static const struct atsi_state *state_of_kind(const struct checker *c, enum atsi_state_kind kind) {
    if (c->op->state < 0 || (uint32_t)c->op->state >= c->p->n_states) return NULL;
    const struct atsi_state *s = &c->p->states[c->op->state];
    return s->kind == kind ? s : NULL;
}

// ---- one check an op ----------------------------------------------------------------------------------------------

static enum atsi_status check_embed(const struct checker *c) {
    const struct atsi_tensor *t = tensor_at(c, 0);
    ATSI_TRY(check_views(c, 0, 1));
    REQUIRE(c->p->buffers[c->op->out[0].buffer].rows == ATSI_ROWS_TOKENS, "must write token rows");
    REQUIRE(t && has_shape(t, c->op->out[0].width, t->ne[1], 1), "the table's rows do not match the output");
    return ATSI_OK;
}

static enum atsi_status check_rms_norm(const struct checker *c) {
    uint32_t group = c->op->u.norm.group, width = c->op->out[0].width;
    ATSI_TRY(check_views(c, 1, 1));
    REQUIRE(c->op->in[0].width == width && group > 0 && width % group == 0, "widths or group do not match");
    REQUIRE(is_table(tensor_at(c, 0), true, group, 1), "the weight is no float32 vector of one group");
    return ATSI_OK;
}

static enum atsi_status check_matmul(const struct checker *c) {
    const struct atsi_tensor *t = tensor_at(c, 0);
    ATSI_TRY(check_views(c, 1, 1));
    REQUIRE(t && has_shape(t, c->op->in[0].width, c->op->out[0].width, 1),
            "the weight does not match input and output");
    REQUIRE(is_table(tensor_at(c, 1), true, c->op->out[0].width, 1), "the bias does not match the output");
    return ATSI_OK;
}

static enum atsi_status check_rope(const struct checker *c) {
    const struct atsi_rope_params *r = &c->op->u.rope;
    ATSI_TRY(check_views(c, 1, 1));
    REQUIRE(c->op->in[0].width == c->op->out[0].width && (uint64_t)r->n_heads * r->head_dim == c->op->out[0].width,
            "heads do not match the width");
    REQUIRE(r->n_rot >= 2 && r->n_rot % 2 == 0 && r->n_rot <= r->head_dim, "bad number of rotated elements");
    REQUIRE((unsigned)r->pairing <= ATSI_ROPE_INTERLEAVED, "unknown pairing");
    REQUIRE(is_table(tensor_at(c, 0), false, r->n_rot / 2, 1), "no float32 table of inverse frequencies");
    return ATSI_OK;
}

static enum atsi_status check_attention(const struct checker *c) {
    const struct atsi_attention_params *a = &c->op->u.attention;
    const struct atsi_state *s = state_of_kind(c, ATSI_STATE_KV);
    ATSI_TRY(check_views(c, 3, 1));
    REQUIRE(s && s->n_heads == a->n_kv_heads, "no key/value state with its heads");
    REQUIRE(a->n_kv_heads > 0 && a->n_heads > 0 && a->n_heads % a->n_kv_heads == 0,
            "heads are no multiple of key heads");
    REQUIRE((uint64_t)a->n_heads * s->k_dim == c->op->in[0].width &&
                (uint64_t)a->n_kv_heads * s->k_dim == c->op->in[1].width &&
                (uint64_t)a->n_kv_heads * s->v_dim == c->op->in[2].width &&
                (uint64_t)a->n_heads * s->v_dim == c->op->out[0].width,
            "widths do not match the heads");
    REQUIRE(c->p->buffers[c->op->out[0].buffer].rows == ATSI_ROWS_TOKENS, "must run on token rows");
    REQUIRE(is_table(tensor_at(c, 0), true, a->n_heads, 1), "the sinks are no float32 vector of the heads");
    return ATSI_OK;
}

static enum atsi_status check_glu(const struct checker *c) {
    ATSI_TRY(check_views(c, 2, 1));
    REQUIRE(c->op->in[0].width == c->op->out[0].width && c->op->in[1].width == c->op->out[0].width, "widths differ");
    REQUIRE((unsigned)c->op->u.glu.act <= ATSI_GLU_CLAMPED, "unknown activation");
    return ATSI_OK;
}

static enum atsi_status check_gate(const struct checker *c) {
    ATSI_TRY(check_views(c, 2, 1));
    REQUIRE(c->op->in[0].width == c->op->out[0].width && c->op->in[0].width % c->op->in[1].width == 0, "widths differ");
    return ATSI_OK;
}

static enum atsi_status check_add(const struct checker *c) {
    ATSI_TRY(check_views(c, 2, 1));
    REQUIRE(c->op->in[0].width == c->op->out[0].width && c->op->in[1].width == c->op->out[0].width, "widths differ");
    return ATSI_OK;
}

static enum atsi_status check_router(const struct checker *c) {
    const struct atsi_router_params *r = &c->op->u.router;
    ATSI_TRY(check_views(c, 1, 2));
    REQUIRE(r->n_used > 0 && r->n_used <= r->n_experts, "uses no expert or more than there are");
    REQUIRE(c->op->in[0].width == r->n_experts && c->op->out[0].width == r->n_used && c->op->out[1].width == r->n_used,
            "widths do not match the experts");
    REQUIRE((unsigned)r->score <= ATSI_ROUTER_SOFTMAX_SELECTED, "unknown score");
    REQUIRE(is_table(tensor_at(c, 0), true, r->n_experts, 1), "the selection bias is no float32 vector of the experts");
    return ATSI_OK;
}

// The ids of an expert op come from a router before it that knows no more experts than the weight has.
static bool ids_are_bounded(const struct checker *c) {
    const struct atsi_view *ids = &c->op->in[1];
    for (uint32_t i = c->i_op; i-- > 0;) {
        const struct atsi_op *w = &c->p->ops[i];
        if (w->kind == ATSI_OP_ROUTER && w->out[0].buffer == ids->buffer)
            return w->out[0].offset == ids->offset && w->out[0].width == ids->width &&
                   w->u.router.n_experts <= c->op->u.experts.n_experts;
    }
    return false;
}

static enum atsi_status check_experts(const struct checker *c) {
    const struct atsi_experts_params *e = &c->op->u.experts;
    const struct atsi_tensor *t = tensor_at(c, 0);
    ATSI_TRY(check_views(c, 2, 1));
    REQUIRE(e->n_used > 0 && e->n_used <= e->n_experts && c->op->in[1].width == e->n_used,
            "ids do not match the slots");
    REQUIRE(c->op->out[0].width % e->n_used == 0, "the output is not one row a slot");
    uint32_t cols = e->in_per_slot ? c->op->in[0].width / e->n_used : c->op->in[0].width,
             rows = c->op->out[0].width / e->n_used;
    REQUIRE(!e->in_per_slot || c->op->in[0].width % e->n_used == 0, "the input is not one row a slot");
    REQUIRE(t && has_shape(t, cols, rows, e->n_experts), "the weight does not match input, output and experts");
    REQUIRE(is_table(tensor_at(c, 1), true, rows, e->n_experts), "the bias does not match output and experts");
    REQUIRE(ids_are_bounded(c), "no router before it bounds its expert ids");
    return ATSI_OK;
}

static enum atsi_status check_expert_sum(const struct checker *c) {
    bool ordered = c->op->in[2].buffer != ATSI_NONE;
    ATSI_TRY(check_views(c, ordered ? 3 : 2, 1));
    REQUIRE((uint64_t)c->op->out[0].width * c->op->in[1].width == c->op->in[0].width, "widths do not match the slots");
    REQUIRE(!ordered || c->op->in[2].width == c->op->in[1].width, "not one id a slot");
    return ATSI_OK;
}

static enum atsi_status check_conv(const struct checker *c) {
    const struct atsi_state *s = state_of_kind(c, ATSI_STATE_CONV);
    ATSI_TRY(check_views(c, 1, 1));
    REQUIRE(s && s->n_heads == 1, "no convolution state");
    REQUIRE(c->op->in[0].width == s->k_dim && c->op->out[0].width == s->k_dim, "widths do not match the channels");
    REQUIRE(is_table(tensor_at(c, 0), false, (uint64_t)s->v_dim + 1, s->k_dim), "the kernel does not match the state");
    REQUIRE(c->p->buffers[c->op->out[0].buffer].rows == ATSI_ROWS_TOKENS, "must run on token rows");
    return ATSI_OK;
}

static enum atsi_status check_delta_rule(const struct checker *c) {
    const struct atsi_delta_params *d = &c->op->u.delta;
    const struct atsi_state *s = state_of_kind(c, ATSI_STATE_DELTA);
    const struct atsi_view *in = c->op->in;
    ATSI_TRY(check_views(c, 5, 1));
    REQUIRE(s && s->n_heads == d->n_v_heads, "no delta state with its heads");
    REQUIRE(d->n_k_heads > 0 && d->n_v_heads > 0 && d->n_v_heads % d->n_k_heads == 0,
            "value heads are no multiple of key heads");
    uint64_t k_width = (uint64_t)d->n_k_heads * s->k_dim, v_width = (uint64_t)d->n_v_heads * s->v_dim;
    REQUIRE(in[0].width == k_width && in[1].width == k_width && in[2].width == v_width &&
                c->op->out[0].width == v_width && in[3].width == d->n_v_heads && in[4].width == d->n_v_heads,
            "widths do not match the heads");
    REQUIRE(is_table(tensor_at(c, 0), false, d->n_v_heads, 1) && is_table(tensor_at(c, 1), false, d->n_v_heads, 1),
            "decay or time-step bias is no float32 vector of the value heads");
    REQUIRE(c->p->buffers[c->op->out[0].buffer].rows == ATSI_ROWS_TOKENS, "must run on token rows");
    return ATSI_OK;
}

static enum atsi_status check_select(const struct checker *c) {
    ATSI_TRY(check_views(c, 1, 1));
    REQUIRE(c->op->in[0].width == c->op->out[0].width, "widths differ");
    REQUIRE(c->p->buffers[c->op->in[0].buffer].rows == ATSI_ROWS_TOKENS &&
                c->p->buffers[c->op->out[0].buffer].rows == ATSI_ROWS_OUTPUTS,
            "must go from token rows to output rows");
    return ATSI_OK;
}

static enum atsi_status (*const op_checks[ATSI_OP_KIND_LIMIT])(const struct checker *) = {
    [ATSI_OP_EMBED] = check_embed,
    [ATSI_OP_RMS_NORM] = check_rms_norm,
    [ATSI_OP_MATMUL] = check_matmul,
    [ATSI_OP_ROPE] = check_rope,
    [ATSI_OP_ATTENTION] = check_attention,
    [ATSI_OP_GLU] = check_glu,
    [ATSI_OP_GATE] = check_gate,
    [ATSI_OP_ADD] = check_add,
    [ATSI_OP_ROUTER] = check_router,
    [ATSI_OP_EXPERTS] = check_experts,
    [ATSI_OP_EXPERT_SUM] = check_expert_sum,
    [ATSI_OP_CONV] = check_conv,
    [ATSI_OP_DELTA_RULE] = check_delta_rule,
    [ATSI_OP_SELECT] = check_select,
};

// ---- the parts of a program ---------------------------------------------------------------------------------------

static enum atsi_status check_tensors(const struct atsi_program *p, struct atsi_error *err) {
    for (uint32_t i = 0; i < p->n_tensors; i++) {
        const struct atsi_tensor *t = &p->tensors[i];
        uint64_t bytes = atsi_layout_bytes(t->dtype, t->layout, t->ne);
        if (!bytes || bytes != t->size_bytes)
            return atsi_fail(err, ATSI_BAD_INPUT,
                             "program: tensor %s: type %s, layout %s and shape give %llu bytes, found %llu", t->name,
                             atsi_dtype_name(t->dtype), atsi_layout_name(t->layout), (unsigned long long)bytes,
                             (unsigned long long)t->size_bytes);
    }
    return ATSI_OK;
}

static enum atsi_status check_buffers(const struct atsi_program *p, struct atsi_error *err) {
    for (uint32_t i = 0; i < p->n_buffers; i++) {
        const struct atsi_buffer *b = &p->buffers[i];
        if (b->width == 0 || b->width > ATSI_MAX_WIDTH || (unsigned)b->rows > ATSI_ROWS_OUTPUTS)
            return atsi_fail(err, ATSI_BAD_INPUT, "program: buffer %s: bad width %u or rows", b->name, b->width);
    }
    if (p->logits < 0 || (uint32_t)p->logits >= p->n_buffers || p->buffers[p->logits].rows != ATSI_ROWS_OUTPUTS ||
        p->buffers[p->logits].is_int || p->buffers[p->logits].width != p->n_vocab)
        return atsi_fail(err, ATSI_BAD_INPUT, "program: no logits buffer of %u columns in the outputs domain",
                         p->n_vocab);
    return ATSI_OK;
}

static enum atsi_status check_states(const struct atsi_program *p, struct atsi_error *err) {
    for (uint32_t i = 0; i < p->n_states; i++) {
        const struct atsi_state *s = &p->states[i];
        if ((unsigned)s->kind > ATSI_STATE_DELTA || !s->n_heads || !s->k_dim || !s->v_dim ||
            s->n_heads > ATSI_MAX_WIDTH || s->k_dim > ATSI_MAX_WIDTH || s->v_dim > ATSI_MAX_WIDTH)
            return atsi_fail(err, ATSI_BAD_INPUT, "program: state %s: bad kind or shape", s->name);
        uint32_t n_users = 0;
        for (uint32_t k = 0; k < p->n_ops; k++) n_users += p->ops[k].state == (int32_t)i;
        if (n_users != 1)
            return atsi_fail(err, ATSI_BAD_INPUT, "program: state %s: used by %u ops, must be 1", s->name, n_users);
    }
    return ATSI_OK;
}

static enum atsi_status check_ops(const struct atsi_program *p, struct atsi_error *err) {
    bool seen_select = false;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const struct atsi_op *op = &p->ops[i];
        if ((unsigned)op->kind >= ATSI_OP_KIND_LIMIT)
            return atsi_fail(err, ATSI_BAD_INPUT, "program: op %u: unknown kind %d", i, (int)op->kind);
        struct checker c = {.p = p, .err = err, .i_op = i, .op = op};
        ATSI_TRY(check_tensor_indices(&c));
        ATSI_TRY(op_checks[op->kind](&c));
        ATSI_TRY(check_int_operands(&c));
        bool needs_state = op->kind == ATSI_OP_ATTENTION || op->kind == ATSI_OP_CONV || op->kind == ATSI_OP_DELTA_RULE;
        if (!needs_state && op->state != ATSI_NONE) return bad_op(&c, "has a state that it cannot use");
        // Output rows are computed in groups by repeating what follows the first SELECT, so no token row may follow it.
        bool outputs = p->buffers[op->out[0].buffer].rows == ATSI_ROWS_OUTPUTS;
        if (seen_select && !outputs) return bad_op(&c, "runs on token rows after the outputs were selected");
        if (!seen_select && outputs && op->kind != ATSI_OP_SELECT)
            return bad_op(&c, "runs on output rows before any were selected");
        seen_select |= op->kind == ATSI_OP_SELECT;
    }
    return seen_select ? ATSI_OK : atsi_fail(err, ATSI_BAD_INPUT, "program: no select op, so no logits");
}

// Packed bytes of the tensors that the ops of a unit use, each tensor once.
static uint64_t unit_weight_bytes(const struct atsi_program *p, const struct atsi_unit *u) {
    uint64_t bytes = 0;
    for (uint32_t i = u->first_op; i < u->first_op + u->n_ops; i++)
        for (int k = 0; k < ATSI_OP_MAX_TENSORS; k++) {
            int32_t t = p->ops[i].tensor[k];
            bool counted = t == ATSI_NONE;
            for (uint32_t j = u->first_op; j <= i && !counted; j++)
                for (int m = 0; m < (j < i ? (int)ATSI_OP_MAX_TENSORS : k); m++) counted |= p->ops[j].tensor[m] == t;
            if (!counted) bytes += p->tensors[t].size_bytes;
        }
    return bytes;
}

// Experts stand behind a unit with a router, and what is divided of them are the experts' slots: no other product is among them.
static bool router_fits_kind(const struct atsi_program *p, const struct atsi_unit *u) {
    uint32_t n_experts = atsi_unit_count_ops(p, u, ATSI_OP_EXPERTS);
    if (u->kind != ATSI_UNIT_EXPERTS) return u->router_unit == ATSI_NONE && n_experts == 0;
    return u->router_unit != ATSI_NONE && atsi_unit_count_ops(p, &p->units[u->router_unit], ATSI_OP_ROUTER) > 0 &&
           n_experts == 1 && atsi_unit_count_ops(p, u, ATSI_OP_MATMUL) == 0;
}

static enum atsi_status check_units(const struct atsi_program *p, struct atsi_error *err) {
    uint32_t next_op = 0;
    for (uint32_t i = 0; i < p->n_units; i++) {
        const struct atsi_unit *u = &p->units[i];
        if (u->first_op != next_op || u->n_ops == 0 || u->n_ops > ATSI_MAX_UNIT_OPS || u->n_ops > p->n_ops - next_op)
            return atsi_fail(err, ATSI_BAD_INPUT, "program: unit %s: ops %u + %u do not follow op %u", u->name,
                             u->first_op, u->n_ops, next_op);
        if ((unsigned)u->kind > ATSI_UNIT_HEAD || (unsigned)u->backend > ATSI_GPU || u->router_unit < ATSI_NONE ||
            u->router_unit >= (int32_t)i)
            return atsi_fail(err, ATSI_BAD_INPUT, "program: unit %s: bad kind, backend or router unit", u->name);
        if (!router_fits_kind(p, u))
            return atsi_fail(err, ATSI_BAD_INPUT,
                             "program: unit %s: its kind, its router unit and its ops do not agree", u->name);
        uint64_t bytes = unit_weight_bytes(p, u);
        if (bytes != u->weight_bytes)
            return atsi_fail(err, ATSI_BAD_INPUT, "program: unit %s: %llu weight bytes stated, its tensors have %llu",
                             u->name, (unsigned long long)u->weight_bytes, (unsigned long long)bytes);
        next_op += u->n_ops;
    }
    if (next_op != p->n_ops)
        return atsi_fail(err, ATSI_BAD_INPUT, "program: units cover %u of %u ops", next_op, p->n_ops);
    return ATSI_OK;
}

enum atsi_status atsi_program_check(const struct atsi_program *p, struct atsi_error *err) {
    if (p->n_ops == 0 || p->n_ops > ATSI_MAX_OPS || p->n_buffers == 0 || p->n_buffers > ATSI_MAX_BUFFERS ||
        p->n_tensors > ATSI_MAX_TENSORS || p->n_states > ATSI_MAX_STATES || p->n_units > ATSI_MAX_UNITS)
        return atsi_fail(err, ATSI_BAD_INPUT,
                         "program: %u ops, %u buffers, %u tensors, %u states, %u units: out of range", p->n_ops,
                         p->n_buffers, p->n_tensors, p->n_states, p->n_units);
    ATSI_TRY(check_tensors(p, err));
    ATSI_TRY(check_buffers(p, err));
    ATSI_TRY(check_ops(p, err));
    ATSI_TRY(check_states(p, err));
    return check_units(p, err);
}
