// Typed access to metadata.
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "formats/base/le.h"
#include "formats/gguf_internal.h"

static const struct {
    const char *name;
    uint32_t size_bytes; // 0: not fixed
} types[ATSI_GGUF_TYPE_LIMIT] = {
    [ATSI_GGUF_U8] = {"u8", 1},   [ATSI_GGUF_I8] = {"i8", 1},       [ATSI_GGUF_U16] = {"u16", 2},
    [ATSI_GGUF_I16] = {"i16", 2}, [ATSI_GGUF_U32] = {"u32", 4},     [ATSI_GGUF_I32] = {"i32", 4},
    [ATSI_GGUF_F32] = {"f32", 4}, [ATSI_GGUF_BOOL] = {"bool", 1},   [ATSI_GGUF_STRING] = {"string", 0},
    [ATSI_GGUF_U64] = {"u64", 8}, [ATSI_GGUF_ARRAY] = {"array", 0}, [ATSI_GGUF_I64] = {"i64", 8},
    [ATSI_GGUF_F64] = {"f64", 8},
};

const char *atsi_gguf_type_name(uint32_t type) { return type < ATSI_GGUF_TYPE_LIMIT ? types[type].name : "unknown"; }

uint32_t atsi_gguf_type_bytes(uint32_t type) { return type < ATSI_GGUF_TYPE_LIMIT ? types[type].size_bytes : 0; }

// A decoded number: `real` always holds its value (rounded), the integers where the kind says so.
struct number {
    enum {
        NUMBER_NONE,
        NUMBER_INT,  // `integer`
        NUMBER_HUGE, // a u64 above int64: `huge`
        NUMBER_REAL,
        NUMBER_BOOL // `integer` is 0 or 1
    } kind;
    int64_t integer;
    uint64_t huge;
    double real;
};

static struct number of_int(int64_t v) { return (struct number){.kind = NUMBER_INT, .integer = v, .real = (double)v}; }

static struct number of_u64(uint64_t v) {
    if (v <= INT64_MAX) return of_int((int64_t)v);
    return (struct number){.kind = NUMBER_HUGE, .huge = v, .real = (double)v};
}

static struct number of_real_bits(const uint8_t *data, size_t size) {
    double wide;
    float narrow;
    uint64_t bits64 = size == 8 ? atsi_load_le64(data) : 0;
    uint32_t bits32 = size == 4 ? atsi_load_le32(data) : 0;
    memcpy(&wide, &bits64, sizeof wide);
    memcpy(&narrow, &bits32, sizeof narrow);
    return (struct number){.kind = NUMBER_REAL, .real = size == 8 ? wide : (double)narrow};
}

static struct number decode(enum atsi_gguf_type type, const uint8_t *data) {
    switch (type) {
    case ATSI_GGUF_U8: return of_int(data[0]);
    case ATSI_GGUF_I8: return of_int((int8_t)data[0]);
    case ATSI_GGUF_U16: return of_int(atsi_load_le16(data));
    case ATSI_GGUF_I16: return of_int((int16_t)atsi_load_le16(data));
    case ATSI_GGUF_U32: return of_int(atsi_load_le32(data));
    case ATSI_GGUF_I32: return of_int((int32_t)atsi_load_le32(data));
    case ATSI_GGUF_U64: return of_u64(atsi_load_le64(data));
    case ATSI_GGUF_I64: return of_int((int64_t)atsi_load_le64(data));
    case ATSI_GGUF_F32: return of_real_bits(data, 4);
    case ATSI_GGUF_F64: return of_real_bits(data, 8);
    case ATSI_GGUF_BOOL: return (struct number){.kind = NUMBER_BOOL, .integer = data[0] != 0, .real = data[0] != 0};
    default: return (struct number){.kind = NUMBER_NONE};
    }
}

// ---- scalars -----------------------------------------------------------------------------------------------------

static enum atsi_status absent(const struct atsi_gguf *gguf, const char *key, struct atsi_error *err) {
    return atsi_fail(err, ATSI_BAD_INPUT, "%s: key \"%s\" is missing", gguf->parts[0].path, key);
}

static enum atsi_status wrong_type(const struct atsi_gguf_kv *kv, const char *expected, struct atsi_error *err) {
    return atsi_fail(err, ATSI_BAD_INPUT, "key \"%s\" at offset %" PRIu64 ": expected %s, found %s",
                     atsi_label(kv->key).text, kv->file_offset, expected, atsi_gguf_type_name(kv->type));
}

// Puts the file's name in front of a failure that names a key.
static enum atsi_status in_file(const struct atsi_gguf *gguf, enum atsi_status status, struct atsi_error *err) {
    if (status != ATSI_OK) atsi_fail_prefix(err, "%s", gguf->parts[0].path);
    return status;
}

enum atsi_status atsi_gguf_kv_u64(const struct atsi_gguf_kv *kv, uint64_t max, uint64_t *out, struct atsi_error *err) {
    struct number v = decode(kv->type, kv->data);
    if (v.kind != NUMBER_INT && v.kind != NUMBER_HUGE) return wrong_type(kv, "an integer", err);
    if (v.kind == NUMBER_INT && v.integer < 0)
        return atsi_fail(err, ATSI_BAD_INPUT, "key \"%s\" at offset %" PRIu64 ": expected 0 or more, found %" PRId64,
                         atsi_label(kv->key).text, kv->file_offset, v.integer);
    *out = v.kind == NUMBER_HUGE ? v.huge : (uint64_t)v.integer;
    if (*out > max)
        return atsi_fail(err, ATSI_BAD_INPUT,
                         "key \"%s\" at offset %" PRIu64 ": expected at most %" PRIu64 ", found %" PRIu64,
                         atsi_label(kv->key).text, kv->file_offset, max, *out);
    return ATSI_OK;
}

static enum atsi_status get_uint(const struct atsi_gguf *gguf, const char *key, uint64_t max, const uint64_t *fallback,
                                 uint64_t *out, struct atsi_error *err) {
    const struct atsi_gguf_kv *kv = atsi_gguf_find(gguf, key);
    if (kv) return in_file(gguf, atsi_gguf_kv_u64(kv, max, out, err), err);
    if (!fallback) return absent(gguf, key, err);
    *out = *fallback;
    return ATSI_OK;
}

enum atsi_status atsi_gguf_u64(const struct atsi_gguf *gguf, const char *key, uint64_t *out, struct atsi_error *err) {
    return get_uint(gguf, key, UINT64_MAX, NULL, out, err);
}

enum atsi_status atsi_gguf_u32(const struct atsi_gguf *gguf, const char *key, uint32_t *out, struct atsi_error *err) {
    uint64_t wide = 0;
    ATSI_TRY(get_uint(gguf, key, UINT32_MAX, NULL, &wide, err));
    *out = (uint32_t)wide;
    return ATSI_OK;
}

enum atsi_status atsi_gguf_u32_or(const struct atsi_gguf *gguf, const char *key, uint32_t fallback, uint32_t *out,
                                  struct atsi_error *err) {
    uint64_t wide = 0, wide_fallback = fallback;
    ATSI_TRY(get_uint(gguf, key, UINT32_MAX, &wide_fallback, &wide, err));
    *out = (uint32_t)wide;
    return ATSI_OK;
}

static enum atsi_status get_real(const struct atsi_gguf *gguf, const char *key, const double *fallback, double *out,
                                 struct atsi_error *err) {
    const struct atsi_gguf_kv *kv = atsi_gguf_find(gguf, key);
    if (!kv) {
        if (!fallback) return absent(gguf, key, err);
        *out = *fallback;
        return ATSI_OK;
    }
    struct number v = decode(kv->type, kv->data);
    if (v.kind == NUMBER_NONE || v.kind == NUMBER_BOOL) return in_file(gguf, wrong_type(kv, "a number", err), err);
    if (!isfinite(v.real))
        return atsi_fail(err, ATSI_BAD_INPUT,
                         "%s: key \"%s\" at offset %" PRIu64 ": expected a finite number, found %f",
                         gguf->parts[0].path, key, kv->file_offset, v.real);
    *out = v.real;
    return ATSI_OK;
}

enum atsi_status atsi_gguf_f64(const struct atsi_gguf *gguf, const char *key, double *out, struct atsi_error *err) {
    return get_real(gguf, key, NULL, out, err);
}

enum atsi_status atsi_gguf_f64_or(const struct atsi_gguf *gguf, const char *key, double fallback, double *out,
                                  struct atsi_error *err) {
    return get_real(gguf, key, &fallback, out, err);
}

enum atsi_status atsi_gguf_bool_or(const struct atsi_gguf *gguf, const char *key, bool fallback, bool *out,
                                   struct atsi_error *err) {
    const struct atsi_gguf_kv *kv = atsi_gguf_find(gguf, key);
    *out = fallback;
    if (!kv) return ATSI_OK;
    struct number v = decode(kv->type, kv->data);
    bool fits = v.kind == NUMBER_BOOL || (v.kind == NUMBER_INT && (v.integer == 0 || v.integer == 1));
    if (!fits) return in_file(gguf, wrong_type(kv, "a bool, 0 or 1", err), err);
    *out = v.integer != 0;
    return ATSI_OK;
}

enum atsi_status atsi_gguf_str_or_none(const struct atsi_gguf *gguf, const char *key, struct atsi_str *out,
                                       struct atsi_error *err) {
    const struct atsi_gguf_kv *kv = atsi_gguf_find(gguf, key);
    *out = (struct atsi_str){0};
    if (!kv) return ATSI_OK;
    if (kv->type != ATSI_GGUF_STRING) return in_file(gguf, wrong_type(kv, "a string", err), err);
    *out = (struct atsi_str){(const char *)kv->data + 8, atsi_load_le64(kv->data)};
    return ATSI_OK;
}

enum atsi_status atsi_gguf_str(const struct atsi_gguf *gguf, const char *key, struct atsi_str *out,
                               struct atsi_error *err) {
    if (!atsi_gguf_find(gguf, key)) return absent(gguf, key, err);
    return atsi_gguf_str_or_none(gguf, key, out, err);
}

// ---- arrays ------------------------------------------------------------------------------------------------------

enum atsi_status atsi_gguf_array(const struct atsi_gguf *gguf, const char *key, struct atsi_gguf_array *out,
                                 struct atsi_error *err) {
    const struct atsi_gguf_kv *kv = atsi_gguf_find(gguf, key);
    *out = (struct atsi_gguf_array){0};
    if (!kv) return ATSI_OK;
    if (kv->type != ATSI_GGUF_ARRAY) return in_file(gguf, wrong_type(kv, "an array", err), err);
    out->type = (enum atsi_gguf_type)atsi_load_le32(kv->data);
    out->n = atsi_load_le64(kv->data + 4);
    out->data = kv->data + 12;
    return ATSI_OK;
}

static enum atsi_status wrong_elements(const struct atsi_gguf *gguf, const char *key, const char *expected,
                                       enum atsi_gguf_type found, struct atsi_error *err) {
    return atsi_fail(
        err, ATSI_BAD_INPUT, "%s: key \"%s\" at offset %" PRIu64 ": expected an array of %s, found one of %s",
        gguf->parts[0].path, key, atsi_gguf_find(gguf, key)->file_offset, expected, atsi_gguf_type_name(found));
}

// The array of that key, whose length must be n_expected, and room for n elements of `elem_bytes`.
static enum atsi_status prepare(const struct atsi_gguf *gguf, const char *key, uint64_t n_expected, size_t elem_bytes,
                                struct atsi_gguf_array *array, void **out, struct atsi_error *err) {
    if (!atsi_gguf_find(gguf, key)) return absent(gguf, key, err);
    ATSI_TRY(atsi_gguf_array(gguf, key, array, err));
    if (n_expected != ATSI_GGUF_ANY_LENGTH && array->n != n_expected)
        return atsi_fail(err, ATSI_BAD_INPUT,
                         "%s: key \"%s\" at offset %" PRIu64 ": expected %" PRIu64 " elements, found %" PRIu64,
                         gguf->parts[0].path, key, atsi_gguf_find(gguf, key)->file_offset, n_expected, array->n);
    *out = calloc(array->n + 1, elem_bytes); // array->n is bounded by the file's size
    return *out ? ATSI_OK : atsi_out_of_memory(err);
}

enum atsi_status atsi_gguf_ints(const struct atsi_gguf *gguf, const char *key, uint64_t n_expected, int64_t **out,
                                uint64_t *n, struct atsi_error *err) {
    struct atsi_gguf_array array;
    void *room;
    *out = NULL;
    ATSI_TRY(prepare(gguf, key, n_expected, sizeof **out, &array, &room, err));
    uint32_t step = atsi_gguf_type_bytes(array.type);
    int64_t *values = *out = room;
    *n = array.n;
    for (uint64_t i = 0; i < array.n; i++) {
        struct number v = step ? decode(array.type, array.data + i * step) : (struct number){.kind = NUMBER_NONE};
        if (v.kind != NUMBER_INT && v.kind != NUMBER_BOOL) {
            free(room);
            *out = NULL;
            return wrong_elements(gguf, key, "integers up to 2^63 - 1", array.type, err);
        }
        values[i] = v.integer;
    }
    return ATSI_OK;
}

enum atsi_status atsi_gguf_floats(const struct atsi_gguf *gguf, const char *key, uint64_t n_expected, float **out,
                                  uint64_t *n, struct atsi_error *err) {
    struct atsi_gguf_array array;
    void *room;
    *out = NULL;
    ATSI_TRY(prepare(gguf, key, n_expected, sizeof **out, &array, &room, err));
    uint32_t step = atsi_gguf_type_bytes(array.type);
    float *values = *out = room;
    *n = array.n;
    if (array.n && (!step || array.type == ATSI_GGUF_BOOL)) {
        free(room);
        *out = NULL;
        return wrong_elements(gguf, key, "numbers", array.type, err);
    }
    for (uint64_t i = 0; i < array.n; i++) values[i] = (float)decode(array.type, array.data + i * step).real;
    return ATSI_OK;
}

enum atsi_status atsi_gguf_strings(const struct atsi_gguf *gguf, const char *key, uint64_t n_expected,
                                   struct atsi_str **out, uint64_t *n, struct atsi_error *err) {
    struct atsi_gguf_array array;
    void *room;
    *out = NULL;
    ATSI_TRY(prepare(gguf, key, n_expected, sizeof **out, &array, &room, err));
    struct atsi_str *strings = *out = room;
    *n = array.n;
    if (array.n && array.type != ATSI_GGUF_STRING) {
        free(room);
        *out = NULL;
        return wrong_elements(gguf, key, "strings", array.type, err);
    }
    const uint8_t *p = array.data;
    for (uint64_t i = 0; i < array.n; i++) {
        strings[i] = (struct atsi_str){(const char *)p + 8, atsi_load_le64(p)};
        p += 8 + strings[i].size;
    }
    return ATSI_OK;
}

// ---- a value per layer -------------------------------------------------------------------------------------------

static enum atsi_status per_layer_array(const struct atsi_gguf *gguf, const char *key, uint32_t n_layers,
                                        uint32_t n_extra, uint32_t *out, struct atsi_error *err) {
    int64_t *values;
    uint64_t n;
    ATSI_TRY(atsi_gguf_ints(gguf, key, ATSI_GGUF_ANY_LENGTH, &values, &n, err));
    enum atsi_status status = ATSI_OK;
    uint64_t offset = atsi_gguf_find(gguf, key)->file_offset;
    if (n != n_layers && n != (uint64_t)n_layers + n_extra) {
        char or_more[32] = "";
        if (n_extra) snprintf(or_more, sizeof or_more, " or %" PRIu64, (uint64_t)n_layers + n_extra);
        status = atsi_fail(err, ATSI_BAD_INPUT,
                           "%s: key \"%s\" at offset %" PRIu64
                           ": expected one value, or one for each of %u%s layers, found %" PRIu64,
                           gguf->parts[0].path, key, offset, n_layers, or_more, n);
    }
    for (uint32_t i = 0; i < n_layers && status == ATSI_OK; i++) {
        if (values[i] < 0 || values[i] > UINT32_MAX)
            status =
                atsi_fail(err, ATSI_BAD_INPUT,
                          "%s: key \"%s\" at offset %" PRIu64 ", element %u: expected 0 to 2^32 - 1, found %" PRId64,
                          gguf->parts[0].path, key, offset, i, values[i]);
        out[i] = (uint32_t)values[i];
    }
    free(values);
    return status;
}

enum atsi_status atsi_gguf_per_layer_u32(const struct atsi_gguf *gguf, const char *key, uint32_t n_layers,
                                         uint32_t n_extra, const uint32_t *fallback, uint32_t *out,
                                         struct atsi_error *err) {
    const struct atsi_gguf_kv *kv = atsi_gguf_find(gguf, key);
    if (kv && kv->type == ATSI_GGUF_ARRAY) return per_layer_array(gguf, key, n_layers, n_extra, out, err);
    uint32_t value = 0;
    ATSI_TRY(fallback ? atsi_gguf_u32_or(gguf, key, *fallback, &value, err) : atsi_gguf_u32(gguf, key, &value, err));
    for (uint32_t i = 0; i < n_layers; i++) out[i] = value;
    return ATSI_OK;
}
