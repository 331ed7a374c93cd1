// libFuzzer: any bytes as a GGUF file. What opens is read to the last byte through every getter.
#include <stdlib.h>

#include "formats/gguf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint64_t sink;

static void use_str(struct atsi_str s) {
    for (uint64_t i = 0; i < s.size; i++) sink += (uint8_t)s.data[i];
    sink += (uint64_t)atsi_label(s).text[0];
}

static void read_arrays(const struct atsi_gguf *gguf, const char *key) {
    struct atsi_gguf_array array;
    struct atsi_str *strings;
    int64_t *ints;
    float *floats;
    uint64_t n;
    atsi_gguf_array(gguf, key, &array, NULL);
    if (atsi_gguf_ints(gguf, key, ATSI_GGUF_ANY_LENGTH, &ints, &n, NULL) == ATSI_OK) free(ints);
    if (atsi_gguf_floats(gguf, key, ATSI_GGUF_ANY_LENGTH, &floats, &n, NULL) == ATSI_OK) free(floats);
    if (atsi_gguf_strings(gguf, key, ATSI_GGUF_ANY_LENGTH, &strings, &n, NULL) == ATSI_OK) {
        for (uint64_t i = 0; i < n; i++) use_str(strings[i]);
        free(strings);
    }
}

static void read_key(const struct atsi_gguf *gguf, const char *key) {
    struct atsi_error err;
    struct atsi_str text;
    uint64_t wide;
    uint32_t layers[4];
    double real;
    bool flag;
    if (atsi_gguf_str(gguf, key, &text, &err) == ATSI_OK) use_str(text);
    atsi_gguf_u64(gguf, key, &wide, &err);
    atsi_gguf_f64(gguf, key, &real, &err);
    atsi_gguf_bool_or(gguf, key, true, &flag, &err);
    atsi_gguf_per_layer_u32(gguf, key, 3, 1, NULL, layers, &err);
    read_arrays(gguf, key);
}

static void read_all(const struct atsi_gguf *gguf) {
    uint64_t hash;
    for (uint64_t i = 0; i < atsi_gguf_n_kv(gguf); i++) {
        const struct atsi_gguf_kv *kv = atsi_gguf_kv_at(gguf, i);
        char *key = strndup(kv->key.data, kv->key.size);
        if (key) read_key(gguf, key);
        free(key);
    }
    for (uint64_t i = 0; i < atsi_gguf_n_tensors(gguf); i++) {
        const struct atsi_gguf_tensor *t = atsi_gguf_tensor_at(gguf, i);
        use_str(t->name);
        use_str((struct atsi_str){(const char *)t->data, t->size_bytes});
    }
    if (atsi_gguf_identity_hash(gguf, &hash, NULL) == ATSI_OK) sink += hash;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct atsi_gguf *gguf;
    struct atsi_error err;
    if (atsi_gguf_open_memory(&gguf, data, size, "fuzz.gguf", &err) != ATSI_OK) return 0;
    read_all(gguf);
    atsi_gguf_close(gguf);
    return 0;
}
