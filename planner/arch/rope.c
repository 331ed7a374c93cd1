#include "planner/arch/rope.h"

#include <math.h>
#include <stdint.h>

static const double pi = 3.14159265358979323846;

// The pair index (real-valued) that turns `turns` times within the original context.
static double yarn_pair_at(const struct atsi_rope_config *c, double turns) {
    return c->n_rot * log(c->n_ctx_orig / (turns * 2 * pi)) / (2 * log(c->base));
}

// 1: keep the frequency of pair i, 0: divide it by the factor.
static double yarn_keep(const struct atsi_rope_config *c, uint32_t i) {
    double low = yarn_pair_at(c, c->beta_fast), high = yarn_pair_at(c, c->beta_slow);
    if (c->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, c->n_rot - 1);
    if (low == high) high += 1e-3;
    double ramp = (i - low) / (high - low);
    return 1 - fmin(fmax(ramp, 0), 1);
}

// How much larger cos and sin become where the context is stretched by `factor`. Files of models that scale all of a head alike (the
// configuration's mscale_all_dim) name a second multiplier, by which it is divided again.
static double yarn_magnitude(double factor, double multiplier) {
    return factor > 1 ? 0.1 * multiplier * log(factor) + 1 : 1;
}

void atsi_rope_inv_freq(const struct atsi_rope_config *c, float *inv_freq) {
    for (uint32_t i = 0; i < c->n_rot / 2; i++) {
        double f = pow(c->base, -2.0 * i / c->n_rot);
        if (c->scaling == ATSI_ROPE_LINEAR) f /= c->factor;
        if (c->scaling == ATSI_ROPE_YARN) {
            double keep = yarn_keep(c, i);
            f = f * keep + f / c->factor * (1 - keep);
        }
        inv_freq[i] = (float)(c->divisors ? f / c->divisors[i] : f);
    }
}

const float *atsi_build_divisors(struct atsi_builder *b, enum atsi_need need, const char *suffix, uint32_t n) {
    const struct atsi_gguf_tensor *t = atsi_build_source(b, suffix);
    if (need == ATSI_REQUIRED) atsi_build_require(b, suffix);
    if (b->status != ATSI_OK || !t) return NULL;
    if (t->dtype != ATSI_F32 || t->ne[0] != n || t->ne[1] != 1 || t->ne[2] != 1 || t->ne[3] != 1) {
        atsi_build_fail(b, ATSI_BAD_INPUT, "tensor %s: expected an F32 vector of %u", suffix, n);
        return NULL;
    }
    // The reader aligns tensor data to at least 8 bytes, and the floats of a GGUF are in the byte order of the machines we run on.
    const float *values = (const float *)(uintptr_t)t->data;
    for (uint32_t i = 0; i < n; i++)
        if (!(values[i] > 0) || isinf(values[i])) {
            atsi_build_fail(b, ATSI_BAD_INPUT, "tensor %s: element %u is %g, must be positive", suffix, i,
                            (double)values[i]);
            return NULL;
        }
    return values;
}

struct atsi_rope atsi_build_rope_from(struct atsi_builder *b, enum atsi_rope_pairing pairing,
                                      const struct atsi_rope_config *config, float scale) {
    float inv_freq[ATSI_HP_MAX_HEAD_DIM / 2];
    struct atsi_rope rope = {.table = ATSI_NONE, .n_rot = config->n_rot, .pairing = pairing, .scale = scale};
    if (b->status != ATSI_OK) return rope;
    atsi_rope_inv_freq(config, inv_freq);
    rope.table = atsi_build_made(b, "rope.inv_freq", inv_freq, config->n_rot / 2);
    return rope;
}

// The scaling word of the file. Files from before there was one give a bare linear factor.
static enum atsi_rope_scaling read_scaling(struct atsi_builder *b, double factor) {
    char key[ATSI_HP_KEY_CAP];
    struct atsi_str word = {0};
    snprintf(key, sizeof key, "%s.rope.scaling.type", b->arch);
    if (b->status != ATSI_OK) return ATSI_ROPE_PLAIN;
    b->status = atsi_gguf_str_or_none(b->gguf, key, &word, b->err);
    if (!word.data) return factor > 1 ? ATSI_ROPE_LINEAR : ATSI_ROPE_PLAIN;
    if (atsi_str_is(word, "none")) return ATSI_ROPE_PLAIN;
    if (atsi_str_is(word, "linear")) return ATSI_ROPE_LINEAR;
    if (atsi_str_is(word, "yarn")) return ATSI_ROPE_YARN;
    atsi_build_fail(b, ATSI_BAD_INPUT, "key %s: expected none, linear or yarn, found \"%s\"", key,
                    atsi_label(word).text);
    return ATSI_ROPE_PLAIN;
}

struct atsi_rope atsi_build_rope(struct atsi_builder *b, enum atsi_rope_pairing pairing, bool yarn_truncate) {
    double legacy = atsi_build_number(b, "rope.scale_linear", 1, 0, 1e6);
    struct atsi_rope_config config = {
        .base = atsi_build_number(b, "rope.freq_base", 10000, 1, 1e12),
        .n_rot = b->hp.n_rot,
        .factor = atsi_build_number(b, "rope.scaling.factor", legacy, 0, 1e6),
        .truncate = yarn_truncate,
    };
    float scale = 1;
    config.scaling = read_scaling(b, config.factor);
    if (config.scaling == ATSI_ROPE_YARN) {
        config.n_ctx_orig =
            atsi_build_number(b, "rope.scaling.original_context_length", b->hp.n_ctx_train, 0, ATSI_HP_MAX_CTX);
        config.beta_fast = atsi_build_number(b, "rope.scaling.yarn_beta_fast", 32, 0, 1e6);
        config.beta_slow = atsi_build_number(b, "rope.scaling.yarn_beta_slow", 1, 0, 1e6);
        double attn_factor = atsi_build_number(b, "rope.scaling.yarn_attn_factor", 1, 0, 1e3);
        double all_dims = atsi_build_number(b, "rope.scaling.yarn_log_multiplier", 0, -1, 1e3);
        scale = (float)(attn_factor * yarn_magnitude(config.factor, 1) / yarn_magnitude(config.factor, all_dims));
        if (b->status == ATSI_OK)
            fprintf(b->remarks, "rope: yarn, factor %g, original context %g, beta %g to %g, cos and sin times %g\n",
                    config.factor, config.n_ctx_orig, config.beta_fast, config.beta_slow, (double)scale);
    }
    int32_t layer = b->layer;
    b->layer = ATSI_NONE;
    config.divisors = atsi_build_divisors(b, ATSI_OPTIONAL, "rope_freqs.weight", config.n_rot / 2);
    b->layer = layer;
    return atsi_build_rope_from(b, pairing, &config, scale);
}

void atsi_build_rotate(struct atsi_builder *b, const struct atsi_rope *rope, struct atsi_view x, uint32_t n_heads) {
    struct atsi_op op = atsi_op_blank(ATSI_OP_ROPE);
    op.in[0] = x;
    op.out[0] = x;
    op.tensor[0] = rope->table;
    op.u.rope = (struct atsi_rope_params){.n_heads = n_heads,
                                          .head_dim = b->hp.k_dim,
                                          .n_rot = rope->n_rot,
                                          .pairing = rope->pairing,
                                          .scale = rope->scale};
    atsi_build_op(b, &op);
}
