#include "tests/support/tiny_model.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

const char *const tiny_archs[] = {"llama",        "qwen2",      "qwen2moe",  "qwen3",    "qwen3moe",
                                  "qwen3next",    "qwen35",     "qwen35moe", "gemma3",   "gpt-oss",
                                  "glm4",         "glm4moe",    "phi3",      "seed_oss", "ernie4_5",
                                  "ernie4_5-moe", "minimax-m2", "mistral3",  NULL};

// Tensors of a layer: "name shape", letters of the shape as dimension_of() has them.
static const char *const norms[] = {"attn_norm.weight E", "ffn_norm.weight E", NULL};
static const char *const post_norm_ffn[] = {"attn_norm.weight E", "post_attention_norm.weight E", NULL};
static const char *const four_norms[] = {"attn_norm.weight E", "post_attention_norm.weight E", "ffn_norm.weight E",
                                         "post_ffw_norm.weight E", NULL};
static const char *const attention[] = {"attn_q.weight EQ", "attn_k.weight EK", "attn_v.weight EK",
                                        "attn_output.weight QE", NULL};
static const char *const gated_attention[] = {"attn_q.weight E2",
                                              "attn_k.weight EK",
                                              "attn_v.weight EK",
                                              "attn_output.weight QE",
                                              "attn_q_norm.weight D",
                                              "attn_k_norm.weight D",
                                              NULL};
static const char *const fused_attention[] = {"attn_qkv.weight E3", "attn_output.weight QE", NULL};
static const char *const biases[] = {"attn_q.bias Q", "attn_k.bias K", "attn_v.bias K", NULL};
static const char *const qk_norms[] = {"attn_q_norm.weight D", "attn_k_norm.weight D", NULL};
static const char *const qk_whole_norms[] = {"attn_q_norm.weight Q", "attn_k_norm.weight K", NULL};
static const char *const ffn[] = {"ffn_gate.weight EF", "ffn_up.weight EF", "ffn_down.weight FE", NULL};
static const char *const fused_ffn[] = {"ffn_up.weight E4", "ffn_down.weight FE", NULL};
static const char *const experts[] = {"ffn_gate_inp.weight EX", "ffn_gate_exps.weight EGX", "ffn_up_exps.weight EGX",
                                      "ffn_down_exps.weight GEX", NULL};
static const char *const expert_biases[] = {"ffn_gate_inp.bias X", "ffn_gate_exps.bias GX", "ffn_up_exps.bias GX",
                                            "ffn_down_exps.bias EX", NULL};
static const char *const shared_expert[] = {"ffn_gate_shexp.weight EG", "ffn_up_shexp.weight EG",
                                            "ffn_down_shexp.weight GE", NULL};
static const char *const shared_gate[] = {"ffn_gate_inp_shexp.weight E", NULL};
static const char *const sinks[] = {"attn_sinks.weight H", "attn_output.bias E", NULL};
static const char *const selection_bias[] = {"exp_probs_b.bias X", NULL};
static const char *const delta[] = {"attn_qkv.weight EC", "attn_gate.weight EV", "ssm_conv1d.weight TC", "ssm_a H",
                                    "ssm_dt.bias H",      "ssm_norm.weight D",   "ssm_out.weight VE",    NULL};
static const char *const delta_fused_ba[] = {"ssm_ba.weight E8", NULL};
static const char *const delta_separate[] = {"ssm_beta.weight EH", "ssm_alpha.weight EH", NULL};

struct layout {
    const char *arch;
    const char *const *full[7];   // lists of a layer with attention; NULL ends them
    const char *const *linear[7]; // of layer 0 where that one has another mixer
    const char *const *dense[5];  // of layer 0 where that one has no experts
};

static const struct layout layouts[] = {
    {"llama", {norms, attention, ffn}, {0}, {0}},
    {"mistral3", {norms, attention, ffn}, {0}, {0}},
    {"qwen2", {norms, attention, biases, ffn}, {0}, {0}},
    {"qwen2moe", {norms, attention, biases, experts, shared_expert, shared_gate}, {0}, {0}},
    {"qwen3", {norms, attention, qk_norms, ffn}, {0}, {0}},
    {"qwen3moe", {norms, attention, qk_norms, experts}, {0}, {0}},
    {"qwen3next",
     {post_norm_ffn, gated_attention, experts, shared_expert, shared_gate},
     {post_norm_ffn, delta, delta_fused_ba, experts, shared_expert, shared_gate},
     {0}},
    {"qwen35", {post_norm_ffn, gated_attention, ffn}, {post_norm_ffn, delta, delta_separate, ffn}, {0}},
    {"qwen35moe",
     {post_norm_ffn, gated_attention, experts, shared_expert, shared_gate},
     {post_norm_ffn, delta, delta_separate, experts, shared_expert, shared_gate},
     {0}},
    {"gemma3", {four_norms, attention, qk_norms, ffn}, {0}, {0}},
    {"gpt-oss", {post_norm_ffn, attention, biases, sinks, experts, expert_biases}, {0}, {0}},
    {"glm4", {four_norms, attention, fused_ffn}, {0}, {0}},
    {"glm4moe",
     {post_norm_ffn, attention, experts, shared_expert, selection_bias},
     {0},
     {post_norm_ffn, attention, ffn}},
    {"phi3", {norms, fused_attention, fused_ffn}, {0}, {0}},
    {"minimax-m2", {norms, attention, qk_whole_norms, experts, selection_bias}, {0}, {0}},
    {"seed_oss", {post_norm_ffn, attention, biases, ffn}, {0}, {0}},
    {"ernie4_5", {norms, attention, ffn}, {0}, {0}},
    {"ernie4_5-moe", {norms, attention, experts, shared_expert, selection_bias}, {0}, {norms, attention, ffn}},
};

static const struct layout *layout_of(const char *arch) {
    for (unsigned i = 0; i < sizeof layouts / sizeof *layouts; i++)
        if (!strcmp(layouts[i].arch, arch)) return &layouts[i];
    assert(!"unknown architecture");
    return NULL;
}

static const char *const *const *lists_of_layer(const struct layout *l, unsigned layer) {
    if (layer == 0 && l->linear[0]) return l->linear;
    if (layer == 0 && l->dense[0]) return l->dense;
    return l->full;
}

static uint64_t dimension_of(char letter) {
    const uint64_t q = TINY_HEADS * TINY_DIM, k = TINY_KV_HEADS * TINY_DIM;
    switch (letter) {
    case 'E': return TINY_EMBD;
    case 'Q': return q;
    case 'K': return k;
    case 'D': return TINY_DIM;
    case 'H': return TINY_HEADS; // of values, in delta layers
    case 'F': return TINY_FF;
    case 'X': return TINY_EXPERTS;
    case 'G': return TINY_FF_EXP;
    case 'C': return 2 * k + q; // channels of the convolution
    case 'V': return q;
    case 'T': return 4; // taps
    case '2': return 2 * q;
    case '3': return q + 2 * k;
    case '4': return 2 * TINY_FF;
    case '8': return 2 * TINY_HEADS;
    default: return TINY_VOCAB;
    }
}

static void put_tensor(struct gguf_builder *g, const char *prefix, const char *spec, const struct tiny_change *change) {
    char name[80], shape[8];
    uint64_t ne[3], n = 1;
    int split = (int)(strchr(spec, ' ') - spec);
    snprintf(name, sizeof name, "%s%.*s", prefix, split, spec);
    snprintf(shape, sizeof shape, "%s", spec + split + 1);
    if (change->drop_tensor && !strcmp(change->drop_tensor, name)) return;
    for (unsigned d = 0; shape[d]; d++) ne[d] = dimension_of(shape[d]);
    if (change->reshape && !strcmp(change->reshape, name)) ne[strlen(shape) - 1]++;
    for (unsigned d = 0; shape[d]; d++) n *= ne[d];
    gb_tensor(g, name, 0, (uint32_t)strlen(shape), ne, n * 4, 0);
}

static void put_tensors(struct gguf_builder *g, const struct layout *l, const struct tiny_change *change) {
    char prefix[16];
    put_tensor(g, "", "token_embd.weight EN", change);
    put_tensor(g, "", "output_norm.weight E", change);
    put_tensor(g, "", "output.weight EN", change);
    for (unsigned layer = 0; layer < TINY_LAYERS; layer++) {
        const char *const *const *lists = lists_of_layer(l, layer);
        snprintf(prefix, sizeof prefix, "blk.%u.", layer);
        for (unsigned i = 0; lists[i]; i++)
            for (unsigned k = 0; lists[i][k]; k++) put_tensor(g, prefix, lists[i][k], change);
    }
    if (change->extra) gb_tensor(g, change->extra, 0, 1, (const uint64_t[]){8}, 32, 0);
}

static void put_number(struct gguf_builder *g, const char *arch, const char *suffix, uint64_t value,
                       const struct tiny_change *change) {
    char key[96];
    snprintf(key, sizeof key, "%s.%s", arch, suffix);
    if (change->drop_key && !strcmp(change->drop_key, suffix)) return;
    if (change->set_key && !strcmp(change->set_key, suffix)) value = change->value;
    gb_int(g, key, GB_U32, value);
}

static void put_real(struct gguf_builder *g, const char *arch, const char *suffix, float value,
                     const struct tiny_change *change) {
    char key[96];
    snprintf(key, sizeof key, "%s.%s", arch, suffix);
    if (change->drop_key && !strcmp(change->drop_key, suffix)) return;
    gb_f32(g, key, value);
}

static void put_keys(struct gguf_builder *g, const char *arch, const struct tiny_change *change) {
    static const struct {
        const char *suffix;
        uint64_t value;
    } numbers[] = {
        {"block_count", TINY_LAYERS},           {"context_length", 512},
        {"embedding_length", TINY_EMBD},        {"feed_forward_length", TINY_FF},
        {"attention.head_count", TINY_HEADS},   {"attention.head_count_kv", TINY_KV_HEADS},
        {"attention.key_length", TINY_DIM},     {"attention.value_length", TINY_DIM},
        {"rope.dimension_count", TINY_DIM / 2}, {"attention.sliding_window", 8},
    };
    static const struct {
        const char *suffix;
        uint64_t value;
    } expert_numbers[] = {
        {"expert_count", TINY_EXPERTS},
        {"expert_used_count", TINY_USED},
        {"expert_feed_forward_length", TINY_FF_EXP},
        {"expert_shared_feed_forward_length", TINY_FF_EXP},
        {"expert_shared_count", 1},
        {"leading_dense_block_count", 1},
    };
    static const struct {
        const char *suffix;
        uint64_t value;
    } delta_numbers[] = {
        {"ssm.conv_kernel", 4},
        {"ssm.state_size", TINY_DIM},
        {"ssm.group_count", TINY_KV_HEADS},
        {"ssm.time_step_rank", TINY_HEADS},
        {"ssm.inner_size", TINY_HEADS * TINY_DIM},
        {"full_attention_interval", 2},
    };
    const struct layout *l = layout_of(arch);
    bool has_experts = false;
    for (unsigned i = 0; l->full[i]; i++) has_experts |= l->full[i] == experts;
    for (unsigned i = 0; i < sizeof numbers / sizeof *numbers; i++)
        put_number(g, arch, numbers[i].suffix, numbers[i].value, change);
    for (unsigned i = 0; has_experts && i < sizeof expert_numbers / sizeof *expert_numbers; i++)
        put_number(g, arch, expert_numbers[i].suffix, expert_numbers[i].value, change);
    for (unsigned i = 0; l->linear[0] && i < sizeof delta_numbers / sizeof *delta_numbers; i++)
        put_number(g, arch, delta_numbers[i].suffix, delta_numbers[i].value, change);
    put_real(g, arch, "attention.layer_norm_rms_epsilon", 1e-5f, change);
    put_real(g, arch, "rope.freq_base", 10000, change);
}

void tiny_model(struct gguf_builder *g, const char *arch, const struct tiny_change *change) {
    static const struct tiny_change none;
    gb_init(g);
    gb_str(g, "general.architecture", arch);
    gb_str(g, "general.name", "tiny");
    put_keys(g, arch, change ? change : &none);
    gb_array(g, "tokenizer.ggml.tokens", GB_STR, TINY_TOKENS);
    for (int i = 0; i < TINY_TOKENS; i++) gb_put_str(g, "t", 1);
    put_tensors(g, layout_of(arch), change ? change : &none);
}

unsigned tiny_tensor_names(const char *arch, char names[][80], unsigned cap) {
    static const char *const outside[] = {"token_embd.weight", "output_norm.weight", "output.weight"};
    unsigned n = 0;
    for (unsigned i = 0; i < 3; i++) snprintf(names[n++], 80, "%s", outside[i]);
    for (unsigned layer = 0; layer < TINY_LAYERS; layer++) {
        const char *const *const *lists = lists_of_layer(layout_of(arch), layer);
        for (unsigned i = 0; lists[i]; i++)
            for (unsigned k = 0; lists[i][k]; k++) {
                assert(n < cap);
                snprintf(names[n++], 80, "blk.%u.%.*s", layer, (int)strcspn(lists[i][k], " "), lists[i][k]);
            }
    }
    return n;
}

bool tiny_is_optional(const char *arch, const char *name) {
    if (!strcmp(name, "output.weight")) return true; // tied
    return !strcmp(arch, "gpt-oss") && strstr(name, "attn_output.bias");
}
