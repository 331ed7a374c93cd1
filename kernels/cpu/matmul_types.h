// matmul_types.h: how each tile16 type opens in vector registers, in the words of simd_*.h (included before this file).
//
// For type X, `block` is the tile's block, sub-block s its 32 columns 32s..32s+31, and half 0 or 1 picks 8 of the 16 rows
// where a register holds 8 (with 16 it is 0):
//   X_prepare(block, scratch)       what is done once a block for all 16 rows (unpacking 6-bit scales)
//   X_word(block, half, s, k)       weights 4k..4k+3 of sub-block s as unsigned bytes, X_OFFSET above the true ones
//   X_scale(block, scratch, half, s, g)     scale a row (of the g-th 16 columns where scales stand for 16)
//   X_min(...)                      what is subtracted
// Positions: the drawing in kernels/layout.h.
#ifndef ATSI_KERNELS_CPU_MATMUL_TYPES_H
#define ATSI_KERNELS_CPU_MATMUL_TYPES_H

#include "kernels/cpu/quant_tables.h"
#include "kernels/layout.h"

#define MINS_NONE  0
#define MINS_FLOAT 1
#define MINS_PAIR  2

#define X_PASTE_(a, b) a##b
#define X_PASTE(a, b)  X_PASTE_(a, b)
#define X_NAME(suffix) X_PASTE(X, suffix)

// Small scales of a block unpacked to bytes, [number][16 rows].
struct scratch {
    uint8_t scale[16 * 16] __attribute__((aligned(64)));
    uint8_t min[8 * 16] __attribute__((aligned(64)));
};

// Word `i` of a part of words, and entry `i` of a part of bytes or halves, for the rows of `half`.
INLINE vint word_at(const uint8_t *part, int half, int i) { return v_load(part + 64 * i + 32 * half); }
INLINE const uint8_t *bytes_at(const uint8_t *part, int half, int i) { return part + 16 * i + 8 * half; }
INLINE vflt halves_at(const uint8_t *part, int half) { return v_rows_half(part + 16 * half); }

// What is not read in the order of addresses takes prefetchers off the track: high bits that stand apart from the low ones (Q5_K, one
// token: 11 GB/s instead of 25), triples of which a pass reads two (Q6_K with AVX2: 13 instead of 20). It is asked for when a block begins.
INLINE void ask_for_words(const uint8_t *part, int n) {
    for (int i = 0; i < n; i++) __builtin_prefetch(part + 64 * i);
}

// A weight's offset goes out by the activations' sums: -offset times the sum of the 16 or 32 columns of group g. As pairs to meet
// the two sums of 16.
INLINE vint v_offsets(int offset, int group, int g) {
    int32_t low = group == 16 && g == 1 ? 0 : -offset, high = group == 16 && g == 0 ? 0 : -offset;
    return v_set_32((int32_t)((uint32_t)high << 16 | ((uint32_t)low & 0xffff)));
}

INLINE vint low_bits(vint a, int bits) { return v_and(a, v_set_8((1 << bits) - 1)); }
INLINE vint nibble(vint a, int high) { return low_bits(high ? v_right(a, 4) : a, 4); }
// Moves bit `from` of every byte to bit `to`; the other bits are rubbish.
INLINE vint move_bit(vint a, int from, int to) {
    return from < to ? v_left(a, (unsigned)(to - from)) : from > to ? v_right(a, (unsigned)(from - to)) : a;
}
// Codes of the 32-weight types: words 0..3 carry weights 4k..4k+3 low and 16+4k.. high.
INLINE vint small_code(const uint8_t *qs, int half, int k) { return nibble(word_at(qs, half, k % 4), k / 4); }
// The fifth bit of weight 4k+b stands in bit k of byte b.
INLINE vint with_fifth(vint code, const uint8_t *qh, int half, int k) {
    return v_or_masked(code, move_bit(word_at(qh, half, 0), k, 4), v_set_8(16));
}
// A table of signed bytes shifted to what v_dot_wide wants.
INLINE vint wide_values(vint codes) {
    vint values = v_table_16(ATSI_IQ4_VALUES);
    return v_look_up(WIDE_OFFSET ? v_xor(values, v_set_8(0x80)) : values, codes);
}

// The common cases. Each ends in a declaration without its semicolon, which the use supplies.
#define NO_PREPARE(X)                                                                                      \
    INLINE void X##_prepare(const uint8_t *block, struct scratch *scratch) { (void)block, (void)scratch; } \
    struct scratch
#define HALF_SCALE(X)                                                                                    \
    INLINE vflt X##_scale(const uint8_t *block, const struct scratch *scratch, int half, int s, int g) { \
        (void)scratch, (void)s, (void)g;                                                                 \
        return halves_at(block, half);                                                                   \
    }                                                                                                    \
    struct scratch
#define HALF_MIN(X, at)                                                                         \
    INLINE vflt X##_min(const uint8_t *block, const struct scratch *scratch, int half, int s) { \
        (void)scratch, (void)s;                                                                 \
        return vf_negate(halves_at(block + (at), half));                                        \
    }                                                                                           \
    struct scratch
#define NO_MIN(X)                                                                               \
    INLINE vflt X##_min(const uint8_t *block, const struct scratch *scratch, int half, int s) { \
        (void)block, (void)scratch, (void)half, (void)s;                                        \
        return vf_zero();                                                                       \
    }                                                                                           \
    struct scratch

// ---- 32 weights --------------------------------------------------------------------------------------------------

INLINE vint q8_0_word(const uint8_t *block, int half, int s, int k) {
    (void)s;
    vint w = word_at(block + ATSI_TILE_Q8_0_QS, half, k);
    return WIDE_OFFSET ? w : v_xor(w, v_set_8(0x80));
}
NO_PREPARE(q8_0);
HALF_SCALE(q8_0);
NO_MIN(q8_0);

INLINE vint q4_0_word(const uint8_t *block, int half, int s, int k) {
    (void)s;
    return small_code(block + ATSI_TILE_Q4_0_QS, half, k);
}
NO_PREPARE(q4_0);
HALF_SCALE(q4_0);
NO_MIN(q4_0);

INLINE vint q4_1_word(const uint8_t *block, int half, int s, int k) {
    (void)s;
    return small_code(block + ATSI_TILE_Q4_1_QS, half, k);
}
NO_PREPARE(q4_1);
HALF_SCALE(q4_1);
HALF_MIN(q4_1, ATSI_TILE_Q4_1_M);

INLINE vint q5_0_word(const uint8_t *block, int half, int s, int k) {
    (void)s;
    return with_fifth(small_code(block + ATSI_TILE_Q5_0_QS, half, k), block + ATSI_TILE_Q5_0_QH, half, k);
}
NO_PREPARE(q5_0);
HALF_SCALE(q5_0);
NO_MIN(q5_0);

INLINE vint q5_1_word(const uint8_t *block, int half, int s, int k) {
    (void)s;
    return with_fifth(small_code(block + ATSI_TILE_Q5_1_QS, half, k), block + ATSI_TILE_Q5_1_QH, half, k);
}
NO_PREPARE(q5_1);
HALF_SCALE(q5_1);
HALF_MIN(q5_1, ATSI_TILE_Q5_1_M);

INLINE vint iq4_nl_word(const uint8_t *block, int half, int s, int k) {
    (void)s;
    return wide_values(small_code(block + ATSI_TILE_IQ4_NL_QS, half, k));
}
NO_PREPARE(iq4_nl);
HALF_SCALE(iq4_nl);
NO_MIN(iq4_nl);

INLINE vint mxfp4_word(const uint8_t *block, int half, int s, int k) {
    (void)s;
    vint values = v_sub_8(v_table_16(ATSI_FP4_VALUES), v_set_8(-12));
    return v_look_up(values, small_code(block + ATSI_TILE_MXFP4_QS, half, k));
}
// 2^(e - 128): exponent bits e - 1, and for e = 0 and 1 the subnormals 2^21 and 2^22.
INLINE vflt mxfp4_scale(const uint8_t *block, const struct scratch *scratch, int half, int s, int g) {
    (void)scratch, (void)s, (void)g;
    vint e = v_rows_u8(bytes_at(block, half, 0)), one = v_set_32(1);
    vint subnormal = v_left(v_add_32(v_min_32(e, one), one), 21);
    return vf_from_bits(v_max_32(v_left(v_sub_32(e, one), 23), subnormal));
}
NO_PREPARE(mxfp4);
NO_MIN(mxfp4);

// ---- 256 weights -------------------------------------------------------------------------------------------------

// Two bits of sub-block s, word k, in the order that Q2_K and Q3_K share.
INLINE vint two_bits(const uint8_t *qs, int half, int s, int k) {
    return low_bits(v_right(word_at(qs, half, 8 * (s / 4) + k), (unsigned)(2 * (s % 4))), 2);
}

INLINE vint q2_k_word(const uint8_t *block, int half, int s, int k) {
    return two_bits(block + ATSI_TILE_Q2_K_QS, half, s, k);
}
INLINE vflt q2_k_scale(const uint8_t *block, const struct scratch *scratch, int half, int s, int g) {
    (void)scratch;
    vint both = v_rows_u8(bytes_at(block + ATSI_TILE_Q2_K_SCALES, half, 2 * s + g));
    return vf_mul(halves_at(block, half), vf_from_int(v_and(both, v_set_32(15))));
}
// The two 4-bit mins of 32 columns as int16 pairs, to meet the pairs of activation sums.
INLINE vint q2_k_min_pair(const uint8_t *block, int half, int s) {
    const uint8_t *scales = block + ATSI_TILE_Q2_K_SCALES;
    vint first = v_right(v_rows_u8(bytes_at(scales, half, 2 * s)), 4);
    vint second = v_right(v_rows_u8(bytes_at(scales, half, 2 * s + 1)), 4);
    return v_or(first, v_left(second, 16));
}
// Here the unit of the mins, not the min itself.
INLINE vflt q2_k_min(const uint8_t *block, const struct scratch *scratch, int half, int s) {
    (void)scratch, (void)s;
    return halves_at(block + ATSI_TILE_Q2_K_DMIN, half);
}
NO_PREPARE(q2_k);

INLINE vint q3_k_word(const uint8_t *block, int half, int s, int k) {
    vint high = move_bit(word_at(block + ATSI_TILE_Q3_K_HMASK, half, k), s, 2);
    return v_or_masked(two_bits(block + ATSI_TILE_Q3_K_QS, half, s, k), high, v_set_8(4));
}
INLINE void q3_k_prepare(const uint8_t *block, struct scratch *scratch) {
    const uint8_t *packed = block + ATSI_TILE_Q3_K_SCALES;
    ask_for_words(block + ATSI_TILE_Q3_K_HMASK, 8);
    for (int quarter = 0; quarter < 4; quarter++) // scales 4 quarter .. 4 quarter + 3, each [16 rows]
        for (int at = 0; at < 64; at += (int)sizeof(vint)) {
            vint low = nibble(v_load(packed + 64 * (quarter % 2) + at), quarter / 2);
            vint high = move_bit(v_load(packed + 128 + at), 2 * quarter, 4);
            v_store(scratch->scale + 64 * quarter + at, v_sub_8(v_or_masked(low, high, v_set_8(0x30)), v_set_8(32)));
        }
}
INLINE vflt q3_k_scale(const uint8_t *block, const struct scratch *scratch, int half, int s, int g) {
    return vf_mul(halves_at(block, half), vf_from_int(v_rows_s8(bytes_at(scratch->scale, half, 2 * s + g))));
}
NO_MIN(q3_k);

// The 6-bit scales and mins of Q4_K and Q5_K from [12][16 rows] to [8][16 rows] each.
INLINE void unpack_k_scales(const uint8_t *packed, struct scratch *scratch) {
    for (int at = 0; at < 64; at += (int)sizeof(vint)) {
        vint a = v_load(packed + at), b = v_load(packed + 64 + at), c = v_load(packed + 128 + at), top = v_set_8(0x30);
        v_store(scratch->scale + at, low_bits(a, 6));
        v_store(scratch->min + at, low_bits(b, 6));
        v_store(scratch->scale + 64 + at, v_or_masked(nibble(c, 0), v_right(a, 2), top));
        v_store(scratch->min + 64 + at, v_or_masked(nibble(c, 1), v_right(b, 2), top));
    }
}
INLINE vflt k_scale(const uint8_t *block, const struct scratch *scratch, int half, int s) {
    return vf_mul(halves_at(block, half), vf_from_int(v_rows_u8(bytes_at(scratch->scale, half, s))));
}
INLINE vflt k_min(const uint8_t *dmin, const struct scratch *scratch, int half, int s) {
    return vf_mul(halves_at(dmin, half), vf_from_int(v_rows_u8(bytes_at(scratch->min, half, s))));
}

INLINE vint q4_k_word(const uint8_t *block, int half, int s, int k) {
    return nibble(word_at(block + ATSI_TILE_Q4_K_QS, half, 8 * (s / 2) + k), s % 2);
}
INLINE void q4_k_prepare(const uint8_t *block, struct scratch *scratch) {
    unpack_k_scales(block + ATSI_TILE_Q4_K_SCALES, scratch);
}
INLINE vflt q4_k_scale(const uint8_t *block, const struct scratch *scratch, int half, int s, int g) {
    (void)g;
    return k_scale(block, scratch, half, s);
}
INLINE vflt q4_k_min(const uint8_t *block, const struct scratch *scratch, int half, int s) {
    return k_min(block + ATSI_TILE_Q4_K_DMIN, scratch, half, s);
}

INLINE vint q5_k_word(const uint8_t *block, int half, int s, int k) {
    vint low = nibble(word_at(block + ATSI_TILE_Q5_K_QS, half, 8 * (s / 2) + k), s % 2);
    return v_or_masked(low, move_bit(word_at(block + ATSI_TILE_Q5_K_QH, half, k), s, 4), v_set_8(16));
}
INLINE void q5_k_prepare(const uint8_t *block, struct scratch *scratch) {
    ask_for_words(block + ATSI_TILE_Q5_K_QH, 8);
    unpack_k_scales(block + ATSI_TILE_Q5_K_SCALES, scratch);
}
INLINE vflt q5_k_scale(const uint8_t *block, const struct scratch *scratch, int half, int s, int g) {
    (void)g;
    return k_scale(block, scratch, half, s);
}
INLINE vflt q5_k_min(const uint8_t *block, const struct scratch *scratch, int half, int s) {
    return k_min(block + ATSI_TILE_Q5_K_DMIN, scratch, half, s);
}

INLINE vint q6_k_word(const uint8_t *block, int half, int s, int k) {
    int triple = 3 * (8 * (s / 4) + k), quarter = s % 4;
    vint low = nibble(word_at(block + ATSI_TILE_Q6_K_QS, half, triple + quarter % 2), quarter / 2);
    vint high = move_bit(word_at(block + ATSI_TILE_Q6_K_QS, half, triple + 2), 2 * quarter, 4);
    return v_or_masked(low, high, v_set_8(0x30));
}
INLINE vflt q6_k_scale(const uint8_t *block, const struct scratch *scratch, int half, int s, int g) {
    (void)scratch;
    return vf_mul(halves_at(block, half),
                  vf_from_int(v_rows_s8(bytes_at(block + ATSI_TILE_Q6_K_SCALES, half, 2 * s + g))));
}
INLINE void q6_k_prepare(const uint8_t *block, struct scratch *scratch) {
    (void)scratch;
    if (!VNNI) ask_for_words(block, ATSI_TILE_Q6_K_BYTES / 64 + 1); // sub-blocks one by one skip through the triples
}
NO_MIN(q6_k);

INLINE vint iq4_xs_word(const uint8_t *block, int half, int s, int k) {
    return wide_values(nibble(word_at(block + ATSI_TILE_IQ4_XS_QS, half, 4 * s + k % 4), k / 4));
}
INLINE vflt iq4_xs_scale(const uint8_t *block, const struct scratch *scratch, int half, int s, int g) {
    (void)scratch, (void)g;
    vint low = v_right(v_rows_u8(bytes_at(block + ATSI_TILE_IQ4_XS_SCALES_L, half, s / 2)), (unsigned)(4 * (s % 2)));
    vint high = v_left(v_right(v_rows_u16(block + ATSI_TILE_IQ4_XS_SCALES_H + 16 * half), (unsigned)(2 * s)), 4);
    vint scale = v_or_masked(v_and(low, v_set_32(15)), high, v_set_32(0x30));
    return vf_mul(halves_at(block, half), vf_from_int(v_sub_32(scale, v_set_32(32))));
}
NO_PREPARE(iq4_xs);
NO_MIN(iq4_xs);

#endif
