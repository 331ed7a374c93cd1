// ranges.h: which columns of each buffer each side holds, as the script builder walks the steps (private to script.c).
#ifndef ATSI_RUNTIME_SCHEDULE_RANGES_H
#define ATSI_RUNTIME_SCHEDULE_RANGES_H

#include "formats/program.h"

// A buffer's columns as consecutive segments, each held by either side, both or none. A buffer is divided where views begin and
// where a shared unit divides it, so a few are enough; should they run out, `overflowed` stays set and the script is refused, because
// what is not followed could be read stale.
enum {
    ATSI_RANGE_SEGMENTS = 32
};
struct atsi_ranges {
    uint32_t n;
    uint32_t end[ATSI_RANGE_SEGMENTS]; // ascending; the last is the buffer's width
    bool held[ATSI_RANGE_SEGMENTS][2]; // by backend
    bool overflowed;
};

void atsi_ranges_init(struct atsi_ranges *r, uint32_t width);
// Columns [begin, end) were written on `side`; with `both` the other side writes the same and keeps what it has.
void atsi_ranges_write(struct atsi_ranges *r, uint32_t begin, uint32_t end, enum atsi_backend side, bool both);
// The next part of [begin, end) that `side` lacks and the other side holds. Returns false when there is none; else marks it held
// by both and returns it in *from and *to.
bool atsi_ranges_fetch(struct atsi_ranges *r, uint32_t begin, uint32_t end, enum atsi_backend side, uint32_t *from,
                       uint32_t *to);

#endif
