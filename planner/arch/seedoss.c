// Seed-OSS: biases on q, k and v (none on the output), heads wider than embedding / heads, and a norm before the FFN that is
// named after the attention.
#include "planner/arch/blocks.h"
#include "planner/arch/families.h"

void atsi_lower_seedoss(struct atsi_builder *b) {
    struct atsi_attention_spec attention = {.rope = atsi_build_rope(b, ATSI_ROPE_HALF_SPLIT, true),
                                            .bias = ATSI_REQUIRED};
    struct atsi_ffn_spec ffn = {.norm = "post_attention_norm.weight", .act = ATSI_GLU_SILU};
    atsi_blocks_uniform(b, &attention, &ffn, NULL);
}
