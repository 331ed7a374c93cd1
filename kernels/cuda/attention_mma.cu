// attention_mma.cu: the table of tensor-core attention kernels (instances in attention_mma_f16.cu and _q8_0.cu).
#include "kernels/cuda/attention_mma.h"

static const struct attention_kernels *find(int dim, enum atsi_dtype kv_type) {
    const struct attention_kernels *list = kv_type == ATSI_F16    ? ATTENTION_F16
                                           : kv_type == ATSI_Q8_0 ? ATTENTION_Q8_0
                                                                  : NULL;
    for (; list && list->dim != 0; list++)
        if (list->dim == dim) return list;
    return NULL;
}

bool attention_has_mma(int k_dim, int v_dim, enum atsi_dtype kv_type) { return k_dim == v_dim && find(k_dim, kv_type); }

void attention_split_mma(const struct attention_args *a, enum atsi_dtype kv_type, struct launch_stream stream) {
    find(a->k_dim, kv_type)->split(*a, stream);
}

void attention_tiled_mma(const struct attention_args *a, enum atsi_dtype kv_type, struct launch_stream stream) {
    find(a->k_dim, kv_type)->tiled(*a, stream);
}

cudaError_t attention_mma_prepare(int dim, enum atsi_dtype kv_type, int max_shared_bytes) {
    const struct attention_kernels *kernels = find(dim, kv_type);
    return kernels ? kernels->prepare(max_shared_bytes) : cudaSuccess;
}
