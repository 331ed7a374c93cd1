// The grid types for few tokens, with AVX-512 VBMI. (For many, opening weights counts for little: matmul_grid.h.)
//
// A codebook entry stands for 8 (IQ3: 4) weights of few levels, so it fits 2 bytes of codes (quant_tables.h), and a whole codebook a few
// registers: vpermi2b looks 64 indices up in 128 bytes at once. What is transposed are the indices, an eighth (IQ3: a quarter)
// of the weights: four dwords of each of 16 rows become four registers with a dword of each row. All that follows works on
// 16 rows x 16 columns, in registers whose byte b of a row's dword is about the weights 4b .. 4b+3 of the row's 16:
//     codes      their levels, 2 or 3 bits each       (2 x 3 bits: the first two weights and the last two in two registers)
//     word i     weights i, 4+i, 8+i, 12+i as unsigned bytes q + 128, against activations put into the same order
// Layout of the blocks: formats/blocks.h; what the fields mean: quant_grid.c.
#include <stddef.h>
#include <string.h>

#include "kernels/cpu/simd_avx512.h"
// The words of the header above.
#include "formats/blocks.h"
#include "kernels/cpu/matmul_impl.h"
#include "kernels/cpu/matmul_store.h"
#include "kernels/cpu/quant.h"
#include "kernels/cpu/quant_tables.h"

enum {
    TOKENS_MANY = 7, // from here opening once for all tokens is faster
    BLOCK_COLS = 256,
    L1_BLOCK_BYTES = 80
};

// The 16 rows' blocks of 256 columns.
struct rows {
    const uint8_t *block[ATSI_TILE_ROWS];
};

// 32 columns of the 16 rows, opened.
struct opened {
    vint code[2][2];   // [16 columns][pair of weights, with codes of 3 bits]
    vint signs;        // bit i of byte j of a row: weight 8j + i is negative
    __mmask64 down[2]; // IQ1, [16 columns], bit 4 row + b: the four weights are shifted down
    vflt scale[2];     // [16 columns], or [0] for all 32
};

// Tables from the low 6 bits of a byte to q + 128, one for each place of a code.
struct levels {
    vint at[3];
};

// The activations of 256 columns, in the order of the words.
struct inputs {
    int8_t q[BLOCK_COLS] __attribute__((aligned(64)));
    const struct atsi_act_block *x;
};

// ---- loading ----------------------------------------------------------------------------------------------------------

INLINE __m128i load_16(const struct rows *rows, int row, size_t at) {
    return _mm_loadu_si128((const void *)(rows->block[row] + at));
}

// The four dwords at byte `at` of every row's block: out[i] has dword i of row r in lane r. `order` sorts the 16 bytes before.
INLINE void load_dwords(const struct rows *rows, size_t at, const __m512i *order, vint out[4]) {
    vint part[4]; // quarter l: row 4l + i
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        vint p = _mm512_castsi128_si512(load_16(rows, i, at));
        p = _mm512_inserti32x4(p, load_16(rows, 4 + i, at), 1);
        p = _mm512_inserti32x4(p, load_16(rows, 8 + i, at), 2);
        p = _mm512_inserti32x4(p, load_16(rows, 12 + i, at), 3);
        part[i] = order != NULL ? _mm512_shuffle_epi8(p, *order) : p;
    }
    vint a = _mm512_unpacklo_epi32(part[0], part[1]), b = _mm512_unpacklo_epi32(part[2], part[3]);
    vint c = _mm512_unpackhi_epi32(part[0], part[1]), d = _mm512_unpackhi_epi32(part[2], part[3]);
    out[0] = _mm512_unpacklo_epi64(a, b);
    out[1] = _mm512_unpackhi_epi64(a, b);
    out[2] = _mm512_unpacklo_epi64(c, d);
    out[3] = _mm512_unpackhi_epi64(c, d);
}

INLINE vflt load_halves(const struct rows *rows, size_t at) {
    uint16_t half[ATSI_TILE_ROWS];
    for (int r = 0; r < ATSI_TILE_ROWS; r++) memcpy(&half[r], rows->block[r] + at, sizeof half[r]);
    return _mm512_cvtph_ps(_mm256_setr_epi16((short)half[0], (short)half[1], (short)half[2], (short)half[3],
                                             (short)half[4], (short)half[5], (short)half[6], (short)half[7],
                                             (short)half[8], (short)half[9], (short)half[10], (short)half[11],
                                             (short)half[12], (short)half[13], (short)half[14], (short)half[15]));
}

// ---- looking up -------------------------------------------------------------------------------------------------------

INLINE vint pick(const uint8_t table[128], vint index) {
    return _mm512_permutex2var_epi8(v_load(table), index, v_load(table + 64));
}

// The byte at an index of 8, 9, 10 and 11 bits: its low 8 bits in `index`, bit 8 + i in high[i].
INLINE vint look_up_8(const uint8_t *table, vint index) {
    return _mm512_mask_blend_epi8(_mm512_movepi8_mask(index), pick(table, index), pick(table + 128, index));
}
INLINE vint look_up_9(const uint8_t *table, vint index, const __mmask64 *high) {
    return _mm512_mask_blend_epi8(high[0], look_up_8(table, index), look_up_8(table + 256, index));
}
INLINE vint look_up_10(const uint8_t *table, vint index, const __mmask64 *high) {
    return _mm512_mask_blend_epi8(high[1], look_up_9(table, index, high), look_up_9(table + 512, index, high));
}
INLINE vint look_up_11(const uint8_t *table, vint index, const __mmask64 *high) {
    return _mm512_mask_blend_epi8(high[2], look_up_10(table, index, high), look_up_10(table + 1024, index, high));
}
INLINE vint look_up(const uint8_t *table, vint index, int n_high, const __mmask64 *high) {
    return n_high == 0   ? look_up_8(table, index)
           : n_high == 1 ? look_up_9(table, index, high)
           : n_high == 2 ? look_up_10(table, index, high)
                         : look_up_11(table, index, high);
}

// Entries of 8 weights: four indices a row, 32 columns.
INLINE void look_up_eights(const uint8_t *low, const uint8_t *high_half, vint index, int n_high, const __mmask64 *high,
                           struct opened *o) {
    vint first = look_up(low, index, n_high, high), second = look_up(high_half, index, n_high, high);
    vint rows_01 = _mm512_unpacklo_epi8(first, second), rows_23 = _mm512_unpackhi_epi8(first, second);
    __m512 a = _mm512_castsi512_ps(rows_01), b = _mm512_castsi512_ps(rows_23);
    o->code[0][0] = _mm512_castps_si512(_mm512_shuffle_ps(a, b, 0x88));
    o->code[1][0] = _mm512_castps_si512(_mm512_shuffle_ps(a, b, 0xdd));
}

// Entries of 4 weights: index[g] has four indices a row, for 16 columns; high NULL: of 8 bits, else of 9.
INLINE void look_up_fours(const uint8_t *first_two, const uint8_t *last_two, const vint index[2], const __mmask64 *high,
                          struct opened *o) {
    int n_high = high != NULL ? 1 : 0;
    for (int g = 0; g < 2; g++) {
        o->code[g][0] = look_up(first_two, index[g], n_high, n_high > 0 ? high + g : NULL);
        o->code[g][1] = look_up(last_two, index[g], n_high, n_high > 0 ? high + g : NULL);
    }
}

// A byte of each row's dword, four times.
INLINE vint repeat_byte(vint dwords, int byte) {
    vint order = _mm512_broadcast_i32x4(_mm_setr_epi32(0x00000000, 0x04040404, 0x08080808, 0x0c0c0c0c));
    return _mm512_shuffle_epi8(dwords, _mm512_add_epi8(order, v_set_8(byte)));
}

// Bytes `first` and first + 1 of each row's dword, twice each.
INLINE vint repeat_two_bytes(vint dwords, int first) {
    vint order = _mm512_broadcast_i32x4(_mm_setr_epi32(0x01010000, 0x05050404, 0x09090808, 0x0d0d0c0c));
    return _mm512_shuffle_epi8(dwords, _mm512_add_epi8(order, v_set_8(first)));
}

// Four fields of 8 bits from a row's dword, beginning `step` bits apart at bit `first`; what is above a field is rubbish.
INLINE vint fields(vint dwords, int first, int step) {
    uint64_t at = 0;
    for (int i = 0; i < 8; i++) at |= (uint64_t)(uint8_t)(32 * (i / 4) + first + step * (i % 4)) << (8 * i);
    return _mm512_multishift_epi64_epi8(_mm512_set1_epi64((long long)at), dwords);
}

// Bits to the places 0..3 of a mask's groups of four: bit `first` + step * b for byte b.
INLINE __mmask64 bits_of(vint bytes, int first, int step) {
    uint32_t bits = 0;
    for (int b = 0; b < 4; b++) bits |= (uint32_t)(1 << (first + step * b)) << (8 * b);
    return _mm512_test_epi8_mask(bytes, v_set_32((int32_t)bits));
}

static const uint8_t EVEN_SIGNS[128] = {
#define SIGNS_1(c)  (uint8_t)((c) | (((c) ^ (c) >> 1 ^ (c) >> 2 ^ (c) >> 3 ^ (c) >> 4 ^ (c) >> 5 ^ (c) >> 6) & 1) << 7)
#define SIGNS_4(c)  SIGNS_1(c), SIGNS_1((c) + 1), SIGNS_1((c) + 2), SIGNS_1((c) + 3)
#define SIGNS_16(c) SIGNS_4(c), SIGNS_4((c) + 4), SIGNS_4((c) + 8), SIGNS_4((c) + 12)
    SIGNS_16(0), SIGNS_16(16), SIGNS_16(32), SIGNS_16(48), SIGNS_16(64), SIGNS_16(80), SIGNS_16(96), SIGNS_16(112)};

INLINE vflt from_bits(vint a, unsigned shift, int mask) {
    return vf_from_int(v_and(v_right(a, shift), v_set_32(mask)));
}
// 2 s + 1
INLINE vflt odd_from_bits(vint a, unsigned shift, int mask) {
    return vf_from_int(v_add_32(v_left(v_and(v_right(a, shift), v_set_32(mask)), 1), v_set_32(1)));
}
// d (s + 1/2) unit
INLINE vflt half_step_scale(vflt d, vflt s, float unit) {
    return vf_mul(vf_mul(d, vf_add(_mm512_set1_ps(0.5f), s)), _mm512_set1_ps(unit));
}

// ---- multiplying ------------------------------------------------------------------------------------------------------

enum kind {
    SIGNED_2_BITS,
    SIGNED_3_BITS,
    SHIFTED_2_BITS
};

INLINE struct levels two_bit_levels(int a, int b, int c) {
    vint first = v_set_32((int32_t)((uint32_t)(128 + a) | (uint32_t)(128 + b) << 8 | (uint32_t)(128 + c) << 16));
    vint quarters = _mm512_broadcast_i32x4(_mm_setr_epi32(0x00000000, 0x01010101, 0x02020202, 0x03030303));
    vint lanes = _mm512_setr_epi32(0, 0, 0, 0, 0x01010101, 0x01010101, 0x01010101, 0x01010101, 0x02020202, 0x02020202,
                                   0x02020202, 0x02020202, 0x03030303, 0x03030303, 0x03030303, 0x03030303);
    return (struct levels){{first, _mm512_shuffle_epi8(first, quarters), _mm512_shuffle_epi8(first, lanes)}};
}

INLINE struct levels three_bit_levels(uint64_t eight) {
    vint first = v_xor(_mm512_set1_epi64((long long)eight), v_set_8(0x80));
    vint eighths =
        _mm512_setr_epi32(0, 0, 0x01010101, 0x01010101, 0x02020202, 0x02020202, 0x03030303, 0x03030303, 0x04040404,
                          0x04040404, 0x05050505, 0x05050505, 0x06060606, 0x06060606, 0x07070707, 0x07070707);
    return (struct levels){{first, _mm512_shuffle_epi8(first, eighths), v_zero()}};
}

// Word i of 16 columns, before signs and shifts.
INLINE vint magnitudes(enum kind kind, const struct levels *levels, const vint code[2], int i) {
    if (kind == SIGNED_3_BITS) return _mm512_permutexvar_epi8(code[i / 2], levels->at[i % 2]);
    if (i == 3) return _mm512_permutexvar_epi8(v_right(code[0], 2), levels->at[2]);
    return _mm512_permutexvar_epi8(code[0], levels->at[i]);
}

// dot + 16 columns.
INLINE vint dot_16_columns(enum kind kind, const struct levels *levels, const struct opened *o, int g, const int8_t *q,
                           vint dot) {
    // Byte b is about the weights 4b..4b+3, whose signs are the half b % 2 of sign byte 2g + b / 2.
    vint signs = kind == SHIFTED_2_BITS ? v_zero() : repeat_two_bytes(o->signs, 2 * g);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        vint w = magnitudes(kind, levels, o->code[g], i);
        if (kind == SHIFTED_2_BITS) {
            w = _mm512_mask_sub_epi8(w, o->down[g], w, v_set_8(2));
        } else { // -(128 + m) = 128 - m for a byte
            __mmask64 minus = _mm512_test_epi8_mask(signs, v_set_32((int32_t)(0x10011001u << i)));
            w = _mm512_mask_sub_epi8(w, minus, v_zero(), w);
        }
        dot = v_dot(dot, w, v_broadcast_32(q + 4 * i));
    }
    return dot;
}

// acc + sub-block k, in the order that kernels/matmul.h fixes.
INLINE vflt multiply(enum kind kind, int group, const struct levels *levels, const struct opened *o,
                     const struct inputs *in, int k, vflt acc) {
    const struct atsi_act_block *x = &in->x[k];
    vint sums = v_broadcast_32(x->sum), dot[2];
    vflt d = vf_broadcast(&x->d);
#pragma GCC unroll 2
    for (int g = 0; g < 2; g++) {
        vint start = v_dot_16(v_zero(), v_set_32((int32_t)(g == 0 ? 0x0000ff80u : 0xff800000u)), sums); // -128 times
        dot[g] = dot_16_columns(kind, levels, o, g, in->q + 32 * k + 16 * g, start);
    }
    if (group == 32) return vf_fma(vf_from_int(v_add_32(dot[0], dot[1])), vf_mul(o->scale[0], d), acc);
    acc = vf_fma(vf_from_int(dot[0]), vf_mul(o->scale[0], d), acc);
    return vf_fma(vf_from_int(dot[1]), vf_mul(o->scale[1], d), acc);
}

// ---- the types: acc + a block of 256 columns ----------------------------------------------------------------------------

typedef vflt block_fn(const struct rows *rows, const struct inputs *in, vflt acc);

INLINE struct levels iq2_levels(void) { return two_bit_levels(8, 25, 43); }
INLINE struct levels iq1_levels(void) { return two_bit_levels(-7, 1, 9); } // 8 g + 1; 8 g - 1 is 2 less

INLINE vflt iq2_xxs_block(const struct rows *rows, const struct inputs *in, vflt acc) {
    struct levels levels = iq2_levels();
    vflt d = load_halves(rows, 0);
    for (int quarter = 0; quarter < 4; quarter++) {
        vint word[4];
        load_dwords(rows, offsetof(struct atsi_block_iq2_xxs, qs) + 16 * (size_t)quarter, NULL, word);
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++) {
            struct opened o;
            look_up_eights(ATSI_IQ2_XXS_CODES[0], ATSI_IQ2_XXS_CODES[1], word[2 * i], 0, NULL, &o);
            o.signs = pick(EVEN_SIGNS, fields(word[2 * i + 1], 0, 7));
            o.scale[0] = half_step_scale(d, from_bits(word[2 * i + 1], 28, 15), 0.25f);
            acc = multiply(SIGNED_2_BITS, 32, &levels, &o, in, 2 * quarter + i, acc);
        }
    }
    return acc;
}

// The scales of sub-block k from the two dwords of nibbles.
INLINE void nibble_scales(vflt d, const vint scales[2], int k, struct opened *o) {
    for (int g = 0; g < 2; g++)
        o->scale[g] = half_step_scale(d, from_bits(scales[k / 4], (unsigned)(8 * (k % 4) + 4 * g), 15), 0.25f);
}

INLINE vflt iq2_xs_block(const struct rows *rows, const struct inputs *in, vflt acc) {
    struct levels levels = iq2_levels();
    vflt d = load_halves(rows, 0);
    const vint low_first = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
    vint tail[4]; // the last indices, which are not used, and the scales
    load_dwords(rows, sizeof(struct atsi_block_iq2_xs) - 16, NULL, tail);
    for (int quarter = 0; quarter < 4; quarter++) {
        vint word[4]; // low bytes of the indices of two sub-blocks, then high ones
        load_dwords(rows, offsetof(struct atsi_block_iq2_xs, qs) + 16 * (size_t)quarter, &low_first, word);
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++) {
            int k = 2 * quarter + i;
            struct opened o;
            __mmask64 high[1] = {_mm512_test_epi8_mask(word[2 + i], v_set_8(1))};
            look_up_eights(ATSI_IQ2_XS_CODES[0], ATSI_IQ2_XS_CODES[1], word[i], 1, high, &o);
            o.signs = pick(EVEN_SIGNS, v_right(word[2 + i], 1));
            nibble_scales(d, tail + 2, k, &o);
            acc = multiply(SIGNED_2_BITS, 16, &levels, &o, in, k, acc);
        }
    }
    return acc;
}

INLINE vflt iq2_s_block(const struct rows *rows, const struct inputs *in, vflt acc) {
    struct levels levels = iq2_levels();
    vflt d = load_halves(rows, 0);
    vint tail[4]; // two dwords of index bits 8 and 9, two of scales
    load_dwords(rows, offsetof(struct atsi_block_iq2_s, qh), NULL, tail);
    for (int half = 0; half < 2; half++) {
        vint index[4], signs[4];
        load_dwords(rows, offsetof(struct atsi_block_iq2_s, qs) + 16 * (size_t)half, NULL, index);
        load_dwords(rows, offsetof(struct atsi_block_iq2_s, qs) + 32 + 16 * (size_t)half, NULL, signs);
        for (int i = 0; i < 4; i++) {
            struct opened o = {.signs = signs[i]};
            vint top = repeat_byte(tail[half], i);
            __mmask64 high[2] = {bits_of(top, 0, 2), bits_of(top, 1, 2)};
            look_up_eights(ATSI_IQ2_S_CODES[0], ATSI_IQ2_S_CODES[1], index[i], 2, high, &o);
            nibble_scales(d, tail + 2, 4 * half + i, &o);
            acc = multiply(SIGNED_2_BITS, 16, &levels, &o, in, 4 * half + i, acc);
        }
    }
    return acc;
}

INLINE vflt iq3_xxs_block(const struct rows *rows, const struct inputs *in, vflt acc) {
    struct levels levels = three_bit_levels(0x3e342c241c140c04u);
    vflt d = load_halves(rows, 0);
    vint rest[8];
    for (int half = 0; half < 2; half++)
        load_dwords(rows, offsetof(struct atsi_block_iq3_xxs, qs) + 64 + 16 * (size_t)half, NULL, rest + 4 * half);
    for (int quarter = 0; quarter < 4; quarter++) {
        vint index[4];
        load_dwords(rows, offsetof(struct atsi_block_iq3_xxs, qs) + 16 * (size_t)quarter, NULL, index);
        for (int i = 0; i < 2; i++) {
            int k = 2 * quarter + i;
            struct opened o = {.signs = pick(EVEN_SIGNS, fields(rest[k], 0, 7))};
            look_up_fours(ATSI_IQ3_XXS_CODES[0], ATSI_IQ3_XXS_CODES[1], index + 2 * i, NULL, &o);
            o.scale[0] = half_step_scale(d, from_bits(rest[k], 28, 15), 0.5f);
            acc = multiply(SIGNED_3_BITS, 32, &levels, &o, in, k, acc);
        }
    }
    return acc;
}

INLINE vflt iq3_s_block(const struct rows *rows, const struct inputs *in, vflt acc) {
    struct levels levels = three_bit_levels(0x0f0d0b0907050301u);
    vflt d = load_halves(rows, 0);
    // Behind the indices: two dwords of index bits 8, eight of signs, one of scales; the last load meets one that is there already.
    vint tail[12];
    load_dwords(rows, offsetof(struct atsi_block_iq3_s, qh), NULL, tail);
    load_dwords(rows, offsetof(struct atsi_block_iq3_s, qh) + 16, NULL, tail + 4);
    load_dwords(rows, sizeof(struct atsi_block_iq3_s) - 16, NULL, tail + 7);
    for (int quarter = 0; quarter < 4; quarter++) {
        vint index[4];
        load_dwords(rows, offsetof(struct atsi_block_iq3_s, qs) + 16 * (size_t)quarter, NULL, index);
        for (int i = 0; i < 2; i++) {
            int k = 2 * quarter + i;
            struct opened o = {.signs = tail[2 + k]};
            vint top = repeat_byte(tail[k / 4], k % 4);
            __mmask64 high[2] = {bits_of(top, 0, 1), bits_of(top, 4, 1)};
            look_up_fours(ATSI_IQ3_S_CODES[0], ATSI_IQ3_S_CODES[1], index + 2 * i, high, &o);
            o.scale[0] = vf_mul(d, odd_from_bits(tail[10], (unsigned)(4 * k), 15));
            acc = multiply(SIGNED_3_BITS, 32, &levels, &o, in, k, acc);
        }
    }
    return acc;
}

// Four indices of 11 bits a row: `tops` has their bits 8 to 10.
INLINE void look_up_iq1(vint index, vint tops, struct opened *o) {
    __mmask64 high[3] = {bits_of(tops, 0, 0), bits_of(tops, 1, 0), bits_of(tops, 2, 0)};
    look_up_eights(ATSI_IQ1_CODES[0], ATSI_IQ1_CODES[1], index, 3, high, o);
}

// d (2 s + 1) / 8 for the 3-bit scale at a bit.
INLINE vflt odd_scale(vflt d, vint word, unsigned shift) {
    return vf_mul(vf_mul(d, odd_from_bits(word, shift, 7)), _mm512_set1_ps(0.125f));
}

INLINE vflt iq1_s_block(const struct rows *rows, const struct inputs *in, vflt acc) {
    struct levels levels = iq1_levels();
    vflt d = load_halves(rows, 0);
    vint tops[4]; // of two sub-blocks each
    load_dwords(rows, offsetof(struct atsi_block_iq1_s, qh), NULL, tops);
    for (int half = 0; half < 2; half++) {
        vint index[4];
        load_dwords(rows, offsetof(struct atsi_block_iq1_s, qs) + 16 * (size_t)half, NULL, index);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            struct opened o;
            vint top = tops[2 * half + i / 2];
            look_up_iq1(index[i], fields(top, 16 * (i % 2), 3), &o);
            o.down[0] = o.down[1] = _mm512_movepi8_mask(repeat_byte(top, 2 * (i % 2) + 1));
            o.scale[0] = odd_scale(d, top, (unsigned)(16 * (i % 2) + 12));
            acc = multiply(SHIFTED_2_BITS, 32, &levels, &o, in, 4 * half + i, acc);
        }
    }
    return acc;
}

INLINE vflt iq1_m_block(const struct rows *rows, const struct inputs *in, vflt acc) {
    struct levels levels = iq1_levels();
    vint tops[4], tail[4]; // of two sub-blocks each; the last of them again and two dwords of scales
    load_dwords(rows, offsetof(struct atsi_block_iq1_m, qh), NULL, tops);
    load_dwords(rows, sizeof(struct atsi_block_iq1_m) - 16, NULL, tail);
    vint nibbles = v_or(v_and(v_right(tail[2], 12), v_set_32(0x000f)), v_and(v_right(tail[2], 24), v_set_32(0x00f0)));
    nibbles = v_or(nibbles, v_and(v_right(tail[3], 4), v_set_32(0x0f00)));
    nibbles = v_or(nibbles, v_and(v_right(tail[3], 16), v_set_32(0xf000)));
    vflt d = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(nibbles));
    for (int half = 0; half < 2; half++) {
        vint index[4];
        load_dwords(rows, offsetof(struct atsi_block_iq1_m, qs) + 16 * (size_t)half, NULL, index);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            struct opened o;
            vint bytes = fields(tops[2 * half + i / 2], 16 * (i % 2), 4);
            look_up_iq1(index[i], bytes, &o);
            // Entry b's shift, for the two bytes of its weights.
            vint down_by_entry = v_and(bytes, v_set_8(8));
            for (int g = 0; g < 2; g++) {
                vint down = repeat_two_bytes(down_by_entry, 2 * g);
                o.down[g] = _mm512_test_epi8_mask(down, down);
                o.scale[g] = odd_scale(d, tail[2 + half], (unsigned)(16 * (i / 2) + 6 * (i % 2) + 3 * g));
            }
            acc = multiply(SHIFTED_2_BITS, 16, &levels, &o, in, 4 * half + i, acc);
        }
    }
    return acc;
}

// ---- rows of tiles ------------------------------------------------------------------------------------------------------

// Within 16 columns: value i of the b-th four to place 4i + b.
INLINE void sort_inputs(const struct atsi_act_block *x, struct inputs *in) {
    const __m256i order = _mm256_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15, 0, 4, 8, 12, 1, 5, 9,
                                           13, 2, 6, 10, 14, 3, 7, 11, 15);
    in->x = x;
    for (int k = 0; k < BLOCK_COLS / 32; k++) {
        __m256i q = _mm256_loadu_si256((const void *)x[k].q);
        _mm256_store_si256((void *)(in->q + 32 * k), _mm256_shuffle_epi8(q, order));
    }
}

// Sixteen rows read block by block are more streams than prefetchers follow: asks for the bytes of the next tile that lie where
// this block's rows would, were they in order. Into L1 or, where a tile is most of it, L2 (IQ3: 47 cycles a block against 58, IQ2_XXS: 34
// against 30).
INLINE void prefetch_next(const uint8_t *tile, size_t row_bytes, size_t block_bytes, size_t b) {
    const uint8_t *share = tile + ATSI_TILE_ROWS * (row_bytes + b * block_bytes);
    for (size_t at = 0; at < ATSI_TILE_ROWS * block_bytes; at += 64)
        if (block_bytes > L1_BLOCK_BYTES)
            __builtin_prefetch(share + at, 0, 2);
        else
            __builtin_prefetch(share + at, 0, 3);
}

INLINE void grid_tile(block_fn *block, size_t block_bytes, const struct atsi_matmul_args *a, uint32_t row,
                      uint32_t token) {
    size_t n_blocks = a->n_cols / BLOCK_COLS, row_bytes = n_blocks * block_bytes;
    uint32_t n_rows = a->n_rows - row < ATSI_TILE_ROWS ? a->n_rows - row : ATSI_TILE_ROWS;
    const uint8_t *tile = (const uint8_t *)a->weight + row * row_bytes;
    const struct atsi_act_block *x = atsi_matmul_in_row(a, token);
    float sums[ATSI_TILE_ROWS] __attribute__((aligned(64)));
    struct rows rows;
    vflt acc = vf_zero();
    for (uint32_t r = 0; r < ATSI_TILE_ROWS; r++) rows.block[r] = tile + (r < n_rows ? r : 0) * row_bytes;
    for (size_t b = 0; b < n_blocks; b++, x += BLOCK_COLS / 32) {
        struct inputs in;
        sort_inputs(x, &in);
        prefetch_next(tile, row_bytes, block_bytes, b);
        acc = block(&rows, &in, acc);
        for (uint32_t r = 0; r < ATSI_TILE_ROWS; r++) rows.block[r] += block_bytes;
    }
    vf_store(sums, acc);
    store_tile(a, row, sums, atsi_matmul_out_row(a, token));
}

INLINE void grid_matmul(block_fn *block, size_t block_bytes, const struct atsi_matmul_args *a, uint32_t tile_begin,
                        uint32_t tile_end) {
    if (a->n_tokens >= TOKENS_MANY) {
        atsi_matmul_grid_avx512(a, tile_begin, tile_end);
        return;
    }
    for (uint32_t i = tile_begin; i < tile_end; i++)
        for (uint32_t token = 0; token < a->n_tokens; token++)
            grid_tile(block, block_bytes, a, i * ATSI_TILE_ROWS, token);
}

#define GRID_MATMUL(type)                                                                                 \
    static void type##_matmul(const struct atsi_matmul_args *a, uint32_t tile_begin, uint32_t tile_end) { \
        grid_matmul(type##_block, sizeof(struct atsi_block_##type), a, tile_begin, tile_end);             \
    }
GRID_MATMUL(iq1_s)
GRID_MATMUL(iq1_m)
GRID_MATMUL(iq2_xxs)
GRID_MATMUL(iq2_xs)
GRID_MATMUL(iq2_s)
GRID_MATMUL(iq3_xxs)
GRID_MATMUL(iq3_s)

void atsi_matmul_fill_avx512vbmi(struct atsi_matmul_kernels *k) {
    k->matmul[ATSI_IQ1_S] = iq1_s_matmul;
    k->matmul[ATSI_IQ1_M] = iq1_m_matmul;
    k->matmul[ATSI_IQ2_XXS] = iq2_xxs_matmul;
    k->matmul[ATSI_IQ2_XS] = iq2_xs_matmul;
    k->matmul[ATSI_IQ2_S] = iq2_s_matmul;
    k->matmul[ATSI_IQ3_XXS] = iq3_xxs_matmul;
    k->matmul[ATSI_IQ3_S] = iq3_s_matmul;
}
