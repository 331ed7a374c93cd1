// Device profiles: what is read, what is refused, how work is priced.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "formats/device_profile.h"
#include "tests/support/check.h"

// A sound profile with `%s` where tests put things: a field before the rest, and costs at the end.
static const char *const costs = "{\"side\":\"cpu\",\"op\":\"any\",\"dtype\":\"any\",\"phase\":\"decode\",\"fixed_us\":"
                                 "1,\"bytes_per_us\":100,\"flops_per_us\":1000,\"points\":[]},"
                                 "{\"side\":\"cpu\",\"op\":\"any\",\"dtype\":\"any\",\"phase\":\"prefill\",\"fixed_"
                                 "us\":2,\"bytes_per_us\":100,\"flops_per_us\":1000,\"points\":[]},"
                                 "{\"side\":\"gpu\",\"op\":\"any\",\"dtype\":\"any\",\"phase\":\"decode\",\"fixed_us\":"
                                 "3,\"bytes_per_us\":100,\"flops_per_us\":1000,\"points\":[]},"
                                 "{\"side\":\"gpu\",\"op\":\"any\",\"dtype\":\"any\",\"phase\":\"prefill\",\"fixed_"
                                 "us\":4,\"bytes_per_us\":100,\"flops_per_us\":1000,\"points\":[]}";

static char *make_text(const char *first, const char *more_costs) {
    char *text;
    int n = asprintf(
        &text,
        "{%s\"name\":\"test\",\"origin\":\"measured\",\"sources\":[\"here\"],"
        "\"host\":{\"cpu\":\"c\",\"n_threads\":4,\"memory_bytes\":1000},"
        "\"gpu\":{\"name\":\"g\",\"driver\":\"d\",\"memory_bytes\":5000,\"context_bytes\":10,\"n_copy_engines\":1},"
        "\"link\":{\"to_device\":{\"fixed_us\":1,\"bytes_per_us\":20},\"to_host\":{\"fixed_us\":2,\"bytes_per_us\":10},"
        "\"switch_us\":5},"
        "\"costs\":[%s%s]}",
        first, costs, more_costs);
    assert_true(n > 0);
    return text;
}

static enum atsi_status parse(const char *first, const char *more_costs, struct atsi_device_profile *p,
                              struct atsi_error *err) {
    char *text = make_text(first, more_costs);
    enum atsi_status status = atsi_device_profile_parse(text, strlen(text), p, err);
    free(text);
    return status;
}

#define GOOD "\"version\":1,"
#define COST(side, op, dtype, fixed, points)                                                                     \
    ",{\"side\":\"" side "\",\"op\":\"" op "\",\"dtype\":\"" dtype "\",\"phase\":\"decode\",\"fixed_us\":" fixed \
    ",\"bytes_per_us\":50,\"flops_per_us\":200,\"points\":[" points "]}"

static void test_closest_cost_wins(void **state) {
    (void)state;
    struct atsi_device_profile p;
    struct atsi_error err;
    check_ok(parse(GOOD, COST("cpu", "matmul", "any", "10", "") COST("cpu", "matmul", "Q4_K", "20", ""), &p, &err),
             err);
    assert_true(atsi_device_profile_price(&p, ATSI_CPU, ATSI_OP_MATMUL, ATSI_Q4_K, ATSI_DECODE, 0, 0).us == 20);
    assert_true(atsi_device_profile_price(&p, ATSI_CPU, ATSI_OP_MATMUL, ATSI_Q8_0, ATSI_DECODE, 0, 0).us == 10);
    assert_true(atsi_device_profile_price(&p, ATSI_CPU, ATSI_OP_GLU, ATSI_F32, ATSI_DECODE, 0, 0).us == 1);
    assert_true(atsi_device_profile_price(&p, ATSI_CPU, ATSI_OP_MATMUL, ATSI_Q4_K, ATSI_PREFILL, 0, 0).us == 2);
    assert_true(atsi_device_profile_price(&p, ATSI_GPU, ATSI_OP_MATMUL, ATSI_Q4_K, ATSI_DECODE, 0, 0).us == 3);
    atsi_device_profile_free(&p);
}

static void test_roofline_and_points(void **state) {
    (void)state;
    struct atsi_device_profile p;
    struct atsi_error err;
    check_ok(parse(GOOD, COST("cpu", "matmul", "Q4_K", "20", "{\"bytes\":500,\"flops\":100,\"us\":77,\"spread\":0.1}"),
                   &p, &err),
             err);
    // by bytes: 20 + 1000 / 50; by flops: 20 + 8000 / 200
    assert_true(atsi_device_profile_price(&p, ATSI_CPU, ATSI_OP_MATMUL, ATSI_Q4_K, ATSI_DECODE, 1000, 100).us == 40);
    assert_true(atsi_device_profile_price(&p, ATSI_CPU, ATSI_OP_MATMUL, ATSI_Q4_K, ATSI_DECODE, 1000, 8000).us == 60);
    struct atsi_price exact = atsi_device_profile_price(&p, ATSI_CPU, ATSI_OP_MATMUL, ATSI_Q4_K, ATSI_DECODE, 500, 100);
    assert_true(exact.us == 77 && exact.is_measured);
    assert_false(atsi_device_profile_price(&p, ATSI_CPU, ATSI_OP_MATMUL, ATSI_Q4_K, ATSI_DECODE, 500, 101).is_measured);
    atsi_device_profile_free(&p);
}

// Prefill on another number of tokens: between measured ones in proportion, beyond them at the last one's rate less the fixed
// part; other weights and decode by the line.
static void test_other_chunks(void **state) {
    (void)state;
    struct atsi_device_profile p;
    struct atsi_error err;
    char cost[512];
    const char *points = "{\"bytes\":500,\"flops\":1000,\"us\":50,\"spread\":0},"
                         "{\"bytes\":500,\"flops\":3000,\"us\":90,\"spread\":0},"
                         "{\"bytes\":700,\"flops\":2000,\"us\":1000,\"spread\":0}";
    snprintf(cost, sizeof cost,
             ",{\"side\":\"gpu\",\"op\":\"matmul\",\"dtype\":\"Q4_K\",\"phase\":\"prefill\",\"fixed_us\":20,"
             "\"bytes_per_us\":50,\"flops_per_us\":200,\"points\":[%s]}",
             points);
    check_ok(parse(GOOD, cost, &p, &err), err);
    const struct {
        double bytes, flops, us;
    } cases[] = {
        {500, 2000, 70}, {500, 6000, 90 + 3000 * 70.0 / 3000}, {500, 3000, 90}, {600, 2000, 32}, {500, 100, 30}};
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct atsi_price price = atsi_device_profile_price(&p, ATSI_GPU, ATSI_OP_MATMUL, ATSI_Q4_K, ATSI_PREFILL,
                                                            cases[i].bytes, cases[i].flops);
        assert_true(fabs(price.us - cases[i].us) < 1e-9);
        assert_true(price.is_measured == (cases[i].flops == 3000));
    }
    atsi_device_profile_free(&p);
}

static void test_round_trip(void **state) {
    (void)state;
    struct atsi_device_profile p, q;
    struct atsi_error err;
    char *first, *second;
    check_ok(parse(GOOD, COST("gpu", "experts", "MXFP4", "1.25", "{\"bytes\":1,\"flops\":2,\"us\":3,\"spread\":4}"), &p,
                   &err),
             err);
    check_ok(atsi_device_profile_to_json(&p, &first, &err), err);
    check_ok(atsi_device_profile_parse(first, strlen(first), &q, &err), err);
    check_ok(atsi_device_profile_to_json(&q, &second, &err), err);
    assert_string_equal(first, second);
    assert_int_equal(q.n_costs, 5);
    assert_string_equal(q.sources, "here\n");
    free(first);
    free(second);
    atsi_device_profile_free(&p);
    atsi_device_profile_free(&q);
}

// A point may say what of its time is fixed; work without such a point takes the mean of those of its cost, and never more than it takes.
static void test_fixed_parts(void **state) {
    (void)state;
    struct atsi_device_profile p, q;
    struct atsi_error err;
    char *text;
    const char *points = "{\"bytes\":500,\"flops\":0,\"us\":40,\"spread\":0,\"fixed_us\":6},"
                         "{\"bytes\":900,\"flops\":0,\"us\":70,\"spread\":0,\"fixed_us\":10},"
                         "{\"bytes\":100,\"flops\":0,\"us\":3,\"spread\":0}";
    const struct { double bytes, us, fixed_us; } cases[] = {{500, 40, 6}, {900, 70, 10}, {100, 3, 3}, {2000, 60, 8}};
    char cost[1024];
    snprintf(cost, sizeof cost,
             ",{\"side\":\"cpu\",\"op\":\"experts\",\"dtype\":\"Q4_K\",\"phase\":\"decode\",\"fixed_us\":20,"
             "\"bytes_per_us\":50,\"flops_per_us\":200,\"points\":[%s]}",
             points);
    check_ok(parse(GOOD, cost, &p, &err), err);
    p.cpu_start_us = 6.5;
    p.gpu_joined_us = 1.5;
    check_ok(atsi_device_profile_to_json(&p, &text, &err), err);
    check_ok(atsi_device_profile_parse(text, strlen(text), &q, &err), err);
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct atsi_price price =
            atsi_device_profile_price(&q, ATSI_CPU, ATSI_OP_EXPERTS, ATSI_Q4_K, ATSI_DECODE, cases[i].bytes, 0);
        assert_true(price.us == cases[i].us && price.fixed_us == cases[i].fixed_us);
    }
    assert_true(q.cpu_start_us == 6.5 && q.gpu_joined_us == 1.5);
    assert_true(atsi_device_profile_knows_parts(&q, ATSI_CPU) && !atsi_device_profile_knows_parts(&q, ATSI_GPU));
    assert_true(atsi_device_profile_price(&q, ATSI_CPU, ATSI_OP_MATMUL, ATSI_Q4_K, ATSI_DECODE, 1, 0).fixed_us == 0);
    free(text);
    atsi_device_profile_free(&p);
    atsi_device_profile_free(&q);
}

static void refuse(const char *first, const char *more, const char *word) {
    struct atsi_device_profile p;
    struct atsi_error err = {0};
    if (parse(first, more, &p, &err) != ATSI_BAD_INPUT) fail_msg("accepted: %s %s", first, more);
    check_message(err, word);
    atsi_device_profile_free(&p);
}

static void test_bad_profiles_are_refused(void **state) {
    (void)state;
    refuse("", "", "version");
    refuse("\"version\":2,", "", "version");
    refuse(GOOD, COST("disk", "matmul", "Q4_K", "1", ""), "costs[4]");
    refuse(GOOD, COST("cpu", "dance", "Q4_K", "1", ""), "dance");
    refuse(GOOD, COST("cpu", "matmul", "Q9", "1", ""), "Q9");
    refuse(GOOD, COST("cpu", "matmul", "Q4_K", "-1", ""), "fixed_us");
    refuse(GOOD, COST("cpu", "matmul", "Q4_K", "\"1\"", ""), "fixed_us");
    refuse(GOOD, COST("cpu", "matmul", "Q4_K", "1", "{\"bytes\":1}"), "points[0]");
    refuse(GOOD, ",7", "costs[4]");
    refuse(GOOD, COST("cpu", "matmul", "Q4_K", "1", "{\"bytes\":1,\"flops\":2,\"us\":3,\"spread\":0,\"fixed_us\":4}"),
           "fixed_us");
    refuse(GOOD, COST("cpu", "matmul", "Q4_K", "1", "{\"bytes\":1,\"flops\":2,\"us\":3,\"spread\":0,\"fixed_us\":-1}"),
           "fixed_us");
}

static void test_a_side_without_a_general_cost_is_refused(void **state) {
    (void)state;
    struct atsi_device_profile p;
    struct atsi_error err = {0};
    static const char text[] = "{\"version\":1,\"name\":\"n\",\"origin\":\"modelled\",\"sources\":[],"
                               "\"host\":{\"cpu\":\"c\",\"n_threads\":1,\"memory_bytes\":0},\"gpu\":null,\"costs\":[]}";
    check_refused(atsi_device_profile_parse(text, sizeof text - 1, &p, &err), err, "costs", "cpu", "decode");
    atsi_device_profile_free(&p);
}

static void test_a_profile_without_gpu(void **state) {
    (void)state;
    struct atsi_device_profile p;
    struct atsi_error err;
    char *text;
    assert_true(asprintf(&text,
                         "{\"version\":1,\"name\":\"n\",\"origin\":\"modelled\",\"sources\":[],"
                         "\"host\":{\"cpu\":\"c\",\"n_threads\":1,\"memory_bytes\":0},\"gpu\":null,\"costs\":[%.*s]}",
                         (int)(strstr(costs, ",{\"side\":\"gpu\"") - costs), costs) > 0);
    check_ok(atsi_device_profile_parse(text, strlen(text), &p, &err), err);
    assert_false(p.has_gpu);
    free(text);
    atsi_device_profile_free(&p);
}

static void test_shipped_profiles(void **state) {
    (void)state;
    static const char *const paths[] = {"plans/rtx3060-i7-11800h.json", "plans/rtx4090-i7-11700.json"};
    for (unsigned i = 0; i < sizeof paths / sizeof *paths; i++) {
        struct atsi_device_profile p;
        struct atsi_error err;
        check_ok(atsi_device_profile_read(paths[i], &p, &err), err);
        assert_true(p.is_modelled && p.has_gpu && p.sources && strlen(p.sources) > 100);
        atsi_device_profile_free(&p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_closest_cost_wins),
        cmocka_unit_test(test_roofline_and_points),
        cmocka_unit_test(test_other_chunks),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_fixed_parts),
        cmocka_unit_test(test_bad_profiles_are_refused),
        cmocka_unit_test(test_a_side_without_a_general_cost_is_refused),
        cmocka_unit_test(test_a_profile_without_gpu),
        cmocka_unit_test(test_shipped_profiles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
