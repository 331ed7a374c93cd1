#include "tests/support/emulated_amx.h"
#include "tests/support/emulated_tiles.h"

#define atsi_matmul_fill_float_avx512amx emulated_amx_float_fill
#include "kernels/cpu/matmul_float_avx512amx.c"
