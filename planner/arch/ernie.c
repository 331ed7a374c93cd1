// ERNIE 4.5: a plain transformer with interleaved rope. ERNIE 4.5 MoE: dense layers first; then softmax routing whose choice a bias
// corrects, the weights of the chosen adding up to one, and a shared expert.
#include "planner/arch/blocks.h"
#include "planner/arch/families.h"

static struct atsi_attention_spec ernie_attention(struct atsi_builder *b) {
    return (struct atsi_attention_spec){.rope = atsi_build_rope(b, ATSI_ROPE_INTERLEAVED, true)};
}

static const struct atsi_ffn_spec ernie_ffn = {.norm = "ffn_norm.weight", .act = ATSI_GLU_SILU};

void atsi_lower_ernie4_5(struct atsi_builder *b) {
    struct atsi_attention_spec attention = ernie_attention(b);
    atsi_blocks_uniform(b, &attention, &ernie_ffn, NULL);
}

void atsi_lower_ernie4_5moe(struct atsi_builder *b) {
    struct atsi_attention_spec attention = ernie_attention(b);
    struct atsi_moe_spec moe = {.norm = "ffn_norm.weight",
                                .glu.act = ATSI_GLU_SILU,
                                .score = ATSI_ROUTER_SOFTMAX,
                                .normalise = true,
                                .selection_bias = true};
    uint32_t n_dense = atsi_build_count(b, "leading_dense_block_count", 0, 0, b->hp.n_layers);
    uint32_t step = atsi_build_count(b, "interleave_moe_layer_step", 1, 1, ATSI_HP_MAX_LAYERS);
    uint32_t n_shared = atsi_build_count(b, "expert_shared_count", 0, 0, 64);
    moe.n_ff_shared =
        atsi_build_count(b, "expert_shared_feed_forward_length", n_shared * b->hp.n_ff_exp, 0, ATSI_HP_MAX_FF);

    atsi_block_embed(b, 1);
    for (uint32_t i = 0; i < b->hp.n_layers; i++) {
        b->layer = (int32_t)i;
        atsi_block_attention(b, &attention);
        if (i >= n_dense && (i + 1) % step == 0)
            atsi_block_moe(b, &moe);
        else
            atsi_block_ffn(b, &ernie_ffn);
    }
    atsi_block_head(b);
}
