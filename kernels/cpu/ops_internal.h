// ops_internal.h: what the files of the CPU operations share.
#ifndef ATSI_KERNELS_CPU_OPS_INTERNAL_H
#define ATSI_KERNELS_CPU_OPS_INTERNAL_H

#include "kernels/cpu/ops.h"
#include "kernels/cpu/steps.h"
#include "kernels/cpu/vec.h"
#include "kernels/matmul.h"

enum {
    ATSI_ACT_SLOTS = 4,    // prepared inputs that live at once
    ATSI_ATTN_RANGE = 512, // positions of a range: the pieces in which one query's softmax is divided among threads
    ATSI_ATTN_SPLIT_TOKENS = 4, // rounds of more tokens have enough heads and tokens to share
    ATSI_CONV_TAPS_MAX = 16
};

// An input as kernels read it: n_parts pieces of n_cols columns of every row of a view, each a row of the slot's memory.
struct atsi_act_slot {
    enum atsi_input_kind kind; // INT8 or BF16
    struct atsi_span source;   // data NULL: the slot is free
    uint32_t n_cols, n_parts;
    size_t row_bytes;
    void *memory;
    uint64_t last_use;
};

// Which experts serve which (token, slot) pairs, for one ids view and what is left out of it.
struct atsi_routing {
    struct atsi_span source; // data NULL: nothing cached
    struct atsi_slots_left_out left_out;
    struct atsi_expert_groups groups;
    uint32_t *words;
};

// Rows first .. first + n - 1 of a product's output, for each of n_slots slots that stand slot_width apart (dense: one).
struct atsi_part {
    uint32_t first, n;
    const uint32_t *slots; // NULL: slot 0
    uint32_t n_slots, slot_width;
};

// cos and sin of one set of frequencies: rows of n_rot floats a token, cosines first.
struct atsi_rope_table {
    uint32_t n_rot;
    float scale;
    float *frequencies;          // copy of the tensor: what the rows were computed for
    int32_t first_pos, n_tokens; // n_tokens 0: not computed
    float *rows;
};

struct atsi_cpu {
    enum atsi_isa isa;
    const struct atsi_vec_kernels *vec;
    struct atsi_matmul_kernels matmul;
    uint32_t n_tokens_max, n_outputs_max;
    int n_threads;     // that scratch was made for
    int n_run_threads; // of the current run
    uint32_t n_phases; // of the last run
    struct atsi_steps *steps;
    struct atsi_repeats *repeats; // for products of one token (kernels/cpu/products.h), NULL with one thread
    size_t job_in_bytes;          // room for their inputs
    uint64_t n_uses;              // counts uses of slots
    struct atsi_act_slot act[ATSI_ACT_SLOTS];
    struct atsi_routing routing;
    // Of one token: the product whose items cut its output into the parts of the last product (struct atsi_step, cut). NULL: none.
    const struct atsi_op_call *cut;
    struct atsi_span pieces;      // the row that was last written in pieces (ops_rows.c), data NULL: none
    struct atsi_rope_table *rope; // [n_rope]
    uint32_t n_rope;
    float *attn_partials;    // of split attention
    float *delta_inputs;     // normalised q and k, decay and beta of a round
    uint8_t *thread_scratch; // [n_threads][thread_scratch_bytes]
    size_t thread_scratch_bytes;
    void *memory; // everything above is carved from it
};

// Each adds the steps of one call. Rows are counted by atsi_call_rows.
void atsi_steps_of_embed(struct atsi_cpu *cpu, const struct atsi_op_call *call);
void atsi_steps_of_norm(struct atsi_cpu *cpu, const struct atsi_op_call *call);
void atsi_steps_of_matmul(struct atsi_cpu *cpu, const struct atsi_op_call *call);
void atsi_steps_of_rope(struct atsi_cpu *cpu, const struct atsi_op_call *call);
void atsi_steps_of_attention(struct atsi_cpu *cpu, const struct atsi_op_call *call);
void atsi_steps_of_glu(struct atsi_cpu *cpu, const struct atsi_op_call *call);
void atsi_steps_of_gate(struct atsi_cpu *cpu, const struct atsi_op_call *call);
void atsi_steps_of_add(struct atsi_cpu *cpu, const struct atsi_op_call *call);
void atsi_steps_of_router(struct atsi_cpu *cpu, const struct atsi_op_call *call);
void atsi_steps_of_experts(struct atsi_cpu *cpu, const struct atsi_op_call *call);
void atsi_steps_of_expert_sum(struct atsi_cpu *cpu, const struct atsi_op_call *call);
void atsi_steps_of_conv(struct atsi_cpu *cpu, const struct atsi_op_call *call);
void atsi_steps_of_delta(struct atsi_cpu *cpu, const struct atsi_op_call *call);
void atsi_steps_of_select(struct atsi_cpu *cpu, const struct atsi_op_call *call);
enum {
    ATSI_STEPS_PER_CALL = 4
}; // at most

// Adds a step and forgets the prepared inputs and routings whose source it writes.
void atsi_cpu_add_step(struct atsi_cpu *cpu, const struct atsi_step *step, const struct atsi_span *spans,
                       uint32_t n_spans);

// The same behind the parts of cpu->cut that it reads (atsi_steps_follow).
bool atsi_cpu_follow_step(struct atsi_cpu *cpu, const struct atsi_step *step, const struct atsi_span *spans,
                          uint32_t n_spans);

// What the i-th item of a cut covers. While the group of its steps runs.
struct atsi_part atsi_cpu_part(const struct atsi_cpu *cpu, const struct atsi_op_call *cut, uint32_t i);
static inline uint32_t atsi_part_column(const struct atsi_part *part, uint32_t i_slot) {
    return (part->slots != NULL ? part->slots[i_slot] * part->slot_width : 0) + part->first;
}

static inline uint32_t atsi_call_rows(const struct atsi_op_call *call) {
    const struct atsi_round *round = call->round.round;
    return (uint32_t)(call->outputs_domain ? round->n_outputs : round->n_tokens);
}
// The ids that a router gives the device beside out[0], data NULL: none.
static inline struct atsi_rows_ref atsi_call_mine(const struct atsi_op_call *call, uint32_t n_used) {
    return (struct atsi_rows_ref){call->resident.mine, n_used, n_used};
}
static inline struct atsi_span atsi_span_rows(const struct atsi_rows_ref *rows, uint32_t n_rows, bool write) {
    return (struct atsi_span){
        .data = rows->data, .stride = rows->stride, .width = rows->width, .n_rows = n_rows, .write = write};
}
// The single row of a span as n_pieces rows.
static inline struct atsi_span atsi_span_pieces(const struct atsi_span *row, uint32_t n_pieces) {
    uint32_t width = row->width / n_pieces;
    return (struct atsi_span){
        .data = row->data, .stride = width, .width = width, .n_rows = n_pieces, .write = row->write};
}
static inline float *atsi_row(const struct atsi_rows_ref *rows, uint32_t i) {
    return (float *)rows->data + (size_t)i * rows->stride;
}

// Scratch that an op kind needs, for sizing. Bytes per thread, and for the whole round.
uint64_t atsi_attention_thread_bytes(const struct atsi_state *state);
uint64_t atsi_attention_partial_bytes(const struct atsi_attention_params *p, const struct atsi_state *state,
                                      uint32_t n_ctx, uint32_t n_tokens_max);
uint64_t atsi_delta_input_bytes(const struct atsi_delta_params *p, const struct atsi_state *state,
                                uint32_t n_tokens_max);

#endif
