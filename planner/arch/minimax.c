// MiniMax-M2: every layer has experts, chosen by sigmoid scores that a bias corrects; rope on the first half of a head; the norms of
// q and k run over all heads together.
#include "planner/arch/blocks.h"
#include "planner/arch/families.h"

void atsi_lower_minimax_m2(struct atsi_builder *b) {
    struct atsi_attention_spec attention = {
        .rope = atsi_build_rope(b, ATSI_ROPE_HALF_SPLIT, true), .qk_norm = ATSI_REQUIRED, .qk_norm_whole = true};
    struct atsi_moe_spec moe = {.norm = "ffn_norm.weight",
                                .glu.act = ATSI_GLU_SILU,
                                .score = atsi_build_router_score(b, ATSI_ROUTER_SIGMOID),
                                .normalise = true,
                                .selection_bias = true};
    moe.scale = (float)atsi_build_number(b, "expert_weights_scale", 1, 0, 1e3);
    atsi_blocks_uniform(b, &attention, NULL, &moe);
}
