// Operations on rows: norms, activations, sums, rotations, routers.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/cuda_suite.h"
#include "tests/support/check.h"
#include "tests/support/gpu_case.h"

// ---- rows ----------------------------------------------------------------------------------------------------------------

static void norm_case(const struct suite *s, struct op_case_norm norm) {
    char what[80];
    snprintf(what, sizeof what, "norm %u groups of %u", norm.n_groups, norm.group);
    struct test_random r = {norm.group};
    struct op_case c;
    op_case_init(&c, 9, 0);
    op_case_norm(&c, &norm, &r);
    gpu_case_check(&c, s->device, (const uint32_t[]){9, single(s, 9), 4}, 3, 1e-6, what);
    op_case_free(&c);
}

void norms(void **state) {
    norm_case(*state, (struct op_case_norm){64, 1, .weighted = true});
    norm_case(*state, (struct op_case_norm){1, 3, .weighted = true});
    norm_case(*state, (struct op_case_norm){37, 3, .weighted = true, .add = true});
    norm_case(*state, (struct op_case_norm){128, 40, .in_place = true});
    norm_case(*state, (struct op_case_norm){5120, 1, .weighted = true});
    norm_case(*state, (struct op_case_norm){3000, 1, .weighted = true, .add = true});
}

void rows_ops(void **state) {
    const struct suite *s = *state;
    struct test_random r = {8};
    for (uint32_t width = 5; width <= 1024; width = width * 4 + 12) {
        struct op_case c;
        op_case_init(&c, 9, 3);
        int32_t a = op_case_buffer(&c, width, ATSI_ROWS_TOKENS, false, &r, 4.0f),
                b = op_case_buffer(&c, width, ATSI_ROWS_TOKENS, false, &r, 4.0f);
        int32_t y = op_case_buffer(&c, width, ATSI_ROWS_TOKENS, false, &r, 1.0f),
                gates = op_case_buffer(&c, 3, ATSI_ROWS_TOKENS, false, &r, 3.0f);
        int32_t wide = op_case_buffer(&c, 3 * width, ATSI_ROWS_TOKENS, false, &r, 2.0f),
                sums = op_case_buffer(&c, width, ATSI_ROWS_TOKENS, false, &r, 1.0f);
        int32_t picked = op_case_buffer(&c, width, ATSI_ROWS_OUTPUTS, false, &r, 1.0f);
        for (int act = ATSI_GLU_SILU; act <= ATSI_GLU_CLAMPED; act++) {
            add_op(&c, ATSI_OP_GLU, a, b, act == ATSI_GLU_SILU ? y : a, ATSI_NONE);
            c.program.ops[c.program.n_ops - 1].u.glu = (struct atsi_glu_params){(enum atsi_glu_act)act, 1.702f, 7.0f};
        }
        add_op(&c, ATSI_OP_GATE, wide, gates, wide, ATSI_NONE);
        add_op(&c, ATSI_OP_EXPERT_SUM, wide, gates, sums, ATSI_NONE);
        c.program.ops[c.program.n_ops - 1].add = width % 2 != 0;
        add_op(&c, ATSI_OP_ADD, y, sums, y, ATSI_NONE);
        add_op(&c, ATSI_OP_SELECT, y, ATSI_NONE, picked, ATSI_NONE);
        memcpy(c.output_rows, (const int32_t[]){8, 0, 3}, 3 * sizeof(int32_t));
        gpu_case_check(&c, s->device, (const uint32_t[]){9}, 1, 2e-6, "glu, gate, expert sum, add, select");
        op_case_free(&c);
    }
}

// Sums that go by ids, which repeat where there are more slots than ids.
void expert_sums(void **state) {
    const struct suite *s = *state;
    for (uint32_t n_slots = 1; n_slots < 100; n_slots = n_slots * 3 + 5) {
        struct test_random r = {n_slots};
        struct op_case c;
        op_case_init(&c, 7, 0);
        int32_t slots = op_case_buffer(&c, n_slots * 300, ATSI_ROWS_TOKENS, false, &r, 2.0f),
                weights = op_case_buffer(&c, n_slots, ATSI_ROWS_TOKENS, false, &r, 1.0f);
        int32_t ids = op_case_buffer(&c, n_slots, ATSI_ROWS_TOKENS, true, NULL, 0),
                out = op_case_buffer(&c, 300, ATSI_ROWS_TOKENS, false, &r, 1.0f);
        for (uint32_t i = 0; i < 7 * n_slots; i++)
            ((int32_t *)(void *)c.buffers[ids])[i] = (int32_t)test_random_below(&r, 40);
        add_op(&c, ATSI_OP_EXPERT_SUM, slots, weights, out, ATSI_NONE);
        c.program.ops[0].in[2] = op_case_view(&c, ids);
        c.program.ops[0].add = n_slots > 10;
        gpu_case_check(&c, s->device, (const uint32_t[]){7, single(s, 7)}, 2, 2e-6, "expert sum by ids");
        op_case_free(&c);
    }
}

static void rope_case(const struct suite *s, enum atsi_rope_pairing pairing, uint32_t head_dim, uint32_t n_rot,
                      bool in_place) {
    struct test_random r = {n_rot};
    struct op_case c;
    op_case_init(&c, 8, 0);
    int32_t in = op_case_buffer(&c, 3 * head_dim, ATSI_ROWS_TOKENS, false, &r, 2.0f);
    int32_t out = in_place ? in : op_case_buffer(&c, 3 * head_dim, ATSI_ROWS_TOKENS, false, &r, 1.0f);
    int32_t table = op_case_tensor(&c, n_rot / 2, 1, 1, &r, 9000.0f); // large angles, as at far positions
    add_op(&c, ATSI_OP_ROPE, in, ATSI_NONE, out, table);
    c.program.ops[0].u.rope = (struct atsi_rope_params){3, head_dim, n_rot, pairing, 1.25f};
    gpu_case_check(&c, s->device, (const uint32_t[]){8, single(s, 8)}, 2, 2e-6, "rope");
    op_case_free(&c);
}

void ropes(void **state) {
    for (int pairing = 0; pairing < 2; pairing++) {
        rope_case(*state, (enum atsi_rope_pairing)pairing, 128, 128, false);
        rope_case(*state, (enum atsi_rope_pairing)pairing, 40, 10, true);
        rope_case(*state, (enum atsi_rope_pairing)pairing, 81, 34, false);
    }
}

static void router_case(const struct suite *s, enum atsi_router_score score, uint32_t n_experts, uint32_t n_used,
                        bool biased, bool normalise) {
    struct test_random r = {n_experts + (uint32_t)score};
    struct op_case c;
    op_case_init(&c, 11, 0);
    const struct atsi_op *op =
        op_case_router(&c, &(struct atsi_router_params){n_experts, n_used, score, normalise, 2.5f}, biased, &r);
    int32_t logits = op->in[0].buffer, ids = op->out[0].buffer;
    for (uint32_t e = 0; e < n_experts; e++) c.buffers[logits][e] = (float)(e % 2); // ties go to the lower number
    gpu_case_check(&c, s->device, (const uint32_t[]){11, single(s, 11)}, 2, 2e-6, "router");
    op_case_make_resident(&c, n_experts, 0.4f, &r);
    op_case_count_chosen(&c, n_used);
    gpu_case_check(&c, s->device, (const uint32_t[]){11, single(s, 11)}, 2, 2e-6, "router, experts resident");
    assert_memory_equal(c.chosen, c.buffers[ids], c.n_chosen * sizeof *c.chosen);
    op_case_free(&c);
}

void routers(void **state) {
    for (int score = ATSI_ROUTER_SOFTMAX; score <= ATSI_ROUTER_SOFTMAX_SELECTED; score++) {
        router_case(*state, (enum atsi_router_score)score, 128, 8, false, true);
        router_case(*state, (enum atsi_router_score)score, 33, 33, true, false);
        router_case(*state, (enum atsi_router_score)score, 512, 40, true, true);
        router_case(*state, (enum atsi_router_score)score, 4, 1, false, false);
    }
}
