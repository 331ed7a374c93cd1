#include "formats/plan_fields.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/escape.h"
#include "formats/dtype.h"

// ---- memory -> JSON -----------------------------------------------------------------------------------------------

static cJSON *field_to_json(const struct atsi_field *f, const void *at) {
    char hex[17];
    switch (f->type) {
    case ATSI_FIELD_U32: return cJSON_CreateNumber(*(const uint32_t *)at);
    case ATSI_FIELD_I32: return cJSON_CreateNumber(*(const int32_t *)at);
    case ATSI_FIELD_U64: return cJSON_CreateNumber((double)*(const uint64_t *)at);
    case ATSI_FIELD_HEX64:
        snprintf(hex, sizeof hex, "%016llx", (unsigned long long)*(const uint64_t *)at);
        return cJSON_CreateString(hex);
    case ATSI_FIELD_FLOAT: return cJSON_CreateNumber(*(const float *)at);
    case ATSI_FIELD_DOUBLE: return cJSON_CreateNumber(*(const double *)at);
    case ATSI_FIELD_BOOL: return cJSON_CreateBool(*(const bool *)at);
    case ATSI_FIELD_TEXT: return cJSON_CreateString((const char *)at);
    case ATSI_FIELD_WORD: return cJSON_CreateString(f->words[*(const int *)at]);
    case ATSI_FIELD_DTYPE: return cJSON_CreateString(atsi_dtype_name((uint32_t) * (const enum atsi_dtype *)at));
    }
    return NULL;
}

int atsi_fields_write(cJSON *object, const struct atsi_field *fields, size_t n_fields, const void *record) {
    for (size_t i = 0; i < n_fields; i++) {
        cJSON *item = field_to_json(&fields[i], (const char *)record + fields[i].offset);
        if (!item || !cJSON_AddItemToObject(object, fields[i].name, item)) {
            cJSON_Delete(item);
            return 0;
        }
    }
    return 1;
}

// ---- JSON -> memory -----------------------------------------------------------------------------------------------

static bool read_whole(const cJSON *item, double low, double high, double *out) {
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= low && item->valuedouble <= high)) return false;
    *out = item->valuedouble;
    return *out == floor(*out);
}

static bool read_hex64(const cJSON *item, uint64_t *out) {
    if (!cJSON_IsString(item) || strlen(item->valuestring) != 16 || strspn(item->valuestring, "0123456789abcdef") != 16)
        return false;
    *out = strtoull(item->valuestring, NULL, 16);
    return true;
}

static bool read_word(const cJSON *item, const struct atsi_field *f, int *out) {
    if (!cJSON_IsString(item)) return false;
    for (size_t i = 0; i < f->cap; i++)
        if (!strcmp(item->valuestring, f->words[i])) {
            *out = (int)i;
            return true;
        }
    return false;
}

static bool read_text(const cJSON *item, char *out, size_t cap) {
    if (!cJSON_IsString(item) || strlen(item->valuestring) >= cap) return false;
    atsi_escape(out, cap, item->valuestring,
                strlen(item->valuestring)); // whoever shows it need not ask where it is from
    return true;
}

static bool field_from_json(const cJSON *item, const struct atsi_field *f, void *at) {
    double number = 0;
    int id;
    switch (f->type) {
    case ATSI_FIELD_U32: return read_whole(item, 0, UINT32_MAX, &number) && (*(uint32_t *)at = (uint32_t)number, true);
    case ATSI_FIELD_I32:
        return read_whole(item, INT32_MIN, INT32_MAX, &number) && (*(int32_t *)at = (int32_t)number, true);
    case ATSI_FIELD_U64: return read_whole(item, 0, 0x1p53, &number) && (*(uint64_t *)at = (uint64_t)number, true);
    case ATSI_FIELD_HEX64: return read_hex64(item, at);
    case ATSI_FIELD_FLOAT:
        if (!cJSON_IsNumber(item) || !(fabs(item->valuedouble) <= 3.4e38)) return false;
        *(float *)at = (float)item->valuedouble;
        return true;
    case ATSI_FIELD_DOUBLE:
        if (!cJSON_IsNumber(item) || !isfinite(item->valuedouble)) return false;
        *(double *)at = item->valuedouble;
        return true;
    case ATSI_FIELD_BOOL: return cJSON_IsBool(item) && (*(bool *)at = cJSON_IsTrue(item), true);
    case ATSI_FIELD_TEXT: return read_text(item, at, f->cap);
    case ATSI_FIELD_WORD: return read_word(item, f, at);
    case ATSI_FIELD_DTYPE:
        if (!cJSON_IsString(item) || (id = atsi_dtype_find(item->valuestring)) < 0) return false;
        *(enum atsi_dtype *)at = (enum atsi_dtype)id;
        return true;
    }
    return false;
}

enum atsi_status atsi_fields_read(const cJSON *object, const struct atsi_field *fields, size_t n_fields, void *record,
                                  const char *where, struct atsi_error *err) {
    for (size_t i = 0; i < n_fields; i++) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, fields[i].name);
        if (!item)
            return atsi_fail(err, ATSI_BAD_INPUT, "manifest: %s: field \"%s\" is missing", where, fields[i].name);
        if (!field_from_json(item, &fields[i], (char *)record + fields[i].offset))
            return atsi_fail(err, ATSI_BAD_INPUT, "manifest: %s: field \"%s\" has a bad value", where, fields[i].name);
    }
    return ATSI_OK;
}
