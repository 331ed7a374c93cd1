// embed.cu: rows of the token table.
#include "kernels/cuda/plain.h"
#include "kernels/cuda/tiled.h"

enum atsi_status launch_embed(struct launch_ctx *x, const struct atsi_op_call *call, struct atsi_error *err) {
    const struct atsi_tensor *t = call->tensor[0].info;
    const struct atsi_rows_ref *out = &call->out[0];
    float scale = call->op->u.embed_scale;
    if (t->layout == ATSI_LAYOUT_PLAIN && plain_supported(t->dtype)) {
        plain_embed(t->dtype, call->tensor[0].data, call->round.token_ids, out->width, (uint32_t)x->n_rows,
                    (float *)out->data, out->stride, scale, x->stream);
        return ATSI_OK;
    }
    const struct tiled_type *type = t->layout == ATSI_LAYOUT_TILE16 ? tiled_type_of(t->dtype) : NULL;
    if (!type)
        return atsi_fail(err, ATSI_FAILED,
                         "GPU: a token table of type %s (tensor %s) is not supported: place it on the CPU",
                         atsi_dtype_name(t->dtype), t->name);
    struct tiled_args a = {};
    a.parts[0].weight = (const uint8_t *)call->tensor[0].data;
    a.parts[0].out = (float *)out->data;
    a.parts[0].out_stride = out->stride;
    a.n_parts = 1;
    a.n_cols = out->width;
    a.n_in = (uint32_t)x->n_rows;
    a.row_ids = call->round.token_ids;
    type->embed(&a, scale, x->stream);
    return ATSI_OK;
}
