#include "runtime/resident.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct candidate {
    struct atsi_resident_item item;
    int class; // of the value; larger is better
};

static uint64_t big_bytes(const struct atsi_program *p, const struct atsi_unit *u) {
    uint64_t bytes = 0;
    uint32_t cursor = 0, t;
    while (atsi_unit_next_big_tensor(p, u, &cursor, &t)) bytes += p->tensors[t].size_bytes;
    return bytes;
}

static bool can_leave(const struct atsi_program *p, const struct atsi_unit *u) {
    return !atsi_unit_has_state(p, u) && big_bytes(p, u) > 0;
}

// A class is a quarter wide.
static int class_of(double gain_us, uint64_t bytes) {
    double per_gib = gain_us / (double)bytes * 0x1p30;
    return per_gib >= 1 ? 1 + (int)(log(per_gib) / log(1.25)) : 0;
}

static double gain_us(const struct atsi_plan *plan, uint32_t u) {
    return plan->decode_times ? plan->decode_times[u].cpu_us - plan->decode_times[u].gpu_us : 0;
}

static int class_of_unit(const struct atsi_plan *plan, uint32_t u) {
    return class_of(gain_us(plan, u), big_bytes(&plan->program, &plan->program.units[u]));
}

// What a token finds among them does not run on the CPU.
static int class_of_experts(const struct atsi_plan *plan, const struct atsi_router_experts *r) {
    double us = 0;
    uint64_t bytes = 0;
    for (uint32_t u = 0; u < plan->program.n_units; u++) {
        if (!atsi_router_experts_has(plan, r, u)) continue;
        us += r->hit_rate * gain_us(plan, u);
        bytes += atsi_router_experts_block_bytes(plan, r, u);
    }
    return class_of(us, bytes);
}

static int by_value(const void *a, const void *b) {
    const struct candidate *x = a, *y = b;
    if (x->class != y->class) return x->class < y->class ? 1 : -1;
    if (x->item.unit != y->item.unit) return x->item.unit > y->item.unit ? 1 : -1;
    return x->item.experts - y->item.experts;
}

static uint64_t add_tensor(struct atsi_resident *r, const struct atsi_program *p, uint32_t t, uint64_t at) {
    if (r->offsets[t] != ATSI_NOT_RESIDENT) return at;
    r->offsets[t] = at;
    r->tensors[r->n_tensors++] = t;
    return at + atsi_aligned(p->tensors[t].size_bytes);
}

static uint64_t add_unit(struct atsi_resident *r, const struct atsi_program *p, const struct atsi_unit *u,
                         uint64_t at) {
    uint32_t cursor = 0, t;
    while (atsi_unit_next_big_tensor(p, u, &cursor, &t)) at = add_tensor(r, p, t, at);
    return at;
}

static uint64_t add_blocks(struct atsi_resident *r, const struct atsi_plan *plan, const struct atsi_router_experts *e,
                           uint64_t at) {
    for (uint32_t u = 0; u < plan->program.n_units; u++) {
        if (!atsi_router_experts_has(plan, e, u)) continue;
        r->blocks[u] = at;
        at += atsi_aligned(atsi_router_experts_block_bytes(plan, e, u));
    }
    return at;
}

static uint64_t add_tables(struct atsi_resident *r, const struct atsi_experts *experts, uint64_t at) {
    for (uint32_t i = 0; i < experts->n_routers; i++) {
        r->tables[experts->routers[i].unit] = at;
        at += atsi_router_table_bytes(experts->routers[i].n_experts, experts->routers[i].n_used);
    }
    return at;
}

static uint64_t add_what_stays(struct atsi_resident *r, const struct atsi_program *p, const enum atsi_backend *homes,
                               const struct atsi_experts *experts) {
    uint64_t at = 0;
    for (uint32_t t = 0; t < p->n_tensors; t++)
        if (atsi_tensor_is_small(&p->tensors[t])) at = add_tensor(r, p, t, at);
    for (uint32_t u = 0; u < p->n_units; u++)
        if (homes[u] == ATSI_GPU && !can_leave(p, &p->units[u])) at = add_unit(r, p, &p->units[u], at);
    return add_tables(r, experts, at);
}

static void list_candidates(struct atsi_resident *r, const struct atsi_plan *plan, const enum atsi_backend *homes,
                            const struct atsi_experts *experts, struct candidate *candidates) {
    const struct atsi_program *p = &plan->program;
    for (uint32_t u = 0; u < p->n_units; u++)
        if (homes[u] == ATSI_GPU && can_leave(p, &p->units[u]))
            candidates[r->n_items++] = (struct candidate){{u, false}, class_of_unit(plan, u)};
    for (uint32_t i = 0; i < experts->n_routers; i++) {
        const struct atsi_router_experts *e = &experts->routers[i];
        candidates[r->n_items++] = (struct candidate){{e->unit, true}, class_of_experts(plan, e)};
    }
}

static void add_what_can_leave(struct atsi_resident *r, const struct atsi_plan *plan,
                               const struct atsi_experts *experts, struct candidate *candidates) {
    qsort(candidates, r->n_items, sizeof *candidates, by_value);
    for (uint32_t k = 0; k < r->n_items; k++) {
        r->items[k] = candidates[k].item;
        uint32_t u = r->items[k].unit;
        r->end_bytes[k + 1] = r->items[k].experts
                                  ? add_blocks(r, plan, atsi_experts_behind(experts, u), r->end_bytes[k])
                                  : add_unit(r, &plan->program, &plan->program.units[u], r->end_bytes[k]);
    }
}

static bool create_tables(struct atsi_resident *r, const struct atsi_program *p, uint32_t n_items_max) {
    *r = (struct atsi_resident){0};
    r->offsets = malloc((p->n_tensors + 1) * sizeof *r->offsets);
    r->tables = malloc((p->n_units + 1) * sizeof *r->tables);
    r->blocks = malloc((p->n_units + 1) * sizeof *r->blocks);
    r->tensors = calloc(p->n_tensors + 1, sizeof *r->tensors);
    r->items = calloc(n_items_max + 1, sizeof *r->items);
    r->end_bytes = calloc(n_items_max + 1, sizeof *r->end_bytes);
    if (!r->offsets || !r->tables || !r->blocks || !r->tensors || !r->items || !r->end_bytes) return false;
    for (uint32_t t = 0; t < p->n_tensors; t++) r->offsets[t] = ATSI_NOT_RESIDENT;
    for (uint32_t u = 0; u < p->n_units; u++) r->tables[u] = r->blocks[u] = ATSI_NOT_RESIDENT;
    return true;
}

enum atsi_status atsi_resident_arrange(struct atsi_resident *r, const struct atsi_plan *plan,
                                       const enum atsi_backend *homes, const struct atsi_experts *experts,
                                       struct atsi_error *err) {
    const struct atsi_program *p = &plan->program;
    uint32_t n_items_max = p->n_units + experts->n_routers;
    struct candidate *candidates = calloc(n_items_max + 1, sizeof *candidates);
    bool complete = create_tables(r, p, n_items_max) && candidates;
    if (complete) {
        r->end_bytes[0] = add_what_stays(r, p, homes, experts);
        list_candidates(r, plan, homes, experts, candidates);
        add_what_can_leave(r, plan, experts, candidates);
    }
    free(candidates);
    return complete ? ATSI_OK : atsi_fail(err, ATSI_FAILED, "out of memory while arranging the resident weights");
}

void atsi_resident_free(struct atsi_resident *r) {
    free(r->offsets);
    free(r->tables);
    free(r->blocks);
    free(r->tensors);
    free(r->items);
    free(r->end_bytes);
    *r = (struct atsi_resident){0};
}

uint32_t atsi_resident_fit(const struct atsi_resident *r, uint64_t bytes) {
    uint32_t k = 0;
    while (k < r->n_items && r->end_bytes[k + 1] <= bytes) k++;
    return k;
}
