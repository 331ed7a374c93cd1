#include "runtime/tokenizer/normalize.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "formats/base/checked.h"

// No character below U+0300 changes or combines with what stands before it, and U+0300 starts with the byte 0xCC.
#define FIRST_COMBINING_BYTE 0xCC

// Most characters that one byte of UTF-8 decomposes into: two bytes give up to three (U+0390), three up to four (U+1F82).
#define MAX_PER_BYTE 2

struct mark {
    uint32_t order; // canonical combining class, then position: a sort by it is stable
    utf8proc_int32_t code;
};

bool atsi_is_surely_nfc(const char *text, size_t size) {
    for (size_t i = 0; i < size; i++)
        if ((unsigned char)text[i] >= FIRST_COMBINING_BYTE) return false;
    return true;
}

static utf8proc_propval_t combining_class(utf8proc_int32_t code) {
    return utf8proc_get_property(code)->combining_class;
}

static size_t decompose(const char *text, size_t size, utf8proc_int32_t *codes, size_t cap) {
    size_t n = 0;
    for (size_t i = 0; i < size;) {
        utf8proc_int32_t code;
        utf8proc_ssize_t length =
            utf8proc_iterate((const utf8proc_uint8_t *)text + i, (utf8proc_ssize_t)(size - i), &code);
        if (length <= 0) break;
        i += (size_t)length;
        int boundary = 0;
        utf8proc_ssize_t added = utf8proc_decompose_char(code, codes + n, (utf8proc_ssize_t)(cap - n),
                                                         UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, &boundary);
        if (added > 0) n += (size_t)added;
    }
    return n;
}

static int compare_marks(const void *a, const void *b) {
    const struct mark *x = a, *y = b;
    utf8proc_propval_t class_x = combining_class(x->code), class_y = combining_class(y->code);
    if (class_x != class_y) return class_x < class_y ? -1 : 1;
    return (x->order > y->order) - (x->order < y->order);
}

// Canonical ordering: each run of marks is sorted by class, stably. utf8proc's own ordering is quadratic in the run.
static enum atsi_status order_marks(utf8proc_int32_t *codes, size_t n, struct atsi_error *err) {
    struct mark *marks = NULL;
    size_t marks_cap = 0;
    for (size_t i = 0; i < n;) {
        size_t end = i;
        bool sorted = true;
        while (end < n && combining_class(codes[end]) > 0) {
            sorted &= end == i || combining_class(codes[end - 1]) <= combining_class(codes[end]);
            end++;
        }
        size_t run = end - i;
        if (!sorted) {
            if (run > marks_cap) {
                struct mark *grown = reallocarray(marks, run, sizeof *marks);
                if (!grown) {
                    free(marks);
                    return atsi_fail(err, ATSI_FAILED, "out of memory for %zu combining marks", run);
                }
                marks = grown;
                marks_cap = run;
            }
            for (size_t k = 0; k < run; k++) marks[k] = (struct mark){(uint32_t)k, codes[i + k]};
            qsort(marks, run, sizeof *marks, compare_marks);
            for (size_t k = 0; k < run; k++) codes[i + k] = marks[k].code;
        }
        i = end + 1;
    }
    free(marks);
    return ATSI_OK;
}

static size_t encode_utf8(const utf8proc_int32_t *codes, size_t n, char *out) {
    size_t size = 0;
    for (size_t i = 0; i < n; i++) size += (size_t)utf8proc_encode_char(codes[i], (utf8proc_uint8_t *)out + size);
    return size;
}

enum atsi_status atsi_normalize_nfc(const char *text, size_t size, char **out, size_t *out_size,
                                    struct atsi_error *err) {
    *out = NULL;
    *out_size = 0;
    uint64_t cap, bytes;
    if (!atsi_mul_u64(size, MAX_PER_BYTE, &cap) || !atsi_mul_u64(cap, sizeof(utf8proc_int32_t), &bytes))
        return atsi_fail(err, ATSI_FAILED, "a text of %zu bytes is too long", size);
    utf8proc_int32_t *codes = malloc(bytes + 1);
    if (!codes) return atsi_fail(err, ATSI_FAILED, "out of memory to normalise %zu bytes", size);
    size_t n = decompose(text, size, codes, cap);
    enum atsi_status status = order_marks(codes, n, err);
    if (status == ATSI_OK) {
        utf8proc_ssize_t composed =
            utf8proc_normalize_utf32(codes, (utf8proc_ssize_t)n, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        n = composed > 0 ? (size_t)composed : 0;
        *out = malloc(4 * n + 1);
        if (*out)
            *out_size = encode_utf8(codes, n, *out);
        else
            status = atsi_fail(err, ATSI_FAILED, "out of memory to normalise %zu bytes", size);
    }
    free(codes);
    return status;
}
