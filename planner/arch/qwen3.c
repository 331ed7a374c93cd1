// Qwen3 and Qwen3-MoE: a norm on each head of q and k; the weights of the chosen experts always add up to one.
#include "planner/arch/blocks.h"
#include "planner/arch/families.h"

static struct atsi_attention_spec qwen3_attention(struct atsi_builder *b) {
    return (struct atsi_attention_spec){.rope = atsi_build_rope(b, ATSI_ROPE_HALF_SPLIT, true),
                                        .qk_norm = ATSI_REQUIRED};
}

void atsi_lower_qwen3(struct atsi_builder *b) {
    struct atsi_attention_spec attention = qwen3_attention(b);
    struct atsi_ffn_spec ffn = {.norm = "ffn_norm.weight", .act = ATSI_GLU_SILU};
    atsi_blocks_uniform(b, &attention, &ffn, NULL);
}

void atsi_lower_qwen3moe(struct atsi_builder *b) {
    struct atsi_attention_spec attention = qwen3_attention(b);
    struct atsi_moe_spec moe = {
        .norm = "ffn_norm.weight", .glu.act = ATSI_GLU_SILU, .score = ATSI_ROUTER_SOFTMAX, .normalise = true};
    atsi_blocks_uniform(b, &attention, NULL, &moe);
}
