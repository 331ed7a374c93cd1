// matmul_impl.h: what the matmul kernels of the different instruction sets share.
#ifndef ATSI_KERNELS_CPU_MATMUL_IMPL_H
#define ATSI_KERNELS_CPU_MATMUL_IMPL_H

#include "kernels/matmul.h"

enum {
    ATSI_TOKEN_GROUP =
        64, // tokens that pass over a chunk of tiles before the next tokens come: their inputs stay in L2
    ATSI_AHEAD_BYTES = 8 << 10 // how far ahead of reading them weights are asked for, where they are
};

// Each writes its entries over those of the lesser instruction sets.
void atsi_matmul_fill_ref(struct atsi_matmul_kernels *k);
void atsi_matmul_fill_avx2(struct atsi_matmul_kernels *k);
void atsi_matmul_fill_avxvnni(struct atsi_matmul_kernels *k);
void atsi_matmul_fill_avx512(struct atsi_matmul_kernels *k);
void atsi_matmul_fill_avx512vbmi(struct atsi_matmul_kernels *k); // grid types
void atsi_matmul_fill_avx512amx(struct atsi_matmul_kernels *k);  // many tokens

// The grid types by opening each tile once for all tokens.
void atsi_matmul_grid_avx512(const struct atsi_matmul_args *args, uint32_t tile_begin, uint32_t tile_end);

// Bytes of n_cols values of an input of any kind but BF16.
size_t atsi_input_part_bytes(enum atsi_input_kind kind, uint32_t n_cols);

// Of one token: how many tiles a chunk has, the last one perhaps fewer.
uint32_t atsi_matmul_chunk_tiles(const struct atsi_matmul_kernels *k, const struct atsi_matmul_args *args,
                                 int n_threads);
uint32_t atsi_experts_chunk_tiles(const struct atsi_matmul_kernels *k, const struct atsi_experts_args *args,
                                  int n_threads);
// The product of the i-th of the active experts with its pairs.
struct atsi_matmul_args atsi_expert_product(const struct atsi_experts_args *args, uint32_t i_active);

// Asks for what lies ATSI_AHEAD_BYTES behind the next n_bytes, into L2: weights are read once, and L1 is small for so much.
static inline void atsi_ask_ahead(const uint8_t *next, size_t n_bytes) {
    for (size_t i = 0; i < n_bytes; i += 64) __builtin_prefetch(next + ATSI_AHEAD_BYTES + i, 0, 2);
}

// Where token t of a call reads and writes.
static inline const void *atsi_matmul_in_row(const struct atsi_matmul_args *a, uint32_t t) {
    const uint8_t *in = a->in;
    if (a->pairs == NULL) return in + t * a->in_stride;
    uint32_t pair = a->pairs[t];
    return in + pair / a->n_slots * a->in_stride + pair % a->n_slots * a->in_slot_stride;
}

static inline float *atsi_matmul_out_row(const struct atsi_matmul_args *a, uint32_t t) {
    if (a->pairs == NULL) return a->out + t * a->out_stride;
    uint32_t pair = a->pairs[t];
    return a->out + pair / a->n_slots * a->out_stride + pair % a->n_slots * a->out_slot_stride;
}

#endif
