#include "planner/profile_fit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/bench.h"

static struct atsi_profile_cost *find(const struct atsi_device_profile *p, enum atsi_backend side, uint32_t op,
                                      uint32_t dtype, enum atsi_phase phase) {
    for (uint32_t i = 0; i < p->n_costs; i++) {
        struct atsi_profile_cost *c = &p->costs[i];
        if (c->side == side && c->op == op && c->dtype == dtype && c->phase == phase) return c;
    }
    return NULL;
}

bool atsi_profile_has_point(const struct atsi_device_profile *p, enum atsi_backend side, uint32_t op, uint32_t dtype,
                            enum atsi_phase phase, double bytes, double flops) {
    const struct atsi_profile_cost *c = find(p, side, op, dtype, phase);
    for (uint32_t i = 0; c && i < c->n_points; i++)
        if (c->points[i].bytes == bytes && c->points[i].flops == flops) return true;
    return false;
}

static enum atsi_status no_memory(struct atsi_error *err) {
    return atsi_fail(err, ATSI_FAILED, "out of memory while profiling");
}

// The cost of that key, made when it is not there. *cost is valid until the next call.
static enum atsi_status find_or_add(struct atsi_device_profile *p, enum atsi_backend side, uint32_t op, uint32_t dtype,
                                    enum atsi_phase phase, struct atsi_profile_cost **cost, struct atsi_error *err) {
    *cost = find(p, side, op, dtype, phase);
    if (*cost) return ATSI_OK;
    if (p->n_costs == ATSI_PROFILE_MAX_COSTS) return atsi_fail(err, ATSI_FAILED, "the profile has too many costs");
    struct atsi_profile_cost *grown = realloc(p->costs, (p->n_costs + 1) * sizeof *grown);
    if (!grown) return no_memory(err);
    p->costs = grown;
    *cost = &grown[p->n_costs++];
    **cost = (struct atsi_profile_cost){
        .side = side, .op = op, .dtype = dtype, .phase = phase, .bytes_per_us = 1, .flops_per_us = 1};
    return ATSI_OK;
}

enum atsi_status atsi_profile_add_point(struct atsi_device_profile *p, enum atsi_backend side, uint32_t op,
                                        uint32_t dtype, enum atsi_phase phase, struct atsi_profile_point point,
                                        struct atsi_error *err) {
    struct atsi_profile_cost *c;
    ATSI_TRY(find_or_add(p, side, op, dtype, phase, &c, err));
    if (c->n_points == ATSI_PROFILE_MAX_POINTS)
        return atsi_fail(err, ATSI_FAILED, "the profile has too many points of one operation");
    struct atsi_profile_point *grown = realloc(c->points, (c->n_points + 1) * sizeof *grown);
    if (!grown) return no_memory(err);
    c->points = grown;
    c->points[c->n_points++] = point;
    return ATSI_OK;
}

// ---- lines --------------------------------------------------------------------------------------------------------

// Points of every cost of one side and phase whose operation and type are those asked for; "any" asks for all.
struct points {
    struct atsi_profile_point *list;
    int n;
};

static enum atsi_status gather(const struct atsi_device_profile *p, enum atsi_backend side, uint32_t op, uint32_t dtype,
                               enum atsi_phase phase, struct points *out, struct atsi_error *err) {
    size_t total = 0;
    for (uint32_t i = 0; i < p->n_costs; i++) total += p->costs[i].n_points;
    *out = (struct points){.list = malloc((total + 1) * sizeof *out->list)};
    if (!out->list) return no_memory(err);
    for (uint32_t i = 0; i < p->n_costs; i++) {
        const struct atsi_profile_cost *c = &p->costs[i];
        bool fits = c->side == side && c->phase == phase && (op == ATSI_PROFILE_ANY_OP || c->op == op) &&
                    (dtype == ATSI_PROFILE_ANY_DTYPE || c->dtype == dtype);
        for (uint32_t k = 0; fits && k < c->n_points; k++) out->list[out->n++] = c->points[k];
    }
    return ATSI_OK;
}

static const double unlimited = 1e12; // a rate that never binds

static enum atsi_status fit_line(const struct points *points, struct atsi_profile_cost *cost, struct atsi_error *err) {
    double spread, *left = malloc(((size_t)points->n + 1) * sizeof *left);
    if (!left) return no_memory(err);
    cost->bytes_per_us = cost->flops_per_us = 0;
    for (int i = 0; i < points->n; i++) {
        double us = fmax(points->list[i].us, 1e-3);
        cost->bytes_per_us = fmax(cost->bytes_per_us, points->list[i].bytes / us);
        cost->flops_per_us = fmax(cost->flops_per_us, points->list[i].flops / us);
    }
    if (cost->bytes_per_us <= 0) cost->bytes_per_us = unlimited;
    if (cost->flops_per_us <= 0) cost->flops_per_us = unlimited;
    for (int i = 0; i < points->n; i++)
        left[i] = fmax(0, points->list[i].us - fmax(points->list[i].bytes / cost->bytes_per_us,
                                                    points->list[i].flops / cost->flops_per_us));
    cost->fixed_us = points->n ? atsi_median(left, points->n, &spread) : 0;
    free(left);
    return ATSI_OK;
}

double atsi_profile_fixed_of(const double *parts, const double *us, int n) {
    enum {
        MOST = 16
    };
    double slopes[MOST * MOST], left[MOST], least_us = us[0], spread;
    int n_slopes = 0;
    if (n > MOST) n = MOST;
    for (int i = 0; i < n; i++)
        for (int k = i + 1; k < n; k++)
            if (parts[k] != parts[i]) slopes[n_slopes++] = (us[k] - us[i]) / (parts[k] - parts[i]);
    double slope = n_slopes ? fmax(0, atsi_median(slopes, n_slopes, &spread)) : 0;
    for (int i = 0; i < n; i++) {
        left[i] = us[i] - slope * parts[i];
        least_us = fmin(least_us, us[i]);
    }
    return fmin(fmax(0, atsi_median(left, n, &spread)), least_us);
}

static enum atsi_status fit_cost(struct atsi_device_profile *p, enum atsi_backend side, uint32_t op, uint32_t dtype,
                                 enum atsi_phase phase, struct atsi_error *err) {
    struct points points;
    struct atsi_profile_cost *cost;
    ATSI_TRY(gather(p, side, op, dtype, phase, &points, err));
    enum atsi_status status = points.n ? find_or_add(p, side, op, dtype, phase, &cost, err) : ATSI_OK;
    if (status == ATSI_OK && points.n) status = fit_line(&points, cost, err);
    free(points.list);
    return status;
}

enum atsi_status atsi_profile_fit(struct atsi_device_profile *p, struct atsi_error *err) {
    uint32_t n_measured = p->n_costs; // costs made below stand behind and have no points
    for (uint32_t i = 0; i < n_measured; i++) {
        struct atsi_profile_cost c = p->costs[i];
        if (c.n_points == 0) continue;
        ATSI_TRY(fit_cost(p, c.side, c.op, c.dtype, c.phase, err));
        ATSI_TRY(fit_cost(p, c.side, c.op, ATSI_PROFILE_ANY_DTYPE, c.phase, err));
        ATSI_TRY(fit_cost(p, c.side, ATSI_PROFILE_ANY_OP, ATSI_PROFILE_ANY_DTYPE, c.phase, err));
    }
    return ATSI_OK;
}
