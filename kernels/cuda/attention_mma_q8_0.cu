// attention_mma_q8_0.cu: instances of attention_mma.cuh for Q8_0 caches.
#include "kernels/cuda/attention_mma.cuh"
#include "kernels/cuda/attention_mma.h"

#define SIZE(D) \
    { D, launch_split<D, ATSI_Q8_0>, launch_tiled<D, ATSI_Q8_0>, load_size<D, ATSI_Q8_0> }

// Rows are whole blocks of 32.
const struct attention_kernels ATTENTION_Q8_0[] = {SIZE(64), SIZE(96), SIZE(128), SIZE(256), {0, NULL, NULL, NULL}};
