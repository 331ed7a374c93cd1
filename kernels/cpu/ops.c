#include "kernels/cpu/ops.h"

#include <stdlib.h>
#include <string.h>

#include "formats/base/checked.h"
#include "kernels/cpu/dequant.h"
#include "kernels/cpu/matmul_impl.h"
#include "kernels/cpu/ops_internal.h"
#include "kernels/cpu/products.h"

enum {
    MEMORY_ALIGNMENT = 64
};

// ---- what the program needs -----------------------------------------------------------------------------------------

struct needs {
    uint64_t act_bytes; // of one slot
    uint64_t row_bytes; // of one token's input of a product
    uint64_t routing_words;
    uint64_t partial_bytes, delta_bytes, thread_bytes;
    uint32_t n_rope, n_rot_max;
    const struct atsi_matmul_kernels *kernels;
};

static void at_least(uint64_t *have, uint64_t wanted) {
    if (*have < wanted) *have = wanted;
}

static uint32_t rows_max(const struct atsi_program *p, const struct atsi_view *view, uint32_t n_tokens_max,
                         uint32_t n_outputs_max) {
    return p->buffers[view->buffer].rows == ATSI_ROWS_OUTPUTS ? n_outputs_max : n_tokens_max;
}

static enum atsi_status need_matrix(const struct atsi_program *p, const struct atsi_op *op, uint32_t n_rows,
                                    uint32_t n_parts, struct needs *needs, struct atsi_error *err) {
    const struct atsi_tensor *weight = &p->tensors[op->tensor[0]];
    enum atsi_input_kind kind = atsi_matmul_input(weight->dtype);
    if (kind == ATSI_INPUT_UNSUPPORTED)
        return atsi_fail(err, ATSI_BAD_INPUT, "tensor '%s': the CPU has no kernel for type %s", weight->name,
                         atsi_dtype_name(weight->dtype));
    if (kind == ATSI_INPUT_INT8 && op->in[0].width / n_parts % 32 != 0)
        return atsi_fail(err, ATSI_BAD_INPUT, "tensor '%s': %u columns of type %s are no multiple of 32", weight->name,
                         op->in[0].width / n_parts, atsi_dtype_name(weight->dtype));
    enum atsi_input_kind of_many =
        op->kind == ATSI_OP_MATMUL ? atsi_matmul_input_of(needs->kernels, weight->dtype, n_rows) : kind;
    at_least(&needs->row_bytes, n_parts * atsi_input_part_bytes(kind, op->in[0].width / n_parts));
    for (int i = 0; i < 2; i++)
        at_least(&needs->act_bytes,
                 (uint64_t)n_rows * n_parts * atsi_input_row_bytes(i == 0 ? kind : of_many, op->in[0].width / n_parts));
    return ATSI_OK;
}

static enum atsi_status need_experts(const struct atsi_program *p, const struct atsi_op *op, uint32_t n_rows,
                                     struct needs *needs, struct atsi_error *err) {
    const struct atsi_experts_params *e = &op->u.experts;
    at_least(&needs->routing_words, atsi_expert_groups_words(e->n_experts, n_rows * e->n_used));
    return need_matrix(p, op, n_rows, e->in_per_slot ? e->n_used : 1, needs, err);
}

static bool same_rope(const struct atsi_op *a, const struct atsi_op *b) {
    return a->kind == ATSI_OP_ROPE && b->kind == ATSI_OP_ROPE && a->tensor[0] == b->tensor[0] &&
           a->u.rope.n_rot == b->u.rope.n_rot && a->u.rope.scale == b->u.rope.scale;
}

static void need_rope(const struct atsi_program *p, uint32_t i_op, struct needs *needs) {
    const struct atsi_op *op = &p->ops[i_op];
    if (op->u.rope.n_rot > needs->n_rot_max) needs->n_rot_max = op->u.rope.n_rot;
    for (uint32_t i = 0; i < i_op; i++)
        if (same_rope(&p->ops[i], op)) return;
    needs->n_rope++;
}

static enum atsi_status need_state(const struct atsi_program *p, const struct atsi_op *op, uint32_t n_tokens_max,
                                   uint32_t n_ctx, struct needs *needs, struct atsi_error *err) {
    const struct atsi_state *state = &p->states[op->state];
    if (op->kind == ATSI_OP_ATTENTION) {
        at_least(&needs->thread_bytes, atsi_attention_thread_bytes(state));
        at_least(&needs->partial_bytes, atsi_attention_partial_bytes(&op->u.attention, state, n_ctx, n_tokens_max));
    } else if (op->kind == ATSI_OP_DELTA_RULE) {
        at_least(&needs->delta_bytes, atsi_delta_input_bytes(&op->u.delta, state, n_tokens_max));
    } else if (state->v_dim + 1 > ATSI_CONV_TAPS_MAX) {
        return atsi_fail(err, ATSI_BAD_INPUT, "state '%s': a convolution of %u taps, at most %d are supported",
                         state->name, state->v_dim + 1, ATSI_CONV_TAPS_MAX);
    }
    return ATSI_OK;
}

static enum atsi_status collect_needs(const struct atsi_program *p, uint32_t n_tokens_max, uint32_t n_outputs_max,
                                      uint32_t n_ctx, struct needs *needs, struct atsi_error *err) {
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const struct atsi_op *op = &p->ops[i];
        uint32_t n_rows = rows_max(p, &op->out[0], n_tokens_max, n_outputs_max);
        switch (op->kind) {
        case ATSI_OP_MATMUL: ATSI_TRY(need_matrix(p, op, n_rows, 1, needs, err)); break;
        case ATSI_OP_EXPERTS: ATSI_TRY(need_experts(p, op, n_rows, needs, err)); break;
        case ATSI_OP_ROUTER: at_least(&needs->thread_bytes, (uint64_t)op->u.router.n_experts * sizeof(float)); break;
        case ATSI_OP_EXPERT_SUM: at_least(&needs->thread_bytes, (uint64_t)op->in[1].width * sizeof(uint32_t)); break;
        case ATSI_OP_ROPE: need_rope(p, i, needs); break;
        case ATSI_OP_ATTENTION:
        case ATSI_OP_CONV:
        case ATSI_OP_DELTA_RULE: ATSI_TRY(need_state(p, op, n_tokens_max, n_ctx, needs, err)); break;
        case ATSI_OP_EMBED:
            if (!atsi_dequant_supported(p->tensors[op->tensor[0]].dtype))
                return atsi_fail(err, ATSI_BAD_INPUT, "tensor '%s': the CPU cannot read type %s",
                                 p->tensors[op->tensor[0]].name, atsi_dtype_name(p->tensors[op->tensor[0]].dtype));
            break;
        default: break;
        }
    }
    return ATSI_OK;
}

// ---- memory ---------------------------------------------------------------------------------------------------------

// Takes `bytes` at a cache line from a running offset; with memory NULL only counts.
static void *carve(uint8_t *memory, uint64_t *offset, uint64_t bytes) {
    uint64_t at = (*offset + MEMORY_ALIGNMENT - 1) & ~(uint64_t)(MEMORY_ALIGNMENT - 1);
    *offset = at + bytes;
    return memory != NULL && bytes != 0 ? memory + at : NULL;
}

static uint64_t carve_all(struct atsi_cpu *cpu, const struct needs *needs, uint8_t *memory) {
    uint64_t offset = 0;
    for (int i = 0; i < ATSI_ACT_SLOTS; i++) cpu->act[i].memory = carve(memory, &offset, needs->act_bytes);
    cpu->routing.words = carve(memory, &offset, needs->routing_words * sizeof(uint32_t));
    cpu->rope = carve(memory, &offset, needs->n_rope * sizeof *cpu->rope);
    for (uint32_t i = 0; i < needs->n_rope; i++) {
        float *frequencies = carve(memory, &offset, needs->n_rot_max / 2 * sizeof(float));
        float *rows = carve(memory, &offset, (uint64_t)cpu->n_tokens_max * needs->n_rot_max * sizeof(float));
        if (memory != NULL) cpu->rope[i] = (struct atsi_rope_table){.frequencies = frequencies, .rows = rows};
    }
    cpu->attn_partials = carve(memory, &offset, needs->partial_bytes);
    cpu->delta_inputs = carve(memory, &offset, needs->delta_bytes);
    cpu->thread_scratch_bytes =
        (size_t)((needs->thread_bytes + MEMORY_ALIGNMENT - 1) & ~(uint64_t)(MEMORY_ALIGNMENT - 1));
    cpu->thread_scratch = carve(memory, &offset, (uint64_t)cpu->n_threads * cpu->thread_scratch_bytes);
    return (offset + MEMORY_ALIGNMENT - 1) & ~(uint64_t)(MEMORY_ALIGNMENT - 1);
}

static enum atsi_status reserve(struct atsi_cpu *cpu, const struct needs *needs, uint32_t n_ops,
                                struct atsi_error *err) {
    uint64_t bytes = carve_all(cpu, needs, NULL);
    cpu->memory = bytes < SIZE_MAX / 2 ? aligned_alloc(MEMORY_ALIGNMENT, (size_t)bytes + MEMORY_ALIGNMENT) : NULL;
    cpu->steps = atsi_steps_create((n_ops + 1) * ATSI_STEPS_PER_CALL);
    if (cpu->memory == NULL || cpu->steps == NULL)
        return atsi_fail(err, ATSI_FAILED,
                         "out of memory: the CPU kernels need %llu MiB of scratch; use a smaller chunk or context",
                         (unsigned long long)(bytes >> 20));
    memset(cpu->memory, 0,
           (size_t)bytes); // padding of partial rows stays zero, and no page is first touched in a round
    carve_all(cpu, needs, cpu->memory);
    cpu->n_rope = needs->n_rope;
    return ATSI_OK;
}

// Two matrices that are computed together mostly read one input: there is room for two.
static enum atsi_status reserve_repeats(struct atsi_cpu *cpu, const struct needs *needs, struct atsi_error *err) {
    if (cpu->n_threads == 1) return ATSI_OK;
    cpu->job_in_bytes = (size_t)(2 * needs->row_bytes);
    struct atsi_repeat_kind kind = atsi_products_kind(cpu->job_in_bytes);
    cpu->repeats = atsi_repeats_create(&kind, cpu->n_threads);
    if (cpu->repeats == NULL)
        return atsi_fail(err, ATSI_FAILED, "out of memory for the CPU kernels of %d threads", cpu->n_threads);
    return ATSI_OK;
}

enum atsi_status atsi_cpu_create(const char *isa, const struct atsi_program *p, uint32_t n_tokens_max,
                                 uint32_t n_outputs_max, uint32_t n_ctx, int n_threads, struct atsi_cpu **out,
                                 struct atsi_error *err) {
    enum atsi_isa selected;
    struct atsi_matmul_kernels kernels;
    struct needs needs = {.kernels = &kernels};
    *out = NULL;
    ATSI_TRY(atsi_isa_select(isa, &selected, err));
    atsi_matmul_kernels_init(&kernels, selected);
    ATSI_TRY(collect_needs(p, n_tokens_max, n_outputs_max, n_ctx, &needs, err));
    struct atsi_cpu *cpu = calloc(1, sizeof *cpu);
    if (cpu == NULL) return atsi_fail(err, ATSI_FAILED, "out of memory for the CPU kernels");
    cpu->isa = selected;
    cpu->vec = atsi_vec_kernels(selected);
    cpu->matmul = kernels;
    cpu->n_tokens_max = n_tokens_max;
    cpu->n_outputs_max = n_outputs_max;
    cpu->n_threads = n_threads > 0 ? n_threads : 1;
    enum atsi_status status = reserve(cpu, &needs, p->n_ops, err);
    if (status == ATSI_OK) status = reserve_repeats(cpu, &needs, err);
    if (status != ATSI_OK) {
        atsi_cpu_free(cpu);
        return status;
    }
    *out = cpu;
    return ATSI_OK;
}

void atsi_cpu_free(struct atsi_cpu *cpu) {
    if (cpu == NULL) return;
    atsi_repeats_free(cpu->repeats);
    atsi_steps_free(cpu->steps);
    free(cpu->memory);
    free(cpu);
}

const char *atsi_cpu_isa(const struct atsi_cpu *cpu) { return atsi_isa_name(cpu->isa); }

// ---- running --------------------------------------------------------------------------------------------------------

// What was derived from memory that the step writes.
static void forget_written(struct atsi_cpu *cpu, const struct atsi_span *spans, uint32_t n_spans) {
    for (uint32_t i = 0; i < n_spans; i++) {
        if (!spans[i].write) continue;
        for (int s = 0; s < ATSI_ACT_SLOTS; s++)
            if (atsi_spans_overlap(&cpu->act[s].source, &spans[i])) cpu->act[s].source.data = NULL;
        if (atsi_spans_overlap(&cpu->routing.source, &spans[i])) cpu->routing.source.data = NULL;
        if (atsi_spans_overlap(&cpu->pieces, &spans[i])) cpu->pieces.data = NULL;
    }
}

void atsi_cpu_add_step(struct atsi_cpu *cpu, const struct atsi_step *step, const struct atsi_span *spans,
                       uint32_t n_spans) {
    forget_written(cpu, spans, n_spans);
    atsi_steps_add(cpu->steps, step, spans, n_spans);
}

bool atsi_cpu_follow_step(struct atsi_cpu *cpu, const struct atsi_step *step, const struct atsi_span *spans,
                          uint32_t n_spans) {
    if (step->cut == NULL || !atsi_steps_follow(cpu->steps, step, spans, n_spans)) return false;
    forget_written(cpu, spans, n_spans);
    return true;
}

static void add_call(struct atsi_cpu *cpu, const struct atsi_op_call *call) {
    switch (call->op->kind) {
    case ATSI_OP_EMBED: atsi_steps_of_embed(cpu, call); break;
    case ATSI_OP_RMS_NORM: atsi_steps_of_norm(cpu, call); break;
    case ATSI_OP_MATMUL: atsi_steps_of_matmul(cpu, call); break;
    case ATSI_OP_ROPE: atsi_steps_of_rope(cpu, call); break;
    case ATSI_OP_ATTENTION: atsi_steps_of_attention(cpu, call); break;
    case ATSI_OP_GLU: atsi_steps_of_glu(cpu, call); break;
    case ATSI_OP_GATE: atsi_steps_of_gate(cpu, call); break;
    case ATSI_OP_ADD: atsi_steps_of_add(cpu, call); break;
    case ATSI_OP_ROUTER: atsi_steps_of_router(cpu, call); break;
    case ATSI_OP_EXPERTS: atsi_steps_of_experts(cpu, call); break;
    case ATSI_OP_EXPERT_SUM: atsi_steps_of_expert_sum(cpu, call); break;
    case ATSI_OP_CONV: atsi_steps_of_conv(cpu, call); break;
    case ATSI_OP_DELTA_RULE: atsi_steps_of_delta(cpu, call); break;
    case ATSI_OP_SELECT: atsi_steps_of_select(cpu, call); break;
    case ATSI_OP_KIND_LIMIT: break;
    }
}

void atsi_cpu_run(struct atsi_cpu *cpu, struct atsi_pool *pool, const struct atsi_op_call *calls, int n_calls) {
    if (pool != NULL && atsi_pool_n_threads(pool) > cpu->n_threads) pool = NULL; // more threads than have scratch
    cpu->n_run_threads = pool != NULL ? atsi_pool_n_threads(pool) : 1;
    // Between runs the buffers may have been filled by others: nothing that was derived from them is kept.
    for (int s = 0; s < ATSI_ACT_SLOTS; s++) cpu->act[s].source.data = NULL;
    cpu->routing.source.data = cpu->pieces.data = NULL;
    cpu->cut = NULL;
    cpu->n_phases = 0;
    for (int i = 0; i < n_calls; i++) {
        if (atsi_steps_full(cpu->steps, ATSI_STEPS_PER_CALL)) cpu->n_phases += atsi_steps_run(cpu->steps, cpu, pool);
        add_call(cpu, &calls[i]);
    }
    cpu->n_phases += atsi_steps_run(cpu->steps, cpu, pool);
}

uint32_t atsi_cpu_n_phases(const struct atsi_cpu *cpu) { return cpu->n_phases; }
