// attention_mma.cuh: flash attention on tensor cores for head sizes that are multiples of 16, keys and values half or Q8_0.
//
// Both kernels keep 16 rows a warp (attention.h): logits S = Q K' in float, running maximum and sum in base 2, then O += P V
// with P as halves. The order of elements within a group of 16 is free as long as both operands agree, so lane t takes
// elements 4t..4t+3: registers 0 and 1 of a fragment pair are then one 8-byte load.
#ifndef ATSI_KERNELS_CUDA_ATTENTION_MMA_CUH
#define ATSI_KERNELS_CUDA_ATTENTION_MMA_CUH

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/mma.cuh"

// A lane's rows g and g + 8 of a warp's 16.
template <int D> struct row_state {
    float o[D / 16][2][4]; // [16 elements][half][C fragment]: see element_of
    float largest[2], sum[2];
    int pos[2]; // of the rows' tokens
};

// The element of a head that stands in o[j][h][i]: ldmatrix brings values in their natural order; without it (values straight from
// the cache) a lane has four consecutive ones.
template <bool NATURAL> __device__ inline int element_of(int j, int h, int i, int t) {
    return 16 * j + (NATURAL ? 8 * h + 2 * t : 4 * t + 2 * h) + i;
}

template <int D> __device__ inline void clear_rows(row_state<D> &r) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        r.largest[i] = -INFINITY;
        r.sum[i] = 0.0f;
    }
#pragma unroll
    for (int j = 0; j < D / 16; j++)
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int i = 0; i < 4; i++) r.o[j][h][i] = 0.0f;
}

// Where the queries of rows first_row + g and first_row + g + 8 stand; rows behind n_rows repeat the last.
template <int D>
__device__ inline void place_queries(uint32_t at[2], row_state<D> &r, const attention_args &a, int first_pos,
                                     int kv_head, int first_row, int n_rows, int g) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int row = min(first_row + g + 8 * i, n_rows - 1), token = row / a.group;
        r.pos[i] = first_pos + token;
        at[i] = token * a.q_stride + (kv_head * a.group + row % a.group) * D;
        settle(at[i]);
    }
}
// Their fragments. Rows stand on 16 bytes.
template <int D>
__device__ inline void load_queries(uint32_t q[D / 16][4], const float *rows, const uint32_t at[2], int t) {
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < D / 16; j++) {
            float4 v = *(const float4 *)(rows + at[i] + 16 * j + 4 * t);
            q[j][i] = halves(v.x, v.y);
            q[j][2 + i] = halves(v.z, v.w);
        }
}

// Masks the logits of 8 N keys from `key` on, folds them into maximum and sum and leaves their weights in s.
// s[n]: C fragment of keys key + 8 n + {2t, 2t + 1}. last: the last key that counts at all.
template <int D, int N>
__device__ inline void soften(float s[N][4], row_state<D> &r, const attention_args &a, int key, int last, int t) {
    float largest[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int row = i / 2, k = key + 8 * n + 2 * t + i % 2;
            bool seen = k <= min(r.pos[row], last) && k >= first_seen(a, r.pos[row]);
            s[n][i] = seen ? s[n][i] * a.scale : -INFINITY;
            largest[row] = fmaxf(largest[row], s[n][i]);
        }
#pragma unroll
    for (int row = 0; row < 2; row++) {
        float top = fmaxf(r.largest[row], lanes_max<4>(largest[row]));
        float base = top == -INFINITY ? 0.0f : top; // nothing seen yet: exp2(-inf - 0) is 0 where -inf - -inf is not
        float shrink = exp2f(r.largest[row] - base), sum = 0.0f;
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                s[n][2 * row + i] = exp2f(s[n][2 * row + i] - base);
                sum += s[n][2 * row + i];
            }
        r.largest[row] = top;
        r.sum[row] = r.sum[row] * shrink + lanes_sum<4>(sum);
#pragma unroll
        for (int j = 0; j < D / 16; j++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                r.o[j][h][2 * row] *= shrink;
                r.o[j][h][2 * row + 1] *= shrink;
            }
    }
}

// Weights of 16 keys (two C fragments) as an A fragment.
__device__ inline void weights_as_a(uint32_t p[4], const float s[2][4]) {
    p[0] = halves(s[0][0], s[0][1]);
    p[1] = halves(s[0][2], s[0][3]);
    p[2] = halves(s[1][0], s[1][1]);
    p[3] = halves(s[1][2], s[1][3]);
}

// ---- few rows: the context is divided --------------------------------------------------------------------------------------

// A step's keys and values. Padding spreads rows over the banks, for 8-byte loads of keys and ldmatrix on values.
template <int D, enum atsi_dtype KV> struct split_stage {
    __half k[SPLIT_KEYS][D + 16],
    v[SPLIT_KEYS][D + 8];
};
// Rows of Q8_0 start on any even byte: what is copied are the units of 16 bytes that they touch. An odd number of units spreads rows over
// the banks.
constexpr int UNIT = 16;
template <int D> struct split_stage<D, ATSI_Q8_0> {
    static constexpr int ROW_BYTES = D / 32 * Q8_BYTES,
                         STEP = ROW_BYTES % 16 == 0  ? 16
                                : ROW_BYTES % 8 == 0 ? 8
                                                     : 2,
                         UNITS = (ROW_BYTES + UNIT - STEP + UNIT - 1) / UNIT;
    uint8_t k[SPLIT_KEYS][UNIT * (UNITS | 1)], v[SPLIT_KEYS][UNIT * (UNITS | 1)];
};

// A warp's rows on their way to the others: each its elements, its maximum and its sum. Padding spreads rows over the banks.
template <int D> struct warp_rows { float row[SPLIT_ROWS][D + 8]; };

template <int D, bool NATURAL> __device__ inline void put_rows(const row_state<D> &r, warp_rows<D> &to, int g, int t) {
#pragma unroll
    for (int row = 0; row < 2; row++) {
        float *p = to.row[g + 8 * row];
        if (t == 0) *(float2 *)(p + D) = make_float2(r.largest[row], r.sum[row]);
#pragma unroll
        for (int j = 0; j < D / 16; j++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                *(float2 *)(p + element_of<NATURAL>(j, h, 0, t)) =
                    make_float2(r.o[j][h][2 * row], r.o[j][h][2 * row + 1]);
    }
}

// Joins the rows of a block's warps and leaves them for join_kernel: threads take four elements each.
template <int D>
__device__ inline void leave_rows(const warp_rows<D> of_warp[SPLIT_WARPS<D>], const attention_args &a, int kv_head,
                                  int first_row, int n_rows) {
    constexpr int WARPS = SPLIT_WARPS<D>, FOURS = D / 4;
    for (int i = threadIdx.x; i < SPLIT_ROWS * FOURS; i += WARPS * WARP) {
        int row = i / FOURS, d = i % FOURS * 4, at = first_row + row;
        if (at >= n_rows) break;
        float2 found[WARPS]; // largest, sum
        float4 o[WARPS], sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        float top = -INFINITY, total = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            found[w] = *(const float2 *)&of_warp[w].row[row][D];
            o[w] = *(const float4 *)&of_warp[w].row[row][d];
            top = fmaxf(top, found[w].x);
        }
        float base = top == -INFINITY ? 0.0f : top; // as in soften
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            float shrink = exp2f(found[w].x - base);
            total += found[w].y * shrink;
            sum = make_float4(sum.x + o[w].x * shrink, sum.y + o[w].y * shrink, sum.z + o[w].z * shrink,
                              sum.w + o[w].w * shrink);
        }
        partial_results<D> to(a, kv_head, at);
        *(float4 *)(to.sums + blockIdx.y * D + d) = sum;
        if (d == 0) to.records[blockIdx.y] = make_float2(top, total);
    }
}

// Brings a step's keys and values into the second-level cache, where it does not matter who writes them meanwhile.
__device__ inline void prefetch_step(const attention_args &a, int kv_head, int key, int last, int lane) {
    constexpr uint32_t LINE = 128;
    bool values = lane >= SPLIT_KEYS;
    uint32_t row_bytes = values ? a.v_row_bytes : a.k_row_bytes;
    const uint8_t *row =
        cached(values ? a.v_cache : a.k_cache, row_bytes, a, min(key + lane % SPLIT_KEYS, last), kv_head);
    for (uint32_t offset = 0; offset < row_bytes; offset += LINE) prefetch(row + offset);
    prefetch(row + row_bytes - 1);
}

// Starts copying a step's keys and values; keys behind `last` repeat it.
template <int D>
__device__ inline void copy_step(split_stage<D, ATSI_F16> &to, const attention_args &a, int kv_head, int key, int last,
                                 int lane) {
    constexpr int UNITS = D / 8; // of 16 bytes a row
    uint32_t first_slot = (uint32_t)key % a.capacity;
#pragma unroll
    for (int u = 0; u < SPLIT_KEYS * UNITS; u += WARP) {
        int i = (u + lane) / UNITS, d = (u + lane) % UNITS * 8;
        uint32_t slot = first_slot + min(i, last - key);
        if (slot >= a.capacity) slot %= a.capacity;
        uint64_t at = ((uint64_t)slot * a.n_kv_heads + kv_head) * (2 * D) + 2 * d;
        copy16_async(&to.k[i][d], a.k_cache + at);
        copy16_async(&to.v[i][d], a.v_cache + at);
    }
}
// Bytes from the unit in which a row starts to its start.
__device__ inline int in_unit(const uint8_t *row) { return (int)((uintptr_t)row % UNIT); }
template <int D>
__device__ inline void copy_step(split_stage<D, ATSI_Q8_0> &to, const attention_args &a, int kv_head, int key, int last,
                                 int lane) {
    typedef split_stage<D, ATSI_Q8_0> stage;
    uint32_t first_slot = (uint32_t)key % a.capacity;
#pragma unroll
    for (int u = 0; u < SPLIT_KEYS * stage::UNITS; u += WARP) {
        int i = (u + lane) / stage::UNITS, offset = (u + lane) % stage::UNITS * UNIT;
        if (i >= SPLIT_KEYS) break;
        uint32_t slot = first_slot + min(i, last - key);
        if (slot >= a.capacity) slot %= a.capacity;
        uint64_t at = ((uint64_t)slot * a.n_kv_heads + kv_head) * stage::ROW_BYTES;
        const uint8_t *k = a.k_cache + at, *v = a.v_cache + at;
        if (offset < in_unit(k) + stage::ROW_BYTES) copy16_async(to.k[i] + offset, k - in_unit(k) + offset);
        if (offset < in_unit(v) + stage::ROW_BYTES) copy16_async(to.v[i] + offset, v - in_unit(v) + offset);
    }
}

// Folds keys key .. key + 15 (those up to `last`) of a stage into a warp's rows.
template <int D>
__device__ inline void attend_stage(row_state<D> &r, const uint32_t q[D / 16][4], const split_stage<D, ATSI_F16> &stage,
                                    const attention_args &a, int, int key, int last, int lane) {
    int g = lane / 4, t = lane % 4;
    float s[2][4] = {};
#pragma unroll
    for (int j = 0; j < D / 16; j++)
#pragma unroll
        for (int n = 0; n < 2; n++) {
            uint2 k = *(const uint2 *)&stage.k[8 * n + g][16 * j + 4 * t];
            mma_f16_k16(s[n], q[j], k.x, k.y);
        }
    soften<D, 2>(s, r, a, key, last, t);
    uint32_t p[4];
    weights_as_a(p, s);
#pragma unroll
    for (int j = 0; j < D / 16; j++) {
        uint32_t v[4]; // matrices: keys 0-7 and 8-15 of elements 0-7, then of elements 8-15
        load_matrices_transposed(v, &stage.v[lane % 16][16 * j + 8 * (lane / 16)]);
        mma_f16_k16(r.o[j][0], p, v[0], v[1]);
        mma_f16_k16(r.o[j][1], p, v[2], v[3]);
    }
}

// The same with rows as they stand in the cache.
template <int D>
__device__ inline void attend_stage(row_state<D> &r, const uint32_t q[D / 16][4],
                                    const split_stage<D, ATSI_Q8_0> &stage, const attention_args &a, int kv_head,
                                    int key, int last, int lane) {
    int g = lane / 4, t = lane % 4;
    const uint8_t *k_row[2], *v_row[2];
#pragma unroll
    for (int n = 0; n < 2; n++) {
        int i = 8 * n + g, pos = min(key + i, last);
        k_row[n] = stage.k[i] + in_unit(cached(a.k_cache, a.k_row_bytes, a, pos, kv_head));
        v_row[n] = stage.v[i] + in_unit(cached(a.v_cache, a.v_row_bytes, a, pos, kv_head));
    }
    float s[2][4] = {};
#pragma unroll
    for (int j = 0; j < D / 16; j++)
#pragma unroll
        for (int n = 0; n < 2; n++) {
            uint2 k = cached_halves<ATSI_Q8_0>(k_row[n], 16 * j + 4 * t);
            mma_f16_k16(s[n], q[j], k.x, k.y);
        }
    soften<D, 2>(s, r, a, key, last, t);
    uint32_t p[4];
    weights_as_a(p, s);
#pragma unroll
    for (int j = 0; j < D / 16; j++) {
        uint2 v0 = cached_halves<ATSI_Q8_0>(v_row[0], 16 * j + 4 * t),
              v1 = cached_halves<ATSI_Q8_0>(v_row[1], 16 * j + 4 * t);
        mma_f16_k16(r.o[j][0], p, transpose_8x8(v0.x), transpose_8x8(v1.x));
        mma_f16_k16(r.o[j][1], p, transpose_8x8(v0.y), transpose_8x8(v1.y));
    }
}

// x: key head, y: split, z: 16 rows. Every warp takes 16 keys at a time through a ring of its own in shared memory: copies run n_stages
// steps ahead.
// Its predecessor is heads_kernel, which lets it start when all before that is complete: only the rows of this round are still to come, so
// warps whose first steps are of earlier ones load them before they wait, and the others bring theirs closer.
// Small heads: the compiler would aim at five blocks a multiprocessor, more than are launched, and spill for them.
template <int D, enum atsi_dtype KV>
__global__ void __launch_bounds__(SPLIT_WARPS<D> *WARP, D <= 64 ? 4 : 0) split_kernel(attention_args a, int n_stages) {
    start_successor();
    constexpr int WARPS = SPLIT_WARPS<D>;
    constexpr bool NATURAL = KV == ATSI_F16; // order of elements: element_of
    extern __shared__ __align__(16) uint8_t dynamic[];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
    int kv_head = blockIdx.x, first_row = blockIdx.z * SPLIT_ROWS, n_rows = a.n_tokens * a.group;
    int first_pos = __ldcg(&a.round->first_pos);
    constexpr int STRIDE = SPLIT_KEYS * WARPS;
    division context = divide_context<D>(a, first_pos, first_row);
    int begin = context.begin + blockIdx.y * context.per_split;
    int last = min(context.last, begin + context.per_split - 1);
    if (begin > last) {
        wait_for_predecessor();
        return;
    }

    row_state<D> r;
    uint32_t queries[2];
    place_queries<D>(queries, r, a, first_pos, kv_head, first_row, n_rows, g);
    int key = begin + SPLIT_KEYS * warp, next = key, stage = 0;
    if (min(last, key + (n_stages - 1) * STRIDE + SPLIT_KEYS - 1) >= first_pos) {
        for (int i = 0; i < n_stages && key + i * STRIDE <= last; i++)
            prefetch_step(a, kv_head, key + i * STRIDE, last, lane);
        wait_for_predecessor();
    }
    split_stage<D, KV> *ring = (split_stage<D, KV> *)dynamic + warp * n_stages;
    auto copy_next = [&]() {
        if (next <= last) copy_step(ring[stage], a, kv_head, next, last, lane);
        copy_commit();
        next += STRIDE;
        stage = stage + 1 == n_stages ? 0 : stage + 1;
    };
    for (int i = 0; i < n_stages; i++) copy_next();
    wait_for_predecessor();
    uint32_t q[D / 16][4];
    load_queries<D>(q, a.q, queries, t);
    clear_rows(r);
    for (; key <= last; key += STRIDE) {
        copy_wait_but(n_stages - 1);
        __syncwarp(); // every lane's part of the step is there
        attend_stage(r, q, ring[stage], a, kv_head, key, last, lane);
        __syncwarp(); // no lane reads the stage any more
        copy_next();
    }

    __syncthreads(); // the rings become room for the warps' rows
    warp_rows<D> *rows = (warp_rows<D> *)dynamic;
    put_rows<D, NATURAL>(r, rows[warp], g, t);
    __syncthreads();
    leave_rows<D>(rows, a, kv_head, first_row, n_rows);
}

template <int D, enum atsi_dtype KV> static inline size_t split_shared_bytes(int n_stages) {
    size_t rows = SPLIT_WARPS<D> * sizeof(warp_rows<D>);
    size_t ring = SPLIT_WARPS<D> * n_stages * sizeof(split_stage<D, KV>);
    return ring > rows ? ring : rows;
}
template <int D, enum atsi_dtype KV> static inline int split_stages(int max_shared_bytes) {
    static_assert(SPLIT_WARPS<D> * sizeof(split_stage<D, KV>) <= 65536, "fits every card");
    return split_shared_bytes<D, KV>(2) <= (size_t)max_shared_bytes ? 2 : 1;
}

// ---- many rows: keys and values go through shared memory -------------------------------------------------------------------

constexpr int TILED_WARPS = 8, TILED_ROWS = 16 * TILED_WARPS, TILED_KEYS = 32;

template <int D> struct tiled_shared {
    static constexpr int STAGES = D > 128 ? 1 : 2;
    // Padding spreads rows over the banks, for 8-byte loads of keys and ldmatrix on values.
    __half k[STAGES][TILED_KEYS][D + 16], v[STAGES][TILED_KEYS][D + 8];
};

template <int D, enum atsi_dtype KV>
__device__ inline void load_keys(tiled_shared<D> &sh, int stage, const attention_args &a, int kv_head, int key,
                                 int last) {
    constexpr int UNIT = KV == ATSI_F16 ? 8 : 4; // elements a copy
    for (int u = threadIdx.x; u < TILED_KEYS * D / UNIT; u += TILED_WARPS * WARP) {
        int i = u / (D / UNIT), d = u % (D / UNIT) * UNIT, pos = min(key + i, last);
        const uint8_t *k = cached(a.k_cache, a.k_row_bytes, a, pos, kv_head);
        const uint8_t *v = cached(a.v_cache, a.v_row_bytes, a, pos, kv_head);
        if constexpr (KV == ATSI_F16) {
            copy16_async(&sh.k[stage][i][d], k + 2 * d);
            copy16_async(&sh.v[stage][i][d], v + 2 * d);
        } else {
            *(uint2 *)&sh.k[stage][i][d] = cached_halves<KV>(k, d);
            *(uint2 *)&sh.v[stage][i][d] = cached_halves<KV>(v, d);
        }
    }
    copy_commit();
}

template <int D>
__device__ inline void attend_keys(row_state<D> &r, const uint32_t q[D / 16][4], const tiled_shared<D> &sh, int stage,
                                   const attention_args &a, int key, int last, int lane) {
    int g = lane / 4, t = lane % 4;
    float s[TILED_KEYS / 8][4] = {};
#pragma unroll
    for (int n = 0; n < TILED_KEYS / 8; n++)
#pragma unroll
        for (int j = 0; j < D / 16; j++) {
            uint2 k = *(const uint2 *)&sh.k[stage][8 * n + g][16 * j + 4 * t];
            mma_f16_k16(s[n], q[j], k.x, k.y);
        }
    soften<D, TILED_KEYS / 8>(s, r, a, key, last, t);
#pragma unroll
    for (int n = 0; n < TILED_KEYS / 8; n += 2) {
        uint32_t p[4];
        weights_as_a(p, &s[n]);
#pragma unroll
        for (int j = 0; j < D / 16; j++) {
            // Matrices: keys 0-7 and 8-15 of elements 0-7, then of elements 8-15.
            uint32_t v[4];
            load_matrices_transposed(v, &sh.v[stage][8 * n + lane % 16][16 * j + 8 * (lane / 16)]);
            mma_f16_k16(r.o[j][0], p, v[0], v[1]);
            mma_f16_k16(r.o[j][1], p, v[2], v[3]);
        }
    }
}

// x: 128 rows, y: key head. The last rows see most keys and are started first.
template <int D, enum atsi_dtype KV>
__global__ void __launch_bounds__(TILED_WARPS *WARP, 1) tiled_kernel(attention_args a) {
    begin_kernel();
    __shared__ tiled_shared<D> sh;
    constexpr int STAGES = tiled_shared<D>::STAGES;
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, t = lane % 4, kv_head = blockIdx.y;
    int n_rows = a.n_tokens * a.group, block_row = (gridDim.x - 1 - blockIdx.x) * TILED_ROWS,
        first_row = block_row + 16 * warp;
    row_state<D> r;
    uint32_t q[D / 16][4];
    int first_pos = a.round->first_pos;
    uint32_t queries[2];
    place_queries<D>(queries, r, a, first_pos, kv_head, first_row, n_rows, g);
    load_queries<D>(q, a.q, queries, t);
    clear_rows(r);
    int begin = first_seen(a, first_pos + block_row / a.group);
    int last = first_pos + (min(block_row + TILED_ROWS, n_rows) - 1) / a.group;

    load_keys<D, KV>(sh, 0, a, kv_head, begin, last);
    int stage = 0;
    for (int key = begin; key <= last; key += TILED_KEYS) {
        copy_wait<0>();
        __syncthreads();
        if (STAGES == 2 && key + TILED_KEYS <= last)
            load_keys<D, KV>(sh, stage ^ 1, a, kv_head, key + TILED_KEYS, last);
        attend_keys<D>(r, q, sh, stage, a, key, last, lane);
        if (STAGES == 2) {
            stage ^= 1;
        } else if (key + TILED_KEYS <= last) {
            __syncthreads();
            load_keys<D, KV>(sh, 0, a, kv_head, key + TILED_KEYS, last);
        }
    }
#pragma unroll
    for (int row = 0; row < 2; row++) {
        int at = first_row + g + 8 * row;
        if (at >= n_rows) continue;
        int head = kv_head * a.group + at % a.group;
        float sum = r.sum[row], shrink = 1.0f;
        if (a.sinks) {
            float sink = a.sinks[head] * LOG2_E, top = fmaxf(r.largest[row], sink);
            shrink = exp2f(r.largest[row] - top);
            sum = sum * shrink + exp2f(sink - top);
        }
        float *out = a.out + (uint64_t)(at / a.group) * a.out_stride + head * D;
#pragma unroll
        for (int j = 0; j < D / 16; j++)
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int i = 0; i < 2; i++) out[element_of<true>(j, h, i, t)] = r.o[j][h][2 * row + i] * shrink / sum;
    }
}

template <int D, enum atsi_dtype KV> void launch_split(const attention_args &a, struct launch_stream stream) {
    dim3 grid(a.n_kv_heads, a.n_splits, ceil_div(a.n_tokens * a.group, SPLIT_ROWS));
    int n_stages = split_stages<D, KV>(a.max_shared_bytes);
    launch_overlapping(split_kernel<D, KV>, grid, SPLIT_WARPS<D> * WARP, split_shared_bytes<D, KV>(n_stages), stream, a,
                       n_stages);
}
template <int D, enum atsi_dtype KV> void launch_tiled(const attention_args &a, struct launch_stream stream) {
    dim3 grid(ceil_div(a.n_tokens * a.group, TILED_ROWS), a.n_kv_heads);
    launch_overlapping(tiled_kernel<D, KV>, grid, TILED_WARPS * WARP, 0, stream, a);
}
template <int D, enum atsi_dtype KV> cudaError_t load_size(int max_shared_bytes) {
    static const void *const KERNELS[] = {(const void *)split_kernel<D, KV>, (const void *)tiled_kernel<D, KV>};
    cudaError_t status = load_kernels(KERNELS);
    if (status != cudaSuccess) return status;
    size_t wanted = split_shared_bytes<D, KV>(split_stages<D, KV>(max_shared_bytes));
    return cudaFuncSetAttribute(split_kernel<D, KV>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)wanted);
}

#endif
