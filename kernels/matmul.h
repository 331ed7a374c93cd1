// matmul.h: out = W * in for every weight type on the CPU, dense and by experts.
//
// Numbers. Weights of F32, F16 and BF16 meet float32 inputs. Quantised weights meet inputs that were quantised to int8 once (per row,
// 32 values to a scale) and are shared by all matrices that read them. Integer dot products are exact and every output's
// float sums run along the columns in one fixed order, the same in every kernel: results do not depend on the instruction
// set, on how tokens are batched, or on the thread that computes them (tests/unit/test_matmul.c demands equal bits). One exception:
// where the processor has AMX, 16 and more tokens without experts are computed with it, of float weights to the accuracy of
// float, of quantised ones with both factors as bfloat16 (kernels/cpu/matmul_avx512amx.c has the bounds): a prompt's last bits
// are then not those of the same tokens one by one.
//
// For quantised weights, per 32 columns c with activation scale d and weights w = scale * q - min (kernels/cpu/quant.h):
//     acc <- fma(float(sum q*a), scale * d, acc)                      (twice 16 columns when scales stand for 16)
//     acc <- fma(-min, d * float(sum a), acc)                         (mins for 32 columns: Q4_1 Q5_1 Q4_K Q5_K)
//     acc <- fma(-float(sum over 16s of min_q * sum a), min_unit * d, acc)                       (mins for 16: Q2_K)
// For float weights: 16 partial sums, column c into sum c % 16 by fma; then i with i + 8, i + 4, i + 2, i + 1.
// Then out = acc [+ bias] [+ what out held].
//
// Threads. Everything here allocates nothing, keeps no state and may run on any number of threads on disjoint parts. Work is
// counted in tiles of 16 output rows, so with 64-byte aligned output rows no two threads write one cache line.
#ifndef ATSI_KERNELS_MATMUL_H
#define ATSI_KERNELS_MATMUL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/dtype.h"
#include "kernels/cpu/features.h"

// 32 input values: x ~ d * q, d = max|x| / 127, q = nearest(x * (127 / max|x|)). A NaN among them makes d NaN.
struct atsi_act_block {
    float d;
    float d_sum;    // d * (sum[0] + sum[1])
    int16_t sum[2]; // of q[0..15] and of q[16..31]
    int8_t q[32];   // -127..127
};

struct atsi_matmul_kernels;

enum atsi_input_kind {
    ATSI_INPUT_UNSUPPORTED = 0, // no kernel for this weight type
    ATSI_INPUT_F32 = 1,         // rows of float
    ATSI_INPUT_INT8 = 2,        // rows of struct atsi_act_block
    ATSI_INPUT_BF16 = 3, // rows of bfloat16 as the kernels for many tokens want them, columns filled up to whole 32s
    ATSI_INPUT_BF16_TWICE = 4 // the same, then a row of what they leave out
};

// What a matrix of this type reads, of one token or of an expert's.
enum atsi_input_kind atsi_matmul_input(enum atsi_dtype dtype);
// What it reads of n_tokens in a matmul without experts.
enum atsi_input_kind atsi_matmul_input_of(const struct atsi_matmul_kernels *k, enum atsi_dtype dtype,
                                          uint32_t n_tokens);
// Bytes from one row of such an input to the next, for BF16 as for INT8; 0 for the others.
size_t atsi_input_row_bytes(enum atsi_input_kind kind, uint32_t n_cols);

// Bytes from one quantised row to the next: n_cols / 32 blocks, rounded to an odd number of cache lines so that rows do not
// fall into the same cache sets. n_cols is a multiple of 32.
size_t atsi_act_row_bytes(uint32_t n_cols);

struct atsi_matmul_args {
    enum atsi_dtype dtype;
    uint32_t n_rows, n_cols; // outputs, inputs; n_cols is a multiple of the type's block
    const void *weight;      // packed in atsi_layout_of(dtype) (kernels/layout.h); 4-byte aligned (64 is fastest)
    const float *bias;       // [n_rows] or NULL
    const void *in;          // rows as atsi_matmul_input_of says, 4-byte aligned, BF16 64
    size_t in_stride;        // bytes from input row to input row
    float *out;              // rows of n_rows floats
    size_t out_stride;       // floats from output row to output row
    uint32_t n_tokens;
    bool add; // out += instead of out =
    // NULL: token t reads input row t and writes output row t. Else token t of this call stands for the pair p = pairs[t] of
    // row p / n_slots and slot p % n_slots (expert routing); a slot's data lie slot * the slot stride further on in the row.
    const uint32_t *pairs;
    uint32_t n_slots;
    size_t in_slot_stride;  // bytes; 0 when the slots share the row's input
    size_t out_slot_stride; // floats
};

// Computes output rows 16 * tile_begin .. 16 * tile_end - 1 (cut at n_rows) for all tokens.
typedef void atsi_matmul_fn(const struct atsi_matmul_args *args, uint32_t tile_begin, uint32_t tile_end);
// Quantises one row of n_cols (a multiple of 32) values.
typedef void atsi_act_quantise_fn(const float *in, uint32_t n_cols, struct atsi_act_block *out);

// Opens one row of n_cols values as ATSI_INPUT_BF16 (n_parts 1) or ATSI_INPUT_BF16_TWICE (2). `out` is 64-byte aligned.
typedef void atsi_input_cut_fn(const float *in, uint32_t n_cols, uint32_t n_parts, void *out);

enum {
    ATSI_MANY_TOKENS = 16
};
// The kernels of one instruction set, chosen once.
struct atsi_matmul_kernels {
    enum atsi_isa isa;
    atsi_act_quantise_fn *quantise;
    atsi_matmul_fn *matmul[ATSI_DTYPE_LIMIT]; // NULL where atsi_matmul_input says unsupported
    // Faster ones for at least ATSI_MANY_TOKENS tokens without pairs, NULL where there is none, and what prepares their inputs.
    atsi_matmul_fn *many[ATSI_DTYPE_LIMIT];
    atsi_input_cut_fn *cut;
    uint32_t many_group; // tokens that they take at once
    bool read_ahead;     // with one token, weights are asked for before they are read
};
// Fills *out. The isa must be supported (kernels/cpu/features.h).
void atsi_matmul_kernels_init(struct atsi_matmul_kernels *out, enum atsi_isa isa);
// The same with read_ahead as given instead of what is best here; results do not differ.
void atsi_matmul_kernels_init_ahead(struct atsi_matmul_kernels *out, enum atsi_isa isa, bool read_ahead);

// One row of any kind but F32.
void atsi_prepare_input(const struct atsi_matmul_kernels *k, enum atsi_input_kind kind, const float *in,
                        uint32_t n_cols, void *out);

// ---- whole operations, called by every thread of a team --------------------------------------------------------------

// Thread i_thread's share of quantising n_rows rows: in + r * in_stride floats to out + r * atsi_act_row_bytes(n_cols).
// Before a matmul reads them, the team meets at a barrier.
void atsi_quantise_rows(const struct atsi_matmul_kernels *k, const float *in, size_t in_stride, uint32_t n_rows,
                        uint32_t n_cols, void *out, int i_thread, int n_threads);

uint32_t atsi_matmul_tiles(uint32_t n_rows); // tiles of 16 rows
// A matmul as n chunks of whole tiles, cut so that n_threads threads taking chunks as they get free finish together and a
// chunk's weights stay in the cache across its tokens. Any thread may compute any chunk 0..n-1, each once.
uint32_t atsi_matmul_n_chunks(const struct atsi_matmul_kernels *k, const struct atsi_matmul_args *args, int n_threads);
void atsi_matmul_chunk(const struct atsi_matmul_kernels *k, const struct atsi_matmul_args *args, int n_threads,
                       uint32_t i_chunk);

// Which (token, slot) pairs each expert serves. Pair p = token * n_slots + slot.
struct atsi_expert_groups {
    uint32_t n_experts;
    uint32_t n_active; // experts with at least one pair
    uint32_t *active;  // [n_active] their numbers, those with most pairs first
    uint32_t *first;   // [n_experts + 1] expert e serves pairs[first[e]] .. pairs[first[e + 1] - 1]
    uint32_t *pairs;   // grouped by expert, ascending within
};
// Slots that others compute: of a token with r experts that are resident (resident_slots[id] >= 0) the first n[r].
struct atsi_slots_left_out {
    const int32_t *resident_slots; // [n_experts], NULL: none is
    const uint8_t *n;              // [n_slots + 1]; NULL: nothing is left out
};
// The first slot of a token, whose ids these are, that is not left out. left_out NULL: 0.
uint32_t atsi_first_slot(const struct atsi_slots_left_out *left_out, const int32_t *ids, uint32_t n_slots);
// uint32_t words of scratch for groups of at most n_pairs_max pairs.
size_t atsi_expert_groups_words(uint32_t n_experts, uint32_t n_pairs_max);
// Fills *groups with pointers into `words`. ids: [n_tokens][n_slots] in rows `id_stride` apart. A negative id leaves its pair
// out (nothing is computed or written for it), and so does `left_out`, NULL: none; others are below n_experts. One thread calls it.
void atsi_expert_groups_build(struct atsi_expert_groups *groups, uint32_t *words, uint32_t n_experts,
                              const int32_t *ids, size_t id_stride, uint32_t n_tokens, uint32_t n_slots,
                              const struct atsi_slots_left_out *left_out);

struct atsi_experts_args {
    // weight, bias: those of expert 0; n_slots and the slot strides as above; n_tokens and pairs come from the groups.
    struct atsi_matmul_args matmul;
    size_t expert_bytes; // from expert to expert
    const struct atsi_expert_groups *groups;
    // Experts whose weights stand elsewhere: those of expert e at resident + resident_slots[e] * expert_bytes where resident_slots[e] >= 0.
    // Both NULL: none.
    const int32_t *resident_slots; // [n_experts]
    const void *resident;
    // Those of the others: of one token's slot s at s * expert_bytes. NULL: in the whole matrix.
    const void *fetched;
};
// As atsi_matmul_n_chunks and atsi_matmul_chunk.
uint32_t atsi_experts_n_chunks(const struct atsi_matmul_kernels *k, const struct atsi_experts_args *args,
                               int n_threads);
void atsi_experts_chunk(const struct atsi_matmul_kernels *k, const struct atsi_experts_args *args, int n_threads,
                        uint32_t i_chunk);

#endif
