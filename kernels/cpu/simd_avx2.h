// simd_avx2.h: the words of simd_avx512.h for 8 rows a register: AVX2, or AVX-VNNI when the file is compiled for it.
#ifndef ATSI_KERNELS_CPU_SIMD_AVX2_H
#define ATSI_KERNELS_CPU_SIMD_AVX2_H

#include <immintrin.h>
#include <stdint.h>

#define INLINE static inline __attribute__((always_inline))

enum {
    LANES = 8,
    HALVES = 2,
#if defined(__AVXVNNI__)
    VNNI = 1,
    WIDE_OFFSET = 128,
#else
    VNNI = 0,
    WIDE_OFFSET = 0, // v_dot_wide takes signed weights
#endif
    TOKENS_MAX = 4,
    FLOAT_ROWS = 2,
    FLOAT_TOKENS = 3
};

typedef __m256i vint; // 8 x int32, or 32 bytes
typedef __m256 vflt;  // 8 x float
typedef uint32_t words __attribute__((vector_size(32)));

INLINE vint v_load(const void *p) { return _mm256_loadu_si256(p); }
INLINE void v_store(void *p, vint a) { _mm256_storeu_si256(p, a); }
INLINE vint v_zero(void) { return _mm256_setzero_si256(); }
INLINE vint v_set_32(int32_t a) { return _mm256_set1_epi32(a); }
INLINE vint v_set_8(int a) { return _mm256_set1_epi8((char)a); }
INLINE vint v_broadcast_32(const void *p) { return _mm256_set1_epi32(*(const int32_t __attribute__((may_alias)) *)p); }
INLINE vint v_table_16(const int8_t table[16]) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)table));
}
INLINE vint v_and(vint a, vint b) { return _mm256_and_si256(a, b); }
INLINE vint v_or(vint a, vint b) { return _mm256_or_si256(a, b); }
INLINE vint v_xor(vint a, vint b) { return _mm256_xor_si256(a, b); }
INLINE vint v_or_masked(vint a, vint b, vint mask) { return v_or(a, v_and(b, mask)); }
INLINE vint v_right(vint a, unsigned n) { return (vint)((words)a >> n); }
INLINE vint v_left(vint a, unsigned n) { return (vint)((words)a << n); }
INLINE vint v_add_32(vint a, vint b) { return _mm256_add_epi32(a, b); }
INLINE vint v_sub_32(vint a, vint b) { return _mm256_sub_epi32(a, b); }
INLINE vint v_sub_8(vint a, vint b) { return _mm256_sub_epi8(a, b); }
INLINE vint v_min_32(vint a, vint b) { return _mm256_min_epi32(a, b); }
INLINE vint v_max_32(vint a, vint b) { return _mm256_max_epi32(a, b); }
INLINE vint v_look_up(vint table, vint codes) { return _mm256_shuffle_epi8(table, codes); }

#if defined(__AVXVNNI__)
INLINE vint v_dot_16(vint sum, vint a, vint b) { return _mm256_dpwssd_avx_epi32(sum, a, b); }
INLINE vint v_dot(vint sum, vint w, vint x) { return _mm256_dpbusd_avx_epi32(sum, w, x); }
INLINE vint v_dot_wide(vint sum, vint w, vint x) { return v_dot(sum, w, x); }
#else
INLINE vint v_dot_16(vint sum, vint a, vint b) { return v_add_32(sum, _mm256_madd_epi16(a, b)); }
// Without VNNI pairs of products are summed to 16 bits first (v_pairs), several words are added there as long as nothing
// can overflow, and v_dot_pairs brings the pairs to 32 bits.
INLINE vint v_dot(vint sum, vint w, vint x) { return v_dot_16(sum, _mm256_maddubs_epi16(w, x), _mm256_set1_epi16(1)); }
// Signed weights: |w| times x with w's sign. |w| <= 128 and |x| <= 127, so a pair fits 16 bits.
INLINE vint v_dot_wide(vint sum, vint w, vint x) { return v_dot(sum, _mm256_abs_epi8(w), _mm256_sign_epi8(x, w)); }
INLINE vint v_pairs(vint w, vint x) { return _mm256_maddubs_epi16(w, x); }
INLINE vint v_add_16(vint a, vint b) { return _mm256_add_epi16(a, b); }
INLINE vint v_dot_pairs(vint sum, vint pairs) { return v_dot_16(sum, pairs, _mm256_set1_epi16(1)); }
#endif

INLINE vint v_rows_u8(const uint8_t *p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)p)); }
INLINE vint v_rows_s8(const uint8_t *p) { return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)p)); }
INLINE vint v_rows_u16(const uint8_t *p) { return _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p)); }
INLINE vflt v_rows_half(const uint8_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const void *)p)); }

INLINE vflt vf_zero(void) { return _mm256_setzero_ps(); }
INLINE vflt vf_broadcast(const float *p) { return _mm256_broadcast_ss(p); }
INLINE vflt vf_load(const float *p) { return _mm256_loadu_ps(p); }
INLINE void vf_store(float *p, vflt a) { _mm256_storeu_ps(p, a); }
INLINE vflt vf_from_int(vint a) { return _mm256_cvtepi32_ps(a); }
INLINE vflt vf_from_bits(vint a) { return _mm256_castsi256_ps(a); }
INLINE vflt vf_negate(vflt a) { return vf_from_bits(v_xor(_mm256_castps_si256(a), v_set_32(INT32_MIN))); }
INLINE vflt vf_add(vflt a, vflt b) { return _mm256_add_ps(a, b); }
INLINE vflt vf_mul(vflt a, vflt b) { return _mm256_mul_ps(a, b); }
INLINE vflt vf_fma(vflt a, vflt b, vflt sum) { return _mm256_fmadd_ps(a, b, sum); }
INLINE vflt vf_fnma(vflt a, vflt b, vflt sum) { return _mm256_fnmadd_ps(a, b, sum); }
INLINE vflt vf_load_f16(const void *p) { return _mm256_cvtph_ps(_mm_loadu_si128(p)); }
INLINE vflt vf_load_bf16(const void *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(p)), 16));
}
INLINE float vf_sum_16(const vflt part[2]) {
    __m256 eight = _mm256_add_ps(part[0], part[1]);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

#endif
