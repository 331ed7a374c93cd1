#include "tests/support/emulated_amx.h"
#include "tests/support/emulated_tiles.h"

#define atsi_matmul_fill_avx512amx emulated_amx_fill
#include "kernels/cpu/matmul_avx512amx.c"
