#include "formats/plan_experts.h"

#include <stdlib.h>

static const char MEMBER[] = "resident_experts";

const struct atsi_op *atsi_unit_experts_op(const struct atsi_program *p, const struct atsi_unit *u) {
    return atsi_unit_find_op(p, u, ATSI_OP_EXPERTS);
}

const struct atsi_resident_experts *atsi_plan_resident_experts(const struct atsi_plan *plan, uint32_t i_unit) {
    const struct atsi_unit *u = &plan->program.units[i_unit];
    if (!plan->resident_experts || u->router_unit == ATSI_NONE || u->backend == ATSI_GPU) return NULL;
    const struct atsi_resident_experts *r = &plan->resident_experts[u->router_unit];
    return r->n > 0 && atsi_unit_experts_op(&plan->program, u) ? r : NULL;
}

uint64_t atsi_router_table_bytes(uint32_t n_experts, uint32_t n_used) {
    return atsi_aligned(((uint64_t)n_experts + n_used) * sizeof(int32_t));
}

uint64_t atsi_slots_bytes(const struct atsi_program *p, const struct atsi_op *op) {
    const struct atsi_experts_params *e = &op->u.experts;
    return p->tensors[op->tensor[0]].size_bytes / e->n_experts * e->n_used;
}

// Experts of the router that a unit holds, 0 when it holds none.
static uint32_t n_experts_of(const struct atsi_program *p, const struct atsi_unit *u) {
    const struct atsi_op *router = atsi_unit_find_op(p, u, ATSI_OP_ROUTER);
    return router ? router->u.router.n_experts : 0;
}

struct atsi_resident_experts_sum atsi_plan_sum_resident_experts(const struct atsi_plan *plan) {
    struct atsi_resident_experts_sum sum = {0};
    uint32_t n_routers = 0;
    for (uint32_t u = 0; plan->resident_experts && u < plan->program.n_units; u++) {
        const struct atsi_resident_experts *r = &plan->resident_experts[u];
        if (r->n == 0) continue;
        sum.n += r->n;
        sum.n_of += n_experts_of(&plan->program, &plan->program.units[u]);
        sum.n_least = n_routers == 0 || r->n < sum.n_least ? r->n : sum.n_least;
        sum.n_most = r->n > sum.n_most ? r->n : sum.n_most;
        sum.hit_rate += r->hit_rate;
        n_routers++;
    }
    if (n_routers) sum.hit_rate /= n_routers;
    return sum;
}

// ---- writing ------------------------------------------------------------------------------------------------------

static bool write_entry(cJSON *array, uint32_t unit, const struct atsi_resident_experts *r) {
    cJSON *object = cJSON_CreateObject();
    if (!object || !cJSON_AddItemToArray(array, object)) {
        cJSON_Delete(object);
        return false;
    }
    cJSON *ids = cJSON_AddArrayToObject(object, "ids");
    for (uint32_t i = 0; ids && i < r->n; i++) {
        cJSON *id = cJSON_CreateNumber(r->ids[i]);
        if (!id || !cJSON_AddItemToArray(ids, id)) {
            cJSON_Delete(id);
            return false;
        }
    }
    return ids && cJSON_AddNumberToObject(object, "unit", unit) &&
           cJSON_AddNumberToObject(object, "hit_rate", r->hit_rate);
}

bool atsi_plan_experts_write(cJSON *root, const struct atsi_plan *plan) {
    if (!plan->resident_experts) return true;
    cJSON *array = cJSON_AddArrayToObject(root, MEMBER);
    for (uint32_t u = 0; array && u < plan->program.n_units; u++)
        if (plan->resident_experts[u].n > 0 && !write_entry(array, u, &plan->resident_experts[u])) return false;
    return array != NULL;
}

// ---- reading ------------------------------------------------------------------------------------------------------

static bool whole_below(const cJSON *item, uint32_t limit, uint32_t *value) {
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0) || !(item->valuedouble < limit)) return false;
    *value = (uint32_t)item->valuedouble;
    return *value == item->valuedouble;
}

static enum atsi_status read_ids(const cJSON *array, uint32_t n_experts, struct atsi_resident_experts *r,
                                 struct atsi_error *err) {
    uint32_t n = cJSON_IsArray(array) ? (uint32_t)cJSON_GetArraySize(array) : 0, id;
    const cJSON *item;
    if (n == 0 || n > n_experts || n_experts > UINT16_MAX)
        return atsi_fail(err, ATSI_BAD_INPUT, "manifest: %s: ids: %u of %u experts", MEMBER, n, n_experts);
    bool *taken = calloc(n_experts, sizeof *taken);
    enum atsi_status status = ATSI_OK;
    r->ids = calloc(n, sizeof *r->ids);
    if (!taken || !r->ids) status = atsi_fail(err, ATSI_FAILED, "out of memory while reading the manifest");
    cJSON_ArrayForEach(item, array) {
        if (status != ATSI_OK) break;
        if (!whole_below(item, n_experts, &id) || taken[id]) {
            status = atsi_fail(err, ATSI_BAD_INPUT, "manifest: %s: ids: no expert's number below %u, or one twice",
                               MEMBER, n_experts);
            break;
        }
        taken[id] = true;
        r->ids[r->n++] = (uint16_t)id;
    }
    free(taken);
    return status;
}

// The router whose ids operation i_op reads: the last one before it that writes them (atsi_program_check has seen to it that there is one).
static uint32_t router_of_ids(const struct atsi_program *p, uint32_t i_op) {
    int32_t buffer = p->ops[i_op].in[1].buffer;
    while (i_op > 0 && (p->ops[i_op].kind != ATSI_OP_ROUTER || p->ops[i_op].out[0].buffer != buffer)) i_op--;
    return i_op;
}

// What is resident is found by one table for the router's unit and one block for each unit behind it: each holds one operation that asks,
// and these are of that router.
static enum atsi_status check_users(const struct atsi_program *p, uint32_t router_unit, struct atsi_error *err) {
    const struct atsi_unit *r = &p->units[router_unit];
    if (atsi_unit_count_ops(p, r, ATSI_OP_ROUTER) != 1)
        return atsi_fail(err, ATSI_BAD_INPUT, "manifest: %s: unit %s holds more than its router", MEMBER, r->name);
    for (uint32_t u = 0; u < p->n_units; u++) {
        const struct atsi_op *op = atsi_unit_experts_op(p, &p->units[u]);
        if (!op || p->units[u].router_unit != (int32_t)router_unit) continue;
        uint32_t router = router_of_ids(p, (uint32_t)(op - p->ops));
        if (atsi_program_unit_of(p, router) != router_unit)
            return atsi_fail(err, ATSI_BAD_INPUT, "manifest: %s: unit %s uses other experts than its router's", MEMBER,
                             p->units[u].name);
        if (op->u.experts.n_experts != p->ops[router].u.router.n_experts)
            return atsi_fail(err, ATSI_BAD_INPUT, "manifest: %s: unit %s has %u experts, its router %u", MEMBER,
                             p->units[u].name, op->u.experts.n_experts, p->ops[router].u.router.n_experts);
    }
    return ATSI_OK;
}

static enum atsi_status read_entry(const cJSON *object, struct atsi_plan *plan, struct atsi_error *err) {
    const struct atsi_program *p = &plan->program;
    const cJSON *hit_rate = cJSON_GetObjectItemCaseSensitive(object, "hit_rate");
    uint32_t unit;
    if (!whole_below(cJSON_GetObjectItemCaseSensitive(object, "unit"), p->n_units, &unit) ||
        n_experts_of(p, &p->units[unit]) == 0 || plan->resident_experts[unit].n > 0)
        return atsi_fail(err, ATSI_BAD_INPUT, "manifest: %s: unit: no unit that holds a router, or one twice", MEMBER);
    if (!cJSON_IsNumber(hit_rate) || !(hit_rate->valuedouble >= 0) || !(hit_rate->valuedouble <= 1))
        return atsi_fail(err, ATSI_BAD_INPUT, "manifest: %s: hit_rate: must be from 0 to 1", MEMBER);
    uint32_t n_experts = n_experts_of(p, &p->units[unit]);
    ATSI_TRY(check_users(p, unit, err));
    plan->resident_experts[unit].hit_rate = (float)hit_rate->valuedouble;
    return read_ids(cJSON_GetObjectItemCaseSensitive(object, "ids"), n_experts, &plan->resident_experts[unit], err);
}

enum atsi_status atsi_plan_experts_read(const cJSON *root, struct atsi_plan *plan, struct atsi_error *err) {
    const cJSON *array = cJSON_GetObjectItemCaseSensitive(root, MEMBER), *item;
    if (!array) return ATSI_OK;
    if (!cJSON_IsArray(array)) return atsi_fail(err, ATSI_BAD_INPUT, "manifest: %s: no list", MEMBER);
    plan->resident_experts = calloc(plan->program.n_units + 1, sizeof *plan->resident_experts);
    if (!plan->resident_experts) return atsi_fail(err, ATSI_FAILED, "out of memory while reading the manifest");
    cJSON_ArrayForEach(item, array) ATSI_TRY(read_entry(item, plan, err));
    return ATSI_OK;
}

void atsi_plan_drop_resident_experts(struct atsi_plan *plan) {
    for (uint32_t u = 0; plan->resident_experts && u < plan->program.n_units; u++) free(plan->resident_experts[u].ids);
    free(plan->resident_experts);
    plan->resident_experts = NULL;
}
