// lanes.h: sixteen floats side by side, in the widest registers that the including file is compiled for.
//
// The vector kernels are written once over this type (*_body.h) and compiled once per instruction set: plain C, AVX2,
// AVX-512. A sum over a row is always: sixteen running sums, lane j taking elements j, j + 16, ..., then the fixed tree of
// lanes_sum(); products are fused into their sums in every version. So the result for a row depends on the row alone: not on
// what it is batched with, nor on the instruction set.
//
// minimum/maximum keep a NaN that stands in the second operand, so that broken inputs stay visible in the logits.
#ifndef ATSI_KERNELS_CPU_LANES_H
#define ATSI_KERNELS_CPU_LANES_H

#include <stdint.h>
#include <string.h>

#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#else
#include "formats/half.h"
#endif

enum {
    LANES = 16
};

#if defined(__AVX512F__)

typedef __m512 lanes;
static inline lanes lanes_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void lanes_store(float *p, lanes a) { _mm512_storeu_ps(p, a); }
static inline lanes lanes_set(float a) { return _mm512_set1_ps(a); }
static inline lanes lanes_add(lanes a, lanes b) { return _mm512_add_ps(a, b); }
static inline lanes lanes_sub(lanes a, lanes b) { return _mm512_sub_ps(a, b); }
static inline lanes lanes_mul(lanes a, lanes b) { return _mm512_mul_ps(a, b); }
static inline lanes lanes_div(lanes a, lanes b) { return _mm512_div_ps(a, b); }
static inline lanes lanes_fma(lanes a, lanes b, lanes c) { return _mm512_fmadd_ps(a, b, c); } // a * b + c
static inline lanes lanes_min(lanes a, lanes b) { return _mm512_min_ps(a, b); }
static inline lanes lanes_max(lanes a, lanes b) { return _mm512_max_ps(a, b); }
static inline lanes lanes_round(lanes a) {
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
// 2^a for whole a in -126..127.
static inline lanes lanes_exp2i(lanes a) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(a), _mm512_set1_epi32(127)), 23));
}
static inline __m256 lanes_fold(lanes a) { // lane j + lane j + 8
    return _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
}
static inline __m256 lanes_fold_max(lanes a) {
    return _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
}
static inline lanes lanes_from_half(const uint16_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
static inline void lanes_to_half(uint16_t *p, lanes a) {
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
static inline lanes lanes_from_int8(const int8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
}

#elif defined(__AVX2__)

typedef struct {
    __m256 low, high;
} lanes;
#define LANES_EACH(intrinsic, a, b) ((lanes){intrinsic((a).low, (b).low), intrinsic((a).high, (b).high)})
static inline lanes lanes_load(const float *p) { return (lanes){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
static inline void lanes_store(float *p, lanes a) {
    _mm256_storeu_ps(p, a.low);
    _mm256_storeu_ps(p + 8, a.high);
}
static inline lanes lanes_set(float a) { return (lanes){_mm256_set1_ps(a), _mm256_set1_ps(a)}; }
static inline lanes lanes_add(lanes a, lanes b) { return LANES_EACH(_mm256_add_ps, a, b); }
static inline lanes lanes_sub(lanes a, lanes b) { return LANES_EACH(_mm256_sub_ps, a, b); }
static inline lanes lanes_mul(lanes a, lanes b) { return LANES_EACH(_mm256_mul_ps, a, b); }
static inline lanes lanes_div(lanes a, lanes b) { return LANES_EACH(_mm256_div_ps, a, b); }
static inline lanes lanes_fma(lanes a, lanes b, lanes c) { // a * b + c
    return (lanes){_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
static inline lanes lanes_min(lanes a, lanes b) { return LANES_EACH(_mm256_min_ps, a, b); }
static inline lanes lanes_max(lanes a, lanes b) { return LANES_EACH(_mm256_max_ps, a, b); }
static inline lanes lanes_round(lanes a) {
    return (lanes){_mm256_round_ps(a.low, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
                   _mm256_round_ps(a.high, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
static inline __m256 lanes_exp2i_half(__m256 a) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(a), _mm256_set1_epi32(127)), 23));
}
static inline lanes lanes_exp2i(lanes a) { return (lanes){lanes_exp2i_half(a.low), lanes_exp2i_half(a.high)}; }
static inline __m256 lanes_fold(lanes a) { return _mm256_add_ps(a.low, a.high); }
static inline __m256 lanes_fold_max(lanes a) { return _mm256_max_ps(a.low, a.high); }
static inline lanes lanes_from_half(const uint16_t *p) {
    return (lanes){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p)),
                   _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(p + 8)))};
}
static inline void lanes_to_half(uint16_t *p, lanes a) {
    _mm_storeu_si128((__m128i *)(void *)p, _mm256_cvtps_ph(a.low, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    _mm_storeu_si128((__m128i *)(void *)(p + 8),
                     _mm256_cvtps_ph(a.high, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
static inline lanes lanes_from_int8(const int8_t *p) {
    return (lanes){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p))),
                   _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(p + 8))))};
}

#else

typedef struct {
    float at[LANES];
} lanes;
#define LANES_FOR(expression)                                  \
    lanes result;                                              \
    for (int j = 0; j < LANES; j++) result.at[j] = expression; \
    return result
static inline lanes lanes_load(const float *p) { LANES_FOR(p[j]); }
static inline void lanes_store(float *p, lanes a) { memcpy(p, a.at, sizeof a.at); }
static inline lanes lanes_set(float a) { LANES_FOR(a); }
static inline lanes lanes_add(lanes a, lanes b) { LANES_FOR(a.at[j] + b.at[j]); }
static inline lanes lanes_sub(lanes a, lanes b) { LANES_FOR(a.at[j] - b.at[j]); }
static inline lanes lanes_mul(lanes a, lanes b) { LANES_FOR(a.at[j] * b.at[j]); }
static inline lanes lanes_div(lanes a, lanes b) { LANES_FOR(a.at[j] / b.at[j]); }
static inline lanes lanes_fma(lanes a, lanes b, lanes c) { LANES_FOR(__builtin_fmaf(a.at[j], b.at[j], c.at[j])); }
static inline lanes lanes_min(lanes a, lanes b) { LANES_FOR(a.at[j] < b.at[j] ? a.at[j] : b.at[j]); }
static inline lanes lanes_max(lanes a, lanes b) { LANES_FOR(a.at[j] > b.at[j] ? a.at[j] : b.at[j]); }
static inline lanes lanes_round(lanes a) { // |a| < 2^22: adding 1.5 * 2^23 leaves no fraction bits
    LANES_FOR((a.at[j] + 12582912.0f) - 12582912.0f);
}
static inline lanes lanes_exp2i(lanes a) {
    lanes result;
    for (int j = 0; j < LANES; j++) {
        // A NaN gives some finite power: the caller multiplies it with a NaN. (The cast of a NaN would be undefined.)
        uint32_t bits = (uint32_t)((a.at[j] == a.at[j] ? (int32_t)a.at[j] : 0) + 127) << 23;
        memcpy(&result.at[j], &bits, sizeof bits);
    }
    return result;
}
static inline lanes lanes_from_half(const uint16_t *p) { LANES_FOR(atsi_f16_to_f32(p[j])); }
static inline void lanes_to_half(uint16_t *p, lanes a) {
    for (int j = 0; j < LANES; j++) p[j] = atsi_f32_to_f16(a.at[j]);
}
static inline lanes lanes_from_int8(const int8_t *p) { LANES_FOR((float)p[j]); }

#endif

#if defined(__AVX2__)
static inline float lanes_half_one(uint16_t half) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(half))); }
#else
static inline float lanes_half_one(uint16_t half) { return atsi_f16_to_f32(half); }
#endif

// Both reductions fold 16 -> 8 -> 4 -> 2 -> 1, upper half onto lower half.
#if defined(__AVX2__)
static inline float lanes_sum(lanes a) {
    __m256 eight = lanes_fold(a);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
static inline float lanes_largest(lanes a) {
    __m256 eight = lanes_fold_max(a);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
#else
static inline float lanes_sum(lanes a) {
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int j = 0; j < half; j++) a.at[j] += a.at[j + half];
    return a.at[0];
}
static inline float lanes_largest(lanes a) {
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int j = 0; j < half; j++) a.at[j] = a.at[j] > a.at[j + half] ? a.at[j] : a.at[j + half];
    return a.at[0];
}
#endif

// Sixteen elements, or the n_left that remain of a row; missing lanes read as `fill` and are not written.
static inline lanes lanes_load_left(const float *p, uint32_t n_left, float fill) {
    if (n_left >= LANES) return lanes_load(p);
    float part[LANES];
    for (int j = 0; j < LANES; j++) part[j] = fill;
    memcpy(part, p, n_left * sizeof *p);
    return lanes_load(part);
}
static inline void lanes_store_left(float *p, lanes a, uint32_t n_left) {
    if (n_left >= LANES) {
        lanes_store(p, a);
        return;
    }
    float part[LANES];
    lanes_store(part, a);
    memcpy(p, part, n_left * sizeof *p);
}

// exp(x), relative error below 1.2e-7 over -87..88 (measured by tests/unit/test_ops_vec.c); below -103.97 it is 0, above 88.73
// infinity, NaN stays NaN. x = n ln 2 + r with |r| <= ln 2 / 2, ln 2 in two parts (Cody and Waite), exp(r) by its Taylor
// polynomial of degree 7 (remainder 5e-9), 2^n in two factors so that subnormal results are reached.
static inline lanes lanes_exp(lanes x) {
    x = lanes_min(lanes_set(89.0f), lanes_max(lanes_set(-104.0f), x));
    lanes n = lanes_round(lanes_mul(x, lanes_set(1.44269504f)));
    lanes r = lanes_fma(n, lanes_set(-0.693359375f), x); // exact: 0.693359375 has ten bits
    r = lanes_fma(n, lanes_set(2.12194440e-4f), r);
    lanes p = lanes_set(1.0f / 5040.0f);
    p = lanes_fma(p, r, lanes_set(1.0f / 720.0f));
    p = lanes_fma(p, r, lanes_set(1.0f / 120.0f));
    p = lanes_fma(p, r, lanes_set(1.0f / 24.0f));
    p = lanes_fma(p, r, lanes_set(1.0f / 6.0f));
    p = lanes_fma(p, r, lanes_set(0.5f));
    p = lanes_fma(lanes_mul(r, r), p, r);
    p = lanes_add(p, lanes_set(1.0f));
    lanes half = lanes_round(lanes_mul(n, lanes_set(0.5f)));
    return lanes_mul(lanes_mul(p, lanes_exp2i(half)), lanes_exp2i(lanes_sub(n, half)));
}
static inline lanes lanes_neg(lanes a) { return lanes_sub(lanes_set(-0.0f), a); }
// 1 / (1 + exp(-x))
static inline lanes lanes_sigmoid(lanes x) {
    return lanes_div(lanes_set(1.0f), lanes_add(lanes_set(1.0f), lanes_exp(lanes_neg(x))));
}

#endif
