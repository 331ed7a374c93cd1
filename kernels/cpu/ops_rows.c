// Operations whose output row depends on the same row of the inputs alone.
#include <math.h>
#include <string.h>

#include "kernels/cpu/dequant.h"
#include "kernels/cpu/ops_internal.h"
#include "kernels/cpu/router.h"

static void add_row_step(struct atsi_cpu *cpu, const struct atsi_op_call *call, atsi_step_run *run) {
    uint32_t n_rows = atsi_call_rows(call), n_spans = 0;
    struct atsi_span spans[ATSI_STEP_SPANS];
    for (int i = 0; i < ATSI_OP_MAX_IN && call->in[i].data != NULL; i++)
        spans[n_spans++] = atsi_span_rows(&call->in[i], n_rows, false);
    for (int i = 0; i < ATSI_OP_MAX_OUT && call->out[i].data != NULL; i++)
        spans[n_spans++] = atsi_span_rows(&call->out[i], n_rows, true);
    struct atsi_step step = {.run = run, .call = call, .n_items = n_rows, .by_row = true};
    atsi_cpu_add_step(cpu, &step, spans, n_spans);
}

// ---- embedding ------------------------------------------------------------------------------------------------------

static void run_embed(struct atsi_cpu *cpu, const struct atsi_step *step, uint32_t row, int i_thread) {
    (void)i_thread;
    const struct atsi_op_call *call = step->call;
    const struct atsi_tensor_ref *table = &call->tensor[0];
    float *out = atsi_row(&call->out[0], row);
    atsi_dequant_row(table->info->dtype, table->info->layout, table->data, table->info->ne[0],
                     (uint64_t)call->round.token_ids[row], out);
    if (call->op->u.embed_scale != 1.0f) cpu->vec->scale(out, call->op->u.embed_scale, call->out[0].width, out);
}

void atsi_steps_of_embed(struct atsi_cpu *cpu, const struct atsi_op_call *call) { add_row_step(cpu, call, run_embed); }

// ---- norm, GLU, gate, sums ------------------------------------------------------------------------------------------

static void run_norm(struct atsi_cpu *cpu, const struct atsi_step *step, uint32_t row, int i_thread) {
    (void)i_thread;
    const struct atsi_op_call *call = step->call;
    const struct atsi_norm_params *p = &call->op->u.norm;
    const float *in = atsi_row(&call->in[0], row);
    float *out = atsi_row(&call->out[0], row);
    for (uint32_t i = 0; i < call->in[0].width; i += p->group)
        cpu->vec->rms_norm(in + i, call->tensor[0].data, p->group, p->eps, call->op->add, out + i);
}

void atsi_steps_of_norm(struct atsi_cpu *cpu, const struct atsi_op_call *call) { add_row_step(cpu, call, run_norm); }

enum {
    PIECE_ELEMS_MIN = 1024,
    QUANT_BLOCK = 32
};

// In decode one wide row is all there is: threads share it in pieces of whole quantisation blocks. The pieces pose as rows,
// since any stride is right for a single row. This many, 1 when it is not worth it.
static uint32_t row_pieces(const struct atsi_cpu *cpu, uint32_t n_rows, uint32_t width) {
    uint32_t n = width / PIECE_ELEMS_MIN;
    if (n > (uint32_t)cpu->n_run_threads) n = (uint32_t)cpu->n_run_threads;
    if (n_rows != 1) n = 1;
    while (n > 1 && width % (n * QUANT_BLOCK) != 0) n--;
    return n > 1 ? n : 1;
}

// arg[0]: pieces of a row.
static void run_glu(struct atsi_cpu *cpu, const struct atsi_step *step, uint32_t item, int i_thread) {
    (void)i_thread;
    const struct atsi_op_call *call = step->call;
    uint32_t row = item / step->arg[0], width = call->out[0].width / step->arg[0], first = item % step->arg[0] * width;
    cpu->vec->glu(&call->op->u.glu, atsi_row(&call->in[0], row) + first, atsi_row(&call->in[1], row) + first, width,
                  atsi_row(&call->out[0], row) + first);
}

// A part of the only row.
static void run_glu_part(struct atsi_cpu *cpu, const struct atsi_step *step, uint32_t i_part, int i_thread) {
    (void)i_thread;
    const struct atsi_op_call *call = step->call;
    struct atsi_part part = atsi_cpu_part(cpu, step->cut, i_part);
    for (uint32_t k = 0; k < part.n_slots; k++) {
        uint32_t column = atsi_part_column(&part, k);
        cpu->vec->glu(&call->op->u.glu, atsi_row(&call->in[0], 0) + column, atsi_row(&call->in[1], 0) + column, part.n,
                      atsi_row(&call->out[0], 0) + column);
    }
}

// Of one token: by whoever completes a part of both products. Slots that these leave out stay as they are.
static bool glu_follows(struct atsi_cpu *cpu, const struct atsi_op_call *call, const struct atsi_span spans[3]) {
    struct atsi_step step = {.run = run_glu_part, .call = call, .cut = cpu->cut};
    struct atsi_span parts[3] = {spans[0], spans[1], spans[2]};
    for (int i = 0; i < 3; i++) parts[i].in_parts = true;
    return atsi_cpu_follow_step(cpu, &step, parts, 3);
}

void atsi_steps_of_glu(struct atsi_cpu *cpu, const struct atsi_op_call *call) {
    uint32_t n_rows = atsi_call_rows(call), n_pieces = row_pieces(cpu, n_rows, call->out[0].width);
    struct atsi_step step = {
        .run = run_glu, .call = call, .n_items = n_rows * n_pieces, .by_row = true, .arg = {n_pieces}};
    struct atsi_span spans[3] = {atsi_span_rows(&call->in[0], n_rows, false),
                                 atsi_span_rows(&call->in[1], n_rows, false),
                                 atsi_span_rows(&call->out[0], n_rows, true)};
    if (glu_follows(cpu, call, spans)) return;
    if (n_pieces > 1)
        for (int i = 0; i < 3; i++) spans[i] = atsi_span_pieces(&spans[i], n_pieces);
    atsi_cpu_add_step(cpu, &step, spans, 3);
    if (n_pieces > 1) cpu->pieces = spans[2];
}

static void run_gate(struct atsi_cpu *cpu, const struct atsi_step *step, uint32_t row, int i_thread) {
    (void)i_thread;
    const struct atsi_op_call *call = step->call;
    uint32_t n_gates = call->in[1].width, per_gate = call->in[0].width / n_gates;
    const float *in = atsi_row(&call->in[0], row), *gates = atsi_row(&call->in[1], row);
    float *out = atsi_row(&call->out[0], row);
    if (per_gate == 1)
        cpu->vec->gate_each(in, gates, n_gates, out);
    else
        for (uint32_t g = 0; g < n_gates; g++)
            cpu->vec->gate(in + (size_t)g * per_gate, gates[g], per_gate, out + (size_t)g * per_gate);
}

void atsi_steps_of_gate(struct atsi_cpu *cpu, const struct atsi_op_call *call) { add_row_step(cpu, call, run_gate); }

static void run_add(struct atsi_cpu *cpu, const struct atsi_step *step, uint32_t row, int i_thread) {
    (void)i_thread;
    const struct atsi_op_call *call = step->call;
    cpu->vec->add(atsi_row(&call->in[0], row), atsi_row(&call->in[1], row), call->out[0].width,
                  atsi_row(&call->out[0], row));
}

void atsi_steps_of_add(struct atsi_cpu *cpu, const struct atsi_op_call *call) { add_row_step(cpu, call, run_add); }

static void *scratch_of(const struct atsi_cpu *cpu, int i_thread) {
    return cpu->thread_scratch + (size_t)i_thread * cpu->thread_scratch_bytes;
}

// The slots in ascending order of their ids.
static void order_by_id(const int32_t *ids, uint32_t n, uint32_t *order) {
    for (uint32_t s = 0; s < n; s++) {
        uint32_t at = s;
        for (; at > 0 && ids[order[at - 1]] > ids[s]; at--) order[at] = order[at - 1];
        order[at] = s;
    }
}

static void run_expert_sum(struct atsi_cpu *cpu, const struct atsi_step *step, uint32_t row, int i_thread) {
    const struct atsi_op_call *call = step->call;
    uint32_t n_slots = call->in[1].width, *order = NULL;
    if (call->in[2].data != NULL) {
        order = scratch_of(cpu, i_thread);
        order_by_id((const int32_t *)call->in[2].data + (size_t)row * call->in[2].stride, n_slots, order);
    }
    cpu->vec->weighted_sum(atsi_row(&call->in[0], row), atsi_row(&call->in[1], row), order, n_slots, call->out[0].width,
                           call->op->add, atsi_row(&call->out[0], row));
}

void atsi_steps_of_expert_sum(struct atsi_cpu *cpu, const struct atsi_op_call *call) {
    add_row_step(cpu, call, run_expert_sum);
}

// ---- router ---------------------------------------------------------------------------------------------------------

// Where a token's experts stand among its slots, and what is told of them beside out[0] (struct atsi_experts_ref).
static void order_experts(const struct atsi_op_call *call, uint32_t row, int32_t *ids, float *weights) {
    const struct atsi_experts_ref *r = &call->resident;
    uint32_t n_used = call->op->u.router.n_used, n_resident = 0;
    if (r->slots != NULL) n_resident = atsi_route_resident_first(r->slots, n_used, ids, weights);
    if (r->chosen != NULL) memcpy(r->chosen + (size_t)row * n_used, ids, n_used * sizeof *ids);
    if (r->mine == NULL) return;
    int32_t *mine = r->mine + (size_t)row * n_used;
    for (uint32_t s = 0; s < n_used; s++) mine[s] = s < r->gpu_slots[n_resident] ? ids[s] : -1;
}

static void run_router(struct atsi_cpu *cpu, const struct atsi_step *step, uint32_t row, int i_thread) {
    const struct atsi_op_call *call = step->call;
    const struct atsi_router_params *p = &call->op->u.router;
    int32_t *ids = (int32_t *)call->out[0].data + (size_t)row * call->out[0].stride;
    float *weights = atsi_row(&call->out[1], row);
    atsi_route(cpu->vec, p, atsi_row(&call->in[0], row), call->tensor[0].data, scratch_of(cpu, i_thread), ids, weights);
    order_experts(call, row, ids, weights);
}

void atsi_steps_of_router(struct atsi_cpu *cpu, const struct atsi_op_call *call) {
    uint32_t n_rows = atsi_call_rows(call), n_spans = 3;
    struct atsi_rows_ref mine = atsi_call_mine(call, call->op->u.router.n_used);
    struct atsi_span spans[4] = {atsi_span_rows(&call->in[0], n_rows, false),
                                 atsi_span_rows(&call->out[0], n_rows, true),
                                 atsi_span_rows(&call->out[1], n_rows, true)};
    if (mine.data != NULL) spans[n_spans++] = atsi_span_rows(&mine, n_rows, true);
    struct atsi_step step = {.run = run_router, .call = call, .n_items = n_rows, .by_row = true};
    atsi_cpu_add_step(cpu, &step, spans, n_spans);
}

// ---- rotary embedding -----------------------------------------------------------------------------------------------

static void run_rope_table(struct atsi_cpu *cpu, const struct atsi_step *step, uint32_t row, int i_thread) {
    (void)i_thread;
    const struct atsi_rope_table *table = &cpu->rope[step->arg[0]];
    float *cosines = table->rows + (size_t)row * table->n_rot, *sines = cosines + table->n_rot / 2;
    double position = (double)table->first_pos + row;
    for (uint32_t i = 0; i < table->n_rot / 2; i++) {
        double angle = position * table->frequencies[i];
        cosines[i] = (float)(cos(angle) * table->scale);
        sines[i] = (float)(sin(angle) * table->scale);
    }
}

static struct atsi_span table_span(const struct atsi_rope_table *table, uint32_t n_rows, bool write) {
    return (struct atsi_span){
        .data = table->rows, .stride = table->n_rot, .width = table->n_rot, .n_rows = n_rows, .write = write};
}

// The table of these frequencies, computed in this round at its first use. Its number is below n_rope because the tables were
// counted over the same program; one that matches no other is free for this one.
static uint32_t rope_table(struct atsi_cpu *cpu, const struct atsi_op_call *call) {
    const struct atsi_rope_params *p = &call->op->u.rope;
    const struct atsi_round *round = call->round.round;
    size_t bytes = p->n_rot / 2 * sizeof(float);
    uint32_t i = 0, stale = 0;
    for (; i < cpu->n_rope; i++) {
        struct atsi_rope_table *table = &cpu->rope[i];
        if (table->n_tokens != round->n_tokens || table->first_pos != round->first_pos)
            stale = i;
        else if (table->n_rot == p->n_rot && table->scale == p->scale &&
                 memcmp(table->frequencies, call->tensor[0].data, bytes) == 0)
            return i;
    }
    struct atsi_rope_table *table = &cpu->rope[stale];
    struct atsi_span span;
    table->n_rot = p->n_rot;
    table->scale = p->scale;
    table->first_pos = round->first_pos;
    table->n_tokens = round->n_tokens;
    memcpy(table->frequencies, call->tensor[0].data, bytes);
    span = table_span(table, (uint32_t)round->n_tokens, true);
    struct atsi_step step = {
        .run = run_rope_table, .call = call, .n_items = span.n_rows, .by_row = true, .arg = {stale}};
    atsi_cpu_add_step(cpu, &step, &span, 1);
    return stale;
}

static void run_rope(struct atsi_cpu *cpu, const struct atsi_step *step, uint32_t row, int i_thread) {
    (void)i_thread;
    const struct atsi_op_call *call = step->call;
    const struct atsi_rope_params *p = &call->op->u.rope;
    const float *cosines = cpu->rope[step->arg[0]].rows + (size_t)row * p->n_rot, *sines = cosines + p->n_rot / 2;
    const float *in = atsi_row(&call->in[0], row);
    float *out = atsi_row(&call->out[0], row);
    for (uint32_t h = 0; h < p->n_heads; h++)
        cpu->vec->rope(p->pairing, in + (size_t)h * p->head_dim, cosines, sines, p->n_rot, p->head_dim,
                       out + (size_t)h * p->head_dim);
}

void atsi_steps_of_rope(struct atsi_cpu *cpu, const struct atsi_op_call *call) {
    uint32_t n_rows = atsi_call_rows(call), table = rope_table(cpu, call);
    struct atsi_span spans[3] = {atsi_span_rows(&call->in[0], n_rows, false),
                                 table_span(&cpu->rope[table], n_rows, false),
                                 atsi_span_rows(&call->out[0], n_rows, true)};
    struct atsi_step step = {.run = run_rope, .call = call, .n_items = n_rows, .by_row = true, .arg = {table}};
    atsi_cpu_add_step(cpu, &step, spans, 3);
}

// ---- selection of output rows ---------------------------------------------------------------------------------------

static void run_select(struct atsi_cpu *cpu, const struct atsi_step *step, uint32_t row, int i_thread) {
    (void)cpu, (void)i_thread;
    const struct atsi_op_call *call = step->call;
    memcpy(atsi_row(&call->out[0], row), atsi_row(&call->in[0], (uint32_t)call->round.output_rows[row]),
           call->out[0].width * sizeof(float));
}

void atsi_steps_of_select(struct atsi_cpu *cpu, const struct atsi_op_call *call) {
    const struct atsi_round *round = call->round.round;
    struct atsi_span spans[2] = {atsi_span_rows(&call->in[0], (uint32_t)round->n_tokens, false),
                                 atsi_span_rows(&call->out[0], (uint32_t)round->n_outputs, true)};
    struct atsi_step step = {.run = run_select, .call = call, .n_items = (uint32_t)round->n_outputs};
    atsi_cpu_add_step(cpu, &step, spans, 2);
}
