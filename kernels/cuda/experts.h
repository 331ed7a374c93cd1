// experts.h: how products with expert weights find their rows, shared by all weight types.
#ifndef ATSI_KERNELS_CUDA_EXPERTS_H
#define ATSI_KERNELS_CUDA_EXPERTS_H

#include "kernels/cuda/internal.h"

constexpr int MATRIX_COLS = 64; // input rows of an expert that a block of a matrix kernel computes
constexpr int EXPERTS_CAP = 1024;

// A piece of one expert's work: pairs[first .. first + n), n <= MATRIX_COLS.
struct group_tile {
    int32_t expert, first, n;
};

// Which (token, slot) pairs each expert serves; pair = token * n_slots + slot. All in device memory.
struct expert_groups {
    int32_t *n_tiles;
    struct group_tile *tiles;
    int32_t *pairs; // grouped by expert
};

// ids [token][n_slots] in rows ids_stride apart, NULL for a dense product; a negative id leaves its pair out (on a device that divides
// its slots with the host, the host's). Pair p reads
// prepared input row p / in_divisor and writes n_out floats at out + (p / n_slots) * out_stride + (p % n_slots) * n_out.
// Where slots[expert] >= 0 the expert's matrix is that one of the `resident` block which each product brings beside the whole tensor; slots
// NULL: none is. `fetched`: the tensor is no tensor but has the matrix of each pair that is not resident (one row, vector kernels).
struct expert_args {
    const int32_t *ids, *slots;
    uint32_t ids_stride, n_slots, in_divisor, n_experts;
    bool fetched;
    struct expert_groups groups; // matrix kernels only
};

// Blocks of n_cols input rows that may be needed: experts may each leave one partly filled.
static inline uint32_t n_row_blocks(const struct expert_args &e, uint32_t n_in, uint32_t n_cols) {
    return ceil_div(n_in, n_cols) + (e.ids ? e.n_experts : 0);
}

#endif
