// hparams.h: the hyperparameters that all families share, read and checked once.
#ifndef ATSI_PLANNER_ARCH_HPARAMS_H
#define ATSI_PLANNER_ARCH_HPARAMS_H

#include "formats/gguf.h"

enum {
    ATSI_HP_MAX_LAYERS = 512,
    ATSI_HP_MAX_HEADS = 1 << 12,
    ATSI_HP_MAX_HEAD_DIM = 1 << 12,
    ATSI_HP_MAX_HEADS_WIDTH = 1 << 20, // elements of all heads of a layer
    ATSI_HP_MAX_EXPERTS = 1 << 12,
    ATSI_HP_MAX_EMBD = 1 << 17,
    ATSI_HP_MAX_FF = 1 << 20,
    ATSI_HP_MAX_CTX = 1 << 28,
    ATSI_HP_KEY_CAP = 160
};

struct atsi_layer_dims {
    uint32_t n_heads, n_kv_heads; // n_heads is a multiple of n_kv_heads, both positive
    uint32_t n_ff;                // 0: the file gives none (all layers have experts)
};

struct atsi_hparams {
    uint32_t n_layers;              // without the blocks for multi-token prediction
    uint32_t n_nextn;               // those blocks, which follow the layers
    struct atsi_layer_dims *layers; // [n_layers]
    uint32_t n_embd;
    uint32_t n_ctx_train;
    uint32_t k_dim, v_dim; // elements of a head
    uint32_t n_rot;        // elements of a head that rope rotates, even, at most k_dim
    double rms_eps;
    uint32_t n_experts, n_used; // 0, 0 for a dense model
    uint32_t n_ff_exp;          // width of one expert; 0 when the file gives none
};

// Reads the keys "ARCH.*". ATSI_BAD_INPUT names the key. Free with atsi_hparams_free whether it succeeds or not.
enum atsi_status atsi_hparams_read(const struct atsi_gguf *gguf, const char *arch, struct atsi_hparams *out,
                                   struct atsi_error *err);
void atsi_hparams_free(struct atsi_hparams *hp);

// One key "ARCH.suffix" within [min, max].
enum atsi_status atsi_hparam_u32(const struct atsi_gguf *gguf, const char *arch, const char *suffix, uint32_t min,
                                 uint32_t max, uint32_t *out, struct atsi_error *err);
enum atsi_status atsi_hparam_u32_or(const struct atsi_gguf *gguf, const char *arch, const char *suffix, uint32_t min,
                                    uint32_t max, uint32_t fallback, uint32_t *out, struct atsi_error *err);
enum atsi_status atsi_hparam_f64_or(const struct atsi_gguf *gguf, const char *arch, const char *suffix, double fallback,
                                    double *out, struct atsi_error *err);

#endif
