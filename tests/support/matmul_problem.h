// matmul_problem.h: a matmul with random or extreme weights and inputs of many sizes, for tests of its kernels.
#ifndef ATSI_TESTS_SUPPORT_MATMUL_PROBLEM_H
#define ATSI_TESTS_SUPPORT_MATMUL_PROBLEM_H

#include <stdlib.h>

#include "kernels/layout.h"
#include "kernels/matmul.h"
#include "tests/support/check.h"
#include "tests/support/quant_data.h"

// One problem: weights packed and as floats, inputs raw and as the kernels take them.
struct problem {
    struct atsi_matmul_args args;
    void *packed, *rows; // rows: GGUF order
    float *in;           // [n_tokens][n_cols]
    void *quantised;
    float *bias;
    bool from_floats; // the kernel in question reads `in`, whatever the type
};

static inline void *problem_memory(size_t bytes) {
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    assert_non_null(p);
    return p;
}

static inline void problem_fill_inputs(struct problem *p, struct quant_rng *rng) {
    uint32_t n_tokens = p->args.n_tokens, n_cols = p->args.n_cols;
    for (uint32_t t = 0; t < n_tokens; t++)
        for (uint32_t c = 0; c < n_cols; c++) {
            float x = quant_uniform(rng) * (float)(1 + t);
            if (t % 4 == 1 && c % 37 == 0) x *= 100;         // outliers
            if (t % 4 == 2) x = c % 64 < 32 ? 0 : x * 1e-3f; // blocks of zeros
            if (t % 4 == 3) x = c % 2 ? 3.0f : -3.0f;        // every code at its end
            p->in[(size_t)t * n_cols + c] = x;
        }
}

static inline struct problem problem_make(enum atsi_dtype dtype, enum quant_fill fill, uint32_t n_rows, uint32_t n_cols,
                                          uint32_t n_tokens, struct quant_rng *rng,
                                          const struct atsi_matmul_kernels *k) {
    struct problem p = {
        .args = {.dtype = dtype, .n_rows = n_rows, .n_cols = n_cols, .n_tokens = n_tokens, .out_stride = n_rows}};
    uint64_t row_bytes = atsi_dtype_row_bytes(dtype, n_cols);
    p.rows = problem_memory(n_rows * row_bytes);
    p.packed = problem_memory((n_rows + 15) / 16 * 16 * row_bytes);
    quant_fill_weights(dtype, fill, rng, (uint64_t)n_rows * n_cols, p.rows);
    atsi_layout_pack(dtype, atsi_layout_of(dtype), p.rows, n_rows, n_cols, p.packed);
    p.in = problem_memory((size_t)n_tokens * n_cols * sizeof(float));
    p.quantised = problem_memory(n_tokens * atsi_act_row_bytes(n_cols));
    p.bias = problem_memory(n_rows * sizeof(float));
    for (uint32_t r = 0; r < n_rows; r++) p.bias[r] = quant_uniform(rng);
    problem_fill_inputs(&p, rng);
    p.args.weight = p.packed;
    p.args.in = p.in;
    p.args.in_stride = n_cols * sizeof(float);
    if (atsi_matmul_input(dtype) == ATSI_INPUT_INT8) {
        atsi_quantise_rows(k, p.in, n_cols, n_tokens, n_cols, p.quantised, 0, 1);
        p.args.in = p.quantised;
        p.args.in_stride = atsi_act_row_bytes(n_cols);
    }
    return p;
}

static inline void problem_free(struct problem *p) {
    free(p->packed);
    free(p->rows);
    free(p->in);
    free(p->quantised);
    free(p->bias);
}

static inline void problem_run(const struct atsi_matmul_kernels *k, struct atsi_matmul_args a, float *out) {
    a.out = out;
    k->matmul[a.dtype](&a, 0, atsi_matmul_tiles(a.n_rows));
}

#endif
