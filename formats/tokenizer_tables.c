#include "formats/tokenizer_tables.h"

#include <string.h>
#include <xxhash.h>

#include "formats/base/checked.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the tokenizer tables are used in place and are little-endian"
#endif

_Static_assert(sizeof(struct atsi_token_merge) == 16, "a merge slot is 16 bytes in the file");
_Static_assert(sizeof(struct atsi_token_special) == 12, "a special token is 12 bytes in the file");
_Static_assert(sizeof(struct atsi_tokenizer_header) == 104 + 16 * ATSI_TOKENIZER_N_SECTIONS, "no holes in the header");

uint64_t atsi_tokenizer_section_size(const struct atsi_tokenizer_header *header, enum atsi_tokenizer_section index) {
    switch (index) {
    case ATSI_SECTION_PIECE_OFFSETS: return (header->n_tokens + (uint64_t)1) * sizeof(uint32_t);
    case ATSI_SECTION_INFO: return header->n_tokens;
    case ATSI_SECTION_BYTE_IDS: return 256 * sizeof(uint32_t);
    case ATSI_SECTION_TOKEN_SLOTS: return header->n_token_slots * (uint64_t)sizeof(uint32_t);
    case ATSI_SECTION_MERGE_SLOTS: return header->n_merge_slots * (uint64_t)sizeof(struct atsi_token_merge);
    case ATSI_SECTION_SPECIALS: return header->n_specials * (uint64_t)sizeof(struct atsi_token_special);
    case ATSI_SECTION_JOINED: return header->algorithm == ATSI_TOKENS_SPM ? 65536 / 8 : 0;
    case ATSI_SECTION_TEXT:
    case ATSI_SECTION_PATTERNS:
    case ATSI_TOKENIZER_N_SECTIONS: break;
    }
    return 0;
}

static bool section_has_any_size(enum atsi_tokenizer_section index) {
    return index == ATSI_SECTION_TEXT || index == ATSI_SECTION_PATTERNS;
}

static enum atsi_status check_header(const struct atsi_tokenizer_header *h, size_t size, struct atsi_error *err) {
    if (memcmp(h->magic, ATSI_TOKENIZER_MAGIC, sizeof h->magic) != 0)
        return atsi_fail(err, ATSI_BAD_INPUT, "tokenizer tables: no %s at their start", ATSI_TOKENIZER_MAGIC);
    if (h->size_bytes != size)
        return atsi_fail(err, ATSI_BAD_INPUT, "tokenizer tables: %zu bytes, their header says %llu", size,
                         (unsigned long long)h->size_bytes);
    if (h->algorithm != ATSI_TOKENS_BPE && h->algorithm != ATSI_TOKENS_SPM)
        return atsi_fail(err, ATSI_BAD_INPUT, "tokenizer tables: unknown algorithm %u", h->algorithm);
    if (h->flags & ~(uint32_t)ATSI_TOKENIZER_ALL_FLAGS)
        return atsi_fail(err, ATSI_BAD_INPUT, "tokenizer tables: unknown flags 0x%x", h->flags);
    if (h->n_tokens == 0 || h->n_tokens > INT32_MAX)
        return atsi_fail(err, ATSI_BAD_INPUT, "tokenizer tables: %u tokens", h->n_tokens);
    if (h->token_probes > ATSI_TOKENIZER_MAX_PROBE || h->merge_probes > ATSI_TOKENIZER_MAX_PROBE)
        return atsi_fail(err, ATSI_BAD_INPUT,
                         "tokenizer tables: probe chains of %u and %u slots, at most %u are allowed", h->token_probes,
                         h->merge_probes, ATSI_TOKENIZER_MAX_PROBE);
    if (h->token_probes > h->n_token_slots || h->merge_probes > h->n_merge_slots)
        return atsi_fail(err, ATSI_BAD_INPUT, "tokenizer tables: probe chains longer than the hash tables");
    const uint32_t named[] = {h->bos_id, h->eos_id, h->unknown_id, h->padding_id};
    for (size_t i = 0; i < sizeof named / sizeof *named; i++)
        if (named[i] != ATSI_TOKEN_NONE && named[i] >= h->n_tokens)
            return atsi_fail(err, ATSI_BAD_INPUT, "tokenizer tables: special id %u, there are %u tokens", named[i],
                             h->n_tokens);
    return ATSI_OK;
}

static enum atsi_status check_sections(const struct atsi_tokenizer_header *h, size_t size, struct atsi_error *err) {
    for (int i = 0; i < ATSI_TOKENIZER_N_SECTIONS; i++) {
        uint64_t end, offset = h->section[i].offset, have = h->section[i].size;
        if (offset % 8 || offset < sizeof *h || !atsi_add_u64(offset, have, &end) || end > size)
            return atsi_fail(err, ATSI_BAD_INPUT,
                             "tokenizer tables: section %d at %llu of %llu bytes does not lie inside", i,
                             (unsigned long long)offset, (unsigned long long)have);
        uint64_t want = atsi_tokenizer_section_size(h, i);
        if (!section_has_any_size(i) && have != want)
            return atsi_fail(err, ATSI_BAD_INPUT, "tokenizer tables: section %d has %llu bytes, expected %llu", i,
                             (unsigned long long)have, (unsigned long long)want);
    }
    return ATSI_OK;
}

static enum atsi_status check_patterns(const struct atsi_tokenizer_tables *t, struct atsi_error *err) {
    uint32_t n = 0;
    for (uint64_t i = 0; i < t->patterns_size; i++) n += t->patterns[i] == 0;
    bool closed = t->patterns_size == 0 || t->patterns[t->patterns_size - 1] == 0;
    if (!closed || n != t->header->n_patterns || n > 16)
        return atsi_fail(err, ATSI_BAD_INPUT, "tokenizer tables: %u patterns found, expected %u (at most 16)", n,
                         t->header->n_patterns);
    return ATSI_OK;
}

enum atsi_status atsi_tokenizer_tables_open(const void *data, size_t size, struct atsi_tokenizer_tables *tables,
                                            struct atsi_error *err) {
    memset(tables, 0, sizeof *tables);
    const struct atsi_tokenizer_header *h = data;
    if (size < sizeof *h)
        return atsi_fail(err, ATSI_BAD_INPUT, "tokenizer tables: truncated, %zu bytes where the header takes %zu", size,
                         sizeof *h);
    if ((uintptr_t)data % 8) return atsi_fail(err, ATSI_FAILED, "tokenizer tables: not aligned to 8 bytes");
    ATSI_TRY(check_header(h, size, err));
    ATSI_TRY(check_sections(h, size, err));
    const char *base = data;
    tables->header = h;
    tables->piece_offsets = (const uint32_t *)(base + h->section[ATSI_SECTION_PIECE_OFFSETS].offset);
    tables->text = base + h->section[ATSI_SECTION_TEXT].offset;
    tables->text_size = h->section[ATSI_SECTION_TEXT].size;
    tables->info = (const uint8_t *)(base + h->section[ATSI_SECTION_INFO].offset);
    tables->byte_ids = (const uint32_t *)(base + h->section[ATSI_SECTION_BYTE_IDS].offset);
    tables->token_slots = (const uint32_t *)(base + h->section[ATSI_SECTION_TOKEN_SLOTS].offset);
    tables->merge_slots = (const struct atsi_token_merge *)(base + h->section[ATSI_SECTION_MERGE_SLOTS].offset);
    tables->specials = (const struct atsi_token_special *)(base + h->section[ATSI_SECTION_SPECIALS].offset);
    if (h->algorithm == ATSI_TOKENS_SPM)
        tables->joined = (const uint8_t *)(base + h->section[ATSI_SECTION_JOINED].offset);
    tables->patterns = base + h->section[ATSI_SECTION_PATTERNS].offset;
    tables->patterns_size = h->section[ATSI_SECTION_PATTERNS].size;
    return check_patterns(tables, err);
}

const char *atsi_token_piece(const struct atsi_tokenizer_tables *tables, uint32_t id, size_t *size) {
    *size = 0;
    if (id >= tables->header->n_tokens) return tables->text;
    uint32_t begin = tables->piece_offsets[id], end = tables->piece_offsets[id + 1];
    if (begin > end || end > tables->text_size) return tables->text;
    *size = end - begin;
    return tables->text + begin;
}

uint8_t atsi_token_info(const struct atsi_tokenizer_tables *tables, uint32_t id) {
    return id < tables->header->n_tokens ? tables->info[id] : ATSI_TOKEN_UNUSED;
}

enum atsi_token_kind atsi_token_kind(const struct atsi_tokenizer_tables *tables, uint32_t id) {
    unsigned kind = atsi_token_info(tables, id) & ATSI_TOKEN_KIND_MASK;
    return kind <= ATSI_TOKEN_UNUSED ? (enum atsi_token_kind)kind : ATSI_TOKEN_UNUSED;
}

// Maps 32 hash bits evenly to [0, n_slots) without a division.
static uint32_t slot_of(uint32_t hash, uint32_t n_slots) { return (uint32_t)(((uint64_t)hash * n_slots) >> 32); }

uint32_t atsi_token_slot(const char *bytes, size_t size, uint32_t n_slots) {
    return slot_of((uint32_t)XXH3_64bits(bytes, size), n_slots);
}

uint32_t atsi_token_merge_slot(uint32_t left, uint32_t right, uint32_t n_slots) {
    uint64_t key = (uint64_t)left << 32 | right;
    key = (key ^ key >> 32) * 0x9E3779B97F4A7C15u; // Fibonacci hashing; the odd constant is 2^64 / golden ratio
    return slot_of((uint32_t)(key >> 32), n_slots);
}

uint32_t atsi_token_find(const struct atsi_tokenizer_tables *tables, const char *bytes, size_t size) {
    const struct atsi_tokenizer_header *h = tables->header;
    if (size == 0 || size > h->longest_piece || h->n_token_slots == 0) return ATSI_TOKEN_NONE;
    uint32_t slot = atsi_token_slot(bytes, size, h->n_token_slots);
    for (uint32_t probe = 0; probe < h->token_probes; probe++) {
        uint32_t id = tables->token_slots[slot];
        if (id == ATSI_TOKEN_NONE) return ATSI_TOKEN_NONE;
        size_t piece_size;
        const char *piece = atsi_token_piece(tables, id, &piece_size);
        if (piece_size == size && memcmp(piece, bytes, size) == 0) return id;
        if (++slot == h->n_token_slots) slot = 0;
    }
    return ATSI_TOKEN_NONE;
}

const struct atsi_token_merge *atsi_token_find_merge(const struct atsi_tokenizer_tables *tables, uint32_t left,
                                                     uint32_t right) {
    const struct atsi_tokenizer_header *h = tables->header;
    if (h->n_merge_slots == 0) return NULL;
    uint32_t slot = atsi_token_merge_slot(left, right, h->n_merge_slots);
    for (uint32_t probe = 0; probe < h->merge_probes; probe++) {
        const struct atsi_token_merge *merge = tables->merge_slots + slot;
        if (merge->left == left && merge->right == right) return merge->id < h->n_tokens ? merge : NULL;
        if (merge->left == ATSI_TOKEN_NONE) return NULL;
        if (++slot == h->n_merge_slots) slot = 0;
    }
    return NULL;
}

// Byte `depth` of a special token's text; -1 where the text ends (which sorts first) or is bad.
static int special_byte(const struct atsi_tokenizer_tables *tables, uint32_t index, size_t depth) {
    const struct atsi_token_special *special = tables->specials + index;
    uint64_t at = (uint64_t)special->text_offset + depth;
    if (depth >= special->text_size || at >= tables->text_size) return -1;
    return (unsigned char)tables->text[at];
}

// First of the sorted specials [low, high), which agree before `depth`, whose byte there is at least `byte`.
static uint32_t lower_bound(const struct atsi_tokenizer_tables *tables, uint32_t low, uint32_t high, size_t depth,
                            int byte) {
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (special_byte(tables, middle, depth) < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool is_active(const struct atsi_tokenizer_tables *tables, uint32_t id, bool with_control) {
    enum atsi_token_kind kind = atsi_token_kind(tables, id);
    return kind == ATSI_TOKEN_USER || (with_control && (kind == ATSI_TOKEN_CONTROL || kind == ATSI_TOKEN_UNKNOWN));
}

uint32_t atsi_token_match_special(const struct atsi_tokenizer_tables *tables, const char *text, size_t size,
                                  bool with_control, size_t *match_size) {
    uint32_t found = ATSI_TOKEN_NONE, low = 0, high = tables->header->n_specials;
    for (size_t depth = 0; depth < size && low < high; depth++) {
        int byte = (unsigned char)text[depth];
        low = lower_bound(tables, low, high, depth, byte);
        high = lower_bound(tables, low, high, depth, byte + 1);
        // Texts that end here stand first in what is left; several tokens may have the same text.
        for (uint32_t i = low; i < high && tables->specials[i].text_size == depth + 1; i++) {
            uint32_t id = tables->specials[i].id;
            if (!is_active(tables, id, with_control)) continue;
            found = id;
            *match_size = depth + 1;
            break;
        }
    }
    return found;
}
