// tiled_vector.cuh: tiled weights times up to 8 input rows.
//
// The matrix instruction has 8 columns. With fewer input rows the columns that are left take further spans: column n stands
// for input row n / SHARE and span n % SHARE of a set of SHARE = 8 / N_IN spans, and the instruction for span s of the set
// gets zeros in all columns but those of span s. So its sums come out apart, every lane has its own to scale, and a group of 8
// spans is scaled N_IN times instead of 8 times.
#ifndef ATSI_KERNELS_CUDA_TILED_VECTOR_CUH
#define ATSI_KERNELS_CUDA_TILED_VECTOR_CUH

#include "kernels/cuda/tiled_common.cuh"

constexpr int GROUP_SPANS = 8, VECTOR_WARPS_MAX = 16;

// A lane's weights of one group of 8 spans: words, and scales of spans 2t and 2t + 1. A last group may be cut short, where blocks are
// of one span: then the last span is repeated, and the inputs count as zeros.
template <class W> struct group_weights {
    typename W::words words[GROUP_SPANS / W::STEP_SPANS];
    typename W::packed_scales scales[2];

    __device__ void load(const uint8_t *tile, uint32_t first, uint32_t n_spans, int g, int t) {
#pragma unroll
        for (int i = 0; i < GROUP_SPANS / W::STEP_SPANS; i++) {
            uint32_t span = W::BLOCK_SPANS == 1 ? min(first + i, n_spans - 1) : first + i * W::STEP_SPANS;
            words[i].load(block_of<W>(tile, span), W::BLOCK_SPANS == 1 ? 0 : i, g, t);
        }
#pragma unroll
        for (int c = 0; c < 2; c++) {
            uint32_t span = W::BLOCK_SPANS == 1 ? min(first + 2 * t + c, n_spans - 1) : first + 2 * t + c;
            scales[c].load(block_of<W>(tile, span), W::BLOCK_SPANS == 1 ? 0 : 2 * t + c, g);
        }
    }

    // The sums of SHARE spans from `first` on (within the group); b: the lane's input codes.
    template <int SHARE> __device__ void multiply(span_sums<W> &sums, int first, const uint32_t b[2], int g) const {
#pragma unroll
        for (int s = 0; s < SHARE; s++) {
            int i = first + s;
            uint32_t codes[4];
            words[i / W::STEP_SPANS].codes(i % W::STEP_SPANS, codes);
            bool mine = SHARE == 1 || g % SHARE == s;
            sums.multiply(codes, mine ? b[0] : 0, mine ? b[1] : 0, s > 0);
        }
    }
};

// The input codes and records that a lane needs for one set of spans.
template <class W, int N_IN> struct set_inputs {
    static constexpr int SHARE = GROUP_SPANS / N_IN;
    uint32_t b[2];
    act_meta meta[2];

    // first: the set's first span. Spans behind the last one count as zeros.
    __device__ void load(const tiled_args &a, uint32_t in_row, uint32_t first, uint32_t n_spans, int g, int t) {
        uint32_t last_in = a.n_in - 1, last = n_spans - 1, b_span = first + g % SHARE;
        const int8_t *codes = a.in.q + (uint64_t)(in_row + min((uint32_t)(g / SHARE), last_in)) * a.n_cols +
                              32 * min(b_span, last) + 4 * t;
        b[0] = *(const uint32_t *)codes;
        b[1] = *(const uint32_t *)(codes + 16);
        if (b_span > last) b[0] = b[1] = 0;
#pragma unroll
        for (int c = 0; c < 2; c++) {
            uint32_t span = first + (2 * t + c) % SHARE, in = in_row + min((uint32_t)((2 * t + c) / SHARE), last_in);
            meta[c] = a.in.meta[(uint64_t)in * n_spans + min(span, last)];
            if (span > last) meta[c].sum[0] = meta[c].sum[1] = 0;
        }
    }
};

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

// acc[row][column] += a group's part; the two columns are of one input row unless there are 8.
template <class W, int N_IN>
__device__ inline void multiply_set(float acc[2][2], const group_weights<W> &weights, const span_scales unpacked[2],
                                    const set_inputs<W, N_IN> &in, int q, int g, int t) {
    constexpr int SHARE = GROUP_SPANS / N_IN;
    span_sums<W> sums;
    weights.template multiply<SHARE>(sums, q * SHARE, in.b, g);
    span_scales s = scales_of<W, N_IN>(unpacked, q, 0, t);
#pragma unroll
    for (int c = 0; c < 2; c++) {
        if (c == 1 && SHARE > 1) s = scales_of<W, N_IN>(unpacked, q, 1, t);
        column<W> input;
        input.set(in.meta[c]);
#pragma unroll
        for (int row = 0; row < 2; row++)
            acc[row][c] = scaled<W>(acc[row][c], sums, 2 * row + c, s.scale[row], s.min[row], input);
    }
}

// A block computes one tile of 16 weight rows, its warps shares of the columns. x: tile, y: pair (experts). N_IN: 1, 2, 4 or 8;
// input rows behind a.n_in repeat the last and are not written. AHEAD: weights of the next group are loaded before this one is
// multiplied, for matrices through which a warp streams for long; else more warps fit and hide the latency.
template <class W, int N_IN, bool AHEAD>
__global__ void __launch_bounds__(VECTOR_WARPS_MAX *WARP, N_IN == 1 && !AHEAD ? 2 : 1) vector_kernel(tiled_args a) {
    constexpr int SHARE = GROUP_SPANS / N_IN;
    __shared__ float partial[VECTOR_WARPS_MAX][ATSI_TILE_ROWS * N_IN];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, n_warps = blockDim.x / WARP, g = lane / 4, t = lane % 4;
    uint32_t n_spans = a.n_cols / 32, in_row = 0, pair = blockIdx.y;
    start_successor();
    if (a.experts.ids) {
        wait_for_predecessor();
        int expert = expert_of(a.experts, pair);
        if (expert < 0) return;
        move_to_expert(a, expert);
        in_row = pair / a.experts.in_divisor;
        a.out = out_of_pair(a.experts, pair, a.out, a.out_stride, a.n_out);
    }
    const uint8_t *tile = a.weight + (uint64_t)blockIdx.x * (n_spans / W::BLOCK_SPANS) * W::TILE_BYTES;
    uint32_t n_groups = (n_spans + GROUP_SPANS - 1) / GROUP_SPANS, group = warp;
    float acc[2][2] = {};
    group_weights<W> now, next;
    now.load(tile, group * GROUP_SPANS, n_spans, g,
             t); // no warp is without a group; weights do not depend on other kernels
    wait_for_predecessor();
    while (true) {
        uint32_t after = group + n_warps;
        if (AHEAD && after < n_groups) next.load(tile, after * GROUP_SPANS, n_spans, g, t);
        span_scales unpacked[2];
        now.scales[0].unpack(unpacked[0]);
        now.scales[1].unpack(unpacked[1]);
#pragma unroll
        for (int q = 0; q < N_IN; q++) {
            set_inputs<W, N_IN> in;
            in.load(a, in_row, group * GROUP_SPANS + q * SHARE, n_spans, g, t);
            multiply_set<W, N_IN>(acc, now, unpacked, in, q, g, t);
        }
        group = after;
        if (group >= n_groups) break;
        if (AHEAD)
            now = next;
        else
            now.load(tile, group * GROUP_SPANS, n_spans, g, t);
    }
#pragma unroll
    for (int row = 0; row < 2; row++) {
        float *out = &partial[warp][(2 * g + row) * N_IN];
        if (SHARE == 1) {
            out[2 * t] = acc[row][0];
            out[2 * t + (N_IN > 1 ? 1 : 0)] = acc[row][1];
        } else { // SHARE / 2 lanes hold parts of the same input row
            float sum = lanes_sum<(SHARE > 1 ? SHARE / 2 : 1)>(acc[row][0] + acc[row][1]);
            if (2 * t % SHARE == 0) out[2 * t / SHARE] = sum;
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < ATSI_TILE_ROWS * N_IN; i += blockDim.x) {
        uint32_t row = blockIdx.x * ATSI_TILE_ROWS + i / N_IN, in = i % N_IN;
        if (row >= a.n_out || in >= a.n_in) continue;
        float sum = 0.0f;
        for (int w = 0; w < n_warps; w++) sum += partial[w][i];
        if (a.bias) sum += a.bias[row];
        float *y = a.out + (uint64_t)in * a.out_stride + row;
        *y = a.add ? *y + sum : sum;
    }
}

// Warps that a multiprocessor's registers hold (64 Ki of them from compute capability 7.5 on, given out in eights a thread).
static inline int warps_by_registers(const void *kernel) {
    struct cudaFuncAttributes attributes = {};
    if (cudaFuncGetAttributes(&attributes, kernel) != cudaSuccess) return VECTOR_WARPS_MAX; // the launch will say why
    int n = 65536 / WARP / ((attributes.numRegs + 7) / 8 * 8);
    return n < VECTOR_WARPS_MAX ? VECTOR_WARPS_MAX : n;
}

// The number of warps a tile that needs the fewest turns of the card: every warp of a block takes `turns` groups, about one more for
// its start and the sum over warps; n_resident warps fit on a multiprocessor.
static inline int vector_warps(int n_groups, int n_tiles, int n_multiprocessors, int n_resident) {
    int most = n_groups < VECTOR_WARPS_MAX ? n_groups : VECTOR_WARPS_MAX, best = 1;
    int64_t best_cost = INT64_MAX;
    for (int n = 1; n <= most; n++) {
        int n_slots = n_multiprocessors * (n_resident / n), turns = (n_groups + n - 1) / n;
        int64_t cost = (int64_t)((n_tiles + n_slots - 1) / n_slots) * (turns + 1);
        if (cost < best_cost) {
            best = n;
            best_cost = cost;
        }
    }
    return best;
}

template <class W, int N_IN, bool AHEAD> void run_vector(const tiled_args &a, uint32_t n_pairs, cudaStream_t stream) {
    uint32_t n_tiles = ceil_div(a.n_out, ATSI_TILE_ROWS);
    int n_groups = (int)ceil_div(a.n_cols / 32, GROUP_SPANS);
    int n_warps = vector_warps(n_groups, (int)(n_tiles * n_pairs), a.n_multiprocessors,
                               warps_by_registers((const void *)vector_kernel<W, N_IN, AHEAD>));
    launch_overlapping(vector_kernel<W, N_IN, AHEAD>, dim3(n_tiles, n_pairs), n_warps * WARP, 0, stream, a);
}

template <class W> void launch_vector(const struct tiled_args *a, cudaStream_t stream) {
    constexpr uint32_t LONG_GROUPS = 24 * 16; // groups a multiprocessor from which 16 warps that load ahead win
    uint64_t n_groups = (uint64_t)ceil_div(a->n_cols / 32, GROUP_SPANS) * ceil_div(a->n_out, ATSI_TILE_ROWS);
    if (a->experts.ids) {
        struct tiled_args one = *a;
        one.n_in = 1;
        run_vector<W, 1, false>(one, a->n_in, stream);
    } else if (a->n_in == 1) {
        if (n_groups >= (uint64_t)LONG_GROUPS * a->n_multiprocessors)
            run_vector<W, 1, true>(*a, 1, stream);
        else
            run_vector<W, 1, false>(*a, 1, stream);
    } else if (a->n_in == 2) {
        run_vector<W, 2, false>(*a, 1, stream);
    } else if (a->n_in <= 4) {
        run_vector<W, 4, false>(*a, 1, stream);
    } else {
        run_vector<W, 8, false>(*a, 1, stream);
    }
}

#endif
