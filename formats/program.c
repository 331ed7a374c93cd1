#include "formats/program.h"

#include <stdlib.h>
#include <string.h>

#include "formats/base/checked.h"

static const char *const op_names[ATSI_OP_KIND_LIMIT] = {
    [ATSI_OP_EMBED] = "embed",
    [ATSI_OP_RMS_NORM] = "rms_norm",
    [ATSI_OP_MATMUL] = "matmul",
    [ATSI_OP_ROPE] = "rope",
    [ATSI_OP_ATTENTION] = "attention",
    [ATSI_OP_GLU] = "glu",
    [ATSI_OP_GATE] = "gate",
    [ATSI_OP_ADD] = "add",
    [ATSI_OP_ROUTER] = "router",
    [ATSI_OP_EXPERTS] = "experts",
    [ATSI_OP_EXPERT_SUM] = "expert_sum",
    [ATSI_OP_CONV] = "conv",
    [ATSI_OP_DELTA_RULE] = "delta_rule",
    [ATSI_OP_SELECT] = "select",
};

const char *atsi_op_name(enum atsi_op_kind kind) {
    return (unsigned)kind < ATSI_OP_KIND_LIMIT ? op_names[kind] : "unknown";
}

const char *atsi_layout_name(enum atsi_layout layout) {
    return layout == ATSI_LAYOUT_PLAIN ? "plain" : layout == ATSI_LAYOUT_TILE16 ? "tile16" : "unknown";
}

// ---- builders -----------------------------------------------------------------------------------------------------

// Appends a copy of `item` to an array that grows in powers of two (its capacity follows from the count).
static int32_t append(void **array, uint32_t *count, uint32_t limit, const void *item, size_t size) {
    if (*count >= limit) return ATSI_NONE;
    if ((*count & (*count - 1)) == 0) { // 0, 1, 2, 4, 8 …: full
        void *grown = realloc(*array, (*count ? 2 * (size_t)*count : 1) * size);
        if (!grown) return ATSI_NONE;
        *array = grown;
    }
    memcpy((char *)*array + *count * size, item, size);
    return (int32_t)(*count)++;
}

int32_t atsi_program_add_tensor(struct atsi_program *p, const struct atsi_tensor *tensor) {
    return append((void **)&p->tensors, &p->n_tensors, ATSI_MAX_TENSORS, tensor, sizeof *tensor);
}

int32_t atsi_program_add_buffer(struct atsi_program *p, const char *name, uint32_t width, enum atsi_rows rows,
                                bool is_int) {
    struct atsi_buffer buffer = {.width = width, .rows = rows, .is_int = is_int};
    strncpy(buffer.name, name, sizeof buffer.name - 1);
    return append((void **)&p->buffers, &p->n_buffers, ATSI_MAX_BUFFERS, &buffer, sizeof buffer);
}

int32_t atsi_program_add_state(struct atsi_program *p, const struct atsi_state *state) {
    return append((void **)&p->states, &p->n_states, ATSI_MAX_STATES, state, sizeof *state);
}

int32_t atsi_program_add_op(struct atsi_program *p, const struct atsi_op *op) {
    return append((void **)&p->ops, &p->n_ops, ATSI_MAX_OPS, op, sizeof *op);
}

int32_t atsi_program_add_unit(struct atsi_program *p, const struct atsi_unit *unit) {
    return append((void **)&p->units, &p->n_units, ATSI_MAX_UNITS, unit, sizeof *unit);
}

void atsi_program_free(struct atsi_program *p) {
    if (!p) return;
    free(p->tensors);
    free(p->buffers);
    free(p->states);
    free(p->ops);
    free(p->units);
    memset(p, 0, sizeof *p);
}

const struct atsi_op *atsi_unit_find_op(const struct atsi_program *p, const struct atsi_unit *u,
                                        enum atsi_op_kind kind) {
    for (uint32_t i = u->first_op; i < u->first_op + u->n_ops; i++)
        if (p->ops[i].kind == kind) return &p->ops[i];
    return NULL;
}

uint32_t atsi_unit_count_ops(const struct atsi_program *p, const struct atsi_unit *u, enum atsi_op_kind kind) {
    uint32_t n = 0;
    for (uint32_t i = u->first_op; i < u->first_op + u->n_ops; i++) n += p->ops[i].kind == kind;
    return n;
}

uint32_t atsi_program_unit_of(const struct atsi_program *p, uint32_t i_op) {
    uint32_t low = 0, high = p->n_units - 1;
    while (low < high) {
        uint32_t middle = (low + high + 1) / 2;
        if (p->units[middle].first_op <= i_op)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

// ---- sizes --------------------------------------------------------------------------------------------------------

uint64_t atsi_layout_bytes(enum atsi_dtype dtype, enum atsi_layout layout, const uint64_t ne[4]) {
    uint64_t bytes = atsi_dtype_row_bytes(dtype, ne[0]), rows = ne[1];
    if (!bytes) return 0;
    if (layout == ATSI_LAYOUT_TILE16) {
        if (atsi_dtype_info(dtype)->block_elems < 32 || !atsi_align_u64(rows, 16, &rows)) return 0;
    } else if (layout != ATSI_LAYOUT_PLAIN) {
        return 0;
    }
    if (!atsi_mul_u64(bytes, rows, &bytes) || !atsi_mul_u64(bytes, ne[2], &bytes) ||
        !atsi_mul_u64(bytes, ne[3], &bytes))
        return 0;
    return bytes;
}

uint32_t atsi_state_capacity(const struct atsi_state *s, uint32_t n_ctx, uint32_t chunk) {
    if (s->kind != ATSI_STATE_KV) return 0;
    uint64_t ring = (uint64_t)s->window + chunk;
    return s->window && ring < n_ctx ? (uint32_t)ring : n_ctx;
}

uint64_t atsi_state_bytes(const struct atsi_state *s, uint32_t n_ctx, uint32_t chunk, enum atsi_dtype kv_type) {
    // The factors are at most 2^22 each except the context, so the products are checked once, together.
    uint64_t per_head, bytes;
    if (s->kind == ATSI_STATE_KV) {
        uint64_t k = atsi_dtype_row_bytes(kv_type, s->k_dim), v = atsi_dtype_row_bytes(kv_type, s->v_dim);
        if (!k || !v) return 0;
        per_head = (k + v) * atsi_state_capacity(s, n_ctx, chunk);
    } else {
        per_head = (uint64_t)s->k_dim * s->v_dim * sizeof(float);
    }
    return atsi_mul_u64(per_head, s->n_heads, &bytes) ? bytes : 0;
}
