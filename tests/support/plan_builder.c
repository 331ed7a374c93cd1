#include "tests/support/plan_builder.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <xxhash.h>

#include "tests/support/test_temp.h"

const char pb_manifest[] = "{\"manifest_version\": 1, \"text\": \"\xC3\xA9\"}";
const char pb_tokenizer[] = "tokenizer tables";

struct atsi_tensor pb_tensor(const char *name, enum atsi_dtype dtype, uint64_t ne0, uint64_t ne1, uint64_t ne2) {
    struct atsi_tensor t = {.dtype = dtype, .ne = {ne0, ne1, ne2, 1}};
    snprintf(t.name, sizeof t.name, "%s", name);
    t.size_bytes = atsi_layout_bytes(dtype, ATSI_LAYOUT_PLAIN, t.ne);
    return t;
}

static uint32_t next_random(uint32_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

static float bell(uint32_t *state) {
    float sum = 0;
    for (int i = 0; i < 6; i++) sum += (float)(next_random(state) & 0xFFFF) / 65536.0f - 0.5f;
    return sum * 0.05f;
}

void pb_fill(const struct atsi_tensor *tensor, uint32_t seed, uint8_t *out) {
    uint32_t state = seed * 2654435761u + 1;
    for (uint64_t i = 0; i < tensor->size_bytes; i++) {
        float weight = bell(&state);
        uint32_t bits;
        memcpy(&bits, &weight, sizeof bits);
        if (tensor->dtype == ATSI_BF16 && i + 1 < tensor->size_bytes) { // the upper half of a float
            out[i++] = (uint8_t)(bits >> 16);
            out[i] = (uint8_t)(bits >> 24);
        } else {
            out[i] = (uint8_t)next_random(&state);
        }
    }
}

enum atsi_status pb_write(const char *path, bool no_weights, struct atsi_error *err) {
    const struct {
        struct atsi_tensor tensor;
        enum atsi_plan_section section;
        bool compress;
    } tensors[] = {
        {pb_tensor("blk.0.attn_q.weight", ATSI_BF16, 64, 32, 1), ATSI_PLAN_RESIDENT, true},
        {pb_tensor("blk.0.attn_norm.weight", ATSI_F32, 64, 1, 1), ATSI_PLAN_RESIDENT, false},
        {pb_tensor("blk.0.ffn_up_exps.weight", ATSI_Q4_0, 64, 4, 3), ATSI_PLAN_PINNED, true},
        {pb_tensor("token_embd.weight", ATSI_Q8_0, 32, 20, 1), ATSI_PLAN_PINNED, false},
        {pb_tensor("output_norm.weight", ATSI_F32, 7, 1, 1), ATSI_PLAN_PINNED, true},
    };
    struct atsi_plan_writer *w;
    struct atsi_plan_writer_options options = {.section_alignment = 4096, .no_weights = no_weights};
    enum atsi_status status = atsi_plan_writer_create(&w, path, &options, err);
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors && status == ATSI_OK; i++) {
        const struct atsi_tensor *t = &tensors[i].tensor;
        uint8_t *data = malloc(t->size_bytes);
        pb_fill(t, (uint32_t)i, data);
        if (no_weights)
            status = atsi_plan_writer_declare(w, t, tensors[i].section, err);
        else
            status = atsi_plan_writer_add(w, t, tensors[i].section, tensors[i].compress, data, err);
        free(data);
    }
    if (status == ATSI_OK)
        status = atsi_plan_writer_finish(w, atsi_str_of(pb_manifest), atsi_str_of(pb_tokenizer), err);
    atsi_plan_writer_free(w);
    return status;
}

struct bytes pb_plan(bool no_weights) {
    char path[TEMP_ROOT_CAP];
    struct atsi_error err;
    temp_file(path);
    if (pb_write(path, no_weights, &err) != ATSI_OK) {
        fprintf(stderr, "cannot build a plan\n");
        exit(1);
    }
    struct bytes file, exact;
    if (!bytes_read(path, &file)) exit(1);
    exact = bytes_exact(&file, file.size);
    bytes_free(&file);
    unlink(path);
    return exact;
}

uint64_t pb_get(const struct bytes *plan, size_t offset, unsigned size) {
    uint64_t value = 0;
    for (unsigned i = 0; i < size; i++) value |= (uint64_t)plan->data[offset + i] << (8 * i);
    return value;
}

size_t pb_part_offset(const struct bytes *plan, enum pb_part part) {
    return (size_t)pb_get(plan, PB_AT_PARTS + (size_t)part * PB_PART_BYTES, 8);
}

size_t pb_record_offset(const struct bytes *plan, uint32_t index) {
    return pb_part_offset(plan, PB_INDEX) + (size_t)index * PB_RECORD_BYTES;
}

void pb_fix_checksums(struct bytes *plan) {
    if (plan->size < PB_HEADER_BYTES) return;
    for (int part = PB_MANIFEST; part <= PB_TOKENIZER; part++) {
        size_t at = PB_AT_PARTS + (size_t)part * PB_PART_BYTES;
        uint64_t offset = pb_get(plan, at, 8), size = pb_get(plan, at + 8, 8);
        if (offset > plan->size || size > plan->size - offset) continue;
        bytes_set_le(plan, at + 24, size ? XXH3_64bits(plan->data + offset, size) : 0, 8);
    }
    bytes_set_le(plan, PB_HEADER_BYTES - 8, XXH3_64bits(plan->data, PB_HEADER_BYTES - 8), 8);
}
