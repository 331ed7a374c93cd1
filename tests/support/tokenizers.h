// tokenizers.h: tokenizers made for tests from GGUF bytes, and checks on them.
#ifndef ATSI_TESTS_SUPPORT_TOKENIZERS_H
#define ATSI_TESTS_SUPPORT_TOKENIZERS_H

#include "planner/tokenizer.h"
#include "runtime/tokenizer/tokenizer.h"
#include "tests/support/bytes.h"

struct test_tokenizer {
    void *block;
    size_t block_size;
    struct atsi_tokenizer *tokenizer;
};

// Reads the vocabulary of a GGUF, builds the tables and opens them. A failure is returned with its message.
enum atsi_status test_tokenizer_make(const struct bytes *gguf, struct test_tokenizer *out, struct atsi_error *err);
void test_tokenizer_free(struct test_tokenizer *t);

// Fails the test unless `text` encodes to `ids`.
void check_encodes(const struct test_tokenizer *t, const char *text, size_t size, unsigned flags, const uint32_t *ids,
                   size_t n_ids);
// Fails the test unless `ids` decode to `text`.
void check_decodes(const struct test_tokenizer *t, const uint32_t *ids, size_t n_ids, const char *text, size_t size);
// Fails the test unless `text` comes back from encoding and decoding as `expected`.
void check_round_trip(const struct test_tokenizer *t, const char *text, size_t size, const char *expected,
                      size_t expected_size);

// A byte-level BPE vocabulary: 256 byte tokens (0..255, token i being byte i), "ab" 256, "abc" 257, " a" 258, "bc" 259,
// "<|x|>" 260 (control), "<u>" 261 (user-defined), "<|x|>y" 262 (control), merges "a b", "ab c", " a", "b c".
// `pre` NULL leaves tokenizer.ggml.pre out.
struct bytes test_bpe_gguf(const char *pre);

#endif
