// F16 and BF16 weights against many tokens with AMX: a register of 16 tokens x 32 bfloat16 times one of 32 x 16 rows, 8192 products in
// 16 cycles (two AVX-512 units multiply 512 floats in them).
//
// bfloat16 has 8 significant bits, so factors are cut into parts of 8 bits, without loss (parts below 2^-126 count as zero):
//     input  x = x0 + x1 + x2     |x1| < 2^-7 |x|, |x2| < 2^-15 |x|
//     weight w = w0 + w1          F16 has 11 bits: |w1| < 2^-7 |w|; BF16: w1 = 0
// and a product is x2 w0 + x1 w0 + x0 w0 + x0 w1 + x1 w1, each exact in float. What is left out, x2 w1, is below 2^-22 |x w|.
// An instruction adds 16 products to each of two sums that began at zero, adds the two, and adds that to its result, rounding every time
// to nearest. With n columns and P products (5, BF16 3) a result is then within
//     2^-24 (P n / 32 + 17 + 4) sum |x w|
// of the true one (to first order; P n / 32 additions, 17 in an instruction, the part left out), where the float kernels' 16 partial
// sums are within 2^-24 (n / 16 + 4). An infinity gives a NaN: its second part is infinity - infinity.
//
// Both factors are cut once for many uses: inputs of 64 tokens for 16 tiles of weights, weights for 64 tokens, 128 columns at a time.
#include <string.h>

#include "kernels/cpu/simd_avx512.h"
// The words of the header above.
#include "kernels/cpu/amx.h"
#include "kernels/cpu/matmul_impl.h"
#include "kernels/cpu/matmul_store.h"

enum {
    STEP_COLS = 32,                         // of one instruction
    PANEL_STEPS = 4,                        // two tiles' weights (16 KB) and two groups' inputs (24 KB) stay in L1
    GROUPS = ATSI_TOKEN_GROUP / AMX_TOKENS, // that weights are cut for
    TILES = 16,                             // that inputs are cut for
    INPUT_PARTS = 3,
    WEIGHT_PARTS = 2,
    PAIRS = STEP_COLS / 2
};

// What two registers hold: a row of 64 bytes are 16 pairs of columns.
typedef uint8_t register_bytes[16][64];
struct inputs {
    register_bytes part[INPUT_PARTS]; // [16 tokens][16 pairs of columns, in the order of pair_of_slot]
};
struct weights {
    register_bytes part[WEIGHT_PARTS]; // [16 pairs of columns, in the same order][16 rows]
};
typedef float register_sums[16][16]; // [tokens][rows]

// ---- parts --------------------------------------------------------------------------------------------------------------

// pack() leaves dword 4 i + j of a register with the pair that was number 2 i + j (j = 0, 1) or 8 + 2 i + j - 2 (j = 2, 3).
INLINE int pair_of_slot(int slot) { return slot % 4 / 2 * 8 + slot / 4 * 2 + slot % 2; }
INLINE int slot_of_pair(int pair) { return pair % 8 / 2 * 4 + pair / 8 * 2 + pair % 2; }

// 32 floats, cut to bfloat16.
struct floats {
    vflt low, high;
};

INLINE vint pack(struct floats a) {
    return _mm512_packus_epi32(v_right(_mm512_castps_si512(a.low), 16), v_right(_mm512_castps_si512(a.high), 16));
}

INLINE vflt rest(vflt a) {
    return _mm512_sub_ps(a, vf_from_bits(v_and(_mm512_castps_si512(a), v_set_32((int32_t)0xffff0000u))));
}

// What pack() cut off.
INLINE struct floats rests(struct floats a) { return (struct floats){rest(a.low), rest(a.high)}; }

// Bits 0 .. n - 1 of at most n_max.
INLINE uint32_t first_bits(uint32_t n, uint32_t n_max) {
    return n >= n_max ? UINT32_MAX >> (32 - n_max) : (1u << n) - 1;
}

// 32 columns of a token, of which n exist.
INLINE void cut_input(const float *x, uint32_t n, uint32_t token, struct inputs *out) {
    struct floats a = {_mm512_maskz_loadu_ps((__mmask16)first_bits(n, 32), x),
                       _mm512_maskz_loadu_ps((__mmask16)(first_bits(n, 32) >> 16), x + 16)};
    for (int part = 0; part < INPUT_PARTS; part++, a = rests(a)) v_store(out->part[part][token], pack(a));
}

// r[i]'s dword j <-> r[j]'s dword i.
INLINE void transpose(vint r[16]) {
    vint t[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) { // r[i + c]: in lane l dword 4 l + c of four registers
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        vint even_a = _mm512_shuffle_i32x4(r[c], r[4 + c], 0x88),
             even_b = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0x88);
        vint odd_a = _mm512_shuffle_i32x4(r[c], r[4 + c], 0xdd),
             odd_b = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0xdd);
        t[c] = _mm512_shuffle_i32x4(even_a, even_b, 0x88);
        t[4 + c] = _mm512_shuffle_i32x4(odd_a, odd_b, 0x88);
        t[8 + c] = _mm512_shuffle_i32x4(even_a, even_b, 0xdd);
        t[12 + c] = _mm512_shuffle_i32x4(odd_a, odd_b, 0xdd);
    }
    memcpy(r, t, sizeof t);
}

INLINE struct floats widen_f16(vint a) {
    return (struct floats){_mm512_cvtph_ps(_mm512_castsi512_si256(a)),
                           _mm512_cvtph_ps(_mm512_extracti64x4_epi64(a, 1))};
}

// 32 columns of 16 rows, of which n_cols and n_rows exist. Rows are loaded in the order that pack() undoes.
INLINE void cut_weights(enum atsi_dtype dtype, const uint8_t *w, size_t row_bytes, uint32_t n_rows, uint32_t n_cols,
                        struct weights *out) {
    vint r[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
        uint32_t row = (uint32_t)(dtype == ATSI_F16 ? slot_of_pair(i) : i);
        bool exists = row < n_rows;
        r[i] = _mm512_maskz_loadu_epi16(first_bits(exists ? n_cols : 0, 32), w + (exists ? row : 0) * row_bytes);
    }
    transpose(r);
#pragma GCC unroll 16
    for (int pair = 0; pair < PAIRS; pair++) {
        int slot = slot_of_pair(pair);
        if (dtype == ATSI_F16) {
            struct floats a = widen_f16(r[pair]);
            v_store(out->part[0][slot], pack(a));
            v_store(out->part[1][slot], pack(rests(a)));
        } else {
            v_store(out->part[0][slot], r[pair]);
        }
    }
}

// ---- registers of the processor -------------------------------------------------------------------------------------------

// Registers: 0..3 sums of two groups x two tiles, 4 and 5 inputs of the groups, 6 and 7 weights of the tiles.
static void configure(void) {
    struct amx_shapes shapes;
    for (int i = 0; i < 8; i++) {
        shapes.row_bytes[i] = 64;
        shapes.n_rows[i] = 16;
    }
    amx_configure(&shapes);
}

static void load_inputs(const struct inputs *a, const struct inputs *b, int part) {
    _tile_loadd(4, a->part[part], 64);
    _tile_loadd(5, b->part[part], 64);
}

static void load_weights(const struct weights *a, const struct weights *b, int part) {
    _tile_loadd(6, a->part[part], 64);
    _tile_loadd(7, b->part[part], 64);
}

static void add_products(void) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
}

// sums of two tiles and two groups += a panel of the tiles' weights times the groups' inputs.
INLINE void multiply(enum atsi_dtype dtype, const struct weights (*w)[PANEL_STEPS],
                     const struct inputs (*x)[PANEL_STEPS], uint32_t n_steps, register_sums *first,
                     register_sums *second) {
    _tile_loadd(0, first[0], 64);
    _tile_loadd(1, second[0], 64);
    _tile_loadd(2, first[1], 64);
    _tile_loadd(3, second[1], 64);
    for (uint32_t s = 0; s < n_steps; s++) {
        load_weights(&w[0][s], &w[1][s], 0);
        load_inputs(&x[0][s], &x[1][s], 2);
        add_products();
        load_inputs(&x[0][s], &x[1][s], 1);
        add_products();
        load_inputs(&x[0][s], &x[1][s], 0);
        add_products();
        if (dtype == ATSI_BF16) continue;
        load_weights(&w[0][s], &w[1][s], 1);
        add_products();
        load_inputs(&x[0][s], &x[1][s], 1);
        add_products();
    }
    _tile_stored(0, first[0], 64);
    _tile_stored(1, second[0], 64);
    _tile_stored(2, first[1], 64);
    _tile_stored(3, second[1], 64);
}

// ---- loops --------------------------------------------------------------------------------------------------------------

// At most TILES tiles and GROUPS groups of tokens.
struct block {
    uint32_t tile, n_tiles;
    uint32_t token, n_tokens;
    uint32_t n_groups; // even; tokens and tiles that do not exist are zero
};
// At most PANEL_STEPS steps of columns.
struct columns {
    uint32_t begin, n;
};

static struct columns columns(const struct atsi_matmul_args *a, uint32_t begin) {
    uint32_t n = a->n_cols - begin, most = PANEL_STEPS * STEP_COLS;
    return (struct columns){begin, n < most ? n : most};
}

static void cut_inputs(const struct atsi_matmul_args *a, const struct block *b, struct columns cols,
                       struct inputs (*panels)[PANEL_STEPS]) {
    for (uint32_t t = 0; t < b->n_groups * AMX_TOKENS; t++) {
        bool exists = t < b->n_tokens;
        const float *x = (const float *)atsi_matmul_in_row(a, b->token + (exists ? t : 0)) + cols.begin;
        struct inputs *out = panels[t / AMX_TOKENS];
        for (uint32_t c = 0; c < cols.n; c += STEP_COLS)
            cut_input(x + c, exists ? cols.n - c : 0, t % AMX_TOKENS, out++);
    }
}

static uint32_t rows_from(const struct atsi_matmul_args *a, uint32_t row) {
    return row < a->n_rows ? a->n_rows - row : 0;
}

static const uint8_t *weights_at(const struct atsi_matmul_args *a, uint32_t row, uint32_t col) {
    return (const uint8_t *)a->weight + ((size_t)row * a->n_cols + col) * sizeof(uint16_t);
}

INLINE void cut_tile(enum atsi_dtype dtype, const struct atsi_matmul_args *a, uint32_t tile, struct columns cols,
                     struct weights *out) {
    uint32_t row = tile * ATSI_TILE_ROWS, n_rows = rows_from(a, row);
    const uint8_t *w = weights_at(a, n_rows > 0 ? row : 0, cols.begin);
    for (uint32_t c = 0; c < cols.n; c += STEP_COLS, w += STEP_COLS * sizeof(uint16_t))
        cut_weights(dtype, w, a->n_cols * sizeof(uint16_t), n_rows, cols.n - c, out++);
}

// Asks for what is cut next: pieces of 32 rows are more streams than the processor foresees.
static void prefetch_next(const struct atsi_matmul_args *a, const struct block *b, uint32_t i_tile,
                          struct columns cols) {
    i_tile += 2;
    if (i_tile >= b->n_tiles) {
        i_tile = 0;
        cols = columns(a, cols.begin + cols.n);
    }
    uint32_t row = (b->tile + i_tile) * ATSI_TILE_ROWS, n_rows = rows_from(a, row);
    if (n_rows > 2 * ATSI_TILE_ROWS) n_rows = 2 * ATSI_TILE_ROWS;
    for (uint32_t r = 0; r < n_rows; r++)
        for (uint32_t c = 0; c < cols.n; c += STEP_COLS)
            _mm_prefetch((const char *)weights_at(a, row + r, cols.begin + c), _MM_HINT_T1);
}

static void store_block(const struct atsi_matmul_args *a, const struct block *b, register_sums (*sums)[GROUPS]) {
    for (uint32_t i = 0; i < b->n_tiles; i++)
        for (uint32_t t = 0; t < b->n_tokens; t++)
            store_tile(a, (b->tile + i) * ATSI_TILE_ROWS, sums[i][t / AMX_TOKENS][t % AMX_TOKENS],
                       atsi_matmul_out_row(a, b->token + t));
}

INLINE void multiply_block(enum atsi_dtype dtype, const struct atsi_matmul_args *a, const struct block *b) {
    register_sums sums[TILES][GROUPS] __attribute__((aligned(64)));
    struct inputs inputs[GROUPS][PANEL_STEPS] __attribute__((aligned(64)));
    struct weights weights[2][PANEL_STEPS] __attribute__((aligned(64)));
    memset(sums, 0, (b->n_tiles + 1) / 2 * 2 * sizeof *sums);
    for (uint32_t col = 0; col < a->n_cols; col += PANEL_STEPS * STEP_COLS) {
        struct columns cols = columns(a, col);
        uint32_t n_steps = (cols.n + STEP_COLS - 1) / STEP_COLS;
        cut_inputs(a, b, cols, inputs);
        for (uint32_t i = 0; i < b->n_tiles; i += 2) {
            prefetch_next(a, b, i, cols);
            cut_tile(dtype, a, b->tile + i, cols, weights[0]);
            cut_tile(dtype, a, b->tile + i + 1, cols, weights[1]);
            amx_write_out(inputs);
            amx_write_out(weights);
            for (uint32_t g = 0; g < b->n_groups; g += 2)
                multiply(dtype, weights, inputs + g, n_steps, sums[i] + g, sums[i + 1] + g);
        }
    }
    store_block(a, b, sums);
}

INLINE void float_many(enum atsi_dtype dtype, const struct atsi_matmul_args *a, uint32_t tile_begin,
                       uint32_t tile_end) {
    configure();
    for (uint32_t t = 0; t < a->n_tokens; t += ATSI_TOKEN_GROUP) {
        uint32_t left = a->n_tokens - t;
        struct block b = {.token = t, .n_tokens = left < ATSI_TOKEN_GROUP ? left : ATSI_TOKEN_GROUP};
        b.n_groups = b.n_tokens <= 2 * AMX_TOKENS ? 2 : GROUPS;
        for (b.tile = tile_begin; b.tile < tile_end; b.tile += TILES) {
            b.n_tiles = tile_end - b.tile < TILES ? tile_end - b.tile : TILES;
            multiply_block(dtype, a, &b);
        }
    }
    _tile_release();
}

static void f16_many(const struct atsi_matmul_args *a, uint32_t tile_begin, uint32_t tile_end) {
    float_many(ATSI_F16, a, tile_begin, tile_end);
}
static void bf16_many(const struct atsi_matmul_args *a, uint32_t tile_begin, uint32_t tile_end) {
    float_many(ATSI_BF16, a, tile_begin, tile_end);
}

void atsi_matmul_fill_float_avx512amx(struct atsi_matmul_kernels *k) {
    k->many[ATSI_F16] = f16_many;
    k->many[ATSI_BF16] = bf16_many;
}
