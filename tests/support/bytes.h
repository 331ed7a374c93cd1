// bytes.h: a growing buffer for building files in memory. Running out of memory ends the test program.
#ifndef ATSI_TESTS_SUPPORT_BYTES_H
#define ATSI_TESTS_SUPPORT_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bytes {
    uint8_t *data;
    size_t size, cap;
};

void bytes_append(struct bytes *b, const void *data, size_t size);
void bytes_fill(struct bytes *b, uint8_t value, size_t size);
void bytes_le(struct bytes *b, uint64_t value, unsigned size); // `size` low bytes of value, little-endian
void bytes_set_le(struct bytes *b, size_t offset, uint64_t value, unsigned size);
void bytes_pad(struct bytes *b, size_t alignment, uint8_t value);
// A copy in an allocation of exactly its size, so that a sanitizer sees every read past the end.
struct bytes bytes_exact(const struct bytes *b, size_t size);
void bytes_free(struct bytes *b);

// Writes a file; `folder` and `name` are joined by a slash.
void bytes_write(const struct bytes *b, const char *folder, const char *name);
// Reads a whole file. False, and `out` empty, when it cannot be opened.
bool bytes_read(const char *path, struct bytes *out);

#endif
