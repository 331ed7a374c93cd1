// matmul.cu: products with dense and expert weights: inputs are quantised once and shared, then the weight's type decides.
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/grid.h"
#include "kernels/cuda/grid_matrix.h"
#include "kernels/cuda/plain.h"
#include "kernels/cuda/tiled.h"
#include "kernels/cuda/waiting.h"

namespace {

// ---- quantised inputs -----------------------------------------------------------------------------------------------------

constexpr int QUANTISE_THREADS = 256;

__global__ void quantise_kernel(const float *in, uint32_t stride, uint32_t width, bool aligned, acts_out acts) {
    begin_kernel();
    uint32_t i = (blockIdx.x * QUANTISE_THREADS + threadIdx.x) * 4;
    uint64_t row = blockIdx.y;
    int n = i < width ? (int)(width - i) : 0;
    float4 v = load4(in + row * stride + i, n, aligned);
    quantise4(v, acts.q + row * width + i, acts.meta + row * (width / 32) + i / 32, n > 0);
}

// The rows of `in` in scratch, quantised now unless they are there already.
enum atsi_status quantised(struct launch_ctx *x, const struct atsi_rows_ref *in, struct acts *out,
                           struct atsi_error *err) {
    if (!acts_are(x->device, acts_key_of(in, x->n_rows))) {
        acts_out acts = acts_reserve(x->device, *in, x->n_rows);
        if (!acts.q)
            return atsi_fail(err, ATSI_FAILED, "GPU: %d input rows of %u do not fit the prepared scratch memory",
                             x->n_rows, in->width);
        x->waiting->before = NONE_STARTS_LATE;
        launch_overlapping(quantise_kernel, dim3(ceil_div(in->width, 4 * QUANTISE_THREADS), x->n_rows),
                           QUANTISE_THREADS, 0, x->stream, (const float *)in->data, in->stride, in->width,
                           rows_aligned(*in), acts);
    }
    *out = acts_in_scratch(x->device, x->n_rows, in->width);
    return ATSI_OK;
}

// ---- expert groups --------------------------------------------------------------------------------------------------------

constexpr int GROUP_THREADS = EXPERTS_CAP;

// Sum of the values of all lower threads; `shared`: GROUP_THREADS ints.
__device__ inline int exclusive_sum(int v, int *shared) {
    int inclusive = v;
    for (int step = 1; step < GROUP_THREADS; step *= 2) {
        shared[threadIdx.x] = inclusive;
        __syncthreads();
        if ((int)threadIdx.x >= step) inclusive += shared[threadIdx.x - step];
        __syncthreads();
    }
    return inclusive - v;
}

// One block; thread e lays out expert e's pairs and tiles.
__global__ void __launch_bounds__(GROUP_THREADS) group_kernel(expert_args e, uint32_t n_pairs) {
    begin_kernel();
    __shared__ int count[EXPERTS_CAP], next[EXPERTS_CAP], sums[GROUP_THREADS];
    int expert = threadIdx.x;
    count[expert] = 0;
    __syncthreads();
    for (uint32_t p = threadIdx.x; p < n_pairs; p += GROUP_THREADS) {
        int id = e.ids[(uint64_t)(p / e.n_slots) * e.ids_stride + p % e.n_slots];
        if (id >= 0) atomicAdd(&count[id], 1);
    }
    __syncthreads();
    int n = count[expert], n_tiles = (n + MATRIX_COLS - 1) / MATRIX_COLS;
    int first = exclusive_sum(n, sums), first_tile = exclusive_sum(n_tiles, sums);
    next[expert] = first;
    for (int i = 0; i < n_tiles; i++) {
        group_tile tile = {expert, first + i * MATRIX_COLS, min(MATRIX_COLS, n - i * MATRIX_COLS)};
        e.groups.tiles[first_tile + i] = tile;
    }
    if (expert == EXPERTS_CAP - 1) *e.groups.n_tiles = first_tile + n_tiles;
    __syncthreads();
    for (uint32_t p = threadIdx.x; p < n_pairs; p += GROUP_THREADS) {
        int id = e.ids[(uint64_t)(p / e.n_slots) * e.ids_stride + p % e.n_slots];
        if (id >= 0) e.groups.pairs[atomicAdd(&next[id], 1)] = (int)p;
    }
}

constexpr uint64_t GROUPS_HEADER = 256; // bytes of n_tiles, padded

uint64_t tiles_cap(uint64_t n_pairs, uint32_t n_experts) { return n_pairs / MATRIX_COLS + 1 + n_experts; }

uint64_t groups_bytes(uint64_t n_pairs, uint32_t n_experts) {
    return GROUPS_HEADER + tiles_cap(n_pairs, n_experts) * sizeof(struct group_tile) + n_pairs * sizeof(int32_t);
}

// Groups in scratch for this call's ids.
enum atsi_status grouped(struct launch_ctx *x, struct expert_args *e, uint32_t n_pairs, struct atsi_error *err) {
    const struct scratch *s = &x->device->scratch;
    if (groups_bytes(n_pairs, e->n_experts) > s->groups_bytes)
        return atsi_fail(err, ATSI_FAILED, "GPU: %u expert rows of %u experts do not fit the prepared scratch memory",
                         n_pairs, e->n_experts);
    uint8_t *base = s->base + s->groups_offset;
    e->groups.n_tiles = (int32_t *)base;
    e->groups.tiles = (struct group_tile *)(base + GROUPS_HEADER);
    e->groups.pairs = (int32_t *)(e->groups.tiles + tiles_cap(n_pairs, e->n_experts));
    launch_overlapping(group_kernel, 1, GROUP_THREADS, 0, x->stream, *e, n_pairs);
    return ATSI_OK;
}

// ---- one product ----------------------------------------------------------------------------------------------------------

// What dense and expert products share. n_in: rows, or pairs with e->ids.
struct product {
    const struct atsi_op_call *call;
    struct expert_args experts;
    uint64_t expert_bytes;
    uint32_t n_out, n_cols, n_in, in_per_row;
    bool as_vectors;
};

struct product dense_product(const struct launch_ctx *x, const struct atsi_op_call *call) {
    struct product p = {};
    p.call = call;
    p.n_out = call->out[0].width;
    p.n_cols = call->in[0].width;
    p.n_in = (uint32_t)x->n_rows;
    p.in_per_row = 1;
    p.as_vectors = p.n_in <= VECTOR_ROWS;
    return p;
}

struct product experts_product(const struct launch_ctx *x, const struct atsi_op_call *call) {
    const struct atsi_experts_params *params = &call->op->u.experts;
    struct product p = {};
    p.call = call;
    p.n_out = call->out[0].width / params->n_used;
    p.n_cols = params->in_per_slot ? call->in[0].width / params->n_used : call->in[0].width;
    p.n_in = (uint32_t)x->n_rows * params->n_used;
    p.in_per_row = params->in_per_slot ? params->n_used : 1;
    p.as_vectors = x->n_rows <= VECTOR_ROWS;
    p.expert_bytes = call->tensor[0].info->size_bytes / params->n_experts;
    p.experts.ids = (const int32_t *)call->in[1].data;
    p.experts.ids_stride = call->in[1].stride;
    if (call->resident.mine) {
        p.experts.ids = call->resident.mine;
        p.experts.ids_stride = params->n_used;
    }
    p.experts.slots = call->resident.data ? call->resident.slots : NULL;
    p.experts.n_slots = params->n_used;
    p.experts.in_divisor = params->in_per_slot ? 1 : params->n_used;
    p.experts.n_experts = params->n_experts;
    p.experts.fetched = call->resident.fetched != NULL;
    return p;
}

const struct tiled_type *tiled_type_of_weight(const struct atsi_tensor *t) {
    return t->layout == ATSI_LAYOUT_TILE16 ? tiled_type_of(t->dtype) : NULL;
}

// Where experts that are not resident are read, or a dense matrix.
const void *weight_of(const struct atsi_op_call *call) {
    return call->resident.fetched ? call->resident.fetched : call->tensor[0].data;
}

struct tiled_part part_of_product(const struct product *p) {
    const struct atsi_op_call *call = p->call;
    struct tiled_part part = {};
    part.weight = (const uint8_t *)weight_of(call);
    part.resident = (const uint8_t *)call->resident.data;
    part.expert_bytes = p->expert_bytes;
    part.bias = (const float *)call->tensor[1].data;
    part.out = (float *)call->out[0].data;
    part.n_out = p->n_out;
    part.out_stride = call->out[0].stride;
    part.add = call->op->add;
    return part;
}

struct tiled_args tiled_args_of(const struct launch_ctx *x, const struct product *p, struct acts in) {
    struct tiled_args a = {};
    a.in = in;
    a.parts[0] = part_of_product(p);
    a.n_parts = 1;
    a.n_cols = p->n_cols;
    a.n_in = p->n_in;
    a.experts = p->experts;
    a.n_multiprocessors = x->device->n_multiprocessors;
    a.max_shared_bytes = x->device->max_shared_bytes;
    a.capability = x->device->capability;
    return a;
}

// Products of few rows wait for others that read the same.
enum atsi_status run_tiled(struct launch_ctx *x, const struct product *p, const struct tiled_type *type,
                           struct atsi_error *err) {
    struct acts in = {};
    ATSI_TRY(quantised(x, &p->call->in[0], &in, err));
    struct tiled_args a = tiled_args_of(x, p, in);
    a.ids_are_final = x->waiting->before == GLU_STARTS_LATE && !p->experts.fetched;
    if (p->as_vectors) {
        x->waiting->type = type;
        x->waiting->products = a;
    } else {
        type->matrix(&a, x->stream);
    }
    return ATSI_OK;
}

bool same_experts(const struct expert_args &a, const struct expert_args &b) {
    return a.ids == b.ids && a.slots == b.slots && a.ids_stride == b.ids_stride && a.n_slots == b.n_slots &&
           a.in_divisor == b.in_divisor && a.n_experts == b.n_experts && a.fetched == b.fetched;
}

// Rows that a part writes.
struct atsi_rows_ref out_rows(const struct tiled_args &a, const struct tiled_part &part) {
    struct atsi_rows_ref rows = {part.out, part.out_stride, part.n_out * (a.experts.ids ? a.experts.n_slots : 1)};
    return rows;
}

bool same_rows(const struct atsi_rows_ref &a, const struct atsi_rows_ref &b) {
    return a.data == b.data && a.stride == b.stride && a.width == b.width;
}

bool is_grid(const struct atsi_tensor *t) { return t->layout == ATSI_LAYOUT_PLAIN && grid_supported(t->dtype); }
// Whether products with this weight read quantised inputs.
bool reads_codes(const struct atsi_tensor *t) { return t->layout == ATSI_LAYOUT_TILE16 || is_grid(t); }

enum atsi_status run_grid(struct launch_ctx *x, const struct product *p, enum atsi_dtype dtype,
                          struct atsi_error *err) {
    const struct atsi_op_call *call = p->call;
    const uint8_t *tables = x->device->scratch.base + x->device->scratch.grids_offset;
    struct grid_args a = {};
    ATSI_TRY(quantised(x, &call->in[0], &a.in, err));
    if (!p->as_vectors) {
        struct tiled_args many = tiled_args_of(x, p, a.in);
        many.codebook = grid_codebook(dtype, tables);
        if (grid_matrix(dtype, &many, x->stream)) return ATSI_OK;
    }
    a.weight = (const uint8_t *)weight_of(call);
    a.resident = (const uint8_t *)call->resident.data;
    a.expert_bytes = p->expert_bytes;
    a.bias = (const float *)call->tensor[1].data;
    a.out = (float *)call->out[0].data;
    a.n_out = p->n_out;
    a.n_cols = p->n_cols;
    a.n_in = p->n_in;
    a.out_stride = call->out[0].stride;
    a.add = call->op->add;
    a.experts = p->experts;
    a.tables = tables;
    a.n_multiprocessors = x->device->n_multiprocessors;
    a.max_shared_bytes = x->device->max_shared_bytes;
    if (!grid_product(dtype, &a, x->stream))
        return atsi_fail(
            err, ATSI_FAILED,
            "GPU: experts of type %s with %u columns do not fit this card (tensor %s): place them on the CPU",
            atsi_dtype_name(dtype), p->n_cols, call->tensor[0].info->name);
    return ATSI_OK;
}

cudaError_t prepare_grid(const struct cuda_device *d, enum atsi_dtype dtype) {
    cudaError_t status = grid_prepare(dtype, d->max_shared_bytes);
    return status == cudaSuccess ? grid_matrix_prepare(dtype, d->max_shared_bytes) : status;
}

struct plain_args plain_args_of(const struct launch_ctx *x, const struct product *p) {
    const struct atsi_op_call *call = p->call;
    struct plain_args a = {};
    a.weight = weight_of(call);
    a.resident = call->resident.data;
    a.bias = (const float *)call->tensor[1].data;
    a.in = (const float *)call->in[0].data;
    a.out = (float *)call->out[0].data;
    a.n_out = p->n_out;
    a.n_cols = p->n_cols;
    a.n_in = p->n_in;
    a.in_stride = call->in[0].stride;
    a.in_per_row = p->in_per_row;
    a.out_stride = call->out[0].stride;
    a.add = call->op->add;
    a.experts = p->experts;
    a.n_multiprocessors = x->device->n_multiprocessors;
    return a;
}

void run_plain(struct launch_ctx *x, const struct product *p, enum atsi_dtype dtype) {
    struct plain_args a = plain_args_of(x, p);
    if (p->as_vectors)
        plain_vector(dtype, &a, x->stream);
    else if (!half_matrix(dtype, &a, x->device->capability, x->stream))
        plain_matrix(dtype, &a, x->stream);
}

enum atsi_status run(struct launch_ctx *x, const struct product *p, struct atsi_error *err) {
    const struct atsi_tensor *t = p->call->tensor[0].info;
    const struct tiled_type *type = tiled_type_of_weight(t);
    if (type) return run_tiled(x, p, type, err);
    if (is_grid(t)) return run_grid(x, p, t->dtype, err);
    if (t->layout != ATSI_LAYOUT_PLAIN || !plain_supported(t->dtype))
        return atsi_fail(err, ATSI_FAILED,
                         "GPU: weights of type %s (tensor %s) are not supported: place them on the CPU",
                         atsi_dtype_name(t->dtype), t->name);
    run_plain(x, p, t->dtype);
    return ATSI_OK;
}

} // namespace

cudaError_t load_matmul(const struct cuda_device *d, const struct atsi_program *p) {
    static const void *const KERNELS[] = {(const void *)quantise_kernel, (const void *)group_kernel};
    cudaError_t status = load_kernels(KERNELS);
    for (uint32_t i = 0; i < p->n_tensors && status == cudaSuccess; i++) {
        const struct atsi_tensor *t = &p->tensors[i];
        const struct tiled_type *type = tiled_type_of_weight(t);
        if (type)
            status = type->prepare(d->max_shared_bytes);
        else if (is_grid(t))
            status = prepare_grid(d, t->dtype);
        else if (plain_supported(t->dtype))
            status = plain_prepare(t->dtype);
        if (status == cudaSuccess && (t->dtype == ATSI_F16 || t->dtype == ATSI_BF16)) status = half_matrix_prepare();
    }
    return status;
}

enum atsi_status launch_matmul(struct launch_ctx *x, const struct atsi_op_call *call, struct atsi_error *err) {
    struct product p = dense_product(x, call);
    return run(x, &p, err);
}

enum atsi_status launch_experts(struct launch_ctx *x, const struct atsi_op_call *call, struct atsi_error *err) {
    struct product p = experts_product(x, call);
    if (p.experts.n_experts > EXPERTS_CAP)
        return atsi_fail(err, ATSI_FAILED, "GPU: products with %u experts are not supported, at most %d",
                         p.experts.n_experts, EXPERTS_CAP);
    if (p.experts.fetched && x->n_rows != 1)
        return atsi_fail(err, ATSI_FAILED, "GPU: experts are fetched for one row only, not for %d", x->n_rows);
    if (!p.as_vectors) ATSI_TRY(grouped(x, &p.experts, p.n_in, err));
    return run(x, &p, err);
}

bool product_joins(struct launch_ctx *x, const struct atsi_op_call *call) {
    struct tiled_args *a = &x->waiting->products;
    bool dense = call->op->kind == ATSI_OP_MATMUL;
    if (!dense && call->op->kind != ATSI_OP_EXPERTS) return false;
    struct product p = dense ? dense_product(x, call) : experts_product(x, call);
    if (tiled_type_of_weight(call->tensor[0].info) != x->waiting->type || a->n_parts == TILED_PARTS_MAX ||
        p.n_cols != a->n_cols || p.n_in != a->n_in || !same_experts(p.experts, a->experts) ||
        !acts_are(x->device, acts_key_of(&call->in[0], x->n_rows)))
        return false;
    for (int i = 0; i < a->n_parts; i++)
        if (rows_overlap(call->out[0], out_rows(*a, a->parts[i]), (uint32_t)x->n_rows)) return false;
    a->parts[a->n_parts++] = part_of_product(&p);
    return true;
}

// The result goes behind the products' input, which other blocks still read.
bool glu_joins(struct launch_ctx *x, const struct atsi_op_call *call) {
    struct waiting *w = x->waiting;
    const struct tiled_args *a = &w->products;
    if (call->op->kind != ATSI_OP_GLU || !w->type || w->heads.n_parts > 0 || !a->experts.ids || a->n_parts != 2)
        return false;
    const struct atsi_rows_ref &y = call->out[0];
    if (a->n_in != (uint32_t)x->n_rows * a->experts.n_slots) return false;
    if (a->parts[0].n_out != a->parts[1].n_out || a->parts[0].n_out % GLU_ROWS != 0) return false;
    for (int i = 0; i < 2; i++) {
        struct atsi_rows_ref rows = out_rows(*a, a->parts[i]);
        if (a->parts[i].add || !same_rows(rows, call->in[i])) return false;
        if (rows_overlap(rows, y, (uint32_t)x->n_rows) && !same_rows(rows, y)) return false;
    }
    const struct scratch *s = &x->device->scratch;
    struct acts_key key = acts_key_of(&y, x->n_rows);
    key.offset = (uint64_t)((const uint8_t *)a->in.q - s->base) - s->acts_offset +
                 acts_bytes(a->n_in / a->experts.in_divisor, a->n_cols);
    key.offset = (key.offset + 255) / 256 * 256;
    if (key.offset + acts_bytes(key.n_rows, key.width) > s->acts_bytes) return false;
    struct glu_args glu = {call->op->u.glu, (float *)y.data, y.stride, (int8_t *)s->base + s->acts_offset + key.offset,
                           NULL};
    glu.meta = (act_meta *)(glu.q + (uint64_t)key.n_rows * key.width);
    if (!w->type->vector_glu(a, &glu, x->stream)) return false;
    x->device->acts = key;
    w->type = NULL;
    w->before = GLU_STARTS_LATE;
    return true;
}

bool product_waits_for_router(struct launch_ctx *x, const struct atsi_op_call *call) {
    if (call->op->kind != ATSI_OP_MATMUL || call->tensor[0].info->layout != ATSI_LAYOUT_PLAIN) return false;
    struct product p = dense_product(x, call);
    struct plain_args a = plain_args_of(x, &p);
    const struct norm_args *norm = &x->waiting->norm;
    bool others = norm->n_rows > 0 && (norm->out != a.in || norm->width != a.n_cols);
    if (others || !router_may_join(call->tensor[0].info->dtype, &a)) return false;
    x->waiting->scores = a;
    return true;
}

uint64_t matmul_tables_bytes(const struct atsi_program *p) {
    for (uint32_t i = 0; i < p->n_tensors; i++)
        if (is_grid(&p->tensors[i])) return grid_tables_bytes();
    return 0;
}

uint64_t matmul_acts_bytes(const struct atsi_program *p, uint32_t n_tokens_max, uint32_t n_outputs_max) {
    uint64_t most = 0;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const struct atsi_op *op = &p->ops[i];
        bool multiplies = op->kind == ATSI_OP_MATMUL || op->kind == ATSI_OP_EXPERTS;
        if (!multiplies || !reads_codes(&p->tensors[op->tensor[0]])) continue;
        bool outputs = p->buffers[op->out[0].buffer].rows == ATSI_ROWS_OUTPUTS;
        uint64_t bytes = acts_bytes(outputs ? n_outputs_max : n_tokens_max, op->in[0].width);
        if (bytes > most) most = bytes;
    }
    return most;
}

uint64_t experts_groups_bytes(const struct atsi_program *p, uint32_t n_tokens_max) {
    uint64_t most = 0;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const struct atsi_op *op = &p->ops[i];
        if (op->kind != ATSI_OP_EXPERTS) continue;
        uint64_t bytes = groups_bytes((uint64_t)n_tokens_max * op->u.experts.n_used, op->u.experts.n_experts);
        if (bytes > most) most = bytes;
    }
    return most;
}
