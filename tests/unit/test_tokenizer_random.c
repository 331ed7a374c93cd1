// Random vocabularies against the definition of merging, random Unicode there and back, and long words.
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <utf8proc.h>

#include "tests/support/check.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/random.h"
#include "tests/support/test_data.h"
#include "tests/support/tokenizers.h"

// ---- merging as it is defined: strings, one join at a time, everything searched anew --------------------------------

enum {
    MAX_PIECES = 80,
    MAX_PIECE = 64,
    MAX_WORD = 60
};

struct plain_vocabulary {
    bool spm;
    char pieces[MAX_PIECES][MAX_PIECE + 1];
    int n_pieces, n_letters;                 // the letters come first
    int left[MAX_PIECES], right[MAX_PIECES]; // BPE: piece i is the join of these, of rank i
    float scores[MAX_PIECES];                // SentencePiece
};

static int plain_find(const struct plain_vocabulary *v, const char *text) {
    for (int i = 0; i < v->n_pieces; i++)
        if (strcmp(v->pieces[i], text) == 0) return i;
    return -1;
}

// What the two pieces join to, or -1. The greater *value joins first.
static int plain_join(const struct plain_vocabulary *v, int left, int right, float *value) {
    if (v->spm) {
        char joined[2 * MAX_PIECE + 1];
        sprintf(joined, "%s%s", v->pieces[left], v->pieces[right]);
        int id = plain_find(v, joined);
        if (id >= 0) *value = v->scores[id];
        return id;
    }
    for (int i = v->n_letters; i < v->n_pieces; i++)
        if (v->left[i] == left && v->right[i] == right) return *value = (float)-i, i;
    return -1;
}

static size_t plain_encode(const struct plain_vocabulary *v, const char *word, int *ids) {
    size_t n = 0;
    for (; word[n]; n++) ids[n] = plain_find(v, (char[2]){word[n], 0});
    for (;;) {
        size_t best_at = n;
        int best_id = -1;
        float best = 0, value = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            int id = plain_join(v, ids[i], ids[i + 1], &value);
            if (id >= 0 && (best_id < 0 || value > best)) best_at = i, best_id = id, best = value;
        }
        if (best_id < 0) return n;
        ids[best_at] = best_id;
        memmove(ids + best_at + 1, ids + best_at + 2, (n - best_at - 2) * sizeof *ids);
        n--;
    }
}

static struct plain_vocabulary random_vocabulary(bool spm, uint64_t *seed) {
    struct plain_vocabulary v = {.spm = spm, .n_letters = 3};
    for (int i = 0; i < v.n_letters; i++, v.n_pieces++) v.pieces[i][0] = spm ? "ab "[i] : "abc"[i];
    int wanted = 4 + (int)test_below(seed, MAX_PIECES - 4);
    for (int tries = 0; v.n_pieces < wanted && tries < 1000; tries++) {
        int left = (int)test_below(seed, (uint32_t)v.n_pieces), right = (int)test_below(seed, (uint32_t)v.n_pieces);
        char joined[2 * MAX_PIECE + 1];
        sprintf(joined, "%s%s", v.pieces[left], v.pieces[right]);
        if (strlen(joined) > MAX_PIECE / 4 || plain_find(&v, joined) >= 0) continue;
        strcpy(v.pieces[v.n_pieces], joined);
        v.left[v.n_pieces] = left;
        v.right[v.n_pieces] = right;
        v.n_pieces++;
    }
    for (int i = 0; i < v.n_pieces; i++) v.scores[i] = -(float)test_below(seed, 20); // equal scores occur
    return v;
}

static struct bytes vocabulary_gguf(const struct plain_vocabulary *v) {
    struct gguf_builder g;
    gb_init(&g);
    gb_str(&g, "general.architecture", "llama");
    gb_str(&g, "tokenizer.ggml.model", v->spm ? "llama" : "gpt2");
    gb_str(&g, "tokenizer.ggml.pre", v->spm ? "default" : "gpt-2");
    gb_array(&g, "tokenizer.ggml.tokens", GB_STR, (uint64_t)v->n_pieces);
    for (int i = 0; i < v->n_pieces; i++) {
        char text[3 * MAX_PIECE + 1] = "";
        for (const char *c = v->pieces[i]; *c; c++) strcat(text, *c == ' ' ? "\xE2\x96\x81" : (char[2]){*c, 0});
        gb_put_str(&g, text, strlen(text));
    }
    if (v->spm) {
        gb_floats(&g, "tokenizer.ggml.scores", (uint64_t)v->n_pieces, v->scores);
        gb_int(&g, "tokenizer.ggml.add_space_prefix", GB_BOOL, 0);
    } else {
        gb_array(&g, "tokenizer.ggml.merges", GB_STR, (uint64_t)(v->n_pieces - v->n_letters));
        for (int i = v->n_letters; i < v->n_pieces; i++) {
            char merge[2 * MAX_PIECE + 2];
            sprintf(merge, "%s %s", v->pieces[v->left[i]], v->pieces[v->right[i]]);
            gb_put_str(&g, merge, strlen(merge));
        }
    }
    struct bytes file = gb_finish(&g);
    gb_free(&g);
    return file;
}

static void check_against_definition(bool spm) {
    uint64_t seed = spm ? 11 : 5;
    for (int round = 0; round < 300; round++) {
        struct plain_vocabulary v = random_vocabulary(spm, &seed);
        struct bytes gguf = vocabulary_gguf(&v);
        struct test_tokenizer t;
        struct atsi_error err = {0};
        check_ok(test_tokenizer_make(&gguf, &t, &err), err);
        for (int w = 0; w < 60; w++) {
            char word[MAX_WORD + 1] = "";
            int ids[MAX_WORD];
            size_t size = 1 + test_below(&seed, MAX_WORD - 1);
            for (size_t i = 0; i < size; i++) word[i] = v.pieces[test_below(&seed, 3)][0];
            size_t n = plain_encode(&v, word, ids);
            check_encodes(&t, word, size, 0, (const uint32_t *)ids, n);
        }
        test_tokenizer_free(&t);
        bytes_free(&gguf);
    }
}

static void bpe_merges_as_defined(void **state) { (void)state, check_against_definition(false); }
static void spm_merges_as_defined(void **state) { (void)state, check_against_definition(true); }

// ---- random Unicode ---------------------------------------------------------------------------------------------------

static utf8proc_int32_t random_code(uint64_t *seed) {
    static const struct {
        utf8proc_int32_t first, n;
    } blocks[] = {
        {0, 128},       {' ', 95},      {' ', 1},        {'a', 26},        {'\n', 1},        {0xA0, 0x260},
        {0x300, 0x70},  {0x370, 0x1C0}, {0x590, 0x170},  {0x900, 0x400},   {0x1100, 0x100},  {0x1E00, 0x200},
        {0x2000, 0x70}, {0x2580, 0x5},  {0x3000, 0x100}, {0x4E00, 0x5200}, {0xAC00, 0x2BA4}, {0xF900, 0x200},
        {0xFE00, 0x10}, {0xFF00, 0xF0}, {0x1D15E, 0x50}, {0x1F300, 0x400}, {0xE000, 0x100},  {0x10000, 0x100000},
    };
    uint32_t b = test_below(seed, sizeof blocks / sizeof *blocks);
    return blocks[b].first + (utf8proc_int32_t)test_below(seed, (uint32_t)blocks[b].n);
}

static size_t random_text(uint64_t *seed, char *out) {
    size_t size = 0, n = 1 + test_below(seed, 40);
    for (size_t i = 0; i < n; i++)
        size += (size_t)utf8proc_encode_char(random_code(seed), (utf8proc_uint8_t *)out + size);
    return size;
}

// The text as the family sees it: NFC by the library's own routine, or spaces for U+2581.
static size_t family_form(bool nfc, bool spm, const char *text, size_t size, char **out) {
    if (nfc)
        return (size_t)utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)size, (utf8proc_uint8_t **)out,
                                    UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    char *copy = malloc(size + 1);
    size_t n = 0;
    for (size_t i = 0; i < size; i++) {
        bool mark = spm && size - i >= 3 && memcmp(text + i, "\xE2\x96\x81", 3) == 0;
        copy[n++] = mark ? ' ' : text[i];
        i += mark ? 2 : 0;
    }
    *out = copy;
    return n;
}

static bool open_vocabulary(const char *path, struct test_tokenizer *t) {
    struct bytes gguf;
    if (!test_data_read(path, &gguf)) return false;
    struct atsi_error err = {0};
    check_ok(test_tokenizer_make(&gguf, t, &err), err);
    bytes_free(&gguf);
    return true;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define N_TEXTS 20000 // ten times slower there
#else
#define N_TEXTS 100000
#endif

static void check_random_text(const char *path, bool nfc, bool spm) {
    struct test_tokenizer t;
    if (!open_vocabulary(path, &t)) test_data_skip(path);
    uint64_t seed = 3;
    for (int round = 0; round < N_TEXTS; round++) {
        char text[40 * 4], *expected = NULL;
        size_t size = random_text(&seed, text);
        size_t expected_size = family_form(nfc, spm, text, size, &expected);
        check_round_trip(&t, text, size, expected, expected_size);
        free(expected);
    }
    test_tokenizer_free(&t);
}

static void random_text_qwen3(void **state) {
    (void)state, check_random_text("tokenizers/qwen3/vocab.gguf.zst", true, false);
}
static void random_text_gptoss(void **state) {
    (void)state, check_random_text("tokenizers/gptoss/vocab.gguf.zst", false, false);
}
static void random_text_gemma3(void **state) {
    (void)state, check_random_text("tokenizers/gemma3/vocab.gguf.zst", false, true);
}
static void random_text_llama(void **state) {
    (void)state, check_random_text("tokenizers/llama-spm/ggml-vocab-llama-spm.gguf.zst", false, true);
}

// ---- long words ---------------------------------------------------------------------------------------------------------

// `about` bytes of each unit. A quadratic step anywhere would take minutes for a megabyte.
static void check_long_words(const struct test_tokenizer *t, bool normalises, size_t about) {
    static const char *const units[] = {"a",
                                        "A",
                                        "ab",
                                        "Ab",
                                        " ",
                                        "\n",
                                        " \n",
                                        "7",
                                        "'",
                                        "?!",
                                        "\xE4\xBD\xA0",
                                        "\xF0\x9F\x98\x80",
                                        "\xCC\x95\xCC\x96",
                                        "\xFF",
                                        "<",
                                        "<|",
                                        "a\xCC\x81"};
    enum {
        SIZE = 1000000
    };
    char *text = malloc(SIZE + 1);
    for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
        size_t unit = strlen(units[u]), size = about / unit * unit;
        for (size_t i = 0; i < size; i += unit) memcpy(text + i, units[u], unit);
        text[size++] = 'x';
        struct atsi_error err = {0};
        struct atsi_token_list list = {0};
        clock_t start = clock();
        check_ok(atsi_tokenizer_encode(t->tokenizer, text, size, 0, &list, &err), err);
        assert_true((double)(clock() - start) / CLOCKS_PER_SEC < 20);
        bool stays = !normalises || !strstr(units[u], "\xCC");
        if (stays) check_decodes(t, list.ids, list.n_ids, text, size);
        atsi_token_list_free(&list);
    }
    free(text);
}

// Combining marks in the worst order for sorting them.
static void check_long_marks(const struct test_tokenizer *t) {
    enum {
        N = 200000
    };
    char *text = malloc(4 * N), *expected;
    for (int i = 0; i < N; i++) memcpy(text + 2 * i, "\xCC\x95", 2), memcpy(text + 2 * (N + i), "\xCC\x96", 2);
    expected = malloc(4 * N);
    memcpy(expected, text + 2 * N, 2 * N); // U+0316 below (class 220) goes before U+0315 above right (232)
    memcpy(expected + 2 * N, text, 2 * N);
    check_round_trip(t, text, 4 * N, expected, 4 * N);
    free(text);
    free(expected);
}

static void long_words(void **state) {
    (void)state;
    static const char *const names[] = {"gpt-2",          "llama-bpe",   "qwen2",  "gpt-4o", "tekken",   "deepseek-llm",
                                        "deepseek-coder", "deepseek-v3", "falcon", "qwen35", "starcoder"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct bytes gguf = test_bpe_gguf(names[i]);
        struct test_tokenizer t;
        struct atsi_error err = {0};
        check_ok(test_tokenizer_make(&gguf, &t, &err), err);
        bool normalises = strncmp(names[i], "qwen", 4) == 0;
        check_long_words(&t, normalises, 200000);
        if (normalises) check_long_marks(&t);
        test_tokenizer_free(&t);
        bytes_free(&gguf);
    }
}

static void long_words_of_a_real_vocabulary(void **state) {
    (void)state;
    static const char *const paths[] = {"tokenizers/qwen3/vocab.gguf.zst", "tokenizers/gemma3/vocab.gguf.zst"};
    for (size_t i = 0; i < 2; i++) {
        struct test_tokenizer t;
        if (!open_vocabulary(paths[i], &t)) test_data_skip(paths[i]);
        check_long_words(&t, i == 0, 1000000);
        test_tokenizer_free(&t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bpe_merges_as_defined),
        cmocka_unit_test(spm_merges_as_defined),
        cmocka_unit_test(random_text_qwen3),
        cmocka_unit_test(random_text_gptoss),
        cmocka_unit_test(random_text_gemma3),
        cmocka_unit_test(random_text_llama),
        cmocka_unit_test(long_words),
        cmocka_unit_test(long_words_of_a_real_vocabulary),
    };
    return cmocka_run_group_tests_name("tokenizer on random text", tests, NULL, NULL);
}
