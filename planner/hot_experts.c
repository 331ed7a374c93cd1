#include "planner/hot_experts.h"

#include <stdlib.h>
#include <string.h>

#include "planner/objective.h"

// One expert of one operation.
struct expert {
    double bytes, used; // used: part of the tokens that choose it
};

struct gathering {
    const struct atsi_plan *plan;
    const struct atsi_routing_stats *stats;
    struct atsi_hot_experts *out;
    struct expert *experts;
    size_t n_experts;
    double host_us; // of the operations on the CPU, CPU and link together
    uint32_t n_units;
};

static const struct atsi_op *experts_op(const struct atsi_program *p, const struct atsi_unit *u) {
    for (uint32_t i = u->first_op; i < u->first_op + u->n_ops; i++)
        if (p->ops[i].kind == ATSI_OP_EXPERTS) return &p->ops[i];
    return NULL;
}

static enum atsi_status add_means(struct gathering *g, const struct atsi_routing_layer *l, struct atsi_error *err) {
    double share;
    ATSI_TRY(atsi_routing_hot_share(l, (l->n_experts + 7) / 8, &share, err));
    g->out->eighth_share += share;
    g->out->reused_share += atsi_routing_reused_share(l);
    g->out->chunk_share += atsi_routing_active_share(l, g->plan->limits.chunk);
    g->n_units++;
    return ATSI_OK;
}

static enum atsi_status add_unit(struct gathering *g, uint32_t i_unit, struct atsi_error *err) {
    const struct atsi_program *p = &g->plan->program;
    const struct atsi_unit *u = &p->units[i_unit];
    const struct atsi_op *op = experts_op(p, u);
    if (!op) return ATSI_OK;
    uint32_t n = op->u.experts.n_experts;
    const struct atsi_routing_layer *l = atsi_routing_find(g->stats, u->layer, n);
    if (!l || l->n_tokens == 0)
        return atsi_fail(err, ATSI_BAD_INPUT, "nothing is known of layer %d with %u experts", u->layer, n);
    ATSI_TRY(add_means(g, l, err));
    double bytes = (double)p->tensors[op->tensor[0]].size_bytes / n;
    for (uint32_t e = 0; e < n; e++)
        g->experts[g->n_experts++] = (struct expert){bytes, (double)l->counts[e] / (double)l->n_tokens};
    if (u->backend == ATSI_GPU) {
        g->out->resident_bytes += p->tensors[op->tensor[0]].size_bytes;
    } else {
        g->out->host_bytes += bytes * op->u.experts.n_used;
        g->host_us += atsi_streamed_us(g->plan, i_unit, ATSI_DECODE);
    }
    return ATSI_OK;
}

// By use a byte is by use: experts of different size gain alike for each byte.
static int compare_use(const void *a, const void *b) {
    const struct expert *x = a, *y = b;
    return (x->used < y->used) - (x->used > y->used);
}

static void place_hottest(struct gathering *g) {
    double left = (double)g->out->resident_bytes;
    qsort(g->experts, g->n_experts, sizeof *g->experts, compare_use);
    for (size_t i = 0; i < g->n_experts; i++) {
        if (g->experts[i].bytes <= left)
            left -= g->experts[i].bytes;
        else
            g->out->hot_host_bytes += g->experts[i].bytes * g->experts[i].used;
    }
}

static enum atsi_status gather(struct gathering *g, struct atsi_error *err) {
    const struct atsi_program *p = &g->plan->program;
    size_t n = 0;
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (p->ops[i].kind == ATSI_OP_EXPERTS) n += p->ops[i].u.experts.n_experts;
    if (n == 0) return atsi_fail(err, ATSI_BAD_INPUT, "the model has no experts");
    g->experts = malloc(n * sizeof *g->experts);
    if (!g->experts) return atsi_fail(err, ATSI_FAILED, "out of memory");
    for (uint32_t u = 0; u < p->n_units; u++) ATSI_TRY(add_unit(g, u, err));
    return ATSI_OK;
}

enum atsi_status atsi_hot_experts_of(const struct atsi_plan *plan, const struct atsi_routing_stats *stats,
                                     struct atsi_hot_experts *out, struct atsi_error *err) {
    struct gathering g = {.plan = plan, .stats = stats, .out = out};
    memset(out, 0, sizeof *out);
    enum atsi_status status = gather(&g, err);
    if (status == ATSI_OK) {
        out->eighth_share /= g.n_units;
        out->reused_share /= g.n_units;
        out->chunk_share /= g.n_units;
        place_hottest(&g);
        if (out->host_bytes > 0) out->saved_us = (out->host_bytes - out->hot_host_bytes) * g.host_us / out->host_bytes;
    }
    free(g.experts);
    return status;
}
