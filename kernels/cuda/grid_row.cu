// grid_row.cu: products of one input row with the grid types: dense ones, and those of a token's experts.
//
// What bounds them is instructions first and then how many bytes are under way. So a lane opens spans (grid_spans.cuh) of four pieces of the
// matrix, and as soon as it has the registers of one it loads that piece of the next unit into them: four pieces a lane are always under way,
// some 25 KB a multiprocessor.
#include "kernels/cuda/grid.h"
#include "kernels/cuda/grid_spans.cuh"
#include "kernels/cuda/rows.cuh"

namespace {

constexpr int PIECES = 4;                   // of a unit, which share columns
constexpr int RUN_SHORT = 5, RUN_LEAST = 4; // of copies where room is short, or shorter

// A piece is N_BLOCKS blocks of each of 4 / N_BLOCKS rows, a lane a span. A unit is PIECES of them, one below the other, a group all units of
// the same rows. WARPS: of a block.
template <int N_BLOCKS_, int WARPS_> struct row_shape {
    static constexpr int N_BLOCKS = N_BLOCKS_, LANES = 8 * N_BLOCKS; // of a row
    static constexpr int PIECE_ROWS = WARP / LANES, ROWS = PIECES * PIECE_ROWS, WARPS = WARPS_;
};
// As many warps as have all registers that they want; where a warp has one unit or two, more of them are worth more; rows of few blocks.
typedef row_shape<4, 16> wide_shape;
template <class S> using short_shape = row_shape<4, S::SHORT_WARPS>;
template <class S> using narrow_shape = row_shape<1, S::SHORT_WARPS>;

// How the work of a launch is cut: a block takes n_groups groups, its warps equal shares of their units, one after the other, so that at most
// n_parts warps have units of the same group.
struct row_cut {
    uint32_t n_groups, n_parts;
};

// Shared memory: the input row, sums of rows, and the table behind them.
template <class SHAPE> __host__ __device__ inline uint32_t partial_bytes(const row_cut &cut) {
    return cut.n_groups * cut.n_parts * SHAPE::ROWS * (uint32_t)sizeof(float);
}
// alignment: a power of two
__host__ __device__ inline uint32_t align_up(uint32_t n, uint32_t alignment) {
    return (n + alignment - 1) & ~(alignment - 1);
}

// All threads of the block call; a barrier must follow. As fill_table: a warp reads 32 words and stores their runs, 16 bytes a lane.
template <class S, int RUN> __device__ inline void fill_spans(uint8_t *table, const uint32_t *words) {
    constexpr uint32_t N = S::N_WORDS, UNITS = 1 << (RUN - 4), AT_ONCE = WARP / UNITS; // entries of a store
    static_assert(RUN >= 4 && N % WARP == 0, "whole warps, whole units");
    uint32_t lane = threadIdx.x % WARP;
    for (uint32_t first = threadIdx.x - lane; first < N; first += blockDim.x) {
        uint32_t mine = S::read(words, first + lane);
#pragma unroll
        for (uint32_t k = 0; k < WARP; k += AT_ONCE) {
            uint32_t entry = k + lane / UNITS, v = __shfl_sync(ALL_LANES, mine, entry);
            *(uint4 *)(table + S::place(first + entry, RUN) + 16 * (lane % UNITS)) = make_uint4(v, v, v, v);
        }
    }
}

// The input row in shared memory: the first 16 codes of all spans, the last 16, then their records.
__device__ inline void fill_input(uint8_t *shared, const int8_t *codes, const act_meta *records, uint32_t n_cols) {
    for (uint32_t i = threadIdx.x; i < n_cols / 16; i += blockDim.x)
        *(uint4 *)(shared + i % 2 * (n_cols / 2) + i / 2 * 16) = ((const uint4 *)codes)[i];
    act_meta *copies = (act_meta *)(shared + n_cols);
    for (uint32_t i = threadIdx.x; i < n_cols / 32; i += blockDim.x) copies[i] = records[i];
}
__device__ inline void load_input(span_input &in, const uint8_t *shared, uint32_t n_cols, uint32_t span) {
    uint4 first = *(const uint4 *)(shared + 16 * span), last = *(const uint4 *)(shared + n_cols / 2 + 16 * span);
    act_meta meta = ((const act_meta *)(shared + n_cols))[span];
    const uint32_t x[8] = {first.x, first.y, first.z, first.w, last.x, last.y, last.z, last.w};
#pragma unroll
    for (int i = 0; i < 8; i++) in.x[i] = x[i];
    in.d = meta.d;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int octet = __dp4a((int)x[4 * h + 1], (int)EVERY_BYTE, __dp4a((int)x[4 * h], (int)EVERY_BYTE, 0));
        in.sum[h] = meta.sum[h];
        in.less_pair[h] = (-octet & 0xffff) | (octet - meta.sum[h]) << 16;
    }
}
__host__ __device__ inline uint32_t input_bytes(uint32_t n_cols) {
    return n_cols + n_cols / 32 * (uint32_t)sizeof(act_meta);
}

// The units of a warp, in the order in which it takes them, and where the lane finds its spans.
template <class S, class SHAPE> struct unit_stream {
    const uint8_t *base[S::FIELDS]; // of the block's first row
    uint32_t row_bytes, n_blocks, n_rows, n_column_units;
    uint32_t group, column_unit;
    uint32_t rows[PIECES]; // of the lane's pieces, where they begin; rows behind the last repeat it

    __device__ unit_stream(const uint8_t *weight, uint32_t n_cols, uint32_t n_rows, int lane)
        : row_bytes(n_cols / 256 * S::grid::BYTES), n_blocks(n_cols / 256), n_rows(n_rows),
          n_column_units((n_blocks + SHAPE::N_BLOCKS - 1) / SHAPE::N_BLOCKS) {
#pragma unroll
        for (int f = 0; f < S::FIELDS; f++) {
            base[f] = weight + lane % SHAPE::LANES / 8 * S::grid::BYTES + S::field(f, lane % 8);
            asm("" : "+l"(base[f])); // or parts of the sum would be put together anew for every use
        }
    }
    __device__ void find_rows(int lane) {
#pragma unroll
        for (int i = 0; i < PIECES; i++)
            rows[i] = min(group * SHAPE::ROWS + i * SHAPE::PIECE_ROWS + lane / SHAPE::LANES, n_rows - 1) * row_bytes;
    }
    __device__ void start(uint32_t unit, int lane) {
        group = unit / n_column_units;
        column_unit = unit % n_column_units;
        find_rows(lane);
    }
    __device__ void advance(int lane) {
        if (++column_unit < n_column_units) return;
        column_unit = 0;
        group++;
        find_rows(lane);
    }
    // The last unit of a row ends with it and may repeat blocks.
    __device__ uint32_t first_block() const { return min(column_unit * SHAPE::N_BLOCKS, n_blocks - SHAPE::N_BLOCKS); }
    __device__ void load(S &span, int piece) const {
        const uint8_t *f[S::FIELDS];
        uint32_t offset = rows[piece] + first_block() * S::grid::BYTES;
#pragma unroll
        for (int i = 0; i < S::FIELDS; i++) f[i] = base[i] + offset;
        span.load(f);
    }
};

// n units are dealt to the first n_warps of WARPS warps, at most as many: warp w takes those from first_unit(w) to the next warp's.
template <int WARPS> struct unit_deal {
    uint32_t n, n_warps;
    __device__ unit_deal(uint32_t n) : n(n), n_warps(min(n, (uint32_t)WARPS)) {}
    __device__ uint32_t first_unit(uint32_t w) const { return w < n_warps ? n * w / n_warps : n; }
    __device__ uint32_t warp_of(uint32_t unit) const { return ((unit + 1) * n_warps - 1) / n; }
};

// x: a share of the weight rows. y: pairs (experts).
template <class S, class SHAPE, int RUN>
__global__ void __launch_bounds__(SHAPE::WARPS *WARP, 1)
    row_kernel(const __grid_constant__ grid_args a, const uint32_t *words, row_cut cut) {
    start_successor();
    extern __shared__ __align__(16) uint8_t dynamic[];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    uint8_t *input = dynamic;
    float *partial = (float *)(input + input_bytes(a.n_cols)); // [group][part][row]
    uint32_t shared = (uint32_t)__cvta_generic_to_shared(dynamic),
             table_at = align_up(shared + input_bytes(a.n_cols) + partial_bytes<SHAPE>(cut), S::alignment(RUN));
    const uint8_t *weight = a.weight;
    const float *bias = a.bias;
    float *out = a.out;
    uint32_t in_row = 0;
    if (a.experts.ids) {
        fill_spans<S, RUN>(dynamic + (table_at - shared), words);
        wait_for_predecessor();
        int expert = expert_of(a.experts, blockIdx.y);
        if (expert < 0) return;
        weight = matrix_of(a.weight, a.resident, a.expert_bytes, place_of(a.experts, blockIdx.y, expert),
                           slot_of(a.experts, expert));
        if (bias) bias += (uint64_t)expert * a.n_out;
        out = out_of_pair(a.experts, blockIdx.y, a.out, a.out_stride, a.n_out);
        in_row = blockIdx.y / a.experts.in_divisor;
    }
    uint32_t first_row = blockIdx.x * cut.n_groups * SHAPE::ROWS; // less than n_out
    uint32_t n_rows = min(cut.n_groups * SHAPE::ROWS, a.n_out - first_row);
    unit_stream<S, SHAPE> stream(weight + (uint64_t)first_row * (a.n_cols / 256 * S::grid::BYTES), a.n_cols, n_rows,
                                 lane);
    const unit_deal<SHAPE::WARPS> deal((n_rows + SHAPE::ROWS - 1) / SHAPE::ROWS * stream.n_column_units);
    uint32_t unit = deal.first_unit(warp), end = deal.first_unit(warp + 1);
    S next[PIECES];
    if (unit < end) {
        stream.start(unit, lane);
#pragma unroll
        for (int i = 0; i < PIECES; i++) stream.load(next[i], i);
    }
    if (!a.experts.ids) { // nobody writes the weights: their way here is the table's time
        fill_spans<S, RUN>(dynamic + (table_at - shared), words);
        wait_for_predecessor();
    }
    fill_input(input, a.in.q + (uint64_t)in_row * a.n_cols, a.in.meta + (uint64_t)in_row * (a.n_cols / 32), a.n_cols);
    __syncthreads();
    const span_table<RUN> table(table_at, lane, a.n_cols % 32);
    float acc[PIECES] = {};
#pragma unroll 1
    while (unit < end) {
        uint32_t block = stream.first_block(), group = stream.group;
        span_input in;
        load_input(in, input, a.n_cols, 8 * block + lane % SHAPE::LANES);
        // Blocks that the unit before had are multiplied by nothing.
        if (SHAPE::N_BLOCKS > 1 && block + lane / 8 < stream.column_unit * SHAPE::N_BLOCKS) in.d = 0.0f;
        if (unit + 1 < end) stream.advance(lane);
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            acc[i] = fmaf(next[i].multiply(in, table, lane % 8), in.d, acc[i]);
            stream.load(next[i], i);
        }
        unit++;
        if (unit == end || stream.group != group) {
            constexpr int HOLDERS = SHAPE::LANES / PIECES; // lanes that hold the same sum
            uint32_t part = warp - deal.warp_of(group * stream.n_column_units), i = lane % SHAPE::LANES / HOLDERS;
            float sum = sums_of_lanes<SHAPE::LANES>(acc);
            if (lane % HOLDERS == 0)
                partial[(group * cut.n_parts + part) * SHAPE::ROWS + i * SHAPE::PIECE_ROWS + lane / SHAPE::LANES] = sum;
#pragma unroll
            for (int k = 0; k < PIECES; k++) acc[k] = 0.0f;
        }
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n_rows; i += SHAPE::WARPS * WARP) {
        uint32_t group = i / SHAPE::ROWS, first_unit = group * stream.n_column_units;
        uint32_t first = deal.warp_of(first_unit), last = deal.warp_of(first_unit + stream.n_column_units - 1);
        const float *parts = partial + group * cut.n_parts * SHAPE::ROWS + i % SHAPE::ROWS;
        float sum = 0.0f;
        for (uint32_t part = 0; part <= last - first; part++) sum += parts[part * SHAPE::ROWS];
        uint32_t row = first_row + i;
        if (bias) sum += bias[row];
        out[row] = a.add ? out[row] + sum : sum;
    }
}

// ---- host -------------------------------------------------------------------------------------------------------------------

constexpr uint32_t GROUPS_MAX_BYTES = 8192; // sums of a block's rows

template <class S, class SHAPE> row_cut cut_of(const struct grid_args *a, uint32_t n_y) {
    uint32_t n_all = ceil_div(a->n_out, SHAPE::ROWS), n_x = (uint32_t)a->n_multiprocessors / n_y;
    if (n_x == 0) n_x = 1;
    constexpr uint32_t GROUPS_MAX = GROUPS_MAX_BYTES / (2 * SHAPE::ROWS * sizeof(float));
    row_cut cut;
    cut.n_groups = ceil_div(n_all, n_x * ceil_div(ceil_div(n_all, n_x), GROUPS_MAX));
    // A warp has at least `least` units, and the last block perhaps fewer groups.
    uint32_t n_column_units = ceil_div(a->n_cols / 256, SHAPE::N_BLOCKS), n_last = n_all % cut.n_groups;
    uint32_t least = (n_last ? n_last : cut.n_groups) * n_column_units / SHAPE::WARPS;
    if (least == 0) least = 1;
    cut.n_parts = (n_column_units + least - 2) / least + 1;
    if (cut.n_parts > n_column_units) cut.n_parts = n_column_units;
    return cut;
}

template <class S, class SHAPE, int RUN>
bool launch(const struct grid_args *a, const uint32_t *words, const row_cut &cut, uint32_t n_y,
            struct launch_stream stream) {
    constexpr uint32_t RESERVED = 1024; // bytes, at most, that the system has before the block's own
    uint32_t front = input_bytes(a->n_cols) + partial_bytes<SHAPE>(cut);
    uint32_t shared_bytes = align_up(RESERVED + front, S::alignment(RUN)) + S::table_bytes(RUN);
    if (shared_bytes > (uint32_t)a->max_shared_bytes) return false;
    dim3 grid(ceil_div(a->n_out, cut.n_groups * SHAPE::ROWS), n_y);
    launch_overlapping(row_kernel<S, SHAPE, RUN>, grid, SHAPE::WARPS * WARP, shared_bytes, stream, *a, words, cut);
    return true;
}

template <class S, class SHAPE>
bool run(const struct grid_args *a, const uint32_t *words, struct launch_stream stream) {
    uint32_t n_y = a->experts.ids ? a->n_in : 1;
    row_cut cut = cut_of<S, SHAPE>(a, n_y);
    uint64_t weight_bytes = (uint64_t)cut.n_groups * SHAPE::ROWS * (a->n_cols / 256) * S::grid::BYTES; // of a block
    // Copies of the codebook must be worth the time that they take.
    if (S::table_bytes(S::RUN) <= 2 * weight_bytes && launch<S, SHAPE, S::RUN>(a, words, cut, n_y, stream)) return true;
    return launch<S, SHAPE, RUN_SHORT>(a, words, cut, n_y, stream) ||
           launch<S, SHAPE, RUN_LEAST>(a, words, cut, n_y, stream);
}

template <class S> bool product(const struct grid_args *a, const uint32_t *words, struct launch_stream stream) {
    uint32_t n_blocks = a->n_cols / 256, n_y = a->experts.ids ? a->n_in : 1;
    if (n_blocks % 4 != 0 && n_blocks <= 8) return run<S, narrow_shape<S>>(a, words, stream);
    uint32_t n_units = cut_of<S, short_shape<S>>(a, n_y).n_groups * ceil_div(n_blocks, short_shape<S>::N_BLOCKS);
    return n_units <= 2 * short_shape<S>::WARPS ? run<S, short_shape<S>>(a, words, stream)
                                                : run<S, wide_shape>(a, words, stream);
}

template <class S, class SHAPE> cudaError_t load_shape(int max_shared_bytes) {
    static const void *const KERNELS[] = {(const void *)row_kernel<S, SHAPE, S::RUN>,
                                          (const void *)row_kernel<S, SHAPE, RUN_SHORT>,
                                          (const void *)row_kernel<S, SHAPE, RUN_LEAST>};
    cudaError_t status = load_kernels(KERNELS);
    for (const void *kernel : KERNELS)
        if (status == cudaSuccess)
            status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, max_shared_bytes);
    return status;
}

template <class S> cudaError_t load(int max_shared_bytes) {
    cudaError_t status = load_shape<S, wide_shape>(max_shared_bytes);
    if (status == cudaSuccess) status = load_shape<S, short_shape<S>>(max_shared_bytes);
    return status == cudaSuccess ? load_shape<S, narrow_shape<S>>(max_shared_bytes) : status;
}

struct row_type {
    enum atsi_dtype dtype;
    bool (*product)(const struct grid_args *a, const uint32_t *words, struct launch_stream stream);
    cudaError_t (*prepare)(int max_shared_bytes);
};
template <class S> constexpr row_type type_of = {S::grid::DTYPE, product<S>, load<S>};
const row_type TYPES[] = {type_of<iq2_xxs_span>, type_of<iq2_xs_span>, type_of<iq2_s_span>, type_of<iq3_xxs_span>,
                          type_of<iq3_s_span>,   type_of<iq1_s_span>,  type_of<iq1_m_span>};

} // namespace

bool grid_row(enum atsi_dtype dtype, const struct grid_args *a, const uint32_t *words, struct launch_stream stream) {
    for (const row_type &t : TYPES)
        if (t.dtype == dtype) return t.product(a, words, stream);
    return false;
}

cudaError_t grid_row_prepare(enum atsi_dtype dtype, int max_shared_bytes) {
    for (const row_type &t : TYPES)
        if (t.dtype == dtype) return t.prepare(max_shared_bytes);
    return cudaSuccess;
}
