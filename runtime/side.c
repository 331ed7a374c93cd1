#include "runtime/side.h"

#include <string.h>

uint64_t atsi_side_value_offset(const struct atsi_state *s, uint32_t capacity, enum atsi_dtype kv_type) {
    if (s->kind != ATSI_STATE_KV) return 0;
    return atsi_aligned(atsi_dtype_row_bytes(kv_type, s->k_dim) * s->n_heads * capacity);
}

uint64_t atsi_side_state_bytes(const struct atsi_state *s, uint32_t n_ctx, uint32_t chunk, enum atsi_dtype kv_type) {
    uint32_t capacity = atsi_state_capacity(s, n_ctx, chunk);
    if (s->kind != ATSI_STATE_KV) return atsi_aligned(atsi_state_bytes(s, n_ctx, chunk, kv_type));
    uint64_t values = atsi_dtype_row_bytes(kv_type, s->v_dim) * s->n_heads * capacity;
    return atsi_side_value_offset(s, capacity, kv_type) + atsi_aligned(values);
}

static struct atsi_rows_ref build_rows(const struct atsi_program *p, const struct atsi_side *side,
                                       const struct atsi_view *v) {
    if (v->buffer == ATSI_NONE) return (struct atsi_rows_ref){NULL, 0, 0};
    const struct atsi_buffer *b = &p->buffers[v->buffer];
    return (struct atsi_rows_ref){side->compute + b->offset_bytes + (size_t)v->offset * 4, b->width, v->width};
}

void atsi_side_build_call(const struct atsi_plan *plan, uint32_t n_ctx, const struct atsi_side *side, uint32_t i_op,
                          struct atsi_op_call *call) {
    const struct atsi_program *p = &plan->program;
    const struct atsi_op *op = &p->ops[i_op];
    memset(call, 0, sizeof *call);
    call->op = op;
    for (int i = 0; i < ATSI_OP_MAX_IN; i++) call->in[i] = build_rows(p, side, &op->in[i]);
    for (int i = 0; i < ATSI_OP_MAX_OUT; i++) call->out[i] = build_rows(p, side, &op->out[i]);
    for (int i = 0; i < ATSI_OP_MAX_TENSORS; i++)
        if (op->tensor[i] != ATSI_NONE)
            call->tensor[i] = (struct atsi_tensor_ref){side->tensors[op->tensor[i]], &p->tensors[op->tensor[i]]};
    if (op->state != ATSI_NONE) {
        const struct atsi_state *s = &p->states[op->state];
        call->state = (struct atsi_state_ref){.k = side->state_k[op->state],
                                              .v = side->state_v[op->state],
                                              .info = s,
                                              .kv_type = plan->limits.kv_type,
                                              .capacity = atsi_state_capacity(s, n_ctx, plan->limits.chunk)};
    }
    if (side->experts && (op->kind == ATSI_OP_ROUTER || op->kind == ATSI_OP_EXPERTS))
        call->resident = side->experts[atsi_program_unit_of(p, i_op)];
    call->outputs_domain = p->buffers[op->out[0].buffer].rows == ATSI_ROWS_OUTPUTS;
    call->round = side->round;
}
