// matmul_amx_kernel.h: what one type needs of matmul_avx512amx.c, included once a type (no include guard) as matmul_type_list.h
// says. It defines X_amx. The order of additions is that of matmul_kernel.h, so both give the same bits.

// Unpacks a panel: n_subs sub-blocks from `block` on.
static void X_NAME(_open)(const uint8_t *block, int n_subs, struct panel *panel) {
    for (int i = 0; i < n_subs; i += X_SUBS, block += X_BYTES) {
        struct scratch scratch;
        X_NAME(_prepare)(block, &scratch);
#pragma GCC unroll 8
        for (int s = 0; s < X_SUBS; s++) {
            struct opened_sub *sub = &panel->subs[i + s];
#pragma GCC unroll 8
            for (int k = 0; k < 8; k++)
                v_store(sub->words[k], v_sub_8(X_NAME(_word)(block, 0, s, k), v_set_8(X_OFFSET)));
#pragma GCC unroll 2
            for (int g = 0; g < 32 / X_GROUP; g++) vf_store(sub->scale[g], X_NAME(_scale)(block, &scratch, 0, s, g));
            if (X_MINS != MINS_NONE) vf_store(sub->min, X_NAME(_min)(block, &scratch, 0, s));
#if X_MINS == MINS_PAIR
            v_store(sub->min_pair, X_NAME(_min_pair)(block, 0, s));
#endif
        }
    }
}

// acc[t] += the sub-block against 16 tokens, whose dots are known, one array for each group of columns.
INLINE void X_NAME(_add)(const struct opened_sub *sub, const int32_t (*dots)[AMX_TOKENS][ATSI_TILE_ROWS],
                         const struct act_head *heads, vflt *acc) {
#pragma GCC unroll 2
    for (int g = 0; g < 32 / X_GROUP; g++) {
        vflt scale = vf_load(sub->scale[g]);
#pragma GCC unroll 16
        for (int t = 0; t < AMX_TOKENS; t++) {
            vflt dot = vf_from_int(v_load(dots[g][t]));
            acc[t] = vf_fma(dot, vf_mul(scale, vf_broadcast(&heads[t].d)), acc[t]);
        }
    }
    if (X_MINS == MINS_NONE) return;
    vflt min = vf_load(sub->min);
#if X_MINS == MINS_PAIR
    vint pair = v_load(sub->min_pair);
#pragma GCC unroll 16
    for (int t = 0; t < AMX_TOKENS; t++) {
        vint sums = v_dot_16(v_zero(), pair, v_broadcast_32(heads[t].sum));
        acc[t] = vf_fnma(vf_from_int(sums), vf_mul(min, vf_broadcast(&heads[t].d)), acc[t]);
    }
#else
#pragma GCC unroll 16
    for (int t = 0; t < AMX_TOKENS; t++) acc[t] = vf_fnma(min, vf_broadcast(&heads[t].d_sum), acc[t]);
#endif
}

// sums[16 tokens][16 rows] += the panel times 16 tokens from `in` on, whose rows are in_stride bytes apart.
static void X_NAME(_multiply)(const struct panel *panel, int n_subs, const struct atsi_act_block *in, size_t in_stride,
                              const struct act_head (*heads)[AMX_TOKENS], float *sums) {
    enum {
        GROUPS = 32 / X_GROUP,
        SUBS = PRODUCTS / GROUPS
    };
    struct dots dots[2]; // added while the next are under way
    vflt acc[AMX_TOKENS];
#pragma GCC unroll 16
    for (int t = 0; t < AMX_TOKENS; t++) acc[t] = vf_load(sums + ATSI_TILE_ROWS * t);
    dots_of(X_GROUP, panel->subs, in, n_subs, in_stride, &dots[0]);
    for (int s = 0; s < n_subs; s += SUBS) {
        int next = s + SUBS, i_dots = s / SUBS % 2;
        if (next < n_subs) dots_of(X_GROUP, panel->subs + next, in + next, n_subs - next, in_stride, &dots[1 - i_dots]);
        for (int i = 0; i < SUBS && s + i < n_subs; i++)
            X_NAME(_add)(&panel->subs[s + i], dots[i_dots].of + i * GROUPS, heads[s + i], acc);
    }
#pragma GCC unroll 16
    for (int t = 0; t < AMX_TOKENS; t++) vf_store(sums + ATSI_TILE_ROWS * t, acc[t]);
}

static void X_NAME(_amx)(const struct atsi_matmul_args *args, uint32_t tile_begin, uint32_t tile_end) {
    static const struct amx_type type = {X_BYTES / X_SUBS, X_GROUP, X_NAME(_open), X_NAME(_multiply)};
    amx_matmul(&type, args, tile_begin, tile_end);
}

#include "kernels/cpu/matmul_type_end.h"
