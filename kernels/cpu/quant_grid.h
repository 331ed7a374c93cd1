// quant_grid.h: the grid types' part of quant.h's table.
#ifndef ATSI_KERNELS_CPU_QUANT_GRID_H
#define ATSI_KERNELS_CPU_QUANT_GRID_H

#include "kernels/cpu/quant.h"

// As struct atsi_quant_type's expand.
void atsi_expand_iq2_xxs(const void *block, struct atsi_quant_block *out);
void atsi_expand_iq2_xs(const void *block, struct atsi_quant_block *out);
void atsi_expand_iq2_s(const void *block, struct atsi_quant_block *out);
void atsi_expand_iq3_xxs(const void *block, struct atsi_quant_block *out);
void atsi_expand_iq3_s(const void *block, struct atsi_quant_block *out);
void atsi_expand_iq1_s(const void *block, struct atsi_quant_block *out);
void atsi_expand_iq1_m(const void *block, struct atsi_quant_block *out);

#endif
