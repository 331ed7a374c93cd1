// tokenizer_pieces.h: a vocabulary's tokens as the bytes that they stand for (a step of atsi_tokenizer_build).
#ifndef ATSI_PLANNER_TOKENIZER_PIECES_H
#define ATSI_PLANNER_TOKENIZER_PIECES_H

#include "formats/tokenizer_tables.h"
#include "planner/tokenizer.h"

// Longest SentencePiece piece that may be built by merging (trainers default to 16 characters): finding its merges
// takes quadratic time.
#define ATSI_SPM_LONGEST_PIECE 512

struct atsi_special_text {
    struct atsi_str text;
    uint32_t id;
};

// All arrays are owned, texts too; free with atsi_pieces_free.
struct atsi_pieces {
    uint32_t n_tokens;
    struct atsi_str *pieces; // [n_tokens] what decoding gives; they lie one after the other in `text`
    uint8_t *info;           // [n_tokens] kind, ATSI_TOKEN_EOG, ATSI_TOKEN_STRIPS
    bool *mergeable;         // [n_tokens] words can become this token by merging
    uint32_t byte_ids[256];
    struct atsi_special_text *specials; // [n_specials] sorted; every text lies in `text`
    uint32_t n_specials;
    char *text;
    uint64_t text_size;
};

// ATSI_BAD_INPUT for a vocabulary that cannot be used, ATSI_FAILED without memory; *pieces is to be freed either way.
enum atsi_status atsi_pieces_make(const struct atsi_vocabulary *vocabulary, enum atsi_token_algorithm algorithm,
                                  struct atsi_pieces *pieces, struct atsi_error *err);
void atsi_pieces_free(struct atsi_pieces *pieces);

#endif
