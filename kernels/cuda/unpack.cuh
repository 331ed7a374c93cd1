// unpack.cuh: quantised weights in TILE16 (kernels/layout.h) as tensor-core fragments, one struct a type.
//
// Lane 4g + t of a warp owns rows 2g and 2g + 1 of a tile (adjacent in memory, so one 8-byte load brings a word of both) and in
// every span of 32 columns the words of columns 4t..4t+3 and 16+4t..16+4t+3. Any order of rows and columns is fine for the matrix
// instruction as long as inputs and results follow it. A weight type W has
//
//   W::DTYPE, W::TILE_BYTES, W::BLOCK_SPANS   spans of 32 columns in a block of the layout
//   W::STEP_SPANS                             consecutive spans that share words: a step; steps do not cross blocks
//   W::SCALES, W::MINS                        scales (1 or 2) and mins (0, 1 or 2) of a row in a span
//   W::words                                  registers of one step's words
//     load(block, step, g, t)                 step: within the block
//     codes(i, a)                             the i-th span of the step (i a constant after unrolling): int8 codes, rows 2g and
//                                             2g + 1 of columns 4t.., then of columns 16+4t..
//   W::packed_scales                          registers of one span's scales of rows 2g and 2g + 1
//     load(block, span, g)                    span: within the block
//     unpack(s)
//
// Loading and unpacking are apart so that many loads can be under way. block may point to global or shared memory, 16-byte aligned.
#ifndef ATSI_KERNELS_CUDA_UNPACK_CUH
#define ATSI_KERNELS_CUDA_UNPACK_CUH

#include <cuda_fp16.h>

#include "kernels/cuda/internal.h"

// w = scale * q - min; [row][half]: half 1 stands for columns 16..31 where a type has two.
struct span_scales {
    float scale[2][2], min[2][2];
};

// 64 bytes: one word of each of 16 rows.
__device__ inline uint2 word_pair(const uint8_t *part, int k, int g) { return *(const uint2 *)(part + 64 * k + 8 * g); }
// Entries of a byte or half array [..][16 rows] of rows 2g (low) and 2g + 1 (high).
__device__ inline uint32_t byte_pair(const uint8_t *part, int j, int g) {
    return *(const uint16_t *)(part + 16 * j + 2 * g);
}
__device__ inline __half2 half_pair(const uint8_t *part, int g) { return *(const __half2 *)(part + 4 * g); }

__device__ inline uint32_t low_nibbles(uint32_t w) { return w & 0x0f0f0f0fu; }
__device__ inline uint32_t high_nibbles(uint32_t w) { return w >> 4 & 0x0f0f0f0fu; }
// Bytes of unsigned codes below 128 minus n (as int8). No borrow crosses a byte: bit 7 is set first and flipped back.
__device__ inline uint32_t bytes_minus(uint32_t w, uint32_t n) {
    return ((w | 0x80808080u) - n * 0x01010101u) ^ 0x80808080u;
}

// Words of 32 columns in nibbles of 4 words: low nibbles are columns 0..15, high ones 16..31.
struct nibble_words {
    uint2 w;
    __device__ void load(const uint8_t *qs, int g, int t) { w = word_pair(qs, t, g); }
    __device__ void codes(uint32_t a[4]) const {
        a[0] = low_nibbles(w.x);
        a[1] = low_nibbles(w.y);
        a[2] = high_nibbles(w.x);
        a[3] = high_nibbles(w.y);
    }
};

// The fifth bits of such codes: plane k of a row's word belongs to columns 4k..4k+3, so to words t (low) and 4 + t (high).
struct fifth_bits {
    uint2 planes; // shifted so that planes 0 and 4 are the lane's
    __device__ void load(const uint8_t *qh, int g, int t) {
        uint2 p = word_pair(qh, 0, g);
        planes = make_uint2(p.x >> t, p.y >> t);
    }
    __device__ void add(uint32_t a[4]) const {
        a[0] |= (planes.x & 0x01010101u) << 4;
        a[1] |= (planes.y & 0x01010101u) << 4;
        a[2] |= planes.x & 0x10101010u;
        a[3] |= planes.y & 0x10101010u;
    }
};

__device__ inline void all_minus(uint32_t a[4], uint32_t n) {
#pragma unroll
    for (int i = 0; i < 4; i++) a[i] = bytes_minus(a[i], n);
}

// Values of eight 4-bit codes from a table of 16 bytes in four words: `low` those of the low nibbles.
struct table16 {
    uint32_t w[4];
};
__device__ inline void look_up(const table16 &table, uint32_t codes, uint32_t &low, uint32_t &high) {
    uint32_t out[2]; // values of nibbles 0..3 and 4..7
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint32_t c = codes >> 16 * h, select = 0x3210u | (c & 0x8888u) >> 1;
        out[h] = __byte_perm(__byte_perm(table.w[0], table.w[1], c & 0x7777u),
                             __byte_perm(table.w[2], table.w[3], c & 0x7777u), select);
    }
    low = __byte_perm(out[0], out[1], 0x6420);
    high = __byte_perm(out[0], out[1], 0x7531);
}
__device__ inline table16 iq4_values() { // kernels/cpu/quant_tables.h
    return {{0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u}};
}
__device__ inline table16 fp4_values() { return {{0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu}}; }

__device__ inline void look_up_pair(const table16 &table, uint2 w, uint32_t a[4]) {
    look_up(table, w.x, a[0], a[2]);
    look_up(table, w.y, a[1], a[3]);
}

// ---- 32-column blocks -----------------------------------------------------------------------------------------------------

// One half-float scale a row at the block's start.
struct scale_only {
    static constexpr int BLOCK_SPANS = 1, STEP_SPANS = 1, SCALES = 1, MINS = 0;
    struct packed_scales {
        __half2 d;
        __device__ void load(const uint8_t *block, int, int g) { d = half_pair(block, g); }
        __device__ void unpack(span_scales &s) const {
            float2 v = __half22float2(d);
            s.scale[0][0] = v.x;
            s.scale[1][0] = v.y;
        }
    };
};

// A half-float scale and a half-float that is added: 16 of each.
struct scale_and_offset {
    static constexpr int BLOCK_SPANS = 1, STEP_SPANS = 1, SCALES = 1, MINS = 1;
    struct packed_scales {
        __half2 d, m;
        __device__ void load(const uint8_t *block, int, int g) {
            d = half_pair(block, g);
            m = half_pair(block + 32, g);
        }
        __device__ void unpack(span_scales &s) const {
            float2 v = __half22float2(d), offset = __half22float2(m);
            s.scale[0][0] = v.x;
            s.scale[1][0] = v.y;
            s.min[0][0] = -offset.x;
            s.min[1][0] = -offset.y;
        }
    };
};
static_assert(ATSI_TILE_Q4_1_M == 32 && ATSI_TILE_Q5_1_M == 32, "offsets follow 16 half-float scales");

struct weight_q8_0 : scale_only {
    static constexpr enum atsi_dtype DTYPE = ATSI_Q8_0;
    static constexpr int TILE_BYTES = ATSI_TILE_Q8_0_BYTES;
    struct words {
        uint2 w[2];
        __device__ void load(const uint8_t *block, int, int g, int t) {
            w[0] = word_pair(block + ATSI_TILE_Q8_0_QS, t, g);
            w[1] = word_pair(block + ATSI_TILE_Q8_0_QS, 4 + t, g);
        }
        __device__ void codes(int, uint32_t a[4]) const {
            a[0] = w[0].x ^ 0x80808080u;
            a[1] = w[0].y ^ 0x80808080u;
            a[2] = w[1].x ^ 0x80808080u;
            a[3] = w[1].y ^ 0x80808080u;
        }
    };
};

struct weight_q4_0 : scale_only {
    static constexpr enum atsi_dtype DTYPE = ATSI_Q4_0;
    static constexpr int TILE_BYTES = ATSI_TILE_Q4_0_BYTES;
    struct words {
        nibble_words q;
        __device__ void load(const uint8_t *block, int, int g, int t) { q.load(block + ATSI_TILE_Q4_0_QS, g, t); }
        __device__ void codes(int, uint32_t a[4]) const {
            q.codes(a);
            all_minus(a, 8);
        }
    };
};

struct weight_q4_1 : scale_and_offset {
    static constexpr enum atsi_dtype DTYPE = ATSI_Q4_1;
    static constexpr int TILE_BYTES = ATSI_TILE_Q4_1_BYTES;
    struct words {
        nibble_words q;
        __device__ void load(const uint8_t *block, int, int g, int t) { q.load(block + ATSI_TILE_Q4_1_QS, g, t); }
        __device__ void codes(int, uint32_t a[4]) const { q.codes(a); }
    };
};

struct weight_q5_0 : scale_only {
    static constexpr enum atsi_dtype DTYPE = ATSI_Q5_0;
    static constexpr int TILE_BYTES = ATSI_TILE_Q5_0_BYTES;
    struct words {
        nibble_words q;
        fifth_bits top;
        __device__ void load(const uint8_t *block, int, int g, int t) {
            q.load(block + ATSI_TILE_Q5_0_QS, g, t);
            top.load(block + ATSI_TILE_Q5_0_QH, g, t);
        }
        __device__ void codes(int, uint32_t a[4]) const {
            q.codes(a);
            top.add(a);
            all_minus(a, 16);
        }
    };
};

struct weight_q5_1 : scale_and_offset {
    static constexpr enum atsi_dtype DTYPE = ATSI_Q5_1;
    static constexpr int TILE_BYTES = ATSI_TILE_Q5_1_BYTES;
    struct words {
        nibble_words q;
        fifth_bits top;
        __device__ void load(const uint8_t *block, int, int g, int t) {
            q.load(block + ATSI_TILE_Q5_1_QS, g, t);
            top.load(block + ATSI_TILE_Q5_1_QH, g, t);
        }
        __device__ void codes(int, uint32_t a[4]) const {
            q.codes(a);
            top.add(a);
        }
    };
};

struct weight_iq4_nl : scale_only {
    static constexpr enum atsi_dtype DTYPE = ATSI_IQ4_NL;
    static constexpr int TILE_BYTES = ATSI_TILE_IQ4_NL_BYTES;
    struct words {
        nibble_words q;
        __device__ void load(const uint8_t *block, int, int g, int t) { q.load(block + ATSI_TILE_IQ4_NL_QS, g, t); }
        __device__ void codes(int, uint32_t a[4]) const { look_up_pair(iq4_values(), q.w, a); }
    };
};

// 2^(e - 128): below e = 2 a subnormal float.
__device__ inline float mxfp4_scale(uint32_t e) {
    return __int_as_float(e >= 2 ? (int)(e - 1) << 23 : 0x00200000 << e);
}

struct weight_mxfp4 {
    static constexpr enum atsi_dtype DTYPE = ATSI_MXFP4;
    static constexpr int TILE_BYTES = ATSI_TILE_MXFP4_BYTES, BLOCK_SPANS = 1, STEP_SPANS = 1, SCALES = 1, MINS = 0;
    struct words {
        nibble_words q;
        __device__ void load(const uint8_t *block, int, int g, int t) { q.load(block + ATSI_TILE_MXFP4_QS, g, t); }
        __device__ void codes(int, uint32_t a[4]) const { look_up_pair(fp4_values(), q.w, a); }
    };
    struct packed_scales {
        uint32_t e;
        __device__ void load(const uint8_t *block, int, int g) { e = byte_pair(block, 0, g); }
        __device__ void unpack(span_scales &s) const {
            s.scale[0][0] = mxfp4_scale(e & 0xff);
            s.scale[1][0] = mxfp4_scale(e >> 8);
        }
    };
};

// ---- 256-column blocks ----------------------------------------------------------------------------------------------------

// A scale and a min of 6 bits for a span (Q4_K, Q5_K); a byte each of rows 2g and 2g + 1 is handled at once.
struct six_bit_scales {
    __half2 d, dmin;
    uint32_t here, ahead, behind; // packed bytes k, k + 4 and k - 4 of span k
    bool upper;                   // k >= 4
    __device__ void load(const uint8_t *block, int k, int g) {
        const uint8_t *packed = block + ATSI_TILE_Q4_K_SCALES;
        d = half_pair(block, g);
        dmin = half_pair(block + ATSI_TILE_Q4_K_DMIN, g);
        here = byte_pair(packed, k, g);
        ahead = byte_pair(packed, k + 4, g);
        behind = byte_pair(packed, k & 3, g);
        upper = k >= 4;
    }
    __device__ void unpack(span_scales &s) const {
        uint32_t scale = upper ? (ahead & 0x0f0fu) | (behind >> 2 & 0x3030u) : here & 0x3f3fu;
        uint32_t min = upper ? (ahead >> 4 & 0x0f0fu) | (here >> 2 & 0x3030u) : ahead & 0x3f3fu;
        float2 unit = __half22float2(d), min_unit = __half22float2(dmin);
        s.scale[0][0] = unit.x * (float)(scale & 0xff);
        s.scale[1][0] = unit.y * (float)(scale >> 8);
        s.min[0][0] = min_unit.x * (float)(min & 0xff);
        s.min[1][0] = min_unit.y * (float)(min >> 8);
    }
};
static_assert(ATSI_TILE_Q4_K_DMIN == ATSI_TILE_Q5_K_DMIN && ATSI_TILE_Q4_K_SCALES == ATSI_TILE_Q5_K_SCALES,
              "one scale format");

struct weight_q4_k {
    static constexpr enum atsi_dtype DTYPE = ATSI_Q4_K;
    static constexpr int TILE_BYTES = ATSI_TILE_Q4_K_BYTES, BLOCK_SPANS = 8, STEP_SPANS = 2, SCALES = 1, MINS = 1;
    typedef six_bit_scales packed_scales;
    struct words {
        uint2 w[2];
        __device__ void load(const uint8_t *block, int step, int g, int t) {
            w[0] = word_pair(block + ATSI_TILE_Q4_K_QS, 8 * step + t, g);
            w[1] = word_pair(block + ATSI_TILE_Q4_K_QS, 8 * step + 4 + t, g);
        }
        __device__ void codes(int i, uint32_t a[4]) const {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                a[2 * h] = w[h].x >> 4 * i & 0x0f0f0f0fu;
                a[2 * h + 1] = w[h].y >> 4 * i & 0x0f0f0f0fu;
            }
        }
    };
};

struct weight_q5_k {
    static constexpr enum atsi_dtype DTYPE = ATSI_Q5_K;
    static constexpr int TILE_BYTES = ATSI_TILE_Q5_K_BYTES, BLOCK_SPANS = 8, STEP_SPANS = 2, SCALES = 1, MINS = 1;
    typedef six_bit_scales packed_scales;
    struct words {
        uint2 w[2], planes[2]; // bits 0 and 1 of a plane byte: the step's two spans
        __device__ void load(const uint8_t *block, int step, int g, int t) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                w[h] = word_pair(block + ATSI_TILE_Q5_K_QS, 8 * step + 4 * h + t, g);
                uint2 p = word_pair(block + ATSI_TILE_Q5_K_QH, 4 * h + t, g);
                planes[h] = make_uint2(p.x >> 2 * step, p.y >> 2 * step);
            }
        }
        __device__ void codes(int i, uint32_t a[4]) const {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                a[2 * h] = (w[h].x >> 4 * i & 0x0f0f0f0fu) | (planes[h].x >> i & 0x01010101u) << 4;
                a[2 * h + 1] = (w[h].y >> 4 * i & 0x0f0f0f0fu) | (planes[h].y >> i & 0x01010101u) << 4;
            }
        }
    };
};

struct weight_q6_k {
    static constexpr enum atsi_dtype DTYPE = ATSI_Q6_K;
    static constexpr int TILE_BYTES = ATSI_TILE_Q6_K_BYTES, BLOCK_SPANS = 8, STEP_SPANS = 4, SCALES = 2, MINS = 0;
    struct words {
        uint2 low[4], top[2]; // low[2 j + h]: words of span j (and in the high nibbles of span 2 + j), half h
        __device__ void load(const uint8_t *block, int step, int g, int t) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const uint8_t *triple = block + ATSI_TILE_Q6_K_QS + 64 * 3 * (8 * step + 4 * h + t);
                low[h] = word_pair(triple, 0, g);
                low[2 + h] = word_pair(triple, 1, g);
                top[h] = word_pair(triple, 2, g);
            }
        }
        __device__ static uint32_t code(uint32_t low, uint32_t top, int i) {
            uint32_t shifted = 2 * i < 4 ? top << (4 - 2 * i) : top >> (2 * i - 4);
            return bytes_minus((low >> 4 * (i / 2) & 0x0f0f0f0fu) | (shifted & 0x30303030u), 32);
        }
        __device__ void codes(int i, uint32_t a[4]) const {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                a[2 * h] = code(low[2 * (i % 2) + h].x, top[h].x, i);
                a[2 * h + 1] = code(low[2 * (i % 2) + h].y, top[h].y, i);
            }
        }
    };
    struct packed_scales {
        __half2 d;
        uint32_t both[2]; // halves of the span
        __device__ void load(const uint8_t *block, int span, int g) {
            d = half_pair(block, g);
            both[0] = byte_pair(block + ATSI_TILE_Q6_K_SCALES, 2 * span, g);
            both[1] = byte_pair(block + ATSI_TILE_Q6_K_SCALES, 2 * span + 1, g);
        }
        __device__ void unpack(span_scales &s) const {
            float2 unit = __half22float2(d);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                s.scale[0][h] = unit.x * (float)(int8_t)(both[h] & 0xff);
                s.scale[1][h] = unit.y * (float)(int8_t)(both[h] >> 8);
            }
        }
    };
};

struct weight_q2_k {
    static constexpr enum atsi_dtype DTYPE = ATSI_Q2_K;
    static constexpr int TILE_BYTES = ATSI_TILE_Q2_K_BYTES, BLOCK_SPANS = 8, STEP_SPANS = 4, SCALES = 2, MINS = 2;
    struct words {
        uint2 w[2];
        __device__ void load(const uint8_t *block, int step, int g, int t) {
#pragma unroll
            for (int h = 0; h < 2; h++) w[h] = word_pair(block + ATSI_TILE_Q2_K_QS, 8 * step + 4 * h + t, g);
        }
        __device__ void codes(int i, uint32_t a[4]) const {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                a[2 * h] = w[h].x >> 2 * i & 0x03030303u;
                a[2 * h + 1] = w[h].y >> 2 * i & 0x03030303u;
            }
        }
    };
    struct packed_scales {
        __half2 d, dmin;
        uint32_t both[2]; // scale in the low nibble, min in the high one
        __device__ void load(const uint8_t *block, int span, int g) {
            d = half_pair(block, g);
            dmin = half_pair(block + ATSI_TILE_Q2_K_DMIN, g);
            both[0] = byte_pair(block + ATSI_TILE_Q2_K_SCALES, 2 * span, g);
            both[1] = byte_pair(block + ATSI_TILE_Q2_K_SCALES, 2 * span + 1, g);
        }
        __device__ void unpack(span_scales &s) const {
            float2 unit = __half22float2(d), min_unit = __half22float2(dmin);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                s.scale[0][h] = unit.x * (float)(both[h] & 15);
                s.scale[1][h] = unit.y * (float)(both[h] >> 8 & 15);
                s.min[0][h] = min_unit.x * (float)(both[h] >> 4 & 15);
                s.min[1][h] = min_unit.y * (float)(both[h] >> 12);
            }
        }
    };
};

struct weight_q3_k {
    static constexpr enum atsi_dtype DTYPE = ATSI_Q3_K;
    static constexpr int TILE_BYTES = ATSI_TILE_Q3_K_BYTES, BLOCK_SPANS = 8, STEP_SPANS = 4, SCALES = 2, MINS = 0;
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
            return bytes_minus((w >> 2 * i & 0x03030303u) | (mask >> i & 0x01010101u) << 2, 4);
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
        uint32_t low[2], top[2];
        __device__ void load(const uint8_t *block, int span, int g) {
            const uint8_t *packed = block + ATSI_TILE_Q3_K_SCALES;
            d = half_pair(block, g);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int k = 2 * span + h;
                low[h] = byte_pair(packed, k % 8, g) >> 4 * (k / 8);
                top[h] = byte_pair(packed, 8 + k % 4, g) >> 2 * (k / 4);
            }
        }
        __device__ void unpack(span_scales &s) const {
            float2 unit = __half22float2(d);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                uint32_t both = (low[h] & 0x0f0fu) | (top[h] & 0x0303u) << 4;
                s.scale[0][h] = unit.x * (float)((int)(both & 0xff) - 32);
                s.scale[1][h] = unit.y * (float)((int)(both >> 8) - 32);
            }
        }
    };
};

struct weight_iq4_xs {
    static constexpr enum atsi_dtype DTYPE = ATSI_IQ4_XS;
    static constexpr int TILE_BYTES = ATSI_TILE_IQ4_XS_BYTES, BLOCK_SPANS = 8, STEP_SPANS = 1, SCALES = 1, MINS = 0;
    struct words {
        nibble_words q;
        __device__ void load(const uint8_t *block, int step, int g, int t) {
            q.load(block + ATSI_TILE_IQ4_XS_QS + 64 * 4 * step, g, t);
        }
        __device__ void codes(int, uint32_t a[4]) const { look_up_pair(iq4_values(), q.w, a); }
    };
    struct packed_scales {
        __half2 d;
        uint32_t low, high; // 4 and 2 bits of a 6-bit scale, offset by 32
        __device__ void load(const uint8_t *block, int span, int g) {
            d = half_pair(block, g);
            low = byte_pair(block + ATSI_TILE_IQ4_XS_SCALES_L, span / 2, g) >> 4 * (span % 2);
            high = *(const uint32_t *)(block + ATSI_TILE_IQ4_XS_SCALES_H + 4 * g) >> 2 * span;
        }
        __device__ void unpack(span_scales &s) const {
            float2 unit = __half22float2(d);
            s.scale[0][0] = unit.x * (float)((int)((low & 15) | (high & 3) << 4) - 32);
            s.scale[1][0] = unit.y * (float)((int)((low >> 8 & 15) | (high >> 16 & 3) << 4) - 32);
        }
    };
};

#endif
