// map.h: a regular file mapped for reading.
//
// The mapping is shared and read-only, so its pages are the page cache itself: nothing is copied, and the driver can
// register it as pinned memory. A file that shrinks while it is mapped raises SIGBUS on access; files are replaced by
// rename, never rewritten in place, so that this does not happen to plans.
#ifndef ATSI_FORMATS_BASE_MAP_H
#define ATSI_FORMATS_BASE_MAP_H

#include <stdbool.h>
#include <stdint.h>

#include "formats/base/error.h"

struct atsi_map {
    const uint8_t *data; // page-aligned; NULL when the file is empty
    uint64_t size_bytes;
    int fd; // open as long as there is data
};

enum atsi_map_advice {
    ATSI_MAP_RANDOM,     // no read-ahead
    ATSI_MAP_SEQUENTIAL, // read ahead, drop behind
    ATSI_MAP_WILL_NEED,  // start reading now
    ATSI_MAP_DONT_NEED   // drop this process's pages (they stay in the page cache while there is room)
};

// Maps the whole of `path`. Anything but a regular file is refused. The message names the file.
enum atsi_status atsi_map_open(struct atsi_map *map, const char *path, struct atsi_error *err);
// A hint for [offset, offset + size_bytes), widened to whole pages; it may do nothing.
void atsi_map_advise(const struct atsi_map *map, uint64_t offset, uint64_t size_bytes, enum atsi_map_advice advice);
// Copies bytes of the file without touching the mapping: much faster than pages that are mapped for a single look. Any number of threads
// at once. False when they are not all there (any more).
bool atsi_map_read(const struct atsi_map *map, uint64_t offset, uint64_t size_bytes, void *dst);
// Also fine on a zeroed map; leaves it zeroed.
void atsi_map_close(struct atsi_map *map);

#endif
