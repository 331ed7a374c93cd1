#include <immintrin.h>
#include <math.h>

#include "kernels/cpu/act_quant.h"

// Sums of the first and of the last 16 of 32 signed bytes, as the two int16 of a word.
static int32_t half_sums(__m256i q) {
    __m256i flipped = _mm256_xor_si256(q, _mm256_set1_epi8((char)0x80)); // q + 128, summed 8 at a time
    __m256i eights = _mm256_sad_epu8(flipped, _mm256_setzero_si256());
    __m256i sixteens = _mm256_add_epi64(eights, _mm256_unpackhi_epi64(eights, eights));
    int first = (int)_mm256_extract_epi32(sixteens, 0) - 16 * 128,
        second = (int)_mm256_extract_epi32(sixteens, 4) - 16 * 128;
    return (int32_t)((uint32_t)second << 16 | ((uint32_t)first & 0xffff));
}

void atsi_act_quantise_avx512(const float *in, uint32_t n_cols, struct atsi_act_block *out) {
    const __m512 limit = _mm512_set1_ps(127);
    for (uint32_t c = 0; c < n_cols; c += 32, in += 32, out++) {
        __m512 a = _mm512_loadu_ps(in), b = _mm512_loadu_ps(in + 16);
        float largest = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(a), _mm512_abs_ps(b)));
        float inverse = largest > 0x1p-100f ? 127.0f / largest : 0;
        bool any_nan = _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q) != 0; // the maximum passes over it
        out->d = any_nan ? NAN : largest > 0x1p-100f ? largest / 127.0f : 0;
        __m512 scale = _mm512_set1_ps(inverse), low = _mm512_set1_ps(-127);
        __m512i qa = _mm512_cvtps_epi32(_mm512_max_ps(_mm512_min_ps(_mm512_mul_ps(a, scale), limit), low));
        __m512i qb = _mm512_cvtps_epi32(_mm512_max_ps(_mm512_min_ps(_mm512_mul_ps(b, scale), limit), low));
        __m256i q = _mm256_set_m128i(_mm512_cvtepi32_epi8(qb), _mm512_cvtepi32_epi8(qa));
        int32_t sums = half_sums(q);
        __builtin_memcpy(out->sum, &sums, sizeof sums);
        _mm256_storeu_si256((void *)out->q, q);
        out->d_sum = out->d * (float)(out->sum[0] + out->sum[1]);
    }
}
