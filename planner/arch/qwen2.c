// Qwen2, Qwen2.5 (biases on q, k, v) and Qwen2-MoE (a gated shared expert, router weights not renormalised).
#include "planner/arch/blocks.h"
#include "planner/arch/families.h"

static struct atsi_attention_spec qwen2_attention(struct atsi_builder *b) {
    return (struct atsi_attention_spec){.rope = atsi_build_rope(b, ATSI_ROPE_HALF_SPLIT, true), .bias = ATSI_REQUIRED};
}

void atsi_lower_qwen2(struct atsi_builder *b) {
    struct atsi_attention_spec attention = qwen2_attention(b);
    struct atsi_ffn_spec ffn = {.norm = "ffn_norm.weight", .act = ATSI_GLU_SILU};
    atsi_blocks_uniform(b, &attention, &ffn, NULL);
}

void atsi_lower_qwen2moe(struct atsi_builder *b) {
    struct atsi_attention_spec attention = qwen2_attention(b);
    struct atsi_moe_spec moe = {
        .norm = "ffn_norm.weight", .glu.act = ATSI_GLU_SILU, .score = ATSI_ROUTER_SOFTMAX, .shared_gate = true};
    moe.n_ff_shared = atsi_build_count(b, "expert_shared_feed_forward_length", b->hp.layers[0].n_ff, 1, ATSI_HP_MAX_FF);
    atsi_blocks_uniform(b, &attention, NULL, &moe);
}
