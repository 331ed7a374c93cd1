// gguf.h: a reader of GGUF models, versions 2 and 3 (specification: ggml/docs/gguf.md), little-endian.
//
// The file stays mapped; names, strings, arrays and tensor data are views into it and live until atsi_gguf_close().
// Opening checks everything that a reader could trip over: every count, length, offset, alignment and product against
// the bytes that are there, before anything is allocated; names of keys and tensors for being unique; tensors for lying
// inside the file without overlap. What passes can be read without further checks. Messages name the file, the key or
// tensor, the offset in the file, what was expected and what was found.
//
// A model in several files (NAME-00001-of-00003.gguf) is opened from any of them: metadata is that of the first,
// tensors are those of all. An open model is immutable: any number of threads may read it.
#ifndef ATSI_FORMATS_GGUF_H
#define ATSI_FORMATS_GGUF_H

#include <stdbool.h>
#include <stdint.h>

#include "formats/base/error.h"
#include "formats/base/str.h"
#include "formats/dtype.h"

enum atsi_gguf_type {
    ATSI_GGUF_U8 = 0,
    ATSI_GGUF_I8 = 1,
    ATSI_GGUF_U16 = 2,
    ATSI_GGUF_I16 = 3,
    ATSI_GGUF_U32 = 4,
    ATSI_GGUF_I32 = 5,
    ATSI_GGUF_F32 = 6,
    ATSI_GGUF_BOOL = 7,
    ATSI_GGUF_STRING = 8,
    ATSI_GGUF_ARRAY = 9,
    ATSI_GGUF_U64 = 10,
    ATSI_GGUF_I64 = 11,
    ATSI_GGUF_F64 = 12,
    ATSI_GGUF_TYPE_LIMIT = 13
};

// One key. `data` is the encoded value: the number itself, a string's length and bytes, or an array's element type,
// count and elements. The getters below decode it.
struct atsi_gguf_kv {
    struct atsi_str key;
    enum atsi_gguf_type type;
    const uint8_t *data;
    uint64_t size_bytes;  // of the encoded value
    uint64_t file_offset; // of the encoded value
};

struct atsi_gguf_array {
    enum atsi_gguf_type type; // of the elements
    uint64_t n;
    const uint8_t *data; // encoded elements, unaligned
};

struct atsi_gguf_tensor {
    struct atsi_str name;
    enum atsi_dtype dtype; // known by size; whether a kernel exists is not the reader's business
    uint32_t n_dims;       // 1..4
    uint64_t ne[4];        // ne[0] contiguous; unused dimensions are 1, none is 0
    const uint8_t *data;   // aligned to the file's general.alignment (at least 8)
    uint64_t size_bytes;
    uint32_t part;        // which file of a split model, from 0
    uint64_t file_offset; // of the data in that file
};

struct atsi_gguf;

// Opens the model that `path` is, or is a part of.
enum atsi_status atsi_gguf_open(struct atsi_gguf **out, const char *path, struct atsi_error *err);
// The same for a single file that lies in memory, which must outlive the reader; `name` is for messages only.
enum atsi_status atsi_gguf_open_memory(struct atsi_gguf **out, const void *data, uint64_t size_bytes, const char *name,
                                       struct atsi_error *err);
void atsi_gguf_close(struct atsi_gguf *gguf); // NULL is fine

uint32_t atsi_gguf_version(const struct atsi_gguf *gguf);
uint32_t atsi_gguf_n_parts(const struct atsi_gguf *gguf);
// NUL-terminated, lives as long as the file is open; part < n_parts.
const char *atsi_gguf_part_path(const struct atsi_gguf *gguf, uint32_t part);
// Bytes of all parts together.
uint64_t atsi_gguf_size_bytes(const struct atsi_gguf *gguf);
// Tells one model from another without reading it all: XXH3-64 over the headers of all parts (everything before the
// tensor data), the size of each part, and 4 KiB from the middle of each tensor.
enum atsi_status atsi_gguf_identity_hash(const struct atsi_gguf *gguf, uint64_t *hash, struct atsi_error *err);

// ---- metadata: that of the first part, in file order -----------------------------------------------------------
uint64_t atsi_gguf_n_kv(const struct atsi_gguf *gguf);
const struct atsi_gguf_kv *atsi_gguf_kv_at(const struct atsi_gguf *gguf, uint64_t index);
const struct atsi_gguf_kv *atsi_gguf_find(const struct atsi_gguf *gguf, const char *key); // NULL when absent
const char *atsi_gguf_type_name(uint32_t type);                                           // "u32"; "unknown"

// Scalars. Without "_or" an absent key is an error; with it *out becomes `fallback`. A key that is there with a wrong
// type or out of range is always an error (ATSI_BAD_INPUT).
// Integers may be stored in any width and signedness; f32, f64, bool and strings are refused for them.
enum atsi_status atsi_gguf_u32(const struct atsi_gguf *gguf, const char *key, uint32_t *out, struct atsi_error *err);
enum atsi_status atsi_gguf_u32_or(const struct atsi_gguf *gguf, const char *key, uint32_t fallback, uint32_t *out,
                                  struct atsi_error *err);
enum atsi_status atsi_gguf_u64(const struct atsi_gguf *gguf, const char *key, uint64_t *out, struct atsi_error *err);
// f32, f64 and integers; not-a-number and infinities are refused.
enum atsi_status atsi_gguf_f64(const struct atsi_gguf *gguf, const char *key, double *out, struct atsi_error *err);
enum atsi_status atsi_gguf_f64_or(const struct atsi_gguf *gguf, const char *key, double fallback, double *out,
                                  struct atsi_error *err);
// bool, or an integer 0 or 1.
enum atsi_status atsi_gguf_bool_or(const struct atsi_gguf *gguf, const char *key, bool fallback, bool *out,
                                   struct atsi_error *err);
enum atsi_status atsi_gguf_str(const struct atsi_gguf *gguf, const char *key, struct atsi_str *out,
                               struct atsi_error *err);
// *out is empty with data NULL when the key is absent.
enum atsi_status atsi_gguf_str_or_none(const struct atsi_gguf *gguf, const char *key, struct atsi_str *out,
                                       struct atsi_error *err);

// Arrays. An absent key gives n = 0 and data NULL, without an error.
enum atsi_status atsi_gguf_array(const struct atsi_gguf *gguf, const char *key, struct atsi_gguf_array *out,
                                 struct atsi_error *err);

enum {
    ATSI_GGUF_ANY_LENGTH = 0
};
// Whole arrays converted, allocated, freed by the caller with free(). An absent key is an error; so is a length other
// than `n_expected` unless that is ATSI_GGUF_ANY_LENGTH, and an element type that does not fit: ints takes every
// integer width and bool, floats takes f32, f64 and integers, strings takes strings (views into the file).
enum atsi_status atsi_gguf_ints(const struct atsi_gguf *gguf, const char *key, uint64_t n_expected, int64_t **out,
                                uint64_t *n, struct atsi_error *err);
enum atsi_status atsi_gguf_floats(const struct atsi_gguf *gguf, const char *key, uint64_t n_expected, float **out,
                                  uint64_t *n, struct atsi_error *err);
enum atsi_status atsi_gguf_strings(const struct atsi_gguf *gguf, const char *key, uint64_t n_expected,
                                   struct atsi_str **out, uint64_t *n, struct atsi_error *err);

// A value per layer, which files store as an array or, when all layers agree, as one number. An array has n_layers
// elements, or n_layers + n_extra (the blocks for multi-token prediction, which follow the layers). bool counts as 0
// or 1. An absent key gives `*fallback` everywhere, or an error when fallback is NULL. Writes out[0..n_layers).
enum atsi_status atsi_gguf_per_layer_u32(const struct atsi_gguf *gguf, const char *key, uint32_t n_layers,
                                         uint32_t n_extra, const uint32_t *fallback, uint32_t *out,
                                         struct atsi_error *err);

// ---- tensors: those of all parts, in file order ----------------------------------------------------------------
uint64_t atsi_gguf_n_tensors(const struct atsi_gguf *gguf);
const struct atsi_gguf_tensor *atsi_gguf_tensor_at(const struct atsi_gguf *gguf, uint64_t index);
const struct atsi_gguf_tensor *atsi_gguf_find_tensor(const struct atsi_gguf *gguf, const char *name); // NULL: absent
// Starts reading a tensor's bytes, or drops its pages after use; a hint. Nothing for a model in memory.
void atsi_gguf_prefetch(const struct atsi_gguf *gguf, const struct atsi_gguf_tensor *tensor);
void atsi_gguf_drop(const struct atsi_gguf *gguf, const struct atsi_gguf_tensor *tensor);

#endif
