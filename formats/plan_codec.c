// Tensors as zstd frames. Every frame holds at most 4 MiB and stands alone, so that memory stays bounded on both sides.
#include <inttypes.h>
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

// Byte k of every element, then byte k + 1: exponents end up side by side, where they compress.
static void split_planes(uint8_t *dst, const uint8_t *src, size_t size, uint32_t n_planes) {
    size_t n = size / n_planes;
    for (uint32_t k = 0; k < n_planes; k++)
        for (size_t i = 0; i < n; i++) dst[k * n + i] = src[i * n_planes + k];
}

static void join_planes(uint8_t *dst, const uint8_t *src, size_t size, uint32_t n_planes) {
    size_t n = size / n_planes;
    for (uint32_t k = 0; k < n_planes; k++)
        for (size_t i = 0; i < n; i++) dst[i * n_planes + k] = src[k * n + i];
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

struct decoder {
    ZSTD_DCtx *context;
    uint8_t *scratch; // a frame of this tensor, for planes and for frames that are only checked
    uint32_t n_planes;
};

static enum atsi_status bad_frame(struct atsi_error *err, uint64_t at, const char *what) {
    return atsi_fail(err, ATSI_BAD_INPUT, "expected a zstd frame of at most 4 MiB at byte %" PRIu64 ", found %s", at,
                     what);
}

// Unpacks the frame at `at` to dst (checks it when NULL), of which `left` bytes are to be filled.
static enum atsi_status decode_frame(struct decoder *d, const struct atsi_plan_blob *blob, const uint8_t *stored,
                                     uint64_t at, uint8_t *dst, uint64_t left, size_t *n_stored, size_t *n_raw,
                                     struct atsi_error *err) {
    *n_stored = ZSTD_findFrameCompressedSize(stored + at, blob->stored_bytes - at);
    if (ZSTD_isError(*n_stored)) return bad_frame(err, at, ZSTD_getErrorName(*n_stored));
    unsigned long long content = ZSTD_getFrameContentSize(stored + at, *n_stored);
    if (content == 0 || content > PLAN_FRAME_BYTES || content > left || content % d->n_planes)
        return bad_frame(err, at, "another size");
    *n_raw = (size_t)content;
    uint8_t *target = dst && d->n_planes == 1 ? dst : d->scratch;
    size_t n = ZSTD_decompressDCtx(d->context, target, *n_raw, stored + at, *n_stored);
    if (ZSTD_isError(n)) return bad_frame(err, at, ZSTD_getErrorName(n));
    if (n != *n_raw) return bad_frame(err, at, "another size");
    if (dst && d->n_planes > 1) join_planes(dst, d->scratch, *n_raw, d->n_planes);
    return ATSI_OK;
}

static enum atsi_status decode_frames(struct decoder *d, const struct atsi_plan_blob *blob, const uint8_t *stored,
                                      uint8_t *dst, struct atsi_error *err) {
    uint64_t done = 0;
    for (uint64_t at = 0; at < blob->stored_bytes;) {
        size_t n_stored = 0, n_raw = 0;
        ATSI_TRY(decode_frame(d, blob, stored, at, dst ? dst + done : NULL, blob->tensor.size_bytes - done, &n_stored,
                              &n_raw, err));
        at += n_stored;
        done += n_raw;
    }
    if (done == blob->tensor.size_bytes) return ATSI_OK;
    return atsi_fail(err, ATSI_BAD_INPUT, "expected %" PRIu64 " bytes unpacked, found %" PRIu64,
                     blob->tensor.size_bytes, done);
}

enum atsi_status atsi_plan_decode(const struct atsi_plan_blob *blob, const uint8_t *stored, uint8_t *dst,
                                  struct atsi_error *err) {
    if (blob->encoding == ATSI_PLAN_RAW) {
        if (dst) memcpy(dst, stored, blob->tensor.size_bytes);
        return ATSI_OK;
    }
    uint64_t size_bytes = blob->tensor.size_bytes;
    struct decoder d = {ZSTD_createDCtx(), malloc(size_bytes < PLAN_FRAME_BYTES ? size_bytes : PLAN_FRAME_BYTES),
                        blob->encoding == ATSI_PLAN_ZSTD_PLANES ? atsi_plan_n_planes(blob->tensor.dtype) : 1};
    enum atsi_status status = d.context && d.scratch ? decode_frames(&d, blob, stored, dst, err) : out_of_memory(err);
    ZSTD_freeDCtx(d.context);
    free(d.scratch);
    return status;
}
