// Gemma 3 (text): four norms a layer (the file's weights have +1 in them), GELU, scaled embeddings, and sliding-window layers
// with a rope base of their own between full ones.
#include <math.h>

#include "planner/arch/blocks.h"
#include "planner/arch/families.h"

enum {
    DEFAULT_PATTERN = 6,
    LAYERS_OF_27B = 62
};

// sliding[i]: whether layer i sees a window only. The file may give the period (every period-th layer is full) or each layer.
static void read_pattern(struct atsi_builder *b, bool sliding[ATSI_HP_MAX_LAYERS]) {
    char key[ATSI_HP_KEY_CAP];
    uint32_t flags[ATSI_HP_MAX_LAYERS], period = DEFAULT_PATTERN;
    snprintf(key, sizeof key, "%s.attention.sliding_window_pattern", b->arch);
    const struct atsi_gguf_kv *kv = atsi_gguf_find(b->gguf, key);
    if (b->status != ATSI_OK) return;
    if (kv && kv->type == ATSI_GGUF_ARRAY) {
        b->status = atsi_gguf_per_layer_u32(b->gguf, key, b->hp.n_layers, b->hp.n_nextn, NULL, flags, b->err);
        for (uint32_t i = 0; b->status == ATSI_OK && i < b->hp.n_layers; i++) sliding[i] = flags[i] != 0;
        return;
    }
    period = atsi_build_count(b, "attention.sliding_window_pattern", DEFAULT_PATTERN, 1, ATSI_HP_MAX_LAYERS);
    for (uint32_t i = 0; i < b->hp.n_layers; i++) sliding[i] = (i + 1) % period != 0;
}

static struct atsi_rope local_rope(struct atsi_builder *b) {
    struct atsi_rope_config config = {.base = atsi_build_number(b, "rope.freq_base_swa", 10000, 1, 1e12),
                                      .n_rot = b->hp.n_rot};
    return atsi_build_rope_from(b, ATSI_ROPE_HALF_SPLIT, &config, 1);
}

// 1 / sqrt(head size), except in the 27B model, which divides by embedding / heads and does not say so.
static float score_scale(struct atsi_builder *b) {
    double per_head = b->hp.n_layers == LAYERS_OF_27B ? (double)b->hp.n_embd / b->hp.layers[0].n_heads : b->hp.k_dim;
    return (float)atsi_build_number(b, "attention.scale", 1 / sqrt(per_head), 0, 1e3);
}

void atsi_lower_gemma3(struct atsi_builder *b) {
    bool sliding[ATSI_HP_MAX_LAYERS] = {false};
    read_pattern(b, sliding);
    struct atsi_attention_spec full = {.rope = atsi_build_rope(b, ATSI_ROPE_HALF_SPLIT, true),
                                       .scale = score_scale(b),
                                       .qk_norm = ATSI_REQUIRED,
                                       .post_norm = "post_attention_norm.weight"};
    struct atsi_attention_spec local = full;
    local.rope = local_rope(b);
    local.window = atsi_build_count(b, "attention.sliding_window", 0, 0, ATSI_HP_MAX_CTX);
    struct atsi_ffn_spec ffn = {
        .norm = "ffn_norm.weight", .act = ATSI_GLU_GELU_TANH, .post_norm = "post_ffw_norm.weight"};

    atsi_block_embed(b, sqrtf((float)b->hp.n_embd));
    for (uint32_t i = 0; i < b->hp.n_layers; i++) {
        b->layer = (int32_t)i;
        atsi_block_attention(b, sliding[i] ? &local : &full);
        atsi_block_ffn(b, &ffn);
    }
    atsi_block_head(b);
}
