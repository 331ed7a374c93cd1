// tokenizer_merges.h: hash tables of texts and of pairs (a step of atsi_tokenizer_build).
#ifndef ATSI_PLANNER_TOKENIZER_MERGES_H
#define ATSI_PLANNER_TOKENIZER_MERGES_H

#include "planner/tokenizer_pieces.h"

// Text -> id, the first id of equal texts. Slots as in ATSI_SECTION_TOKEN_SLOTS. Free `slots`.
struct atsi_text_index {
    const struct atsi_str *texts; // borrowed
    uint32_t *slots;
    uint32_t n_slots, probes; // probes: slots of the longest chain
};
// Takes the texts for which `included` (NULL: all) is set and that are not empty.
enum atsi_status atsi_text_index_make(const struct atsi_str *texts, const bool *included, uint32_t n,
                                      struct atsi_text_index *index, struct atsi_error *err);

// Pair -> merge. Slots as in ATSI_SECTION_MERGE_SLOTS. Free `slots`.
struct atsi_merge_index {
    struct atsi_token_merge *slots;
    uint32_t n_slots, probes;
};
// From a byte-level BPE's tokenizer.ggml.merges: rank is the position in the list.
enum atsi_status atsi_merge_index_from_list(const struct atsi_vocabulary *vocabulary, struct atsi_merge_index *index,
                                            struct atsi_error *err);
// From SentencePiece scores: every way to cut a mergeable piece into two; rank follows the score of the piece.
enum atsi_status atsi_merge_index_from_scores(const struct atsi_pieces *pieces, const struct atsi_text_index *lookup,
                                              const float *scores, struct atsi_merge_index *index,
                                              struct atsi_error *err);

#endif
