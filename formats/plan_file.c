// Reading plan files: every claim of the header and the index is checked before it is used.
#include "formats/plan_file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <zstd.h>

#include "formats/base/checked.h"
#include "formats/base/hash.h"
#include "formats/base/map.h"
#include "formats/plan_format.h"

struct atsi_plan_file {
    char *path;
    struct atsi_map map; // zeroed for a plan in memory
    const uint8_t *data;
    uint64_t size_bytes;
    struct plan_header header;
    char *manifest; // owned, NUL-terminated
    struct atsi_plan_blob *blobs;
    struct atsi_plan_blob **by_name; // sorted
};

// ---- header ------------------------------------------------------------------------------------------------------

static bool is_power_of_two(uint64_t v) { return v && !(v & (v - 1)); }

// What can be said of a header before anything in it is believed.
static enum atsi_status check_header_page(const struct atsi_plan_file *file, struct atsi_error *err) {
    if (file->size_bytes >= 4 && memcmp(file->data, "GGUF", 4) == 0)
        return atsi_fail(err, ATSI_BAD_INPUT, "no plan file but a GGUF model: make a plan of it with atsi-plan first");
    if (file->size_bytes >= 8 && memcmp(file->data, atsi_plan_magic, 8) != 0)
        return atsi_fail(err, ATSI_BAD_INPUT,
                         "no plan file: expected the magic of an .atsp file at offset 0, found \"%s\"",
                         atsi_label((struct atsi_str){(const char *)file->data, 8}).text);
    if (file->size_bytes < PLAN_HEADER_BYTES)
        return atsi_fail(err, ATSI_BAD_INPUT, "truncated at offset %" PRIu64 ": expected a header of %d bytes",
                         file->size_bytes, PLAN_HEADER_BYTES);
    struct plan_header header;
    atsi_plan_header_decode(file->data, &header);
    if (header.version != PLAN_VERSION)
        return atsi_fail(
            err, ATSI_BAD_INPUT,
            "plan format version: expected %d, found %u: make the plan again with this version of atsi-plan",
            PLAN_VERSION, header.version);
    uint8_t canonical
        [PLAN_HEADER_BYTES]; // encoding what was decoded gives the same bytes: checksum and reserved fields are right
    atsi_plan_header_encode(&header, canonical);
    if (memcmp(canonical, file->data, PLAN_HEADER_BYTES) != 0)
        return atsi_fail(err, ATSI_BAD_INPUT, "header: its checksum does not match: the file is damaged");
    return ATSI_OK;
}

static enum atsi_status check_part_range(const struct atsi_plan_file *file, enum plan_part part,
                                         struct atsi_error *err) {
    const struct plan_range *r = &file->header.parts[part];
    bool is_section = part >= PLAN_PART_RESIDENT;
    uint64_t alignment = is_section ? file->header.section_alignment : PLAN_BLOB_ALIGNMENT;
    if (r->stored_bytes == 0 && r->offset == 0 && r->raw_bytes == 0) return ATSI_OK;
    if (r->stored_bytes == 0 || r->offset % alignment || r->offset < PLAN_HEADER_BYTES ||
        r->offset > file->size_bytes || r->stored_bytes > file->size_bytes - r->offset)
        return atsi_fail(err, ATSI_BAD_INPUT,
                         "%s: expected a range within %" PRIu64 " bytes at a multiple of %" PRIu64 ", found %" PRIu64
                         " bytes at offset %" PRIu64,
                         atsi_plan_part_name(part), file->size_bytes, alignment, r->stored_bytes, r->offset);
    if (part != PLAN_PART_MANIFEST && r->raw_bytes != r->stored_bytes)
        return atsi_fail(err, ATSI_BAD_INPUT, "%s: expected %" PRIu64 " raw bytes as stored, found %" PRIu64,
                         atsi_plan_part_name(part), r->stored_bytes, r->raw_bytes);
    return ATSI_OK;
}

static enum atsi_status check_parts_apart(const struct atsi_plan_file *file, struct atsi_error *err) {
    const struct plan_range *parts = file->header.parts;
    for (int a = 0; a < PLAN_N_PARTS; a++)
        for (int b = a + 1; b < PLAN_N_PARTS; b++)
            if (parts[a].offset < parts[b].offset + parts[b].stored_bytes &&
                parts[b].offset < parts[a].offset + parts[a].stored_bytes)
                return atsi_fail(err, ATSI_BAD_INPUT, "%s and %s overlap at offset %" PRIu64,
                                 atsi_plan_part_name((enum plan_part)a), atsi_plan_part_name((enum plan_part)b),
                                 parts[a].offset > parts[b].offset ? parts[a].offset : parts[b].offset);
    return ATSI_OK;
}

static enum atsi_status check_part_checksum(const struct atsi_plan_file *file, enum plan_part part,
                                            struct atsi_error *err) {
    const struct plan_range *r = &file->header.parts[part];
    uint64_t found = r->stored_bytes ? atsi_hash(file->data + r->offset, r->stored_bytes) : 0;
    if (found == r->checksum) return ATSI_OK;
    return atsi_fail(err, ATSI_BAD_INPUT,
                     "%s at offset %" PRIu64 ": expected checksum %016" PRIx64 ", found %016" PRIx64
                     ": the file is damaged",
                     atsi_plan_part_name(part), r->offset, r->checksum, found);
}

static enum atsi_status check_header(struct atsi_plan_file *file, struct atsi_error *err) {
    ATSI_TRY(check_header_page(file, err));
    struct plan_header *h = &file->header;
    atsi_plan_header_decode(file->data, h);
    if (h->file_bytes != file->size_bytes)
        return atsi_fail(err, ATSI_BAD_INPUT, "%s: expected %" PRIu64 " bytes, found %" PRIu64,
                         file->size_bytes < h->file_bytes ? "truncated" : "bytes follow the plan", h->file_bytes,
                         file->size_bytes);
    if (h->flags & ~(uint32_t)(PLAN_FLAG_NO_WEIGHTS | PLAN_FLAG_SHIPPED))
        return atsi_fail(err, ATSI_BAD_INPUT, "header: expected flags 0 to 3, found %u", h->flags);
    if (!is_power_of_two(h->section_alignment) || h->section_alignment < PLAN_MIN_SECTION_ALIGNMENT ||
        h->section_alignment > PLAN_MAX_SECTION_ALIGNMENT)
        return atsi_fail(err, ATSI_BAD_INPUT,
                         "header: section alignment: expected a power of two from 4096 to 2^30, found %" PRIu64,
                         h->section_alignment);
    for (int part = 0; part < PLAN_N_PARTS; part++) ATSI_TRY(check_part_range(file, (enum plan_part)part, err));
    ATSI_TRY(check_parts_apart(file, err));
    for (int part = 0; part < PLAN_PART_RESIDENT; part++)
        ATSI_TRY(check_part_checksum(file, (enum plan_part)part, err));
    return ATSI_OK;
}

// ---- manifest ----------------------------------------------------------------------------------------------------

static enum atsi_status read_manifest(struct atsi_plan_file *file, struct atsi_error *err) {
    const struct plan_range *r = &file->header.parts[PLAN_PART_MANIFEST];
    const uint8_t *stored = file->data + r->offset;
    if (r->raw_bytes > PLAN_MAX_MANIFEST_BYTES || r->raw_bytes / PLAN_MAX_RATIO > r->stored_bytes)
        return atsi_fail(err, ATSI_BAD_INPUT,
                         "manifest: expected at most %d bytes from %" PRIu64 " stored ones, found %" PRIu64,
                         PLAN_MAX_MANIFEST_BYTES, r->stored_bytes, r->raw_bytes);
    if (r->stored_bytes == 0) return atsi_fail(err, ATSI_BAD_INPUT, "manifest: expected one, found none");
    size_t n_stored = ZSTD_findFrameCompressedSize(stored, r->stored_bytes);
    if (ZSTD_isError(n_stored) || n_stored != r->stored_bytes ||
        ZSTD_getFrameContentSize(stored, n_stored) != r->raw_bytes)
        return atsi_fail(err, ATSI_BAD_INPUT,
                         "manifest at offset %" PRIu64 ": expected one zstd frame of %" PRIu64 " bytes, found another",
                         r->offset, r->raw_bytes);
    file->manifest = malloc(r->raw_bytes + 1);
    if (!file->manifest) return atsi_out_of_memory(err);
    size_t n = ZSTD_decompress(file->manifest, r->raw_bytes, stored, n_stored);
    if (ZSTD_isError(n)) return atsi_fail(err, ATSI_BAD_INPUT, "manifest: %s", ZSTD_getErrorName(n));
    file->manifest[n] = 0;
    if (n == r->raw_bytes && strlen(file->manifest) == n) return ATSI_OK;
    return atsi_fail(err, ATSI_BAD_INPUT, "manifest: expected %" PRIu64 " bytes of text, found %zu", r->raw_bytes,
                     strlen(file->manifest));
}

// ---- tensor index ------------------------------------------------------------------------------------------------

static bool name_is_canonical(const char name[ATSI_NAME_CAP]) { // not empty, terminated, zeros behind
    size_t n = strnlen(name, ATSI_NAME_CAP);
    if (n == 0) return false;
    for (size_t i = n; i < ATSI_NAME_CAP; i++)
        if (name[i]) return false;
    return n < ATSI_NAME_CAP;
}

static enum atsi_status bad_blob(const struct atsi_plan_blob *b, const char *what, uint64_t expected, uint64_t found,
                                 struct atsi_error *err) {
    return atsi_fail(err, ATSI_BAD_INPUT, "tensor \"%s\": %s: expected %" PRIu64 ", found %" PRIu64,
                     atsi_label(atsi_str_of(b->tensor.name)).text, what, expected, found);
}

static enum atsi_status check_shape(const struct atsi_plan_blob *b, struct atsi_error *err) {
    const struct atsi_tensor *t = &b->tensor;
    if (!atsi_dtype_info((uint32_t)t->dtype))
        return atsi_fail(err, ATSI_BAD_INPUT, "tensor \"%s\": unknown tensor type %d",
                         atsi_label(atsi_str_of(t->name)).text, (int)t->dtype);
    uint64_t size_bytes = atsi_layout_bytes(t->dtype, t->layout, t->ne);
    if (size_bytes == 0 || size_bytes != t->size_bytes)
        return bad_blob(b, "size for its type, layout and dimensions (0: they do not fit together)", size_bytes,
                        t->size_bytes, err);
    return ATSI_OK;
}

static enum atsi_status check_stored(const struct atsi_plan_file *file, const struct atsi_plan_blob *b,
                                     struct atsi_error *err) {
    if (b->section != ATSI_PLAN_RESIDENT && b->section != ATSI_PLAN_PINNED)
        return bad_blob(b, "section, at most", 1, (uint64_t)b->section, err);
    if (!atsi_plan_file_has_weights(file)) {
        bool none = !b->offset && !b->stored_bytes && !b->checksum && b->encoding == ATSI_PLAN_RAW;
        return none ? ATSI_OK : bad_blob(b, "stored bytes in a plan without weights", 0, b->stored_bytes, err);
    }
    const struct plan_range *s = &file->header.parts[PLAN_PART_RESIDENT + b->section];
    if (b->encoding != ATSI_PLAN_RAW && b->encoding != ATSI_PLAN_ZSTD && b->encoding != ATSI_PLAN_ZSTD_PLANES)
        return bad_blob(b, "encoding, at most", ATSI_PLAN_ZSTD_PLANES, (uint64_t)b->encoding, err);
    if (b->encoding == ATSI_PLAN_RAW && b->stored_bytes != b->tensor.size_bytes)
        return bad_blob(b, "stored bytes", b->tensor.size_bytes, b->stored_bytes, err);
    if (b->encoding != ATSI_PLAN_RAW && b->tensor.size_bytes / PLAN_MAX_RATIO > b->stored_bytes)
        return bad_blob(b, "stored bytes, at least", b->tensor.size_bytes / PLAN_MAX_RATIO, b->stored_bytes, err);
    if (b->offset % PLAN_BLOB_ALIGNMENT)
        return bad_blob(b, "offset, a multiple of", PLAN_BLOB_ALIGNMENT, b->offset, err);
    if (b->offset < s->offset || b->offset - s->offset > s->stored_bytes)
        return bad_blob(b, "offset in its section from", s->offset, b->offset, err);
    uint64_t left = s->stored_bytes - (b->offset - s->offset);
    if (b->stored_bytes == 0 || b->stored_bytes > left)
        return bad_blob(b, "stored bytes in its section, at most", left, b->stored_bytes, err);
    return ATSI_OK;
}

static int compare_names(const void *a, const void *b) {
    const struct atsi_plan_blob *const *x = a, *const *y = b;
    return strcmp((*x)->tensor.name, (*y)->tensor.name);
}

static enum atsi_status index_names(struct atsi_plan_file *file, struct atsi_error *err) {
    uint32_t n = file->header.n_blobs;
    file->by_name = malloc(((size_t)n + 1) * sizeof *file->by_name);
    if (!file->by_name) return atsi_out_of_memory(err);
    for (uint32_t i = 0; i < n; i++) file->by_name[i] = &file->blobs[i];
    qsort(file->by_name, n, sizeof *file->by_name, compare_names);
    for (uint32_t i = 1; i < n; i++)
        if (strcmp(file->by_name[i - 1]->tensor.name, file->by_name[i]->tensor.name) == 0)
            return atsi_fail(err, ATSI_BAD_INPUT, "tensor \"%s\" is there twice",
                             atsi_label(atsi_str_of(file->by_name[i]->tensor.name)).text);
    return ATSI_OK;
}

static enum atsi_status read_index(struct atsi_plan_file *file, struct atsi_error *err) {
    const struct plan_range *r = &file->header.parts[PLAN_PART_INDEX];
    uint32_t n = file->header.n_blobs;
    if (n > ATSI_MAX_TENSORS || r->stored_bytes != (uint64_t)n * PLAN_RECORD_BYTES)
        return atsi_fail(err, ATSI_BAD_INPUT,
                         "tensor index: expected %d bytes for each of at most %d tensors, found %" PRIu64
                         " bytes for %u",
                         PLAN_RECORD_BYTES, ATSI_MAX_TENSORS, r->stored_bytes, n);
    file->blobs = calloc((size_t)n + 1, sizeof *file->blobs);
    if (!file->blobs) return atsi_out_of_memory(err);
    uint64_t end_offset = 0; // records stand in file order, so overlaps show at neighbours
    for (uint32_t i = 0; i < n; i++) {
        struct atsi_plan_blob *b = &file->blobs[i];
        atsi_plan_record_decode(file->data + r->offset + (uint64_t)i * PLAN_RECORD_BYTES, b);
        if (!name_is_canonical(b->tensor.name))
            return atsi_fail(err, ATSI_BAD_INPUT,
                             "tensor index, record %u: expected a name of 1 to %d bytes, filled up with zeros", i,
                             ATSI_NAME_CAP - 1);
        ATSI_TRY(check_shape(b, err));
        ATSI_TRY(check_stored(file, b, err));
        if (b->offset < end_offset)
            return bad_blob(b, "offset after the tensor before, at least", end_offset, b->offset, err);
        end_offset = b->offset + b->stored_bytes;
    }
    return index_names(file, err);
}

// ---- opening -----------------------------------------------------------------------------------------------------

static enum atsi_status check_file(struct atsi_plan_file *file, struct atsi_error *err) {
    ATSI_TRY(check_header(file, err));
    ATSI_TRY(read_manifest(file, err));
    return read_index(file, err);
}

static enum atsi_status open_any(struct atsi_plan_file **out, const char *path, const void *data, uint64_t size_bytes,
                                 struct atsi_error *err) {
    struct atsi_plan_file *file = *out = calloc(1, sizeof *file);
    if (!file) return atsi_out_of_memory(err);
    file->path = strdup(path);
    if (!file->path) return atsi_out_of_memory(err);
    if (!data) {
        ATSI_TRY(atsi_map_open(&file->map, path, err));
        data = file->map.data;
        size_bytes = file->map.size_bytes;
    }
    file->data = data;
    file->size_bytes = size_bytes;
    enum atsi_status status = check_file(file, err);
    if (status != ATSI_OK) atsi_fail_prefix(err, "%s", path);
    return status;
}

static enum atsi_status close_if_failed(struct atsi_plan_file **out, enum atsi_status status) {
    if (status != ATSI_OK) {
        atsi_plan_file_close(*out);
        *out = NULL;
    }
    return status;
}

enum atsi_status atsi_plan_file_open(struct atsi_plan_file **out, const char *path, struct atsi_error *err) {
    return close_if_failed(out, open_any(out, path, NULL, 0, err));
}

enum atsi_status atsi_plan_file_open_memory(struct atsi_plan_file **out, const void *data, uint64_t size_bytes,
                                            const char *name, struct atsi_error *err) {
    return close_if_failed(out, open_any(out, name, data ? data : "", data ? size_bytes : 0, err));
}

void atsi_plan_file_close(struct atsi_plan_file *file) {
    if (!file) return;
    atsi_map_close(&file->map);
    free(file->path);
    free(file->manifest);
    free(file->blobs);
    free(file->by_name);
    free(file);
}

// ---- what an open plan tells -------------------------------------------------------------------------------------

const char *atsi_plan_file_path(const struct atsi_plan_file *file) { return file->path; }
uint64_t atsi_plan_file_size_bytes(const struct atsi_plan_file *file) { return file->size_bytes; }
bool atsi_plan_file_has_weights(const struct atsi_plan_file *file) {
    return !(file->header.flags & PLAN_FLAG_NO_WEIGHTS);
}
bool atsi_plan_file_is_shipped(const struct atsi_plan_file *file) { return file->header.flags & PLAN_FLAG_SHIPPED; }

struct atsi_str atsi_plan_file_manifest(const struct atsi_plan_file *file) {
    return (struct atsi_str){file->manifest, file->header.parts[PLAN_PART_MANIFEST].raw_bytes};
}

struct atsi_str atsi_plan_file_tokenizer(const struct atsi_plan_file *file) {
    const struct plan_range *r = &file->header.parts[PLAN_PART_TOKENIZER];
    return (struct atsi_str){(const char *)file->data + r->offset, r->stored_bytes};
}

uint32_t atsi_plan_file_n_blobs(const struct atsi_plan_file *file) { return file->header.n_blobs; }
const struct atsi_plan_blob *atsi_plan_file_blob(const struct atsi_plan_file *file, uint32_t index) {
    return &file->blobs[index];
}

const struct atsi_plan_blob *atsi_plan_file_find(const struct atsi_plan_file *file, const char *name) {
    struct atsi_plan_blob wanted = {0}, *wanted_at = &wanted;
    if (strlen(name) >= sizeof wanted.tensor.name) return NULL;
    strcpy(wanted.tensor.name, name);
    struct atsi_plan_blob **found =
        bsearch(&wanted_at, file->by_name, file->header.n_blobs, sizeof *file->by_name, compare_names);
    return found ? *found : NULL;
}

const uint8_t *atsi_plan_file_section(const struct atsi_plan_file *file, enum atsi_plan_section section,
                                      uint64_t *size_bytes) {
    const struct plan_range *r = &file->header.parts[PLAN_PART_RESIDENT + section];
    *size_bytes = r->stored_bytes;
    return r->stored_bytes ? file->data + r->offset : NULL;
}

const uint8_t *atsi_plan_file_stored(const struct atsi_plan_file *file, const struct atsi_plan_blob *blob) {
    return blob->stored_bytes ? file->data + blob->offset : NULL;
}

bool atsi_plan_file_fetch(const struct atsi_plan_file *file, const void *stored, uint64_t size_bytes, void *dst) {
    uintptr_t offset = (uintptr_t)stored - (uintptr_t)file->map.data;
    if (!file->map.data || offset > file->size_bytes || size_bytes > file->size_bytes - offset) return false;
    return atsi_map_read(&file->map, offset, size_bytes, dst);
}

// ---- tensors -----------------------------------------------------------------------------------------------------

static enum atsi_status of_blob(const struct atsi_plan_file *file, const struct atsi_plan_blob *blob,
                                enum atsi_status status, struct atsi_error *err) {
    if (status != ATSI_OK)
        atsi_fail_prefix(err, "%s: tensor \"%s\" at offset %" PRIu64, file->path,
                         atsi_label(atsi_str_of(blob->tensor.name)).text, blob->offset);
    return status;
}

static enum atsi_status no_weights(struct atsi_error *err) {
    return atsi_fail(err, ATSI_FAILED, "the plan was written without weights: complete it with atsi-plan --attach");
}

enum atsi_status atsi_plan_file_read(const struct atsi_plan_file *file, const struct atsi_plan_blob *blob,
                                     uint32_t n_threads, void *dst, struct atsi_error *err) {
    const uint8_t *stored = atsi_plan_file_stored(file, blob);
    return of_blob(file, blob, stored ? atsi_plan_decode(blob, stored, n_threads, dst, err) : no_weights(err), err);
}

enum atsi_status atsi_plan_file_frames(const struct atsi_plan_file *file, const struct atsi_plan_blob *blob,
                                       struct atsi_plan_frame **frames, size_t *n_frames, struct atsi_error *err) {
    const uint8_t *stored = atsi_plan_file_stored(file, blob);
    *frames = NULL;
    *n_frames = 0;
    return of_blob(file, blob, stored ? atsi_plan_find_frames(blob, stored, frames, n_frames, err) : no_weights(err),
                   err);
}

enum atsi_status atsi_plan_file_unpack(const struct atsi_plan_file *file, const struct atsi_plan_blob *blob,
                                       const struct atsi_plan_frame *frame, struct atsi_plan_unpacker *unpacker,
                                       void *dst, struct atsi_error *err) {
    const uint8_t *stored = atsi_plan_file_stored(file, blob);
    return of_blob(file, blob, atsi_plan_unpack_frame(unpacker, blob, stored, frame, dst, err), err);
}

static enum atsi_status verify_stored(const struct atsi_plan_blob *blob, const uint8_t *stored,
                                      struct atsi_error *err) {
    uint64_t found = atsi_hash(stored, blob->stored_bytes);
    if (found != blob->checksum)
        return atsi_fail(err, ATSI_BAD_INPUT,
                         "expected checksum %016" PRIx64 ", found %016" PRIx64 ": the file is damaged", blob->checksum,
                         found);
    return atsi_plan_decode(blob, stored, 1, NULL, err);
}

enum atsi_status atsi_plan_file_verify_blob(const struct atsi_plan_file *file, const struct atsi_plan_blob *blob,
                                            struct atsi_error *err) {
    const uint8_t *stored = atsi_plan_file_stored(file, blob);
    return of_blob(file, blob, stored ? verify_stored(blob, stored, err) : no_weights(err), err);
}
