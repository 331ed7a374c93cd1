#include "tests/support/gguf_builder.h"

#include <assert.h>
#include <string.h>

static const unsigned type_bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

void gb_init(struct gguf_builder *g) {
    memset(g, 0, sizeof *g);
    g->version = 3;
    g->alignment = 32;
}

void gb_free(struct gguf_builder *g) {
    bytes_free(&g->kv);
    bytes_free(&g->infos);
    bytes_free(&g->data);
}

static void put_field(struct gguf_builder *g, struct bytes *b, uint64_t value, unsigned size) {
    assert(g->n_fields < GB_MAX_FIELDS);
    g->fields[g->n_fields++] = (struct gb_field){b->size, size, b == &g->infos};
    bytes_le(b, value, size);
}

static void put_str(struct gguf_builder *g, struct bytes *b, const void *data, size_t size) {
    put_field(g, b, size, 8);
    bytes_append(b, data, size);
}

void gb_put_str(struct gguf_builder *g, const void *data, size_t size) { put_str(g, &g->kv, data, size); }

void gb_key(struct gguf_builder *g, const void *key, size_t size, uint32_t type) {
    put_str(g, &g->kv, key, size);
    bytes_le(&g->kv, type, 4);
    g->n_kv++;
}

void gb_int(struct gguf_builder *g, const char *key, uint32_t type, uint64_t value) {
    gb_key(g, key, strlen(key), type);
    bytes_le(&g->kv, value, type_bytes[type]);
}

void gb_f32(struct gguf_builder *g, const char *key, float value) {
    gb_key(g, key, strlen(key), GB_F32);
    bytes_append(&g->kv, &value, sizeof value);
}

void gb_f64(struct gguf_builder *g, const char *key, double value) {
    gb_key(g, key, strlen(key), GB_F64);
    bytes_append(&g->kv, &value, sizeof value);
}

void gb_bytes(struct gguf_builder *g, const char *key, const void *value, size_t size) {
    gb_key(g, key, strlen(key), GB_STR);
    gb_put_str(g, value, size);
}

void gb_str(struct gguf_builder *g, const char *key, const char *value) { gb_bytes(g, key, value, strlen(value)); }

void gb_array(struct gguf_builder *g, const char *key, uint32_t elem_type, uint64_t n) {
    gb_key(g, key, strlen(key), GB_ARR);
    bytes_le(&g->kv, elem_type, 4);
    put_field(g, &g->kv, n, 8);
}

void gb_ints(struct gguf_builder *g, const char *key, uint32_t elem_type, uint64_t n, const int64_t *values) {
    gb_array(g, key, elem_type, n);
    for (uint64_t i = 0; i < n; i++) bytes_le(&g->kv, (uint64_t)values[i], type_bytes[elem_type]);
}

void gb_floats(struct gguf_builder *g, const char *key, uint64_t n, const float *values) {
    gb_array(g, key, GB_F32, n);
    bytes_append(&g->kv, values, n * sizeof *values);
}

void gb_strs(struct gguf_builder *g, const char *key, uint64_t n, const char *const *values) {
    gb_array(g, key, GB_STR, n);
    for (uint64_t i = 0; i < n; i++) gb_put_str(g, values[i], strlen(values[i]));
}

void gb_tensor_info(struct gguf_builder *g, const void *name, size_t name_size, uint32_t dtype, uint32_t n_dims,
                    const uint64_t *ne, uint64_t offset) {
    put_str(g, &g->infos, name, name_size);
    put_field(g, &g->infos, n_dims, 4);
    for (uint32_t d = 0; d < n_dims; d++) put_field(g, &g->infos, ne[d], 8);
    put_field(g, &g->infos, dtype, 4);
    put_field(g, &g->infos, offset, 8);
    g->n_tensors++;
}

void gb_tensor(struct gguf_builder *g, const char *name, uint32_t dtype, uint32_t n_dims, const uint64_t *ne,
               size_t size, uint8_t fill) {
    bytes_pad(&g->data, g->alignment, 0);
    gb_tensor_info(g, name, strlen(name), dtype, n_dims, ne, g->data.size);
    bytes_fill(&g->data, fill, size);
}

struct bytes gb_finish(struct gguf_builder *g) {
    struct bytes file = {0};
    bytes_append(&file, "GGUF", 4);
    bytes_le(&file, g->version, 4);
    bytes_le(&file, g->n_tensors, 8);
    bytes_le(&file, g->n_kv, 8);
    for (unsigned i = 0; i < g->n_fields; i++)
        g->fields[i].offset += file.size + (g->fields[i].in_tensors ? g->kv.size : 0);
    bytes_append(&file, g->kv.data, g->kv.size);
    bytes_append(&file, g->infos.data, g->infos.size);
    bytes_pad(&file, g->alignment, 0);
    bytes_append(&file, g->data.data, g->data.size);
    struct bytes exact = bytes_exact(&file, file.size);
    bytes_free(&file);
    return exact;
}

void gb_base(struct gguf_builder *g) {
    gb_init(g);
    gb_str(g, "general.architecture", "llama");
    gb_str(g, "general.name", "base");
    gb_int(g, "llama.block_count", GB_U32, 2);
    gb_int(g, "small.signed", GB_I8, (uint64_t)-3);
    gb_int(g, "small.unsigned", GB_U8, 200);
    gb_int(g, "medium.signed", GB_I16, (uint64_t)-300);
    gb_int(g, "medium.unsigned", GB_U16, 60000);
    gb_int(g, "signed", GB_I32, (uint64_t)-70000);
    gb_int(g, "wide.signed", GB_I64, (uint64_t)-5000000000);
    gb_int(g, "wide.unsigned", GB_U64, UINT64_MAX);
    gb_int(g, "flag", GB_BOOL, 1);
    gb_f32(g, "real", 0.5f);
    gb_f64(g, "wide.real", 1e-100);
    gb_ints(g, "heads", GB_I32, 2, (const int64_t[]){2, 1});
    gb_floats(g, "scores", 3, (const float[]){1, -2, 0.25f});
    gb_strs(g, "tokens", 3, (const char *const[]){"a", "", "bc"});
    gb_array(g, "nested", GB_ARR, 2);
    bytes_le(&g->kv, GB_U8, 4);
    bytes_le(&g->kv, 2, 8);
    bytes_le(&g->kv, 0x0201, 2);
    bytes_le(&g->kv, GB_STR, 4);
    bytes_le(&g->kv, 1, 8);
    gb_put_str(g, "x", 1);
    gb_tensor(g, "token_embd.weight", 0, 2, (const uint64_t[]){8, 3}, 96, 0x11);
    gb_tensor(g, "blk.0.attn_q.weight", 2, 2, (const uint64_t[]){32, 2}, 36, 0x22);
    gb_tensor(g, "blk.0.ffn_up_exps.weight", 39, 3, (const uint64_t[]){32, 2, 2}, 68, 0x33);
    gb_tensor(g, "output_norm.weight", 0, 1, (const uint64_t[]){8}, 32, 0x44);
}
