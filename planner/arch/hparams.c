#include "planner/arch/hparams.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void make_key(char key[ATSI_HP_KEY_CAP], const char *arch, const char *suffix) {
    snprintf(key, ATSI_HP_KEY_CAP, "%s.%s", arch, suffix);
}

static enum atsi_status check_range(const char *key, uint32_t value, uint32_t min, uint32_t max,
                                    struct atsi_error *err) {
    if (value >= min && value <= max) return ATSI_OK;
    return atsi_fail(err, ATSI_BAD_INPUT, "key %s: expected %u to %u, found %u", key, min, max, value);
}

enum atsi_status atsi_hparam_u32(const struct atsi_gguf *gguf, const char *arch, const char *suffix, uint32_t min,
                                 uint32_t max, uint32_t *out, struct atsi_error *err) {
    char key[ATSI_HP_KEY_CAP];
    make_key(key, arch, suffix);
    ATSI_TRY(atsi_gguf_u32(gguf, key, out, err));
    return check_range(key, *out, min, max, err);
}

enum atsi_status atsi_hparam_u32_or(const struct atsi_gguf *gguf, const char *arch, const char *suffix, uint32_t min,
                                    uint32_t max, uint32_t fallback, uint32_t *out, struct atsi_error *err) {
    char key[ATSI_HP_KEY_CAP];
    make_key(key, arch, suffix);
    *out = fallback;
    if (!atsi_gguf_find(gguf, key)) return ATSI_OK;
    return atsi_hparam_u32(gguf, arch, suffix, min, max, out, err);
}

enum atsi_status atsi_hparam_f64_or(const struct atsi_gguf *gguf, const char *arch, const char *suffix, double fallback,
                                    double *out, struct atsi_error *err) {
    char key[ATSI_HP_KEY_CAP];
    make_key(key, arch, suffix);
    return atsi_gguf_f64_or(gguf, key, fallback, out, err);
}

// head_count, head_count_kv and feed_forward_length, each one number or one a layer.
static enum atsi_status read_layer_dims(const struct atsi_gguf *gguf, const char *arch, struct atsi_hparams *hp,
                                        struct atsi_error *err) {
    uint32_t heads[ATSI_HP_MAX_LAYERS], kv_heads[ATSI_HP_MAX_LAYERS], ff[ATSI_HP_MAX_LAYERS];
    const uint32_t no_ff = 0;
    char key[ATSI_HP_KEY_CAP], kv_key[ATSI_HP_KEY_CAP], ff_key[ATSI_HP_KEY_CAP];
    make_key(key, arch, "attention.head_count");
    make_key(kv_key, arch, "attention.head_count_kv");
    make_key(ff_key, arch, "feed_forward_length");
    ATSI_TRY(atsi_gguf_per_layer_u32(gguf, key, hp->n_layers, hp->n_nextn, NULL, heads, err));
    memcpy(kv_heads, heads, hp->n_layers * sizeof *heads); // no key: every head has its own keys
    if (atsi_gguf_find(gguf, kv_key))
        ATSI_TRY(atsi_gguf_per_layer_u32(gguf, kv_key, hp->n_layers, hp->n_nextn, NULL, kv_heads, err));
    ATSI_TRY(atsi_gguf_per_layer_u32(gguf, ff_key, hp->n_layers, hp->n_nextn, &no_ff, ff, err));

    hp->layers = calloc(hp->n_layers, sizeof *hp->layers);
    if (!hp->layers) return atsi_fail(err, ATSI_FAILED, "out of memory while reading hyperparameters");
    for (uint32_t i = 0; i < hp->n_layers; i++) {
        ATSI_TRY(check_range(key, heads[i], 1, ATSI_HP_MAX_HEADS, err));
        ATSI_TRY(check_range(kv_key, kv_heads[i], 1, heads[i], err));
        ATSI_TRY(check_range(ff_key, ff[i], 0, ATSI_HP_MAX_FF, err));
        if (heads[i] % kv_heads[i] != 0)
            return atsi_fail(err, ATSI_BAD_INPUT, "key %s: %u heads are no multiple of %u key/value heads", kv_key,
                             heads[i], kv_heads[i]);
        hp->layers[i] = (struct atsi_layer_dims){heads[i], kv_heads[i], ff[i]};
    }
    return ATSI_OK;
}

static enum atsi_status read_head_dims(const struct atsi_gguf *gguf, const char *arch, struct atsi_hparams *hp,
                                       struct atsi_error *err) {
    uint32_t n_heads = hp->layers[0].n_heads, by_heads = hp->n_embd / n_heads;
    char key[ATSI_HP_KEY_CAP];
    make_key(key, arch, "attention.key_length");
    if (!atsi_gguf_find(gguf, key) && (hp->n_embd % n_heads != 0 || by_heads > ATSI_HP_MAX_HEAD_DIM))
        return atsi_fail(err, ATSI_BAD_INPUT, "key %s: absent, and embedding_length %u does not divide into %u heads",
                         key, hp->n_embd, n_heads);
    ATSI_TRY(
        atsi_hparam_u32_or(gguf, arch, "attention.key_length", 2, ATSI_HP_MAX_HEAD_DIM, by_heads, &hp->k_dim, err));
    ATSI_TRY(
        atsi_hparam_u32_or(gguf, arch, "attention.value_length", 1, ATSI_HP_MAX_HEAD_DIM, hp->k_dim, &hp->v_dim, err));
    for (uint32_t i = 0; i < hp->n_layers; i++) {
        uint32_t widest = hp->k_dim > hp->v_dim ? hp->k_dim : hp->v_dim;
        if (hp->layers[i].n_heads * widest > ATSI_HP_MAX_HEADS_WIDTH)
            return atsi_fail(err, ATSI_BAD_INPUT, "key %s: %u heads of %u elements are too many", key,
                             hp->layers[i].n_heads, widest);
    }
    ATSI_TRY(atsi_hparam_u32_or(gguf, arch, "rope.dimension_count", 2, hp->k_dim, hp->k_dim, &hp->n_rot, err));
    if (hp->n_rot % 2 != 0)
        return atsi_fail(err, ATSI_BAD_INPUT, "key %s.rope.dimension_count: must be even, is %u", arch, hp->n_rot);
    return ATSI_OK;
}

static enum atsi_status read_experts(const struct atsi_gguf *gguf, const char *arch, struct atsi_hparams *hp,
                                     struct atsi_error *err) {
    ATSI_TRY(atsi_hparam_u32_or(gguf, arch, "expert_count", 0, ATSI_HP_MAX_EXPERTS, 0, &hp->n_experts, err));
    if (hp->n_experts == 0) return ATSI_OK;
    ATSI_TRY(atsi_hparam_u32(gguf, arch, "expert_used_count", 1, hp->n_experts, &hp->n_used, err));
    return atsi_hparam_u32_or(gguf, arch, "expert_feed_forward_length", 1, ATSI_HP_MAX_FF, hp->layers[0].n_ff,
                              &hp->n_ff_exp, err);
}

// Whether block `i` is no layer: it carries prediction tensors, or (they were stripped) nothing at all.
static bool is_nextn_block(const struct atsi_gguf *gguf, uint32_t i) {
    char prefix[32];
    int length = snprintf(prefix, sizeof prefix, "blk.%u.", i);
    bool empty = true;
    for (uint64_t t = 0; t < atsi_gguf_n_tensors(gguf); t++) {
        struct atsi_str name = atsi_gguf_tensor_at(gguf, t)->name;
        if (name.size <= (uint64_t)length || memcmp(name.data, prefix, length) != 0) continue;
        empty = false;
        if (name.size > (uint64_t)length + 6 && memcmp(name.data + length, "nextn.", 6) == 0) return true;
    }
    return empty;
}

// block_count covers the prediction blocks in the files of some families and leaves them out in others, so the tensors decide.
static enum atsi_status read_layer_count(const struct atsi_gguf *gguf, const char *arch, struct atsi_hparams *hp,
                                         struct atsi_error *err) {
    ATSI_TRY(atsi_hparam_u32(gguf, arch, "block_count", 1, ATSI_HP_MAX_LAYERS, &hp->n_layers, err));
    ATSI_TRY(atsi_hparam_u32_or(gguf, arch, "nextn_predict_layers", 0, ATSI_HP_MAX_LAYERS, 0, &hp->n_nextn, err));
    for (uint32_t i = 0; i < hp->n_nextn && hp->n_layers > 1 && is_nextn_block(gguf, hp->n_layers - 1); i++)
        hp->n_layers--;
    return ATSI_OK;
}

enum atsi_status atsi_hparams_read(const struct atsi_gguf *gguf, const char *arch, struct atsi_hparams *out,
                                   struct atsi_error *err) {
    memset(out, 0, sizeof *out);
    ATSI_TRY(read_layer_count(gguf, arch, out, err));
    ATSI_TRY(atsi_hparam_u32(gguf, arch, "embedding_length", 1, ATSI_HP_MAX_EMBD, &out->n_embd, err));
    ATSI_TRY(atsi_hparam_u32(gguf, arch, "context_length", 1, ATSI_HP_MAX_CTX, &out->n_ctx_train, err));
    ATSI_TRY(read_layer_dims(gguf, arch, out, err));
    ATSI_TRY(read_head_dims(gguf, arch, out, err));
    ATSI_TRY(read_experts(gguf, arch, out, err));

    char key[ATSI_HP_KEY_CAP];
    make_key(key, arch, "attention.layer_norm_rms_epsilon");
    ATSI_TRY(atsi_gguf_f64(gguf, key, &out->rms_eps, err));
    if (!(out->rms_eps >= 0 && out->rms_eps < 1))
        return atsi_fail(err, ATSI_BAD_INPUT, "key %s: expected 0 to 1, found %g", key, out->rms_eps);
    return ATSI_OK;
}

void atsi_hparams_free(struct atsi_hparams *hp) {
    free(hp->layers);
    memset(hp, 0, sizeof *hp);
}
