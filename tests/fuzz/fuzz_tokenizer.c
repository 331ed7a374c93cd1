// Three targets by the first byte: text through sound tables, tables built from a hostile vocabulary, damaged tables.
// Beyond crashes it checks that ids are in range, and that text comes back where the family does not normalise.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/tokenizer.h"
#include "runtime/tokenizer/tokenizer.h"

enum {
    N_LETTERS = 256,
    N_MORE = 6,
    N_TOKENS = N_LETTERS + N_MORE,
    N_MERGES = 3
};

struct tables {
    void *block;
    size_t size;
};

static void require(bool good, const char *what) {
    if (good) return;
    fprintf(stderr, "broken promise: %s\n", what);
    abort();
}

static struct atsi_vocabulary empty_vocabulary(const char *model, const char *pre) {
    struct atsi_vocabulary v = {.model = atsi_str_of(model), .pre = atsi_str_of(pre)};
    v.bos_id = v.eos_id = v.eot_id = v.eom_id = v.unknown_id = v.padding_id = ATSI_TOKEN_NONE;
    v.add_bos = v.add_eos = v.add_space_prefix = v.remove_extra_whitespaces = ATSI_SWITCH_ABSENT;
    return v;
}

// The text of a byte's token: GPT-2's character for it, or SentencePiece's name.
static void name_byte(unsigned byte, bool spm, unsigned *shifted, char out[8]) {
    bool printable = (byte > ' ' && byte < 0x7F) || (byte > 0xA0 && byte != 0xAD);
    unsigned code = printable ? byte : (*shifted)++;
    if (spm)
        snprintf(out, 8, "<0x%02X>", byte);
    else if (code < 0x80)
        snprintf(out, 8, "%c", (char)code);
    else
        snprintf(out, 8, "%c%c", (char)(0xC0 | code >> 6), (char)(0x80 | (code & 0x3F)));
}

// Every byte, then a few words, a control and a user-defined token.
static struct tables sound_tables(const char *model, const char *pre) {
    static const char *const more[N_MORE] = {"ab", "abc", "bc", "<|x|>", "<u>", "a"};
    static const char *const merges[N_MERGES] = {"a b", "ab c", "b c"};
    bool spm = strcmp(model, "llama") == 0;
    char letters[N_LETTERS][8];
    struct atsi_str tokens[N_TOKENS], lines[N_MERGES];
    int64_t types[N_TOKENS];
    float scores[N_TOKENS] = {0};
    unsigned shifted = 256;
    for (unsigned byte = 0; byte < N_LETTERS; byte++) {
        name_byte(byte, spm, &shifted, letters[byte]);
        tokens[byte] = atsi_str_of(letters[byte]);
        types[byte] = spm ? ATSI_VOCABULARY_BYTE : ATSI_VOCABULARY_NORMAL;
    }
    for (unsigned i = 0; i < N_MORE; i++) {
        tokens[N_LETTERS + i] = atsi_str_of(more[i]);
        types[N_LETTERS + i] = i == 3   ? ATSI_VOCABULARY_CONTROL
                               : i == 4 ? ATSI_VOCABULARY_USER_DEFINED
                                        : ATSI_VOCABULARY_NORMAL;
    }
    for (unsigned i = 0; i < N_MERGES; i++) lines[i] = atsi_str_of(merges[i]);
    struct atsi_vocabulary v = empty_vocabulary(model, pre);
    v.tokens = tokens, v.types = types, v.scores = scores, v.n_tokens = N_TOKENS;
    v.merges = lines, v.n_merges = N_MERGES;
    v.add_space_prefix = ATSI_SWITCH_OFF;
    struct tables t;
    require(atsi_tokenizer_build(&v, &t.block, &t.size, NULL) == ATSI_OK, "a sound vocabulary builds");
    return t;
}

// Encodes and decodes; `exact` demands the text back.
static void use(const void *block, size_t block_size, const char *text, size_t size, bool exact) {
    struct atsi_tokenizer *t;
    if (atsi_tokenizer_open(&t, block, block_size, NULL) != ATSI_OK) return;
    struct atsi_token_list list = {0};
    struct atsi_bytes bytes = {0};
    for (unsigned flags = 0; flags <= (ATSI_ENCODE_SPECIAL | ATSI_ENCODE_PROMPT); flags++) {
        list.n_ids = bytes.size = 0;
        enum atsi_status status = atsi_tokenizer_encode(t, text, size, flags, &list, NULL);
        require(status == ATSI_OK || !exact, "text encodes");
        for (size_t i = 0; i < list.n_ids; i++) require(list.ids[i] < atsi_tokenizer_n_tokens(t), "ids in range");
        require(atsi_tokenizer_decode(t, list.ids, list.n_ids, &bytes, NULL) == ATSI_OK, "ids decode");
        if (exact && !(flags & ATSI_ENCODE_PROMPT))
            require(bytes.size == size && (size == 0 || memcmp(bytes.data, text, size) == 0), "text comes back");
    }
    atsi_token_list_free(&list);
    atsi_bytes_free(&bytes);
    atsi_tokenizer_close(t);
}

static void fuzz_text(const char *data, size_t size) {
    static const char *const families[] = {"gpt-2",       "gpt-4o", "deepseek-coder", "deepseek-llm",
                                           "deepseek-v3", "falcon", "qwen2"};
    enum {
        N_FAMILIES = sizeof families / sizeof *families
    };
    static struct tables tables[N_FAMILIES + 1]; // made once a process, the last is SentencePiece
    if (size == 0) return;
    unsigned which = (unsigned char)data[0] % (N_FAMILIES + 1);
    bool spm = which == N_FAMILIES, nfc = which == N_FAMILIES - 1;
    if (!tables[which].block) tables[which] = sound_tables(spm ? "llama" : "gpt2", spm ? "" : families[which]);
    bool has_mark = spm && memmem(data + 1, size - 1, "\xE2\x96\x81", 3);
    use(tables[which].block, tables[which].size, data + 1, size - 1, !nfc && !has_mark);
}

// Lines of the input: a type digit and a token, or a merge where the line begins with '+'.
static void fuzz_vocabulary(const char *data, size_t size) {
    enum {
        MAX_LINES = 256
    };
    struct atsi_str tokens[MAX_LINES], merges[MAX_LINES];
    int64_t types[MAX_LINES];
    float scores[MAX_LINES];
    if (size == 0) return;
    struct atsi_vocabulary v = empty_vocabulary(data[0] & 1 ? "llama" : "gpt2", data[0] & 2 ? "qwen2" : "llama-bpe");
    for (const char *at = data + 1, *end = data + size; at < end && v.n_tokens < MAX_LINES && v.n_merges < MAX_LINES;) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        if (!stop) stop = end;
        struct atsi_str line = {at + 1, stop > at ? (uint64_t)(stop - at - 1) : 0};
        if (stop > at && *at == '+') {
            merges[v.n_merges++] = line;
        } else {
            types[v.n_tokens] = stop > at ? *at - '0' : ATSI_VOCABULARY_NORMAL;
            scores[v.n_tokens] = (float)(line.size % 7);
            tokens[v.n_tokens++] = line;
        }
        at = stop + 1;
    }
    if (v.n_tokens == 0) return;
    v.tokens = tokens, v.types = types, v.scores = scores, v.merges = merges;
    v.bos_id = (uint32_t)(size % v.n_tokens);
    void *block;
    size_t block_size;
    if (atsi_tokenizer_build(&v, &block, &block_size, NULL) != ATSI_OK) return;
    use(block, block_size, data, size, false);
    free(block);
}

// Five bytes a change: an offset of three and a value of two. Patterns are left as they are: what a random one costs says
// nothing about the tables.
static void fuzz_tables(const char *data, size_t size) {
    static const char text[] = "abc a<u>b<|x|> \xFF\xC3\xA9 1234's\n\n";
    static struct tables sound;
    if (!sound.block) sound = sound_tables("gpt2", "gpt-2");
    char *copy = malloc(sound.size);
    memcpy(copy, sound.block, sound.size);
    size_t end = ((struct atsi_tokenizer_header *)sound.block)->section[ATSI_SECTION_PATTERNS].offset;
    const unsigned char *bytes = (const unsigned char *)data;
    for (; size >= 5; bytes += 5, size -= 5) {
        size_t at = (bytes[0] | bytes[1] << 8 | bytes[2] << 16) % (end - 1);
        memcpy(copy + at, bytes + 3, 2);
    }
    use(copy, sound.size, text, sizeof text - 1, false);
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    const char *rest = (const char *)data + 1;
    if (data[0] % 3 == 0)
        fuzz_text(rest, size - 1);
    else if (data[0] % 3 == 1)
        fuzz_vocabulary(rest, size - 1);
    else
        fuzz_tables(rest, size - 1);
    return 0;
}
