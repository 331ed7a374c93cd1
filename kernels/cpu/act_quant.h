// act_quant.h: quantising a row of activations, one function an instruction set; all give the same bits.
#ifndef ATSI_KERNELS_CPU_ACT_QUANT_H
#define ATSI_KERNELS_CPU_ACT_QUANT_H

#include "kernels/matmul.h"

atsi_act_quantise_fn atsi_act_quantise_ref;
atsi_act_quantise_fn atsi_act_quantise_avx2;
atsi_act_quantise_fn atsi_act_quantise_avx512;

#endif
