// tiled.cu: the table of types that stand in TILE16.
#include "kernels/cuda/tiled.h"

const struct tiled_type *tiled_type_of(enum atsi_dtype dtype) {
    static const struct tiled_type *const TYPES[] = {
        &TILED_Q8_0, &TILED_Q4_0, &TILED_Q4_1, &TILED_Q5_0, &TILED_Q5_1, &TILED_IQ4_NL, &TILED_MXFP4,
        &TILED_Q2_K, &TILED_Q3_K, &TILED_Q4_K, &TILED_Q5_K, &TILED_Q6_K, &TILED_IQ4_XS};
    for (const struct tiled_type *type : TYPES)
        if (type->dtype == dtype) return type;
    return NULL;
}
