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

static void write_manifest(const struct atsi_plan *plan, const char *folder, const char *name) {
    struct atsi_error err;
    char *json;
    size_t size;
    if (atsi_plan_to_json(plan, &json, &size, &err) != ATSI_OK) return;
    bytes_write(&(struct bytes){(uint8_t *)json, size, size}, folder, name);
    free(json);
}

static uint32_t router_unit(const struct atsi_program *p) {
    uint32_t i = 0;
    while (p->ops[i].kind != ATSI_OP_ROUTER) i++;
    return atsi_program_unit_of(p, i);
}

// One as it is, one with experts that are resident one by one.
static void seed_manifest(const char *folder) {
    struct atsi_plan plan;
    test_build_plan(&plan);
    write_manifest(&plan, folder, "small");
    struct atsi_resident_experts *all = calloc(plan.program.n_units, sizeof *all);
    uint16_t *ids = calloc(2, sizeof *ids);
    if (all && ids) {
        ids[0] = 1;
        all[router_unit(&plan.program)] = (struct atsi_resident_experts){.n = 2, .ids = ids, .hit_rate = 0.75f};
        plan.resident_experts = all;
        write_manifest(&plan, folder, "experts");
    }
    atsi_plan_free(&plan);
}

static void seed_routing(const char *folder) {
    static const char json[] =
        "{\"version\":1,\"routers\":[{\"layer\":0,\"n_experts\":4,\"n_used\":2,\"n_tokens\":5,\"n_reused\":3,"
        "\"counts\":[5,1,4,0]},{\"layer\":1,\"n_experts\":2,\"n_used\":1,\"n_tokens\":5,\"n_reused\":4,\"counts\":[5,0]"
        "}]}";
    bytes_write(&(struct bytes){(uint8_t *)(uintptr_t)json, sizeof json - 1, sizeof json - 1}, folder, "two");
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: seeds TARGET FOLDER\n");
        return 2;
    }
    if (strcmp(argv[1], "fuzz_gguf") == 0) seed_gguf(argv[2]);
    if (strcmp(argv[1], "fuzz_plan") == 0) seed_plan(argv[2]);
    if (strcmp(argv[1], "fuzz_manifest") == 0) seed_manifest(argv[2]);
    if (strcmp(argv[1], "fuzz_routing") == 0) seed_routing(argv[2]);
    return 0;
}
