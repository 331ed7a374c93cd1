#include "planner/hot_experts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/cost.h"

static enum atsi_status no_memory(struct atsi_error *err) {
    return atsi_fail(err, ATSI_FAILED, "out of memory while ranking experts");
}

// ---- which routers ------------------------------------------------------------------------------------------------

static const struct atsi_op *router_op(const struct atsi_program *p, const struct atsi_unit *u) {
    for (uint32_t i = u->first_op; i < u->first_op + u->n_ops; i++)
        if (p->ops[i].kind == ATSI_OP_ROUTER) return &p->ops[i];
    return NULL;
}

// The weights of a unit that depends on a router, NULL when its experts cannot be resident one by one.
static const struct atsi_tensor *expert_weights(const struct atsi_program *p, uint32_t i_unit, const bool *held) {
    const struct atsi_op *op = atsi_unit_experts_op(p, &p->units[i_unit]);
    const struct atsi_tensor *t = op ? &p->tensors[op->tensor[0]] : NULL;
    bool can = t && !atsi_tensor_is_small(t) && !(held && held[i_unit]) && atsi_unit_runs_on_gpu(p, &p->units[i_unit]);
    return can ? t : NULL;
}

// Sizes behind the router of unit i_unit; false when there is nothing to place one by one, or not all of it can be.
static bool measure_router(const struct atsi_program *p, uint32_t i_unit, const bool *held,
                           struct atsi_expert_router *r) {
    const struct atsi_op *op = router_op(p, &p->units[i_unit]);
    if (!op) return false;
    uint32_t n_experts = op->u.router.n_experts;
    *r = (struct atsi_expert_router){
        .unit = i_unit, .n_experts = n_experts, .table_bytes = atsi_aligned(n_experts * sizeof(int32_t))};
    for (uint32_t u = i_unit + 1; u < p->n_units; u++) {
        if (p->units[u].router_unit != (int32_t)i_unit) continue;
        const struct atsi_tensor *t = expert_weights(p, u, held);
        if (!t) return false;
        r->expert_bytes += t->size_bytes / n_experts;
        r->table_bytes += ATSI_ALIGNMENT;
    }
    return r->expert_bytes > 0 && n_experts <= UINT16_MAX;
}

// ---- which experts first ------------------------------------------------------------------------------------------

struct counted {
    uint64_t count;
    uint16_t id;
};

static int compare_counted(const void *a, const void *b) {
    const struct counted *x = a, *y = b;
    if (x->count != y->count) return (x->count < y->count) - (x->count > y->count);
    return (x->id > y->id) - (x->id < y->id);
}

// One choice is added to every count, so that few tokens do not promise what many would not keep.
static enum atsi_status rank_by_counts(struct atsi_expert_router *r, const struct atsi_routing_layer *l,
                                       struct atsi_error *err) {
    double n_choices = (double)l->n_tokens * l->n_used + r->n_experts;
    struct counted *sorted = calloc(r->n_experts, sizeof *sorted);
    if (!sorted) return no_memory(err);
    for (uint32_t e = 0; e < r->n_experts; e++) sorted[e] = (struct counted){l->counts[e], (uint16_t)e};
    qsort(sorted, r->n_experts, sizeof *sorted, compare_counted);
    for (uint32_t e = 0; e < r->n_experts; e++) {
        r->ids[e] = sorted[e].id;
        r->shares[e] = (float)(((double)sorted[e].count + 1) / n_choices);
    }
    free(sorted);
    return ATSI_OK;
}

static void rank_by_prior(struct atsi_expert_router *r) {
    double sum = 0;
    for (uint32_t e = 0; e < r->n_experts; e++) sum += pow(e + 1, -ATSI_PRIOR_EXPONENT);
    for (uint32_t e = 0; e < r->n_experts; e++) {
        r->ids[e] = (uint16_t)e;
        r->shares[e] = (float)(pow(e + 1, -ATSI_PRIOR_EXPONENT) / sum);
    }
}

static enum atsi_status rank_router(struct atsi_expert_router *r, const struct atsi_program *p,
                                    const struct atsi_routing_stats *stats, struct atsi_error *err) {
    int32_t layer = p->units[r->unit].layer;
    r->ids = calloc(r->n_experts, sizeof *r->ids);
    r->shares = calloc(r->n_experts, sizeof *r->shares);
    if (!r->ids || !r->shares) return no_memory(err);
    if (!stats) {
        rank_by_prior(r);
        return ATSI_OK;
    }
    const struct atsi_routing_layer *l = atsi_routing_find(stats, layer, r->n_experts);
    if (l && l->n_tokens > 0) return rank_by_counts(r, l, err);
    return atsi_fail(err, ATSI_BAD_INPUT, "nothing is known of layer %d with %u experts", layer, r->n_experts);
}

enum atsi_status atsi_hot_experts_rank(const struct atsi_plan *plan, const struct atsi_routing_stats *stats,
                                       const bool *held, struct atsi_hot_experts *out, struct atsi_error *err) {
    const struct atsi_program *p = &plan->program;
    *out = (struct atsi_hot_experts){.counted = stats != NULL};
    out->routers = calloc(p->n_units, sizeof *out->routers);
    out->n_resident = calloc(p->n_units, sizeof *out->n_resident);
    if (!out->routers || !out->n_resident) return no_memory(err);
    for (uint32_t u = 0; u < p->n_units; u++) {
        struct atsi_expert_router *r = &out->routers[out->n_routers];
        if (!measure_router(p, u, held, r)) continue;
        out->n_routers++; // counted first, so that what it holds is freed
        out->n_experts += r->n_experts;
        ATSI_TRY(rank_router(r, p, stats, err));
    }
    out->experts = calloc(out->n_experts + 1, sizeof *out->experts);
    return out->experts ? ATSI_OK : no_memory(err);
}

void atsi_hot_experts_free(struct atsi_hot_experts *h) {
    for (uint32_t i = 0; i < h->n_routers; i++) {
        free(h->routers[i].ids);
        free(h->routers[i].shares);
    }
    free(h->routers);
    free(h->n_resident);
    free(h->experts);
    memset(h, 0, sizeof *h);
}

bool atsi_hot_experts_has(const struct atsi_hot_experts *h, const struct atsi_plan *plan, uint32_t i_unit) {
    for (uint32_t i = 0; i < h->n_routers; i++)
        if (plan->program.units[i_unit].router_unit == (int32_t)h->routers[i].unit) return true;
    return false;
}

// ---- what they are worth ------------------------------------------------------------------------------------------

// What the CPU's side of all operations behind a router takes beyond the GPU's.
struct savings {
    double decode_us, prefill_us;
};

static struct savings savings_of(const struct atsi_plan *plan, uint32_t router_unit, bool streamed) {
    struct savings s = {0, 0};
    for (uint32_t u = 0; u < plan->program.n_units; u++) {
        if (plan->program.units[u].router_unit != (int32_t)router_unit) continue;
        double decode_us = streamed ? atsi_streamed_us(plan, u, ATSI_DECODE) : plan->decode_times[u].cpu_us;
        s.decode_us += decode_us - plan->decode_times[u].gpu_us;
        if (streamed) s.prefill_us += atsi_streamed_us(plan, u, ATSI_PREFILL) - plan->prefill_times[u].gpu_us;
    }
    return s;
}

static int compare_value(const void *a, const void *b) {
    const struct atsi_single_expert *x = a, *y = b;
    if (x->value_per_byte != y->value_per_byte)
        return (x->value_per_byte < y->value_per_byte) - (x->value_per_byte > y->value_per_byte);
    if (x->rank != y->rank) return (x->rank > y->rank) - (x->rank < y->rank); // of equals, as many of every router
    return (x->router > y->router) - (x->router < y->router);
}

static uint64_t bytes_of(const struct atsi_hot_experts *h, const struct atsi_single_expert *e) {
    const struct atsi_expert_router *r = &h->routers[e->router];
    return r->expert_bytes + (e->rank == 0 ? r->table_bytes : 0);
}

// A block ends at its part of the value or of the bytes, so that neither the hottest nor the coldest are in one too coarse.
static void make_blocks(struct atsi_hot_experts *h) {
    const uint32_t n_parts = ATSI_EXPERT_BLOCKS_MAX / 2 - 1; // by value and by bytes
    double value_us = 0;
    uint64_t bytes = 0;
    bool begins = true;
    for (uint32_t i = 0; i < h->n_experts && h->experts[i].value_us > 0; i++) {
        value_us += h->experts[i].value_us;
        bytes += bytes_of(h, &h->experts[i]);
    }
    h->n_blocks = 0;
    for (uint32_t i = 0; i < h->n_experts && h->experts[i].value_us > 0; i++) {
        if (begins) h->blocks[h->n_blocks++] = (struct atsi_expert_block){0};
        struct atsi_expert_block *b = &h->blocks[h->n_blocks - 1];
        b->size_bytes += bytes_of(h, &h->experts[i]);
        b->value_us += h->experts[i].value_us;
        begins = b->value_us * n_parts >= value_us || b->size_bytes * n_parts >= bytes;
    }
}

void atsi_hot_experts_price(struct atsi_hot_experts *h, const struct atsi_plan *plan,
                            const struct atsi_objective *objective, bool streamed) {
    struct atsi_single_expert *e = h->experts;
    for (uint32_t i = 0; i < h->n_routers; i++) {
        const struct atsi_expert_router *r = &h->routers[i];
        struct savings s = savings_of(plan, r->unit, streamed);
        for (uint32_t rank = 0; rank < r->n_experts; rank++) {
            double value_us =
                atsi_objective_us(objective, plan, s.decode_us * r->shares[rank], s.prefill_us / r->n_experts);
            *e++ = (struct atsi_single_expert){i, rank, value_us, value_us / (double)r->expert_bytes};
        }
    }
    qsort(h->experts, h->n_experts, sizeof *h->experts, compare_value);
    make_blocks(h);
}

double atsi_hot_experts_choose(struct atsi_hot_experts *h, uint64_t budget_bytes) {
    double value_us = 0;
    memset(h->n_resident, 0, h->n_routers * sizeof *h->n_resident);
    for (uint32_t i = 0; i < h->n_experts && h->experts[i].value_us > 0; i++) {
        const struct atsi_single_expert *e = &h->experts[i];
        uint64_t bytes = bytes_of(h, e);
        if (bytes > budget_bytes || e->rank != h->n_resident[e->router]) continue;
        budget_bytes -= bytes;
        value_us += e->value_us;
        h->n_resident[e->router]++;
    }
    return value_us;
}

// ---- in the plan --------------------------------------------------------------------------------------------------

static void move_to_gpu(struct atsi_plan *plan, uint32_t router_unit) {
    for (uint32_t u = 0; u < plan->program.n_units; u++)
        if (plan->program.units[u].router_unit == (int32_t)router_unit) plan->program.units[u].backend = ATSI_GPU;
}

static enum atsi_status apply_router(const struct atsi_expert_router *r, uint32_t n, enum atsi_hit_rates rates,
                                     struct atsi_resident_experts *out, struct atsi_error *err) {
    double hit_rate = rates == ATSI_HITS_EVEN ? (double)n / r->n_experts : 0;
    out->ids = malloc(n * sizeof *out->ids);
    if (!out->ids) return no_memory(err);
    memcpy(out->ids, r->ids, n * sizeof *out->ids);
    for (uint32_t i = 0; i < n && rates == ATSI_HITS_EXPECTED; i++) hit_rate += r->shares[i];
    out->n = n;
    out->hit_rate = (float)fmin(1, hit_rate);
    return ATSI_OK;
}

enum atsi_status atsi_hot_experts_apply(const struct atsi_hot_experts *h, struct atsi_plan *plan,
                                        enum atsi_hit_rates rates, struct atsi_error *err) {
    atsi_plan_drop_resident_experts(plan);
    for (uint32_t i = 0; i < h->n_routers; i++) {
        const struct atsi_expert_router *r = &h->routers[i];
        uint32_t n = h->n_resident[i];
        if (n == r->n_experts) move_to_gpu(plan, r->unit);
        if (n == 0 || n == r->n_experts) continue;
        if (!plan->resident_experts)
            plan->resident_experts = calloc(plan->program.n_units, sizeof *plan->resident_experts);
        if (!plan->resident_experts) return no_memory(err);
        ATSI_TRY(apply_router(r, n, rates, &plan->resident_experts[r->unit], err));
    }
    return ATSI_OK;
}
