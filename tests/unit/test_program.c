// The program's checks, sizes, buffer placement and its way through JSON.
#include <stdlib.h>
#include <string.h>

#include "planner/lower.h"
#include "planner/report.h"
#include "tests/support/check.h"
#include "tests/support/plan_builder.h"
#include "tests/support/program_builder.h"
#include "tests/support/tiny_model.h"

static void accepts_the_valid_program(void **state) {
    (void)state;
    struct atsi_plan plan;
    struct atsi_error err = {0};
    test_build_plan(&plan);
    if (atsi_program_check(&plan.program, &err) != ATSI_OK) fail_msg("%s", err.text);
    atsi_plan_free(&plan);
}

// Each mutation breaks one thing that a kernel would trust.
static void break_view_offset(struct atsi_program *p) { p->ops[1].in[0].offset = 1; }
static void break_view_buffer(struct atsi_program *p) { p->ops[1].in[0].buffer = (int32_t)p->n_buffers; }
static void break_view_wrap(struct atsi_program *p) { p->ops[1].in[0] = (struct atsi_view){0, UINT32_MAX, 33}; }
static void break_tensor_index(struct atsi_program *p) { p->ops[2].tensor[0] = 9999; }
static void break_tensor_shape(struct atsi_program *p) { p->tensors[1].ne[1] /= 2, p->tensors[1].size_bytes /= 2; }
static void break_tensor_size(struct atsi_program *p) { p->tensors[1].size_bytes++; }
static void break_group(struct atsi_program *p) { p->ops[1].u.norm.group = 7; }
static void break_zero_group(struct atsi_program *p) { p->ops[1].u.norm.group = 0; }
static void break_heads(struct atsi_program *p) { p->ops[5].u.attention.n_heads = 3; }
static void break_state(struct atsi_program *p) { p->ops[5].state = 7; }
static void break_state_kind(struct atsi_program *p) { p->states[0].kind = ATSI_STATE_DELTA; }
static void break_n_used(struct atsi_program *p) { p->ops[9].u.router.n_used = 5; }
static void break_router_range(struct atsi_program *p) { p->ops[10].u.experts.n_experts = 3, p->tensors[6].ne[2] = 3; }
static void break_ids_type(struct atsi_program *p) { p->buffers[p->ops[9].out[0].buffer].is_int = false; }
static void break_rows(struct atsi_program *p) { p->buffers[0].rows = ATSI_ROWS_OUTPUTS; }
static void break_unit_cover(struct atsi_program *p) { p->units[1].n_ops = 1; }
static void break_unit_bytes(struct atsi_program *p) { p->units[1].weight_bytes++; }
static void break_router_unit(struct atsi_program *p) { p->units[6].router_unit = 6; }
static void break_experts_kind(struct atsi_program *p) { p->units[6].kind = ATSI_UNIT_MATRIX; }
static void break_experts_in_matrix(struct atsi_program *p) {
    break_experts_kind(p), p->units[6].router_unit = ATSI_NONE;
}
static void break_no_router(struct atsi_program *p) { p->units[6].router_unit = ATSI_NONE; }
static void break_other_router(struct atsi_program *p) { p->units[6].router_unit = 4; }
// What a unit says it is does not make its matrix one of experts, nor is a matrix one of the experts in their unit.
static void break_experts_are_none(struct atsi_program *p) {
    p->units[7].kind = ATSI_UNIT_EXPERTS;
    p->units[7].router_unit = 5;
}
static void break_experts_with_matrix(struct atsi_program *p) {
    p->units[6].n_ops += p->units[7].n_ops;
    p->units[6].weight_bytes += p->units[7].weight_bytes;
    p->n_units--;
}
static void break_logits(struct atsi_program *p) { p->logits = 0; }
static void break_vocab(struct atsi_program *p) { p->n_vocab = 47; }
static void break_kind(struct atsi_program *p) { p->ops[3].kind = (enum atsi_op_kind)99; }
static void break_order(struct atsi_program *p) { p->ops[12].kind = ATSI_OP_ADD; }

static void rejects_each_broken_program(void **state) {
    (void)state;
    static const struct {
        const char *name;
        void (*apply)(struct atsi_program *);
    } cases[] = {
        {"view offset", break_view_offset},
        {"view buffer", break_view_buffer},
        {"view wrap", break_view_wrap},
        {"tensor index", break_tensor_index},
        {"tensor shape", break_tensor_shape},
        {"tensor size", break_tensor_size},
        {"group", break_group},
        {"zero group", break_zero_group},
        {"heads", break_heads},
        {"state", break_state},
        {"state kind", break_state_kind},
        {"n_used", break_n_used},
        {"router range", break_router_range},
        {"ids type", break_ids_type},
        {"rows", break_rows},
        {"unit cover", break_unit_cover},
        {"unit bytes", break_unit_bytes},
        {"router unit", break_router_unit},
        {"kind of experts", break_experts_kind},
        {"experts in a matrix's unit", break_experts_in_matrix},
        {"no router", break_no_router},
        {"a router that is none", break_other_router},
        {"experts that are none", break_experts_are_none},
        {"a matrix among experts", break_experts_with_matrix},
        {"logits", break_logits},
        {"vocabulary", break_vocab},
        {"kind", break_kind},
        {"order", break_order},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct atsi_plan plan;
        struct atsi_error err = {0};
        test_build_plan(&plan);
        cases[i].apply(&plan.program);
        if (atsi_program_check(&plan.program, &err) != ATSI_BAD_INPUT) fail_msg("accepted: %s", cases[i].name);
        assert_true(err.text[0] != 0);
        atsi_plan_free(&plan);
    }
}

// Tags the bytes of a view's row with their buffer, or sees that they still have that tag.
static void play_view(const struct atsi_plan *plan, int16_t *owner, const struct atsi_view *v, uint32_t row,
                      bool write) {
    const struct atsi_buffer *b = &plan->program.buffers[v->buffer];
    uint64_t at = b->offset_bytes + 4 * ((uint64_t)row * b->width + v->offset);
    for (uint64_t j = at; j < at + 4 * (uint64_t)v->width; j++) {
        if (!write) assert_int_equal(owner[j], v->buffer);
        owner[j] = (int16_t)v->buffer;
    }
}

static void play_views(const struct atsi_plan *plan, int16_t *owner, const struct atsi_view *views, int n, bool write) {
    for (int k = 0; k < n && views[k].buffer != ATSI_NONE; k++) {
        const struct atsi_buffer *b = &plan->program.buffers[views[k].buffer];
        uint32_t rows = b->rows == ATSI_ROWS_TOKENS ? plan->limits.chunk : plan->limits.n_outputs;
        assert_true(b->offset_bytes % 256 == 0 &&
                    b->offset_bytes + (uint64_t)b->width * 4 * rows <= plan->limits.compute_bytes);
        for (uint32_t row = 0; row < rows; row++) play_view(plan, owner, &views[k], row, write);
    }
}

// Independent oracle: play the program, tag every byte that an op writes with its buffer, and see that reads find their
// writer's tag. The ops behind SELECT run twice, as for two groups of output rows.
static void play_program(const struct atsi_plan *plan) {
    const struct atsi_program *p = &plan->program;
    int16_t *owner = malloc(plan->limits.compute_bytes * sizeof *owner);
    memset(owner, -1, plan->limits.compute_bytes * sizeof *owner);
    uint32_t select = 0;
    bool again = false;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const struct atsi_op *op = &p->ops[i];
        if (op->kind == ATSI_OP_SELECT) select = i;
        play_views(plan, owner, op->in, ATSI_OP_MAX_IN, false);
        if (op->add) play_views(plan, owner, op->out, 1, false);
        play_views(plan, owner, op->out, ATSI_OP_MAX_OUT, true);
        if (i + 1 < p->n_ops || again) continue;
        again = true;
        i = select - 1;
    }
    struct atsi_view logits = {p->logits, 0, p->buffers[p->logits].width};
    play_view(plan, owner, &logits, 0, false);
    free(owner);
}

static void buffers_alive_together_do_not_overlap(void **state) {
    (void)state;
    struct atsi_plan plan;
    test_build_plan(&plan);
    play_program(&plan);
    atsi_plan_free(&plan);
}

// Activations of real programs: what a layer's attention works with and what its feed-forward works with are not live together.
static void layers_reuse_their_buffers(void **state) {
    (void)state;
    for (unsigned a = 0; tiny_archs[a]; a++) {
        struct gguf_builder g;
        struct atsi_gguf *gguf = NULL;
        struct atsi_lowered lowered;
        struct atsi_plan plan = {.limits = {.chunk = 5, .n_outputs = 3}};
        struct atsi_error err = {0};
        uint64_t in_all = 0;
        tiny_model(&g, tiny_archs[a], NULL);
        struct bytes file = gb_finish(&g);
        gb_free(&g);
        check_ok(atsi_gguf_open_memory(&gguf, file.data, file.size, "tiny", &err), err);
        check_ok(atsi_lower(gguf, &(struct atsi_lower_options){0}, &lowered, &err), err);
        plan.program = lowered.program;
        check_ok(atsi_program_place_buffers(&plan.program, 5, 3, &plan.limits.compute_bytes, &err), err);
        play_program(&plan);
        for (uint32_t i = 0; i < plan.program.n_buffers; i++)
            in_all += (uint64_t)plan.program.buffers[i].width * 4 *
                      (plan.program.buffers[i].rows == ATSI_ROWS_TOKENS ? 5 : 3);
        assert_true(plan.limits.compute_bytes < in_all);
        atsi_lowered_free(&lowered);
        atsi_gguf_close(gguf);
        bytes_free(&file);
    }
}

// Kernels write where a manifest's offsets point to: none may lie behind the memory that is allocated for them.
static void buffers_outside_the_compute_region_are_refused(void **state) {
    (void)state;
    struct atsi_plan plan;
    test_build_plan(&plan);
    uint64_t *offset = &plan.program.buffers[0].offset_bytes, whole = plan.limits.compute_bytes;
    const uint64_t was = *offset, bad[] = {whole, was + 1, UINT64_C(1) << 52};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        *offset = bad[i];
        check_plan_refused(&plan, plan.program.buffers[0].name);
    }
    *offset = was;
    plan.limits.compute_bytes = whole - 1;
    check_plan_refused(&plan, "compute region");
    plan.limits.compute_bytes = 0;
    check_plan_refused(&plan, "compute region");
    atsi_plan_free(&plan);
}

static void manifest_round_trip_is_exact(void **state) {
    (void)state;
    struct atsi_plan plan, back;
    struct atsi_error err = {0};
    char *json, *again;
    size_t size, size_again;
    test_build_plan(&plan);
    plan.model.gguf_hash = 0xFEDCBA9876543210u;
    plan.chat_template = strdup("{{ \"x\" }}\n\xF0\x9F\x98\x80");
    plan.notes = strdup("made by a test");
    plan.contention = (struct atsi_contention){1.25, 1.5, 1.1};
    plan.decode_times = calloc(plan.program.n_units, sizeof *plan.decode_times);
    plan.decode_times[3].gpu_us = 0.1f;
    assert_int_equal(atsi_plan_to_json(&plan, &json, &size, &err), ATSI_OK);
    if (atsi_plan_from_json(json, size, &back, &err) != ATSI_OK) fail_msg("%s", err.text);
    assert_int_equal(atsi_plan_to_json(&back, &again, &size_again, &err), ATSI_OK);
    assert_string_equal(json, again);
    assert_true(back.model.gguf_hash == plan.model.gguf_hash && back.decode_times[3].gpu_us == 0.1f);
    assert_memory_equal(back.program.ops, plan.program.ops, plan.program.n_ops * sizeof *plan.program.ops);
    free(json);
    free(again);
    atsi_plan_free(&plan);
    atsi_plan_free(&back);
}

// Where a plan is told of, its texts move no cursor.
static void forged_texts_are_shown_escaped(void **state) {
    (void)state;
    struct atsi_plan plan, back;
    struct atsi_plan_file *file;
    struct atsi_error err = {0};
    struct bytes bytes = pb_plan(false);
    char *json, *shown;
    size_t size, n_shown;
    test_build_plan(&plan);
    strcpy(plan.model.name, "\x1b[31mname\x7f");
    strcpy(plan.model.arch, "\xc2\x9b"
                            "arch\n");
    strcpy(plan.device, "card\r");
    strcpy(plan.program.units[1].name, "unit\a");
    plan.program.units[1].backend = ATSI_GPU;
    plan.notes = strdup("first\nsecond\x1b[2J\n");
    check_ok(atsi_plan_to_json(&plan, &json, &size, &err), err);
    check_ok(atsi_plan_from_json(json, size, &back, &err), err);
    assert_string_equal(back.program.units[1].name, "unit\\x07");
    check_ok(atsi_plan_file_open_memory(&file, bytes.data, bytes.size, "mem", &err), err);
    FILE *out = open_memstream(&shown, &n_shown);
    check_ok(atsi_report_info(out, file, &back, false, &err), err);
    fclose(out);
    static const char *const lines[] = {"model      \\x1B[31mname\\x7F (\\xC2\\x9Barch\\x0A)",
                                        "planned for card\\x0D\n", "note       first\nnote       second\\x1B[2J\n"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        if (!strstr(shown, lines[i])) fail_msg("no %s in %s", lines[i], shown);
    for (const char *c = shown; *c; c++) assert_true(*c == '\n' || ((unsigned char)*c >= 0x20 && *c != 0x7f));
    free(shown);
    free(json);
    atsi_plan_file_close(file);
    atsi_plan_free(&plan);
    atsi_plan_free(&back);
    bytes_free(&bytes);
}

// A manifest with any byte changed or cut either is refused with a message or parses to a program that passes the checks.
static void damaged_manifests_never_pass_unchecked(void **state) {
    (void)state;
    struct atsi_plan plan, back;
    char *json;
    size_t size;
    test_build_plan(&plan);
    assert_int_equal(atsi_plan_to_json(&plan, &json, &size, NULL), ATSI_OK);
    static const char replacements[] = "0-9\"}]x,";
    for (size_t i = 0; i < size; i += 3) {
        struct atsi_error err = {0};
        char kept = json[i];
        json[i] = replacements[i % (sizeof replacements - 1)];
        if (atsi_plan_from_json(json, size, &back, &err) == ATSI_OK)
            assert_int_equal(atsi_program_check(&back.program, &err), ATSI_OK);
        else
            assert_true(err.text[0] != 0);
        atsi_plan_free(&back);
        json[i] = kept;
        assert_int_equal(atsi_plan_from_json(json, i, &back, &err), ATSI_BAD_INPUT);
        atsi_plan_free(&back);
    }
    free(json);
    atsi_plan_free(&plan);
}

static void sizes_follow_their_formulas(void **state) {
    (void)state;
    uint64_t ne[4] = {512, 17, 3, 1}, huge[4] = {1u << 20, UINT64_MAX / 2, 2, 1}, odd[4] = {100, 4, 1, 1};
    assert_int_equal(atsi_layout_bytes(ATSI_Q4_K, ATSI_LAYOUT_PLAIN, ne), 2 * 144 * 17 * 3);
    assert_int_equal(atsi_layout_bytes(ATSI_Q4_K, ATSI_LAYOUT_TILE16, ne), 2 * 144 * 32 * 3);
    assert_int_equal(atsi_layout_bytes(ATSI_F32, ATSI_LAYOUT_TILE16, ne), 0);
    assert_int_equal(atsi_layout_bytes(ATSI_F32, ATSI_LAYOUT_PLAIN, huge), 0);
    assert_int_equal(atsi_layout_bytes(ATSI_Q8_0, ATSI_LAYOUT_PLAIN, odd), 0);
    struct atsi_state kv = {.kind = ATSI_STATE_KV, .n_heads = 8, .k_dim = 128, .v_dim = 128};
    assert_int_equal(atsi_state_bytes(&kv, 4096, 512, ATSI_F16), 2ull * 2 * 8 * 128 * 4096);
    assert_int_equal(atsi_state_bytes(&kv, 4096, 512, ATSI_Q8_0), 2ull * 8 * (128 / 32 * 34) * 4096);
    kv.window = 1024;
    assert_int_equal(atsi_state_capacity(&kv, 4096, 512), 1536);
    assert_int_equal(atsi_state_capacity(&kv, 1200, 512), 1200);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accepts_the_valid_program),
        cmocka_unit_test(rejects_each_broken_program),
        cmocka_unit_test(buffers_alive_together_do_not_overlap),
        cmocka_unit_test(layers_reuse_their_buffers),
        cmocka_unit_test(buffers_outside_the_compute_region_are_refused),
        cmocka_unit_test(manifest_round_trip_is_exact),
        cmocka_unit_test(forged_texts_are_shown_escaped),
        cmocka_unit_test(damaged_manifests_never_pass_unchecked),
        cmocka_unit_test(sizes_follow_their_formulas),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
