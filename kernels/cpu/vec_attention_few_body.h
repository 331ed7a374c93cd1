// vec_attention_few_body.h: a block of positions for few queries (a decoded token), included by vec_attention_body.h.
//
// Each row of the cache is used a few times only, so it is opened in registers where it stands. The rows of one head stand a whole
// slot apart, too far for the hardware to see them coming, so those that come next are asked for; into L2, because L1 can wait for
// fewer lines at once than the memory takes to bring them (cold, one Zen 4 core: 165 cycles a position and head, 280 into L1).
// Sums run in the order of the tiles for many queries: equal bits.
#ifndef ATSI_KERNELS_CPU_VEC_ATTENTION_FEW_BODY_H
#define ATSI_KERNELS_CPU_VEC_ATTENTION_FEW_BODY_H

#define FEW_INLINE static inline __attribute__((always_inline))

enum {
    AHEAD_ROWS = 16,
    VALUE_ROWS = 8 // that pass before the sums go to memory, so that rows are asked for little by little
};

// Where the rows of a block stand.
struct block_rows {
    const uint8_t *at[ATSI_ATTN_BLOCK];
};

static void find_rows(const struct atsi_attn_tile *t, const void *cache, size_t slot_bytes, uint32_t begin,
                      struct block_rows *rows) {
    uint32_t slot = begin % t->capacity;
    for (uint32_t j = 0; j < ATSI_ATTN_BLOCK; j++) {
        rows->at[j] = (const uint8_t *)cache + slot * slot_bytes;
        if (++slot == t->capacity) slot = 0;
    }
}

// The row so many slots behind this one; at the end of a cache that wraps it is none of ours, and asking costs nothing.
static void ask_for_row(const uint8_t *row, size_t slot_bytes, size_t row_bytes) {
    const uint8_t *ahead = row + AHEAD_ROWS * slot_bytes;
    for (size_t i = 0; i < row_bytes; i += 64) __builtin_prefetch(ahead + i, 0, 2);
}

// Elements i .. i + 15 of a row, i a multiple of 16.
FEW_INLINE lanes row_lanes(enum atsi_dtype type, const uint8_t *row, uint32_t i) {
    if (type == ATSI_F16) return lanes_from_half((const uint16_t *)(const void *)row + i);
    if (type == ATSI_F32) return lanes_load((const float *)(const void *)row + i);
    const uint8_t *block = row + i / Q8_0_ELEMS * Q8_0_BYTES;
    uint16_t half;
    memcpy(&half, block, sizeof half);
    return lanes_mul(lanes_from_int8((const int8_t *)block + 2 + i % Q8_0_ELEMS), lanes_set(lanes_half_one(half)));
}

// n_q queries against the keys of n_k rows; n_q and n_k are literals.
FEW_INLINE void score_few(enum atsi_dtype type, const struct atsi_attn_tile *t, uint32_t first_q, uint32_t n_q,
                          const uint8_t *const *rows, uint32_t n_k, float *scores) {
    const float *q = t->q + (size_t)first_q * t->k_dim;
    lanes sum[TILE_QUERIES][TILE_KEYS];
    for (uint32_t a = 0; a < TILE_QUERIES; a++)
        for (uint32_t b = 0; b < TILE_KEYS; b++) sum[a][b] = lanes_set(0.0f);
    for (uint32_t i = 0; i < t->k_dim; i += LANES) {
        lanes key[TILE_KEYS];
        for (uint32_t b = 0; b < n_k; b++) key[b] = row_lanes(type, rows[b], i);
        for (uint32_t a = 0; a < n_q; a++) {
            lanes query = lanes_load(q + (size_t)a * t->k_dim + i);
            for (uint32_t b = 0; b < n_k; b++) sum[a][b] = lanes_fma(query, key[b], sum[a][b]);
        }
    }
    scores += (size_t)first_q * ATSI_ATTN_BLOCK;
#if defined(__AVX512F__)
    if (n_k == TILE_KEYS) {
        store_sums(sum, t->scale, n_q, scores);
        return;
    }
#endif
    for (uint32_t a = 0; a < n_q; a++)
        for (uint32_t b = 0; b < n_k; b++) scores[(size_t)a * ATSI_ATTN_BLOCK + b] = lanes_sum(sum[a][b]) * t->scale;
}

// All queries, in tiles of 4 (where so many sums fit the registers), 2 and 1.
FEW_INLINE void score_rows(enum atsi_dtype type, const struct atsi_attn_tile *t, const uint8_t *const *rows,
                           uint32_t n_k, float *scores) {
    uint32_t a = 0;
    for (; a + TILE_QUERIES <= t->n_queries; a += TILE_QUERIES) score_few(type, t, a, TILE_QUERIES, rows, n_k, scores);
    if (TILE_QUERIES > 2 && a + 2 <= t->n_queries) {
        score_few(type, t, a, 2, rows, n_k, scores);
        a += 2;
    }
    if (a < t->n_queries) score_few(type, t, a, 1, rows, n_k, scores);
}

// acc += weight * value over the rows first .. end - 1 for n_q queries and 16 * n_c columns from c on; n_q, n_c are literals.
FEW_INLINE void value_few(enum atsi_dtype type, const struct atsi_attn_tile *t, uint32_t first_q, uint32_t n_q,
                          uint32_t c, uint32_t n_c, const struct block_rows *rows, uint32_t first, uint32_t end) {
    float *acc = t->acc + (size_t)first_q * t->v_dim + c;
    const float *weights = t->scores + (size_t)first_q * ATSI_ATTN_BLOCK;
    lanes sum[TILE_QUERIES][TILE_COLUMNS];
    for (uint32_t a = 0; a < n_q; a++)
        for (uint32_t i = 0; i < n_c; i++) sum[a][i] = lanes_load(acc + (size_t)a * t->v_dim + i * LANES);
    for (uint32_t j = first; j < end; j++) {
        lanes value[TILE_COLUMNS];
        for (uint32_t i = 0; i < n_c; i++) value[i] = row_lanes(type, rows->at[j], c + i * LANES);
        for (uint32_t a = 0; a < n_q; a++) {
            lanes weight = lanes_set(weights[(size_t)a * ATSI_ATTN_BLOCK + j]);
            for (uint32_t i = 0; i < n_c; i++) sum[a][i] = lanes_fma(weight, value[i], sum[a][i]);
        }
    }
    for (uint32_t a = 0; a < n_q; a++)
        for (uint32_t i = 0; i < n_c; i++) lanes_store(acc + (size_t)a * t->v_dim + i * LANES, sum[a][i]);
}

FEW_INLINE void value_columns(enum atsi_dtype type, const struct atsi_attn_tile *t, uint32_t c, uint32_t n_c,
                              const struct block_rows *rows, uint32_t first, uint32_t end) {
    uint32_t a = 0;
    for (; a + TILE_QUERIES <= t->n_queries; a += TILE_QUERIES)
        value_few(type, t, a, TILE_QUERIES, c, n_c, rows, first, end);
    if (TILE_QUERIES > 2 && a + 2 <= t->n_queries) {
        value_few(type, t, a, 2, c, n_c, rows, first, end);
        a += 2;
    }
    if (a < t->n_queries) value_few(type, t, a, 1, c, n_c, rows, first, end);
}

FEW_INLINE void score_block_few(enum atsi_dtype type, const struct atsi_attn_tile *t, const struct block_rows *keys,
                                size_t row_bytes, uint32_t first, uint32_t end) {
    uint32_t b = first;
    for (; b + TILE_KEYS <= end; b += TILE_KEYS) {
        for (uint32_t j = b; j < b + TILE_KEYS; j++) ask_for_row(keys->at[j], t->k_slot_bytes, row_bytes);
        score_rows(type, t, keys->at + b, TILE_KEYS, t->scores + b);
    }
    for (; b < end; b++) score_rows(type, t, keys->at + b, 1, t->scores + b);
}

FEW_INLINE void value_block_few(enum atsi_dtype type, const struct atsi_attn_tile *t, const struct block_rows *values,
                                size_t row_bytes, uint32_t first, uint32_t end) {
    for (uint32_t j = first; j < end; j += VALUE_ROWS) {
        uint32_t j_end = end - j < VALUE_ROWS ? end : j + VALUE_ROWS, c = 0;
        for (uint32_t i = j; i < j_end; i++) ask_for_row(values->at[i], t->v_slot_bytes, row_bytes);
        for (; c + TILE_COLUMNS * LANES <= t->v_dim; c += TILE_COLUMNS * LANES)
            value_columns(type, t, c, TILE_COLUMNS, values, j, j_end);
        for (; c < t->v_dim; c += LANES) value_columns(type, t, c, 1, values, j, j_end);
    }
}

#endif
