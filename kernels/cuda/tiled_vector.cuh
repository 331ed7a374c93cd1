// tiled_vector.cuh: tiled weights times up to 8 input rows.
//
// The matrix instruction has 8 columns. With fewer input rows the columns that are left take further spans: column n stands
// for input row n / SHARE and span n % SHARE of a set of SHARE = 8 / N_IN spans, and the instruction for span s of the set
// gets zeros in all columns but those of span s. So its sums come out apart, every lane has its own to scale, and a group of 8
// spans is scaled N_IN times instead of 8 times.
//
// Weights stream through shared memory, every warp with a ring of its own: copies of whole groups, 16 bytes a lane, run a few
// groups ahead across the tiles that the block computes one after the other. So reads are whole cache lines from wherever the
// weights lie (the card's memory or the host's, mapped), and take no registers.
#ifndef ATSI_KERNELS_CUDA_TILED_VECTOR_CUH
#define ATSI_KERNELS_CUDA_TILED_VECTOR_CUH

#include "kernels/cuda/tiled_common.cuh"

constexpr int GROUP_SPANS = 8, VECTOR_WARPS_MAX = 16;

// Groups in a warp's ring: two where copies run beside the computation.
static inline int vector_stages(int capability) { return capability >= 80 ? 2 : 1; }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr int VECTOR_STAGES = 1;
#else
constexpr int VECTOR_STAGES = 2; // on the device
#endif

// Bytes of 8 spans of a tile.
template <class W> constexpr int GROUP_BYTES = W::TILE_BYTES *(GROUP_SPANS / W::BLOCK_SPANS);

// Tiles are numbered through all parts. The tile's part; `tile` becomes its number there.
__device__ inline const tiled_part &part_of(const tiled_args &a, uint32_t &tile) {
    int p = 0;
    for (uint32_t n; p + 1 < a.n_parts && tile >= (n = (a.parts[p].n_out + ATSI_TILE_ROWS - 1) / ATSI_TILE_ROWS); p++)
        tile -= n;
    return a.parts[p];
}
static inline uint32_t n_tiles_of(const tiled_args &a) {
    uint32_t n = 0;
    for (int p = 0; p < a.n_parts; p++) n += ceil_div(a.parts[p].n_out, ATSI_TILE_ROWS);
    return n;
}

// An expert and its slot (experts.h) in one register: there is no other to spare. Dense products: 0 and none.
struct expert_place {
    uint32_t packed;
    __device__ expert_place() : packed(0) {}
    __device__ expert_place(const expert_args &e, int expert) {
        packed = (uint32_t)expert | (uint32_t)(slot_of(e, expert) + 1) << 16;
        asm("" : "+r"(packed)); // or the compiler would keep the two apart
    }
    __device__ int expert() const { return packed & 0xffff; }
    __device__ int slot() const { return (int)(packed >> 16) - 1; }
};
static_assert(EXPERTS_CAP < 1 << 15, "16 bits hold an expert, and a slot");

// The input row of a block with experts (y: slot, z: token): one a pair, or one a token; of a dense one: 0. No division: with a pair in y
// one stood between a router's choice and the first load.
__device__ inline uint32_t in_row_of_block(const expert_args &e) {
    uint32_t row = e.in_divisor == 1 ? blockIdx.z * e.n_slots + blockIdx.y : blockIdx.z;
    asm("" : "+r"(row)); // or it would be found anew for every group
    return row;
}

// A tile's biases into the second-level cache: they are read at the tile's end, where nothing else hides the memory's latency.
__device__ inline void fetch_biases(const tiled_args &a, uint32_t tile, int expert) {
    const tiled_part &part = part_of(a, tile);
    if (!part.bias) return;
    uint32_t row = min(tile * ATSI_TILE_ROWS + threadIdx.x % ATSI_TILE_ROWS, part.n_out - 1);
    const float *bias = part.bias + (uint64_t)expert * part.n_out + row;
    asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(bias)));
}

// The groups of a warp in the order in which it computes them: its share of the block's tiles, one after the other. TEAMS: of a block's warps,
// each with a tile of its own and only that (1: the block has a tile at a time).
template <class W, int TEAMS = 1> struct group_stream {
    const uint8_t *at; // the next group, this lane's first 16 bytes of it
    uint32_t group, tile;
    expert_place place;
    // A warp's share of its team.
    __device__ static int share() { return threadIdx.x / WARP / TEAMS; }
    __device__ static int n_shares() { return blockDim.x / WARP / TEAMS; }
    // Finds the expert of a block's pair; false: the block has none, and may return.
    __device__ bool to_expert(const tiled_args &a) {
        const int32_t *id = a.experts.ids + (uint64_t)blockIdx.z * a.experts.ids_stride + blockIdx.y;
        if (!a.ids_are_final) wait_for_predecessor();
        int expert = __ldcg(id);
        if (expert < 0) {
            wait_for_predecessor();
            return false;
        }
        place = expert_place(a.experts, expert);
        return true;
    }
    __device__ void to_tile(const tiled_args &a, uint32_t first_group) {
        uint32_t tile_of_part = tile;
        const tiled_part &part = part_of(a, tile_of_part);
        group = first_group;
        int matrix = place_of(a.experts, blockIdx.y, place.expert()); // what was fetched is for one token
        at = matrix_of(part.weight, part.resident, part.expert_bytes, matrix, place.slot()) +
             (uint64_t)tile_of_part * (a.n_cols / (32 * W::BLOCK_SPANS)) * W::TILE_BYTES + group * GROUP_BYTES<W> +
             16 * (threadIdx.x % WARP);
    }
    // Starts copying the next group to a warp's stage, if there is one; spans behind the row's end count as zeros.
    __device__ void copy_next(uint8_t *stage, const tiled_args &a, uint32_t n_groups, uint32_t n_tiles) {
        constexpr int UNITS = GROUP_BYTES<W> / 16;
        int lane = threadIdx.x % WARP;
        if (TEAMS == 1 ? tile < n_tiles : group < n_groups) {
            uint32_t n_spans = a.n_cols / 32 - group * GROUP_SPANS;
            stage += 16 * lane;
            if (W::BLOCK_SPANS == GROUP_SPANS || n_spans >= GROUP_SPANS) {
#pragma unroll
                for (int u = 0; u < UNITS; u += WARP)
                    if (u + WARP <= UNITS || u + lane < UNITS) copy16_async(stage + 16 * u, at + 16 * u);
            } else {
#pragma unroll 1
                for (int u = 0; u + lane < UNITS; u += WARP) {
                    if (u + lane < (int)n_spans * (W::TILE_BYTES / 16))
                        copy16_async(stage + 16 * u, at + 16 * u);
                    else
                        *(uint4 *)(stage + 16 * u) = make_uint4(0, 0, 0, 0);
                }
            }
            group += n_shares();
            at += n_shares() * GROUP_BYTES<W>;
            if (TEAMS == 1 && group >= n_groups) {
                tile += gridDim.x;
                if (tile < n_tiles) to_tile(a, share());
            }
        }
        copy_commit();
    }
};

// What stands in global memory, by a pointer that does not say so any more.
__device__ inline uint32_t global_word(const void *p) {
    uint32_t v;
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(__cvta_generic_to_global(p)) : "memory");
    return v;
}
__device__ inline int4 global_words(const void *p) {
    int4 v;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(__cvta_generic_to_global(p))
                 : "memory");
    return v;
}

// Where a lane's columns find their input rows.
template <class W, int N_IN> struct lane_rows {
    // One input row: its pointers are to the lane's spans of the first group. (Q4_K and Q5_K were slower so, 17408 x 5120 by 4 %.)
    static constexpr bool OWN_SPAN = N_IN == 1 && W::WHOLE;
    const int8_t *codes;
    const act_meta *meta[2];
    __device__ lane_rows(const tiled_args &a, uint32_t in_row, int g, int t) {
        constexpr int SHARE = GROUP_SPANS / N_IN;
        uint32_t n_spans = a.n_cols / 32, last = a.n_in - 1;
        codes = a.in.q + (uint64_t)(in_row + (N_IN == 1 ? 0 : min((uint32_t)(g / SHARE), last))) * a.n_cols + 4 * t;
#pragma unroll
        for (int c = 0; c < 2; c++) {
            uint32_t in = in_row + (N_IN == 1 ? 0 : min((uint32_t)((2 * t + c) / SHARE), last));
            meta[c] = a.in.meta + (uint64_t)in * n_spans;
        }
        if (OWN_SPAN) {
            codes += 32 * g;
            meta[0] += 2 * t;
            asm("" : "+l"(codes), "+l"(meta[0])); // or parts of the sums would be put together anew for every group
        }
    }
};

// The input codes and records of one set of spans that a lane needs: the words of column g, the records of columns 2t and 2t + 1.
template <class W, int N_IN> struct set_inputs {
    static constexpr int SHARE = GROUP_SPANS / N_IN;
    uint32_t b[2];
    int2 meta[2]; // struct act_meta: d and the two sums

    // first: the set's first span, n_left: spans from there to the row's end.
    __device__ void load(const lane_rows<W, N_IN> &rows, uint32_t first, uint32_t n_left, int g, int t) {
        const int8_t *codes = rows.codes;
        const act_meta *const *meta_rows = rows.meta;
        if constexpr (lane_rows<W, N_IN>::OWN_SPAN) {
            b[0] = global_word(codes + 32 * first);
            b[1] = global_word(codes + 32 * first + 16);
            int4 two = global_words(meta_rows[0] + first);
            meta[0] = make_int2(two.x, two.y);
            meta[1] = make_int2(two.z, two.w);
            join_halves();
            return;
        }
        uint32_t b_span = g % SHARE, at[2] = {2u * t % SHARE, (2u * t + 1) % SHARE};
        bool whole = W::BLOCK_SPANS == GROUP_SPANS || n_left >= SHARE, none = !whole && b_span >= n_left;
        if (!whole) b_span = none ? 0 : b_span;
        const int8_t *from = codes + 32 * (uint64_t)(first + b_span);
        b[0] = *(const uint32_t *)from;
        b[1] = *(const uint32_t *)(from + 16);
        if (none) b[0] = b[1] = 0;
#pragma unroll
        for (int c = 0; c < 2; c++) {
            bool there = whole || at[c] < n_left;
            meta[c] = there ? *(const int2 *)(meta_rows[c] + first + at[c]) : make_int2(0, 0);
        }
        join_halves();
    }
    // Columns in the order of W::halves.
    __device__ void join_halves() {
        if (!W::HALVES) return;
        uint32_t low = __byte_perm(b[0], b[1], 0x5140), high = __byte_perm(b[0], b[1], 0x7362);
        b[0] = low;
        b[1] = high;
    }
};

// first * the sum of codes 0..15 + second * that of codes 16..31 + start, for packed sums of a record.
__device__ inline int weigh_sums(int sums, int first, int second, int start) {
    return __dp2a_lo(sums, (first & 0xff) | (second & 0xff) << 8, start);
}

// Sums begin at less than zero by what the codes' offsets will add. span: of column c, within a step.
template <class W> __device__ inline void start_sums(span_sums<W> &sums, const int2 meta[2], const int span[2]) {
#pragma unroll
    for (int h = 0; h < W::SCALES; h++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
            int start = SUM_ZERO, offset = W::offset(span[c]);
            if (W::offset(0) != 0)
                start = weigh_sums(meta[c].y, W::SCALES == 1 || h == 0 ? -offset : 0,
                                   W::SCALES == 1 || h == 1 ? -offset : 0, SUM_ZERO);
            sums.c[h][c] = sums.c[h][2 + c] = start;
        }
}

template <class W> __device__ inline column<W> column_of(int2 meta) {
    column<W> c;
    c.d = __int_as_float(meta.x);
#pragma unroll
    for (int h = 0; h < W::MINS; h++)
        c.sums[h] = c.d * sum_value(weigh_sums(meta.y, W::MINS == 1 || h == 0, W::MINS == 1 || h == 1, SUM_ZERO));
    return c;
}

// Scales of the span whose sums stand in the lane's column c of set q: they were unpacked by lane `span / 2` of the row's four.
template <class W, int N_IN>
__device__ inline span_scales scales_of(const span_scales unpacked[2], int q, int c, int t) {
    constexpr int SHARE = GROUP_SPANS / N_IN;
    if (N_IN == 1) return unpacked[c];
    span_scales s;
    int source = (q * SHARE + 2 * t % SHARE) / 2;
    const span_scales &from = unpacked[SHARE == 1 ? q % 2 : c];
#pragma unroll
    for (int row = 0; row < 2; row++) {
#pragma unroll
        for (int h = 0; h < W::SCALES; h++) s.scale[row][h] = __shfl_sync(ALL_LANES, from.scale[row][h], source, 4);
#pragma unroll
        for (int h = 0; h < W::MINS; h++) s.min[row][h] = __shfl_sync(ALL_LANES, from.min[row][h], source, 4);
    }
    return s;
}

// What a lane keeps in registers from group to group.
template <class W, int N_IN> struct lane_constants {
    static constexpr int SHARE = GROUP_SPANS / N_IN;
    uint32_t mine[SHARE]; // 1 where the lane's column g stands for span s of a set, else 0
    decltype(W::table(0, false)) table;
    __device__ lane_constants(const tiled_args &a, int g) : table(W::table(a.n_cols % 32, N_IN == 1)) {
#pragma unroll
        for (int s = 0; s < SHARE; s++) {
            mine[s] = g % SHARE == s;
            // Known to be a condition it would select instead of multiply, on the pipe that is full.
            asm("" : "+r"(mine[s]));
        }
    }
};

// Adds the products of set q of a group to sums.
template <class W, int N_IN>
__device__ inline void multiply_set(span_sums<W> &sums, const uint8_t *stage, int q, const uint32_t b[2],
                                    const lane_constants<W, N_IN> &lane, int g, int t) {
    constexpr int SHARE = GROUP_SPANS / N_IN;
    // A matrix instruction waits for the one whose sums it goes on with: in two rows they wait half as long.
    constexpr bool APART = W::HALVES && N_IN == 1;
    span_sums<W> beside = {};
#pragma unroll
    for (int s = 0; s < SHARE; s++) {
        int span = q * SHARE + s, in_block = span % W::BLOCK_SPANS;
        typename W::words words;
        words.load(stage + span / W::BLOCK_SPANS * W::TILE_BYTES, in_block / W::STEP_SPANS, g, t);
        uint32_t codes[4], b0 = SHARE == 1 ? b[0] : b[0] * lane.mine[s], b1 = SHARE == 1 ? b[1] : b[1] * lane.mine[s];
        if constexpr (W::HALVES) {
            uint32_t others[4];
            words.halves(in_block % W::STEP_SPANS, lane.table, codes, others);
            (APART ? beside : sums).multiply(others, b0, b1);
        } else {
            words.codes(in_block % W::STEP_SPANS, codes);
        }
        sums.multiply(codes, b0, b1);
    }
    if (APART) sums.add(beside);
}

// acc[row][column] += the part of the group in `stage`, for a single input row.
template <class W>
__device__ inline void add_group_whole(float acc[2][2], const uint8_t *stage, const set_inputs<W, 1> &in,
                                       const typename W::packed_scales packed[2], const lane_constants<W, 1> &lane,
                                       int g, int t) {
    static_assert(W::SCALES == 2 && W::BLOCK_SPANS == GROUP_SPANS, "the types that there are");
    span_sums<W> sums = {};
    multiply_set<W, 1>(sums, stage, 0, in.b, lane, g, t);
#pragma unroll
    for (int c = 0; c < 2; c++) {
        const int of_column[2][2] = {{sums.c[0][c], sums.c[0][2 + c]}, {sums.c[1][c], sums.c[1][2 + c]}};
        float y[2] = {acc[0][c], acc[1][c]};
        packed[c].add(y, of_column, in.meta[c]);
        acc[0][c] = y[0];
        acc[1][c] = y[1];
    }
}

// The same with scales unpacked once and handed out. in: of the group's first set.
template <class W, int N_IN>
__device__ inline void add_group(float acc[2][2], const uint8_t *stage, set_inputs<W, N_IN> &in,
                                 const typename W::packed_scales packed[2], const lane_rows<W, N_IN> &rows,
                                 uint32_t first, uint32_t n_left, const lane_constants<W, N_IN> &lane, int g, int t) {
    constexpr int SHARE = GROUP_SPANS / N_IN;
    span_scales unpacked[2];
#pragma unroll
    for (int c = 0; c < 2; c++) packed[c].unpack(unpacked[c]);
#pragma unroll
    for (int q = 0; q < N_IN; q++) {
        if (q > 0) in.load(rows, first + q * SHARE, n_left > q * SHARE ? n_left - q * SHARE : 0, g, t);
        span_sums<W> sums;
        const int spans[2] = {(q * SHARE + 2 * t % SHARE) % W::STEP_SPANS,
                              (q * SHARE + (2 * t + 1) % SHARE) % W::STEP_SPANS};
        start_sums<W>(sums, in.meta, spans);
        multiply_set<W, N_IN>(sums, stage, q, in.b, lane, g, t);
        span_scales s = scales_of<W, N_IN>(unpacked, q, 0, t);
#pragma unroll
        for (int c = 0; c < 2; c++) {
            if (c == 1 && SHARE > 1) s = scales_of<W, N_IN>(unpacked, q, 1, t);
            column<W> input = column_of<W>(in.meta[c]);
#pragma unroll
            for (int row = 0; row < 2; row++)
                acc[row][c] = scaled<W>(acc[row][c], sums, 2 * row + c, s.scale[row], s.min[row], input);
        }
    }
}

// acc[row][column] += the part of the group in `stage`, whose first span is `first`; the two columns are of one input row unless
// there are 8.
template <class W, int N_IN>
__device__ inline void multiply_group(float acc[2][2], const uint8_t *stage, const lane_rows<W, N_IN> &rows,
                                      uint32_t first, uint32_t n_left, const lane_constants<W, N_IN> &lane, int g,
                                      int t) {
    set_inputs<W, N_IN> in;
    in.load(rows, first, n_left, g, t);
    copy_wait<VECTOR_STAGES - 1>();
    __syncwarp(); // every lane's part of the group is there
    typename W::packed_scales packed[2];
#pragma unroll
    for (int c = 0; c < 2; c++) {
        int span = 2 * t + c;
        packed[c].load(stage + span / W::BLOCK_SPANS * W::TILE_BYTES, span % W::BLOCK_SPANS, g);
    }
    if constexpr (N_IN == 1 && W::WHOLE)
        add_group_whole<W>(acc, stage, in, packed, lane, g, t);
    else
        add_group<W, N_IN>(acc, stage, in, packed, rows, first, n_left, lane, g, t);
}

// A warp's sums for a tile into shared memory: a float for each row and input.
template <int N_IN> __device__ inline void put_sums(const float acc[2][2], float *sums) {
    constexpr int SHARE = GROUP_SPANS / N_IN;
    int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int row = 0; row < 2; row++) {
        float *out = sums + (2 * g + row) * N_IN;
        if (SHARE == 1) {
            out[2 * t] = acc[row][0];
            out[2 * t + (N_IN > 1 ? 1 : 0)] = acc[row][1];
        } else { // SHARE / 2 lanes hold parts of the same input row
            float sum = lanes_sum<(SHARE > 1 ? SHARE / 2 : 1)>(acc[row][0] + acc[row][1]);
            if (2 * t % SHARE == 0) out[2 * t / SHARE] = sum;
        }
    }
}

// The sums of a block's warps for one tile, through shared memory (`partial`: a float for each warp, row and input).
template <int N_IN>
__device__ inline void store_tile(const float acc[2][2], float *partial, const tiled_args &a, uint32_t tile,
                                  int expert) {
    int warp = threadIdx.x / WARP, n_warps = blockDim.x / WARP;
    put_sums<N_IN>(acc, partial + warp * ATSI_TILE_ROWS * N_IN);
    __syncthreads();
    const tiled_part &part = part_of(a, tile);
    for (int i = threadIdx.x; i < ATSI_TILE_ROWS * N_IN; i += blockDim.x) {
        uint32_t row = tile * ATSI_TILE_ROWS + i / N_IN, in = i % N_IN;
        if (row >= part.n_out || in >= a.n_in) continue;
        float sum = 0.0f;
        for (int w = 0; w < n_warps; w++) sum += partial[w * ATSI_TILE_ROWS * N_IN + i];
        if (part.bias) sum += part.bias[(uint64_t)expert * part.n_out + row];
        uint32_t out_row = N_IN == 1 ? blockIdx.z : in; // dense: z is 0, and y
        float *out = part.out + (uint64_t)out_row * part.out_stride + (uint64_t)blockIdx.y * part.n_out;
        out[row] = part.add ? out[row] + sum : sum;
    }
}

// A block computes tiles blockIdx.x, blockIdx.x + gridDim.x, ... of n_tiles in all parts, its warps shares of the columns. y, z: slot and
// token (experts, with N_IN 1). N_IN: 1, 2, 4 or 8; input rows behind a.n_in repeat the last and are not written.
template <class W, int N_IN>
__global__ void __launch_bounds__(VECTOR_WARPS_MAX *WARP, 2)
    vector_kernel(const __grid_constant__ tiled_args a, uint32_t n_tiles) {
    extern __shared__ __align__(16) uint8_t dynamic[];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, n_warps = blockDim.x / WARP, g = lane / 4, t = lane % 4;
    uint32_t n_spans = a.n_cols / 32, n_groups = (n_spans + GROUP_SPANS - 1) / GROUP_SPANS;
    group_stream<W> stream;
    bool by_expert = N_IN == 1 && a.experts.ids;
    if (!by_expert) start_successor();
    if (by_expert && !stream.to_expert(a)) return;
    constexpr int RING_BYTES = VECTOR_STAGES * GROUP_BYTES<W>;
    uint8_t *ring = dynamic + warp * RING_BYTES, *stage = ring, *ring_end = ring + RING_BYTES;
    float *partial = (float *)(dynamic + n_warps * RING_BYTES);
    stream.tile = blockIdx.x;
    stream.to_tile(a, warp); // no warp is without a group
#pragma unroll 1
    for (uint8_t *s = ring; s < ring_end; s += GROUP_BYTES<W>) stream.copy_next(s, a, n_groups, n_tiles);
    if (N_IN == 1) fetch_biases(a, blockIdx.x, stream.place.expert());
    wait_for_predecessor();
    start_successor(); // with experts only now: sums of experts count on it (waiting.h)
    lane_rows<W, N_IN> rows(a, N_IN == 1 ? in_row_of_block(a.experts) : 0, g, t);
    lane_constants<W, N_IN> constants(a, g);
    int buffer = 0;
    for (uint32_t tile = blockIdx.x; tile < n_tiles; tile += gridDim.x) {
        float acc[2][2] = {};
        for (uint32_t group = warp; group < n_groups; group += n_warps) {
            uint32_t first = group * GROUP_SPANS;
            multiply_group<W, N_IN>(acc, stage, rows, first, n_spans - first, constants, g, t);
            __syncwarp(); // no lane reads the stage any more
            stream.copy_next(stage, a, n_groups, n_tiles);
            stage += GROUP_BYTES<W>;
            if (stage == ring_end) stage = ring;
        }
        store_tile<N_IN>(acc, partial + buffer * n_warps * ATSI_TILE_ROWS * N_IN, a, tile, stream.place.expert());
        buffer ^= 1; // the next tile's sums may be written while these are read
    }
}

template <class W, int N_IN> static inline size_t vector_shared_bytes(int n_warps, int n_stages) {
    return (size_t)n_warps * (n_stages * GROUP_BYTES<W> + 2 * ATSI_TILE_ROWS * N_IN * sizeof(float));
}

// How the blocks of one launch are cut: warps of a block, and blocks of a multiprocessor at a time.
struct vector_shape {
    int n_warps, n_resident;
};

// Blocks of a multiprocessor at a time.
static inline int vector_blocks_resident(int n_warps, size_t shared_bytes, const tiled_args &a) {
    constexpr int WARPS_RESIDENT = 32, BLOCK_RESERVE = 1024, // bytes the system takes
        BLOCKS_MAX = 16;
    int fit = (int)((a.max_shared_bytes + BLOCK_RESERVE) / (shared_bytes + BLOCK_RESERVE));
    int n = WARPS_RESIDENT / n_warps < fit ? WARPS_RESIDENT / n_warps : fit;
    return n < BLOCKS_MAX ? n : BLOCKS_MAX;
}

// The number of warps a tile that needs the fewest turns of the card: every warp takes `turns` groups of each tile, about one more for
// the sum over warps.
template <class W, int N_IN>
static inline vector_shape vector_shape_of(uint32_t n_groups, uint32_t n_tiles, const tiled_args &a) {
    int n_stages = vector_stages(a.capability);
    vector_shape best = {};
    int64_t best_cost = INT64_MAX;
    for (int n = 1; n <= VECTOR_WARPS_MAX && n <= (int)n_groups; n++) {
        int n_resident = vector_blocks_resident(n, vector_shared_bytes<W, N_IN>(n, n_stages), a);
        if (n_resident < 1) break;
        int64_t n_slots = (int64_t)a.n_multiprocessors * n_resident, turns = (n_groups + n - 1) / n;
        int64_t cost = (n_tiles + n_slots - 1) / n_slots * (turns + 1);
        if (cost < best_cost) {
            best.n_warps = n;
            best.n_resident = n_resident;
            best_cost = cost;
        }
    }
    return best;
}

template <class W, int N_IN> void run_vector(const tiled_args &a, uint32_t n_pairs, struct launch_stream stream) {
    uint32_t n_tiles = n_tiles_of(a), n_groups = ceil_div(a.n_cols / 32, GROUP_SPANS);
    vector_shape shape = vector_shape_of<W, N_IN>(n_groups, n_tiles * n_pairs, a);
    uint32_t n_blocks = ceil_div((uint32_t)(shape.n_resident * a.n_multiprocessors), n_pairs);
    if (n_blocks > n_tiles) n_blocks = n_tiles;
    uint32_t n_slots = a.experts.ids ? a.experts.n_slots : 1;
    launch_overlapping(vector_kernel<W, N_IN>, dim3(n_blocks, n_slots, n_pairs / n_slots), shape.n_warps * WARP,
                       vector_shared_bytes<W, N_IN>(shape.n_warps, vector_stages(a.capability)), stream, a, n_tiles);
}

template <class W> void launch_vector(const struct tiled_args *a, struct launch_stream stream) {
    if (a->experts.ids) {
        struct tiled_args one = *a;
        one.n_in = 1;
        run_vector<W, 1>(one, a->n_in, stream);
    } else if (a->n_in == 1) {
        run_vector<W, 1>(*a, 1, stream);
    } else if (a->n_in == 2) {
        run_vector<W, 2>(*a, 1, stream);
    } else if (a->n_in <= 4) {
        run_vector<W, 4>(*a, 1, stream);
    } else {
        run_vector<W, 8>(*a, 1, stream);
    }
}

template <class KERNEL> cudaError_t prepare_shared(KERNEL *kernel, int max_shared_bytes) {
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, max_shared_bytes);
}

#endif
