#include "formats/base/escape.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

// Length of the well-formed UTF-8 character at p (RFC 3629: no overlong forms, surrogates or values over U+10FFFF),
// 0 when malformed or cut off.
static size_t utf8_length(const unsigned char *p, size_t left) {
    if (p[0] < 0x80) return 1;
    size_t n = p[0] >= 0xF0 ? 4 : p[0] >= 0xE0 ? 3 : 2;
    if (p[0] < 0xC2 || p[0] > 0xF4 || n > left) return 0;
    for (size_t i = 1; i < n; i++)
        if ((p[i] & 0xC0) != 0x80) return 0;
    if ((p[0] == 0xE0 && p[1] < 0xA0) || (p[0] == 0xED && p[1] > 0x9F)) return 0;
    if ((p[0] == 0xF0 && p[1] < 0x90) || (p[0] == 0xF4 && p[1] > 0x8F)) return 0;
    return n;
}

static int is_printable(const unsigned char *p, size_t n) {
    if (n == 1) return p[0] >= 0x20 && p[0] != 0x7F;
    return !(n == 2 && p[0] == 0xC2 && p[1] < 0xA0); // U+0080..U+009F are controls too
}

size_t atsi_escape(char *out, size_t out_size, const char *in, size_t size) {
    const unsigned char *p = (const unsigned char *)in;
    size_t used = 0;
    for (size_t i = 0; i < size;) {
        size_t n = utf8_length(p + i, size - i);
        if (n && is_printable(p + i, n)) {
            if (used + n >= out_size) break;
            memcpy(out + used, p + i, n);
            used += n;
            i += n;
        } else {
            if (used + 4 >= out_size) break;
            snprintf(out + used, 5, "\\x%02X", p[i]);
            used += 4;
            i++;
        }
    }
    out[used] = 0;
    return used;
}
