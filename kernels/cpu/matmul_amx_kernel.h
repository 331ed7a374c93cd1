// matmul_amx_kernel.h: what one type needs of matmul_avx512amx.c, included once a type (no include guard) as matmul_type_list.h
// says. It defines X_amx.

// What is subtracted in group g of 16 or 32 columns.
INLINE vflt X_NAME(_min_of)(const uint8_t *block, const struct scratch *scratch, int s, int g) {
    (void)g;
    if (X_MINS == MINS_NONE) return vf_zero();
    vflt min = X_NAME(_min)(block, scratch, 0, s);
#if X_MINS == MINS_PAIR
    vint pair = X_NAME(_min_pair)(block, 0, s);
    min = vf_mul(min, vf_from_int(g == 0 ? v_and(pair, v_set_32(0xffff)) : v_right(pair, 16)));
#endif
    return min;
}

static void X_NAME(_open)(const struct atsi_matmul_args *a, uint32_t tile, struct columns cols, struct panel *panel) {
    size_t first_sub = (size_t)tile * (a->n_cols / STEP_COLS) + cols.begin / STEP_COLS;
    const uint8_t *block = (const uint8_t *)a->weight + first_sub / X_SUBS * X_BYTES;
    for (uint32_t i = 0; i < cols.n / STEP_COLS; i += X_SUBS, block += X_BYTES) {
        struct scratch scratch;
        X_NAME(_prepare)(block, &scratch);
#pragma GCC unroll 8
        for (int s = 0; s < X_SUBS; s++)
#pragma GCC unroll 2
            for (int g = 0; g < 32 / X_GROUP; g++) {
                vflt scale = ordinary_nan(X_NAME(_scale)(block, &scratch, 0, s, g));
                vflt min = ordinary_nan(X_NAME(_min_of)(block, &scratch, s, g));
#pragma GCC unroll 8
                for (int k = g * X_GROUP / 4; k < (g + 1) * X_GROUP / 4; k++) {
                    vint weights = v_sub_8(X_NAME(_word)(block, 0, s, k), v_set_8(X_OFFSET));
                    put_word(weights, scale, min, k, panel->part[i + (uint32_t)s]);
                }
            }
    }
}

static void X_NAME(_amx)(const struct atsi_matmul_args *args, uint32_t tile_begin, uint32_t tile_end) {
    static const struct amx_type type = {1, 1, X_NAME(_open)};
    amx_matmul(&type, args, tile_begin, tile_end);
}

#include "kernels/cpu/matmul_type_end.h"
