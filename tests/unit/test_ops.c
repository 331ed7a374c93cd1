// Every operation against a double-precision rendering of its definition in formats/program.h; equal bits over instruction
// sets, thread counts and the ways in which tokens are batched.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/features.h"
#include "tests/support/check.h"
#include "tests/support/op_case.h"

static const char *const ISAS[] = {"reference", "avx2", "avxvnni", "avx512"};

static bool has_isa(const char *name) {
    enum atsi_isa isa;
    return atsi_isa_select(name, &isa, NULL) == ATSI_OK;
}

// |found - wanted| <= tolerance * (|wanted| + unit)
static void check_close(const float *found, const double *wanted, size_t n, double tolerance, double unit) {
    for (size_t i = 0; i < n; i++) {
        double allowed = tolerance * (fabs(wanted[i]) + unit);
        if (!(fabs(found[i] - wanted[i]) <= allowed))
            fail_msg("element %zu: found %.9g, expected %.9g, allowed difference %.3g", i, found[i], wanted[i],
                     allowed);
    }
}

// Runs the case in every instruction set, with one and three threads, whole and cut into rounds; `out` must come out the same to
// the bit. Buffers `out` and (when in place) others are restored before each run from their first contents.
static void check_same_bits(struct op_case *c, int32_t out, const float *expected, float *const *before) {
    static const uint32_t CHUNKS[] = {4096, 1, 3, 7};
    size_t bytes = op_case_rows(c, out) * c->program.buffers[out].width * sizeof(float);
    bool selects = c->n_outputs > 0;
    for (size_t i = 0; i < sizeof ISAS / sizeof *ISAS; i++) {
        if (!has_isa(ISAS[i])) continue;
        for (size_t k = 0; k < (selects ? 1 : sizeof CHUNKS / sizeof *CHUNKS); k++)
            for (int n_threads = 1; n_threads <= 3; n_threads += 2) {
                uint32_t chunk = CHUNKS[k] < c->n_tokens ? CHUNKS[k] : c->n_tokens;
                for (uint32_t b = 0; b < c->program.n_buffers; b++) op_case_restore(c, (int32_t)b, before[b]);
                op_case_run(c, ISAS[i], n_threads, chunk, 5);
                if (!test_same_bits(c->buffers[out], expected, bytes))
                    fail_msg("%s, %d threads, rounds of %u tokens: other bits than whole with one thread", ISAS[i],
                             n_threads, chunk);
            }
    }
}

static void run_and_check(struct op_case *c, int32_t out, const double *wanted, double tolerance, double unit) {
    float *before[OP_CASE_CAP] = {NULL};
    for (uint32_t b = 0; b < c->program.n_buffers; b++) before[b] = op_case_copy(c, (int32_t)b);
    op_case_run(c, "reference", 1, c->n_tokens, 5);
    float *first = op_case_copy(c, out);
    check_close(first, wanted, op_case_rows(c, out) * c->program.buffers[out].width, tolerance, unit);
    check_same_bits(c, out, first, before);
    for (uint32_t b = 0; b < c->program.n_buffers; b++) free(before[b]);
    free(first);
}

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double *doubles(size_t n) {
    double *p = calloc(n + 1, sizeof *p);
    if (p == NULL) abort();
    return p;
}

// ---- rows -----------------------------------------------------------------------------------------------------------

static void norm_case(uint32_t n_tokens, struct op_case_norm norm, uint64_t seed) {
    struct test_random r = {seed};
    struct op_case c;
    op_case_init(&c, n_tokens, 0);
    const struct atsi_op *op = op_case_norm(&c, &norm, &r);
    const uint32_t group = norm.group, n_groups = norm.n_groups, width = group * n_groups;
    const int32_t in = op->in[0].buffer, out = op->out[0].buffer;
    double *wanted = doubles((size_t)n_tokens * (width + 5));
    for (size_t i = 0; i < (size_t)n_tokens * (width + 5); i++) wanted[i] = c.buffers[out][i];
    for (uint32_t t = 0; t < n_tokens; t++)
        for (uint32_t g = 0; g < n_groups; g++) {
            const float *x = c.buffers[in] + (size_t)t * (width + 5) + 2 + g * group;
            double *y = wanted + (size_t)t * (width + 5) + op->out[0].offset + g * group, squares = 0;
            for (uint32_t i = 0; i < group; i++) squares += (double)x[i] * x[i];
            for (uint32_t i = 0; i < group; i++) {
                double value = x[i] / sqrt(squares / group + 1e-5f);
                if (norm.weighted) value *= ((float *)c.tensors[op->tensor[0]])[i];
                y[i] = norm.add ? y[i] + value : value;
            }
        }
    run_and_check(&c, out, wanted, 1e-6, 1);
    free(wanted);
    op_case_free(&c);
}

static void norms(void **state) {
    (void)state;
    norm_case(9, (struct op_case_norm){64, 1, .weighted = true, .out_is_part = true}, 1);
    norm_case(4, (struct op_case_norm){1, 3, .weighted = true, .out_is_part = true}, 2);
    norm_case(11, (struct op_case_norm){37, 3, .weighted = true, .add = true, .out_is_part = true}, 3);
    norm_case(5, (struct op_case_norm){128, 2, .in_place = true, .out_is_part = true}, 4);
    norm_case(1, (struct op_case_norm){3000, 1, .weighted = true, .in_place = true, .out_is_part = true}, 5);
}

static void glu_case(enum atsi_glu_act act, uint32_t width, uint64_t seed) {
    struct test_random r = {seed};
    struct op_case c;
    op_case_init(&c, 6, 0);
    int32_t gate = op_case_buffer(&c, 2 * width, ATSI_ROWS_TOKENS, false, &r, 6.0f);
    int32_t out = op_case_buffer(&c, width, ATSI_ROWS_TOKENS, false, &r, 1.0f);
    struct atsi_op *op = op_case_op(&c, ATSI_OP_GLU);
    op->in[0] = (struct atsi_view){gate, 0, width};
    op->in[1] = (struct atsi_view){gate, width, width};
    op->out[0] = op_case_view(&c, out);
    op->u.glu = (struct atsi_glu_params){act, 1.702f, 7.0f};
    double *wanted = doubles(6 * width);
    for (uint32_t i = 0; i < 6 * width; i++) {
        const float *row = c.buffers[gate] + i / width * 2 * width;
        double g = row[i % width], u = row[width + i % width];
        if (act == ATSI_GLU_SILU) wanted[i] = g * sigmoid(g) * u;
        if (act == ATSI_GLU_GELU_TANH)
            wanted[i] = 0.5 * g * (1 + tanh(sqrt(2 / M_PI) * (g + 0.044715 * g * g * g))) * u;
        if (act == ATSI_GLU_CLAMPED) {
            g = fmin(g, 7);
            wanted[i] = (fmax(fmin(u, 7), -7) + 1) * g * sigmoid(1.702f * g);
        }
    }
    run_and_check(&c, out, wanted, 3e-6, 1e-2);
    free(wanted);
    op_case_free(&c);
}

static void glus(void **state) {
    (void)state;
    for (uint32_t width = 1; width < 200; width = width * 3 + 1)
        for (int act = ATSI_GLU_SILU; act <= ATSI_GLU_CLAMPED; act++) glu_case((enum atsi_glu_act)act, width, width);
}

static void gates(void **state) {
    (void)state;
    for (uint32_t per_gate = 1; per_gate <= 35; per_gate += 17) {
        struct test_random r = {per_gate};
        struct op_case c;
        op_case_init(&c, 5, 0);
        int32_t x = op_case_buffer(&c, 6 * per_gate, ATSI_ROWS_TOKENS, false, &r, 2.0f);
        int32_t g = op_case_buffer(&c, 6, ATSI_ROWS_TOKENS, false, &r, 3.0f);
        struct atsi_op *op = op_case_op(&c, ATSI_OP_GATE);
        op->in[0] = op->out[0] = op_case_view(&c, x);
        op->in[1] = op_case_view(&c, g);
        double *wanted = doubles(5 * 6 * per_gate);
        for (uint32_t i = 0; i < 5 * 6 * per_gate; i++)
            wanted[i] = c.buffers[x][i] * sigmoid(c.buffers[g][i / per_gate]);
        run_and_check(&c, x, wanted, 1e-6, 1e-3);
        free(wanted);
        op_case_free(&c);
    }
}

static void sums(void **state) {
    (void)state;
    struct test_random r = {77};
    struct op_case c;
    op_case_init(&c, 10, 0);
    int32_t slots = op_case_buffer(&c, 3 * 50, ATSI_ROWS_TOKENS, false, &r, 2.0f);
    int32_t weights = op_case_buffer(&c, 3, ATSI_ROWS_TOKENS, false, &r, 1.0f);
    int32_t out = op_case_buffer(&c, 50, ATSI_ROWS_TOKENS, false, &r, 1.0f);
    struct atsi_op *op = op_case_op(&c, ATSI_OP_EXPERT_SUM);
    op->in[0] = op_case_view(&c, slots);
    op->in[1] = op_case_view(&c, weights);
    op->out[0] = op_case_view(&c, out);
    op->add = true;
    op = op_case_op(&c, ATSI_OP_ADD); // a second op on the result: the chain must keep the order
    op->in[0] = op->in[1] = op->out[0] = op_case_view(&c, out);
    double wanted[10 * 50];
    for (uint32_t i = 0; i < 10 * 50; i++) {
        wanted[i] = c.buffers[out][i];
        for (uint32_t s = 0; s < 3; s++)
            wanted[i] += (double)c.buffers[weights][i / 50 * 3 + s] * c.buffers[slots][i / 50 * 150 + s * 50 + i % 50];
        wanted[i] *= 2;
    }
    run_and_check(&c, out, wanted, 1e-6, 1);
    op_case_free(&c);
}

static void selected_rows(void **state) {
    (void)state;
    struct test_random r = {78};
    struct op_case c;
    op_case_init(&c, 9, 4);
    int32_t in = op_case_buffer(&c, 21, ATSI_ROWS_TOKENS, false, &r, 2.0f);
    int32_t out = op_case_buffer(&c, 21, ATSI_ROWS_OUTPUTS, false, &r, 1.0f);
    static const int32_t ROWS[] = {8, 0, 3, 3};
    double wanted[4 * 21];
    memcpy(c.output_rows, ROWS, sizeof ROWS);
    struct atsi_op *op = op_case_op(&c, ATSI_OP_SELECT);
    op->in[0] = op_case_view(&c, in);
    op->out[0] = op_case_view(&c, out);
    for (uint32_t i = 0; i < 4 * 21; i++) wanted[i] = c.buffers[in][ROWS[i / 21] * 21 + (int32_t)(i % 21)];
    run_and_check(&c, out, wanted, 0, 0);
    op_case_free(&c);
}

static void embeddings(void **state) {
    (void)state;
    struct test_random r = {79};
    struct op_case c;
    op_case_init(&c, 12, 0);
    int32_t out = op_case_buffer(&c, 40, ATSI_ROWS_TOKENS, false, &r, 1.0f);
    int32_t table = op_case_tensor(&c, 40, 30, 1, &r, 1.0f);
    double wanted[12 * 40];
    for (int t = 0; t < 12; t++) c.token_ids[t] = (int32_t)test_random_below(&r, 30);
    struct atsi_op *op = op_case_op(&c, ATSI_OP_EMBED);
    op->out[0] = op_case_view(&c, out);
    op->tensor[0] = table;
    op->u.embed_scale = 1.5f;
    for (int i = 0; i < 12 * 40; i++) wanted[i] = 1.5 * ((float *)c.tensors[table])[c.token_ids[i / 40] * 40 + i % 40];
    run_and_check(&c, out, wanted, 1e-7, 0);
    op_case_free(&c);
}

// ---- rope -----------------------------------------------------------------------------------------------------------

static void rope_case(enum atsi_rope_pairing pairing, uint32_t n_heads, uint32_t head_dim, uint32_t n_rot,
                      bool in_place, uint64_t seed) {
    struct test_random r = {seed};
    struct op_case c;
    op_case_init(&c, 8, 0);
    uint32_t width = n_heads * head_dim;
    int32_t in = op_case_buffer(&c, width, ATSI_ROWS_TOKENS, false, &r, 2.0f);
    int32_t out = in_place ? in : op_case_buffer(&c, width, ATSI_ROWS_TOKENS, false, &r, 1.0f);
    int32_t table = op_case_tensor(&c, n_rot / 2, 1, 1, &r, 0.3f);
    struct atsi_op *op = op_case_op(&c, ATSI_OP_ROPE);
    op->in[0] = op_case_view(&c, in);
    op->out[0] = op_case_view(&c, out);
    op->tensor[0] = table;
    op->u.rope = (struct atsi_rope_params){n_heads, head_dim, n_rot, pairing, 1.25f};
    double *wanted = doubles(8 * width);
    for (uint32_t t = 0; t < 8; t++)
        for (uint32_t h = 0; h < n_heads; h++) {
            const float *x = c.buffers[in] + t * width + h * head_dim;
            double *y = wanted + t * width + h * head_dim;
            for (uint32_t i = 0; i < head_dim; i++) y[i] = x[i];
            for (uint32_t i = 0; i < n_rot / 2; i++) {
                uint32_t a = pairing == ATSI_ROPE_HALF_SPLIT ? i : 2 * i,
                         b = pairing == ATSI_ROPE_HALF_SPLIT ? i + n_rot / 2 : a + 1;
                double angle = (5.0 + t) * ((float *)c.tensors[table])[i];
                y[a] = 1.25 * (x[a] * cos(angle) - x[b] * sin(angle));
                y[b] = 1.25 * (x[b] * cos(angle) + x[a] * sin(angle));
            }
        }
    run_and_check(&c, out, wanted, 1e-6, 2);
    free(wanted);
    op_case_free(&c);
}

static void ropes(void **state) {
    (void)state;
    for (int pairing = 0; pairing < 2; pairing++) {
        rope_case((enum atsi_rope_pairing)pairing, 3, 64, 64, false, 10);
        rope_case((enum atsi_rope_pairing)pairing, 2, 40, 10, true, 11);
        rope_case((enum atsi_rope_pairing)pairing, 1, 80, 34, false, 12);
    }
}

static void rope_at_far_positions(void **state) {
    (void)state;
    struct test_random r = {13};
    struct op_case c;
    op_case_init(&c, 2, 0);
    int32_t x = op_case_buffer(&c, 64, ATSI_ROWS_TOKENS, false, &r, 1.0f);
    int32_t table = op_case_tensor(&c, 32, 1, 1, &r, 1.0f);
    float *before = op_case_copy(&c, x), *frequencies = c.tensors[table];
    for (int i = 0; i < 32; i++) frequencies[i] = (float)pow(10000, -i / 32.0);
    struct atsi_op *op = op_case_op(&c, ATSI_OP_ROPE);
    op->in[0] = op->out[0] = op_case_view(&c, x);
    op->tensor[0] = table;
    op->u.rope = (struct atsi_rope_params){1, 64, 64, ATSI_ROPE_HALF_SPLIT, 1.0f};
    op_case_run(&c, NULL, 1, 2, 1000000);
    for (int i = 0; i < 32; i++) {
        double angle = 1000001.0 * frequencies[i], wanted = before[64 + i] * cos(angle) - before[96 + i] * sin(angle);
        assert_true(fabs(c.buffers[x][64 + i] - wanted) < 1e-6);
    }
    free(before);
    op_case_free(&c);
}

// ---- matrices and experts -------------------------------------------------------------------------------------------

static void matrices_share_an_input(void **state) {
    (void)state;
    struct test_random r = {20};
    struct op_case c;
    op_case_init(&c, 7, 0);
    int32_t x = op_case_buffer(&c, 64, ATSI_ROWS_TOKENS, false, &r, 1.0f);
    int32_t out = op_case_buffer(&c, 3 * 40, ATSI_ROWS_TOKENS, false, &r, 1.0f);
    double *wanted = doubles(7 * 120);
    for (uint32_t m = 0; m < 3; m++) {
        int32_t weight = op_case_tensor(&c, 64, 40, 1, &r, 0.2f),
                bias = m == 1 ? op_case_tensor(&c, 40, 1, 1, &r, 1.0f) : ATSI_NONE;
        struct atsi_op *op = op_case_op(&c, ATSI_OP_MATMUL);
        op->in[0] = op_case_view(&c, x);
        op->out[0] = (struct atsi_view){out, m * 40, 40};
        op->tensor[0] = weight;
        op->tensor[1] = bias;
        op->add = m == 2;
        for (uint32_t i = 0; i < 7 * 40; i++) {
            double sum = m == 2 ? c.buffers[out][i / 40 * 120 + 80 + i % 40] : 0;
            if (m == 1) sum += ((float *)c.tensors[bias])[i % 40];
            for (uint32_t k = 0; k < 64; k++)
                sum += (double)((float *)c.tensors[weight])[i % 40 * 64 + k] * c.buffers[x][i / 40 * 64 + k];
            wanted[i / 40 * 120 + m * 40 + i % 40] = sum;
        }
    }
    run_and_check(&c, out, wanted, 2e-6, 3);
    free(wanted);
    op_case_free(&c);
}

static int32_t add_experts(struct op_case *c, int32_t x, int32_t ids, int32_t out, int32_t weight, int32_t bias,
                           struct atsi_experts_params params) {
    struct atsi_op *op = op_case_op(c, ATSI_OP_EXPERTS);
    op->in[0] = op_case_view(c, x);
    op->in[1] = op_case_view(c, ids);
    op->out[0] = op_case_view(c, out);
    op->tensor[0] = weight;
    op->tensor[1] = bias;
    op->u.experts = params;
    return out;
}

// Two expert products in a row: the first with a shared input, the second with one a slot; the ids are computed by a router.
static void experts(void **state) {
    (void)state;
    enum {
        TOKENS = 13,
        E = 6,
        USED = 2,
        COLS = 32,
        ROWS = 48,
        BACK = 20
    };
    struct test_random r = {21};
    struct op_case c;
    op_case_init(&c, TOKENS, 0);
    int32_t logits = op_case_buffer(&c, E, ATSI_ROWS_TOKENS, false, &r, 1.0f),
            ids = op_case_buffer(&c, USED, ATSI_ROWS_TOKENS, true, NULL, 0);
    int32_t weights = op_case_buffer(&c, USED, ATSI_ROWS_TOKENS, false, &r, 1.0f),
            x = op_case_buffer(&c, COLS, ATSI_ROWS_TOKENS, false, &r, 1.0f);
    int32_t up = op_case_buffer(&c, USED * ROWS, ATSI_ROWS_TOKENS, false, &r, 1.0f),
            down = op_case_buffer(&c, USED * BACK, ATSI_ROWS_TOKENS, false, &r, 1.0f);
    int32_t w_up = op_case_tensor(&c, COLS, ROWS, E, &r, 0.2f), b_up = op_case_tensor(&c, ROWS, E, 1, &r, 1.0f);
    int32_t w_down = op_case_tensor(&c, ROWS, BACK, E, &r, 0.2f);
    struct atsi_op *op = op_case_op(&c, ATSI_OP_ROUTER);
    op->in[0] = op_case_view(&c, logits);
    op->out[0] = op_case_view(&c, ids);
    op->out[1] = op_case_view(&c, weights);
    op->u.router = (struct atsi_router_params){E, USED, ATSI_ROUTER_SOFTMAX, true, 1.0f};
    add_experts(&c, x, ids, up, w_up, b_up, (struct atsi_experts_params){E, USED, false});
    add_experts(&c, up, ids, down, w_down, ATSI_NONE, (struct atsi_experts_params){E, USED, true});
    double *wanted = doubles(TOKENS * USED * BACK);
    for (uint32_t pair = 0; pair < TOKENS * USED; pair++) {
        const float *l = c.buffers[logits] + pair / USED * E;
        uint32_t best = 0, second = 1, expert;
        if (l[1] > l[0]) best = 1, second = 0;
        for (uint32_t e = 2; e < E; e++) {
            if (l[e] > l[best])
                second = best, best = e;
            else if (l[e] > l[second])
                second = e;
        }
        expert = pair % USED == 0 ? best : second;
        double hidden[ROWS];
        for (uint32_t i = 0; i < ROWS; i++) {
            hidden[i] = ((float *)c.tensors[b_up])[expert * ROWS + i];
            for (uint32_t k = 0; k < COLS; k++)
                hidden[i] += (double)((float *)c.tensors[w_up])[(expert * ROWS + i) * COLS + k] *
                             c.buffers[x][pair / USED * COLS + k];
        }
        for (uint32_t i = 0; i < BACK; i++)
            for (uint32_t k = 0; k < ROWS; k++)
                wanted[pair * BACK + i] += ((float *)c.tensors[w_down])[(expert * BACK + i) * ROWS + k] * hidden[k];
    }
    run_and_check(&c, down, wanted, 3e-6, 5);
    free(wanted);
    op_case_free(&c);
}

// ---- router ---------------------------------------------------------------------------------------------------------

static void router_case(enum atsi_router_score score, uint32_t n_experts, uint32_t n_used, bool biased, bool normalise,
                        uint64_t seed) {
    struct test_random r = {seed};
    struct op_case c;
    op_case_init(&c, 10, 0);
    const struct atsi_op *op =
        op_case_router(&c, &(struct atsi_router_params){n_experts, n_used, score, normalise, 2.5f}, biased, &r);
    int32_t logits = op->in[0].buffer, ids = op->out[0].buffer, weights = op->out[1].buffer, bias = op->tensor[0];
    double *wanted = doubles(10 * n_used), *key = doubles(n_experts), *value = doubles(n_experts);
    int32_t *wanted_ids = calloc(10 * n_used, sizeof *wanted_ids);
    for (uint32_t t = 0; t < 10; t++) {
        float *l = c.buffers[logits] + t * n_experts;
        double sum = 0;
        for (uint32_t e = 0; e < n_experts; e++) sum += exp((double)l[e]);
        for (uint32_t e = 0; e < n_experts; e++) {
            value[e] = score == ATSI_ROUTER_SOFTMAX   ? exp((double)l[e]) / sum
                       : score == ATSI_ROUTER_SIGMOID ? sigmoid(l[e])
                                                      : l[e];
            key[e] = value[e] + (biased ? ((float *)c.tensors[bias])[e] : 0);
        }
        double total = 0;
        for (uint32_t s = 0; s < n_used; s++) {
            uint32_t best = 0;
            for (uint32_t e = 1; e < n_experts; e++)
                if (key[e] > key[best]) best = e;
            key[best] = -INFINITY;
            wanted_ids[t * n_used + s] = (int32_t)best;
            wanted[t * n_used + s] = score == ATSI_ROUTER_SOFTMAX_SELECTED ? exp(value[best]) : value[best];
            total += wanted[t * n_used + s];
        }
        for (uint32_t s = 0; s < n_used; s++)
            wanted[t * n_used + s] *= 2.5 / (normalise || score == ATSI_ROUTER_SOFTMAX_SELECTED ? total : 1);
    }
    run_and_check(&c, weights, wanted, 2e-6, 1e-6);
    assert_memory_equal(c.buffers[ids], wanted_ids, 10 * n_used * sizeof *wanted_ids);
    free(wanted);
    free(key);
    free(value);
    free(wanted_ids);
    op_case_free(&c);
}

static void routers(void **state) {
    (void)state;
    for (int score = 0; score <= ATSI_ROUTER_SOFTMAX_SELECTED; score++)
        for (int k = 0; k < 4; k++)
            router_case((enum atsi_router_score)score, k < 2 ? 33 : 8, k < 2 ? 6 : 8, k & 1,
                        score == ATSI_ROUTER_SIGMOID || k > 1, 30 + (uint64_t)k);
}

// Equal logits go to the lower numbers; whatever is not a number still gives distinct experts in range.
static void router_ties_and_bad_numbers(void **state) {
    (void)state;
    struct op_case c;
    op_case_init(&c, 3, 0);
    struct test_random r = {1};
    const struct atsi_op *op =
        op_case_router(&c, &(struct atsi_router_params){16, 4, ATSI_ROUTER_SOFTMAX, true, 1.0f}, false, &r);
    int32_t logits = op->in[0].buffer, ids = op->out[0].buffer;
    for (int e = 0; e < 16; e++) {
        c.buffers[logits][e] = e % 2 ? 1.0f : 0.0f;
        c.buffers[logits][16 + e] = NAN;
        c.buffers[logits][32 + e] = e == 3 ? INFINITY : NAN;
    }
    op_case_run(&c, NULL, 1, 3, 0);
    const int32_t *found = (const int32_t *)(const void *)c.buffers[ids];
    for (int s = 0; s < 4; s++) assert_int_equal(found[s], 2 * s + 1);
    for (int i = 4; i < 12; i++) {
        assert_in_range(found[i], 0, 15);
        for (int k = i / 4 * 4; k < i; k++) assert_int_not_equal(found[i], found[k]);
    }
    op_case_free(&c);
}

// ---- sequences ------------------------------------------------------------------------------------------------------

static void conv_case(uint32_t n_tokens, uint32_t n_channels, uint32_t n_taps, bool in_place, uint64_t seed) {
    struct test_random r = {seed};
    struct op_case c;
    op_case_init(&c, n_tokens, 0);
    int32_t in = op_case_buffer(&c, n_channels, ATSI_ROWS_TOKENS, false, &r, 1.0f);
    int32_t out = in_place ? in : op_case_buffer(&c, n_channels, ATSI_ROWS_TOKENS, false, &r, 1.0f);
    int32_t kernel = op_case_tensor(&c, n_taps, n_channels, 1, &r, 1.0f);
    struct atsi_op *op = op_case_op(&c, ATSI_OP_CONV);
    op->in[0] = op_case_view(&c, in);
    op->out[0] = op_case_view(&c, out);
    op->tensor[0] = kernel;
    op->state = op_case_state(&c, ATSI_STATE_CONV, 1, n_channels, n_taps - 1, 0);
    double *wanted = doubles((size_t)n_tokens * n_channels);
    for (uint32_t t = 0; t < n_tokens; t++)
        for (uint32_t ch = 0; ch < n_channels; ch++) {
            double sum = 0;
            for (uint32_t j = 0; j < n_taps; j++) // tap n_taps - 1 is the token itself
                if (t + j + 1 >= n_taps)
                    sum += (double)((float *)c.tensors[kernel])[ch * n_taps + j] *
                           c.buffers[in][(t + j + 1 - n_taps) * n_channels + ch];
            wanted[t * n_channels + ch] = sum * sigmoid(sum);
        }
    run_and_check(&c, out, wanted, 2e-6, 1);
    free(wanted);
    op_case_free(&c);
}

static void convolutions(void **state) {
    (void)state;
    conv_case(12, 100, 4, false, 40);
    conv_case(9, 64, 4, true, 41);
    conv_case(2, 5, 3, false, 42);
}

static void delta_case(uint32_t n_tokens, struct atsi_delta_params delta, uint32_t k_dim, uint32_t v_dim,
                       uint64_t seed) {
    struct test_random r = {seed};
    struct op_case c;
    op_case_init(&c, n_tokens, 0);
    const struct atsi_op *op = op_case_delta_rule(&c, &delta, k_dim, v_dim, &r);
    const uint32_t n_k_heads = delta.n_k_heads, n_v_heads = delta.n_v_heads;
    const int32_t qk = op->in[0].buffer, v = op->in[2].buffer, beta = op->in[3].buffer, alpha = op->in[4].buffer,
                  out = op->out[0].buffer, rate = op->tensor[0], bias = op->tensor[1];
    double *wanted = doubles((size_t)n_tokens * n_v_heads * v_dim), *s = doubles((size_t)k_dim * v_dim);
    for (uint32_t h = 0; h < n_v_heads; h++) {
        memset(s, 0, (size_t)k_dim * v_dim * sizeof *s);
        uint32_t kh = delta.tiled ? h % n_k_heads : h / (n_v_heads / n_k_heads);
        for (uint32_t t = 0; t < n_tokens; t++) {
            const float *q = c.buffers[qk] + (size_t)t * 2 * n_k_heads * k_dim + kh * k_dim, *k = q + n_k_heads * k_dim;
            double qq = 1e-6, kk = 1e-6;
            for (uint32_t i = 0; i < k_dim; i++) qq += (double)q[i] * q[i], kk += (double)k[i] * k[i];
            double decay = exp(((float *)c.tensors[rate])[h] *
                               log1p(exp((double)c.buffers[alpha][t * n_v_heads + h] + ((float *)c.tensors[bias])[h])));
            double b = sigmoid(c.buffers[beta][t * n_v_heads + h]);
            for (uint32_t j = 0; j < v_dim; j++) {
                double recalled = 0, read = 0;
                for (uint32_t i = 0; i < k_dim; i++) recalled += (s[i * v_dim + j] *= decay) * k[i] / sqrt(kk);
                for (uint32_t i = 0; i < k_dim; i++) {
                    s[i * v_dim + j] +=
                        k[i] / sqrt(kk) * b * (c.buffers[v][((size_t)t * n_v_heads + h) * v_dim + j] - recalled);
                    read += s[i * v_dim + j] * q[i] / sqrt(qq * k_dim);
                }
                wanted[((size_t)t * n_v_heads + h) * v_dim + j] = read;
            }
        }
    }
    run_and_check(&c, out, wanted, 5e-6, 1);
    free(wanted);
    free(s);
    op_case_free(&c);
}

static void delta_rules(void **state) {
    (void)state;
    delta_case(10, (struct atsi_delta_params){2, 4, false, 1e-6f}, 32, 32, 50);
    delta_case(7, (struct atsi_delta_params){2, 4, true, 1e-6f}, 16, 80, 51);
    delta_case(5, (struct atsi_delta_params){1, 1, false, 1e-6f}, 128, 128, 52);
    delta_case(3, (struct atsi_delta_params){3, 3, true, 1e-6f}, 5, 7, 53);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms),
        cmocka_unit_test(glus),
        cmocka_unit_test(gates),
        cmocka_unit_test(sums),
        cmocka_unit_test(selected_rows),
        cmocka_unit_test(embeddings),
        cmocka_unit_test(ropes),
        cmocka_unit_test(rope_at_far_positions),
        cmocka_unit_test(matrices_share_an_input),
        cmocka_unit_test(experts),
        cmocka_unit_test(routers),
        cmocka_unit_test(router_ties_and_bad_numbers),
        cmocka_unit_test(convolutions),
        cmocka_unit_test(delta_rules),
    };
    return cmocka_run_group_tests_name("operations", tests, NULL, NULL);
}
