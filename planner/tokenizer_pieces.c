#include "planner/tokenizer_pieces.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/utf8.h"

#define SPACE_MARK      "\xE2\x96\x81" // U+2581, SentencePiece's visible space
#define SPACE_MARK_SIZE 3

// ---- kinds ----------------------------------------------------------------------------------------------------------

// Converters fill rows of the matrices that have no token with "[PADi]", i being the row.
static bool is_padding(struct atsi_str text, uint32_t id) {
    char padding[24];
    snprintf(padding, sizeof padding, "[PAD%u]", id);
    return atsi_str_is(text, padding);
}

static enum atsi_status kind_of(const struct atsi_vocabulary *v, uint32_t id, enum atsi_token_kind *kind,
                                struct atsi_error *err) {
    int64_t type = v->types ? v->types[id] : ATSI_VOCABULARY_NORMAL;
    switch (type) {
    case ATSI_VOCABULARY_UNDEFINED:
    case ATSI_VOCABULARY_NORMAL: *kind = ATSI_TOKEN_NORMAL; break;
    case ATSI_VOCABULARY_UNKNOWN: *kind = ATSI_TOKEN_UNKNOWN; break;
    case ATSI_VOCABULARY_CONTROL: *kind = ATSI_TOKEN_CONTROL; break;
    case ATSI_VOCABULARY_USER_DEFINED: *kind = ATSI_TOKEN_USER; break;
    case ATSI_VOCABULARY_UNUSED: *kind = ATSI_TOKEN_UNUSED; break;
    case ATSI_VOCABULARY_BYTE: *kind = ATSI_TOKEN_BYTE; break;
    default:
        return atsi_fail(err, ATSI_BAD_INPUT, "tokenizer.ggml.token_type[%u] is %lld, expected 0 to 6", id,
                         (long long)type);
    }
    if (!v->types && (id == v->bos_id || id == v->eos_id || id == v->padding_id)) *kind = ATSI_TOKEN_CONTROL;
    if (*kind != ATSI_TOKEN_CONTROL && is_padding(v->tokens[id], id)) *kind = ATSI_TOKEN_UNUSED;
    return ATSI_OK;
}

// Tokens that end a turn or a text whatever the file's id keys say; names of the families' own tokenizers.
static bool ends_generation(struct atsi_str text) {
    static const char *const texts[] = {
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<end_of_turn>",
        "<turn|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|fim_pad|>",
        "<|repo_name|>",
        "<|file_sep|>",
        "<EOT>",
        "[EOT]",
        "[EOS]",
        "<end_of_utterance>",
        "<｜end▁of▁sentence｜>",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (atsi_str_is(text, texts[i])) return true;
    return false;
}

// In the harmony format <|end|> ends a message, not the turn; only <|return|> and <|call|> do.
static bool is_harmony(const struct atsi_vocabulary *v) {
    bool has_return = false, has_channel = false;
    for (uint64_t i = 0; i < v->n_tokens; i++) {
        has_return |= atsi_str_is(v->tokens[i], "<|return|>");
        has_channel |= atsi_str_is(v->tokens[i], "<|channel|>");
    }
    return has_return && has_channel;
}

// GGUF does not carry the "rstrip" of special tokens. Phi-3 is the family that has it: on all but these.
static bool strips_space(const struct atsi_vocabulary *v, uint32_t id, enum atsi_token_kind kind) {
    if (!atsi_str_is(v->architecture, "phi3") || !atsi_str_is(v->model, "llama")) return false;
    if (kind != ATSI_TOKEN_CONTROL && kind != ATSI_TOKEN_USER) return false;
    return !atsi_str_is(v->tokens[id], "<s>") && !atsi_str_is(v->tokens[id], "<|endoftext|>");
}

static enum atsi_status set_info(const struct atsi_vocabulary *v, struct atsi_pieces *p, struct atsi_error *err) {
    bool harmony = is_harmony(v);
    for (uint32_t id = 0; id < p->n_tokens; id++) {
        enum atsi_token_kind kind = ATSI_TOKEN_NORMAL;
        ATSI_TRY(kind_of(v, id, &kind, err));
        bool ends = kind != ATSI_TOKEN_UNUSED && ends_generation(v->tokens[id]);
        if (ends && harmony && atsi_str_is(v->tokens[id], "<|end|>")) ends = false;
        if (ends && kind == ATSI_TOKEN_NORMAL) kind = ATSI_TOKEN_CONTROL; // some conversions lose the type
        if (id == v->eos_id || id == v->eot_id || id == v->eom_id) ends = true;
        bool strips = strips_space(v, id, kind);
        p->info[id] = (uint8_t)(kind | (ends ? ATSI_TOKEN_EOG : 0) | (strips ? ATSI_TOKEN_STRIPS : 0));
    }
    return ATSI_OK;
}

// ---- texts ---------------------------------------------------------------------------------------------------------

// GPT-2's printable alphabet: bytes that are printable in Latin-1 stand for themselves, the others, in order, for
// U+0100 and what follows.
static bool is_printable_byte(uint32_t byte) {
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

struct byte_alphabet {
    uint8_t shifted[256]; // byte of U+0100 + i
    uint32_t n_shifted;
};

static struct byte_alphabet make_alphabet(void) {
    struct byte_alphabet alphabet = {.n_shifted = 0};
    for (uint32_t byte = 0; byte < 256; byte++)
        if (!is_printable_byte(byte)) alphabet.shifted[alphabet.n_shifted++] = (uint8_t)byte;
    return alphabet;
}

// The byte that the character of `length` bytes stands for, or -1.
static int byte_of_character(const struct byte_alphabet *alphabet, const char *character, size_t length) {
    const unsigned char *c = (const unsigned char *)character;
    uint32_t code = length == 1 ? c[0] : length == 2 ? (c[0] & 0x1Fu) << 6 | (c[1] & 0x3Fu) : UINT32_MAX;
    if (code < 256) return is_printable_byte(code) ? (int)code : -1;
    return code - 256 < alphabet->n_shifted ? alphabet->shifted[code - 256] : -1;
}

// Undoes the alphabet: writes the bytes to `out` and returns their number, or SIZE_MAX when a character does not
// belong.
static size_t undo_alphabet(const struct byte_alphabet *alphabet, struct atsi_str text, char *out) {
    size_t n = 0;
    for (uint64_t i = 0; i < text.size;) {
        size_t length = atsi_utf8_length(text.data + i, text.size - i);
        int byte = length ? byte_of_character(alphabet, text.data + i, length) : -1;
        if (byte < 0) return SIZE_MAX;
        out[n++] = (char)byte;
        i += length;
    }
    return n;
}

static size_t undo_space_marks(struct atsi_str text, char *out) {
    size_t n = 0;
    for (uint64_t i = 0; i < text.size;) {
        bool mark = text.size - i >= SPACE_MARK_SIZE && memcmp(text.data + i, SPACE_MARK, SPACE_MARK_SIZE) == 0;
        out[n++] = mark ? ' ' : text.data[i];
        i += mark ? SPACE_MARK_SIZE : 1;
    }
    return n;
}

static size_t mark_spaces(uint64_t n_spaces, char *out) {
    for (uint64_t i = 0; i < SPACE_MARK_SIZE * n_spaces; i++) out[i] = SPACE_MARK[i % SPACE_MARK_SIZE];
    return SPACE_MARK_SIZE * n_spaces;
}

static size_t copy_raw(struct atsi_str text, char *out) {
    if (text.size) memcpy(out, text.data, text.size);
    return text.size;
}

static int hex_digit(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
}

// "<0x41>" is the byte 0x41; -1 for another text.
static int byte_of_name(struct atsi_str text) {
    if (text.size != 6 || memcmp(text.data, "<0x", 3) != 0 || text.data[5] != '>') return -1;
    int high = hex_digit(text.data[3]), low = hex_digit(text.data[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

static size_t bpe_piece(const struct byte_alphabet *alphabet, struct atsi_pieces *p, uint32_t id, struct atsi_str text,
                        char *out) {
    unsigned kind = p->info[id] & ATSI_TOKEN_KIND_MASK;
    if (kind != ATSI_TOKEN_NORMAL && kind != ATSI_TOKEN_BYTE) return copy_raw(text, out);
    size_t n = undo_alphabet(alphabet, text, out);
    if (n == SIZE_MAX) return copy_raw(text, out);
    p->mergeable[id] = n > 0;
    if (n == 1 && p->byte_ids[(unsigned char)out[0]] == ATSI_TOKEN_NONE) p->byte_ids[(unsigned char)out[0]] = id;
    return n;
}

static enum atsi_status spm_piece(struct atsi_pieces *p, uint32_t id, struct atsi_str text, char *out, size_t *n,
                                  struct atsi_error *err) {
    unsigned kind = p->info[id] & ATSI_TOKEN_KIND_MASK;
    if (kind == ATSI_TOKEN_BYTE) {
        int byte = byte_of_name(text);
        if (byte < 0)
            return atsi_fail(err, ATSI_BAD_INPUT,
                             "token %u has the type of a byte and the text \"%s\", expected <0xHH>", id,
                             atsi_label(text).text);
        out[0] = (char)byte;
        *n = 1;
        p->byte_ids[byte] = id;
        return ATSI_OK;
    }
    bool is_text = kind == ATSI_TOKEN_NORMAL || kind == ATSI_TOKEN_USER;
    *n = is_text ? undo_space_marks(text, out) : copy_raw(text, out);
    p->mergeable[id] = is_text && *n > 0;
    if (kind == ATSI_TOKEN_NORMAL && *n > ATSI_SPM_LONGEST_PIECE)
        return atsi_fail(err, ATSI_BAD_INPUT,
                         "token %u is %zu bytes long; at most %d are supported in a SentencePiece model", id, *n,
                         ATSI_SPM_LONGEST_PIECE);
    if (*n > ATSI_SPM_LONGEST_PIECE) p->mergeable[id] = false; // user-defined: matched as a whole anyway
    return ATSI_OK;
}

static enum atsi_status make_pieces(const struct atsi_vocabulary *v, enum atsi_token_algorithm algorithm,
                                    struct atsi_pieces *p, struct atsi_error *err) {
    struct byte_alphabet alphabet = make_alphabet();
    for (uint32_t id = 0; id < p->n_tokens; id++) {
        char *out = p->text + p->text_size;
        size_t n = 0;
        if (algorithm == ATSI_TOKENS_BPE)
            n = bpe_piece(&alphabet, p, id, v->tokens[id], out);
        else
            ATSI_TRY(spm_piece(p, id, v->tokens[id], out, &n, err));
        p->pieces[id] = (struct atsi_str){out, n};
        p->text_size += n;
    }
    return ATSI_OK;
}

// ---- special tokens ------------------------------------------------------------------------------------------------

static int compare_specials(const void *a, const void *b) {
    const struct atsi_special_text *x = a, *y = b;
    int order = atsi_str_compare(x->text, y->text);
    return order ? order : (x->id > y->id) - (x->id < y->id);
}

static void add_special(struct atsi_pieces *p, struct atsi_str text, uint32_t id) {
    p->specials[p->n_specials++] = (struct atsi_special_text){text, id};
}

// Special tokens match their text as the file has it, and user-defined SentencePiece tokens, where the file writes
// spaces for U+2581 (or the reverse), match both ways.
static void collect_specials(const struct atsi_vocabulary *v, struct atsi_pieces *p) {
    for (uint32_t id = 0; id < p->n_tokens; id++) {
        unsigned kind = p->info[id] & ATSI_TOKEN_KIND_MASK;
        if (kind != ATSI_TOKEN_CONTROL && kind != ATSI_TOKEN_USER && kind != ATSI_TOKEN_UNKNOWN) continue;
        struct atsi_str piece = p->pieces[id], text = v->tokens[id];
        if (piece.size == 0) continue;
        add_special(p, piece, id);
        bool all_spaces = true;
        for (uint64_t i = 0; i < piece.size; i++) all_spaces &= piece.data[i] == ' ';
        char *out = p->text + p->text_size;
        size_t n = 0;
        if (kind == ATSI_TOKEN_USER && all_spaces && p->mergeable[id])
            n = mark_spaces(piece.size, out);
        else if (!atsi_str_equal(piece, text))
            n = copy_raw(text, out);
        if (n == 0) continue;
        p->text_size += n;
        add_special(p, (struct atsi_str){out, n}, id);
    }
    qsort(p->specials, p->n_specials, sizeof *p->specials, compare_specials);
}

enum atsi_status atsi_pieces_make(const struct atsi_vocabulary *vocabulary, enum atsi_token_algorithm algorithm,
                                  struct atsi_pieces *pieces, struct atsi_error *err) {
    memset(pieces, 0, sizeof *pieces);
    uint64_t bytes = 1, n_tokens = vocabulary->n_tokens;
    for (uint64_t i = 0; i < n_tokens; i++) bytes += vocabulary->tokens[i].size;
    if (n_tokens == 0 || n_tokens > INT32_MAX || bytes > UINT32_MAX / 4)
        return atsi_fail(err, ATSI_BAD_INPUT,
                         "tokenizer.ggml.tokens has %llu texts of %llu bytes, which cannot be used",
                         (unsigned long long)n_tokens, (unsigned long long)bytes);
    pieces->n_tokens = (uint32_t)n_tokens;
    pieces->pieces = calloc(n_tokens, sizeof *pieces->pieces);
    pieces->info = calloc(n_tokens, 1);
    pieces->mergeable = calloc(n_tokens, sizeof *pieces->mergeable);
    pieces->specials = calloc(2 * n_tokens, sizeof *pieces->specials);
    // A piece is never longer than its text; the second text of a special token takes three bytes a space at most.
    pieces->text = malloc(4 * bytes);
    memset(pieces->byte_ids, 0xFF, sizeof pieces->byte_ids); // ATSI_TOKEN_NONE
    if (!pieces->pieces || !pieces->info || !pieces->mergeable || !pieces->specials || !pieces->text)
        return atsi_fail(err, ATSI_FAILED, "out of memory for a vocabulary of %llu tokens",
                         (unsigned long long)n_tokens);
    ATSI_TRY(set_info(vocabulary, pieces, err));
    ATSI_TRY(make_pieces(vocabulary, algorithm, pieces, err));
    collect_specials(vocabulary, pieces);
    return ATSI_OK;
}

void atsi_pieces_free(struct atsi_pieces *pieces) {
    free(pieces->pieces);
    free(pieces->info);
    free(pieces->mergeable);
    free(pieces->specials);
    free(pieces->text);
    memset(pieces, 0, sizeof *pieces);
}
