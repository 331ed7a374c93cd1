// dequant.h: weights as float32, for embedding look-ups, tests and tools. Bit-equal to ggml's values.
#ifndef ATSI_KERNELS_CPU_DEQUANT_H
#define ATSI_KERNELS_CPU_DEQUANT_H

#include <stdbool.h>
#include <stdint.h>

#include "formats/dtype.h"
#include "formats/program.h"

// F32, F16, BF16 and every quantised type of the kernels.
bool atsi_dequant_supported(enum atsi_dtype dtype);
// n_elems (a multiple of the type's block) weights in GGUF order at `src` (any alignment) to out[n_elems].
void atsi_dequant(enum atsi_dtype dtype, const void *src, uint64_t n_elems, float *out);
// Row `row` of a packed matrix of n_cols columns (kernels/layout.h) to out[n_cols].
void atsi_dequant_row(enum atsi_dtype dtype, enum atsi_layout layout, const void *packed, uint64_t n_cols, uint64_t row,
                      float *out);

#endif
