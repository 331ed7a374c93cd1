#include "formats/base/escape.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "formats/base/utf8.h"

static int is_printable(const unsigned char *p, size_t n) {
    if (n == 1) return p[0] >= 0x20 && p[0] != 0x7F;
    return !(n == 2 && p[0] == 0xC2 && p[1] < 0xA0); // U+0080..U+009F are controls too
}

size_t atsi_escape(char *out, size_t out_size, const char *in, size_t size) {
    const unsigned char *p = (const unsigned char *)in;
    size_t used = 0;
    for (size_t i = 0; i < size;) {
        size_t n = atsi_utf8_length(in + i, size - i);
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
