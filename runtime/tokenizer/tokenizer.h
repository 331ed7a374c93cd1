// tokenizer.h: text to token ids and back, over the tables of a plan.
//
// A tokenizer is read-only once opened: any number of threads may encode and decode with one. All memory that a call
// needs is allocated in the call.
#ifndef ATSI_RUNTIME_TOKENIZER_TOKENIZER_H
#define ATSI_RUNTIME_TOKENIZER_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/base/error.h"
#include "formats/tokenizer_merge.h"
#include "formats/tokenizer_tables.h"
#include "runtime/text/bytes.h"

struct atsi_tokenizer;

// Opens the tables of a plan (formats/tokenizer_tables.h), which must outlive the tokenizer. Compiles the patterns
// (PCRE2, with its JIT where the system allows it). Close with atsi_tokenizer_close, which takes NULL.
enum atsi_status atsi_tokenizer_open(struct atsi_tokenizer **out, const void *tables, size_t size,
                                     struct atsi_error *err);
void atsi_tokenizer_close(struct atsi_tokenizer *tokenizer);

enum atsi_encode_flag {
    ATSI_ENCODE_SPECIAL = 1, // control tokens written in the text are parsed; user-defined ones always are
    ATSI_ENCODE_PROMPT = 2   // begin-of-sequence is put first and end-of-sequence last where the model wants them, and
                             // not when the text has brought its own
};

// Appends the tokens of `text` (any bytes, NUL and malformed UTF-8 included) to `out`. Malformed bytes become byte
// tokens; where the vocabulary has none for such a byte, U+FFFD stands for it. Takes O(n log n) at worst.
enum atsi_status atsi_tokenizer_encode(const struct atsi_tokenizer *tokenizer, const char *text, size_t size,
                                       unsigned flags, struct atsi_token_list *out, struct atsi_error *err);

// Appends the exact bytes of a whole text's tokens to `out`, control tokens with their text. The space that encoding
// put in front of the text is taken off. ATSI_BAD_INPUT for an id that is not in the vocabulary.
enum atsi_status atsi_tokenizer_decode(const struct atsi_tokenizer *tokenizer, const uint32_t *ids, size_t n_ids,
                                       struct atsi_bytes *out, struct atsi_error *err);

// Bytes of one token of a running text; they live as long as the tables. Empty for an id that is not in the vocabulary.
const char *atsi_tokenizer_piece(const struct atsi_tokenizer *tokenizer, uint32_t id, size_t *size);

// The special token with exactly this text, or ATSI_TOKEN_NONE.
uint32_t atsi_tokenizer_find_special(const struct atsi_tokenizer *tokenizer, const char *text);

// Bytes of white space at the start of `text` that the special token `id` right before it swallows (Phi-3's do); mostly 0.
size_t atsi_tokenizer_swallowed(const struct atsi_tokenizer *tokenizer, uint32_t id, const char *text, size_t size);

// Takes the begin-of-sequence that was put at `start` away again when what follows brought its own.
void atsi_token_list_drop_double(struct atsi_token_list *list, size_t start);

// What is known of the vocabulary. An output matrix may have more rows than n_tokens: the rest are unused.
uint32_t atsi_tokenizer_n_tokens(const struct atsi_tokenizer *tokenizer);
uint32_t atsi_tokenizer_bos(const struct atsi_tokenizer *tokenizer); // ATSI_TOKEN_NONE when there is none
bool atsi_tokenizer_adds_bos(const struct atsi_tokenizer *tokenizer);
bool atsi_tokenizer_ends_generation(const struct atsi_tokenizer *tokenizer, uint32_t id);
// Any id: ATSI_TOKEN_UNUSED for padding of the vocabulary and for ids not in it. Those must never be sampled.
enum atsi_token_kind atsi_tokenizer_kind(const struct atsi_tokenizer *tokenizer, uint32_t id);

#endif
