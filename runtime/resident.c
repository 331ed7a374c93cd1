#include "runtime/resident.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    ALIGNMENT = 256
};

struct candidate {
    uint32_t unit;
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
static int value_class(const struct atsi_plan *plan, uint32_t u) {
    if (!plan->decode_times) return 0;
    double gain_us = plan->decode_times[u].cpu_us - plan->decode_times[u].gpu_us;
    double per_gib = gain_us / (double)big_bytes(&plan->program, &plan->program.units[u]) * 0x1p30;
    return per_gib >= 1 ? 1 + (int)(log(per_gib) / log(1.25)) : 0;
}

static int by_value(const void *a, const void *b) {
    const struct candidate *x = a, *y = b;
    if (x->class != y->class) return x->class < y->class ? 1 : -1;
    return (x->unit > y->unit) - (x->unit < y->unit);
}

static uint64_t add_tensor(struct atsi_resident *r, const struct atsi_program *p, uint32_t t, uint64_t at) {
    if (r->offsets[t] != ATSI_NOT_RESIDENT) return at;
    r->offsets[t] = at;
    r->tensors[r->n_tensors++] = t;
    return at + ((p->tensors[t].size_bytes + ALIGNMENT - 1) & ~(uint64_t)(ALIGNMENT - 1));
}

static uint64_t add_unit(struct atsi_resident *r, const struct atsi_program *p, const struct atsi_unit *u,
                         uint64_t at) {
    uint32_t cursor = 0, t;
    while (atsi_unit_next_big_tensor(p, u, &cursor, &t)) at = add_tensor(r, p, t, at);
    return at;
}

static uint64_t add_what_stays(struct atsi_resident *r, const struct atsi_program *p, const enum atsi_backend *homes) {
    uint64_t at = 0;
    for (uint32_t t = 0; t < p->n_tensors; t++)
        if (atsi_tensor_is_small(&p->tensors[t])) at = add_tensor(r, p, t, at);
    for (uint32_t u = 0; u < p->n_units; u++)
        if (homes[u] == ATSI_GPU && !can_leave(p, &p->units[u])) at = add_unit(r, p, &p->units[u], at);
    return at;
}

static void add_what_can_leave(struct atsi_resident *r, const struct atsi_plan *plan, const enum atsi_backend *homes,
                               struct candidate *candidates) {
    const struct atsi_program *p = &plan->program;
    for (uint32_t u = 0; u < p->n_units; u++)
        if (homes[u] == ATSI_GPU && can_leave(p, &p->units[u]))
            candidates[r->n_units++] = (struct candidate){u, value_class(plan, u)};
    qsort(candidates, r->n_units, sizeof *candidates, by_value);
    for (uint32_t k = 0; k < r->n_units; k++) {
        r->units[k] = candidates[k].unit;
        r->end_bytes[k + 1] = add_unit(r, p, &p->units[r->units[k]], r->end_bytes[k]);
    }
}

enum atsi_status atsi_resident_arrange(struct atsi_resident *r, const struct atsi_plan *plan,
                                       const enum atsi_backend *homes, struct atsi_error *err) {
    const struct atsi_program *p = &plan->program;
    *r = (struct atsi_resident){0};
    r->offsets = malloc((p->n_tensors + 1) * sizeof *r->offsets);
    r->tensors = calloc(p->n_tensors + 1, sizeof *r->tensors);
    r->units = calloc(p->n_units + 1, sizeof *r->units);
    r->end_bytes = calloc(p->n_units + 1, sizeof *r->end_bytes);
    struct candidate *candidates = calloc(p->n_units + 1, sizeof *candidates);
    bool complete = r->offsets && r->tensors && r->units && r->end_bytes && candidates;
    for (uint32_t t = 0; complete && t < p->n_tensors; t++) r->offsets[t] = ATSI_NOT_RESIDENT;
    if (complete) {
        r->end_bytes[0] = add_what_stays(r, p, homes);
        add_what_can_leave(r, plan, homes, candidates);
    }
    free(candidates);
    return complete ? ATSI_OK : atsi_fail(err, ATSI_FAILED, "out of memory while arranging the resident weights");
}

void atsi_resident_free(struct atsi_resident *r) {
    free(r->offsets);
    free(r->tensors);
    free(r->units);
    free(r->end_bytes);
    *r = (struct atsi_resident){0};
}

uint32_t atsi_resident_fit(const struct atsi_resident *r, uint64_t bytes) {
    uint32_t k = 0;
    while (k < r->n_units && r->end_bytes[k + 1] <= bytes) k++;
    return k;
}
