// grid.cu: products with the grid types (grid_types.cuh), by dp4a.
//
// Bound by instructions: what a lane does for an octet must be little. So scales are worked out once, a lane each for a row and several
// blocks, and handed out by a shuffle; an octet is loaded while its predecessor is multiplied; and no look-up waits for a bank.
#include "kernels/cuda/grid.h"
#include "kernels/cuda/grid_types.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/rows.cuh"

namespace {

// How a kernel is cut. A warp takes ROWS weight rows times BLOCKS blocks of columns at a time, for N_IN input rows. It reads them in pieces: a
// row's blocks, or (TALL) one block of all rows. Rows of few blocks are tall, or most lanes would have no scale to work out.
template <int N_IN_, int BLOCKS_, int ROWS_, int WARPS_> struct grid_shape {
    static constexpr int N_IN = N_IN_, BLOCKS = BLOCKS_, ROWS = ROWS_, WARPS = WARPS_;
    static constexpr bool TALL = N_IN == 1 && BLOCKS == 1;
    static constexpr int OCTETS = TALL ? ROWS : BLOCKS; // of a lane in a piece
};
typedef grid_shape<1, 4, 4, 24> one_row;    // one input row, at least BLOCKS blocks a weight row
typedef grid_shape<1, 1, 4, 24> narrow_row; // fewer
typedef grid_shape<8, 1, 2, 16> many_rows;

// How its work is cut: a block takes n_groups groups of ROWS weight rows, and a warp one of n_parts parts of their columns at a time.
struct grid_cut {
    uint32_t n_groups, n_parts;
};

// v[i] summed over the lanes, in lane i * 32 / N and those behind it.
template <int N> __device__ inline float sums_of_lanes(float (&v)[N]) {
    int lane = threadIdx.x % WARP;
#pragma unroll
    for (int n = N / 2, step = WARP / 2; step > 0; n /= 2, step /= 2) {
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

// Bytes of a single input row in shared memory: every group of weight rows reads it again.
template <class S> __host__ __device__ constexpr uint32_t input_bytes(uint32_t n_cols) {
    return S::N_IN == 1 ? n_cols + n_cols / 32 * (uint32_t)sizeof(act_meta) : 0;
}
__device__ inline const void *fill(uint64_t *shared, const void *global, uint32_t n_bytes) {
    for (uint32_t i = threadIdx.x; i < n_bytes / 8; i += blockDim.x) shared[i] = ((const uint64_t *)global)[i];
    return shared;
}

// What a warp reads at a time: N blocks.
template <class G, int N> struct piece {
    static constexpr int PASSES = N * G::SCALES > WARP ? N *G::SCALES / WARP : 1;
    typename G::octet octet[N];
    typename G::scale scale[PASSES];
    // Scale i of a piece: the lane's of a pass.
    __device__ static int scale_of(int pass, int lane) { return (WARP * pass + lane) % (N * G::SCALES); }
    // Of a row from block `row` on.
    __device__ void load(const uint8_t *row, int lane) {
#pragma unroll
        for (int k = 0; k < N; k++) octet[k].load(row + k * G::BYTES, lane);
#pragma unroll
        for (int p = 0; p < PASSES; p++) {
            int i = scale_of(p, lane);
            scale[p].load(row + i / G::SCALES * G::BYTES, i % G::SCALES);
        }
    }
    // A block of each row, `stride` bytes apart; rows behind number `last` repeat it. One function for both was up to 16 % slower with wide pieces.
    __device__ void load_tall(const uint8_t *first, uint32_t stride, int last, int lane) {
#pragma unroll
        for (int k = 0; k < N; k++) octet[k].load(first + min(k, last) * stride, lane);
#pragma unroll
        for (int p = 0; p < PASSES; p++) {
            int i = scale_of(p, lane);
            scale[p].load(first + min(i / G::SCALES, last) * stride, i % G::SCALES);
        }
    }
};

// The input rows of a piece: a lane's codes, their sums, and their units; with one row the units of the scales that the lane works out.
template <class G, class S> struct piece_inputs {
    typedef piece<G, S::OCTETS> weights;
    uint2 x[S::BLOCKS][S::N_IN];
    int sum[S::BLOCKS][S::N_IN];
    float d[S::N_IN == 1 ? weights::PASSES : S::N_IN];
    // Rows n_cols codes and n_cols / 32 records apart; those behind n_in repeat the last. Blocks before n_done were multiplied already: they
    // count as zeros.
    __device__ void load(const int8_t *codes, const act_meta *records, uint32_t n_cols, uint32_t n_in, uint32_t block,
                         uint32_t n_done, int lane) {
#pragma unroll
        for (int c = 0; c < S::N_IN; c++) {
            uint32_t row = S::N_IN == 1 ? 0 : min((uint32_t)c, n_in - 1);
            const int8_t *q = codes + row * n_cols + 256 * block + 8 * lane;
            const act_meta *meta = records + row * (n_cols / 32) + 8 * block;
#pragma unroll
            for (int k = 0; k < S::BLOCKS; k++) {
                x[k][c] = *(const uint2 *)(q + 256 * k);
                if (S::BLOCKS > 1 && block + k < n_done) x[k][c] = make_uint2(0, 0);
                sum[k][c] = 0;
                if (G::BIASED)
                    sum[k][c] = __dp4a((int)x[k][c].y, (int)EVERY_BYTE, __dp4a((int)x[k][c].x, (int)EVERY_BYTE, 0));
            }
            if (S::N_IN > 1) {
                d[c] = meta[lane / 4].d;
            } else {
#pragma unroll
                for (int p = 0; p < weights::PASSES; p++)
                    d[p] = meta[weights::scale_of(p, lane) % (S::BLOCKS * G::SCALES) * 8 / G::SCALES].d;
            }
        }
    }
};

// acc[c] += the piece's products; tall: acc[row].
template <class G, class S>
__device__ inline void multiply(float *acc, const piece<G, S::OCTETS> &w, const piece_inputs<G, S> &in,
                                const typename G::lookup &lookup, int lane) {
    typedef piece<G, S::OCTETS> weights;
    float scale[weights::PASSES];
#pragma unroll
    for (int p = 0; p < weights::PASSES; p++) {
        scale[p] = w.scale[p].value(weights::scale_of(p, lane) % G::SCALES);
        if (S::N_IN == 1) scale[p] *= in.d[p];
    }
#pragma unroll
    for (int k = 0; k < S::OCTETS; k++) {
        constexpr int IN_STEP = S::TALL ? 0 : 1, OUT_STEP = S::TALL ? 1 : 0;
        constexpr int OF_SCALE = WARP / G::SCALES; // octets
        int pass = k * G::SCALES / WARP, source = k * G::SCALES % WARP + lane / OF_SCALE;
        uint32_t word = 0;
        if constexpr (G::HAS_WORD) word = __shfl_sync(ALL_LANES, w.scale[pass].word(), source);
        float unit = __shfl_sync(ALL_LANES, scale[pass], source);
        uint2 q = G::open(w.octet[k], word, lookup, lane);
        int bias = 0;
        if constexpr (G::BIASED) bias = G::bias(w.octet[k], word, lane);
#pragma unroll
        for (int c = 0; c < S::N_IN; c++) {
            uint2 x = in.x[k * IN_STEP][c];
            int start = G::BIASED ? bias * in.sum[k * IN_STEP][c] + SUM_ZERO : SUM_ZERO;
            int sum = __dp4a((int)q.y, (int)x.y, __dp4a((int)q.x, (int)x.x, start));
            float *y = acc + k * OUT_STEP + c;
            *y = fmaf(sum_value(sum), S::N_IN == 1 ? unit : unit * in.d[c], *y);
        }
    }
}

// The tall pieces of a warp, one ahead. Items are as in the kernel: a group of ROWS rows, and a part of its columns.
template <class G, class S> struct tall_reader {
    typedef piece<G, S::OCTETS> weights;
    const uint8_t *rows; // of the block
    uint32_t row_bytes, n_rows, n_pieces, n_parts;
    const uint8_t *at; // what `next` holds
    int last;          // row of the group
    weights next;
    __device__ void start(uint32_t item, int lane) {
        uint32_t row = item / n_parts * S::ROWS, piece = n_pieces * (item % n_parts) / n_parts;
        at = rows + row * row_bytes + piece * G::BYTES;
        last = (int)min((uint32_t)S::ROWS, n_rows - row) - 1;
        next.load_tall(at, row_bytes, last, lane);
    }
    // To the next piece of the item, or the first one of another.
    __device__ void advance(bool same_item, uint32_t item, int lane) {
        if (!same_item) {
            start(item, lane);
            return;
        }
        at += G::BYTES;
        next.load_tall(at, row_bytes, last, lane);
    }
};

// x: a share of the weight rows. y: S::N_IN input rows, or a pair (experts). words: G::build's. SHIFT: of grid_table.
template <class G, class S, int SHIFT>
__global__ void __launch_bounds__(S::WARPS *WARP, 1)
    grid_kernel(const __grid_constant__ grid_args a, const uint32_t *words, grid_cut cut) {
    start_successor();
    extern __shared__ __align__(16) uint8_t dynamic[];
    fill_table<G, SHIFT>(dynamic, words);
    wait_for_predecessor();
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    uint32_t first_in = blockIdx.y * S::N_IN;
    uint32_t n_in = S::N_IN == 1 || a.experts.ids ? 1 : min((uint32_t)S::N_IN, a.n_in - first_in);
    const uint8_t *weight = a.weight;
    const float *bias = a.bias;
    float *out = a.out + (uint64_t)first_in * a.out_stride;
    if (a.experts.ids) {
        int expert = expert_of(a.experts, blockIdx.y);
        if (expert < 0) return;
        weight = matrix_of(a.weight, a.resident, a.expert_bytes, expert, slot_of(a.experts, expert));
        if (bias) bias += (uint64_t)expert * a.n_out;
        out = out_of_pair(a.experts, blockIdx.y, a.out, a.out_stride, a.n_out);
        first_in = blockIdx.y / a.experts.in_divisor;
    }
    const int8_t *codes = a.in.q + (uint64_t)first_in * a.n_cols;
    const act_meta *records = a.in.meta + (uint64_t)first_in * (a.n_cols / 32);
    uint8_t *behind_table = dynamic + table_bytes<G, SHIFT>;
    if constexpr (S::N_IN == 1) {
        codes = (const int8_t *)fill((uint64_t *)behind_table, codes, a.n_cols);
        records = (const act_meta *)fill((uint64_t *)behind_table + a.n_cols / 8, records, a.n_cols / 4);
        behind_table += input_bytes<S>(a.n_cols);
    }
    __syncthreads();
    constexpr int N_SUMS = S::ROWS * S::N_IN;
    float *partial = (float *)behind_table; // [group][part][row][input]
    const typename G::lookup lookup({dynamic, SHIFT}, lane);
    uint32_t n_blocks = a.n_cols / 256, n_pieces = (n_blocks + S::BLOCKS - 1) / S::BLOCKS;
    uint32_t row_bytes = n_blocks * G::BYTES, first_row = blockIdx.x * cut.n_groups * S::ROWS;
    uint32_t n_rows = first_row < a.n_out ? min(cut.n_groups * S::ROWS, a.n_out - first_row) : 0;
    uint32_t n_groups = (n_rows + S::ROWS - 1) / S::ROWS;
    uint32_t n_items = n_groups * cut.n_parts;
    tall_reader<G, S> reader = {weight + (uint64_t)first_row * row_bytes, row_bytes, n_rows, n_pieces, cut.n_parts};
    if (S::TALL && warp < n_items) reader.start(warp, lane);
    for (uint32_t i = warp; i < n_items; i += S::WARPS) {
        uint32_t row = i / cut.n_parts * S::ROWS, part = i % cut.n_parts;
        uint32_t from = n_pieces * part / cut.n_parts, to = n_pieces * (part + 1) / cut.n_parts;
        float acc[N_SUMS] = {};
        if constexpr (S::TALL) {
#pragma unroll 1
            for (uint32_t p = from; p < to; p++) {
                piece_inputs<G, S> in;
                in.load(codes, records, a.n_cols, n_in, p, p, lane);
                typename tall_reader<G, S>::weights w = reader.next;
                reader.advance(p + 1 < to, min(i + S::WARPS, n_items - 1), lane);
                multiply<G, S>(acc, w, in, lookup, lane);
            }
        } else {
            const uint8_t *rows[S::ROWS];
#pragma unroll
            for (int r = 0; r < S::ROWS; r++)
                rows[r] = weight + (uint64_t)(first_row + min(row + r, n_rows - 1)) * row_bytes;
            // The last piece ends with the row and may repeat blocks.
            auto first_block = [&](uint32_t p) { return min(p * S::BLOCKS, n_blocks - S::BLOCKS); };
            piece<G, S::BLOCKS> next;
            next.load(rows[0] + first_block(from) * G::BYTES, lane);
#pragma unroll 1
            for (uint32_t p = from; p < to; p++) {
                piece_inputs<G, S> in;
                uint32_t block = first_block(p), block_after = first_block(min(p + 1, to - 1));
                in.load(codes, records, a.n_cols, n_in, block, p * S::BLOCKS, lane);
#pragma unroll
                for (int r = 0; r < S::ROWS; r++) {
                    piece<G, S::BLOCKS> w = next;
                    if (r + 1 < S::ROWS)
                        next.load(rows[r + 1] + block * G::BYTES, lane);
                    else
                        next.load(rows[0] + block_after * G::BYTES, lane);
                    multiply<G, S>(acc + r * S::N_IN, w, in, lookup, lane);
                }
            }
        }
        float sum = sums_of_lanes(acc);
        if (lane % (WARP / N_SUMS) == 0) partial[i * N_SUMS + lane / (WARP / N_SUMS)] = sum;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n_rows * S::N_IN; i += S::WARPS * WARP) {
        uint32_t row = i / S::N_IN, c = i % S::N_IN;
        if (c >= n_in) continue;
        const float *parts = partial + row / S::ROWS * cut.n_parts * N_SUMS + row % S::ROWS * S::N_IN + c;
        float sum = 0.0f;
        for (uint32_t part = 0; part < cut.n_parts; part++) sum += parts[part * N_SUMS];
        row += first_row;
        if (bias) sum += bias[row];
        float *y = out + (uint64_t)c * a.out_stride + row;
        *y = a.add ? *y + sum : sum;
    }
}

// ---- host -------------------------------------------------------------------------------------------------------------------

struct grid_type {
    enum atsi_dtype dtype;
    uint32_t n_words;
    void (*build)(uint32_t *words);
    void (*product)(const struct grid_args *a, const uint32_t *words, struct launch_stream stream);
    cudaError_t (*prepare)(int max_shared_bytes);
};

template <class S> uint32_t partial_bytes(const grid_cut &cut) {
    return cut.n_groups * cut.n_parts * S::ROWS * S::N_IN * (uint32_t)sizeof(float);
}

constexpr uint32_t PARTIAL_BYTES_MAX = 16384;

// The parts of a row with which the warps of a block are done first: every part costs about half a piece more for its sum over lanes.
template <class S> uint32_t choose_parts(uint32_t n_groups, uint32_t n_pieces) {
    uint32_t best = 1, best_cost = UINT32_MAX;
    for (uint32_t n = 1; n <= n_pieces && n <= S::WARPS; n++) {
        uint32_t cost = ceil_div(n_groups * n, S::WARPS) * (2 * ceil_div(n_pieces, n) + 1);
        if (partial_bytes<S>({n_groups, n}) <= PARTIAL_BYTES_MAX && cost < best_cost) {
            best = n;
            best_cost = cost;
        }
    }
    return best;
}

template <class G, class S, int SHIFT> uint32_t shared_bytes(const struct grid_args *a, const grid_cut &cut) {
    return table_bytes<G, SHIFT> + input_bytes<S>(a->n_cols) + partial_bytes<S>(cut);
}

// y of the launch grid.
template <class S> uint32_t n_input_blocks(const struct grid_args *a) {
    return a->experts.ids ? a->n_in : ceil_div(a->n_in, S::N_IN);
}

template <class S> grid_cut cut_of(const struct grid_args *a) {
    constexpr uint32_t GROUPS_MAX = PARTIAL_BYTES_MAX / (S::ROWS * S::N_IN * sizeof(float)); // of a block
    uint32_t n_all = ceil_div(a->n_out, S::ROWS), n_x = (uint32_t)a->n_multiprocessors / n_input_blocks<S>(a);
    if (n_x == 0) n_x = 1;
    grid_cut cut;
    cut.n_groups = ceil_div(n_all, n_x * ceil_div(ceil_div(n_all, n_x), GROUPS_MAX));
    cut.n_parts = choose_parts<S>(cut.n_groups, ceil_div(a->n_cols / 256, S::BLOCKS));
    return cut;
}

template <class G, class S, int SHIFT>
void launch(const struct grid_args *a, const uint32_t *words, const grid_cut &cut, struct launch_stream stream) {
    dim3 grid(ceil_div(a->n_out, cut.n_groups * S::ROWS), n_input_blocks<S>(a));
    launch_overlapping(grid_kernel<G, S, SHIFT>, grid, S::WARPS * WARP, shared_bytes<G, S, SHIFT>(a, cut), stream, *a,
                       words, cut);
}

// False where the card's shared memory is too small for the input row.
template <class G, class S> bool run(const struct grid_args *a, const uint32_t *words, struct launch_stream stream) {
    constexpr int MANY = G::SHIFT_MAX;
    grid_cut cut = cut_of<S>(a);
    uint64_t weight_bytes = (uint64_t)cut.n_groups * S::ROWS * (a->n_cols / 256) * G::BYTES; // of a block
    uint32_t room = (uint32_t)a->max_shared_bytes;
    // Copies of the codebook must be worth the time that they take.
    if (shared_bytes<G, S, MANY>(a, cut) <= room && table_bytes<G, MANY> <= 2 * weight_bytes)
        launch<G, S, MANY>(a, words, cut, stream);
    else if (shared_bytes<G, S, FEW>(a, cut) <= room)
        launch<G, S, FEW>(a, words, cut, stream);
    else
        return false;
    return true;
}

template <class G> void product(const struct grid_args *a, const uint32_t *words, struct launch_stream stream) {
    // What many_rows needs fits every card.
    static_assert(table_bytes<G, FEW> + PARTIAL_BYTES_MAX <= 65536, "compute capability 7.5");
    bool done = false;
    if (a->experts.ids || a->n_in == 1)
        done = a->n_cols / 256 < one_row::BLOCKS ? run<G, narrow_row>(a, words, stream)
                                                 : run<G, one_row>(a, words, stream);
    if (!done) run<G, many_rows>(a, words, stream);
}

template <class G> cudaError_t load(int max_shared_bytes) {
    static const void *const KERNELS[] = {
        (const void *)grid_kernel<G, one_row, G::SHIFT_MAX>,    (const void *)grid_kernel<G, one_row, FEW>,
        (const void *)grid_kernel<G, narrow_row, G::SHIFT_MAX>, (const void *)grid_kernel<G, narrow_row, FEW>,
        (const void *)grid_kernel<G, many_rows, G::SHIFT_MAX>,  (const void *)grid_kernel<G, many_rows, FEW>};
    cudaError_t status = load_kernels(KERNELS);
    for (const void *kernel : KERNELS)
        if (status == cudaSuccess)
            status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, max_shared_bytes);
    return status;
}

template <class G> constexpr uint32_t n_words = G::ENTRIES + G::SIGNS *G::SIGN_WORDS;
template <class G> struct grid_type type_of(void) { return {G::DTYPE, n_words<G>, G::build, product<G>, load<G>}; }

// In the order in which their codebooks stand in device memory.
struct grid_types {
    enum {
        N = 7,
        WORDS_MAX = 2048
    };
    struct grid_type type[N] = {type_of<iq2_xxs>(), type_of<iq2_xs>(), type_of<iq2_s>(), type_of<iq3_xxs>(),
                                type_of<iq3_s>(),   type_of<iq1_s>(),  type_of<iq1_m>()};
};
static_assert(n_words<iq2_s> <= grid_types::WORDS_MAX && n_words<iq1> <= grid_types::WORDS_MAX,
              "the largest codebooks");

} // namespace

bool grid_supported(enum atsi_dtype dtype) {
    const grid_types types;
    for (const struct grid_type &t : types.type)
        if (t.dtype == dtype) return true;
    return false;
}

const uint32_t *grid_codebook(enum atsi_dtype dtype, const uint8_t *tables) {
    const grid_types types;
    const uint32_t *words = (const uint32_t *)tables;
    for (const struct grid_type &t : types.type) {
        if (t.dtype == dtype) break;
        words += t.n_words;
    }
    return words;
}

void grid_product(enum atsi_dtype dtype, const struct grid_args *a, struct launch_stream stream) {
    const grid_types types;
    for (const struct grid_type &t : types.type)
        if (t.dtype == dtype) t.product(a, grid_codebook(dtype, a->tables), stream);
}

cudaError_t grid_prepare(enum atsi_dtype dtype, int max_shared_bytes) {
    const grid_types types;
    for (const struct grid_type &t : types.type)
        if (t.dtype == dtype) return t.prepare(max_shared_bytes);
    return cudaSuccess;
}

uint64_t grid_tables_bytes(void) {
    const grid_types types;
    uint64_t bytes = 0;
    for (const struct grid_type &t : types.type) bytes += t.n_words * sizeof(uint32_t);
    return bytes;
}

cudaError_t grid_tables_upload(uint8_t *dev) {
    const grid_types types;
    cudaError_t status = cudaSuccess;
    for (const struct grid_type &t : types.type) {
        uint32_t words[grid_types::WORDS_MAX];
        t.build(words);
        if (status == cudaSuccess) status = cudaMemcpy(dev, words, t.n_words * sizeof *words, cudaMemcpyHostToDevice);
        dev += t.n_words * sizeof *words;
    }
    return status;
}
