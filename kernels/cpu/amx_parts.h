// amx_parts.h: factors for tdpbf16ps, the product of AMX: 16 tokens x 32 columns times 32 columns x 16 rows, in bfloat16, whose 8 significant
// bits hold a part of a float. Included after simd_avx512.h.
//
// A register's row of 64 bytes are 16 pairs of columns. Which pair stands where is free as long as both factors agree: pack() makes
// the order of pair_of_slot.
#ifndef ATSI_KERNELS_CPU_AMX_PARTS_H
#define ATSI_KERNELS_CPU_AMX_PARTS_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

enum {
    STEP_COLS = 32, // of one product
    PAIRS = STEP_COLS / 2
};

// Of inputs [16 tokens][16 pairs of columns], of weights [16 pairs of columns][16 rows].
typedef uint8_t register_bytes[16][64];

// pack() leaves dword 4 i + j of a register with the pair that was number 2 i + j (j = 0, 1) or 8 + 2 i + j - 2 (j = 2, 3).
INLINE int slot_of_pair(int pair) { return pair % 8 / 2 * 4 + pair / 8 * 2 + pair % 2; }

// A float's bits with the nearest bfloat16 in the upper half; a NaN with all bits set may become a zero.
INLINE vint nearest(vflt a) { return v_add_32(_mm512_castps_si512(a), v_set_32(0x8000)); }

// The same, and a NaN stays one.
INLINE vint nearest_or_nan(vflt a) {
    vint bits = _mm512_castps_si512(a);
    return _mm512_mask_add_epi32(bits, _mm512_cmp_ps_mask(a, a, _CMP_ORD_Q), bits, v_set_32(0x8000));
}

// The upper halves of the bits of 32 floats.
INLINE vint pack(vint low, vint high) { return _mm512_packus_epi32(v_right(low, 16), v_right(high, 16)); }

// What remains of a float without the bfloat16 in the upper half of `bits`.
INLINE vflt rest(vflt a, vint bits) {
    return _mm512_sub_ps(a, vf_from_bits(v_and(bits, v_set_32((int32_t)0xffff0000u))));
}

// Pairs of two columns of 16 rows, of which none is a NaN with all bits set (ordinary_nan).
INLINE vint pairs(vflt first, vflt second) {
    return v_or_masked(v_right(nearest(first), 16), nearest(second), v_set_32((int32_t)0xffff0000u));
}

INLINE vflt ordinary_nan(vflt a) {
    return _mm512_mask_mov_ps(a, _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), vf_from_bits(v_set_32(0x7fc00000)));
}

// Signed byte i of every dword as a float.
INLINE vflt byte_of(vint word, unsigned i) { return vf_from_int(_mm512_srai_epi32(v_left(word, 24 - 8 * i), 24)); }

// Word k of a tile, 4 signed weights of 16 rows, as scale * weight - min.
INLINE void put_word(vint word, vflt scale, vflt min, int k, register_bytes out) {
    vflt w[4];
#pragma GCC unroll 4
    for (unsigned i = 0; i < 4; i++) w[i] = _mm512_fmsub_ps(byte_of(word, i), scale, min);
    v_store(out[slot_of_pair(2 * k)], pairs(w[0], w[1]));
    v_store(out[slot_of_pair(2 * k + 1)], pairs(w[2], w[3]));
}

// r[i]'s dword j <-> r[j]'s dword i.
INLINE void transpose(vint r[16]) {
    vint t[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) { // r[i + c]: in lane l dword 4 l + c of four registers
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        vint even_a = _mm512_shuffle_i32x4(r[c], r[4 + c], 0x88),
             even_b = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0x88);
        vint odd_a = _mm512_shuffle_i32x4(r[c], r[4 + c], 0xdd),
             odd_b = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0xdd);
        t[c] = _mm512_shuffle_i32x4(even_a, even_b, 0x88);
        t[4 + c] = _mm512_shuffle_i32x4(odd_a, odd_b, 0x88);
        t[8 + c] = _mm512_shuffle_i32x4(even_a, even_b, 0xdd);
        t[12 + c] = _mm512_shuffle_i32x4(odd_a, odd_b, 0xdd);
    }
    memcpy(r, t, sizeof t);
}

#endif
