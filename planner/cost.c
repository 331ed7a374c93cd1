#include "planner/cost.h"

#include <math.h>
#include <string.h>

static uint32_t round_tokens(const struct atsi_plan *plan, enum atsi_phase phase) {
    return phase == ATSI_DECODE ? 1 : plan->limits.chunk;
}

// Rows that the op computes.
static double op_rows(const struct atsi_plan *plan, const struct atsi_op *op, enum atsi_phase phase) {
    bool outputs = plan->program.buffers[op->out[0].buffer].rows == ATSI_ROWS_OUTPUTS;
    return outputs ? 1 : round_tokens(plan, phase);
}

static double activation_bytes(const struct atsi_op *op, double rows) {
    double width = 0;
    for (int i = 0; i < ATSI_OP_MAX_IN; i++) width += op->in[i].buffer == ATSI_NONE ? 0 : op->in[i].width;
    for (int i = 0; i < ATSI_OP_MAX_OUT; i++) width += op->out[i].buffer == ATSI_NONE ? 0 : op->out[i].width;
    return 4 * width * rows;
}

static struct atsi_work attention_work(const struct atsi_plan *plan, const struct atsi_op *op, double rows) {
    const struct atsi_state *s = &plan->program.states[op->state];
    double seen = plan->limits.n_ctx / 2.0;
    if (s->window && seen > s->window) seen = s->window;
    double row_bytes = (double)atsi_dtype_row_bytes(plan->limits.kv_type, s->k_dim) +
                       (double)atsi_dtype_row_bytes(plan->limits.kv_type, s->v_dim);
    return (struct atsi_work){.bytes = seen * s->n_heads * row_bytes,
                              .flops = 2.0 * rows * op->u.attention.n_heads * seen * (s->k_dim + s->v_dim),
                              .dtype = plan->limits.kv_type};
}

static struct atsi_work expert_work(const struct atsi_plan *plan, const struct atsi_op *op, double rows) {
    const struct atsi_tensor *t = &plan->program.tensors[op->tensor[0]];
    return (struct atsi_work){.bytes = (double)t->size_bytes * atsi_active_experts(&op->u.experts, (uint32_t)rows),
                              .flops = 2.0 * rows * op->u.experts.n_used * (double)t->ne[0] * (double)t->ne[1],
                              .dtype = t->dtype};
}

static struct atsi_work matmul_work(const struct atsi_tensor *t, double rows) {
    return (struct atsi_work){
        .bytes = (double)t->size_bytes, .flops = 2.0 * rows * (double)t->ne[0] * (double)t->ne[1], .dtype = t->dtype};
}

static struct atsi_work embed_work(const struct atsi_tensor *t, const struct atsi_op *op, double rows) {
    double row_bytes = (double)atsi_dtype_row_bytes(t->dtype, t->ne[0]);
    return (struct atsi_work){.bytes = rows * row_bytes + activation_bytes(op, rows), .dtype = t->dtype};
}

static struct atsi_work delta_work(const struct atsi_plan *plan, const struct atsi_op *op, double rows) {
    const struct atsi_state *s = &plan->program.states[op->state];
    double elems = (double)s->n_heads * s->k_dim * s->v_dim;
    return (struct atsi_work){
        .bytes = 8 * elems + activation_bytes(op, rows), .flops = 8 * elems * rows, .dtype = ATSI_F32};
}

struct atsi_work atsi_work_of_op(const struct atsi_plan *plan, const struct atsi_op *op, enum atsi_phase phase) {
    double rows = op_rows(plan, op, phase);
    switch (op->kind) {
    case ATSI_OP_MATMUL: return matmul_work(&plan->program.tensors[op->tensor[0]], rows);
    case ATSI_OP_EXPERTS: return expert_work(plan, op, rows);
    case ATSI_OP_ATTENTION: return attention_work(plan, op, rows);
    case ATSI_OP_EMBED: return embed_work(&plan->program.tensors[op->tensor[0]], op, rows);
    case ATSI_OP_DELTA_RULE: return delta_work(plan, op, rows);
    default: return (struct atsi_work){.bytes = activation_bytes(op, rows), .dtype = ATSI_F32};
    }
}

// Bytes of activations that the unit reads and did not write itself.
static double input_bytes(const struct atsi_plan *plan, const struct atsi_unit *u, enum atsi_phase phase) {
    const struct atsi_program *p = &plan->program;
    bool seen[ATSI_MAX_BUFFERS] = {false};
    double bytes = 0;
    for (uint32_t i = u->first_op; i < u->first_op + u->n_ops; i++) {
        const struct atsi_op *op = &p->ops[i];
        for (int k = 0; k < ATSI_OP_MAX_IN; k++) {
            int32_t b = op->in[k].buffer;
            if (b == ATSI_NONE || seen[b]) continue;
            seen[b] = true;
            bytes +=
                4.0 * p->buffers[b].width * (p->buffers[b].rows == ATSI_ROWS_OUTPUTS ? 1 : round_tokens(plan, phase));
        }
        for (int k = 0; k < ATSI_OP_MAX_OUT; k++)
            if (op->out[k].buffer != ATSI_NONE) seen[op->out[k].buffer] = true;
    }
    return bytes;
}

uint64_t atsi_cost_transfer_bytes(const struct atsi_plan *plan, const struct atsi_unit *u, enum atsi_phase phase) {
    return atsi_transfer_bytes(&plan->program, u, round_tokens(plan, phase));
}

// The operation before `op` that makes its input k; NULL without.
static const struct atsi_op *maker_of(const struct atsi_program *p, const struct atsi_op *op, int k) {
    for (const struct atsi_op *o = op; o-- > p->ops;)
        if (o->out[0].buffer == op->in[k].buffer && o->out[0].offset == op->in[k].offset) return o;
    return NULL;
}

// Whether the CPU activates one token's gate and up in the phase of their products (kernels/cpu/steps.h): weights of one type.
static bool follows_products(const struct atsi_program *p, const struct atsi_op *op) {
    if (op->kind != ATSI_OP_GLU) return false;
    const struct atsi_op *gate = maker_of(p, op, 0), *up = maker_of(p, op, 1);
    return gate && up && gate->kind == up->kind && atsi_op_is_divisible(p, gate) && atsi_op_is_divisible(p, up) &&
           p->tensors[gate->tensor[0]].dtype == p->tensors[up->tensor[0]].dtype;
}

static bool reads_what(const struct atsi_op *op, const struct atsi_op *maker) {
    for (int k = 0; k < ATSI_OP_MAX_IN; k++)
        for (int i = 0; i < ATSI_OP_MAX_OUT; i++)
            if (op->in[k].buffer != ATSI_NONE && op->in[k].buffer == maker->out[i].buffer) return true;
    return false;
}

// Whether the CPU computes the product in the phase of one before it: those that read the same input (q, k and v; gate and up) form one phase
// where nothing of what the later reads is made in between (experts wait for their router).
static bool shares_phase(const struct atsi_program *p, const struct atsi_op *op) {
    if (!atsi_op_is_divisible(p, op)) return false;
    for (const struct atsi_op *o = op; o-- > p->ops && !reads_what(op, o);) {
        bool reads_it = o->in[0].buffer == op->in[0].buffer && o->in[0].offset == op->in[0].offset;
        if (reads_it && atsi_op_is_divisible(p, o)) return true;
    }
    return false;
}

// What an operation takes among others: a token's launches of small operations are joined with their neighbours on the device, and on the CPU
// what shares or follows in a phase neither begins nor ends one.
static struct atsi_price price_in_round(const struct atsi_plan *plan, const struct atsi_device_profile *profile,
                                        enum atsi_backend side, enum atsi_phase phase, const struct atsi_op *op) {
    struct atsi_work w = atsi_work_of_op(plan, op, phase);
    struct atsi_price price = atsi_device_profile_price(profile, side, op->kind, w.dtype, phase, w.bytes, w.flops);
    bool joins = side == ATSI_GPU && phase == ATSI_DECODE && !atsi_op_is_divisible(&plan->program, op);
    if (joins) price.us = fmax(0, price.us - profile->gpu_joined_us);
    if (side == ATSI_GPU || phase == ATSI_PREFILL) return price;
    if (follows_products(&plan->program, op)) price.us -= price.alone_us;
    if (shares_phase(&plan->program, op)) {
        price.us -= price.fixed_us;
        price.fixed_us = 0;
    }
    return price;
}

// Of what the unit takes, what any part of it takes where it is divided: of its matrix what the profile says, of its other operations all.
static double fixed_time(const struct atsi_plan *plan, const struct atsi_device_profile *profile,
                         enum atsi_backend side, const struct atsi_unit *u) {
    double us = 0;
    if (!atsi_unit_is_promotable(u) || !atsi_device_profile_knows_parts(profile, side)) return 0;
    for (uint32_t i = u->first_op; i < u->first_op + u->n_ops; i++) {
        const struct atsi_op *op = &plan->program.ops[i];
        struct atsi_price price = price_in_round(plan, profile, side, ATSI_DECODE, op);
        us += atsi_op_is_divisible(&plan->program, op) ? price.fixed_us : price.us;
    }
    return us;
}

static double side_time(const struct atsi_plan *plan, const struct atsi_device_profile *profile, enum atsi_backend side,
                        enum atsi_phase phase, const struct atsi_unit *u, uint32_t *n_estimated) {
    double us = 0;
    for (uint32_t i = u->first_op; i < u->first_op + u->n_ops; i++) {
        struct atsi_price price = price_in_round(plan, profile, side, phase, &plan->program.ops[i]);
        us += price.us;
        *n_estimated += !price.is_measured;
    }
    return us;
}

static bool is_float(enum atsi_dtype dtype) { return dtype == ATSI_F32 || dtype == ATSI_F16 || dtype == ATSI_BF16; }

// Quantised weights in plain rows (the grid types) are multiplied, but not looked up as tables of tokens.
bool atsi_op_runs_on_gpu(const struct atsi_program *p, const struct atsi_op *op) {
    if (op->kind == ATSI_OP_MATMUL || op->kind == ATSI_OP_EXPERTS) return true;
    for (int k = 0; k < ATSI_OP_MAX_TENSORS; k++) {
        int32_t t = op->tensor[k];
        if (t != ATSI_NONE && p->tensors[t].layout != ATSI_LAYOUT_TILE16 && !is_float(p->tensors[t].dtype))
            return false;
    }
    return true;
}

bool atsi_unit_runs_on_gpu(const struct atsi_program *p, const struct atsi_unit *u) {
    for (uint32_t i = u->first_op; i < u->first_op + u->n_ops; i++)
        if (!atsi_op_runs_on_gpu(p, &p->ops[i])) return false;
    return true;
}

void atsi_cost_units(const struct atsi_plan *plan, const struct atsi_device_profile *profile, enum atsi_phase phase,
                     struct atsi_unit_times *times, uint32_t *n_estimated) {
    uint32_t estimated = 0;
    double slower = fmin(profile->to_device.bytes_per_us, profile->to_host.bytes_per_us);
    for (uint32_t i = 0; i < plan->program.n_units; i++) {
        const struct atsi_unit *u = &plan->program.units[i];
        memset(&times[i], 0, sizeof times[i]);
        times[i].cpu_us = (float)side_time(plan, profile, ATSI_CPU, phase, u, &estimated);
        if (phase == ATSI_DECODE) times[i].cpu_fixed_us = (float)fixed_time(plan, profile, ATSI_CPU, u);
        if (!profile->has_gpu) continue;
        if (!atsi_unit_runs_on_gpu(&plan->program, u)) {
            times[i].gpu_us = times[i].transfer_us = (float)ATSI_NEVER_US;
            times[i].switch_us = (float)profile->switch_us;
            continue;
        }
        times[i].gpu_us = (float)side_time(plan, profile, ATSI_GPU, phase, u, &estimated);
        if (phase == ATSI_DECODE) times[i].gpu_fixed_us = (float)fixed_time(plan, profile, ATSI_GPU, u);
        times[i].switch_us = (float)(profile->switch_us + input_bytes(plan, u, phase) / slower);
        times[i].transfer_us = (float)(profile->to_device.fixed_us + (double)atsi_cost_transfer_bytes(plan, u, phase) /
                                                                         profile->to_device.bytes_per_us);
    }
    if (n_estimated) *n_estimated = estimated;
}
