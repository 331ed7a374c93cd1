// grid_open.h: 16 rows x 256 columns of a grid type opened into the bytes that a tile kernel takes.
#ifndef ATSI_KERNELS_CPU_GRID_OPEN_H
#define ATSI_KERNELS_CPU_GRID_OPEN_H

#include <stddef.h>
#include <stdint.h>

#include "formats/dtype.h"

struct atsi_opened_tile {
    float scale[16][16];    // [group of 16 or 32 columns][row]
    uint32_t words[64][16]; // [k][row]: weights 4k..4k+3 as bytes q + 128
} __attribute__((aligned(64)));

// Opens blocks of n_rows (1..16) rows, row_bytes apart. Rows that do not exist get what the first has.
void atsi_grid_open_avx2(enum atsi_dtype dtype, const uint8_t *blocks, size_t row_bytes, uint32_t n_rows,
                         struct atsi_opened_tile *tile);

#endif
