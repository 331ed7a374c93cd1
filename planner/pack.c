#include "planner/pack.h"

#include <stdlib.h>
#include <string.h>

#include "formats/base/le.h"
#include "formats/half.h"
#include "kernels/layout.h"

enum { PIECE_BYTES = 1 << 20 }; // what a thread packs at a time

static bool is_widened(const struct atsi_tensor *t, const struct atsi_recipe *r) {
    return r->source && r->source->dtype != t->dtype;
}

const void *atsi_pack_in_place(const struct atsi_tensor *t, const struct atsi_recipe *r) {
    if (r->table) return r->table;
    if (t->layout != ATSI_LAYOUT_PLAIN || r->row_order || is_widened(t, r)) return NULL;
    return r->source->data;
}

static void widen(const struct atsi_gguf_tensor *source, float *dst) {
    uint64_t n = source->ne[0] * source->ne[1] * source->ne[2] * source->ne[3];
    for (uint64_t i = 0; i < n; i++) {
        uint16_t bits = atsi_load_le16(source->data + 2 * i);
        dst[i] = source->dtype == ATSI_F16 ? atsi_f16_to_f32(bits) : atsi_bf16_to_f32(bits);
    }
}

struct packing {
    struct atsi_pool *pool;
    const struct atsi_tensor *tensor;
    const struct atsi_recipe *recipe;
    uint8_t *dst;
    uint64_t row_bytes, rows_per_piece, pieces_per_matrix, n_matrices;
    uint64_t packed_matrix_bytes;
    uint8_t *gathered; // a piece of rows in packed order for each thread; NULL when rows keep their order
};

// The rows [first, first + n) of packed matrix m in GGUF order.
static const uint8_t *rows_of(const struct packing *p, uint64_t m, uint64_t first, uint64_t n, int i_thread) {
    const uint8_t *matrix = p->recipe->source->data + m * p->tensor->ne[1] * p->row_bytes;
    if (!p->recipe->row_order) return matrix + first * p->row_bytes;
    uint8_t *piece = p->gathered + (uint64_t)i_thread * p->rows_per_piece * p->row_bytes;
    for (uint64_t i = 0; i < n; i++)
        memcpy(piece + i * p->row_bytes, matrix + p->recipe->row_order[first + i] * p->row_bytes, p->row_bytes);
    return piece;
}

static void pack_pieces(void *context, int i_thread, int n_threads) {
    const struct packing *p = context;
    (void)n_threads;
    for (;;) {
        uint64_t i = (uint64_t)atsi_pool_next(p->pool), m = i / p->pieces_per_matrix;
        if (m >= p->n_matrices) return;
        uint64_t first = i % p->pieces_per_matrix * p->rows_per_piece, left = p->tensor->ne[1] - first;
        uint64_t n = left < p->rows_per_piece ? left : p->rows_per_piece;
        atsi_layout_pack(p->tensor->dtype, p->tensor->layout, rows_of(p, m, first, n, i_thread), n, p->tensor->ne[0],
                         p->dst + m * p->packed_matrix_bytes + first * p->row_bytes);
    }
}

enum atsi_status atsi_pack_tensor(struct atsi_pool *pool, const struct atsi_tensor *t, const struct atsi_recipe *r,
                                  void *dst, struct atsi_error *err) {
    const void *ready = atsi_pack_in_place(t, r);
    if (ready) {
        memcpy(dst, ready, t->size_bytes);
        return ATSI_OK;
    }
    if (is_widened(t, r)) {
        widen(r->source, dst);
        return ATSI_OK;
    }
    struct packing p = {.pool = pool, .tensor = t, .recipe = r, .dst = dst, .n_matrices = t->ne[2] * t->ne[3]};
    p.row_bytes = atsi_dtype_row_bytes(t->dtype, t->ne[0]);
    p.packed_matrix_bytes = t->size_bytes / p.n_matrices;
    p.rows_per_piece = PIECE_BYTES / p.row_bytes / ATSI_TILE_ROWS * ATSI_TILE_ROWS;
    if (p.rows_per_piece == 0) p.rows_per_piece = ATSI_TILE_ROWS;
    p.pieces_per_matrix = (t->ne[1] + p.rows_per_piece - 1) / p.rows_per_piece;
    if (r->row_order) {
        p.gathered = malloc((uint64_t)atsi_pool_n_threads(pool) * p.rows_per_piece * p.row_bytes);
        if (!p.gathered) return atsi_fail(err, ATSI_FAILED, "out of memory while packing tensor %s", t->name);
    }
    atsi_pool_run(pool, pack_pieces, &p);
    free(p.gathered);
    return ATSI_OK;
}
