#include "tests/support/emulated_amx.h"

#include <assert.h>
#include <immintrin.h>
#include <math.h>
#include <string.h>

// What the instructions are said to do (Intel's manual, volume 2): registers of at most 16 rows of 64 bytes, their used part configured.
static _Thread_local struct {
    uint16_t row_bytes[8];
    uint8_t n_rows[8];
    uint8_t rows[8][16][64];
} tiles;

static void load_config(const uint8_t *config) {
    assert(config[0] == 1);
    memcpy(tiles.row_bytes, config + 16, sizeof tiles.row_bytes);
    memcpy(tiles.n_rows, config + 48, sizeof tiles.n_rows);
}

static void load(int tile, const void *from, size_t stride) {
    memset(tiles.rows[tile], 0, sizeof tiles.rows[tile]);
    for (size_t r = 0; r < tiles.n_rows[tile]; r++)
        memcpy(tiles.rows[tile][r], (const uint8_t *)from + r * stride, tiles.row_bytes[tile]);
}

static void store(int tile, void *to, size_t stride) {
    for (size_t r = 0; r < tiles.n_rows[tile]; r++)
        memcpy((uint8_t *)to + r * stride, tiles.rows[tile][r], tiles.row_bytes[tile]);
}

// Tile arithmetic reads and writes numbers below 2^-126 as zero.
static float no_subnormal(float a) { return fabsf(a) < 0x1p-126f ? copysignf(0, a) : a; }

static float bfloat16_at(const uint8_t *p) {
    uint8_t bytes[4] = {0, 0, p[0], p[1]};
    float a;
    memcpy(&a, bytes, sizeof a);
    return no_subnormal(a);
}

// sums += bfloat16 of a times those of b, whose rows hold two of a column next to each other: the products of the first and of the second
// of them by fma into two sums, which are added, then that to what was there. Rounds to nearest even.
static void dot_bfloat16(int sums, int a, int b) {
    assert(tiles.n_rows[sums] == tiles.n_rows[a] && tiles.row_bytes[sums] == tiles.row_bytes[b] &&
           tiles.row_bytes[a] == 4 * tiles.n_rows[b]);
    for (int m = 0; m < tiles.n_rows[sums]; m++)
        for (int n = 0; n < tiles.row_bytes[sums] / 4; n++) {
            float sum, part[2] = {0, 0};
            memcpy(&sum, tiles.rows[sums][m] + 4 * n, sizeof sum);
            for (int k = 0; k < tiles.row_bytes[a] / 2; k++)
                part[k % 2] = no_subnormal(fmaf(bfloat16_at(tiles.rows[a][m] + 2 * k),
                                                bfloat16_at(tiles.rows[b][k / 2] + 4 * n + 2 * (k % 2)), part[k % 2]));
            sum = no_subnormal(no_subnormal(sum) + no_subnormal(part[0] + part[1]));
            memcpy(tiles.rows[sums][m] + 4 * n, &sum, sizeof sum);
        }
}

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define _tile_loadconfig(config)       load_config((const void *)(config))
#define _tile_release()                (void)0
#define _tile_loadd(tile, from, bytes) load(tile, from, bytes)
#define _tile_stored(tile, to, bytes)  store(tile, to, bytes)
#define _tile_dpbf16ps(sums, a, b)     dot_bfloat16(sums, a, b)
#define atsi_matmul_fill_avx512amx     emulated_amx_fill
#include "kernels/cpu/matmul_avx512amx.c"
