// Operations that pass a state from token to token: the causal convolution and the gated delta rule. They are divided by
// channels and heads; each item goes through the round's tokens in order.
#include <math.h>
#include <string.h>

#include "kernels/cpu/ops_internal.h"

static uint32_t min_u32(uint32_t a, uint32_t b) { return a < b ? a : b; }
static uint32_t ceil_div(uint32_t a, uint32_t b) { return (a + b - 1) / b; }

// ---- convolution ------------------------------------------------------------------------------------------------------

enum {
    CONV_CHANNELS = 64
};

// A few channels through all tokens. The last taps - 1 inputs are kept in a local copy, oldest first, so the output may take
// the input's place. Every output is the sum over the taps in order, oldest first.
static void run_conv(struct atsi_cpu *cpu, const struct atsi_step *step, uint32_t item, int i_thread) {
    (void)i_thread;
    const struct atsi_op_call *call = step->call;
    const float *weight = call->tensor[0].data;
    float *state = call->state.k;
    float taps_of[ATSI_CONV_TAPS_MAX][CONV_CHANNELS] = {0}, past[ATSI_CONV_TAPS_MAX][CONV_CHANNELS] = {0};
    uint32_t n_channels = call->in[0].width, first = item * CONV_CHANNELS,
             n = min_u32(CONV_CHANNELS, n_channels - first);
    uint32_t n_taps = call->state.info->v_dim + 1;
    for (uint32_t j = 0; j < n_taps; j++)
        for (uint32_t c = 0; c < n; c++) taps_of[j][c] = weight[(size_t)(first + c) * n_taps + j];
    for (uint32_t j = 0; j + 1 < n_taps; j++)
        memcpy(past[j], state + (size_t)j * n_channels + first, n * sizeof(float));
    for (uint32_t token = 0; token < step->arg[0]; token++) {
        float sum[CONV_CHANNELS];
        memcpy(past[n_taps - 1], atsi_row(&call->in[0], token) + first, n * sizeof(float));
        for (uint32_t c = 0; c < n; c++) sum[c] = taps_of[0][c] * past[0][c];
        for (uint32_t j = 1; j < n_taps; j++)
            for (uint32_t c = 0; c < n; c++) sum[c] += taps_of[j][c] * past[j][c];
        memmove(past[0], past[1], (n_taps - 1) * sizeof past[0]);
        cpu->vec->silu(sum, n, atsi_row(&call->out[0], token) + first);
    }
    for (uint32_t j = 0; j + 1 < n_taps; j++)
        memcpy(state + (size_t)j * n_channels + first, past[j], n * sizeof(float));
}

void atsi_steps_of_conv(struct atsi_cpu *cpu, const struct atsi_op_call *call) {
    uint32_t n_rows = atsi_call_rows(call), n_channels = call->in[0].width;
    uint64_t state_bytes = (uint64_t)call->state.info->v_dim * n_channels * sizeof(float);
    struct atsi_span spans[3] = {atsi_span_rows(&call->in[0], n_rows, false),
                                 atsi_span_rows(&call->out[0], n_rows, true),
                                 atsi_span_bytes(call->state.k, state_bytes, true)};
    struct atsi_step step = {
        .run = run_conv, .call = call, .n_items = ceil_div(n_channels, CONV_CHANNELS), .arg = {n_rows}};
    atsi_cpu_add_step(cpu, &step, spans, 3);
}

// ---- gated delta rule -------------------------------------------------------------------------------------------------

enum {
    DELTA_COLUMNS = 64
}; // of the state's values, an item

// What the rule needs of a token, prepared once for all columns.
struct delta_row {
    float *q, *k;        // [n_k_heads][k_dim], normalised
    float *decay, *beta; // [n_v_heads]
};

static uint32_t delta_row_floats(const struct atsi_delta_params *p, uint32_t k_dim) {
    return 2 * p->n_k_heads * k_dim + 2 * p->n_v_heads;
}

uint64_t atsi_delta_input_bytes(const struct atsi_delta_params *p, const struct atsi_state *state,
                                uint32_t n_tokens_max) {
    return (uint64_t)delta_row_floats(p, state->k_dim) * n_tokens_max * sizeof(float);
}

static struct delta_row delta_row(const struct atsi_cpu *cpu, const struct atsi_op_call *call, uint32_t token) {
    const struct atsi_delta_params *p = &call->op->u.delta;
    uint32_t k_dim = call->state.info->k_dim;
    struct delta_row row;
    row.q = cpu->delta_inputs + (size_t)token * delta_row_floats(p, k_dim);
    row.k = row.q + (size_t)p->n_k_heads * k_dim;
    row.decay = row.k + (size_t)p->n_k_heads * k_dim;
    row.beta = row.decay + p->n_v_heads;
    return row;
}

static float softplus(float x) {
    return x > 20.0f ? x : log1pf(expf(x));
} // beyond 20 the difference is below half a unit

static void run_delta_inputs(struct atsi_cpu *cpu, const struct atsi_step *step, uint32_t token, int i_thread) {
    (void)i_thread;
    const struct atsi_op_call *call = step->call;
    const struct atsi_delta_params *p = &call->op->u.delta;
    uint32_t k_dim = call->state.info->k_dim;
    struct delta_row row = delta_row(cpu, call, token);
    const float *q = atsi_row(&call->in[0], token), *k = atsi_row(&call->in[1], token);
    const float *beta = atsi_row(&call->in[3], token), *alpha = atsi_row(&call->in[4], token);
    const float *rate = call->tensor[0].data, *bias = call->tensor[1].data;
    for (size_t i = 0; i < (size_t)p->n_k_heads * k_dim; i += k_dim) {
        cpu->vec->l2_norm(q + i, k_dim, p->eps, 1.0f / sqrtf((float)k_dim), row.q + i);
        cpu->vec->l2_norm(k + i, k_dim, p->eps, 1.0f, row.k + i);
    }
    for (uint32_t h = 0; h < p->n_v_heads; h++)
        row.decay[h] = expf(rate[h] * softplus(alpha[h] + (bias != NULL ? bias[h] : 0.0f)));
    cpu->vec->sigmoid(beta, p->n_v_heads, row.beta);
}

static void run_delta(struct atsi_cpu *cpu, const struct atsi_step *step, uint32_t item, int i_thread) {
    (void)i_thread;
    const struct atsi_op_call *call = step->call;
    const struct atsi_delta_params *p = &call->op->u.delta;
    uint32_t k_dim = call->state.info->k_dim, v_dim = call->state.info->v_dim;
    uint32_t n_pieces = ceil_div(v_dim, DELTA_COLUMNS), head = item / n_pieces, first = item % n_pieces * DELTA_COLUMNS;
    uint32_t k_head = p->tiled ? head % p->n_k_heads : head / (p->n_v_heads / p->n_k_heads);
    struct atsi_delta_step delta = {
        .state = (float *)call->state.k + (size_t)head * k_dim * v_dim + first,
        .stride = v_dim,
        .k_dim = k_dim,
        .n_cols = min_u32(DELTA_COLUMNS, v_dim - first),
    };
    for (uint32_t token = 0; token < step->arg[0]; token++) {
        struct delta_row row = delta_row(cpu, call, token);
        delta.q = row.q + (size_t)k_head * k_dim;
        delta.k = row.k + (size_t)k_head * k_dim;
        delta.v = atsi_row(&call->in[2], token) + (size_t)head * v_dim + first;
        delta.decay = row.decay[head];
        delta.beta = row.beta[head];
        delta.out = atsi_row(&call->out[0], token) + (size_t)head * v_dim + first;
        cpu->vec->delta_step(&delta);
    }
}

void atsi_steps_of_delta(struct atsi_cpu *cpu, const struct atsi_op_call *call) {
    const struct atsi_delta_params *p = &call->op->u.delta;
    const struct atsi_state *state = call->state.info;
    uint32_t n_rows = atsi_call_rows(call), row_floats = delta_row_floats(p, state->k_dim);
    struct atsi_span inputs = {
        .data = cpu->delta_inputs, .stride = row_floats, .width = row_floats, .n_rows = n_rows, .write = true};
    struct atsi_span prepare_spans[5] = {
        atsi_span_rows(&call->in[0], n_rows, false), atsi_span_rows(&call->in[1], n_rows, false),
        atsi_span_rows(&call->in[3], n_rows, false), atsi_span_rows(&call->in[4], n_rows, false), inputs};
    struct atsi_step prepare = {.run = run_delta_inputs, .call = call, .n_items = n_rows, .by_row = true};
    atsi_cpu_add_step(cpu, &prepare, prepare_spans, 5);
    inputs.write = false;
    uint64_t state_bytes = (uint64_t)state->n_heads * state->k_dim * state->v_dim * sizeof(float);
    struct atsi_span spans[4] = {inputs, atsi_span_rows(&call->in[2], n_rows, false),
                                 atsi_span_rows(&call->out[0], n_rows, true),
                                 atsi_span_bytes(call->state.k, state_bytes, true)};
    struct atsi_step step = {.run = run_delta,
                             .call = call,
                             .arg = {n_rows},
                             .n_items = state->n_heads * ceil_div(state->v_dim, DELTA_COLUMNS)};
    atsi_cpu_add_step(cpu, &step, spans, 4);
}
