// What encoding and decoding promise, on small vocabularies made here.
#include <pthread.h>
#include <stdio.h>

#include "tests/support/check.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/tokenizers.h"

#define IDS(...)      (const uint32_t[]){__VA_ARGS__}, sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t)
#define TEXT(literal) literal, sizeof literal - 1

static struct test_tokenizer make(struct bytes gguf) {
    struct test_tokenizer t;
    struct atsi_error err = {0};
    check_ok(test_tokenizer_make(&gguf, &t, &err), err);
    bytes_free(&gguf);
    return t;
}

// ---- byte-level BPE (the vocabulary of test_bpe_gguf) ---------------------------------------------------------------

static void lowest_rank_joins_first(void **state) {
    (void)state;
    struct test_tokenizer t = make(test_bpe_gguf("gpt-2"));
    check_encodes(&t, TEXT(""), 0, NULL, 0);
    check_encodes(&t, TEXT("a"), 0, IDS('a'));
    check_encodes(&t, TEXT("abc"), 0, IDS(257));
    check_encodes(&t, TEXT("bc"), 0, IDS(259));
    check_encodes(&t, TEXT("abbcab"), 0, IDS(256, 259, 256));
    check_encodes(&t, TEXT("x abc"), 0, IDS('x', ' ', 257)); // "a b" stands before " a"
    check_encodes(&t, TEXT("x ac"), 0, IDS('x', 258, 'c'));
    check_encodes(&t, TEXT("\0a\0"), 0, IDS(0, 'a', 0));
    test_tokenizer_free(&t);
}

static void special_tokens(void **state) {
    (void)state;
    struct test_tokenizer t = make(test_bpe_gguf("gpt-2"));
    check_encodes(&t, TEXT("a<u>b"), 0, IDS('a', 261, 'b')); // user-defined: always
    check_encodes(&t, TEXT("<|x|>"), 0, IDS('<', '|', 'x', '|', '>'));
    check_encodes(&t, TEXT("a<|x|>b"), ATSI_ENCODE_SPECIAL, IDS('a', 260, 'b'));
    check_encodes(&t, TEXT("<|x|>y"), ATSI_ENCODE_SPECIAL, IDS(262)); // the longest
    check_encodes(&t, TEXT("<|x|"), ATSI_ENCODE_SPECIAL, IDS('<', '|', 'x', '|'));
    check_encodes(&t, TEXT("<<u>>"), ATSI_ENCODE_SPECIAL, IDS('<', 261, '>'));
    check_encodes(&t, TEXT("ab<u>c"), 0, IDS(256, 261, 'c')); // nothing joins across it
    check_decodes(&t, IDS('a', 260, 262, 261), TEXT("a<|x|><|x|>y<u>"));
    assert_int_equal(atsi_tokenizer_find_special(t.tokenizer, "<|x|>"), 260);
    assert_int_equal(atsi_tokenizer_find_special(t.tokenizer, "<|x|>y"), 262);
    assert_int_equal(atsi_tokenizer_find_special(t.tokenizer, "<|x"), ATSI_TOKEN_NONE);
    assert_int_equal(atsi_tokenizer_find_special(t.tokenizer, "ab"), ATSI_TOKEN_NONE);
    assert_int_equal(atsi_tokenizer_kind(t.tokenizer, 'a'), ATSI_TOKEN_NORMAL);
    assert_int_equal(atsi_tokenizer_kind(t.tokenizer, 260), ATSI_TOKEN_CONTROL);
    assert_int_equal(atsi_tokenizer_kind(t.tokenizer, 261), ATSI_TOKEN_USER);
    assert_int_equal(atsi_tokenizer_kind(t.tokenizer, 263),
                     ATSI_TOKEN_UNUSED); // rows of the matrix past the vocabulary
    test_tokenizer_free(&t);
}

static void malformed_utf8_comes_back(void **state) {
    (void)state;
    struct test_tokenizer t = make(test_bpe_gguf("qwen2"));
    static const char *const texts[] = {"\xFF",
                                        "a\xFF\xFE"
                                        "b",
                                        "\xF0\x9F",
                                        "ab\xED\xA0\x80"
                                        "c",
                                        "\xC3",
                                        "\x80\x80 a\xE2\x82"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        check_round_trip(&t, texts[i], strlen(texts[i]), texts[i], strlen(texts[i]));
    check_encodes(&t,
                  TEXT("\xFF"
                       "ab\xC3"),
                  0, IDS(0xFF, 256, 0xC3));
    test_tokenizer_free(&t);
}

static void text_is_normalised_where_the_family_does(void **state) {
    (void)state;
    struct test_tokenizer qwen = make(test_bpe_gguf("qwen2")), gpt = make(test_bpe_gguf("gpt-2"));
    check_round_trip(&qwen, TEXT("e\xCC\x81"), TEXT("\xC3\xA9"));
    check_round_trip(&qwen, TEXT("\xEF\xA4\x80\xE2\x84\xAB"), TEXT("\xE8\xB1\x88\xC3\x85"));
    check_round_trip(&qwen, TEXT("e\xFF\xCC\x81"), TEXT("e\xFF\xCC\x81")); // not across malformed bytes
    check_round_trip(&qwen, TEXT("e<u>\xCC\x81"), TEXT("e<u>\xCC\x81"));   // nor across a special token
    check_round_trip(&gpt, TEXT("e\xCC\x81"), TEXT("e\xCC\x81"));
    test_tokenizer_free(&qwen);
    test_tokenizer_free(&gpt);
}

// A prompt's own begin-of-sequence is not doubled; parts of a prompt get none.
static void prompts_begin_once(void **state) {
    (void)state;
    struct test_tokenizer t = make(test_bpe_gguf("llama-bpe"));
    assert_true(atsi_tokenizer_adds_bos(t.tokenizer));
    assert_int_equal(atsi_tokenizer_bos(t.tokenizer), 260);
    check_encodes(&t, TEXT("ab"), ATSI_ENCODE_PROMPT, IDS(260, 256));
    check_encodes(&t, TEXT(""), ATSI_ENCODE_PROMPT, IDS(260));
    check_encodes(&t, TEXT("ab"), 0, IDS(256));
    check_encodes(&t, TEXT("<|x|>ab"), ATSI_ENCODE_PROMPT | ATSI_ENCODE_SPECIAL, IDS(260, 256));
    check_encodes(&t, TEXT("<|x|>"), ATSI_ENCODE_PROMPT | ATSI_ENCODE_SPECIAL, IDS(260));
    test_tokenizer_free(&t);
}

static void what_is_there_is_appended_to(void **state) {
    (void)state;
    struct test_tokenizer t = make(test_bpe_gguf("llama-bpe"));
    struct atsi_error err = {0};
    struct atsi_token_list list = {0};
    check_ok(atsi_tokenizer_encode(t.tokenizer, "ab", 2, 0, &list, &err), err);
    check_ok(atsi_tokenizer_encode(t.tokenizer, "c", 1, ATSI_ENCODE_PROMPT, &list, &err), err);
    assert_int_equal(list.n_ids, 3);
    assert_int_equal(list.ids[0], 256);
    assert_int_equal(list.ids[1], 260);
    assert_int_equal(list.ids[2], 'c');
    atsi_token_list_free(&list);
    test_tokenizer_free(&t);
}

static void ids_out_of_range_are_refused(void **state) {
    (void)state;
    struct test_tokenizer t = make(test_bpe_gguf("gpt-2"));
    struct atsi_error err = {0};
    struct atsi_bytes out = {0};
    size_t size;
    check_refused(atsi_tokenizer_decode(t.tokenizer, IDS('a', 263), &out, &err), err, "263", "263 tokens");
    check_refused(atsi_tokenizer_decode(t.tokenizer, IDS(ATSI_TOKEN_NONE), &out, &err), err, "4294967295");
    atsi_tokenizer_piece(t.tokenizer, 263, &size);
    assert_int_equal(size, 0);
    atsi_bytes_free(&out);
    test_tokenizer_free(&t);
}

// ---- SentencePiece ----------------------------------------------------------------------------------------------------

#define MARK "\xE2\x96\x81"

enum spm_id {
    UNK,
    BOS,
    EOS,
    USER,
    TWO_SPACES,
    BYTES,
    SPACE = BYTES + 256,
    A,
    B,
    AB,
    SPACE_A,
    SPACE_AB,
    BB,
    E_ACUTE,
    N_SPM
};

static struct bytes spm_gguf(bool with_bytes, int add_space_prefix) {
    static const char *const pieces[] = {"<unk>", "<s>", "</s>", "<u>", "  "};
    static const char *const words[] = {MARK, "a", "b", "ab", MARK "a", MARK "ab", "bb", "\xC3\xA9"};
    static const float word_scores[] = {-20, -21, -22, -3, -2, -4, -3, -23}; // "ab" and "bb" have the same score
    struct gguf_builder g;
    gb_init(&g);
    gb_str(&g, "general.architecture", "llama");
    gb_str(&g, "tokenizer.ggml.model", "llama");
    gb_array(&g, "tokenizer.ggml.tokens", GB_STR, N_SPM);
    int64_t types[N_SPM];
    float scores[N_SPM] = {0};
    for (int id = 0; id < N_SPM; id++) {
        char byte[8];
        snprintf(byte, sizeof byte, "<0x%02X>", (unsigned)(id - BYTES));
        const char *text = id < BYTES ? pieces[id] : id < SPACE ? byte : words[id - SPACE];
        gb_put_str(&g, text, strlen(text));
        types[id] = id == UNK ? 2 : id < USER ? 3 : id < BYTES ? 4 : id >= SPACE ? 1 : with_bytes ? 6 : 5;
        if (id >= SPACE) scores[id] = word_scores[id - SPACE];
    }
    gb_ints(&g, "tokenizer.ggml.token_type", GB_I32, N_SPM, types);
    gb_floats(&g, "tokenizer.ggml.scores", N_SPM, scores);
    gb_int(&g, "tokenizer.ggml.bos_token_id", GB_U32, BOS);
    gb_int(&g, "tokenizer.ggml.eos_token_id", GB_U32, EOS);
    if (add_space_prefix >= 0) gb_int(&g, "tokenizer.ggml.add_space_prefix", GB_BOOL, (uint64_t)add_space_prefix);
    struct bytes file = gb_finish(&g);
    gb_free(&g);
    return file;
}

static void best_score_joins_first(void **state) {
    (void)state;
    struct test_tokenizer t = make(spm_gguf(true, 0));
    check_encodes(&t, TEXT("ab"), 0, IDS(AB));
    check_encodes(&t, TEXT(" ab"), 0, IDS(SPACE_AB));     // by way of " a", the best
    check_encodes(&t, TEXT(" abb"), 0, IDS(SPACE_A, BB)); // "bb" is better than " ab"
    check_encodes(&t, TEXT("abb"), 0, IDS(AB, B));        // the leftmost of equal scores
    check_encodes(&t, TEXT("bbb"), 0, IDS(BB, B));
    check_encodes(&t, TEXT("b a"), 0, IDS(B, SPACE_A));
    check_encodes(&t, TEXT(MARK "a"), 0, IDS(SPACE_A)); // a literal U+2581 is a space
    test_tokenizer_free(&t);
}

static void characters_fall_back_to_bytes(void **state) {
    (void)state;
    struct test_tokenizer t = make(spm_gguf(true, 0));
    check_encodes(&t,
                  TEXT("\xC3\xA9"
                       "c\xC3\xA8"),
                  0, IDS(E_ACUTE, BYTES + 'c', BYTES + 0xC3, BYTES + 0xA8));
    check_encodes(&t,
                  TEXT("\xFF"
                       "a\0"),
                  0, IDS(BYTES + 0xFF, A, BYTES));
    check_round_trip(&t, TEXT("\xF0\x9F\x98\x80\n\xF0\x9F"), TEXT("\xF0\x9F\x98\x80\n\xF0\x9F"));
    test_tokenizer_free(&t);
}

static void a_run_of_unknown_characters_is_one_unknown_token(void **state) {
    (void)state;
    struct test_tokenizer t = make(spm_gguf(false, 0));
    check_encodes(&t, TEXT("xyza"), 0, IDS(UNK, A));
    check_encodes(&t,
                  TEXT("a\xC3\xA8\xFF"
                       "b"),
                  0, IDS(A, UNK, B));
    test_tokenizer_free(&t);
}

static void a_space_is_put_before_the_text(void **state) {
    (void)state;
    struct test_tokenizer t = make(spm_gguf(true, -1)); // the default of SentencePiece models
    check_encodes(&t, TEXT("a"), 0, IDS(SPACE_A));
    check_encodes(&t, TEXT(" a"), 0, IDS(TWO_SPACES, A));
    check_encodes(&t, TEXT(""), 0, NULL, 0);
    check_encodes(&t, TEXT("a<s>a"), ATSI_ENCODE_SPECIAL, IDS(SPACE_A, BOS, SPACE_A)); // and behind a special token
    check_encodes(&t, TEXT("a"), ATSI_ENCODE_PROMPT, IDS(BOS, SPACE_A));
    check_decodes(&t, IDS(SPACE_A), TEXT("a"));
    check_decodes(&t, IDS(SPACE_A, SPACE_A), TEXT("a a"));
    check_decodes(&t, IDS(BOS, SPACE_A, SPACE_A), TEXT("<s>a a"));
    check_decodes(&t, IDS(BYTES + ' ', A), TEXT(" a"));
    size_t size;
    const char *piece = atsi_tokenizer_piece(t.tokenizer, SPACE_A, &size); // a token of a running text keeps its space
    assert_int_equal(size, 2);
    assert_memory_equal(piece, " a", 2);
    test_tokenizer_free(&t);
}

// Files write user-defined runs of U+2581 as spaces; either is matched, a mixture is not.
static void user_defined_spaces(void **state) {
    (void)state;
    struct test_tokenizer t = make(spm_gguf(true, 0));
    check_encodes(&t, TEXT("a  b"), 0, IDS(A, TWO_SPACES, B));
    check_encodes(&t, TEXT("a" MARK MARK "b"), 0, IDS(A, TWO_SPACES, B));
    check_encodes(&t, TEXT("a   a"), 0, IDS(A, TWO_SPACES, SPACE_A));
    check_decodes(&t, IDS(A, TWO_SPACES, B), TEXT("a  b"));
    test_tokenizer_free(&t);
}

static void ends_of_generation(void **state) {
    (void)state;
    struct test_tokenizer t = make(spm_gguf(true, 0));
    assert_true(atsi_tokenizer_ends_generation(t.tokenizer, EOS));
    assert_false(atsi_tokenizer_ends_generation(t.tokenizer, BOS));
    assert_false(atsi_tokenizer_ends_generation(t.tokenizer, A));
    assert_false(atsi_tokenizer_ends_generation(t.tokenizer, ATSI_TOKEN_NONE));
    test_tokenizer_free(&t);
}

// ---- threads ------------------------------------------------------------------------------------------------------------

static void *encode_often(void *context) {
    const struct test_tokenizer *t = context;
    static const char text[] = "abc a<u>b \xC3\xA9\xFF 123 it's";
    size_t n_different = 0;
    struct atsi_token_list first = {0}, list = {0};
    atsi_tokenizer_encode(t->tokenizer, text, sizeof text - 1, 0, &first, NULL);
    for (int i = 0; i < 2000; i++) {
        list.n_ids = 0;
        atsi_tokenizer_encode(t->tokenizer, text, sizeof text - 1, 0, &list, NULL);
        n_different += list.n_ids != first.n_ids || memcmp(list.ids, first.ids, list.n_ids * sizeof *list.ids) != 0;
    }
    atsi_token_list_free(&first);
    atsi_token_list_free(&list);
    return n_different ? context : NULL;
}

static void threads_share_a_tokenizer(void **state) {
    (void)state;
    struct test_tokenizer t = make(test_bpe_gguf("qwen2"));
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, encode_often, &t), 0);
    for (int i = 0; i < 4; i++) {
        void *different;
        assert_int_equal(pthread_join(threads[i], &different), 0);
        assert_null(different);
    }
    test_tokenizer_free(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lowest_rank_joins_first),
        cmocka_unit_test(special_tokens),
        cmocka_unit_test(malformed_utf8_comes_back),
        cmocka_unit_test(text_is_normalised_where_the_family_does),
        cmocka_unit_test(prompts_begin_once),
        cmocka_unit_test(what_is_there_is_appended_to),
        cmocka_unit_test(ids_out_of_range_are_refused),
        cmocka_unit_test(best_score_joins_first),
        cmocka_unit_test(characters_fall_back_to_bytes),
        cmocka_unit_test(a_run_of_unknown_characters_is_one_unknown_token),
        cmocka_unit_test(a_space_is_put_before_the_text),
        cmocka_unit_test(user_defined_spaces),
        cmocka_unit_test(ends_of_generation),
        cmocka_unit_test(threads_share_a_tokenizer),
    };
    return cmocka_run_group_tests_name("tokenizer", tests, NULL, NULL);
}
