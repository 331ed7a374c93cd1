#include "kernels/cpu/quant.h"

#include <stddef.h>
#include <string.h>

#include "formats/blocks.h"
#include "formats/half.h"
#include "kernels/cpu/quant_grid.h"
#include "kernels/cpu/quant_tables.h"

typedef struct atsi_quant_block opened;

// The nibbles of 16 bytes: low ones are weights 0..15, high ones 16..31.
static void nibbles(const uint8_t qs[16], int offset, int8_t q[32]) {
    for (int j = 0; j < 16; j++) {
        q[j] = (int8_t)((qs[j] & 15) - offset);
        q[16 + j] = (int8_t)((qs[j] >> 4) - offset);
    }
}

static void nibble_codes(const uint8_t qs[16], const int8_t values[16], int8_t q[32]) {
    for (int j = 0; j < 16; j++) {
        q[j] = values[qs[j] & 15];
        q[16 + j] = values[qs[j] >> 4];
    }
}

static void fifth_bits(const uint8_t qh[4], int8_t q[32]) {
    for (int i = 0; i < 32; i++) q[i] = (int8_t)(q[i] + (qh[i / 8] >> (i % 8) & 1) * 16);
}

static void no_min(opened *out) {
    out->min_unit = 0;
    memset(out->min_q, 0, sizeof out->min_q);
}

static void one_min(opened *out, float min) {
    no_min(out);
    out->min_unit = min;
    out->min_q[0] = 1;
}

static void expand_q8_0(const void *block, opened *out) {
    struct atsi_block_q8_0 b;
    memcpy(&b, block, sizeof b);
    no_min(out);
    out->scale[0] = atsi_f16_to_f32(b.d);
    memcpy(out->q, b.qs, sizeof b.qs);
}

static void expand_q4_0(const void *block, opened *out) {
    struct atsi_block_q4_0 b;
    memcpy(&b, block, sizeof b);
    no_min(out);
    out->scale[0] = atsi_f16_to_f32(b.d);
    nibbles(b.qs, 8, out->q);
}

static void expand_q4_1(const void *block, opened *out) {
    struct atsi_block_q4_1 b;
    memcpy(&b, block, sizeof b);
    one_min(out, -atsi_f16_to_f32(b.m));
    out->scale[0] = atsi_f16_to_f32(b.d);
    nibbles(b.qs, 0, out->q);
}

static void expand_q5_0(const void *block, opened *out) {
    struct atsi_block_q5_0 b;
    memcpy(&b, block, sizeof b);
    no_min(out);
    out->scale[0] = atsi_f16_to_f32(b.d);
    nibbles(b.qs, 16, out->q);
    fifth_bits(b.qh, out->q);
}

static void expand_q5_1(const void *block, opened *out) {
    struct atsi_block_q5_1 b;
    memcpy(&b, block, sizeof b);
    one_min(out, -atsi_f16_to_f32(b.m));
    out->scale[0] = atsi_f16_to_f32(b.d);
    nibbles(b.qs, 0, out->q);
    fifth_bits(b.qh, out->q);
}

static void expand_iq4_nl(const void *block, opened *out) {
    struct atsi_block_iq4_nl b;
    memcpy(&b, block, sizeof b);
    no_min(out);
    out->scale[0] = atsi_f16_to_f32(b.d);
    nibble_codes(b.qs, ATSI_IQ4_VALUES, out->q);
}

static void expand_mxfp4(const void *block, opened *out) {
    struct atsi_block_mxfp4 b;
    memcpy(&b, block, sizeof b);
    no_min(out);
    out->scale[0] = atsi_e8m0_half(b.e);
    nibble_codes(b.qs, ATSI_FP4_VALUES, out->q);
}

static void expand_q2_k(const void *block, opened *out) {
    struct atsi_block_q2_k b;
    memcpy(&b, block, sizeof b);
    float d = atsi_f16_to_f32(b.d);
    out->min_unit = atsi_f16_to_f32(b.dmin);
    for (int k = 0; k < 16; k++) {
        out->scale[k] = d * (float)(b.scales[k] & 15);
        out->min_q[k] = b.scales[k] >> 4;
    }
    for (int i = 0; i < 256; i++) out->q[i] = (int8_t)(b.qs[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3);
}

static void expand_q3_k(const void *block, opened *out) {
    struct atsi_block_q3_k b;
    memcpy(&b, block, sizeof b);
    float d = atsi_f16_to_f32(b.d);
    no_min(out);
    for (int k = 0; k < 16; k++) {
        int low = b.scales[k % 8] >> (k / 8 * 4) & 15, high = b.scales[8 + k % 4] >> (k / 4 * 2) & 3;
        out->scale[k] = d * (float)((low | high << 4) - 32);
    }
    for (int i = 0; i < 256; i++) {
        int low = b.qs[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3, high = b.hmask[i % 32] >> (i / 32) & 1;
        out->q[i] = (int8_t)((low | high << 2) - 4);
    }
}

// The 6-bit scales and mins of Q4_K and Q5_K.
static void k_scales(uint16_t d_bits, uint16_t dmin_bits, const uint8_t s[12], opened *out) {
    float d = atsi_f16_to_f32(d_bits);
    out->min_unit = atsi_f16_to_f32(dmin_bits);
    for (int k = 0; k < 8; k++) {
        int scale = k < 4 ? s[k] & 63 : (s[k + 4] & 15) | s[k - 4] >> 6 << 4;
        int min = k < 4 ? s[k + 4] & 63 : s[k + 4] >> 4 | s[k] >> 6 << 4;
        out->scale[k] = d * (float)scale;
        out->min_q[k] = (uint8_t)min;
    }
}

static void expand_q4_k(const void *block, opened *out) {
    struct atsi_block_q4_k b;
    memcpy(&b, block, sizeof b);
    k_scales(b.d, b.dmin, b.scales, out);
    for (int i = 0; i < 256; i++) out->q[i] = (int8_t)(b.qs[i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15);
}

static void expand_q5_k(const void *block, opened *out) {
    struct atsi_block_q5_k b;
    memcpy(&b, block, sizeof b);
    k_scales(b.d, b.dmin, b.scales, out);
    for (int i = 0; i < 256; i++) {
        int low = b.qs[i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15, high = b.qh[i % 32] >> (i / 32) & 1;
        out->q[i] = (int8_t)(low | high << 4);
    }
}

static void expand_q6_k(const void *block, opened *out) {
    struct atsi_block_q6_k b;
    memcpy(&b, block, sizeof b);
    float d = atsi_f16_to_f32(b.d);
    no_min(out);
    for (int k = 0; k < 16; k++) out->scale[k] = d * (float)b.scales[k];
    for (int i = 0; i < 256; i++) {
        int half = i / 128, sub = i / 32 % 4, j = i % 32;
        int low = b.ql[64 * half + 32 * (sub % 2) + j] >> (sub / 2 * 4) & 15,
            high = b.qh[32 * half + j] >> (2 * sub) & 3;
        out->q[i] = (int8_t)((low | high << 4) - 32);
    }
}

static void expand_iq4_xs(const void *block, opened *out) {
    struct atsi_block_iq4_xs b;
    memcpy(&b, block, sizeof b);
    float d = atsi_f16_to_f32(b.d);
    no_min(out);
    for (int k = 0; k < 8; k++) {
        int low = b.scales_l[k / 2] >> (k % 2 * 4) & 15, high = b.scales_h >> (2 * k) & 3;
        out->scale[k] = d * (float)((low | high << 4) - 32);
        nibble_codes(b.qs + 16 * k, ATSI_IQ4_VALUES, out->q + 32 * k);
    }
}

#define TYPE(name, elems, width, mins)                                                                                \
    {                                                                                                                 \
        .block_bytes = sizeof(struct atsi_block_##name), .block_elems = (elems), .group = (width), .has_min = (mins), \
        .expand = expand_##name                                                                                       \
    }
#define GRID(name, width)                                                                      \
    {                                                                                          \
        .block_bytes = sizeof(struct atsi_block_##name), .block_elems = 256, .group = (width), \
        .expand = atsi_expand_##name                                                           \
    }

static const struct atsi_quant_type TYPES[ATSI_DTYPE_LIMIT] = {
    [ATSI_Q8_0] = TYPE(q8_0, 32, 32, false),
    [ATSI_Q4_0] = TYPE(q4_0, 32, 32, false),
    [ATSI_Q4_1] = TYPE(q4_1, 32, 32, true),
    [ATSI_Q5_0] = TYPE(q5_0, 32, 32, false),
    [ATSI_Q5_1] = TYPE(q5_1, 32, 32, true),
    [ATSI_IQ4_NL] = TYPE(iq4_nl, 32, 32, false),
    [ATSI_MXFP4] = TYPE(mxfp4, 32, 32, false),
    [ATSI_Q2_K] = TYPE(q2_k, 256, 16, true),
    [ATSI_Q3_K] = TYPE(q3_k, 256, 16, false),
    [ATSI_Q4_K] = TYPE(q4_k, 256, 32, true),
    [ATSI_Q5_K] = TYPE(q5_k, 256, 32, true),
    [ATSI_Q6_K] = TYPE(q6_k, 256, 16, false),
    [ATSI_IQ4_XS] = TYPE(iq4_xs, 256, 32, false),
    [ATSI_IQ2_XXS] = GRID(iq2_xxs, 32),
    [ATSI_IQ2_XS] = GRID(iq2_xs, 16),
    [ATSI_IQ2_S] = GRID(iq2_s, 16),
    [ATSI_IQ3_XXS] = GRID(iq3_xxs, 32),
    [ATSI_IQ3_S] = GRID(iq3_s, 32),
    [ATSI_IQ1_S] = GRID(iq1_s, 32),
    [ATSI_IQ1_M] = GRID(iq1_m, 16),
};

const struct atsi_quant_type *atsi_quant_type(enum atsi_dtype dtype) {
    if ((unsigned)dtype >= ATSI_DTYPE_LIMIT || TYPES[dtype].expand == NULL) return NULL;
    return &TYPES[dtype];
}
