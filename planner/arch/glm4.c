// GLM-4 and GLM-Z1: rope on the first part of a head, gate and up in one matrix, norms after attention and FFN.
// GLM-4.5 and 4.6 (glm4moe): dense layers first, then sigmoid routing with a selection bias and a shared expert.
#include "planner/arch/blocks.h"
#include "planner/arch/families.h"

void atsi_lower_glm4(struct atsi_builder *b) {
    struct atsi_attention_spec attention = {.rope = atsi_build_rope(b, ATSI_ROPE_INTERLEAVED, true),
                                            .post_norm = "post_attention_norm.weight"};
    struct atsi_ffn_spec ffn = {
        .norm = "ffn_norm.weight", .act = ATSI_GLU_SILU, .fused_gate_up = true, .post_norm = "post_ffw_norm.weight"};
    atsi_blocks_uniform(b, &attention, &ffn, NULL);
}

void atsi_lower_glm4moe(struct atsi_builder *b) {
    struct atsi_attention_spec attention = {.rope = atsi_build_rope(b, ATSI_ROPE_HALF_SPLIT, true)};
    const char *norm = "post_attention_norm.weight"; // the norm before the FFN, in spite of its name
    struct atsi_ffn_spec ffn = {.norm = norm, .act = ATSI_GLU_SILU};
    struct atsi_moe_spec moe = {.norm = norm, .glu.act = ATSI_GLU_SILU, .selection_bias = true};
    uint32_t n_dense = atsi_build_count(b, "leading_dense_block_count", 0, 0, b->hp.n_layers);
    uint32_t n_shared = atsi_build_count(b, "expert_shared_count", 0, 0, 64);
    moe.score = atsi_build_router_score(b, ATSI_ROUTER_SIGMOID);
    moe.normalise = atsi_build_flag(b, "expert_weights_norm", true);
    moe.scale = (float)atsi_build_number(b, "expert_weights_scale", 1, 0, 1e3);
    moe.n_ff_shared = n_shared * b->hp.n_ff_exp;

    atsi_block_embed(b, 1);
    for (uint32_t i = 0; i < b->hp.n_layers; i++) {
        b->layer = (int32_t)i;
        atsi_block_attention(b, &attention);
        if (i < n_dense)
            atsi_block_ffn(b, &ffn);
        else
            atsi_block_moe(b, &moe);
    }
    atsi_block_head(b);
}
