// The reference: the formulas of kernels/matmul.h, one row at a time.
#include <math.h>
#include <string.h>

#include "formats/half.h"
#include "kernels/cpu/act_quant.h"
#include "kernels/cpu/dequant.h"
#include "kernels/cpu/matmul_impl.h"
#include "kernels/cpu/quant.h"
#include "kernels/layout.h"

enum {
    TOKENS = 16, // tokens that share an opened block
    LANES = 16   // partial sums of float weights
};

static void store(const struct atsi_matmul_args *a, uint32_t t, uint32_t row, float acc) {
    float *out = atsi_matmul_out_row(a, t) + row;
    if (a->bias != NULL) acc += a->bias[row];
    *out = a->add ? *out + acc : acc;
}

static int dot(const int8_t *w, const int8_t *q, int n) {
    int sum = 0;
    for (int i = 0; i < n; i++) sum += w[i] * q[i];
    return sum;
}

// One activation block against the opened weights of its 32 columns, which begin at column `c` of the weight block.
static float add_block(const struct atsi_quant_type *type, const struct atsi_quant_block *w, unsigned c,
                       const struct atsi_act_block *x, float acc) {
    for (unsigned i = 0; i < 32; i += type->group)
        acc = fmaf((float)dot(w->q + c + i, x->q + i, type->group), w->scale[(c + i) / type->group] * x->d, acc);
    if (!type->has_min) return acc;
    const uint8_t *min_q = w->min_q + c / type->group;
    if (type->group == 32) return fmaf(-(w->min_unit * (float)min_q[0]), x->d_sum, acc);
    return fmaf(-(float)(min_q[0] * x->sum[0] + min_q[1] * x->sum[1]), w->min_unit * x->d, acc);
}

static void row_of_tokens(const struct atsi_matmul_args *a, uint32_t row, uint32_t t_begin, uint32_t n_tokens) {
    const struct atsi_quant_type *type = atsi_quant_type(a->dtype);
    enum atsi_layout layout = atsi_layout_of(a->dtype);
    const struct atsi_act_block *x[TOKENS];
    float acc[TOKENS] = {0};
    for (uint32_t t = 0; t < n_tokens; t++) x[t] = atsi_matmul_in_row(a, t_begin + t);

    for (uint32_t b = 0; b < a->n_cols / type->block_elems; b++) {
        uint8_t bytes[256];
        struct atsi_quant_block w;
        atsi_layout_get_block(a->dtype, layout, a->weight, a->n_cols, row, b, bytes);
        type->expand(bytes, &w);
        for (unsigned c = 0; c < type->block_elems; c += 32)
            for (uint32_t t = 0; t < n_tokens; t++) acc[t] = add_block(type, &w, c, x[t]++, acc[t]);
    }
    for (uint32_t t = 0; t < n_tokens; t++) store(a, t_begin + t, row, acc[t]);
}

static void matmul_quantised(const struct atsi_matmul_args *a, uint32_t tile_begin, uint32_t tile_end) {
    for (uint32_t row = tile_begin * ATSI_TILE_ROWS; row < tile_end * ATSI_TILE_ROWS && row < a->n_rows; row++)
        for (uint32_t t = 0; t < a->n_tokens; t += TOKENS)
            row_of_tokens(a, row, t, a->n_tokens - t < TOKENS ? a->n_tokens - t : TOKENS);
}

static float weight_at(enum atsi_dtype dtype, const void *row, uint32_t c) {
    if (dtype == ATSI_F32) {
        float w;
        memcpy(&w, (const uint8_t *)row + (size_t)c * 4, sizeof w);
        return w;
    }
    uint16_t bits;
    memcpy(&bits, (const uint8_t *)row + (size_t)c * 2, sizeof bits);
    return dtype == ATSI_F16 ? atsi_f16_to_f32(bits) : atsi_bf16_to_f32(bits);
}

static float dot_float(enum atsi_dtype dtype, const void *row, const float *x, uint32_t n_cols) {
    float lane[LANES] = {0};
    for (uint32_t c = 0; c < n_cols; c++) lane[c % LANES] = fmaf(weight_at(dtype, row, c), x[c], lane[c % LANES]);
    for (int n = LANES / 2; n > 0; n /= 2)
        for (int i = 0; i < n; i++) lane[i] += lane[i + n];
    return lane[0];
}

static void matmul_float(const struct atsi_matmul_args *a, uint32_t tile_begin, uint32_t tile_end) {
    size_t row_bytes = (size_t)a->n_cols * (a->dtype == ATSI_F32 ? 4 : 2);
    for (uint32_t row = tile_begin * ATSI_TILE_ROWS; row < tile_end * ATSI_TILE_ROWS && row < a->n_rows; row++) {
        const uint8_t *w = (const uint8_t *)a->weight + row * row_bytes;
        for (uint32_t t = 0; t < a->n_tokens; t++)
            store(a, t, row, dot_float(a->dtype, w, atsi_matmul_in_row(a, t), a->n_cols));
    }
}

void atsi_matmul_fill_ref(struct atsi_matmul_kernels *k) {
    k->quantise = atsi_act_quantise_ref;
    for (int dtype = 0; dtype < ATSI_DTYPE_LIMIT; dtype++) {
        enum atsi_input_kind kind = atsi_matmul_input((enum atsi_dtype)dtype);
        if (kind == ATSI_INPUT_F32) k->matmul[dtype] = matmul_float;
        if (kind == ATSI_INPUT_INT8) k->matmul[dtype] = matmul_quantised;
    }
}
