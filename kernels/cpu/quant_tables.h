// quant_tables.h: the value tables that the formats define.
#ifndef ATSI_KERNELS_CPU_QUANT_TABLES_H
#define ATSI_KERNELS_CPU_QUANT_TABLES_H

#include <stdint.h>

// IQ4_NL and IQ4_XS: code -> value.
static const int8_t ATSI_IQ4_VALUES[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
// MXFP4: code -> twice the E2M1 number.
static const int8_t ATSI_FP4_VALUES[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// Grid types: one entry is 8 (IQ3: 4) weights' magnitudes, a byte each, first weight lowest (quant_grids.c).
extern const uint64_t ATSI_IQ2_XXS_GRID[256];
extern const uint64_t ATSI_IQ2_XS_GRID[512];
extern const uint64_t ATSI_IQ2_S_GRID[1024];
extern const uint32_t ATSI_IQ3_XXS_GRID[256];
extern const uint32_t ATSI_IQ3_S_GRID[512];
// IQ1_S and IQ1_M: 128 + 8 * g with g in {-1, 0, 1}.
extern const uint64_t ATSI_IQ1_GRID[2048];

// The same entries as codes: [0] those of the first half of the weights, [1] of the second. IQ2 and IQ1: 2 bits each, the levels
// 8, 25, 43 and -1, 0, 1 in this order; IQ3: 3 bits each.
extern const uint8_t ATSI_IQ2_XXS_CODES[2][256];
extern const uint8_t ATSI_IQ2_XS_CODES[2][512];
extern const uint8_t ATSI_IQ2_S_CODES[2][1024];
extern const uint8_t ATSI_IQ3_XXS_CODES[2][256];
extern const uint8_t ATSI_IQ3_S_CODES[2][512];
extern const uint8_t ATSI_IQ1_CODES[2][2048];

// The eight signs of a group: 7 bits and their parity, so that the number of minus signs is even.
static inline uint8_t atsi_even_signs(unsigned code) { return (uint8_t)(code | (unsigned)__builtin_parity(code) << 7); }

#endif
