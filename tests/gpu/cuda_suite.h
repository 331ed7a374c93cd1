// cuda_suite.h: the tests of test_cuda, by file. Each takes a struct suite as its state.
#ifndef ATSI_TESTS_GPU_CUDA_SUITE_H
#define ATSI_TESTS_GPU_CUDA_SUITE_H

#include <stdbool.h>

#include "kernels/device.h"
#include "tests/support/op_case.h"

struct suite {
    struct atsi_device *device;
    bool small;
};

// The small form leaves the larger shapes out and most launches: racecheck takes some 8 ms for each, however little it does. What it keeps
// are the kernels' variants, as far as small shapes reach them: every type goes through matrices, embeddings and experts (there is a kernel
// for each), every head size with a tensor-core form through attention, with as many tokens as take its tiles; of what is the same code for
// several types one stands for the others.

// Rounds of one token each; in the small form one of all tokens but the last and one of the last, behind all the others.
static inline uint32_t single(const struct suite *s, uint32_t n_tokens) { return s->small ? n_tokens - 1 : 1; }

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

struct attention_heads {
    uint32_t n_heads, n_kv_heads, k_dim, v_dim, window; // window 0: none
    float scale;
};
// Appends an attention over whole buffers with a state of its own (cuda_sequences.c).
struct atsi_op *add_attention(struct op_case *c, const struct attention_heads *heads, int32_t q, int32_t k, int32_t v,
                              int32_t out);

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
void activations_of_experts(void **state);
void copies_and_marks(void **state);
// cuda_sequences.c
void convolutions(void **state);
void delta_rules(void **state);
void attention(void **state);
void heads(void **state);

#endif
