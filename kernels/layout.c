#include "kernels/layout.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

#include "formats/blocks.h"

// What happens to a unit's bytes on the way; each is its own inverse or has one (see convert).
enum transform {
    AS_IS,
    OFFSET_BINARY, // int8 q -> q + 128, what vpdpbusd wants of a weight
    BIT_PLANES,    // bit 4w + b of a word -> bit w of byte b, so that a shift serves four weights at once
    Q6_K_WORDS     // units change places: low and top bits that are used together stand together
};

struct part {
    uint16_t src;    // byte offset in the GGUF block
    uint8_t granule; // bytes of a unit
    uint8_t count;   // units
    uint8_t transform;
};

enum {
    MAX_PARTS = 5
};

struct tiling {
    uint16_t block_bytes;
    uint16_t block_elems;
    struct part parts[MAX_PARTS]; // ends at count 0
};

#define AT(type, field)    offsetof(struct atsi_block_##type, field)
#define SIZES(type, elems) .block_bytes = sizeof(struct atsi_block_##type), .block_elems = (elems)

static const struct tiling TILINGS[ATSI_DTYPE_LIMIT] = {
    [ATSI_Q8_0] = {SIZES(q8_0, 32), {{AT(q8_0, d), 2, 1, AS_IS}, {AT(q8_0, qs), 4, 8, OFFSET_BINARY}}},
    [ATSI_Q4_0] = {SIZES(q4_0, 32), {{AT(q4_0, d), 2, 1, AS_IS}, {AT(q4_0, qs), 4, 4, AS_IS}}},
    [ATSI_Q4_1] = {SIZES(q4_1, 32),
                   {{AT(q4_1, d), 2, 1, AS_IS}, {AT(q4_1, m), 2, 1, AS_IS}, {AT(q4_1, qs), 4, 4, AS_IS}}},
    [ATSI_Q5_0] = {SIZES(q5_0, 32),
                   {{AT(q5_0, d), 2, 1, AS_IS}, {AT(q5_0, qh), 4, 1, BIT_PLANES}, {AT(q5_0, qs), 4, 4, AS_IS}}},
    [ATSI_Q5_1] = {SIZES(q5_1, 32),
                   {{AT(q5_1, d), 2, 1, AS_IS},
                    {AT(q5_1, m), 2, 1, AS_IS},
                    {AT(q5_1, qh), 4, 1, BIT_PLANES},
                    {AT(q5_1, qs), 4, 4, AS_IS}}},
    [ATSI_IQ4_NL] = {SIZES(iq4_nl, 32), {{AT(iq4_nl, d), 2, 1, AS_IS}, {AT(iq4_nl, qs), 4, 4, AS_IS}}},
    [ATSI_MXFP4] = {SIZES(mxfp4, 32), {{AT(mxfp4, e), 1, 1, AS_IS}, {AT(mxfp4, qs), 4, 4, AS_IS}}},
    [ATSI_Q2_K] = {SIZES(q2_k, 256),
                   {{AT(q2_k, d), 2, 1, AS_IS},
                    {AT(q2_k, dmin), 2, 1, AS_IS},
                    {AT(q2_k, scales), 1, 16, AS_IS},
                    {AT(q2_k, qs), 4, 16, AS_IS}}},
    [ATSI_Q3_K] = {SIZES(q3_k, 256),
                   {{AT(q3_k, d), 2, 1, AS_IS},
                    {AT(q3_k, scales), 1, 12, AS_IS},
                    {AT(q3_k, hmask), 4, 8, AS_IS},
                    {AT(q3_k, qs), 4, 16, AS_IS}}},
    [ATSI_Q4_K] = {SIZES(q4_k, 256),
                   {{AT(q4_k, d), 2, 1, AS_IS},
                    {AT(q4_k, dmin), 2, 1, AS_IS},
                    {AT(q4_k, scales), 1, 12, AS_IS},
                    {AT(q4_k, qs), 4, 32, AS_IS}}},
    [ATSI_Q5_K] = {SIZES(q5_k, 256),
                   {{AT(q5_k, d), 2, 1, AS_IS},
                    {AT(q5_k, dmin), 2, 1, AS_IS},
                    {AT(q5_k, scales), 1, 12, AS_IS},
                    {AT(q5_k, qh), 4, 8, AS_IS},
                    {AT(q5_k, qs), 4, 32, AS_IS}}},
    [ATSI_Q6_K] = {SIZES(q6_k, 256),
                   {{AT(q6_k, d), 2, 1, AS_IS}, {AT(q6_k, scales), 1, 16, AS_IS}, {AT(q6_k, ql), 4, 48, Q6_K_WORDS}}},
    [ATSI_IQ4_XS] = {SIZES(iq4_xs, 256),
                     {{AT(iq4_xs, d), 2, 1, AS_IS},
                      {AT(iq4_xs, scales_h), 2, 1, AS_IS},
                      {AT(iq4_xs, scales_l), 1, 4, AS_IS},
                      {AT(iq4_xs, qs), 4, 32, AS_IS}}},
};

static const struct tiling *tiling_of(enum atsi_dtype dtype) {
    const struct tiling *t = (unsigned)dtype < ATSI_DTYPE_LIMIT ? &TILINGS[dtype] : NULL;
    return t != NULL && t->block_bytes != 0 ? t : NULL;
}

enum atsi_layout atsi_layout_of(enum atsi_dtype dtype) {
    return tiling_of(dtype) != NULL ? ATSI_LAYOUT_TILE16 : ATSI_LAYOUT_PLAIN;
}

// Bytes spread over a word (BIT_PLANES) and gathered again, little-endian on both sides.
static void spread_bits(const uint8_t src[4], uint8_t dst[4]) {
    for (int b = 0; b < 4; b++) {
        unsigned plane = 0;
        for (int w = 0; w < 8; w++) {
            int bit = 4 * w + b;
            plane |= (unsigned)(src[bit / 8] >> (bit % 8) & 1) << w;
        }
        dst[b] = (uint8_t)plane;
    }
}

static void gather_bits(const uint8_t src[4], uint8_t dst[4]) {
    memset(dst, 0, 4);
    for (int bit = 0; bit < 32; bit++) dst[bit / 8] |= (uint8_t)((src[bit % 4] >> (bit / 4) & 1) << (bit % 8));
}

static void flip_offset(const uint8_t *src, uint8_t *dst, unsigned n) {
    for (unsigned i = 0; i < n; i++) dst[i] = src[i] ^ 0x80;
}

// Which unit of the source stands j-th. Q6_K: the words of ql (0..31) and qh (32..47) as triples (see layout.h). Read as two
// streams a kilobyte apart they run at 9 of 26 GB/s on a Zen 4 core, whose prefetcher follows only one.
static unsigned source_unit(const struct part *p, unsigned j) {
    if (p->transform != Q6_K_WORDS) return j;
    unsigned triple = j / 3, half = triple / 8, k = triple % 8;
    return j % 3 < 2 ? 16 * half + 8 * (j % 3) + k : 32 + 8 * half + k;
}

// One row's block into its place in the tile's block.
static void put_row(const struct tiling *t, const uint8_t *block, unsigned row, uint8_t *tile) {
    for (const struct part *p = t->parts; p < t->parts + MAX_PARTS && p->count != 0; p++) {
        uint8_t *dst = tile + row * p->granule;
        for (unsigned j = 0; j < p->count; j++, dst += (size_t)ATSI_TILE_ROWS * p->granule) {
            const uint8_t *src = block + p->src + source_unit(p, j) * p->granule;
            if (p->transform == OFFSET_BINARY)
                flip_offset(src, dst, p->granule);
            else if (p->transform == BIT_PLANES)
                spread_bits(src, dst);
            else if (p->granule == 4)
                memcpy(dst, src, 4);
            else
                memcpy(dst, src, p->granule);
        }
        tile += (size_t)ATSI_TILE_ROWS * p->granule * p->count;
    }
}

static void get_row(const struct tiling *t, const uint8_t *tile, unsigned row, uint8_t *block) {
    for (const struct part *p = t->parts; p < t->parts + MAX_PARTS && p->count != 0; p++) {
        const uint8_t *src = tile + row * p->granule;
        for (unsigned j = 0; j < p->count; j++, src += (size_t)ATSI_TILE_ROWS * p->granule) {
            uint8_t *dst = block + p->src + source_unit(p, j) * p->granule;
            if (p->transform == OFFSET_BINARY)
                flip_offset(src, dst, p->granule);
            else if (p->transform == BIT_PLANES)
                gather_bits(src, dst);
            else
                memcpy(dst, src, p->granule);
        }
        tile += (size_t)ATSI_TILE_ROWS * p->granule * p->count;
    }
}

void atsi_layout_pack(enum atsi_dtype dtype, enum atsi_layout layout, const void *src, uint64_t n_rows, uint64_t n_cols,
                      void *dst) {
    if (layout == ATSI_LAYOUT_PLAIN) {
        memcpy(dst, src, n_rows * atsi_dtype_row_bytes(dtype, n_cols));
        return;
    }
    const struct tiling *t = tiling_of(dtype);
    assert(t != NULL && n_cols % t->block_elems == 0);
    uint64_t n_blocks = n_cols / t->block_elems, row_bytes = n_blocks * t->block_bytes;
    uint64_t tile_bytes = (uint64_t)t->block_bytes * ATSI_TILE_ROWS;
    uint8_t *tile = dst;
    for (uint64_t row = 0; row < n_rows; row += ATSI_TILE_ROWS) {
        unsigned n_valid = n_rows - row < ATSI_TILE_ROWS ? (unsigned)(n_rows - row) : ATSI_TILE_ROWS;
        if (n_valid < ATSI_TILE_ROWS) memset(tile, 0, tile_bytes * n_blocks);
        const uint8_t *rows = (const uint8_t *)src + row * row_bytes;
        for (uint64_t b = 0; b < n_blocks; b++, tile += tile_bytes)
            for (unsigned r = 0; r < n_valid; r++) put_row(t, rows + r * row_bytes + b * t->block_bytes, r, tile);
    }
}

void atsi_layout_get_block(enum atsi_dtype dtype, enum atsi_layout layout, const void *packed, uint64_t n_cols,
                           uint64_t row, uint64_t i_block, void *block) {
    if (layout == ATSI_LAYOUT_PLAIN) {
        size_t block_bytes = atsi_dtype_info(dtype)->block_bytes;
        memcpy(block, (const uint8_t *)packed + row * atsi_dtype_row_bytes(dtype, n_cols) + i_block * block_bytes,
               block_bytes);
        return;
    }
    const struct tiling *t = tiling_of(dtype);
    assert(t != NULL && n_cols % t->block_elems == 0);
    uint64_t tile_bytes = (uint64_t)t->block_bytes * ATSI_TILE_ROWS, n_blocks = n_cols / t->block_elems;
    const uint8_t *tile = (const uint8_t *)packed + (row / ATSI_TILE_ROWS * n_blocks + i_block) * tile_bytes;
    get_row(t, tile, (unsigned)(row % ATSI_TILE_ROWS), block);
}

void atsi_layout_unpack(enum atsi_dtype dtype, enum atsi_layout layout, const void *src, uint64_t n_rows,
                        uint64_t n_cols, void *dst) {
    const struct atsi_dtype_info *info = atsi_dtype_info(dtype);
    uint64_t n_blocks = n_cols / info->block_elems;
    uint8_t *block = dst;
    for (uint64_t row = 0; row < n_rows; row++)
        for (uint64_t b = 0; b < n_blocks; b++, block += info->block_bytes)
            atsi_layout_get_block(dtype, layout, src, n_cols, row, b, block);
}
