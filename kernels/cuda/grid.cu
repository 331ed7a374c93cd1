// grid.cu: products with the grid types. Their blocks of 256 weights are 32 octets, which are an entry (or two) of a codebook with signs,
// so lane l of a warp opens octet l of one block after the other and multiplies it by dp4a; codebooks lie in shared memory.
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/grid.h"
#include "kernels/cuda/rows.cuh"

extern "C" {
#include "formats/blocks.h"
#include "kernels/cpu/quant_tables.h"
}

namespace {

// ---- blocks (formats/blocks.h states the formats) ---------------------------------------------------------------------------

constexpr uint32_t EVERY_BYTE = 0x01010101u;

// Blocks start on any even byte.
__device__ inline uint32_t half_word(const uint8_t *p) { return *(const uint16_t *)p; }
__device__ inline uint32_t word(const uint8_t *p) { return half_word(p) | half_word(p + 2) << 16; }
__device__ inline float half_float(const uint8_t *p) { return __half2float(*(const __half *)p); }
__device__ inline uint32_t nibble(const uint8_t *bytes, int i) { return bytes[i / 2] >> 4 * (i % 2) & 15; }

// Four magnitudes, all at least 1, with the signs of four bits.
__device__ inline uint32_t with_signs(uint32_t magnitudes, uint32_t four) {
    uint32_t ones = (four & 15) * 0x00204081u & EVERY_BYTE;
    return (magnitudes ^ ones * 0xff) + ones;
}
__device__ inline uint2 octet_with_signs(uint2 magnitudes, uint32_t eight) {
    return make_uint2(with_signs(magnitudes.x, eight), with_signs(magnitudes.y, eight >> 4));
}
// Seven bits and their parity.
__device__ inline uint32_t even_signs(uint32_t code) { return code | (uint32_t)(__popc(code) & 1) << 7; }
// 8 g + 1 or 8 g - 1 from entries of 128 + 8 g.
__device__ inline uint2 shifted(uint2 entry, bool down) {
    uint32_t step = down ? 0u - EVERY_BYTE : EVERY_BYTE; // no byte is near its ends
    return make_uint2((entry.x + step) ^ 0x80808080u, (entry.y + step) ^ 0x80808080u);
}

// A type: `open` gives octet l of a block as int8 and its scale; the codebook has ENTRIES of type `entry`.
struct iq2_xxs {
    static constexpr enum atsi_dtype DTYPE = ATSI_IQ2_XXS;
    typedef uint2 entry;
    static constexpr int ENTRIES = 256, BYTES = sizeof(struct atsi_block_iq2_xxs);
    static const void *table() { return ATSI_IQ2_XXS_GRID; }
    __device__ static uint2 open(const uint8_t *b, int l, const entry *grid, float &scale) {
        uint32_t rest = word(b + 2 + 8 * (l / 4) + 4);
        scale = half_float(b) * (0.5f + (float)(rest >> 28)) * 0.25f;
        return octet_with_signs(grid[b[2 + 8 * (l / 4) + l % 4]], even_signs(rest >> 7 * (l % 4) & 127));
    }
};

struct iq2_xs {
    static constexpr enum atsi_dtype DTYPE = ATSI_IQ2_XS;
    typedef uint2 entry;
    static constexpr int ENTRIES = 512, BYTES = sizeof(struct atsi_block_iq2_xs);
    static const void *table() { return ATSI_IQ2_XS_GRID; }
    __device__ static uint2 open(const uint8_t *b, int l, const entry *grid, float &scale) {
        uint32_t q = half_word(b + 2 + 2 * l);
        scale = half_float(b) * (0.5f + (float)nibble(b + 66, l / 2)) * 0.25f;
        return octet_with_signs(grid[q & 511], even_signs(q >> 9));
    }
};

struct iq2_s {
    static constexpr enum atsi_dtype DTYPE = ATSI_IQ2_S;
    typedef uint2 entry;
    static constexpr int ENTRIES = 1024, BYTES = sizeof(struct atsi_block_iq2_s);
    static const void *table() { return ATSI_IQ2_S_GRID; }
    __device__ static uint2 open(const uint8_t *b, int l, const entry *grid, float &scale) {
        uint32_t top = b[66 + l / 4] >> 2 * (l % 4) & 3;
        scale = half_float(b) * (0.5f + (float)nibble(b + 74, l / 2)) * 0.25f;
        return octet_with_signs(grid[b[2 + l] | top << 8], b[34 + l]);
    }
};

struct iq3_xxs {
    static constexpr enum atsi_dtype DTYPE = ATSI_IQ3_XXS;
    typedef uint32_t entry;
    static constexpr int ENTRIES = 256, BYTES = sizeof(struct atsi_block_iq3_xxs);
    static const void *table() { return ATSI_IQ3_XXS_GRID; }
    __device__ static uint2 open(const uint8_t *b, int l, const entry *grid, float &scale) {
        uint32_t rest = word(b + 66 + 4 * (l / 4)), two = half_word(b + 2 + 2 * l);
        scale = half_float(b) * (0.5f + (float)(rest >> 28)) * 0.5f;
        return octet_with_signs(make_uint2(grid[two & 255], grid[two >> 8]), even_signs(rest >> 7 * (l % 4) & 127));
    }
};

struct iq3_s {
    static constexpr enum atsi_dtype DTYPE = ATSI_IQ3_S;
    typedef uint32_t entry;
    static constexpr int ENTRIES = 512, BYTES = sizeof(struct atsi_block_iq3_s);
    static const void *table() { return ATSI_IQ3_S_GRID; }
    __device__ static uint2 open(const uint8_t *b, int l, const entry *grid, float &scale) {
        uint32_t two = half_word(b + 2 + 2 * l), top = b[66 + l / 4] >> 2 * (l % 4);
        scale = half_float(b) * (float)(1 + 2 * nibble(b + 106, l / 4));
        uint2 magnitudes = make_uint2(grid[(two & 255) | (top & 1) << 8], grid[two >> 8 | (top & 2) << 7]);
        return octet_with_signs(magnitudes, b[74 + l]);
    }
};

struct iq1_s {
    static constexpr enum atsi_dtype DTYPE = ATSI_IQ1_S;
    typedef uint2 entry;
    static constexpr int ENTRIES = 2048, BYTES = sizeof(struct atsi_block_iq1_s);
    static const void *table() { return ATSI_IQ1_GRID; }
    __device__ static uint2 open(const uint8_t *b, int l, const entry *grid, float &scale) {
        uint32_t high = half_word(b + 34 + 2 * (l / 4));
        scale = half_float(b) * (float)(2 * (high >> 12 & 7) + 1) * 0.125f;
        return shifted(grid[b[2 + l] | (high >> 3 * (l % 4) & 7) << 8], high >> 15);
    }
};

struct iq1_m {
    static constexpr enum atsi_dtype DTYPE = ATSI_IQ1_M;
    typedef uint2 entry;
    static constexpr int ENTRIES = 2048, BYTES = sizeof(struct atsi_block_iq1_m);
    static const void *table() { return ATSI_IQ1_GRID; }
    __device__ static uint2 open(const uint8_t *b, int l, const entry *grid, float &scale) {
        uint32_t high = b[32 + l / 2] >> 4 * (l % 2), low = word(b + 48), top = word(b + 52);
        uint32_t d = (low >> 12 & 15) | (low >> 28) << 4 | (top >> 12 & 15) << 8 | (top >> 28) << 12;
        uint32_t scales = half_word(b + 48 + 2 * (l / 8));
        scale = __half2float(__ushort_as_half((unsigned short)d)) * (float)(2 * (scales >> 3 * (l / 2 % 4) & 7) + 1) *
                0.125f;
        return shifted(grid[b[l] | (high & 7) << 8], high & 8);
    }
};

static_assert(offsetof(struct atsi_block_iq2_xs, scales) == 66 && offsetof(struct atsi_block_iq2_s, qh) == 66 &&
                  offsetof(struct atsi_block_iq2_s, scales) == 74 && offsetof(struct atsi_block_iq3_s, qh) == 66 &&
                  offsetof(struct atsi_block_iq3_s, signs) == 74 && offsetof(struct atsi_block_iq3_s, scales) == 106 &&
                  offsetof(struct atsi_block_iq1_s, qh) == 34 && offsetof(struct atsi_block_iq1_m, qh) == 32 &&
                  offsetof(struct atsi_block_iq1_m, scales) == 48,
              "places within blocks");

// ---- products ---------------------------------------------------------------------------------------------------------------

// A warp computes 2 weight rows at a time, for up to 8 input rows.
constexpr int GRID_WARPS = 8, GRID_ROWS = 2, GRID_IN = 8;

// Blocks take rows of weights in turn, so that codebooks are read once a block. y: 8 input rows, or a pair (experts).
template <class G, int N_IN>
__global__ void __launch_bounds__(GRID_WARPS *WARP) grid_kernel(grid_args a, const typename G::entry *table) {
    begin_kernel();
    __shared__ typename G::entry grid[G::ENTRIES];
    for (int i = threadIdx.x; i < G::ENTRIES; i += GRID_WARPS * WARP) grid[i] = table[i];
    __syncthreads();
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    uint32_t first_in = blockIdx.y * N_IN, n_blocks = a.n_cols / 256;
    if (a.experts.ids) {
        int expert = expert_of(a.experts, blockIdx.y);
        if (expert < 0) return;
        a.weight += (uint64_t)expert * a.expert_bytes;
        if (a.bias) a.bias += (uint64_t)expert * a.n_out;
        a.out = out_of_pair(a.experts, blockIdx.y, a.out, a.out_stride, a.n_out);
        first_in = blockIdx.y / a.experts.in_divisor;
    } else {
        a.out += (uint64_t)first_in * a.out_stride;
    }
    uint32_t n_in = a.experts.ids ? 1 : min((uint32_t)N_IN, a.n_in - first_in);
    for (uint32_t row = (blockIdx.x * GRID_WARPS + warp) * GRID_ROWS; row < a.n_out;
         row += gridDim.x * GRID_WARPS * GRID_ROWS) {
        const uint8_t *weight[GRID_ROWS];
#pragma unroll
        for (int r = 0; r < GRID_ROWS; r++)
            weight[r] = a.weight + (uint64_t)min(row + r, a.n_out - 1) * n_blocks * G::BYTES;
        float acc[GRID_ROWS][N_IN] = {};
#pragma unroll 2
        for (uint32_t b = 0; b < n_blocks; b++) {
            uint2 x[N_IN];
            float d[N_IN];
#pragma unroll
            for (int c = 0; c < N_IN; c++) {
                uint64_t in = first_in + min((uint32_t)c, n_in - 1);
                x[c] = *(const uint2 *)(a.in.q + in * a.n_cols + 256 * b + 8 * lane);
                d[c] = a.in.meta[in * (a.n_cols / 32) + 8 * b + lane / 4].d;
            }
#pragma unroll
            for (int r = 0; r < GRID_ROWS; r++) {
                float scale;
                uint2 q = G::open(weight[r] + (uint64_t)b * G::BYTES, lane, grid, scale);
#pragma unroll
                for (int c = 0; c < N_IN; c++) {
                    int sum = __dp4a((int)q.y, (int)x[c].y, __dp4a((int)q.x, (int)x[c].x, 0));
                    acc[r][c] = fmaf((float)sum, scale * d[c], acc[r][c]);
                }
            }
        }
#pragma unroll
        for (int r = 0; r < GRID_ROWS; r++)
#pragma unroll
            for (int c = 0; c < N_IN; c++) {
                float sum = lanes_sum(acc[r][c]);
                if (lane != 0 || row + r >= a.n_out || c >= (int)n_in) continue;
                if (a.bias) sum += a.bias[row + r];
                float *y = a.out + (uint64_t)c * a.out_stride + row + r;
                *y = a.add ? *y + sum : sum;
            }
    }
}

// ---- host -------------------------------------------------------------------------------------------------------------------

struct grid_type {
    enum atsi_dtype dtype;
    const void *table;
    uint32_t table_bytes;
    void (*product)(const struct grid_args *a, const uint8_t *table, struct launch_stream stream);
    cudaError_t (*prepare)(void);
};

template <class G, int N_IN> void run(const struct grid_args *a, const uint8_t *table, struct launch_stream stream) {
    constexpr uint32_t BLOCKS_RESIDENT = 4; // of a multiprocessor
    uint32_t n_blocks = ceil_div(a->n_out, GRID_WARPS * GRID_ROWS),
             n_resident = BLOCKS_RESIDENT * (uint32_t)a->n_multiprocessors, n_y = ceil_div(a->n_in, N_IN);
    dim3 grid(n_blocks < n_resident ? n_blocks : n_resident, n_y);
    launch_overlapping(grid_kernel<G, N_IN>, grid, GRID_WARPS * WARP, 0, stream, *a, (const typename G::entry *)table);
}

template <class G> void product(const struct grid_args *a, const uint8_t *table, struct launch_stream stream) {
    if (a->experts.ids || a->n_in == 1)
        run<G, 1>(a, table, stream);
    else
        run<G, GRID_IN>(a, table, stream);
}

template <class G> cudaError_t load(void) {
    static const void *const KERNELS[] = {(const void *)grid_kernel<G, 1>, (const void *)grid_kernel<G, GRID_IN>};
    return load_kernels(KERNELS);
}

template <class G> constexpr uint32_t table_bytes = G::ENTRIES * sizeof(typename G::entry);
template <class G> struct grid_type type_of(void) {
    return {G::DTYPE, G::table(), table_bytes<G>, product<G>, load<G>};
}

// In the order in which their codebooks stand in device memory.
struct grid_types {
    enum {
        N = 7
    };
    struct grid_type type[N] = {type_of<iq2_xxs>(), type_of<iq2_xs>(), type_of<iq2_s>(), type_of<iq3_xxs>(),
                                type_of<iq3_s>(),   type_of<iq1_s>(),  type_of<iq1_m>()};
};

} // namespace

bool grid_supported(enum atsi_dtype dtype) {
    const grid_types types;
    for (const struct grid_type &t : types.type)
        if (t.dtype == dtype) return true;
    return false;
}

void grid_product(enum atsi_dtype dtype, const struct grid_args *a, struct launch_stream stream) {
    const grid_types types;
    const uint8_t *table = a->tables;
    for (const struct grid_type &t : types.type) {
        if (t.dtype == dtype) t.product(a, table, stream);
        table += t.table_bytes;
    }
}

cudaError_t grid_prepare(enum atsi_dtype dtype) {
    const grid_types types;
    for (const struct grid_type &t : types.type)
        if (t.dtype == dtype) return t.prepare();
    return cudaSuccess;
}

uint64_t grid_tables_bytes(void) {
    const grid_types types;
    uint64_t bytes = 0;
    for (const struct grid_type &t : types.type) bytes += t.table_bytes;
    return bytes;
}

cudaError_t grid_tables_upload(uint8_t *dev) {
    const grid_types types;
    cudaError_t status = cudaSuccess;
    for (const struct grid_type &t : types.type) {
        if (status == cudaSuccess) status = cudaMemcpy(dev, t.table, t.table_bytes, cudaMemcpyHostToDevice);
        dev += t.table_bytes;
    }
    return status;
}
