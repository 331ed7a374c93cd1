#include "runtime/weights_pieces.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "formats/base/grow.h"

enum {
    COPY_BYTES = ATSI_STAGING_BYTES,
    MAP_BYTES = 4 << 20 // a call of the kernel each
};

struct weights_piece {
    const struct atsi_plan_blob *blob;
    void *dev;                    // of what was queued together; NULL: pages are mapped
    struct atsi_plan_frame frame; // raw_offset: from dev on
};

// ---- the list -----------------------------------------------------------------------------------------------------

static enum atsi_status out_of_memory(struct atsi_error *err) {
    return atsi_fail(err, ATSI_FAILED, "out of memory while loading");
}

static enum atsi_status append(struct weights_pieces *p, const struct weights_piece *piece, struct atsi_error *err) {
    if (!atsi_grow((void **)&p->pieces, p->n_pieces, &p->cap, sizeof *piece)) return out_of_memory(err);
    p->pieces[p->n_pieces++] = *piece;
    return ATSI_OK;
}

enum atsi_status weights_pieces_add_part(struct weights_pieces *p, const struct atsi_plan_blob *blob, uint64_t offset,
                                         uint64_t bytes, void *dev, struct atsi_error *err) {
    uint64_t step = dev ? COPY_BYTES : MAP_BYTES;
    for (uint64_t at = 0; at < bytes; at += step) {
        uint32_t n = (uint32_t)(bytes - at < step ? bytes - at : step);
        struct atsi_plan_frame frame = {
            .stored_offset = offset + at, .raw_offset = at, .stored_bytes = n, .raw_bytes = n};
        ATSI_TRY(append(p, &(struct weights_piece){blob, dev, frame}, err));
    }
    return ATSI_OK;
}

static enum atsi_status add_compressed(struct weights_pieces *p, const struct atsi_plan_blob *blob, void *dev,
                                       struct atsi_error *err) {
    struct atsi_plan_frame *frames;
    size_t n_frames;
    enum atsi_status status = atsi_plan_file_frames(p->file, blob, &frames, &n_frames, err);
    for (size_t i = 0; status == ATSI_OK && i < n_frames; i++)
        status = append(p, &(struct weights_piece){blob, dev, frames[i]}, err);
    free(frames);
    return status;
}

enum atsi_status weights_pieces_add(struct weights_pieces *p, const struct atsi_plan_blob *blob, void *dev,
                                    struct atsi_error *err) {
    if (blob->encoding == ATSI_PLAN_RAW) return weights_pieces_add_part(p, blob, 0, blob->tensor.size_bytes, dev, err);
    return dev ? add_compressed(p, blob, dev, err) : ATSI_OK;
}

void weights_pieces_free(struct weights_pieces *p) {
    free(p->pieces);
    p->pieces = NULL;
    p->n_pieces = 0;
    p->cap = 0;
}

// ---- bringing -----------------------------------------------------------------------------------------------------

// What a thread unpacks with; made when it meets its first frame.
struct bench {
    struct atsi_plan_unpacker *unpacker;
    uint8_t *frame;
};

struct bringing {
    const struct weights_pieces *p;
    const struct weights_pieces_run *run;
    struct bench *benches;   // [n_threads]
    pthread_mutex_t lock;    // of what follows, and of telling
    enum atsi_status status; // of the first failure
    struct atsi_error err;
    _Atomic bool failed;
};

static enum atsi_status set_up(struct bench *bench, struct atsi_error *err) {
    if (!bench->frame) bench->frame = malloc(ATSI_PLAN_FRAME_BYTES);
    if (!bench->frame) return out_of_memory(err);
    return bench->unpacker ? ATSI_OK : atsi_plan_unpacker_new(&bench->unpacker, err);
}

static enum atsi_status bring(struct bringing *b, const struct weights_piece *piece, int i_thread,
                              struct atsi_error *err) {
    const struct atsi_plan_file *file = b->p->file;
    const uint8_t *stored = atsi_plan_file_stored(file, piece->blob) + piece->frame.stored_offset;
    if (!piece->dev) {
        atsi_bulk_read(NULL, NULL, NULL, stored, piece->frame.raw_bytes);
        return ATSI_OK;
    }
    const void *src = stored;
    if (piece->blob->encoding != ATSI_PLAN_RAW) {
        struct bench *bench = &b->benches[i_thread];
        ATSI_TRY(set_up(bench, err));
        ATSI_TRY(atsi_plan_file_unpack(file, piece->blob, &piece->frame, bench->unpacker, bench->frame, err));
        src = bench->frame;
    }
    return atsi_upload_add(b->run->upload, (uint32_t)i_thread, (char *)piece->dev + piece->frame.raw_offset, src,
                           piece->frame.raw_bytes, err);
}

static uint32_t count_pieces(void *context, uint32_t phase) {
    (void)phase;
    return ((const struct bringing *)context)->p->n_pieces;
}

static void bring_item(void *context, uint32_t phase, uint32_t item, int i_thread) {
    struct bringing *b = context;
    const struct weights_piece *piece = &b->p->pieces[item];
    struct atsi_error err = {0};
    (void)phase;
    if (atomic_load_explicit(&b->failed, memory_order_relaxed)) return;
    enum atsi_status status = bring(b, piece, i_thread, &err);
    pthread_mutex_lock(&b->lock);
    if (status == ATSI_OK && b->status == ATSI_OK)
        status = b->run->advance(b->run->context, piece->frame.raw_bytes, &err);
    if (status != ATSI_OK && b->status == ATSI_OK) {
        b->status = status;
        b->err = err;
        atomic_store_explicit(&b->failed, true, memory_order_relaxed);
    }
    pthread_mutex_unlock(&b->lock);
}

enum atsi_status weights_pieces_bring(struct weights_pieces *p, const struct weights_pieces_run *run,
                                      struct atsi_error *err) {
    static const struct atsi_pool_work work = {.n_phases = 1, .begin = count_pieces, .item = bring_item};
    int n_threads = atsi_pool_n_threads(run->pool);
    struct bringing b = {.p = p, .run = run, .benches = calloc((size_t)n_threads, sizeof *b.benches)};
    if (!b.benches) return out_of_memory(err);
    pthread_mutex_init(&b.lock, NULL);
    atsi_pool_share(run->pool, &work, &b);
    pthread_mutex_destroy(&b.lock);
    for (int i = 0; i < n_threads; i++) {
        atsi_plan_unpacker_free(b.benches[i].unpacker);
        free(b.benches[i].frame);
    }
    free(b.benches);
    weights_pieces_free(p);
    if (b.status != ATSI_OK && err) *err = b.err;
    return b.status;
}
