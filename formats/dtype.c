#include "formats/dtype.h"

#include <stddef.h>
#include <strings.h>

#include "formats/base/checked.h"

// Block sizes as the GGUF specification and ggml state them. Ids 4, 5 (Q4_2, Q4_3), 31-33 (Q4_0 repacked) and 36-38
// (IQ4_NL repacked) were withdrawn from the format: files that use them are refused like any unknown id.
static const struct atsi_dtype_info dtype_table[ATSI_DTYPE_LIMIT] = {
    [ATSI_F32] = {"F32", 1, 4},
    [ATSI_F16] = {"F16", 1, 2},
    [ATSI_Q4_0] = {"Q4_0", 32, 18},
    [ATSI_Q4_1] = {"Q4_1", 32, 20},
    [ATSI_Q5_0] = {"Q5_0", 32, 22},
    [ATSI_Q5_1] = {"Q5_1", 32, 24},
    [ATSI_Q8_0] = {"Q8_0", 32, 34},
    [ATSI_Q8_1] = {"Q8_1", 32, 36},
    [ATSI_Q2_K] = {"Q2_K", 256, 84},
    [ATSI_Q3_K] = {"Q3_K", 256, 110},
    [ATSI_Q4_K] = {"Q4_K", 256, 144},
    [ATSI_Q5_K] = {"Q5_K", 256, 176},
    [ATSI_Q6_K] = {"Q6_K", 256, 210},
    [ATSI_Q8_K] = {"Q8_K", 256, 292},
    [ATSI_IQ2_XXS] = {"IQ2_XXS", 256, 66},
    [ATSI_IQ2_XS] = {"IQ2_XS", 256, 74},
    [ATSI_IQ3_XXS] = {"IQ3_XXS", 256, 98},
    [ATSI_IQ1_S] = {"IQ1_S", 256, 50},
    [ATSI_IQ4_NL] = {"IQ4_NL", 32, 18},
    [ATSI_IQ3_S] = {"IQ3_S", 256, 110},
    [ATSI_IQ2_S] = {"IQ2_S", 256, 82},
    [ATSI_IQ4_XS] = {"IQ4_XS", 256, 136},
    [ATSI_I8] = {"I8", 1, 1},
    [ATSI_I16] = {"I16", 1, 2},
    [ATSI_I32] = {"I32", 1, 4},
    [ATSI_I64] = {"I64", 1, 8},
    [ATSI_F64] = {"F64", 1, 8},
    [ATSI_IQ1_M] = {"IQ1_M", 256, 56},
    [ATSI_BF16] = {"BF16", 1, 2},
    [ATSI_TQ1_0] = {"TQ1_0", 256, 54},
    [ATSI_TQ2_0] = {"TQ2_0", 256, 66},
    [ATSI_MXFP4] = {"MXFP4", 32, 17},
    [ATSI_NVFP4] = {"NVFP4", 64, 36},
    [ATSI_Q1_0] = {"Q1_0", 128, 18},
    [ATSI_Q2_0] = {"Q2_0", 64, 18},
};

const struct atsi_dtype_info *atsi_dtype_info(uint32_t id) {
    if (id >= ATSI_DTYPE_LIMIT || !dtype_table[id].name) return NULL;
    return &dtype_table[id];
}

const char *atsi_dtype_name(uint32_t id) {
    const struct atsi_dtype_info *info = atsi_dtype_info(id);
    return info ? info->name : "unknown";
}

int atsi_dtype_find(const char *name) {
    for (int id = 0; id < ATSI_DTYPE_LIMIT; id++)
        if (dtype_table[id].name && strcasecmp(dtype_table[id].name, name) == 0) return id;
    return -1;
}

uint64_t atsi_dtype_row_bytes(uint32_t id, uint64_t n_elems) {
    const struct atsi_dtype_info *info = atsi_dtype_info(id);
    uint64_t size_bytes;
    if (!info || n_elems % info->block_elems != 0) return 0;
    return atsi_mul_u64(n_elems / info->block_elems, info->block_bytes, &size_bytes) ? size_bytes : 0;
}
