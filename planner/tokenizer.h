// tokenizer.h: the vocabulary of a model turned into the tokenizer tables of a plan (formats/tokenizer_tables.h).
#ifndef ATSI_PLANNER_TOKENIZER_H
#define ATSI_PLANNER_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

#include "formats/base/error.h"
#include "formats/base/str.h"
#include "formats/gguf.h"

// GGUF's tokenizer.ggml.token_type.
enum atsi_vocabulary_type {
    ATSI_VOCABULARY_UNDEFINED = 0,
    ATSI_VOCABULARY_NORMAL = 1,
    ATSI_VOCABULARY_UNKNOWN = 2,
    ATSI_VOCABULARY_CONTROL = 3,
    ATSI_VOCABULARY_USER_DEFINED = 4,
    ATSI_VOCABULARY_UNUSED = 5,
    ATSI_VOCABULARY_BYTE = 6
};

// A key that a file may leave out.
enum atsi_vocabulary_switch {
    ATSI_SWITCH_ABSENT = -1,
    ATSI_SWITCH_OFF = 0,
    ATSI_SWITCH_ON = 1
};

// What tokenizer.ggml.* of a file says, as it stands there. Texts are views into the file, arrays are owned.
struct atsi_vocabulary {
    struct atsi_str architecture; // general.architecture; data NULL when absent
    struct atsi_str model;        // data NULL when the file has no tokenizer at all
    struct atsi_str pre;          // data NULL when absent
    uint64_t n_tokens, n_merges;
    struct atsi_str *tokens; // [n_tokens], any bytes
    struct atsi_str *merges; // [n_merges] "left right"; NULL when absent
    int64_t *types;          // [n_tokens] enum atsi_vocabulary_type; NULL when absent
    float *scores;           // [n_tokens]; NULL when absent
    uint32_t bos_id, eos_id, eot_id, eom_id, unknown_id, padding_id; // ATSI_TOKEN_NONE when absent
    enum atsi_vocabulary_switch add_bos, add_eos, add_space_prefix, remove_extra_whitespaces;
};

// Reads the keys; lengths and element types are checked. A file without tokenizer.ggml.model gives model.data NULL and
// no error. Free with atsi_vocabulary_free whether it succeeds or not.
enum atsi_status atsi_vocabulary_read(const struct atsi_gguf *gguf, struct atsi_vocabulary *vocabulary,
                                      struct atsi_error *err);
void atsi_vocabulary_free(struct atsi_vocabulary *vocabulary);

// Builds the tables. *block (aligned to 8 bytes) is freed with free(). ATSI_BAD_INPUT, with a sentence that names the
// key, for a tokenizer that would not split text as the model was trained: an unknown or absent tokenizer.ggml.pre of a
// byte-level BPE, missing merges or scores, an unknown tokenizer.ggml.model.
enum atsi_status atsi_tokenizer_build(const struct atsi_vocabulary *vocabulary, void **block, size_t *size,
                                      struct atsi_error *err);

#endif
