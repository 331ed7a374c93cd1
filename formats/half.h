// half.h: half and brain floats as bits, on any CPU. Conversions are exact or round to nearest even.
#ifndef ATSI_FORMATS_HALF_H
#define ATSI_FORMATS_HALF_H

#include <stdint.h>
#include <string.h>

static inline float atsi_f32_from_bits(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline uint32_t atsi_f32_bits(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static inline float atsi_f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = (h >> 10) & 31, fraction = h & 0x3ff;
    if (exponent == 31) return atsi_f32_from_bits(sign | 0x7f800000u | fraction << 13);
    if (exponent != 0) return atsi_f32_from_bits(sign | (exponent + 112) << 23 | fraction << 13);
    float magnitude = (float)fraction * 0x1p-24f; // zero and subnormals
    return sign ? -magnitude : magnitude;
}

static inline uint16_t atsi_f32_to_f16(float f) {
    uint32_t bits = atsi_f32_bits(f), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return (uint16_t)(sign | 0x7e00);  // NaN
    if (magnitude >= 0x477ff000) return (uint16_t)(sign | 0x7c00); // rounds to 2^16 or above
    if (magnitude < 0x38800000) { // below 2^-14: adding 0.5 leaves the rounded multiple of 2^-24 in the low bits
        float rounded = atsi_f32_from_bits(magnitude) + 0.5f;
        return (uint16_t)(sign | (atsi_f32_bits(rounded) - 0x3f000000u));
    }
    uint32_t odd = magnitude >> 13 & 1;
    return (uint16_t)(sign | (magnitude - 0x38000000u + 0xfff + odd) >> 13);
}

static inline float atsi_bf16_to_f32(uint16_t b) { return atsi_f32_from_bits((uint32_t)b << 16); }

static inline uint16_t atsi_f32_to_bf16(float f) {
    uint32_t bits = atsi_f32_bits(f);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 64); // NaN stays NaN
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// 2^(e - 128), MXFP4's block scale halved to go with its doubled values; e 0 and 1 give subnormals.
static inline float atsi_e8m0_half(uint8_t e) {
    return e < 2 ? atsi_f32_from_bits(0x00200000u << e) : atsi_f32_from_bits((uint32_t)(e - 1) << 23);
}

#endif
