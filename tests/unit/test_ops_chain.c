// Operations in a row over quantised weights: what a list shares and overlaps (quantised inputs, chains, pieces of one wide row, slots
// that are taken over) must not show in the results.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/dequant.h"
#include "kernels/cpu/features.h"
#include "tests/support/check.h"
#include "tests/support/op_case.h"

enum {
    TOKENS = 5,
    WIDTH = 64,
    FFN = 4096
};

static void norm(struct op_case *c, int32_t in, int32_t out) {
    struct atsi_op *op = op_case_op(c, ATSI_OP_RMS_NORM);
    op->in[0] = op_case_view(c, in);
    op->out[0] = op_case_view(c, out);
    op->u.norm = (struct atsi_norm_params){c->program.buffers[in].width, 1e-6f};
}

static void matmul(struct op_case *c, int32_t in, int32_t weight, int32_t out, bool add) {
    struct atsi_op *op = op_case_op(c, ATSI_OP_MATMUL);
    op->in[0] = op_case_view(c, in);
    op->out[0] = op_case_view(c, out);
    op->tensor[0] = weight;
    op->add = add;
}

static void glu(struct op_case *c, int32_t gate, int32_t up, int32_t out) {
    struct atsi_op *op = op_case_op(c, ATSI_OP_GLU);
    op->in[0] = op_case_view(c, gate);
    op->in[1] = op_case_view(c, up);
    op->out[0] = op_case_view(c, out);
}

// The weights and buffers of two feed-forward blocks: x += down(silu(gate(n)) * up(n)), n = norm(x).
struct blocks {
    struct op_case c;
    int32_t x, n, gate, up, weights[2][3];
};

static void build(struct blocks *b, bool in_place) {
    struct test_random r = {7};
    op_case_init(&b->c, TOKENS, 0);
    b->x = op_case_buffer(&b->c, WIDTH, ATSI_ROWS_TOKENS, false, &r, 1.0f);
    b->n = op_case_buffer(&b->c, WIDTH, ATSI_ROWS_TOKENS, false, NULL, 0);
    b->gate = op_case_buffer(&b->c, FFN, ATSI_ROWS_TOKENS, false, NULL, 0);
    b->up = op_case_buffer(&b->c, FFN, ATSI_ROWS_TOKENS, false, NULL, 0);
    for (int i = 0; i < 2; i++) {
        int32_t *w = b->weights[i];
        w[0] = op_case_q8_0(&b->c, WIDTH, FFN, &r, 0.2f);
        w[1] = op_case_q8_0(&b->c, WIDTH, FFN, &r, 0.2f);
        w[2] = op_case_q8_0(&b->c, FFN, WIDTH, &r, 0.02f);
        norm(&b->c, b->x, b->n);
        matmul(&b->c, b->n, w[0], b->gate, false);
        matmul(&b->c, b->n, w[1], b->up, false); // the same input: quantised once
        glu(&b->c, b->gate, b->up, in_place ? b->gate : b->up);
        matmul(&b->c, in_place ? b->gate : b->up, w[2], b->x, true);
    }
}

static double *multiply(const struct op_case *c, int32_t weight, const double *in, uint32_t n_in, uint32_t n_out) {
    double *out = calloc(n_out, sizeof *out);
    float *row = calloc(n_in, sizeof *row);
    const struct atsi_tensor *t = &c->program.tensors[weight];
    for (uint32_t o = 0; o < n_out; o++) {
        atsi_dequant_row(t->dtype, t->layout, c->tensors[weight], n_in, o, row);
        for (uint32_t i = 0; i < n_in; i++) out[o] += row[i] * in[i];
    }
    free(row);
    return out;
}

static void apply_block(const struct blocks *b, int i, double *x) {
    double n[WIDTH], squares = 0;
    for (int k = 0; k < WIDTH; k++) squares += x[k] * x[k];
    for (int k = 0; k < WIDTH; k++) n[k] = x[k] / sqrt(squares / WIDTH + 1e-6);
    double *gate = multiply(&b->c, b->weights[i][0], n, WIDTH, FFN),
           *up = multiply(&b->c, b->weights[i][1], n, WIDTH, FFN);
    for (int k = 0; k < FFN; k++) gate[k] *= up[k] / (1 + exp(-gate[k]));
    double *down = multiply(&b->c, b->weights[i][2], gate, FFN, WIDTH);
    for (int k = 0; k < WIDTH; k++) x[k] += down[k];
    free(gate);
    free(up);
    free(down);
}

// Against double precision without quantised inputs: int8 puts 0.45 % of a typical value on each, so about 1 % of the rms on the sums.
static void check_values(const struct blocks *b, const float *x_before, const float *x_after) {
    double off = 0, size = 0;
    for (int t = 0; t < TOKENS; t++) {
        double x[WIDTH];
        for (int k = 0; k < WIDTH; k++) x[k] = x_before[t * WIDTH + k];
        apply_block(b, 0, x);
        apply_block(b, 1, x);
        for (int k = 0; k < WIDTH; k++) {
            off += pow(x_after[t * WIDTH + k] - x[k], 2);
            size += pow(x[k] - x_before[t * WIDTH + k], 2);
        }
    }
    assert_true(size > 1e-3);
    if (!(off < 4e-4 * size)) fail_msg("off by %.3g of the rms", sqrt(off / size));
}

static void feed_forward(bool in_place) {
    static const char *const ISAS[] = {"reference", "avx2", "avxvnni", "avx512"};
    struct blocks b;
    enum atsi_isa isa;
    build(&b, in_place);
    float *before = op_case_copy(&b.c, b.x), *first = NULL;
    for (size_t i = 0; i < sizeof ISAS / sizeof *ISAS; i++) {
        if (atsi_isa_select(ISAS[i], &isa, NULL) != ATSI_OK) continue;
        for (uint32_t chunk = 1; chunk <= TOKENS; chunk += 2)
            for (int n_threads = 1; n_threads <= 4; n_threads++) {
                op_case_restore(&b.c, b.x, before);
                op_case_run(&b.c, ISAS[i], n_threads, chunk, 0);
                if (first == NULL) {
                    first = op_case_copy(&b.c, b.x);
                    check_values(&b, before, first);
                }
                if (!test_same_bits(first, b.c.buffers[b.x], TOKENS * WIDTH * sizeof(float)))
                    fail_msg("%s, %d threads, rounds of %u: other bits", ISAS[i], n_threads, chunk);
            }
    }
    free(before);
    free(first);
    op_case_free(&b.c);
}

static void feed_forward_blocks(void **state) {
    (void)state;
    feed_forward(false);
    feed_forward(true);
}

// More inputs than there are slots, one of them read again at the end and one overwritten in between.
static void inputs_outnumber_the_slots(void **state) {
    (void)state;
    enum {
        N = 7
    };
    struct test_random r = {8};
    struct op_case c;
    int32_t in[N], out[N + 2], weight;
    op_case_init(&c, 3, 0);
    weight = op_case_q8_0(&c, WIDTH, WIDTH, &r, 0.2f);
    for (int i = 0; i < N; i++) in[i] = op_case_buffer(&c, WIDTH, ATSI_ROWS_TOKENS, false, &r, 1.0f);
    for (int i = 0; i < N + 2; i++) out[i] = op_case_buffer(&c, WIDTH, ATSI_ROWS_TOKENS, false, NULL, 0);
    for (int i = 0; i < N; i++) matmul(&c, in[i], weight, out[i], false);
    matmul(&c, in[0], weight, out[N], false); // its slot was taken over long ago
    norm(&c, in[0], in[N - 1]);
    matmul(&c, in[N - 1], weight, out[N + 1], false); // quantised before, but written since
    for (int n_threads = 1; n_threads <= 3; n_threads++) {
        float *before = op_case_copy(&c, in[N - 1]);
        op_case_run(&c, NULL, n_threads, 3, 0);
        assert_memory_equal(c.buffers[out[0]], c.buffers[out[N]], 3 * WIDTH * sizeof(float));
        for (int i = 1; i < N; i++)
            assert_memory_not_equal(c.buffers[out[0]], c.buffers[out[i]], 3 * WIDTH * sizeof(float));
        assert_memory_not_equal(c.buffers[out[N + 1]], c.buffers[out[N - 1]], 3 * WIDTH * sizeof(float));
        float *found = op_case_copy(&c, out[N + 1]), *normed = op_case_copy(&c, in[N - 1]);
        op_case_restore(&c, in[1], normed); // the same rows in a fresh run
        c.program.ops[0].in[0] = op_case_view(&c, in[1]);
        op_case_run(&c, NULL, 1, 3, 0);
        assert_memory_equal(found, c.buffers[out[0]], 3 * WIDTH * sizeof(float));
        c.program.ops[0].in[0] = op_case_view(&c, in[0]);
        op_case_restore(&c, in[N - 1], before);
        free(before);
        free(found);
        free(normed);
    }
    op_case_free(&c);
}

// Every slot with an input of its own, experts whose rows do not fill their last tile, and behind them more inputs of other widths than
// there are slots for quantised ones: the strides of the experts' inputs and weights are their own.
enum {
    EXPERTS = 3,
    USED = 2,
    EXPERT_ROWS = 24, // packed as 32
    PACKED_ROWS = 32,
    N_BEHIND = 6
};

struct expert_case {
    struct op_case c;
    int32_t in, ids, out, weight;
};

static void build_experts(struct expert_case *e) {
    struct test_random r = {9};
    op_case_init(&e->c, TOKENS, 0);
    e->in = op_case_buffer(&e->c, USED * WIDTH, ATSI_ROWS_TOKENS, false, &r, 1.0f);
    e->ids = op_case_buffer(&e->c, USED, ATSI_ROWS_TOKENS, true, NULL, 0);
    e->out = op_case_buffer(&e->c, USED * EXPERT_ROWS, ATSI_ROWS_TOKENS, false, NULL, 0);
    e->weight = op_case_q8_0(&e->c, WIDTH, EXPERTS * PACKED_ROWS, &r, 0.2f);
    e->c.program.tensors[e->weight].ne[1] = EXPERT_ROWS; // the rest of each last tile is padding that must not count
    e->c.program.tensors[e->weight].ne[2] = EXPERTS;
    for (int t = 0; t < TOKENS; t++)
        for (int s = 0; s < USED; s++) ((int32_t *)e->c.buffers[e->ids])[t * USED + s] = (t + s) % EXPERTS;
    struct atsi_op *op = op_case_op(&e->c, ATSI_OP_EXPERTS);
    op->in[0] = op_case_view(&e->c, e->in);
    op->in[1] = op_case_view(&e->c, e->ids);
    op->out[0] = op_case_view(&e->c, e->out);
    op->tensor[0] = e->weight;
    op->u.experts = (struct atsi_experts_params){.n_experts = EXPERTS, .n_used = USED, .in_per_slot = true};
    for (uint32_t i = 0; i < N_BEHIND; i++) {
        uint32_t width = WIDTH + 32 * (i + 1);
        int32_t in = op_case_buffer(&e->c, width, ATSI_ROWS_TOKENS, false, &r, 1.0f),
                out = op_case_buffer(&e->c, WIDTH, ATSI_ROWS_TOKENS, false, NULL, 0);
        matmul(&e->c, in, op_case_q8_0(&e->c, width, WIDTH, &r, 0.2f), out, false);
    }
}

// Against double precision; int8 inputs put about 1 % of the rms on the sums.
static void check_experts(const struct expert_case *e, const char *isa) {
    double off = 0, size = 0;
    float row[WIDTH];
    for (int t = 0; t < TOKENS; t++)
        for (int s = 0; s < USED; s++)
            for (uint64_t r = 0; r < EXPERT_ROWS; r++) {
                double sum = 0;
                uint64_t expert = (uint64_t)(t + s) % EXPERTS;
                atsi_dequant_row(ATSI_Q8_0, e->c.program.tensors[e->weight].layout, e->c.tensors[e->weight], WIDTH,
                                 expert * PACKED_ROWS + r, row);
                for (int k = 0; k < WIDTH; k++) sum += row[k] * e->c.buffers[e->in][(t * USED + s) * WIDTH + k];
                off += pow(e->c.buffers[e->out][((uint64_t)t * USED + (uint64_t)s) * EXPERT_ROWS + r] - sum, 2);
                size += sum * sum;
            }
    if (!(off < 4e-4 * size)) fail_msg("%s: off by %.3g of the rms", isa, sqrt(off / size));
}

static void experts_keep_their_strides(void **state) {
    (void)state;
    static const char *const ISAS[] = {"reference", "avx2", "avxvnni", "avx512"};
    struct expert_case e;
    enum atsi_isa isa;
    build_experts(&e);
    for (size_t i = 0; i < sizeof ISAS / sizeof *ISAS; i++)
        for (uint32_t chunk = 1; chunk <= TOKENS; chunk += 2) {
            if (atsi_isa_select(ISAS[i], &isa, NULL) != ATSI_OK) continue;
            op_case_run(&e.c, ISAS[i], 2, chunk, 0);
            check_experts(&e, ISAS[i]);
        }
    op_case_free(&e.c);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(feed_forward_blocks),
                                       cmocka_unit_test(inputs_outnumber_the_slots),
                                       cmocka_unit_test(experts_keep_their_strides)};
    return cmocka_run_group_tests_name("chains of operations", tests, NULL, NULL);
}
