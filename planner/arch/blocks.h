// blocks.h: the parts that model families are put together from. A family chooses among them and says only what is special.
//
// The residual stream is the buffer "x". A block reads it and adds its result to it. Units are cut as formats/program.h
// says: one big matrix with its weightless followers; a norm goes with the matrix that reads it; the router goes with the
// attention's output matrix, so that experts can be fetched from there on.
#ifndef ATSI_PLANNER_ARCH_BLOCKS_H
#define ATSI_PLANNER_ARCH_BLOCKS_H

#include "planner/arch/rope.h"

// Token embedding into x, times `scale`.
void atsi_block_embed(struct atsi_builder *b, float scale);
// Selected rows, output norm, output matrix (the embedding where the file has no output.weight).
void atsi_block_head(struct atsi_builder *b);

struct atsi_attention_spec {
    struct atsi_rope rope;
    float scale;            // of the scores; 0: 1 / sqrt(k_dim)
    uint32_t window;        // 0: all positions
    enum atsi_need bias;    // of q, k and v; an output bias is used when there is one
    enum atsi_need qk_norm; // attn_q_norm, attn_k_norm: before rope, for each head
    bool qk_norm_whole;     // not for each head but over all of them together
    bool sinks;             // attn_sinks
    bool fused_qkv;         // one matrix attn_qkv: all q, all k, all v
    bool gated;             // attn_q holds per head [q, gate]; the result times sigmoid(gate)
    const char *post_norm;  // norm of the result before it is added to x; NULL: none
};
// attn_norm to attn_output of b->layer. Leaves the unit of attn_output open.
void atsi_block_attention(struct atsi_builder *b, const struct atsi_attention_spec *spec);

struct atsi_ffn_spec {
    const char *norm; // "ffn_norm.weight"
    enum atsi_glu_act act;
    bool fused_gate_up;    // one matrix ffn_up: all gate rows, all up rows
    const char *post_norm; // NULL: none
};
// The norm to ffn_down of b->layer, added to the residual. Leaves the unit of ffn_down open.
void atsi_block_ffn(struct atsi_builder *b, const struct atsi_ffn_spec *spec);

struct atsi_moe_spec {
    const char *norm;
    struct atsi_glu_params glu;
    enum atsi_router_score score;
    bool normalise;      // weights of the chosen divided by their sum
    float scale;         // of the weights; 0: 1
    bool router_bias;    // ffn_gate_inp.bias, added to the logits
    bool selection_bias; // exp_probs_b.bias, for the choice only
    bool expert_bias;
    uint32_t n_ff_shared; // width of the shared expert; 0: none
    bool shared_gate;     // the shared expert times sigmoid(ffn_gate_inp_shexp)
};
// The key expert_gating_func, or `usual` where the file has none.
enum atsi_router_score atsi_build_router_score(struct atsi_builder *b, enum atsi_router_score usual);
// Router into the open unit, then the shared expert, then the experts.
void atsi_block_moe(struct atsi_builder *b, const struct atsi_moe_spec *spec);

// A plain transformer from embedding to head: each layer one attention and one FFN, with experts where the model has them.
// `ffn` or `moe` is NULL where the family has no such models.
void atsi_blocks_uniform(struct atsi_builder *b, const struct atsi_attention_spec *attention,
                         const struct atsi_ffn_spec *ffn, const struct atsi_moe_spec *moe);

// ---- for families that build a mixer of their own ---------------------------------------------------------------
struct atsi_view atsi_stream(struct atsi_builder *b);             // "x"
struct atsi_view atsi_normed(struct atsi_builder *b);             // "h", what matrices read
void atsi_block_norm(struct atsi_builder *b, const char *weight); // h = norm(x)
// x += weight * in, through an optional norm. Opens the unit `unit`.
void atsi_block_project(struct atsi_builder *b, const char *unit, struct atsi_view in, const char *post_norm);

#endif
