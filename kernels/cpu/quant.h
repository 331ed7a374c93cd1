// quant.h: one block of any quantised type opened up into small integers and scales: the portable meaning of every type, on
// which the reference matmul and the dequantisation stand.
#ifndef ATSI_KERNELS_CPU_QUANT_H
#define ATSI_KERNELS_CPU_QUANT_H

#include <stdbool.h>
#include <stdint.h>

#include "formats/dtype.h"

// Weight i of the block is scale[i / group] * q[i] - min_unit * min_q[i / group], in float32 and in this order of operations.
// Offsets (q - 8 and the like) are already in q. Types without mins have min_unit 0.
struct atsi_quant_block {
    int8_t q[256];
    float scale[16];
    float min_unit;
    uint8_t min_q[16];
};

struct atsi_quant_type {
    uint16_t block_bytes;
    uint16_t block_elems; // 32 or 256
    uint8_t group;        // weights that share a scale: 32 or 16
    bool has_min;
    void (*expand)(const void *block, struct atsi_quant_block *out); // `block` in GGUF form, any alignment
};

// NULL when the type is no quantised type that the kernels know.
const struct atsi_quant_type *atsi_quant_type(enum atsi_dtype dtype);

#endif
