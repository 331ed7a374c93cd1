// heads.cu: norm, rotation and storing of attention heads.
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/heads.h"

namespace {

constexpr int HEAD_WARPS = 4;
constexpr uint32_t AHEAD =
    8; // elements of a head that a lane has under way at once, and weights that it has before the wait

// position * frequency, less whole turns. The product's rounding error is kept and 2 pi is subtracted in two parts, because
// at position 1e6 a float product is off by 0.06.
__device__ inline float turned(float position, float frequency) {
    float angle = position * frequency, error = fmaf(position, frequency, -angle), turns = rintf(angle * 0.15915494f);
    angle = fmaf(-turns, 6.2831855f, angle);
    angle = fmaf(-turns, -1.7484555e-7f, angle);
    return angle + error;
}

// What no kernel writes of a lane's first elements and pairs: elements lane, lane + 32, ..., pairs likewise.
struct lane_tables {
    float weight[AHEAD], frequency[AHEAD / 2];
    __device__ lane_tables(const head_part &part, uint32_t lane) {
        load(weight, part.normed ? part.norm_weight : NULL, part.dim, 1.0f, lane);
        load(frequency, part.inv_freq, part.rope.n_rot / 2, 0.0f, lane);
    }
    template <uint32_t N>
    __device__ static void load(float (&v)[N], const float *from, uint32_t n, float otherwise, uint32_t lane) {
#pragma unroll
        for (uint32_t k = 0; k < N; k++) v[k] = otherwise;
        if (!from) return;
#pragma unroll
        for (uint32_t k = 0; k < N; k++)
            if (lane + k * WARP < n) v[k] = from[lane + k * WARP];
    }
};

// A warp fetches a head's row to shared memory. Returns what the lane's elements add to the sum of squares.
__device__ inline float fetch_head(float *row, const float *in, uint32_t dim, uint32_t lane) {
    float squares = 0.0f;
    for (uint32_t first = 0; first < dim; first += AHEAD * WARP) {
        const float *from = in + first + lane;
        float *to = row + first + lane, v[AHEAD];
        uint32_t n_left = dim - first;
#pragma unroll
        for (uint32_t k = 0; k < AHEAD; k++) v[k] = lane + k * WARP < n_left ? from[k * WARP] : 0.0f;
        __syncwarp(); // no load is put off until another is there
#pragma unroll
        for (uint32_t k = 0; k < AHEAD; k++) {
            if (lane + k * WARP < n_left) to[k * WARP] = v[k];
            squares += v[k] * v[k];
        }
    }
    return squares;
}

__device__ inline void norm_head(float *row, const head_part &part, const lane_tables &tables, float squares,
                                 uint32_t lane) {
    float scale = rsqrtf(lanes_sum(squares) / (float)part.dim + part.eps);
#pragma unroll
    for (uint32_t k = 0; k < AHEAD; k++)
        if (lane + k * WARP < part.dim) row[lane + k * WARP] = row[lane + k * WARP] * scale * tables.weight[k];
    for (uint32_t d = lane + AHEAD * WARP; d < part.dim; d += WARP)
        row[d] = row[d] * scale * (part.norm_weight ? part.norm_weight[d] : 1.0f);
}

// A warp rotates a head's row in shared memory, every lane whole pairs.
__device__ inline void rotate(float *row, const head_part &part, const lane_tables &tables, float position,
                              uint32_t lane) {
    uint32_t half = part.rope.n_rot / 2;
    bool split = part.rope.pairing == ATSI_ROPE_HALF_SPLIT;
#pragma unroll 1
    for (uint32_t i = 0; lane + i * WARP < half; i++) {
        uint32_t pair = lane + i * WARP;
        float frequency = tables.frequency[0];
#pragma unroll
        for (uint32_t k = 1; k < AHEAD / 2; k++)
            if (i == k) frequency = tables.frequency[k];
        if (i >= AHEAD / 2) frequency = part.inv_freq[pair];
        float sine, cosine;
        sincosf(turned(position, frequency), &sine, &cosine);
        sine *= part.rope.scale;
        cosine *= part.rope.scale;
        uint32_t first = split ? pair : 2 * pair, second = split ? pair + half : 2 * pair + 1;
        float a = row[first], b = row[second];
        row[first] = a * cosine - b * sine;
        row[second] = a * sine + b * cosine;
    }
}

// A warp a head. x: warps over the heads of all parts, y: token.
template <enum atsi_dtype KV>
__global__ void __launch_bounds__(HEAD_WARPS *WARP) heads_kernel(const __grid_constant__ heads_args a) {
    __shared__ __align__(16) float rows[HEAD_WARPS][HEAD_DIM_MAX];
    uint32_t lane = threadIdx.x % WARP;
    int token = blockIdx.y, p = 0;
    uint32_t head = blockIdx.x * HEAD_WARPS + threadIdx.x / WARP;
    for (; p < a.n_parts && head >= a.parts[p].n_heads; p++) head -= a.parts[p].n_heads;
    bool none = p == a.n_parts;
    const head_part &part = a.parts[none ? 0 : p];
    lane_tables tables(part, lane);
    wait_for_predecessor();
    start_successor(); // behind the wait: attention counts on it (split_kernel)
    if (none) return;
    int pos = a.round->first_pos + token; // under way beside the head
    float *row = rows[threadIdx.x / WARP];
    float squares = fetch_head(row, part.in + (uint64_t)token * part.in_stride + head * part.dim, part.dim, lane);
    if (part.normed) norm_head(row, part, tables, squares, lane);
    __syncwarp();
    if (part.inv_freq) rotate(row, part, tables, (float)pos, lane);
    __syncwarp();
    if (part.out) {
        float *out = part.out + (uint64_t)token * part.out_stride + head * part.dim;
        for (uint32_t d = lane; d < part.dim; d += WARP) out[d] = row[d];
    }
    // Only the last `capacity` tokens are stored: earlier ones would share their slots.
    if (part.cache && token + (int64_t)a.capacity >= a.n_tokens) {
        uint64_t slot = (uint32_t)pos % a.capacity;
        store_row<KV>(row, part.cache + (slot * part.n_heads + head) * part.row_bytes, (int)part.dim);
    }
}

// ---- which operations join --------------------------------------------------------------------------------------------------

struct atsi_rows_ref out_rows(const head_part &p) {
    struct atsi_rows_ref rows = {p.out, p.out_stride, p.n_heads * p.dim};
    return rows;
}
struct atsi_rows_ref in_rows(const head_part &p) {
    struct atsi_rows_ref rows = {(void *)p.in, p.in_stride, p.n_heads * p.dim};
    return rows;
}

bool independent(const heads_args &a, const head_part &p) {
    uint32_t n = (uint32_t)a.n_tokens;
    for (int i = 0; i < a.n_parts; i++) {
        const head_part &other = a.parts[i];
        if (other.out && rows_overlap(in_rows(p), out_rows(other), n)) return false;
        if (p.out && rows_overlap(out_rows(p), in_rows(other), n)) return false;
        if (p.out && other.out && rows_overlap(out_rows(p), out_rows(other), n)) return false;
    }
    return true;
}

bool add_part(heads_args *a, const head_part &p) {
    if (a->n_parts == HEAD_PARTS_MAX || p.dim > HEAD_DIM_MAX || !independent(*a, p)) return false;
    a->parts[a->n_parts++] = p;
    return true;
}

head_part part_of_rows(const struct atsi_rows_ref &in, const struct atsi_rows_ref &out, uint32_t dim) {
    head_part p = {};
    p.in = (const float *)in.data;
    p.out = (float *)out.data;
    p.in_stride = in.stride;
    p.out_stride = out.stride;
    p.dim = dim;
    p.n_heads = in.width / dim;
    return p;
}

// The part whose result these rows are, NULL without.
head_part *maker_of(heads_args *a, const struct atsi_rows_ref &rows, uint32_t n_heads, uint32_t dim) {
    for (int i = 0; i < a->n_parts; i++) {
        head_part &p = a->parts[i];
        if (p.out == rows.data && p.out_stride == rows.stride && p.n_heads == n_heads && p.dim == dim) return &p;
    }
    return NULL;
}

// A norm of one group is that of a whole row, unless heads of the same size wait already.
bool join_norm(heads_args *a, const struct atsi_op_call *call) {
    const struct atsi_norm_params &norm = call->op->u.norm;
    const struct atsi_rows_ref &in = call->in[0], &out = call->out[0];
    bool heads = in.width > norm.group || (a->n_parts > 0 && a->parts[0].dim == norm.group);
    if (call->op->add || !heads) return false;
    head_part p = part_of_rows(in, out, norm.group);
    p.normed = true;
    p.norm_weight = (const float *)call->tensor[0].data;
    p.eps = norm.eps;
    return add_part(a, p);
}

bool join_rope(heads_args *a, const struct atsi_op_call *call) {
    const struct atsi_rope_params &rope = call->op->u.rope;
    const struct atsi_rows_ref &in = call->in[0], &out = call->out[0];
    bool in_place = in.data == out.data && in.stride == out.stride;
    head_part *maker = in_place ? maker_of(a, in, rope.n_heads, rope.head_dim) : NULL;
    head_part p = part_of_rows(in, out, rope.head_dim), *to = maker && !maker->inv_freq ? maker : &p;
    to->inv_freq = (const float *)call->tensor[0].data;
    to->rope = rope;
    return to == maker || add_part(a, p);
}

// The keys' and the values' heads go to the attention's cache as well.
void store_in_cache(heads_args *a, head_part *k, head_part *v, const struct atsi_state_ref &s) {
    k->cache = (uint8_t *)s.k;
    v->cache = (uint8_t *)s.v;
    k->row_bytes = (uint32_t)atsi_dtype_row_bytes(s.kv_type, s.info->k_dim);
    v->row_bytes = (uint32_t)atsi_dtype_row_bytes(s.kv_type, s.info->v_dim);
    a->capacity = s.capacity;
    a->kv_type = s.kv_type;
}

// Heads that are only read.
head_part part_of_inputs(const struct atsi_rows_ref &rows, uint32_t dim) {
    head_part p = part_of_rows(rows, rows, dim);
    p.out = NULL;
    return p;
}

} // namespace

bool heads_join(struct heads_args *a, const struct atsi_op_call *call, int n_rows) {
    bool first = a->n_parts == 0;
    if (!first && (a->n_tokens != n_rows || a->round != call->round.round)) return false;
    a->n_tokens = n_rows;
    a->round = call->round.round;
    if (first) a->kv_type = ATSI_F16; // any, until there is something to store
    if (call->op->kind == ATSI_OP_RMS_NORM) return join_norm(a, call);
    return call->op->kind == ATSI_OP_ROPE && join_rope(a, call);
}

bool heads_independent(const struct heads_args *a, const struct atsi_op_call *call, int n_rows) {
    uint32_t n = (uint32_t)(n_rows > a->n_tokens ? n_rows : a->n_tokens);
    for (int p = 0; p < a->n_parts; p++) {
        const head_part &part = a->parts[p];
        for (const struct atsi_rows_ref &out : call->out)
            if (out.data && (rows_overlap(out, in_rows(part), n) || (part.out && rows_overlap(out, out_rows(part), n))))
                return false;
        for (const struct atsi_rows_ref &in : call->in)
            if (in.data && part.out && rows_overlap(in, out_rows(part), n)) return false;
    }
    return true;
}

bool heads_join_store(struct heads_args *a, const struct atsi_op_call *call, int n_rows) {
    const struct atsi_state_ref &s = call->state;
    const struct atsi_rows_ref &k_rows = call->in[1], &v_rows = call->in[2];
    uint32_t n_heads = call->op->u.attention.n_kv_heads;
    if (a->n_parts == 0 || a->n_tokens != n_rows || a->round != call->round.round) return false;
    head_part *k = maker_of(a, k_rows, n_heads, s.info->k_dim), *v = maker_of(a, v_rows, n_heads, s.info->v_dim);
    if (!k || k == v) return false;
    if (!v) {
        if (!add_part(a, part_of_inputs(v_rows, s.info->v_dim))) return false;
        v = &a->parts[a->n_parts - 1];
    }
    store_in_cache(a, k, v, s);
    return true;
}

void heads_store(const struct atsi_op_call *call, int n_rows, struct launch_stream stream) {
    struct heads_args a = {};
    a.parts[0] = part_of_inputs(call->in[1], call->state.info->k_dim);
    a.parts[1] = part_of_inputs(call->in[2], call->state.info->v_dim);
    a.n_parts = 2;
    a.n_tokens = n_rows;
    a.round = call->round.round;
    store_in_cache(&a, &a.parts[0], &a.parts[1], call->state);
    heads_launch(&a, stream);
}

void heads_launch(const struct heads_args *a, struct launch_stream stream) {
    uint32_t n_heads = 0;
    for (int p = 0; p < a->n_parts; p++) n_heads += a->parts[p].n_heads;
    auto *kernel = a->kv_type == ATSI_F32   ? heads_kernel<ATSI_F32>
                   : a->kv_type == ATSI_F16 ? heads_kernel<ATSI_F16>
                                            : heads_kernel<ATSI_Q8_0>;
    launch_overlapping(kernel, dim3(ceil_div(n_heads, HEAD_WARPS), a->n_tokens), HEAD_WARPS * WARP, 0, stream, *a);
}

cudaError_t load_heads(void) {
    static const void *const KERNELS[] = {(const void *)heads_kernel<ATSI_F32>, (const void *)heads_kernel<ATSI_F16>,
                                          (const void *)heads_kernel<ATSI_Q8_0>};
    return load_kernels(KERNELS);
}
