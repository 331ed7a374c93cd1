#include "kernels/narrow_call.h"

#include <stddef.h>

static void narrow_rows(struct atsi_rows_ref *rows, struct atsi_view *view, uint32_t begin, uint32_t end) {
    rows->data = (char *)rows->data + (size_t)begin * 4;
    rows->width = view->width = end - begin;
    view->offset += begin;
}

// Rows [begin, end) of a weight and of its bias: in both layouts a row's bytes start at row * row bytes, for whole tiles.
static void narrow_weight(struct atsi_op_call *call, uint32_t begin, uint32_t end, struct atsi_call_part *part) {
    struct atsi_tensor *weight = &part->tensors[0], *bias = &part->tensors[1];
    *weight = *call->tensor[0].info;
    uint64_t row_bytes = atsi_dtype_row_bytes(weight->dtype, weight->ne[0]);
    weight->ne[1] = end - begin;
    weight->size_bytes = atsi_layout_bytes(weight->dtype, weight->layout, weight->ne);
    call->tensor[0] = (struct atsi_tensor_ref){(const char *)call->tensor[0].data + begin * row_bytes, weight};
    if (!call->tensor[1].data) return;
    *bias = *call->tensor[1].info;
    bias->ne[0] = end - begin;
    bias->size_bytes = bias->ne[0] * sizeof(float);
    call->tensor[1] = (struct atsi_tensor_ref){(const float *)call->tensor[1].data + begin, bias};
}

static void narrow_slots(struct atsi_op_call *call, uint32_t begin, uint32_t end, struct atsi_op *op) {
    uint32_t n_used = op->u.experts.n_used, rows = call->out[0].width / n_used, first = begin / rows, last = end / rows;
    uint32_t cols = call->in[0].width / n_used;
    narrow_rows(&call->in[1], &op->in[1], first, last);
    if (op->u.experts.in_per_slot) narrow_rows(&call->in[0], &op->in[0], first * cols, last * cols);
    op->u.experts.n_used = last - first;
}

void atsi_narrow_call(struct atsi_op_call *call, uint32_t begin, uint32_t end, struct atsi_call_part *part) {
    part->op = *call->op;
    call->op = &part->op;
    if (part->op.kind == ATSI_OP_MATMUL)
        narrow_weight(call, begin, end, part);
    else if (part->op.kind == ATSI_OP_EXPERTS)
        narrow_slots(call, begin, end, &part->op);
    else
        for (int i = 0; i < ATSI_OP_MAX_IN && call->in[i].data; i++)
            narrow_rows(&call->in[i], &part->op.in[i], begin, end);
    narrow_rows(&call->out[0], &part->op.out[0], begin, end);
}
