// vec.h: the float kernels of one instruction set: what the operations do to one row, one cache block or one head.
//
// The bodies (vec_*_body.h) are written over kernels/cpu/lanes.h and compiled once for each instruction set; every version
// gives the same bits (tests/unit/test_ops_vec.c). Nothing here allocates or keeps state. Pointers need float alignment
// only. In place (out == in) is allowed where the comment says so; other overlaps are not.
#ifndef ATSI_KERNELS_CPU_VEC_H
#define ATSI_KERNELS_CPU_VEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/program.h"
#include "kernels/cpu/features.h"

enum {
    ATSI_ATTN_BLOCK = 64,  // positions of a block of the online softmax; blocks start at multiples of it
    ATSI_ATTN_QUERIES = 64 // queries of a tile at most
};

// Elements of a row rounded up to whole lanes; the padding is zero.
static inline uint32_t atsi_vec_pad(uint32_t n) { return (n + 15u) & ~15u; }

// Queries that share one key/value head, and their running softmax over a range of positions.
struct atsi_attn_tile {
    uint32_t n_queries;
    const float *q;                    // [n_queries][pad(k_dim)], padding zero
    uint32_t first[ATSI_ATTN_QUERIES]; // query i sees the positions first[i] .. end[i] - 1
    uint32_t end[ATSI_ATTN_QUERIES];
    float scale;
    const void *k, *v;                 // this head's row in slot 0 of the cache
    size_t k_slot_bytes, v_slot_bytes; // from slot to slot
    uint32_t capacity;                 // slots; position p stands in slot p % capacity
    enum atsi_dtype kv_type;           // F32, F16 or Q8_0
    uint32_t k_dim, v_dim;
    float *rows;      // scratch: [ATSI_ATTN_BLOCK][pad(k_dim) or pad(v_dim)], the block's keys, then its values
    float *scores;    // scratch: [n_queries][ATSI_ATTN_BLOCK]
    float *max, *sum; // out: [n_queries] largest score, sum of exp(score - max); -inf and 0 when nothing seen
    float *acc;       // out: [n_queries][pad(v_dim)] sum of exp(score - max) * v
};

struct atsi_delta_step {
    float *state; // [k_dim][stride], the first n_cols columns of each row are used
    uint32_t stride, k_dim, n_cols;
    const float *q, *k; // [k_dim], normalised
    const float *v;     // [n_cols]
    float decay, beta;
    float *out; // [n_cols]
};

struct atsi_vec_kernels {
    // out (+)= in / sqrt(mean(in^2) + eps) * weight (NULL: 1). In place allowed.
    void (*rms_norm)(const float *in, const float *weight, uint32_t n, float eps, bool add, float *out);
    // out = in / sqrt(sum(in^2) + eps) * scale. In place allowed.
    void (*l2_norm)(const float *in, uint32_t n, float eps, float scale, float *out);
    void (*scale)(const float *in, float factor, uint32_t n, float *out); // in place allowed
    void (*add)(const float *a, const float *b, uint32_t n, float *out);  // in place allowed, either operand
    void (*glu)(const struct atsi_glu_params *p, const float *gate, const float *up, uint32_t n,
                float *out);                                  // in place allowed
    void (*silu)(const float *in, uint32_t n, float *out);    // in place allowed
    void (*sigmoid)(const float *in, uint32_t n, float *out); // in place allowed
    // out = in * sigmoid(g), for one g.
    void (*gate)(const float *in, float g, uint32_t n, float *out); // in place allowed
    void (*gate_each)(const float *in, const float *gates, uint32_t n,
                      float *out); // out = in * sigmoid(gates); in place allowed
    // out = exp(in - max(in)), returns the sum. In place allowed.
    float (*exp_shifted)(const float *in, uint32_t n, float *out);
    // The largest of n values; NaN where one is NaN or positive infinity.
    float (*largest)(const float *in, uint32_t n);
    // out (+)= sum over s of weights[s] * slots[s * n ...], s in the order of `order` [n_slots]; NULL: ascending.
    void (*weighted_sum)(const float *slots, const float *weights, const uint32_t *order, uint32_t n_slots, uint32_t n,
                         bool add, float *out);
    // One head: the first n_rot elements rotated by cosine and sine [n_rot / 2], the rest copied. In place allowed.
    void (*rope)(enum atsi_rope_pairing pairing, const float *in, const float *cosine, const float *sine,
                 uint32_t n_rot, uint32_t head_dim, float *out);
    // n values as a row of F32, F16 or (n a multiple of 32) Q8_0.
    void (*kv_store)(enum atsi_dtype type, const float *in, uint32_t n, void *out);
    // The softmax of a tile over the positions begin .. end - 1, begin a multiple of ATSI_ATTN_BLOCK.
    void (*attention_range)(const struct atsi_attn_tile *tile, uint32_t begin, uint32_t end);
    // Adds a range's (max, sum, acc) to a running total of the same shape. The total starts as (-inf, 0, 0).
    void (*attention_fold)(float *total_max, float *total_sum, float *total_acc, float max, float sum, const float *acc,
                           uint32_t v_pad);
    // out = acc / (sum + exp(sink - max)); sink NULL: none.
    void (*attention_finish)(float max, float sum, const float *acc, const float *sink, uint32_t v_dim, float *out);
    // One token of the gated delta rule (formula: struct atsi_delta_params) for some columns of one head.
    void (*delta_step)(const struct atsi_delta_step *step);
};

// The isa must be supported. Never NULL; valid for ever.
const struct atsi_vec_kernels *atsi_vec_kernels(enum atsi_isa isa);

#if defined(__x86_64__)
extern const struct atsi_vec_kernels atsi_vec_kernels_avx2;
extern const struct atsi_vec_kernels atsi_vec_kernels_avx512;
#endif

#endif
