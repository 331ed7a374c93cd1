#include "planner/pack.h"

#include <stdlib.h>
#include <string.h>

#include "formats/base/le.h"
#include "formats/half.h"
#include "kernels/layout.h"

enum {
    PIECE_BYTES = 1 << 20,
    BATCH_BYTES = 32 << 20
}; // what a thread packs at a time; what all pack between two writes

static bool is_widened(const struct atsi_tensor *t, const struct atsi_recipe *r) {
    return r->source && r->source->dtype != t->dtype;
}

// The packed tensor as it already stands in memory, or NULL when it has to be made.
static const void *ready_bytes(const struct atsi_tensor *t, const struct atsi_recipe *r) {
    if (r->table) return r->table;
    if (t->layout != ATSI_LAYOUT_PLAIN || r->row_order || is_widened(t, r)) return NULL;
    return r->source->data;
}

// Small tensors only: the whole is made at once.
static enum atsi_status pack_widened(const struct atsi_tensor *t, const struct atsi_gguf_tensor *source,
                                     atsi_pack_sink *sink, void *user, struct atsi_error *err) {
    uint64_t n = t->size_bytes / sizeof(float);
    float *values = malloc(t->size_bytes);
    if (!values) return atsi_fail(err, ATSI_FAILED, "out of memory while packing tensor %s", t->name);
    for (uint64_t i = 0; i < n; i++) {
        uint16_t bits = atsi_load_le16(source->data + 2 * i);
        values[i] = source->dtype == ATSI_F16 ? atsi_f16_to_f32(bits) : atsi_bf16_to_f32(bits);
    }
    enum atsi_status status = sink(user, values, t->size_bytes, err);
    free(values);
    return status;
}

// ---- rows in tiles ------------------------------------------------------------------------------------------------

struct packing {
    struct atsi_pool *pool;
    const struct atsi_tensor *tensor;
    const struct atsi_recipe *recipe;
    uint64_t row_bytes, matrix_bytes;        // of a row; of a packed matrix, its last tile filled up
    uint64_t rows_per_piece, rows_per_batch; // multiples of a tile
    uint64_t i_matrix, first_row, n_rows;    // the batch at hand
    uint8_t *batch;                          // its packed bytes
    uint8_t *gathered; // a piece of rows in packed order for each thread; NULL when rows keep their order
};

// The rows [first, first + n) of the packed matrix in GGUF order.
static const uint8_t *rows_of(const struct packing *p, uint64_t first, uint64_t n, int i_thread) {
    const uint8_t *matrix = p->recipe->source->data + p->i_matrix * p->tensor->ne[1] * p->row_bytes;
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
        uint64_t done = (uint64_t)atsi_pool_next(p->pool) * p->rows_per_piece;
        if (done >= p->n_rows) return;
        uint64_t n = p->n_rows - done < p->rows_per_piece ? p->n_rows - done : p->rows_per_piece;
        atsi_layout_pack(p->tensor->dtype, p->tensor->layout, rows_of(p, p->first_row + done, n, i_thread), n,
                         p->tensor->ne[0], p->batch + done * p->row_bytes);
    }
}

static enum atsi_status pack_batches(struct packing *p, atsi_pack_sink *sink, void *user, struct atsi_error *err) {
    uint64_t n_rows = p->tensor->ne[1], n_matrices = p->tensor->ne[2] * p->tensor->ne[3];
    for (p->i_matrix = 0; p->i_matrix < n_matrices; p->i_matrix++)
        for (p->first_row = 0; p->first_row < n_rows; p->first_row += p->n_rows) {
            uint64_t left = n_rows - p->first_row;
            p->n_rows = left < p->rows_per_batch ? left : p->rows_per_batch;
            atsi_pool_run(p->pool, pack_pieces, p);
            uint64_t bytes =
                p->n_rows == left ? p->matrix_bytes - p->first_row * p->row_bytes : p->n_rows * p->row_bytes;
            ATSI_TRY(sink(user, p->batch, bytes, err));
        }
    return ATSI_OK;
}

static uint64_t whole_tiles(uint64_t bytes, uint64_t row_bytes) {
    uint64_t rows = bytes / row_bytes / ATSI_TILE_ROWS * ATSI_TILE_ROWS;
    return rows ? rows : ATSI_TILE_ROWS;
}

static enum atsi_status pack_rows(struct atsi_pool *pool, const struct atsi_tensor *t, const struct atsi_recipe *r,
                                  atsi_pack_sink *sink, void *user, struct atsi_error *err) {
    struct packing p = {.pool = pool, .tensor = t, .recipe = r, .row_bytes = atsi_dtype_row_bytes(t->dtype, t->ne[0])};
    p.matrix_bytes = t->size_bytes / (t->ne[2] * t->ne[3]);
    p.rows_per_piece = whole_tiles(PIECE_BYTES, p.row_bytes);
    p.rows_per_batch = whole_tiles(BATCH_BYTES, p.row_bytes);
    uint64_t batch_bytes = p.rows_per_batch * p.row_bytes;
    if (batch_bytes > p.matrix_bytes) batch_bytes = p.matrix_bytes;
    p.batch = malloc(batch_bytes);
    if (r->row_order) p.gathered = malloc((uint64_t)atsi_pool_n_threads(pool) * p.rows_per_piece * p.row_bytes);
    enum atsi_status status = p.batch && (p.gathered || !r->row_order)
                                  ? pack_batches(&p, sink, user, err)
                                  : atsi_fail(err, ATSI_FAILED, "out of memory while packing tensor %s", t->name);
    free(p.batch);
    free(p.gathered);
    return status;
}

enum atsi_status atsi_pack_tensor(struct atsi_pool *pool, const struct atsi_tensor *t, const struct atsi_recipe *r,
                                  atsi_pack_sink *sink, void *user, struct atsi_error *err) {
    const void *ready = ready_bytes(t, r);
    if (ready) return sink(user, ready, t->size_bytes, err);
    if (is_widened(t, r)) return pack_widened(t, r->source, sink, user, err);
    return pack_rows(pool, t, r, sink, user, err);
}
