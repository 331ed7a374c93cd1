// vec_attention_body.h: the attention kernels of kernels/cpu/vec.h; included once by each vec*.c after vec_rows_body.h.
//
// The softmax is taken online over blocks of 64 positions that start at multiples of 64, so what a query gets depends on its own
// position and window only. Per query and block: scores, their maximum, the old sums scaled by exp(old max - new max), the new ones
// added. Positions that a query does not see have the score -inf, whose exp is 0.
#ifndef ATSI_KERNELS_CPU_VEC_ATTENTION_BODY_H
#define ATSI_KERNELS_CPU_VEC_ATTENTION_BODY_H

#include "kernels/cpu/vec_rows_body.h"

// Queries and keys (or columns of values) that are worked on together: as many sums as there are registers for.
#if defined(__AVX512F__)
enum {
    TILE_QUERIES = 4,
    TILE_KEYS = 4,
    TILE_COLUMNS = 4
};
#else
enum {
    TILE_QUERIES = 2,
    TILE_KEYS = 2,
    TILE_COLUMNS = 2
};
#endif

enum {
    Q8_0_ELEMS = 32,
    Q8_0_BYTES = 34,
    PREFETCH_ROWS = 8,
    FEW_QUERIES = 16 // up to here rows are opened for every tile of queries, not once into memory
};

static float exp_one(float x) {
    float e[LANES];
    lanes_store(e, lanes_exp(lanes_set(x)));
    return e[0];
}

// ---- the cache's number formats ---------------------------------------------------------------------------------------

static void store_half(const float *in, uint32_t n, uint16_t *out) {
    for (uint32_t i = 0; i < n; i += LANES) {
        uint16_t half[LANES];
        lanes_to_half(half, lanes_load_left(in + i, n - i, 0.0f));
        memcpy(out + i, half, (n - i < LANES ? n - i : LANES) * sizeof *out);
    }
}

// x ~ d q with d = max|x| / 127 rounded to half and q = nearest(x / d). A block with a value that is not finite gets d = NaN.
static void store_q8_0_block(const float *in, uint8_t *out) {
    lanes low = lanes_load(in), high = lanes_load(in + LANES), zero = lanes_set(0.0f);
    lanes largest = lanes_max(lanes_max(low, lanes_neg(low)), lanes_max(high, lanes_neg(high)));
    float not_finite = lanes_sum(lanes_fma(low, zero, lanes_mul(high, zero))); // 0 or NaN
    uint16_t half[LANES];
    lanes_to_half(half, lanes_set(lanes_largest(largest) / 127.0f + not_finite));
    float d = lanes_half_one(half[0]);
    lanes inverse = lanes_set(d > 0.0f ? 1.0f / d : 0.0f), most = lanes_set(127.0f), least = lanes_set(-127.0f);
    float q[Q8_0_ELEMS];
    lanes_store(q, lanes_round(lanes_max(lanes_min(lanes_mul(low, inverse), most), least)));
    lanes_store(q + LANES, lanes_round(lanes_max(lanes_min(lanes_mul(high, inverse), most), least)));
    memcpy(out, half, sizeof half[0]);
    for (int j = 0; j < Q8_0_ELEMS; j++) {
        int8_t byte = (int8_t)q[j];
        memcpy(out + 2 + j, &byte, 1);
    }
}

static void kv_store(enum atsi_dtype type, const float *in, uint32_t n, void *out) {
    if (type == ATSI_F16) {
        store_half(in, n, out);
    } else if (type == ATSI_Q8_0) {
        for (uint32_t i = 0; i < n; i += Q8_0_ELEMS)
            store_q8_0_block(in + i, (uint8_t *)out + i / Q8_0_ELEMS * Q8_0_BYTES);
    } else {
        memcpy(out, in, n * sizeof *in);
    }
}

static void load_half(const uint16_t *in, uint32_t n, float *out) {
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES) lanes_store(out + i, lanes_from_half(in + i));
    if (i < n) {
        uint16_t half[LANES] = {0};
        memcpy(half, in + i, (n - i) * sizeof *in);
        lanes_store(out + i, lanes_from_half(half));
    }
}

static void load_q8_0(const uint8_t *in, uint32_t n, float *out) {
    for (uint32_t i = 0; i < n; i += Q8_0_ELEMS, in += Q8_0_BYTES) {
        const int8_t *q = (const int8_t *)in + 2;
        uint16_t half;
        memcpy(&half, in, sizeof half);
        lanes d = lanes_set(lanes_half_one(half));
        lanes_store(out + i, lanes_mul(lanes_from_int8(q), d));
        lanes_store(out + i + LANES, lanes_mul(lanes_from_int8(q + LANES), d));
    }
}

static void load_float(const float *in, uint32_t n, float *out) {
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES) lanes_store(out + i, lanes_load(in + i));
    if (i < n) lanes_store(out + i, lanes_load_left(in + i, n - i, 0.0f));
}

// The rows of one head stand a whole slot apart, too far for the hardware to see them coming.
static void prefetch_row(const uint8_t *row, size_t row_bytes) {
    for (size_t i = 0; i < row_bytes; i += 64) __builtin_prefetch(row + i);
}

static size_t row_bytes_of(enum atsi_dtype type, uint32_t dim) {
    return type == ATSI_F16 ? dim * 2u : type == ATSI_Q8_0 ? dim / Q8_0_ELEMS * Q8_0_BYTES : dim * 4u;
}

// Rows first .. end - 1 of the block that starts at position `begin`, as padded floats.
static void load_block(const struct atsi_attn_tile *t, const void *cache, size_t slot_bytes, uint32_t dim,
                       uint32_t begin, uint32_t first, uint32_t end) {
    uint32_t pad = atsi_vec_pad(dim), slot = (begin + first) % t->capacity,
             ahead = (begin + first + PREFETCH_ROWS) % t->capacity;
    size_t row_bytes = row_bytes_of(t->kv_type, dim);
    for (uint32_t j = first; j < end; j++) {
        const uint8_t *in = (const uint8_t *)cache + slot * slot_bytes;
        float *out = t->rows + (size_t)j * pad;
        prefetch_row((const uint8_t *)cache + ahead * slot_bytes, row_bytes);
        if (t->kv_type == ATSI_F16)
            load_half((const uint16_t *)(const void *)in, dim, out);
        else if (t->kv_type == ATSI_Q8_0)
            load_q8_0(in, dim, out);
        else
            load_float((const float *)(const void *)in, dim, out);
        if (++slot == t->capacity) slot = 0;
        if (++ahead == t->capacity) ahead = 0;
    }
}

// ---- scores ---------------------------------------------------------------------------------------------------------

#if defined(__AVX512F__)
// The sums of a tile of 1, 2 or 4 queries at once: the tree of lanes_sum(), with the vectors that it halves packed together.
static inline void store_sums(lanes sum[TILE_QUERIES][TILE_KEYS], float scale_by, uint32_t n_q, float *scores) {
    __m512 key[TILE_KEYS]; // quarter q: four partial sums of query q
    for (int b = 0; b < TILE_KEYS; b++) {
        __m512 half[2]; // eight partial sums of two queries
        for (int h = 0; h < 2; h++) {
            __m512 x = sum[2 * h][b], y = sum[2 * h + 1][b];
            half[h] = _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x44), _mm512_shuffle_f32x4(x, y, 0xee));
        }
        key[b] =
            _mm512_add_ps(_mm512_shuffle_f32x4(half[0], half[1], 0x88), _mm512_shuffle_f32x4(half[0], half[1], 0xdd));
    }
    __m512 low = _mm512_add_ps(_mm512_shuffle_ps(key[0], key[1], 0x44), _mm512_shuffle_ps(key[0], key[1], 0xee));
    __m512 high = _mm512_add_ps(_mm512_shuffle_ps(key[2], key[3], 0x44), _mm512_shuffle_ps(key[2], key[3], 0xee));
    __m512 all = _mm512_add_ps(_mm512_shuffle_ps(low, high, 0x88), _mm512_shuffle_ps(low, high, 0xdd));
    all = _mm512_mul_ps(all, _mm512_set1_ps(scale_by));
    _mm_storeu_ps(scores, _mm512_extractf32x4_ps(all, 0));
    if (n_q > 1) _mm_storeu_ps(scores + ATSI_ATTN_BLOCK, _mm512_extractf32x4_ps(all, 1));
    if (n_q <= 2) return;
    _mm_storeu_ps(scores + 2 * ATSI_ATTN_BLOCK, _mm512_extractf32x4_ps(all, 2));
    _mm_storeu_ps(scores + 3 * ATSI_ATTN_BLOCK, _mm512_extractf32x4_ps(all, 3));
}
#endif

// n_q <= TILE_QUERIES queries against n_k <= TILE_KEYS keys.
static inline void score_tile(const float *q, const float *k, uint32_t pad, uint32_t n_q, uint32_t n_k, float scale_by,
                              float *scores) {
    lanes sum[TILE_QUERIES][TILE_KEYS];
    for (uint32_t a = 0; a < n_q; a++)
        for (uint32_t b = 0; b < n_k; b++) sum[a][b] = lanes_set(0.0f);
    for (uint32_t i = 0; i < pad; i += LANES) {
        lanes key[TILE_KEYS];
        for (uint32_t b = 0; b < n_k; b++) key[b] = lanes_load(k + (size_t)b * pad + i);
        for (uint32_t a = 0; a < n_q; a++) {
            lanes query = lanes_load(q + (size_t)a * pad + i);
            for (uint32_t b = 0; b < n_k; b++) sum[a][b] = lanes_fma(query, key[b], sum[a][b]);
        }
    }
#if defined(__AVX512F__)
    if (n_q == TILE_QUERIES && n_k == TILE_KEYS) {
        store_sums(sum, scale_by, TILE_QUERIES, scores);
        return;
    }
#endif
    for (uint32_t a = 0; a < n_q; a++)
        for (uint32_t b = 0; b < n_k; b++) scores[(size_t)a * ATSI_ATTN_BLOCK + b] = lanes_sum(sum[a][b]) * scale_by;
}

static void score_block(const struct atsi_attn_tile *t, uint32_t first, uint32_t end) {
    uint32_t pad = atsi_vec_pad(t->k_dim);
    for (uint32_t b = first; b < end; b += TILE_KEYS) {
        uint32_t n_k = end - b < TILE_KEYS ? end - b : TILE_KEYS;
        const float *k = t->rows + (size_t)b * pad;
        for (uint32_t a = 0; a < t->n_queries; a += TILE_QUERIES) {
            uint32_t n_q = t->n_queries - a < TILE_QUERIES ? t->n_queries - a : TILE_QUERIES;
            const float *q = t->q + (size_t)a * pad;
            float *scores = t->scores + (size_t)a * ATSI_ATTN_BLOCK + b;
            // Constants let the compiler keep the sums of the usual tiles in registers.
            if (n_k < TILE_KEYS)
                score_tile(q, k, pad, n_q, n_k, t->scale, scores);
            else if (n_q == TILE_QUERIES)
                score_tile(q, k, pad, TILE_QUERIES, TILE_KEYS, t->scale, scores);
            else if (n_q == 2)
                score_tile(q, k, pad, 2, TILE_KEYS, t->scale, scores);
            else if (n_q == 1)
                score_tile(q, k, pad, 1, TILE_KEYS, t->scale, scores);
            else
                score_tile(q, k, pad, n_q, TILE_KEYS, t->scale, scores);
        }
    }
}

// ---- softmax --------------------------------------------------------------------------------------------------------

static void rescale(float *acc, float factor, uint32_t n) {
    if (factor != 1.0f) scale(acc, factor, n, acc);
}

// Turns the scores of query i in the block at `begin` into weights and moves its running sums to the new maximum.
static void softmax_block(const struct atsi_attn_tile *t, uint32_t i, uint32_t begin) {
    float *scores = t->scores + (size_t)i * ATSI_ATTN_BLOCK;
    for (uint32_t j = 0; j < ATSI_ATTN_BLOCK; j++)
        if (begin + j < t->first[i] || begin + j >= t->end[i]) scores[j] = -INFINITY;
    lanes part[ATSI_ATTN_BLOCK / LANES], largest = lanes_set(t->max[i]), sum = lanes_set(0.0f);
    for (int c = 0; c < ATSI_ATTN_BLOCK / LANES; c++) {
        part[c] = lanes_load(scores + c * LANES);
        largest = lanes_max(largest, part[c]);
    }
    float max = lanes_largest(largest);
    if (max == -INFINITY) max = t->max[i] = -3e38f; // all that is visible scored -inf: weights 0 instead of NaN
    for (int c = 0; c < ATSI_ATTN_BLOCK / LANES; c++) {
        part[c] = lanes_exp(lanes_sub(part[c], lanes_set(max)));
        sum = lanes_add(sum, part[c]);
        lanes_store(scores + c * LANES, part[c]);
    }
    float factor = exp_one(t->max[i] - max);
    t->max[i] = max;
    t->sum[i] = t->sum[i] * factor + lanes_sum(sum);
    rescale(t->acc + (size_t)i * atsi_vec_pad(t->v_dim), factor, atsi_vec_pad(t->v_dim));
}

// ---- values ---------------------------------------------------------------------------------------------------------

// acc[a] += sum over the block's rows first .. end - 1 of weight * row, for n_q queries and n_c lanes of columns.
static inline void value_tile(const float *weights, const float *v, uint32_t pad, uint32_t first, uint32_t end,
                              uint32_t n_q, uint32_t n_c, float *acc) {
    lanes sum[TILE_QUERIES][TILE_COLUMNS];
    for (uint32_t a = 0; a < n_q; a++)
        for (uint32_t c = 0; c < n_c; c++) sum[a][c] = lanes_load(acc + (size_t)a * pad + c * LANES);
    for (uint32_t j = first; j < end; j++) {
        lanes row[TILE_COLUMNS];
        for (uint32_t c = 0; c < n_c; c++) row[c] = lanes_load(v + (size_t)j * pad + c * LANES);
        for (uint32_t a = 0; a < n_q; a++) {
            lanes weight = lanes_set(weights[(size_t)a * ATSI_ATTN_BLOCK + j]);
            for (uint32_t c = 0; c < n_c; c++) sum[a][c] = lanes_fma(weight, row[c], sum[a][c]);
        }
    }
    for (uint32_t a = 0; a < n_q; a++)
        for (uint32_t c = 0; c < n_c; c++) lanes_store(acc + (size_t)a * pad + c * LANES, sum[a][c]);
}

static void value_block(const struct atsi_attn_tile *t, uint32_t first, uint32_t end) {
    uint32_t pad = atsi_vec_pad(t->v_dim), n_lanes = pad / LANES;
    for (uint32_t a = 0; a < t->n_queries; a += TILE_QUERIES) {
        uint32_t n_q = t->n_queries - a < TILE_QUERIES ? t->n_queries - a : TILE_QUERIES;
        const float *weights = t->scores + (size_t)a * ATSI_ATTN_BLOCK;
        for (uint32_t c = 0; c < n_lanes; c += TILE_COLUMNS) {
            uint32_t n_c = n_lanes - c < TILE_COLUMNS ? n_lanes - c : TILE_COLUMNS;
            const float *v = t->rows + c * LANES;
            float *acc = t->acc + (size_t)a * pad + c * LANES;
            if (n_c < TILE_COLUMNS)
                value_tile(weights, v, pad, first, end, n_q, n_c, acc);
            else if (n_q == TILE_QUERIES)
                value_tile(weights, v, pad, first, end, TILE_QUERIES, TILE_COLUMNS, acc);
            else if (n_q == 2)
                value_tile(weights, v, pad, first, end, 2, TILE_COLUMNS, acc);
            else if (n_q == 1)
                value_tile(weights, v, pad, first, end, 1, TILE_COLUMNS, acc);
            else
                value_tile(weights, v, pad, first, end, n_q, TILE_COLUMNS, acc);
        }
    }
}

#include "kernels/cpu/vec_attention_few_body.h"

// ---- ranges ---------------------------------------------------------------------------------------------------------

static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }
static uint32_t most(uint32_t a, uint32_t b) { return a > b ? a : b; }

static void softmax_queries(const struct atsi_attn_tile *t, uint32_t block) {
    for (uint32_t i = 0; i < t->n_queries; i++) {
        // A query that sees nothing here keeps its sums to the bit: its weights are 0.
        if (t->first[i] < block + ATSI_ATTN_BLOCK && t->end[i] > block)
            softmax_block(t, i, block);
        else
            memset(t->scores + (size_t)i * ATSI_ATTN_BLOCK, 0, ATSI_ATTN_BLOCK * sizeof *t->scores);
    }
}

// Positions first .. end - 1, a part of the range that some query sees.
static void range_of_many(const struct atsi_attn_tile *t, uint32_t first, uint32_t end) {
    for (uint32_t block = first / ATSI_ATTN_BLOCK * ATSI_ATTN_BLOCK; block < end; block += ATSI_ATTN_BLOCK) {
        uint32_t from = first > block ? first - block : 0, to = least(ATSI_ATTN_BLOCK, end - block);
        load_block(t, t->k, t->k_slot_bytes, t->k_dim, block, from, to);
        score_block(t, from, to);
        softmax_queries(t, block);
        // Over the keys: one of the two fits a first-level cache.
        load_block(t, t->v, t->v_slot_bytes, t->v_dim, block, from, to);
        value_block(t, from, to);
    }
}

FEW_INLINE void range_of_few(enum atsi_dtype type, const struct atsi_attn_tile *t, uint32_t first, uint32_t end) {
    size_t key_bytes = row_bytes_of(type, t->k_dim), value_bytes = row_bytes_of(type, t->v_dim);
    for (uint32_t block = first / ATSI_ATTN_BLOCK * ATSI_ATTN_BLOCK; block < end; block += ATSI_ATTN_BLOCK) {
        uint32_t from = first > block ? first - block : 0, to = least(ATSI_ATTN_BLOCK, end - block);
        struct block_rows rows;
        find_rows(t, t->k, t->k_slot_bytes, block, &rows);
        score_block_few(type, t, &rows, key_bytes, from, to);
        softmax_queries(t, block);
        find_rows(t, t->v, t->v_slot_bytes, block, &rows);
        value_block_few(type, t, &rows, value_bytes, from, to);
    }
}

static void range_of_few_f32(const struct atsi_attn_tile *t, uint32_t first, uint32_t end) {
    range_of_few(ATSI_F32, t, first, end);
}
static void range_of_few_f16(const struct atsi_attn_tile *t, uint32_t first, uint32_t end) {
    range_of_few(ATSI_F16, t, first, end);
}
static void range_of_few_q8_0(const struct atsi_attn_tile *t, uint32_t first, uint32_t end) {
    range_of_few(ATSI_Q8_0, t, first, end);
}

static void attention_range(const struct atsi_attn_tile *t, uint32_t begin, uint32_t end) {
    uint32_t seen_first = UINT32_MAX, seen_end = 0;
    memset(t->acc, 0, (size_t)t->n_queries * atsi_vec_pad(t->v_dim) * sizeof *t->acc);
    for (uint32_t i = 0; i < t->n_queries; i++) {
        t->max[i] = -INFINITY;
        t->sum[i] = 0.0f;
        seen_first = least(seen_first, t->first[i]);
        seen_end = most(seen_end, t->end[i]);
    }
    begin = most(begin, seen_first);
    end = least(end, seen_end);
    if (begin >= end) return;
    if (t->n_queries > FEW_QUERIES || t->k_dim % LANES != 0 || t->v_dim % LANES != 0)
        range_of_many(t, begin, end);
    else if (t->kv_type == ATSI_F16)
        range_of_few_f16(t, begin, end);
    else if (t->kv_type == ATSI_Q8_0)
        range_of_few_q8_0(t, begin, end);
    else
        range_of_few_f32(t, begin, end);
}

static void attention_fold(float *total_max, float *total_sum, float *total_acc, float max, float sum, const float *acc,
                           uint32_t v_pad) {
    if (max == -INFINITY) return; // nothing seen in the range
    float top = *total_max > max ? *total_max : max;
    float keep = exp_one(*total_max - top), take = exp_one(max - top);
    *total_max = top;
    *total_sum = *total_sum * keep + sum * take;
    for (uint32_t i = 0; i < v_pad; i += LANES) {
        lanes kept = lanes_mul(lanes_load(total_acc + i), lanes_set(keep));
        lanes_store(total_acc + i, lanes_fma(lanes_load(acc + i), lanes_set(take), kept));
    }
}

static void attention_finish(float max, float sum, const float *acc, const float *sink, uint32_t v_dim, float *out) {
    float keep = 1.0f;
    if (sink != NULL) {
        float top = *sink > max ? *sink : max;
        keep = exp_one(max - top);
        sum = sum * keep + exp_one(*sink - top);
    }
    scale(acc, keep / sum, v_dim, out);
}

#define VEC_KERNELS                                                                                               \
    {                                                                                                             \
        .rms_norm = rms_norm, .l2_norm = l2_norm, .scale = scale, .add = add, .glu = glu, .silu = silu,           \
        .sigmoid = sigmoid, .gate = gate, .gate_each = gate_each, .exp_shifted = exp_shifted, .largest = largest, \
        .weighted_sum = weighted_sum, .rope = rope, .kv_store = kv_store, .attention_range = attention_range,     \
        .attention_fold = attention_fold, .attention_finish = attention_finish, .delta_step = delta_step,         \
    }

#endif
