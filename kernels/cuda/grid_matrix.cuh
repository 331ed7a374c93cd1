// grid_matrix.cuh: a grid type as a weight type of tiled_matrix.cuh. Its rows are opened into the stages of the matrix kernel, once for the
// 64 or 128 input rows of a block; from there on they are int8 codes with float scales like any other's.
#ifndef ATSI_KERNELS_CUDA_GRID_MATRIX_CUH
#define ATSI_KERNELS_CUDA_GRID_MATRIX_CUH

#include "kernels/cuda/grid_types.cuh"
#include "kernels/cuda/tiled_matrix.cuh"

// A tile of a stage: 16 rows of 256 codes, rows 0, 2, .. 14 before 1, 3, .. 15, then their scales row by row. Both are padded so that rows
// fall into different banks.
template <class G> struct weight_grid : plain_codes {
    static constexpr enum atsi_dtype DTYPE = G::DTYPE;
    static constexpr bool UNPACKED = true;
    static constexpr int BLOCK_SPANS = 8, STEP_SPANS = 1, SCALES = G::SCALES / 8, MINS = 0;
    static constexpr int ROW_BYTES = 256 + 16, SCALES_AT = ATSI_TILE_ROWS * ROW_BYTES, SCALES_STRIDE = G::SCALES + 1,
                         TILE_BYTES = SCALES_AT + ATSI_TILE_ROWS * SCALES_STRIDE * (int)sizeof(float);
    static constexpr int CODEBOOK_BYTES = (int)table_bytes<G, FEW>;

    struct words {
        uint32_t a[4];
        __device__ void load(const uint8_t *block, int step, int g, int t) {
            int lane = 4 * g + t;
            load_matrices(a, block + lane % 16 * ROW_BYTES + 32 * step + 16 * (lane / 16));
        }
        __device__ void codes(int, uint32_t out[4]) const {
#pragma unroll
            for (int i = 0; i < 4; i++) out[i] = a[i];
        }
    };
    struct packed_scales {
        float scale[2][SCALES];
        __device__ void load(const uint8_t *block, int span, int g) {
            const float *of_row = (const float *)(block + SCALES_AT) + 2 * g * SCALES_STRIDE + SCALES * span;
#pragma unroll
            for (int row = 0; row < 2; row++)
#pragma unroll
                for (int h = 0; h < SCALES; h++) scale[row][h] = of_row[row * SCALES_STRIDE + h];
        }
        __device__ void unpack(span_scales &s) const {
#pragma unroll
            for (int row = 0; row < 2; row++)
#pragma unroll
                for (int h = 0; h < SCALES; h++) s.scale[row][h] = scale[row][h];
        }
    };

    __device__ static void fill_codebook(void *shared, const uint32_t *words) {
        fill_table<G, FEW>((uint8_t *)shared, words);
    }

    // Block `block` of 128 weight rows from first_row on (those behind n_out repeat the last) into tiles of a stage, a warp a row.
    template <int N_WARPS>
    __device__ static void unpack(uint8_t (*tiles)[TILE_BYTES], const uint8_t *weight, uint32_t first_row,
                                  uint32_t n_out, uint32_t n_cols, uint32_t block, const void *codebook) {
        constexpr int AHEAD = 4; // rows whose loads are under way
        static_assert(MATRIX_ROWS % (AHEAD * N_WARPS) == 0, "whole turns");
        int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
        uint32_t row_bytes = n_cols / 256 * G::BYTES;
        const typename G::lookup lookup({(const uint8_t *)codebook, FEW}, lane);
#pragma unroll 1
        for (int first = warp; first < MATRIX_ROWS; first += AHEAD * N_WARPS) {
            typename G::octet octet[AHEAD];
            typename G::scale scale[AHEAD];
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                uint32_t row = min(first_row + first + i * N_WARPS, n_out - 1);
                const uint8_t *b = weight + (uint64_t)row * row_bytes + block * G::BYTES;
                octet[i].load(b, lane);
                scale[i].load(b, lane % G::SCALES);
            }
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                int row = first + i * N_WARPS, in_tile = row % ATSI_TILE_ROWS;
                uint32_t word = 0;
                if constexpr (G::HAS_WORD) word = __shfl_sync(ALL_LANES, scale[i].word(), lane / (WARP / G::SCALES));
                uint2 q = G::open(octet[i], word, lookup, lane);
                if constexpr (G::BIASED) { // no byte is near its ends once 128 has been added
                    uint32_t more = (uint32_t)(128 + G::bias(octet[i], word, lane)) * EVERY_BYTE;
                    q = make_uint2((q.x + more) ^ 0x80808080u, (q.y + more) ^ 0x80808080u);
                }
                uint8_t *tile = tiles[row / ATSI_TILE_ROWS];
                *(uint2 *)(tile + (in_tile / 2 + in_tile % 2 * 8) * ROW_BYTES + 8 * lane) = q;
                if (lane < G::SCALES)
                    ((float *)(tile + SCALES_AT))[in_tile * SCALES_STRIDE + lane] = scale[i].value(lane);
            }
        }
    }
};

#endif
