// gguf_builder.h: GGUF files made in memory, good ones and broken ones, from the specification alone (nothing of the
// reader).
#ifndef ATSI_TESTS_SUPPORT_GGUF_BUILDER_H
#define ATSI_TESTS_SUPPORT_GGUF_BUILDER_H

#include <stdbool.h>

#include "tests/support/bytes.h"

// Value types of the specification.
enum {
    GB_U8,
    GB_I8,
    GB_U16,
    GB_I16,
    GB_U32,
    GB_I32,
    GB_F32,
    GB_BOOL,
    GB_STR,
    GB_ARR,
    GB_U64,
    GB_I64,
    GB_F64
};

enum {
    GB_MAX_FIELDS = 512
};

// A structural number in the finished file: a count, length, dimension or offset.
struct gb_field {
    size_t offset;
    unsigned size; // bytes
    bool in_tensors;
};

struct gguf_builder {
    uint32_t version;   // 3
    uint64_t alignment; // of tensor data, 32; write the key general.alignment yourself
    uint64_t n_kv, n_tensors;
    struct bytes kv, infos, data;
    struct gb_field fields[GB_MAX_FIELDS]; // offsets relative to kv or infos until gb_finish
    unsigned n_fields;
};

void gb_init(struct gguf_builder *g);
void gb_free(struct gguf_builder *g);

// Metadata.
void gb_key(struct gguf_builder *g, const void *key, size_t size,
            uint32_t type); // the value's bytes are for you to append to kv
void gb_int(struct gguf_builder *g, const char *key, uint32_t type, uint64_t value); // any integer type or bool
void gb_f32(struct gguf_builder *g, const char *key, float value);
void gb_f64(struct gguf_builder *g, const char *key, double value);
void gb_str(struct gguf_builder *g, const char *key, const char *value);
void gb_bytes(struct gguf_builder *g, const char *key, const void *value, size_t size); // a string of any bytes
void gb_array(struct gguf_builder *g, const char *key, uint32_t elem_type,
              uint64_t n); // elements for you to append to kv
void gb_ints(struct gguf_builder *g, const char *key, uint32_t elem_type, uint64_t n, const int64_t *values);
void gb_floats(struct gguf_builder *g, const char *key, uint64_t n, const float *values);
void gb_strs(struct gguf_builder *g, const char *key, uint64_t n, const char *const *values);
void gb_put_str(struct gguf_builder *g, const void *data, size_t size); // a string element

// Tensors. `size` bytes of data, each `fill`, at the next aligned offset.
void gb_tensor(struct gguf_builder *g, const char *name, uint32_t dtype, uint32_t n_dims, const uint64_t *ne,
               size_t size, uint8_t fill);
// A directory entry only.
void gb_tensor_info(struct gguf_builder *g, const void *name, size_t name_size, uint32_t dtype, uint32_t n_dims,
                    const uint64_t *ne, uint64_t offset);

// The file, in an allocation of exactly its size. Fields then hold offsets in the file.
struct bytes gb_finish(struct gguf_builder *g);

// A small sound model: several keys of every type, four tensors of different types.
void gb_base(struct gguf_builder *g);

#endif
