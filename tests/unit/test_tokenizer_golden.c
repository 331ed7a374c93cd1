// Real vocabularies against the ids that the models' own tokenizers give (the Rust library tokenizers).
#include <stdio.h>
#include <stdlib.h>

#include <cjson/cJSON.h>

#include "tests/support/check.h"
#include "tests/support/test_data.h"
#include "tests/support/test_temp.h"
#include "tests/support/tokenizers.h"

struct golden_case {
    struct bytes text, decoded;
    bool special, has_decoded;
    uint32_t *ids;
    size_t n_ids;
};

// ---- the few JSON forms of cases.jsonl: one object a line, ASCII with \u escapes (\u0000 too) ------------------------

static const char *find_field(const char *line, const char *end, const char *name) {
    char quoted[40];
    int length = snprintf(quoted, sizeof quoted, "\"%s\":", name);
    const char *at = memmem(line, (size_t)(end - line), quoted, (size_t)length);
    return at ? at + length : NULL;
}

static void append_utf8(struct bytes *out, uint32_t code) {
    uint8_t c[4];
    size_t n = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (size_t i = n; i-- > 1; code >>= 6) c[i] = 0x80 | (code & 0x3F);
    c[0] = (uint8_t)(n == 1 ? code : (0xF00u >> n & 0xFF) | code);
    bytes_append(out, c, n);
}

static uint32_t hex4(const char *at) {
    char digits[5] = {at[0], at[1], at[2], at[3], 0};
    return (uint32_t)strtoul(digits, NULL, 16);
}

static struct bytes parse_string(const char *at) {
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    struct bytes out = {0};
    bytes_append(&out, "", 0);
    assert_int_equal(*at++, '"');
    while (*at != '"') {
        if (*at != '\\') {
            bytes_append(&out, at++, 1);
        } else if (at[1] != 'u') {
            bytes_append(&out, values + (strchr(names, at[1]) - names), 1);
            at += 2;
        } else {
            uint32_t code = hex4(at + 2);
            at += 6;
            if (code >= 0xD800 && code < 0xDC00 && at[0] == '\\') {
                code = 0x10000 + ((code - 0xD800) << 10) + (hex4(at + 2) - 0xDC00);
                at += 6;
            }
            append_utf8(&out, code);
        }
    }
    return out;
}

static void parse_ids(struct golden_case *c, const char *at) {
    c->ids = malloc((strlen(at) + 1) * sizeof *c->ids);
    assert_int_equal(*at++, '[');
    while (*at != ']') {
        char *end;
        c->ids[c->n_ids++] = (uint32_t)strtoul(at, &end, 10);
        at = end + (*end == ',');
    }
}

static struct golden_case parse_case(const char *line, const char *end) {
    struct golden_case c = {0};
    c.text = parse_string(find_field(line, end, "text"));
    parse_ids(&c, find_field(line, end, "ids"));
    c.special = *find_field(line, end, "special") == 't';
    const char *decoded = find_field(line, end, "decoded");
    c.has_decoded = decoded != NULL;
    if (decoded) c.decoded = parse_string(decoded);
    return c;
}

static void check_case(const struct test_tokenizer *t, const struct golden_case *c) {
    const struct bytes *decoded = c->has_decoded ? &c->decoded : &c->text;
    check_encodes(t, (const char *)c->text.data, c->text.size, c->special ? ATSI_ENCODE_SPECIAL : 0, c->ids, c->n_ids);
    check_decodes(t, c->ids, c->n_ids, (const char *)decoded->data, decoded->size);
}

static struct test_tokenizer open_vocabulary(const char *path) {
    struct bytes gguf;
    if (!test_data_read(path, &gguf)) test_data_skip(path);
    struct test_tokenizer t;
    struct atsi_error err = {0};
    check_ok(test_tokenizer_make(&gguf, &t, &err), err);
    bytes_free(&gguf);
    return t;
}

static void check_json_cases(const char *name) {
    char path[200];
    snprintf(path, sizeof path, "tokenizers/%s/vocab.gguf.zst", name);
    struct test_tokenizer t = open_vocabulary(path);
    struct bytes lines;
    snprintf(path, sizeof path, "tokenizers/%s/cases.jsonl", name);
    if (!test_data_read(path, &lines)) test_data_skip(path);
    bytes_append(&lines, "", 1);
    size_t n_cases = 0;
    for (char *line = (char *)lines.data, *end; (end = strchr(line, '\n')); line = end + 1) {
        *end = 0;
        struct golden_case c = parse_case(line, end);
        check_case(&t, &c);
        n_cases++;
        free(c.ids);
        bytes_free(&c.text);
        bytes_free(&c.decoded);
    }
    assert_true(n_cases >= 194);
    bytes_free(&lines);
    test_tokenizer_free(&t);
}

static void qwen3(void **state) { (void)state, check_json_cases("qwen3"); }
static void gptoss(void **state) { (void)state, check_json_cases("gptoss"); }
static void gemma3(void **state) { (void)state, check_json_cases("gemma3"); }

// ---- .inp and .out: texts between separator lines, one line of ids a text -------------------------------------------

static void check_inp_cases(const char *name) {
    static const char separator[] = "\n__ggml_vocab_test__\n";
    char path[200];
    snprintf(path, sizeof path, "tokenizers/%s/ggml-vocab-%s.gguf.zst", name, name);
    struct test_tokenizer t = open_vocabulary(path);
    struct bytes texts, lines;
    snprintf(path, sizeof path, "tokenizers/%s/ggml-vocab-%s.gguf.inp", name, name);
    if (!test_data_read(path, &texts)) test_data_skip(path);
    snprintf(path, sizeof path, "tokenizers/%s/ggml-vocab-%s.gguf.out", name, name);
    if (!test_data_read(path, &lines)) test_data_skip(path);
    bytes_append(&texts, "", 1);
    bytes_append(&lines, "", 1);
    size_t n_cases = 0;
    char *line = (char *)lines.data;
    for (char *text = (char *)texts.data, *text_end; (text_end = strstr(text, separator));
         text = text_end + strlen(separator), n_cases++) {
        uint32_t ids[1000];
        size_t n_ids = 0;
        char *line_end = strchr(line, '\n');
        assert_non_null(line_end);
        *line_end = 0;
        for (char *end; n_ids < 1000; line = end, n_ids++) {
            ids[n_ids] = (uint32_t)strtoul(line, &end, 10);
            if (end == line) break;
        }
        line = line_end + 1;
        check_encodes(&t, text, (size_t)(text_end - text), 0, ids, n_ids);
        check_decodes(&t, ids, n_ids, text, (size_t)(text_end - text));
    }
    assert_true(n_cases >= 45);
    bytes_free(&texts);
    bytes_free(&lines);
    test_tokenizer_free(&t);
}

static void llama_spm(void **state) { (void)state, check_inp_cases("llama-spm"); }
static void gpt_2(void **state) { (void)state, check_inp_cases("gpt-2"); }
static void deepseek_coder(void **state) { (void)state, check_inp_cases("deepseek-coder"); }
static void falcon(void **state) { (void)state, check_inp_cases("falcon"); }

// ---- tiny models: the converter's own samples -------------------------------------------------------------------------

static void check_tiny_model(const char *folder, const char *name) {
    char path[300];
    struct test_tokenizer t = {0};
    struct bytes gguf, json;
    snprintf(path, sizeof path, "%s/%s.f16.gguf", folder, name);
    assert_true(bytes_read(path, &gguf));
    snprintf(path, sizeof path, "%s/%s.json", folder, name);
    assert_true(bytes_read(path, &json));
    struct atsi_error err = {0};
    check_ok(test_tokenizer_make(&gguf, &t, &err), err);
    cJSON *tree = cJSON_ParseWithLength((const char *)json.data, json.size);
    cJSON *samples = cJSON_GetObjectItem(tree, "tokenizer_tests"), *sample;
    assert_true(cJSON_GetArraySize(samples) >= 10);
    cJSON_ArrayForEach(sample, samples) {
        uint32_t ids[200];
        size_t n_ids = 0;
        cJSON *id;
        cJSON_ArrayForEach(id, cJSON_GetObjectItem(sample, "ids")) ids[n_ids++] = (uint32_t)id->valueint;
        const char *text = cJSON_GetObjectItem(sample, "text")->valuestring;
        check_encodes(&t, text, strlen(text), 0, ids, n_ids);
        check_decodes(&t, ids, n_ids, text, strlen(text));
    }
    cJSON_Delete(tree);
    bytes_free(&json);
    bytes_free(&gguf);
    test_tokenizer_free(&t);
}

static void tiny_models(void **state) {
    (void)state;
    static const char *const names[] = {"gemma3", "glm4", "llama31", "llama_tied", "qwen2", "qwen35"};
    char folder[TEMP_ROOT_CAP], archive[64];
    temp_folder(folder);
    bool found = true;
    for (size_t i = 0; i < sizeof names / sizeof *names && found; i++) {
        snprintf(archive, sizeof archive, "tiny-models/%s.tar.zst", names[i]);
        found = test_data_unpack(archive, folder);
        if (found) check_tiny_model(folder, names[i]);
    }
    temp_remove(folder);
    if (!found) test_data_skip("tiny-models");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(qwen3),     cmocka_unit_test(gptoss),      cmocka_unit_test(gemma3),
        cmocka_unit_test(llama_spm), cmocka_unit_test(gpt_2),       cmocka_unit_test(deepseek_coder),
        cmocka_unit_test(falcon),    cmocka_unit_test(tiny_models),
    };
    return cmocka_run_group_tests_name("tokenizer golden ids", tests, NULL, NULL);
}
