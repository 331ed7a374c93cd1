// matmul_grid.h: the grid types (IQ1_*, IQ2_*, IQ3_*), whose rows are plain. Included after matmul_tiles.h.
//
// Looking up codebooks is work for one row at a time, multiplying is not: each 16 rows x 256 columns are opened into a tile
// of bytes on the stack, once for a block of tokens, and a tile kernel runs over it.
#ifndef ATSI_KERNELS_CPU_MATMUL_GRID_H
#define ATSI_KERNELS_CPU_MATMUL_GRID_H

#include <string.h>

#include "kernels/cpu/grid_open.h"
#include "kernels/cpu/matmul_tiles.h"
#include "kernels/cpu/quant.h"

INLINE vint opened_word(const uint8_t *tile, int half, int s, int k) {
    vint w = word_at((const uint8_t *)((const struct atsi_opened_tile *)(const void *)tile)->words, half, 8 * s + k);
    return WIDE_OFFSET ? w : v_xor(w, v_set_8(0x80));
}
INLINE vflt opened_scale(const uint8_t *tile, int half, int i) {
    return vf_load(((const struct atsi_opened_tile *)(const void *)tile)->scale[i] + LANES * half);
}

INLINE vint opened32_word(const uint8_t *tile, int half, int s, int k) { return opened_word(tile, half, s, k); }
INLINE vflt opened32_scale(const uint8_t *tile, const struct scratch *scratch, int half, int s, int g) {
    (void)scratch, (void)g;
    return opened_scale(tile, half, s);
}
NO_PREPARE(opened32);
NO_MIN(opened32);

INLINE vint opened16_word(const uint8_t *tile, int half, int s, int k) { return opened_word(tile, half, s, k); }
INLINE vflt opened16_scale(const uint8_t *tile, const struct scratch *scratch, int half, int s, int g) {
    (void)scratch;
    return opened_scale(tile, half, 2 * s + g);
}
NO_PREPARE(opened16);
NO_MIN(opened16);

#define X        opened32
#define X_BYTES  (int)sizeof(struct atsi_opened_tile)
#define X_SUBS   8
#define X_OFFSET WIDE_OFFSET
#define X_GROUP  32
#define X_MINS   MINS_NONE
#define X_WIDE   1
#define X_RUN    1
#define X_JOINT  1
#include "kernels/cpu/matmul_kernel.h"

#define X        opened16
#define X_BYTES  (int)sizeof(struct atsi_opened_tile)
#define X_SUBS   8
#define X_OFFSET WIDE_OFFSET
#define X_GROUP  16
#define X_MINS   MINS_NONE
#define X_WIDE   1
#define X_RUN    1
#define X_JOINT  1
#include "kernels/cpu/matmul_kernel.h"

// Asks for the bytes of the next tile that lie where block b of this one's rows would, were they in order. Sixteen rows read
// block by block are sixteen streams, more than prefetchers follow: waiting for them took two thirds of a decode.
static void prefetch_next(const uint8_t *rows, size_t row_bytes, uint32_t block_bytes, size_t b) {
    const uint8_t *share = rows + ATSI_TILE_ROWS * (row_bytes + b * block_bytes);
    for (uint32_t at = 0; at < ATSI_TILE_ROWS * block_bytes; at += 64) __builtin_prefetch(share + at);
}

// One tile of rows, tokens t_begin .. t_end - 1 (at most ATSI_TOKEN_GROUP).
static void grid_tile(const struct atsi_quant_type *type, const struct atsi_matmul_args *a, uint32_t row,
                      uint32_t t_begin, uint32_t t_end) {
    size_t row_bytes = (size_t)a->n_cols / 256 * type->block_bytes;
    uint32_t n_rows = a->n_rows - row < ATSI_TILE_ROWS ? a->n_rows - row : ATSI_TILE_ROWS;
    const uint8_t *rows = (const uint8_t *)a->weight + row * row_bytes;
    const struct tile_kernels *k = type->group == 16 ? &opened16_tiles : &opened32_tiles;
    const struct atsi_act_block *x[ATSI_TOKEN_GROUP];
    float sums[ATSI_TOKEN_GROUP * ATSI_TILE_ROWS] __attribute__((aligned(64)));
    struct atsi_opened_tile tile;
    memset(sums, 0, (t_end - t_begin) * ATSI_TILE_ROWS * sizeof *sums);
    for (uint32_t t = t_begin; t < t_end; t++) x[t - t_begin] = atsi_matmul_in_row(a, t);
    for (size_t b = 0; b < a->n_cols / 256; b++) {
        prefetch_next(rows, row_bytes, type->block_bytes, b);
        atsi_grid_open_avx2(a->dtype, rows + b * type->block_bytes, row_bytes, n_rows, &tile);
        for (uint32_t i = 0; i < t_end - t_begin;) {
            int log2 = tokens_log2(t_end - t_begin - i);
            k->run[log2]((const uint8_t *)&tile, 1, x + i, sums + i * ATSI_TILE_ROWS);
            i += 1u << log2;
        }
        for (uint32_t i = 0; i < t_end - t_begin; i++) x[i] += 8;
    }
    for (uint32_t t = t_begin; t < t_end; t++)
        store_tile(a, row, sums + (t - t_begin) * ATSI_TILE_ROWS, atsi_matmul_out_row(a, t));
}

static void grid_matmul(const struct atsi_matmul_args *a, uint32_t tile_begin, uint32_t tile_end) {
    const struct atsi_quant_type *type = atsi_quant_type(a->dtype);
    for (uint32_t t = 0; t < a->n_tokens; t += ATSI_TOKEN_GROUP) {
        uint32_t t_end = a->n_tokens - t < ATSI_TOKEN_GROUP ? a->n_tokens : t + ATSI_TOKEN_GROUP;
        for (uint32_t i = tile_begin; i < tile_end; i++) grid_tile(type, a, i * ATSI_TILE_ROWS, t, t_end);
    }
}

static void fill_grid_types(struct atsi_matmul_kernels *k) {
    static const enum atsi_dtype types[] = {ATSI_IQ1_S, ATSI_IQ1_M,   ATSI_IQ2_XXS, ATSI_IQ2_XS,
                                            ATSI_IQ2_S, ATSI_IQ3_XXS, ATSI_IQ3_S};
    for (unsigned i = 0; i < sizeof types / sizeof types[0]; i++) k->matmul[types[i]] = grid_matmul;
}

#endif
