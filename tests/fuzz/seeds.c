// seeds TARGET FOLDER: writes the files that a fuzz target starts from, made by the tests' builders.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/gguf_builder.h"
#include "tests/support/plan_builder.h"
#include "tests/support/program_builder.h"

static void write_gguf(struct gguf_builder *g, const char *folder, const char *name) {
    struct bytes file = gb_finish(g);
    gb_free(g);
    bytes_write(&file, folder, name);
    bytes_free(&file);
}

static void seed_gguf(const char *folder) {
    struct gguf_builder g;
    gb_base(&g);
    write_gguf(&g, folder, "base");
    gb_base(&g);
    g.version = 2;
    gb_int(&g, "general.alignment", GB_U32, 32);
    write_gguf(&g, folder, "version2");
    gb_init(&g);
    gb_str(&g, "tokenizer.ggml.model", "gpt2");
    write_gguf(&g, folder, "vocabulary");
    gb_init(&g);
    gb_int(&g, "split.count", GB_U16, 2);
    gb_int(&g, "split.no", GB_U16, 1);
    gb_tensor(&g, "t", 12, 1, (const uint64_t[]){256}, 144, 1);
    write_gguf(&g, folder, "part");
}

static void seed_plan(const char *folder) {
    for (int no_weights = 0; no_weights < 2; no_weights++) {
        struct bytes plan = pb_plan(no_weights);
        bytes_write(&plan, folder, no_weights ? "no_weights" : "whole");
        bytes_free(&plan);
    }
}

static void seed_manifest(const char *folder) {
    struct atsi_plan plan;
    struct atsi_error err;
    char *json;
    size_t size;
    test_build_plan(&plan);
    if (atsi_plan_to_json(&plan, &json, &size, &err) == ATSI_OK) {
        bytes_write(&(struct bytes){(uint8_t *)json, size, size}, folder, "small");
        free(json);
    }
    atsi_plan_free(&plan);
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: seeds TARGET FOLDER\n");
        return 2;
    }
    if (strcmp(argv[1], "fuzz_gguf") == 0) seed_gguf(argv[2]);
    if (strcmp(argv[1], "fuzz_plan") == 0) seed_plan(argv[2]);
    if (strcmp(argv[1], "fuzz_manifest") == 0) seed_manifest(argv[2]);
    return 0;
}
