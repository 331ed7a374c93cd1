// simd_avx512.h: the vector words that the matmul kernels are written in, for AVX-512 with VNNI: 16 rows a register.
// simd_avx2.h gives the same words for 8 rows; include exactly one.
#ifndef ATSI_KERNELS_CPU_SIMD_AVX512_H
#define ATSI_KERNELS_CPU_SIMD_AVX512_H

#include <immintrin.h>
#include <stdint.h>

#define INLINE static inline __attribute__((always_inline))

enum {
    LANES = 16,
    HALVES = 1,        // registers that hold the 16 rows of a tile
    VNNI = 1,          // v_dot takes any unsigned byte
    WIDE_OFFSET = 128, // what 8-bit weights are stored above: v_dot_wide takes q + 128
    TOKENS_MAX = 8,    // tokens that share an unpacked word
    FLOAT_ROWS = 4,    // register block of the float kernels
    FLOAT_TOKENS = 6
};

typedef __m512i vint; // 16 x int32, or 64 bytes
typedef __m512 vflt;  // 16 x float
typedef uint32_t words __attribute__((vector_size(64)));

INLINE vint v_load(const void *p) { return _mm512_loadu_si512(p); }
INLINE void v_store(void *p, vint a) { _mm512_storeu_si512(p, a); }
INLINE vint v_zero(void) { return _mm512_setzero_si512(); }
INLINE vint v_set_32(int32_t a) { return _mm512_set1_epi32(a); }
INLINE vint v_set_8(int a) { return _mm512_set1_epi8((char)a); }
INLINE vint v_broadcast_32(const void *p) { return _mm512_set1_epi32(*(const int32_t __attribute__((may_alias)) *)p); }
INLINE vint v_table_16(const int8_t table[16]) { return _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)table)); }
INLINE vint v_and(vint a, vint b) { return _mm512_and_si512(a, b); }
INLINE vint v_or(vint a, vint b) { return _mm512_or_si512(a, b); }
INLINE vint v_xor(vint a, vint b) { return _mm512_xor_si512(a, b); }
// a | (b & mask)
INLINE vint v_or_masked(vint a, vint b, vint mask) { return _mm512_ternarylogic_epi32(a, b, mask, 0xf8); }
INLINE vint v_right(vint a, unsigned n) { return (vint)((words)a >> n); }
INLINE vint v_left(vint a, unsigned n) { return (vint)((words)a << n); }
INLINE vint v_add_32(vint a, vint b) { return _mm512_add_epi32(a, b); }
INLINE vint v_sub_32(vint a, vint b) { return _mm512_sub_epi32(a, b); }
INLINE vint v_sub_8(vint a, vint b) { return _mm512_sub_epi8(a, b); }
INLINE vint v_min_32(vint a, vint b) { return _mm512_min_epi32(a, b); }
INLINE vint v_max_32(vint a, vint b) { return _mm512_max_epi32(a, b); }
INLINE vint v_look_up(vint table, vint codes) { return _mm512_shuffle_epi8(table, codes); } // codes 0..15
INLINE vint v_dot_16(vint sum, vint a, vint b) { return _mm512_dpwssd_epi32(sum, a, b); }

// sum + 4 products of unsigned weight bytes and signed activation bytes in every lane.
INLINE vint v_dot(vint sum, vint w, vint x) { return _mm512_dpbusd_epi32(sum, w, x); }
INLINE vint v_dot_wide(vint sum, vint w, vint x) { return _mm512_dpbusd_epi32(sum, w, x); }

// One small integer a row, from arrays of 16.
INLINE vint v_rows_u8(const uint8_t *p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)p)); }
INLINE vint v_rows_s8(const uint8_t *p) { return _mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)p)); }
INLINE vint v_rows_u16(const uint8_t *p) { return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p)); }
INLINE vflt v_rows_half(const uint8_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)p)); }

INLINE vflt vf_zero(void) { return _mm512_setzero_ps(); }
INLINE vflt vf_broadcast(const float *p) { return _mm512_set1_ps(*p); }
INLINE vflt vf_load(const float *p) { return _mm512_loadu_ps(p); }
INLINE void vf_store(float *p, vflt a) { _mm512_storeu_ps(p, a); }
INLINE vflt vf_from_int(vint a) { return _mm512_cvtepi32_ps(a); }
INLINE vflt vf_from_bits(vint a) { return _mm512_castsi512_ps(a); }
INLINE vflt vf_negate(vflt a) { return vf_from_bits(v_xor(_mm512_castps_si512(a), v_set_32(INT32_MIN))); }
INLINE vflt vf_add(vflt a, vflt b) { return _mm512_add_ps(a, b); }
INLINE vflt vf_mul(vflt a, vflt b) { return _mm512_mul_ps(a, b); }
INLINE vflt vf_fma(vflt a, vflt b, vflt sum) { return _mm512_fmadd_ps(a, b, sum); }
INLINE vflt vf_fnma(vflt a, vflt b, vflt sum) { return _mm512_fnmadd_ps(a, b, sum); } // sum - a * b
INLINE vflt vf_load_f16(const void *p) { return _mm512_cvtph_ps(_mm256_loadu_si256(p)); }
INLINE vflt vf_load_bf16(const void *p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p)), 16));
}
// Sum of 16 partial sums: i with i + 8, then i + 4, i + 2, i + 1.
INLINE float vf_sum_16(const vflt part[1]) {
    __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(part[0]), _mm512_extractf32x8_ps(part[0], 1));
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

#endif
