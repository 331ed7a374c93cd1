// tiled_k45.cu: products with weights of the types below (tiled.cuh), split over files so that they compile side by side.
#include "kernels/cuda/tiled.cuh"

DEFINE_TILED_TYPE(TILED_Q4_K, weight_q4_k)
DEFINE_TILED_TYPE(TILED_Q5_K, weight_q5_k)
DEFINE_TILED_TYPE(TILED_IQ4_XS, weight_iq4_xs)
