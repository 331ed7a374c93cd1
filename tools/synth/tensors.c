#include "tools/synth/tensors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/checked.h"
#include "formats/base/grow.h"

// Gains: the size of a matrix's output for inputs of size 1.
static const float score_gain = 1.2f;    // of q and k: scores with a standard deviation of 1.4
static const float head_gain = 2;        // standard deviation of the logits
static const float attention_sum = 3;    // of all layers together, for one token; an average over a context is smaller
static const float ffn_sum = 1;          // of all layers together
static const float delta_sum = 0.4f;     // of all layers together: what a short memory returns is sensitive to rounding
static const float glu_size = 0.6f;      // of silu(a) b for normal a and b
static const float experts_size = 0.27f; // of the weighted sum of a few such experts
static const float bias_std = 0.1f, norm_std = 0.1f;

struct lister {
    struct synth_model *model;
    int32_t layer; // -1 outside the layers
    enum atsi_status status;
    struct atsi_error *err;
};

static void append(struct lister *l, const char *name, const uint64_t ne[3], struct synth_tensor t) {
    struct synth_model *m = l->model;
    if (l->status != ATSI_OK) return;
    if (!atsi_grow((void **)&m->tensors, m->n_tensors, &m->tensors_cap, sizeof *m->tensors)) {
        l->status = atsi_fail(l->err, ATSI_FAILED, "out of memory while listing tensors");
        return;
    }
    if (l->layer < 0)
        snprintf(t.name, sizeof t.name, "%s", name);
    else
        snprintf(t.name, sizeof t.name, "blk.%d.%s", l->layer, name);
    memcpy(t.ne, ne, sizeof t.ne);
    t.n_dims = ne[2] > 1 ? 3 : ne[1] > 0 ? 2 : 1;
    if (t.n_dims == 1) t.ne[1] = 1;
    uint64_t rows, end;
    uint64_t row_bytes = atsi_dtype_row_bytes(t.dtype, t.ne[0]);
    if (row_bytes == 0 || !atsi_mul_u64(t.ne[1], t.ne[2], &rows) || !atsi_mul_u64(rows, row_bytes, &t.size_bytes) ||
        t.size_bytes == 0 || !atsi_add_u64(m->data_bytes, t.size_bytes, &end) ||
        !atsi_align_u64(end, SYNTH_ALIGNMENT, &end)) {
        l->status = atsi_fail(l->err, ATSI_BAD_INPUT, "tensor %s: %llu x %llu x %llu cannot be stored as %s", t.name,
                              (unsigned long long)t.ne[0], (unsigned long long)t.ne[1], (unsigned long long)t.ne[2],
                              atsi_dtype_name(t.dtype));
        return;
    }
    t.layer = l->layer;
    t.offset = m->data_bytes;
    m->data_bytes = end;
    m->tensors[m->n_tensors++] = t;
}

// A float32 vector of n elements.
static void add_vector(struct lister *l, const char *name, uint64_t n, enum synth_content content, float mean,
                       float std) {
    append(l, name, (uint64_t[]){n, 0, 1},
           (struct synth_tensor){.dtype = ATSI_F32, .content = content, .mean = mean, .std = std});
}

static void add_norm(struct lister *l, const char *stem, uint64_t n, float size) {
    char name[SYNTH_NAME_CAP];
    snprintf(name, sizeof name, "%s.weight", stem);
    add_vector(l, name, n, SYNTH_NOISE, size, norm_std * size);
}

// n_cols x n_rows x n_matrices of the recipe's type; `gain` is the size of the output for inputs of size 1.
static void add_matrices(struct lister *l, const char *stem, enum synth_role role, float gain, uint64_t n_cols,
                         uint64_t n_rows, uint64_t n_matrices) {
    const struct synth_model *m = l->model;
    struct synth_place place = {role, l->layer < 0 ? 0 : (uint32_t)l->layer, m->shape.n_layers, m->shape.n_experts,
                                n_cols};
    char name[SYNTH_NAME_CAP];
    snprintf(name, sizeof name, "%s.weight", stem);
    append(l, name, (uint64_t[]){n_cols, n_rows, n_matrices},
           (struct synth_tensor){.dtype = synth_recipe_type(&m->recipe, &place),
                                 .content = SYNTH_NOISE,
                                 .std = gain / sqrtf((float)n_cols)});
}

static void add_matrix(struct lister *l, const char *stem, enum synth_role role, float gain, uint64_t n_cols,
                       uint64_t n_rows) {
    add_matrices(l, stem, role, gain, n_cols, n_rows, 1);
}

// Of the tensor that was added last.
static void set_content(struct lister *l, enum synth_content content) {
    if (l->status == ATSI_OK) l->model->tensors[l->model->n_tensors - 1].content = content;
}

// "stem.bias" of one matrix, or a row for each expert (always float32).
static void add_bias(struct lister *l, const char *stem, float std, uint64_t n, uint64_t n_experts) {
    char name[SYNTH_NAME_CAP];
    snprintf(name, sizeof name, "%s.bias", stem);
    append(l, name, (uint64_t[]){n, n_experts, 1},
           (struct synth_tensor){.dtype = ATSI_F32, .content = SYNTH_NOISE, .std = std});
}

// What one of n_layers layers may add for all of them to add up (as independent parts do) to `sum`.
static float share(const struct lister *l, float sum) { return sum / sqrtf((float)l->model->shape.n_layers); }

// The two matrices added last, of queries and keys: only one type can hold the same values twice.
static void make_alike(struct lister *l) {
    struct synth_tensor *end = l->model->tensors + l->model->n_tensors;
    if (l->status != ATSI_OK || end[-2].dtype != end[-1].dtype) return;
    end[-2].content = SYNTH_QUERY;
    end[-1].content = SYNTH_KEY;
}

// ---- parts of a layer ---------------------------------------------------------------------------------------------

static void list_qkv(struct lister *l) {
    const struct synth_shape *s = &l->model->shape;
    const struct synth_family *f = l->model->family;
    uint64_t q = (uint64_t)s->n_heads * s->head_dim, kv = (uint64_t)s->n_kv_heads * s->head_dim;
    float gain = f->qk_norm ? 1 : score_gain;
    if (f->fused_qkv) {
        add_matrix(l, "attn_qkv", SYNTH_ATTN_QKV, gain, s->n_embd, q + 2 * kv);
        return;
    }
    add_matrix(l, "attn_q", SYNTH_MATRIX, gain, s->n_embd, f->gated ? 2 * q : q);
    add_matrix(l, "attn_k", SYNTH_ATTN_K, gain, s->n_embd, kv);
    make_alike(l);
    add_matrix(l, "attn_v", SYNTH_ATTN_V, 1, s->n_embd, kv);
    set_content(l, SYNTH_VALUE);
    if (s->qkv_bias) {
        add_bias(l, "attn_q", bias_std, q, 0);
        add_bias(l, "attn_k", bias_std, kv, 0);
        add_bias(l, "attn_v", bias_std, kv, 0);
    }
    if (f->qk_norm) {
        add_norm(l, "attn_q_norm", f->qk_norm_whole ? q : s->head_dim, score_gain);
        add_norm(l, "attn_k_norm", f->qk_norm_whole ? kv : s->head_dim, score_gain);
    }
}

static void list_attention(struct lister *l) {
    const struct synth_shape *s = &l->model->shape;
    const struct synth_family *f = l->model->family;
    list_qkv(l);
    float size = share(l, attention_sum);
    add_matrix(l, "attn_output", SYNTH_ATTN_OUT, f->post_norms ? 1 : size, (uint64_t)s->n_heads * s->head_dim,
               s->n_embd);
    if (f->sinks) {
        add_bias(l, "attn_output", bias_std * size, s->n_embd, 0);
        add_vector(l, "attn_sinks.weight", s->n_heads, SYNTH_NOISE, 0, 1);
    }
    if (f->post_norms) add_norm(l, "post_attention_norm", s->n_embd, share(l, ffn_sum));
}

static void list_delta_rule(struct lister *l) {
    const struct synth_shape *s = &l->model->shape;
    enum {
        TAPS = 4
    };
    uint64_t k = (uint64_t)s->n_k_heads * s->state_dim, v = (uint64_t)s->n_v_heads * s->state_dim;
    add_matrix(l, "attn_qkv", SYNTH_ATTN_QKV, 1, s->n_embd, 2 * k + v);
    add_matrix(l, "attn_gate", SYNTH_MATRIX, 1, s->n_embd, v);
    if (l->model->family->fused_ba) {
        add_matrix(l, "ssm_ba", SYNTH_MATRIX, 1, s->n_embd, 2 * (uint64_t)s->n_v_heads);
    } else {
        add_matrix(l, "ssm_beta", SYNTH_MATRIX, 1, s->n_embd, s->n_v_heads);
        add_matrix(l, "ssm_alpha", SYNTH_MATRIX, 1, s->n_embd, s->n_v_heads);
    }
    append(l, "ssm_conv1d.weight", (uint64_t[]){TAPS, 2 * k + v, 1},
           (struct synth_tensor){.dtype = ATSI_F32, .content = SYNTH_NOISE, .std = 0.7f});
    add_vector(l, "ssm_a", s->n_v_heads, SYNTH_DECAY, -2.3f, 1);
    add_vector(l, "ssm_dt.bias", s->n_v_heads, SYNTH_NOISE, 0, 0.5f);
    add_norm(l, "ssm_norm", s->state_dim, 1);
    add_matrix(l, "ssm_out", SYNTH_ATTN_OUT, share(l, delta_sum) / glu_size, v, s->n_embd);
}

static void list_dense_ffn(struct lister *l, const char *tail, uint64_t width) {
    const struct synth_shape *s = &l->model->shape;
    const struct synth_family *f = l->model->family;
    char gate[SYNTH_NAME_CAP], up[SYNTH_NAME_CAP], down[SYNTH_NAME_CAP];
    snprintf(gate, sizeof gate, "ffn_gate%s", tail);
    snprintf(up, sizeof up, "ffn_up%s", tail);
    snprintf(down, sizeof down, "ffn_down%s", tail);
    if (!f->fused_gate_up) add_matrix(l, gate, SYNTH_MATRIX, 1, s->n_embd, width);
    add_matrix(l, up, SYNTH_MATRIX, 1, s->n_embd, f->fused_gate_up ? 2 * width : width);
    add_matrix(l, down, SYNTH_FFN_DOWN, f->post_norms ? 1 : share(l, ffn_sum) / glu_size, width, s->n_embd);
    if (s->n_experts) set_content(l, SYNTH_EXPERT_OUT);
    if (f->post_norms) add_norm(l, "post_ffw_norm", s->n_embd, share(l, ffn_sum));
}

static void list_router(struct lister *l) {
    const struct synth_shape *s = &l->model->shape;
    const float noise_gain = 2.8f; // over half of the stream: scores with a standard deviation of 2
    append(
        l, "ffn_gate_inp.weight", (uint64_t[]){s->n_embd, s->n_experts, 1},
        (struct synth_tensor){.dtype = ATSI_F32, .content = SYNTH_ROUTER, .std = noise_gain / sqrtf((float)s->n_embd)});
    if (l->model->family->sinks) add_bias(l, "ffn_gate_inp", bias_std, s->n_experts, 0);
    if (l->model->family->selection_bias) add_bias(l, "exp_probs_b", bias_std, s->n_experts, 0);
}

static void list_experts(struct lister *l) {
    const struct synth_shape *s = &l->model->shape;
    const struct synth_family *f = l->model->family;
    float size = share(l, ffn_sum);
    list_router(l);
    add_matrices(l, "ffn_gate_exps", SYNTH_EXPERT, 1, s->n_embd, s->n_ff_exp, s->n_experts);
    add_matrices(l, "ffn_up_exps", SYNTH_EXPERT, 1, s->n_embd, s->n_ff_exp, s->n_experts);
    add_matrices(l, "ffn_down_exps", SYNTH_EXPERT_DOWN, size / experts_size, s->n_ff_exp, s->n_embd, s->n_experts);
    set_content(l, SYNTH_EXPERT_OUT);
    if (f->sinks) {
        add_bias(l, "ffn_gate_exps", bias_std, s->n_ff_exp, s->n_experts);
        add_bias(l, "ffn_up_exps", bias_std, s->n_ff_exp, s->n_experts);
        add_bias(l, "ffn_down_exps", bias_std * size, s->n_embd, s->n_experts);
    }
    if (s->n_ff_shared > 0) list_dense_ffn(l, "_shexp", s->n_ff_shared);
    if (f->shared_gate)
        append(l, "ffn_gate_inp_shexp.weight", (uint64_t[]){s->n_embd, 0, 1},
               (struct synth_tensor){.dtype = ATSI_F32, .content = SYNTH_NOISE, .std = 1 / sqrtf((float)s->n_embd)});
}

// ---- the whole ----------------------------------------------------------------------------------------------------

static float embedding_std(const struct synth_model *m) {
    return m->family->scaled_embed ? 1 / sqrtf((float)m->shape.n_embd) : 1;
}

static void list_ends(struct lister *l) {
    const struct synth_shape *s = &l->model->shape;
    float std = embedding_std(l->model);
    add_matrix(l, "token_embd", s->tied ? SYNTH_HEAD : SYNTH_EMBED, std * sqrtf((float)s->n_embd), s->n_embd,
               s->n_vocab);
    set_content(l, SYNTH_EMBEDDING);
    if (s->tied) {
        add_vector(l, "output_norm.weight", s->n_embd, SYNTH_SIGNS, head_gain / (std * sqrtf((float)s->n_embd)), 0);
    } else {
        add_norm(l, "output_norm", s->n_embd, 1);
        add_matrix(l, "output", SYNTH_HEAD, head_gain, s->n_embd, s->n_vocab);
    }
    if (s->rope_freqs) add_vector(l, "rope_freqs.weight", s->n_rot / 2, SYNTH_DIVISORS, 8, 0);
    if (s->long_factors) {
        add_vector(l, "rope_factors_long.weight", s->n_rot / 2, SYNTH_DIVISORS, 32, 0);
        add_vector(l, "rope_factors_short.weight", s->n_rot / 2, SYNTH_DIVISORS, 2, 0);
    }
}

static void list_layer(struct lister *l, uint32_t i) {
    const struct synth_shape *s = &l->model->shape;
    l->layer = (int32_t)i;
    add_norm(l, "attn_norm", s->n_embd, 1);
    if (synth_layer_has_attention(s, i))
        list_attention(l);
    else
        list_delta_rule(l);
    add_norm(l, l->model->family->ffn_norm, s->n_embd, 1);
    if (synth_layer_has_experts(s, i))
        list_experts(l);
    else
        list_dense_ffn(l, "", s->n_ff);
}

// The common part is an eighth of the row in whole blocks, at least one, and the token's own part ends at the half. Rows of
// fewer than two blocks have no common part: their routers are even.
static void divide_row(struct synth_model *m) {
    uint32_t block = atsi_dtype_info(m->tensors[0].dtype)->block_elems, n_embd = m->shape.n_embd;
    uint32_t common = n_embd / 8 / block * block, own = n_embd / 2 / block * block;
    if (m->shape.n_experts == 0 || own == 0) return;
    m->n_common = common > 0 ? common : block;
    m->n_own = own;
}

enum atsi_status synth_model_make(struct synth_model *out, const struct synth_shape *shape,
                                  const struct synth_recipe *recipe, struct atsi_error *err) {
    *out = (struct synth_model){.shape = *shape, .family = synth_family_of(shape), .recipe = *recipe};
    struct lister l = {.model = out, .layer = -1, .err = err};
    list_ends(&l);
    for (uint32_t i = 0; i < shape->n_layers; i++) list_layer(&l, i);
    if (l.status == ATSI_OK) divide_row(out);
    return l.status;
}

void synth_model_free(struct synth_model *model) {
    free(model->tensors);
    *model = (struct synth_model){0};
}
