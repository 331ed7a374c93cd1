// matmul_kernel.h: the tile kernel of one type in vector registers, included once a type (no include guard) as
// matmul_type_list.h says. It defines X_tiles, the kernels for 1, 2, 4 (and 8) tokens.

// dot[t] += the words first_word .. first_word + X_GROUP / 4 - 1 of sub-block s against token t.
INLINE void X_NAME(_dots)(const uint8_t *block, int half, int s, int first_word, const struct atsi_act_block *const *x,
                          size_t i_x, int n_tokens, vint *dot) {
#if !defined(__AVXVNNI__) && !defined(__AVX512VNNI__)
    if (!X_WIDE) {
#pragma GCC unroll 8
        for (int run = first_word; run < first_word + X_GROUP / 4; run += X_RUN) {
            vint pairs[TOKENS_MAX];
#pragma GCC unroll 8
            for (int k = run; k < run + X_RUN; k++) {
                vint w = X_NAME(_word)(block, half, s, k);
#pragma GCC unroll 8
                for (int t = 0; t < n_tokens; t++) {
                    vint products = v_pairs(w, v_broadcast_32(x[t][i_x].q + 4 * k));
                    pairs[t] = k == run ? products : v_add_16(pairs[t], products);
                }
            }
#pragma GCC unroll 8
            for (int t = 0; t < n_tokens; t++) dot[t] = v_dot_pairs(dot[t], pairs[t]);
        }
        return;
    }
#endif
#pragma GCC unroll 8
    for (int k = first_word; k < first_word + X_GROUP / 4; k++) {
        vint w = X_NAME(_word)(block, half, s, k);
#pragma GCC unroll 8
        for (int t = 0; t < n_tokens; t++) {
            vint q = v_broadcast_32(x[t][i_x].q + 4 * k);
            dot[t] = X_WIDE ? v_dot_wide(dot[t], w, q) : v_dot(dot[t], w, q);
        }
    }
}

// What the dots of group g of a sub-block start from (v_offsets).
INLINE vint X_NAME(_start)(const struct atsi_act_block *x, int g) {
    return X_OFFSET ? v_dot_16(v_zero(), v_offsets(X_OFFSET, X_GROUP, g), v_broadcast_32(x->sum)) : v_zero();
}

// acc[t] += the mins of sub-block s against activation block i_x of token t.
INLINE void X_NAME(_mins)(const uint8_t *block, const struct scratch *scratch, int half, int s,
                          const struct atsi_act_block *const *x, size_t i_x, int n_tokens, vflt *acc) {
    if (X_MINS == MINS_NONE) return;
    vflt min = X_NAME(_min)(block, scratch, half, s);
#if X_MINS == MINS_PAIR
    vint pair = X_NAME(_min_pair)(block, half, s);
#pragma GCC unroll 8
    for (int t = 0; t < n_tokens; t++) {
        vint sums = v_dot_16(v_zero(), pair, v_broadcast_32(x[t][i_x].sum));
        acc[t] = vf_fnma(vf_from_int(sums), vf_mul(min, vf_broadcast(&x[t][i_x].d)), acc[t]);
    }
#else
#pragma GCC unroll 8
    for (int t = 0; t < n_tokens; t++) acc[t] = vf_fnma(min, vf_broadcast(&x[t][i_x].d_sum), acc[t]);
#endif
}

// acc[t] += sub-block s of the block against activation block i_x of token t, in the order that kernels/matmul.h fixes.
INLINE void X_NAME(_sub)(const uint8_t *block, const struct scratch *scratch, int half, int s,
                         const struct atsi_act_block *const *x, size_t i_x, int n_tokens, vflt *acc) {
#pragma GCC unroll 2
    for (int g = 0; g < 32 / X_GROUP; g++) {
        vint dot[TOKENS_MAX];
#pragma GCC unroll 8
        for (int t = 0; t < n_tokens; t++) dot[t] = X_NAME(_start)(&x[t][i_x], g);
        X_NAME(_dots)(block, half, s, g * (X_GROUP / 4), x, i_x, n_tokens, dot);
        vflt scale = X_NAME(_scale)(block, scratch, half, s, g);
#pragma GCC unroll 8
        for (int t = 0; t < n_tokens; t++)
            acc[t] = vf_fma(vf_from_int(dot[t]), vf_mul(scale, vf_broadcast(&x[t][i_x].d)), acc[t]);
    }
    X_NAME(_mins)(block, scratch, half, s, x, i_x, n_tokens, acc);
}

#if X_JOINT > 1
// The same for one token and the sub-blocks s .. s + X_JOINT - 1, whose weights share words: each word is loaded once, in the order
// of addresses, which is what the memory's prefetchers follow.
INLINE void X_NAME(_joint)(const uint8_t *block, const struct scratch *scratch, int half, int s,
                           const struct atsi_act_block *const *x, size_t i_x, vflt *acc) {
    vint dot[X_JOINT][32 / X_GROUP];
#pragma GCC unroll 4
    for (int j = 0; j < X_JOINT; j++)
#pragma GCC unroll 2
        for (int g = 0; g < 32 / X_GROUP; g++) dot[j][g] = X_NAME(_start)(&x[0][i_x + (size_t)j], g);
#pragma GCC unroll 8
    for (int k = 0; k < 8; k++)
#pragma GCC unroll 4
        for (int j = 0; j < X_JOINT; j++) {
            vint *sum = &dot[j][k / (X_GROUP / 4)];
            *sum = v_dot(*sum, X_NAME(_word)(block, half, s + j, k), v_broadcast_32(x[0][i_x + (size_t)j].q + 4 * k));
        }
#pragma GCC unroll 4
    for (int j = 0; j < X_JOINT; j++) {
#pragma GCC unroll 2
        for (int g = 0; g < 32 / X_GROUP; g++) {
            vflt scale = X_NAME(_scale)(block, scratch, half, s + j, g);
            *acc = vf_fma(vf_from_int(dot[j][g]), vf_mul(scale, vf_broadcast(&x[0][i_x + (size_t)j].d)), *acc);
        }
        X_NAME(_mins)(block, scratch, half, s + j, x, i_x + (size_t)j, 1, acc);
    }
}
#endif

// ahead: asks for what stands ATSI_AHEAD_BYTES on.
INLINE void X_NAME(_tile)(const uint8_t *block, size_t n_blocks, const struct atsi_act_block *const *rows, float *sums,
                          int n_tokens, bool ahead) {
    vflt acc[HALVES][TOKENS_MAX];
    const struct atsi_act_block *x[TOKENS_MAX];
#pragma GCC unroll 8
    for (int t = 0; t < n_tokens; t++) {
        x[t] = rows[t];
        for (int half = 0; half < HALVES; half++) acc[half][t] = vf_load(sums + ATSI_TILE_ROWS * t + LANES * half);
    }
    for (size_t i_x = 0; i_x < n_blocks * X_SUBS; i_x += X_SUBS, block += X_BYTES) {
        struct scratch scratch;
        if (ahead) atsi_ask_ahead(block, X_BYTES);
        X_NAME(_prepare)(block, &scratch);
#pragma GCC unroll 2
        for (int half = 0; half < HALVES; half++) {
#if X_JOINT > 1
            if (n_tokens == 1) {
#pragma GCC unroll 4
                for (int s = 0; s < X_SUBS; s += X_JOINT)
                    X_NAME(_joint)(block, &scratch, half, s, x, i_x + (size_t)s, acc[half]);
                continue;
            }
#endif
#pragma GCC unroll 8
            for (int s = 0; s < X_SUBS; s++)
                X_NAME(_sub)(block, &scratch, half, s, x, i_x + (size_t)s, n_tokens, acc[half]);
        }
    }
#pragma GCC unroll 8
    for (int t = 0; t < n_tokens; t++)
        for (int half = 0; half < HALVES; half++) vf_store(sums + ATSI_TILE_ROWS * t + LANES * half, acc[half][t]);
}

#define X_INSTANCE(n)                                                                                             \
    static void X_NAME(_tile_##n)(const uint8_t *tile, size_t n_blocks, const struct atsi_act_block *const *rows, \
                                  float *sums) {                                                                  \
        X_NAME(_tile)(tile, n_blocks, rows, sums, n, false);                                                      \
    }
X_INSTANCE(1)
X_INSTANCE(2)
X_INSTANCE(4)
#if TOKENS_8
X_INSTANCE(8)
#endif

static void X_NAME(_tile_ahead)(const uint8_t *tile, size_t n_blocks, const struct atsi_act_block *const *rows,
                                float *sums) {
    X_NAME(_tile)(tile, n_blocks, rows, sums, 1, true);
}

static const struct tile_kernels X_NAME(_tiles) = {
    .block_bytes = X_BYTES,
    .block_cols = 32 * X_SUBS,
    .run = {X_NAME(_tile_1), X_NAME(_tile_2), X_NAME(_tile_4),
#if TOKENS_8
            X_NAME(_tile_8)
#endif
    },
    .run_ahead = X_NAME(_tile_ahead),
};

#undef X_INSTANCE
#include "kernels/cpu/matmul_type_end.h"
