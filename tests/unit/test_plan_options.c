// The command line of atsi-plan and the default file name.
#include <stdio.h>
#include <stdlib.h>

#include "planner/options.h"
#include "planner/output_name.h"
#include "tests/support/check.h"

enum {
    MAX_ARGS = 16
};

// Parses a line of words. The words are copied, as the parser cuts --pin values.
static enum atsi_status parse(const char *line, struct atsi_plan_options *o, char *copy, size_t copy_size,
                              struct atsi_error *err) {
    char *argv[MAX_ARGS], *rest = copy;
    int argc = 0;
    snprintf(copy, copy_size, "atsi-plan %s", line);
    for (char *word; (word = strsep(&rest, " ")) && argc < MAX_ARGS;) argv[argc++] = word;
    return atsi_plan_options_parse(argc, argv, o, err);
}

static void test_defaults(void **state) {
    (void)state;
    struct atsi_plan_options o;
    struct atsi_error err;
    char copy[256];
    check_ok(parse("m.gguf", &o, copy, sizeof copy, &err), err);
    assert_int_equal(o.mode, ATSI_PLAN_MAKE);
    assert_string_equal(o.input_path, "m.gguf");
    assert_int_equal(o.kv_type, ATSI_F16);
    assert_true(o.prefill_weight == 0.2 && !o.vram_given && o.n_ctx == 0 && o.n_pins == 0);
}

static void test_values(void **state) {
    (void)state;
    struct atsi_plan_options o;
    struct atsi_error err;
    char copy[256];
    check_ok(
        parse("--vram 5.5G m.gguf --ctx 8192 --kv-type q8_0 --objective prefill --pin a=b=gpu --pin x=cpu -o out.atsp",
              &o, copy, sizeof copy, &err),
        err);
    assert_true(o.vram_given && o.vram_bytes == UINT64_C(11) << 29);
    assert_int_equal(o.n_ctx, 8192);
    assert_int_equal(o.kv_type, ATSI_Q8_0);
    assert_true(o.prefill_weight == 1);
    assert_int_equal(o.n_pins, 2);
    assert_string_equal(o.pins[0].pattern, "a=b"); // the last "=" counts
    assert_int_equal(o.pins[0].side, ATSI_GPU);
    assert_int_equal(o.pins[1].side, ATSI_CPU);
    check_ok(parse("plan.atsp --attach m.gguf", &o, copy, sizeof copy, &err), err);
    assert_int_equal(o.mode, ATSI_PLAN_ATTACH);
}

static void test_refusals_name_the_option(void **state) {
    (void)state;
    static const char *const lines[][2] = {
        {"", "no model"},
        {"m --ctx 0", "--ctx"},
        {"m --ctx +5", "--ctx"},
        {"m --chunk 70000", "--chunk"},
        {"m --vram 6gb", "--vram"},
        {"m --objective -1", "--objective"},
        {"m --pin gpu", "--pin"},
        {"m --pin =gpu", "--pin"},
        {"m --threads", "--threads"},
        {"--info a -o b", "-o"},
        {"--info a --verify b", "exclude"},
        {"m --attach g --no-weights", "--no-weights"},
        {"m --attach g --ctx 5", "--ctx"},
        {"m --kv-type f16 --attach g", "--kv-type"},
        {"m --vocab-only --ship", "--ship"},
        {"m --device d --save-profile p", "--save-profile"},
        {"m --vram 0 --pin a=gpu", "--pin"},
        {"m --vocab-only --explain", "--explain"},
        {"m --profile-seconds -1", "--profile-seconds"},
        {"m --ctx ", "--ctx"},
    };
    for (unsigned i = 0; i < sizeof lines / sizeof *lines; i++) {
        struct atsi_plan_options o;
        struct atsi_error err = {0};
        char copy[256];
        if (parse(lines[i][0], &o, copy, sizeof copy, &err) != ATSI_BAD_INPUT) fail_msg("accepted: %s", lines[i][0]);
        check_message(err, lines[i][1]);
    }
}

static void test_output_names(void **state) {
    (void)state;
    static const char *const names[][2] = {
        {"m.gguf", "m.atsp"},
        {"/a/b/m.Q4_K_M.gguf", "m.Q4_K_M.atsp"},
        {"m-00002-of-00003.gguf", "m.atsp"},
        {"plan.atsp", "plan.atsp"},
        {"m", "m.atsp"},
        {"a-1-of-2.gguf", "a-1-of-2.atsp"},
        {".gguf", ".gguf.atsp"},
    };
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        char *name = atsi_output_name(names[i][0]);
        assert_string_equal(name, names[i][1]);
        free(name);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_refusals_name_the_option),
        cmocka_unit_test(test_output_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
