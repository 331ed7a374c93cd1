// tiny_model.h: a complete GGUF of each model family with very small shapes, from the published layout of the files
// alone (nothing of the planner). Weights are zero.
#ifndef ATSI_TESTS_SUPPORT_TINY_MODEL_H
#define ATSI_TESTS_SUPPORT_TINY_MODEL_H

#include "tests/support/gguf_builder.h"

enum {
    TINY_EMBD = 64,
    TINY_HEADS = 4,
    TINY_KV_HEADS = 2,
    TINY_DIM = 32, // of a head
    TINY_FF = 96,
    TINY_EXPERTS = 4,
    TINY_USED = 2,
    TINY_FF_EXP = 32,
    TINY_LAYERS = 2,
    TINY_VOCAB = 40,
    TINY_TOKENS = 36 // the embedding is padded
};

// One thing that is different from the sound file.
struct tiny_change {
    const char *drop_tensor; // left out
    const char *drop_key;    // "attention.head_count"
    const char *set_key;     // written as an unsigned number instead
    uint64_t value;
    const char *reshape; // this tensor gets one row more
    const char *extra;   // a tensor of this name is added
};

extern const char *const tiny_archs[]; // NULL ends them

// The family's file with the change (NULL: none). The builder can take more keys before gb_finish.
void tiny_model(struct gguf_builder *g, const char *arch, const struct tiny_change *change);
// Names of the tensors of the sound file, "blk.0." and outside, one after the other; returns how many. Each fits 80 bytes.
unsigned tiny_tensor_names(const char *arch, char names[][80], unsigned cap);
// Whether the family can do without the tensor.
bool tiny_is_optional(const char *arch, const char *name);

#endif
