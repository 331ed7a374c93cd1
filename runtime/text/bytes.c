#include "runtime/text/bytes.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum atsi_status atsi_bytes_append(struct atsi_bytes *bytes, const char *data, size_t size, struct atsi_error *err) {
    if (size == 0) return ATSI_OK;
    if (size > bytes->cap - bytes->size) {
        if (size > SIZE_MAX / 4 - bytes->size)
            return atsi_fail(err, ATSI_FAILED, "a text of %zu bytes is too long", size);
        size_t cap = 2 * (bytes->size + size) + 64;
        char *grown = realloc(bytes->data, cap);
        if (!grown) return atsi_fail(err, ATSI_FAILED, "out of memory for %zu bytes of text", cap);
        bytes->data = grown;
        bytes->cap = cap;
    }
    memcpy(bytes->data + bytes->size, data, size);
    bytes->size += size;
    return ATSI_OK;
}

void atsi_bytes_free(struct atsi_bytes *bytes) {
    free(bytes->data);
    *bytes = (struct atsi_bytes){0};
}
