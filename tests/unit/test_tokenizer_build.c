// Vocabularies that the planner must refuse, and those in unusual shape that it must take.
#include <stdio.h>
#include <stdlib.h>

#include "planner/tokenizer_family.h"
#include "tests/support/check.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/tokenizers.h"

static void refuse_file(struct bytes gguf, const char *word, const char *word2) {
    struct test_tokenizer t;
    struct atsi_error err = {0};
    check_refused(test_tokenizer_make(&gguf, &t, &err), err, word, word2);
    assert_null(t.block);
    bytes_free(&gguf);
}

// ---- tokenizer.ggml.pre -------------------------------------------------------------------------------------------------

static void a_split_that_is_not_known_is_refused(void **state) {
    (void)state;
    refuse_file(test_bpe_gguf(NULL), "tokenizer.ggml.pre is absent", "llama-bpe");
    refuse_file(test_bpe_gguf(""), "tokenizer.ggml.pre is absent", "llama-bpe");
    refuse_file(test_bpe_gguf("default"), "tokenizer.ggml.pre is \"default\"", "qwen2");
    refuse_file(test_bpe_gguf("no-such"), "\"no-such\"", "deepseek-v3");
    refuse_file(test_bpe_gguf("qwen"), "\"qwen\"", "known are");        // a part of a name
    refuse_file(test_bpe_gguf("qwen2 qwen35"), "\"qwen2 qwen35\"", ""); // two of them
    refuse_file(test_bpe_gguf("\x1b[31m"), "\\x1B[31m", "known are");
}

static void every_family_opens(void **state) {
    (void)state;
    char names[1000];
    atsi_tokenizer_family_names(names, sizeof names);
    assert_true(strlen(names) < 340); // fits a message
    unsigned n = 0;
    for (char *name = strtok(names, " "); name; name = strtok(NULL, " "), n++) {
        struct bytes gguf = test_bpe_gguf(name);
        struct test_tokenizer t;
        struct atsi_error err = {0};
        check_ok(test_tokenizer_make(&gguf, &t, &err), err);
        static const char text[] = "Hello  world 123, it's \xC3\x89t\xC3\xA9 \xE4\xBD\xA0\xE5\xA5\xBD\r\n\n x  ";
        check_round_trip(&t, text, sizeof text - 1, text, sizeof text - 1);
        test_tokenizer_free(&t);
        bytes_free(&gguf);
    }
    assert_true(n >= 25);
}

// ---- other keys ---------------------------------------------------------------------------------------------------------

// Four tokens and the keys that a test wants: what is NULL or 0 is left out.
struct small {
    const char *architecture, *model, *pre;
    const char *tokens[4];
    size_t token_sizes[4]; // 0: as strlen says
    uint32_t type_format;  // GB_I32 and so on; 0 (GB_U8) leaves token_type out
    int64_t types[4];
    uint64_t n_types, n_scores;
    uint32_t score_format;
    const char *merge;
    bool remove_whitespace;
    uint32_t bos_format;
    uint64_t bos;
};

static struct bytes small_gguf(const struct small *s) {
    struct gguf_builder g;
    gb_init(&g);
    gb_str(&g, "general.architecture", s->architecture ? s->architecture : "llama");
    if (s->model) gb_str(&g, "tokenizer.ggml.model", s->model);
    if (s->pre) gb_str(&g, "tokenizer.ggml.pre", s->pre);
    gb_array(&g, "tokenizer.ggml.tokens", GB_STR, 4);
    for (int i = 0; i < 4; i++)
        gb_put_str(&g, s->tokens[i], s->token_sizes[i] ? s->token_sizes[i] : strlen(s->tokens[i]));
    if (s->type_format) gb_ints(&g, "tokenizer.ggml.token_type", s->type_format, s->n_types, s->types);
    if (s->n_scores && s->score_format == GB_F32)
        gb_floats(&g, "tokenizer.ggml.scores", s->n_scores, (float[]){0, -1, -2, -3});
    else if (s->n_scores)
        gb_ints(&g, "tokenizer.ggml.scores", s->score_format, s->n_scores, (int64_t[]){9, 8, 7, 6});
    if (s->merge) gb_strs(&g, "tokenizer.ggml.merges", 1, &s->merge);
    if (s->remove_whitespace) gb_int(&g, "tokenizer.ggml.remove_extra_whitespaces", GB_BOOL, 1);
    if (s->bos_format) gb_int(&g, "tokenizer.ggml.bos_token_id", s->bos_format, s->bos);
    struct bytes file = gb_finish(&g);
    gb_free(&g);
    return file;
}

static const struct small good_bpe = {.model = "gpt2",
                                      .pre = "gpt-2",
                                      .tokens = {"a", "b", "ab", "<x>"},
                                      .type_format = GB_I32,
                                      .types = {1, 1, 1, 3},
                                      .n_types = 4,
                                      .merge = "a b"};
static const struct small good_spm = {.model = "llama",
                                      .tokens = {"<unk>", "a", "b", "ab"},
                                      .type_format = GB_I32,
                                      .types = {2, 1, 1, 1},
                                      .n_types = 4,
                                      .n_scores = 4,
                                      .score_format = GB_F32};

static void refuse(struct small s, const char *word, const char *word2) { refuse_file(small_gguf(&s), word, word2); }

static void check_takes(struct small s, const char *text, uint32_t id) {
    struct bytes gguf = small_gguf(&s);
    struct test_tokenizer t;
    struct atsi_error err = {0};
    check_ok(test_tokenizer_make(&gguf, &t, &err), err);
    check_encodes(&t, text, strlen(text), ATSI_ENCODE_SPECIAL, &id, 1);
    test_tokenizer_free(&t);
    bytes_free(&gguf);
}

static void models_and_missing_tables(void **state) {
    (void)state;
    check_takes(good_bpe, "ab", 2);
    struct small s = good_bpe;
    s.model = "bert";
    refuse(s, "tokenizer.ggml.model", "\"bert\"");
    s = good_bpe, s.merge = NULL;
    refuse(s, "tokenizer.ggml.merges is missing", "");
    s = good_bpe, s.merge = "a c";
    refuse(s, "tokenizer.ggml.merges[0]", "\"a c\"");
    s = good_bpe, s.merge = "b a"; // the join is no token
    refuse(s, "tokenizer.ggml.merges[0]", "\"b a\"");
    s = good_bpe, s.merge = "ab";
    refuse(s, "tokenizer.ggml.merges[0]", "\"ab\"");
    s = good_spm, s.n_scores = 0;
    refuse(s, "tokenizer.ggml.scores is missing", "");
    s = good_spm, s.remove_whitespace = true;
    refuse(s, "remove_extra_whitespaces", "");
}

static void lengths_and_element_types(void **state) {
    (void)state;
    struct small s = good_bpe;
    s.n_types = 3;
    refuse(s, "tokenizer.ggml.token_type", "3");
    s = good_bpe, s.types[1] = 7;
    refuse(s, "tokenizer.ggml.token_type[1] is 7", "");
    s = good_bpe, s.types[1] = -1;
    refuse(s, "tokenizer.ggml.token_type[1] is -1", "");
    s = good_spm, s.n_scores = 3;
    refuse(s, "tokenizer.ggml.scores", "3");
    static const uint32_t widths[] = {GB_I8, GB_U32, GB_I64, GB_U64};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) { // widened
        s = good_bpe, s.type_format = widths[i];
        check_takes(s, "<x>", 3);
        s = good_bpe, s.bos_format = widths[i], s.bos = 3;
        check_takes(s, "<x>", 3);
    }
    s = good_spm, s.types[1] = 6; // a byte whose text is not <0xHH>
    refuse(s, "token 1", "<0xHH>");
}

// "None" is written in several ways.
static void ids_outside_the_vocabulary_are_none(void **state) {
    (void)state;
    static const struct {
        uint32_t format;
        uint64_t value;
    } ids[] = {{GB_U32, UINT32_MAX}, {GB_I32, UINT64_MAX}, {GB_I64, UINT64_MAX}, {GB_U32, 4}, {GB_U64, UINT64_MAX}};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        struct small s = good_spm;
        s.bos_format = ids[i].format, s.bos = ids[i].value;
        struct bytes gguf = small_gguf(&s);
        struct test_tokenizer t;
        struct atsi_error err = {0};
        check_ok(test_tokenizer_make(&gguf, &t, &err), err);
        assert_int_equal(atsi_tokenizer_bos(t.tokenizer), ATSI_TOKEN_NONE);
        assert_false(atsi_tokenizer_adds_bos(t.tokenizer));
        test_tokenizer_free(&t);
        bytes_free(&gguf);
    }
}

static void odd_tokens_are_taken(void **state) {
    (void)state;
    struct small s = good_bpe;
    s.tokens[3] = ""; // empty
    check_takes(s, "ab", 2);
    s = good_bpe, s.tokens[3] = "\0\0", s.token_sizes[3] = 2, s.types[3] = 4;
    struct bytes gguf = small_gguf(&s);
    struct test_tokenizer t;
    struct atsi_error err = {0};
    check_ok(test_tokenizer_make(&gguf, &t, &err), err);
    check_encodes(&t, "a\0\0b", 4, 0, (uint32_t[]){0, 3, 1}, 3);
    check_decodes(&t, (uint32_t[]){3}, 1, "\0\0", 2);
    test_tokenizer_free(&t);
    bytes_free(&gguf);
    s = good_bpe, s.tokens[3] = "\xFF\xFE"; // not UTF-8
    check_takes(s, "\xFF\xFE", 3);
    s = good_bpe, s.tokens[3] = "ab"; // twice the same text: the first
    s.types[3] = 1;
    check_takes(s, "ab", 2);
    s = good_spm, s.tokens[0] = "\xFF", s.types[0] = 1;
    check_takes(s, "ab", 3);
}

static void padding_is_never_to_be_sampled(void **state) {
    (void)state;
    static const int64_t types[] = {5, 4, 1}; // as converters of different ages write them
    for (size_t i = 0; i < 3; i++) {
        struct small s = good_bpe;
        s.tokens[3] = "[PAD3]", s.types[3] = types[i];
        struct bytes gguf = small_gguf(&s);
        struct test_tokenizer t;
        struct atsi_error err = {0};
        check_ok(test_tokenizer_make(&gguf, &t, &err), err);
        assert_int_equal(atsi_tokenizer_kind(t.tokenizer, 3), ATSI_TOKEN_UNUSED);
        check_encodes(&t, "[PAD3]", 6, ATSI_ENCODE_SPECIAL, NULL, 0); // no byte tokens for these: left out
        test_tokenizer_free(&t);
        bytes_free(&gguf);
    }
}

static void a_file_without_a_tokenizer_is_no_error(void **state) {
    (void)state;
    struct small s = good_bpe;
    s.model = NULL;
    struct bytes bytes = small_gguf(&s);
    struct atsi_gguf *gguf;
    struct atsi_vocabulary vocabulary;
    struct atsi_error err = {0};
    check_ok(atsi_gguf_open_memory(&gguf, bytes.data, bytes.size, "test", &err), err);
    check_ok(atsi_vocabulary_read(gguf, &vocabulary, &err), err);
    assert_null(vocabulary.model.data);
    atsi_vocabulary_free(&vocabulary);
    atsi_gguf_close(gguf);
    bytes_free(&bytes);
}

// A text ends generation by its name when the file's keys do not say so; harmony's <|end|> does not.
static void ends_of_generation_by_name(void **state) {
    (void)state;
    static const struct {
        const char *tokens[4];
        bool ends[4];
    } cases[] = {
        {{"a", "b", "ab", "<|im_end|>"}, {false, false, false, true}},
        {{"a", "b", "ab", "<|end|>"}, {false, false, false, true}},
        {{"<|return|>", "<|channel|>", "<|call|>", "<|end|>"}, {true, false, true, false}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct small s = good_spm; // needs no merges
        memcpy(s.tokens, cases[i].tokens, sizeof s.tokens);
        struct bytes gguf = small_gguf(&s);
        struct test_tokenizer t;
        struct atsi_error err = {0};
        check_ok(test_tokenizer_make(&gguf, &t, &err), err);
        for (uint32_t id = 0; id < 4; id++)
            assert_int_equal(atsi_tokenizer_ends_generation(t.tokenizer, id), cases[i].ends[id]);
        test_tokenizer_free(&t);
        bytes_free(&gguf);
    }
}

// Phi-3's special tokens swallow the white space behind them, which its template relies on.
static void special_tokens_of_phi3_strip_space(void **state) {
    (void)state;
    struct small s = good_spm;
    s.architecture = "phi3", s.types[3] = 3, s.tokens[3] = "<|u|>";
    struct bytes gguf = small_gguf(&s);
    struct test_tokenizer t;
    struct atsi_error err = {0};
    check_ok(test_tokenizer_make(&gguf, &t, &err), err);
    static const char text[] = "<|u|>\n \xE2\x80\x83\xE3\x80\x80"
                               "a<|u|>";
    check_encodes(&t, text, sizeof text - 1, ATSI_ENCODE_SPECIAL, (uint32_t[]){3, 0, 1, 3},
                  4); // <unk>: the space before
    test_tokenizer_free(&t);
    bytes_free(&gguf);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_split_that_is_not_known_is_refused),
        cmocka_unit_test(every_family_opens),
        cmocka_unit_test(models_and_missing_tables),
        cmocka_unit_test(lengths_and_element_types),
        cmocka_unit_test(ids_outside_the_vocabulary_are_none),
        cmocka_unit_test(odd_tokens_are_taken),
        cmocka_unit_test(padding_is_never_to_be_sampled),
        cmocka_unit_test(a_file_without_a_tokenizer_is_no_error),
        cmocka_unit_test(ends_of_generation_by_name),
        cmocka_unit_test(special_tokens_of_phi3_strip_space),
    };
    return cmocka_run_group_tests_name("tokenizer tables from a vocabulary", tests, NULL, NULL);
}
