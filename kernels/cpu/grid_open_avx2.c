// Codebook look-ups row by row, 32 weights a register, then a transposition into the words of a tile. The meaning of every
// field: quant_grid.c, the portable version of the same.
#include "kernels/cpu/grid_open.h"

#include <immintrin.h>
#include <string.h>

#include "formats/blocks.h"
#include "formats/half.h"
#include "kernels/cpu/quant_tables.h"

enum {
    ROWS = 16
};

// A row's block to 256 bytes q + 128, and its scales, ROWS floats apart.
typedef void open_fn(const uint8_t *block, uint8_t *bytes, float *scale);

static uint32_t word_at(const uint8_t *bytes, size_t i) {
    uint32_t word;
    memcpy(&word, bytes + 4 * i, sizeof word);
    return word;
}

static uint16_t half_word_at(const uint8_t *bytes, size_t i) {
    uint16_t word;
    memcpy(&word, bytes + 2 * i, sizeof word);
    return word;
}

static __m256i four(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
    return _mm256_set_epi64x((long long)d, (long long)c, (long long)b, (long long)a);
}

// Bit i of `signs` belongs to byte i.
static void put_signed(__m256i magnitudes, uint32_t signs, uint8_t *bytes) {
    const __m256i spread = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201u);
    __m256i of_byte = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32((int)signs), spread), bit);
    __m256i minus = _mm256_cmpeq_epi8(of_byte, bit);
    __m256i q = _mm256_sub_epi8(_mm256_xor_si256(magnitudes, minus), minus);
    _mm256_storeu_si256((void *)bytes, _mm256_xor_si256(q, _mm256_set1_epi8((char)0x80)));
}

// Four 7-bit sign codes in four bytes get the bit that makes the number of minus signs even.
static uint32_t with_parity(uint32_t codes) {
    uint32_t odd = codes ^ codes >> 4; // what leaks in from the next byte stays above bit 0
    odd ^= odd >> 2;
    odd ^= odd >> 1;
    return codes | (odd & 0x01010101) << 7;
}

static uint32_t even_signs(uint32_t codes_28) {
    return with_parity((codes_28 & 0x7f) | (codes_28 & 0x3f80) << 1 | (codes_28 & 0x1fc000) << 2 |
                       (codes_28 & 0xfe00000) << 3);
}

static void quarter_scales(float d, const uint8_t *scales, float *scale) {
    for (unsigned k = 0; k < 16; k++)
        scale[ROWS * k] = d * (0.5f + (float)(scales[k / 2] >> (4 * (k % 2)) & 15)) * 0.25f;
}

static void open_iq2_xxs(const uint8_t *block, uint8_t *bytes, float *scale) {
    const uint8_t *qs = block + offsetof(struct atsi_block_iq2_xxs, qs);
    float d = _cvtsh_ss(half_word_at(block, 0));
    for (unsigned k = 0; k < 8; k++, qs += 8, bytes += 32) {
        uint32_t rest = word_at(qs, 1);
        const uint64_t *grid = ATSI_IQ2_XXS_GRID;
        scale[ROWS * k] = d * (0.5f + (float)(rest >> 28)) * 0.25f;
        put_signed(four(grid[qs[0]], grid[qs[1]], grid[qs[2]], grid[qs[3]]), even_signs(rest & 0xfffffff), bytes);
    }
}

static void open_iq2_xs(const uint8_t *block, uint8_t *bytes, float *scale) {
    const uint8_t *qs = block + offsetof(struct atsi_block_iq2_xs, qs);
    quarter_scales(_cvtsh_ss(half_word_at(block, 0)), block + offsetof(struct atsi_block_iq2_xs, scales), scale);
    for (unsigned k = 0; k < 8; k++, qs += 8, bytes += 32) {
        const uint64_t *grid = ATSI_IQ2_XS_GRID;
        uint32_t a = half_word_at(qs, 0), b = half_word_at(qs, 1), c = half_word_at(qs, 2), d = half_word_at(qs, 3);
        uint32_t signs = with_parity(a >> 9 | b >> 9 << 8 | c >> 9 << 16 | d >> 9 << 24);
        put_signed(four(grid[a & 511], grid[b & 511], grid[c & 511], grid[d & 511]), signs, bytes);
    }
}

static void open_iq2_s(const uint8_t *block, uint8_t *bytes, float *scale) {
    const uint8_t *qs = block + offsetof(struct atsi_block_iq2_s, qs),
                  *qh = block + offsetof(struct atsi_block_iq2_s, qh);
    quarter_scales(_cvtsh_ss(half_word_at(block, 0)), block + offsetof(struct atsi_block_iq2_s, scales), scale);
    for (unsigned k = 0; k < 8; k++, qs += 4, bytes += 32) {
        const uint64_t *grid = ATSI_IQ2_S_GRID;
        unsigned h = qh[k];
        put_signed(four(grid[qs[0] | (h << 8 & 0x300)], grid[qs[1] | (h << 6 & 0x300)], grid[qs[2] | (h << 4 & 0x300)],
                        grid[qs[3] | (h << 2 & 0x300)]),
                   word_at(qs + 32, 0), bytes);
    }
}

static uint64_t pair(uint32_t first, uint32_t second) { return first | (uint64_t)second << 32; }

static void open_iq3_xxs(const uint8_t *block, uint8_t *bytes, float *scale) {
    const uint8_t *qs = block + offsetof(struct atsi_block_iq3_xxs, qs), *rest = qs + 64;
    float d = _cvtsh_ss(half_word_at(block, 0));
    for (unsigned k = 0; k < 8; k++, qs += 8, bytes += 32) {
        const uint32_t *grid = ATSI_IQ3_XXS_GRID;
        uint32_t word = word_at(rest, k);
        scale[ROWS * k] = d * (0.5f + (float)(word >> 28)) * 0.5f;
        put_signed(four(pair(grid[qs[0]], grid[qs[1]]), pair(grid[qs[2]], grid[qs[3]]), pair(grid[qs[4]], grid[qs[5]]),
                        pair(grid[qs[6]], grid[qs[7]])),
                   even_signs(word & 0xfffffff), bytes);
    }
}

static void open_iq3_s(const uint8_t *block, uint8_t *bytes, float *scale) {
    const uint8_t *qs = block + offsetof(struct atsi_block_iq3_s, qs),
                  *qh = block + offsetof(struct atsi_block_iq3_s, qh);
    const uint8_t *signs = block + offsetof(struct atsi_block_iq3_s, signs),
                  *scales = block + offsetof(struct atsi_block_iq3_s, scales);
    float d = _cvtsh_ss(half_word_at(block, 0));
    for (unsigned k = 0; k < 8; k++, qs += 8, bytes += 32) {
        uint32_t g[8];
        for (unsigned j = 0; j < 8; j++) g[j] = ATSI_IQ3_S_GRID[qs[j] | (qh[k] << (8 - j) & 256u)];
        scale[ROWS * k] = d * (float)(1 + 2 * (scales[k / 2] >> (4 * (k % 2)) & 15));
        put_signed(four(pair(g[0], g[1]), pair(g[2], g[3]), pair(g[4], g[5]), pair(g[6], g[7])), word_at(signs, k),
                   bytes);
    }
}

static void open_iq1_s(const uint8_t *block, uint8_t *bytes, float *scale) {
    const uint8_t *qs = block + offsetof(struct atsi_block_iq1_s, qs),
                  *qh = block + offsetof(struct atsi_block_iq1_s, qh);
    float d = _cvtsh_ss(half_word_at(block, 0));
    for (unsigned k = 0; k < 8; k++, qs += 4, bytes += 32) {
        const uint64_t *grid = ATSI_IQ1_GRID;
        unsigned h = half_word_at(qh, k);
        __m256i shift = _mm256_set1_epi8(h & 0x8000 ? -1 : 1);
        scale[ROWS * k] = d * (float)(2 * (h >> 12 & 7) + 1) * 0.125f;
        __m256i g = four(grid[qs[0] | (h << 8 & 0x700)], grid[qs[1] | (h << 5 & 0x700)], grid[qs[2] | (h << 2 & 0x700)],
                         grid[qs[3] | (h >> 1 & 0x700)]);
        _mm256_storeu_si256((void *)bytes, _mm256_add_epi8(g, shift));
    }
}

static void open_iq1_m(const uint8_t *block, uint8_t *bytes, float *scale) {
    const uint8_t *qs = block + offsetof(struct atsi_block_iq1_m, qs),
                  *qh = block + offsetof(struct atsi_block_iq1_m, qh);
    const uint8_t *scales = block + offsetof(struct atsi_block_iq1_m, scales);
    unsigned w[4], d_bits = 0;
    for (unsigned i = 0; i < 4; i++) {
        w[i] = half_word_at(scales, i);
        d_bits |= w[i] >> 12 << (4 * i);
    }
    float d = _cvtsh_ss((uint16_t)d_bits);
    for (unsigned k = 0; k < 16; k++) scale[ROWS * k] = d * (float)(2 * (w[k / 4] >> (3 * (k % 4)) & 7) + 1) * 0.125f;
    for (unsigned k = 0; k < 8; k++, qs += 4, qh += 2, bytes += 32) { // whole registers: the transposition loads such
        const uint64_t *grid = ATSI_IQ1_GRID, up = 0x0101010101010101u, down = UINT64_MAX;
        unsigned a = qh[0], b = qh[1];
        __m256i g = four(grid[qs[0] | (a << 8 & 0x700)], grid[qs[1] | (a << 4 & 0x700)], grid[qs[2] | (b << 8 & 0x700)],
                         grid[qs[3] | (b << 4 & 0x700)]);
        __m256i shift = four(a & 0x08 ? down : up, a & 0x80 ? down : up, b & 0x08 ? down : up, b & 0x80 ? down : up);
        _mm256_storeu_si256((void *)bytes, _mm256_add_epi8(g, shift));
    }
}

// words[j] = dword j of each of 8 rows, 256 bytes apart.
static void transpose_8x8(const uint8_t *rows, uint32_t (*words)[ROWS]) {
    __m256i a[8], b[8];
    for (int i = 0; i < 8; i++) a[i] = _mm256_load_si256((const void *)(rows + 256 * i));
    for (int i = 0; i < 8; i += 2) { // dwords of two rows alternate
        b[i] = _mm256_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm256_unpackhi_epi32(a[i], a[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) { // of four rows: dwords 0 and 4, 1 and 5, 2 and 6, 3 and 7
        a[i] = _mm256_unpacklo_epi64(b[i], b[i + 2]);
        a[i + 1] = _mm256_unpackhi_epi64(b[i], b[i + 2]);
        a[i + 2] = _mm256_unpacklo_epi64(b[i + 1], b[i + 3]);
        a[i + 3] = _mm256_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        _mm256_store_si256((void *)words[i], _mm256_permute2x128_si256(a[i], a[i + 4], 0x20));
        _mm256_store_si256((void *)words[i + 4], _mm256_permute2x128_si256(a[i], a[i + 4], 0x31));
    }
}

static open_fn *opener(enum atsi_dtype dtype) {
    switch (dtype) {
    case ATSI_IQ2_XXS: return open_iq2_xxs;
    case ATSI_IQ2_XS: return open_iq2_xs;
    case ATSI_IQ2_S: return open_iq2_s;
    case ATSI_IQ3_XXS: return open_iq3_xxs;
    case ATSI_IQ3_S: return open_iq3_s;
    case ATSI_IQ1_S: return open_iq1_s;
    default: return open_iq1_m;
    }
}

void atsi_grid_open_avx2(enum atsi_dtype dtype, const uint8_t *blocks, size_t row_bytes, uint32_t n_rows,
                         struct atsi_opened_tile *tile) {
    uint8_t bytes[ROWS * 256] __attribute__((aligned(64)));
    open_fn *open = opener(dtype);
    for (uint32_t r = 0; r < ROWS; r++)
        open(blocks + (r < n_rows ? r : 0) * row_bytes, bytes + 256 * r, &tile->scale[0][r]);
    for (int k = 0; k < 64; k += 8)
        for (int r = 0; r < ROWS; r += 8)
            transpose_8x8(bytes + 256 * r + 4 * k, (uint32_t(*)[ROWS])(void *)&tile->words[k][r]);
}
