// matmul_store.h: where the sums of a tile go, in the words of simd_*.h (included before this file).
#ifndef ATSI_KERNELS_CPU_MATMUL_STORE_H
#define ATSI_KERNELS_CPU_MATMUL_STORE_H

#include "kernels/cpu/matmul_impl.h"
#include "kernels/layout.h"

// Puts a tile's sums where they belong: bias, earlier contents, and only the rows that exist.
static inline void store_tile(const struct atsi_matmul_args *a, uint32_t row, const float *sums, float *out) {
    uint32_t n = a->n_rows - row < ATSI_TILE_ROWS ? a->n_rows - row : ATSI_TILE_ROWS;
    if (n < ATSI_TILE_ROWS) {
        for (uint32_t r = 0; r < n; r++) {
            float sum = a->bias != NULL ? sums[r] + a->bias[row + r] : sums[r];
            out[row + r] = a->add ? out[row + r] + sum : sum;
        }
        return;
    }
    for (uint32_t r = 0; r < ATSI_TILE_ROWS; r += LANES) {
        vflt sum = vf_load(sums + r);
        if (a->bias != NULL) sum = vf_add(sum, vf_load(a->bias + row + r));
        if (a->add) sum = vf_add(vf_load(out + row + r), sum);
        vf_store(out + row + r, sum);
    }
}

#endif
