// Routing statistics: counting, the file, what the counts say.
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/cache_folder.h"
#include "formats/routing_cache.h"
#include "planner/lower.h"
#include "runtime/routing.h"
#include "tests/support/check.h"
#include "tests/support/test_temp.h"
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

// One token that chose the first two experts of every router, n times.
static void count_same(struct atsi_routing_stats *stats, const struct atsi_program *p, uint64_t n) {
    struct atsi_error err;
    check_ok(atsi_routing_stats_init(p, stats, &err), err);
    for (uint32_t i = 0; i < stats->n_layers; i++) {
        stats->layers[i].n_tokens = n;
        stats->layers[i].counts[0] = stats->layers[i].counts[1] = n;
    }
}

// Runs add to what earlier ones have left; what is damaged or of another model counts for nothing, and is replaced.
static void test_cache(void **state) {
    (void)state;
    struct atsi_gguf *gguf = NULL;
    struct bytes file;
    struct atsi_lowered lowered;
    struct atsi_routing_stats one, kept;
    struct atsi_error err, why;
    char folder[TEMP_ROOT_CAP];
    lower_moe(&gguf, &file, &lowered);
    const struct atsi_program *p = &lowered.program;
    temp_folder(folder);
    assert_int_equal(setenv("XDG_CACHE_HOME", folder, 1), 0);
    char *path = atsi_routing_cache_path(0xABC), *other = atsi_routing_cache_path(0xABD);
    assert_true(path && other && strcmp(path, other) != 0 && !strncmp(path, folder, strlen(folder)));
    assert_false(atsi_routing_cache_load(path, p, &kept, &why));
    assert_string_equal(why.text, "");
    atsi_routing_stats_free(&kept);
    count_same(&one, p, 5);
    for (uint64_t times = 1; times <= 3; times++) {
        check_ok(atsi_routing_cache_add(path, p, &one, &err), err);
        assert_true(atsi_routing_cache_load(path, p, &kept, &why));
        for (uint32_t i = 0; i < kept.n_layers; i++)
            assert_true(kept.layers[i].n_tokens == 5 * times && kept.layers[i].counts[1] == 5 * times &&
                        kept.layers[i].counts[2] == 0);
        atsi_routing_stats_free(&kept);
    }
    check_ok(atsi_cache_write(path, "{", 1, &err), err);
    assert_false(atsi_routing_cache_load(path, p, &kept, &why));
    check_message(why, path);
    atsi_routing_stats_free(&kept);
    check_ok(atsi_routing_cache_add(path, p, &one, &err), err);
    assert_true(atsi_routing_cache_load(path, p, &kept, &why));
    assert_int_equal(kept.layers[0].n_tokens, 5);
    atsi_routing_stats_free(&kept);
    one.layers[0].n_experts = 3; // a router that this model does not have
    one.layers[0].counts[2] = 0;
    check_ok(atsi_routing_cache_add(other, p, &one, &err), err);
    assert_false(atsi_routing_cache_load(other, p, &kept, &why));
    check_message(why, other, "nothing is known of layer");
    atsi_routing_stats_free(&kept);
    free(other);
    assert_int_equal(setenv("XDG_CACHE_HOME", path, 1), 0); // a file where a folder should be
    other = atsi_routing_cache_path(1);
    assert_int_equal(atsi_routing_cache_add(other, p, &one, &err), ATSI_FAILED);
    free(other);
    free(path);
    temp_remove(folder);
    atsi_routing_stats_free(&one);
    atsi_lowered_free(&lowered);
    atsi_gguf_close(gguf);
    bytes_free(&file);
}

// What is known of a model is known of all its routers.
static void test_check_and_means(void **state) {
    (void)state;
    struct atsi_gguf *gguf = NULL;
    struct bytes file;
    struct atsi_lowered lowered;
    struct atsi_routing_stats s;
    struct atsi_routing_means means;
    struct atsi_error err = {0};
    lower_moe(&gguf, &file, &lowered);
    const struct atsi_program *p = &lowered.program;
    count_same(&s, p, 8);
    check_ok(atsi_routing_check(&s, p, &err), err);
    check_ok(atsi_routing_means_of(&s, 3, &means, &err), err);
    assert_true(fabs(means.eighth_share - 0.5) < 1e-12 && fabs(means.chunk_share - 0.5) < 1e-12);
    s.layers[1].n_used = 1;
    check_refused(atsi_routing_check(&s, p, &err), err, "layer 1");
    s.layers[1].n_used = 2;
    s.layers[1].n_tokens = 0;
    check_refused(atsi_routing_check(&s, p, &err), err, "layer 1");
    check_refused(atsi_routing_check(&s, &(struct atsi_program){0}, &err), err, "no experts");
    atsi_routing_stats_free(&s);
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
        {"{\"version\":1,\"routers\":[{\"layer\":4,\"n_experts\":2,\"n_used\":1,\"n_tokens\":1,\"n_reused\":0,"
         "\"counts\":[1,0]},{\"layer\":4,\"n_experts\":2,\"n_used\":1,\"n_tokens\":1,\"n_reused\":0,\"counts\":[0,1]}]"
         "}",
         "routers[1]: a second one of layer 4"},
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

struct adding {
    const struct atsi_program *program;
    const struct atsi_routing_stats *counted;
    const char *path;
};
enum {
    N_TOGETHER = 4,
    N_ADDED = 6
};

static void *add_often(void *argument) {
    const struct adding *a = argument;
    struct atsi_error err;
    for (int i = 0; i < N_ADDED; i++)
        if (atsi_routing_cache_add(a->path, a->program, a->counted, &err) != ATSI_OK) return argument;
    return NULL;
}

// Those that end at the same time lose nothing.
static void test_added_together(void **state) {
    (void)state;
    struct atsi_gguf *gguf = NULL;
    struct bytes file;
    struct atsi_lowered lowered;
    struct atsi_routing_stats one, kept;
    struct atsi_error why;
    char folder[TEMP_ROOT_CAP];
    pthread_t threads[N_TOGETHER];
    lower_moe(&gguf, &file, &lowered);
    count_same(&one, &lowered.program, 3);
    temp_folder(folder);
    assert_int_equal(setenv("XDG_CACHE_HOME", folder, 1), 0);
    struct adding adding = {&lowered.program, &one, atsi_routing_cache_path(7)};
    for (int i = 0; i < N_TOGETHER; i++) assert_int_equal(pthread_create(&threads[i], NULL, add_often, &adding), 0);
    for (int i = 0; i < N_TOGETHER; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    assert_true(atsi_routing_cache_load(adding.path, &lowered.program, &kept, &why));
    assert_int_equal(kept.layers[0].n_tokens, 3 * N_TOGETHER * N_ADDED);
    atsi_routing_stats_free(&kept);
    atsi_routing_stats_free(&one);
    free((char *)(uintptr_t)adding.path);
    temp_remove(folder);
    atsi_lowered_free(&lowered);
    atsi_gguf_close(gguf);
    bytes_free(&file);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_counts_and_file), cmocka_unit_test(test_bad_files),
                                       cmocka_unit_test(test_cache), cmocka_unit_test(test_added_together),
                                       cmocka_unit_test(test_check_and_means)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
