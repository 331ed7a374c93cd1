#include "tools/synth/values.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/dequant.h"

enum {
    STREAM_COMMON = 1 << 30, // numbers of streams that belong to no tensor
    STREAM_POPULARITY,
    STREAM_ALIKE
};

// How much of an embedding and of what experts add reaches the part of the stream that routers look at.
static const float faint = 0.25f;

static enum atsi_status make_common(struct synth_values *v, struct atsi_error *err) {
    const struct synth_tensor *embedding = &v->model->tensors[0];
    uint32_t n = v->model->n_common;
    if (n == 0) return ATSI_OK;
    v->common_size_bytes = atsi_dtype_row_bytes(embedding->dtype, n);
    v->common_bytes = malloc(v->common_size_bytes);
    v->common = malloc(n * sizeof *v->common);
    if (!v->common_bytes || !v->common) return atsi_fail(err, ATSI_FAILED, "out of memory");
    struct synth_random r = synth_random_from(synth_hash(v->seed, STREAM_COMMON, 0));
    synth_blocks_fill(&v->blocks[embedding->dtype], &r, embedding->std, n, v->common_bytes);
    atsi_dequant(embedding->dtype, v->common_bytes, n, v->common);
    double squares = 0;
    for (uint32_t i = 0; i < n; i++) squares += (double)v->common[i] * v->common[i];
    for (uint32_t i = 0; i < n; i++) v->common[i] *= (float)(embedding->std / squares);
    return ATSI_OK;
}

enum atsi_status synth_values_init(struct synth_values *out, const struct synth_model *model, uint64_t seed,
                                   struct atsi_error *err) {
    *out = (struct synth_values){.model = model, .seed = seed};
    for (uint32_t i = 0; i < model->n_tensors; i++) {
        struct synth_blocks *blocks = &out->blocks[model->tensors[i].dtype];
        if (blocks->unit_rms == 0) ATSI_TRY(synth_blocks_init(blocks, model->tensors[i].dtype, err));
    }
    return make_common(out, err);
}

void synth_values_free(struct synth_values *values) {
    free(values->common_bytes);
    free(values->common);
    *values = (struct synth_values){0};
}

// Rows one by one: the common part, the token's own, and the rest, which is left to attention.
static void fill_embedding(const struct synth_values *v, const struct synth_tensor *t, struct synth_random *r,
                           uint64_t n, uint8_t *out) {
    const struct synth_blocks *blocks = &v->blocks[t->dtype];
    uint64_t row_bytes = atsi_dtype_row_bytes(t->dtype, t->ne[0]), own = v->model->n_own;
    if (v->model->n_common == 0) {
        synth_blocks_fill(blocks, r, t->std, n * t->ne[0], out);
        return;
    }
    for (uint64_t i = 0; i < n; i++, out += row_bytes) {
        synth_blocks_fill(blocks, r, t->std, own, out);
        synth_blocks_fill(blocks, r, faint * t->std, t->ne[0] - own, out + atsi_dtype_row_bytes(t->dtype, own));
        memcpy(out, v->common_bytes, v->common_size_bytes);
    }
}

// Matrices of experts, whose rows are elements of the stream.
static void fill_expert_out(const struct synth_values *v, const struct synth_tensor *t, struct synth_random *r,
                            uint64_t first, uint64_t n, uint8_t *out) {
    uint64_t row_bytes = atsi_dtype_row_bytes(t->dtype, t->ne[0]), own = v->model->n_own;
    for (uint64_t i = first; i < first + n; i++, out += row_bytes)
        synth_blocks_fill(&v->blocks[t->dtype], r, i % t->ne[1] < own ? t->std : faint * t->std, t->ne[0], out);
}

// The row of attn_k that row i of attn_q or attn_k starts like; false for a gate's row. Values have their own.
static bool key_row(const struct synth_model *m, const struct synth_tensor *t, uint64_t i, uint64_t *row) {
    uint64_t dim = m->shape.head_dim, n_shared = m->shape.n_heads / m->shape.n_kv_heads;
    *row = i;
    if (t->content != SYNTH_QUERY) return true;
    uint64_t rows_a_head = m->family->gated ? 2 * dim : dim, in_head = i % rows_a_head;
    *row = i / rows_a_head / n_shared * dim + in_head;
    return in_head < dim;
}

// How much larger the first n_common columns are than the others. Of queries and keys: such that the scores of a token with itself
// gain 11 from them, at any width and head size (a norm on the heads keeps their sum of squares). Of values: nearly nothing, because
// what they pass on would be added everywhere.
static float common_size(const struct synth_model *m, enum synth_content content) {
    if (content == SYNTH_VALUE) return 0.1f;
    float share = 8 / sqrtf((float)m->shape.head_dim), width = (float)m->n_common / (float)m->shape.n_embd;
    if (share > 0.75f) share = 0.75f;
    return sqrtf((m->family->qk_norm ? share / (1 - share) : share) / width);
}

static void fill_alike(const struct synth_values *v, const struct synth_tensor *t, struct synth_random *r,
                       uint64_t first, uint64_t n, uint8_t *out) {
    uint32_t n_common = v->model->n_common;
    uint64_t row_bytes = atsi_dtype_row_bytes(t->dtype, t->ne[0]), row;
    synth_blocks_fill(&v->blocks[t->dtype], r, t->std, n * t->ne[0], out);
    if (n_common == 0 || n_common % atsi_dtype_info(t->dtype)->block_elems != 0) return;
    float std = t->std * common_size(v->model, t->content);
    for (uint64_t i = 0; i < n; i++) {
        if (!key_row(v->model, t, first + i, &row)) continue;
        struct synth_random alike = synth_random_from(synth_hash(v->seed, STREAM_ALIKE + (uint64_t)t->layer, row));
        synth_blocks_fill(&v->blocks[t->dtype], &alike, std, n_common, out + i * row_bytes);
    }
}

// The rank in popularity of one expert: place[e] of a shuffle that belongs to the tensor.
static void shuffle_ranks(uint64_t seed, uint32_t n, uint32_t *rank) {
    struct synth_random r = synth_random_from(seed);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t j = (uint32_t)(synth_next(&r) % (i + 1));
        if (j != i) rank[i] = rank[j];
        rank[j] = i;
    }
}

// Sizes of the stream that a router sees, as expected from what the layers up to its own have added.
struct stream_size {
    double all, seen; // of all elements; of those from n_own on
};

static struct stream_size expected_size(const struct synth_model *m, const struct synth_tensor *router) {
    double mixed = m->shape.n_v_heads > 0 ? 1.1 : 3.6, ffn = 1; // variance that all layers together add
    double part = (router->layer + 1.0) / m->shape.n_layers, little = (double)faint * faint;
    double own = 1 + (mixed + ffn) * part, seen = little + (mixed + little * ffn) * part;
    return (struct stream_size){sqrt((own + seen) / 2), sqrt(seen)};
}

// Rows of a router: noise, and on the common part of the stream the logarithm of the expert's popularity 1 / (1 + rank). Both are scaled
// so that layers at any depth choose about as unevenly.
static void fill_router(const struct synth_values *v, uint32_t index, struct synth_random *r, uint64_t first,
                        uint64_t n, float *out) {
    const struct synth_tensor *t = &v->model->tensors[index];
    uint32_t n_experts = (uint32_t)t->ne[1], n_common = v->model->n_common, n_own = v->model->n_own;
    uint32_t rank[1 << 12];
    struct stream_size size = expected_size(v->model, t);
    float noise = n_common > 0 ? t->std * (float)(size.all / size.seen) : t->std;
    synth_blocks_fill(&v->blocks[ATSI_F32], r, noise, n * t->ne[0], (uint8_t *)out);
    if (n_common == 0) return;
    shuffle_ranks(synth_hash(v->seed, STREAM_POPULARITY, index), n_experts, rank);
    double mean = lgamma((double)n_experts + 1) / n_experts;
    for (uint64_t e = first; e < first + n; e++) {
        float popularity = (float)(size.all * (mean - log(1 + rank[e])));
        float *row = out + (e - first) * t->ne[0];
        for (uint32_t i = 0; i < n_own; i++) row[i] = i < n_common ? popularity * v->common[i] : 0;
    }
}

// Frequencies of long waves are divided by `factor`, short ones stay, those between are blended (Llama 3.1's published rule, there with
// a factor of 8 for a context stretched from 8192).
static void fill_divisors(const struct synth_shape *shape, double factor, uint64_t n, float *out) {
    const double low = 1, high = 4, orig_ctx = 8192, turn = 6.283185307179586;
    for (uint64_t i = 0; i < n; i++) {
        double wave = turn * pow(shape->rope_base, 2.0 * (double)i / shape->n_rot);
        double blend = (orig_ctx / wave - low) / (high - low);
        blend = blend < 0 ? 0 : blend > 1 ? 1 : blend;
        out[i] = (float)(1 / ((1 - blend) / factor + blend));
    }
}

static void fill_vector(const struct synth_tensor *t, struct synth_random *r, uint64_t n, float *out) {
    if (t->content == SYNTH_SIGNS) {
        for (uint64_t i = 0; i < n; i++) out[i] = synth_next(r) & 1 ? t->mean : -t->mean;
        return;
    }
    synth_normals(r, out, n);
    for (uint64_t i = 0; i < n; i++) out[i] = t->mean + t->std * out[i];
    if (t->content != SYNTH_DECAY) return;
    for (uint64_t i = 0; i < n; i++) out[i] = -expf(out[i]);
}

void synth_values_rows(const struct synth_values *values, uint32_t index, uint64_t first, uint64_t n, uint8_t *out) {
    const struct synth_tensor *t = &values->model->tensors[index];
    struct synth_random r = synth_random_from(synth_hash(values->seed, index, first));
    float *floats = (float *)(void *)out;
    if (t->content == SYNTH_EMBEDDING)
        fill_embedding(values, t, &r, n, out);
    else if (t->content == SYNTH_QUERY || t->content == SYNTH_KEY || t->content == SYNTH_VALUE)
        fill_alike(values, t, &r, first, n, out);
    else if (t->content == SYNTH_EXPERT_OUT)
        fill_expert_out(values, t, &r, first, n, out);
    else if (t->content == SYNTH_ROUTER)
        fill_router(values, index, &r, first, n, floats);
    else if (t->content == SYNTH_DIVISORS)
        fill_divisors(&values->model->shape, t->mean, n * t->ne[0], floats);
    else if (t->dtype == ATSI_F32 && (t->mean != 0 || t->content != SYNTH_NOISE))
        fill_vector(t, &r, n * t->ne[0], floats);
    else
        synth_blocks_fill(&values->blocks[t->dtype], &r, t->std, n * t->ne[0], out);
}
