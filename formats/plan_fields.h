// plan_fields.h: one table a struct drives both directions between the manifest's JSON and memory (private to plan_*.c).
#ifndef ATSI_FORMATS_PLAN_FIELDS_H
#define ATSI_FORMATS_PLAN_FIELDS_H

#include <cjson/cJSON.h>
#include <stddef.h>

#include "formats/base/error.h"

enum atsi_field_type {
    ATSI_FIELD_U32,
    ATSI_FIELD_I32,
    ATSI_FIELD_U64,   // a JSON number below 2^53
    ATSI_FIELD_HEX64, // a string of 16 hexadecimal digits
    ATSI_FIELD_FLOAT,
    ATSI_FIELD_DOUBLE,
    ATSI_FIELD_BOOL,
    ATSI_FIELD_TEXT, // a char array of `cap` bytes; what is read is safe to print (escape.h)
    ATSI_FIELD_WORD, // an enum (int) written as one of `words` (n = cap)
    ATSI_FIELD_DTYPE // enum atsi_dtype written by its name
};

struct atsi_field {
    const char *name;
    enum atsi_field_type type;
    size_t offset;
    size_t cap;
    const char *const *words;
};

#define ATSI_FIELD(type_, struct_, member_) \
    { #member_, ATSI_FIELD_##type_, offsetof(struct struct_, member_), 0, NULL }
#define ATSI_FIELD_TEXT_OF(struct_, member_) \
    { #member_, ATSI_FIELD_TEXT, offsetof(struct struct_, member_), sizeof(((struct struct_ *)0)->member_), NULL }
#define ATSI_FIELD_WORD_OF(struct_, member_, words_) \
    { #member_, ATSI_FIELD_WORD, offsetof(struct struct_, member_), sizeof(words_) / sizeof *(words_), words_ }

// Adds the fields of `record` to `object`. Returns false when memory runs out.
int atsi_fields_write(cJSON *object, const struct atsi_field *fields, size_t n_fields, const void *record);
// Fills `record` from `object`; every field must stand there with the right type and range. `where` names the object.
enum atsi_status atsi_fields_read(const cJSON *object, const struct atsi_field *fields, size_t n_fields, void *record,
                                  const char *where, struct atsi_error *err);

#endif
