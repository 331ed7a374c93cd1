// Ministral 3 and Mistral Small 3.1 and later: Llama's layers. Ministral scales its queries by 1 + temperature * ln(1 + floor(position /
// original context)), which is 1 within the original context; no operation computes it, so longer contexts are refused.
#include "planner/arch/blocks.h"
#include "planner/arch/families.h"

static void refuse_tempered_positions(struct atsi_builder *b) {
    double temperature = atsi_build_number(b, "attention.temperature_scale", 0, -1, 1e3);
    if (temperature == 0) return;
    uint32_t n_original =
        atsi_build_count(b, "rope.scaling.original_context_length", b->hp.n_ctx_train, 1, ATSI_HP_MAX_CTX);
    if (b->out->n_ctx > n_original)
        atsi_build_fail(b, ATSI_BAD_INPUT,
                        "key %s.attention.temperature_scale: attention beyond position %u is not supported; plan with "
                        "--ctx %u or less",
                        b->arch, n_original, n_original);
}

void atsi_lower_mistral3(struct atsi_builder *b) {
    struct atsi_attention_spec attention = {.rope = atsi_build_rope(b, ATSI_ROPE_INTERLEAVED, true)};
    struct atsi_ffn_spec ffn = {.norm = "ffn_norm.weight", .act = ATSI_GLU_SILU};
    refuse_tempered_positions(b);
    atsi_blocks_uniform(b, &attention, &ffn, NULL);
}
