#include "planner/arch/builder.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/layout.h"
#include "kernels/matmul.h"

void atsi_build_fail(struct atsi_builder *b, enum atsi_status status, const char *format, ...) {
    if (b->status != ATSI_OK) return;
    char text[sizeof b->err->text];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    b->status = atsi_fail(b->err, status, "%s", text);
}

static void fail_memory(struct atsi_builder *b) {
    atsi_build_fail(b, ATSI_FAILED, "out of memory while lowering layer %d", b->layer);
}

// An append to the program failed: it is full, or there is no memory.
static void fail_append(struct atsi_builder *b) {
    const struct atsi_program *p = &b->out->program;
    if (p->n_tensors == ATSI_MAX_TENSORS || p->n_buffers == ATSI_MAX_BUFFERS || p->n_states == ATSI_MAX_STATES ||
        p->n_ops == ATSI_MAX_OPS || p->n_units == ATSI_MAX_UNITS)
        atsi_build_fail(b, ATSI_BAD_INPUT, "key %s.block_count: %u layers of this kind are more than a plan can hold",
                        b->arch, b->hp.n_layers);
    else
        fail_memory(b);
}

// ---- keys of the family -------------------------------------------------------------------------------------------

uint32_t atsi_build_count(struct atsi_builder *b, const char *suffix, uint32_t fallback, uint32_t min, uint32_t max) {
    uint32_t value = fallback;
    if (b->status != ATSI_OK) return fallback;
    if (fallback < min || fallback > max)
        b->status = atsi_hparam_u32(b->gguf, b->arch, suffix, min, max, &value, b->err);
    else
        b->status = atsi_hparam_u32_or(b->gguf, b->arch, suffix, min, max, fallback, &value, b->err);
    return b->status == ATSI_OK ? value : fallback;
}

bool atsi_build_flag(struct atsi_builder *b, const char *suffix, bool fallback) {
    char key[ATSI_HP_KEY_CAP];
    bool value = fallback;
    if (b->status != ATSI_OK) return fallback;
    snprintf(key, sizeof key, "%s.%s", b->arch, suffix);
    b->status = atsi_gguf_bool_or(b->gguf, key, fallback, &value, b->err);
    return b->status == ATSI_OK ? value : fallback;
}

double atsi_build_number(struct atsi_builder *b, const char *suffix, double fallback, double min, double max) {
    double value = fallback;
    if (b->status != ATSI_OK) return fallback;
    b->status = atsi_hparam_f64_or(b->gguf, b->arch, suffix, fallback, &value, b->err);
    if (!(value > min && value <= max))
        atsi_build_fail(b, ATSI_BAD_INPUT, "key %s.%s: expected more than %g and at most %g, found %g", b->arch, suffix,
                        min, max, value);
    return b->status == ATSI_OK ? value : fallback;
}

// ---- tensors ------------------------------------------------------------------------------------------------------

static void tensor_name(const struct atsi_builder *b, const char *suffix, char name[ATSI_NAME_CAP]) {
    if (b->layer == ATSI_NONE)
        snprintf(name, ATSI_NAME_CAP, "%s", suffix);
    else
        snprintf(name, ATSI_NAME_CAP, "blk.%d.%s", b->layer, suffix);
}

const struct atsi_gguf_tensor *atsi_build_source(const struct atsi_builder *b, const char *suffix) {
    char name[ATSI_NAME_CAP];
    tensor_name(b, suffix, name);
    return atsi_gguf_find_tensor(b->gguf, name);
}

bool atsi_build_has(const struct atsi_builder *b, const char *suffix) { return atsi_build_source(b, suffix) != NULL; }

static void note_missing(struct atsi_builder *b, const char *name) {
    size_t length = strlen(b->missing);
    b->n_missing++;
    if (length + strlen(name) + 3 < sizeof b->missing)
        snprintf(b->missing + length, sizeof b->missing - length, "%s%s", length ? ", " : "", name);
}

void atsi_build_require(struct atsi_builder *b, const char *suffix) {
    char name[ATSI_NAME_CAP];
    tensor_name(b, suffix, name);
    if (b->status == ATSI_OK && !atsi_gguf_find_tensor(b->gguf, name)) note_missing(b, name);
}

// Appends a tensor with its recipe, both or none. Takes the recipe's memory.
static int32_t append_tensor(struct atsi_builder *b, const struct atsi_tensor *tensor, struct atsi_recipe recipe) {
    struct atsi_lowered *out = b->out;
    uint32_t n = out->program.n_tensors;
    struct atsi_recipe *grown = realloc(out->recipes, (n + 1) * sizeof *grown);
    if (grown) out->recipes = grown;
    int32_t index = grown && tensor->size_bytes ? atsi_program_add_tensor(&out->program, tensor) : ATSI_NONE;
    if (index == ATSI_NONE) {
        free(recipe.row_order);
        free(recipe.table);
        fail_append(b);
        return ATSI_NONE;
    }
    out->recipes[index] = recipe;
    out->n_recipes = (uint32_t)index + 1;
    return index;
}

static int32_t find_by_source(const struct atsi_builder *b, const struct atsi_gguf_tensor *source) {
    for (uint32_t i = b->out->program.n_tensors; i-- > 0;)
        if (b->out->recipes[i].source == source) return (int32_t)i;
    return ATSI_NONE;
}

static bool shape_fits(struct atsi_builder *b, const char *name, const struct atsi_gguf_tensor *t, uint64_t ne0,
                       uint64_t ne1, uint64_t ne2) {
    if (t->ne[0] == ne0 && t->ne[1] == ne1 && t->ne[2] == ne2 && t->ne[3] == 1) return true;
    atsi_build_fail(b, ATSI_BAD_INPUT, "tensor %s: expected shape [%llu, %llu, %llu], found [%llu, %llu, %llu, %llu]",
                    name, (unsigned long long)ne0, (unsigned long long)ne1, (unsigned long long)ne2,
                    (unsigned long long)t->ne[0], (unsigned long long)t->ne[1], (unsigned long long)t->ne[2],
                    (unsigned long long)t->ne[3]);
    return false;
}

// Finds the source of a tensor; NULL with the reason noted when it cannot be used.
static const struct atsi_gguf_tensor *find_source(struct atsi_builder *b, enum atsi_need need, const char *name,
                                                  uint64_t ne0, uint64_t ne1, uint64_t ne2) {
    if (b->status != ATSI_OK) return NULL;
    const struct atsi_gguf_tensor *t = atsi_gguf_find_tensor(b->gguf, name);
    if (!t) {
        if (need == ATSI_REQUIRED) note_missing(b, name);
        return NULL;
    }
    return shape_fits(b, name, t, ne0, ne1, ne2) ? t : NULL;
}

static int32_t add_weight(struct atsi_builder *b, enum atsi_need need, const char *suffix, uint64_t ne0, uint64_t ne1,
                          uint64_t ne2, uint32_t *row_order) {
    struct atsi_tensor tensor = {.ne = {ne0, ne1, ne2, 1}};
    tensor_name(b, suffix, tensor.name);
    const struct atsi_gguf_tensor *source = find_source(b, need, tensor.name, ne0, ne1, ne2);
    int32_t index = source ? find_by_source(b, source) : ATSI_NONE;
    if (!source || index != ATSI_NONE) {
        free(row_order);
        return index;
    }
    tensor.dtype = source->dtype;
    tensor.layout = atsi_layout_of(source->dtype);
    if (atsi_matmul_input(tensor.dtype) == ATSI_INPUT_UNSUPPORTED) {
        atsi_build_fail(b, ATSI_BAD_INPUT, "tensor %s: no kernel computes with type %s (%d)", tensor.name,
                        atsi_dtype_name(source->dtype), (int)source->dtype);
        free(row_order);
        return ATSI_NONE;
    }
    tensor.size_bytes = atsi_layout_bytes(tensor.dtype, tensor.layout, tensor.ne);
    return append_tensor(b, &tensor, (struct atsi_recipe){.source = source, .row_order = row_order});
}

int32_t atsi_build_weight(struct atsi_builder *b, enum atsi_need need, const char *suffix, uint64_t ne0, uint64_t ne1,
                          uint64_t ne2) {
    return add_weight(b, need, suffix, ne0, ne1, ne2, NULL);
}

int32_t atsi_build_weight_reordered(struct atsi_builder *b, const char *suffix, uint64_t ne0, uint64_t ne1,
                                    uint32_t *row_order) {
    if (!row_order) fail_memory(b);
    return add_weight(b, ATSI_REQUIRED, suffix, ne0, ne1, 1, row_order);
}

int32_t atsi_build_table(struct atsi_builder *b, enum atsi_need need, const char *suffix, uint64_t ne0, uint64_t ne1) {
    struct atsi_tensor tensor = {.dtype = ATSI_F32, .layout = ATSI_LAYOUT_PLAIN, .ne = {ne0, ne1, 1, 1}};
    tensor_name(b, suffix, tensor.name);
    const struct atsi_gguf_tensor *source = find_source(b, need, tensor.name, ne0, ne1, 1);
    if (!source) return ATSI_NONE;
    int32_t index = find_by_source(b, source);
    if (index != ATSI_NONE) return index;
    if (source->dtype != ATSI_F32 && source->dtype != ATSI_F16 && source->dtype != ATSI_BF16) {
        atsi_build_fail(b, ATSI_BAD_INPUT, "tensor %s: expected type F32, F16 or BF16, found %s", tensor.name,
                        atsi_dtype_name(source->dtype));
        return ATSI_NONE;
    }
    tensor.size_bytes = atsi_layout_bytes(tensor.dtype, tensor.layout, tensor.ne);
    return append_tensor(b, &tensor, (struct atsi_recipe){.source = source});
}

int32_t atsi_build_made(struct atsi_builder *b, const char *stem, const float *values, uint32_t n) {
    struct atsi_lowered *out = b->out;
    uint32_t n_made = 0;
    if (b->status != ATSI_OK) return ATSI_NONE;
    for (uint32_t i = 0; i < out->program.n_tensors; i++) {
        if (!out->recipes[i].table) continue;
        n_made++;
        if (out->program.tensors[i].ne[0] == n && memcmp(out->recipes[i].table, values, n * sizeof *values) == 0)
            return (int32_t)i;
    }
    struct atsi_tensor tensor = {.dtype = ATSI_F32, .layout = ATSI_LAYOUT_PLAIN, .ne = {n, 1, 1, 1}};
    snprintf(tensor.name, sizeof tensor.name, "%s.%u", stem, n_made);
    tensor.size_bytes = (uint64_t)n * sizeof *values;
    float *copy = malloc(n * sizeof *copy);
    if (!copy) {
        fail_memory(b);
        return ATSI_NONE;
    }
    memcpy(copy, values, n * sizeof *copy);
    return append_tensor(b, &tensor, (struct atsi_recipe){.table = copy});
}

// ---- buffers and views --------------------------------------------------------------------------------------------

static const struct atsi_view absent = {.buffer = ATSI_NONE};

static struct atsi_view get_buffer(struct atsi_builder *b, const char *name, uint32_t width, enum atsi_rows rows,
                                   bool is_int) {
    struct atsi_program *p = &b->out->program;
    if (b->status != ATSI_OK) return absent;
    if (width == 0 || width > ATSI_MAX_WIDTH) {
        atsi_build_fail(b, ATSI_BAD_INPUT, "buffer %s: a width of %u is out of range (1 to %d)", name, width,
                        ATSI_MAX_WIDTH);
        return absent;
    }
    for (uint32_t i = 0; i < p->n_buffers; i++) {
        if (strcmp(p->buffers[i].name, name) != 0) continue;
        if (p->buffers[i].width < width) p->buffers[i].width = width;
        return (struct atsi_view){.buffer = (int32_t)i, .width = width};
    }
    int32_t index = atsi_program_add_buffer(p, name, width, rows, is_int);
    if (index == ATSI_NONE) fail_append(b);
    return (struct atsi_view){.buffer = index, .width = width};
}

struct atsi_view atsi_build_buffer(struct atsi_builder *b, const char *name, uint32_t width) {
    return get_buffer(b, name, width, ATSI_ROWS_TOKENS, false);
}

struct atsi_view atsi_build_output_buffer(struct atsi_builder *b, const char *name, uint32_t width) {
    return get_buffer(b, name, width, ATSI_ROWS_OUTPUTS, false);
}

struct atsi_view atsi_build_ids_buffer(struct atsi_builder *b, const char *name, uint32_t width) {
    return get_buffer(b, name, width, ATSI_ROWS_TOKENS, true);
}

struct atsi_view atsi_view_part(struct atsi_view v, uint32_t offset, uint32_t width) {
    return (struct atsi_view){.buffer = v.buffer, .offset = v.offset + offset, .width = width};
}

// ---- units and operations -----------------------------------------------------------------------------------------

void atsi_build_unit(struct atsi_builder *b, enum atsi_unit_kind kind, const char *name) {
    struct atsi_unit unit = {
        .kind = kind, .layer = b->layer, .first_op = b->out->program.n_ops, .router_unit = ATSI_NONE};
    if (b->status != ATSI_OK) return;
    tensor_name(b, name, unit.name);
    if (kind == ATSI_UNIT_EXPERTS) unit.router_unit = b->router_unit;
    if (atsi_program_add_unit(&b->out->program, &unit) == ATSI_NONE) fail_append(b);
}

struct atsi_op atsi_op_blank(enum atsi_op_kind kind) {
    struct atsi_op op = {.kind = kind, .state = ATSI_NONE};
    for (int i = 0; i < ATSI_OP_MAX_IN; i++) op.in[i] = absent;
    for (int i = 0; i < ATSI_OP_MAX_OUT; i++) op.out[i] = absent;
    for (int i = 0; i < ATSI_OP_MAX_TENSORS; i++) op.tensor[i] = ATSI_NONE;
    return op;
}

void atsi_build_op(struct atsi_builder *b, const struct atsi_op *op) {
    struct atsi_program *p = &b->out->program;
    if (b->status != ATSI_OK) return;
    if (atsi_program_add_op(p, op) == ATSI_NONE)
        fail_append(b);
    else
        p->units[p->n_units - 1].n_ops++;
}

int32_t atsi_build_state(struct atsi_builder *b, const char *name, struct atsi_state state) {
    if (b->status != ATSI_OK) return ATSI_NONE;
    tensor_name(b, name, state.name);
    int32_t index = atsi_program_add_state(&b->out->program, &state);
    if (index == ATSI_NONE) fail_append(b);
    return index;
}

void atsi_build_norm(struct atsi_builder *b, struct atsi_view in, struct atsi_view out, int32_t weight, uint32_t group,
                     bool add) {
    struct atsi_op op = atsi_op_blank(ATSI_OP_RMS_NORM);
    op.add = add;
    op.in[0] = in;
    op.out[0] = out;
    op.tensor[0] = weight;
    op.u.norm = (struct atsi_norm_params){.group = group, .eps = (float)b->hp.rms_eps};
    atsi_build_op(b, &op);
}

void atsi_build_matmul(struct atsi_builder *b, struct atsi_view in, struct atsi_view out, int32_t weight, int32_t bias,
                       bool add) {
    struct atsi_op op = atsi_op_blank(ATSI_OP_MATMUL);
    op.add = add;
    op.in[0] = in;
    op.out[0] = out;
    op.tensor[0] = weight;
    op.tensor[1] = bias;
    atsi_build_op(b, &op);
}

void atsi_build_glu(struct atsi_builder *b, struct atsi_view gate, struct atsi_view up, struct atsi_view out,
                    struct atsi_glu_params params) {
    struct atsi_op op = atsi_op_blank(ATSI_OP_GLU);
    op.in[0] = gate;
    op.in[1] = up;
    op.out[0] = out;
    op.u.glu = params;
    atsi_build_op(b, &op);
}

void atsi_build_gate(struct atsi_builder *b, struct atsi_view x, struct atsi_view gate) {
    struct atsi_op op = atsi_op_blank(ATSI_OP_GATE);
    op.in[0] = x;
    op.in[1] = gate;
    op.out[0] = x;
    atsi_build_op(b, &op);
}
