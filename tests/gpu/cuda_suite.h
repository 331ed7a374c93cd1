// cuda_suite.h: the tests of test_cuda, by file. Each takes a struct suite as its state.
#ifndef ATSI_TESTS_GPU_CUDA_SUITE_H
#define ATSI_TESTS_GPU_CUDA_SUITE_H

#include <stdbool.h>

#include "kernels/device.h"
#include "tests/support/op_case.h"

struct suite {
    struct atsi_device *device;
    bool small; // leaves the larger shapes out
};

// Bounds on the norm of a difference over the norm of the CPU's result. Operations on rows and states, all in float32, are given 1e-6 to
// 1e-5 where they stand: a few roundings and functions of the last bit or two, 1e-8 to 3e-7 as measured (docs/kernels-cuda.md).
#define FLOAT_TOLERANCE 3e-6 // the same numbers summed in another order
#define SPLIT_TOLERANCE 4e-5 // float weights on tensor cores, whose sums are cut off rather than rounded
#define HALF_TOLERANCE  2e-3 // queries and attention weights rounded to half
#define CODES_TOLERANCE 5e-3 // and a value between two codes may be rounded to the other one

// Appends an op whose operands are whole buffers.
static inline void add_op(struct op_case *c, enum atsi_op_kind kind, int32_t in, int32_t in1, int32_t out,
                          int32_t tensor) {
    struct atsi_op *op = op_case_op(c, kind);
    op->in[0] = op_case_view(c, in);
    if (in1 != ATSI_NONE) op->in[1] = op_case_view(c, in1);
    op->out[0] = op_case_view(c, out);
    op->tensor[0] = tensor;
}

// cuda_matrices.c
void matrices(void **state);
void not_a_number_survives(void **state);
void chains(void **state);
void experts(void **state);
void divided_experts(void **state);
void embeddings(void **state);
// cuda_rows.c
void norms(void **state);
void rows_ops(void **state);
void expert_sums(void **state);
void ropes(void **state);
void routers(void **state);
// cuda_joined.c
void scores_and_routers(void **state);
void sums_and_norms(void **state);
void heads_in_order(void **state);
void layers_of_experts(void **state);
void copies_and_marks(void **state);
// cuda_sequences.c
void convolutions(void **state);
void delta_rules(void **state);
void attention(void **state);
void heads(void **state);

#endif
