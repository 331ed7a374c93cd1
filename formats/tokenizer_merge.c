#include "formats/tokenizer_merge.h"

#include <stdlib.h>

#include "formats/base/utf8.h"

#define NO_SYMBOL UINT32_MAX
#define NO_RANK   UINT32_MAX

// One token of the word so far, in a doubly linked list, and what joining it with the next one would give.
struct atsi_merge_symbol {
    uint32_t id;
    uint32_t previous, next; // NO_SYMBOL at the ends
    uint32_t pair_rank;      // NO_RANK when it cannot join the next one
    uint32_t pair_id;
};

enum atsi_status atsi_token_list_push(struct atsi_token_list *list, uint32_t id, struct atsi_error *err) {
    if (list->n_ids == list->ids_cap) {
        size_t cap = list->ids_cap ? list->ids_cap * 2 : 64;
        uint32_t *ids = cap > list->ids_cap ? reallocarray(list->ids, cap, sizeof *ids) : NULL;
        if (!ids) return atsi_fail(err, ATSI_FAILED, "out of memory for %zu token ids", cap);
        list->ids = ids;
        list->ids_cap = cap;
    }
    list->ids[list->n_ids++] = id;
    return ATSI_OK;
}

void atsi_token_list_free(struct atsi_token_list *list) {
    free(list->ids);
    *list = (struct atsi_token_list){0};
}

void atsi_merge_scratch_free(struct atsi_merge_scratch *scratch) {
    free(scratch->symbols);
    free(scratch->heap);
    *scratch = (struct atsi_merge_scratch){0};
}

// A word of n bytes has at most n symbols, n - 1 pairs at first, and each of at most n - 1 joins adds two pairs.
static enum atsi_status reserve(struct atsi_merge_scratch *scratch, size_t size, struct atsi_error *err) {
    if (size <= scratch->symbols_cap) return ATSI_OK;
    if (size >= UINT32_MAX / 4) return atsi_fail(err, ATSI_FAILED, "a word of %zu bytes is too long to tokenise", size);
    size_t cap = size < 256 ? 256 : size;
    atsi_merge_scratch_free(scratch);
    scratch->symbols = calloc(cap, sizeof *scratch->symbols);
    scratch->heap = calloc(3 * cap, sizeof *scratch->heap);
    if (!scratch->symbols || !scratch->heap) {
        atsi_merge_scratch_free(scratch);
        return atsi_fail(err, ATSI_FAILED, "out of memory for a word of %zu bytes", size);
    }
    scratch->symbols_cap = cap;
    return ATSI_OK;
}

// ---- first symbols ------------------------------------------------------------------------------------------------

static uint32_t byte_token(const struct atsi_tokenizer_tables *tables, char byte) {
    uint32_t id = tables->byte_ids[(unsigned char)byte];
    return id < tables->header->n_tokens ? id : tables->header->unknown_id;
}

// A byte without a token, in a vocabulary without an unknown token, is left out, as the models' own library does.
static void split_bytes(const struct atsi_tokenizer_tables *tables, const char *word, size_t size,
                        struct atsi_merge_symbol *symbols, uint32_t *n_symbols) {
    for (size_t i = 0; i < size; i++) {
        uint32_t id = byte_token(tables, word[i]);
        if (id != ATSI_TOKEN_NONE) symbols[(*n_symbols)++].id = id;
    }
}

// A vocabulary without byte tokens gives one unknown token for a run of unknown characters.
static void split_fallback(const struct atsi_tokenizer_tables *tables, const char *character, size_t size,
                           struct atsi_merge_symbol *symbols, uint32_t *n_symbols) {
    uint32_t unknown = tables->header->unknown_id;
    bool follows_unknown = *n_symbols && symbols[*n_symbols - 1].id == unknown;
    if (unknown == ATSI_TOKEN_NONE || byte_token(tables, character[0]) != unknown)
        split_bytes(tables, character, size, symbols, n_symbols);
    else if (!follows_unknown)
        symbols[(*n_symbols)++].id = unknown;
}

static void split_characters(const struct atsi_tokenizer_tables *tables, const char *word, size_t size,
                             struct atsi_merge_symbol *symbols, uint32_t *n_symbols) {
    for (size_t i = 0; i < size;) {
        size_t length = atsi_utf8_length(word + i, size - i);
        uint32_t id = length ? atsi_token_find(tables, word + i, length) : ATSI_TOKEN_NONE;
        if (length == 0) length = 1; // a malformed byte has only its byte token
        if (id != ATSI_TOKEN_NONE)
            symbols[(*n_symbols)++].id = id;
        else
            split_fallback(tables, word + i, length, symbols, n_symbols);
        i += length;
    }
}

// ---- a binary heap of pairs: rank in the upper half, symbol in the lower, so that the leftmost of equals comes first
// ---

static void sift_down(uint64_t *heap, size_t n, size_t at) {
    uint64_t item = heap[at];
    for (size_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= item) break;
        heap[at] = heap[child];
    }
    heap[at] = item;
}

static void heap_push(uint64_t *heap, size_t *n, uint64_t item) {
    size_t at = (*n)++;
    for (; at > 0 && heap[(at - 1) / 2] > item; at = (at - 1) / 2) heap[at] = heap[(at - 1) / 2];
    heap[at] = item;
}

static uint64_t heap_pop(uint64_t *heap, size_t *n) {
    uint64_t top = heap[0];
    heap[0] = heap[--*n];
    if (*n > 1) sift_down(heap, *n, 0);
    return top;
}

// ---- merging --------------------------------------------------------------------------------------------------------

// Looks up the pair that starts at `at`; true when it can join.
static bool find_pair(const struct atsi_tokenizer_tables *tables, struct atsi_merge_symbol *symbols, uint32_t at) {
    struct atsi_merge_symbol *symbol = symbols + at;
    symbol->pair_rank = NO_RANK;
    if (symbol->next == NO_SYMBOL) return false;
    const struct atsi_token_merge *merge = atsi_token_find_merge(tables, symbol->id, symbols[symbol->next].id);
    if (!merge || merge->rank == NO_RANK) return false;
    symbol->pair_rank = merge->rank;
    symbol->pair_id = merge->id;
    return true;
}

static uint64_t heap_item(const struct atsi_merge_symbol *symbols, uint32_t at) {
    return (uint64_t)symbols[at].pair_rank << 32 | at;
}

static size_t link_symbols(const struct atsi_tokenizer_tables *tables, struct atsi_merge_symbol *symbols, uint32_t n,
                           uint64_t *heap) {
    size_t n_heap = 0;
    for (uint32_t i = 0; i < n; i++) {
        symbols[i].previous = i ? i - 1 : NO_SYMBOL;
        symbols[i].next = i + 1 < n ? i + 1 : NO_SYMBOL;
    }
    for (uint32_t i = 0; i < n; i++)
        if (find_pair(tables, symbols, i)) heap[n_heap++] = heap_item(symbols, i);
    for (size_t i = n_heap / 2; i-- > 0;) sift_down(heap, n_heap, i);
    return n_heap;
}

static void join_with_next(struct atsi_merge_symbol *symbols, uint32_t at) {
    uint32_t gone = symbols[at].next, next = symbols[gone].next;
    symbols[at].id = symbols[at].pair_id;
    symbols[at].next = next;
    if (next != NO_SYMBOL) symbols[next].previous = at;
    symbols[gone].pair_rank = NO_RANK; // what the heap still holds of it is stale
}

enum atsi_status atsi_merge_word(const struct atsi_tokenizer_tables *tables, const char *word, size_t size,
                                 struct atsi_merge_scratch *scratch, struct atsi_token_list *out,
                                 struct atsi_error *err) {
    ATSI_TRY(reserve(scratch, size, err));
    struct atsi_merge_symbol *symbols = scratch->symbols;
    uint64_t *heap = scratch->heap;
    uint32_t n_symbols = 0;
    if (tables->header->algorithm == ATSI_TOKENS_SPM)
        split_characters(tables, word, size, symbols, &n_symbols);
    else
        split_bytes(tables, word, size, symbols, &n_symbols);
    if (n_symbols == 0) return ATSI_OK;
    size_t n_heap = link_symbols(tables, symbols, n_symbols, heap);
    while (n_heap) {
        uint64_t item = heap_pop(heap, &n_heap);
        uint32_t at = (uint32_t)item, previous = symbols[at].previous;
        if (symbols[at].pair_rank != item >> 32) continue; // joined or changed since it was pushed
        join_with_next(symbols, at);
        if (find_pair(tables, symbols, at)) heap_push(heap, &n_heap, heap_item(symbols, at));
        if (previous != NO_SYMBOL && find_pair(tables, symbols, previous))
            heap_push(heap, &n_heap, heap_item(symbols, previous));
    }
    for (uint32_t at = 0; at != NO_SYMBOL; at = symbols[at].next)
        ATSI_TRY(atsi_token_list_push(out, symbols[at].id, err));
    return ATSI_OK;
}
