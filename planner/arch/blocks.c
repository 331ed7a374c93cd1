#include "planner/arch/blocks.h"

#include <math.h>
#include <stdlib.h>

// "attn_q" -> "attn_q.weight"; `text` lives as long as the expression.
struct suffixed {
    char text[ATSI_NAME_CAP];
};
static struct suffixed with(const char *stem, const char *ending) {
    struct suffixed s;
    snprintf(s.text, sizeof s.text, "%s.%s", stem, ending);
    return s;
}
static const char *weight_of(const char *stem, struct suffixed *s) {
    *s = with(stem, "weight");
    return s->text;
}
static const char *bias_of(const char *stem, struct suffixed *s) {
    *s = with(stem, "bias");
    return s->text;
}

struct atsi_view atsi_stream(struct atsi_builder *b) {
    return atsi_build_buffer(b, "x", b->hp.n_embd);
}
struct atsi_view atsi_normed(struct atsi_builder *b) {
    return atsi_build_buffer(b, "h", b->hp.n_embd);
}

void atsi_block_norm(struct atsi_builder *b, const char *weight) {
    int32_t w = atsi_build_table(b, ATSI_REQUIRED, weight, b->hp.n_embd, 1);
    atsi_build_norm(b, atsi_stream(b), atsi_normed(b), w, b->hp.n_embd, false);
}

// A matrix "stem.weight" from h into `out`, with the bias "stem.bias".
static void project_from_h(struct atsi_builder *b, const char *stem, struct atsi_view out, enum atsi_need bias) {
    struct suffixed s;
    int32_t w = atsi_build_weight(b, ATSI_REQUIRED, weight_of(stem, &s), b->hp.n_embd, out.width, 1);
    int32_t v = atsi_build_table(b, bias, bias_of(stem, &s), out.width, 1);
    atsi_build_matmul(b, atsi_normed(b), out, w, v, false);
}

void atsi_block_project(struct atsi_builder *b, const char *unit, struct atsi_view in, const char *post_norm) {
    struct suffixed s;
    atsi_build_unit(b, ATSI_UNIT_MATRIX, unit);
    int32_t w = atsi_build_weight(b, ATSI_REQUIRED, weight_of(unit, &s), in.width, b->hp.n_embd, 1);
    int32_t bias = atsi_build_table(b, ATSI_OPTIONAL, bias_of(unit, &s), b->hp.n_embd, 1);
    if (!post_norm) {
        atsi_build_matmul(b, in, atsi_stream(b), w, bias, true);
        return;
    }
    struct atsi_view result = atsi_build_buffer(b, "projected", b->hp.n_embd);
    atsi_build_matmul(b, in, result, w, bias, false);
    int32_t norm = atsi_build_table(b, ATSI_REQUIRED, post_norm, b->hp.n_embd, 1);
    atsi_build_norm(b, result, atsi_stream(b), norm, b->hp.n_embd, true);
}

// ---- embedding and head -------------------------------------------------------------------------------------------

// Rows of the vocabulary, from the embedding itself: files pad it beyond the tokens. 0 when there is none.
static uint32_t vocabulary_rows(struct atsi_builder *b) {
    const struct atsi_gguf_tensor *t = atsi_build_source(b, "token_embd.weight");
    if (!t) return 0;
    if (t->ne[1] > ATSI_MAX_WIDTH)
        atsi_build_fail(b, ATSI_BAD_INPUT, "tensor token_embd.weight: %llu rows, at most %d are supported",
                        (unsigned long long)t->ne[1], ATSI_MAX_WIDTH);
    return (uint32_t)t->ne[1];
}

void atsi_block_embed(struct atsi_builder *b, float scale) {
    struct atsi_op op = atsi_op_blank(ATSI_OP_EMBED);
    b->layer = ATSI_NONE;
    atsi_build_unit(b, ATSI_UNIT_EMBED, "token_embd");
    op.tensor[0] = atsi_build_weight(b, ATSI_REQUIRED, "token_embd.weight", b->hp.n_embd, vocabulary_rows(b), 1);
    op.out[0] = atsi_stream(b);
    op.u.embed_scale = scale;
    atsi_build_op(b, &op);
}

void atsi_block_head(struct atsi_builder *b) {
    struct atsi_op select = atsi_op_blank(ATSI_OP_SELECT);
    b->layer = ATSI_NONE;
    uint32_t n_vocab = vocabulary_rows(b);
    if (n_vocab == 0) return; // atsi_block_embed recorded it as missing
    b->out->tied = !atsi_build_has(b, "output.weight");
    const char *name = b->out->tied ? "token_embd.weight" : "output.weight";

    atsi_build_unit(b, ATSI_UNIT_HEAD, "output");
    select.in[0] = atsi_stream(b);
    select.out[0] = atsi_build_output_buffer(b, "selected", b->hp.n_embd);
    atsi_build_op(b, &select);
    struct atsi_view normed = atsi_build_output_buffer(b, "selected_normed", b->hp.n_embd);
    int32_t norm = atsi_build_table(b, ATSI_REQUIRED, "output_norm.weight", b->hp.n_embd, 1);
    atsi_build_norm(b, select.out[0], normed, norm, b->hp.n_embd, false);
    struct atsi_view logits = atsi_build_output_buffer(b, "logits", n_vocab);
    int32_t w = atsi_build_weight(b, ATSI_REQUIRED, name, b->hp.n_embd, n_vocab, 1);
    int32_t bias = atsi_build_table(b, ATSI_OPTIONAL, "output.bias", n_vocab, 1);
    atsi_build_matmul(b, normed, logits, w, bias, false);
    b->out->program.logits = logits.buffer;
    b->out->program.n_vocab = n_vocab;
}

// ---- attention ----------------------------------------------------------------------------------------------------

struct qkv {
    struct atsi_view q, k, v, gate; // gate: only for gated attention
    uint32_t n_heads, n_kv_heads;
};

// Norm of each head (or of all together) and rotation, in place.
static void finish_heads(struct atsi_builder *b, const struct atsi_attention_spec *spec, struct atsi_view x,
                         uint32_t n_heads, const char *norm) {
    uint32_t group = spec->qk_norm_whole ? x.width : b->hp.k_dim;
    int32_t w = atsi_build_table(b, spec->qk_norm, norm, group, 1);
    if (w != ATSI_NONE) atsi_build_norm(b, x, x, w, group, false);
    atsi_build_rotate(b, &spec->rope, x, n_heads);
}

// Rows [q0, gate0, q1, gate1, ...] (k_dim each) to [q0, q1, ..., gate0, gate1, ...].
static uint32_t *split_gate_rows(uint32_t n_heads, uint32_t dim) {
    uint32_t *order = malloc((size_t)2 * n_heads * dim * sizeof *order);
    for (uint32_t h = 0; order && h < n_heads; h++)
        for (uint32_t i = 0; i < dim; i++) {
            order[h * dim + i] = 2 * h * dim + i;
            order[(n_heads + h) * dim + i] = (2 * h + 1) * dim + i;
        }
    return order;
}

static struct qkv fused_qkv(struct atsi_builder *b, const struct atsi_attention_spec *spec, struct qkv p) {
    uint32_t q = p.n_heads * b->hp.k_dim, k = p.n_kv_heads * b->hp.k_dim, v = p.n_kv_heads * b->hp.v_dim;
    struct atsi_view all = atsi_build_buffer(b, "qkv", q + k + v);
    atsi_build_unit(b, ATSI_UNIT_MATRIX, "attn_qkv");
    atsi_block_norm(b, "attn_norm.weight");
    project_from_h(b, "attn_qkv", all, spec->bias);
    p.q = atsi_view_part(all, 0, q);
    p.k = atsi_view_part(all, q, k);
    p.v = atsi_view_part(all, q + k, v);
    finish_heads(b, spec, p.q, p.n_heads, "attn_q_norm.weight");
    finish_heads(b, spec, p.k, p.n_kv_heads, "attn_k_norm.weight");
    return p;
}

static struct qkv separate_qkv(struct atsi_builder *b, const struct atsi_attention_spec *spec, struct qkv p) {
    uint32_t q_width = p.n_heads * b->hp.k_dim;
    atsi_build_unit(b, ATSI_UNIT_MATRIX, "attn_q");
    atsi_block_norm(b, "attn_norm.weight");
    if (spec->gated) {
        struct atsi_view both = atsi_build_buffer(b, "q", 2 * q_width);
        int32_t w = atsi_build_weight_reordered(b, "attn_q.weight", b->hp.n_embd, both.width,
                                                split_gate_rows(p.n_heads, b->hp.k_dim));
        atsi_build_matmul(b, atsi_normed(b), both, w, ATSI_NONE, false);
        p.q = atsi_view_part(both, 0, q_width);
        p.gate = atsi_view_part(both, q_width, q_width);
    } else {
        p.q = atsi_build_buffer(b, "q", q_width);
        project_from_h(b, "attn_q", p.q, spec->bias);
    }
    finish_heads(b, spec, p.q, p.n_heads, "attn_q_norm.weight");

    p.k = atsi_build_buffer(b, "k", p.n_kv_heads * b->hp.k_dim);
    atsi_build_unit(b, ATSI_UNIT_MATRIX, "attn_k");
    project_from_h(b, "attn_k", p.k, spec->bias);
    finish_heads(b, spec, p.k, p.n_kv_heads, "attn_k_norm.weight");

    p.v = atsi_build_buffer(b, "v", p.n_kv_heads * b->hp.v_dim);
    atsi_build_unit(b, ATSI_UNIT_MATRIX, "attn_v");
    project_from_h(b, "attn_v", p.v, spec->bias);
    return p;
}

// Scores against the cache, into the buffer "mixed".
static struct atsi_view attend(struct atsi_builder *b, const struct atsi_attention_spec *spec, const struct qkv *p) {
    struct atsi_op op = atsi_op_blank(ATSI_OP_ATTENTION);
    struct atsi_state state = {.kind = ATSI_STATE_KV,
                               .n_heads = p->n_kv_heads,
                               .k_dim = b->hp.k_dim,
                               .v_dim = b->hp.v_dim,
                               .window = spec->window};
    atsi_build_unit(b, ATSI_UNIT_STATE, "attention");
    op.in[0] = p->q;
    op.in[1] = p->k;
    op.in[2] = p->v;
    op.out[0] = atsi_build_buffer(b, "mixed", p->n_heads * b->hp.v_dim);
    op.state = atsi_build_state(b, "kv", state);
    if (spec->sinks) op.tensor[0] = atsi_build_table(b, ATSI_REQUIRED, "attn_sinks.weight", p->n_heads, 1);
    op.u.attention =
        (struct atsi_attention_params){.n_heads = p->n_heads,
                                       .n_kv_heads = p->n_kv_heads,
                                       .scale = spec->scale > 0 ? spec->scale : (float)(1 / sqrt(b->hp.k_dim))};
    atsi_build_op(b, &op);
    if (spec->gated) atsi_build_gate(b, op.out[0], p->gate);
    return op.out[0];
}

void atsi_block_attention(struct atsi_builder *b, const struct atsi_attention_spec *spec) {
    const struct atsi_layer_dims *dims = &b->hp.layers[b->layer];
    struct qkv p = {.n_heads = dims->n_heads, .n_kv_heads = dims->n_kv_heads};
    p = spec->fused_qkv ? fused_qkv(b, spec, p) : separate_qkv(b, spec, p);
    atsi_block_project(b, "attn_output", attend(b, spec, &p), spec->post_norm);
}

// ---- feed-forward -------------------------------------------------------------------------------------------------

// gate, up and down matrices of width n_ff named "ffn_gate<tail>" and so on, from h; `open` has made h.
static void gated_ffn(struct atsi_builder *b, const char *norm, const char *tail, uint32_t n_ff,
                      struct atsi_glu_params glu, bool shared_gate, const char *post_norm) {
    char gate_name[32], up_name[32], down_name[32];
    snprintf(gate_name, sizeof gate_name, "ffn_gate%s", tail);
    snprintf(up_name, sizeof up_name, "ffn_up%s", tail);
    snprintf(down_name, sizeof down_name, "ffn_down%s", tail);
    struct atsi_view gate = atsi_build_buffer(b, "gate", n_ff), up = atsi_build_buffer(b, "up", n_ff);

    atsi_build_unit(b, ATSI_UNIT_MATRIX, gate_name);
    if (norm) atsi_block_norm(b, norm);
    project_from_h(b, gate_name, gate, ATSI_OPTIONAL);
    atsi_build_unit(b, ATSI_UNIT_MATRIX, up_name);
    project_from_h(b, up_name, up, ATSI_OPTIONAL);
    atsi_build_glu(b, gate, up, gate, glu);
    if (shared_gate) {
        // The gate is one number a token, so it commutes with the down projection.
        struct atsi_view g = atsi_build_buffer(b, "shared_gate", 1);
        project_from_h(b, "ffn_gate_inp_shexp", g, ATSI_OPTIONAL);
        atsi_build_gate(b, gate, g);
    }
    atsi_block_project(b, down_name, gate, post_norm);
}

static void fused_ffn(struct atsi_builder *b, const struct atsi_ffn_spec *spec, uint32_t n_ff) {
    struct atsi_view both = atsi_build_buffer(b, "gate", 2 * n_ff);
    struct atsi_view gate = atsi_view_part(both, 0, n_ff), up = atsi_view_part(both, n_ff, n_ff);
    atsi_build_unit(b, ATSI_UNIT_MATRIX, "ffn_up");
    atsi_block_norm(b, spec->norm);
    project_from_h(b, "ffn_up", both, ATSI_OPTIONAL);
    atsi_build_glu(b, gate, up, gate, (struct atsi_glu_params){.act = spec->act});
    atsi_block_project(b, "ffn_down", gate, spec->post_norm);
}

void atsi_block_ffn(struct atsi_builder *b, const struct atsi_ffn_spec *spec) {
    uint32_t n_ff = b->hp.layers[b->layer].n_ff;
    if (n_ff == 0)
        atsi_build_fail(b, ATSI_BAD_INPUT, "key %s.feed_forward_length: absent or 0 for layer %d", b->arch, b->layer);
    if (b->status != ATSI_OK) return;
    if (spec->fused_gate_up)
        fused_ffn(b, spec, n_ff);
    else
        gated_ffn(b, spec->norm, "", n_ff, (struct atsi_glu_params){.act = spec->act}, false, spec->post_norm);
}

// ---- experts ------------------------------------------------------------------------------------------------------

enum atsi_router_score atsi_build_router_score(struct atsi_builder *b, enum atsi_router_score usual) {
    enum {
        SOFTMAX = 1,
        SIGMOID = 2
    }; // values of the key
    uint32_t fallback = usual == ATSI_ROUTER_SIGMOID ? SIGMOID : SOFTMAX;
    uint32_t value = atsi_build_count(b, "expert_gating_func", fallback, SOFTMAX, SIGMOID);
    return value == SIGMOID ? ATSI_ROUTER_SIGMOID : ATSI_ROUTER_SOFTMAX;
}

static void route(struct atsi_builder *b, const struct atsi_moe_spec *spec, struct atsi_view ids,
                  struct atsi_view weights) {
    struct atsi_op op = atsi_op_blank(ATSI_OP_ROUTER);
    struct atsi_view logits = atsi_build_buffer(b, "router_logits", b->hp.n_experts);
    atsi_block_norm(b, spec->norm);
    int32_t w = atsi_build_weight(b, ATSI_REQUIRED, "ffn_gate_inp.weight", b->hp.n_embd, b->hp.n_experts, 1);
    int32_t bias =
        spec->router_bias ? atsi_build_table(b, ATSI_REQUIRED, "ffn_gate_inp.bias", b->hp.n_experts, 1) : ATSI_NONE;
    atsi_build_matmul(b, atsi_normed(b), logits, w, bias, false);
    op.in[0] = logits;
    op.out[0] = ids;
    op.out[1] = weights;
    if (spec->selection_bias) op.tensor[0] = atsi_build_table(b, ATSI_REQUIRED, "exp_probs_b.bias", b->hp.n_experts, 1);
    op.u.router = (struct atsi_router_params){.n_experts = b->hp.n_experts,
                                              .n_used = b->hp.n_used,
                                              .score = spec->score,
                                              .normalise = spec->normalise,
                                              .scale = spec->scale > 0 ? spec->scale : 1};
    atsi_build_op(b, &op);
    b->router_unit = (int32_t)b->out->program.n_units - 1;
}

static void run_experts(struct atsi_builder *b, const struct atsi_moe_spec *spec, const char *name, struct atsi_view in,
                        struct atsi_view ids, struct atsi_view out, bool in_per_slot) {
    struct atsi_op op = atsi_op_blank(ATSI_OP_EXPERTS);
    struct suffixed s;
    uint32_t cols = in_per_slot ? in.width / b->hp.n_used : in.width, rows = out.width / b->hp.n_used;
    atsi_build_unit(b, ATSI_UNIT_EXPERTS, name);
    op.in[0] = in;
    op.in[1] = ids;
    op.out[0] = out;
    op.tensor[0] = atsi_build_weight(b, ATSI_REQUIRED, weight_of(name, &s), cols, rows, b->hp.n_experts);
    if (spec->expert_bias) op.tensor[1] = atsi_build_table(b, ATSI_REQUIRED, bias_of(name, &s), rows, b->hp.n_experts);
    op.u.experts =
        (struct atsi_experts_params){.n_experts = b->hp.n_experts, .n_used = b->hp.n_used, .in_per_slot = in_per_slot};
    atsi_build_op(b, &op);
}

void atsi_block_moe(struct atsi_builder *b, const struct atsi_moe_spec *spec) {
    uint32_t n_used = b->hp.n_used, n_ff = b->hp.n_ff_exp;
    if (n_used == 0)
        atsi_build_fail(b, ATSI_BAD_INPUT, "key %s.expert_count: absent or 0, but the family has experts", b->arch);
    if (n_ff == 0) atsi_build_fail(b, ATSI_BAD_INPUT, "key %s.expert_feed_forward_length: absent or 0", b->arch);
    if (b->status == ATSI_OK &&
        ((uint64_t)n_used * n_ff > ATSI_MAX_WIDTH || (uint64_t)n_used * b->hp.n_embd > ATSI_MAX_WIDTH))
        atsi_build_fail(b, ATSI_BAD_INPUT, "key %s.expert_used_count: %u experts of width %u are too many", b->arch,
                        n_used, n_ff);
    if (b->status != ATSI_OK) return;

    struct atsi_view ids = atsi_build_ids_buffer(b, "expert_ids", n_used);
    struct atsi_view weights = atsi_build_buffer(b, "expert_weights", n_used);
    route(b, spec, ids, weights);
    if (spec->n_ff_shared) gated_ffn(b, NULL, "_shexp", spec->n_ff_shared, spec->glu, spec->shared_gate, NULL);

    struct atsi_view gate = atsi_build_buffer(b, "gate", n_used * n_ff), up = atsi_build_buffer(b, "up", n_used * n_ff);
    struct atsi_view slots = atsi_build_buffer(b, "expert_out", n_used * b->hp.n_embd);
    run_experts(b, spec, "ffn_gate_exps", atsi_normed(b), ids, gate, false);
    run_experts(b, spec, "ffn_up_exps", atsi_normed(b), ids, up, false);
    atsi_build_glu(b, gate, up, gate, spec->glu);
    run_experts(b, spec, "ffn_down_exps", gate, ids, slots, true);
    struct atsi_op sum = atsi_op_blank(ATSI_OP_EXPERT_SUM);
    sum.add = true;
    sum.in[0] = slots;
    sum.in[1] = weights;
    sum.in[2] = ids;
    sum.out[0] = atsi_stream(b);
    atsi_build_op(b, &sum);
}

void atsi_blocks_uniform(struct atsi_builder *b, const struct atsi_attention_spec *attention,
                         const struct atsi_ffn_spec *ffn, const struct atsi_moe_spec *moe) {
    atsi_block_embed(b, 1);
    for (uint32_t i = 0; i < b->hp.n_layers; i++) {
        b->layer = (int32_t)i;
        atsi_block_attention(b, attention);
        if (moe && (b->hp.n_experts || !ffn))
            atsi_block_moe(b, moe);
        else
            atsi_block_ffn(b, ffn);
    }
    atsi_block_head(b);
}
