// recipe.h: which tensor type each matrix of a synthetic model gets.
#ifndef ATSI_TOOLS_SYNTH_RECIPE_H
#define ATSI_TOOLS_SYNTH_RECIPE_H

#include <stdbool.h>
#include <stdint.h>

#include "formats/base/error.h"
#include "formats/dtype.h"

enum synth_role {
    SYNTH_EMBED,
    SYNTH_HEAD, // output.weight, or the embedding of a tied model
    SYNTH_ATTN_V,
    SYNTH_ATTN_K,
    SYNTH_ATTN_QKV,
    SYNTH_ATTN_OUT,
    SYNTH_FFN_DOWN, // of a dense layer or a shared expert
    SYNTH_EXPERT,   // gate and up of the routed experts
    SYNTH_EXPERT_DOWN,
    SYNTH_MATRIX, // any other
};

enum synth_recipe_kind {
    SYNTH_ONE_TYPE,
    SYNTH_Q4_K_M,
    SYNTH_MXFP4_EXPERTS, // MXFP4 experts, the rest Q8_0, as every upload of GPT-OSS
    SYNTH_DYNAMIC,       // types that differ from layer to layer
};

struct synth_recipe {
    enum synth_recipe_kind kind;
    enum atsi_dtype dtype; // of SYNTH_ONE_TYPE
};

// "q4_k_m", "mxfp4", "dynamic", or the name of a type ("q8_0", "f16", "iq4_xs"), which all matrices then have.
enum atsi_status synth_recipe_parse(const char *name, struct synth_recipe *out, struct atsi_error *err);

// The matrix whose type is asked for.
struct synth_place {
    enum synth_role role;
    uint32_t layer, n_layers; // layer 0 for the embedding and the head
    uint32_t n_experts;       // of the model
    uint64_t n_cols;
};

// A type whose blocks divide n_cols: types of 256 weights give way to one of 32 with about as many bits, those to F16.
enum atsi_dtype synth_recipe_type(const struct synth_recipe *recipe, const struct synth_place *place);
// general.file_type, which readers print and do not rely on.
uint32_t synth_recipe_file_type(const struct synth_recipe *recipe);

#endif
