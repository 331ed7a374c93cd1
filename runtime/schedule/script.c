#include "runtime/schedule/script.h"

#include <stdlib.h>
#include <string.h>

#include "formats/base/grow.h"
#include "runtime/schedule/ranges.h"

enum {
    MAX_SHARED_OPS = 8,                  // of a unit
    MAX_JOINED_OPS = 3 * MAX_SHARED_OPS, // of units that are shared as one
    DIVISION_COLUMNS = 16
}; // matrices are divided at whole tiles

struct builder {
    const struct atsi_program *p;
    const struct atsi_script_params *params;
    struct atsi_script *out;
    size_t steps_cap, actions_cap;
    struct atsi_ranges *ranges; // [n_buffers]
    int32_t *
        divided_by; // [n_buffers] the router's op by which both sides hold some slots each, ATSI_NONE: as the ranges say
    enum atsi_backend *sides; // [n_units] on which whole units run
    uint32_t *columns;        // [n_units] of a shared unit, those that the GPU computes; 0: not shared
    bool *fetched;            // [n_units] whose absent experts a step before has fetched
    // CROSSes to the device that the CPU has not waited for: what they read on the host.
    struct pending {
        uint32_t buffer, begin, end;
    } * pending;
    uint32_t n_pending;
    size_t pending_cap;
    uint32_t i_unit;   // whose operations are emitted
    int32_t router_op; // by which its slots are divided token by token, ATSI_NONE
    bool failed;       // out of memory; the caller says so
};

static void act(struct builder *b, struct atsi_action action) {
    if (!atsi_grow((void **)&b->out->actions, b->out->n_actions, &b->actions_cap, sizeof action))
        b->failed = true;
    else
        b->out->actions[b->out->n_actions++] = action;
}

static void note_pending(struct builder *b, uint32_t buffer, uint32_t begin, uint32_t end) {
    if (!atsi_grow((void **)&b->pending, b->n_pending, &b->pending_cap, sizeof *b->pending))
        b->failed = true;
    else
        b->pending[b->n_pending++] = (struct pending){buffer, begin, end};
}

// ---- what a step reads and writes ---------------------------------------------------------------------------------

struct part {
    uint32_t buffer, begin, end;
};

static uint32_t out_columns(const struct atsi_op *op) { return op->out[0].width; }

static bool is_whole(const struct atsi_program *p, const struct atsi_step *s) {
    return s->begin == 0 && s->end == out_columns(&p->ops[s->op]);
}

// Element by element: a part of the output needs the same part of the inputs.
static bool is_elementwise(const struct atsi_op *op) { return op->kind == ATSI_OP_GLU || op->kind == ATSI_OP_ADD; }

static struct part read_part(const struct atsi_program *p, const struct atsi_step *s, int i) {
    const struct atsi_op *op = &p->ops[s->op];
    const struct atsi_view *v = &op->in[i];
    if (is_elementwise(op)) return (struct part){(uint32_t)v->buffer, v->offset + s->begin, v->offset + s->end};
    // Slots [begin, end) / rows of the experts: their ids and, where every slot has its own, their inputs.
    if (op->kind == ATSI_OP_EXPERTS && (i == 1 || op->u.experts.in_per_slot)) {
        uint32_t rows = out_columns(op) / op->u.experts.n_used, each = v->width / op->u.experts.n_used;
        return (struct part){(uint32_t)v->buffer, v->offset + s->begin / rows * each, v->offset + s->end / rows * each};
    }
    return (struct part){(uint32_t)v->buffer, v->offset, v->offset + v->width};
}

static struct part write_part(const struct atsi_program *p, const struct atsi_step *s, int i) {
    const struct atsi_view *v = &p->ops[s->op].out[i];
    if (i > 0 || is_whole(p, s)) return (struct part){(uint32_t)v->buffer, v->offset, v->offset + v->width};
    return (struct part){(uint32_t)v->buffer, v->offset + s->begin, v->offset + s->end};
}

static int n_reads(const struct atsi_op *op) {
    int n = 0;
    while (n < ATSI_OP_MAX_IN && op->in[n].buffer != ATSI_NONE) n++;
    return n;
}

static int n_writes(const struct atsi_op *op) {
    int n = 0;
    while (n < ATSI_OP_MAX_OUT && op->out[n].buffer != ATSI_NONE) n++;
    return n;
}

// ---- copies between the sides -------------------------------------------------------------------------------------

// Brings the other side's slots of a buffer that is divided token by token to `side`, which then holds all of it.
static void fetch_slots(struct builder *b, uint32_t buffer, enum atsi_backend side) {
    uint32_t width = b->p->buffers[buffer].width;
    act(b, (struct atsi_action){.kind = ATSI_ACTION_CROSS,
                                .backend = side,
                                .buffer = buffer,
                                .width = width,
                                .slots_of = b->divided_by[buffer]});
    if (side == ATSI_GPU) note_pending(b, buffer, 0, width);
    b->divided_by[buffer] = ATSI_NONE;
    atsi_ranges_write(&b->ranges[buffer], 0, width, side, false);
}

// Copies what `side` lacks of a part. Returns whether anything was copied.
static bool fetch(struct builder *b, struct part part, enum atsi_backend side) {
    uint32_t from, to;
    bool any = b->divided_by[part.buffer] != ATSI_NONE;
    if (any) fetch_slots(b, part.buffer, side);
    while (!b->failed && atsi_ranges_fetch(&b->ranges[part.buffer], part.begin, part.end, side, &from, &to)) {
        act(b, (struct atsi_action){.kind = ATSI_ACTION_CROSS,
                                    .backend = side,
                                    .buffer = part.buffer,
                                    .offset = from,
                                    .width = to - from,
                                    .slots_of = ATSI_NONE});
        if (side == ATSI_GPU) note_pending(b, part.buffer, from, to);
        any = true;
    }
    return any;
}

// A step of slots that are divided token by token finds those of its side in what was divided so before.
static bool has_own_slots(const struct builder *b, const struct atsi_step *s, int32_t buffer) {
    return s->by_token && b->divided_by[buffer] == b->router_op;
}

// `own` [n_buffers]: what is not fetched because the step's own side writes its part of it before; NULL: nothing.
static bool fetch_reads(struct builder *b, const struct atsi_step *s, const bool *own) {
    const struct atsi_op *op = &b->p->ops[s->op];
    bool any = false;
    for (int i = 0; i < n_reads(op); i++)
        if (!(own && own[op->in[i].buffer]) && !has_own_slots(b, s, op->in[i].buffer))
            any |= fetch(b, read_part(b->p, s, i), s->backend);
    if (op->add && !(own && own[op->out[0].buffer])) any |= fetch(b, write_part(b->p, s, 0), s->backend);
    return any;
}

static void note_writes(struct builder *b, const struct atsi_step *s, bool both) {
    const struct atsi_op *op = &b->p->ops[s->op];
    for (int i = 0; i < n_writes(op); i++) {
        struct part part = write_part(b->p, s, i);
        atsi_ranges_write(&b->ranges[part.buffer], part.begin, part.end, s->backend, both);
        b->divided_by[part.buffer] = s->by_token ? b->router_op : ATSI_NONE;
    }
}

static uint64_t end_bytes(const struct builder *b, const struct atsi_buffer *buffer) {
    uint64_t rows = buffer->rows == ATSI_ROWS_TOKENS ? b->params->n_tokens_max : b->params->n_outputs_max;
    return buffer->offset_bytes + rows * buffer->width * 4;
}

// Two parts meet in host memory: columns of one buffer, or buffers that share bytes (they live at different times).
static bool meet(const struct builder *b, struct part a, const struct pending *q) {
    if (a.buffer == q->buffer) return a.begin < q->end && q->begin < a.end;
    const struct atsi_buffer *x = &b->p->buffers[a.buffer], *y = &b->p->buffers[q->buffer];
    return x->offset_bytes < end_bytes(b, y) && y->offset_bytes < end_bytes(b, x);
}

// Whether the CPU must not write yet because a copy still reads there.
static bool must_wait(const struct builder *b, const struct atsi_step *s) {
    for (int i = 0; i < n_writes(&b->p->ops[s->op]); i++) {
        struct part part = write_part(b->p, s, i);
        for (uint32_t k = 0; k < b->n_pending; k++)
            if (meet(b, part, &b->pending[k])) return true;
    }
    return false;
}

// ---- steps into actions -------------------------------------------------------------------------------------------

static void add_step(struct builder *b, struct atsi_step step) {
    if (!atsi_grow((void **)&b->out->steps, b->out->n_steps, &b->steps_cap, sizeof step)) {
        b->failed = true;
        return;
    }
    b->out->steps[b->out->n_steps++] = step;
    enum atsi_action_kind kind = step.backend == ATSI_GPU ? ATSI_ACTION_GPU : ATSI_ACTION_CPU;
    bool fresh =
        b->out->n_actions == 0 || b->out->n_actions == b->out->tail; // the tail starts with an action of its own
    struct atsi_action *last = fresh ? NULL : &b->out->actions[b->out->n_actions - 1];
    if (!fresh && last->kind == kind && last->first + last->n == b->out->n_steps - 1)
        last->n++;
    else
        act(b, (struct atsi_action){.kind = kind, .backend = step.backend, .first = b->out->n_steps - 1, .n = 1});
}

static void record(struct builder *b) { act(b, (struct atsi_action){.kind = ATSI_ACTION_RECORD}); }

static void wait_for_record(struct builder *b, uint32_t n_pending_at_record) {
    act(b, (struct atsi_action){.kind = ATSI_ACTION_WAIT});
    uint32_t n_left = b->n_pending - n_pending_at_record;
    if (n_left > 0) memmove(b->pending, b->pending + n_pending_at_record, n_left * sizeof *b->pending);
    b->n_pending = n_left;
}

static void emit_gpu(struct builder *b, const struct atsi_step *s, bool both) {
    fetch_reads(b, s, NULL);
    note_writes(b, s, both);
    add_step(b, *s);
}

static bool runs_whole_on_cpu(const struct builder *b, uint32_t i_unit) {
    return b->sides[i_unit] == ATSI_CPU && b->columns[i_unit] == 0;
}

// What the CPU's next operations, until the device's turn, read of what the device has written: one wait is enough for all of it. What
// they write themselves is none of that.
static void fetch_for_next(struct builder *b, uint32_t i_op) {
    bool written[ATSI_MAX_BUFFERS] = {false};
    for (uint32_t u = b->i_unit, i = i_op; u < b->p->n_units && runs_whole_on_cpu(b, u); u++)
        for (; i < b->p->units[u].first_op + b->p->units[u].n_ops; i++) {
            const struct atsi_op *op = &b->p->ops[i];
            struct atsi_step s = {.op = i, .backend = ATSI_CPU, .end = out_columns(op)};
            if (op->kind == ATSI_OP_SELECT) return; // the tail is repeated
            for (int k = 0; k < n_reads(op) && i > i_op; k++)
                if (!written[op->in[k].buffer]) fetch(b, read_part(b->p, &s, k), ATSI_CPU);
            if (op->add && i > i_op && !written[op->out[0].buffer]) fetch(b, write_part(b->p, &s, 0), ATSI_CPU);
            for (int k = 0; k < n_writes(op); k++) written[op->out[k].buffer] = true;
        }
}

static void emit_cpu(struct builder *b, const struct atsi_step *s) {
    if (fetch_reads(b, s, NULL) || must_wait(b, s)) {
        fetch_for_next(b, s->op);
        record(b);
        wait_for_record(b, b->n_pending);
    }
    note_writes(b, s, false);
    add_step(b, *s);
}

static void emit_whole(struct builder *b, uint32_t i_op, enum atsi_backend backend, bool promoted) {
    const struct atsi_op *op = &b->p->ops[i_op];
    struct atsi_step s = {.op = i_op, .backend = backend, .end = out_columns(op), .promoted = promoted};
    s.fetched = op->kind == ATSI_OP_EXPERTS && b->fetched[b->i_unit];
    if (backend == ATSI_GPU)
        emit_gpu(b, &s, false);
    else
        emit_cpu(b, &s);
}

// ---- shared units -------------------------------------------------------------------------------------------------
// The operations of a shared unit: those before the first divided one run on both sides, the divided ones in two parts, what
// follows on one side. Elementwise operations behind a divided one are divided alike.

struct sharing {
    uint32_t first, first_divided, end_divided, end;
}; // ops

static bool find_sharing(const struct atsi_program *p, const struct atsi_unit *u, struct sharing *s) {
    *s = (struct sharing){u->first_op, u->first_op, 0, u->first_op + u->n_ops};
    while (s->first_divided < s->end && !atsi_op_is_divisible(p, &p->ops[s->first_divided])) s->first_divided++;
    if (s->first_divided == s->end) return false;
    s->end_divided = s->first_divided + 1;
    while (s->end_divided < s->end && is_elementwise(&p->ops[s->end_divided]) &&
           out_columns(&p->ops[s->end_divided]) == out_columns(&p->ops[s->first_divided]))
        s->end_divided++;
    return s->end_divided - s->first <= MAX_SHARED_OPS;
}

// Nothing that runs on both sides reads what a divided operation writes, so that either part may go first.
static bool parts_are_independent(const struct atsi_program *p, const struct sharing *s) {
    for (uint32_t w = s->first_divided; w < s->end_divided; w++)
        for (uint32_t r = s->first; r < s->end_divided; r++)
            for (int i = 0; i < n_reads(&p->ops[r]); i++) {
                bool alike = r >= w && is_elementwise(&p->ops[r]); // reads only its own part
                if (!alike && p->ops[r].in[i].buffer == p->ops[w].out[0].buffer) return false;
            }
    return true;
}

static bool can_share(const struct atsi_program *p, uint32_t i_unit, struct sharing *s) {
    const struct atsi_unit *u = &p->units[i_unit];
    if (u->kind != ATSI_UNIT_MATRIX && u->kind != ATSI_UNIT_EXPERTS) return false;
    if (atsi_unit_has_state(p, u)) return false;
    for (uint32_t i = u->first_op; i < u->first_op + u->n_ops; i++)
        if (p->ops[i].kind == ATSI_OP_SELECT) return false;
    return find_sharing(p, u, s) && parts_are_independent(p, s);
}

bool atsi_script_can_share(const struct atsi_program *p, uint32_t i_unit) {
    struct sharing s;
    return can_share(p, i_unit, &s);
}

// Columns of the GPU's part: whole tiles, whole slots.
static uint32_t gpu_columns(const struct atsi_op *op, float share) {
    uint32_t width = out_columns(op),
             unit = op->kind == ATSI_OP_EXPERTS ? width / op->u.experts.n_used : DIVISION_COLUMNS;
    uint32_t columns = (uint32_t)(share * (float)width / (float)unit + 0.5f) * unit;
    return columns < width ? columns : width;
}

static bool writes(const struct atsi_op *op, int32_t buffer) {
    for (int i = 0; i < n_writes(op); i++)
        if (op->out[i].buffer == buffer) return true;
    return false;
}

static bool reads(const struct atsi_op *op, int32_t buffer) {
    for (int i = 0; i < n_reads(op); i++)
        if (op->in[i].buffer == buffer) return true;
    return op->add && writes(op, buffer);
}

// The side of the unit that next reads what a unit leaves behind.
static enum atsi_backend reader_side(const struct builder *b, uint32_t i_unit) {
    const struct atsi_unit *units = b->p->units;
    int32_t result = b->p->ops[units[i_unit].first_op + units[i_unit].n_ops - 1].out[0].buffer;
    for (uint32_t u = i_unit + 1; u < b->p->n_units; u++)
        for (uint32_t i = units[u].first_op; i < units[u].first_op + units[u].n_ops; i++)
            if (reads(&b->p->ops[i], result)) return b->sides[u];
    return ATSI_CPU;
}

// The side of what follows the divided operations: where its own weights are, else where its result is read.
static enum atsi_backend side_after(const struct builder *b, uint32_t i_unit, const struct sharing *s) {
    for (uint32_t i = s->end_divided; i < s->end; i++)
        for (int k = 0; k < ATSI_OP_MAX_TENSORS; k++)
            if (b->p->ops[i].tensor[k] != ATSI_NONE && !atsi_tensor_is_small(&b->p->tensors[b->p->ops[i].tensor[k]]))
                return ATSI_CPU;
    return reader_side(b, i_unit);
}

// How the slots of a unit's experts are divided token by token; NULL: they are not.
static const struct atsi_slot_division *division_of(const struct builder *b, uint32_t i_unit) {
    const struct atsi_unit *u = &b->p->units[i_unit];
    if (!b->out->divisions || u->kind != ATSI_UNIT_EXPERTS) return NULL;
    const struct atsi_slot_division *d = &b->out->divisions[u->router_unit];
    return d->n_used > 0 && b->sides[u->router_unit] == ATSI_GPU ? d : NULL;
}

// There is a place for the experts of one operation, until it has run.
static bool is_fetch_place_taken(const struct builder *b) {
    for (uint32_t u = b->i_unit + 1; u < b->p->n_units; u++)
        if (b->fetched[u]) return true;
    return false;
}

// The last products behind the router that runs on the GPU with all slots: what they read over the link is brought as soon as the
// router is known, before anything else is computed.
static void fetch_last_products(struct builder *b) {
    const struct atsi_slot_division *d = division_of(b, b->i_unit);
    int32_t router_unit = b->p->units[b->i_unit].router_unit;
    if (!d || !d->last_on_gpu || !b->params->can_fetch || is_fetch_place_taken(b)) return;
    for (uint32_t u = b->i_unit + 1; u < b->p->n_units; u++) {
        const struct atsi_unit *unit = &b->p->units[u];
        bool moved = b->sides[u] != b->params->backends[u];
        if (unit->router_unit != router_unit || unit->kind != ATSI_UNIT_EXPERTS || !moved) continue;
        const struct atsi_op *op = atsi_unit_find_op(b->p, unit, ATSI_OP_EXPERTS);
        if (!op->u.experts.in_per_slot) continue;
        struct atsi_step s = {.op = (uint32_t)(op - b->p->ops), .backend = ATSI_GPU, .end = out_columns(op)};
        s.promoted = s.fetches = b->fetched[u] = true;
        fetch(b, read_part(b->p, &s, 1), ATSI_GPU);
        add_step(b, s);
        return;
    }
}

// What both sides do of one or more shared units.
struct shared_steps {
    struct atsi_step gpu[MAX_JOINED_OPS], cpu[MAX_JOINED_OPS];
    bool both[MAX_JOINED_OPS]; // runs whole on both sides
    uint32_t n;
};

static void add_shared(const struct builder *b, const struct sharing *s, uint32_t columns, struct shared_steps *steps) {
    bool by_token = b->router_op != ATSI_NONE;
    for (uint32_t i = s->first; i < s->end_divided; i++) {
        uint32_t width = out_columns(&b->p->ops[i]), n = steps->n++;
        bool divided = i >= s->first_divided, in_columns = divided && !by_token;
        steps->both[n] = !divided;
        steps->gpu[n] = (struct atsi_step){
            i, ATSI_GPU, 0, in_columns ? columns : width, .promoted = true, .by_token = divided && by_token};
        steps->cpu[n] =
            (struct atsi_step){i, ATSI_CPU, in_columns ? columns : 0, width, .by_token = divided && by_token};
    }
}

// Copies what both parts lack before either runs, so that whoever waits for a copy does not wait for the other side's part as
// well. Returns whether the CPU's part reads any of it.
static bool fetch_for_both(struct builder *b, const struct shared_steps *steps) {
    bool own[ATSI_MAX_BUFFERS] = {false}, arrives = false;
    for (uint32_t i = 0; i < steps->n; i++) {
        const struct atsi_op *op = &b->p->ops[steps->cpu[i].op];
        arrives |= fetch_reads(b, &steps->cpu[i], own);
        fetch_reads(b, &steps->gpu[i], own);
        if (steps->both[i]) {
            note_writes(b, &steps->cpu[i], true);
            note_writes(b, &steps->gpu[i], true);
        } else {
            own[op->out[0].buffer] = true;
        }
    }
    return arrives;
}

static bool any_must_wait(const struct builder *b, const struct atsi_step *steps, uint32_t n) {
    bool blocked = false;
    for (uint32_t i = 0; i < n; i++) blocked |= must_wait(b, &steps[i]);
    return blocked;
}

static void emit_steps(struct builder *b, const struct shared_steps *steps) {
    bool waits = fetch_for_both(b, steps) || any_must_wait(b, steps->cpu, steps->n);
    uint32_t n_pending = b->n_pending;
    if (waits) record(b);
    fetch_last_products(b);
    for (uint32_t i = 0; i < steps->n; i++) emit_gpu(b, &steps->gpu[i], steps->both[i]);
    if (waits) wait_for_record(b, n_pending);
    if (any_must_wait(b, steps->cpu, steps->n)) { // something that only the GPU's part turned out to lack
        record(b);
        wait_for_record(b, b->n_pending);
    }
    for (uint32_t i = 0; i < steps->n; i++) {
        note_writes(b, &steps->cpu[i], steps->both[i]);
        add_step(b, steps->cpu[i]);
    }
}

// Whether an operation finds in `buffer`, of which each side has its part, the part that it reads.
static bool reads_own_part(const struct atsi_op *op, int32_t buffer) {
    for (int i = 0; i < n_reads(op); i++) {
        bool by_slot = op->kind == ATSI_OP_EXPERTS && (i == 1 || op->u.experts.in_per_slot);
        if (op->in[i].buffer == buffer && !by_slot && !is_elementwise(op)) return false;
    }
    return true;
}

static uint32_t slots_of(const struct builder *b, uint32_t i_unit, const struct sharing *s) {
    const struct atsi_op *op = &b->p->ops[s->first_divided];
    return b->columns[i_unit] / (out_columns(op) / op->u.experts.n_used);
}

// Whether shared experts go with the shared ones before them, so that each side does all of its part in one go: the same slots of the same
// router, and nothing stands between them.
static bool joins(const struct builder *b, uint32_t i_unit, const struct sharing *before,
                  const struct shared_steps *steps, struct sharing *s) {
    const struct atsi_unit *u = &b->p->units[i_unit];
    if (i_unit >= b->p->n_units || u->kind != ATSI_UNIT_EXPERTS || u[-1].kind != ATSI_UNIT_EXPERTS) return false;
    if (u->router_unit != u[-1].router_unit || b->columns[i_unit] == 0) return false;
    if (!can_share(b->p, i_unit, s) || s->first_divided > s->first || before->end_divided < before->end) return false;
    if (slots_of(b, i_unit, s) != slots_of(b, i_unit - 1, before)) return false;
    if (steps->n + s->end_divided - s->first > MAX_JOINED_OPS) return false;
    for (uint32_t i = s->first; i < s->end_divided; i++)
        for (uint32_t k = 0; k < steps->n; k++)
            if (!reads_own_part(&b->p->ops[i], b->p->ops[steps->cpu[k].op].out[0].buffer)) return false;
    return true;
}

// Returns how many units were shared as one.
static uint32_t emit_shared(struct builder *b, uint32_t i_unit, struct sharing s) {
    struct shared_steps steps = {.n = 0};
    struct sharing next;
    uint32_t n = 1;
    add_shared(b, &s, b->columns[i_unit], &steps);
    for (; joins(b, i_unit + n, &s, &steps, &next); n++) {
        s = next;
        add_shared(b, &s, b->columns[i_unit + n], &steps);
    }
    emit_steps(b, &steps);
    b->i_unit = i_unit + n - 1;
    enum atsi_backend after = side_after(b, b->i_unit, &s);
    for (uint32_t i = s.end_divided; i < s.end; i++) emit_whole(b, i, after, after == ATSI_GPU);
    return n;
}

// ---- units --------------------------------------------------------------------------------------------------------

// Whether the GPU has all slots of a divided unit.
static bool is_all_on_gpu(const struct atsi_slot_division *d, const struct atsi_op *op) {
    return d->gpu_slots[0] == d->n_used || (d->last_on_gpu && op->u.experts.in_per_slot);
}

// Where each unit runs, and what of it on the GPU where it is shared: all of it is not shared.
static void divide_units(struct builder *b) {
    for (uint32_t u = 0; u < b->p->n_units; u++) {
        struct sharing s;
        float share = b->params->gpu_share ? b->params->gpu_share[u] : 0;
        b->sides[u] = b->params->backends[u];
        if (!(share > 0) || b->sides[u] == ATSI_GPU || !can_share(b->p, u, &s)) continue;
        const struct atsi_op *op = &b->p->ops[s.first_divided];
        const struct atsi_slot_division *d = division_of(b, u);
        uint32_t columns = d ? out_columns(op) : gpu_columns(op, share);
        if (d ? is_all_on_gpu(d, op) : columns == out_columns(op))
            b->sides[u] = ATSI_GPU;
        else
            b->columns[u] = columns;
    }
}

static void emit_whole_unit(struct builder *b, uint32_t i_unit) {
    const struct atsi_unit *u = &b->p->units[i_unit];
    enum atsi_backend backend = b->sides[i_unit];
    bool moved = backend != b->params->backends[i_unit];
    bool promoted = moved || (backend == ATSI_GPU && b->params->promoted && b->params->promoted[i_unit]);
    bool prefetched = promoted && !moved && b->params->prefetched && b->params->prefetched[i_unit];
    if (prefetched) act(b, (struct atsi_action){.kind = ATSI_ACTION_AWAIT});
    for (uint32_t i = u->first_op; i < u->first_op + u->n_ops; i++) {
        if (b->p->ops[i].kind == ATSI_OP_SELECT && b->out->tail == UINT32_MAX) b->out->tail = b->out->n_actions;
        emit_whole(b, i, backend, promoted);
    }
    if (prefetched) act(b, (struct atsi_action){.kind = ATSI_ACTION_CONSUMED});
}

// Returns how many units it was.
static uint32_t emit_unit(struct builder *b, uint32_t i_unit) {
    struct sharing s;
    b->i_unit = i_unit;
    b->router_op = ATSI_NONE;
    if (division_of(b, i_unit)) {
        const struct atsi_unit *router = &b->p->units[b->p->units[i_unit].router_unit];
        b->router_op = (int32_t)(atsi_unit_find_op(b->p, router, ATSI_OP_ROUTER) - b->p->ops);
    }
    if (b->columns[i_unit] > 0 && can_share(b->p, i_unit, &s)) return emit_shared(b, i_unit, s);
    emit_whole_unit(b, i_unit);
    return 1;
}

static void build(struct builder *b) {
    b->out->tail = UINT32_MAX;
    for (uint32_t i = 0; i < b->p->n_buffers; i++) {
        atsi_ranges_init(&b->ranges[i], b->p->buffers[i].width);
        b->divided_by[i] = ATSI_NONE;
    }
    divide_units(b);
    for (uint32_t u = 0; u < b->p->n_units && !b->failed;) u += emit_unit(b, u);
    if (fetch(b, (struct part){(uint32_t)b->p->logits, 0, b->p->n_vocab}, ATSI_CPU)) {
        record(b);
        wait_for_record(b, b->n_pending);
    }
}

static bool copy_divisions(struct builder *b) {
    size_t bytes = b->p->n_units * sizeof *b->out->divisions;
    if (!b->params->divisions) return true;
    b->out->divisions = malloc(bytes);
    if (b->out->divisions) memcpy(b->out->divisions, b->params->divisions, bytes);
    return b->out->divisions != NULL;
}

enum atsi_status atsi_script_build(const struct atsi_script_params *params, struct atsi_script *out,
                                   struct atsi_error *err) {
    memset(out, 0, sizeof *out);
    struct builder b = {.p = params->program, .params = params, .out = out};
    b.ranges = calloc(b.p->n_buffers, sizeof *b.ranges);
    b.sides = calloc(b.p->n_units, sizeof *b.sides);
    b.columns = calloc(b.p->n_units, sizeof *b.columns);
    b.divided_by = calloc(b.p->n_buffers, sizeof *b.divided_by);
    b.fetched = calloc(b.p->n_units, sizeof *b.fetched);
    b.failed = !b.ranges || !b.sides || !b.columns || !b.divided_by || !b.fetched || !copy_divisions(&b);
    if (!b.failed) build(&b);
    bool overflowed = false;
    for (uint32_t i = 0; b.ranges && i < b.p->n_buffers; i++) overflowed |= b.ranges[i].overflowed;
    free(b.ranges);
    free(b.sides);
    free(b.columns);
    free(b.divided_by);
    free(b.fetched);
    free(b.pending);
    if (overflowed) return atsi_fail(err, ATSI_FAILED, "a buffer is divided in more parts than a round can follow");
    return b.failed ? atsi_fail(err, ATSI_FAILED, "out of memory while building a round") : ATSI_OK;
}

void atsi_script_free(struct atsi_script *s) {
    free(s->steps);
    free(s->actions);
    free(s->divisions);
    memset(s, 0, sizeof *s);
}
