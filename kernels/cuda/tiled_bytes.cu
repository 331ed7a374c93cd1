// tiled_bytes.cu: products with weights of the types below (tiled.cuh), split over files so that they compile side by side.
#include "kernels/cuda/tiled.cuh"

DEFINE_TILED_TYPE(TILED_Q8_0, weight_q8_0)
DEFINE_TILED_TYPE(TILED_Q5_0, weight_q5_0)
DEFINE_TILED_TYPE(TILED_Q5_1, weight_q5_1)
