// grid_spans.cuh: the grid types as a product with one input row reads them (grid_row.cu): a lane opens a span of 32 weights, four octets, at
// a time. All that a span has stands in one lane's registers: a few loads for the four octets, a scale that nobody hands out, one float
// for 32 weights.
//
// Codebooks lie in shared memory in runs of copies, a run of 1 << RUN bytes for a word: with RUN 7 every lane has a copy in a bank of its
// own, with 6 two lanes share one. Where words are found by a byte of the weights, two runs make a line, so that the byte needs no more than to be put
// into its place of the address. A span type S has
//
//   S::grid                       the type of grid_types.cuh: its block and its words
//   S::N_WORDS, S::read(words, i) of the table; word i
//   S::place(i, run)              where the run of word i begins in the table
//   S::SHORT_WARPS                of a block with little work: as many as leave them their registers
//   S::RUN                        the run for which there is room where there is much
//   S::table_bytes(run), S::alignment(run)   of the table; of its address, so that parts of the addresses can be joined without an addition
//   S::FIELDS, S::field(f, s)     pieces of a block that lie at different distances for span s of 8
//   S::load(f)                    registers of a span, from the pieces' addresses
//   S::multiply(in, table, s)     its sum of products, but for the input's scale
#ifndef ATSI_KERNELS_CUDA_GRID_SPANS_CUH
#define ATSI_KERNELS_CUDA_GRID_SPANS_CUH

#include "kernels/cuda/grid_types.cuh"
#include "kernels/cuda/mma.cuh"

// A span of the input row.
struct span_input {
    uint32_t x[8];
    float d;
    int sum[2];       // of the codes of its halves
    int less_pair[2]; // of its octets, two of a half in 16 bits each, their sums with the other sign
};

// v's bits from `from` on as bits `to`.. of a word that has no others. All but v are constants.
__device__ inline uint32_t moved(uint32_t v, int from, int to, int n_bits) {
    return (from < to ? v << (to - from) : v >> (from - to)) & ((1u << n_bits) - 1) << to;
}

// v's n_bits from `from` on, `to` places and more up, added to `more`: a mask and a shifted addition. As one expression it would be three.
__device__ inline uint32_t added(uint32_t more, uint32_t v, int from, int to, int n_bits) {
    return more + (held(v & ((1u << n_bits) - 1) << from) << (to - from));
}

// A lane's copies of a codebook.
template <int RUN> struct span_table {
    static constexpr int LINE = RUN + 1;
    uint32_t mine;     // address in shared memory of the lane's copy in the first run
    uint32_t positive; // magnitudes of IQ2
    // zero: 0 that the compiler cannot know, or it would load the constant anew for every use.
    __device__ span_table(uint32_t address, int lane, uint32_t zero)
        : mine(held(address | (4 * lane & ((1 << RUN) - 1)))), positive(IQ2_POSITIVE | zero) {}
    // The word at an address that `mine` is part of.
    template <int OFFSET = 0> __device__ uint32_t word(uint32_t address) const {
        uint32_t v;
        asm volatile("ld.shared.u32 %0, [%1 + %2];" : "=r"(v) : "r"(address), "n"(OFFSET));
        return v;
    }
    // In the line that byte k of v names.
    __device__ uint32_t in_line(uint32_t v, int k) const {
        if (LINE == 8) return permute(v, mine, 0x7604u | (uint32_t)k << 4);
        return moved(v, 8 * k, LINE, 8) | mine;
    }
    __device__ uint2 iq2_values(uint32_t selectors) const {
        return make_uint2(permute(positive, IQ2_NEGATIVE, selectors), permute(positive, IQ2_NEGATIVE, selectors >> 16));
    }
};

// What no kernel writes. Pointers to it have gone through address arithmetic that hides which memory they are to.
template <class T> __device__ inline T constant(const uint8_t *p) { return __ldg((const T *)p); }
__device__ inline uint32_t constant_byte(const uint8_t *p) { return held(constant<uint8_t>(p)); }
__device__ inline uint32_t constant_half_word(const uint8_t *p) { return held(constant<uint16_t>(p)); }

// N words from an even address.
template <int N> struct even_words {
    uint32_t w[N], last,
        turn; // words from the address or two bytes before it; the last two bytes; how many bits too early
    __device__ void load(const uint8_t *p) {
        const uint8_t *from = (const uint8_t *)((uintptr_t)p & ~(uintptr_t)3);
#pragma unroll
        for (int i = 0; i < N; i++) w[i] = constant<uint32_t>(from + 4 * i);
        last = constant_half_word(p + 4 * N - 2);
        turn = (uint32_t)(uintptr_t)p << 3;
    }
    __device__ uint32_t word(int i) const { return __funnelshift_r(w[i], i + 1 < N ? w[i + 1] : last, turn); }
};

__device__ inline int dot8(uint2 q, const span_input &in, int octet, int sum) {
    return __dp4a((int)q.y, (int)in.x[2 * octet + 1], __dp4a((int)q.x, (int)in.x[2 * octet], sum));
}

// A table of 256 lines, by bits 0..7 of the index: of an entry and of signs, or of two entries.
struct line_table {
    __host__ __device__ static constexpr uint32_t table_bytes(int run) { return 512u << run; }
    __host__ __device__ static constexpr uint32_t alignment(int run) { return 512u << run; }
    __device__ static uint32_t place(uint32_t i, int run) { return ((i & 255) << 1 | i >> 8) << run; }
};

// ---- IQ2 ------------------------------------------------------------------------------------------------------------------------

struct iq2_xxs_span : line_table {
    typedef iq2_xxs grid;
    static constexpr int SHORT_WARPS = 24;
    static constexpr int RUN = 7, N_WORDS = 256 + 128, FIELDS = 2;
    __device__ static uint32_t read(const uint32_t *words, uint32_t i) { return words[i]; }
    __device__ static uint32_t field(int f, uint32_t s) { return f == 0 ? 2 + 8 * s : 0; }

    even_words<2> q; // four indices; four codes of signs and the scale
    uint32_t d;
    __device__ void load(const uint8_t *const (&f)[FIELDS]) {
        q.load(f[0]);
        d = constant_half_word(f[1]);
    }
    template <int R> __device__ float multiply(const span_input &in, const span_table<R> &table, uint32_t) const {
        uint32_t index = q.word(0), rest = q.word(1);
        int sum = SUM_ZERO;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            uint32_t signs = moved(rest, 7 * k, R + 1, 7) | table.mine;
            sum = dot8(table.iq2_values(table.word(table.in_line(index, k)) | table.template word<1 << R>(signs)), in,
                       k, sum);
        }
        return sum_value(sum) * iq2_scale(d, rest >> 28);
    }
};

// What IQ2_XS and IQ2_S share: two scales, nibbles of a byte.
__device__ inline float iq2_two_scales(const int sum[2], uint32_t d, uint32_t two) {
    return fmaf(sum_value(sum[0]), iq2_scale(d, two & 15), sum_value(sum[1]) * iq2_scale(d, two >> 4));
}

struct iq2_xs_span {
    typedef iq2_xs grid;
    static constexpr int SHORT_WARPS = 24;
    static constexpr int RUN = 7, N_WORDS = 512 + 128, FIELDS = 3;
    __host__ __device__ static constexpr uint32_t table_bytes(int run) { return (uint32_t)N_WORDS << run; }
    __host__ __device__ static constexpr uint32_t alignment(int run) { return 512u << run; }
    __device__ static uint32_t place(uint32_t i, int run) { return i << run; }
    __device__ static uint32_t read(const uint32_t *words, uint32_t i) { return words[i]; }
    __device__ static uint32_t field(int f, uint32_t s) { return f == 0 ? 2 + 8 * s : f == 1 ? 66 + s : 0; }

    even_words<2> q; // four indices of 9 bits with codes of signs
    uint32_t two, d;
    __device__ void load(const uint8_t *const (&f)[FIELDS]) {
        q.load(f[0]);
        two = constant_byte(f[1]);
        d = constant_half_word(f[2]);
    }
    template <int R> __device__ float multiply(const span_input &in, const span_table<R> &table, uint32_t) const {
        int sum[2] = {SUM_ZERO, SUM_ZERO};
#pragma unroll
        for (int k = 0; k < 4; k++) {
            uint32_t w = q.word(k / 2), entry = moved(w, k % 2 * 16, R, 9) | table.mine,
                     signs = moved(w, k % 2 * 16 + 9, R, 7) | table.mine;
            uint32_t selectors = table.word(entry) | table.template word<512 << R>(signs);
            sum[k / 2] = dot8(table.iq2_values(selectors), in, k, sum[k / 2]);
        }
        return iq2_two_scales(sum, d, two);
    }
};

struct iq2_s_span {
    typedef iq2_s grid;
    static constexpr int SHORT_WARPS = 24;
    static constexpr int RUN = 7, N_WORDS = 1024 + 256, FIELDS = 3;
    __host__ __device__ static constexpr uint32_t table_bytes(int run) { return (uint32_t)N_WORDS << run; }
    __host__ __device__ static constexpr uint32_t alignment(int run) { return 512u << run; }
    // Entries: bits 0..7 of the index name the line, bit 8 the run in it, bit 9 the half of the lines.
    __device__ static uint32_t place(uint32_t i, int run) {
        uint32_t line = (i & 255) | (i >> 1 & 256);
        return (i < 1024 ? line << 1 | (i >> 8 & 1) : i) << run;
    }
    __device__ static uint32_t read(const uint32_t *words, uint32_t i) { return words[i]; }
    __device__ static uint32_t field(int f, uint32_t s) { return f == 0 ? 2 + 4 * s : f == 1 ? 66 + s : 0; }

    even_words<1> low, signs;
    uint32_t top, two, d;
    __device__ void load(const uint8_t *const (&f)[FIELDS]) {
        low.load(f[0]);
        signs.load(f[0] + 32);
        top = constant_byte(f[1]);
        two = constant_byte(f[1] + 8);
        d = constant_half_word(f[2]);
    }
    template <int R> __device__ float multiply(const span_input &in, const span_table<R> &table, uint32_t) const {
        uint32_t index = low.word(0), sign_bytes = signs.word(0);
        int sum[2] = {SUM_ZERO, SUM_ZERO};
#pragma unroll
        for (int k = 0; k < 4; k++) {
            uint32_t entry = added(table.in_line(index, k) | moved(top, 2 * k, R, 1), top, 2 * k + 1, R + 9, 1);
            uint32_t code = moved(sign_bytes, 8 * k, R, 8) | table.mine;
            uint32_t selectors = table.word(entry) | table.template word<1024 << R>(code);
            sum[k / 2] = dot8(table.iq2_values(selectors), in, k, sum[k / 2]);
        }
        return iq2_two_scales(sum, d, two);
    }
};

// ---- IQ3 ------------------------------------------------------------------------------------------------------------------------

// Sums of four magnitudes a word with signs, which `mask` has as bytes 0xff: turned bits are what is wanted less 1, and the masks' own sum, each
// -1, is that 1 too much. Dot products have room where logic has none.
struct signed_sum {
    int turned, masks;
    __device__ signed_sum() : turned(SUM_ZERO), masks(0) {}
    __device__ void add(uint32_t magnitudes, uint32_t mask, uint32_t x) {
        turned = __dp4a((int)(magnitudes ^ mask), (int)x, turned);
        masks = __dp4a((int)mask, (int)x, masks);
    }
    __device__ float value() const { return sum_value(turned - masks); }
};

struct iq3_xxs_span : line_table {
    typedef iq3_xxs grid;
    static constexpr int SHORT_WARPS = 16;
    static constexpr int RUN = 7, N_WORDS = 256 + 128, FIELDS = 3;
    // Signs 0..3 at the top of the bytes, 4..7 one bit lower.
    __device__ static uint32_t read(const uint32_t *words, uint32_t i) {
        if (i < 256) return words[i];
        return (words[2 * i - 256] & 0x80808080u) | (words[2 * i - 255] & 0x40404040u);
    }
    __device__ static uint32_t field(int f, uint32_t s) { return f == 0 ? 2 + 8 * s : f == 1 ? 66 + 4 * s : 0; }

    even_words<2> q;
    even_words<1> rest; // four codes of signs and the scale
    uint32_t d;
    __device__ void load(const uint8_t *const (&f)[FIELDS]) {
        q.load(f[0]);
        rest.load(f[1]);
        d = constant_half_word(f[2]);
    }
    template <int R> __device__ float multiply(const span_input &in, const span_table<R> &table, uint32_t) const {
        uint32_t codes = rest.word(0);
        signed_sum sum;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            uint32_t w = q.word(k / 2), at = moved(codes, 7 * k, R + 1, 7) | table.mine;
            uint32_t signs = table.template word<1 << R>(at);
            sum.add(table.word(table.in_line(w, k % 2 * 2)), permute(signs, 0, 0xba98u), in.x[2 * k]);
            sum.add(table.word(table.in_line(w, k % 2 * 2 + 1)), permute(signs << 1, 0, 0xba98u), in.x[2 * k + 1]);
        }
        return sum.value() * (half_value(d) * (0.5f + (float)(codes >> 28)) * 0.5f);
    }
};

struct iq3_s_span : line_table {
    typedef iq3_s grid;
    static constexpr int SHORT_WARPS = 16;
    static constexpr int RUN = 7, N_WORDS = 512, FIELDS = 5;
    __device__ static uint32_t read(const uint32_t *words, uint32_t i) { return words[i]; }
    __device__ static uint32_t field(int f, uint32_t s) {
        return f == 0 ? 2 + 8 * s : f == 1 ? 74 + 4 * s : f == 2 ? 66 + s : f == 3 ? 106 + s / 2 : 0;
    }

    even_words<2> q;
    even_words<1> signs;
    uint32_t top, two, d;
    __device__ void load(const uint8_t *const (&f)[FIELDS]) {
        q.load(f[0]);
        signs.load(f[1]);
        top = constant_byte(f[2]);
        two = constant_byte(f[3]);
        d = constant_half_word(f[4]);
    }
    template <int R> __device__ float multiply(const span_input &in, const span_table<R> &table, uint32_t s) const {
        uint32_t sign_bytes = signs.word(0);
        signed_sum sum;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            uint32_t w = q.word(k / 2);
            uint2 masks = byte_masks(permute(sign_bytes, 0, 0x4440u + k));
            uint32_t first = table.in_line(w, k % 2 * 2) | moved(top, 2 * k, R, 1),
                     second = table.in_line(w, k % 2 * 2 + 1) | moved(top, 2 * k + 1, R, 1);
            sum.add(table.word(first), masks.x, in.x[2 * k]);
            sum.add(table.word(second), masks.y, in.x[2 * k + 1]);
        }
        return sum.value() * (half_value(d) * (float)(1 + 2 * (two >> 4 * (s % 2) & 15)));
    }
};

// ---- IQ1 ------------------------------------------------------------------------------------------------------------------------

// Sums of entries as iq1 builds them: 8 (g + 1) of the first four weights, 64 (g + 1) of the others, which are unsigned.
struct iq1_sum {
    int first, others;
    __device__ iq1_sum(int start) : first(SUM_ZERO + start), others(SUM_ZERO) {}
    __device__ void add(uint32_t entry, uint32_t x0, uint32_t x1) {
        first = __dp4a((int)(entry & 0x18181818u), (int)x0, first);
        asm("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(others) : "r"(entry & 0xc0c0c0c0u), "r"(x1));
    }
    __device__ float value() const { return fmaf(sum_value(others), 0.125f, sum_value(first)); }
};

struct iq1_s_span {
    typedef iq1_s grid;
    static constexpr int SHORT_WARPS = 24;
    static constexpr int RUN = 6, N_WORDS = 2048, FIELDS = 3;
    __host__ __device__ static constexpr uint32_t table_bytes(int run) { return (uint32_t)N_WORDS << run; }
    __host__ __device__ static constexpr uint32_t alignment(int run) { return 256u << run; }
    __device__ static uint32_t place(uint32_t i, int run) { return i << run; }
    __device__ static uint32_t read(const uint32_t *words, uint32_t i) { return words[i]; }
    __device__ static uint32_t field(int f, uint32_t s) { return f == 0 ? 2 + 4 * s : f == 1 ? 34 + 2 * s : 0; }

    even_words<1> low;
    uint32_t high, d;
    __device__ void load(const uint8_t *const (&f)[FIELDS]) {
        low.load(f[0]);
        high = constant_half_word(f[1]);
        d = constant_half_word(f[2]);
    }
    template <int R> __device__ float multiply(const span_input &in, const span_table<R> &table, uint32_t) const {
        uint32_t index = low.word(0);
        iq1_sum sum((high & 0x8000u ? -9 : -7) * (in.sum[0] + in.sum[1]));
#pragma unroll
        for (int k = 0; k < 4; k++) {
            uint32_t entry = added(moved(index, 8 * k, R, 8) | table.mine, high, 3 * k, R + 8, 3);
            sum.add(table.word(entry), in.x[2 * k], in.x[2 * k + 1]);
        }
        return sum.value() * (half_value(d) * (float)(2 * (high >> 12 & 7) + 1) * 0.125f);
    }
};

struct iq1_m_span {
    typedef iq1_m grid;
    static constexpr int SHORT_WARPS = 24;
    static constexpr int RUN = 6, N_WORDS = 2048, FIELDS = 3;
    __host__ __device__ static constexpr uint32_t table_bytes(int run) { return (uint32_t)N_WORDS << run; }
    __host__ __device__ static constexpr uint32_t alignment(int run) { return 256u << run; }
    __device__ static uint32_t place(uint32_t i, int run) { return i << run; }
    __device__ static uint32_t read(const uint32_t *words, uint32_t i) { return words[i]; }
    __device__ static uint32_t field(int f, uint32_t s) { return f == 0 ? 4 * s : f == 1 ? 32 + 2 * s : 48; }

    uint32_t low, high;
    uint2 all;                                                // scales
    __device__ void load(const uint8_t *const (&f)[FIELDS]) { // blocks of 56 bytes: rows start at multiples of 8
        low = constant<uint32_t>(f[0]);
        high = constant_half_word(f[1]);
        all = constant<uint2>(f[2]);
    }
    template <int R> __device__ float multiply(const span_input &in, const span_table<R> &table, uint32_t s) const {
        // Octets whose shift is -9 and not -7, twice, in the order 0, 2, 1, 3.
        uint32_t turned = (high >> 2 & 0x0202u) | (high << 10 & 0x02020000u);
        float value[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            iq1_sum sum(__dp2a_lo(in.less_pair[h], (int)permute(turned, 0, h ? 0x4431u : 0x4420u), -7 * in.sum[h]));
#pragma unroll
            for (int k = 2 * h; k < 2 * h + 2; k++) {
                uint32_t entry = added(moved(low, 8 * k, R, 8) | table.mine, high, 4 * k, R + 8, 3);
                sum.add(table.word(entry), in.x[2 * k], in.x[2 * k + 1]);
            }
            value[h] = sum.value();
        }
        uint32_t three = (s < 4 ? all.x : all.y) >> (16 * (s / 2 % 2) + 6 * (s % 2));
        return half_value(unit_bits()) * 0.125f *
               fmaf(value[0], (float)(2 * (three & 7) + 1), value[1] * (float)(2 * (three >> 3 & 7) + 1));
    }
    // The half float in the top nibbles of the four words.
    __device__ uint32_t unit_bits() const {
        uint32_t tops = permute(all.x, all.y, 0x7531u); // two bytes of two nibbles each make a byte
        uint32_t bytes = (tops >> 4 & 0x000f000fu) | (tops >> 8 & 0x00f000f0u);
        return permute(bytes, 0, 0x4420u);
    }
};

#endif
