// plan_json.c: the manifest <-> struct atsi_plan.
#include <stdlib.h>
#include <string.h>

#include "formats/plan.h"
#include "formats/plan_experts.h"
#include "formats/plan_tables.h"

// ---- writing ------------------------------------------------------------------------------------------------------
// Every helper returns false only when memory runs out; cJSON owns whatever was attached so far.

static bool attach(cJSON *parent, const char *name, cJSON *child) {
    if (!child) return false;
    if (name ? cJSON_AddItemToObject(parent, name, child) : cJSON_AddItemToArray(parent, child)) return true;
    cJSON_Delete(child);
    return false;
}

static bool write_record(cJSON *parent, const char *name, const struct atsi_field *fields, size_t n,
                         const void *record) {
    cJSON *object = cJSON_CreateObject();
    if (!object) return false;
    if (!atsi_fields_write(object, fields, n, record)) {
        cJSON_Delete(object);
        return false;
    }
    return attach(parent, name, object);
}

static bool write_records(cJSON *parent, const char *name, const struct atsi_field *fields, size_t n_fields,
                          const void *records, size_t record_size, uint32_t n_records) {
    cJSON *array = cJSON_AddArrayToObject(parent, name);
    for (uint32_t i = 0; array && i < n_records; i++)
        if (!write_record(array, NULL, fields, n_fields, (const char *)records + i * record_size)) return false;
    return array != NULL;
}

static bool write_numbers(cJSON *parent, const char *name, const double *values, int n) {
    return attach(parent, name, cJSON_CreateDoubleArray(values, n));
}

static bool write_tensors(cJSON *parent, const struct atsi_program *p) {
    cJSON *array = cJSON_AddArrayToObject(parent, "tensors");
    for (uint32_t i = 0; array && i < p->n_tensors; i++) {
        const struct atsi_tensor *t = &p->tensors[i];
        double ne[4] = {(double)t->ne[0], (double)t->ne[1], (double)t->ne[2], (double)t->ne[3]};
        cJSON *object = cJSON_CreateObject();
        if (!object || !attach(array, NULL, object)) return false;
        if (!atsi_fields_write(object, tensor_fields, COUNT_OF(tensor_fields), t) ||
            !write_numbers(object, "ne", ne, 4))
            return false;
    }
    return array != NULL;
}

// Views are [buffer, offset, width] triples; only those that stand are written.
static bool write_views(cJSON *op, const char *name, const struct atsi_view *views, int cap) {
    cJSON *array = cJSON_AddArrayToObject(op, name);
    for (int i = 0; array && i < cap && views[i].buffer != ATSI_NONE; i++) {
        double triple[3] = {views[i].buffer, views[i].offset, views[i].width};
        if (!write_numbers(array, NULL, triple, 3)) return false;
    }
    return array != NULL;
}

static bool write_op(cJSON *array, const struct atsi_op *op) {
    double tensors[ATSI_OP_MAX_TENSORS];
    for (int i = 0; i < ATSI_OP_MAX_TENSORS; i++) tensors[i] = op->tensor[i];
    cJSON *object = cJSON_CreateObject();
    if (!object || !attach(array, NULL, object)) return false;
    return cJSON_AddStringToObject(object, "kind", atsi_op_name(op->kind)) &&
           cJSON_AddBoolToObject(object, "add", op->add) && write_views(object, "in", op->in, ATSI_OP_MAX_IN) &&
           write_views(object, "out", op->out, ATSI_OP_MAX_OUT) &&
           write_numbers(object, "tensor", tensors, ATSI_OP_MAX_TENSORS) &&
           cJSON_AddNumberToObject(object, "state", op->state) &&
           atsi_fields_write(object, op_params[op->kind].fields, op_params[op->kind].n_fields, op);
}

static bool write_program(cJSON *root, const struct atsi_program *p) {
    cJSON *object = cJSON_AddObjectToObject(root, "program");
    if (!object || !write_tensors(object, p)) return false;
    cJSON *ops = cJSON_AddArrayToObject(object, "ops");
    for (uint32_t i = 0; ops && i < p->n_ops; i++)
        if (!write_op(ops, &p->ops[i])) return false;
    return ops &&
           write_records(object, "buffers", buffer_fields, COUNT_OF(buffer_fields), p->buffers, sizeof *p->buffers,
                         p->n_buffers) &&
           write_records(object, "states", state_fields, COUNT_OF(state_fields), p->states, sizeof *p->states,
                         p->n_states) &&
           write_records(object, "units", unit_fields, COUNT_OF(unit_fields), p->units, sizeof *p->units, p->n_units) &&
           cJSON_AddNumberToObject(object, "logits", p->logits) &&
           cJSON_AddNumberToObject(object, "n_vocab", p->n_vocab);
}

static bool write_times(cJSON *root, const char *name, const struct atsi_unit_times *times, uint32_t n) {
    return !times || write_records(root, name, times_fields, COUNT_OF(times_fields), times, sizeof *times, n);
}

// Plans for profiles that do not say what parts of operations take have none of it.
static bool write_fixed(cJSON *root, const struct atsi_plan *plan) {
    const struct atsi_unit_times *t = plan->decode_times;
    bool known = plan->cpu_start_us > 0;
    for (uint32_t i = 0; t && i < plan->program.n_units; i++) known |= t[i].cpu_fixed_us > 0 || t[i].gpu_fixed_us > 0;
    return !t || !known ||
           (atsi_fields_write(root, start_fields, COUNT_OF(start_fields), plan) &&
            write_records(root, "decode_fixed", fixed_fields, COUNT_OF(fixed_fields), t, sizeof *t,
                          plan->program.n_units));
}

static bool write_text(cJSON *root, const char *name, const char *text) {
    return !text || cJSON_AddStringToObject(root, name, text);
}

// Plans for the CPU alone have none.
static bool write_contention(cJSON *root, const struct atsi_contention *c) {
    bool known = c->cpu_beside_link > 0;
    return !known || write_record(root, "contention", contention_fields, COUNT_OF(contention_fields), c);
}

static bool write_execution(cJSON *root, const struct atsi_plan *plan) {
    return write_record(root, "limits", limits_fields, COUNT_OF(limits_fields), &plan->limits) &&
           write_contention(root, &plan->contention) &&
           write_record(root, "certificate", certificate_fields, COUNT_OF(certificate_fields), &plan->certificate) &&
           write_program(root, &plan->program) &&
           write_times(root, "decode_times", plan->decode_times, plan->program.n_units) &&
           write_times(root, "prefill_times", plan->prefill_times, plan->program.n_units) && write_fixed(root, plan) &&
           atsi_plan_experts_write(root, plan);
}

static bool write_plan(cJSON *root, const struct atsi_plan *plan) {
    return cJSON_AddNumberToObject(root, "version", ATSI_PLAN_MANIFEST_VERSION) &&
           write_record(root, "model", model_fields, COUNT_OF(model_fields), &plan->model) &&
           atsi_fields_write(root, plan_fields, COUNT_OF(plan_fields), plan) &&
           (plan->vocab_only || write_execution(root, plan)) &&
           write_text(root, "chat_template", plan->chat_template) && write_text(root, "notes", plan->notes);
}

enum atsi_status atsi_plan_to_json(const struct atsi_plan *plan, char **json, size_t *size, struct atsi_error *err) {
    cJSON *root = cJSON_CreateObject();
    *json = NULL;
    if (root && write_plan(root, plan)) *json = cJSON_PrintUnformatted(root);
    cJSON_Delete(root);
    if (!*json) return atsi_fail(err, ATSI_FAILED, "out of memory while writing the manifest");
    *size = strlen(*json);
    return ATSI_OK;
}

// ---- reading ------------------------------------------------------------------------------------------------------

static enum atsi_status missing(const char *where, const char *name, struct atsi_error *err) {
    return atsi_fail(err, ATSI_BAD_INPUT, "manifest: %s: field \"%s\" is missing or has a bad value", where, name);
}

static enum atsi_status read_object(const cJSON *root, const char *name, const struct atsi_field *fields, size_t n,
                                    void *record, struct atsi_error *err) {
    const cJSON *object = cJSON_GetObjectItemCaseSensitive(root, name);
    if (!cJSON_IsObject(object)) return missing("plan", name, err);
    return atsi_fields_read(object, fields, n, record, name, err);
}

// Reads `n` whole numbers of any sign below 2^53 from an array of exactly n.
static bool read_numbers(const cJSON *array, double *out, int n) {
    const cJSON *item;
    int i = 0;
    if (!cJSON_IsArray(array)) return false;
    cJSON_ArrayForEach(item, array) {
        if (i == n || !cJSON_IsNumber(item) || !(item->valuedouble > -0x1p53 && item->valuedouble < 0x1p53))
            return false;
        if (item->valuedouble != (double)(int64_t)item->valuedouble) return false;
        out[i++] = item->valuedouble;
    }
    return i == n;
}

// Allocates the records of an array; *array_out is the JSON to iterate.
static enum atsi_status begin_records(const cJSON *root, const char *name, uint32_t limit, size_t record_size,
                                      void **records, const cJSON **array_out, struct atsi_error *err) {
    const cJSON *array = cJSON_GetObjectItemCaseSensitive(root, name);
    if (!cJSON_IsArray(array)) return missing("plan", name, err);
    int n = cJSON_GetArraySize(array);
    if ((uint32_t)n > limit) return atsi_fail(err, ATSI_BAD_INPUT, "manifest: %d %s, at most %u", n, name, limit);
    // A power of two, so that the program's builders may append later.
    size_t cap = 1;
    while (cap < (size_t)n) cap *= 2;
    *records = calloc(cap, record_size);
    *array_out = array;
    return *records ? ATSI_OK : atsi_fail(err, ATSI_FAILED, "out of memory while reading the manifest");
}

static enum atsi_status read_records(const cJSON *root, const char *name, uint32_t limit,
                                     const struct atsi_field *fields, size_t n_fields, size_t record_size,
                                     void **records, uint32_t *n_records, struct atsi_error *err) {
    const cJSON *array, *item;
    ATSI_TRY(begin_records(root, name, limit, record_size, records, &array, err));
    cJSON_ArrayForEach(item, array) {
        ATSI_TRY(atsi_fields_read(item, fields, n_fields, (char *)*records + *n_records * record_size, name, err));
        ++*n_records;
    }
    return ATSI_OK;
}

static enum atsi_status read_tensors(const cJSON *root, struct atsi_program *p, struct atsi_error *err) {
    const cJSON *array, *item;
    ATSI_TRY(begin_records(root, "tensors", ATSI_MAX_TENSORS, sizeof *p->tensors, (void **)&p->tensors, &array, err));
    cJSON_ArrayForEach(item, array) {
        struct atsi_tensor *t = &p->tensors[p->n_tensors++];
        double ne[4];
        ATSI_TRY(atsi_fields_read(item, tensor_fields, COUNT_OF(tensor_fields), t, "tensors", err));
        if (!read_numbers(cJSON_GetObjectItemCaseSensitive(item, "ne"), ne, 4)) return missing(t->name, "ne", err);
        for (int i = 0; i < 4; i++) {
            if (ne[i] < 1) return missing(t->name, "ne", err);
            t->ne[i] = (uint64_t)ne[i];
        }
    }
    return ATSI_OK;
}

static bool read_views(const cJSON *array, struct atsi_view *views, int cap) {
    const cJSON *item;
    int n = 0;
    for (int i = 0; i < cap; i++) views[i].buffer = ATSI_NONE;
    if (!cJSON_IsArray(array)) return false;
    cJSON_ArrayForEach(item, array) {
        double triple[3];
        if (n == cap || !read_numbers(item, triple, 3)) return false;
        for (int i = 0; i < 3; i++)
            if (triple[i] < 0 || triple[i] > INT32_MAX) return false;
        views[n++] = (struct atsi_view){(int32_t)triple[0], (uint32_t)triple[1], (uint32_t)triple[2]};
    }
    return true;
}

static int find_kind(const cJSON *item) {
    if (cJSON_IsString(item))
        for (int i = 0; i < ATSI_OP_KIND_LIMIT; i++)
            if (!strcmp(item->valuestring, atsi_op_name((enum atsi_op_kind)i))) return i;
    return -1;
}

static enum atsi_status read_op(const cJSON *object, struct atsi_op *op, struct atsi_error *err) {
    int kind = find_kind(cJSON_GetObjectItemCaseSensitive(object, "kind"));
    const cJSON *add = cJSON_GetObjectItemCaseSensitive(object, "add");
    double tensors[ATSI_OP_MAX_TENSORS];
    static const struct atsi_field state_field = ATSI_FIELD(I32, atsi_op, state);
    if (kind < 0) return missing("ops", "kind", err);
    op->kind = (enum atsi_op_kind)kind;
    if (!cJSON_IsBool(add)) return missing(atsi_op_name(op->kind), "add", err);
    op->add = cJSON_IsTrue(add);
    if (!read_views(cJSON_GetObjectItemCaseSensitive(object, "in"), op->in, ATSI_OP_MAX_IN))
        return missing(atsi_op_name(op->kind), "in", err);
    if (!read_views(cJSON_GetObjectItemCaseSensitive(object, "out"), op->out, ATSI_OP_MAX_OUT))
        return missing(atsi_op_name(op->kind), "out", err);
    if (!read_numbers(cJSON_GetObjectItemCaseSensitive(object, "tensor"), tensors, ATSI_OP_MAX_TENSORS))
        return missing(atsi_op_name(op->kind), "tensor", err);
    for (int i = 0; i < ATSI_OP_MAX_TENSORS; i++) {
        if (tensors[i] < ATSI_NONE || tensors[i] >= ATSI_MAX_TENSORS)
            return missing(atsi_op_name(op->kind), "tensor", err);
        op->tensor[i] = (int32_t)tensors[i];
    }
    ATSI_TRY(atsi_fields_read(object, &state_field, 1, op, atsi_op_name(op->kind), err));
    return atsi_fields_read(object, op_params[kind].fields, op_params[kind].n_fields, op, atsi_op_name(op->kind), err);
}

static enum atsi_status read_program(const cJSON *root, struct atsi_program *p, struct atsi_error *err) {
    static const struct atsi_field tail[] = {ATSI_FIELD(I32, atsi_program, logits),
                                             ATSI_FIELD(U32, atsi_program, n_vocab)};
    const cJSON *object = cJSON_GetObjectItemCaseSensitive(root, "program"), *array, *item;
    if (!cJSON_IsObject(object)) return missing("plan", "program", err);
    ATSI_TRY(read_tensors(object, p, err));
    ATSI_TRY(read_records(object, "buffers", ATSI_MAX_BUFFERS, buffer_fields, COUNT_OF(buffer_fields),
                          sizeof *p->buffers, (void **)&p->buffers, &p->n_buffers, err));
    ATSI_TRY(read_records(object, "states", ATSI_MAX_STATES, state_fields, COUNT_OF(state_fields), sizeof *p->states,
                          (void **)&p->states, &p->n_states, err));
    ATSI_TRY(read_records(object, "units", ATSI_MAX_UNITS, unit_fields, COUNT_OF(unit_fields), sizeof *p->units,
                          (void **)&p->units, &p->n_units, err));
    ATSI_TRY(begin_records(object, "ops", ATSI_MAX_OPS, sizeof *p->ops, (void **)&p->ops, &array, err));
    cJSON_ArrayForEach(item, array) ATSI_TRY(read_op(item, &p->ops[p->n_ops++], err));
    ATSI_TRY(atsi_fields_read(object, tail, COUNT_OF(tail), p, "program", err));
    return atsi_program_check(p, err);
}

static enum atsi_status read_times(const cJSON *root, const char *name, uint32_t n_units, struct atsi_unit_times **out,
                                   struct atsi_error *err) {
    uint32_t n = 0;
    if (!cJSON_GetObjectItemCaseSensitive(root, name)) return ATSI_OK;
    ATSI_TRY(read_records(root, name, ATSI_MAX_UNITS, times_fields, COUNT_OF(times_fields), sizeof **out, (void **)out,
                          &n, err));
    if (n != n_units) return atsi_fail(err, ATSI_BAD_INPUT, "manifest: %s: %u entries for %u units", name, n, n_units);
    return ATSI_OK;
}

static bool is_part(float fixed_us, float whole_us) { return fixed_us >= 0 && fixed_us <= whole_us; }

// What of the times of decode_times is fixed; plans of earlier versions have none of it.
static enum atsi_status read_fixed(const cJSON *root, struct atsi_plan *plan, struct atsi_error *err) {
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(root, "decode_fixed"), *item;
    uint32_t n = 0;
    if (!list || !plan->decode_times) return ATSI_OK;
    ATSI_TRY(atsi_fields_read(root, start_fields, COUNT_OF(start_fields), plan, "plan", err));
    if (!(plan->cpu_start_us >= 0))
        return atsi_fail(err, ATSI_BAD_INPUT, "manifest: cpu_start_us: %g, must not be negative", plan->cpu_start_us);
    if (cJSON_GetArraySize(list) != (int)plan->program.n_units)
        return atsi_fail(err, ATSI_BAD_INPUT, "manifest: decode_fixed: %d entries for %u units",
                         cJSON_GetArraySize(list), plan->program.n_units);
    cJSON_ArrayForEach(item, list) {
        struct atsi_unit_times *t = &plan->decode_times[n++];
        ATSI_TRY(atsi_fields_read(item, fixed_fields, COUNT_OF(fixed_fields), t, "decode_fixed", err));
        if (!is_part(t->cpu_fixed_us, t->cpu_us) || !is_part(t->gpu_fixed_us, t->gpu_us))
            return atsi_fail(err, ATSI_BAD_INPUT, "manifest: decode_fixed[%u]: more than the unit takes, or negative",
                             n - 1);
    }
    return ATSI_OK;
}

static enum atsi_status read_text(const cJSON *root, const char *name, char **out, struct atsi_error *err) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(root, name);
    if (!item) return ATSI_OK;
    if (!cJSON_IsString(item)) return missing("plan", name, err);
    *out = strdup(item->valuestring);
    return *out ? ATSI_OK : atsi_fail(err, ATSI_FAILED, "out of memory while reading the manifest");
}

static enum atsi_status check_limits(const struct atsi_plan *plan, struct atsi_error *err) {
    const struct atsi_plan_limits *l = &plan->limits;
    if (l->n_ctx == 0 || l->n_ctx > 1u << 30 || l->chunk == 0 || l->chunk > 1u << 16 || l->n_outputs == 0 ||
        l->n_outputs > l->chunk)
        return atsi_fail(err, ATSI_BAD_INPUT, "manifest: limits: context %u, chunk %u or outputs %u out of range",
                         l->n_ctx, l->chunk, l->n_outputs);
    if (l->kv_type != ATSI_F32 && l->kv_type != ATSI_F16 && l->kv_type != ATSI_Q8_0)
        return atsi_fail(err, ATSI_BAD_INPUT, "manifest: limits: KV type %s, must be F32, F16 or Q8_0",
                         atsi_dtype_name(l->kv_type));
    for (uint32_t i = 0; i < plan->program.n_states; i++)
        if (!atsi_state_bytes(&plan->program.states[i], l->n_ctx, l->chunk, l->kv_type))
            return atsi_fail(err, ATSI_BAD_INPUT, "manifest: state %s: its size overflows or does not fit KV type %s",
                             plan->program.states[i].name, atsi_dtype_name(l->kv_type));
    return atsi_program_check_buffers(&plan->program, l->chunk, l->n_outputs, l->compute_bytes, err);
}

static bool is_factor(double x) { return x >= 1 && x <= 100; }

// Neither plans for the CPU alone nor those of earlier versions have any.
static enum atsi_status read_contention(const cJSON *root, struct atsi_contention *out, struct atsi_error *err) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(root, "contention");
    *out = ATSI_CONTENTION_DEFAULT;
    if (!item) return ATSI_OK;
    bool complete = cJSON_GetObjectItemCaseSensitive(item, "link_beside_cpu") != NULL;
    ATSI_TRY(read_object(root, "contention", contention_fields, COUNT_OF(contention_fields) - !complete, out, err));
    if (!complete) out->link_beside_cpu = out->link_in_place;
    if (is_factor(out->cpu_beside_link) && is_factor(out->link_in_place) && is_factor(out->link_beside_cpu))
        return ATSI_OK;
    return atsi_fail(err, ATSI_BAD_INPUT, "manifest: contention: factors %g, %g and %g, must be from 1 to 100",
                     out->cpu_beside_link, out->link_in_place, out->link_beside_cpu);
}

static enum atsi_status read_execution(const cJSON *root, struct atsi_plan *plan, struct atsi_error *err) {
    ATSI_TRY(read_object(root, "limits", limits_fields, COUNT_OF(limits_fields), &plan->limits, err));
    ATSI_TRY(
        read_object(root, "certificate", certificate_fields, COUNT_OF(certificate_fields), &plan->certificate, err));
    ATSI_TRY(read_contention(root, &plan->contention, err));
    ATSI_TRY(read_program(root, &plan->program, err));
    ATSI_TRY(check_limits(plan, err));
    ATSI_TRY(read_times(root, "decode_times", plan->program.n_units, &plan->decode_times, err));
    ATSI_TRY(read_times(root, "prefill_times", plan->program.n_units, &plan->prefill_times, err));
    ATSI_TRY(read_fixed(root, plan, err));
    return atsi_plan_experts_read(root, plan, err);
}

static enum atsi_status read_plan(const cJSON *root, struct atsi_plan *plan, struct atsi_error *err) {
    const cJSON *version = cJSON_GetObjectItemCaseSensitive(root, "version");
    if (!cJSON_IsNumber(version)) return missing("plan", "version", err);
    if (version->valuedouble != ATSI_PLAN_MANIFEST_VERSION)
        return atsi_fail(err, ATSI_BAD_INPUT, "manifest: version %g, this program reads %d: plan the model again",
                         version->valuedouble, ATSI_PLAN_MANIFEST_VERSION);
    ATSI_TRY(read_object(root, "model", model_fields, COUNT_OF(model_fields), &plan->model, err));
    ATSI_TRY(atsi_fields_read(root, plan_fields, COUNT_OF(plan_fields), plan, "plan", err));
    if (!plan->vocab_only) ATSI_TRY(read_execution(root, plan, err));
    ATSI_TRY(read_text(root, "chat_template", &plan->chat_template, err));
    return read_text(root, "notes", &plan->notes, err);
}

enum atsi_status atsi_plan_from_json(const char *json, size_t size, struct atsi_plan *plan, struct atsi_error *err) {
    memset(plan, 0, sizeof *plan);
    cJSON *root = cJSON_ParseWithLength(json, size);
    if (!cJSON_IsObject(root)) {
        cJSON_Delete(root);
        return atsi_fail(err, ATSI_BAD_INPUT, "manifest: no JSON object");
    }
    enum atsi_status status = read_plan(root, plan, err);
    cJSON_Delete(root);
    return status;
}

void atsi_plan_free(struct atsi_plan *plan) {
    if (!plan) return;
    atsi_plan_drop_resident_experts(plan); // before the program, which says how many there may be
    atsi_program_free(&plan->program);
    free(plan->decode_times);
    free(plan->prefill_times);
    free(plan->chat_template);
    free(plan->notes);
    memset(plan, 0, sizeof *plan);
}
