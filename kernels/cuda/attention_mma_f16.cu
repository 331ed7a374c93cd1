// attention_mma_f16.cu: instances of attention_mma.cuh for F16 caches.
#include "kernels/cuda/attention_mma.cuh"
#include "kernels/cuda/attention_mma.h"

#define SIZE(D) \
    { D, launch_split<D, ATSI_F16>, launch_tiled<D, ATSI_F16>, load_size<D, ATSI_F16> }

const struct attention_kernels ATTENTION_F16[] = {SIZE(64),  SIZE(80),  SIZE(96),
                                                  SIZE(128), SIZE(256), {0, NULL, NULL, NULL}};
