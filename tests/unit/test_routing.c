// Routing statistics: counting, the file, what the counts say.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/lower.h"
#include "runtime/routing.h"
#include "tests/support/check.h"
#include "tests/support/tiny_model.h"

static void lower_moe(struct atsi_gguf **gguf, struct bytes *file, struct atsi_lowered *lowered) {
    struct gguf_builder g;
    struct atsi_error err;
    tiny_model(&g, "qwen3moe", NULL);
    *file = gb_finish(&g);
    gb_free(&g);
    check_ok(atsi_gguf_open_memory(gguf, file->data, file->size, "tiny", &err), err);
    check_ok(atsi_lower(*gguf, &(struct atsi_lower_options){0}, lowered, &err), err);
}

static uint32_t first_router(const struct atsi_program *p) {
    uint32_t i = 0;
    while (p->ops[i].kind != ATSI_OP_ROUTER) i++;
    return i;
}

// Counts ids given row by row, 2 of 4 experts a token, in rounds of different sizes; and the file brings them back.
static void test_counts_and_file(void **state) {
    (void)state;
    struct atsi_gguf *gguf = NULL;
    struct bytes file;
    struct atsi_lowered lowered;
    struct atsi_routing *r;
    struct atsi_routing_stats back;
    struct atsi_error err;
    char *json, *again;
    lower_moe(&gguf, &file, &lowered);
    const struct atsi_program *p = &lowered.program;
    check_ok(atsi_routing_create(p, 4, NULL, &r, &err), err);
    uint32_t op = first_router(p);
    assert_true(atsi_routing_place(r, op, ATSI_CPU) == atsi_routing_chosen(r, 0));
    assert_true(!atsi_routing_place(r, op + 1, ATSI_CPU) && !atsi_routing_place(NULL, op, ATSI_CPU));
    static const int32_t rows[3][2] = {{0, 1}, {1, 0}, {1, 3}}, one[2] = {3, 2}, same[3][2] = {{0, 1}, {0, 1}, {0, 1}};
    for (uint32_t i = op + 1; i < p->n_ops; i++) // the other routers chose 0, 1 each time
        if (atsi_routing_place(r, i, ATSI_CPU)) memcpy(atsi_routing_place(r, i, ATSI_CPU), same, sizeof same);
    memcpy(atsi_routing_place(r, op, ATSI_CPU), rows, sizeof rows);
    atsi_routing_end_round(r, 3);
    memcpy(atsi_routing_place(r, op, ATSI_CPU), one, sizeof one);
    atsi_routing_end_round(r, 1);
    const struct atsi_routing_layer *l = &atsi_routing_stats_of(r)->layers[0];
    assert_true(l->n_tokens == 4 && l->n_used == 2 && l->n_experts == 4);
    assert_true(l->counts[0] == 2 && l->counts[1] == 3 && l->counts[2] == 1 && l->counts[3] == 2);
    assert_int_equal(l->n_reused, 2 + 1 + 1);
    assert_true(fabs(atsi_routing_reused_share(l) - 4.0 / 6) < 1e-12);
    assert_true(fabs(atsi_routing_reused_share(l + 1) - 1) < 1e-12);
    double share;
    check_ok(atsi_routing_hot_share(l, 1, &share, &err), err);
    assert_true(fabs(share - 3.0 / 8) < 1e-12);
    check_ok(atsi_routing_hot_share(l, 4, &share, &err), err);
    assert_true(share == 1);
    assert_true(fabs(atsi_routing_active_share(l, 1) - 0.5) < 1e-12); // two of four, whatever the counts
    assert_true(fabs(atsi_routing_active_share(l, 2) - (0.75 + 15.0 / 16 + 7.0 / 16 + 0.75) / 4) < 1e-12);

    check_ok(atsi_routing_to_json(atsi_routing_stats_of(r), &json, &err), err);
    check_ok(atsi_routing_parse(json, strlen(json), &back, &err), err);
    check_ok(atsi_routing_to_json(&back, &again, &err), err);
    assert_string_equal(json, again);
    assert_true(atsi_routing_find(&back, l->layer, 4) == &back.layers[0] && !atsi_routing_find(&back, l->layer, 5));
    free(json);
    free(again);
    atsi_routing_stats_free(&back);
    atsi_routing_free(r);
    atsi_lowered_free(&lowered);
    atsi_gguf_close(gguf);
    bytes_free(&file);
}

static void test_bad_files(void **state) {
    (void)state;
    static const struct {
        const char *text, *word;
    } cases[] = {
        {"{\"version\":2,\"routers\":[]}", "version"},
        {"{\"version\":1}", "routers"},
        {"{\"version\":1,\"routers\":[{\"layer\":0,\"n_experts\":2,\"n_used\":3,\"n_tokens\":1,\"n_reused\":0,"
         "\"counts\":[1,0]}]}",
         "n_used"},
        {"{\"version\":1,\"routers\":[{\"layer\":0,\"n_experts\":2,\"n_used\":1,\"n_tokens\":1,\"n_reused\":0,"
         "\"counts\":[1]}]}",
         "counts"},
        {"{\"version\":1,\"routers\":[{\"layer\":0,\"n_experts\":2,\"n_used\":1,\"n_tokens\":1,\"n_reused\":0,"
         "\"counts\":[0.5,0.5]}]}",
         "counts[0]"},
        {"{\"version\":1,\"routers\":[{\"layer\":0,\"n_experts\":2,\"n_used\":1,\"n_tokens\":3,\"n_reused\":4,"
         "\"counts\":[1,2]}]}",
         "n_reused"},
    };
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct atsi_routing_stats s;
        struct atsi_error err = {0};
        if (atsi_routing_parse(cases[i].text, strlen(cases[i].text), &s, &err) != ATSI_BAD_INPUT)
            fail_msg("accepted: %s", cases[i].text);
        check_message(err, cases[i].word);
        atsi_routing_stats_free(&s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_counts_and_file), cmocka_unit_test(test_bad_files)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
