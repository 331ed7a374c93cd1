// libFuzzer: any bytes as a plan file. The mutator repairs the checksums, so that mutations reach the checks behind them.
#include <stdlib.h>

#include "formats/plan.h"
#include "formats/plan_file.h"
#include "tests/support/plan_builder.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed) {
    // The numbers stand in 4 KiB of mostly reserved zeros: half of the mutations go to those that matter.
    enum {
        N_USED = 256
    };
    if (seed % 2 && size > PB_HEADER_BYTES)
        LLVMFuzzerMutate(data, N_USED, N_USED);
    else
        size = LLVMFuzzerMutate(data, size, max_size);
    struct bytes plan = {data, size, max_size};
    if (size >= PB_HEADER_BYTES && seed % 16) {
        bytes_set_le(&plan, PB_AT_FILE_BYTES, size, 8);
        pb_fix_checksums(&plan);
    }
    return size;
}

static void read_blob(const struct atsi_plan_file *file, const struct atsi_plan_blob *blob) {
    enum {
        MAX_BYTES = 16 << 20
    };
    struct atsi_error err;
    atsi_plan_file_verify_blob(file, blob, &err);
    uint8_t *data = blob->tensor.size_bytes <= MAX_BYTES ? malloc(blob->tensor.size_bytes) : NULL;
    if (data) atsi_plan_file_read(file, blob, 1, data, &err);
    free(data);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct atsi_plan_file *file;
    struct atsi_error err;
    if (atsi_plan_file_open_memory(&file, data, size, "fuzz.atsp", &err) != ATSI_OK) return 0;
    for (uint32_t i = 0; i < atsi_plan_file_n_blobs(file); i++) read_blob(file, atsi_plan_file_blob(file, i));
    struct atsi_str manifest = atsi_plan_file_manifest(file);
    struct atsi_plan plan;
    atsi_plan_from_json(manifest.data, manifest.size, &plan, &err);
    atsi_plan_free(&plan);
    atsi_plan_file_close(file);
    return 0;
}
