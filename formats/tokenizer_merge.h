// tokenizer_merge.h: the merges of one word, the heart of both tokenizer algorithms.
//
// The planner runs it over every piece to mark those that encode as themselves (ATSI_TOKEN_WHOLE); the runtime runs it
// over the words that are not one token. O(n log n) in the length of the word.
#ifndef ATSI_FORMATS_TOKENIZER_MERGE_H
#define ATSI_FORMATS_TOKENIZER_MERGE_H

#include "formats/tokenizer_tables.h"

// A list of token ids that grows. Zero-initialise; free with atsi_token_list_free.
struct atsi_token_list {
    uint32_t *ids;
    size_t n_ids, ids_cap;
};
enum atsi_status atsi_token_list_push(struct atsi_token_list *list, uint32_t id, struct atsi_error *err);
void atsi_token_list_free(struct atsi_token_list *list);

// Working memory that is kept from word to word. Zero-initialise; one per thread; free with atsi_merge_scratch_free.
struct atsi_merge_scratch {
    struct atsi_merge_symbol *symbols;
    uint64_t *heap;
    size_t symbols_cap;
};
void atsi_merge_scratch_free(struct atsi_merge_scratch *scratch);

// Appends the tokens of `word` to `out`. A byte that has no token becomes the unknown token; without one it is left out.
enum atsi_status atsi_merge_word(const struct atsi_tokenizer_tables *tables, const char *word, size_t size,
                                 struct atsi_merge_scratch *scratch, struct atsi_token_list *out,
                                 struct atsi_error *err);

#endif
