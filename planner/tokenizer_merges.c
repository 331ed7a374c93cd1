#include "planner/tokenizer_merges.h"

#include <math.h>
#include <stdlib.h>

// Two thirds full: chains stay short and the tables small.
static uint32_t slots_for(uint64_t n) { return (uint32_t)(n + n / 2 + 1); }

static enum atsi_status check_probes(uint32_t probes, const char *what, struct atsi_error *err) {
    if (probes <= ATSI_TOKENIZER_MAX_PROBE) return ATSI_OK;
    return atsi_fail(err, ATSI_BAD_INPUT,
                     "the hash table of the tokenizer's %s has a chain of %u slots, at most %u are allowed", what,
                     probes, ATSI_TOKENIZER_MAX_PROBE);
}

// ---- texts ---------------------------------------------------------------------------------------------------------

static void insert_text(struct atsi_text_index *index, uint32_t id) {
    struct atsi_str text = index->texts[id];
    uint32_t slot = atsi_token_slot(text.data, text.size, index->n_slots), probe = 1;
    for (; index->slots[slot] != ATSI_TOKEN_NONE; probe++) {
        if (atsi_str_equal(index->texts[index->slots[slot]], text)) return;
        if (probe > ATSI_TOKENIZER_MAX_PROBE) break; // refused below; do not walk on in a crafted vocabulary
        if (++slot == index->n_slots) slot = 0;
    }
    if (index->slots[slot] == ATSI_TOKEN_NONE) index->slots[slot] = id;
    if (probe > index->probes) index->probes = probe;
}

enum atsi_status atsi_text_index_make(const struct atsi_str *texts, const bool *included, uint32_t n,
                                      struct atsi_text_index *index, struct atsi_error *err) {
    *index = (struct atsi_text_index){.texts = texts};
    uint64_t n_included = 0;
    for (uint32_t id = 0; id < n; id++) n_included += !included || included[id];
    index->n_slots = slots_for(n_included);
    index->slots = malloc(index->n_slots * sizeof *index->slots);
    if (!index->slots) return atsi_fail(err, ATSI_FAILED, "out of memory for a hash table of %u tokens", n);
    for (uint32_t i = 0; i < index->n_slots; i++) index->slots[i] = ATSI_TOKEN_NONE;
    for (uint32_t id = 0; id < n; id++)
        if ((!included || included[id]) && texts[id].size) insert_text(index, id);
    return check_probes(index->probes, "tokens", err);
}

// ATSI_TOKEN_NONE when absent.
static uint32_t find_text(const struct atsi_text_index *index, const char *bytes, size_t size) {
    struct atsi_str text = {bytes, size};
    uint32_t slot = atsi_token_slot(bytes, size, index->n_slots);
    for (uint32_t probe = 0; probe < index->probes; probe++) {
        uint32_t id = index->slots[slot];
        if (id == ATSI_TOKEN_NONE) return ATSI_TOKEN_NONE;
        if (atsi_str_equal(index->texts[id], text)) return id;
        if (++slot == index->n_slots) slot = 0;
    }
    return ATSI_TOKEN_NONE;
}

// ---- pairs ---------------------------------------------------------------------------------------------------------

static enum atsi_status make_merge_slots(struct atsi_merge_index *index, uint64_t n_merges, struct atsi_error *err) {
    if (n_merges > UINT32_MAX / 4)
        return atsi_fail(err, ATSI_BAD_INPUT, "the tokenizer has %llu merges, which is too many",
                         (unsigned long long)n_merges);
    *index = (struct atsi_merge_index){.n_slots = slots_for(n_merges)};
    index->slots = malloc(index->n_slots * sizeof *index->slots);
    if (!index->slots)
        return atsi_fail(err, ATSI_FAILED, "out of memory for %llu merges", (unsigned long long)n_merges);
    const struct atsi_token_merge empty = {ATSI_TOKEN_NONE, ATSI_TOKEN_NONE, 0, 0};
    for (uint32_t i = 0; i < index->n_slots; i++) index->slots[i] = empty;
    return ATSI_OK;
}

// A pair that is there already takes the later rank, as loaders do that fill a map from the list.
static void insert_merge(struct atsi_merge_index *index, struct atsi_token_merge merge) {
    uint32_t slot = atsi_token_merge_slot(merge.left, merge.right, index->n_slots), probe = 1;
    for (; probe <= ATSI_TOKENIZER_MAX_PROBE; probe++) {
        struct atsi_token_merge *there = index->slots + slot;
        if (there->left == ATSI_TOKEN_NONE || (there->left == merge.left && there->right == merge.right)) {
            *there = merge;
            break;
        }
        if (++slot == index->n_slots) slot = 0;
    }
    if (probe > index->probes) index->probes = probe;
}

// Splits "left right" at the first space that leaves a left part. Tokens of a byte-level BPE have no spaces.
static bool split_merge(struct atsi_str line, struct atsi_str *left, struct atsi_str *right) {
    if (line.size < 3) return false;
    const char *space = memchr(line.data + 1, ' ', line.size - 2);
    if (!space) return false;
    *left = (struct atsi_str){line.data, (uint64_t)(space - line.data)};
    *right = (struct atsi_str){space + 1, line.size - left->size - 1};
    return true;
}

// `joined` has room for the whole line.
static bool resolve_merge(const struct atsi_text_index *tokens, struct atsi_str line, char *joined,
                          struct atsi_token_merge *merge) {
    struct atsi_str left, right;
    if (!split_merge(line, &left, &right)) return false;
    memcpy(joined, left.data, left.size);
    memcpy(joined + left.size, right.data, right.size);
    merge->left = find_text(tokens, left.data, left.size);
    merge->right = find_text(tokens, right.data, right.size);
    merge->id = find_text(tokens, joined, left.size + right.size);
    return merge->left != ATSI_TOKEN_NONE && merge->right != ATSI_TOKEN_NONE && merge->id != ATSI_TOKEN_NONE;
}

static enum atsi_status fill_from_list(const struct atsi_vocabulary *v, const struct atsi_text_index *tokens,
                                       struct atsi_merge_index *index, struct atsi_error *err) {
    uint64_t longest = 0;
    for (uint64_t i = 0; i < v->n_merges; i++) longest = v->merges[i].size > longest ? v->merges[i].size : longest;
    char *joined = malloc(longest + 1);
    if (!joined)
        return atsi_fail(err, ATSI_FAILED, "out of memory for a merge of %llu bytes", (unsigned long long)longest);
    enum atsi_status status = ATSI_OK;
    for (uint64_t i = 0; i < v->n_merges && status == ATSI_OK; i++) {
        struct atsi_token_merge merge = {.rank = (uint32_t)i};
        if (resolve_merge(tokens, v->merges[i], joined, &merge))
            insert_merge(index, merge);
        else
            status = atsi_fail(err, ATSI_BAD_INPUT,
                               "tokenizer.ggml.merges[%llu] is \"%s\", expected two tokens whose join is a token",
                               (unsigned long long)i, atsi_label(v->merges[i]).text);
    }
    free(joined);
    return status;
}

enum atsi_status atsi_merge_index_from_list(const struct atsi_vocabulary *vocabulary, struct atsi_merge_index *index,
                                            struct atsi_error *err) {
    *index = (struct atsi_merge_index){0};
    struct atsi_text_index tokens;
    enum atsi_status status =
        atsi_text_index_make(vocabulary->tokens, NULL, (uint32_t)vocabulary->n_tokens, &tokens, err);
    if (status == ATSI_OK) status = make_merge_slots(index, vocabulary->n_merges, err);
    if (status == ATSI_OK) status = fill_from_list(vocabulary, &tokens, index, err);
    if (status == ATSI_OK) status = check_probes(index->probes, "merges", err);
    free(tokens.slots);
    return status;
}

// ---- SentencePiece -------------------------------------------------------------------------------------------------

static bool is_inside_character(char byte) { return ((unsigned char)byte & 0xC0) == 0x80; }

// Calls for each cut of a piece into two mergeable pieces; with index NULL only counts them.
static uint64_t cut_piece(const struct atsi_pieces *pieces, const struct atsi_text_index *lookup, uint32_t id,
                          uint32_t rank, struct atsi_merge_index *index) {
    struct atsi_str piece = pieces->pieces[id];
    uint64_t n = 0;
    for (uint64_t cut = 1; cut < piece.size; cut++) {
        if (is_inside_character(piece.data[cut])) continue;
        uint32_t left = find_text(lookup, piece.data, cut);
        if (left == ATSI_TOKEN_NONE) continue;
        uint32_t right = find_text(lookup, piece.data + cut, piece.size - cut);
        if (right == ATSI_TOKEN_NONE) continue;
        n++;
        if (index) insert_merge(index, (struct atsi_token_merge){left, right, rank, id});
    }
    return n;
}

struct scored {
    float score;
    uint32_t id;
};

static int compare_scores(const void *a, const void *b) {
    const struct scored *x = a, *y = b;
    if (x->score != y->score) return x->score < y->score ? 1 : -1; // the best first
    return (x->id > y->id) - (x->id < y->id);
}

// A piece whose text is another's too is never found by its text: only the one that `lookup` gives takes part.
static enum atsi_status sort_by_score(const struct atsi_pieces *pieces, const struct atsi_text_index *lookup,
                                      const float *scores, struct scored *order, uint32_t *n, struct atsi_error *err) {
    *n = 0;
    for (uint32_t id = 0; id < pieces->n_tokens; id++) {
        if (!pieces->mergeable[id]) continue;
        if (isnan(scores[id])) return atsi_fail(err, ATSI_BAD_INPUT, "tokenizer.ggml.scores[%u] is not a number", id);
        if (find_text(lookup, pieces->pieces[id].data, pieces->pieces[id].size) != id) continue;
        order[(*n)++] = (struct scored){scores[id], id};
    }
    qsort(order, *n, sizeof *order, compare_scores);
    return ATSI_OK;
}

static enum atsi_status fill_from_scores(const struct atsi_pieces *pieces, const struct atsi_text_index *lookup,
                                         const struct scored *order, uint32_t n, struct atsi_merge_index *index,
                                         struct atsi_error *err) {
    uint64_t n_merges = 0;
    for (uint32_t i = 0; i < n; i++) n_merges += cut_piece(pieces, lookup, order[i].id, 0, NULL);
    ATSI_TRY(make_merge_slots(index, n_merges, err));
    uint32_t rank = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (i && order[i].score != order[i - 1].score) rank++;
        cut_piece(pieces, lookup, order[i].id, rank, index);
    }
    return check_probes(index->probes, "merges", err);
}

enum atsi_status atsi_merge_index_from_scores(const struct atsi_pieces *pieces, const struct atsi_text_index *lookup,
                                              const float *scores, struct atsi_merge_index *index,
                                              struct atsi_error *err) {
    *index = (struct atsi_merge_index){0};
    struct scored *order = malloc((pieces->n_tokens + (size_t)1) * sizeof *order);
    if (!order) return atsi_fail(err, ATSI_FAILED, "out of memory for %u scores", pieces->n_tokens);
    uint32_t n;
    enum atsi_status status = sort_by_score(pieces, lookup, scores, order, &n, err);
    if (status == ATSI_OK) status = fill_from_scores(pieces, lookup, order, n, index, err);
    free(order);
    return status;
}
