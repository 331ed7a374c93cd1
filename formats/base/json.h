// json.h: strict JSON on top of cJSON.
//
// cJSON builds the tree; it also accepts things that are not JSON (numbers like 01, text after the value) and keeps
// both of two equal keys. The parser here checks the text against RFC 8259 first and refuses what would be read in more
// than one way: duplicate keys (compared after escapes are resolved), \u0000 inside strings (the tree holds C strings),
// malformed UTF-8, a byte order mark, nesting deeper than ATSI_JSON_DEPTH_MAX.
//
// Getters return ATSI_BAD_INPUT with a message that names the field; callers put the place in front of it with
// atsi_fail_prefix ("units[3]"). Fields that nobody asks for are ignored. Trees are read-only after parsing and may
// then be read from several threads.
#ifndef ATSI_FORMATS_BASE_JSON_H
#define ATSI_FORMATS_BASE_JSON_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "formats/base/error.h"

#define ATSI_JSON_DEPTH_MAX   100
#define ATSI_JSON_INTEGER_END (UINT64_C(1) << 53) // integers from here on do not survive a double

// Parses `size` bytes holding exactly one JSON value. *out is owned by the caller (cJSON_Delete), NULL on failure.
enum atsi_status atsi_json_parse(const char *text, size_t size, cJSON **out, struct atsi_error *err);

// Reads and parses a file of at most `size_max` bytes; messages start with the path. Everything that is wrong with the
// file, also that it cannot be read, is ATSI_BAD_INPUT (lack of memory is ATSI_FAILED).
enum atsi_status atsi_json_parse_file(const char *path, size_t size_max, cJSON **out, struct atsi_error *err);

// True for a number that the text wrote without fraction and exponent: 1 and -0, but not 1.0 or 1e3.
bool atsi_json_is_integer(const cJSON *item);

// The field's item whatever its type (null counts as present); fails when `object` is no object or lacks it.
enum atsi_status atsi_json_get(const cJSON *object, const char *field, const cJSON **out, struct atsi_error *err);

// An integer (as written) with min <= value <= max, both below ATSI_JSON_INTEGER_END in magnitude.
enum atsi_status atsi_json_get_i64(const cJSON *object, const char *field, int64_t min, int64_t max, int64_t *out,
                                   struct atsi_error *err);
// A number, integer or not, that is finite and min <= value <= max.
enum atsi_status atsi_json_get_double(const cJSON *object, const char *field, double min, double max, double *out,
                                      struct atsi_error *err);
enum atsi_status atsi_json_get_bool(const cJSON *object, const char *field, bool *out, struct atsi_error *err);
// The strings and items returned belong to the tree.
enum atsi_status atsi_json_get_string(const cJSON *object, const char *field, const char **out, struct atsi_error *err);
enum atsi_status atsi_json_get_array(const cJSON *object, const char *field, const cJSON **out, struct atsi_error *err);
enum atsi_status atsi_json_get_object(const cJSON *object, const char *field, const cJSON **out,
                                      struct atsi_error *err);

// A string that must be one of `words` (n of them); *out is its index.
enum atsi_status atsi_json_get_word(const cJSON *object, const char *field, const char *const *words, size_t n_words,
                                    size_t *out, struct atsi_error *err);

// Adds a number to an object. False when there is no memory.
static inline bool atsi_json_put(cJSON *object, const char *field, double value) {
    return cJSON_AddNumberToObject(object, field, value) != NULL;
}

// The same for what was measured or predicted and is to be read by people and scripts: six significant digits, but whole numbers as they
// are.
bool atsi_json_put_figure(cJSON *object, const char *field, double value);

// Writes a tree as one line and frees it. `complete`: all of it could be put; else, and without memory for the text, nothing is written
// and the result is ATSI_FAILED. Whether the line arrived is the stream's to say.
enum atsi_status atsi_json_print(FILE *out, cJSON *root, bool complete, struct atsi_error *err);

#endif
