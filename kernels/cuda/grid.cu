// grid.cu: products of several input rows with the grid types (grid_types.cuh), by dp4a. One input row: grid_row.cu; many: grid_matrix.cu.
//
// Bound by instructions: what a lane does for an octet must be little. So scales are worked out once, a lane each for a row and a block, and
// handed out by a shuffle; an octet is loaded while its predecessor is multiplied; and no look-up waits for a bank.
#include "kernels/cuda/grid.h"
#include "kernels/cuda/grid_types.cuh"
#include "kernels/cuda/mma.cuh"

namespace {

constexpr int N_IN = 8, ROWS = 2,
              WARPS = 16; // a warp takes 2 weight rows times a block of columns at a time, for 8 input rows
constexpr int N_SUMS = ROWS * N_IN;

// How its work is cut: a block takes n_groups groups of ROWS weight rows, and a warp one of n_parts parts of their columns at a time.
struct grid_cut {
    uint32_t n_groups, n_parts;
};

// A block of weights: the lane's octet, and a scale that it works out.
template <class G> struct block_data {
    typename G::octet octet;
    typename G::scale scale;
    __device__ void load(const uint8_t *block, int lane) {
        octet.load(block, lane);
        scale.load(block, lane % G::SCALES);
    }
};

// The input rows of a block of columns: a lane's codes, their sums, and their units.
template <class G> struct block_inputs {
    uint2 x[N_IN];
    int sum[N_IN];
    float d[N_IN];
    // Rows n_cols codes and n_cols / 32 records apart; those behind n_in repeat the last.
    __device__ void load(const int8_t *codes, const act_meta *records, uint32_t n_cols, uint32_t n_in, uint32_t block,
                         int lane) {
#pragma unroll
        for (int c = 0; c < N_IN; c++) {
            uint32_t row = min((uint32_t)c, n_in - 1);
            x[c] = *(const uint2 *)(codes + row * n_cols + 256 * block + 8 * lane);
            sum[c] = 0;
            if (G::BIASED) sum[c] = __dp4a((int)x[c].y, (int)EVERY_BYTE, __dp4a((int)x[c].x, (int)EVERY_BYTE, 0));
            d[c] = records[row * (n_cols / 32) + 8 * block + lane / 4].d;
        }
    }
};

// acc[c] += the block's products.
template <class G>
__device__ inline void multiply(float *acc, const block_data<G> &w, const block_inputs<G> &in,
                                const typename G::lookup &lookup, int lane) {
    constexpr int OF_SCALE = WARP / G::SCALES; // octets
    float scale = w.scale.value(lane % G::SCALES);
    uint32_t word = 0;
    if constexpr (G::HAS_WORD) word = __shfl_sync(ALL_LANES, w.scale.word(), lane / OF_SCALE);
    float unit = __shfl_sync(ALL_LANES, scale, lane / OF_SCALE);
    uint2 q = G::open(w.octet, word, lookup, lane);
    int bias = 0;
    if constexpr (G::BIASED) bias = G::bias(w.octet, word, lane);
#pragma unroll
    for (int c = 0; c < N_IN; c++) {
        int start = G::BIASED ? bias * in.sum[c] + SUM_ZERO : SUM_ZERO;
        int sum = __dp4a((int)q.y, (int)in.x[c].y, __dp4a((int)q.x, (int)in.x[c].x, start));
        acc[c] = fmaf(sum_value(sum), unit * in.d[c], acc[c]);
    }
}

// x: a share of the weight rows. y: 8 input rows. words: G::build's. SHIFT: of grid_table.
template <class G, int SHIFT>
__global__ void __launch_bounds__(WARPS *WARP, 1)
    grid_kernel(const __grid_constant__ grid_args a, const uint32_t *words, grid_cut cut) {
    start_successor();
    extern __shared__ __align__(16) uint8_t dynamic[];
    fill_table<G, SHIFT>(dynamic, words);
    wait_for_predecessor();
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    uint32_t first_in = blockIdx.y * N_IN, n_in = min((uint32_t)N_IN, a.n_in - first_in);
    float *out = a.out + (uint64_t)first_in * a.out_stride;
    const int8_t *codes = a.in.q + (uint64_t)first_in * a.n_cols;
    const act_meta *records = a.in.meta + (uint64_t)first_in * (a.n_cols / 32);
    __syncthreads();
    float *partial = (float *)(dynamic + table_bytes<G, SHIFT>); // [group][part][row][input]
    const typename G::lookup lookup({dynamic, SHIFT}, lane);
    uint32_t n_blocks = a.n_cols / 256, row_bytes = n_blocks * G::BYTES, first_row = blockIdx.x * cut.n_groups * ROWS;
    uint32_t n_rows = first_row < a.n_out ? min(cut.n_groups * ROWS, a.n_out - first_row) : 0;
    uint32_t n_items = (n_rows + ROWS - 1) / ROWS * cut.n_parts;
    for (uint32_t i = warp; i < n_items; i += WARPS) {
        uint32_t row = i / cut.n_parts * ROWS, part = i % cut.n_parts;
        uint32_t from = n_blocks * part / cut.n_parts, to = n_blocks * (part + 1) / cut.n_parts;
        float acc[N_SUMS] = {};
        const uint8_t *rows[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            rows[r] = a.weight + (uint64_t)(first_row + min(row + r, n_rows - 1)) * row_bytes;
        block_data<G> next;
        next.load(rows[0] + from * G::BYTES, lane);
#pragma unroll 1
        for (uint32_t block = from; block < to; block++) {
            block_inputs<G> in;
            uint32_t block_after = min(block + 1, to - 1);
            in.load(codes, records, a.n_cols, n_in, block, lane);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                block_data<G> w = next;
                if (r + 1 < ROWS)
                    next.load(rows[r + 1] + block * G::BYTES, lane);
                else
                    next.load(rows[0] + block_after * G::BYTES, lane);
                multiply<G>(acc + r * N_IN, w, in, lookup, lane);
            }
        }
        float sum = sums_of_lanes<WARP>(acc);
        if (lane % (WARP / N_SUMS) == 0) partial[i * N_SUMS + lane / (WARP / N_SUMS)] = sum;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n_rows * N_IN; i += WARPS * WARP) {
        uint32_t row = i / N_IN, c = i % N_IN;
        if (c >= n_in) continue;
        const float *parts = partial + row / ROWS * cut.n_parts * N_SUMS + row % ROWS * N_IN + c;
        float sum = 0.0f;
        for (uint32_t part = 0; part < cut.n_parts; part++) sum += parts[part * N_SUMS];
        row += first_row;
        if (a.bias) sum += a.bias[row];
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

constexpr uint32_t PARTIAL_BYTES_MAX = 16384;

uint32_t partial_bytes(const grid_cut &cut) { return cut.n_groups * cut.n_parts * N_SUMS * (uint32_t)sizeof(float); }

// The parts of a row with which the warps of a block are done first: every part costs about half a block more for its sum over lanes.
uint32_t choose_parts(uint32_t n_groups, uint32_t n_blocks) {
    uint32_t best = 1, best_cost = UINT32_MAX;
    for (uint32_t n = 1; n <= n_blocks && n <= WARPS; n++) {
        uint32_t cost = ceil_div(n_groups * n, WARPS) * (2 * ceil_div(n_blocks, n) + 1);
        if (partial_bytes({n_groups, n}) <= PARTIAL_BYTES_MAX && cost < best_cost) {
            best = n;
            best_cost = cost;
        }
    }
    return best;
}

grid_cut cut_of(const struct grid_args *a) {
    constexpr uint32_t GROUPS_MAX = PARTIAL_BYTES_MAX / (N_SUMS * sizeof(float)); // of a block
    uint32_t n_all = ceil_div(a->n_out, ROWS), n_x = (uint32_t)a->n_multiprocessors / ceil_div(a->n_in, N_IN);
    if (n_x == 0) n_x = 1;
    grid_cut cut;
    cut.n_groups = ceil_div(n_all, n_x * ceil_div(ceil_div(n_all, n_x), GROUPS_MAX));
    cut.n_parts = choose_parts(cut.n_groups, a->n_cols / 256);
    return cut;
}

template <class G, int SHIFT>
void launch(const struct grid_args *a, const uint32_t *words, const grid_cut &cut, struct launch_stream stream) {
    dim3 grid(ceil_div(a->n_out, cut.n_groups * ROWS), ceil_div(a->n_in, N_IN));
    launch_overlapping(grid_kernel<G, SHIFT>, grid, WARPS * WARP, table_bytes<G, SHIFT> + partial_bytes(cut), stream,
                       *a, words, cut);
}

template <class G> void product(const struct grid_args *a, const uint32_t *words, struct launch_stream stream) {
    // What this needs fits every card.
    static_assert(table_bytes<G, FEW> + PARTIAL_BYTES_MAX <= 65536, "compute capability 7.5");
    constexpr int MANY = G::SHIFT_MAX;
    grid_cut cut = cut_of(a);
    uint64_t weight_bytes = (uint64_t)cut.n_groups * ROWS * (a->n_cols / 256) * G::BYTES; // of a block
    // Copies of the codebook must be worth the time that they take.
    if (table_bytes<G, MANY> + partial_bytes(cut) <= (uint32_t)a->max_shared_bytes &&
        table_bytes<G, MANY> <= 2 * weight_bytes)
        launch<G, MANY>(a, words, cut, stream);
    else
        launch<G, FEW>(a, words, cut, stream);
}

template <class G> cudaError_t load(int max_shared_bytes) {
    static const void *const KERNELS[] = {(const void *)grid_kernel<G, G::SHIFT_MAX>,
                                          (const void *)grid_kernel<G, FEW>};
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

bool grid_product(enum atsi_dtype dtype, const struct grid_args *a, struct launch_stream stream) {
    const grid_types types;
    const uint32_t *words = grid_codebook(dtype, a->tables);
    if ((a->experts.ids || a->n_in == 1) && grid_row(dtype, a, words, stream)) return true;
    if (a->experts.ids) return false;
    for (const struct grid_type &t : types.type)
        if (t.dtype == dtype) t.product(a, words, stream);
    return true;
}

cudaError_t grid_prepare(enum atsi_dtype dtype, int max_shared_bytes) {
    const grid_types types;
    for (const struct grid_type &t : types.type)
        if (t.dtype == dtype) {
            cudaError_t status = grid_row_prepare(dtype, max_shared_bytes);
            return status == cudaSuccess ? t.prepare(max_shared_bytes) : status;
        }
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
