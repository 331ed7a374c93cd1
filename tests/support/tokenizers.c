#include "tests/support/tokenizers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/check.h"
#include "tests/support/gguf_builder.h"

enum atsi_status test_tokenizer_make(const struct bytes *gguf, struct test_tokenizer *out, struct atsi_error *err) {
    *out = (struct test_tokenizer){0};
    struct atsi_gguf *file;
    ATSI_TRY(atsi_gguf_open_memory(&file, gguf->data, gguf->size, "test.gguf", err));
    struct atsi_vocabulary vocabulary;
    enum atsi_status status = atsi_vocabulary_read(file, &vocabulary, err);
    if (status == ATSI_OK) status = atsi_tokenizer_build(&vocabulary, &out->block, &out->block_size, err);
    if (status == ATSI_OK) status = atsi_tokenizer_open(&out->tokenizer, out->block, out->block_size, err);
    atsi_vocabulary_free(&vocabulary);
    atsi_gguf_close(file);
    return status;
}

void test_tokenizer_free(struct test_tokenizer *t) {
    atsi_tokenizer_close(t->tokenizer);
    free(t->block);
}

static void print_ids(char *out, size_t out_size, const uint32_t *ids, size_t n_ids) {
    size_t used = 0;
    out[0] = 0;
    for (size_t i = 0; i < n_ids && used + 12 < out_size; i++) used += (size_t)sprintf(out + used, " %u", ids[i]);
}

void check_encodes(const struct test_tokenizer *t, const char *text, size_t size, unsigned flags, const uint32_t *ids,
                   size_t n_ids) {
    struct atsi_error err = {0};
    struct atsi_token_list list = {0};
    check_ok(atsi_tokenizer_encode(t->tokenizer, text, size, flags, &list, &err), err);
    bool equal = list.n_ids == n_ids && (n_ids == 0 || memcmp(list.ids, ids, n_ids * sizeof *ids) == 0);
    if (!equal) {
        char shown[200], got[600], want[600];
        atsi_escape(shown, sizeof shown, text, size);
        print_ids(got, sizeof got, list.ids, list.n_ids);
        print_ids(want, sizeof want, ids, n_ids);
        fail_msg("\"%s\" gives%s, expected%s", shown, got, want);
    }
    atsi_token_list_free(&list);
}

void check_decodes(const struct test_tokenizer *t, const uint32_t *ids, size_t n_ids, const char *text, size_t size) {
    struct atsi_error err = {0};
    struct atsi_bytes bytes = {0};
    check_ok(atsi_tokenizer_decode(t->tokenizer, ids, n_ids, &bytes, &err), err);
    if (bytes.size != size || (size && memcmp(bytes.data, text, size))) {
        char want[250], got[250];
        atsi_escape(want, sizeof want, text, size);
        atsi_escape(got, sizeof got, bytes.data ? bytes.data : "", bytes.size);
        fail_msg("decoded \"%s\", expected \"%s\"", got, want);
    }
    atsi_bytes_free(&bytes);
}

void check_round_trip(const struct test_tokenizer *t, const char *text, size_t size, const char *expected,
                      size_t expected_size) {
    struct atsi_error err = {0};
    struct atsi_token_list list = {0};
    check_ok(atsi_tokenizer_encode(t->tokenizer, text, size, 0, &list, &err), err);
    for (size_t i = 0; i < list.n_ids; i++) assert_true(list.ids[i] < atsi_tokenizer_n_tokens(t->tokenizer));
    check_decodes(t, list.ids, list.n_ids, expected, expected_size);
    atsi_token_list_free(&list);
}

// The character that stands for a byte in GPT-2's alphabet, as UTF-8.
static size_t byte_character(unsigned byte, char *out) {
    unsigned code = byte;
    bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD);
    if (!printable) {
        code = 256;
        for (unsigned b = 0; b < byte; b++) code += !((b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xFF && b != 0xAD));
    }
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    out[0] = (char)(0xC0 | code >> 6);
    out[1] = (char)(0x80 | (code & 0x3F));
    return 2;
}

struct bytes test_bpe_gguf(const char *pre) {
    static const char *const more[] = {"ab",
                                       "abc",
                                       ("\xC4\xA0"
                                        "a"),
                                       "bc",
                                       "<|x|>",
                                       "<u>",
                                       "<|x|>y"};
    static const char *const merges[] = {"a b", "ab c", "\xC4\xA0 a", "b c"};
    enum {
        N_MORE = sizeof more / sizeof *more,
        N = 256 + N_MORE
    };
    struct gguf_builder g;
    gb_init(&g);
    gb_str(&g, "general.architecture", "llama");
    gb_str(&g, "tokenizer.ggml.model", "gpt2");
    if (pre) gb_str(&g, "tokenizer.ggml.pre", pre);
    gb_array(&g, "tokenizer.ggml.tokens", GB_STR, N);
    for (unsigned byte = 0; byte < 256; byte++) {
        char character[2];
        gb_put_str(&g, character, byte_character(byte, character));
    }
    for (size_t i = 0; i < N_MORE; i++) gb_put_str(&g, more[i], strlen(more[i]));
    int64_t types[N];
    for (size_t i = 0; i < N; i++) types[i] = i == 260 || i == 262 ? 3 : i == 261 ? 4 : 1;
    gb_ints(&g, "tokenizer.ggml.token_type", GB_I32, N, types);
    gb_strs(&g, "tokenizer.ggml.merges", sizeof merges / sizeof *merges, merges);
    gb_int(&g, "tokenizer.ggml.bos_token_id", GB_U32, 260);
    struct bytes file = gb_finish(&g);
    gb_free(&g);
    return file;
}
