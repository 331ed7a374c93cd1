// emulated_amx.h: the kernels for AMX on processors without it, their instructions done in portable loops.
#ifndef ATSI_TESTS_EMULATED_AMX_H
#define ATSI_TESTS_EMULATED_AMX_H

#include "kernels/matmul.h"

// As atsi_matmul_fill_avx512amx (kernels/cpu/matmul_impl.h). The processor has ATSI_ISA_AVX512; x86 only.
void emulated_amx_fill(struct atsi_matmul_kernels *k);

#endif
