// GPT-OSS: experts with biases and a clamped gate, attention sinks, a sliding window in even layers, YaRN without rounding of its
// correction range (the model's configuration says truncate = false; the file says nothing).
#include "planner/arch/blocks.h"
#include "planner/arch/families.h"

void atsi_lower_gptoss(struct atsi_builder *b) {
    struct atsi_attention_spec full = {
        .rope = atsi_build_rope(b, ATSI_ROPE_HALF_SPLIT, false), .bias = ATSI_REQUIRED, .sinks = true};
    struct atsi_attention_spec local = full;
    local.window = atsi_build_count(b, "attention.sliding_window", 0, 0, ATSI_HP_MAX_CTX);
    struct atsi_moe_spec moe = {
        .norm = "post_attention_norm.weight", // the norm before the experts, in spite of its name
        .glu = {.act = ATSI_GLU_CLAMPED, .alpha = 1.702f, .limit = 7},
        .score = ATSI_ROUTER_SOFTMAX_SELECTED,
        .router_bias = true,
        .expert_bias = true,
    };
    atsi_block_embed(b, 1);
    for (uint32_t i = 0; i < b->hp.n_layers; i++) {
        b->layer = (int32_t)i;
        atsi_block_attention(b, i % 2 == 0 ? &local : &full);
        atsi_block_moe(b, &moe);
    }
    atsi_block_head(b);
}
