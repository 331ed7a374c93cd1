// gguf_widen: the float32 GGUF of a float16 or quantised one: the same values, so the reference results of its weights.
//
//   gguf_widen IN.gguf OUT.gguf
//
// Every tensor is widened, metadata is copied. For tests; single-file models only.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/gguf.h"
#include "kernels/cpu/dequant.h"

enum {
    ALIGNMENT = 32
};

static void put(FILE *f, const void *data, size_t size) {
    if (size && fwrite(data, size, 1, f) != 1) {
        perror("gguf_widen: write");
        exit(1);
    }
}
static void put_u32(FILE *f, uint32_t v) { put(f, &v, sizeof v); }
static void put_u64(FILE *f, uint64_t v) { put(f, &v, sizeof v); }
static void put_str(FILE *f, struct atsi_str s) {
    put_u64(f, s.size);
    put(f, s.data, s.size);
}
static void put_padding(FILE *f) {
    static const char zeros[ALIGNMENT];
    put(f, zeros, (size_t)(-ftell(f) & (ALIGNMENT - 1)));
}

static uint64_t n_elems(const struct atsi_gguf_tensor *t) { return t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3]; }
static uint64_t widened_bytes(const struct atsi_gguf_tensor *t) {
    return atsi_dequant_supported(t->dtype) ? n_elems(t) * sizeof(float) : t->size_bytes;
}

static void put_header(FILE *f, const struct atsi_gguf *g) {
    uint64_t offset = 0;
    put(f, "GGUF", 4);
    put_u32(f, 3);
    put_u64(f, atsi_gguf_n_tensors(g));
    put_u64(f, atsi_gguf_n_kv(g));
    for (uint64_t i = 0; i < atsi_gguf_n_kv(g); i++) {
        const struct atsi_gguf_kv *kv = atsi_gguf_kv_at(g, i);
        put_str(f, kv->key);
        put_u32(f, kv->type);
        put(f, kv->data, kv->size_bytes);
    }
    for (uint64_t i = 0; i < atsi_gguf_n_tensors(g); i++) {
        const struct atsi_gguf_tensor *t = atsi_gguf_tensor_at(g, i);
        put_str(f, t->name);
        put_u32(f, t->n_dims);
        put(f, t->ne, t->n_dims * sizeof *t->ne);
        put_u32(f, atsi_dequant_supported(t->dtype) ? ATSI_F32 : t->dtype);
        put_u64(f, offset);
        offset += (widened_bytes(t) + ALIGNMENT - 1) & ~(uint64_t)(ALIGNMENT - 1);
    }
    put_padding(f);
}

// A row at a time: rows are whole blocks.
static void put_tensor(FILE *f, const struct atsi_gguf_tensor *t) {
    if (!atsi_dequant_supported(t->dtype)) {
        put(f, t->data, t->size_bytes);
    } else {
        uint64_t n_rows = n_elems(t) / t->ne[0], row_bytes = t->size_bytes / n_rows;
        float *row = malloc(t->ne[0] * sizeof *row);
        if (!row) exit(1);
        for (uint64_t r = 0; r < n_rows; r++) {
            atsi_dequant(t->dtype, t->data + r * row_bytes, t->ne[0], row);
            put(f, row, t->ne[0] * sizeof *row);
        }
        free(row);
    }
    put_padding(f);
}

int main(int argc, char **argv) {
    struct atsi_gguf *g;
    struct atsi_error err;
    if (argc != 3) {
        fprintf(stderr, "usage: gguf_widen IN.gguf OUT.gguf\n");
        return 2;
    }
    if (atsi_gguf_open(&g, argv[1], &err) != ATSI_OK) {
        fprintf(stderr, "%s\n", err.text);
        return (int)err.status;
    }
    FILE *f = fopen(argv[2], "wb");
    if (!f) {
        perror(argv[2]);
        return 1;
    }
    put_header(f, g);
    for (uint64_t i = 0; i < atsi_gguf_n_tensors(g); i++) put_tensor(f, atsi_gguf_tensor_at(g, i));
    atsi_gguf_close(g);
    if (fclose(f)) {
        perror(argv[2]);
        return 1;
    }
    return 0;
}
