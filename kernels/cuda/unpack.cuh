// unpack.cuh: quantised weights in TILE16 (kernels/layout.h) as tensor-core fragments, one struct a type (Q2_K and Q3_K: unpack_k23.cuh).
//
// Lane 4g + t of a warp owns rows 2g and 2g + 1 of a tile (adjacent in memory, so one 8-byte load brings a word of both) and in
// every span of 32 columns the words of columns 4t..4t+3 and 16+4t..16+4t+3. Any order of rows and columns is fine for the matrix
// instruction as long as inputs and results follow it. A weight type W has
//
//   W::DTYPE, W::TILE_BYTES, W::BLOCK_SPANS   spans of 32 columns in a block of the layout
//   W::STEP_SPANS                             consecutive spans that share words: a step; steps do not cross blocks
//   W::SCALES, W::MINS                        scales (1 or 2) and mins (0, 1 or 2) of a row in a span
//   W::offset(i)                              what is added to the codes of the i-th span of a step, so that none is negative
//   W::UNSIGNED                               codes are bytes up to 255, not int8
//   W::words                                  registers of one step's words
//     load(block, step, g, t)                 step: within the block
//     codes(i, a)                             the i-th span of the step (i a constant after unrolling): codes plus offset(i), rows 2g
//                                             and 2g + 1 of columns 4t.., then of columns 16+4t..
//     halves(i, table, a, b)                  where W::HALVES: two operands whose sum is codes(i), cheaper than their sum, from
//                                             W::table(0, whether a register is to spare); the lane's columns in the order 4t, 16+4t, 4t+1, 16+4t+1 and 4t+2, 16+4t+2, 4t+3, 16+4t+3
//   W::packed_scales                          registers of one span's scales of rows 2g and 2g + 1
//     load(block, span, g)                    span: within the block
//     unpack(s)
//   W::WHOLE                                  the type has what follows, for a lane that has a use for each of its scales: whole numbers as
//                                             far as they go are cheaper than unpack(s) and what goes with it
//   packed_scales::add(y, sums, input)        y[row] += the span's products, from its sums[half][row], which began at 0 and have the offset
//                                             in them, and the input's record
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

// What most types share.
struct plain_codes {
    __host__ __device__ static constexpr int offset(int) { return 0; }
    static constexpr bool UNSIGNED = false, HALVES = false, WHOLE = false;
    struct no_table {};
    __device__ static no_table table(uint32_t, bool) { return {}; }
    // Of types that do not stand in TILE16 (grid_matrix.cuh).
    static constexpr bool UNPACKED = false;
    static constexpr int CODEBOOK_BYTES = 0;
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
        a[0] |= planes.x << 4 & 0x10101010u;
        a[1] |= planes.y << 4 & 0x10101010u;
        a[2] |= planes.x & 0x10101010u;
        a[3] |= planes.y & 0x10101010u;
    }
};

// Codes without their offset. No borrow crosses a byte: bit 7 is set first and flipped back.
template <class W> __device__ inline void signed_codes(const typename W::words &words, int i, uint32_t a[4]) {
    words.codes(i, a);
    if constexpr (W::offset(0) != 0) {
#pragma unroll
        for (int k = 0; k < 4; k++) a[k] = ((a[k] | 0x80808080u) - W::offset(i) * 0x01010101u) ^ 0x80808080u;
    }
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

// prmt as the hardware has it: bit 3 of a selector's nibble asks for the selected byte's sign, eight times.
__device__ inline uint32_t permute(uint32_t low, uint32_t high, uint32_t selector) {
    uint32_t out;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(out) : "r"(low), "r"(high), "r"(selector));
    return out;
}
// The same tables as sums of two that an instruction each looks up: codes below 8 find their value in the first and signs of
// entries in the second, the other codes the reverse; the values are chosen so that these signs, 0 or -1, cancel out. The second is
// looked up by the codes' complement (15 - code), so it stands in reverse.
struct split_table {
    uint32_t low[2], high[2], ones;
};
// zero: 0 that the compiler cannot know, or it would load the words anew for every look-up. spare: there is a register for `ones`.
__device__ inline split_table iq4_split(uint32_t zero, bool spare) {
    return {{0xbfad9881u | zero, 0xf6eaddcfu | zero}, {0x36465a72u | zero, 0x020e1a27u | zero}, spare ? zero - 1 : ~0u};
}
__device__ inline split_table fp4_split(uint32_t zero, bool spare) {
    return {{0x04030200u | zero, 0x0d090705u | zero}, {0xfcfaf8f4u | zero, 0x00fffefdu | zero}, spare ? zero - 1 : ~0u};
}

// ~w as -w - 1: a multiply-add goes to another pipe than logic, whose own is full. Of known ones the compiler makes logic again.
__device__ inline uint32_t complement(uint32_t w, uint32_t ones) {
    uint32_t out;
    asm("mad.lo.u32 %0, %1, %2, %2;" : "=r"(out) : "r"(w), "r"(ones));
    return out;
}

// Nibbles in their own order: operands 0 and 1 those of the words' low halves, 2 and 3 of the high halves.
__device__ inline void look_up_halves(const split_table &table, uint2 w, uint32_t a[4], uint32_t b[4]) {
    const uint32_t codes[4] = {w.x, w.y, w.x >> 16, w.y >> 16};
#pragma unroll
    for (int k = 0; k < 4; k++) {
        a[k] = permute(table.low[0], table.low[1], codes[k]);
        b[k] = permute(table.high[0], table.high[1], complement(codes[k], table.ones));
    }
}

// 2^23 + a field of a packed word, as a float put together from bits. The field counts from where it stands: in a word's second byte
// 256 times.
constexpr float FIELD_32 = 8388608.0f + 32, FIELD_32_SECOND = 8388608.0f + 32 * 256; // of a field that holds 32
__device__ inline float field_of(uint32_t word, uint32_t mask) {
    uint32_t bits;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(bits) : "r"(word), "r"(mask), "r"(0x4b000000u)); // word & mask | 2^23
    return __uint_as_float(bits);
}
// Fields times a unit: a multiply-add takes 2^23 units off again, exact but for one rounding, because units are half floats times a power
// of two.
struct field_unit {
    float unit, shift;
    __device__ field_unit(float unit) : unit(unit), shift(-8388608.0f * unit) {}
    __device__ float times(uint32_t word, uint32_t mask) const { return fmaf(field_of(word, mask), unit, shift); }
};

// ---- 32-column blocks -----------------------------------------------------------------------------------------------------

// One half-float scale a row at the block's start.
struct scale_only : plain_codes {
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
struct scale_and_offset : plain_codes {
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
    __host__ __device__ static constexpr int offset(int) { return 8; }
    struct words {
        nibble_words q;
        __device__ void load(const uint8_t *block, int, int g, int t) { q.load(block + ATSI_TILE_Q4_0_QS, g, t); }
        __device__ void codes(int, uint32_t a[4]) const { q.codes(a); }
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
    __host__ __device__ static constexpr int offset(int) { return 16; }
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
    static constexpr bool HALVES = true;
    __device__ static split_table table(uint32_t zero, bool spare) { return iq4_split(zero, spare); }
    struct words {
        nibble_words q;
        __device__ void load(const uint8_t *block, int, int g, int t) { q.load(block + ATSI_TILE_IQ4_NL_QS, g, t); }
        __device__ void codes(int, uint32_t a[4]) const { look_up_pair(iq4_values(), q.w, a); }
        __device__ void halves(int, const split_table &table, uint32_t a[4], uint32_t b[4]) const {
            look_up_halves(table, q.w, a, b);
        }
    };
};

// 2^(e - 128) of an exponent where a float has it: half of 2^(e - 127), which for e = 0 is a subnormal number. From 2^104 on results are not
// finite (scale_shift).
__device__ inline float mxfp4_scale(uint32_t exponent) { return 0.5f * __int_as_float(max((int)exponent, 0x00400000)); }

struct weight_mxfp4 : plain_codes {
    static constexpr enum atsi_dtype DTYPE = ATSI_MXFP4;
    static constexpr int TILE_BYTES = ATSI_TILE_MXFP4_BYTES, BLOCK_SPANS = 1, STEP_SPANS = 1, SCALES = 1, MINS = 0;
    static constexpr bool HALVES = true;
    __device__ static split_table table(uint32_t zero, bool spare) { return fp4_split(zero, spare); }
    struct words {
        nibble_words q;
        __device__ void load(const uint8_t *block, int, int g, int t) { q.load(block + ATSI_TILE_MXFP4_QS, g, t); }
        __device__ void codes(int, uint32_t a[4]) const { look_up_pair(fp4_values(), q.w, a); }
        __device__ void halves(int, const split_table &table, uint32_t a[4], uint32_t b[4]) const {
            look_up_halves(table, q.w, a, b);
        }
    };
    struct packed_scales {
        uint32_t e;
        __device__ void load(const uint8_t *block, int, int g) { e = byte_pair(block, 0, g); }
        __device__ void unpack(span_scales &s) const {
            s.scale[0][0] = mxfp4_scale(e << 23 & 0x7f800000);
            s.scale[1][0] = mxfp4_scale(e << 15 & 0x7f800000);
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
        s.scale[0][0] = field_unit(unit.x).times(scale, 0xff);
        s.scale[1][0] = field_unit(unit.y * 0x1p-8f).times(scale, 0xff00);
        s.min[0][0] = field_unit(min_unit.x).times(min, 0xff);
        s.min[1][0] = field_unit(min_unit.y * 0x1p-8f).times(min, 0xff00);
    }
};
static_assert(ATSI_TILE_Q4_K_DMIN == ATSI_TILE_Q5_K_DMIN && ATSI_TILE_Q4_K_SCALES == ATSI_TILE_Q5_K_SCALES,
              "one scale format");

struct weight_q4_k : plain_codes {
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

struct weight_q5_k : plain_codes {
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
                a[2 * h] = (w[h].x >> 4 * i & 0x0f0f0f0fu) | (planes[h].x << (4 - i) & 0x10101010u);
                a[2 * h + 1] = (w[h].y >> 4 * i & 0x0f0f0f0fu) | (planes[h].y << (4 - i) & 0x10101010u);
            }
        }
    };
};

struct weight_q6_k : plain_codes {
    static constexpr enum atsi_dtype DTYPE = ATSI_Q6_K;
    static constexpr int TILE_BYTES = ATSI_TILE_Q6_K_BYTES, BLOCK_SPANS = 8, STEP_SPANS = 4, SCALES = 2, MINS = 0;
    __host__ __device__ static constexpr int offset(int) { return 32; }
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
            return (low >> 4 * (i / 2) & 0x0f0f0f0fu) | (shifted & 0x30303030u);
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

struct weight_iq4_xs : plain_codes {
    static constexpr enum atsi_dtype DTYPE = ATSI_IQ4_XS;
    static constexpr int TILE_BYTES = ATSI_TILE_IQ4_XS_BYTES, BLOCK_SPANS = 8, STEP_SPANS = 1, SCALES = 1, MINS = 0;
    static constexpr bool HALVES = true;
    __device__ static split_table table(uint32_t zero, bool spare) { return iq4_split(zero, spare); }
    struct words {
        nibble_words q;
        __device__ void load(const uint8_t *block, int step, int g, int t) {
            q.load(block + ATSI_TILE_IQ4_XS_QS + 64 * 4 * step, g, t);
        }
        __device__ void codes(int, uint32_t a[4]) const { look_up_pair(iq4_values(), q.w, a); }
        __device__ void halves(int, const split_table &table, uint32_t a[4], uint32_t b[4]) const {
            look_up_halves(table, q.w, a, b);
        }
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
            uint32_t both = (low & 0x0f0f) | (high << 4 & 0x30) | (high >> 4 & 0x3000);
            s.scale[0][0] = unit.x * (field_of(both, 0xff) - FIELD_32);
            s.scale[1][0] = unit.y * 0x1p-8f * (field_of(both, 0xff00) - FIELD_32_SECOND);
        }
    };
};

#endif
