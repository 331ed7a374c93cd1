// The grid types opened up. Eight weights are handled as the eight bytes of a word, because this is also the first step of
// the fast kernels.
#include "kernels/cpu/quant_grid.h"

#include <string.h>

#include "formats/blocks.h"
#include "formats/half.h"
#include "kernels/cpu/quant_tables.h"

static const uint64_t EVERY_BYTE = 0x0101010101010101u;

static void no_min(struct atsi_quant_block *out) {
    out->min_unit = 0;
    memset(out->min_q, 0, sizeof out->min_q);
}

// Bit i of `signs` as byte i: 0 or 0xff.
static uint64_t sign_bytes(uint8_t signs) {
    uint64_t one_bit_each = signs * EVERY_BYTE & 0x8040201008040201u;
    uint64_t ones = (one_bit_each + 0x7f7f7f7f7f7f7f7fu) >> 7 & EVERY_BYTE; // no byte exceeds 0xff
    return ones * 0xff;
}

// Eight magnitudes, all at least 1, with signs: ~m + 1 stays within its byte.
static void put_signed(uint64_t magnitudes, uint8_t signs, int8_t q[8]) {
    uint64_t minus = sign_bytes(signs), bytes = (magnitudes ^ minus) + (minus & EVERY_BYTE);
    memcpy(q, &bytes, sizeof bytes);
}

static uint32_t word_at(const void *bytes, size_t i) {
    uint32_t word;
    memcpy(&word, (const uint8_t *)bytes + 4 * i, sizeof word);
    return word;
}

static float quarter_scale(float d, unsigned s) { return d * (0.5f + (float)s) * 0.25f; }

void atsi_expand_iq2_xxs(const void *block, struct atsi_quant_block *out) {
    struct atsi_block_iq2_xxs b;
    memcpy(&b, block, sizeof b);
    float d = atsi_f16_to_f32(b.d);
    no_min(out);
    for (unsigned k = 0; k < 8; k++) {
        uint32_t indices = word_at(b.qs, 2 * k), rest = word_at(b.qs, 2 * k + 1);
        out->scale[k] = quarter_scale(d, rest >> 28);
        for (unsigned l = 0; l < 4; l++)
            put_signed(ATSI_IQ2_XXS_GRID[indices >> (8 * l) & 255], atsi_even_signs(rest >> (7 * l) & 127),
                       out->q + 32 * k + 8 * l);
    }
}

void atsi_expand_iq2_xs(const void *block, struct atsi_quant_block *out) {
    struct atsi_block_iq2_xs b;
    memcpy(&b, block, sizeof b);
    float d = atsi_f16_to_f32(b.d);
    no_min(out);
    for (unsigned k = 0; k < 16; k++) out->scale[k] = quarter_scale(d, b.scales[k / 2] >> (4 * (k % 2)) & 15);
    for (unsigned l = 0; l < 32; l++)
        put_signed(ATSI_IQ2_XS_GRID[b.qs[l] & 511], atsi_even_signs(b.qs[l] >> 9), out->q + 8 * l);
}

void atsi_expand_iq2_s(const void *block, struct atsi_quant_block *out) {
    struct atsi_block_iq2_s b;
    memcpy(&b, block, sizeof b);
    float d = atsi_f16_to_f32(b.d);
    no_min(out);
    for (unsigned k = 0; k < 16; k++) out->scale[k] = quarter_scale(d, b.scales[k / 2] >> (4 * (k % 2)) & 15);
    for (unsigned l = 0; l < 32; l++) {
        unsigned index = b.qs[l] | (b.qh[l / 4] >> (2 * (l % 4)) & 3u) << 8;
        put_signed(ATSI_IQ2_S_GRID[index], b.qs[32 + l], out->q + 8 * l);
    }
}

void atsi_expand_iq3_xxs(const void *block, struct atsi_quant_block *out) {
    struct atsi_block_iq3_xxs b;
    memcpy(&b, block, sizeof b);
    float d = atsi_f16_to_f32(b.d);
    no_min(out);
    for (unsigned k = 0; k < 8; k++) {
        uint32_t rest = word_at(b.qs + 64, k);
        out->scale[k] = d * (0.5f + (float)(rest >> 28)) * 0.5f;
        for (unsigned l = 0; l < 4; l++) {
            const uint8_t *index = b.qs + 8 * k + 2 * l;
            uint64_t eight = ATSI_IQ3_XXS_GRID[index[0]] | (uint64_t)ATSI_IQ3_XXS_GRID[index[1]] << 32;
            put_signed(eight, atsi_even_signs(rest >> (7 * l) & 127), out->q + 32 * k + 8 * l);
        }
    }
}

void atsi_expand_iq3_s(const void *block, struct atsi_quant_block *out) {
    struct atsi_block_iq3_s b;
    memcpy(&b, block, sizeof b);
    float d = atsi_f16_to_f32(b.d);
    no_min(out);
    for (unsigned k = 0; k < 8; k++) out->scale[k] = d * (float)(1 + 2 * (b.scales[k / 2] >> (4 * (k % 2)) & 15));
    for (unsigned l = 0; l < 32; l++) { // two indices of 4 weights each
        unsigned high = b.qh[l / 4] >> (2 * (l % 4));
        uint64_t first = ATSI_IQ3_S_GRID[b.qs[2 * l] | (high & 1) << 8];
        uint64_t second = ATSI_IQ3_S_GRID[b.qs[2 * l + 1] | (high >> 1 & 1) << 8];
        put_signed(first | second << 32, b.signs[l], out->q + 8 * l);
    }
}

// 8 g + 1 or 8 g - 1 for eight weights: weights of an eighth of the scale, shifted by an eighth of a step.
static void put_shifted(uint64_t grid, unsigned shift_down, int8_t q[8]) {
    uint64_t bytes = (shift_down ? grid - EVERY_BYTE : grid + EVERY_BYTE) ^ 0x80 * EVERY_BYTE;
    memcpy(q, &bytes, sizeof bytes);
}

void atsi_expand_iq1_s(const void *block, struct atsi_quant_block *out) {
    struct atsi_block_iq1_s b;
    memcpy(&b, block, sizeof b);
    float d = atsi_f16_to_f32(b.d);
    no_min(out);
    for (unsigned k = 0; k < 8; k++) {
        unsigned high = b.qh[k];
        out->scale[k] = d * (float)(2 * (high >> 12 & 7) + 1) * 0.125f;
        for (unsigned l = 0; l < 4; l++)
            put_shifted(ATSI_IQ1_GRID[b.qs[4 * k + l] | (high >> (3 * l) & 7) << 8], high >> 15,
                        out->q + 32 * k + 8 * l);
    }
}

void atsi_expand_iq1_m(const void *block, struct atsi_quant_block *out) {
    struct atsi_block_iq1_m b;
    memcpy(&b, block, sizeof b);
    uint16_t word[4];
    memcpy(word, b.scales, sizeof word);
    unsigned d_bits = word[0] >> 12 | (word[1] >> 12) << 4 | (word[2] >> 12) << 8 | (word[3] >> 12) << 12;
    float d = atsi_f16_to_f32((uint16_t)d_bits);
    no_min(out);
    for (unsigned k = 0; k < 16; k++) out->scale[k] = d * (float)(2 * (word[k / 4] >> (3 * (k % 4)) & 7) + 1) * 0.125f;
    for (unsigned l = 0; l < 32; l++) {
        unsigned high = b.qh[l / 2] >> (4 * (l % 2));
        put_shifted(ATSI_IQ1_GRID[b.qs[l] | (high & 7) << 8], high & 8, out->q + 8 * l);
    }
}
