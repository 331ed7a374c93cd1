// The vector kernels in plain C, and the choice among the versions.
#include "kernels/cpu/vec_attention_body.h"
#include "kernels/cpu/vec_rows_body.h"

static const struct atsi_vec_kernels reference = VEC_KERNELS;

const struct atsi_vec_kernels *atsi_vec_kernels(enum atsi_isa isa) {
#if defined(__x86_64__)
    if (isa == ATSI_ISA_AVX512) return &atsi_vec_kernels_avx512;
    if (isa == ATSI_ISA_AVX2 || isa == ATSI_ISA_AVXVNNI) return &atsi_vec_kernels_avx2;
#endif
    (void)isa;
    return &reference;
}
