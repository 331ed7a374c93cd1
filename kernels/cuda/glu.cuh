// glu.cuh: the gated activations, for kernels that end with one.
#ifndef ATSI_KERNELS_CUDA_GLU_CUH
#define ATSI_KERNELS_CUDA_GLU_CUH

#include "kernels/cuda/common.cuh"

template <enum atsi_glu_act ACT> __device__ inline float glu(float gate, float up, float alpha, float limit) {
    if (ACT == ATSI_GLU_SILU) return silu(gate) * up;
    if (ACT == ATSI_GLU_GELU_TANH) {
        float inner = 0.7978845608028654f * gate * (1.0f + 0.044715f * gate * gate); // sqrt(2 / pi)
        return 0.5f * gate * (1.0f + tanhf(inner)) * up;
    }
    float g = fminf(gate, limit), u = fminf(fmaxf(up, -limit), limit);
    return (u + 1.0f) * g * sigmoid(alpha * g);
}

__device__ inline float glu_of(enum atsi_glu_act act, float gate, float up, float alpha, float limit) {
    if (act == ATSI_GLU_SILU) return glu<ATSI_GLU_SILU>(gate, up, alpha, limit);
    if (act == ATSI_GLU_GELU_TANH) return glu<ATSI_GLU_GELU_TANH>(gate, up, alpha, limit);
    return glu<ATSI_GLU_CLAMPED>(gate, up, alpha, limit);
}

#endif
