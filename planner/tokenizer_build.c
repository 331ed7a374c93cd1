#include <stdlib.h>
#include <string.h>

#include "formats/base/checked.h"
#include "formats/tokenizer_merge.h"
#include "planner/tokenizer.h"
#include "planner/tokenizer_family.h"
#include "planner/tokenizer_merges.h"
#include "planner/tokenizer_pieces.h"

// What the block is made of, while it is made.
struct parts {
    enum atsi_token_algorithm algorithm;
    const struct atsi_tokenizer_family *family; // NULL for SentencePiece
    struct atsi_pieces pieces;
    struct atsi_text_index tokens;
    struct atsi_merge_index merges;
};

// ---- what kind of tokenizer ----------------------------------------------------------------------------------------

static enum atsi_status find_family(const struct atsi_vocabulary *v, struct parts *parts, struct atsi_error *err) {
    char known[360], name[64];
    atsi_tokenizer_family_names(known, sizeof known);
    if (!v->pre.data || v->pre.size == 0 || atsi_str_is(v->pre, "default"))
        return atsi_fail(err, ATSI_BAD_INPUT,
                         "tokenizer.ggml.pre is %s, so how the model splits text is not known; set it to one of: %s",
                         v->pre.data && v->pre.size ? "\"default\"" : "absent", known);
    if (v->pre.size < sizeof name) {
        memcpy(name, v->pre.data, v->pre.size);
        name[v->pre.size] = 0;
        parts->family = atsi_tokenizer_family_find(name);
    }
    if (!parts->family)
        return atsi_fail(err, ATSI_BAD_INPUT, "tokenizer.ggml.pre is \"%.40s\", which is not known; known are: %s",
                         atsi_label(v->pre).text, known);
    if (!v->merges)
        return atsi_fail(err, ATSI_BAD_INPUT, "tokenizer.ggml.merges is missing: text cannot be split into tokens");
    return ATSI_OK;
}

static enum atsi_status choose_algorithm(const struct atsi_vocabulary *v, struct parts *parts, struct atsi_error *err) {
    if (atsi_str_is(v->model, "gpt2")) {
        parts->algorithm = ATSI_TOKENS_BPE;
        return find_family(v, parts, err);
    }
    if (!atsi_str_is(v->model, "llama"))
        return atsi_fail(err, ATSI_BAD_INPUT,
                         "tokenizer.ggml.model is \"%s\"; gpt2 (byte-level BPE) and llama (SentencePiece) exist",
                         atsi_label(v->model).text);
    parts->algorithm = ATSI_TOKENS_SPM;
    if (!v->scores)
        return atsi_fail(err, ATSI_BAD_INPUT, "tokenizer.ggml.scores is missing: text cannot be split into tokens");
    if (v->remove_extra_whitespaces == ATSI_SWITCH_ON)
        return atsi_fail(err, ATSI_BAD_INPUT, "tokenizer.ggml.remove_extra_whitespaces is set, which is not supported");
    return ATSI_OK;
}

static bool switched(enum atsi_vocabulary_switch key, bool fallback) {
    return key == ATSI_SWITCH_ABSENT ? fallback : key == ATSI_SWITCH_ON;
}

static uint32_t tokenizer_flags(const struct atsi_vocabulary *v, const struct parts *parts) {
    bool spm = parts->algorithm == ATSI_TOKENS_SPM;
    uint32_t flags = 0;
    if (switched(v->add_bos, spm || parts->family->add_bos) && v->bos_id != ATSI_TOKEN_NONE)
        flags |= ATSI_TOKENIZER_ADD_BOS;
    if (switched(v->add_eos, false) && v->eos_id != ATSI_TOKEN_NONE) flags |= ATSI_TOKENIZER_ADD_EOS;
    if (!spm && parts->family->nfc) flags |= ATSI_TOKENIZER_NFC;
    if (spm && switched(v->add_space_prefix, true)) flags |= ATSI_TOKENIZER_SPACE_PREFIX;
    return flags;
}

static uint32_t find_unknown(const struct atsi_vocabulary *v, const struct atsi_pieces *pieces) {
    if (v->unknown_id != ATSI_TOKEN_NONE || !v->types) return v->unknown_id;
    for (uint32_t id = 0; id < pieces->n_tokens; id++)
        if (v->types[id] == ATSI_VOCABULARY_UNKNOWN) return id;
    return ATSI_TOKEN_NONE;
}

// ---- the block -----------------------------------------------------------------------------------------------------

static void fill_header(const struct atsi_vocabulary *v, const struct parts *parts, struct atsi_tokenizer_header *h) {
    memcpy(h->magic, ATSI_TOKENIZER_MAGIC, sizeof h->magic);
    h->n_tokens = parts->pieces.n_tokens;
    h->algorithm = parts->algorithm;
    h->flags = tokenizer_flags(v, parts);
    h->bos_id = v->bos_id;
    h->eos_id = v->eos_id;
    h->unknown_id = find_unknown(v, &parts->pieces);
    h->padding_id = v->padding_id;
    for (uint32_t id = 0; id < h->n_tokens; id++)
        if (parts->pieces.mergeable[id] && parts->pieces.pieces[id].size > h->longest_piece)
            h->longest_piece = (uint32_t)parts->pieces.pieces[id].size;
    h->n_token_slots = parts->tokens.n_slots;
    h->token_probes = parts->tokens.probes;
    h->n_merge_slots = parts->merges.n_slots;
    h->merge_probes = parts->merges.probes;
    h->n_specials = parts->pieces.n_specials;
    for (uint32_t i = 0; i < h->n_specials; i++) {
        unsigned char first = (unsigned char)parts->pieces.specials[i].text.data[0];
        h->special_first[first / 64] |= (uint64_t)1 << first % 64;
    }
    if (parts->family)
        while (h->n_patterns < ATSI_FAMILY_MAX_PATTERNS && parts->family->patterns[h->n_patterns]) h->n_patterns++;
}

static uint64_t patterns_size(const struct atsi_tokenizer_header *h, const struct parts *parts) {
    uint64_t size = 0;
    for (uint32_t i = 0; i < h->n_patterns; i++) size += strlen(parts->family->patterns[i]) + 1;
    return size;
}

static enum atsi_status place_sections(struct atsi_tokenizer_header *h, const struct parts *parts,
                                       struct atsi_error *err) {
    uint64_t at = sizeof *h;
    for (int i = 0; i < ATSI_TOKENIZER_N_SECTIONS; i++) {
        h->section[i].offset = at;
        h->section[i].size = i == ATSI_SECTION_TEXT       ? parts->pieces.text_size
                             : i == ATSI_SECTION_PATTERNS ? patterns_size(h, parts)
                                                          : atsi_tokenizer_section_size(h, i);
        if (!atsi_add_u64(at, h->section[i].size, &at) || !atsi_align_u64(at, 8, &at))
            return atsi_fail(err, ATSI_BAD_INPUT, "the tokenizer tables are too large");
    }
    h->size_bytes = at;
    return ATSI_OK;
}

static void fill_pieces(const struct atsi_pieces *pieces, char *block, const struct atsi_tokenizer_header *h) {
    uint32_t *offsets = (uint32_t *)(block + h->section[ATSI_SECTION_PIECE_OFFSETS].offset);
    for (uint32_t id = 0; id < pieces->n_tokens; id++) {
        offsets[id] = (uint32_t)(pieces->pieces[id].data - pieces->text);
        offsets[id + 1] = offsets[id] + (uint32_t)pieces->pieces[id].size;
    }
    memcpy(block + h->section[ATSI_SECTION_TEXT].offset, pieces->text, pieces->text_size);
    memcpy(block + h->section[ATSI_SECTION_INFO].offset, pieces->info, pieces->n_tokens);
    memcpy(block + h->section[ATSI_SECTION_BYTE_IDS].offset, pieces->byte_ids, sizeof pieces->byte_ids);
    struct atsi_token_special *specials =
        (struct atsi_token_special *)(block + h->section[ATSI_SECTION_SPECIALS].offset);
    for (uint32_t i = 0; i < pieces->n_specials; i++) {
        struct atsi_str text = pieces->specials[i].text;
        specials[i] = (struct atsi_token_special){(uint32_t)(text.data - pieces->text), (uint32_t)text.size,
                                                  pieces->specials[i].id};
    }
}

static void fill_joined(const struct atsi_pieces *pieces, uint8_t *joined) {
    for (uint32_t id = 0; id < pieces->n_tokens; id++) {
        if (!pieces->mergeable[id]) continue;
        const unsigned char *piece = (const unsigned char *)pieces->pieces[id].data;
        for (uint64_t i = 1; i < pieces->pieces[id].size; i++) {
            unsigned pair = piece[i - 1] * 256u + piece[i];
            joined[pair / 8] |= (uint8_t)(1 << pair % 8);
        }
    }
}

static void fill_patterns(const struct parts *parts, const struct atsi_tokenizer_header *h, char *out) {
    for (uint32_t i = 0; i < h->n_patterns; i++) {
        size_t size = strlen(parts->family->patterns[i]) + 1;
        memcpy(out, parts->family->patterns[i], size);
        out += size;
    }
}

static void fill_sections(const struct parts *parts, char *block, const struct atsi_tokenizer_header *h) {
    fill_pieces(&parts->pieces, block, h);
    memcpy(block + h->section[ATSI_SECTION_TOKEN_SLOTS].offset, parts->tokens.slots,
           h->section[ATSI_SECTION_TOKEN_SLOTS].size);
    memcpy(block + h->section[ATSI_SECTION_MERGE_SLOTS].offset, parts->merges.slots,
           h->section[ATSI_SECTION_MERGE_SLOTS].size);
    if (parts->algorithm == ATSI_TOKENS_SPM)
        fill_joined(&parts->pieces, (uint8_t *)block + h->section[ATSI_SECTION_JOINED].offset);
    fill_patterns(parts, h, block + h->section[ATSI_SECTION_PATTERNS].offset);
}

// Marks the pieces that encode as themselves, by encoding them with the tables as they are.
static enum atsi_status mark_whole(const struct parts *parts, char *block, size_t size, struct atsi_error *err) {
    struct atsi_tokenizer_tables tables;
    ATSI_TRY(atsi_tokenizer_tables_open(block, size, &tables, err));
    uint8_t *info = (uint8_t *)block + tables.header->section[ATSI_SECTION_INFO].offset;
    bool always = parts->family && parts->family->ignore_merges;
    struct atsi_merge_scratch scratch = {0};
    struct atsi_token_list list = {0};
    enum atsi_status status = ATSI_OK;
    for (uint32_t id = 0; id < parts->pieces.n_tokens && status == ATSI_OK; id++) {
        if (!parts->pieces.mergeable[id]) continue;
        struct atsi_str piece = parts->pieces.pieces[id];
        list.n_ids = 0;
        status = atsi_merge_word(&tables, piece.data, piece.size, &scratch, &list, err);
        bool reached = status == ATSI_OK && list.n_ids == 1 && list.ids[0] == id;
        if (reached || always) info[id] |= ATSI_TOKEN_WHOLE;
    }
    atsi_merge_scratch_free(&scratch);
    atsi_token_list_free(&list);
    return status;
}

static enum atsi_status make_parts(const struct atsi_vocabulary *v, struct parts *parts, struct atsi_error *err) {
    ATSI_TRY(choose_algorithm(v, parts, err));
    ATSI_TRY(atsi_pieces_make(v, parts->algorithm, &parts->pieces, err));
    const struct atsi_pieces *p = &parts->pieces;
    ATSI_TRY(atsi_text_index_make(p->pieces, p->mergeable, p->n_tokens, &parts->tokens, err));
    if (parts->algorithm == ATSI_TOKENS_BPE) return atsi_merge_index_from_list(v, &parts->merges, err);
    return atsi_merge_index_from_scores(p, &parts->tokens, v->scores, &parts->merges, err);
}

static enum atsi_status assemble(const struct atsi_vocabulary *v, const struct parts *parts, void **block, size_t *size,
                                 struct atsi_error *err) {
    struct atsi_tokenizer_header header = {0};
    fill_header(v, parts, &header);
    ATSI_TRY(place_sections(&header, parts, err));
    char *bytes = calloc(1, header.size_bytes);
    if (!bytes)
        return atsi_fail(err, ATSI_FAILED, "out of memory for %llu bytes of tokenizer tables",
                         (unsigned long long)header.size_bytes);
    memcpy(bytes, &header, sizeof header);
    fill_sections(parts, bytes, &header);
    *block = bytes;
    *size = header.size_bytes;
    return mark_whole(parts, bytes, header.size_bytes, err);
}

enum atsi_status atsi_tokenizer_build(const struct atsi_vocabulary *vocabulary, void **block, size_t *size,
                                      struct atsi_error *err) {
    *block = NULL;
    *size = 0;
    struct parts parts = {0};
    enum atsi_status status = make_parts(vocabulary, &parts, err);
    if (status == ATSI_OK) status = assemble(vocabulary, &parts, block, size, err);
    if (status != ATSI_OK) {
        free(*block);
        *block = NULL;
    }
    atsi_pieces_free(&parts.pieces);
    free(parts.tokens.slots);
    free(parts.merges.slots);
    return status;
}
