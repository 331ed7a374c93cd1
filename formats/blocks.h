// blocks.h: the blocks of every quantised tensor type as they stand in a GGUF file, shared by C and CUDA.
//
// A row is a sequence of blocks. Fields named d, dmin, m are IEEE half floats kept as bits. "weight i" counts along the row from
// the block's start; bit 0 is the least significant. The pictures say which bits belong to weight i.
#ifndef ATSI_FORMATS_BLOCKS_H
#define ATSI_FORMATS_BLOCKS_H

#include <assert.h>
#include <stdint.h>

enum {
    ATSI_QK = 32,
    ATSI_QK_K = 256
}; // weights of a small block and of a super-block

// ---- small blocks: 32 weights ----------------------------------------------------------------------------------

// w = d * q
struct atsi_block_q8_0 {
    uint16_t d;
    int8_t qs[32];
};
static_assert(sizeof(struct atsi_block_q8_0) == 34, "Q8_0 block size");

// w = d * (q - 8). Byte j: low nibble is weight j, high nibble weight 16 + j.
struct atsi_block_q4_0 {
    uint16_t d;
    uint8_t qs[16];
};
static_assert(sizeof(struct atsi_block_q4_0) == 18, "Q4_0 block size");

// w = d * q + m. Nibbles as in Q4_0.
struct atsi_block_q4_1 {
    uint16_t d, m;
    uint8_t qs[16];
};
static_assert(sizeof(struct atsi_block_q4_1) == 20, "Q4_1 block size");

// w = d * (q - 16). Nibbles as in Q4_0; bit i of the little-endian word qh is bit 4 of weight i.
struct atsi_block_q5_0 {
    uint16_t d;
    uint8_t qh[4];
    uint8_t qs[16];
};
static_assert(sizeof(struct atsi_block_q5_0) == 22, "Q5_0 block size");

// w = d * q + m. Bits as in Q5_0.
struct atsi_block_q5_1 {
    uint16_t d, m;
    uint8_t qh[4];
    uint8_t qs[16];
};
static_assert(sizeof(struct atsi_block_q5_1) == 24, "Q5_1 block size");

// w = d * value[q]: a non-linear 4-bit code (kernels/cpu/quant_tables.h). Nibbles as in Q4_0.
struct atsi_block_iq4_nl {
    uint16_t d;
    uint8_t qs[16];
};
static_assert(sizeof(struct atsi_block_iq4_nl) == 18, "IQ4_NL block size");

// w = 2^(e - 128) * value[q], value = twice the FP4 (E2M1) number. Nibbles as in Q4_0.
struct atsi_block_mxfp4 {
    uint8_t e;
    uint8_t qs[16];
};
static_assert(sizeof(struct atsi_block_mxfp4) == 17, "MXFP4 block size");

// ---- super-blocks: 256 weights ---------------------------------------------------------------------------------

// w = d * (scale & 15) * q - dmin * (scale >> 4), one scale byte for 16 weights.
// Weight 128 h + 32 s + j (h < 2, s < 4, j < 32): bits 2s..2s+1 of qs[32 h + j].
struct atsi_block_q2_k {
    uint8_t scales[16];
    uint8_t qs[64];
    uint16_t d, dmin;
};
static_assert(sizeof(struct atsi_block_q2_k) == 84, "Q2_K block size");

// w = d * (scale - 32) * (q - 4), one 6-bit scale for 16 weights.
// Weight 128 h + 32 s + j: low bits 2s..2s+1 of qs[32 h + j]; bit 2 is bit 4h + s of hmask[j].
// Scale k: low nibble is nibble k / 8 of scales[k % 8]; top bits 2 (k / 4)..+1 of scales[8 + k % 4].
struct atsi_block_q3_k {
    uint8_t hmask[32];
    uint8_t qs[64];
    uint8_t scales[12];
    uint16_t d;
};
static_assert(sizeof(struct atsi_block_q3_k) == 110, "Q3_K block size");

// w = d * scale * q - dmin * min, a 6-bit scale and min for 32 weights.
// Weight 64 p + j (p < 4, j < 32): low nibble of qs[32 p + j]; weight 64 p + 32 + j: its high nibble.
// Scale k < 4: scales[k] & 63, min k: scales[k + 4] & 63. For k >= 4 the nibbles of scales[k + 4] are the low bits of scale
// and min, bits 6..7 of scales[k - 4] and of scales[k] their top bits.
struct atsi_block_q4_k {
    uint16_t d, dmin;
    uint8_t scales[12];
    uint8_t qs[128];
};
static_assert(sizeof(struct atsi_block_q4_k) == 144, "Q4_K block size");

// As Q4_K; bit s of qh[j] is bit 4 of weight 32 s + j.
struct atsi_block_q5_k {
    uint16_t d, dmin;
    uint8_t scales[12];
    uint8_t qh[32];
    uint8_t qs[128];
};
static_assert(sizeof(struct atsi_block_q5_k) == 176, "Q5_K block size");

// w = d * scale * (q - 32), one signed scale byte for 16 weights.
// Weight 128 h + 32 s + j: low nibble is the low (s < 2) or high nibble of ql[64 h + 32 (s % 2) + j]; top bits are bits
// 2s..2s+1 of qh[32 h + j].
struct atsi_block_q6_k {
    uint8_t ql[128];
    uint8_t qh[64];
    int8_t scales[16];
    uint16_t d;
};
static_assert(sizeof(struct atsi_block_q6_k) == 210, "Q6_K block size");

// w = d * (scale - 32) * value[q] with IQ4_NL's values, a 6-bit scale for 32 weights; its low nibble is nibble k % 2 of
// scales_l[k / 2], its top bits are bits 2k..2k+1 of scales_h. qs[16 k + j]: weights 32 k + j (low), 32 k + 16 + j (high).
struct atsi_block_iq4_xs {
    uint16_t d, scales_h;
    uint8_t scales_l[4];
    uint8_t qs[128];
};
static_assert(sizeof(struct atsi_block_iq4_xs) == 136, "IQ4_XS block size");

// Grid types: groups of 8 (or 4) weights are entries of a fixed table (kernels/cpu/quant_tables.h) with signs.

// 32 weights k: words 2k, 2k+1 of qs (read as 32-bit): four grid indices of 8 bits, then four 7-bit sign codes and in bits
// 28..31 of the second the scale s. w = d * (s + 0.5) / 4 * +-grid.
struct atsi_block_iq2_xxs {
    uint16_t d;
    uint16_t qs[32];
};
static_assert(sizeof(struct atsi_block_iq2_xxs) == 66, "IQ2_XXS block size");

// qs[l], 8 weights: 9-bit grid index, 7-bit sign code. Nibble (l / 2) % 2 of scales[l / 4] is s: w = d * (s + 0.5) / 4 * +-grid.
struct atsi_block_iq2_xs {
    uint16_t d;
    uint16_t qs[32];
    uint8_t scales[8];
};
static_assert(sizeof(struct atsi_block_iq2_xs) == 74, "IQ2_XS block size");

// As IQ2_XS with 10-bit indices: low 8 bits qs[l], top bits 2 (l % 4)..+1 of qh[l / 4]; qs[32 + l] are the 8 signs.
struct atsi_block_iq2_s {
    uint16_t d;
    uint8_t qs[64];
    uint8_t qh[8];
    uint8_t scales[8];
};
static_assert(sizeof(struct atsi_block_iq2_s) == 82, "IQ2_S block size");

// qs[l], 4 weights: grid index. Word k behind the 64 indices: four 7-bit sign codes and in bits 28..31 the scale s of 32 weights:
// w = d * (s + 0.5) / 2 * +-grid.
struct atsi_block_iq3_xxs {
    uint16_t d;
    uint8_t qs[96];
};
static_assert(sizeof(struct atsi_block_iq3_xxs) == 98, "IQ3_XXS block size");

// 9-bit indices: low 8 bits qs[l], bit 8 is bit l % 8 of qh[l / 8]; bit i of signs[k] belongs to weight 8 k + i; nibble k % 2 of
// scales[k / 2] is the scale s of 32 weights: w = d * (1 + 2 s) * +-grid.
struct atsi_block_iq3_s {
    uint16_t d;
    uint8_t qs[64];
    uint8_t qh[8];
    uint8_t signs[32];
    uint8_t scales[4];
};
static_assert(sizeof(struct atsi_block_iq3_s) == 110, "IQ3_S block size");

// 32 weights k: 11-bit indices: qs[4 k + l] and bits 3l..3l+2 of qh[k]; bits 12..14 of qh[k] scale s, bit 15 the sign of the
// shift: w = d * (2 s + 1) * (grid +- 0.125), grid in {-1, 0, 1}.
struct atsi_block_iq1_s {
    uint16_t d;
    uint8_t qs[32];
    uint16_t qh[8];
};
static_assert(sizeof(struct atsi_block_iq1_s) == 50, "IQ1_S block size");

// As IQ1_S with 3 + 1 bits (index top bits, sign of the shift) for 8 weights in nibble l % 2 of qh[l / 2]. scales as four 16-bit
// words: the top nibbles are d's half float, low 12 bits four 3-bit scales of 16 weights.
struct atsi_block_iq1_m {
    uint8_t qs[32];
    uint8_t qh[16];
    uint8_t scales[8];
};
static_assert(sizeof(struct atsi_block_iq1_m) == 56, "IQ1_M block size");

#endif
