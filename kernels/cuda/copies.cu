// copies.cu: copies of activations of few rows, several in one launch, with the mark behind them.
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/copies.h"
#include "kernels/cuda/marks.cuh"

namespace {

// ---- copies -----------------------------------------------------------------------------------------------------------------

constexpr int THREADS = 256, POST_THREADS = 1024;
constexpr uint32_t UNIT = 4;                          // elements
constexpr uint32_t POST_UNITS_MAX = 4 * POST_THREADS; // of one block

struct copies_args {
    copies c;
    uint32_t n_units[COPIES_MAX];
    bool aligned[COPIES_MAX];
};

__device__ inline uint32_t units_of_slot(const copy &c) { return (c.width + UNIT - 1) / UNIT; }

__device__ inline void copy_unit(const copy &c, bool aligned, uint32_t unit) {
    uint32_t per_slot = units_of_slot(c), i = unit % per_slot * UNIT, slot = unit / per_slot % c.n_slots;
    uint64_t row = unit / per_slot / c.n_slots, at = (uint64_t)slot * c.width + i;
    if (c.mine && (c.mine[row * c.n_slots + slot] < 0) != c.to_device) return;
    int n = (int)(c.width - i);
    store4(c.dst + row * c.dst_stride + at, load4(c.src + row * c.src_stride + at, n, aligned), n, aligned);
}

__global__ void __launch_bounds__(THREADS) copies_kernel(const __grid_constant__ copies_args a) {
    begin_kernel();
    uint32_t unit = blockIdx.x * THREADS + threadIdx.x;
    int p = 0;
    for (; p < a.c.n_parts && unit >= a.n_units[p]; p++) unit -= a.n_units[p];
    if (p < a.c.n_parts) copy_unit(a.c.parts[p], a.aligned[p], unit);
}

// One block, so that it knows when all is copied.
__global__ void __launch_bounds__(POST_THREADS)
    copies_and_post_kernel(const __grid_constant__ copies_args a, const __grid_constant__ mark posted) {
    begin_kernel();
    for (int p = 0; p < a.c.n_parts; p++)
        for (uint32_t unit = threadIdx.x; unit < a.n_units[p]; unit += POST_THREADS)
            copy_unit(a.c.parts[p], a.aligned[p], unit);
    __syncthreads();
    if (threadIdx.x == 0) post_here(posted);
}

// ---- what joins -------------------------------------------------------------------------------------------------------------

struct atsi_rows_ref dst_rows(const copy &c) {
    struct atsi_rows_ref rows = {c.dst, c.dst_stride, c.n_slots * c.width};
    return rows;
}

// Whether b reads what a writes.
bool feeds(const copy &a, const copy &b, uint32_t n_rows) {
    const struct atsi_rows_ref src = {(void *)b.src, b.src_stride, b.n_slots * b.width},
                               mine = {(void *)b.mine, b.n_slots, b.n_slots};
    return rows_overlap(dst_rows(a), src, n_rows) || (mine.data && rows_overlap(dst_rows(a), mine, n_rows));
}

bool independent(const copy &a, const copy &b) {
    uint32_t n_rows = a.n_rows > b.n_rows ? a.n_rows : b.n_rows;
    return !rows_overlap(dst_rows(a), dst_rows(b), n_rows) && !feeds(a, b, n_rows) && !feeds(b, a, n_rows);
}

bool is_aligned(const copy &c) {
    bool slots = c.n_slots == 1 || c.width % UNIT == 0;
    return ((uintptr_t)c.dst | (uintptr_t)c.src) % 16 == 0 && (c.dst_stride | c.src_stride) % UNIT == 0 && slots;
}

uint32_t n_units_of(const copy &c) { return c.n_rows * c.n_slots * ceil_div(c.width, UNIT); }

uint32_t n_units_of(const copies &c) {
    uint32_t n = 0;
    for (int p = 0; p < c.n_parts; p++) n += n_units_of(c.parts[p]);
    return n;
}

copies_args args_of(const copies &c) {
    copies_args a = {};
    a.c = c;
    for (int p = 0; p < c.n_parts; p++) {
        a.n_units[p] = n_units_of(c.parts[p]);
        a.aligned[p] = is_aligned(c.parts[p]);
    }
    return a;
}

} // namespace

bool copies_join(struct copies *waiting, const struct copy *c) {
    if (waiting->n_parts == COPIES_MAX) return false;
    for (int p = 0; p < waiting->n_parts; p++)
        if (!independent(waiting->parts[p], *c)) return false;
    waiting->parts[waiting->n_parts++] = *c;
    return true;
}

void copies_launch(const struct copies *c, struct launch_stream stream) {
    launch_overlapping(copies_kernel, ceil_div(n_units_of(*c), THREADS), THREADS, 0, stream, args_of(*c));
}

bool copies_launch_and_post(const struct copies *c, struct mark posted, struct launch_stream stream) {
    if (c->n_parts == 0 || n_units_of(*c) > POST_UNITS_MAX) return false;
    launch_overlapping(copies_and_post_kernel, 1, POST_THREADS, 0, stream, args_of(*c), posted);
    return true;
}

cudaError_t load_copies(void) {
    static const void *const KERNELS[] = {(const void *)copies_kernel, (const void *)copies_and_post_kernel};
    return load_kernels(KERNELS);
}
