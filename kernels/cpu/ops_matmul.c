// Matrix products, dense and by experts, over kernels/matmul.h; inputs are prepared once and shared.
#include <string.h>

#include "kernels/cpu/matmul_impl.h"
#include "kernels/cpu/ops_internal.h"
#include "kernels/cpu/products.h"
#include "kernels/layout.h"

// ---- parts of a token's products ------------------------------------------------------------------------------------

// A device's own ids where its router divided the slots.
static struct atsi_rows_ref ids_of(const struct atsi_op_call *call) {
    return call->resident.mine != NULL ? atsi_call_mine(call, call->op->u.experts.n_used) : call->in[1];
}

// What the device computes of a call that is divided, on the host.
static struct atsi_slots_left_out left_out_of(const struct atsi_op_call *call) {
    const struct atsi_experts_ref *r = &call->resident;
    if (r->mine != NULL || r->gpu_slots == NULL) return (struct atsi_slots_left_out){NULL, NULL};
    return (struct atsi_slots_left_out){r->slots, r->gpu_slots};
}

static bool same_slots(const struct atsi_op_call *a, const struct atsi_op_call *b) {
    struct atsi_rows_ref a_ids = ids_of(a), b_ids = ids_of(b);
    struct atsi_slots_left_out a_out = left_out_of(a), b_out = left_out_of(b);
    return a_ids.data == b_ids.data && a->op->u.experts.n_used == b->op->u.experts.n_used &&
           a->op->u.experts.n_experts == b->op->u.experts.n_experts && a_out.resident_slots == b_out.resident_slots &&
           a_out.n == b_out.n;
}

// Whether the items of both cover the same rows of the same slots: weights of one shape and type.
static bool same_parts(const struct atsi_op_call *a, const struct atsi_op_call *b) {
    const struct atsi_tensor *x = a->tensor[0].info, *y = b->tensor[0].info;
    return a->op->kind == b->op->kind && x->dtype == y->dtype && x->ne[0] == y->ne[0] && x->ne[1] == y->ne[1] &&
           (a->op->kind != ATSI_OP_EXPERTS || same_slots(a, b));
}

// One token's product is cut into parts, those of the product before where that is cut alike. Returns whether it is cut.
static bool cut_product(struct atsi_cpu *cpu, struct atsi_step *step) {
    const struct atsi_op_call *call = step->call;
    if (atsi_call_rows(call) != 1)
        cpu->cut = NULL;
    else if (cpu->cut == NULL || !same_parts(cpu->cut, call))
        cpu->cut = call;
    step->cut = cpu->cut;
    return cpu->cut != NULL;
}

// ---- arguments -----------------------------------------------------------------------------------------------------

// slot: of the prepared input, of any kind but F32.
static struct atsi_matmul_args matmul_args(const struct atsi_cpu *cpu, const struct atsi_op_call *call,
                                           enum atsi_input_kind kind, uint32_t slot) {
    const struct atsi_tensor *weight = call->tensor[0].info;
    bool is_float = kind == ATSI_INPUT_F32;
    return (struct atsi_matmul_args){
        .dtype = weight->dtype,
        .n_rows = (uint32_t)weight->ne[1],
        .n_cols = (uint32_t)weight->ne[0],
        .weight = call->tensor[0].data,
        .bias = call->tensor[1].data,
        .in = is_float ? call->in[0].data : cpu->act[slot].memory,
        .in_stride =
            is_float ? (size_t)call->in[0].stride * sizeof(float) : atsi_input_row_bytes(kind, (uint32_t)weight->ne[0]),
        .out = call->out[0].data,
        .out_stride = call->out[0].stride,
        .n_tokens = atsi_call_rows(call),
        .add = call->op->add,
    };
}

static enum atsi_input_kind dense_input(const struct atsi_cpu *cpu, const struct atsi_op_call *call) {
    return atsi_matmul_input_of(&cpu->matmul, call->tensor[0].info->dtype, atsi_call_rows(call));
}

// ---- inputs as kernels read them ------------------------------------------------------------------------------------

// arg: slot, columns and number of a row's pieces, kind.
static void run_prepare(struct atsi_cpu *cpu, const struct atsi_step *step, uint32_t row, int i_thread) {
    (void)i_thread;
    const struct atsi_act_slot *slot = &cpu->act[step->arg[0]];
    uint32_t n_cols = step->arg[1], n_parts = step->arg[2];
    enum atsi_input_kind kind = (enum atsi_input_kind)step->arg[3];
    size_t row_bytes = atsi_input_row_bytes(kind, n_cols);
    const float *in = atsi_row(&step->call->in[0], row);
    uint8_t *out = (uint8_t *)slot->memory + (size_t)row * n_parts * row_bytes;
    for (uint32_t part = 0; part < n_parts; part++)
        atsi_prepare_input(&cpu->matmul, kind, in + (size_t)part * n_cols, n_cols, out + part * row_bytes);
}

// A piece of the only row, quantised: arg[1] columns.
static void run_prepare_piece(struct atsi_cpu *cpu, const struct atsi_step *step, uint32_t piece, int i_thread) {
    (void)i_thread;
    uint32_t n_cols = step->arg[1];
    struct atsi_act_block *out = cpu->act[step->arg[0]].memory;
    cpu->matmul.quantise(atsi_row(&step->call->in[0], 0) + (size_t)piece * n_cols, n_cols,
                         out + (size_t)piece * (n_cols / 32));
}

// Parts of the only row, which are whole blocks. arg: slot, columns of each of the row's own slots.
static void run_prepare_part(struct atsi_cpu *cpu, const struct atsi_step *step, uint32_t i_part, int i_thread) {
    (void)i_thread;
    uint32_t n_cols = step->arg[1];
    struct atsi_part part = atsi_cpu_part(cpu, step->cut, i_part);
    for (uint32_t k = 0; k < part.n_slots; k++) {
        uint32_t slot = part.slots != NULL ? part.slots[k] : 0;
        uint8_t *row = (uint8_t *)cpu->act[step->arg[0]].memory + slot * atsi_act_row_bytes(n_cols);
        cpu->matmul.quantise(atsi_row(&step->call->in[0], 0) + atsi_part_column(&part, k), part.n,
                             (struct atsi_act_block *)row + part.first / 32);
    }
}

static struct atsi_span slot_span(const struct atsi_act_slot *slot, bool write) {
    uint32_t stride = (uint32_t)(slot->n_parts * slot->row_bytes / 4);
    return (struct atsi_span){
        .data = slot->memory, .stride = stride, .width = stride, .n_rows = slot->source.n_rows, .write = write};
}

// Of experts they are (kernels/cpu/matmul.c), but for a last one.
static bool has_even_parts(const struct atsi_cpu *cpu, const struct atsi_op_call *cut) {
    struct atsi_matmul_args args = matmul_args(cpu, cut, dense_input(cpu, cut), 0);
    return atsi_matmul_chunk_tiles(&cpu->matmul, &args, cpu->n_run_threads) % 2 == 0;
}

// Whether the parts of the cut are whole blocks of what the slot holds of one row.
static bool fits_parts(const struct atsi_cpu *cpu, const struct atsi_act_slot *slot) {
    const struct atsi_op_call *cut = cpu->cut;
    if (cut == NULL || slot->kind != ATSI_INPUT_INT8 || slot->source.n_rows != 1 ||
        slot->n_cols != cut->tensor[0].info->ne[1])
        return false;
    bool by_slot = cut->op->kind == ATSI_OP_EXPERTS;
    return slot->n_parts == (by_slot ? cut->op->u.experts.n_used : 1) && (by_slot || has_even_parts(cpu, cut));
}

// Of one token: by whoever has made a part of the row from parts of products.
static bool prepare_follows(struct atsi_cpu *cpu, const struct atsi_op_call *call, uint32_t i_slot) {
    const struct atsi_act_slot *slot = &cpu->act[i_slot];
    if (!fits_parts(cpu, slot)) return false;
    struct atsi_step step = {.run = run_prepare_part, .call = call, .cut = cpu->cut, .arg = {i_slot, slot->n_cols}};
    struct atsi_span spans[2] = {slot->source, slot_span(slot, true)};
    spans[0].in_parts = spans[1].in_parts = true;
    return atsi_cpu_follow_step(cpu, &step, spans, 2);
}

// Fills a slot from in[0] of the call. A row that was written in pieces is quantised in the same pieces, by the same threads.
static void add_prepare_step(struct atsi_cpu *cpu, const struct atsi_op_call *call, uint32_t i_slot) {
    const struct atsi_act_slot *slot = &cpu->act[i_slot];
    struct atsi_step step = {.run = run_prepare,
                             .call = call,
                             .n_items = slot->source.n_rows,
                             .by_row = true,
                             .arg = {i_slot, slot->n_cols, slot->n_parts, slot->kind}};
    struct atsi_span spans[2] = {slot->source, slot_span(slot, true)};
    if (prepare_follows(cpu, call, i_slot)) return;
    const struct atsi_span *pieces = &cpu->pieces;
    bool in_pieces = slot->kind == ATSI_INPUT_INT8 && slot->n_parts == 1 && pieces->data == slot->source.data &&
                     pieces->width * pieces->n_rows == slot->n_cols && slot->source.n_rows == 1;
    if (in_pieces) {
        uint32_t n_words = (uint32_t)(slot->n_cols / 32 * sizeof(struct atsi_act_block) / 4);
        spans[1].width = n_words;
        for (int i = 0; i < 2; i++) spans[i] = atsi_span_pieces(&spans[i], pieces->n_rows);
        step.run = run_prepare_piece;
        step.n_items = pieces->n_rows;
        step.arg[1] = pieces->width;
    }
    atsi_cpu_add_step(cpu, &step, spans, 2);
}

// The slot that holds in[0] of the call so, as n_parts pieces a row; adds the step that fills it where there is none yet.
// A slot that is taken over may still be read by earlier steps: its memory is among the spans, so they are waited for.
static uint32_t prepared_input(struct atsi_cpu *cpu, const struct atsi_op_call *call, enum atsi_input_kind kind,
                               uint32_t n_rows, uint32_t n_parts) {
    struct atsi_span source = atsi_span_rows(&call->in[0], n_rows, false);
    uint32_t n_cols = source.width / n_parts, oldest = 0;
    for (uint32_t i = 0; i < ATSI_ACT_SLOTS; i++) {
        struct atsi_act_slot *slot = &cpu->act[i];
        if (slot->source.data == source.data && slot->source.stride == source.stride && slot->source.n_rows == n_rows &&
            slot->n_cols == n_cols && slot->n_parts == n_parts && slot->kind == kind) {
            slot->last_use = ++cpu->n_uses;
            return i;
        }
        if (slot->last_use < cpu->act[oldest].last_use) oldest = i;
    }
    struct atsi_act_slot *slot = &cpu->act[oldest];
    slot->kind = kind;
    slot->source = source;
    slot->n_cols = n_cols;
    slot->n_parts = n_parts;
    slot->row_bytes = atsi_input_row_bytes(kind, n_cols);
    slot->last_use = ++cpu->n_uses;
    add_prepare_step(cpu, call, oldest);
    return oldest;
}

// ---- dense ----------------------------------------------------------------------------------------------------------

static void run_matmul(struct atsi_cpu *cpu, const struct atsi_step *step, uint32_t i_chunk, int i_thread) {
    (void)i_thread;
    struct atsi_matmul_args args = matmul_args(cpu, step->call, dense_input(cpu, step->call), step->arg[0]);
    atsi_matmul_chunk(&cpu->matmul, &args, cpu->n_run_threads, i_chunk);
}

static bool detach_matmul(struct atsi_cpu *cpu, const struct atsi_step *step, struct atsi_products *job) {
    enum atsi_input_kind kind = dense_input(cpu, step->call);
    struct atsi_matmul_args args = matmul_args(cpu, step->call, kind, step->arg[0]);
    return args.n_tokens == 1 && atsi_products_add(job, &args, atsi_input_part_bytes(kind, args.n_cols),
                                                   atsi_matmul_chunk_tiles(&cpu->matmul, &args, cpu->n_run_threads));
}

void atsi_steps_of_matmul(struct atsi_cpu *cpu, const struct atsi_op_call *call) {
    uint32_t n_rows = atsi_call_rows(call), slot = 0;
    struct atsi_span in = atsi_span_rows(&call->in[0], n_rows, false);
    if (n_rows == 0) return;
    enum atsi_input_kind kind = dense_input(cpu, call);
    if (kind != ATSI_INPUT_F32) {
        slot = prepared_input(cpu, call, kind, n_rows, 1);
        in = slot_span(&cpu->act[slot], false);
    }
    struct atsi_matmul_args args = matmul_args(cpu, call, kind, slot);
    struct atsi_span spans[2] = {in, atsi_span_rows(&call->out[0], n_rows, true)};
    struct atsi_step step = {.run = run_matmul,
                             .detach = detach_matmul,
                             .call = call,
                             .arg = {slot},
                             .n_items = atsi_matmul_n_chunks(&cpu->matmul, &args, cpu->n_run_threads)};
    step.n_parts_max = step.n_items;
    spans[1].in_parts = cut_product(cpu, &step);
    atsi_cpu_add_step(cpu, &step, spans, 2);
}

// ---- experts --------------------------------------------------------------------------------------------------------

bool atsi_cpu_has_no_slots(const struct atsi_op_call *call) {
    struct atsi_slots_left_out left_out = left_out_of(call);
    uint32_t n_used = call->op->u.experts.n_used;
    return atsi_call_rows(call) == 1 && atsi_first_slot(&left_out, call->in[1].data, n_used) == n_used;
}

static void run_grouping(struct atsi_cpu *cpu, const struct atsi_step *step, uint32_t i_item, int i_thread) {
    (void)i_item, (void)i_thread;
    const struct atsi_op_call *call = step->call;
    const struct atsi_experts_params *p = &call->op->u.experts;
    struct atsi_rows_ref ids = ids_of(call);
    struct atsi_slots_left_out left_out = left_out_of(call);
    atsi_expert_groups_build(&cpu->routing.groups, cpu->routing.words, p->n_experts, ids.data, ids.stride,
                             atsi_call_rows(call), p->n_used, &left_out);
}

// Experts of one layer share their ids: they are grouped once, unless they leave out different slots.
static void group_by_expert(struct atsi_cpu *cpu, const struct atsi_op_call *call, const struct atsi_span *groups) {
    struct atsi_rows_ref rows = ids_of(call);
    struct atsi_span ids = atsi_span_rows(&rows, atsi_call_rows(call), false);
    struct atsi_slots_left_out left_out = left_out_of(call);
    const struct atsi_span *known = &cpu->routing.source;
    const struct atsi_slots_left_out *known_out = &cpu->routing.left_out;
    if (known->data == ids.data && known->stride == ids.stride && known->n_rows == ids.n_rows &&
        known->width == ids.width && known_out->resident_slots == left_out.resident_slots && known_out->n == left_out.n)
        return;
    cpu->routing.source = ids;
    cpu->routing.left_out = left_out;
    cpu->cut = NULL;
    struct atsi_step step = {.run = run_grouping, .call = call, .n_items = 1};
    struct atsi_span spans[2] = {ids, *groups};
    spans[1].write = true;
    atsi_cpu_add_step(cpu, &step, spans, 2);
}

static struct atsi_experts_args experts_args(const struct atsi_cpu *cpu, const struct atsi_op_call *call,
                                             uint32_t slot) {
    const struct atsi_experts_params *p = &call->op->u.experts;
    const struct atsi_tensor *weight = call->tensor[0].info;
    struct atsi_experts_args args = {
        .matmul = matmul_args(cpu, call, atsi_matmul_input(weight->dtype), slot),
        .expert_bytes = (size_t)(weight->size_bytes / p->n_experts),
        .groups = &cpu->routing.groups,
        .fetched = call->resident.fetched,
    };
    if (call->resident.data != NULL) {
        args.resident_slots = call->resident.slots;
        args.resident = call->resident.data;
    }
    args.matmul.n_slots = p->n_used;
    args.matmul.out_slot_stride = args.matmul.n_rows;
    if (p->in_per_slot) {
        // From the tensor, not from the slot: when this runs, a later call may have been promised the slot already.
        enum atsi_input_kind kind = atsi_matmul_input(weight->dtype);
        args.matmul.in_slot_stride = atsi_input_part_bytes(kind, args.matmul.n_cols);
        if (kind != ATSI_INPUT_F32) args.matmul.in_stride = p->n_used * args.matmul.in_slot_stride;
    }
    return args;
}

static uint32_t count_experts(struct atsi_cpu *cpu, const struct atsi_step *step) {
    struct atsi_experts_args args = experts_args(cpu, step->call, step->arg[0]);
    return atsi_experts_n_chunks(&cpu->matmul, &args, cpu->n_run_threads);
}

static void run_experts(struct atsi_cpu *cpu, const struct atsi_step *step, uint32_t i_chunk, int i_thread) {
    (void)i_thread;
    struct atsi_experts_args args = experts_args(cpu, step->call, step->arg[0]);
    atsi_experts_chunk(&cpu->matmul, &args, cpu->n_run_threads, i_chunk);
}

// One product an expert: a token chooses each but once.
static bool detach_experts(struct atsi_cpu *cpu, const struct atsi_step *step, struct atsi_products *job) {
    struct atsi_experts_args args = experts_args(cpu, step->call, step->arg[0]);
    size_t in_bytes = atsi_input_part_bytes(atsi_matmul_input(args.matmul.dtype), args.matmul.n_cols);
    for (uint32_t i = 0; i < args.groups->n_active; i++) {
        struct atsi_matmul_args product = atsi_expert_product(&args, i);
        if (product.n_tokens != 1) return false;
        product.in = atsi_matmul_in_row(&product, 0);
        product.out = atsi_matmul_out_row(&product, 0);
        product.pairs = NULL;
        if (!atsi_products_add(job, &product, in_bytes,
                               atsi_experts_chunk_tiles(&cpu->matmul, &args, cpu->n_run_threads)))
            return false;
    }
    return true;
}

void atsi_steps_of_experts(struct atsi_cpu *cpu, const struct atsi_op_call *call) {
    const struct atsi_experts_params *p = &call->op->u.experts;
    uint32_t n_rows = atsi_call_rows(call), slot = 0;
    struct atsi_span in = atsi_span_rows(&call->in[0], n_rows, false);
    struct atsi_span groups = atsi_span_bytes(cpu->routing.words, sizeof(uint32_t), false); // stands for all of them
    if (n_rows == 0) return;
    if (atsi_matmul_input(call->tensor[0].info->dtype) == ATSI_INPUT_INT8) {
        slot = prepared_input(cpu, call, ATSI_INPUT_INT8, n_rows, p->in_per_slot ? p->n_used : 1);
        in = slot_span(&cpu->act[slot], false);
    }
    group_by_expert(cpu, call, &groups);
    struct atsi_span spans[3] = {in, groups, atsi_span_rows(&call->out[0], n_rows, true)};
    struct atsi_step step = {
        .run = run_experts, .count = count_experts, .detach = detach_experts, .call = call, .arg = {slot}};
    step.n_parts_max = p->n_used * atsi_matmul_tiles((uint32_t)call->tensor[0].info->ne[1]);
    spans[2].in_parts = cut_product(cpu, &step);
    atsi_cpu_add_step(cpu, &step, spans, 3);
}

// ---- parts ------------------------------------------------------------------------------------------------------------

static struct atsi_part part_of_dense(const struct atsi_cpu *cpu, const struct atsi_op_call *cut, uint32_t i) {
    struct atsi_matmul_args args = matmul_args(cpu, cut, dense_input(cpu, cut), 0);
    uint32_t rows = atsi_matmul_chunk_tiles(&cpu->matmul, &args, cpu->n_run_threads) * ATSI_TILE_ROWS, first = i * rows;
    return (struct atsi_part){
        .first = first, .n = args.n_rows - first < rows ? args.n_rows - first : rows, .n_slots = 1};
}

static struct atsi_part part_of_experts(const struct atsi_cpu *cpu, const struct atsi_op_call *cut, uint32_t i) {
    struct atsi_experts_args args = experts_args(cpu, cut, 0);
    uint32_t n_rows = args.matmul.n_rows, n_tiles = atsi_matmul_tiles(n_rows);
    uint32_t tiles = atsi_experts_chunk_tiles(&cpu->matmul, &args, cpu->n_run_threads);
    uint32_t n_runs = (n_tiles + tiles - 1) / tiles, rows = tiles * ATSI_TILE_ROWS, first = i % n_runs * rows;
    struct atsi_matmul_args product = atsi_expert_product(&args, i / n_runs);
    return (struct atsi_part){.first = first,
                              .n = n_rows - first < rows ? n_rows - first : rows,
                              .slots = product.pairs,
                              .n_slots = product.n_tokens,
                              .slot_width = n_rows};
}

struct atsi_part atsi_cpu_part(const struct atsi_cpu *cpu, const struct atsi_op_call *cut, uint32_t i) {
    return cut->op->kind == ATSI_OP_EXPERTS ? part_of_experts(cpu, cut, i) : part_of_dense(cpu, cut, i);
}
