// Many tokens with AMX: a register of 16 tokens x 32 columns times one of 32 columns x 16 rows, 8192 products in 16 cycles (two AVX-512
// units multiply 512 floats in them), added up along all columns in float.
//
// The factors are bfloat16 of 8 significant bits, nearest. Quantised weights and inputs are opened to one of them each: a product is
// within 2 x 2^-8 + 2^-16 of the true one. Floats are cut into parts (those below 2^-126 count as zero):
//     input  x = x0 + x1 + ..     |x1| <= 2^-8 |x|, the rest <= 2^-17 |x|
//     weight w = w0 + w1          F16 has 11 bits: |w1| <= 2^-8 |w|, no rest; BF16: w1 = 0
// and a product is x1 w0 + x0 w0 + x0 w1. What is left out is below 2^-16 |x w| + 2^-17 |x w| (BF16: 2^-17), as often above the true one
// as below, so of a long row's sum less than what adding floats in any order leaves. An infinity, or what rounds to one, gives a NaN: its second part is infinity - infinity.
//
// An instruction adds 16 products to each of two sums that began at zero, adds the two, and adds that to its result, rounding every time to
// nearest: with n columns and P products that is within 2^-24 (P n / 32 + 17) of the sum of the sizes.
//
// Inputs are prepared once for all matrices that read them, in rows as the instruction takes them; weights are opened for 128 tokens, two
// tiles and 8 registers of columns at a time.
#include <string.h>

#include "kernels/cpu/simd_avx512.h"
// The bodies are written in the words of the header above.
#include "kernels/cpu/amx_parts.h"
#include "kernels/cpu/matmul_impl.h"
#include "kernels/cpu/matmul_store.h"
#include "kernels/cpu/matmul_types.h"

enum {
    AMX_TOKENS = 16,
    GROUPS = 8, // of 16 tokens, that weights are opened for
    PANEL_REGISTERS = 8
};

// Opened weights of a tile: [steps of columns][parts].
struct panel {
    register_bytes part[PANEL_REGISTERS] __attribute__((aligned(64)));
};
typedef float register_sums[AMX_TOKENS][ATSI_TILE_ROWS];

// Tokens begin .. end - 1 as groups of 16. The last may reach back over tokens of those before, so that none is short; they are
// computed twice and stored once. n_groups is even: the last may be there twice.
struct token_block {
    uint32_t begin, end;
    uint32_t n_groups, first[GROUPS];
};
// Of a panel.
struct columns {
    uint32_t begin, n;
};

// How the weights of a type are opened, and into how many parts factors are.
struct amx_type {
    uint32_t n_inputs, n_weights;
    void (*open)(const struct atsi_matmul_args *a, uint32_t tile, struct columns cols, struct panel *panel);
};

// ---- factors (of packed types: matmul_amx_kernel.h) -----------------------------------------------------------------------

// Bits 0 .. n - 1 of at most 32.
INLINE uint32_t first_bits(uint32_t n) { return n >= 32 ? UINT32_MAX : (1u << n) - 1; }

static void cut_row(const float *in, uint32_t n_cols, uint32_t n_parts, void *out) {
    uint32_t n_steps = (n_cols + STEP_COLS - 1) / STEP_COLS;
    for (uint32_t s = 0; s < n_steps; s++) {
        const float *x = in + (size_t)s * STEP_COLS;
        uint32_t mask = first_bits(n_cols - s * STEP_COLS);
        vflt low = _mm512_maskz_loadu_ps((__mmask16)mask, x);
        vflt high = _mm512_maskz_loadu_ps((__mmask16)(mask >> 16), x + 16);
        vint low_bits = nearest_or_nan(low), high_bits = nearest_or_nan(high);
        uint8_t *to = (uint8_t *)out + (size_t)s * 64;
        v_store(to, pack(low_bits, high_bits));
        if (n_parts == 2)
            v_store(to + (size_t)n_steps * 64,
                    pack(nearest_or_nan(rest(low, low_bits)), nearest_or_nan(rest(high, high_bits))));
    }
}

// 32 of F16 as both of their parts; the second has 3 bits and is exact.
INLINE void cut_f16(vint a, uint8_t *first, uint8_t *second) {
    vflt low = _mm512_cvtph_ps(_mm512_castsi512_si256(a)), high = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(a, 1));
    vint low_bits = nearest(low), high_bits = nearest(high);
    v_store(first, pack(low_bits, high_bits));
    v_store(second, pack(_mm512_castps_si512(rest(low, low_bits)), _mm512_castps_si512(rest(high, high_bits))));
}

// 32 columns of 16 rows, of which n_cols and n_rows exist. Rows are loaded in the order that pack() undoes.
INLINE void cut_weights(enum atsi_dtype dtype, const uint8_t *w, size_t row_bytes, uint32_t n_rows, uint32_t n_cols,
                        register_bytes *out) {
    vint r[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
        uint32_t row = (uint32_t)(dtype == ATSI_F16 ? slot_of_pair(i) : i);
        bool exists = row < n_rows;
        r[i] = _mm512_maskz_loadu_epi16(exists ? first_bits(n_cols) : 0, w + (exists ? row : 0) * row_bytes);
    }
    transpose(r);
#pragma GCC unroll 16
    for (int pair = 0; pair < PAIRS; pair++) {
        int slot = slot_of_pair(pair);
        if (dtype == ATSI_F16)
            cut_f16(r[pair], out[0][slot], out[1][slot]);
        else
            v_store(out[0][slot], r[pair]);
    }
}

// Asks for the rows' next panel: pieces of so many rows are more streams than the processor foresees.
INLINE void open_float_weights(enum atsi_dtype dtype, const struct atsi_matmul_args *a, uint32_t tile,
                               struct columns cols, struct panel *panel) {
    size_t row_bytes = (size_t)a->n_cols * sizeof(uint16_t);
    uint32_t row = tile * ATSI_TILE_ROWS, n_rows = a->n_rows - row < ATSI_TILE_ROWS ? a->n_rows - row : ATSI_TILE_ROWS;
    const uint8_t *w = (const uint8_t *)a->weight + row * row_bytes + cols.begin * sizeof(uint16_t);
    register_bytes *out = panel->part;
    for (uint32_t c = 0; c < cols.n; c += STEP_COLS, w += STEP_COLS * sizeof(uint16_t)) {
        for (uint32_t r = 0; r < n_rows; r++)
            _mm_prefetch((const char *)w + r * row_bytes + cols.n * sizeof(uint16_t), _MM_HINT_T1);
        cut_weights(dtype, w, row_bytes, n_rows, cols.n - c, out);
        out += dtype == ATSI_F16 ? 2 : 1;
    }
}

static void open_f16_weights(const struct atsi_matmul_args *a, uint32_t tile, struct columns cols,
                             struct panel *panel) {
    open_float_weights(ATSI_F16, a, tile, cols, panel);
}
static void open_bf16_weights(const struct atsi_matmul_args *a, uint32_t tile, struct columns cols,
                              struct panel *panel) {
    open_float_weights(ATSI_BF16, a, tile, cols, panel);
}

// ---- registers of the processor -------------------------------------------------------------------------------------------

// The compiler does not know what the instructions that load tiles read: all that is at `p` is in memory from here on.
static void write_out(const void *p) { __asm__ volatile("" ::"r"(p) : "memory"); }

// Registers: 0..3 sums of two groups x two tiles, 4 and 5 inputs of the groups, 6 and 7 weights of the tiles.
static void configure(void) {
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t n_rows[16];
    } __attribute__((aligned(64))) config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.row_bytes[i] = 64;
        config.n_rows[i] = 16;
    }
    write_out(&config);
    _tile_loadconfig(&config);
}

// Two groups' rows at a step of columns of a part.
struct inputs {
    const uint8_t *group[2];
    size_t stride, part_bytes;
};

static void load_inputs(const struct inputs *x, uint32_t step, size_t part) {
    size_t at = (size_t)step * 64 + part * x->part_bytes;
    _tile_loadd(4, x->group[0] + at, x->stride);
    _tile_loadd(5, x->group[1] + at, x->stride);
}

static void load_weights(const struct panel *w, uint32_t i) {
    _tile_loadd(6, w[0].part[i], 64);
    _tile_loadd(7, w[1].part[i], 64);
}

static void add_products(void) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
}

// sums of two groups of a first and of a second tile += the tiles' weights times the groups' inputs.
static void multiply(const struct amx_type *type, const struct panel *w, const struct inputs *x, uint32_t n_steps,
                     register_sums *first, register_sums *second) {
    _tile_loadd(0, first[0], 64);
    _tile_loadd(1, second[0], 64);
    _tile_loadd(2, first[1], 64);
    _tile_loadd(3, second[1], 64);
    for (uint32_t s = 0; s < n_steps; s++) {
        load_weights(w, s * type->n_weights);
        if (type->n_inputs == 2) {
            load_inputs(x, s, 1);
            add_products();
        }
        load_inputs(x, s, 0);
        add_products();
        if (type->n_weights == 2) {
            load_weights(w, s * 2 + 1);
            add_products();
        }
    }
    _tile_stored(0, first[0], 64);
    _tile_stored(1, second[0], 64);
    _tile_stored(2, first[1], 64);
    _tile_stored(3, second[1], 64);
}

// ---- loops ------------------------------------------------------------------------------------------------------------------

static struct token_block token_block(uint32_t begin, uint32_t n_tokens) {
    uint32_t left = n_tokens - begin, n = left < GROUPS * AMX_TOKENS ? left : GROUPS * AMX_TOKENS;
    struct token_block block = {begin, begin + n, (n + 2 * AMX_TOKENS - 1) / (2 * AMX_TOKENS) * 2, {0}};
    for (uint32_t g = 0; g < block.n_groups; g++) {
        uint32_t first = begin + g * AMX_TOKENS;
        block.first[g] = first + AMX_TOKENS <= block.end ? first : block.end - AMX_TOKENS;
    }
    return block;
}

static void store_sums(const struct atsi_matmul_args *a, uint32_t tile, const struct token_block *b,
                       register_sums *sums) {
    for (uint32_t t = b->begin; t < b->end; t++) {
        uint32_t g = (t - b->begin) / AMX_TOKENS;
        store_tile(a, tile * ATSI_TILE_ROWS, sums[g][t - b->first[g]], atsi_matmul_out_row(a, t));
    }
}

// n_tiles: 1 or 2.
static void multiply_tiles(const struct amx_type *type, const struct atsi_matmul_args *a, uint32_t tile,
                           uint32_t n_tiles, const struct token_block *b) {
    register_sums sums[2][GROUPS] __attribute__((aligned(64)));
    struct panel weights[2];
    uint32_t panel_cols = PANEL_REGISTERS / type->n_weights * STEP_COLS;
    memset(sums, 0, sizeof sums);
    memset(&weights[1], 0, sizeof weights[1]);
    for (uint32_t col = 0; col < a->n_cols; col += panel_cols) {
        struct columns cols = {col, a->n_cols - col < panel_cols ? a->n_cols - col : panel_cols};
        for (uint32_t i = 0; i < n_tiles; i++) type->open(a, tile + i, cols, &weights[i]);
        write_out(weights);
        for (uint32_t g = 0; g < b->n_groups; g += 2) {
            struct inputs x = {.stride = a->in_stride, .part_bytes = (a->n_cols + STEP_COLS - 1) / STEP_COLS * 64};
            for (int i = 0; i < 2; i++)
                x.group[i] = (const uint8_t *)a->in + b->first[g + (uint32_t)i] * a->in_stride + col / STEP_COLS * 64;
            multiply(type, weights, &x, (cols.n + STEP_COLS - 1) / STEP_COLS, sums[0] + g, sums[1] + g);
        }
    }
    for (uint32_t i = 0; i < n_tiles; i++) store_sums(a, tile + i, b, sums[i]);
}

static void amx_matmul(const struct amx_type *type, const struct atsi_matmul_args *a, uint32_t tile_begin,
                       uint32_t tile_end) {
    configure();
    for (uint32_t t = 0; t < a->n_tokens; t += GROUPS * AMX_TOKENS) {
        struct token_block block = token_block(t, a->n_tokens);
        for (uint32_t tile = tile_begin; tile < tile_end; tile += 2)
            multiply_tiles(type, a, tile, tile_end - tile < 2 ? 1 : 2, &block);
    }
    _tile_release();
}

static void f16_amx(const struct atsi_matmul_args *a, uint32_t tile_begin, uint32_t tile_end) {
    static const struct amx_type type = {2, 2, open_f16_weights};
    amx_matmul(&type, a, tile_begin, tile_end);
}
static void bf16_amx(const struct atsi_matmul_args *a, uint32_t tile_begin, uint32_t tile_end) {
    static const struct amx_type type = {2, 1, open_bf16_weights};
    amx_matmul(&type, a, tile_begin, tile_end);
}

#define X_KERNEL "kernels/cpu/matmul_amx_kernel.h"
#include "kernels/cpu/matmul_type_list.h"

void atsi_matmul_fill_avx512amx(struct atsi_matmul_kernels *k) {
    k->many_group = GROUPS * AMX_TOKENS;
    k->cut = cut_row;
    k->many[ATSI_F16] = f16_amx;
    k->many[ATSI_BF16] = bf16_amx;
#define FILL(dtype, type) k->many[ATSI_##dtype] = type##_amx;
    TILE16_TYPES(FILL)
#undef FILL
}
