// Opening a model: one file or the parts of a split one, and its tensors by name.
#include "formats/gguf.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "formats/base/hash.h"
#include "formats/base/le.h"
#include "formats/gguf_internal.h"

// ---- parts -------------------------------------------------------------------------------------------------------

static void close_part(struct gguf_part *part) {
    free(part->path);
    free(part->kv);
    free(part->kv_by_key);
    free(part->tensors);
    atsi_map_close(&part->map);
    *part = (struct gguf_part){0};
}

// Pieces cut with split(1) carry names of their own; a reader that knows them gives better advice than "truncated".
static bool looks_cut_by_bytes(const char *path) {
    const char *name = strrchr(path, '/');
    name = name ? name + 1 : path;
    return strstr(name, ".part") || strstr(name, "-split-");
}

static enum atsi_status parse_part(struct gguf_part *part, uint32_t index, struct atsi_error *err) {
    enum atsi_status status = atsi_gguf_parse_part(part, index, err);
    if (status == ATSI_OK) return ATSI_OK;
    if (looks_cut_by_bytes(part->path))
        atsi_fail_prefix(err, "%s (by its name a piece of a file cut by bytes: join the pieces first)", part->path);
    else
        atsi_fail_prefix(err, "%s", part->path);
    return status;
}

static enum atsi_status open_part(struct gguf_part *part, const char *path, uint32_t index, struct atsi_error *err) {
    ATSI_TRY(atsi_map_open(&part->map, path, err));
    part->path = strdup(path);
    if (!part->path) return atsi_out_of_memory(err);
    part->data = part->map.data;
    part->size_bytes = part->map.size_bytes;
    return parse_part(part, index, err);
}

// ---- split models ------------------------------------------------------------------------------------------------

struct split {
    uint64_t no, count; // this file's number, from 0, and how many there are; count is 0 or 1 for an ordinary file
    uint64_t n_tensors; // of all files; 0 when the file does not say
};

static enum atsi_status split_field(const struct gguf_part *part, const char *key, uint64_t *out,
                                    struct atsi_error *err) {
    const struct atsi_gguf_kv *kv = atsi_gguf_part_find(part, key);
    *out = 0;
    if (!kv) return ATSI_OK;
    enum atsi_status status = atsi_gguf_kv_u64(kv, UINT32_MAX, out, err);
    if (status != ATSI_OK) atsi_fail_prefix(err, "%s", part->path);
    return status;
}

static enum atsi_status read_split(const struct gguf_part *part, struct split *split, struct atsi_error *err) {
    ATSI_TRY(split_field(part, "split.no", &split->no, err));
    ATSI_TRY(split_field(part, "split.count", &split->count, err));
    return split_field(part, "split.tensors.count", &split->n_tensors, err);
}

// A path NAME-00002-of-00005.gguf taken apart.
struct split_name {
    size_t prefix_size; // of "NAME"
    uint32_t no, count; // 2, 5
};

static bool five_digits(const char *p, uint32_t *out) {
    *out = 0;
    for (int i = 0; i < 5; i++) {
        if (p[i] < '0' || p[i] > '9') return false;
        *out = *out * 10 + (uint32_t)(p[i] - '0');
    }
    return true;
}

static bool parse_split_name(const char *path, struct split_name *name) {
    static const size_t tail_size = sizeof "-00001-of-00005.gguf" - 1;
    size_t size = strlen(path);
    if (size < tail_size) return false;
    const char *tail = path + size - tail_size;
    name->prefix_size = size - tail_size;
    return tail[0] == '-' && five_digits(tail + 1, &name->no) && memcmp(tail + 6, "-of-", 4) == 0 &&
           five_digits(tail + 10, &name->count) && strcmp(tail + 15, ".gguf") == 0;
}

static char *part_path(const char *path, const struct split_name *name, uint32_t index) {
    char *out = NULL;
    int n = asprintf(&out, "%.*s-%05u-of-%05u.gguf", (int)name->prefix_size, path, index + 1, name->count);
    return n < 0 ? NULL : out;
}

// What a part says of itself against its place in the set.
static enum atsi_status check_part(const struct gguf_part *part, uint32_t index, const struct split *set,
                                   struct atsi_error *err) {
    struct split own;
    ATSI_TRY(read_split(part, &own, err));
    if (own.count != set->count)
        return atsi_fail(err, ATSI_BAD_INPUT,
                         "%s: key \"split.count\": expected %" PRIu64 " as in the other parts, found %" PRIu64,
                         part->path, set->count, own.count);
    if (own.no != index)
        return atsi_fail(err, ATSI_BAD_INPUT,
                         "%s: key \"split.no\": expected %u by the file's name, found %" PRIu64
                         " (was the file renamed?)",
                         part->path, index, own.no);
    if (own.n_tensors != set->n_tensors)
        return atsi_fail(err, ATSI_BAD_INPUT,
                         "%s: key \"split.tensors.count\": expected %" PRIu64 " as in the other parts, found %" PRIu64
                         " (a part of another model?)",
                         part->path, set->n_tensors, own.n_tensors);
    return ATSI_OK;
}

// A part may repeat keys of the first one; what it repeats must agree, else it belongs to another model.
static enum atsi_status check_same_model(const struct gguf_part *first, const struct gguf_part *part,
                                         struct atsi_error *err) {
    for (uint64_t i = 0; i < part->n_kv; i++) {
        const struct atsi_gguf_kv *kv = &part->kv[i];
        bool own = atsi_str_is(kv->key, "split.no") || atsi_str_is(kv->key, "general.alignment");
        struct atsi_gguf_kv **found =
            own ? NULL : bsearch(&kv, first->kv_by_key, first->n_kv, sizeof *first->kv_by_key, atsi_gguf_compare_kv);
        if (!found || (*found)->type != kv->type) continue; // widths may differ from part to part
        if ((*found)->size_bytes != kv->size_bytes || memcmp((*found)->data, kv->data, kv->size_bytes) != 0)
            return atsi_fail(err, ATSI_BAD_INPUT,
                             "%s: key \"%s\" at offset %" PRIu64
                             ": expected the value that %s has, found another (a part of another model?)",
                             part->path, atsi_label(kv->key).text, kv->file_offset, first->path);
    }
    return ATSI_OK;
}

static enum atsi_status open_set_part(struct gguf_part *part, const char *path, const struct split_name *name,
                                      uint32_t index, struct atsi_error *err) {
    char *own_path = part_path(path, name, index);
    if (!own_path) return atsi_out_of_memory(err);
    enum atsi_status status;
    if (access(own_path, F_OK) != 0)
        status = atsi_fail(err, ATSI_BAD_INPUT, "%s is missing: expected all %u parts of the split model side by side",
                           own_path, name->count);
    else
        status = open_part(part, own_path, index, err);
    free(own_path);
    return status;
}

// gguf->parts[0] holds the file that was named, which says that it is one of a set: opens the set in order.
static enum atsi_status open_set(struct atsi_gguf *gguf, const char *path, const struct split *set,
                                 struct atsi_error *err) {
    struct split_name name;
    if (!parse_split_name(path, &name))
        return atsi_fail(err, ATSI_BAD_INPUT,
                         "%s is part %" PRIu64 " of %" PRIu64 " of a split model, but is not named NAME-%05" PRIu64
                         "-of-%05" PRIu64
                         ".gguf: give all parts their names back (parts joined into one file cannot be read)",
                         path, set->no + 1, set->count, set->no + 1, set->count);
    if (name.count != set->count || name.no < 1 || name.no > name.count)
        return atsi_fail(err, ATSI_BAD_INPUT,
                         "%s: key \"split.count\": expected a part of %u by the file's name, found %" PRIu64, path,
                         name.count, set->count);
    ATSI_TRY(check_part(&gguf->parts[0], name.no - 1, set, err));
    close_part(&gguf->parts[0]);
    for (uint32_t i = 0; i < name.count; i++) { // n_parts grows as files open: a hostile count allocates nothing
        struct gguf_part *parts = realloc(gguf->parts, (i + 1) * sizeof *parts);
        if (!parts) return atsi_out_of_memory(err);
        gguf->parts = parts;
        gguf->parts[i] = (struct gguf_part){0};
        gguf->n_parts = i + 1;
        ATSI_TRY(open_set_part(&parts[i], path, &name, i, err));
        ATSI_TRY(check_part(&parts[i], i, set, err));
        ATSI_TRY(check_same_model(&parts[0], &parts[i], err));
    }
    return ATSI_OK;
}

// ---- tensors of all parts ----------------------------------------------------------------------------------------

static int compare_names(const void *a, const void *b) {
    const struct atsi_gguf_tensor *const *x = a, *const *y = b;
    return atsi_str_compare((*x)->name, (*y)->name);
}

static enum atsi_status check_unique(const struct atsi_gguf *gguf, struct atsi_error *err) {
    for (uint64_t i = 1; i < gguf->n_tensors; i++) {
        const struct atsi_gguf_tensor *a = gguf->by_name[i - 1], *b = gguf->by_name[i];
        if (!atsi_str_equal(a->name, b->name)) continue;
        const char *path = gguf->parts[a->part].path;
        if (a->part != b->part)
            return atsi_fail(err, ATSI_BAD_INPUT,
                             "tensor \"%s\" is there twice: expected it once, found it in %s and in %s",
                             atsi_label(a->name).text, path, gguf->parts[b->part].path);
        return atsi_fail(err, ATSI_BAD_INPUT,
                         "%s: tensor \"%s\" is there twice: expected it once, found data at offsets %" PRIu64
                         " and %" PRIu64,
                         path, atsi_label(a->name).text, a->file_offset, b->file_offset);
    }
    return ATSI_OK;
}

static enum atsi_status index_tensors(struct atsi_gguf *gguf, struct atsi_error *err) {
    for (uint32_t p = 0; p < gguf->n_parts; p++) gguf->n_tensors += gguf->parts[p].n_tensors;
    gguf->tensors = malloc((gguf->n_tensors + 1) * sizeof *gguf->tensors);
    gguf->by_name = malloc((gguf->n_tensors + 1) * sizeof *gguf->by_name);
    if (!gguf->tensors || !gguf->by_name) return atsi_out_of_memory(err);
    uint64_t n = 0;
    for (uint32_t p = 0; p < gguf->n_parts; p++)
        for (uint64_t i = 0; i < gguf->parts[p].n_tensors; i++, n++)
            gguf->tensors[n] = gguf->by_name[n] = &gguf->parts[p].tensors[i];
    qsort(gguf->by_name, n, sizeof *gguf->by_name, compare_names);
    return check_unique(gguf, err);
}

static enum atsi_status finish_open(struct atsi_gguf *gguf, const char *path, bool in_memory, struct atsi_error *err) {
    struct split set;
    ATSI_TRY(read_split(&gguf->parts[0], &set, err));
    if (set.count > 1 && in_memory)
        return atsi_fail(err, ATSI_BAD_INPUT,
                         "%s: key \"split.count\": expected a whole model, found part %" PRIu64 " of %" PRIu64, path,
                         set.no + 1, set.count);
    if (set.count > 1) ATSI_TRY(open_set(gguf, path, &set, err));
    ATSI_TRY(index_tensors(gguf, err));
    if (set.count > 1 && set.n_tensors && set.n_tensors != gguf->n_tensors)
        return atsi_fail(err, ATSI_BAD_INPUT,
                         "%s: key \"split.tensors.count\": expected %" PRIu64 " tensors in all parts, found %" PRIu64,
                         path, set.n_tensors, gguf->n_tensors);
    return ATSI_OK;
}

static enum atsi_status new_reader(struct atsi_gguf **out, struct atsi_error *err) {
    *out = calloc(1, sizeof **out);
    if (!*out) return atsi_out_of_memory(err);
    (*out)->parts = calloc(1, sizeof *(*out)->parts);
    if (!(*out)->parts) return atsi_out_of_memory(err);
    (*out)->n_parts = 1;
    return ATSI_OK;
}

static enum atsi_status open_any(struct atsi_gguf **out, const char *path, const void *data, uint64_t size_bytes,
                                 struct atsi_error *err) {
    ATSI_TRY(new_reader(out, err));
    struct gguf_part *part = &(*out)->parts[0];
    if (!data) {
        ATSI_TRY(open_part(part, path, 0, err));
        return finish_open(*out, path, false, err);
    }
    part->path = strdup(path);
    if (!part->path) return atsi_out_of_memory(err);
    part->data = data;
    part->size_bytes = size_bytes;
    ATSI_TRY(parse_part(part, 0, err));
    return finish_open(*out, path, true, err);
}

static enum atsi_status close_if_failed(struct atsi_gguf **out, enum atsi_status status) {
    if (status != ATSI_OK) {
        atsi_gguf_close(*out);
        *out = NULL;
    }
    return status;
}

enum atsi_status atsi_gguf_open(struct atsi_gguf **out, const char *path, struct atsi_error *err) {
    return close_if_failed(out, open_any(out, path, NULL, 0, err));
}

enum atsi_status atsi_gguf_open_memory(struct atsi_gguf **out, const void *data, uint64_t size_bytes, const char *name,
                                       struct atsi_error *err) {
    return close_if_failed(out, open_any(out, name, data ? data : "", data ? size_bytes : 0, err));
}

void atsi_gguf_close(struct atsi_gguf *gguf) {
    if (!gguf) return;
    for (uint32_t p = 0; p < gguf->n_parts; p++) close_part(&gguf->parts[p]);
    free(gguf->parts);
    free(gguf->tensors);
    free(gguf->by_name);
    free(gguf);
}

// ---- what an open model tells ------------------------------------------------------------------------------------

uint32_t atsi_gguf_version(const struct atsi_gguf *gguf) { return gguf->parts[0].version; }
uint32_t atsi_gguf_n_parts(const struct atsi_gguf *gguf) { return gguf->n_parts; }
const char *atsi_gguf_part_path(const struct atsi_gguf *gguf, uint32_t part) { return gguf->parts[part].path; }

uint64_t atsi_gguf_size_bytes(const struct atsi_gguf *gguf) {
    uint64_t size_bytes = 0;
    for (uint32_t p = 0; p < gguf->n_parts; p++) size_bytes += gguf->parts[p].size_bytes;
    return size_bytes;
}

static void hash_part(struct atsi_hasher *hasher, const struct gguf_part *part) {
    enum {
        SAMPLE_BYTES = 4096
    };
    uint8_t size[8];
    uint64_t header_bytes = part->data_offset < part->size_bytes ? part->data_offset : part->size_bytes;
    atsi_store_le64(size, part->size_bytes);
    atsi_hasher_update(hasher, size, sizeof size);
    atsi_hasher_update(hasher, part->data, header_bytes);
    for (uint64_t i = 0; i < part->n_tensors; i++) {
        const struct atsi_gguf_tensor *t = &part->tensors[i];
        uint64_t sample = t->size_bytes < SAMPLE_BYTES ? t->size_bytes : SAMPLE_BYTES;
        atsi_hasher_update(hasher, t->data + (t->size_bytes - sample) / 2, sample);
    }
}

enum atsi_status atsi_gguf_identity_hash(const struct atsi_gguf *gguf, uint64_t *hash, struct atsi_error *err) {
    struct atsi_hasher *hasher;
    ATSI_TRY(atsi_hasher_new(&hasher, err));
    for (uint32_t p = 0; p < gguf->n_parts; p++) hash_part(hasher, &gguf->parts[p]);
    *hash = atsi_hasher_digest(hasher);
    atsi_hasher_free(hasher);
    return ATSI_OK;
}

uint64_t atsi_gguf_n_kv(const struct atsi_gguf *gguf) { return gguf->parts[0].n_kv; }
const struct atsi_gguf_kv *atsi_gguf_kv_at(const struct atsi_gguf *gguf, uint64_t index) {
    return &gguf->parts[0].kv[index];
}

const struct atsi_gguf_kv *atsi_gguf_find(const struct atsi_gguf *gguf, const char *key) {
    return atsi_gguf_part_find(&gguf->parts[0], key);
}

uint64_t atsi_gguf_n_tensors(const struct atsi_gguf *gguf) { return gguf->n_tensors; }

const struct atsi_gguf_tensor *atsi_gguf_tensor_at(const struct atsi_gguf *gguf, uint64_t index) {
    return gguf->tensors[index];
}

const struct atsi_gguf_tensor *atsi_gguf_find_tensor(const struct atsi_gguf *gguf, const char *name) {
    const struct atsi_gguf_tensor wanted = {.name = atsi_str_of(name)}, *wanted_at = &wanted;
    struct atsi_gguf_tensor **found =
        bsearch(&wanted_at, gguf->by_name, gguf->n_tensors, sizeof *gguf->by_name, compare_names);
    return found ? *found : NULL;
}

void atsi_gguf_prefetch(const struct atsi_gguf *gguf, const struct atsi_gguf_tensor *tensor) {
    atsi_map_advise(&gguf->parts[tensor->part].map, tensor->file_offset, tensor->size_bytes, ATSI_MAP_WILL_NEED);
}

void atsi_gguf_drop(const struct atsi_gguf *gguf, const struct atsi_gguf_tensor *tensor) {
    atsi_map_advise(&gguf->parts[tensor->part].map, tensor->file_offset, tensor->size_bytes, ATSI_MAP_DONT_NEED);
}
