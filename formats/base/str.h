// str.h: bytes with a length, as they lie in a file. They may hold NUL and malformed UTF-8 and are not terminated.
#ifndef ATSI_FORMATS_BASE_STR_H
#define ATSI_FORMATS_BASE_STR_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "formats/base/escape.h"

struct atsi_str {
    const char *data; // borrowed; may be NULL when size is 0
    uint64_t size;    // bytes
};

static inline struct atsi_str atsi_str_of(const char *text) { return (struct atsi_str){text, strlen(text)}; }

// Orders by bytes, a prefix before the longer one.
static inline int atsi_str_compare(struct atsi_str a, struct atsi_str b) {
    uint64_t common = a.size < b.size ? a.size : b.size;
    int order = common ? memcmp(a.data, b.data, common) : 0;
    return order ? order : (a.size > b.size) - (a.size < b.size);
}

static inline bool atsi_str_equal(struct atsi_str a, struct atsi_str b) {
    return a.size == b.size && (a.size == 0 || memcmp(a.data, b.data, a.size) == 0);
}

static inline bool atsi_str_is(struct atsi_str a, const char *text) { return atsi_str_equal(a, atsi_str_of(text)); }

// A string made fit for a message: escaped, without quotes, cut at 80 bytes. Lives as long as the expression:
// `atsi_fail(err, ATSI_BAD_INPUT, "tensor \"%s\" ...", atsi_label(name).text)`.
struct atsi_label {
    char text[81];
};
static inline struct atsi_label atsi_label(struct atsi_str s) {
    struct atsi_label label;
    atsi_escape(label.text, sizeof label.text, s.data, s.size);
    return label;
}

#endif
