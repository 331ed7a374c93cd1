#include "kernels/cpu/dequant.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

#include "formats/half.h"
#include "kernels/cpu/quant.h"
#include "kernels/layout.h"

bool atsi_dequant_supported(enum atsi_dtype dtype) {
    return dtype == ATSI_F32 || dtype == ATSI_F16 || dtype == ATSI_BF16 || atsi_quant_type(dtype) != NULL;
}

static void dequant_block(const struct atsi_quant_type *type, const void *block, float *out) {
    struct atsi_quant_block b;
    type->expand(block, &b);
    for (unsigned i = 0; i < type->block_elems; i++) {
        unsigned group = i / type->group;
        out[i] = b.scale[group] * (float)b.q[i] - b.min_unit * (float)b.min_q[group];
    }
}

static void dequant_16_bit(enum atsi_dtype dtype, const uint8_t *src, uint64_t n_elems, float *out) {
    for (uint64_t i = 0; i < n_elems; i++) {
        uint16_t bits;
        memcpy(&bits, src + 2 * i, sizeof bits);
        out[i] = dtype == ATSI_F16 ? atsi_f16_to_f32(bits) : atsi_bf16_to_f32(bits);
    }
}

void atsi_dequant(enum atsi_dtype dtype, const void *src, uint64_t n_elems, float *out) {
    if (dtype == ATSI_F32) {
        memcpy(out, src, n_elems * sizeof(float));
        return;
    }
    if (dtype == ATSI_F16 || dtype == ATSI_BF16) {
        dequant_16_bit(dtype, src, n_elems, out);
        return;
    }
    const struct atsi_quant_type *type = atsi_quant_type(dtype);
    assert(type != NULL && n_elems % type->block_elems == 0);
    const uint8_t *block = src;
    for (uint64_t i = 0; i < n_elems; i += type->block_elems, block += type->block_bytes)
        dequant_block(type, block, out + i);
}

void atsi_dequant_row(enum atsi_dtype dtype, enum atsi_layout layout, const void *packed, uint64_t n_cols, uint64_t row,
                      float *out) {
    if (layout == ATSI_LAYOUT_PLAIN) {
        atsi_dequant(dtype, (const uint8_t *)packed + row * atsi_dtype_row_bytes(dtype, n_cols), n_cols, out);
        return;
    }
    const struct atsi_quant_type *type = atsi_quant_type(dtype);
    assert(type != NULL);
    uint8_t block[256];
    for (uint64_t b = 0; b < n_cols / type->block_elems; b++) {
        atsi_layout_get_block(dtype, layout, packed, n_cols, row, b, block);
        dequant_block(type, block, out + b * type->block_elems);
    }
}
