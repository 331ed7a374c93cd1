#include "runtime/splits.h"

#include <stdlib.h>
#include <string.h>

struct builder {
    const struct atsi_program *p;
    struct atsi_splits *out;
    bool (*valid)[2]; // [n_buffers][backend]: where the newest rows of a buffer stand
};

static void require_on(struct builder *b, struct atsi_split *split, int32_t buffer) {
    bool *valid = b->valid[buffer];
    if (valid[split->backend] || !valid[!split->backend]) return; // here already, or written nowhere yet
    b->out->crossings[b->out->n_crossings++] = (struct atsi_crossing){(uint32_t)buffer};
    split->n_crossings++;
    valid[split->backend] = true;
}

// What an op reads must stand on its side; so must a buffer that it writes only in part or adds to.
static void visit_op(struct builder *b, struct atsi_split *split, const struct atsi_op *op) {
    for (int i = 0; i < ATSI_OP_MAX_IN && op->in[i].buffer != ATSI_NONE; i++) require_on(b, split, op->in[i].buffer);
    for (int i = 0; i < ATSI_OP_MAX_OUT && op->out[i].buffer != ATSI_NONE; i++) {
        const struct atsi_view *v = &op->out[i];
        if (op->add || v->width < b->p->buffers[v->buffer].width) require_on(b, split, v->buffer);
    }
    for (int i = 0; i < ATSI_OP_MAX_OUT && op->out[i].buffer != ATSI_NONE; i++) {
        b->valid[op->out[i].buffer][split->backend] = true;
        b->valid[op->out[i].buffer][!split->backend] = false;
    }
}

static struct atsi_split *begin_split(struct builder *b, enum atsi_backend backend, uint32_t first_op, bool tail, bool promoted) {
    struct atsi_split *split = &b->out->splits[b->out->n_splits++];
    *split = (struct atsi_split){.backend = backend, .first_op = first_op, .first_crossing = b->out->n_crossings, .tail = tail,
                                 .promoted = promoted};
    return split;
}

static void build(struct builder *b, const enum atsi_backend *backends, const bool *promoted) {
    const struct atsi_program *p = b->p;
    struct atsi_split *split = NULL;
    bool tail = false;
    for (uint32_t u = 0; u < p->n_units; u++) {
        bool alone = promoted && promoted[u]; // a split of its own: it waits for its weights, and its end frees their space
        if (alone || (split && split->promoted)) split = NULL;
        for (uint32_t i = p->units[u].first_op; i < p->units[u].first_op + p->units[u].n_ops; i++) {
            bool enters_tail = !tail && p->ops[i].kind == ATSI_OP_SELECT;
            tail |= enters_tail;
            if (!split || split->backend != backends[u] || enters_tail) split = begin_split(b, backends[u], i, tail, alone);
            visit_op(b, split, &p->ops[i]);
            split->n_ops++;
        }
    }
    if (!b->valid[p->logits][ATSI_CPU]) require_on(b, begin_split(b, ATSI_CPU, p->n_ops, true, false), p->logits);
}

enum atsi_status atsi_splits_build(const struct atsi_program *p, const enum atsi_backend *backends, const bool *promoted,
                                   struct atsi_splits *out, struct atsi_error *err) {
    // At most one split an op and the last; each op can ask for each of its operands once.
    size_t max_crossings = (size_t)p->n_ops * (ATSI_OP_MAX_IN + ATSI_OP_MAX_OUT) + 1;
    memset(out, 0, sizeof *out);
    struct builder b = {.p = p, .out = out, .valid = calloc(p->n_buffers, sizeof *b.valid)};
    out->splits = calloc((size_t)p->n_ops + 1, sizeof *out->splits);
    out->crossings = calloc(max_crossings, sizeof *out->crossings);
    if (b.valid && out->splits && out->crossings) build(&b, backends, promoted);
    bool complete = b.valid && out->splits && out->crossings;
    free(b.valid);
    return complete ? ATSI_OK : atsi_fail(err, ATSI_FAILED, "out of memory while building splits");
}

void atsi_splits_free(struct atsi_splits *s) {
    free(s->splits);
    free(s->crossings);
    memset(s, 0, sizeof *s);
}
