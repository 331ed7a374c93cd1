// Tensors as zstd frames. Every frame holds at most 4 MiB and stands alone, so that memory stays bounded on both sides.
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <zstd.h>

#include "formats/plan_format.h"

static enum atsi_status out_of_memory(struct atsi_error *err) { return atsi_fail(err, ATSI_FAILED, "out of memory"); }

uint32_t atsi_plan_n_planes(enum atsi_dtype dtype) {
    switch (dtype) {
    case ATSI_F16:
    case ATSI_BF16: return 2;
    case ATSI_F32: return 4;
    default: return 1;
    }
}

// Byte k of every element, then byte k + 1: exponents end up side by side, where they compress. Inlined with a constant
// count the loops become vector code (the Makefile compiles this file with -O3).
static inline void split_into(uint8_t *restrict dst, const uint8_t *restrict src, size_t n, uint32_t n_planes) {
    for (uint32_t k = 0; k < n_planes; k++)
        for (size_t i = 0; i < n; i++) dst[k * n + i] = src[i * n_planes + k];
}

static inline void join_from(uint8_t *restrict dst, const uint8_t *restrict src, size_t n, uint32_t n_planes) {
    for (size_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < n_planes; k++) dst[i * n_planes + k] = src[k * n + i];
}

static void split_planes(uint8_t *dst, const uint8_t *src, size_t size, uint32_t n_planes) {
    if (n_planes == 2)
        split_into(dst, src, size / 2, 2);
    else
        split_into(dst, src, size / 4, 4);
}

static void join_planes(uint8_t *dst, const uint8_t *src, size_t size, uint32_t n_planes) {
    if (n_planes == 2)
        join_from(dst, src, size / 2, 2);
    else
        join_from(dst, src, size / 4, 4);
}

// ---- packing -----------------------------------------------------------------------------------------------------

struct plan_encoder {
    ZSTD_CCtx *context;
    uint8_t *planes; // [PLAN_FRAME_BYTES]
    uint8_t *frame;  // [frame_cap]
    size_t frame_cap;
};

enum atsi_status atsi_plan_encoder_new(struct plan_encoder **out, struct atsi_error *err) {
    struct plan_encoder *encoder = *out = calloc(1, sizeof *encoder);
    if (!encoder) return out_of_memory(err);
    encoder->frame_cap = ZSTD_compressBound(PLAN_FRAME_BYTES);
    encoder->context = ZSTD_createCCtx();
    encoder->planes = malloc(PLAN_FRAME_BYTES);
    encoder->frame = malloc(encoder->frame_cap);
    return encoder->context && encoder->planes && encoder->frame ? ATSI_OK : out_of_memory(err);
}

void atsi_plan_encoder_free(struct plan_encoder *encoder) {
    if (!encoder) return;
    ZSTD_freeCCtx(encoder->context);
    free(encoder->planes);
    free(encoder->frame);
    free(encoder);
}

enum atsi_status atsi_plan_encode_frame(struct plan_encoder *encoder, const void *data, size_t size_bytes,
                                        uint32_t n_planes, int level, struct atsi_str *frame, struct atsi_error *err) {
    if (n_planes > 1) {
        split_planes(encoder->planes, data, size_bytes, n_planes);
        data = encoder->planes;
    }
    size_t n = ZSTD_compressCCtx(encoder->context, encoder->frame, encoder->frame_cap, data, size_bytes, level);
    if (ZSTD_isError(n)) return atsi_fail(err, ATSI_FAILED, "cannot compress: %s", ZSTD_getErrorName(n));
    *frame = (struct atsi_str){(const char *)encoder->frame, n};
    return ATSI_OK;
}

// ---- unpacking ---------------------------------------------------------------------------------------------------

struct frame {
    uint64_t stored_at, raw_at; // offsets in the stored and in the unpacked tensor
    uint32_t stored_bytes, raw_bytes;
};

// A tensor being unpacked, by several threads perhaps; `lock` guards what is below it.
struct unpacking {
    const uint8_t *stored;
    uint8_t *dst;       // NULL: the frames are only checked
    uint64_t raw_bytes; // of the tensor
    uint32_t n_planes;
    struct frame *frames;
    size_t n_frames, frames_cap;
    pthread_mutex_t lock;
    size_t next;
    enum atsi_status status; // of the first failure
    struct atsi_error err;
};

static enum atsi_status bad_frame(struct atsi_error *err, uint64_t at, const char *what) {
    return atsi_fail(err, ATSI_BAD_INPUT, "expected a zstd frame of at most 4 MiB at byte %" PRIu64 ", found %s", at,
                     what);
}

static enum atsi_status add_frame(struct unpacking *u, const struct frame *frame, struct atsi_error *err) {
    if (u->n_frames == u->frames_cap) {
        size_t cap = u->frames_cap ? 2 * u->frames_cap : 16;
        struct frame *frames = realloc(u->frames, cap * sizeof *frames);
        if (!frames) return out_of_memory(err);
        u->frames = frames;
        u->frames_cap = cap;
    }
    u->frames[u->n_frames++] = *frame;
    return ATSI_OK;
}

// Finds all frames from their headers and checks that together they are the tensor.
static enum atsi_status find_frames(struct unpacking *u, uint64_t stored_bytes, struct atsi_error *err) {
    uint64_t done = 0;
    for (uint64_t at = 0; at < stored_bytes;) {
        size_t size = ZSTD_findFrameCompressedSize(u->stored + at, stored_bytes - at);
        if (ZSTD_isError(size)) return bad_frame(err, at, ZSTD_getErrorName(size));
        unsigned long long content = ZSTD_getFrameContentSize(u->stored + at, size);
        bool fits =
            content && content <= PLAN_FRAME_BYTES && content <= u->raw_bytes - done && content % u->n_planes == 0;
        if (!fits || size > UINT32_MAX) return bad_frame(err, at, "another size");
        ATSI_TRY(add_frame(u, &(struct frame){at, done, (uint32_t)size, (uint32_t)content}, err));
        at += size;
        done += content;
    }
    if (done == u->raw_bytes) return ATSI_OK;
    return atsi_fail(err, ATSI_BAD_INPUT, "expected %" PRIu64 " bytes unpacked, found %" PRIu64, u->raw_bytes, done);
}

static enum atsi_status unpack_frame(const struct unpacking *u, const struct frame *frame, ZSTD_DCtx *context,
                                     uint8_t *scratch, struct atsi_error *err) {
    uint8_t *dst = u->dst ? u->dst + frame->raw_at : NULL, *target = dst && u->n_planes == 1 ? dst : scratch;
    size_t n =
        ZSTD_decompressDCtx(context, target, frame->raw_bytes, u->stored + frame->stored_at, frame->stored_bytes);
    if (ZSTD_isError(n)) return bad_frame(err, frame->stored_at, ZSTD_getErrorName(n));
    if (n != frame->raw_bytes) return bad_frame(err, frame->stored_at, "another size");
    if (dst && u->n_planes > 1) join_planes(dst, scratch, n, u->n_planes);
    return ATSI_OK;
}

// The next frame for a thread; NULL when there is none or another thread failed.
static const struct frame *take_frame(struct unpacking *u) {
    pthread_mutex_lock(&u->lock);
    const struct frame *frame = u->status == ATSI_OK && u->next < u->n_frames ? &u->frames[u->next++] : NULL;
    pthread_mutex_unlock(&u->lock);
    return frame;
}

static void note_failure(struct unpacking *u, enum atsi_status status, const struct atsi_error *err) {
    pthread_mutex_lock(&u->lock);
    if (u->status == ATSI_OK) {
        u->status = status;
        u->err = *err;
    }
    pthread_mutex_unlock(&u->lock);
}

static void *unpack_frames(void *argument) {
    struct unpacking *u = argument;
    struct atsi_error err = {0};
    ZSTD_DCtx *context = ZSTD_createDCtx();
    uint8_t *scratch = malloc(u->raw_bytes < PLAN_FRAME_BYTES ? u->raw_bytes : PLAN_FRAME_BYTES);
    enum atsi_status status = context && scratch ? ATSI_OK : out_of_memory(&err);
    for (const struct frame *frame; status == ATSI_OK && (frame = take_frame(u));)
        status = unpack_frame(u, frame, context, scratch, &err);
    if (status != ATSI_OK) note_failure(u, status, &err);
    ZSTD_freeDCtx(context);
    free(scratch);
    return NULL;
}

static enum atsi_status unpack_by_threads(struct unpacking *u, uint32_t n_threads, struct atsi_error *err) {
    enum {
        MAX_HELPERS = 63
    };
    pthread_t helpers[MAX_HELPERS];
    uint32_t n_helpers = 0, n_wanted = n_threads > MAX_HELPERS ? MAX_HELPERS : n_threads ? n_threads - 1 : 0;
    if (n_wanted >= u->n_frames) n_wanted = (uint32_t)u->n_frames - 1;
    while (n_helpers < n_wanted && pthread_create(&helpers[n_helpers], NULL, unpack_frames, u) == 0) n_helpers++;
    unpack_frames(u);
    for (uint32_t i = 0; i < n_helpers; i++) pthread_join(helpers[i], NULL);
    if (err && u->status != ATSI_OK) *err = u->err;
    return u->status;
}

enum atsi_status atsi_plan_decode(const struct atsi_plan_blob *blob, const uint8_t *stored, uint32_t n_threads,
                                  uint8_t *dst, struct atsi_error *err) {
    if (blob->encoding == ATSI_PLAN_RAW) {
        if (dst) memcpy(dst, stored, blob->tensor.size_bytes);
        return ATSI_OK;
    }
    struct unpacking u = {.stored = stored, .dst = dst, .raw_bytes = blob->tensor.size_bytes};
    u.n_planes = blob->encoding == ATSI_PLAN_ZSTD_PLANES ? atsi_plan_n_planes(blob->tensor.dtype) : 1;
    enum atsi_status status = find_frames(&u, blob->stored_bytes, err);
    pthread_mutex_init(&u.lock, NULL);
    if (status == ATSI_OK) status = unpack_by_threads(&u, n_threads, err);
    pthread_mutex_destroy(&u.lock);
    free(u.frames);
    return status;
}
