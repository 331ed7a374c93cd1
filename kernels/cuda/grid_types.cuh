// grid_types.cuh: the grid types (IQ1, IQ2, IQ3; formats/blocks.h states the formats), one struct a type: what a lane reads of a block and
// how it becomes int8 numbers. A block of 256 weights is 32 octets; lane l of a warp opens octet l.
//
// Codebooks lie in shared memory as 32-bit words, every word up to 32 times (grid_table): a lane reads its own copy, in a bank that it
// shares with few other lanes or none. A grid type G has
//
//   G::DTYPE, G::BYTES            of a block
//   G::SCALES                     of a block: 8 or 16
//   G::ENTRIES, G::SIGNS          words of the codebook; entries of a table of signs behind it, of G::SIGN_WORDS words each
//   G::build(words)               host: fills the ENTRIES + SIGNS * SIGN_WORDS words
//   G::octet                      registers of an octet: load(block, l)
//   G::scale                      registers of scale s of a block: load(block, s), value(s), and where G::HAS_WORD word(): what the octets
//                                 of the scale need of what it read
//   G::lookup                     what a lane keeps: lookup(table, l)
//   G::open(octet, word, lookup, l)   its eight numbers
//   G::bias(octet, word, l)       where G::BIASED: to be added to each of them
#ifndef ATSI_KERNELS_CUDA_GRID_TYPES_CUH
#define ATSI_KERNELS_CUDA_GRID_TYPES_CUH

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/unpack.cuh"

extern "C" {
#include "formats/blocks.h"
#include "kernels/cpu/quant_tables.h"
}

constexpr uint32_t EVERY_BYTE = 0x01010101u;

// A number that the compiler knows nothing about. Else what was loaded as a byte is kept as one and widened for every use, and sums that
// are an address become shifts, masks and sums in another order, two or three instructions for one.
__device__ inline uint32_t held(uint32_t v) {
    asm("" : "+r"(v));
    return v;
}
__device__ inline uint32_t byte(const uint8_t *p) { return held(*p); }
// Blocks start on any even byte.
__device__ inline uint32_t half_word(const uint8_t *p) { return held(*(const uint16_t *)p); }
__device__ inline uint32_t word(const uint8_t *p) { return half_word(p) | half_word(p + 2) << 16; }
__device__ inline float half_value(uint32_t bits) { return __half2float(__ushort_as_half((unsigned short)bits)); }

// Copies of a codebook in shared memory: its word i at byte i << shift, where 1 << (shift - 2) copies follow each other.
struct grid_table {
    const uint8_t *shared;
    int shift;
};
constexpr int FEW = 4; // the shift of 4 copies, for where room is short
// Bytes of a codebook in shared memory.
template <class G, int SHIFT> constexpr uint32_t table_bytes = (uint32_t)(G::ENTRIES + G::SIGNS) << SHIFT;

// words: G::build's. All threads of the block, a multiple of 32, call; a barrier must follow. A warp reads 32 places of the table at a time,
// because a load takes far longer than a store; lanes then store 16 bytes of copies.
template <class G, int SHIFT> __device__ inline void fill_table(uint8_t *shared, const uint32_t *words) {
    constexpr uint32_t N = G::ENTRIES + G::SIGNS, UNITS = 1 << (SHIFT - 4),
                       AT_ONCE = WARP / UNITS; // entries of a store
    static_assert(SHIFT >= 4 && N % WARP == 0 && G::ENTRIES % WARP == 0, "whole warps, whole units");
    uint32_t lane = threadIdx.x % WARP;
    for (uint32_t first = threadIdx.x - lane; first < N; first += blockDim.x) {
        uint32_t i = first + lane;
        bool paired = G::SIGN_WORDS == 2 && i >= G::ENTRIES;
        const uint32_t *from = words + (paired ? 2 * i - G::ENTRIES : i);
        uint32_t even = from[0], odd = paired ? from[1] : even;
#pragma unroll
        for (uint32_t k = 0; k < WARP; k += AT_ONCE) {
            uint32_t entry = k + lane / UNITS, v = __shfl_sync(ALL_LANES, even, entry), w = v;
            if (G::SIGN_WORDS == 2) w = __shfl_sync(ALL_LANES, odd, entry);
            *(uint4 *)(shared + ((first + entry) << SHIFT) + 16 * (lane % UNITS)) = make_uint4(v, w, v, w);
        }
    }
}

// A lane's copies of the words from `first` on.
template <class WORD> struct lane_words {
    uint32_t mine; // address in shared memory
    int shift;
    __device__ lane_words(const grid_table &t, int lane, uint32_t first)
        : mine(held((uint32_t)__cvta_generic_to_shared(t.shared) + (first << t.shift) +
                    (lane * (int)sizeof(WORD) & ((1 << t.shift) - 1)))),
          shift(t.shift) {}
    __device__ uint32_t address(uint32_t i) const { return (held(i) << shift) + mine; }
    __device__ uint32_t operator[](uint32_t i) const {
        uint32_t v;
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address(i)));
        return v;
    }
    __device__ uint2 pair(uint32_t i) const {
        uint2 v;
        asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address(i)));
        return v;
    }
};

// (v << up & mask) | rest, in two instructions; up may be negative.
__device__ inline uint32_t bits_at(uint32_t v, int up, uint32_t mask, uint32_t rest) {
    uint32_t turned, out;
    asm("shf.l.wrap.b32 %0, %1, %1, %2;" : "=r"(turned) : "r"(v), "r"(up)); // by up modulo 32
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(out) : "r"(turned), "r"(mask), "r"(rest));
    return out;
}

// ---- signs --------------------------------------------------------------------------------------------------------------------

// Four magnitudes, all at least 1, negative where the byte of `mask` is 0xff.
__device__ inline uint32_t negated(uint32_t magnitudes, uint32_t mask) {
    return (magnitudes ^ mask) + (mask & EVERY_BYTE);
}
// Eight sign bits as masks of bytes. Copies of the bits 9 places apart do not meet; the bits that are looked for stand at the top of a
// byte each, the first in the highest.
__device__ inline uint2 byte_masks(uint32_t eight) {
    return make_uint2(permute(eight * 0x80402010u, 0, 0x89abu), permute(eight * 0x08040201u, 0, 0x89abu));
}

// ---- IQ2: three magnitudes ------------------------------------------------------------------------------------------------------

// An entry is eight selectors for `permute` over the magnitudes 8, 25, 43 and their negatives: a nibble is a magnitude's number, and
// its sign in bit 2 comes from a word with the signs there.
static inline uint32_t iq2_selectors(uint64_t magnitudes) {
    uint32_t selectors = 0;
    for (int i = 0; i < 8; i++) {
        uint32_t m = (uint32_t)(magnitudes >> 8 * i & 0xff);
        selectors |= (m == 8 ? 0u : m == 25 ? 1u : 2u) << 4 * i;
    }
    return selectors;
}
static inline uint32_t iq2_sign_selectors(uint32_t eight) {
    uint32_t selectors = 0;
    for (int i = 0; i < 8; i++) selectors |= (eight >> i & 1) << (4 * i + 2);
    return selectors;
}
static inline void iq2_build(uint32_t *words, const uint64_t *grid, int n_entries, int n_signs) {
    for (int i = 0; i < n_entries; i++) words[i] = iq2_selectors(grid[i]);
    for (int i = 0; i < n_signs; i++)
        words[n_entries + i] = iq2_sign_selectors(n_signs == 256 ? (uint32_t)i : atsi_even_signs((unsigned)i));
}
constexpr uint32_t IQ2_POSITIVE = 0x002b1908u, IQ2_NEGATIVE = 0x00d5e7f8u;
__device__ inline uint2 iq2_values(uint32_t selectors) {
    return make_uint2(permute(IQ2_POSITIVE, IQ2_NEGATIVE, selectors),
                      permute(IQ2_POSITIVE, IQ2_NEGATIVE, selectors >> 16));
}
__device__ inline float iq2_scale(uint32_t d, uint32_t nibble) {
    return half_value(d) * (0.5f + (float)nibble) * 0.25f;
}

// Scales of four bits, two in a byte from AT on.
template <int AT> struct iq2_nibble_scale {
    uint32_t d, two;
    __device__ void load(const uint8_t *b, int s) {
        d = half_word(b);
        two = byte(b + AT + s / 2);
    }
    __device__ float value(int s) const { return iq2_scale(d, two >> 4 * (s % 2) & 15); }
};

struct unbiased {
    static constexpr bool BIASED = false, HAS_WORD = false;
    static constexpr int SIGN_WORDS = 1, SHIFT_MAX = 7;
};

template <int ENTRIES> struct iq2_lookup {
    lane_words<uint32_t> entry, signs;
    __device__ iq2_lookup(const grid_table &t, int l) : entry(t, l, 0), signs(t, l, ENTRIES) {}
};

struct iq2_xxs : unbiased {
    static constexpr enum atsi_dtype DTYPE = ATSI_IQ2_XXS;
    static constexpr int BYTES = sizeof(struct atsi_block_iq2_xxs), SCALES = 8, ENTRIES = 256, SIGNS = 128;
    static constexpr bool HAS_WORD = true;
    static void build(uint32_t *words) { iq2_build(words, ATSI_IQ2_XXS_GRID, ENTRIES, SIGNS); }
    struct octet {
        uint32_t index;
        __device__ void load(const uint8_t *b, int l) { index = byte(b + 2 + 8 * (l / 4) + l % 4); }
    };
    struct scale {
        uint32_t d, rest; // four codes of signs and the scale
        __device__ void load(const uint8_t *b, int s) {
            d = half_word(b);
            rest = ::word(b + 6 + 8 * s);
        }
        __device__ float value(int) const { return iq2_scale(d, rest >> 28); }
        __device__ uint32_t word() const { return rest; }
    };
    typedef iq2_lookup<ENTRIES> lookup;
    __device__ static uint2 open(const octet &o, uint32_t rest, const lookup &v, int l) {
        return iq2_values(v.entry[o.index] | v.signs[rest >> 7 * (l % 4) & 127]);
    }
};

struct iq2_xs : unbiased {
    static constexpr enum atsi_dtype DTYPE = ATSI_IQ2_XS;
    static constexpr int BYTES = sizeof(struct atsi_block_iq2_xs), SCALES = 16, ENTRIES = 512, SIGNS = 128;
    static void build(uint32_t *words) { iq2_build(words, ATSI_IQ2_XS_GRID, ENTRIES, SIGNS); }
    struct octet {
        uint32_t both; // index and code of the signs
        __device__ void load(const uint8_t *b, int l) { both = half_word(b + 2 + 2 * l); }
    };
    typedef iq2_nibble_scale<66> scale;
    typedef iq2_lookup<ENTRIES> lookup;
    __device__ static uint2 open(const octet &o, uint32_t, const lookup &v, int) {
        return iq2_values(v.entry[o.both & 511] | v.signs[o.both >> 9]);
    }
};

struct iq2_s : unbiased {
    static constexpr enum atsi_dtype DTYPE = ATSI_IQ2_S;
    static constexpr int BYTES = sizeof(struct atsi_block_iq2_s), SCALES = 16, ENTRIES = 1024, SIGNS = 256;
    static void build(uint32_t *words) { iq2_build(words, ATSI_IQ2_S_GRID, ENTRIES, SIGNS); }
    struct octet {
        uint32_t low, top, signs;
        __device__ void load(const uint8_t *b, int l) {
            low = byte(b + 2 + l);
            top = byte(b + 66 + l / 4);
            signs = byte(b + 34 + l);
        }
    };
    typedef iq2_nibble_scale<74> scale;
    typedef iq2_lookup<ENTRIES> lookup;
    __device__ static uint2 open(const octet &o, uint32_t, const lookup &v, int l) {
        return iq2_values(v.entry[bits_at(o.top, 8 - 2 * (l % 4), 0x300, o.low)] | v.signs[o.signs]);
    }
};

// ---- IQ3: an entry is four magnitudes --------------------------------------------------------------------------------------------

struct iq3_xxs : unbiased {
    static constexpr enum atsi_dtype DTYPE = ATSI_IQ3_XXS;
    static constexpr int BYTES = sizeof(struct atsi_block_iq3_xxs), SCALES = 8, ENTRIES = 256, SIGNS = 128,
                         SIGN_WORDS = 2;
    static constexpr bool HAS_WORD = true;
    static void build(uint32_t *words) { // signs as masks of bytes
        for (int i = 0; i < ENTRIES; i++) words[i] = ATSI_IQ3_XXS_GRID[i];
        for (int i = 0; i < 2 * SIGNS; i++) {
            uint32_t four = atsi_even_signs((unsigned)i / 2) >> 4 * (i % 2) & 15;
            words[ENTRIES + i] = 0;
            for (int k = 0; k < 4; k++) words[ENTRIES + i] |= (four >> k & 1) * (0xffu << 8 * k);
        }
    }
    struct octet {
        uint32_t two;
        __device__ void load(const uint8_t *b, int l) { two = half_word(b + 2 + 2 * l); }
    };
    struct scale {
        uint32_t d, rest; // four codes of signs and the scale
        __device__ void load(const uint8_t *b, int s) {
            d = half_word(b);
            rest = ::word(b + 66 + 4 * s);
        }
        __device__ float value(int) const { return half_value(d) * (0.5f + (float)(rest >> 28)) * 0.5f; }
        __device__ uint32_t word() const { return rest; }
    };
    struct lookup {
        lane_words<uint32_t> entry;
        lane_words<uint2> masks;
        __device__ lookup(const grid_table &t, int l) : entry(t, l, 0), masks(t, l, ENTRIES) {}
    };
    __device__ static uint2 open(const octet &o, uint32_t rest, const lookup &v, int l) {
        uint2 masks = v.masks.pair(rest >> 7 * (l % 4) & 127);
        return make_uint2(negated(v.entry[o.two & 255], masks.x), negated(v.entry[o.two >> 8], masks.y));
    }
};

struct iq3_s : unbiased {
    static constexpr enum atsi_dtype DTYPE = ATSI_IQ3_S;
    static constexpr int BYTES = sizeof(struct atsi_block_iq3_s), SCALES = 8, ENTRIES = 512, SIGNS = 0;
    static void build(uint32_t *words) {
        for (int i = 0; i < ENTRIES; i++) words[i] = ATSI_IQ3_S_GRID[i];
    }
    struct octet {
        uint32_t two, top, signs;
        __device__ void load(const uint8_t *b, int l) {
            two = half_word(b + 2 + 2 * l);
            top = byte(b + 66 + l / 4);
            signs = byte(b + 74 + l);
        }
    };
    struct scale {
        uint32_t d, two;
        __device__ void load(const uint8_t *b, int s) {
            d = half_word(b);
            two = byte(b + 106 + s / 2);
        }
        __device__ float value(int s) const { return half_value(d) * (float)(1 + 2 * (two >> 4 * (s % 2) & 15)); }
    };
    struct lookup {
        lane_words<uint32_t> entry;
        __device__ lookup(const grid_table &t, int l) : entry(t, l, 0) {}
    };
    __device__ static uint2 open(const octet &o, uint32_t, const lookup &v, int l) {
        uint2 masks = byte_masks(o.signs);
        uint32_t first = bits_at(o.top, 8 - 2 * (l % 4), 0x100, o.two & 255),
                 second = bits_at(o.top, 7 - 2 * (l % 4), 0x100, o.two >> 8);
        return make_uint2(negated(v.entry[first], masks.x), negated(v.entry[second], masks.y));
    }
};

// ---- IQ1: 8 g + 1 or 8 g - 1, g in {-1, 0, 1} ------------------------------------------------------------------------------------

// An entry's byte holds g + 1 of weight i from bit 3 on, which is 8 (g + 1), and that of weight 4 + i from bit 6 on. What is left, -7 or
// -9, is the same for all eight: the bias.
struct iq1 {
    static constexpr bool BIASED = true;
    static constexpr int ENTRIES = 2048, SIGNS = 0, SIGN_WORDS = 1, SHIFT_MAX = 6;
    static void build(uint32_t *words) {
        for (int i = 0; i < ENTRIES; i++) {
            words[i] = 0;
            for (int k = 0; k < 8; k++) {
                uint32_t g1 = (uint32_t)(ATSI_IQ1_GRID[i] >> 8 * k & 0xff) / 8 - 15; // of 128 + 8 g
                words[i] |= g1 << (8 * (k % 4) + (k < 4 ? 3 : 6));
            }
        }
    }
    struct lookup {
        lane_words<uint32_t> entry;
        __device__ lookup(const grid_table &t, int l) : entry(t, l, 0) {}
    };
    __device__ static uint2 values(uint32_t entry) { return make_uint2(entry & 0x18181818u, entry >> 3 & 0x18181818u); }
};

struct iq1_s : iq1 {
    static constexpr enum atsi_dtype DTYPE = ATSI_IQ1_S;
    static constexpr int BYTES = sizeof(struct atsi_block_iq1_s), SCALES = 8;
    static constexpr bool HAS_WORD = true;
    struct octet {
        uint32_t low;
        __device__ void load(const uint8_t *b, int l) { low = byte(b + 2 + l); }
    };
    struct scale {
        uint32_t d, high;
        __device__ void load(const uint8_t *b, int s) {
            d = half_word(b);
            high = half_word(b + 34 + 2 * s);
        }
        __device__ float value(int) const { return half_value(d) * (float)(2 * (high >> 12 & 7) + 1) * 0.125f; }
        __device__ uint32_t word() const { return high | (high & 0x8000u ? 0xfff70000u : 0xfff90000u); } // the bias
    };
    __device__ static uint2 open(const octet &o, uint32_t high, const lookup &v, int l) {
        return values(v.entry[bits_at(high, 8 - 3 * (l % 4), 0x700, o.low)]);
    }
    __device__ static int bias(const octet &, uint32_t high, int) { return (int)high >> 16; }
};

struct iq1_m : iq1 {
    static constexpr enum atsi_dtype DTYPE = ATSI_IQ1_M;
    static constexpr int BYTES = sizeof(struct atsi_block_iq1_m), SCALES = 16;
    static constexpr bool HAS_WORD = false;
    struct octet {
        uint32_t low, high;
        __device__ void load(const uint8_t *b, int l) {
            low = byte(b + l);
            high = byte(b + 32 + l / 2);
        }
    };
    struct scale {
        uint2 all; // blocks of 56 bytes: rows start at multiples of 8
        __device__ void load(const uint8_t *b, int) { all = *(const uint2 *)(b + 48); }
        __device__ float value(int s) const {
            uint32_t d = (all.x >> 12 & 15) | (all.x >> 24 & 0xf0) | (all.y >> 4 & 0xf00) | (all.y >> 16 & 0xf000);
            uint32_t three = (s < 8 ? all.x : all.y) >> (16 * (s / 4 % 2) + 3 * (s % 4)) & 7;
            return half_value(d) * (float)(2 * three + 1) * 0.125f;
        }
    };
    __device__ static uint2 open(const octet &o, uint32_t, const lookup &v, int l) {
        return values(v.entry[bits_at(o.high, 8 - 4 * (l % 2), 0x700, o.low)]);
    }
    __device__ static int bias(const octet &o, uint32_t, int l) { return -7 - (int)(o.high >> (2 + 4 * (l % 2)) & 2); }
};

static_assert(offsetof(struct atsi_block_iq2_xs, scales) == 66 && offsetof(struct atsi_block_iq2_s, qh) == 66 &&
                  offsetof(struct atsi_block_iq2_s, scales) == 74 && offsetof(struct atsi_block_iq3_s, qh) == 66 &&
                  offsetof(struct atsi_block_iq3_s, signs) == 74 && offsetof(struct atsi_block_iq3_s, scales) == 106 &&
                  offsetof(struct atsi_block_iq1_s, qh) == 34 && offsetof(struct atsi_block_iq1_m, qh) == 32 &&
                  offsetof(struct atsi_block_iq1_m, scales) == 48,
              "places within blocks");

// v[i] summed over LANES neighbours, in their lane i * LANES / N and those behind it. N is a power of two, at most LANES.
template <int LANES, int N> __device__ inline float sums_of_lanes(float (&v)[N]) {
    int lane = threadIdx.x % WARP;
#pragma unroll
    for (int n = N / 2, step = LANES / 2; step > 0; n /= 2, step /= 2) {
        if (n == 0) {
            v[0] += __shfl_xor_sync(ALL_LANES, v[0], step);
            continue;
        }
        bool upper = lane & step;
#pragma unroll
        for (int i = 0; i < n; i++) {
            float give = upper ? v[i] : v[i + n];
            v[i] = (upper ? v[i + n] : v[i]) + __shfl_xor_sync(ALL_LANES, give, step);
        }
    }
    return v[0];
}

#endif
