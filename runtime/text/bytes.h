// bytes.h: a text that grows.
#ifndef ATSI_RUNTIME_TEXT_BYTES_H
#define ATSI_RUNTIME_TEXT_BYTES_H

#include <stddef.h>

#include "formats/base/error.h"

// Any bytes, not NUL-terminated. Zero-initialise; free with atsi_bytes_free.
struct atsi_bytes {
    char *data; // NULL while nothing was appended
    size_t size, cap;
};

// ATSI_FAILED without memory; what was there stays.
enum atsi_status atsi_bytes_append(struct atsi_bytes *bytes, const char *data, size_t size, struct atsi_error *err);
void atsi_bytes_free(struct atsi_bytes *bytes);

#endif
