// shape.h: the hyperparameters of the models that synth_model can imitate.
#ifndef ATSI_TOOLS_SYNTH_SHAPE_H
#define ATSI_TOOLS_SYNTH_SHAPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// What the layers of a family look like in its files (names: docs of each family in planner/arch).
struct synth_family {
    const char *arch;     // general.architecture
    const char *pre;      // tokenizer.ggml.pre of a made vocabulary
    const char *ffn_norm; // the norm before the feed-forward part
    bool qk_norm;         // attn_q_norm, attn_k_norm for each head
    bool qk_norm_whole;   // or over all heads together
    bool fused_qkv, fused_gate_up;
    bool post_norms;     // post_attention_norm and post_ffw_norm on what a part adds to the stream
    bool sinks;          // attn_sinks, and biases on every matrix, the router and the experts
    bool gated;          // attn_q holds a gate beside each head; the other layers use the delta rule
    bool fused_ba;       // ssm_ba instead of ssm_beta and ssm_alpha
    bool shared_gate;    // ffn_gate_inp_shexp
    bool selection_bias; // exp_probs_b
    bool sigmoid;        // routing, with a scale and a flag for normalisation in the file; else softmax
    bool rope_sections;  // rope.dimension_sections
    bool scaled_embed;   // the family multiplies embeddings by sqrt(n_embd)
};

enum {
    SYNTH_MAX_LAYERS = 512
};

// Counts are 0 where the model has no such part.
struct synth_shape {
    const char *name;
    const char *arch;
    uint32_t n_layers, n_embd, n_heads, n_kv_heads, head_dim, n_rot, n_ff, n_vocab, n_ctx;
    float rope_base, rms_eps;
    bool tied;                                // no output.weight
    bool qkv_bias;                            // biases on q, k, v
    bool rope_freqs;                          // Llama 3.1's frequency divisors
    bool long_factors;                        // Phi's two sets of them, within rope_orig_ctx and beyond
    float rope_factor;                        // linear (gemma3) or YaRN (gpt-oss) scaling
    uint32_t rope_orig_ctx;                   // YaRN, long_factors
    float rope_log_mul, temperature;          // YaRN's second multiplier; of queries beyond rope_orig_ctx
    uint32_t window;                          // sliding-window layers
    uint32_t n_experts, n_used;               // 0: dense
    uint32_t n_ff_exp;                        // width of an expert
    uint32_t n_ff_shared;                     // width of the shared expert
    uint32_t n_dense;                         // leading layers without experts
    uint32_t n_k_heads, n_v_heads, state_dim; // delta rule: heads of keys and values, elements of each
};

// The table, in the order of --list; NULL past the end.
const struct synth_shape *synth_shape_at(size_t index);
const struct synth_shape *synth_shape_find(const char *name); // NULL: no such shape
// Never NULL for a shape of the table.
const struct synth_family *synth_family_of(const struct synth_shape *shape);

// Whether layer `i` mixes with attention (not the delta rule), and whether it has experts.
bool synth_layer_has_attention(const struct synth_shape *shape, uint32_t i);
bool synth_layer_has_experts(const struct synth_shape *shape, uint32_t i);

#endif
