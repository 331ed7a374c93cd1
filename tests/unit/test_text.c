// Streams of token bytes: characters over token borders, malformed bytes, stop strings over token borders.
#include <stdlib.h>
#include <string.h>

#include "runtime/text/stop_match.h"
#include "runtime/text/utf8_hold.h"
#include "tests/support/check.h"
#include "tests/support/random.h"

#define FFFD "\xEF\xBF\xBD"

static void check_text(const struct atsi_bytes *got, const char *want) {
    if (got->size != strlen(want) || memcmp(got->size ? got->data : "", want, got->size))
        fail_msg("got \"%.*s\", expected \"%s\"", (int)got->size, got->size ? got->data : "", want);
}

// ---- UTF-8 ------------------------------------------------------------------------------------------------------------

// The stream in pieces of `step` bytes.
static void check_held(const char *stream, size_t size, size_t step, const char *want) {
    struct atsi_error err = {0};
    struct atsi_utf8_hold hold = {0};
    struct atsi_bytes out = {0};
    for (size_t i = 0; i < size; i += step)
        check_ok(atsi_utf8_hold_push(&hold, stream + i, size - i < step ? size - i : step, &out, &err), err);
    check_ok(atsi_utf8_hold_finish(&hold, &out, &err), err);
    check_ok(atsi_utf8_hold_finish(&hold, &out, &err), err); // replaces once
    check_text(&out, want);
    atsi_bytes_free(&out);
}

static void characters_come_out_whole(void **state) {
    (void)state;
    static const struct {
        const char *stream, *want;
    } cases[] = {
        {"abc", "abc"},
        {"\xF0\x9F\x98\x80", "\xF0\x9F\x98\x80"},
        {"a\xC3\xA9\xE2\x82\xAC\xF4\x8F\xBF\xBFz", "a\xC3\xA9\xE2\x82\xAC\xF4\x8F\xBF\xBFz"},
        {"\xF0\x9F", FFFD}, // the end of the stream in mid-character
        {"\xF0\x9F\x98", FFFD},
        {"\xFF", FFFD},
        {"a\xFF\xFE"
         "b",
         "a" FFFD FFFD "b"},
        {"\x80\xBF", FFFD FFFD},
        {"\xE2\x82"
         "a",
         FFFD "a"}, // a beginning that cannot go on
        {"\xF0\x9F\xC3\xA9", FFFD "\xC3\xA9"},
        {"\xF0\x9F\x98\xF0\x9F\x98\x80", FFFD "\xF0\x9F\x98\x80"},
        {"\xED\xA0\x80", FFFD FFFD FFFD}, // a surrogate: no part of it begins a character but the lead
        {"\xE0\x80\x80", FFFD FFFD FFFD}, // overlong
        {"\xC0\xAF", FFFD FFFD},
        {"\xF4\x90\x80\x80", FFFD FFFD FFFD FFFD}, // past U+10FFFF
        {"\xF5\x80", FFFD FFFD},
        {"\xF1\x80\x80\xE1\x80\xC2", FFFD FFFD FFFD},
        {"", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t step = 1; step <= 7; step++)
            check_held(cases[i].stream, strlen(cases[i].stream), step, cases[i].want);
}

// A character is given out with its last byte, not later.
static void characters_are_not_held_too_long(void **state) {
    (void)state;
    struct atsi_error err = {0};
    struct atsi_utf8_hold hold = {0};
    struct atsi_bytes out = {0};
    static const char emoji[] = "\xF0\x9F\x98\x80";
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(out.size, 0);
        check_ok(atsi_utf8_hold_push(&hold, emoji + i, 1, &out, &err), err);
    }
    check_text(&out, emoji);
    check_ok(atsi_utf8_hold_push(&hold, "x", 1, &out, &err), err);
    assert_int_equal(out.size, 5);
    atsi_bytes_free(&out);
}

// ---- stop strings -----------------------------------------------------------------------------------------------------

struct stop_case {
    const char *stops[3];
    const char *stream, *want;
    bool stopped;
};

static void check_stop(const struct stop_case *c, size_t step) {
    struct atsi_error err = {0};
    struct atsi_stop_match match = {0};
    struct atsi_bytes out = {0};
    for (size_t i = 0; i < 3 && c->stops[i]; i++)
        check_ok(atsi_stop_match_add(&match, c->stops[i], strlen(c->stops[i]), &err), err);
    size_t size = strlen(c->stream);
    for (size_t i = 0; i < size; i += step)
        check_ok(atsi_stop_match_push(&match, c->stream + i, size - i < step ? size - i : step, &out, &err), err);
    check_ok(atsi_stop_match_finish(&match, &out, &err), err);
    check_text(&out, c->want);
    assert_int_equal(match.stopped, c->stopped);
    atsi_bytes_free(&out);
    atsi_stop_match_free(&match);
}

static void stop_strings_end_the_text(void **state) {
    (void)state;
    static const struct stop_case cases[] = {
        {{"CDE"}, "ABCDEF", "AB", true},
        {{"EFX"}, "ABCDEF", "ABCDEF", false}, // a beginning at the end of the output comes out
        {{"F"}, "ABCDEF", "ABCDE", true},
        {{"CDE", "EFX", "F"}, "ABCDEF", "AB", true},
        {{NULL}, "ABCDEF", "ABCDEF", false},
        {{"A"}, "ABCDEF", "", true},
        {{"ABCDEF"}, "ABCDEF", "", true},
        {{"aab"}, "aaab", "a", true}, // the beginning overlaps itself
        {{"abab", "abac"}, "abaabac", "aba", true},
        {{"BCDE", "C"}, "ABCDEF", "AB", true}, // complete first, though the other began before it
        {{"C", "ABC"}, "xABCD", "x", true},    // complete at the same byte: the longest
        {{"\n\n"}, "a\nb\n\nc", "a\nb", true},
        {{"\xC3\xA9"}, "caf\xC3\xA9!", "caf", true},
        {{"x"}, "", "", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t step = 1; step <= 7; step++) check_stop(&cases[i], step);
}

static void text_is_released_as_soon_as_it_cannot_match(void **state) {
    (void)state;
    struct atsi_error err = {0};
    struct atsi_stop_match match = {0};
    struct atsi_bytes out = {0};
    check_ok(atsi_stop_match_add(&match, "CDE", 3, &err), err);
    check_ok(atsi_stop_match_push(&match, "ABCD", 4, &out, &err), err);
    assert_int_equal(out.size, 2);
    check_ok(atsi_stop_match_push(&match, "X", 1, &out, &err), err);
    assert_int_equal(out.size, 5);
    atsi_bytes_free(&out);
    atsi_stop_match_free(&match);
}

static void an_empty_stop_string_is_refused(void **state) {
    (void)state;
    struct atsi_error err = {0};
    struct atsi_stop_match match = {0};
    check_refused(atsi_stop_match_add(&match, "", 0, &err), err, "empty");
    atsi_stop_match_free(&match);
}

// Against the definition: the stop string complete first, found by trying every end.
static void random_streams_match_the_definition(void **state) {
    (void)state;
    uint64_t seed = 1;
    for (int round = 0; round < 20000; round++) {
        char texts[4][16];
        for (int k = 0; k < 4; k++) {
            size_t n = k == 3 ? 15 : 1 + test_below(&seed, 4);
            for (size_t i = 0; i < n; i++) texts[k][i] = "ab"[test_below(&seed, 2)];
            texts[k][n] = 0;
        }
        char want[16];
        strcpy(want, texts[3]);
        bool stopped = false;
        for (size_t end = 1; end <= 15 && !stopped; end++)
            for (size_t begin = 0; begin < end && !stopped; begin++)
                for (int k = 0; k < 3; k++)
                    if (strlen(texts[k]) == end - begin && memcmp(texts[3] + begin, texts[k], end - begin) == 0)
                        want[begin] = 0, stopped = true;
        struct stop_case c = {{texts[0], texts[1], texts[2]}, texts[3], want, stopped};
        check_stop(&c, 1 + (seed >> 8) % 5);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(characters_come_out_whole),
        cmocka_unit_test(characters_are_not_held_too_long),
        cmocka_unit_test(stop_strings_end_the_text),
        cmocka_unit_test(text_is_released_as_soon_as_it_cannot_match),
        cmocka_unit_test(an_empty_stop_string_is_refused),
        cmocka_unit_test(random_streams_match_the_definition),
    };
    return cmocka_run_group_tests_name("streams of text", tests, NULL, NULL);
}
