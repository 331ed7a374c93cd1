#include "runtime/tokenizer/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "formats/base/utf8.h"
#include "runtime/tokenizer/normalize.h"
#include "runtime/tokenizer/pretokenizer.h"

#define SPACE_MARK  "\xE2\x96\x81" // U+2581, which SentencePiece takes for a space
#define REPLACEMENT "\xEF\xBF\xBD" // U+FFFD

struct atsi_tokenizer {
    struct atsi_tokenizer_tables tables;
    struct atsi_pretokenizer *pretokenizer; // NULL for SentencePiece
};

// One call's state.
struct encoding {
    const struct atsi_tokenizer *tokenizer;
    struct atsi_merge_scratch scratch;
    struct atsi_bytes buffer;
    struct atsi_token_list *out;
};

enum atsi_status atsi_tokenizer_open(struct atsi_tokenizer **out, const void *tables, size_t size,
                                     struct atsi_error *err) {
    *out = NULL;
    struct atsi_tokenizer *t = calloc(1, sizeof *t);
    if (!t) return atsi_out_of_memory(err);
    enum atsi_status status = atsi_tokenizer_tables_open(tables, size, &t->tables, err);
    if (status == ATSI_OK && t->tables.header->algorithm == ATSI_TOKENS_BPE)
        status = atsi_pretokenizer_open(&t->tables, &t->pretokenizer, err);
    if (status == ATSI_OK)
        *out = t;
    else
        atsi_tokenizer_close(t);
    return status;
}

void atsi_tokenizer_close(struct atsi_tokenizer *tokenizer) {
    if (!tokenizer) return;
    atsi_pretokenizer_close(tokenizer->pretokenizer);
    free(tokenizer);
}

// ---- encoding ------------------------------------------------------------------------------------------------------

static enum atsi_status encode_word(void *context, const char *word, size_t size, struct atsi_error *err) {
    struct encoding *e = context;
    const struct atsi_tokenizer_tables *tables = &e->tokenizer->tables;
    uint32_t id = atsi_token_find(tables, word, size);
    if (id != ATSI_TOKEN_NONE && (atsi_token_info(tables, id) & ATSI_TOKEN_WHOLE))
        return atsi_token_list_push(e->out, id, err);
    return atsi_merge_word(tables, word, size, &e->scratch, e->out, err);
}

// Length of the well-formed UTF-8 that `text` starts with.
static size_t well_formed_length(const char *text, size_t size) {
    size_t i = 0;
    while (i < size) {
        if ((unsigned char)text[i] < 0x80) {
            i++;
            continue;
        }
        size_t length = atsi_utf8_length(text + i, size - i);
        if (length == 0) break;
        i += length;
    }
    return i;
}

static size_t malformed_length(const char *text, size_t size) {
    size_t i = 0;
    while (i < size && atsi_utf8_length(text + i, size - i) == 0) i++;
    return i;
}

static enum atsi_status encode_malformed(struct encoding *e, const char *text, size_t size, struct atsi_error *err) {
    e->buffer.size = 0;
    for (size_t i = 0; i < size; i++) {
        bool has_token = e->tokenizer->tables.byte_ids[(unsigned char)text[i]] != ATSI_TOKEN_NONE;
        ATSI_TRY(has_token ? atsi_bytes_append(&e->buffer, text + i, 1, err)
                           : atsi_bytes_append(&e->buffer, REPLACEMENT, 3, err));
    }
    return encode_word(e, e->buffer.data, e->buffer.size, err);
}

static enum atsi_status encode_well_formed(struct encoding *e, const char *text, size_t size, struct atsi_error *err) {
    const struct atsi_tokenizer *t = e->tokenizer;
    if (!(t->tables.header->flags & ATSI_TOKENIZER_NFC) || atsi_is_surely_nfc(text, size))
        return atsi_pretokenizer_split(t->pretokenizer, text, size, encode_word, e, err);
    char *normalized;
    size_t normalized_size;
    ATSI_TRY(atsi_normalize_nfc(text, size, &normalized, &normalized_size, err));
    enum atsi_status status =
        atsi_pretokenizer_split(t->pretokenizer, normalized, normalized_size, encode_word, e, err);
    free(normalized);
    return status;
}

static enum atsi_status encode_bpe(struct encoding *e, const char *text, size_t size, struct atsi_error *err) {
    for (size_t i = 0; i < size;) {
        size_t good = well_formed_length(text + i, size - i);
        if (good) ATSI_TRY(encode_well_formed(e, text + i, good, err));
        i += good;
        size_t bad = malformed_length(text + i, size - i);
        if (bad) ATSI_TRY(encode_malformed(e, text + i, bad, err));
        i += bad;
    }
    return ATSI_OK;
}

// The text as the pieces have it: with the space in front that the model wants, and U+2581 as a space.
static enum atsi_status prepare_spm(struct encoding *e, const char *text, size_t size, struct atsi_error *err) {
    e->buffer.size = 0;
    if (e->tokenizer->tables.header->flags & ATSI_TOKENIZER_SPACE_PREFIX)
        ATSI_TRY(atsi_bytes_append(&e->buffer, " ", 1, err));
    for (size_t i = 0; i < size;) {
        const char *mark = memmem(text + i, size - i, SPACE_MARK, 3);
        size_t before = mark ? (size_t)(mark - (text + i)) : size - i;
        ATSI_TRY(atsi_bytes_append(&e->buffer, text + i, before, err));
        if (mark) ATSI_TRY(atsi_bytes_append(&e->buffer, " ", 1, err));
        i += before + (mark ? 3 : 0);
    }
    return ATSI_OK;
}

// Unknown characters on both sides of a cut are one unknown token.
static void join_unknown(struct encoding *e, size_t at) {
    struct atsi_token_list *list = e->out;
    uint32_t unknown = e->tokenizer->tables.header->unknown_id;
    if (unknown == ATSI_TOKEN_NONE || at >= list->n_ids || list->ids[at] != unknown || list->ids[at - 1] != unknown)
        return;
    list->n_ids--;
    memmove(list->ids + at, list->ids + at + 1, (list->n_ids - at) * sizeof *list->ids);
}

// SentencePiece merges the whole text at once. Two bytes that are neighbours in no piece are never merged, so cutting
// there changes nothing and makes words that are short and often one token.
static enum atsi_status encode_spm(struct encoding *e, const char *text, size_t size, struct atsi_error *err) {
    ATSI_TRY(prepare_spm(e, text, size, err));
    const unsigned char *bytes = (const unsigned char *)e->buffer.data;
    const uint8_t *joined = e->tokenizer->tables.joined;
    size_t begin = 0, n_start = e->out->n_ids;
    for (size_t i = 1; i <= e->buffer.size; i++) {
        bool inside_character = i < e->buffer.size && (bytes[i] & 0xC0) == 0x80;
        unsigned pair = i < e->buffer.size ? bytes[i - 1] * 256u + bytes[i] : 0;
        if (i < e->buffer.size && (inside_character || (joined[pair / 8] >> pair % 8 & 1))) continue;
        size_t n_before = e->out->n_ids;
        ATSI_TRY(encode_word(e, e->buffer.data + begin, i - begin, err));
        if (n_before > n_start) join_unknown(e, n_before);
        begin = i;
    }
    return ATSI_OK;
}

static enum atsi_status encode_text(struct encoding *e, const char *text, size_t size, struct atsi_error *err) {
    if (size == 0) return ATSI_OK;
    bool spm = e->tokenizer->tables.header->algorithm == ATSI_TOKENS_SPM;
    return spm ? encode_spm(e, text, size, err) : encode_bpe(e, text, size, err);
}

// The next special token at or after `from`: ATSI_TOKEN_NONE and *begin == size when there is none.
static uint32_t next_special(const struct atsi_tokenizer_tables *tables, const char *text, size_t size, size_t from,
                             bool with_control, size_t *begin, size_t *length) {
    const uint64_t *first = tables->header->special_first;
    for (size_t i = from; i < size; i++) {
        unsigned char byte = (unsigned char)text[i];
        if (!(first[byte / 64] >> byte % 64 & 1)) continue;
        uint32_t id = atsi_token_match_special(tables, text + i, size - i, with_control, length);
        if (id == ATSI_TOKEN_NONE) continue;
        *begin = i;
        return id;
    }
    *begin = size;
    *length = 0;
    return ATSI_TOKEN_NONE;
}

// Length of the white space (Unicode's White_Space) that `text` starts with.
static size_t white_space_length(const char *text, size_t size) {
    static const char *const spaces[] = {"\xC2\x85",     "\xC2\xA0",     "\xE1\x9A\x80", "\xE2\x80\xA8",
                                         "\xE2\x80\xA9", "\xE2\x80\xAF", "\xE2\x81\x9F", "\xE3\x80\x80"};
    size_t at = 0;
    while (at < size) {
        size_t length = text[at] == ' ' || (text[at] >= '\t' && text[at] <= '\r') ? 1 : 0;
        bool is_quad = size - at >= 3 && memcmp(text + at, "\xE2\x80", 2) == 0 && (unsigned char)text[at + 2] <= 0x8A;
        if (is_quad) length = 3; // U+2000 to U+200A
        for (size_t i = 0; i < sizeof spaces / sizeof *spaces && length == 0; i++) {
            size_t n = strlen(spaces[i]);
            if (size - at >= n && memcmp(text + at, spaces[i], n) == 0) length = n;
        }
        if (length == 0) break;
        at += length;
    }
    return at;
}

size_t atsi_tokenizer_swallowed(const struct atsi_tokenizer *tokenizer, uint32_t id, const char *text, size_t size) {
    return atsi_token_info(&tokenizer->tables, id) & ATSI_TOKEN_STRIPS ? white_space_length(text, size) : 0;
}

static enum atsi_status encode_all(struct encoding *e, const char *text, size_t size, bool with_control,
                                   struct atsi_error *err) {
    for (size_t at = 0; at < size;) {
        size_t begin, length;
        uint32_t id = next_special(&e->tokenizer->tables, text, size, at, with_control, &begin, &length);
        ATSI_TRY(encode_text(e, text + at, begin - at, err));
        if (id != ATSI_TOKEN_NONE) ATSI_TRY(atsi_token_list_push(e->out, id, err));
        at = begin + length;
        if (id != ATSI_TOKEN_NONE) at += atsi_tokenizer_swallowed(e->tokenizer, id, text + at, size - at);
    }
    return ATSI_OK;
}

void atsi_token_list_drop_double(struct atsi_token_list *list, size_t start) {
    if (list->n_ids < start + 2 || list->ids[start] != list->ids[start + 1]) return;
    memmove(list->ids + start, list->ids + start + 1, (list->n_ids - start - 1) * sizeof *list->ids);
    list->n_ids--;
}

enum atsi_status atsi_tokenizer_encode(const struct atsi_tokenizer *tokenizer, const char *text, size_t size,
                                       unsigned flags, struct atsi_token_list *out, struct atsi_error *err) {
    const struct atsi_tokenizer_header *h = tokenizer->tables.header;
    bool prompt = flags & ATSI_ENCODE_PROMPT;
    bool add_bos = prompt && atsi_tokenizer_adds_bos(tokenizer);
    size_t start = out->n_ids;
    if (add_bos) ATSI_TRY(atsi_token_list_push(out, h->bos_id, err));
    struct encoding e = {.tokenizer = tokenizer, .out = out};
    enum atsi_status status = encode_all(&e, text, size, flags & ATSI_ENCODE_SPECIAL, err);
    atsi_merge_scratch_free(&e.scratch);
    atsi_bytes_free(&e.buffer);
    if (status != ATSI_OK) return status;
    if (add_bos) atsi_token_list_drop_double(out, start);
    bool add_eos = prompt && (h->flags & ATSI_TOKENIZER_ADD_EOS) && h->eos_id != ATSI_TOKEN_NONE;
    bool has_eos = out->n_ids > start && out->ids[out->n_ids - 1] == h->eos_id;
    return add_eos && !has_eos ? atsi_token_list_push(out, h->eos_id, err) : ATSI_OK;
}

// ---- decoding ------------------------------------------------------------------------------------------------------

enum atsi_status atsi_tokenizer_decode(const struct atsi_tokenizer *tokenizer, const uint32_t *ids, size_t n_ids,
                                       struct atsi_bytes *out, struct atsi_error *err) {
    const struct atsi_tokenizer_tables *tables = &tokenizer->tables;
    bool drop_space = tables->header->flags & ATSI_TOKENIZER_SPACE_PREFIX;
    for (size_t i = 0; i < n_ids; i++) {
        if (ids[i] >= tables->header->n_tokens)
            return atsi_fail(err, ATSI_BAD_INPUT, "token %u is not in the vocabulary of %u tokens", ids[i],
                             tables->header->n_tokens);
        size_t size;
        const char *piece = atsi_token_piece(tables, ids[i], &size);
        enum atsi_token_kind kind = atsi_token_kind(tables, ids[i]);
        bool prefixed = drop_space && kind == ATSI_TOKEN_NORMAL && size && piece[0] == ' ';
        ATSI_TRY(atsi_bytes_append(out, piece + prefixed, size - prefixed, err));
        // A space was put in front of the text, and again behind each special token.
        drop_space = (tables->header->flags & ATSI_TOKENIZER_SPACE_PREFIX) && kind != ATSI_TOKEN_NORMAL &&
                     kind != ATSI_TOKEN_BYTE;
    }
    return ATSI_OK;
}

const char *atsi_tokenizer_piece(const struct atsi_tokenizer *tokenizer, uint32_t id, size_t *size) {
    return atsi_token_piece(&tokenizer->tables, id, size);
}

// ---- what is known of the vocabulary -------------------------------------------------------------------------------

uint32_t atsi_tokenizer_find_special(const struct atsi_tokenizer *tokenizer, const char *text) {
    size_t size = strlen(text), length = 0;
    uint32_t id = atsi_token_match_special(&tokenizer->tables, text, size, true, &length);
    return length == size ? id : ATSI_TOKEN_NONE;
}

uint32_t atsi_tokenizer_n_tokens(const struct atsi_tokenizer *tokenizer) { return tokenizer->tables.header->n_tokens; }
uint32_t atsi_tokenizer_bos(const struct atsi_tokenizer *tokenizer) { return tokenizer->tables.header->bos_id; }

bool atsi_tokenizer_adds_bos(const struct atsi_tokenizer *tokenizer) {
    const struct atsi_tokenizer_header *h = tokenizer->tables.header;
    return (h->flags & ATSI_TOKENIZER_ADD_BOS) && h->bos_id != ATSI_TOKEN_NONE;
}

bool atsi_tokenizer_ends_generation(const struct atsi_tokenizer *tokenizer, uint32_t id) {
    return atsi_token_info(&tokenizer->tables, id) & ATSI_TOKEN_EOG;
}

enum atsi_token_kind atsi_tokenizer_kind(const struct atsi_tokenizer *tokenizer, uint32_t id) {
    return atsi_token_kind(&tokenizer->tables, id);
}
