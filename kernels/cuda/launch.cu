// launch.cu: from an operation to its kernels, and what must be in place before the first round.
#include "kernels/cuda/grid.h"
#include "kernels/cuda/waiting.h"

// ---- what scratch holds -----------------------------------------------------------------------------------------------------

void forget_acts(struct cuda_device *d, const void *written, uint64_t bytes) {
    if (d->acts.data == NULL) return;
    uintptr_t kept = (uintptr_t)d->acts.data, from = (uintptr_t)written;
    uint64_t kept_bytes = rows_bytes(d->acts.stride, d->acts.width, d->acts.n_rows);
    if (from < kept + kept_bytes && kept < from + bytes) d->acts.data = NULL;
}

// Before the operation: whoever makes new quantised inputs says so itself.
static void forget_outputs(struct cuda_device *d, const struct atsi_op_call *call, uint32_t n_rows) {
    for (int i = 0; i < ATSI_OP_MAX_OUT; i++) {
        const struct atsi_rows_ref *out = &call->out[i];
        if (out->data) forget_acts(d, out->data, rows_bytes(out->stride, out->width, n_rows));
    }
}

// The last bytes of scratch.
static uint64_t *router_posts(const struct cuda_device *d) {
    return (uint64_t *)(d->scratch.base + d->scratch.size_bytes - ROUTER_POST_BYTES);
}

// ---- launch -----------------------------------------------------------------------------------------------------------------

static enum atsi_status dispatch(struct launch_ctx *x, const struct atsi_op_call *call, struct atsi_error *err) {
    switch (call->op->kind) {
    case ATSI_OP_EMBED: return launch_embed(x, call, err);
    case ATSI_OP_RMS_NORM:
        if (!heads_join(&x->waiting->heads, call, x->n_rows)) launch_rms_norm(x, call);
        return ATSI_OK;
    case ATSI_OP_MATMUL: return launch_matmul(x, call, err);
    case ATSI_OP_ROPE:
        if (heads_join(&x->waiting->heads, call, x->n_rows)) return ATSI_OK;
        return atsi_fail(err, ATSI_FAILED, "GPU: heads of %u elements cannot be rotated: at most %d",
                         call->op->u.rope.head_dim, HEAD_DIM_MAX);
    case ATSI_OP_ATTENTION: return launch_attention(x, call, err);
    case ATSI_OP_GLU: launch_glu(x, call); return ATSI_OK;
    case ATSI_OP_GATE: launch_gate(x, call); return ATSI_OK;
    case ATSI_OP_ADD: launch_add(x, call); return ATSI_OK;
    case ATSI_OP_ROUTER: return launch_router(x, call, err);
    case ATSI_OP_EXPERTS: return launch_experts(x, call, err);
    case ATSI_OP_EXPERT_SUM: return launch_expert_sum(x, call, err);
    case ATSI_OP_CONV: return launch_conv(x, call, err);
    case ATSI_OP_DELTA_RULE: return launch_delta_rule(x, call, err);
    case ATSI_OP_SELECT: launch_select(x, call); return ATSI_OK;
    case ATSI_OP_KIND_LIMIT: break;
    }
    return atsi_fail(err, ATSI_FAILED, "GPU: unknown operation %d", (int)call->op->kind);
}

enum atsi_status cuda_flush(struct atsi_stream *s, struct atsi_error *err) {
    struct cuda_stream *stream = (struct cuda_stream *)s;
    waiting_launch(stream->waiting, launch_stream_of(s));
    stream->waiting->before = NONE_STARTS_LATE;
    return cuda_check(cuda_device_of(s->device), cudaGetLastError(), "launching", err);
}

// A product that neither writes what waiting heads read or write nor reads what they write goes ahead of them: k's and v's products
// stand behind q's norm and rotation, and all three are wanted in one launch, the heads of all in another.
static bool passes_heads(const struct launch_ctx *x, const struct atsi_op_call *call) {
    return call->op->kind == ATSI_OP_MATMUL && !call->outputs_domain &&
           heads_independent(&x->waiting->heads, call, x->n_rows);
}

static bool joins_heads(struct launch_ctx *x, const struct atsi_op_call *call) {
    struct waiting *w = x->waiting;
    if (glu_joins(x, call)) return true;
    if (call->op->kind == ATSI_OP_MATMUL || call->op->kind == ATSI_OP_EXPERTS)
        return w->type && (w->heads.n_parts == 0 || passes_heads(x, call)) && product_joins(x, call);
    x->kv_stored = call->op->kind == ATSI_OP_ATTENTION && heads_join_store(&w->heads, call, x->n_rows);
    return heads_join(&w->heads, call, x->n_rows);
}

// The operation joins what waits; nothing else needs to be done then.
static bool joins(struct launch_ctx *x, const struct atsi_op_call *call) {
    struct waiting *w = x->waiting;
    if (waiting_has_heads(w)) return joins_heads(x, call);
    if (waiting_has_copies(w)) return false;
    if (waiting_has_sum(w)) {
        if (!norm_launch_with_sum(x, &w->sum, call)) return false;
        w->sum.n_rows = 0;
        w->before = NONE_STARTS_LATE;
        return true;
    }
    if (w->scores.n_in == 0) return product_waits_for_router(x, call);
    if (!router_launch_with_scores(x, &w->scores, &w->norm, call, router_posts(x->device))) return false;
    w->scores.n_in = 0;
    w->norm.n_rows = 0;
    w->before = NONE_STARTS_LATE;
    return true;
}

enum atsi_status cuda_launch(struct atsi_stream *s, const struct atsi_op_call *call, const struct atsi_round *round,
                             struct atsi_error *err) {
    struct cuda_device *d = cuda_device_of(s->device);
    ATSI_TRY(cuda_healthy(d, err));
    struct cuda_stream *stream = (struct cuda_stream *)s;
    struct launch_ctx x = {d, launch_stream_of(s), call->outputs_domain ? round->n_outputs : round->n_tokens,
                           stream->waiting, false};
    if (x.n_rows <= 0) return ATSI_OK;
    forget_outputs(d, call, (uint32_t)x.n_rows);
    if (joins(&x, call)) return cuda_check(d, cudaGetLastError(), atsi_op_name(call->op->kind), err);
    struct waiting *w = stream->waiting;
    if (w->heads.n_parts > 0 && passes_heads(&x, call)) {
        waiting_launch_products(w, x.stream);
        w->before = NONE_STARTS_LATE;
    } else {
        waiting_launch(w, x.stream);
    }
    ATSI_TRY(dispatch(&x, call, err));
    bool late = call->op->kind == ATSI_OP_GLU && w->before == EXPERTS_START_LATE;
    if (!waiting_has_any(w)) w->before = late ? GLU_STARTS_LATE : NONE_STARTS_LATE;
    return cuda_check(d, cudaGetLastError(), atsi_op_name(call->op->kind), err);
}

// ---- preparation ------------------------------------------------------------------------------------------------------------

static uint64_t aligned(uint64_t bytes) { return (bytes + 255) / 256 * 256; }

static struct scratch plan_scratch(const struct atsi_program *p, uint32_t n_tokens_max, uint32_t n_outputs_max) {
    struct scratch s = {};
    s.acts_bytes = aligned(matmul_acts_bytes(p, n_tokens_max, n_outputs_max));
    s.attention_offset = s.acts_bytes;
    s.attention_bytes = aligned(attention_scratch_bytes(p, n_tokens_max));
    s.groups_offset = s.attention_offset + s.attention_bytes;
    s.groups_bytes = aligned(experts_groups_bytes(p, n_tokens_max));
    s.grids_offset = s.groups_offset + s.groups_bytes;
    s.grids_bytes = aligned(matmul_tables_bytes(p));
    s.size_bytes = s.grids_offset + s.grids_bytes + ROUTER_POST_BYTES;
    return s;
}

uint64_t cuda_scratch_bytes(const struct atsi_program *p, uint32_t n_tokens_max, uint32_t n_outputs_max,
                            uint32_t n_ctx) {
    (void)n_ctx; // divided attention's records depend on the number of splits alone
    return plan_scratch(p, n_tokens_max, n_outputs_max).size_bytes;
}

// A program loads the kernels of its own types only: modules take memory on the card.
static cudaError_t load_all(const struct cuda_device *d, const struct atsi_program *p) {
    cudaError_t (*const parts[])(void) = {load_elementwise, load_expert_sum, load_fetch, load_norm,  load_heads,
                                          load_router,      load_recurrent,  load_marks, load_copies};
    cudaError_t status = cudaSuccess;
    for (cudaError_t (*load)(void) : parts)
        if (status == cudaSuccess) status = load();
    if (status == cudaSuccess) status = load_attention(d, p);
    return status == cudaSuccess ? load_matmul(d, p) : status;
}

// Streams do not wait for the default one.
static cudaError_t clear_posts(const struct cuda_device *d) {
    cudaError_t status = cudaMemset(router_posts(d), 0, ROUTER_POST_BYTES);
    return status == cudaSuccess ? cudaDeviceSynchronize() : status;
}

enum atsi_status cuda_prepare(struct atsi_device *base, const struct atsi_program *p, uint32_t n_tokens_max,
                              uint32_t n_outputs_max, uint32_t n_ctx, struct atsi_error *err) {
    (void)n_ctx;
    struct cuda_device *d = cuda_device_of(base);
    ATSI_TRY(cuda_healthy(d, err));
    (void)cudaFree(d->scratch.base);
    d->acts.data = NULL;
    d->scratch = scratch();
    struct scratch planned = plan_scratch(p, n_tokens_max, n_outputs_max);
    void *memory = NULL;
    ATSI_TRY(d->base.ops->alloc(base, planned.size_bytes, &memory, err));
    d->scratch = planned;
    d->scratch.base = (uint8_t *)memory;
    ATSI_TRY(cuda_check(d, clear_posts(d), "clearing scratch memory", err));
    if (planned.grids_bytes != 0)
        ATSI_TRY(cuda_check(d, grid_tables_upload(d->scratch.base + planned.grids_offset), "copying codebooks", err));
    return cuda_check(d, load_all(d, p), "loading kernels", err);
}
