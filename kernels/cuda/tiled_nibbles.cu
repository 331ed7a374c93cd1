// tiled_nibbles.cu: products with weights of the types below (tiled.cuh), split over files so that they compile side by side.
#include "kernels/cuda/tiled.cuh"

DEFINE_TILED_TYPE(TILED_Q4_0, weight_q4_0)
DEFINE_TILED_TYPE(TILED_Q4_1, weight_q4_1)
DEFINE_TILED_TYPE(TILED_IQ4_NL, weight_iq4_nl)
DEFINE_TILED_TYPE(TILED_MXFP4, weight_mxfp4)
