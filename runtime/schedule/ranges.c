#include "runtime/schedule/ranges.h"

#include <string.h>

void atsi_ranges_init(struct atsi_ranges *r, uint32_t width) {
    memset(r, 0, sizeof *r);
    r->n = 1;
    r->end[0] = width;
}

// Joins neighbours that are held alike.
static void join(struct atsi_ranges *r) {
    uint32_t n = 1;
    for (uint32_t i = 1; i < r->n; i++) {
        if (memcmp(r->held[i], r->held[n - 1], sizeof r->held[i]) == 0) {
            r->end[n - 1] = r->end[i];
        } else {
            r->end[n] = r->end[i];
            memmove(r->held[n], r->held[i], sizeof r->held[n]);
            n++;
        }
    }
    r->n = n;
}

// Makes `at` a border between segments. False when there is no room for one more.
static bool cut(struct atsi_ranges *r, uint32_t at) {
    uint32_t i = 0;
    while (i < r->n && r->end[i] < at) i++;
    if (at == 0 || r->end[i] == at) return true;
    if (r->n == ATSI_RANGE_SEGMENTS) return false;
    memmove(&r->end[i + 1], &r->end[i], (r->n - i) * sizeof *r->end);
    memmove(&r->held[i + 1], &r->held[i], (r->n - i) * sizeof *r->held);
    r->end[i] = at;
    r->n++;
    return true;
}

void atsi_ranges_write(struct atsi_ranges *r, uint32_t begin, uint32_t end, enum atsi_backend side, bool both) {
    if (!cut(r, begin) || !cut(r, end)) {
        r->overflowed = true;
        return;
    }
    for (uint32_t i = 0, start = 0; i < r->n; start = r->end[i++]) {
        if (start < begin || r->end[i] > end) continue;
        r->held[i][side] = true;
        if (!both) r->held[i][!side] = false;
    }
    join(r);
}

bool atsi_ranges_fetch(struct atsi_ranges *r, uint32_t begin, uint32_t end, enum atsi_backend side, uint32_t *from,
                       uint32_t *to) {
    for (uint32_t i = 0, start = 0; i < r->n; start = r->end[i++]) {
        if (r->end[i] <= begin || start >= end || r->held[i][side] || !r->held[i][!side]) continue;
        *from = start > begin ? start : begin;
        *to = r->end[i] < end ? r->end[i] : end;
        atsi_ranges_write(r, *from, *to, side, true);
        return !r->overflowed;
    }
    return false;
}
