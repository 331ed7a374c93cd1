// The matmul kernels for AVX-512 with VNNI.
#define TOKENS_8 1
#include "kernels/cpu/simd_avx512.h"
// The bodies are written in the words of the header above.
#include "kernels/cpu/act_quant.h"
#include "kernels/cpu/matmul_float.h"
#include "kernels/cpu/matmul_grid.h"
#include "kernels/cpu/matmul_tiles.h"

void atsi_matmul_fill_avx512(struct atsi_matmul_kernels *k) {
    k->quantise = atsi_act_quantise_avx512;
    fill_float_types(k);
    fill_tile_types(k);
    fill_grid_types(k);
}

void atsi_matmul_grid_avx512(const struct atsi_matmul_args *args, uint32_t tile_begin, uint32_t tile_end) {
    grid_matmul(args, tile_begin, tile_end);
}
