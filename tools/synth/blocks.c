#include "tools/synth/blocks.h"

#include <math.h>
#include <string.h>

#include "formats/blocks.h"
#include "formats/half.h"
#include "kernels/cpu/dequant.h"

// Gives the random bytes of a block the scale d, so that weights have mean 0 over many blocks.
typedef void (*finish_fn)(uint8_t *block, float d, struct synth_random *r);

static void put_half(uint8_t *at, float value) {
    uint16_t bits = atsi_f32_to_f16(value);
    memcpy(at, &bits, sizeof bits);
}

// Codes that run from -8 to 7 have a mean below 0; scales of both signs take it away over the blocks.
static float signed_scale(float d, struct synth_random *r) { return synth_next(r) & 1 ? d : -d; }

static void finish_scale_first(uint8_t *block, float d, struct synth_random *r) { put_half(block, signed_scale(d, r)); }

// -128 is a code that no quantiser writes.
static void avoid_lowest(int8_t *codes, unsigned n) {
    for (unsigned i = 0; i < n; i++) codes[i] = codes[i] == INT8_MIN ? -INT8_MAX : codes[i];
}

static void finish_q8_0(uint8_t *block, float d, struct synth_random *r) {
    avoid_lowest((int8_t *)block + offsetof(struct atsi_block_q8_0, qs), 32);
    put_half(block, signed_scale(d, r));
}

static void finish_q6_k(uint8_t *block, float d, struct synth_random *r) {
    avoid_lowest((int8_t *)block + offsetof(struct atsi_block_q6_k, scales), 16);
    put_half(block + offsetof(struct atsi_block_q6_k, d), signed_scale(d, r));
}

static void finish_q3_k(uint8_t *block, float d, struct synth_random *r) {
    put_half(block + offsetof(struct atsi_block_q3_k, d), signed_scale(d, r));
}

// Types with a minimum: it lies where the mean of the codes is.
static void finish_q4_1(uint8_t *block, float d, struct synth_random *r) {
    (void)r;
    put_half(block, d);
    put_half(block + 2, -7.5f * d);
}

static void finish_q5_1(uint8_t *block, float d, struct synth_random *r) {
    (void)r;
    put_half(block, d);
    put_half(block + 2, -15.5f * d);
}

// A scale from 32 to 59 and a minimum up to 2 beside it, both of 6 bits.
static void near_pair(uint64_t draw, uint8_t *scale, uint8_t *min) {
    *scale = (uint8_t)(34 + (draw & 0xff) % 26);
    int distance = 1 + (int)(draw >> 8 & 1);
    *min = (uint8_t)(draw >> 9 & 1 ? *scale + distance : *scale - distance);
}

static void pack_k_scales(uint8_t *packed, struct synth_random *r) {
    uint8_t scale[8], min[8];
    for (unsigned k = 0; k < 8; k++) near_pair(synth_next(r), &scale[k], &min[k]);
    for (unsigned k = 0; k < 4; k++) {
        packed[k] = (uint8_t)(scale[k] | (scale[k + 4] >> 4) << 6);
        packed[k + 4] = (uint8_t)(min[k] | (min[k + 4] >> 4) << 6);
        packed[k + 8] = (uint8_t)((scale[k + 4] & 15) | (min[k + 4] & 15) << 4);
    }
}

static void finish_q4_k(uint8_t *block, float d, struct synth_random *r) {
    put_half(block, d);
    put_half(block + 2, 7.5f * d);
    pack_k_scales(block + offsetof(struct atsi_block_q4_k, scales), r);
}

static void finish_q5_k(uint8_t *block, float d, struct synth_random *r) {
    put_half(block, d);
    put_half(block + 2, 15.5f * d);
    pack_k_scales(block + offsetof(struct atsi_block_q5_k, scales), r);
}

static void finish_q2_k(uint8_t *block, float d, struct synth_random *r) {
    for (unsigned k = 0; k < 16; k += 4) {
        uint64_t draw = synth_next(r);
        for (unsigned j = 0; j < 4; j++, draw >>= 16) {
            unsigned scale = 5 + (draw & 0xff) % 10, min = draw >> 8 & 1 ? scale + 1 : scale - 1;
            block[k + j] = (uint8_t)(scale | min << 4);
        }
    }
    put_half(block + offsetof(struct atsi_block_q2_k, d), d);
    put_half(block + offsetof(struct atsi_block_q2_k, dmin), 1.5f * d);
}

// The scale is a power of two: one of the two about d, drawn so that the mean square is right.
static void finish_mxfp4(uint8_t *block, float d, struct synth_random *r) {
    int exponent;
    float fraction = 2 * frexpf(d, &exponent),
          share_of_next = (fraction * fraction - 1) / 3; // d = fraction * 2^(exponent - 1)
    int e = exponent - 1 + 128 + (synth_uniform(r) < share_of_next);
    block[0] = (uint8_t)(e < 0 ? 0 : e > 254 ? 254 : e);
}

// The half float lies in the top nibbles of four words.
static void finish_iq1_m(uint8_t *block, float d, struct synth_random *r) {
    uint8_t *scales = block + offsetof(struct atsi_block_iq1_m, scales);
    uint16_t bits = atsi_f32_to_f16(signed_scale(d, r));
    for (unsigned k = 0; k < 4; k++)
        scales[2 * k + 1] = (uint8_t)((scales[2 * k + 1] & 15) | (bits >> 4 * k & 15) << 4);
}

static finish_fn finish_of(enum atsi_dtype dtype) {
    switch (dtype) {
    case ATSI_Q8_0: return finish_q8_0;
    case ATSI_Q4_1: return finish_q4_1;
    case ATSI_Q5_1: return finish_q5_1;
    case ATSI_Q2_K: return finish_q2_k;
    case ATSI_Q3_K: return finish_q3_k;
    case ATSI_Q4_K: return finish_q4_k;
    case ATSI_Q5_K: return finish_q5_k;
    case ATSI_Q6_K: return finish_q6_k;
    case ATSI_MXFP4: return finish_mxfp4;
    case ATSI_IQ1_M: return finish_iq1_m;
    case ATSI_Q4_0:
    case ATSI_Q5_0:
    case ATSI_IQ4_NL:
    case ATSI_IQ4_XS:
    case ATSI_IQ2_XXS:
    case ATSI_IQ2_XS:
    case ATSI_IQ2_S:
    case ATSI_IQ3_XXS:
    case ATSI_IQ3_S:
    case ATSI_IQ1_S: return finish_scale_first;
    default: return NULL;
    }
}

static bool is_float(enum atsi_dtype dtype) { return dtype == ATSI_F32 || dtype == ATSI_F16 || dtype == ATSI_BF16; }

static void fill_floats(enum atsi_dtype dtype, struct synth_random *r, float std, uint64_t n, uint8_t *out) {
    float values[256];
    for (uint64_t done = 0; done < n;) {
        size_t piece = n - done < 256 ? (size_t)(n - done) : 256;
        synth_normals(r, values, piece);
        for (size_t i = 0; i < piece; i++) values[i] *= std;
        if (dtype == ATSI_F32) {
            memcpy(out + 4 * done, values, 4 * piece);
        } else {
            uint16_t bits[256];
            for (size_t i = 0; i < piece; i++)
                bits[i] = dtype == ATSI_F16 ? atsi_f32_to_f16(values[i]) : atsi_f32_to_bf16(values[i]);
            memcpy(out + 2 * done, bits, 2 * piece);
        }
        done += piece;
    }
}

static void fill_scaled(enum atsi_dtype dtype, struct synth_random *r, float d, uint64_t n_blocks, uint8_t *out) {
    unsigned block_bytes = atsi_dtype_info(dtype)->block_bytes;
    finish_fn finish = finish_of(dtype);
    synth_bytes(r, out, n_blocks * block_bytes);
    for (uint64_t i = 0; i < n_blocks; i++) finish(out + i * block_bytes, d * (0.8f + 0.4f * synth_uniform(r)), r);
}

enum atsi_status synth_blocks_init(struct synth_blocks *out, enum atsi_dtype dtype, struct atsi_error *err) {
    enum {
        SAMPLE = 128,
        MAX_BLOCK_BYTES = 256
    };
    *out = (struct synth_blocks){dtype, 1};
    if (is_float(dtype)) return ATSI_OK;
    if (!finish_of(dtype) || !atsi_dequant_supported(dtype))
        return atsi_fail(err, ATSI_BAD_INPUT, "type %s: no random blocks can be made of it", atsi_dtype_name(dtype));
    uint8_t sample[SAMPLE * MAX_BLOCK_BYTES];
    float values[256];
    struct synth_random r = synth_random_from(dtype);
    const struct atsi_dtype_info *info = atsi_dtype_info(dtype);
    double squares = 0;
    fill_scaled(dtype, &r, 1, SAMPLE, sample);
    for (unsigned i = 0; i < SAMPLE; i++) {
        atsi_dequant(dtype, sample + (size_t)i * info->block_bytes, info->block_elems, values);
        for (unsigned j = 0; j < info->block_elems; j++) squares += (double)values[j] * values[j];
    }
    out->unit_rms = (float)sqrt(squares / (SAMPLE * info->block_elems));
    return ATSI_OK;
}

void synth_blocks_fill(const struct synth_blocks *blocks, struct synth_random *r, float std, uint64_t n_elems,
                       uint8_t *out) {
    if (is_float(blocks->dtype))
        fill_floats(blocks->dtype, r, std, n_elems, out);
    else
        fill_scaled(blocks->dtype, r, std / blocks->unit_rms, n_elems / atsi_dtype_info(blocks->dtype)->block_elems,
                    out);
}
