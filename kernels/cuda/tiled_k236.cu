// tiled_k236.cu: products with weights of the types below (tiled.cuh), split over files so that they compile side by side.
#include "kernels/cuda/tiled.cuh"
#include "kernels/cuda/unpack_k23.cuh"

DEFINE_TILED_TYPE(TILED_Q2_K, weight_q2_k)
DEFINE_TILED_TYPE(TILED_Q3_K, weight_q3_k)
DEFINE_TILED_TYPE(TILED_Q6_K, weight_q6_k)
