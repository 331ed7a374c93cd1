// gguf_internal.h: what the files of the GGUF reader share. Nobody else includes it.
#ifndef ATSI_FORMATS_GGUF_INTERNAL_H
#define ATSI_FORMATS_GGUF_INTERNAL_H

#include "formats/base/map.h"
#include "formats/gguf.h"

// One file.
struct gguf_part {
    char *path;          // owned; or the name of the memory
    struct atsi_map map; // owned; zeroed for a model in memory
    const uint8_t *data;
    uint64_t size_bytes;
    uint32_t version;
    uint64_t data_offset; // where tensor data starts
    struct atsi_gguf_kv *kv;
    uint64_t n_kv;
    struct atsi_gguf_kv **kv_by_key; // sorted
    struct atsi_gguf_tensor *tensors;
    uint64_t n_tensors;
};

struct atsi_gguf {
    struct gguf_part *parts;
    uint32_t n_parts;
    struct atsi_gguf_tensor **tensors; // of all parts, in order
    struct atsi_gguf_tensor **by_name; // sorted
    uint64_t n_tensors;
};

// gguf_parse.c: parses and checks one file whose path, data and size are set. Messages carry no file name.
enum atsi_status atsi_gguf_parse_part(struct gguf_part *part, uint32_t part_index, struct atsi_error *err);
// Orders struct atsi_gguf_kv * by key, for qsort and bsearch on kv_by_key.
int atsi_gguf_compare_kv(const void *a, const void *b);
const struct atsi_gguf_kv *atsi_gguf_part_find(const struct gguf_part *part, const char *key);

// gguf_value.c: bytes of a fixed-size type, 0 for strings, arrays and unknown types.
uint32_t atsi_gguf_type_bytes(uint32_t type);
enum atsi_status atsi_gguf_kv_u64(const struct atsi_gguf_kv *kv, uint64_t max, uint64_t *out, struct atsi_error *err);

#endif
