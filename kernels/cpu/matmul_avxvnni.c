// The matmul kernels for AVX-VNNI.
#define TOKENS_8 0
#include "kernels/cpu/simd_avx2.h"
// The bodies are written in the words of the header above.
#include "kernels/cpu/matmul_grid.h"
#include "kernels/cpu/matmul_tiles.h"

void atsi_matmul_fill_avxvnni(struct atsi_matmul_kernels *k) {
    fill_tile_types(k);
    fill_grid_types(k);
}
