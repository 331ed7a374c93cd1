// op_case.h: one operation over random operands, run through the CPU kernels. For tests of operations.
#ifndef ATSI_TESTS_SUPPORT_OP_CASE_H
#define ATSI_TESTS_SUPPORT_OP_CASE_H

#include <string.h>

#include "kernels/cpu/ops.h"

// Numbers that look random, the same on every machine.
struct test_random {
    uint64_t state;
};
uint32_t test_random_u32(struct test_random *r);
uint32_t test_random_below(struct test_random *r, uint32_t n);
float test_random_normal(struct test_random *r); // mean 0, variance 1

// Whether floats are equal to the bit.
static inline bool test_same_bits(const void *a, const void *b, size_t bytes) { return memcmp(a, b, bytes) == 0; }

// A program of operations, built up by the calls below, with its operands in ordinary memory. Buffers keep the rows of all
// n_tokens; running them in several rounds moves over the rows. Running out of memory ends the test.
enum {
    OP_CASE_CAP = 32
};
struct op_case {
    struct atsi_program program;
    uint32_t n_tokens; // rows of every tokens buffer
    uint32_t n_outputs;
    uint32_t capacity; // slots of KV states
    enum atsi_dtype kv_type;
    float *buffers[OP_CASE_CAP]; // [n rows][width], int32 for integer buffers
    void *tensors[OP_CASE_CAP];  // as packed
    void *states[OP_CASE_CAP][2];
    // Experts that are resident one by one, for all calls that can have some (struct atsi_experts_ref): where each stands, and by tensor
    // the block of them. NULL: none.
    int32_t *resident_slots;
    void *resident[OP_CASE_CAP];
    int32_t *chosen; // [n_chosen] what a router is given as the second place of its ids, NULL: none
    uint32_t n_resident_slots, n_chosen;
    // Slots divided between a device and the host (op_case_divide); gpu_slots NULL: not. Runs on the host take its part, those of
    // tests/support/gpu_case.h the device's and fill `mine`.
    uint8_t *gpu_slots;
    int32_t *mine;              // [n_mine]
    uint32_t n_mine, whole_ops; // bit i: ops[i] is not divided
    bool fetches;               // tests/support/gpu_case.h has experts fetched ahead in rounds of one row
    int32_t token_ids[4096], output_rows[4096];
};

void op_case_init(struct op_case *c, uint32_t n_tokens, uint32_t n_outputs);
void op_case_free(struct op_case *c);
// A buffer filled with `scale` times normal numbers (integer buffers: zero).
int32_t op_case_buffer(struct op_case *c, uint32_t width, enum atsi_rows rows, bool is_int, struct test_random *r,
                       float scale);
// A plain float tensor of `scale` times normal numbers; r NULL: values.
int32_t op_case_tensor(struct op_case *c, uint64_t ne0, uint64_t ne1, uint64_t ne2, struct test_random *r, float scale);
// A packed Q8_0 matrix of random weights of about `scale`.
int32_t op_case_q8_0(struct op_case *c, uint64_t ne0, uint64_t ne1, struct test_random *r, float scale);
int32_t op_case_state(struct op_case *c, enum atsi_state_kind kind, uint32_t n_heads, uint32_t k_dim, uint32_t v_dim,
                      uint32_t window);
// Makes a random subset of n_experts resident, `share` of them but one at least: copies them into blocks of their own, in random order,
// and fills their places in the tensors of all EXPERTS ops with garbage.
void op_case_make_resident(struct op_case *c, uint32_t n_experts, float share, struct test_random *r);
// The tensor's block of resident experts goes, its experts stand in the tensor again; the slots stay as they are.
void op_case_drop_resident(struct op_case *c, int32_t tensor);
// Gives the case's only router a second place for its ids, `chosen`.
void op_case_count_chosen(struct op_case *c, uint32_t n_used);
// Divides the slots of all EXPERTS ops but whole_ops between device and host: of tokens with r resident experts a random number of slots,
// r at least, or with `least` r, are the device's. The case has one router.
void op_case_divide(struct op_case *c, uint32_t n_used, bool least, uint32_t whole_ops, struct test_random *r);
// Appends an op with every operand absent, to be filled in.
struct atsi_op *op_case_op(struct op_case *c, enum atsi_op_kind kind);
struct atsi_view op_case_view(const struct op_case *c, int32_t buffer); // the whole width

// Operations over new buffers and tensors of random numbers. What they read and write stands in the op that comes back, which the next
// op may move.
struct op_case_norm {
    uint32_t group, n_groups;
    bool weighted, add, in_place;
    bool out_is_part; // the output has columns before and behind, as the input always has
};
struct atsi_op *op_case_norm(struct op_case *c, const struct op_case_norm *norm, struct test_random *r);
// in[0] and in[1]: queries and keys in one buffer, keys behind.
struct atsi_op *op_case_delta_rule(struct op_case *c, const struct atsi_delta_params *delta, uint32_t k_dim,
                                   uint32_t v_dim, struct test_random *r);

// in[0]: logits, out[0]: ids, out[1]: weights, tensor[0]: a bias or none.
struct atsi_op *op_case_router(struct op_case *c, const struct atsi_router_params *router, bool biased,
                               struct test_random *r);

// Where the operands of a case stand, by their index: in its own memory or on a device. NULL: there is none.
struct op_case_operands {
    void *buffers[OP_CASE_CAP], *tensors[OP_CASE_CAP], *states[OP_CASE_CAP][2];
    void *resident_slots, *resident[OP_CASE_CAP], *chosen, *mine; // mine: on a device only
    void *token_ids, *output_rows, *round;
};
// The call of an op of the case for the round whose first row is first_row.
struct atsi_op_call op_case_call(const struct op_case *c, const struct op_case_operands *at, const struct atsi_op *op,
                                 uint32_t first_row);

// Sets the states to zero and runs all ops over the tokens in rounds of `chunk` tokens from position first_pos. Integer and
// output buffers that the ops write are overwritten. Fails the test when the program or the kernels are refused.
void op_case_run(struct op_case *c, const char *isa, int n_threads, uint32_t chunk, uint32_t first_pos);
// A copy of a buffer's rows, to be freed.
float *op_case_copy(const struct op_case *c, int32_t buffer);
void op_case_restore(struct op_case *c, int32_t buffer, const float *rows);
size_t op_case_rows(const struct op_case *c, int32_t buffer);

#endif
