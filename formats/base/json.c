#include "formats/base/json.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/utf8.h"

// A bit of cJSON's type field that cJSON itself does not use (it owns the low byte, 256 and 512).
#define INTEGER_FLAG (1 << 12)
// cJSON copies a number into a buffer of 64 bytes and would stop in the middle of a longer one.
#define NUMBER_CHARS_MAX 63

// ---- the text: RFC 8259, checked before cJSON sees it ------------------------------------------------------------

struct scan {
    const char *text;
    size_t size, at;
    struct atsi_error *err;
};

static enum atsi_status scan_fail(struct scan *s, size_t at, const char *what) {
    size_t line = 1, column = 1;
    for (size_t i = 0; i < at && i < s->size; i++) {
        column++;
        if (s->text[i] == '\n') line++, column = 1;
    }
    return atsi_fail(s->err, ATSI_BAD_INPUT, "line %zu, column %zu: %s", line, column, what);
}

static int peek(const struct scan *s) { return s->at < s->size ? (unsigned char)s->text[s->at] : -1; }

static bool take(struct scan *s, int c) {
    if (peek(s) != c) return false;
    s->at++;
    return true;
}

static void skip_space(struct scan *s) {
    while (take(s, ' ') || take(s, '\t') || take(s, '\n') || take(s, '\r')) {}
}

static size_t skip_digits(struct scan *s) {
    size_t start = s->at;
    while (peek(s) >= '0' && peek(s) <= '9') s->at++;
    return s->at - start;
}

static enum atsi_status scan_number(struct scan *s) {
    size_t start = s->at;
    take(s, '-');
    size_t first = s->at, n_digits = skip_digits(s);
    bool good = n_digits > 0 && !(n_digits > 1 && s->text[first] == '0');
    if (take(s, '.')) good &= skip_digits(s) > 0;
    if (take(s, 'e') || take(s, 'E')) {
        if (!take(s, '+')) take(s, '-');
        good &= skip_digits(s) > 0;
    }
    if (!good) return scan_fail(s, start, "malformed number");
    if (s->at - start > NUMBER_CHARS_MAX) return scan_fail(s, start, "a number of more than 63 characters");
    return ATSI_OK;
}

static int hex_value(int c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

// The four hex digits after \u; -1 when they are not there.
static int32_t scan_hex4(struct scan *s) {
    int32_t value = 0;
    for (int i = 0; i < 4; i++) {
        int digit = hex_value(peek(s));
        if (digit < 0) return -1;
        value = value * 16 + digit;
        s->at++;
    }
    return value;
}

static enum atsi_status scan_escape(struct scan *s) {
    size_t start = s->at - 1;
    int c = peek(s);
    s->at++;
    if (c > 0 && strchr("\"\\/bfnrt", c)) return ATSI_OK;
    if (c != 'u') return scan_fail(s, start, "unknown escape in a string");
    int32_t unit = scan_hex4(s);
    if (unit < 0) return scan_fail(s, start, "\\u needs four hexadecimal digits");
    if (unit == 0) return scan_fail(s, start, "\\u0000 is not supported");
    bool high = unit >= 0xD800 && unit < 0xDC00, low = unit >= 0xDC00 && unit < 0xE000;
    if (high) {
        int32_t second = take(s, '\\') && take(s, 'u') ? scan_hex4(s) : -1;
        low = !(second >= 0xDC00 && second < 0xE000);
    }
    return low ? scan_fail(s, start, "half of a surrogate pair in a string") : ATSI_OK;
}

static enum atsi_status scan_string(struct scan *s) {
    size_t start = s->at++;
    while (!take(s, '"')) {
        int c = peek(s);
        if (c < 0) return scan_fail(s, start, "string without an end");
        if (c < 0x20) return scan_fail(s, s->at, "control character in a string");
        if (c == '\\') {
            s->at++;
            ATSI_TRY(scan_escape(s));
            continue;
        }
        size_t n = atsi_utf8_length(s->text + s->at, s->size - s->at);
        if (n == 0) return scan_fail(s, s->at, "malformed UTF-8");
        s->at += n;
    }
    return ATSI_OK;
}

static enum atsi_status scan_value(struct scan *s, int depth);

static enum atsi_status scan_member(struct scan *s, int depth) {
    skip_space(s);
    if (peek(s) != '"') return scan_fail(s, s->at, "a key in quotes was expected");
    ATSI_TRY(scan_string(s));
    skip_space(s);
    if (!take(s, ':')) return scan_fail(s, s->at, "':' was expected after the key");
    return scan_value(s, depth);
}

// An object or an array, from its opening bracket on.
static enum atsi_status scan_container(struct scan *s, int depth) {
    if (depth >= ATSI_JSON_DEPTH_MAX) return scan_fail(s, s->at, "nested too deeply");
    bool object = peek(s) == '{';
    int close = object ? '}' : ']';
    s->at++;
    skip_space(s);
    if (take(s, close)) return ATSI_OK;
    for (;;) {
        ATSI_TRY(object ? scan_member(s, depth + 1) : scan_value(s, depth + 1));
        skip_space(s);
        if (take(s, close)) return ATSI_OK;
        if (!take(s, ',')) return scan_fail(s, s->at, object ? "',' or '}' was expected" : "',' or ']' was expected");
    }
}

static bool take_literal(struct scan *s, const char *word) {
    size_t n = strlen(word);
    if (s->size - s->at < n || memcmp(s->text + s->at, word, n) != 0) return false;
    s->at += n;
    return true;
}

static enum atsi_status scan_value(struct scan *s, int depth) {
    skip_space(s);
    int c = peek(s);
    if (c == '{' || c == '[') return scan_container(s, depth);
    if (c == '"') return scan_string(s);
    if (c == '-' || (c >= '0' && c <= '9')) return scan_number(s);
    if (take_literal(s, "true") || take_literal(s, "false") || take_literal(s, "null")) return ATSI_OK;
    return scan_fail(s, s->at, c < 0 ? "the text ends where a value was expected" : "a JSON value was expected");
}

static enum atsi_status scan_text(const char *text, size_t size, struct atsi_error *err) {
    struct scan s = {.text = text, .size = size, .err = err};
    ATSI_TRY(scan_value(&s, 0));
    skip_space(&s);
    return s.at == size ? ATSI_OK : scan_fail(&s, s.at, "text after the end of the JSON value");
}

// ---- the tree: number tokens marked, duplicate keys refused ------------------------------------------------------

static int compare_keys(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static enum atsi_status check_keys(const cJSON *object, struct atsi_error *err) {
    size_t n = 0;
    for (const cJSON *child = object->child; child; child = child->next) n++;
    if (n < 2) return ATSI_OK;
    const char **keys = malloc(n * sizeof *keys);
    if (!keys) return atsi_out_of_memory(err);
    n = 0;
    for (const cJSON *child = object->child; child; child = child->next) keys[n++] = child->string;
    qsort(keys, n, sizeof *keys, compare_keys);
    enum atsi_status status = ATSI_OK;
    for (size_t i = 1; i < n && status == ATSI_OK; i++)
        if (strcmp(keys[i - 1], keys[i]) == 0) status = atsi_fail(err, ATSI_BAD_INPUT, "duplicate key \"%s\"", keys[i]);
    free(keys);
    return status;
}

// The next number token of an already checked text, from *at on.
static const char *next_number(const char *text, size_t size, size_t *at, size_t *length) {
    bool in_string = false;
    for (size_t i = *at; i < size; i++) {
        char c = text[i];
        if (in_string && c == '\\') i++;
        if (c == '"') in_string = !in_string;
        if (in_string || !(c == '-' || (c >= '0' && c <= '9'))) continue;
        *length = strspn(text + i, "-+.0123456789eE");
        *at = i + *length;
        return text + i;
    }
    return NULL;
}

// Walks the tree in document order, so the i-th number item belongs to the i-th number token.
static enum atsi_status annotate(cJSON *item, const char *text, size_t size, size_t *at, struct atsi_error *err) {
    if (cJSON_IsNumber(item)) {
        size_t length = 0;
        const char *token = next_number(text, size, at, &length);
        if (token && !memchr(token, '.', length) && !memchr(token, 'e', length) && !memchr(token, 'E', length))
            item->type |= INTEGER_FLAG;
    }
    if (cJSON_IsObject(item)) ATSI_TRY(check_keys(item, err));
    for (cJSON *child = item->child; child; child = child->next) ATSI_TRY(annotate(child, text, size, at, err));
    return ATSI_OK;
}

static enum atsi_status parse_terminated(const char *text, size_t size, cJSON **out, struct atsi_error *err) {
    ATSI_TRY(scan_text(text, size, err));
    cJSON *tree = cJSON_ParseWithLengthOpts(text, size, NULL, 0);
    if (!tree) return atsi_out_of_memory(err);
    size_t at = 0;
    enum atsi_status status = annotate(tree, text, size, &at, err);
    if (status == ATSI_OK)
        *out = tree;
    else
        cJSON_Delete(tree);
    return status;
}

enum atsi_status atsi_json_parse(const char *text, size_t size, cJSON **out, struct atsi_error *err) {
    *out = NULL;
    char *copy = malloc(size + 1); // terminated: the token scan above may look one byte past the last number
    if (!copy) return atsi_out_of_memory(err);
    if (size) memcpy(copy, text, size); // an empty file that is mapped stands nowhere
    copy[size] = 0;
    enum atsi_status status = parse_terminated(copy, size, out, err);
    free(copy);
    return status;
}

// ---- files -------------------------------------------------------------------------------------------------------

static enum atsi_status read_all(FILE *file, size_t size_max, char **text, size_t *size, struct atsi_error *err) {
    size_t cap = 1 << 16, used = 0;
    char *bytes = malloc(cap);
    while (bytes) {
        used += fread(bytes + used, 1, cap - used, file);
        if (used < cap || used > size_max) break;
        cap *= 2;
        char *grown = realloc(bytes, cap);
        if (!grown) free(bytes);
        bytes = grown;
    }
    if (!bytes) return atsi_out_of_memory(err);
    *text = bytes;
    *size = used;
    if (ferror(file)) return atsi_fail(err, ATSI_BAD_INPUT, "%s", strerror(errno));
    if (used > size_max) return atsi_fail(err, ATSI_BAD_INPUT, "larger than %zu bytes", size_max);
    return ATSI_OK;
}

enum atsi_status atsi_json_parse_file(const char *path, size_t size_max, cJSON **out, struct atsi_error *err) {
    *out = NULL;
    FILE *file = fopen(path, "rb");
    if (!file) return atsi_fail(err, ATSI_BAD_INPUT, "%s: %s", path, strerror(errno));
    char *text = NULL;
    size_t size = 0;
    enum atsi_status status = read_all(file, size_max, &text, &size, err);
    if (status == ATSI_OK) status = atsi_json_parse(text, size, out, err);
    if (status != ATSI_OK) atsi_fail_prefix(err, "%s", path);
    free(text);
    fclose(file);
    return status;
}

// ---- getters -----------------------------------------------------------------------------------------------------

bool atsi_json_is_integer(const cJSON *item) { return cJSON_IsNumber(item) && (item->type & INTEGER_FLAG); }

enum atsi_status atsi_json_get(const cJSON *object, const char *field, const cJSON **out, struct atsi_error *err) {
    if (!cJSON_IsObject(object)) return atsi_fail(err, ATSI_BAD_INPUT, "expected an object");
    *out = cJSON_GetObjectItemCaseSensitive(object, field);
    return *out ? ATSI_OK : atsi_fail(err, ATSI_BAD_INPUT, "field \"%s\" is missing", field);
}

enum atsi_status atsi_json_get_i64(const cJSON *object, const char *field, int64_t min, int64_t max, int64_t *out,
                                   struct atsi_error *err) {
    const cJSON *item;
    ATSI_TRY(atsi_json_get(object, field, &item, err));
    if (!atsi_json_is_integer(item)) return atsi_fail(err, ATSI_BAD_INPUT, "field \"%s\" must be an integer", field);
    double value = item->valuedouble;
    bool exact = fabs(value) < (double)ATSI_JSON_INTEGER_END;
    if (!exact || (int64_t)value < min || (int64_t)value > max)
        return atsi_fail(err, ATSI_BAD_INPUT, "field \"%s\" is %.17g; it must be from %lld to %lld", field, value,
                         (long long)min, (long long)max);
    *out = (int64_t)value;
    return ATSI_OK;
}

enum atsi_status atsi_json_get_double(const cJSON *object, const char *field, double min, double max, double *out,
                                      struct atsi_error *err) {
    const cJSON *item;
    ATSI_TRY(atsi_json_get(object, field, &item, err));
    if (!cJSON_IsNumber(item)) return atsi_fail(err, ATSI_BAD_INPUT, "field \"%s\" must be a number", field);
    double value = item->valuedouble;
    if (!(value >= min && value <= max) || !isfinite(value))
        return atsi_fail(err, ATSI_BAD_INPUT, "field \"%s\" is %g; it must be from %g to %g", field, value, min, max);
    *out = value;
    return ATSI_OK;
}

enum atsi_status atsi_json_get_bool(const cJSON *object, const char *field, bool *out, struct atsi_error *err) {
    const cJSON *item;
    ATSI_TRY(atsi_json_get(object, field, &item, err));
    if (!cJSON_IsBool(item)) return atsi_fail(err, ATSI_BAD_INPUT, "field \"%s\" must be true or false", field);
    *out = cJSON_IsTrue(item);
    return ATSI_OK;
}

enum atsi_status atsi_json_get_string(const cJSON *object, const char *field, const char **out,
                                      struct atsi_error *err) {
    const cJSON *item;
    ATSI_TRY(atsi_json_get(object, field, &item, err));
    if (!cJSON_IsString(item)) return atsi_fail(err, ATSI_BAD_INPUT, "field \"%s\" must be a string", field);
    *out = item->valuestring;
    return ATSI_OK;
}

enum atsi_status atsi_json_get_array(const cJSON *object, const char *field, const cJSON **out,
                                     struct atsi_error *err) {
    ATSI_TRY(atsi_json_get(object, field, out, err));
    return cJSON_IsArray(*out) ? ATSI_OK : atsi_fail(err, ATSI_BAD_INPUT, "field \"%s\" must be an array", field);
}

enum atsi_status atsi_json_get_object(const cJSON *object, const char *field, const cJSON **out,
                                      struct atsi_error *err) {
    ATSI_TRY(atsi_json_get(object, field, out, err));
    return cJSON_IsObject(*out) ? ATSI_OK : atsi_fail(err, ATSI_BAD_INPUT, "field \"%s\" must be an object", field);
}

enum atsi_status atsi_json_get_word(const cJSON *object, const char *field, const char *const *words, size_t n_words,
                                    size_t *out, struct atsi_error *err) {
    const char *text;
    ATSI_TRY(atsi_json_get_string(object, field, &text, err));
    for (size_t i = 0; i < n_words; i++)
        if (strcmp(text, words[i]) == 0) {
            *out = i;
            return ATSI_OK;
        }
    char list[256] = "";
    for (size_t i = 0, used = 0; i < n_words && used < sizeof list; i++)
        used += (size_t)snprintf(list + used, sizeof list - used, "%s\"%s\"", i ? ", " : "", words[i]);
    return atsi_fail(err, ATSI_BAD_INPUT, "field \"%s\" is \"%s\"; it must be one of %s", field, text, list);
}

// ---- writing -----------------------------------------------------------------------------------------------------

bool atsi_json_put_figure(cJSON *object, const char *field, double value) {
    char text[32];
    snprintf(text, sizeof text, "%.6g", value);
    return atsi_json_put(object, field, value == trunc(value) ? value : strtod(text, NULL));
}

enum atsi_status atsi_json_print(FILE *out, cJSON *root, bool complete, struct atsi_error *err) {
    char *text = root && complete ? cJSON_PrintUnformatted(root) : NULL;
    if (text) fprintf(out, "%s\n", text);
    cJSON_free(text);
    cJSON_Delete(root);
    return text ? ATSI_OK : atsi_fail(err, ATSI_FAILED, "out of memory while printing the result");
}
