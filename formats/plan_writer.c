// Writing plan files. Layout: header page | gap up to the section alignment | resident | pinned | rest. Manifest, index and
// tokenizer are known last; each goes into the gap if it still fits there, else behind the tensors.
#include "formats/plan_writer.h"

#include <inttypes.h>
#include <stdlib.h>
#include <zstd.h>

#include "formats/base/checked.h"
#include "formats/base/grow.h"
#include "formats/base/hash.h"
#include "formats/base/new_file.h"
#include "formats/base/page_writer.h"
#include "formats/plan_format.h"

enum {
    DEFAULT_SECTION_ALIGNMENT = 2 << 20,
    BLOB_LEVEL = 3,     // zstd levels: gigabytes of tensors,
    MANIFEST_LEVEL = 19 // and a small text
};

struct atsi_plan_writer {
    struct atsi_new_file file;
    struct atsi_page_writer tensors; // their bytes on the way to the file
    struct plan_header header;
    struct atsi_plan_blob *blobs;
    uint32_t n_blobs;
    size_t blobs_cap;
    uint64_t end_offset;          // where the next tensor may start
    struct plan_encoder *encoder; // made when first needed
    struct atsi_hasher *hasher;
    // The tensor that is being written: blobs[n_blobs].
    bool is_open, compress, decided; // decided: the first frame has shown whether compression pays
    uint8_t *frame;                  // [ATSI_PLAN_FRAME_BYTES], appended bytes that fill no frame yet
    size_t frame_size;
    uint64_t raw_bytes; // appended so far
};

static enum atsi_status misused(struct atsi_error *err, const char *what) {
    return atsi_fail(err, ATSI_FAILED, "cannot write the plan: %s", what);
}

// ---- start -------------------------------------------------------------------------------------------------------

static enum atsi_status set_options(struct plan_header *header, const struct atsi_plan_writer_options *options,
                                    struct atsi_error *err) {
    struct atsi_plan_writer_options o = options ? *options : (struct atsi_plan_writer_options){0};
    uint64_t alignment = o.section_alignment ? o.section_alignment : DEFAULT_SECTION_ALIGNMENT;
    if (alignment < PLAN_MIN_SECTION_ALIGNMENT || alignment > PLAN_MAX_SECTION_ALIGNMENT ||
        (alignment & (alignment - 1)))
        return misused(err, "section alignment");
    header->version = PLAN_VERSION;
    header->section_alignment = alignment;
    header->flags = (o.no_weights ? PLAN_FLAG_NO_WEIGHTS : 0u) | (o.shipped ? PLAN_FLAG_SHIPPED : 0u);
    return ATSI_OK;
}

static enum atsi_status start(struct atsi_plan_writer *w, const char *path,
                              const struct atsi_plan_writer_options *options, struct atsi_error *err) {
    ATSI_TRY(set_options(&w->header, options, err));
    ATSI_TRY(atsi_hasher_new(&w->hasher, err));
    w->frame = malloc(ATSI_PLAN_FRAME_BYTES);
    w->end_offset = PLAN_HEADER_BYTES;
    return w->frame ? atsi_new_file_create(&w->file, path, err) : atsi_out_of_memory(err);
}

enum atsi_status atsi_plan_writer_create(struct atsi_plan_writer **out, const char *path,
                                         const struct atsi_plan_writer_options *options, struct atsi_error *err) {
    *out = calloc(1, sizeof **out);
    if (!*out) return atsi_out_of_memory(err);
    enum atsi_status status = start(*out, path, options, err);
    if (status != ATSI_OK) {
        atsi_plan_writer_free(*out);
        *out = NULL;
    }
    return status;
}

void atsi_plan_writer_free(struct atsi_plan_writer *w) {
    if (!w) return;
    atsi_new_file_discard(&w->file);
    atsi_page_writer_free(&w->tensors);
    atsi_plan_encoder_free(w->encoder);
    atsi_hasher_free(w->hasher);
    free(w->blobs);
    free(w->frame);
    free(w);
}

uint32_t atsi_plan_writer_n_blobs(const struct atsi_plan_writer *w) { return w->n_blobs; }
const struct atsi_plan_blob *atsi_plan_writer_blob(const struct atsi_plan_writer *w, uint32_t index) {
    return &w->blobs[index];
}

// ---- tensors -----------------------------------------------------------------------------------------------------

static enum atsi_status reserve_blob(struct atsi_plan_writer *w, struct atsi_error *err) {
    if (w->n_blobs == ATSI_MAX_TENSORS) return misused(err, "too many tensors");
    return atsi_grow((void **)&w->blobs, w->n_blobs, &w->blobs_cap, sizeof *w->blobs) ? ATSI_OK
                                                                                      : atsi_out_of_memory(err);
}

// Fills blobs[n_blobs] with what is known before the bytes are.
static enum atsi_status describe(struct atsi_plan_writer *w, const struct atsi_tensor *tensor,
                                 enum atsi_plan_section section, struct atsi_error *err) {
    ATSI_TRY(reserve_blob(w, err));
    if (w->is_open) return misused(err, "a tensor begins inside another");
    if (w->n_blobs && section < w->blobs[w->n_blobs - 1].section)
        return misused(err, "a resident tensor follows a pinned one");
    if (!tensor->name[0] || tensor->size_bytes == 0 ||
        tensor->size_bytes != atsi_layout_bytes(tensor->dtype, tensor->layout, tensor->ne))
        return atsi_fail(err, ATSI_FAILED, "cannot write the plan: tensor \"%s\" has no name or the wrong size",
                         atsi_label(atsi_str_of(tensor->name)).text);
    w->blobs[w->n_blobs] = (struct atsi_plan_blob){.tensor = *tensor, .section = section};
    return ATSI_OK;
}

static enum atsi_status place(struct atsi_plan_writer *w, struct atsi_plan_blob *blob, struct atsi_error *err) {
    struct plan_range *range = &w->header.parts[PLAN_PART_RESIDENT + blob->section];
    uint64_t alignment = blob->tensor.size_bytes < PLAN_LARGE_BYTES ? PLAN_SMALL_ALIGNMENT : PLAN_LARGE_ALIGNMENT;
    bool is_first = range->offset == 0;
    if (!atsi_align_u64(w->end_offset, is_first ? w->header.section_alignment : alignment, &blob->offset))
        return misused(err, "it grows too large");
    if (is_first) range->offset = blob->offset;
    return ATSI_OK;
}

enum atsi_status atsi_plan_writer_begin(struct atsi_plan_writer *w, const struct atsi_tensor *tensor,
                                        enum atsi_plan_section section, bool compress, struct atsi_error *err) {
    if (w->header.flags & PLAN_FLAG_NO_WEIGHTS) return misused(err, "a plan without weights takes no tensors");
    ATSI_TRY(describe(w, tensor, section, err));
    ATSI_TRY(place(w, &w->blobs[w->n_blobs], err));
    if (compress && !w->encoder) ATSI_TRY(atsi_plan_encoder_new(&w->encoder, err));
    w->is_open = true;
    w->compress = compress;
    w->decided = false;
    w->frame_size = 0;
    w->raw_bytes = 0;
    atsi_hasher_reset(w->hasher);
    return ATSI_OK;
}

static enum atsi_status store(struct atsi_plan_writer *w, const void *data, uint64_t size_bytes,
                              struct atsi_error *err) {
    struct atsi_plan_blob *blob = &w->blobs[w->n_blobs];
    uint64_t offset = blob->offset + blob->stored_bytes;
    ATSI_TRY(atsi_page_writer_append(&w->tensors, &w->file, data, size_bytes, offset, err));
    atsi_hasher_update(w->hasher, data, size_bytes);
    blob->stored_bytes += size_bytes;
    return ATSI_OK;
}

// One frame's worth of a tensor (less at its end). The first one decides whether the tensor is compressed: weights
// look alike all over, and a second pass over gigabytes would cost more than a wrong guess.
static enum atsi_status store_frame(struct atsi_plan_writer *w, const void *data, size_t size_bytes,
                                    struct atsi_error *err) {
    struct atsi_plan_blob *blob = &w->blobs[w->n_blobs];
    uint32_t n_planes = atsi_plan_n_planes(blob->tensor.dtype);
    struct atsi_str packed = {data, size_bytes};
    if (w->compress) ATSI_TRY(atsi_plan_encode_frame(w->encoder, data, size_bytes, n_planes, BLOB_LEVEL, &packed, err));
    if (!w->decided) {
        w->decided = true;
        w->compress = w->compress && packed.size * 100 < size_bytes * 97;
        if (w->compress) blob->encoding = n_planes > 1 ? ATSI_PLAN_ZSTD_PLANES : ATSI_PLAN_ZSTD;
    }
    return w->compress ? store(w, packed.data, packed.size, err) : store(w, data, size_bytes, err);
}

enum atsi_status atsi_plan_writer_append(struct atsi_plan_writer *w, const void *data, uint64_t size_bytes,
                                         struct atsi_error *err) {
    const uint8_t *p = data;
    if (!w->is_open || size_bytes > w->blobs[w->n_blobs].tensor.size_bytes - w->raw_bytes)
        return misused(err, "more bytes than the tensor has");
    w->raw_bytes += size_bytes;
    while (size_bytes) {
        if (w->frame_size == 0 && size_bytes >= ATSI_PLAN_FRAME_BYTES) { // straight from the caller
            ATSI_TRY(store_frame(w, p, ATSI_PLAN_FRAME_BYTES, err));
            p += ATSI_PLAN_FRAME_BYTES;
            size_bytes -= ATSI_PLAN_FRAME_BYTES;
            continue;
        }
        size_t room = ATSI_PLAN_FRAME_BYTES - w->frame_size, n = size_bytes < room ? (size_t)size_bytes : room;
        memcpy(w->frame + w->frame_size, p, n);
        w->frame_size += n;
        p += n;
        size_bytes -= n;
        if (w->frame_size < ATSI_PLAN_FRAME_BYTES) continue;
        ATSI_TRY(store_frame(w, w->frame, w->frame_size, err));
        w->frame_size = 0;
    }
    return ATSI_OK;
}

enum atsi_status atsi_plan_writer_end(struct atsi_plan_writer *w, struct atsi_error *err) {
    struct atsi_plan_blob *blob = &w->blobs[w->n_blobs];
    if (!w->is_open || w->raw_bytes != blob->tensor.size_bytes) return misused(err, "fewer bytes than the tensor has");
    if (w->frame_size) ATSI_TRY(store_frame(w, w->frame, w->frame_size, err));
    blob->checksum = atsi_hasher_digest(w->hasher);
    w->end_offset = blob->offset + blob->stored_bytes;
    struct plan_range *range = &w->header.parts[PLAN_PART_RESIDENT + blob->section];
    range->stored_bytes = range->raw_bytes = w->end_offset - range->offset;
    w->is_open = false;
    w->n_blobs++;
    return ATSI_OK;
}

enum atsi_status atsi_plan_writer_add(struct atsi_plan_writer *w, const struct atsi_tensor *tensor,
                                      enum atsi_plan_section section, bool compress, const void *data,
                                      struct atsi_error *err) {
    ATSI_TRY(atsi_plan_writer_begin(w, tensor, section, compress, err));
    ATSI_TRY(atsi_plan_writer_append(w, data, tensor->size_bytes, err));
    return atsi_plan_writer_end(w, err);
}

enum atsi_status atsi_plan_writer_declare(struct atsi_plan_writer *w, const struct atsi_tensor *tensor,
                                          enum atsi_plan_section section, struct atsi_error *err) {
    if (!(w->header.flags & PLAN_FLAG_NO_WEIGHTS)) return misused(err, "a tensor has no bytes");
    ATSI_TRY(describe(w, tensor, section, err));
    w->n_blobs++;
    return ATSI_OK;
}

// ---- end ---------------------------------------------------------------------------------------------------------

struct space {
    uint64_t gap_offset, gap_end; // between header and tensors
    uint64_t end_offset;          // behind them
};

static enum atsi_status store_part(struct atsi_plan_writer *w, enum plan_part part, struct space *space,
                                   struct atsi_str bytes, uint64_t raw_bytes, struct atsi_error *err) {
    struct plan_range *range = &w->header.parts[part];
    if (bytes.size == 0) return ATSI_OK;
    uint64_t *next = bytes.size <= space->gap_end - space->gap_offset ? &space->gap_offset : &space->end_offset;
    *range = (struct plan_range){*next, bytes.size, raw_bytes, atsi_hash(bytes.data, bytes.size)};
    ATSI_TRY(atsi_new_file_write(&w->file, bytes.data, bytes.size, range->offset, err));
    *next = range->offset + bytes.size;
    if (!atsi_align_u64(*next, PLAN_BLOB_ALIGNMENT, next)) return misused(err, "it grows too large");
    if (space->gap_offset > space->gap_end) space->gap_offset = space->gap_end;
    return ATSI_OK;
}

static enum atsi_status store_index(struct atsi_plan_writer *w, struct space *space, struct atsi_error *err) {
    size_t size = (size_t)w->n_blobs * PLAN_RECORD_BYTES;
    uint8_t *records = malloc(size + 1);
    if (!records) return atsi_out_of_memory(err);
    for (uint32_t i = 0; i < w->n_blobs; i++)
        atsi_plan_record_encode(&w->blobs[i], records + (size_t)i * PLAN_RECORD_BYTES);
    enum atsi_status status =
        store_part(w, PLAN_PART_INDEX, space, (struct atsi_str){(const char *)records, size}, size, err);
    free(records);
    return status;
}

static enum atsi_status compress_manifest(struct atsi_str manifest, struct atsi_str *packed, struct atsi_error *err) {
    size_t cap = ZSTD_compressBound(manifest.size);
    char *out = malloc(cap);
    ZSTD_CCtx *context = ZSTD_createCCtx();
    size_t n = 0;
    if (out && context) {
        ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, MANIFEST_LEVEL);
        ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
        n = ZSTD_compress2(context, out, cap, manifest.data, manifest.size);
    }
    ZSTD_freeCCtx(context);
    *packed = (struct atsi_str){out, n};
    if (!n) return atsi_out_of_memory(err);
    return ZSTD_isError(n) ? atsi_fail(err, ATSI_FAILED, "cannot compress the manifest: %s", ZSTD_getErrorName(n))
                           : ATSI_OK;
}

static enum atsi_status store_manifest(struct atsi_plan_writer *w, struct space *space, struct atsi_str manifest,
                                       struct atsi_error *err) {
    if (manifest.size == 0 || manifest.size > PLAN_MAX_MANIFEST_BYTES || memchr(manifest.data, 0, manifest.size))
        return misused(err, "the manifest is empty, too large or no text");
    struct atsi_str packed;
    enum atsi_status status = compress_manifest(manifest, &packed, err);
    if (status == ATSI_OK) status = store_part(w, PLAN_PART_MANIFEST, space, packed, manifest.size, err);
    free((char *)packed.data);
    return status;
}

static struct space space_around_tensors(const struct atsi_plan_writer *w) {
    uint64_t first = w->header.parts[PLAN_PART_RESIDENT].offset;
    if (!first) first = w->header.parts[PLAN_PART_PINNED].offset;
    struct space space = {PLAN_HEADER_BYTES, first ? first : PLAN_HEADER_BYTES, w->end_offset};
    atsi_align_u64(space.end_offset, PLAN_LARGE_ALIGNMENT, &space.end_offset); // pages of a section stay its own
    return space;
}

enum atsi_status atsi_plan_writer_finish(struct atsi_plan_writer *w, struct atsi_str manifest,
                                         struct atsi_str tokenizer, struct atsi_error *err) {
    if (w->is_open) return misused(err, "a tensor is not ended");
    ATSI_TRY(atsi_page_writer_flush(&w->tensors, &w->file, err));
    struct space space = space_around_tensors(w);
    ATSI_TRY(store_manifest(w, &space, manifest, err));
    ATSI_TRY(store_index(w, &space, err));
    ATSI_TRY(store_part(w, PLAN_PART_TOKENIZER, &space, tokenizer, tokenizer.size, err));
    w->header.n_blobs = w->n_blobs;
    w->header.file_bytes = space.end_offset;
    uint8_t page[PLAN_HEADER_BYTES];
    atsi_plan_header_encode(&w->header, page);
    ATSI_TRY(atsi_new_file_write(&w->file, page, sizeof page, 0, err));
    return atsi_new_file_commit(&w->file, w->header.file_bytes, err);
}
