// quant_data.h: weights of any type for tests and benches: random, and at the ends of what a block can hold.
#ifndef ATSI_TESTS_SUPPORT_QUANT_DATA_H
#define ATSI_TESTS_SUPPORT_QUANT_DATA_H

#include <stdint.h>
#include <string.h>

#include "formats/blocks.h"
#include "formats/dtype.h"
#include "formats/half.h"
#include "tests/support/random.h"

// Every type with a matmul kernel.
static const enum atsi_dtype QUANT_DATA_TYPES[] = {
    ATSI_F32,   ATSI_F16,     ATSI_BF16,  ATSI_Q8_0,   ATSI_Q4_0,    ATSI_Q4_1,   ATSI_Q5_0,   ATSI_Q5_1,
    ATSI_Q2_K,  ATSI_Q3_K,    ATSI_Q4_K,  ATSI_Q5_K,   ATSI_Q6_K,    ATSI_IQ4_NL, ATSI_IQ4_XS, ATSI_MXFP4,
    ATSI_IQ3_S, ATSI_IQ3_XXS, ATSI_IQ2_S, ATSI_IQ2_XS, ATSI_IQ2_XXS, ATSI_IQ1_S,  ATSI_IQ1_M,
};
enum {
    QUANT_DATA_N_TYPES = sizeof QUANT_DATA_TYPES / sizeof QUANT_DATA_TYPES[0]
};

struct quant_rng {
    uint64_t state;
};

static inline uint64_t quant_next(struct quant_rng *rng) { return test_next(&rng->state); }

static inline float quant_uniform(struct quant_rng *rng) {
    return (float)(quant_next(rng) >> 40) * 0x1p-23f - 1;
} // [-1, 1)

enum quant_fill {
    QUANT_RANDOM,   // any bits, scales of ordinary size
    QUANT_ALL_ZERO, // every code 0
    QUANT_ALL_ONES, // every code and every small scale at its largest bits
    QUANT_TINY,     // any bits, subnormal half scales
    QUANT_N_FILLS
};

static inline uint16_t quant_half(struct quant_rng *rng, enum quant_fill fill) {
    if (fill == QUANT_TINY) return (uint16_t)((quant_next(rng) & 0x8000) | (1 + quant_next(rng) % 1000));
    if (fill == QUANT_RANDOM) return atsi_f32_to_f16(quant_uniform(rng) * 0.01f);
    return atsi_f32_to_f16(0.0078125f);
}

// Byte offsets of the half floats of a block, ended by -1.
static inline const int *quant_half_offsets(enum atsi_dtype dtype) {
    static const int at_start[] = {0, -1}, two_at_start[] = {0, 2, -1}, q2_k[] = {80, 82, -1}, q3_k[] = {108, -1},
                     q6_k[] = {208, -1}, none[] = {-1};
    switch (dtype) {
    case ATSI_Q4_1:
    case ATSI_Q5_1:
    case ATSI_Q4_K:
    case ATSI_Q5_K: return two_at_start;
    case ATSI_Q2_K: return q2_k;
    case ATSI_Q3_K: return q3_k;
    case ATSI_Q6_K: return q6_k;
    case ATSI_MXFP4:
    case ATSI_IQ1_M: return none;
    default: return at_start;
    }
}

static inline void quant_fill_block(enum atsi_dtype dtype, enum quant_fill fill, struct quant_rng *rng, uint8_t *block,
                                    size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        block[i] = fill == QUANT_ALL_ZERO ? 0 : fill == QUANT_ALL_ONES ? 0xff : (uint8_t)quant_next(rng);
    for (const int *at = quant_half_offsets(dtype); *at >= 0; at++) {
        uint16_t half = quant_half(rng, fill);
        memcpy(block + *at, &half, sizeof half);
    }
    if (dtype == ATSI_MXFP4)
        block[0] = fill == QUANT_TINY ? (uint8_t)(quant_next(rng) % 4) : (uint8_t)(118 + quant_next(rng) % 8);
    if (dtype == ATSI_IQ1_M) { // the half float is spread over the top nibbles of the last four words
        uint16_t half = quant_half(rng, fill);
        for (int i = 0; i < 4; i++)
            block[49 + 2 * i] = (uint8_t)((block[49 + 2 * i] & 15) | (half >> (4 * i) & 15) << 4);
    }
}

// n_elems weights (a multiple of the type's block) in GGUF form.
static inline void quant_fill_weights(enum atsi_dtype dtype, enum quant_fill fill, struct quant_rng *rng,
                                      uint64_t n_elems, void *dst) {
    if (dtype == ATSI_F32) {
        for (uint64_t i = 0; i < n_elems; i++) ((float *)dst)[i] = quant_uniform(rng) * 0.05f;
    } else if (dtype == ATSI_F16) {
        for (uint64_t i = 0; i < n_elems; i++) ((uint16_t *)dst)[i] = quant_half(rng, fill);
    } else if (dtype == ATSI_BF16) {
        for (uint64_t i = 0; i < n_elems; i++) ((uint16_t *)dst)[i] = atsi_f32_to_bf16(quant_uniform(rng) * 0.05f);
    } else {
        const struct atsi_dtype_info *info = atsi_dtype_info(dtype);
        uint8_t *block = dst;
        for (uint64_t i = 0; i < n_elems; i += info->block_elems, block += info->block_bytes)
            quant_fill_block(dtype, fill, rng, block, info->block_bytes);
    }
}

#endif
