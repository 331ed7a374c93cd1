// The strict JSON parser: accepted texts come back with their values, everything ambiguous is refused in one line.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/json.h"
#include "tests/support/bytes.h"
#include "tests/support/check.h"
#include "tests/support/test_temp.h"

static cJSON *parse_good(const char *text) {
    struct atsi_error err = {0};
    cJSON *tree = NULL;
    if (atsi_json_parse(text, strlen(text), &tree, &err) != ATSI_OK) fail_msg("%s: %s", text, err.text);
    assert_non_null(tree);
    return tree;
}

static void parse_bad(const char *text, size_t size, const char *word) {
    struct atsi_error err = {0};
    cJSON *tree = NULL;
    if (atsi_json_parse(text, size, &tree, &err) != ATSI_BAD_INPUT) fail_msg("accepted: %.80s", text);
    assert_null(tree);
    if (!strstr(err.text, word)) fail_msg("%.80s: \"%s\" does not say \"%s\"", text, err.text, word);
    assert_null(strchr(err.text, '\n'));
}

static void accepts_what_is_json(void **state) {
    (void)state;
    static const char *const texts[] = {"{}",
                                        "[]",
                                        " [1, 2.5, -0, 1e3, 1E-3, 0.5, -1.25e+2] ",
                                        "\"\"",
                                        "null",
                                        "true",
                                        "{\"a\":{\"b\":[{},[],\"\\ud83d\\ude00\\\"\\\\\\/\\n\"]},\"b\":1}",
                                        "\t\r\n0",
                                        "\"\xC3\xA9\xF0\x9F\x98\x80\"",
                                        "{\"a\":1,\"A\":2}",
                                        "{\"\":0}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) cJSON_Delete(parse_good(texts[i]));
}

static void refuses_what_is_not(void **state) {
    (void)state;
    static const struct {
        const char *text, *word;
    } cases[] = {{"", "ends"},
                 {" ", "ends"},
                 {"{", "key"},
                 {"[1,]", "value"},
                 {"{\"a\":1,}", "key"},
                 {"{a:1}", "key"},
                 {"{'a':1}", "key"},
                 {"[1 2]", "','"},
                 {"{\"a\" 1}", "':'"},
                 {"{} x", "after the end"},
                 {"{}{}", "after the end"},
                 {"1 //", "after the end"},
                 {"NaN", "value"},
                 {"[Infinity]", "value"},
                 {"[-Infinity]", "number"},
                 {"[nan]", "value"},
                 {"[01]", "number"},
                 {"[-]", "number"},
                 {"[1.]", "number"},
                 {"[.5]", "value"},
                 {"[+1]", "value"},
                 {"[1e]", "number"},
                 {"[0x10]", "','"},
                 {"[1.5.2]", "','"},
                 {"[TRUE]", "value"},
                 {"[\"a]", "without an end"},
                 {"[\"\\x\"]", "escape"},
                 {"[\"\\u12g4\"]", "hexadecimal"},
                 {"[\"\\u0000\"]", "u0000"},
                 {"[\"\\ud800\"]", "surrogate"},
                 {"[\"\\udc00\"]", "surrogate"},
                 {"[\"\\ud800\\u0041\"]", "surrogate"},
                 {"[\"a\nb\"]", "control"},
                 {"[\"\xC3\"]", "UTF-8"},
                 {"[\"\xED\xA0\x80\"]", "UTF-8"},
                 {"\xEF\xBB\xBF{}", "value"},
                 {"{\"a\":1,\"a\":2}", "duplicate key \"a\""},
                 {"[{\"x\":{\"k\":1,\"b\":2,\"\\u006b\":3}}]", "duplicate key \"k\""}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        parse_bad(cases[i].text, strlen(cases[i].text), cases[i].word);
    parse_bad(NULL, 0, "ends"); // an empty file that is mapped
    parse_bad("{}\0", 3, "after the end");
    parse_bad("[\"a\0b\"]", 7, "control");
    char deep[2 * (ATSI_JSON_DEPTH_MAX + 1)];
    memset(deep, '[', sizeof deep);
    parse_bad(deep, sizeof deep, "deeply");
    memset(deep + ATSI_JSON_DEPTH_MAX, ']', ATSI_JSON_DEPTH_MAX);
    struct atsi_error err;
    cJSON *tree;
    assert_int_equal(atsi_json_parse(deep, 2 * ATSI_JSON_DEPTH_MAX, &tree, &err), ATSI_OK);
    cJSON_Delete(tree);
    char digits[80];
    memset(digits, '1', sizeof digits);
    parse_bad(digits, sizeof digits, "63 characters");
}

static void tells_integers_as_written(void **state) {
    (void)state;
    cJSON *tree =
        parse_good("{\"s\":\"1.0 \\\" 2 -3\",\"a\":[1,1.0,-0,1e0,7],\"b\":9007199254740991,\"c\":9007199254740992,"
                   "\"d\":true,\"e\":1e400,\"f\":-5,\"g\":\"3\"}");
    static const bool integer[] = {true, false, true, false, true};
    const cJSON *array, *item;
    assert_int_equal(atsi_json_get_array(tree, "a", &array, NULL), ATSI_OK);
    size_t i = 0;
    cJSON_ArrayForEach(item, array) assert_int_equal(atsi_json_is_integer(item), integer[i++]);
    int64_t value;
    double number;
    assert_int_equal(atsi_json_get_i64(tree, "b", 0, INT64_MAX, &value, NULL), ATSI_OK);
    assert_true(value == INT64_C(9007199254740991));
    assert_int_equal(atsi_json_get_i64(tree, "c", 0, INT64_MAX, &value, NULL), ATSI_BAD_INPUT);
    assert_int_equal(atsi_json_get_i64(tree, "d", 0, 9, &value, NULL), ATSI_BAD_INPUT);
    assert_int_equal(atsi_json_get_double(tree, "d", 0, 9, &number, NULL), ATSI_BAD_INPUT);
    assert_int_equal(atsi_json_get_double(tree, "e", 0, 1e308, &number, NULL), ATSI_BAD_INPUT);
    assert_int_equal(atsi_json_get_i64(tree, "f", 0, 9, &value, NULL), ATSI_BAD_INPUT);
    assert_int_equal(atsi_json_get_i64(tree, "f", -9, 9, &value, NULL), ATSI_OK);
    assert_int_equal(atsi_json_get_double(tree, "g", 0, 9, &number, NULL), ATSI_BAD_INPUT);
    cJSON_Delete(tree);
}

static void getters_name_the_field(void **state) {
    (void)state;
    static const char *const words[] = {"cpu", "gpu"};
    cJSON *tree = parse_good("{\"side\":\"tpu\",\"ok\":\"gpu\",\"yes\":true,\"o\":{}}");
    struct atsi_error err = {0};
    size_t index = 9;
    bool flag = false;
    const cJSON *item;
    const char *text;
    assert_int_equal(atsi_json_get_word(tree, "side", words, 2, &index, &err), ATSI_BAD_INPUT);
    assert_string_equal(err.text, "field \"side\" is \"tpu\"; it must be one of \"cpu\", \"gpu\"");
    assert_int_equal(atsi_json_get_word(tree, "ok", words, 2, &index, &err), ATSI_OK);
    assert_int_equal(index, 1);
    assert_int_equal(atsi_json_get_bool(tree, "yes", &flag, &err), ATSI_OK);
    assert_true(flag);
    assert_int_equal(atsi_json_get_object(tree, "o", &item, &err), ATSI_OK);
    assert_int_equal(atsi_json_get_object(tree, "ok", &item, &err), ATSI_BAD_INPUT);
    assert_int_equal(atsi_json_get_string(tree, "none", &text, &err), ATSI_BAD_INPUT);
    assert_string_equal(err.text, "field \"none\" is missing");
    cJSON_Delete(tree);
}

static void figures_are_rounded_and_whole_numbers_are_not(void **state) {
    (void)state;
    cJSON *object = cJSON_CreateObject();
    assert_true(atsi_json_put_figure(object, "a", 0.123456789012345) && atsi_json_put_figure(object, "b", 1.0 / 3) &&
                atsi_json_put_figure(object, "c", 2e6 / 3) && atsi_json_put_figure(object, "d", -1e-7 / 3) &&
                atsi_json_put_figure(object, "e", 1234567890123) && atsi_json_put_figure(object, "f", 0) &&
                atsi_json_put_figure(object, "g", 12345678.9) && atsi_json_put(object, "h", 0.123456789012345));
    char *text;
    size_t size;
    struct atsi_error err;
    FILE *out = open_memstream(&text, &size);
    check_ok(atsi_json_print(out, object, true, &err), err);
    assert_int_equal(atsi_json_print(out, cJSON_CreateObject(), false, &err), ATSI_FAILED);
    assert_int_equal(atsi_json_print(out, NULL, true, &err), ATSI_FAILED);
    fclose(out);
    assert_string_equal(text, "{\"a\":0.123457,\"b\":0.333333,\"c\":666667,\"d\":-3.33333e-08,\"e\":1234567890123,"
                              "\"f\":0,\"g\":12345700,\"h\":0.123456789012345}\n");
    free(text);
}

static void files_are_named(void **state) {
    (void)state;
    struct atsi_error err = {0};
    cJSON *tree;
    assert_int_equal(atsi_json_parse_file("/nonexistent/x.json", 100, &tree, &err), ATSI_BAD_INPUT);
    assert_non_null(strstr(err.text, "/nonexistent/x.json: "));
    assert_int_equal(atsi_json_parse_file("/", 100, &tree, &err), ATSI_BAD_INPUT);
    char folder[TEMP_ROOT_CAP], path[TEMP_PATH_CAP];
    temp_folder(folder);
    snprintf(path, sizeof path, "%s/x.json", folder);
    bytes_write(&(struct bytes){(uint8_t *)"[1,2]", 5, 5}, folder, "x.json");
    assert_int_equal(atsi_json_parse_file(path, 4, &tree, &err), ATSI_BAD_INPUT);
    assert_int_equal(atsi_json_parse_file(path, 5, &tree, &err), ATSI_OK);
    cJSON_Delete(tree);
    temp_remove(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accepts_what_is_json),      cmocka_unit_test(refuses_what_is_not),
        cmocka_unit_test(tells_integers_as_written), cmocka_unit_test(getters_name_the_field),
        cmocka_unit_test(files_are_named),           cmocka_unit_test(figures_are_rounded_and_whole_numbers_are_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
