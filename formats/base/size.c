#include "formats/base/size.h"

#include <stdio.h>
#include <string.h>

static const uint64_t size_limit = UINT64_C(1) << 53;

// Shift of a unit, -1 when it is none.
static int unit_shift(const char *unit) {
    static const char letters[] = "KMG";
    if (!*unit) return 0;
    for (int i = 0; letters[i]; i++) {
        char full[] = {letters[i], 'i', 'B', 0}, brief[] = {letters[i], 0};
        if (strcmp(unit, brief) == 0 || strcmp(unit, full) == 0) return 10 * (i + 1);
    }
    return -1;
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool atsi_size_parse(const char *text, uint64_t *size_bytes) {
    const char *p = text;
    uint64_t whole = 0, fraction = 0, scale = 1;
    if (!is_digit(*p)) return false;
    for (; is_digit(*p); p++) {
        whole = whole * 10 + (uint64_t)(*p - '0');
        if (whole > size_limit) return false;
    }
    if (*p == '.') {
        if (!is_digit(*++p)) return false;
        for (; is_digit(*p); p++)
            if (scale < UINT64_C(1000000000)) { // later digits are below a byte even of GiB
                fraction = fraction * 10 + (uint64_t)(*p - '0');
                scale *= 10;
            }
    }
    int shift = unit_shift(p);
    if (shift < 0 || whole > size_limit >> shift) return false;
    uint64_t value = (whole << shift) + (fraction << shift) / scale; // fraction < 2^30: no overflow
    if (value > size_limit) return false;
    *size_bytes = value;
    return true;
}

char *atsi_size_format(char *out, size_t out_size, uint64_t size_bytes) {
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    if (size_bytes < 1024) {
        snprintf(out, out_size, "%u byte%s", (unsigned)size_bytes, size_bytes == 1 ? "" : "s");
        return out;
    }
    double value = (double)size_bytes / 1024;
    int unit = 0;
    for (; value >= 999.5 && unit < 5; unit++) value /= 1024;
    int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
    int n = snprintf(out, out_size, "%.*f", decimals, value);
    if (decimals && n > 0 && (size_t)n < out_size) { // "1.50" reads better as "1.5", "2.00" as "2"
        while (out[n - 1] == '0') out[--n] = 0;
        if (out[n - 1] == '.') out[--n] = 0;
    }
    if (n > 0 && (size_t)n < out_size) snprintf(out + n, out_size - (size_t)n, " %s", units[unit]);
    return out;
}
