#include "tests/support/model_file.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "formats/plan_writer.h"
#include "tests/support/check.h"
#include "tests/support/program_builder.h"
#include "tests/support/test_temp.h"

static void set_times(struct atsi_plan *plan) {
    static const struct {
        const char *name;
        float cpu_us;
    } gains[] = {{"o", 400}, {"q", 300}, {"exps", 100}};
    plan->decode_times = calloc(plan->program.n_units, sizeof *plan->decode_times);
    plan->prefill_times = calloc(plan->program.n_units, sizeof *plan->prefill_times);
    for (uint32_t u = 0; u < plan->program.n_units; u++) {
        plan->decode_times[u] = (struct atsi_unit_times){.cpu_us = 20, .gpu_us = 10, .switch_us = 1, .transfer_us = 5};
        for (size_t i = 0; i < sizeof gains / sizeof *gains; i++)
            if (!strcmp(plan->program.units[u].name, gains[i].name)) plan->decode_times[u].cpu_us = gains[i].cpu_us;
        plan->prefill_times[u] = plan->decode_times[u];
    }
}

// Few different values, so that they compress.
static void fill(const struct atsi_tensor *tensor, uint32_t seed, uint8_t *bytes) {
    uint32_t random = seed * 2654435761u + 1;
    for (uint64_t i = 0; i + sizeof(float) <= tensor->size_bytes; i += sizeof(float)) {
        random = random * 1664525u + 1013904223u;
        float value = (float)((int)(random >> 24) - 128) / 512;
        memcpy(bytes + i, &value, sizeof value);
    }
}

// Small tensors stand with the first unit's.
static enum atsi_plan_section section_of(const struct atsi_program *p, uint32_t tensor) {
    uint32_t t;
    for (uint32_t u = 0; u < p->n_units; u++)
        for (uint32_t cursor = 0; atsi_unit_next_big_tensor(p, &p->units[u], &cursor, &t);)
            if (t == tensor && p->units[u].backend == ATSI_CPU) return ATSI_PLAN_PINNED;
    return p->units[0].backend == ATSI_GPU ? ATSI_PLAN_RESIDENT : ATSI_PLAN_PINNED;
}

static void write_section(struct model_file *f, const struct atsi_program *p, struct atsi_plan_writer *writer,
                          enum atsi_plan_section section, bool compress) {
    struct atsi_error err = {0};
    for (uint32_t t = 0; t < p->n_tensors; t++) {
        const struct atsi_tensor *tensor = &p->tensors[t];
        if (section_of(p, t) != section) continue;
        f->bytes[t] = malloc(tensor->size_bytes);
        fill(tensor, t + 1, f->bytes[t]);
        bool is_compressed = compress && !strcmp(tensor->name, "exps");
        check_ok(atsi_plan_writer_add(writer, tensor, section, is_compressed, f->bytes[t], &err), err);
    }
}

static void write_plan(struct model_file *f, const struct atsi_plan *plan, const char *path, bool compress) {
    struct atsi_plan_writer_options options = {.section_alignment = 4096};
    struct atsi_plan_writer *writer;
    struct atsi_error err = {0};
    char *manifest;
    size_t size;
    check_ok(atsi_plan_writer_create(&writer, path, &options, &err), err);
    write_section(f, &plan->program, writer, ATSI_PLAN_RESIDENT, compress);
    write_section(f, &plan->program, writer, ATSI_PLAN_PINNED, compress);
    check_ok(atsi_plan_to_json(plan, &manifest, &size, &err), err);
    check_ok(atsi_plan_writer_finish(writer, (struct atsi_str){manifest, size}, (struct atsi_str){NULL, 0}, &err), err);
    atsi_plan_writer_free(writer);
    free(manifest);
}

static void begin_plan(struct model_file *f, struct atsi_plan *plan, enum atsi_backend home) {
    memset(f, 0, sizeof *f);
    test_build_plan(plan);
    assert_true(plan->program.n_tensors <= MODEL_FILE_TENSORS_MAX);
    for (uint32_t u = 0; u < plan->program.n_units; u++) plan->program.units[u].backend = home;
    if (home == ATSI_GPU) plan->limits.vram_bytes = 64 << 20;
    set_times(plan);
    plan->predicted_decode_us = 200;
    plan->predicted_prefill_us = 300;
}

static void end_plan(struct model_file *f, struct atsi_plan *plan, bool compress) {
    char path[TEMP_ROOT_CAP];
    struct atsi_error err = {0};
    temp_file(path);
    write_plan(f, plan, path, compress);
    atsi_plan_free(plan);
    check_ok(atsi_model_open(&f->model, path, &err), err);
    unlink(path);
}

void model_file_open(struct model_file *f, enum atsi_backend home, bool compress) {
    struct atsi_plan plan;
    begin_plan(f, &plan, home);
    end_plan(f, &plan, compress);
}

void model_file_open_mixed(struct model_file *f, bool compress) {
    static const uint16_t resident[] = {2, 0};
    struct atsi_plan plan;
    begin_plan(f, &plan, ATSI_GPU);
    struct atsi_unit *units = plan.program.units;
    uint32_t u = 0;
    while (units[u].kind != ATSI_UNIT_EXPERTS) u++;
    units[u].backend = ATSI_CPU;
    plan.limits.temp_bytes = 1700 << 10; // room for all of "exps"
    plan.resident_experts = calloc(plan.program.n_units, sizeof *plan.resident_experts);
    struct atsi_resident_experts *r = &plan.resident_experts[units[u].router_unit];
    *r = (struct atsi_resident_experts){.n = 2, .ids = malloc(sizeof resident), .hit_rate = 0.6f};
    memcpy(r->ids, resident, sizeof resident);
    end_plan(f, &plan, compress);
}

void model_file_close(struct model_file *f) {
    for (uint32_t t = 0; t < MODEL_FILE_TENSORS_MAX; t++) free(f->bytes[t]);
    atsi_model_close(&f->model);
}

uint32_t model_file_unit(const struct model_file *f, const char *name) {
    const struct atsi_program *p = &f->model.plan.program;
    for (uint32_t u = 0; u < p->n_units; u++)
        if (!strcmp(p->units[u].name, name)) return u;
    fail_msg("no unit %s", name);
    return 0;
}

uint32_t model_file_tensor(const struct model_file *f, const char *name) {
    const struct atsi_program *p = &f->model.plan.program;
    for (uint32_t t = 0; t < p->n_tensors; t++)
        if (!strcmp(p->tensors[t].name, name)) return t;
    fail_msg("no tensor %s", name);
    return 0;
}
