// quant_tables.h: the value tables that the formats define.
#ifndef ATSI_KERNELS_CPU_QUANT_TABLES_H
#define ATSI_KERNELS_CPU_QUANT_TABLES_H

#include <stdint.h>

// IQ4_NL and IQ4_XS: code -> value.
static const int8_t ATSI_IQ4_VALUES[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
// MXFP4: code -> twice the E2M1 number.
static const int8_t ATSI_FP4_VALUES[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

#endif
