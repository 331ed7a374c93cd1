// gguf_dump MODEL.gguf: prints metadata and tensor directory of a GGUF model, safe on a terminal whatever the file
// holds.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "formats/base/size.h"
#include "formats/gguf.h"

enum {
    MAX_SHOWN_ELEMS = 8,
    MAX_SHOWN_BYTES = 60
};

static void print_str(struct atsi_str s) {
    char text[4 * MAX_SHOWN_BYTES + 1];
    bool cut = s.size > MAX_SHOWN_BYTES;
    atsi_escape(text, sizeof text, s.data, cut ? MAX_SHOWN_BYTES : s.size);
    printf("\"%s\"%s", text, cut ? "..." : "");
}

static void print_ints(const struct atsi_gguf *gguf, const char *key) {
    int64_t *values;
    uint64_t n;
    if (atsi_gguf_ints(gguf, key, ATSI_GGUF_ANY_LENGTH, &values, &n, NULL) != ATSI_OK) return;
    for (uint64_t i = 0; i < n && i < MAX_SHOWN_ELEMS; i++) printf("%s%" PRId64, i ? ", " : "", values[i]);
    free(values);
}

static void print_floats(const struct atsi_gguf *gguf, const char *key) {
    float *values;
    uint64_t n;
    if (atsi_gguf_floats(gguf, key, ATSI_GGUF_ANY_LENGTH, &values, &n, NULL) != ATSI_OK) return;
    for (uint64_t i = 0; i < n && i < MAX_SHOWN_ELEMS; i++) printf("%s%g", i ? ", " : "", (double)values[i]);
    free(values);
}

static void print_strings(const struct atsi_gguf *gguf, const char *key) {
    struct atsi_str *values;
    uint64_t n;
    if (atsi_gguf_strings(gguf, key, ATSI_GGUF_ANY_LENGTH, &values, &n, NULL) != ATSI_OK) return;
    for (uint64_t i = 0; i < n && i < MAX_SHOWN_ELEMS; i++) {
        if (i) printf(", ");
        print_str(values[i]);
    }
    free(values);
}

static void print_array(const struct atsi_gguf *gguf, const char *key) {
    struct atsi_gguf_array array;
    if (atsi_gguf_array(gguf, key, &array, NULL) != ATSI_OK) return;
    printf("%s[%" PRIu64 "] = {", atsi_gguf_type_name(array.type), array.n);
    if (array.type == ATSI_GGUF_STRING)
        print_strings(gguf, key);
    else if (array.type == ATSI_GGUF_F32 || array.type == ATSI_GGUF_F64)
        print_floats(gguf, key);
    else if (array.type != ATSI_GGUF_ARRAY)
        print_ints(gguf, key);
    printf(array.n > MAX_SHOWN_ELEMS || array.type == ATSI_GGUF_ARRAY ? ", ...}" : "}");
}

static void print_value(const struct atsi_gguf *gguf, const struct atsi_gguf_kv *kv, const char *key) {
    struct atsi_str text;
    uint64_t integer;
    double real;
    bool truth;
    if (kv->type == ATSI_GGUF_ARRAY) {
        print_array(gguf, key);
        return;
    }
    printf("%s = ", atsi_gguf_type_name(kv->type));
    if (kv->type == ATSI_GGUF_STRING && atsi_gguf_str(gguf, key, &text, NULL) == ATSI_OK)
        print_str(text);
    else if (kv->type == ATSI_GGUF_BOOL && atsi_gguf_bool_or(gguf, key, false, &truth, NULL) == ATSI_OK)
        printf("%s", truth ? "true" : "false");
    else if (atsi_gguf_u64(gguf, key, &integer, NULL) == ATSI_OK)
        printf("%" PRIu64, integer);
    else if (atsi_gguf_f64(gguf, key, &real, NULL) == ATSI_OK)
        printf("%g", real);
    else
        printf("not finite");
}

static void print_metadata(const struct atsi_gguf *gguf) {
    for (uint64_t i = 0; i < atsi_gguf_n_kv(gguf); i++) {
        const struct atsi_gguf_kv *kv = atsi_gguf_kv_at(gguf, i);
        char *key = strndup(kv->key.data, kv->key.size); // the getters take text: a key that holds NUL is only named
        printf("%s ", atsi_label(kv->key).text);
        if (key && atsi_gguf_find(gguf, key) == kv) print_value(gguf, kv, key);
        printf("\n");
        free(key);
    }
}

static void print_tensors(const struct atsi_gguf *gguf) {
    for (uint64_t i = 0; i < atsi_gguf_n_tensors(gguf); i++) {
        const struct atsi_gguf_tensor *t = atsi_gguf_tensor_at(gguf, i);
        printf("%-40s %-8s [", atsi_label(t->name).text, atsi_dtype_name(t->dtype));
        for (uint32_t d = 0; d < t->n_dims; d++) printf("%s%" PRIu64, d ? ", " : "", t->ne[d]);
        printf("] %" PRIu64 " bytes at %" PRIu64, t->size_bytes, t->file_offset);
        if (atsi_gguf_n_parts(gguf) > 1) printf(" of part %u", t->part + 1);
        printf("\n");
    }
}

int main(int argc, char **argv) {
    struct atsi_gguf *gguf;
    struct atsi_error err;
    char size[32];
    if (argc != 2) {
        fprintf(stderr, "usage: gguf_dump MODEL.gguf\n");
        return ATSI_BAD_INPUT;
    }
    if (atsi_gguf_open(&gguf, argv[1], &err) != ATSI_OK) {
        fprintf(stderr, "gguf_dump: %s\n", err.text);
        return (int)err.status;
    }
    printf("GGUF version %u, files: %u, %s, keys: %" PRIu64 ", tensors: %" PRIu64 "\n", atsi_gguf_version(gguf),
           atsi_gguf_n_parts(gguf), atsi_size_format(size, sizeof size, atsi_gguf_size_bytes(gguf)),
           atsi_gguf_n_kv(gguf), atsi_gguf_n_tensors(gguf));
    print_metadata(gguf);
    print_tensors(gguf);
    atsi_gguf_close(gguf);
    return ATSI_OK;
}
