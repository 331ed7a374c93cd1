#include <immintrin.h>
#include <math.h>

#include "kernels/cpu/act_quant.h"

static int32_t half_sums(__m256i q) {
    __m256i flipped = _mm256_xor_si256(q, _mm256_set1_epi8((char)0x80)); // q + 128, summed 8 at a time
    __m256i eights = _mm256_sad_epu8(flipped, _mm256_setzero_si256());
    __m256i sixteens = _mm256_add_epi64(eights, _mm256_unpackhi_epi64(eights, eights));
    int first = (int)_mm256_extract_epi32(sixteens, 0) - 16 * 128,
        second = (int)_mm256_extract_epi32(sixteens, 4) - 16 * 128;
    return (int32_t)((uint32_t)second << 16 | ((uint32_t)first & 0xffff));
}

static float largest_of(__m256 a, __m256 b, __m256 c, __m256 d) {
    const __m256 no_sign = _mm256_castsi256_ps(_mm256_set1_epi32(INT32_MAX));
    __m256 ab = _mm256_max_ps(_mm256_and_ps(a, no_sign), _mm256_and_ps(b, no_sign));
    __m256 cd = _mm256_max_ps(_mm256_and_ps(c, no_sign), _mm256_and_ps(d, no_sign));
    __m256 eight = _mm256_max_ps(ab, cd);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

// The maximum above passes over a NaN, which must not be lost: it is how broken weights become visible.
static bool any_nan(__m256 a, __m256 b, __m256 c, __m256 d) {
    __m256 unordered = _mm256_or_ps(_mm256_cmp_ps(a, b, _CMP_UNORD_Q), _mm256_cmp_ps(c, d, _CMP_UNORD_Q));
    return _mm256_movemask_ps(unordered) != 0;
}

static __m256i nearest(__m256 x, __m256 inverse) {
    __m256 scaled = _mm256_min_ps(_mm256_mul_ps(x, inverse), _mm256_set1_ps(127));
    return _mm256_cvtps_epi32(_mm256_max_ps(scaled, _mm256_set1_ps(-127)));
}

void atsi_act_quantise_avx2(const float *in, uint32_t n_cols, struct atsi_act_block *out) {
    const __m256i lanes_in_order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7); // the packs work within 128-bit lanes
    for (uint32_t c = 0; c < n_cols; c += 32, in += 32, out++) {
        __m256 x0 = _mm256_loadu_ps(in), x1 = _mm256_loadu_ps(in + 8), x2 = _mm256_loadu_ps(in + 16),
               x3 = _mm256_loadu_ps(in + 24);
        float largest = largest_of(x0, x1, x2, x3);
        float inverse = largest > 0x1p-100f ? 127.0f / largest : 0;
        out->d = any_nan(x0, x1, x2, x3) ? NAN : largest > 0x1p-100f ? largest / 127.0f : 0;
        __m256 scale = _mm256_set1_ps(inverse);
        __m256i first = _mm256_packs_epi32(nearest(x0, scale), nearest(x1, scale));
        __m256i second = _mm256_packs_epi32(nearest(x2, scale), nearest(x3, scale));
        __m256i q = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(first, second), lanes_in_order);
        int32_t sums = half_sums(q);
        __builtin_memcpy(out->sum, &sums, sizeof sums);
        _mm256_storeu_si256((void *)out->q, q);
        out->d_sum = out->d * (float)(out->sum[0] + out->sum[1]);
    }
}
