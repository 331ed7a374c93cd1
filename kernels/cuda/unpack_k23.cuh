// unpack_k23.cuh: Q2_K and Q3_K as unpack.cuh has the other types: two scales a span, and codes of so few bits that a group's scales cost as
// much as its codes.
#ifndef ATSI_KERNELS_CUDA_UNPACK_K23_CUH
#define ATSI_KERNELS_CUDA_UNPACK_K23_CUH

#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/unpack.cuh"

// start + two 16-bit numbers times the lower, or the upper, two bytes of four.
__device__ inline int dot2_low(int two, uint32_t bytes, int start) {
    int out;
    asm("dp2a.lo.s32.u32 %0, %1, %2, %3;" : "=r"(out) : "r"(two), "r"(bytes), "r"(start));
    return out;
}
__device__ inline int dot2_high(int two, uint32_t bytes, int start) {
    int out;
    asm("dp2a.hi.s32.u32 %0, %1, %2, %3;" : "=r"(out) : "r"(two), "r"(bytes), "r"(start));
    return out;
}
struct weight_q2_k : plain_codes {
    static constexpr enum atsi_dtype DTYPE = ATSI_Q2_K;
    static constexpr int TILE_BYTES = ATSI_TILE_Q2_K_BYTES, BLOCK_SPANS = 8, STEP_SPANS = 4, SCALES = 2, MINS = 2;
    static constexpr bool UNSIGNED = true, WHOLE = true;
    struct words {
        uint2 w[2];
        __device__ void load(const uint8_t *block, int step, int g, int t) {
#pragma unroll
            for (int h = 0; h < 2; h++) w[h] = word_pair(block + ATSI_TILE_Q2_K_QS, 8 * step + 4 * h + t, g);
        }
        __device__ void codes(int i, uint32_t a[4]) const {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                a[2 * h] = w[h].x & 0x03030303u << 2 * i; // the scale is smaller by as much
                a[2 * h + 1] = w[h].y & 0x03030303u << 2 * i;
            }
        }
    };
    struct packed_scales {
        __half2 d, dmin;
        uint32_t both[2]; // scale in the low nibble, min in the high one
        float part;       // of the scale: codes stand where the word has them
        __device__ void load(const uint8_t *block, int span, int g) {
            d = half_pair(block, g);
            dmin = half_pair(block + ATSI_TILE_Q2_K_DMIN, g);
            both[0] = byte_pair(block + ATSI_TILE_Q2_K_SCALES, 2 * span, g);
            both[1] = byte_pair(block + ATSI_TILE_Q2_K_SCALES, 2 * span + 1, g);
            part = __int_as_float((127 - 2 * (span % 4)) << 23);
        }
        __device__ void unpack(span_scales &s) const {
            float2 unit = __half22float2(d), min_unit = __half22float2(dmin);
            field_unit scale[2] = {unit.x * part, unit.y * part * 0x1p-8f},
                       min[2] = {min_unit.x * 0x1p-4f, min_unit.y * 0x1p-12f};
#pragma unroll
            for (int h = 0; h < 2; h++) {
                s.scale[0][h] = scale[0].times(both[h], 0x000f);
                s.scale[1][h] = scale[1].times(both[h], 0x0f00);
                s.min[0][h] = min[0].times(both[h], 0x00f0);
                s.min[1][h] = min[1].times(both[h], 0xf000);
            }
        }
        // Four bits times a sum are whole numbers below 2^31; both mins of a row and the sums that they meet are one instruction.
        __device__ void add(float y[2], const int sums[2][2], int2 input) const {
            uint32_t bytes = permute(both[0], both[1], 0x5140u),
                     mins = bytes & 0xf0f0f0f0u; // row 2g's two, row 2g + 1's two
            const float d_in = __int_as_float(input.x);
            float2 unit = __half22float2(d), min_unit = __half22float2(dmin);
            const float units[2] = {unit.x * part, unit.y * part},
                        min_units[2] = {min_unit.x * -0x1p-4f, min_unit.y * -0x1p-4f};
            int subtracted[2] = {dot2_low(input.y, mins, SUM_ZERO), dot2_high(input.y, mins, SUM_ZERO)};
#pragma unroll
            for (int row = 0; row < 2; row++) {
                int sum = 0;
#pragma unroll
                for (int h = 0; h < 2; h++)
                    sum += sums[h][row] * (int)permute(bytes & 0x0f0f0f0fu, 0, 0x4440u + 2 * row + h);
                y[row] = fmaf((float)sum, units[row] * d_in, y[row]);
                y[row] = fmaf(sum_value(subtracted[row]), min_units[row] * d_in, y[row]);
            }
        }
    };
};

struct weight_q3_k : plain_codes {
    static constexpr enum atsi_dtype DTYPE = ATSI_Q3_K;
    static constexpr int TILE_BYTES = ATSI_TILE_Q3_K_BYTES, BLOCK_SPANS = 8, STEP_SPANS = 4, SCALES = 2, MINS = 0;
    static constexpr bool WHOLE = true;
    // Codes of the first three spans stand where the word has them, 1, 4 and 16 times as large; those of the fourth are 16 times as large too.
    __host__ __device__ static constexpr int offset(int i) { return i == 0 ? 4 : i == 1 ? 16 : 64; }
    struct words {
        uint2 w[2], mask[2];
        __device__ void load(const uint8_t *block, int step, int g, int t) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                w[h] = word_pair(block + ATSI_TILE_Q3_K_QS, 8 * step + 4 * h + t, g);
                uint2 m = word_pair(block + ATSI_TILE_Q3_K_HMASK, 4 * h + t, g);
                mask[h] = make_uint2(m.x >> 4 * step, m.y >> 4 * step);
            }
        }
        __device__ static uint32_t code(uint32_t w, uint32_t mask, int i) {
            if (i == 3) return (w >> 2 & 0x30303030u) | (mask << 3 & 0x40404040u);
            return (w & 0x03030303u << 2 * i) | (mask << (2 + i) & 0x04040404u << 2 * i);
        }
        __device__ void codes(int i, uint32_t a[4]) const {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                a[2 * h] = code(w[h].x, mask[h].x, i);
                a[2 * h + 1] = code(w[h].y, mask[h].y, i);
            }
        }
    };
    // Scale k of 16: low nibble is nibble k / 8 of byte k % 8, top bits 2 (k / 4).. of byte 8 + k % 4; offset by 32.
    struct packed_scales {
        __half2 d;
        uint32_t low[2], top[2], low_turn, top_turn; // bytes of the halves, and where in them the span's bits begin
        float part;                                  // of the scale, as the codes are larger
        __device__ void load(const uint8_t *block, int span, int g) {
            const uint8_t *packed = block + ATSI_TILE_Q3_K_SCALES;
            d = half_pair(block, g);
            part = span % 4 == 0 ? 1.0f : span % 4 == 1 ? 0.25f : 0.0625f;
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int k = 2 * span + h;
                low[h] = byte_pair(packed, k % 8, g);
                top[h] = byte_pair(packed, 8 + k % 4, g);
            }
            low_turn = 4 * (span / 4);
            top_turn = 2 * (span / 2);
        }
        __device__ void unpack(span_scales &s) const {
            float2 unit = __half22float2(d);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                uint32_t both = (low[h] >> low_turn & 0x0f0fu) | (top[h] >> top_turn & 0x0303u) << 4;
                s.scale[0][h] = unit.x * part * (field_of(both, 0xff) - FIELD_32);
                s.scale[1][h] = unit.y * part * 0x1p-8f * (field_of(both, 0xff00) - FIELD_32_SECOND);
            }
        }
        // As in Q2_K. The codes' offset, 4, meets the input's sums and is taken off at the end.
        __device__ void add(float y[2], const int sums[2][2], int2 input) const {
            uint32_t bytes =
                permute(low[0], low[1], 0x5140u) >> low_turn & 0x0f0f0f0fu; // row 2g's two, row 2g + 1's two
            bytes |= (permute(top[0], top[1], 0x5140u) >> top_turn & 0x03030303u) << 4;
            bytes = (bytes + 0x60606060u) ^ 0x80808080u; // less 32
            const float d_in = __int_as_float(input.x);
            float2 unit = __half22float2(d);
            const float units[2] = {unit.x * d_in, unit.y * d_in};
            const int offset[2] = {__dp2a_lo(input.y, (int)bytes, SUM_ZERO), __dp2a_hi(input.y, (int)bytes, SUM_ZERO)};
#pragma unroll
            for (int row = 0; row < 2; row++) {
                int sum = 0;
#pragma unroll
                for (int h = 0; h < 2; h++)
                    sum += sums[h][row] * (int)permute(bytes, 0, 0x8880u + 0x1111u * (2 * row + h));
                y[row] = fmaf((float)sum, units[row] * part, y[row]);
                y[row] = fmaf(sum_value(offset[row]), -4.0f * units[row], y[row]);
            }
        }
    };
};

#endif
