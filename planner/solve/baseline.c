#include "planner/solve/baseline.h"

#include <stdlib.h>

struct placer {
    const struct atsi_solve_instance *inst;
    const int32_t *layer;
    uint8_t *placement;
    uint64_t left; // granules
};

static void start(struct placer *p) {
    p->left = atsi_solve_budget_granules(p->inst);
    for (size_t i = 0; i < p->inst->n_units; i++) {
        bool fixed = p->inst->units[i].fix == ATSI_FIX_GPU;
        p->placement[i] = fixed ? ATSI_GPU : ATSI_CPU;
        if (fixed) p->left -= atsi_solve_unit_granules(p->inst, i);
    }
}

static bool is_open(const struct placer *p, size_t i) {
    return p->inst->units[i].fix == ATSI_FIX_NONE && p->placement[i] == ATSI_CPU && p->layer[i] >= 0;
}

// Places the open units of the layers first..last, experts only when asked for, if all of them fit.
static bool place_layers(struct placer *p, int32_t first, int32_t last, bool experts) {
    uint64_t need = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < p->inst->n_units; i++) {
            bool wanted = p->layer[i] >= first && p->layer[i] <= last && (experts || !p->inst->units[i].is_expert);
            if (!wanted || !is_open(p, i)) continue;
            if (pass == 0)
                need += atsi_solve_unit_granules(p->inst, i);
            else
                p->placement[i] = ATSI_GPU;
        }
        if (need > p->left) return false;
    }
    p->left -= need;
    return true;
}

static int32_t last_layer(const struct placer *p) {
    int32_t last = -1;
    for (size_t i = 0; i < p->inst->n_units; i++)
        if (p->layer[i] > last) last = p->layer[i];
    return last;
}

static void layers_last(struct placer *p, bool experts) {
    int32_t layer = last_layer(p);
    while (layer >= 0 && place_layers(p, layer, layer, experts)) layer--;
}

static void layers_first(struct placer *p) {
    int32_t last = last_layer(p), layer = 0;
    while (layer <= last && place_layers(p, layer, layer, true)) layer++;
}

static void experts_on_cpu(struct placer *p) {
    int32_t layer = last_layer(p);
    if (!place_layers(p, 0, layer, false))
        layers_last(p, false);
    else
        layers_last(p, true); // what is left open are the experts
}

struct dense_unit {
    size_t index;
    double gain_us, bytes; // one byte more than it has, so that empty units compare too
};

// By gain per byte, the larger first.
static int compare_density(const void *a, const void *b) {
    const struct dense_unit *x = a, *y = b;
    double p = x->gain_us * y->bytes, q = y->gain_us * x->bytes;
    if (p != q) return p < q ? 1 : -1;
    return (x->index > y->index) - (x->index < y->index);
}

static bool by_density(struct placer *p) {
    struct dense_unit *order = malloc(p->inst->n_units * sizeof *order);
    if (!order) return false;
    size_t n = 0;
    for (size_t i = 0; i < p->inst->n_units; i++) {
        const struct atsi_solve_unit *unit = &p->inst->units[i];
        double gain_us = unit->t_cpu_us - unit->t_gpu_us;
        if (is_open(p, i) && gain_us > 0) order[n++] = (struct dense_unit){i, gain_us, (double)unit->size_bytes + 1};
    }
    qsort(order, n, sizeof *order, compare_density);
    for (size_t k = 0; k < n; k++) {
        uint64_t need = atsi_solve_unit_granules(p->inst, order[k].index);
        if (need > p->left) continue;
        p->placement[order[k].index] = ATSI_GPU;
        p->left -= need;
    }
    free(order);
    return true;
}

enum atsi_status atsi_solve_baseline(const struct atsi_solve_instance *inst, const int32_t *layer,
                                     enum atsi_baseline baseline, uint8_t *placement, struct atsi_error *err) {
    struct placer p = {.inst = inst, .layer = layer, .placement = placement};
    start(&p);
    bool good = true;
    switch (baseline) {
    case ATSI_BASELINE_LAYERS_LAST: layers_last(&p, true); break;
    case ATSI_BASELINE_LAYERS_FIRST: layers_first(&p); break;
    case ATSI_BASELINE_EXPERTS: experts_on_cpu(&p); break;
    case ATSI_BASELINE_DENSITY: good = by_density(&p); break;
    }
    return good ? ATSI_OK : atsi_fail(err, ATSI_FAILED, "placement: out of memory");
}
