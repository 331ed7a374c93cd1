// Tables of any origin: refused in one line, or used without reading outside them (run under ASan).
#include <stdlib.h>

#include "tests/support/check.h"
#include "tests/support/random.h"
#include "tests/support/tokenizers.h"

static struct test_tokenizer make(const char *pre) {
    struct bytes gguf = test_bpe_gguf(pre);
    struct test_tokenizer t;
    struct atsi_error err = {0};
    check_ok(test_tokenizer_make(&gguf, &t, &err), err);
    bytes_free(&gguf);
    return t;
}

// An allocation of exactly `size` bytes, so that a sanitizer sees every read past the end.
static void *exact_copy(const void *data, size_t size) {
    void *copy = malloc(size ? size : 1);
    assert_non_null(copy);
    memcpy(copy, data, size);
    return copy;
}

// Whatever the tables are: they are refused, or everything that can be called on them returns, with ids in range.
static bool exercise(const void *data, size_t size) {
    struct atsi_error err = {0};
    struct atsi_tokenizer *t;
    enum atsi_status status = atsi_tokenizer_open(&t, data, size, &err);
    if (status != ATSI_OK) {
        assert_int_equal(status, ATSI_BAD_INPUT);
        check_message(err, "tokenizer");
        assert_null(t);
        return false;
    }
    static const char text[] = "abc a<u>b<|x|>y \xFF\xC3\xA9 \xE2\x96\x81 1234 abab's\n\n";
    struct atsi_token_list list = {0};
    struct atsi_bytes bytes = {0};
    status = atsi_tokenizer_encode(t, text, sizeof text - 1, ATSI_ENCODE_SPECIAL | ATSI_ENCODE_PROMPT, &list, &err);
    for (size_t i = 0; i < list.n_ids; i++) assert_true(list.ids[i] < atsi_tokenizer_n_tokens(t));
    check_ok(atsi_tokenizer_decode(t, list.ids, list.n_ids, &bytes, &err), err);
    for (uint32_t id = 0; id < 300; id++) {
        size_t piece_size;
        const char *piece = atsi_tokenizer_piece(t, id, &piece_size);
        check_ok(atsi_bytes_append(&bytes, piece, piece_size, &err), err);
        assert_true(atsi_tokenizer_kind(t, id) <= ATSI_TOKEN_UNUSED);
    }
    atsi_tokenizer_find_special(t, "<|x|>");
    atsi_token_list_free(&list);
    atsi_bytes_free(&bytes);
    atsi_tokenizer_close(t);
    return true;
}

static void truncated_tables_are_refused(void **state) {
    (void)state;
    struct test_tokenizer t = make("llama-bpe");
    for (size_t size = 0; size < t.block_size; size += size < 400 ? 1 : 97) {
        void *copy = exact_copy(t.block, size);
        assert_false(exercise(copy, size));
        struct atsi_tokenizer_header *header = copy; // and when the header agrees with the cut
        if (size >= sizeof *header) {
            header->size_bytes = size;
            assert_false(exercise(copy, size));
        }
        free(copy);
    }
    test_tokenizer_free(&t);
}

static void numbers_of_the_header_are_checked(void **state) {
    (void)state;
    static const uint64_t values[] = {0,         1, 255, UINT32_MAX / 2, UINT32_MAX - 1, UINT32_MAX, UINT64_MAX - 7,
                                      UINT64_MAX};
    struct test_tokenizer t = make("llama-bpe");
    for (size_t at = 8; at < sizeof(struct atsi_tokenizer_header); at += 4)
        for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
            char *copy = exact_copy(t.block, t.block_size);
            memcpy(copy + at, &values[v], at + 8 <= sizeof(struct atsi_tokenizer_header) && v >= 6 ? 8 : 4);
            exercise(copy, t.block_size);
            free(copy);
        }
    test_tokenizer_free(&t);
}

static void messages_name_what_is_wrong(void **state) {
    (void)state;
    struct test_tokenizer t = make("gpt-2");
    struct atsi_tokenizer_header *h = t.block;
    struct atsi_tokenizer_header good = *h;
    struct atsi_tokenizer_tables tables;
    struct atsi_error err = {0};
#define REFUSE(change, ...)                                                                                \
    do {                                                                                                   \
        change;                                                                                            \
        check_refused(atsi_tokenizer_tables_open(t.block, t.block_size, &tables, &err), err, __VA_ARGS__); \
        *h = good;                                                                                         \
    } while (0)
    REFUSE(h->magic[0] = 'X', "ATSITOK1");
    REFUSE(h->size_bytes++, "header says");
    REFUSE(h->algorithm = 3, "algorithm 3");
    REFUSE(h->flags = 256, "flags 0x100");
    REFUSE(h->n_tokens = 0, "0 tokens");
    REFUSE(h->n_tokens++, "section 0");
    REFUSE(h->bos_id = h->n_tokens, "special id 263");
    REFUSE(h->token_probes = 2000, "2000");
    REFUSE(h->n_patterns = 2, "1 patterns found, expected 2");
    REFUSE(h->section[ATSI_SECTION_TEXT].offset += 4, "section 1");
    REFUSE(h->section[ATSI_SECTION_TEXT].size = UINT64_MAX, "section 1");
#undef REFUSE
    char *shifted = malloc(t.block_size + 8);
    memcpy(shifted + 4, t.block, t.block_size);
    assert_int_equal(atsi_tokenizer_tables_open(shifted + 4, t.block_size, &tables, &err), ATSI_FAILED);
    check_message(err, "aligned");
    free(shifted);
    test_tokenizer_free(&t);
}

// Patterns are the plan's, so a bad one is an error of the plan, and one that never ends is stopped.
static void bad_patterns_are_refused(void **state) {
    (void)state;
    static const char *const patterns[] = {"(", "[z-a]", "\\C", "(?<=a+)b", "\xFF"};
    struct test_tokenizer t = make("gpt-2");
    struct atsi_tokenizer_header *h = t.block;
    char *place = (char *)t.block + h->section[ATSI_SECTION_PATTERNS].offset;
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        memset(place, ' ', h->section[ATSI_SECTION_PATTERNS].size - 1);
        memcpy(place, patterns[i], strlen(patterns[i]));
        struct atsi_tokenizer *opened;
        struct atsi_error err = {0};
        check_refused(atsi_tokenizer_open(&opened, t.block, t.block_size, &err), err, "tokenizer pattern");
    }
    memset(place, 0, h->section[ATSI_SECTION_PATTERNS].size); // one pattern that fills the place, with a loop in a loop
    memset(place, 'q', h->section[ATSI_SECTION_PATTERNS].size - 1);
    memcpy(place, "(a+)+[b]|", 9);
    static const char text[] = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac";
    struct atsi_tokenizer *opened;
    struct atsi_error err = {0};
    struct atsi_token_list list = {0};
    check_ok(atsi_tokenizer_open(&opened, t.block, t.block_size, &err), err);
    assert_int_equal(atsi_tokenizer_encode(opened, text, sizeof text - 1, 0, &list, &err), ATSI_FAILED);
    check_message(err, "match limit");
    atsi_token_list_free(&list);
    atsi_tokenizer_close(opened);
    test_tokenizer_free(&t);
}

// Any byte of the tables changed: a wrong answer is allowed, a wrong read is not.
static void random_damage_is_survived(void **state) {
    (void)state;
    struct test_tokenizer t = make("qwen2");
    uint64_t seed = 7;
    unsigned n_opened = 0;
    size_t patterns = ((struct atsi_tokenizer_header *)t.block)->section[ATSI_SECTION_PATTERNS].offset;
    for (int round = 0; round < 3000; round++) {
        char *copy = exact_copy(t.block, t.block_size);
        for (int change = 0; change <= round % 4; change++) {
            size_t first = sizeof(struct atsi_tokenizer_header), span = patterns - first;
            copy[first + test_below(&seed, span)] = (char)(round % 2 ? 0xFF : test_below(&seed, 256));
        }
        n_opened += exercise(copy, t.block_size);
        free(copy);
    }
    assert_int_equal(n_opened, 3000); // what stands in the sections is checked at use
    test_tokenizer_free(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(truncated_tables_are_refused), cmocka_unit_test(numbers_of_the_header_are_checked),
        cmocka_unit_test(messages_name_what_is_wrong),  cmocka_unit_test(bad_patterns_are_refused),
        cmocka_unit_test(random_damage_is_survived),
    };
    return cmocka_run_group_tests_name("tokenizer tables of any origin", tests, NULL, NULL);
}
