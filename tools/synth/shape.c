#include "tools/synth/shape.h"

#include <string.h>

static const struct synth_family families[] = {
    {.arch = "llama", .pre = "llama-bpe", .ffn_norm = "ffn_norm"},
    {.arch = "qwen2", .pre = "qwen2", .ffn_norm = "ffn_norm"},
    {.arch = "qwen2moe", .pre = "qwen2", .ffn_norm = "ffn_norm", .shared_gate = true},
    {.arch = "qwen3", .pre = "qwen2", .ffn_norm = "ffn_norm", .qk_norm = true},
    {.arch = "qwen3moe", .pre = "qwen2", .ffn_norm = "ffn_norm", .qk_norm = true},
    {.arch = "qwen3next", .pre = "qwen2", .ffn_norm = "post_attention_norm", .qk_norm = true, .gated = true,
     .fused_ba = true, .shared_gate = true},
    {.arch = "qwen35", .pre = "qwen35", .ffn_norm = "post_attention_norm", .qk_norm = true, .gated = true,
     .rope_sections = true},
    {.arch = "qwen35moe", .pre = "qwen35", .ffn_norm = "post_attention_norm", .qk_norm = true, .gated = true,
     .shared_gate = true, .rope_sections = true},
    {.arch = "gemma3", .pre = "gpt-2", .ffn_norm = "ffn_norm", .qk_norm = true, .post_norms = true,
     .scaled_embed = true},
    {.arch = "gpt-oss", .pre = "gpt-4o", .ffn_norm = "post_attention_norm", .sinks = true},
    {.arch = "glm4", .pre = "glm4", .ffn_norm = "ffn_norm", .fused_gate_up = true, .post_norms = true},
    {.arch = "glm4moe", .pre = "glm4", .ffn_norm = "post_attention_norm", .selection_bias = true},
    {.arch = "phi3", .pre = "dbrx", .ffn_norm = "ffn_norm", .fused_qkv = true, .fused_gate_up = true},
};

// Source: the configuration files that the models' makers published.
static const struct synth_shape shapes[] = {
    {.name = "qwen3-1.7b", .arch = "qwen3", .n_layers = 28, .n_embd = 2048, .n_heads = 16, .n_kv_heads = 8,
     .head_dim = 128, .n_rot = 128, .n_ff = 6144, .n_vocab = 151936, .n_ctx = 40960, .rope_base = 1e6f,
     .rms_eps = 1e-6f, .tied = true},
    {.name = "qwen3-14b", .arch = "qwen3", .n_layers = 40, .n_embd = 5120, .n_heads = 40, .n_kv_heads = 8,
     .head_dim = 128, .n_rot = 128, .n_ff = 17408, .n_vocab = 151936, .n_ctx = 40960, .rope_base = 1e6f,
     .rms_eps = 1e-6f},
    {.name = "qwen3-30b-a3b", .arch = "qwen3moe", .n_layers = 48, .n_embd = 2048, .n_heads = 32, .n_kv_heads = 4,
     .head_dim = 128, .n_rot = 128, .n_ff = 6144, .n_vocab = 151936, .n_ctx = 40960, .rope_base = 1e6f,
     .rms_eps = 1e-6f, .n_experts = 128, .n_used = 8, .n_ff_exp = 768},
    {.name = "gpt-oss-20b", .arch = "gpt-oss", .n_layers = 24, .n_embd = 2880, .n_heads = 64, .n_kv_heads = 8,
     .head_dim = 64, .n_rot = 64, .n_ff = 2880, .n_vocab = 201088, .n_ctx = 131072, .rope_base = 150000,
     .rms_eps = 1e-5f, .qkv_bias = true, .rope_factor = 32, .rope_orig_ctx = 4096, .window = 128, .n_experts = 32,
     .n_used = 4, .n_ff_exp = 2880},
    {.name = "gpt-oss-120b", .arch = "gpt-oss", .n_layers = 36, .n_embd = 2880, .n_heads = 64, .n_kv_heads = 8,
     .head_dim = 64, .n_rot = 64, .n_ff = 2880, .n_vocab = 201088, .n_ctx = 131072, .rope_base = 150000,
     .rms_eps = 1e-5f, .qkv_bias = true, .rope_factor = 32, .rope_orig_ctx = 4096, .window = 128, .n_experts = 128,
     .n_used = 4, .n_ff_exp = 2880},
    {.name = "glm-z1-9b", .arch = "glm4", .n_layers = 40, .n_embd = 4096, .n_heads = 32, .n_kv_heads = 2,
     .head_dim = 128, .n_rot = 64, .n_ff = 13696, .n_vocab = 151552, .n_ctx = 32768, .rope_base = 10000,
     .rms_eps = 1e-5f, .qkv_bias = true},
    {.name = "llama3.1-8b", .arch = "llama", .n_layers = 32, .n_embd = 4096, .n_heads = 32, .n_kv_heads = 8,
     .head_dim = 128, .n_rot = 128, .n_ff = 14336, .n_vocab = 128256, .n_ctx = 131072, .rope_base = 500000,
     .rms_eps = 1e-5f, .rope_freqs = true},
    {.name = "llama3.1-70b", .arch = "llama", .n_layers = 80, .n_embd = 8192, .n_heads = 64, .n_kv_heads = 8,
     .head_dim = 128, .n_rot = 128, .n_ff = 28672, .n_vocab = 128256, .n_ctx = 131072, .rope_base = 500000,
     .rms_eps = 1e-5f, .rope_freqs = true},
    {.name = "qwen3-next-80b-a3b", .arch = "qwen3next", .n_layers = 48, .n_embd = 2048, .n_heads = 16,
     .n_kv_heads = 2, .head_dim = 256, .n_rot = 64, .n_ff = 5120, .n_vocab = 151936, .n_ctx = 262144,
     .rope_base = 1e7f, .rms_eps = 1e-6f, .n_experts = 512, .n_used = 10, .n_ff_exp = 512, .n_ff_shared = 512,
     .n_k_heads = 16, .n_v_heads = 32, .state_dim = 128},
    {.name = "qwen3.5-27b", .arch = "qwen35", .n_layers = 64, .n_embd = 5120, .n_heads = 24, .n_kv_heads = 4,
     .head_dim = 256, .n_rot = 64, .n_ff = 17408, .n_vocab = 248320, .n_ctx = 262144, .rope_base = 1e7f,
     .rms_eps = 1e-6f, .n_k_heads = 16, .n_v_heads = 48, .state_dim = 128},
    {.name = "qwen3.5-122b-a10b", .arch = "qwen35moe", .n_layers = 48, .n_embd = 3072, .n_heads = 32,
     .n_kv_heads = 2, .head_dim = 256, .n_rot = 64, .n_vocab = 248320, .n_ctx = 262144, .rope_base = 1e7f,
     .rms_eps = 1e-6f, .n_experts = 256, .n_used = 8, .n_ff_exp = 1024, .n_ff_shared = 1024, .n_k_heads = 16,
     .n_v_heads = 64, .state_dim = 128},
    {.name = "gemma3-27b", .arch = "gemma3", .n_layers = 62, .n_embd = 5376, .n_heads = 32, .n_kv_heads = 16,
     .head_dim = 128, .n_rot = 128, .n_ff = 21504, .n_vocab = 262208, .n_ctx = 131072, .rope_base = 1e6f,
     .rms_eps = 1e-6f, .tied = true, .rope_factor = 8, .window = 1024},
    {.name = "mixtral-8x7b", .arch = "llama", .n_layers = 32, .n_embd = 4096, .n_heads = 32, .n_kv_heads = 8,
     .head_dim = 128, .n_rot = 128, .n_ff = 14336, .n_vocab = 32000, .n_ctx = 32768, .rope_base = 1e6f,
     .rms_eps = 1e-5f, .n_experts = 8, .n_used = 2, .n_ff_exp = 14336},
    {.name = "qwen2.5-7b", .arch = "qwen2", .n_layers = 28, .n_embd = 3584, .n_heads = 28, .n_kv_heads = 4,
     .head_dim = 128, .n_rot = 128, .n_ff = 18944, .n_vocab = 152064, .n_ctx = 32768, .rope_base = 1e6f,
     .rms_eps = 1e-6f, .qkv_bias = true},
    {.name = "qwen1.5-moe-a2.7b", .arch = "qwen2moe", .n_layers = 24, .n_embd = 2048, .n_heads = 16,
     .n_kv_heads = 16, .head_dim = 128, .n_rot = 128, .n_ff = 5632, .n_vocab = 151936, .n_ctx = 8192,
     .rope_base = 1e6f, .rms_eps = 1e-6f, .qkv_bias = true, .n_experts = 60, .n_used = 4, .n_ff_exp = 1408,
     .n_ff_shared = 5632},
    {.name = "glm4.5-air", .arch = "glm4moe", .n_layers = 46, .n_embd = 4096, .n_heads = 96, .n_kv_heads = 8,
     .head_dim = 128, .n_rot = 64, .n_ff = 10944, .n_vocab = 151552, .n_ctx = 131072, .rope_base = 1e6f,
     .rms_eps = 1e-5f, .qkv_bias = true, .n_experts = 128, .n_used = 8, .n_ff_exp = 1408, .n_ff_shared = 1408,
     .n_dense = 1},
    {.name = "phi-4", .arch = "phi3", .n_layers = 40, .n_embd = 5120, .n_heads = 40, .n_kv_heads = 10,
     .head_dim = 128, .n_rot = 128, .n_ff = 17920, .n_vocab = 100352, .n_ctx = 16384, .rope_base = 250000,
     .rms_eps = 1e-5f},
};

enum {
    ATTENTION_INTERVAL = 4 // of the hybrid families
};

const struct synth_shape *synth_shape_at(size_t index) {
    return index < sizeof shapes / sizeof *shapes ? &shapes[index] : NULL;
}

const struct synth_shape *synth_shape_find(const char *name) {
    for (size_t i = 0; synth_shape_at(i); i++)
        if (!strcmp(shapes[i].name, name)) return &shapes[i];
    return NULL;
}

const struct synth_family *synth_family_of(const struct synth_shape *shape) {
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (!strcmp(families[i].arch, shape->arch)) return &families[i];
    return NULL;
}

bool synth_layer_has_attention(const struct synth_shape *shape, uint32_t i) {
    return shape->n_v_heads == 0 || (i + 1) % ATTENTION_INTERVAL == 0;
}

bool synth_layer_has_experts(const struct synth_shape *shape, uint32_t i) {
    return shape->n_experts > 0 && i >= shape->n_dense;
}
