// layout.h: how packed weights lie in memory. One layout a type serves CPU and GPU, so a promotion is a pure copy.
//
// PLAIN   rows as in GGUF: F32, F16, BF16, and the grid types IQ1_*, IQ2_*, IQ3_*.
// TILE16  every other quantised type. A matrix [n_rows, n_cols] is cut into tiles of 16 rows; the last tile is filled up with zero
//         blocks, whose results are never written. Tiles follow each other; within a tile the blocks along the columns:
//
//           matrix:  tile 0 | tile 1 | ...                         tile t = rows 16t .. 16t+15
//           tile:    block 0 | block 1 | ...                       block b = the b-th GGUF block of each of the 16 rows
//           block:   part | part | ...                             16 x the bytes of the GGUF block, in the order below
//           part:    [count][16 rows][granule bytes]               unit j of row 0, unit j of row 1, ..., unit j+1 of row 0, ...
//
//         So a part with granule 2 or 1 is an array of 16 scales, and one with granule 4 gives words of 4 bytes whose
//         four bytes (low nibbles, high nibbles, bit pairs) belong to 4 consecutive weights of one row. 64 bytes = one word of each of 16
//         rows: one AVX-512 register for vpdpbusd against a broadcast dword of activations, a 4-byte load a row for dp4a, and the A
//         fragments of mma.m16n8k32 (word k of the 32-column slice for columns 4k..4k+3).
//
//         Experts: each matrix [ne0, ne1] is laid out by itself, one after the other.
//
// Blocks by type. "@n" is the byte offset in the tile's block, r = 0..15 the row in the tile, b = 0..3 the byte in a word.
// Weight numbers count along the row within the block. Bits not mentioned keep the place they have in formats/blocks.h.
//
//   Q8_0    544 B  @0 d half[16]            @32 qs word[8][16]: byte b of word k = weight 4k+b, stored as q ^ 0x80 (q + 128)
//   Q4_0    288 B  @0 d half[16]            @32 qs word[4][16]: word k: low nibbles weights 4k+b, high nibbles 16+4k+b
//   Q4_1    320 B  @0 d half[16] @32 m half[16]   @64 qs as Q4_0
//   Q5_0    352 B  @0 d half[16] @32 qh word[16]  @96 qs as Q4_0; qh: bit w of byte b = bit 4 of weight 4w+b (w = 0..7), which
//                                                 is not the order of GGUF
//   Q5_1    384 B  @0 d half[16] @32 m half[16] @64 qh word[16] as Q5_0  @128 qs as Q4_0
//   IQ4_NL  288 B  as Q4_0 (codes of the value table)
//   MXFP4   272 B  @0 e byte[16]            @16 qs as Q4_0 (codes)
//   Q2_K   1344 B  @0 d half[16] @32 dmin half[16] @64 scales byte[16][16]  @320 qs word[16][16]:
//                  word 8h+k, bits 2s..2s+1 of byte b = weight 128h+32s+4k+b   (h < 2, s < 4, k < 8)
//   Q3_K   1760 B  @0 d half[16] @32 scales byte[12][16] @224 hmask word[8][16] @736 qs word[16][16] as Q2_K;
//                  hmask word k, bit t of byte b: weight 32t+4k+b   (t < 8)
//   Q4_K   2304 B  @0 d half[16] @32 dmin half[16] @64 scales byte[12][16]  @256 qs word[32][16]:
//                  word 8p+k: low nibbles weights 64p+4k+b, high nibbles 64p+32+4k+b   (p < 4, k < 8)
//   Q5_K   2816 B  @0 d half[16] @32 dmin half[16] @64 scales byte[12][16]  @256 qh word[8][16]  @768 qs as Q4_K;
//                  qh word k, bit s of byte b = bit 4 of weight 32s+4k+b   (s < 8)
//   Q6_K   3360 B  @0 d half[16] @32 scales int8[16][16]  @288 qs word[48][16], triples t = 8h+k (h < 2, k < 8):
//                  word 3t+g (g < 2): low nibbles weights 128h+32g+4k+b, high nibbles 128h+64+32g+4k+b
//                  word 3t+2: bits 2s..2s+1 of byte b = top bits of weight 128h+32s+4k+b   (s < 4)
//   IQ4_XS 2176 B  @0 d half[16] @32 scales_h u16[16] @64 scales_l byte[4][16]  @128 qs word[32][16]:
//                  word 4i+k: low nibbles weights 32i+4k+b, high nibbles 32i+16+4k+b   (i < 8, k < 4)
#ifndef ATSI_KERNELS_LAYOUT_H
#define ATSI_KERNELS_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>

#include "formats/dtype.h"
#include "formats/program.h"

enum {
    ATSI_TILE_ROWS = 16
};

// Byte offsets within a tile's block, as drawn above. They are what atsi_layout_pack writes (tests/unit/test_layout.c).
enum {
    ATSI_TILE_Q8_0_QS = 32,
    ATSI_TILE_Q8_0_BYTES = 544,
    ATSI_TILE_Q4_0_QS = 32,
    ATSI_TILE_Q4_0_BYTES = 288,
    ATSI_TILE_Q4_1_M = 32,
    ATSI_TILE_Q4_1_QS = 64,
    ATSI_TILE_Q4_1_BYTES = 320,
    ATSI_TILE_Q5_0_QH = 32,
    ATSI_TILE_Q5_0_QS = 96,
    ATSI_TILE_Q5_0_BYTES = 352,
    ATSI_TILE_Q5_1_M = 32,
    ATSI_TILE_Q5_1_QH = 64,
    ATSI_TILE_Q5_1_QS = 128,
    ATSI_TILE_Q5_1_BYTES = 384,
    ATSI_TILE_IQ4_NL_QS = 32,
    ATSI_TILE_IQ4_NL_BYTES = 288,
    ATSI_TILE_MXFP4_QS = 16,
    ATSI_TILE_MXFP4_BYTES = 272,
    ATSI_TILE_Q2_K_DMIN = 32,
    ATSI_TILE_Q2_K_SCALES = 64,
    ATSI_TILE_Q2_K_QS = 320,
    ATSI_TILE_Q2_K_BYTES = 1344,
    ATSI_TILE_Q3_K_SCALES = 32,
    ATSI_TILE_Q3_K_HMASK = 224,
    ATSI_TILE_Q3_K_QS = 736,
    ATSI_TILE_Q3_K_BYTES = 1760,
    ATSI_TILE_Q4_K_DMIN = 32,
    ATSI_TILE_Q4_K_SCALES = 64,
    ATSI_TILE_Q4_K_QS = 256,
    ATSI_TILE_Q4_K_BYTES = 2304,
    ATSI_TILE_Q5_K_DMIN = 32,
    ATSI_TILE_Q5_K_SCALES = 64,
    ATSI_TILE_Q5_K_QH = 256,
    ATSI_TILE_Q5_K_QS = 768,
    ATSI_TILE_Q5_K_BYTES = 2816,
    ATSI_TILE_Q6_K_SCALES = 32,
    ATSI_TILE_Q6_K_QS = 288,
    ATSI_TILE_Q6_K_BYTES = 3360,
    ATSI_TILE_IQ4_XS_SCALES_H = 32,
    ATSI_TILE_IQ4_XS_SCALES_L = 64,
    ATSI_TILE_IQ4_XS_QS = 128,
    ATSI_TILE_IQ4_XS_BYTES = 2176
};

// The layout in which matrices of this type are packed. Weights that are looked up or used element by element (norms,
// biases, F32 tables) are plain too.
enum atsi_layout atsi_layout_of(enum atsi_dtype dtype);

// Packs n_rows rows of n_cols weights from GGUF order at `src` into the layout at `dst` (atsi_layout_bytes of them; any alignment,
// no overlap). Pieces may be packed apart, by several threads too: a piece starts at a row that is a multiple of 16, and row
// r starts at byte r * row bytes in both orders. The layout must support the type and n_cols be a multiple of its block.
void atsi_layout_pack(enum atsi_dtype dtype, enum atsi_layout layout, const void *src, uint64_t n_rows, uint64_t n_cols,
                      void *dst);
// The inverse: n_rows rows in GGUF order from a packed matrix.
void atsi_layout_unpack(enum atsi_dtype dtype, enum atsi_layout layout, const void *src, uint64_t n_rows,
                        uint64_t n_cols, void *dst);
// Copies block `i_block` of row `row` out of a packed matrix in GGUF form (block_bytes of its dtype).
void atsi_layout_get_block(enum atsi_dtype dtype, enum atsi_layout layout, const void *packed, uint64_t n_cols,
                           uint64_t row, uint64_t i_block, void *block);

#endif
