// matmul_float.h: F32, F16 and BF16 weights against float32 inputs, in the words of simd_*.h (included before this file).
//
// Rows are dot products with 16 partial sums (HALVES registers). A block of FLOAT_ROWS rows and up to FLOAT_TOKENS tokens keeps
// its sums in registers, so that every loaded value is used several times. Columns are taken in panels: the 16 rows of a
// tile pass over a panel of the inputs while it is in L1, the sums waiting in memory. (One token: see float_row.)
#ifndef ATSI_KERNELS_CPU_MATMUL_FLOAT_H
#define ATSI_KERNELS_CPU_MATMUL_FLOAT_H

#include <string.h>

#include "formats/half.h"
#include "kernels/cpu/matmul_impl.h"
#include "kernels/layout.h"

enum {
    PARTS = 16,
    PANEL_COLS = 1024
};

struct float_sums {
    float part[ATSI_TILE_ROWS][FLOAT_TOKENS][PARTS] __attribute__((aligned(64)));
};

INLINE size_t float_bytes(enum atsi_dtype dtype) { return dtype == ATSI_F32 ? 4 : 2; }

INLINE vflt load_weights(enum atsi_dtype dtype, const uint8_t *p) {
    if (dtype == ATSI_F32) return vf_load((const float *)(const void *)p);
    return dtype == ATSI_F16 ? vf_load_f16(p) : vf_load_bf16(p);
}

// n_cols (a multiple of 16) columns of n_rows x n_tokens. w and x point at the first column, rows w_stride bytes apart.
INLINE void float_block(enum atsi_dtype dtype, const uint8_t *w, size_t w_stride, const float *const *x, size_t col,
                        size_t n_cols, int n_rows, int n_tokens, float (*part)[FLOAT_TOKENS][PARTS]) {
    vflt acc[FLOAT_ROWS][FLOAT_TOKENS][HALVES];
#pragma GCC unroll 4
    for (int r = 0; r < n_rows; r++)
#pragma GCC unroll 6
        for (int t = 0; t < n_tokens; t++)
#pragma GCC unroll 2
            for (int h = 0; h < HALVES; h++) acc[r][t][h] = vf_load(part[r][t] + LANES * h);
    for (size_t c = 0; c < n_cols; c += PARTS)
#pragma GCC unroll 2
        for (int h = 0; h < HALVES; h++) {
            vflt weight[FLOAT_ROWS];
            size_t at = c + (size_t)(LANES * h);
#pragma GCC unroll 4
            for (int r = 0; r < n_rows; r++)
                weight[r] = load_weights(dtype, w + (size_t)r * w_stride + at * float_bytes(dtype));
#pragma GCC unroll 6
            for (int t = 0; t < n_tokens; t++) {
                vflt input = vf_load(x[t] + col + at);
#pragma GCC unroll 4
                for (int r = 0; r < n_rows; r++) acc[r][t][h] = vf_fma(weight[r], input, acc[r][t][h]);
            }
        }
#pragma GCC unroll 4
    for (int r = 0; r < n_rows; r++)
#pragma GCC unroll 6
        for (int t = 0; t < n_tokens; t++)
#pragma GCC unroll 2
            for (int h = 0; h < HALVES; h++) vf_store(part[r][t] + LANES * h, acc[r][t][h]);
}

INLINE float float_weight(enum atsi_dtype dtype, const uint8_t *p) {
    float w;
    uint16_t bits;
    if (dtype == ATSI_F32) {
        memcpy(&w, p, sizeof w);
        return w;
    }
    memcpy(&bits, p, sizeof bits);
    return dtype == ATSI_F16 ? atsi_f16_to_f32(bits) : atsi_bf16_to_f32(bits);
}

// The last n_cols % 16 columns, filled up with zeros.
static void float_tail(enum atsi_dtype dtype, const uint8_t *w, const float *x, uint32_t n_cols, float part[PARTS]) {
    float weights[PARTS] = {0}, inputs[PARTS] = {0};
    memcpy(inputs, x, n_cols * sizeof *x);
    for (uint32_t c = 0; c < n_cols; c++) weights[c] = float_weight(dtype, w + c * float_bytes(dtype));
    for (int h = 0; h < PARTS; h += LANES)
        vf_store(part + h, vf_fma(vf_load(weights + h), vf_load(inputs + h), vf_load(part + h)));
}

// acc += 16 columns of a row.
INLINE void float_step(enum atsi_dtype dtype, const uint8_t *w, const float *x, size_t col, vflt acc[HALVES]) {
#pragma GCC unroll 2
    for (int h = 0; h < HALVES; h++) {
        size_t at = col + (size_t)(LANES * h);
        acc[h] = vf_fma(load_weights(dtype, w + at * float_bytes(dtype)), vf_load(x + at), acc[h]);
    }
}

// The product of one row with the only token. This is bound by the memory, so rows come whole, one after the other, for the prefetchers
// (24 against 16 GB/s with four rows at once, 9 with panels, on a Zen 4 core that reads 25), in few instructions.
INLINE float float_row(enum atsi_dtype dtype, const uint8_t *w, const float *x, uint32_t n_cols, bool ahead) {
    enum {
        LINE = 64
    };
    size_t col = 0, n_whole = n_cols / PARTS * PARTS, line_cols = LINE / float_bytes(dtype);
    vflt acc[HALVES];
    for (int h = 0; h < HALVES; h++) acc[h] = vf_zero();
#pragma GCC unroll 2
    for (; col + line_cols <= n_whole; col += line_cols) {
        if (ahead) atsi_ask_ahead(w + col * float_bytes(dtype), LINE);
#pragma GCC unroll 2
        for (size_t c = 0; c < line_cols; c += PARTS) float_step(dtype, w, x, col + c, acc);
    }
    for (; col < n_whole; col += PARTS) float_step(dtype, w, x, col, acc);
    if (n_whole < n_cols) {
        float part[PARTS] __attribute__((aligned(64)));
        for (int h = 0; h < HALVES; h++) vf_store(part + LANES * h, acc[h]);
        float_tail(dtype, w + n_whole * float_bytes(dtype), x + n_whole, n_cols - (uint32_t)n_whole, part);
        for (int h = 0; h < HALVES; h++) acc[h] = vf_load(part + LANES * h);
    }
    return vf_sum_16(acc);
}

// One tile's rows against n_tokens (a literal, 2 to FLOAT_TOKENS) tokens, into s.
INLINE void float_tile(enum atsi_dtype dtype, const struct atsi_matmul_args *a, const uint8_t *w, uint32_t n_rows,
                       const float *const *x, int n_tokens, struct float_sums *s) {
    size_t w_stride = (size_t)a->n_cols * float_bytes(dtype), n_whole = a->n_cols / PARTS * PARTS;
    memset(s, 0, sizeof *s);
    for (size_t col = 0; col < n_whole; col += PANEL_COLS) {
        size_t n_cols = n_whole - col < PANEL_COLS ? n_whole - col : PANEL_COLS;
        const uint8_t *panel = w + col * float_bytes(dtype);
        uint32_t r = 0;
        for (; r + FLOAT_ROWS <= n_rows; r += FLOAT_ROWS)
            float_block(dtype, panel + r * w_stride, w_stride, x, col, n_cols, FLOAT_ROWS, n_tokens, s->part + r);
        for (; r < n_rows; r++)
            float_block(dtype, panel + r * w_stride, w_stride, x, col, n_cols, 1, n_tokens, s->part + r);
    }
    if (n_whole == a->n_cols) return;
    for (uint32_t r = 0; r < n_rows; r++)
        for (int t = 0; t < n_tokens; t++)
            float_tail(dtype, w + r * w_stride + n_whole * float_bytes(dtype), x[t] + n_whole, a->n_cols % PARTS,
                       s->part[r][t]);
}

static void store_float(const struct atsi_matmul_args *a, uint32_t row, float sum, float *out) {
    if (a->bias != NULL) sum += a->bias[row];
    out[row] = a->add ? out[row] + sum : sum;
}

static void store_floats(const struct atsi_matmul_args *a, uint32_t row, uint32_t n_rows, uint32_t t, int n_tokens,
                         const struct float_sums *s) {
    for (int i = 0; i < n_tokens; i++) {
        float *out = atsi_matmul_out_row(a, t + (uint32_t)i);
        for (uint32_t r = 0; r < n_rows; r++) {
            vflt parts[HALVES];
            for (int h = 0; h < HALVES; h++) parts[h] = vf_load(s->part[r][i] + LANES * h);
            store_float(a, row + r, vf_sum_16(parts), out);
        }
    }
}

INLINE void float_rows(enum atsi_dtype dtype, const struct atsi_matmul_args *a, const uint8_t *w, uint32_t row,
                       uint32_t n_rows, uint32_t t, bool ahead) {
    const float *x = atsi_matmul_in_row(a, t);
    float *out = atsi_matmul_out_row(a, t);
    for (uint32_t r = 0; r < n_rows; r++, w += a->n_cols * float_bytes(dtype))
        store_float(a, row + r, float_row(dtype, w, x, a->n_cols, ahead), out);
}

INLINE void float_matmul(enum atsi_dtype dtype, const struct atsi_matmul_args *a, bool ahead, uint32_t tile_begin,
                         uint32_t tile_end) {
    enum {
        TOKEN_BLOCK_FLOAT = 4 * FLOAT_TOKENS // their inputs stay in L2 while a chunk of tiles passes
    };
    for (uint32_t t_begin = 0; t_begin < a->n_tokens; t_begin += TOKEN_BLOCK_FLOAT)
        for (uint32_t i_tile = tile_begin; i_tile < tile_end; i_tile++) {
            uint32_t row = i_tile * ATSI_TILE_ROWS,
                     n_rows = a->n_rows - row < ATSI_TILE_ROWS ? a->n_rows - row : ATSI_TILE_ROWS;
            const uint8_t *w = (const uint8_t *)a->weight + (size_t)row * a->n_cols * float_bytes(dtype);
            uint32_t t_end = a->n_tokens - t_begin < TOKEN_BLOCK_FLOAT ? a->n_tokens : t_begin + TOKEN_BLOCK_FLOAT;
            for (uint32_t t = t_begin, n; t < t_end; t += n) {
                struct float_sums s;
                const float *x[FLOAT_TOKENS];
                n = t_end - t >= FLOAT_TOKENS ? FLOAT_TOKENS : t_end - t >= 3 ? 3 : t_end - t;
                for (uint32_t i = 0; i < n; i++) x[i] = atsi_matmul_in_row(a, t + i);
                switch (n) {
                case 1:
                    if (ahead && a->n_tokens == 1)
                        float_rows(dtype, a, w, row, n_rows, t, true);
                    else
                        float_rows(dtype, a, w, row, n_rows, t, false);
                    continue;
                case 2: float_tile(dtype, a, w, n_rows, x, 2, &s); break;
                case 3: float_tile(dtype, a, w, n_rows, x, 3, &s); break;
                default: float_tile(dtype, a, w, n_rows, x, FLOAT_TOKENS, &s); break;
                }
                store_floats(a, row, n_rows, t, (int)n, &s);
            }
        }
}

// Two entries of one body: it is long, and `ahead` counts for one token alone.
#define FLOAT_MATMUL(dtype, type)                                                                                  \
    static __attribute__((noinline)) void type##_any(const struct atsi_matmul_args *a, bool ahead, uint32_t begin, \
                                                     uint32_t end) {                                               \
        float_matmul(dtype, a, ahead, begin, end);                                                                 \
    }                                                                                                              \
    static void type##_matmul(const struct atsi_matmul_args *a, uint32_t begin, uint32_t end) {                    \
        type##_any(a, false, begin, end);                                                                          \
    }                                                                                                              \
    static void type##_matmul_ahead(const struct atsi_matmul_args *a, uint32_t begin, uint32_t end) {              \
        type##_any(a, true, begin, end);                                                                           \
    }
FLOAT_MATMUL(ATSI_F32, f32)
FLOAT_MATMUL(ATSI_F16, f16)
FLOAT_MATMUL(ATSI_BF16, bf16)
#undef FLOAT_MATMUL

static void fill_float_types(struct atsi_matmul_kernels *k) {
    k->matmul[ATSI_F32] = k->read_ahead ? f32_matmul_ahead : f32_matmul;
    k->matmul[ATSI_F16] = k->read_ahead ? f16_matmul_ahead : f16_matmul;
    k->matmul[ATSI_BF16] = k->read_ahead ? bf16_matmul_ahead : bf16_matmul;
}

#endif
