// unpack.cuh: quantised weights in TILE16 (kernels/layout.h) as tensor-core fragments, one struct a type.
//
// A weight type W processes steps of W::SPANS spans of 32 columns. Lane 4g + t of a warp owns rows 2g and 2g + 1 of the tile
// (adjacent in memory, so one 8-byte load brings a word of both) and in every span the words of columns 4t..4t+3 and
// 16+4t..16+4t+3. Any order of rows and columns is fine for the matrix instruction as long as inputs and results follow it.
//
//   W::DTYPE, W::TILE_BYTES, W::BLOCK_SPANS   spans of 32 columns in a block of the layout
//   W::SPANS                                  spans of a step; steps do not cross blocks
//   W::SPLIT                                  scales stand for 16 columns instead of 32
//   W::MINS                                   0: none, 1: a min for 32 columns, 2: integer mins for 16 columns
//   struct W::raw                             registers of one step
//   W::load(raw, block, step, g, t)           reads the step's words; block: the tile's block, step: within the block
//   W::unpack(raw, i, span)                   the i-th span of the step (i a constant after unrolling)
//
// block may point to global or shared memory, 16-byte aligned.
#ifndef ATSI_KERNELS_CUDA_UNPACK_CUH
#define ATSI_KERNELS_CUDA_UNPACK_CUH

#include <cuda_fp16.h>

#include "kernels/cuda/internal.h"

// Weights of a lane in one span: w = scale * q - min.
struct span {
    uint32_t a[4];     // int8 q: row 2g columns 4t.., row 2g+1 the same, row 2g columns 16+4t.., row 2g+1 the same
    float scale[2][2]; // [row][half]; half 1 only when SPLIT
    float min[2];      // MINS 1; MINS 2: the unit of min_q
    int min_q[2][2];   // MINS 2: [row][half]
};

// 64 bytes: one word of each of 16 rows.
__device__ inline uint2 word_pair(const uint8_t *part, int k, int g) { return *(const uint2 *)(part + 64 * k + 8 * g); }
// Entries of a byte or half array [..][16 rows] of rows 2g (low) and 2g + 1 (high).
__device__ inline uint32_t byte_pair(const uint8_t *part, int j, int g) { return *(const uint16_t *)(part + 16 * j + 2 * g); }
__device__ inline __half2 half_pair(const uint8_t *part, int g) { return *(const __half2 *)(part + 4 * g); }

__device__ inline uint32_t low_nibbles(uint32_t w) { return w & 0x0f0f0f0fu; }
__device__ inline uint32_t high_nibbles(uint32_t w) { return w >> 4 & 0x0f0f0f0fu; }
// Bytes of unsigned codes below 128 minus n (as int8). No borrow crosses a byte: bit 7 is set first and flipped back.
__device__ inline uint32_t bytes_minus(uint32_t w, uint32_t n) { return ((w | 0x80808080u) - n * 0x01010101u) ^ 0x80808080u; }

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

// Bit 4 of the codes from a bit plane: bit p of byte b belongs to byte b.
__device__ inline uint32_t bit_as_16(uint32_t planes, int p) { return (planes >> p & 0x01010101u) << 4; }

// Values of eight 4-bit codes from a table of 16 bytes in four words: `low` those of the low nibbles.
struct table16 {
    uint32_t w[4];
};
__device__ inline void look_up(const table16 &table, uint32_t codes, uint32_t &low, uint32_t &high) {
    uint32_t out[2]; // values of nibbles 0..3 and 4..7
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint32_t c = codes >> 16 * h, select = 0x3210u | (c & 0x8888u) >> 1;
        out[h] = __byte_perm(__byte_perm(table.w[0], table.w[1], c & 0x7777u), __byte_perm(table.w[2], table.w[3], c & 0x7777u),
                             select);
    }
    low = __byte_perm(out[0], out[1], 0x6420);
    high = __byte_perm(out[0], out[1], 0x7531);
}
__device__ inline table16 iq4_values() { // kernels/cpu/quant_tables.h
    return {{0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u}};
}
__device__ inline table16 fp4_values() { return {{0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu}}; }

__device__ inline void set_scales(span &s, float2 d) {
    s.scale[0][0] = d.x;
    s.scale[1][0] = d.y;
}

// ---- 32-column blocks -----------------------------------------------------------------------------------------------------

struct small_block {
    static constexpr int BLOCK_SPANS = 1, SPANS = 1;
    static constexpr bool SPLIT = false;
};

struct weight_q8_0 : small_block {
    static constexpr enum atsi_dtype DTYPE = ATSI_Q8_0;
    static constexpr int TILE_BYTES = ATSI_TILE_Q8_0_BYTES, MINS = 0;
    struct raw {
        __half2 d;
        uint2 w[2];
    };
    __device__ static void load(raw &r, const uint8_t *block, int, int g, int t) {
        r.d = half_pair(block, g);
        r.w[0] = word_pair(block + ATSI_TILE_Q8_0_QS, t, g);
        r.w[1] = word_pair(block + ATSI_TILE_Q8_0_QS, 4 + t, g);
    }
    __device__ static void unpack(const raw &r, int, span &s) {
        s.a[0] = r.w[0].x ^ 0x80808080u;
        s.a[1] = r.w[0].y ^ 0x80808080u;
        s.a[2] = r.w[1].x ^ 0x80808080u;
        s.a[3] = r.w[1].y ^ 0x80808080u;
        set_scales(s, __half22float2(r.d));
    }
};

struct weight_q4_0 : small_block {
    static constexpr enum atsi_dtype DTYPE = ATSI_Q4_0;
    static constexpr int TILE_BYTES = ATSI_TILE_Q4_0_BYTES, MINS = 0;
    struct raw {
        __half2 d;
        nibble_words q;
    };
    __device__ static void load(raw &r, const uint8_t *block, int, int g, int t) {
        r.d = half_pair(block, g);
        r.q.load(block + ATSI_TILE_Q4_0_QS, g, t);
    }
    __device__ static void unpack(const raw &r, int, span &s) {
        r.q.codes(s.a);
#pragma unroll
        for (int i = 0; i < 4; i++) s.a[i] = bytes_minus(s.a[i], 8);
        set_scales(s, __half22float2(r.d));
    }
};

struct weight_q4_1 : small_block {
    static constexpr enum atsi_dtype DTYPE = ATSI_Q4_1;
    static constexpr int TILE_BYTES = ATSI_TILE_Q4_1_BYTES, MINS = 1;
    struct raw {
        __half2 d, m;
        nibble_words q;
    };
    __device__ static void load(raw &r, const uint8_t *block, int, int g, int t) {
        r.d = half_pair(block, g);
        r.m = half_pair(block + ATSI_TILE_Q4_1_M, g);
        r.q.load(block + ATSI_TILE_Q4_1_QS, g, t);
    }
    __device__ static void unpack(const raw &r, int, span &s) {
        r.q.codes(s.a);
        set_scales(s, __half22float2(r.d));
        float2 m = __half22float2(r.m);
        s.min[0] = -m.x;
        s.min[1] = -m.y;
    }
};

// The fifth bits: plane w of a row's word belongs to columns 4w..4w+3, so to words t (low) and 4 + t (high).
__device__ inline void add_fifth_bits(uint32_t a[4], uint2 planes, int t) {
    a[0] |= bit_as_16(planes.x, t);
    a[1] |= bit_as_16(planes.y, t);
    a[2] |= bit_as_16(planes.x, 4 + t);
    a[3] |= bit_as_16(planes.y, 4 + t);
}

struct weight_q5_0 : small_block {
    static constexpr enum atsi_dtype DTYPE = ATSI_Q5_0;
    static constexpr int TILE_BYTES = ATSI_TILE_Q5_0_BYTES, MINS = 0;
    struct raw {
        __half2 d;
        uint2 planes;
        nibble_words q;
        int t;
    };
    __device__ static void load(raw &r, const uint8_t *block, int, int g, int t) {
        r.d = half_pair(block, g);
        r.planes = word_pair(block + ATSI_TILE_Q5_0_QH, 0, g);
        r.q.load(block + ATSI_TILE_Q5_0_QS, g, t);
        r.t = t;
    }
    __device__ static void unpack(const raw &r, int, span &s) {
        r.q.codes(s.a);
        add_fifth_bits(s.a, r.planes, r.t);
#pragma unroll
        for (int i = 0; i < 4; i++) s.a[i] = bytes_minus(s.a[i], 16);
        set_scales(s, __half22float2(r.d));
    }
};

struct weight_q5_1 : small_block {
    static constexpr enum atsi_dtype DTYPE = ATSI_Q5_1;
    static constexpr int TILE_BYTES = ATSI_TILE_Q5_1_BYTES, MINS = 1;
    struct raw {
        __half2 d, m;
        uint2 planes;
        nibble_words q;
        int t;
    };
    __device__ static void load(raw &r, const uint8_t *block, int, int g, int t) {
        r.d = half_pair(block, g);
        r.m = half_pair(block + ATSI_TILE_Q5_1_M, g);
        r.planes = word_pair(block + ATSI_TILE_Q5_1_QH, 0, g);
        r.q.load(block + ATSI_TILE_Q5_1_QS, g, t);
        r.t = t;
    }
    __device__ static void unpack(const raw &r, int, span &s) {
        r.q.codes(s.a);
        add_fifth_bits(s.a, r.planes, r.t);
        set_scales(s, __half22float2(r.d));
        float2 m = __half22float2(r.m);
        s.min[0] = -m.x;
        s.min[1] = -m.y;
    }
};

__device__ inline void look_up_pair(const table16 &table, uint2 w, uint32_t a[4]) {
    look_up(table, w.x, a[0], a[2]);
    look_up(table, w.y, a[1], a[3]);
}

struct weight_iq4_nl : small_block {
    static constexpr enum atsi_dtype DTYPE = ATSI_IQ4_NL;
    static constexpr int TILE_BYTES = ATSI_TILE_IQ4_NL_BYTES, MINS = 0;
    typedef weight_q4_0::raw raw;
    __device__ static void load(raw &r, const uint8_t *block, int step, int g, int t) { weight_q4_0::load(r, block, step, g, t); }
    __device__ static void unpack(const raw &r, int, span &s) {
        look_up_pair(iq4_values(), r.q.w, s.a);
        set_scales(s, __half22float2(r.d));
    }
};

// 2^(e - 128): below e = 2 a subnormal float.
__device__ inline float mxfp4_scale(uint32_t e) { return __int_as_float(e >= 2 ? (int)(e - 1) << 23 : 0x00200000 << e); }

struct weight_mxfp4 : small_block {
    static constexpr enum atsi_dtype DTYPE = ATSI_MXFP4;
    static constexpr int TILE_BYTES = ATSI_TILE_MXFP4_BYTES, MINS = 0;
    struct raw {
        uint32_t e;
        nibble_words q;
    };
    __device__ static void load(raw &r, const uint8_t *block, int, int g, int t) {
        r.e = byte_pair(block, 0, g);
        r.q.load(block + ATSI_TILE_MXFP4_QS, g, t);
    }
    __device__ static void unpack(const raw &r, int, span &s) {
        look_up_pair(fp4_values(), r.q.w, s.a);
        set_scales(s, make_float2(mxfp4_scale(r.e & 0xff), mxfp4_scale(r.e >> 8)));
    }
};

// ---- 256-column blocks ----------------------------------------------------------------------------------------------------

struct super_block {
    static constexpr int BLOCK_SPANS = 8;
};

// The 6-bit scales and mins of Q4_K and Q5_K, of the spans 2 step and 2 step + 1, both rows at once (a byte each).
struct six_bit_scales {
    __half2 d, dmin;
    uint32_t scale[2], min[2];
    __device__ void load(const uint8_t *block, int step, int g) {
        d = half_pair(block, g);
        dmin = half_pair(block + ATSI_TILE_Q4_K_DMIN, g);
        const uint8_t *packed = block + ATSI_TILE_Q4_K_SCALES;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int k = 2 * step + i;
            if (step < 2) {
                scale[i] = byte_pair(packed, k, g) & 0x3f3fu;
                min[i] = byte_pair(packed, k + 4, g) & 0x3f3fu;
            } else {
                uint32_t low = byte_pair(packed, k + 4, g);
                scale[i] = (low & 0x0f0fu) | (byte_pair(packed, k - 4, g) >> 2 & 0x3030u);
                min[i] = (low >> 4 & 0x0f0fu) | (byte_pair(packed, k, g) >> 2 & 0x3030u);
            }
        }
    }
    __device__ void set(span &s, int i) const {
        float2 unit = __half22float2(d), min_unit = __half22float2(dmin);
        set_scales(s, make_float2(unit.x * (float)(scale[i] & 0xff), unit.y * (float)(scale[i] >> 8)));
        s.min[0] = min_unit.x * (float)(min[i] & 0xff);
        s.min[1] = min_unit.y * (float)(min[i] >> 8);
    }
};

struct weight_q4_k : super_block {
    static constexpr enum atsi_dtype DTYPE = ATSI_Q4_K;
    static constexpr int TILE_BYTES = ATSI_TILE_Q4_K_BYTES, SPANS = 2, MINS = 1;
    static constexpr bool SPLIT = false;
    struct raw {
        six_bit_scales scales;
        uint2 w[2];
    };
    __device__ static void load(raw &r, const uint8_t *block, int step, int g, int t) {
        r.scales.load(block, step, g);
        r.w[0] = word_pair(block + ATSI_TILE_Q4_K_QS, 8 * step + t, g);
        r.w[1] = word_pair(block + ATSI_TILE_Q4_K_QS, 8 * step + 4 + t, g);
    }
    __device__ static void unpack(const raw &r, int i, span &s) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            s.a[2 * h] = r.w[h].x >> 4 * i & 0x0f0f0f0fu;
            s.a[2 * h + 1] = r.w[h].y >> 4 * i & 0x0f0f0f0fu;
        }
        r.scales.set(s, i);
    }
};

struct weight_q5_k : super_block {
    static constexpr enum atsi_dtype DTYPE = ATSI_Q5_K;
    static constexpr int TILE_BYTES = ATSI_TILE_Q5_K_BYTES, SPANS = 2, MINS = 1;
    static constexpr bool SPLIT = false;
    struct raw {
        six_bit_scales scales;
        uint2 w[2], planes[2]; // bits 0 and 1 of a plane byte: the step's two spans
    };
    __device__ static void load(raw &r, const uint8_t *block, int step, int g, int t) {
        r.scales.load(block, step, g);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            r.w[h] = word_pair(block + ATSI_TILE_Q5_K_QS, 8 * step + 4 * h + t, g);
            uint2 p = word_pair(block + ATSI_TILE_Q5_K_QH, 4 * h + t, g);
            r.planes[h] = make_uint2(p.x >> 2 * step, p.y >> 2 * step);
        }
    }
    __device__ static void unpack(const raw &r, int i, span &s) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            s.a[2 * h] = (r.w[h].x >> 4 * i & 0x0f0f0f0fu) | bit_as_16(r.planes[h].x, i);
            s.a[2 * h + 1] = (r.w[h].y >> 4 * i & 0x0f0f0f0fu) | bit_as_16(r.planes[h].y, i);
        }
        r.scales.set(s, i);
    }
};

struct weight_q6_k : super_block {
    static constexpr enum atsi_dtype DTYPE = ATSI_Q6_K;
    static constexpr int TILE_BYTES = ATSI_TILE_Q6_K_BYTES, SPANS = 4, MINS = 0;
    static constexpr bool SPLIT = true;
    struct raw {
        __half2 d;
        uint2 low[4], top[2]; // low[2 j + h]: words of span j (and in the high nibbles of span 2 + j), half h
        uint32_t scales[8];   // one for 16 columns
    };
    __device__ static void load(raw &r, const uint8_t *block, int step, int g, int t) {
        r.d = half_pair(block, g);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            r.low[h] = word_pair(block + ATSI_TILE_Q6_K_QL, 16 * step + 4 * h + t, g);
            r.low[2 + h] = word_pair(block + ATSI_TILE_Q6_K_QL, 16 * step + 8 + 4 * h + t, g);
            r.top[h] = word_pair(block + ATSI_TILE_Q6_K_QH, 8 * step + 4 * h + t, g);
        }
#pragma unroll
        for (int j = 0; j < 8; j++) r.scales[j] = byte_pair(block + ATSI_TILE_Q6_K_SCALES, 8 * step + j, g);
    }
    __device__ static uint32_t code(uint32_t low, uint32_t top, int i) {
        uint32_t q = (low >> 4 * (i / 2) & 0x0f0f0f0fu) | (top >> 2 * i & 0x03030303u) << 4;
        return bytes_minus(q, 32);
    }
    __device__ static void unpack(const raw &r, int i, span &s) {
        float2 d = __half22float2(r.d);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint2 low = r.low[2 * (i % 2) + h];
            s.a[2 * h] = code(low.x, r.top[h].x, i);
            s.a[2 * h + 1] = code(low.y, r.top[h].y, i);
            uint32_t both = r.scales[2 * i + h];
            s.scale[0][h] = d.x * (float)(int8_t)(both & 0xff);
            s.scale[1][h] = d.y * (float)(int8_t)(both >> 8);
        }
    }
};

struct weight_q2_k : super_block {
    static constexpr enum atsi_dtype DTYPE = ATSI_Q2_K;
    static constexpr int TILE_BYTES = ATSI_TILE_Q2_K_BYTES, SPANS = 4, MINS = 2;
    static constexpr bool SPLIT = true;
    struct raw {
        __half2 d, dmin;
        uint2 w[2];
        uint32_t scales[8];
    };
    __device__ static void load(raw &r, const uint8_t *block, int step, int g, int t) {
        r.d = half_pair(block, g);
        r.dmin = half_pair(block + ATSI_TILE_Q2_K_DMIN, g);
#pragma unroll
        for (int h = 0; h < 2; h++) r.w[h] = word_pair(block + ATSI_TILE_Q2_K_QS, 8 * step + 4 * h + t, g);
#pragma unroll
        for (int j = 0; j < 8; j++) r.scales[j] = byte_pair(block + ATSI_TILE_Q2_K_SCALES, 8 * step + j, g);
    }
    __device__ static void unpack(const raw &r, int i, span &s) {
        float2 d = __half22float2(r.d), min_unit = __half22float2(r.dmin);
        s.min[0] = min_unit.x;
        s.min[1] = min_unit.y;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            s.a[2 * h] = r.w[h].x >> 2 * i & 0x03030303u;
            s.a[2 * h + 1] = r.w[h].y >> 2 * i & 0x03030303u;
            uint32_t both = r.scales[2 * i + h];
            s.scale[0][h] = d.x * (float)(both & 15);
            s.scale[1][h] = d.y * (float)(both >> 8 & 15);
            s.min_q[0][h] = (int)(both >> 4 & 15);
            s.min_q[1][h] = (int)(both >> 12);
        }
    }
};

struct weight_q3_k : super_block {
    static constexpr enum atsi_dtype DTYPE = ATSI_Q3_K;
    static constexpr int TILE_BYTES = ATSI_TILE_Q3_K_BYTES, SPANS = 4, MINS = 0;
    static constexpr bool SPLIT = true;
    struct raw {
        __half2 d;
        uint2 w[2], mask[2];
        uint32_t scales[8]; // of 16 columns, still offset by 32
    };
    // Scale k: low nibble is nibble k / 8 of byte k % 8, top bits 2 (k / 4).. of byte 8 + k % 4; this step's are k = 8 step..
    __device__ static void load(raw &r, const uint8_t *block, int step, int g, int t) {
        const uint8_t *packed = block + ATSI_TILE_Q3_K_SCALES;
        r.d = half_pair(block, g);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            r.w[h] = word_pair(block + ATSI_TILE_Q3_K_QS, 8 * step + 4 * h + t, g);
            uint2 m = word_pair(block + ATSI_TILE_Q3_K_HMASK, 4 * h + t, g);
            r.mask[h] = make_uint2(m.x >> 4 * step, m.y >> 4 * step);
        }
#pragma unroll
        for (int j = 0; j < 8; j++) {
            uint32_t low = byte_pair(packed, j, g) >> 4 * step & 0x0f0fu;
            uint32_t top = byte_pair(packed, 8 + j % 4, g) >> (4 * step + 2 * (j / 4)) & 0x0303u;
            r.scales[j] = low | top << 4;
        }
    }
    __device__ static uint32_t code(uint32_t w, uint32_t mask, int i) {
        return bytes_minus((w >> 2 * i & 0x03030303u) | (mask >> i & 0x01010101u) << 2, 4);
    }
    __device__ static void unpack(const raw &r, int i, span &s) {
        float2 d = __half22float2(r.d);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            s.a[2 * h] = code(r.w[h].x, r.mask[h].x, i);
            s.a[2 * h + 1] = code(r.w[h].y, r.mask[h].y, i);
            uint32_t both = r.scales[2 * i + h];
            s.scale[0][h] = d.x * (float)((int)(both & 0xff) - 32);
            s.scale[1][h] = d.y * (float)((int)(both >> 8) - 32);
        }
    }
};

struct weight_iq4_xs : super_block {
    static constexpr enum atsi_dtype DTYPE = ATSI_IQ4_XS;
    static constexpr int TILE_BYTES = ATSI_TILE_IQ4_XS_BYTES, SPANS = 1, MINS = 0;
    static constexpr bool SPLIT = false;
    struct raw {
        __half2 d;
        uint32_t scales; // 6 bits a row, offset by 32
        nibble_words q;
    };
    __device__ static void load(raw &r, const uint8_t *block, int step, int g, int t) {
        r.d = half_pair(block, g);
        uint32_t high = *(const uint32_t *)(block + ATSI_TILE_IQ4_XS_SCALES_H + 4 * g) >> 2 * step & 0x00030003u;
        uint32_t low = byte_pair(block + ATSI_TILE_IQ4_XS_SCALES_L, step / 2, g) >> 4 * (step % 2) & 0x0f0fu;
        r.scales = low | (high & 3) << 4 | (high >> 16) << 12;
        r.q.load(block + ATSI_TILE_IQ4_XS_QS + 64 * 4 * step, g, t);
    }
    __device__ static void unpack(const raw &r, int, span &s) {
        look_up_pair(iq4_values(), r.q.w, s.a);
        float2 d = __half22float2(r.d);
        set_scales(s, make_float2(d.x * (float)((int)(r.scales & 0xff) - 32), d.y * (float)((int)(r.scales >> 8) - 32)));
    }
};

#endif
