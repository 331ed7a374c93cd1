// Phi-3 and Phi-4: q, k, v in one matrix, gate and up in one; "longrope" has one set of divisors for short contexts and one for
// long ones, chosen by the planned context.
#include <math.h>

#include "planner/arch/blocks.h"
#include "planner/arch/families.h"

// Scale of cos and sin for a context stretched by `stretch` over n_orig (LongRoPE, arXiv 2402.13753).
static double longrope_scale(double stretch, double n_orig) {
    return stretch > 1 && n_orig > 1 ? sqrt(1 + log(stretch) / log(n_orig)) : 1;
}

static struct atsi_rope phi3_rope(struct atsi_builder *b) {
    static const char short_factors[] = "rope_factors_short.weight", long_factors[] = "rope_factors_long.weight";
    if (!atsi_build_has(b, short_factors) && !atsi_build_has(b, long_factors))
        return atsi_build_rope(b, ATSI_ROPE_HALF_SPLIT, true);
    struct atsi_rope_config config = {.base = atsi_build_number(b, "rope.freq_base", 10000, 1, 1e12),
                                      .n_rot = b->hp.n_rot};
    double n_orig = atsi_build_number(b, "rope.scaling.original_context_length", b->hp.n_ctx_train, 0, ATSI_HP_MAX_CTX);
    double scale =
        atsi_build_number(b, "rope.scaling.attn_factor", longrope_scale(b->hp.n_ctx_train / n_orig, n_orig), 0, 1e3);
    bool is_long = b->out->n_ctx > n_orig;
    config.divisors = atsi_build_divisors(b, ATSI_REQUIRED, is_long ? long_factors : short_factors, config.n_rot / 2);
    if (b->status == ATSI_OK)
        fprintf(b->remarks, "rope: the %s factors, for a context of %u (trained with %g)\n", is_long ? "long" : "short",
                b->out->n_ctx, n_orig);
    return atsi_build_rope_from(b, ATSI_ROPE_HALF_SPLIT, &config, (float)scale);
}

void atsi_lower_phi3(struct atsi_builder *b) {
    struct atsi_attention_spec attention = {.rope = phi3_rope(b), .fused_qkv = true};
    attention.window = atsi_build_count(b, "attention.sliding_window", 0, 0, ATSI_HP_MAX_CTX);
    struct atsi_ffn_spec ffn = {.norm = "ffn_norm.weight", .act = ATSI_GLU_SILU, .fused_gate_up = true};
    atsi_blocks_uniform(b, &attention, &ffn, NULL);
}
