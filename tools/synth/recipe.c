#include "tools/synth/recipe.h"

#include <strings.h>

#include "kernels/cpu/dequant.h"
#include "tools/synth/random.h"

enum atsi_status synth_recipe_parse(const char *name, struct synth_recipe *out, struct atsi_error *err) {
    *out = (struct synth_recipe){.kind = SYNTH_ONE_TYPE};
    if (!strcasecmp(name, "q4_k_m")) {
        out->kind = SYNTH_Q4_K_M;
        return ATSI_OK;
    }
    if (!strcasecmp(name, "mxfp4")) {
        out->kind = SYNTH_MXFP4_EXPERTS;
        return ATSI_OK;
    }
    if (!strcasecmp(name, "dynamic")) {
        out->kind = SYNTH_DYNAMIC;
        return ATSI_OK;
    }
    int dtype = atsi_dtype_find(name);
    if (dtype < 0 || !atsi_dequant_supported((enum atsi_dtype)dtype))
        return atsi_fail(err, ATSI_BAD_INPUT, "--recipe %s: expected q4_k_m, mxfp4, dynamic or a tensor type", name);
    out->dtype = (enum atsi_dtype)dtype;
    return ATSI_OK;
}

// The eighths at both ends and every third layer between them: where Q4_K_M spends more bits.
static bool has_more_bits(const struct synth_place *p) {
    uint32_t eighth = p->n_layers / 8;
    return p->layer < eighth || p->layer >= 7 * p->n_layers / 8 || (p->layer - eighth) % 3 == 2;
}

// The mix that llama-quantize writes under this name.
static enum atsi_dtype q4_k_m(const struct synth_place *p) {
    bool few_experts = p->n_experts == 8;
    switch (p->role) {
    case SYNTH_HEAD: return ATSI_Q6_K;
    case SYNTH_ATTN_V: return few_experts ? ATSI_Q8_0 : has_more_bits(p) ? ATSI_Q6_K : ATSI_Q4_K;
    case SYNTH_ATTN_K: return few_experts ? ATSI_Q8_0 : ATSI_Q4_K;
    case SYNTH_ATTN_QKV: return ATSI_Q5_K;
    case SYNTH_ATTN_OUT: return few_experts ? ATSI_Q5_K : ATSI_Q4_K;
    case SYNTH_FFN_DOWN:
    case SYNTH_EXPERT_DOWN: return has_more_bits(p) ? ATSI_Q6_K : ATSI_Q4_K;
    case SYNTH_EMBED:
    case SYNTH_EXPERT:
    case SYNTH_MATRIX: break;
    }
    return ATSI_Q4_K;
}

// Uploads of this kind measure each tensor and pick; here a draw by layer and role, the same for every seed.
static enum atsi_dtype dynamic(const struct synth_place *p) {
    static const enum atsi_dtype attention[] = {ATSI_Q8_0, ATSI_Q6_K, ATSI_Q5_K, ATSI_Q4_K},
                                 ffn[] = {ATSI_Q2_K, ATSI_Q3_K, ATSI_Q4_K, ATSI_IQ4_XS, ATSI_Q5_K, ATSI_Q6_K};
    uint64_t draw = synth_hash(p->layer, p->role, 0);
    switch (p->role) {
    case SYNTH_EMBED: return ATSI_Q4_K;
    case SYNTH_HEAD: return ATSI_Q6_K;
    case SYNTH_ATTN_V:
    case SYNTH_ATTN_K:
    case SYNTH_ATTN_QKV:
    case SYNTH_ATTN_OUT: return attention[draw % (sizeof attention / sizeof *attention)];
    case SYNTH_FFN_DOWN:
    case SYNTH_EXPERT:
    case SYNTH_EXPERT_DOWN:
    case SYNTH_MATRIX: break;
    }
    return ffn[draw % (sizeof ffn / sizeof *ffn)];
}

static enum atsi_dtype wanted_type(const struct synth_recipe *recipe, const struct synth_place *p) {
    switch (recipe->kind) {
    case SYNTH_ONE_TYPE: break;
    case SYNTH_Q4_K_M: return q4_k_m(p);
    case SYNTH_MXFP4_EXPERTS: return p->role == SYNTH_EXPERT || p->role == SYNTH_EXPERT_DOWN ? ATSI_MXFP4 : ATSI_Q8_0;
    case SYNTH_DYNAMIC: return dynamic(p);
    }
    return recipe->dtype;
}

// The type of 32 weights that takes the place of one of 256.
static enum atsi_dtype small_block_type(enum atsi_dtype dtype) {
    switch (dtype) {
    case ATSI_Q4_K: return ATSI_Q5_0;
    case ATSI_Q5_K: return ATSI_Q5_1;
    case ATSI_Q6_K: return ATSI_Q8_0;
    default: return ATSI_IQ4_NL;
    }
}

enum atsi_dtype synth_recipe_type(const struct synth_recipe *recipe, const struct synth_place *place) {
    enum atsi_dtype dtype = wanted_type(recipe, place);
    if (place->n_cols % atsi_dtype_info(dtype)->block_elems == 0) return dtype;
    dtype = small_block_type(dtype);
    return place->n_cols % atsi_dtype_info(dtype)->block_elems == 0 ? dtype : ATSI_F16;
}

uint32_t synth_recipe_file_type(const struct synth_recipe *recipe) {
    enum {
        ALL_F32 = 0,
        MOSTLY_F16 = 1,
        MOSTLY_Q8_0 = 7,
        MOSTLY_Q4_K_M = 15,
        MOSTLY_BF16 = 32,
        MOSTLY_MXFP4 = 38,
        GUESSED = 1024
    };
    if (recipe->kind == SYNTH_Q4_K_M) return MOSTLY_Q4_K_M;
    if (recipe->kind == SYNTH_MXFP4_EXPERTS) return MOSTLY_MXFP4;
    if (recipe->kind == SYNTH_DYNAMIC) return GUESSED;
    switch (recipe->dtype) {
    case ATSI_F32: return ALL_F32;
    case ATSI_F16: return MOSTLY_F16;
    case ATSI_BF16: return MOSTLY_BF16;
    case ATSI_Q8_0: return MOSTLY_Q8_0;
    default: return GUESSED;
    }
}
