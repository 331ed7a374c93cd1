// Experts that are resident one by one (struct atsi_experts_ref): which slots routers give them, where products find their weights, and
// sums that do not depend on the order of the slots. On the CPU with every instruction set, and on the simulated device.
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/features.h"
#include "kernels/sim/sim_device.h"
#include "tests/support/check.h"
#include "tests/support/gpu_case.h"

static const char *const ISAS[] = {"reference", "avx2", "avxvnni", "avx512"};

static bool has_isa(const char *name) {
    enum atsi_isa isa;
    return atsi_isa_select(name, &isa, NULL) == ATSI_OK;
}

// ---- router ---------------------------------------------------------------------------------------------------------

enum {
    TOKENS = 9
};

struct routing {
    struct op_case c;
    int32_t ids, weights; // buffers
    uint32_t n_used;
};

static void build_router(struct routing *x, uint32_t n_experts, uint32_t n_used, enum atsi_router_score score,
                         struct test_random *r) {
    op_case_init(&x->c, TOKENS, 0);
    const struct atsi_op *op =
        op_case_router(&x->c, &(struct atsi_router_params){n_experts, n_used, score, true, 2.5f}, false, r);
    x->ids = op->out[0].buffer;
    x->weights = op->out[1].buffer;
    x->n_used = n_used;
}

// What the router chose without residents, those with a slot first.
static void move_resident_first(const int32_t *slots, uint32_t n_used, const int32_t *ids, const float *weights,
                                int32_t *wanted_ids, float *wanted_weights) {
    uint32_t n = 0;
    for (int absent = 0; absent < 2; absent++)
        for (uint32_t s = 0; s < n_used; s++)
            if ((slots[ids[s]] < 0) == absent) {
                wanted_ids[n] = ids[s];
                wanted_weights[n++] = weights[s];
            }
    assert_int_equal(n, n_used);
}

static void router_case(uint32_t n_experts, uint32_t n_used, enum atsi_router_score score, float share, uint64_t seed) {
    struct test_random r = {seed};
    struct routing x;
    build_router(&x, n_experts, n_used, score, &r);
    const uint32_t n = TOKENS * n_used;
    op_case_run(&x.c, "reference", 1, TOKENS, 0);
    float *plain_ids = op_case_copy(&x.c, x.ids), *plain_weights = op_case_copy(&x.c, x.weights);
    int32_t *wanted_ids = calloc(n, sizeof *wanted_ids);
    float *wanted_weights = calloc(n, sizeof *wanted_weights);
    op_case_make_resident(&x.c, n_experts, share, &r);
    for (uint32_t t = 0; t < TOKENS; t++)
        move_resident_first(x.c.resident_slots, n_used, (const int32_t *)(const void *)plain_ids + t * n_used,
                            plain_weights + t * n_used, wanted_ids + t * n_used, wanted_weights + t * n_used);
    op_case_count_chosen(&x.c, n_used);
    for (size_t i = 0; i < sizeof ISAS / sizeof *ISAS; i++) {
        if (!has_isa(ISAS[i])) continue;
        memset(x.c.chosen, 0xff, n * sizeof *x.c.chosen);
        op_case_run(&x.c, ISAS[i], 3, i % 2 ? 4 : TOKENS, 0);
        assert_memory_equal(x.c.buffers[x.ids], wanted_ids, n * sizeof *wanted_ids);
        assert_memory_equal(x.c.chosen, wanted_ids, n * sizeof *wanted_ids);
        assert_true(test_same_bits(x.c.buffers[x.weights], wanted_weights, n * sizeof *wanted_weights));
    }
    free(plain_ids);
    free(plain_weights);
    free(wanted_ids);
    free(wanted_weights);
    op_case_free(&x.c);
}

static void routers_put_residents_first(void **state) {
    (void)state;
    for (int score = 0; score <= ATSI_ROUTER_SOFTMAX_SELECTED; score++)
        for (int k = 0; k <= 4; k++) {
            uint64_t seed = 10 * (uint64_t)score + (uint64_t)k;
            router_case(128, 8, (enum atsi_router_score)score, 0.25f * (float)k, seed);
            router_case(60, 60, (enum atsi_router_score)score, 0.25f * (float)k, seed);
            router_case(5, 1, (enum atsi_router_score)score, 0.25f * (float)k, seed);
        }
}

// ---- sum ------------------------------------------------------------------------------------------------------------

// The slots of every token in another order, with their weights and ids.
static void shuffle_slots(struct op_case *c, int32_t slots, int32_t weights, int32_t ids, struct test_random *r) {
    uint32_t n_slots = c->program.buffers[ids].width, width = c->program.buffers[slots].width / n_slots;
    for (uint32_t t = 0; t < c->n_tokens; t++)
        for (uint32_t a = n_slots - 1; a > 0; a--) {
            uint32_t b = test_random_below(r, a + 1);
            float *const rows[] = {c->buffers[slots] + (size_t)t * n_slots * width, c->buffers[weights] + t * n_slots,
                                   c->buffers[ids] + t * n_slots};
            const uint32_t widths[] = {width, 1, 1};
            for (int k = 0; k < 3; k++)
                for (uint32_t i = 0; i < widths[k]; i++) {
                    float *x = &rows[k][a * widths[k] + i], *y = &rows[k][b * widths[k] + i], was = *x;
                    *x = *y;
                    *y = was;
                }
        }
}

static void sum_case(uint32_t n_slots, uint32_t width, bool add, uint64_t seed) {
    struct test_random r = {seed};
    struct op_case c;
    op_case_init(&c, 3, 0);
    int32_t slots = op_case_buffer(&c, n_slots * width, ATSI_ROWS_TOKENS, false, &r, 2.0f),
            weights = op_case_buffer(&c, n_slots, ATSI_ROWS_TOKENS, false, &r, 1.0f);
    int32_t ids = op_case_buffer(&c, n_slots, ATSI_ROWS_TOKENS, true, NULL, 0),
            out = op_case_buffer(&c, width, ATSI_ROWS_TOKENS, false, &r, 1.0f);
    for (uint32_t i = 0; i < 3 * n_slots; i++) ((int32_t *)c.buffers[ids])[i] = (int32_t)(3 * (i % n_slots) + 1);
    struct atsi_op *op = op_case_op(&c, ATSI_OP_EXPERT_SUM);
    op->in[0] = op_case_view(&c, slots);
    op->in[1] = op_case_view(&c, weights);
    op->out[0] = op_case_view(&c, out);
    op->add = add;
    // Without ids in the order of the slots: ascending here.
    float *before = op_case_copy(&c, out);
    op_case_run(&c, "reference", 1, 3, 0);
    float *wanted = op_case_copy(&c, out);
    c.program.ops[0].in[2] = op_case_view(&c, ids);
    for (int k = 0; k < 6; k++)
        for (size_t i = 0; i < sizeof ISAS / sizeof *ISAS; i++) {
            if (!has_isa(ISAS[i])) continue;
            op_case_restore(&c, out, before);
            op_case_run(&c, ISAS[i], 2, 3, 0);
            assert_true(test_same_bits(c.buffers[out], wanted, 3 * width * sizeof *wanted));
            shuffle_slots(&c, slots, weights, ids, &r);
        }
    free(before);
    free(wanted);
    op_case_free(&c);
}

static void sums_go_by_the_ids(void **state) {
    (void)state;
    sum_case(1, 40, false, 1);
    sum_case(8, 64, true, 2);
    sum_case(10, 37, false, 3);
    sum_case(45, 19, true, 4);
}

// ---- products -------------------------------------------------------------------------------------------------------

enum {
    EXPERTS = 7,
    USED = 3,
    COLS = 64,
    ROWS = 32
};

// A router, two products with its experts (the input shared, and one a slot) and their sum.
static int32_t build_mixture(struct op_case *c, bool quantised, struct test_random *r) {
    op_case_init(c, TOKENS, 0);
    int32_t logits = op_case_buffer(c, EXPERTS, ATSI_ROWS_TOKENS, false, r, 2.0f),
            ids = op_case_buffer(c, USED, ATSI_ROWS_TOKENS, true, NULL, 0),
            weights = op_case_buffer(c, USED, ATSI_ROWS_TOKENS, false, NULL, 0),
            x = op_case_buffer(c, COLS, ATSI_ROWS_TOKENS, false, r, 1.0f),
            up = op_case_buffer(c, USED * ROWS, ATSI_ROWS_TOKENS, false, NULL, 0),
            down = op_case_buffer(c, USED * COLS, ATSI_ROWS_TOKENS, false, NULL, 0),
            out = op_case_buffer(c, COLS, ATSI_ROWS_TOKENS, false, NULL, 0);
    struct atsi_op *op = op_case_op(c, ATSI_OP_ROUTER);
    op->in[0] = op_case_view(c, logits);
    op->out[0] = op_case_view(c, ids);
    op->out[1] = op_case_view(c, weights);
    op->u.router = (struct atsi_router_params){EXPERTS, USED, ATSI_ROUTER_SOFTMAX, true, 1.0f};
    const uint32_t cols[] = {COLS, ROWS}, rows[] = {ROWS, COLS};
    for (int k = 0; k < 2; k++) {
        int32_t weight = quantised ? op_case_q8_0(c, cols[k], EXPERTS * rows[k], r, 0.2f)
                                   : op_case_tensor(c, cols[k], EXPERTS * rows[k], 1, r, 0.2f);
        c->program.tensors[weight].ne[1] = rows[k];
        c->program.tensors[weight].ne[2] = EXPERTS;
        int32_t bias = op_case_tensor(c, rows[k], EXPERTS, 1, r, 1.0f);
        op = op_case_op(c, ATSI_OP_EXPERTS);
        op->in[0] = op_case_view(c, k == 0 ? x : up);
        op->in[1] = op_case_view(c, ids);
        op->out[0] = op_case_view(c, k == 0 ? up : down);
        op->tensor[0] = weight;
        op->tensor[1] = bias;
        op->u.experts = (struct atsi_experts_params){EXPERTS, USED, k == 1};
    }
    op = op_case_op(c, ATSI_OP_EXPERT_SUM);
    op->in[0] = op_case_view(c, down);
    op->in[1] = op_case_view(c, weights);
    op->in[2] = op_case_view(c, ids);
    op->out[0] = op_case_view(c, out);
    return out;
}

// The same on the simulated device, in rounds that run at once and from graphs.
static void check_on_device(struct op_case *c, int32_t out, const float *wanted) {
    struct atsi_sim_params params = {.memory_bytes = 64 << 20};
    struct atsi_device *d = NULL;
    struct atsi_error err = {.status = ATSI_OK};
    check_ok(atsi_sim_open(&params, &d, &err), err);
    for (int captured = 0; captured < 2; captured++) {
        memset(c->buffers[out], 0xff, TOKENS * COLS * sizeof *wanted);
        memset(c->chosen, 0xff, c->n_chosen * sizeof *c->chosen);
        gpu_case_run(c, d, captured ? 4 : TOKENS, 0, captured);
        assert_true(test_same_bits(c->buffers[out], wanted, TOKENS * COLS * sizeof *wanted));
        assert_memory_equal(c->chosen, c->buffers[c->program.ops[0].out[0].buffer], c->n_chosen * sizeof *c->chosen);
    }
    d->ops->close(d);
}

static void check_isas(struct op_case *c, int32_t out, const float *wanted) {
    for (size_t i = 0; i < sizeof ISAS / sizeof *ISAS; i++) {
        if (!has_isa(ISAS[i])) continue;
        op_case_run(c, ISAS[i], 3, i % 2 ? TOKENS : 1, 0);
        assert_true(test_same_bits(c->buffers[out], wanted, TOKENS * COLS * sizeof *wanted));
    }
}

// With some experts resident, and nothing but garbage where they stood, the result is the same to the bit; so it is when the block of one
// tensor has left again.
static void products_find_residents(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed <= 10; seed++) {
        struct test_random r = {seed};
        struct op_case c;
        int32_t out = build_mixture(&c, seed % 2, &r);
        op_case_run(&c, "reference", 1, TOKENS, 0);
        float *wanted = op_case_copy(&c, out);
        op_case_make_resident(&c, EXPERTS, 0.1f * (float)seed, &r);
        op_case_count_chosen(&c, USED);
        check_isas(&c, out, wanted);
        check_on_device(&c, out, wanted);
        op_case_drop_resident(&c, c.program.ops[1 + seed % 2].tensor[0]);
        check_isas(&c, out, wanted);
        check_on_device(&c, out, wanted);
        free(wanted);
        op_case_free(&c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(routers_put_residents_first),
        cmocka_unit_test(sums_go_by_the_ids),
        cmocka_unit_test(products_find_residents),
    };
    return cmocka_run_group_tests_name("experts resident one by one", tests, NULL, NULL);
}
