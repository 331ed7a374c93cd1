// matmul_tiles.h: the loops around the tile kernels, and the kernel of every tile16 type. Included after one simd_*.h by
// matmul_avx2.c, matmul_avxvnni.c and matmul_avx512.c.
#ifndef ATSI_KERNELS_CPU_MATMUL_TILES_H
#define ATSI_KERNELS_CPU_MATMUL_TILES_H

#include "kernels/cpu/matmul_impl.h"
#include "kernels/cpu/matmul_store.h"
#include "kernels/cpu/matmul_types.h"
#include "kernels/layout.h"

// sums[token][16 rows] += the blocks of a tile times the inputs, for 1, 2, 4 or 8 tokens.
typedef void tile_fn(const uint8_t *tile, size_t n_blocks, const struct atsi_act_block *const *rows, float *sums);

struct tile_kernels {
    uint32_t block_bytes, block_cols;
    tile_fn *run[4];    // for 1 << i tokens
    tile_fn *run_ahead; // run[0], weights asked for ahead
};

// The largest group of tokens, as a power of two, that n_left fill.
static inline int tokens_log2(uint32_t n_left) {
    int log2 = TOKENS_MAX == 8 ? 3 : 2;
    while ((1u << log2) > n_left) log2--;
    return log2;
}

static inline void run_tile(const struct tile_kernels *k, const struct atsi_matmul_args *a, bool ahead, uint32_t i_tile,
                            uint32_t t, uint32_t t_end) {
    size_t n_blocks = a->n_cols / k->block_cols;
    const uint8_t *tile = (const uint8_t *)a->weight + (size_t)i_tile * n_blocks * k->block_bytes;
    while (t < t_end) {
        int log2 = tokens_log2(t_end - t);
        uint32_t n = 1u << log2;
        const struct atsi_act_block *rows[TOKENS_MAX];
        float sums[TOKENS_MAX * ATSI_TILE_ROWS] __attribute__((aligned(64))) = {0};
        for (uint32_t i = 0; i < n; i++) rows[i] = atsi_matmul_in_row(a, t + i);
        (ahead && a->n_tokens == 1 ? k->run_ahead : k->run[log2])(tile, n_blocks, rows, sums);
        for (uint32_t i = 0; i < n; i++)
            store_tile(a, i_tile * ATSI_TILE_ROWS, sums + i * ATSI_TILE_ROWS, atsi_matmul_out_row(a, t + i));
        t += n;
    }
}

static void run_tiles(const struct tile_kernels *k, const struct atsi_matmul_args *a, bool ahead, uint32_t tile_begin,
                      uint32_t tile_end) {
    for (uint32_t t = 0; t < a->n_tokens; t += ATSI_TOKEN_GROUP) {
        uint32_t t_end = a->n_tokens - t < ATSI_TOKEN_GROUP ? a->n_tokens : t + ATSI_TOKEN_GROUP;
        for (uint32_t i_tile = tile_begin; i_tile < tile_end; i_tile++) run_tile(k, a, ahead, i_tile, t, t_end);
    }
}

#define X_KERNEL "kernels/cpu/matmul_kernel.h"
#include "kernels/cpu/matmul_type_list.h"
#undef X_KERNEL

#define TILE_MATMUL(dtype, type)                                                                                \
    static void type##_matmul(const struct atsi_matmul_args *a, uint32_t tile_begin, uint32_t tile_end) {       \
        run_tiles(&type##_tiles, a, false, tile_begin, tile_end);                                               \
    }                                                                                                           \
    static void type##_matmul_ahead(const struct atsi_matmul_args *a, uint32_t tile_begin, uint32_t tile_end) { \
        run_tiles(&type##_tiles, a, true, tile_begin, tile_end);                                                \
    }
TILE16_TYPES(TILE_MATMUL)

static void fill_tile_types(struct atsi_matmul_kernels *k) {
#define FILL(dtype, type) k->matmul[ATSI_##dtype] = k->read_ahead ? type##_matmul_ahead : type##_matmul;
    TILE16_TYPES(FILL)
#undef FILL
}

#endif
