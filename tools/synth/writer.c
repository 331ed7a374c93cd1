#include "tools/synth/writer.h"

#include <pthread.h>
#include <stdlib.h>

#include "formats/base/new_file.h"
#include "tools/synth/header.h"
#include "tools/synth/values.h"

enum {
    PIECE_BYTES = 4 << 20, // rows are written in pieces of about this size
    MAX_THREADS = 256
};

// The next piece to write; every thread takes one at a time.
struct queue {
    struct atsi_new_file *file;
    uint64_t data_offset;
    const struct synth_values *values;
    pthread_mutex_t lock; // guards what follows
    uint32_t tensor;
    uint64_t row;
    enum atsi_status status;
    struct atsi_error *err;
};

struct piece {
    uint32_t tensor;
    uint64_t first, n;
};

static uint64_t rows_a_piece(uint64_t row_bytes) { return row_bytes < PIECE_BYTES ? PIECE_BYTES / row_bytes : 1; }

static bool take(struct queue *q, struct piece *piece) {
    const struct synth_model *m = q->values->model;
    pthread_mutex_lock(&q->lock);
    bool found = q->status == ATSI_OK && q->tensor < m->n_tensors;
    if (found) {
        const struct synth_tensor *t = &m->tensors[q->tensor];
        uint64_t n_rows = t->ne[1] * t->ne[2], n = rows_a_piece(t->size_bytes / n_rows);
        if (n > n_rows - q->row) n = n_rows - q->row;
        *piece = (struct piece){q->tensor, q->row, n};
        q->row += n;
        if (q->row == n_rows) {
            q->tensor++;
            q->row = 0;
        }
    }
    pthread_mutex_unlock(&q->lock);
    return found;
}

static void record_failure(struct queue *q, const struct atsi_error *err) {
    pthread_mutex_lock(&q->lock);
    if (q->status == ATSI_OK) {
        q->status = err->status;
        if (q->err) *q->err = *err;
    }
    pthread_mutex_unlock(&q->lock);
}

static uint64_t largest_piece(const struct synth_model *m) {
    uint64_t largest = PIECE_BYTES;
    for (uint32_t i = 0; i < m->n_tensors; i++) {
        uint64_t row_bytes = m->tensors[i].size_bytes / (m->tensors[i].ne[1] * m->tensors[i].ne[2]);
        if (row_bytes > largest) largest = row_bytes;
    }
    return largest;
}

static void *work(void *argument) {
    struct queue *q = argument;
    struct atsi_error err = {0};
    struct piece piece;
    uint8_t *buffer = malloc(largest_piece(q->values->model));
    if (!buffer) {
        atsi_fail(&err, ATSI_FAILED, "out of memory while writing tensors");
        record_failure(q, &err);
        return NULL;
    }
    while (take(q, &piece)) {
        const struct synth_tensor *t = &q->values->model->tensors[piece.tensor];
        uint64_t row_bytes = t->size_bytes / (t->ne[1] * t->ne[2]);
        synth_values_rows(q->values, piece.tensor, piece.first, piece.n, buffer);
        if (atsi_new_file_write(q->file, buffer, piece.n * row_bytes,
                                q->data_offset + t->offset + piece.first * row_bytes, &err) != ATSI_OK)
            record_failure(q, &err);
    }
    free(buffer);
    return NULL;
}

static enum atsi_status write_tensors(struct atsi_new_file *file, uint64_t data_offset,
                                      const struct synth_values *values, unsigned n_threads, struct atsi_error *err) {
    struct queue q = {.file = file, .data_offset = data_offset, .values = values, .err = err};
    pthread_t threads[MAX_THREADS];
    unsigned n_started = 0;
    pthread_mutex_init(&q.lock, NULL);
    // The caller is one of the threads, so the work is done even where no other can be started.
    while (n_started + 1 < n_threads && n_started < MAX_THREADS &&
           pthread_create(&threads[n_started], NULL, work, &q) == 0)
        n_started++;
    work(&q);
    for (unsigned i = 0; i < n_started; i++) pthread_join(threads[i], NULL);
    pthread_mutex_destroy(&q.lock);
    return q.status;
}

static enum atsi_status write_divisors(struct atsi_new_file *file, uint64_t data_offset,
                                       const struct synth_values *values, struct atsi_error *err) {
    const struct synth_model *m = values->model;
    uint8_t bytes[4096];
    for (uint32_t i = 0; i < m->n_tensors; i++) {
        const struct synth_tensor *t = &m->tensors[i];
        if (t->content != SYNTH_DIVISORS || t->size_bytes > sizeof bytes) continue;
        synth_values_rows(values, i, 0, 1, bytes);
        ATSI_TRY(atsi_new_file_write(file, bytes, t->size_bytes, data_offset + t->offset, err));
    }
    return ATSI_OK;
}

enum atsi_status synth_write_file(const char *path, const struct synth_model *model, const struct atsi_gguf *vocabulary,
                                  uint64_t seed, unsigned n_threads, uint64_t *size_bytes, struct atsi_error *err) {
    struct atsi_new_file file = {0};
    struct synth_values values = {0};
    char *header;
    size_t header_size;
    ATSI_TRY(synth_header_make(model, vocabulary, &header, &header_size, err));
    enum atsi_status status = atsi_new_file_create(&file, path, err);
    if (status == ATSI_OK) status = atsi_new_file_write(&file, header, header_size, 0, err);
    if (status == ATSI_OK) status = synth_values_init(&values, model, seed, err);
    if (status == ATSI_OK)
        status = n_threads ? write_tensors(&file, header_size, &values, n_threads, err)
                           : write_divisors(&file, header_size, &values, err);
    *size_bytes = header_size + model->data_bytes;
    if (status == ATSI_OK) status = atsi_new_file_commit(&file, *size_bytes, err);
    atsi_new_file_discard(&file);
    synth_values_free(&values);
    free(header);
    return status;
}
