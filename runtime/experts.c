#include "runtime/experts.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/resident.h"

// ---- opening ------------------------------------------------------------------------------------------------------

// Single experts are found in stored bytes only.
static bool are_stored(const struct atsi_model *model, uint32_t router_unit) {
    const struct atsi_program *p = &model->plan.program;
    for (uint32_t u = 0; u < p->n_units; u++) {
        if (p->units[u].router_unit != (int32_t)router_unit || !atsi_plan_resident_experts(&model->plan, u)) continue;
        const struct atsi_op *op = atsi_unit_experts_op(p, &p->units[u]);
        const struct atsi_plan_blob *blob = atsi_plan_file_find(model->file, p->tensors[op->tensor[0]].name);
        if (blob->encoding != ATSI_PLAN_RAW) return false;
    }
    return true;
}

static bool is_wanted(const struct atsi_model *model, uint32_t u) {
    return model->plan.resident_experts[u].n > 0 && are_stored(model, u);
}

static enum atsi_status take_router(struct atsi_experts *e, const struct atsi_plan *plan, uint32_t u, int32_t *slots,
                                    struct atsi_error *err) {
    const struct atsi_router_params *router =
        &atsi_unit_find_op(&plan->program, &plan->program.units[u], ATSI_OP_ROUTER)->u.router;
    const struct atsi_resident_experts *planned = &plan->resident_experts[u];
    struct atsi_router_experts *r = &e->routers[e->n_routers++];
    *r = (struct atsi_router_experts){.unit = u,
                                      .n_experts = router->n_experts,
                                      .n_used = router->n_used,
                                      .n = planned->n,
                                      .ids = malloc(planned->n * sizeof *r->ids),
                                      .slots = slots,
                                      .hit_rate = planned->hit_rate};
    if (!r->ids) return atsi_fail(err, ATSI_FAILED, "out of memory while loading");
    memcpy(r->ids, planned->ids, planned->n * sizeof *r->ids);
    for (uint32_t i = 0; i < r->n_experts; i++) slots[i] = -1;
    for (uint32_t i = 0; i < r->n; i++) slots[r->ids[i]] = (int32_t)i;
    return ATSI_OK;
}

// Pinned if it can be, so that copies of a table do not stop anybody.
static bool allocate_tables(struct atsi_experts *e, uint32_t n) {
    void *host, *dev;
    e->tables_are_pinned = e->device->ops->host_alloc(e->device, n * sizeof *e->tables, &host, &dev, NULL) == ATSI_OK;
    e->tables = e->tables_are_pinned ? host : malloc(n * sizeof *e->tables);
    return e->tables != NULL;
}

enum atsi_status atsi_experts_open(struct atsi_experts *e, const struct atsi_model *model, struct atsi_device *device,
                                   struct atsi_error *err) {
    const struct atsi_plan *plan = &model->plan;
    const struct atsi_program *p = &plan->program;
    uint32_t n_routers = 0, n_entries = 0, at = 0;
    *e = (struct atsi_experts){.device = device};
    for (uint32_t u = 0; device && plan->resident_experts && u < p->n_units; u++) {
        if (!is_wanted(model, u)) continue;
        n_routers++;
        n_entries += atsi_unit_find_op(p, &p->units[u], ATSI_OP_ROUTER)->u.router.n_experts;
    }
    if (n_routers == 0) return ATSI_OK;
    e->routers = calloc(n_routers, sizeof *e->routers);
    e->refs[0] = calloc(p->n_units, sizeof **e->refs);
    e->refs[1] = calloc(p->n_units, sizeof **e->refs);
    if (!e->routers || !e->refs[0] || !e->refs[1] || !allocate_tables(e, n_entries))
        return atsi_fail(err, ATSI_FAILED, "out of memory while loading");
    for (uint32_t u = 0; u < p->n_units; u++) {
        if (!is_wanted(model, u)) continue;
        ATSI_TRY(take_router(e, plan, u, e->tables + at, err));
        at += e->routers[e->n_routers - 1].n_experts;
    }
    return ATSI_OK;
}

void atsi_experts_free(struct atsi_experts *e) {
    if (e->tables_are_pinned)
        e->device->ops->host_free(e->device, e->tables);
    else
        free(e->tables);
    for (uint32_t i = 0; i < e->n_routers; i++) free(e->routers[i].ids);
    free(e->routers);
    free(e->refs[0]);
    free(e->refs[1]);
    *e = (struct atsi_experts){0};
}

// ---- who is where -------------------------------------------------------------------------------------------------

const struct atsi_router_experts *atsi_experts_behind(const struct atsi_experts *e, uint32_t i_unit) {
    for (uint32_t i = 0; i < e->n_routers; i++)
        if (e->routers[i].unit == i_unit) return &e->routers[i];
    return NULL;
}

bool atsi_router_experts_has(const struct atsi_plan *plan, const struct atsi_router_experts *r, uint32_t i_unit) {
    return plan->program.units[i_unit].router_unit == (int32_t)r->unit && atsi_plan_resident_experts(plan, i_unit);
}

uint64_t atsi_expert_bytes(const struct atsi_program *p, uint32_t i_unit) {
    const struct atsi_op *op = atsi_unit_experts_op(p, &p->units[i_unit]);
    return p->tensors[op->tensor[0]].size_bytes / op->u.experts.n_experts;
}

uint64_t atsi_router_experts_block_bytes(const struct atsi_plan *plan, const struct atsi_router_experts *r,
                                         uint32_t i_unit) {
    return r->n * atsi_expert_bytes(&plan->program, i_unit);
}

static void place_router(struct atsi_experts *e, const struct atsi_router_experts *r, const struct atsi_plan *plan,
                         const struct atsi_resident *resident, const char *range) {
    const int32_t *table = (const int32_t *)(range + resident->tables[r->unit]);
    e->refs[ATSI_CPU][r->unit].slots = r->are_there ? r->slots : NULL;
    e->refs[ATSI_GPU][r->unit].slots = r->are_there ? table : NULL;
    e->refs[ATSI_GPU][r->unit].mine = (int32_t *)(uintptr_t)table + r->n_experts;
    for (uint32_t u = 0; u < plan->program.n_units; u++) {
        struct atsi_experts_ref *ref = &e->refs[ATSI_GPU][u];
        if (!atsi_router_experts_has(plan, r, u)) continue;
        e->refs[ATSI_CPU][u].slots = r->are_there ? r->slots : NULL; // whose slots are the host's
        ref->slots = r->are_there ? table : NULL;
        ref->mine = (int32_t *)(uintptr_t)table + r->n_experts;
        ref->data = r->are_there ? range + resident->blocks[u] : NULL;
    }
}

void atsi_experts_place(struct atsi_experts *e, const struct atsi_plan *plan, const struct atsi_resident *resident,
                        const char *range, uint32_t n_resident) {
    for (uint32_t i = 0; i < e->n_routers; i++) {
        struct atsi_router_experts *r = &e->routers[i];
        r->are_there = false;
        for (uint32_t k = 0; k < n_resident; k++)
            r->are_there |= resident->items[k].experts && resident->items[k].unit == r->unit;
        place_router(e, r, plan, resident, range);
    }
}

void atsi_experts_describe(const struct atsi_experts *e, struct atsi_resident_experts *residents) {
    for (uint32_t i = 0; i < e->n_routers; i++) {
        const struct atsi_router_experts *r = &e->routers[i];
        residents[r->unit] =
            (struct atsi_resident_experts){.n = r->are_there ? r->n : 0, .ids = r->ids, .hit_rate = r->hit_rate};
    }
}
