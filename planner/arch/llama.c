// Llama 2, 3 and 3.1 (rope_freqs), Mistral, Mixtral (experts). q and k rows of the file are permuted for interleaved rope.
#include "planner/arch/blocks.h"
#include "planner/arch/families.h"

void atsi_lower_llama(struct atsi_builder *b) {
    struct atsi_attention_spec attention = {.rope = atsi_build_rope(b, ATSI_ROPE_INTERLEAVED, true)};
    struct atsi_ffn_spec ffn = {.norm = "ffn_norm.weight", .act = ATSI_GLU_SILU};
    struct atsi_moe_spec moe = {
        .norm = "ffn_norm.weight", .glu.act = ATSI_GLU_SILU, .score = ATSI_ROUTER_SOFTMAX, .normalise = true};
    atsi_blocks_uniform(b, &attention, &ffn, &moe);
}
