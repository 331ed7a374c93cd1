// Lowering of every family on very small files: what is used, how units are cut, what is refused and how it is said.
#include <stdio.h>
#include <stdlib.h>

#include "planner/arch/families.h"
#include "planner/lower.h"
#include "tests/support/check.h"
#include "tests/support/tiny_model.h"

enum {
    MAX_NAMES = 128
};

struct lowered_file {
    struct bytes file;
    struct atsi_gguf *gguf;
    struct atsi_lowered lowered;
};

static enum atsi_status lower_file(struct gguf_builder *g, struct lowered_file *f, struct atsi_error *err) {
    memset(f, 0, sizeof *f);
    f->file = gb_finish(g);
    gb_free(g);
    check_ok(atsi_gguf_open_memory(&f->gguf, f->file.data, f->file.size, "tiny", err), *err);
    return atsi_lower(f->gguf, &(struct atsi_lower_options){0}, &f->lowered, err);
}

static enum atsi_status lower_tiny(const char *arch, const struct tiny_change *change, struct lowered_file *f,
                                   struct atsi_error *err) {
    struct gguf_builder g;
    tiny_model(&g, arch, change);
    return lower_file(&g, f, err);
}

static void free_file(struct lowered_file *f) {
    atsi_lowered_free(&f->lowered);
    atsi_gguf_close(f->gguf);
    bytes_free(&f->file);
}

static void refuse(const char *arch, const struct tiny_change *change, const char *word) {
    struct lowered_file f;
    struct atsi_error err = {0};
    if (lower_tiny(arch, change, &f, &err) != ATSI_BAD_INPUT)
        fail_msg("%s accepted (expected a message with %s)", arch, word);
    check_message(err, word);
    free_file(&f);
}

static bool uses(const struct atsi_lowered *l, const char *name) {
    for (uint32_t i = 0; i < l->program.n_tensors; i++)
        if (!strcmp(l->program.tensors[i].name, name) && l->recipes[i].source) return true;
    return false;
}

// ---- every family -------------------------------------------------------------------------------------------------

static void test_every_family_uses_all_its_tensors(void **state) {
    (void)state;
    char names[MAX_NAMES][80];
    for (int a = 0; tiny_archs[a]; a++) {
        struct lowered_file f;
        struct atsi_error err = {0};
        check_ok(lower_tiny(tiny_archs[a], NULL, &f, &err), err);
        check_ok(atsi_program_check(&f.lowered.program, &err), err);
        unsigned n = tiny_tensor_names(tiny_archs[a], names, MAX_NAMES);
        for (unsigned i = 0; i < n; i++)
            if (!uses(&f.lowered, names[i])) fail_msg("%s: %s is not used", tiny_archs[a], names[i]);
        assert_string_equal(f.lowered.remarks, "");
        assert_false(f.lowered.tied);
        free_file(&f);
    }
}

static void test_a_missing_tensor_is_named(void **state) {
    (void)state;
    char names[MAX_NAMES][80];
    for (int a = 0; tiny_archs[a]; a++) {
        unsigned n = tiny_tensor_names(tiny_archs[a], names, MAX_NAMES);
        for (unsigned i = 0; i < n; i++)
            if (!tiny_is_optional(tiny_archs[a], names[i]))
                refuse(tiny_archs[a], &(struct tiny_change){.drop_tensor = names[i]}, names[i]);
    }
}

// Divisors of rope frequencies become tables and no tensor of the program; the set that the planned context needs must be there.
static void test_missing_rope_factors_are_named(void **state) {
    (void)state;
    refuse("phi3", &(struct tiny_change){.extra = "rope_factors_long.weight"}, "missing");
    refuse("phi3", &(struct tiny_change){.extra = "rope_factors_long.weight"}, "rope_factors_short.weight");
}

static void test_attention_temperature_limits_the_context(void **state) {
    (void)state;
    struct gguf_builder g;
    struct lowered_file f;
    struct atsi_error err = {0};
    for (uint32_t n_original = 511; n_original <= 512; n_original++) {
        tiny_model(&g, "mistral3", NULL); // made for a context of 512
        gb_f32(&g, "mistral3.attention.temperature_scale", 0.1f);
        gb_int(&g, "mistral3.rope.scaling.original_context_length", GB_U32, n_original);
        enum atsi_status status = lower_file(&g, &f, &err);
        assert_int_equal(status, n_original == 512 ? ATSI_OK : ATSI_BAD_INPUT);
        if (status != ATSI_OK) check_message(err, "temperature_scale", "--ctx 511");
        free_file(&f);
    }
}

static void test_a_wrong_shape_is_named(void **state) {
    (void)state;
    char names[MAX_NAMES][80];
    for (int a = 0; tiny_archs[a]; a++) {
        unsigned n = tiny_tensor_names(tiny_archs[a], names, MAX_NAMES);
        for (unsigned i = 0; i < n; i++) {
            if (!strcmp(names[i], "token_embd.weight")) continue; // its rows are the vocabulary
            refuse(tiny_archs[a], &(struct tiny_change){.reshape = names[i]}, names[i]);
        }
    }
}

// Types that the reader knows by size only.
static void test_a_type_without_a_kernel_is_named(void **state) {
    (void)state;
    static const char name[] = "blk.0.attn_q.weight";
    static const struct {
        uint32_t type;
        const char *words;
    } cases[] = {{ATSI_NVFP4, "no kernel computes with type NVFP4 (40)"}, {ATSI_I8, "type I8 (24)"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct gguf_builder g;
        struct lowered_file f;
        struct atsi_error err = {0};
        tiny_model(&g, "llama", NULL);
        const uint8_t *at = memmem(g.infos.data, g.infos.size, name, strlen(name));
        assert_non_null(at);
        size_t type_offset = (size_t)(at - g.infos.data) + strlen(name) + 4 + 2 * 8; // behind two dimensions
        bytes_set_le(&g.infos, type_offset, cases[i].type, 4);
        if (lower_file(&g, &f, &err) != ATSI_BAD_INPUT) fail_msg("type %u accepted", cases[i].type);
        check_message(err, name, cases[i].words);
        free_file(&f);
    }
}

static void test_every_family_is_tested(void **state) {
    (void)state;
    size_t n = 0;
    while (tiny_archs[n]) assert_non_null(atsi_family_find(atsi_str_of(tiny_archs[n++])));
    assert_null(atsi_family_at(n));
}

// ---- units --------------------------------------------------------------------------------------------------------

static const struct atsi_unit *unit_named(const struct atsi_program *p, const char *name) {
    for (uint32_t i = 0; i < p->n_units; i++)
        if (!strcmp(p->units[i].name, name)) return &p->units[i];
    fail_msg("no unit %s", name);
    return NULL;
}

static void test_units_of_a_dense_layer(void **state) {
    (void)state;
    static const char *const expected[] = {"token_embd",     "blk.0.attn_q",    "blk.0.attn_k",
                                           "blk.0.attn_v",   "blk.0.attention", "blk.0.attn_output",
                                           "blk.0.ffn_gate", "blk.0.ffn_up",    "blk.0.ffn_down"};
    struct lowered_file f;
    struct atsi_error err = {0};
    check_ok(lower_tiny("llama", NULL, &f, &err), err);
    const struct atsi_program *p = &f.lowered.program;
    assert_int_equal(p->n_units, 2 + 8 * TINY_LAYERS);
    for (unsigned i = 0; i < sizeof expected / sizeof *expected; i++)
        assert_string_equal(p->units[i].name, expected[i]);
    assert_int_equal(p->units[0].kind, ATSI_UNIT_EMBED);
    assert_int_equal(unit_named(p, "blk.1.attention")->kind, ATSI_UNIT_STATE);
    assert_int_equal(unit_named(p, "blk.1.attention")->layer, 1);
    assert_int_equal(p->units[p->n_units - 1].kind, ATSI_UNIT_HEAD);
    // norm and matrix; the rope table is in it too
    assert_int_equal(unit_named(p, "blk.0.attn_q")->weight_bytes,
                     4 * (TINY_EMBD + TINY_EMBD * TINY_HEADS * TINY_DIM + TINY_DIM / 4));
    free_file(&f);
}

static void test_the_router_stands_before_its_experts(void **state) {
    (void)state;
    static const char *const moe[] = {"qwen2moe", "qwen3moe", "qwen3next", "qwen35moe", "gpt-oss", "glm4moe"};
    for (unsigned a = 0; a < sizeof moe / sizeof *moe; a++) {
        struct lowered_file f;
        struct atsi_error err = {0};
        check_ok(lower_tiny(moe[a], NULL, &f, &err), err);
        const struct atsi_program *p = &f.lowered.program;
        unsigned n_expert_units = 0;
        for (uint32_t i = 0; i < p->n_units; i++) {
            if (p->units[i].kind != ATSI_UNIT_EXPERTS) continue;
            n_expert_units++;
            assert_in_range(p->units[i].router_unit, 0, i - 1);
            const struct atsi_unit *router = &p->units[p->units[i].router_unit];
            assert_int_equal(router->layer, p->units[i].layer);
            assert_int_equal(p->ops[router->first_op + router->n_ops - 1].kind, ATSI_OP_ROUTER);
        }
        assert_int_equal(n_expert_units, 3 * (strcmp(moe[a], "glm4moe") ? TINY_LAYERS : TINY_LAYERS - 1));
        free_file(&f);
    }
}

static void test_a_tied_head_uses_the_embedding(void **state) {
    (void)state;
    struct lowered_file f, untied;
    struct atsi_error err = {0};
    check_ok(lower_tiny("qwen3", &(struct tiny_change){.drop_tensor = "output.weight"}, &f, &err), err);
    check_ok(lower_tiny("qwen3", NULL, &untied, &err), err);
    assert_true(f.lowered.tied);
    assert_int_equal(f.lowered.program.n_tensors + 1, untied.lowered.program.n_tensors);
    assert_int_equal(unit_named(&f.lowered.program, "output")->weight_bytes,
                     unit_named(&untied.lowered.program, "output")->weight_bytes);
    free_file(&f);
    free_file(&untied);
}

// ---- rows in another order ----------------------------------------------------------------------------------------

static const uint32_t *row_order_of(const struct atsi_lowered *l, const char *name) {
    for (uint32_t i = 0; i < l->program.n_tensors; i++)
        if (!strcmp(l->program.tensors[i].name, name)) return l->recipes[i].row_order;
    return NULL;
}

static void test_query_gates_follow_the_queries(void **state) {
    (void)state;
    struct lowered_file f;
    struct atsi_error err = {0};
    check_ok(lower_tiny("qwen35", NULL, &f, &err), err);
    const uint32_t *order = row_order_of(&f.lowered, "blk.1.attn_q.weight");
    assert_non_null(order);
    for (uint32_t h = 0; h < TINY_HEADS; h++) // the file: [q of head 0, gate of head 0, q of head 1, ...]
        for (uint32_t i = 0; i < TINY_DIM; i++) {
            assert_int_equal(order[h * TINY_DIM + i], h * 2 * TINY_DIM + i);
            assert_int_equal(order[(TINY_HEADS + h) * TINY_DIM + i], h * 2 * TINY_DIM + TINY_DIM + i);
        }
    free_file(&f);
}

static void test_betas_come_before_alphas(void **state) {
    (void)state;
    // 2 key heads, 4 value heads. The file: b0 b1 a0 a1 | b2 b3 a2 a3.
    static const uint32_t expected[] = {0, 1, 4, 5, 2, 3, 6, 7};
    struct lowered_file f;
    struct atsi_error err = {0};
    check_ok(lower_tiny("qwen3next", NULL, &f, &err), err);
    assert_memory_equal(row_order_of(&f.lowered, "blk.0.ssm_ba.weight"), expected, sizeof expected);
    free_file(&f);
}

// ---- hyperparameters ----------------------------------------------------------------------------------------------

static void test_bad_hyperparameters_are_named(void **state) {
    (void)state;
    static const struct {
        const char *key;
        uint64_t value;
    } bad[] = {
        {"block_count", 0},
        {"block_count", 100000},
        {"embedding_length", 0},
        {"embedding_length", 1 << 30},
        {"attention.head_count", 0},
        {"attention.head_count", 3000000},
        {"attention.head_count_kv", 0},
        {"attention.head_count_kv", 3},
        {"attention.head_count_kv", 8},
        {"attention.key_length", 0},
        {"attention.key_length", 1 << 20},
        {"rope.dimension_count", 7},
        {"rope.dimension_count", TINY_DIM + 2},
        {"context_length", 0},
        {"feed_forward_length", 0},
    };
    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++)
        refuse("llama", &(struct tiny_change){.set_key = bad[i].key, .value = bad[i].value}, bad[i].key);
    refuse("qwen3moe", &(struct tiny_change){.set_key = "expert_used_count", .value = TINY_EXPERTS + 1},
           "expert_used_count");
    refuse("qwen3moe", &(struct tiny_change){.drop_key = "expert_count"}, "expert_count");
    refuse("qwen35", &(struct tiny_change){.set_key = "ssm.time_step_rank", .value = 3}, "ssm");
    refuse("qwen35", &(struct tiny_change){.drop_key = "ssm.state_size"}, "ssm.state_size");
    refuse("llama", &(struct tiny_change){.drop_key = "attention.layer_norm_rms_epsilon"}, "layer_norm_rms_epsilon");
}

static void test_keys_with_a_default_may_be_absent(void **state) {
    (void)state;
    static const char *const keys[] = {"rope.freq_base", "attention.sliding_window"};
    for (unsigned i = 0; i < sizeof keys / sizeof *keys; i++) {
        struct lowered_file f;
        struct atsi_error err = {0};
        check_ok(lower_tiny("gemma3", &(struct tiny_change){.drop_key = keys[i]}, &f, &err), err);
        free_file(&f);
    }
}

static void test_an_unknown_family_lists_the_known(void **state) {
    (void)state;
    struct gguf_builder g;
    struct lowered_file f;
    struct atsi_error err = {0};
    gb_init(&g);
    gb_str(&g, "general.architecture", "mamba\x1b[31m");
    check_refused(lower_file(&g, &f, &err), err, "mamba\\x1B", "llama", "qwen35moe", "phi3");
    free_file(&f);
}

// ---- what is left out ---------------------------------------------------------------------------------------------

static void test_unknown_tensors_are_skipped_with_one_line(void **state) {
    (void)state;
    struct lowered_file f;
    struct atsi_error err = {0};
    check_ok(lower_tiny("llama", &(struct tiny_change){.extra = "blk.0.mystery.weight"}, &f, &err), err);
    assert_non_null(strstr(f.lowered.remarks, "blk.0.mystery.weight"));
    assert_ptr_equal(strchr(f.lowered.remarks, '\n'), f.lowered.remarks + strlen(f.lowered.remarks) - 1);
    assert_false(uses(&f.lowered, "blk.0.mystery.weight"));
    free_file(&f);
}

// block_count with and without the prediction block, per-layer arrays one element longer.
static void test_prediction_blocks_are_no_layers(void **state) {
    (void)state;
    for (unsigned counted = 0; counted < 2; counted++) {
        struct gguf_builder g;
        struct lowered_file f;
        struct atsi_error err = {0};
        struct tiny_change change = {.set_key = "block_count",
                                     .value = TINY_LAYERS + counted,
                                     .drop_key = "attention.head_count_kv",
                                     .extra = "blk.2.nextn.eh_proj.weight"};
        tiny_model(&g, "llama", &change);
        gb_int(&g, "llama.nextn_predict_layers", GB_U32, 1);
        gb_ints(&g, "llama.attention.head_count_kv", GB_I32, TINY_LAYERS + 1, (const int64_t[]){2, 2, 4});
        check_ok(lower_file(&g, &f, &err), err);
        assert_int_equal(f.lowered.program.n_units, 2 + 8 * TINY_LAYERS);
        assert_non_null(strstr(f.lowered.remarks, "nextn"));
        assert_non_null(strstr(f.lowered.remarks, "multi-token prediction is not used"));
        free_file(&f);
    }
}

static void test_fewer_rows_than_tokens_are_refused(void **state) {
    (void)state;
    struct gguf_builder g;
    struct lowered_file f;
    struct atsi_error err = {0};
    tiny_model(&g, "llama", &(struct tiny_change){.drop_tensor = "token_embd.weight"});
    gb_tensor(&g, "token_embd.weight", 0, 2, (const uint64_t[]){TINY_EMBD, TINY_TOKENS - 1},
              TINY_EMBD * 4 * (TINY_TOKENS - 1), 0);
    assert_int_equal(lower_file(&g, &f, &err), ATSI_BAD_INPUT);
    free_file(&f);

    tiny_model(&g, "llama", &(struct tiny_change){.drop_tensor = "output.weight", .reshape = NULL});
    check_ok(lower_file(&g, &f, &err), err); // 40 rows, 36 tokens
    assert_int_equal(f.lowered.program.n_vocab, TINY_VOCAB);
    free_file(&f);
}

static void test_sliding_layers(void **state) {
    (void)state;
    struct lowered_file f;
    struct atsi_error err = {0};
    check_ok(lower_tiny("gpt-oss", NULL, &f, &err), err);
    assert_int_equal(f.lowered.program.states[0].window, 8); // even layers slide
    assert_int_equal(f.lowered.program.states[1].window, 0);
    free_file(&f);
    check_ok(lower_tiny("gemma3", &(struct tiny_change){0}, &f, &err), err);
    assert_int_equal(f.lowered.program.states[0].window, 8); // every sixth is full: none of these two
    assert_int_equal(f.lowered.program.states[1].window, 8);
    free_file(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_family_uses_all_its_tensors),
        cmocka_unit_test(test_a_missing_tensor_is_named),
        cmocka_unit_test(test_missing_rope_factors_are_named),
        cmocka_unit_test(test_attention_temperature_limits_the_context),
        cmocka_unit_test(test_a_wrong_shape_is_named),
        cmocka_unit_test(test_a_type_without_a_kernel_is_named),
        cmocka_unit_test(test_every_family_is_tested),
        cmocka_unit_test(test_units_of_a_dense_layer),
        cmocka_unit_test(test_the_router_stands_before_its_experts),
        cmocka_unit_test(test_a_tied_head_uses_the_embedding),
        cmocka_unit_test(test_query_gates_follow_the_queries),
        cmocka_unit_test(test_betas_come_before_alphas),
        cmocka_unit_test(test_bad_hyperparameters_are_named),
        cmocka_unit_test(test_keys_with_a_default_may_be_absent),
        cmocka_unit_test(test_an_unknown_family_lists_the_known),
        cmocka_unit_test(test_unknown_tensors_are_skipped_with_one_line),
        cmocka_unit_test(test_prediction_blocks_are_no_layers),
        cmocka_unit_test(test_fewer_rows_than_tokens_are_refused),
        cmocka_unit_test(test_sliding_layers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
