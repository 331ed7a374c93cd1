// Tensors as zstd frames. Every frame holds at most 4 MiB and stands alone, so that memory stays bounded on both sides.
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <zstd.h>

#include "formats/base/grow.h"
#include "formats/plan_format.h"

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
    uint8_t *planes; // [ATSI_PLAN_FRAME_BYTES]
    uint8_t *frame;  // [frame_cap]
    size_t frame_cap;
};

enum atsi_status atsi_plan_encoder_new(struct plan_encoder **out, struct atsi_error *err) {
    struct plan_encoder *encoder = *out = calloc(1, sizeof *encoder);
    if (!encoder) return atsi_out_of_memory(err);
    encoder->frame_cap = ZSTD_compressBound(ATSI_PLAN_FRAME_BYTES);
    encoder->context = ZSTD_createCCtx();
    encoder->planes = malloc(ATSI_PLAN_FRAME_BYTES);
    encoder->frame = malloc(encoder->frame_cap);
    return encoder->context && encoder->planes && encoder->frame ? ATSI_OK : atsi_out_of_memory(err);
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

static enum atsi_status bad_frame(struct atsi_error *err, uint64_t at, const char *what) {
    return atsi_fail(err, ATSI_BAD_INPUT, "expected a zstd frame of at most 4 MiB at byte %" PRIu64 ", found %s", at,
                     what);
}

// Frames of one tensor while they are found.
struct frame_list {
    struct atsi_plan_frame *frames;
    size_t n_frames, cap;
};

static enum atsi_status add_frame(struct frame_list *list, const struct atsi_plan_frame *frame,
                                  struct atsi_error *err) {
    if (!atsi_grow((void **)&list->frames, list->n_frames, &list->cap, sizeof *frame)) return atsi_out_of_memory(err);
    list->frames[list->n_frames++] = *frame;
    return ATSI_OK;
}

static uint32_t planes_of(const struct atsi_plan_blob *blob) {
    return blob->encoding == ATSI_PLAN_ZSTD_PLANES ? atsi_plan_n_planes(blob->tensor.dtype) : 1;
}

static enum atsi_status list_frames(struct frame_list *list, const struct atsi_plan_blob *blob, const uint8_t *stored,
                                    struct atsi_error *err) {
    uint64_t done = 0, raw_bytes = blob->tensor.size_bytes;
    for (uint64_t at = 0; at < blob->stored_bytes;) {
        size_t size = ZSTD_findFrameCompressedSize(stored + at, blob->stored_bytes - at);
        if (ZSTD_isError(size)) return bad_frame(err, at, ZSTD_getErrorName(size));
        unsigned long long content = ZSTD_getFrameContentSize(stored + at, size);
        bool fits = content && content <= ATSI_PLAN_FRAME_BYTES && content <= raw_bytes - done &&
                    content % planes_of(blob) == 0;
        if (!fits || size > UINT32_MAX) return bad_frame(err, at, "another size");
        ATSI_TRY(add_frame(list, &(struct atsi_plan_frame){at, done, (uint32_t)size, (uint32_t)content}, err));
        at += size;
        done += content;
    }
    if (done == raw_bytes) return ATSI_OK;
    return atsi_fail(err, ATSI_BAD_INPUT, "expected %" PRIu64 " bytes unpacked, found %" PRIu64, raw_bytes, done);
}

enum atsi_status atsi_plan_find_frames(const struct atsi_plan_blob *blob, const uint8_t *stored,
                                       struct atsi_plan_frame **frames, size_t *n_frames, struct atsi_error *err) {
    struct frame_list list = {0};
    enum atsi_status status = list_frames(&list, blob, stored, err);
    if (status != ATSI_OK) {
        free(list.frames);
        list = (struct frame_list){0};
    }
    *frames = list.frames;
    *n_frames = list.n_frames;
    return status;
}

struct atsi_plan_unpacker {
    ZSTD_DCtx *context;
    uint8_t *scratch; // [ATSI_PLAN_FRAME_BYTES] of which only what is used becomes memory
};

enum atsi_status atsi_plan_unpacker_new(struct atsi_plan_unpacker **out, struct atsi_error *err) {
    struct atsi_plan_unpacker *unpacker = *out = calloc(1, sizeof *unpacker);
    if (!unpacker) return atsi_out_of_memory(err);
    unpacker->context = ZSTD_createDCtx();
    unpacker->scratch = malloc(ATSI_PLAN_FRAME_BYTES);
    return unpacker->context && unpacker->scratch ? ATSI_OK : atsi_out_of_memory(err);
}

void atsi_plan_unpacker_free(struct atsi_plan_unpacker *unpacker) {
    if (!unpacker) return;
    ZSTD_freeDCtx(unpacker->context);
    free(unpacker->scratch);
    free(unpacker);
}

enum atsi_status atsi_plan_unpack_frame(struct atsi_plan_unpacker *unpacker, const struct atsi_plan_blob *blob,
                                        const uint8_t *stored, const struct atsi_plan_frame *frame, uint8_t *dst,
                                        struct atsi_error *err) {
    uint32_t n_planes = planes_of(blob);
    uint8_t *target = dst && n_planes == 1 ? dst : unpacker->scratch;
    size_t n = ZSTD_decompressDCtx(unpacker->context, target, frame->raw_bytes, stored + frame->stored_offset,
                                   frame->stored_bytes);
    if (ZSTD_isError(n)) return bad_frame(err, frame->stored_offset, ZSTD_getErrorName(n));
    if (n != frame->raw_bytes) return bad_frame(err, frame->stored_offset, "another size");
    if (dst && n_planes > 1) join_planes(dst, unpacker->scratch, n, n_planes);
    return ATSI_OK;
}

// ---- a tensor by several threads ---------------------------------------------------------------------------------

// `lock` guards what is below it.
struct unpacking {
    const struct atsi_plan_blob *blob;
    const uint8_t *stored;
    uint8_t *dst; // NULL: the frames are only checked
    struct atsi_plan_frame *frames;
    size_t n_frames;
    pthread_mutex_t lock;
    size_t next;
    enum atsi_status status; // of the first failure
    struct atsi_error err;
};

// The next frame for a thread; NULL when there is none or another thread failed.
static const struct atsi_plan_frame *take_frame(struct unpacking *u) {
    pthread_mutex_lock(&u->lock);
    const struct atsi_plan_frame *frame = u->status == ATSI_OK && u->next < u->n_frames ? &u->frames[u->next++] : NULL;
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
    struct atsi_plan_unpacker *unpacker;
    enum atsi_status status = atsi_plan_unpacker_new(&unpacker, &err);
    for (const struct atsi_plan_frame *frame; status == ATSI_OK && (frame = take_frame(u));)
        status = atsi_plan_unpack_frame(unpacker, u->blob, u->stored, frame, u->dst ? u->dst + frame->raw_offset : NULL,
                                        &err);
    if (status != ATSI_OK) note_failure(u, status, &err);
    atsi_plan_unpacker_free(unpacker);
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
    struct unpacking u = {.blob = blob, .stored = stored, .dst = dst};
    ATSI_TRY(atsi_plan_find_frames(blob, stored, &u.frames, &u.n_frames, err));
    pthread_mutex_init(&u.lock, NULL);
    enum atsi_status status = unpack_by_threads(&u, n_threads, err);
    pthread_mutex_destroy(&u.lock);
    free(u.frames);
    return status;
}
