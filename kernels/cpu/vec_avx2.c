#include "kernels/cpu/vec_attention_body.h"
#include "kernels/cpu/vec_rows_body.h"

const struct atsi_vec_kernels atsi_vec_kernels_avx2 = VEC_KERNELS;
