// vec_rows_body.h: the row kernels of kernels/cpu/vec.h; included once by each vec*.c, which sets the width of `lanes`.
#ifndef ATSI_KERNELS_CPU_VEC_ROWS_BODY_H
#define ATSI_KERNELS_CPU_VEC_ROWS_BODY_H

#include <float.h>
#include <math.h>

#include "kernels/cpu/lanes.h"
#include "kernels/cpu/vec.h"

static float sum_of_squares(const float *in, uint32_t n) {
    lanes sum = lanes_set(0.0f);
    for (uint32_t i = 0; i < n; i += LANES) {
        lanes x = lanes_load_left(in + i, n - i, 0.0f);
        sum = lanes_fma(x, x, sum);
    }
    return lanes_sum(sum);
}

static void rms_norm(const float *in, const float *weight, uint32_t n, float eps, bool add, float *out) {
    lanes factor = lanes_set(1.0f / sqrtf(sum_of_squares(in, n) / (float)n + eps));
    for (uint32_t i = 0; i < n; i += LANES) {
        lanes x = lanes_mul(lanes_load_left(in + i, n - i, 0.0f), factor);
        if (weight != NULL) x = lanes_mul(x, lanes_load_left(weight + i, n - i, 0.0f));
        if (add) x = lanes_add(x, lanes_load_left(out + i, n - i, 0.0f));
        lanes_store_left(out + i, x, n - i);
    }
}

static void scale(const float *in, float factor, uint32_t n, float *out) {
    for (uint32_t i = 0; i < n; i += LANES)
        lanes_store_left(out + i, lanes_mul(lanes_load_left(in + i, n - i, 0.0f), lanes_set(factor)), n - i);
}

static void l2_norm(const float *in, uint32_t n, float eps, float factor, float *out) {
    scale(in, factor / sqrtf(sum_of_squares(in, n) + eps), n, out);
}

static void add(const float *a, const float *b, uint32_t n, float *out) {
    for (uint32_t i = 0; i < n; i += LANES)
        lanes_store_left(out + i, lanes_add(lanes_load_left(a + i, n - i, 0.0f), lanes_load_left(b + i, n - i, 0.0f)),
                         n - i);
}

// x * sigmoid(x * slope), as a quotient: one rounding less.
static lanes swish(lanes x, lanes exponent) {
    return lanes_div(x, lanes_add(lanes_set(1.0f), lanes_exp(lanes_neg(exponent))));
}

// x (1 + tanh(u)) / 2 = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3)
static lanes gelu_tanh(lanes x) {
    lanes cubic = lanes_fma(lanes_mul(lanes_set(0.044715f), lanes_mul(x, x)), x, x);
    return swish(x, lanes_mul(lanes_set(1.59576912f), cubic));
}

static lanes glu_clamped(lanes gate, lanes up, const struct atsi_glu_params *p) {
    gate = lanes_min(lanes_set(p->limit), gate);
    up = lanes_min(lanes_set(p->limit), lanes_max(lanes_set(-p->limit), up));
    return lanes_mul(lanes_add(up, lanes_set(1.0f)), swish(gate, lanes_mul(gate, lanes_set(p->alpha))));
}

static void glu(const struct atsi_glu_params *p, const float *gate, const float *up, uint32_t n, float *out) {
    for (uint32_t i = 0; i < n; i += LANES) {
        lanes g = lanes_load_left(gate + i, n - i, 0.0f), u = lanes_load_left(up + i, n - i, 0.0f), result;
        switch (p->act) {
        case ATSI_GLU_GELU_TANH: result = lanes_mul(gelu_tanh(g), u); break;
        case ATSI_GLU_CLAMPED: result = glu_clamped(g, u, p); break;
        default: result = lanes_mul(swish(g, g), u); break;
        }
        lanes_store_left(out + i, result, n - i);
    }
}

static void silu(const float *in, uint32_t n, float *out) {
    for (uint32_t i = 0; i < n; i += LANES) {
        lanes x = lanes_load_left(in + i, n - i, 0.0f);
        lanes_store_left(out + i, swish(x, x), n - i);
    }
}

static void sigmoid(const float *in, uint32_t n, float *out) {
    for (uint32_t i = 0; i < n; i += LANES)
        lanes_store_left(out + i, lanes_sigmoid(lanes_load_left(in + i, n - i, 0.0f)), n - i);
}

static void gate(const float *in, float g, uint32_t n, float *out) {
    float factor[LANES];
    lanes_store(factor, lanes_sigmoid(lanes_set(g)));
    scale(in, factor[0], n, out);
}

static void gate_each(const float *in, const float *gates, uint32_t n, float *out) {
    for (uint32_t i = 0; i < n; i += LANES) {
        lanes factor = lanes_sigmoid(lanes_load_left(gates + i, n - i, 0.0f));
        lanes_store_left(out + i, lanes_mul(lanes_load_left(in + i, n - i, 0.0f), factor), n - i);
    }
}

static float exp_shifted(const float *in, uint32_t n, float *out) {
    lanes largest = lanes_set(-INFINITY), sum = lanes_set(0.0f);
    for (uint32_t i = 0; i < n; i += LANES) largest = lanes_max(largest, lanes_load_left(in + i, n - i, -INFINITY));
    lanes shift = lanes_set(lanes_largest(largest));
    for (uint32_t i = 0; i < n; i += LANES) {
        lanes e = lanes_exp(lanes_sub(lanes_load_left(in + i, n - i, -INFINITY), shift)); // exp(-inf) is 0
        sum = lanes_add(sum, e);
        lanes_store_left(out + i, e, n - i);
    }
    return lanes_sum(sum);
}

static float largest(const float *in, uint32_t n) {
    lanes top = lanes_set(-INFINITY), bad = lanes_set(0.0f);
    for (uint32_t i = 0; i < n; i += LANES) {
        lanes x = lanes_load_left(in + i, n - i, -INFINITY);
        top = lanes_max(top, x);
        // Zero times what is no number, or infinite upwards, is none.
        bad = lanes_fma(lanes_max(lanes_set(-FLT_MAX), x), lanes_set(0.0f), bad);
    }
    return lanes_largest(top) + lanes_sum(bad);
}

static void weighted_sum(const float *slots, const float *weights, const uint32_t *order, uint32_t n_slots, uint32_t n,
                         bool add_to, float *out) {
    for (uint32_t i = 0; i < n; i += LANES) {
        lanes sum = lanes_set(0.0f);
        for (uint32_t k = 0; k < n_slots; k++) {
            uint32_t s = order != NULL ? order[k] : k;
            sum = lanes_fma(lanes_set(weights[s]), lanes_load_left(slots + (size_t)s * n + i, n - i, 0.0f), sum);
        }
        if (add_to) sum = lanes_add(lanes_load_left(out + i, n - i, 0.0f), sum);
        lanes_store_left(out + i, sum, n - i);
    }
}

static void rope_half_split(const float *in, const float *cosine, const float *sine, uint32_t half, float *out) {
    for (uint32_t i = 0; i < half; i += LANES) {
        uint32_t left = half - i;
        lanes c = lanes_load_left(cosine + i, left, 0.0f), s = lanes_load_left(sine + i, left, 0.0f);
        lanes x = lanes_load_left(in + i, left, 0.0f), y = lanes_load_left(in + half + i, left, 0.0f);
        lanes_store_left(out + i, lanes_sub(lanes_mul(x, c), lanes_mul(y, s)), left);
        lanes_store_left(out + half + i, lanes_add(lanes_mul(y, c), lanes_mul(x, s)), left);
    }
}

static void rope(enum atsi_rope_pairing pairing, const float *in, const float *cosine, const float *sine,
                 uint32_t n_rot, uint32_t head_dim, float *out) {
    if (pairing == ATSI_ROPE_HALF_SPLIT) {
        rope_half_split(in, cosine, sine, n_rot / 2, out);
    } else {
        for (uint32_t i = 0; i < n_rot / 2; i++) {
            float x = in[2 * i], y = in[2 * i + 1];
            out[2 * i] = x * cosine[i] - y * sine[i];
            out[2 * i + 1] = y * cosine[i] + x * sine[i];
        }
    }
    if (out != in) memcpy(out + n_rot, in + n_rot, (head_dim - n_rot) * sizeof *in);
}

enum {
    DELTA_LANES = 4
}; // columns worked on together: 4 x 16

// Decays the state of up to 64 columns, corrects it by the error of what it recalls for k, and reads it with q.
static void delta_columns(const struct atsi_delta_step *t, uint32_t first, uint32_t n) {
    lanes recalled[DELTA_LANES], read[DELTA_LANES], decay = lanes_set(t->decay);
    for (int c = 0; c < DELTA_LANES; c++) recalled[c] = read[c] = lanes_set(0.0f);
    for (uint32_t r = 0; r < t->k_dim; r++) {
        float *row = t->state + (size_t)r * t->stride + first;
        lanes k = lanes_set(t->k[r]);
        for (uint32_t c = 0; c * LANES < n; c++) {
            lanes s = lanes_mul(lanes_load_left(row + c * LANES, n - c * LANES, 0.0f), decay);
            recalled[c] = lanes_fma(k, s, recalled[c]);
            lanes_store_left(row + c * LANES, s, n - c * LANES);
        }
    }
    for (uint32_t c = 0; c * LANES < n; c++) {
        lanes v = lanes_load_left(t->v + first + c * LANES, n - c * LANES, 0.0f);
        recalled[c] = lanes_mul(lanes_set(t->beta), lanes_sub(v, recalled[c]));
    }
    for (uint32_t r = 0; r < t->k_dim; r++) {
        float *row = t->state + (size_t)r * t->stride + first;
        lanes k = lanes_set(t->k[r]), q = lanes_set(t->q[r]);
        for (uint32_t c = 0; c * LANES < n; c++) {
            lanes s = lanes_fma(k, recalled[c], lanes_load_left(row + c * LANES, n - c * LANES, 0.0f));
            read[c] = lanes_fma(q, s, read[c]);
            lanes_store_left(row + c * LANES, s, n - c * LANES);
        }
    }
    for (uint32_t c = 0; c * LANES < n; c++) lanes_store_left(t->out + first + c * LANES, read[c], n - c * LANES);
}

static void delta_step(const struct atsi_delta_step *step) {
    for (uint32_t first = 0; first < step->n_cols; first += DELTA_LANES * LANES) {
        uint32_t left = step->n_cols - first;
        // The constant lets the compiler keep the sums of a full group in registers.
        if (left >= DELTA_LANES * LANES)
            delta_columns(step, first, DELTA_LANES * LANES);
        else
            delta_columns(step, first, left);
    }
}

#endif
