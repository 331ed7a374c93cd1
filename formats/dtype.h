// dtype.h: the one table of tensor types. Ids are those of GGUF (ggml_type in the GGUF specification).
#ifndef ATSI_FORMATS_DTYPE_H
#define ATSI_FORMATS_DTYPE_H

#include <stdint.h>

// clang-format off
enum atsi_dtype {
    ATSI_F32 = 0, ATSI_F16 = 1, ATSI_Q4_0 = 2, ATSI_Q4_1 = 3, ATSI_Q5_0 = 6, ATSI_Q5_1 = 7, ATSI_Q8_0 = 8, ATSI_Q8_1 = 9,
    ATSI_Q2_K = 10, ATSI_Q3_K = 11, ATSI_Q4_K = 12, ATSI_Q5_K = 13, ATSI_Q6_K = 14, ATSI_Q8_K = 15,
    ATSI_IQ2_XXS = 16, ATSI_IQ2_XS = 17, ATSI_IQ3_XXS = 18, ATSI_IQ1_S = 19, ATSI_IQ4_NL = 20, ATSI_IQ3_S = 21,
    ATSI_IQ2_S = 22, ATSI_IQ4_XS = 23, ATSI_I8 = 24, ATSI_I16 = 25, ATSI_I32 = 26, ATSI_I64 = 27, ATSI_F64 = 28,
    ATSI_IQ1_M = 29, ATSI_BF16 = 30, ATSI_TQ1_0 = 34, ATSI_TQ2_0 = 35, ATSI_MXFP4 = 39, ATSI_NVFP4 = 40, ATSI_Q1_0 = 41,
    ATSI_Q2_0 = 42,
    ATSI_DTYPE_LIMIT = 64 // ids at and above are unknown
};
// clang-format on

struct atsi_dtype_info {
    const char *name;     // "Q4_K"; NULL for an id that is not in use
    uint16_t block_elems; // elements along a row that share a block (1 for plain types)
    uint16_t block_bytes; // bytes of one block
};

// NULL when `id` is unknown (any value is allowed, hostile files too).
const struct atsi_dtype_info *atsi_dtype_info(uint32_t id);
// "Q4_K"; "unknown" for an id that is not in the table.
const char *atsi_dtype_name(uint32_t id);
// Looks a name up, case-insensitive. Returns -1 when there is none.
int atsi_dtype_find(const char *name);
// Bytes of a row of `n_elems`; 0 when the type is unknown, n_elems is no multiple of the block, or the size overflows.
uint64_t atsi_dtype_row_bytes(uint32_t id, uint64_t n_elems);

#endif
