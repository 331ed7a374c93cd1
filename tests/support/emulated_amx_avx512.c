#include "tests/support/emulated_amx.h"

#include <assert.h>
#include <immintrin.h>
#include <string.h>

// What tile instructions say they do (Intel's manual, volume 2): registers of at most 16 rows of 64 bytes, their used part configured.
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

// sums += signed bytes of a times unsigned bytes of b, whose rows hold four of a column next to each other.
static void dot_signed_unsigned(int sums, int a, int b) {
    assert(tiles.n_rows[sums] == tiles.n_rows[a] && tiles.row_bytes[sums] == tiles.row_bytes[b] &&
           tiles.row_bytes[a] == 4 * tiles.n_rows[b]);
    for (int m = 0; m < tiles.n_rows[sums]; m++)
        for (int n = 0; n < tiles.row_bytes[sums] / 4; n++) {
            int32_t sum;
            memcpy(&sum, tiles.rows[sums][m] + 4 * n, sizeof sum);
            for (int k = 0; k < tiles.row_bytes[a]; k++)
                sum += (int8_t)tiles.rows[a][m][k] * tiles.rows[b][k / 4][4 * n + k % 4];
            memcpy(tiles.rows[sums][m] + 4 * n, &sum, sizeof sum);
        }
}

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbsud
#define _tile_loadconfig(config)       load_config((const void *)(config))
#define _tile_release()                (void)0
#define _tile_zero(tile)               memset(tiles.rows[tile], 0, sizeof tiles.rows[tile])
#define _tile_loadd(tile, from, bytes) load(tile, from, bytes)
#define _tile_stored(tile, to, bytes)  store(tile, to, bytes)
#define _tile_dpbsud(sums, a, b)       dot_signed_unsigned(sums, a, b)
#define atsi_matmul_fill_avx512amx     emulated_amx_fill
#include "kernels/cpu/matmul_avx512amx.c"
