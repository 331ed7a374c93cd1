#include "tests/support/bytes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void die(const char *what) {
    perror(what);
    exit(1);
}

static void reserve(struct bytes *b, size_t more) {
    if (b->size + more <= b->cap) return;
    size_t cap = b->cap ? b->cap : 64;
    while (cap < b->size + more) cap *= 2;
    b->data = realloc(b->data, cap);
    if (!b->data) die("realloc");
    b->cap = cap;
}

void bytes_append(struct bytes *b, const void *data, size_t size) {
    if (size == 0) return;
    reserve(b, size);
    memcpy(b->data + b->size, data, size);
    b->size += size;
}

void bytes_fill(struct bytes *b, uint8_t value, size_t size) {
    reserve(b, size);
    memset(b->data + b->size, value, size);
    b->size += size;
}

void bytes_le(struct bytes *b, uint64_t value, unsigned size) {
    reserve(b, size);
    b->size += size;
    bytes_set_le(b, b->size - size, value, size);
}

void bytes_set_le(struct bytes *b, size_t offset, uint64_t value, unsigned size) {
    for (unsigned i = 0; i < size; i++) b->data[offset + i] = (uint8_t)(value >> (8 * i));
}

void bytes_pad(struct bytes *b, size_t alignment, uint8_t value) {
    size_t over = b->size % alignment;
    if (over) bytes_fill(b, value, alignment - over);
}

struct bytes bytes_exact(const struct bytes *b, size_t size) {
    struct bytes copy = {.data = malloc(size ? size : 1), .size = size, .cap = size};
    if (!copy.data) die("malloc");
    if (size) memcpy(copy.data, b->data, size);
    return copy;
}

void bytes_free(struct bytes *b) {
    free(b->data);
    *b = (struct bytes){0};
}

void bytes_write(const struct bytes *b, const char *folder, const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    if (!file) die(path);
    if (b->size && fwrite(b->data, 1, b->size, file) != b->size) die(path);
    if (fclose(file) != 0) die(path);
}

bool bytes_read(const char *path, struct bytes *out) {
    char buffer[65536];
    FILE *f = fopen(path, "rb");
    *out = (struct bytes){0};
    if (!f) return false;
    for (size_t n; (n = fread(buffer, 1, sizeof buffer, f)) > 0;) bytes_append(out, buffer, n);
    fclose(f);
    return true;
}
