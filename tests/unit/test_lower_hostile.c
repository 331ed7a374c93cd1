// Lowering of damaged files: whatever stands in header and directory, the answer is a program that passes the checks or
// one line. Run under sanitizers by `make asan`. The random numbers carry their seed, so a failure repeats.
#include <stdio.h>
#include <stdlib.h>

#include "planner/content.h"
#include "tests/support/check.h"
#include "tests/support/random.h"
#include "tests/support/tiny_model.h"

// Lowers the file and makes the content of a plan of it. Returns the status.
static enum atsi_status try_file(const struct bytes *file, struct atsi_error *err) {
    struct atsi_gguf *gguf = NULL;
    struct atsi_lowered lowered = {0};
    struct atsi_plan plan = {0};
    enum atsi_status status = atsi_gguf_open_memory(&gguf, file->data, file->size, "damaged", err);
    if (status == ATSI_OK) status = atsi_lower(gguf, &(struct atsi_lower_options){0}, &lowered, err);
    if (status == ATSI_OK) {
        check_ok(atsi_program_check(&lowered.program, err), *err);
        struct atsi_content_options options = {.kv_type = ATSI_Q8_0, .command = "test"};
        status = atsi_content_make(gguf, &lowered, &options, &plan, err);
    }
    atsi_plan_free(&plan);
    atsi_lowered_free(&lowered);
    atsi_gguf_close(gguf);
    return status;
}

static void check_answer(enum atsi_status status, const struct atsi_error *err, const char *arch, uint64_t seed) {
    if (status == ATSI_OK) return;
    if (status != ATSI_BAD_INPUT)
        fail_msg("%s, seed %llu: status %d: %s", arch, (unsigned long long)seed, status, err->text);
    assert_true(err->text[0] && !strchr(err->text, '\n'));
}

// A value that a careless reader trips over, or anything.
static uint64_t bad_value(uint64_t *rng) {
    static const uint64_t values[] = {
        0, 1, 2, 3, 7, 255, 65535, 1 << 20, UINT32_MAX, UINT64_C(1) << 31, UINT64_C(1) << 63, UINT64_MAX};
    uint64_t i = test_next(rng) % (2 * sizeof values / sizeof *values);
    return i < sizeof values / sizeof *values ? values[i] : test_next(rng);
}

static void test_every_number_of_the_structure(void **state) {
    (void)state;
    for (int a = 0; tiny_archs[a]; a++) {
        struct gguf_builder g;
        uint64_t rng = 1;
        tiny_model(&g, tiny_archs[a], NULL);
        struct bytes file = gb_finish(&g);
        for (unsigned i = 0; i < g.n_fields; i++)
            for (int k = 0; k < 3; k++) {
                struct bytes damaged = bytes_exact(&file, file.size);
                struct atsi_error err = {0};
                bytes_set_le(&damaged, g.fields[i].offset, bad_value(&rng), g.fields[i].size);
                check_answer(try_file(&damaged, &err), &err, tiny_archs[a], i);
                bytes_free(&damaged);
            }
        bytes_free(&file);
        gb_free(&g);
    }
}

static void test_random_bytes_of_the_metadata(void **state) {
    (void)state;
    for (int a = 0; tiny_archs[a]; a++) {
        struct gguf_builder g;
        tiny_model(&g, tiny_archs[a], NULL);
        size_t header = 24 + g.kv.size + g.infos.size;
        struct bytes file = gb_finish(&g);
        for (uint64_t seed = 0; seed < 400; seed++) {
            struct bytes damaged = bytes_exact(&file, file.size);
            struct atsi_error err = {0};
            uint64_t rng = seed;
            for (uint64_t n = 1 + test_next(&rng) % 4; n > 0; n--)
                damaged.data[test_next(&rng) % header] = (uint8_t)test_next(&rng);
            check_answer(try_file(&damaged, &err), &err, tiny_archs[a], seed);
            bytes_free(&damaged);
        }
        bytes_free(&file);
        gb_free(&g);
    }
}

// Every hyperparameter of every family set to every bad value.
static void test_bad_hyperparameters(void **state) {
    (void)state;
    static const char *const keys[] = {"block_count",
                                       "context_length",
                                       "embedding_length",
                                       "feed_forward_length",
                                       "attention.head_count",
                                       "attention.head_count_kv",
                                       "attention.key_length",
                                       "attention.value_length",
                                       "rope.dimension_count",
                                       "attention.sliding_window",
                                       "expert_count",
                                       "expert_used_count",
                                       "expert_feed_forward_length",
                                       "expert_shared_feed_forward_length",
                                       "expert_shared_count",
                                       "leading_dense_block_count",
                                       "ssm.conv_kernel",
                                       "ssm.state_size",
                                       "ssm.group_count",
                                       "ssm.time_step_rank",
                                       "ssm.inner_size",
                                       "full_attention_interval"};
    static const uint64_t values[] = {0, 1, 2, 3, 5, 31, 33, 511, 4095, 65536, 1 << 20, 1 << 24, 1u << 31, UINT32_MAX};
    for (int a = 0; tiny_archs[a]; a++)
        for (unsigned k = 0; k < sizeof keys / sizeof *keys; k++)
            for (unsigned v = 0; v < sizeof values / sizeof *values; v++) {
                struct gguf_builder g;
                struct atsi_error err = {0};
                tiny_model(&g, tiny_archs[a], &(struct tiny_change){.set_key = keys[k], .value = values[v]});
                struct bytes file = gb_finish(&g);
                gb_free(&g);
                check_answer(try_file(&file, &err), &err, keys[k], values[v]);
                bytes_free(&file);
            }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_number_of_the_structure),
        cmocka_unit_test(test_random_bytes_of_the_metadata),
        cmocka_unit_test(test_bad_hyperparameters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
