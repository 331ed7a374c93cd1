// tiled_glu.cuh: experts' gate and up with the activation that joins them, for few tokens.
//
// As vector kernels compute them (tiled_vector.cuh), but a block has the same 32 rows of both, two tiles of each, a team of warps a tile.
// So it can activate and quantise them itself, which saves a launch between two products, and the next one's weights are on
// their way as soon as there is room for its blocks.
#ifndef ATSI_KERNELS_CUDA_TILED_GLU_CUH
#define ATSI_KERNELS_CUDA_TILED_GLU_CUH

#include "kernels/cuda/glu.cuh"
#include "kernels/cuda/tiled_vector.cuh"

constexpr int PART_TEAMS = GLU_ROWS / ATSI_TILE_ROWS, GLU_TEAMS = 2 * PART_TEAMS;
static_assert(GLU_ROWS == WARP, "a lane a row");

// A row of a part, in the order of sums of store_tile, stored. `sums`: of the warps of the block.
__device__ inline float store_row(const float *sums, const tiled_args &a, int p, int expert) {
    const tiled_part &part = a.parts[p];
    int lane = threadIdx.x, team = p * PART_TEAMS + lane / ATSI_TILE_ROWS, n_shares = blockDim.x / WARP / GLU_TEAMS;
    uint32_t row = blockIdx.x * GLU_ROWS + lane;
    float sum = 0.0f;
    for (int s = 0; s < n_shares; s++) sum += sums[(s * GLU_TEAMS + team) * ATSI_TILE_ROWS + lane % ATSI_TILE_ROWS];
    if (part.bias) sum += part.bias[(uint64_t)expert * part.n_out + row];
    part.out[(uint64_t)blockIdx.z * part.out_stride + (uint64_t)blockIdx.y * part.n_out + row] = sum;
    return sum;
}

// One warp: the block's 32 rows of a pair.
__device__ inline void store_glu(const float *sums, const tiled_args &a, const glu_args &y, int expert) {
    int lane = threadIdx.x;
    float gate = store_row(sums, a, 0, expert), up = store_row(sums, a, 1, expert);
    float v = glu_of(y.params.act, gate, up, y.params.alpha, y.params.limit), four[4];
    uint32_t n_out = a.parts[0].n_out, first = blockIdx.y * n_out + blockIdx.x * GLU_ROWS;
    y.out[(uint64_t)blockIdx.z * y.out_stride + first + lane] = v;
#pragma unroll
    for (int k = 0; k < 4; k++) four[k] = __shfl_sync(ALL_LANES, v, 4 * (lane % 8) + k);
    uint64_t at = (uint64_t)blockIdx.z * a.experts.n_slots * n_out + first;
    quantise4(make_float4(four[0], four[1], four[2], four[3]), y.q + at + 4 * (lane % 8), y.meta + at / 32, lane < 8);
}

// x: 32 rows of both parts, y: slot, z: token.
template <class W>
__global__ void __launch_bounds__(VECTOR_WARPS_MAX *WARP, 2)
    vector_glu_kernel(const __grid_constant__ tiled_args a, const __grid_constant__ glu_args y) {
    extern __shared__ __align__(16) uint8_t dynamic[];
    constexpr int RING_BYTES = VECTOR_STAGES * GROUP_BYTES<W>;
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
    uint32_t n_spans = a.n_cols / 32, n_groups = (n_spans + GROUP_SPANS - 1) / GROUP_SPANS,
             part_tiles = a.parts[0].n_out / ATSI_TILE_ROWS;
    group_stream<W, GLU_TEAMS> stream;
    if (!stream.to_expert(a)) return;
    uint8_t *ring = dynamic + warp * RING_BYTES, *stage = ring, *ring_end = ring + RING_BYTES;
    uint32_t team = warp % GLU_TEAMS;
    stream.tile = team / PART_TEAMS * part_tiles + blockIdx.x * PART_TEAMS + team % PART_TEAMS;
    uint32_t tile = stream.tile;
    stream.to_tile(a, stream.share()); // no warp is without a group
#pragma unroll 1
    for (uint8_t *s = ring; s < ring_end; s += GROUP_BYTES<W>) stream.copy_next(s, a, n_groups, 0);
    fetch_biases(a, tile, stream.place.expert());
    wait_for_predecessor();
    start_successor(); // only now: the product behind counts on it (waiting.h)
    lane_rows<W, 1> rows(a, in_row_of_block(a.experts), g, t);
    lane_constants<W, 1> constants(a, g);
    float acc[2][2] = {};
    for (uint32_t first = stream.share() * GROUP_SPANS; first < n_spans; first += stream.n_shares() * GROUP_SPANS) {
        multiply_group<W, 1>(acc, stage, rows, first, n_spans - first, constants, g, t);
        __syncwarp(); // no lane reads the stage any more
        stream.copy_next(stage, a, n_groups, 0);
        stage += GROUP_BYTES<W>;
        if (stage == ring_end) stage = ring;
    }
    float *sums = (float *)(dynamic + blockDim.x / WARP * RING_BYTES);
    put_sums<1>(acc, sums + warp * ATSI_TILE_ROWS);
    __syncthreads();
    if (warp == 0) store_glu(sums, a, y, stream.place.expert());
}

// Teams are as large as the vector kernel's blocks, so that sums have its order. All blocks are on the card at once, or the coarser cut
// would cost more than a launch.
template <class W>
bool launch_vector_glu(const struct tiled_args *a, const struct glu_args *y, struct launch_stream stream) {
    struct tiled_args one = *a;
    one.n_in = 1;
    uint32_t n_groups = ceil_div(a->n_cols / 32, GROUP_SPANS), n_blocks = a->parts[0].n_out / GLU_ROWS;
    int n_warps = GLU_TEAMS * vector_shape_of<W, 1>(n_groups, n_tiles_of(one) * a->n_in, one).n_warps;
    size_t shared_bytes = vector_shared_bytes<W, 1>(n_warps, vector_stages(a->capability));
    if (n_warps > VECTOR_WARPS_MAX ||
        n_blocks * a->n_in > (uint32_t)(vector_blocks_resident(n_warps, shared_bytes, *a) * a->n_multiprocessors))
        return false;
    launch_overlapping(vector_glu_kernel<W>, dim3(n_blocks, a->experts.n_slots, a->n_in / a->experts.n_slots),
                       n_warps * WARP, shared_bytes, stream, one, *y);
    return true;
}

#endif
