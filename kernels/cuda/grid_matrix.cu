// grid_matrix.cu: products of many input rows with the grid types (grid_matrix.cuh).
#include "kernels/cuda/grid_matrix.cuh"
#include "kernels/cuda/grid_matrix.h"

namespace {

template <class G> bool matrix(const struct tiled_args *a, struct launch_stream stream) {
    if (!matrix_fits<weight_grid<G>, MATRIX_COLS>(1, a->max_shared_bytes)) return false;
    launch_matrix<weight_grid<G>>(a, stream);
    return true;
}

template <class G> cudaError_t prepare(int max_shared_bytes) {
    typedef weight_grid<G> weight;
    static const void *const KERNELS[] = {(const void *)matrix_kernel<weight, 128>,
                                          (const void *)matrix_kernel<weight, MATRIX_COLS>};
    cudaError_t status = load_kernels(KERNELS);
    if (status == cudaSuccess) status = prepare_matrix<weight, MATRIX_COLS>(max_shared_bytes);
    return status == cudaSuccess ? prepare_matrix<weight, 128>(max_shared_bytes) : status;
}

struct matrix_type {
    enum atsi_dtype dtype;
    bool (*matrix)(const struct tiled_args *a, struct launch_stream stream);
    cudaError_t (*prepare)(int max_shared_bytes);
};
template <class G> constexpr matrix_type type_of = {G::DTYPE, matrix<G>, prepare<G>};
const matrix_type TYPES[] = {type_of<iq2_xxs>, type_of<iq2_xs>, type_of<iq2_s>, type_of<iq3_xxs>,
                             type_of<iq3_s>,   type_of<iq1_s>,  type_of<iq1_m>};

} // namespace

bool grid_matrix(enum atsi_dtype dtype, const struct tiled_args *a, struct launch_stream stream) {
    for (const matrix_type &t : TYPES)
        if (t.dtype == dtype) return t.matrix(a, stream);
    return false;
}

cudaError_t grid_matrix_prepare(enum atsi_dtype dtype, int max_shared_bytes) {
    for (const matrix_type &t : TYPES)
        if (t.dtype == dtype) return t.prepare(max_shared_bytes);
    return cudaSuccess;
}
