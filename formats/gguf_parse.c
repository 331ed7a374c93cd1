// One GGUF file: header, metadata, tensor directory, and every check on them.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "formats/base/checked.h"
#include "formats/base/le.h"
#include "formats/gguf_internal.h"
#include "formats/plan_format.h"

enum {
    MIN_KV_BYTES = 8 + 4 + 1,          // empty key, type, one byte of value
    MIN_TENSOR_BYTES = 8 + 4 + 8 + 12, // empty name, one dimension, type and offset
    MAX_NESTING = 4, // of arrays in arrays; the specification allows any, no known key has more than one
    DEFAULT_ALIGNMENT = 32,
    MIN_ALIGNMENT = 8,
    MAX_ALIGNMENT = 1 << 20
};

// Where the parser stands. `what` completes "truncated at offset 24 in ...".
struct cursor {
    const uint8_t *data;
    uint64_t size, at;
    char what[112];
};

static uint64_t left(const struct cursor *c) { return c->size - c->at; }

static enum atsi_status need(const struct cursor *c, uint64_t size, struct atsi_error *err) {
    if (size <= left(c)) return ATSI_OK;
    return atsi_fail(err, ATSI_BAD_INPUT,
                     "truncated at offset %" PRIu64 " in %s: expected %" PRIu64 " more bytes from offset %" PRIu64
                     ", found %" PRIu64,
                     c->size, c->what, size, c->at, left(c));
}

static enum atsi_status read_u32(struct cursor *c, uint32_t *out, struct atsi_error *err) {
    ATSI_TRY(need(c, 4, err));
    *out = atsi_load_le32(c->data + c->at);
    c->at += 4;
    return ATSI_OK;
}

static enum atsi_status read_u64(struct cursor *c, uint64_t *out, struct atsi_error *err) {
    ATSI_TRY(need(c, 8, err));
    *out = atsi_load_le64(c->data + c->at);
    c->at += 8;
    return ATSI_OK;
}

static enum atsi_status read_str(struct cursor *c, struct atsi_str *out, struct atsi_error *err) {
    ATSI_TRY(read_u64(c, &out->size, err));
    if (out->size > left(c))
        return atsi_fail(err, ATSI_BAD_INPUT,
                         "truncated at offset %" PRIu64 " in %s: the string length at offset %" PRIu64 " is %" PRIu64
                         ", but %" PRIu64 " bytes are left",
                         c->size, c->what, c->at - 8, out->size, left(c));
    out->data = (const char *)c->data + c->at;
    c->at += out->size;
    return ATSI_OK;
}

// A count from the file against what the rest of the file can hold.
static enum atsi_status check_count(const struct cursor *c, const char *things, uint64_t n, uint64_t min_bytes,
                                    uint64_t offset, struct atsi_error *err) {
    if (n <= left(c) / min_bytes) return ATSI_OK;
    return atsi_fail(err, ATSI_BAD_INPUT,
                     "truncated or corrupt: the count of %s at offset %" PRIu64 " is %" PRIu64 ", but the %" PRIu64
                     " bytes left hold at most %" PRIu64,
                     things, offset, n, left(c), left(c) / min_bytes);
}

// ---- header ------------------------------------------------------------------------------------------------------

static enum atsi_status check_version(uint32_t version, struct atsi_error *err) {
    if (version == 2 || version == 3) return ATSI_OK;
    uint32_t swapped = __builtin_bswap32(version);
    if (version && swapped < 16)
        return atsi_fail(
            err, ATSI_BAD_INPUT,
            "GGUF version at offset 4: the file is big-endian (version %u); only little-endian files are read",
            swapped);
    return atsi_fail(err, ATSI_BAD_INPUT, "GGUF version at offset 4: expected 2 or 3, found %u", version);
}

static enum atsi_status parse_header(struct cursor *c, struct gguf_part *part, struct atsi_error *err) {
    snprintf(c->what, sizeof c->what, "the header");
    if (left(c) >= sizeof atsi_plan_magic && memcmp(c->data, atsi_plan_magic, sizeof atsi_plan_magic) == 0)
        return atsi_fail(err, ATSI_BAD_INPUT,
                         "no GGUF model but a plan: atsi-run runs it, atsi-plan --info and --verify look at it");
    ATSI_TRY(need(c, 4, err));
    if (memcmp(c->data, "GGUF", 4) != 0)
        return atsi_fail(err, ATSI_BAD_INPUT,
                         "no GGUF file: expected the magic \"GGUF\" at offset 0, found %02X %02X %02X %02X", c->data[0],
                         c->data[1], c->data[2], c->data[3]);
    c->at = 4;
    ATSI_TRY(read_u32(c, &part->version, err));
    ATSI_TRY(check_version(part->version, err));
    ATSI_TRY(read_u64(c, &part->n_tensors, err));
    ATSI_TRY(read_u64(c, &part->n_kv, err));
    ATSI_TRY(check_count(c, "tensors", part->n_tensors, MIN_TENSOR_BYTES, 8, err));
    return check_count(c, "metadata keys", part->n_kv, MIN_KV_BYTES, 16, err);
}

// ---- metadata ----------------------------------------------------------------------------------------------------

static enum atsi_status skip_array(struct cursor *c, int depth, struct atsi_error *err) {
    uint32_t type;
    uint64_t n, type_offset = c->at;
    ATSI_TRY(read_u32(c, &type, err));
    ATSI_TRY(read_u64(c, &n, err));
    uint32_t elem_bytes = atsi_gguf_type_bytes(type);
    if (elem_bytes) {
        ATSI_TRY(check_count(c, c->what, n, elem_bytes, type_offset + 4, err));
        c->at += n * elem_bytes;
        return ATSI_OK;
    }
    if (type != ATSI_GGUF_STRING && type != ATSI_GGUF_ARRAY)
        return atsi_fail(err, ATSI_BAD_INPUT, "%s: element type at offset %" PRIu64 ": expected 0 to 12, found %u",
                         c->what, type_offset, type);
    if (type == ATSI_GGUF_ARRAY && depth == MAX_NESTING)
        return atsi_fail(err, ATSI_BAD_INPUT, "%s: arrays nested deeper than %d at offset %" PRIu64, c->what,
                         MAX_NESTING, type_offset);
    ATSI_TRY(check_count(c, c->what, n, type == ATSI_GGUF_STRING ? 8 : 12, type_offset + 4, err));
    for (uint64_t i = 0; i < n; i++) {
        struct atsi_str ignored;
        ATSI_TRY(type == ATSI_GGUF_STRING ? read_str(c, &ignored, err) : skip_array(c, depth + 1, err));
    }
    return ATSI_OK;
}

static enum atsi_status skip_value(struct cursor *c, uint32_t type, struct atsi_error *err) {
    uint32_t size = atsi_gguf_type_bytes(type);
    struct atsi_str ignored;
    if (type == ATSI_GGUF_STRING) return read_str(c, &ignored, err);
    if (type == ATSI_GGUF_ARRAY) return skip_array(c, 1, err);
    if (!size)
        return atsi_fail(err, ATSI_BAD_INPUT, "%s: value type at offset %" PRIu64 ": expected 0 to 12, found %u",
                         c->what, c->at - 4, type);
    ATSI_TRY(need(c, size, err));
    if (type == ATSI_GGUF_BOOL && c->data[c->at] > 1)
        return atsi_fail(err, ATSI_BAD_INPUT, "%s: bool at offset %" PRIu64 ": expected 0 or 1, found %u", c->what,
                         c->at, c->data[c->at]);
    c->at += size;
    return ATSI_OK;
}

static enum atsi_status parse_kv(struct cursor *c, struct atsi_gguf_kv *kv, uint64_t index, struct atsi_error *err) {
    uint32_t type;
    snprintf(c->what, sizeof c->what, "the name of metadata key %" PRIu64, index);
    ATSI_TRY(read_str(c, &kv->key, err));
    snprintf(c->what, sizeof c->what, "key \"%s\"", atsi_label(kv->key).text);
    ATSI_TRY(read_u32(c, &type, err));
    kv->type = (enum atsi_gguf_type)type;
    kv->file_offset = c->at;
    kv->data = c->data + c->at;
    ATSI_TRY(skip_value(c, type, err));
    kv->size_bytes = c->at - kv->file_offset;
    return ATSI_OK;
}

int atsi_gguf_compare_kv(const void *a, const void *b) {
    const struct atsi_gguf_kv *const *x = a, *const *y = b;
    return atsi_str_compare((*x)->key, (*y)->key);
}

static enum atsi_status sort_keys(struct gguf_part *part, struct atsi_error *err) {
    part->kv_by_key = malloc((part->n_kv + 1) * sizeof *part->kv_by_key);
    if (!part->kv_by_key) return atsi_out_of_memory(err);
    for (uint64_t i = 0; i < part->n_kv; i++) part->kv_by_key[i] = &part->kv[i];
    qsort(part->kv_by_key, part->n_kv, sizeof *part->kv_by_key, atsi_gguf_compare_kv);
    for (uint64_t i = 1; i < part->n_kv; i++) {
        const struct atsi_gguf_kv *a = part->kv_by_key[i - 1], *b = part->kv_by_key[i];
        if (atsi_str_equal(a->key, b->key))
            return atsi_fail(err, ATSI_BAD_INPUT,
                             "key \"%s\" is there twice: expected one value, found values at offsets %" PRIu64
                             " and %" PRIu64,
                             atsi_label(a->key).text, a->file_offset, b->file_offset);
    }
    return ATSI_OK;
}

static enum atsi_status parse_metadata(struct cursor *c, struct gguf_part *part, struct atsi_error *err) {
    part->kv = calloc(part->n_kv + 1, sizeof *part->kv);
    if (!part->kv) return atsi_out_of_memory(err);
    for (uint64_t i = 0; i < part->n_kv; i++) ATSI_TRY(parse_kv(c, &part->kv[i], i, err));
    return sort_keys(part, err);
}

const struct atsi_gguf_kv *atsi_gguf_part_find(const struct gguf_part *part, const char *key) {
    const struct atsi_gguf_kv wanted = {.key = atsi_str_of(key)}, *wanted_at = &wanted;
    struct atsi_gguf_kv **found =
        bsearch(&wanted_at, part->kv_by_key, part->n_kv, sizeof *part->kv_by_key, atsi_gguf_compare_kv);
    return found ? *found : NULL;
}

static enum atsi_status read_alignment(const struct gguf_part *part, uint64_t *alignment, struct atsi_error *err) {
    const struct atsi_gguf_kv *kv = atsi_gguf_part_find(part, "general.alignment");
    *alignment = DEFAULT_ALIGNMENT;
    if (!kv) return ATSI_OK;
    ATSI_TRY(atsi_gguf_kv_u64(kv, UINT64_MAX, alignment, err));
    if (*alignment < MIN_ALIGNMENT || *alignment > MAX_ALIGNMENT || (*alignment & (*alignment - 1)))
        return atsi_fail(err, ATSI_BAD_INPUT,
                         "key \"general.alignment\" at offset %" PRIu64
                         ": expected a power of two from %d to %d, found %" PRIu64,
                         kv->file_offset, MIN_ALIGNMENT, MAX_ALIGNMENT, *alignment);
    return ATSI_OK;
}

// ---- tensors -----------------------------------------------------------------------------------------------------

static enum atsi_status parse_dims(struct cursor *c, struct atsi_gguf_tensor *t, struct atsi_error *err) {
    ATSI_TRY(read_u32(c, &t->n_dims, err));
    if (t->n_dims < 1 || t->n_dims > 4)
        return atsi_fail(err, ATSI_BAD_INPUT,
                         "%s: number of dimensions at offset %" PRIu64 ": expected 1 to 4, found %u", c->what,
                         c->at - 4, t->n_dims);
    for (uint32_t d = 0; d < 4; d++) {
        t->ne[d] = 1;
        if (d >= t->n_dims) continue;
        ATSI_TRY(read_u64(c, &t->ne[d], err));
        if (t->ne[d] == 0 || t->ne[d] > INT64_MAX)
            return atsi_fail(err, ATSI_BAD_INPUT,
                             "%s: dimension %u at offset %" PRIu64 ": expected 1 or more, found %" PRId64, c->what, d,
                             c->at - 8, (int64_t)t->ne[d]);
    }
    return ATSI_OK;
}

static enum atsi_status size_tensor(const struct cursor *c, struct atsi_gguf_tensor *t, uint64_t type_offset,
                                    struct atsi_error *err) {
    const struct atsi_dtype_info *info = atsi_dtype_info(t->dtype);
    if (!info)
        return atsi_fail(err, ATSI_BAD_INPUT,
                         "%s: unknown tensor type %d at offset %" PRIu64 ": expected a type from F32 (0) to Q2_0 (%d)",
                         c->what, (int)t->dtype, type_offset, ATSI_Q2_0);
    if (t->ne[0] % info->block_elems)
        return atsi_fail(err, ATSI_BAD_INPUT,
                         "%s at offset %" PRIu64 ": expected rows of a multiple of %u elements for %s, found %" PRIu64,
                         c->what, type_offset, info->block_elems, info->name, t->ne[0]);
    uint64_t n_rows, size, row_bytes = atsi_dtype_row_bytes(t->dtype, t->ne[0]);
    if (!row_bytes || !atsi_mul_u64(t->ne[1], t->ne[2], &n_rows) || !atsi_mul_u64(n_rows, t->ne[3], &n_rows) ||
        !atsi_mul_u64(row_bytes, n_rows, &size))
        return atsi_fail(err, ATSI_BAD_INPUT,
                         "%s at offset %" PRIu64 ": expected a size below 2^64 bytes, found dimensions %" PRIu64
                         " x %" PRIu64 " x %" PRIu64 " x %" PRIu64,
                         c->what, type_offset, t->ne[0], t->ne[1], t->ne[2], t->ne[3]);
    t->size_bytes = size;
    return ATSI_OK;
}

// Leaves the offset relative to the tensor data in file_offset: where the data starts is not known yet.
static enum atsi_status parse_tensor(struct cursor *c, struct atsi_gguf_tensor *t, uint64_t index,
                                     struct atsi_error *err) {
    uint32_t type;
    snprintf(c->what, sizeof c->what, "the name of tensor %" PRIu64, index);
    ATSI_TRY(read_str(c, &t->name, err));
    snprintf(c->what, sizeof c->what, "tensor \"%s\"", atsi_label(t->name).text);
    ATSI_TRY(parse_dims(c, t, err));
    ATSI_TRY(read_u32(c, &type, err));
    t->dtype = (enum atsi_dtype)type;
    ATSI_TRY(size_tensor(c, t, c->at - 4, err));
    return read_u64(c, &t->file_offset, err);
}

static enum atsi_status place_tensor(const struct gguf_part *part, struct atsi_gguf_tensor *t, uint64_t alignment,
                                     struct atsi_error *err) {
    uint64_t offset = t->file_offset,
             available = part->size_bytes > part->data_offset ? part->size_bytes - part->data_offset : 0;
    if (offset % alignment)
        return atsi_fail(err, ATSI_BAD_INPUT,
                         "tensor \"%s\": expected data at a multiple of %" PRIu64 " bytes, found offset %" PRIu64,
                         atsi_label(t->name).text, alignment, offset);
    if (offset > available || t->size_bytes > available - offset) {
        uint64_t end, missing;
        if (!atsi_add_u64(offset, t->size_bytes, &end) || !atsi_add_u64(end, part->data_offset, &end)) end = UINT64_MAX;
        missing = end - part->size_bytes;
        return atsi_fail(err, ATSI_BAD_INPUT,
                         "tensor \"%s\": expected %" PRIu64 " bytes of data at offset %" PRIu64 " + %" PRIu64
                         ", found the end of the file at %" PRIu64 " (%" PRIu64
                         " bytes are missing: the file is cut off or its directory is corrupt)",
                         atsi_label(t->name).text, t->size_bytes, part->data_offset, offset, part->size_bytes, missing);
    }
    t->file_offset = part->data_offset + offset;
    t->data = part->data + t->file_offset;
    return ATSI_OK;
}

static enum atsi_status parse_tensors(struct cursor *c, struct gguf_part *part, uint32_t part_index,
                                      struct atsi_error *err) {
    uint64_t alignment;
    ATSI_TRY(check_count(c, "tensors", part->n_tensors, MIN_TENSOR_BYTES, 8, err));
    ATSI_TRY(read_alignment(part, &alignment, err));
    part->tensors = calloc(part->n_tensors + 1, sizeof *part->tensors);
    if (!part->tensors) return atsi_out_of_memory(err);
    for (uint64_t i = 0; i < part->n_tensors; i++) {
        part->tensors[i].part = part_index;
        ATSI_TRY(parse_tensor(c, &part->tensors[i], i, err));
    }
    if (!atsi_align_u64(c->at, alignment, &part->data_offset)) part->data_offset = part->size_bytes;
    for (uint64_t i = 0; i < part->n_tensors; i++) ATSI_TRY(place_tensor(part, &part->tensors[i], alignment, err));
    return ATSI_OK;
}

static int compare_places(const void *a, const void *b) {
    const struct atsi_gguf_tensor *const *x = a, *const *y = b;
    return ((*x)->file_offset > (*y)->file_offset) - ((*x)->file_offset < (*y)->file_offset);
}

// The end of the last tensor goes to *end_offset.
static enum atsi_status check_overlaps(const struct gguf_part *part, uint64_t *end_offset, struct atsi_error *err) {
    const struct atsi_gguf_tensor **order = malloc((part->n_tensors + 1) * sizeof *order);
    if (!order) return atsi_out_of_memory(err);
    for (uint64_t i = 0; i < part->n_tensors; i++) order[i] = &part->tensors[i];
    qsort(order, part->n_tensors, sizeof *order, compare_places);
    enum atsi_status status = ATSI_OK;
    *end_offset = part->data_offset;
    for (uint64_t i = 0; i < part->n_tensors && status == ATSI_OK; i++) {
        if (order[i]->file_offset < *end_offset)
            status = atsi_fail(err, ATSI_BAD_INPUT,
                               "tensor \"%s\": expected data of its own, found it at offset %" PRIu64
                               " inside tensor \"%s\" (to %" PRIu64 ")",
                               atsi_label(order[i]->name).text, order[i]->file_offset,
                               atsi_label(order[i - 1]->name).text, *end_offset);
        else
            *end_offset = order[i]->file_offset + order[i]->size_bytes;
    }
    free(order);
    return status;
}

// Parts of a split model that were joined with cat parse as their first part, silently without the rest.
static enum atsi_status check_tail(const struct gguf_part *part, uint64_t end_offset, struct atsi_error *err) {
    for (uint64_t at = end_offset; at < part->size_bytes && at <= end_offset + MAX_ALIGNMENT; at++)
        if (part->size_bytes - at >= 4 && memcmp(part->data + at, "GGUF", 4) == 0)
            return atsi_fail(err, ATSI_BAD_INPUT,
                             "a second GGUF file starts at offset %" PRIu64
                             ", after the last tensor: expected one file (parts of a "
                             "split model are not to be joined: keep them side by side and open one)",
                             at);
        else if (part->data[at] != 0)
            return ATSI_OK;
    return ATSI_OK;
}

enum atsi_status atsi_gguf_parse_part(struct gguf_part *part, uint32_t part_index, struct atsi_error *err) {
    struct cursor c = {.data = part->data, .size = part->size_bytes};
    uint64_t end_offset = 0;
    ATSI_TRY(parse_header(&c, part, err));
    ATSI_TRY(parse_metadata(&c, part, err));
    ATSI_TRY(parse_tensors(&c, part, part_index, err));
    ATSI_TRY(check_overlaps(part, &end_offset, err));
    return check_tail(part, end_offset, err);
}
