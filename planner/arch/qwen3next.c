// Qwen3-Next and Qwen3.5: most layers mix with the gated delta rule (a convolution, then a matrix-valued state), every
// interval-th with gated attention. The two families differ in how the file holds beta and alpha and in which key head a value
// head uses. Source of the recurrence: "Gated Delta Networks", arXiv 2412.06464.
#include <stdlib.h>

#include "planner/arch/blocks.h"
#include "planner/arch/families.h"

struct delta_dims {
    uint32_t n_k_heads, n_v_heads, k_dim, v_dim, n_taps;
    uint32_t k_width, v_width; // of all heads
    bool fused_ba;             // one matrix ssm_ba, value heads grouped by key head; else ssm_beta, ssm_alpha, tiled
};

static struct delta_dims read_dims(struct atsi_builder *b, bool fused_ba) {
    struct delta_dims d = {.fused_ba = fused_ba};
    d.n_k_heads = atsi_build_count(b, "ssm.group_count", 0, 1, ATSI_HP_MAX_HEADS);
    d.n_v_heads = atsi_build_count(b, "ssm.time_step_rank", 0, 1, ATSI_HP_MAX_HEADS);
    d.k_dim = atsi_build_count(b, "ssm.state_size", 0, 1, ATSI_HP_MAX_HEAD_DIM);
    d.n_taps = atsi_build_count(b, "ssm.conv_kernel", 0, 2, 64);
    d.v_width = atsi_build_count(b, "ssm.inner_size", 0, 1, ATSI_HP_MAX_FF);
    if (b->status == ATSI_OK && (d.n_v_heads % d.n_k_heads != 0 || d.v_width % d.n_v_heads != 0))
        atsi_build_fail(b, ATSI_BAD_INPUT,
                        "keys %s.ssm.*: %u value heads must divide inner_size %u and be a multiple of %u key heads",
                        b->arch, d.n_v_heads, d.v_width, d.n_k_heads);
    if (b->status != ATSI_OK) return d;
    d.v_dim = d.v_width / d.n_v_heads;
    d.k_width = d.n_k_heads * d.k_dim;
    return d;
}

// Rows of ssm_ba: per key head r betas, then r alphas. Packed: all betas, all alphas.
static uint32_t *split_ba_rows(const struct delta_dims *d) {
    uint32_t r = d->n_v_heads / d->n_k_heads, *order = malloc((size_t)2 * d->n_v_heads * sizeof *order);
    for (uint32_t h = 0; order && h < d->n_v_heads; h++) {
        order[h] = h / r * 2 * r + h % r;
        order[d->n_v_heads + h] = order[h] + r;
    }
    return order;
}

// beta and alpha [n_v_heads each] side by side in `out`.
static void project_beta_alpha(struct atsi_builder *b, const struct delta_dims *d, struct atsi_view out) {
    struct atsi_view h = atsi_normed(b);
    if (d->fused_ba) {
        int32_t w = atsi_build_weight_reordered(b, "ssm_ba.weight", b->hp.n_embd, out.width, split_ba_rows(d));
        atsi_build_matmul(b, h, out, w, ATSI_NONE, false);
        return;
    }
    int32_t beta = atsi_build_weight(b, ATSI_REQUIRED, "ssm_beta.weight", b->hp.n_embd, d->n_v_heads, 1);
    int32_t alpha = atsi_build_weight(b, ATSI_REQUIRED, "ssm_alpha.weight", b->hp.n_embd, d->n_v_heads, 1);
    atsi_build_matmul(b, h, atsi_view_part(out, 0, d->n_v_heads), beta, ATSI_NONE, false);
    atsi_build_matmul(b, h, atsi_view_part(out, d->n_v_heads, d->n_v_heads), alpha, ATSI_NONE, false);
}

static struct atsi_view convolve(struct atsi_builder *b, const struct delta_dims *d, struct atsi_view in) {
    struct atsi_op op = atsi_op_blank(ATSI_OP_CONV);
    op.in[0] = in;
    op.out[0] = atsi_build_buffer(b, "convolved", in.width);
    op.tensor[0] = atsi_build_table(b, ATSI_REQUIRED, "ssm_conv1d.weight", d->n_taps, in.width);
    op.state = atsi_build_state(
        b, "conv",
        (struct atsi_state){.kind = ATSI_STATE_CONV, .n_heads = 1, .k_dim = in.width, .v_dim = d->n_taps - 1});
    atsi_build_op(b, &op);
    return op.out[0];
}

static struct atsi_view delta_rule(struct atsi_builder *b, const struct delta_dims *d, struct atsi_view qkv,
                                   struct atsi_view beta_alpha) {
    struct atsi_op op = atsi_op_blank(ATSI_OP_DELTA_RULE);
    op.in[0] = atsi_view_part(qkv, 0, d->k_width);
    op.in[1] = atsi_view_part(qkv, d->k_width, d->k_width);
    op.in[2] = atsi_view_part(qkv, 2 * d->k_width, d->v_width);
    op.in[3] = atsi_view_part(beta_alpha, 0, d->n_v_heads);
    op.in[4] = atsi_view_part(beta_alpha, d->n_v_heads, d->n_v_heads);
    op.out[0] = atsi_build_buffer(b, "mixed", d->v_width);
    op.tensor[0] = atsi_build_table(b, ATSI_REQUIRED, "ssm_a", d->n_v_heads, 1);
    op.tensor[1] = atsi_build_table(b, ATSI_REQUIRED, "ssm_dt.bias", d->n_v_heads, 1);
    op.state = atsi_build_state(
        b, "delta",
        (struct atsi_state){.kind = ATSI_STATE_DELTA, .n_heads = d->n_v_heads, .k_dim = d->k_dim, .v_dim = d->v_dim});
    op.u.delta = (struct atsi_delta_params){
        .n_k_heads = d->n_k_heads, .n_v_heads = d->n_v_heads, .tiled = !d->fused_ba, .eps = 1e-6f};
    atsi_build_op(b, &op);
    return op.out[0];
}

static void delta_block(struct atsi_builder *b, const struct delta_dims *d) {
    if (atsi_build_has(b, "ssm_in.weight"))
        atsi_build_fail(b, ATSI_BAD_INPUT,
                        "tensor blk.%d.ssm_in.weight: the fused projection of early conversions is not supported; "
                        "convert the model again",
                        b->layer);
    struct atsi_view qkv = atsi_build_buffer(b, "qkv", 2 * d->k_width + d->v_width);
    struct atsi_view z = atsi_build_buffer(b, "z", d->v_width),
                     ba = atsi_build_buffer(b, "beta_alpha", 2 * d->n_v_heads);

    atsi_build_unit(b, ATSI_UNIT_MATRIX, "attn_qkv");
    atsi_block_norm(b, "attn_norm.weight");
    int32_t w = atsi_build_weight(b, ATSI_REQUIRED, "attn_qkv.weight", b->hp.n_embd, qkv.width, 1);
    atsi_build_matmul(b, atsi_normed(b), qkv, w, ATSI_NONE, false);
    atsi_build_unit(b, ATSI_UNIT_MATRIX, "attn_gate");
    w = atsi_build_weight(b, ATSI_REQUIRED, "attn_gate.weight", b->hp.n_embd, z.width, 1);
    atsi_build_matmul(b, atsi_normed(b), z, w, ATSI_NONE, false);
    project_beta_alpha(b, d, ba);

    atsi_build_unit(b, ATSI_UNIT_STATE, "delta");
    struct atsi_view mixed = delta_rule(b, d, convolve(b, d, qkv), ba);
    atsi_build_norm(b, mixed, mixed, atsi_build_table(b, ATSI_REQUIRED, "ssm_norm.weight", d->v_dim, 1), d->v_dim,
                    false);
    atsi_build_glu(b, z, mixed, mixed, (struct atsi_glu_params){.act = ATSI_GLU_SILU});
    atsi_block_project(b, "ssm_out", mixed, NULL);
}

static void lower_hybrid(struct atsi_builder *b, bool fused_ba) {
    struct delta_dims dims = read_dims(b, fused_ba);
    uint32_t interval = atsi_build_count(b, "full_attention_interval", 4, 1, ATSI_HP_MAX_LAYERS);
    struct atsi_attention_spec attention = {
        .rope = atsi_build_rope(b, ATSI_ROPE_HALF_SPLIT, true), .qk_norm = ATSI_REQUIRED, .gated = true};
    const char *norm = "post_attention_norm.weight"; // the norm before the FFN, in spite of its name
    struct atsi_ffn_spec ffn = {.norm = norm, .act = ATSI_GLU_SILU};
    struct atsi_moe_spec moe = {
        .norm = norm, .glu.act = ATSI_GLU_SILU, .score = ATSI_ROUTER_SOFTMAX, .normalise = true, .shared_gate = true};
    moe.n_ff_shared = atsi_build_count(b, "expert_shared_feed_forward_length", b->hp.n_ff_exp, 0, ATSI_HP_MAX_FF);
    if (b->status != ATSI_OK) return;

    atsi_block_embed(b, 1);
    for (uint32_t i = 0; i < b->hp.n_layers; i++) {
        b->layer = (int32_t)i;
        if ((i + 1) % interval == 0)
            atsi_block_attention(b, &attention);
        else
            delta_block(b, &dims);
        if (b->hp.n_experts)
            atsi_block_moe(b, &moe);
        else
            atsi_block_ffn(b, &ffn);
    }
    atsi_block_head(b);
}

void atsi_lower_qwen3next(struct atsi_builder *b) { lower_hybrid(b, true); }
void atsi_lower_qwen35(struct atsi_builder *b) { lower_hybrid(b, false); }
