#include "planner/hot_experts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/budget.h"
#include "planner/cost.h"
#include "runtime/schedule/shares.h"

static enum atsi_status no_memory(struct atsi_error *err) {
    return atsi_fail(err, ATSI_FAILED, "out of memory while ranking experts");
}

// ---- which routers ------------------------------------------------------------------------------------------------

// The weights of a unit that depends on a router, NULL when its experts cannot be resident one by one.
static const struct atsi_tensor *expert_weights(const struct atsi_program *p, uint32_t i_unit, const bool *held) {
    const struct atsi_op *op = atsi_unit_experts_op(p, &p->units[i_unit]);
    const struct atsi_tensor *t = op ? &p->tensors[op->tensor[0]] : NULL;
    bool can = t && !atsi_tensor_is_small(t) && !(held && held[i_unit]) && atsi_unit_runs_on_gpu(p, &p->units[i_unit]);
    return can ? t : NULL;
}

// Sizes behind the router of unit i_unit; false when there is nothing to place one by one, or not all of it can be.
static bool measure_router(const struct atsi_plan *plan, uint32_t i_unit, const bool *held,
                           struct atsi_expert_router *r) {
    const struct atsi_program *p = &plan->program;
    const struct atsi_op *op = atsi_unit_find_op(p, &p->units[i_unit], ATSI_OP_ROUTER);
    if (!op) return false;
    uint32_t n_experts = op->u.router.n_experts;
    *r = (struct atsi_expert_router){.unit = i_unit,
                                     .n_experts = n_experts,
                                     .n_used = op->u.router.n_used,
                                     .table_bytes = atsi_router_table_bytes(n_experts, op->u.router.n_used)};
    for (uint32_t u = i_unit + 1; u < p->n_units; u++) {
        if (p->units[u].router_unit != (int32_t)i_unit) continue;
        const struct atsi_tensor *t = expert_weights(p, u, held);
        if (!t) return false;
        r->expert_bytes += t->size_bytes / n_experts;
        r->table_bytes += ATSI_ALIGNMENT;
        r->beside_bytes += atsi_budget_unit(plan, &p->units[u]) - t->size_bytes;
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

static const double guessed_exponents[ATSI_GUESSES] = {0.5, 0.7};

// What the hottest n of n_experts get of the choices.
static double guessed_share(uint32_t n, uint32_t n_experts, enum atsi_expert_guess guess) {
    return pow((double)n / n_experts, guessed_exponents[guess]);
}

static void guess_shares(struct atsi_expert_router *r, enum atsi_expert_guess guess) {
    for (uint32_t e = 0; e < r->n_experts; e++)
        r->shares[e] = (float)(guessed_share(e + 1, r->n_experts, guess) - guessed_share(e, r->n_experts, guess));
}

void atsi_hot_experts_guess(struct atsi_hot_experts *h, enum atsi_expert_guess guess) {
    if (h->counted) return;
    h->guess = guess;
    for (uint32_t i = 0; i < h->n_routers; i++) guess_shares(&h->routers[i], guess);
}

static enum atsi_status rank_router(struct atsi_expert_router *r, const struct atsi_program *p,
                                    const struct atsi_routing_stats *stats, struct atsi_error *err) {
    int32_t layer = p->units[r->unit].layer;
    r->ids = calloc(r->n_experts, sizeof *r->ids);
    r->shares = calloc(r->n_experts, sizeof *r->shares);
    r->saved_us = calloc(r->n_experts + 1, sizeof *r->saved_us);
    if (!r->ids || !r->shares || !r->saved_us) return no_memory(err);
    if (!stats) {
        for (uint32_t e = 0; e < r->n_experts; e++) r->ids[e] = (uint16_t)e;
        guess_shares(r, ATSI_GUESS_BOLD);
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
        if (!measure_router(plan, u, held, r)) continue;
        out->n_routers++; // counted first, so that what it holds is freed
        ATSI_TRY(rank_router(r, p, stats, err));
    }
    return ATSI_OK;
}

void atsi_hot_experts_free(struct atsi_hot_experts *h) {
    for (uint32_t i = 0; i < h->n_routers; i++) {
        free(h->routers[i].ids);
        free(h->routers[i].shares);
        free(h->routers[i].saved_us);
    }
    free(h->routers);
    free(h->n_resident);
    free(h->best_us);
    memset(h, 0, sizeof *h);
}

bool atsi_hot_experts_has(const struct atsi_hot_experts *h, const struct atsi_plan *plan, uint32_t i_unit) {
    for (uint32_t i = 0; i < h->n_routers; i++)
        if (plan->program.units[i_unit].router_unit == (int32_t)h->routers[i].unit) return true;
    return false;
}

// ---- what they are worth ------------------------------------------------------------------------------------------

// Of all operations behind a router.
struct router_times {
    struct atsi_expert_times token;     // CPU and link each beside the other
    double cpu_us, streamed_us, gpu_us; // a chunk
};

static struct router_times times_of(const struct atsi_plan *plan, uint32_t router_unit) {
    struct router_times t = {.token.first = atsi_slot_times_start(plan),
                             .token.can_fetch = atsi_region_holds_slots(plan, router_unit, plan->limits.temp_bytes)};
    const struct atsi_contention *c = &plan->contention;
    for (uint32_t u = 0; u < plan->program.n_units; u++) {
        const struct atsi_op *op = atsi_unit_experts_op(&plan->program, &plan->program.units[u]);
        if (plan->program.units[u].router_unit != (int32_t)router_unit) continue;
        const struct atsi_unit_times *d = &plan->decode_times[u], *p = &plan->prefill_times[u];
        atsi_slot_times_add(op->u.experts.in_per_slot ? &t.token.last : &t.token.first,
                            &(struct atsi_slot_times){.cpu_us = d->cpu_us * c->cpu_beside_link,
                                                      .gpu_us = d->gpu_us,
                                                      .link_us = d->transfer_us * c->link_in_place,
                                                      .fetch_us = d->transfer_us * c->link_beside_cpu,
                                                      .cpu_fixed_us = d->cpu_fixed_us,
                                                      .gpu_fixed_us = d->gpu_fixed_us});
        t.token.handover_us = fmax(t.token.handover_us, d->switch_us);
        t.cpu_us += p->cpu_us;
        t.streamed_us += atsi_streamed_us(plan, u, ATSI_PREFILL);
        t.gpu_us += p->gpu_us;
    }
    return t;
}

// Behind it the CPU's part begins with a hand-over.
static double decode_us_of(const struct atsi_expert_times *t, uint32_t n_used, double hit_rate) {
    struct atsi_slot_division d;
    double uneven_us;
    if (n_used <= ATSI_DIVIDED_SLOTS_MAX) {
        atsi_divide_slots(t, n_used, hit_rate, &d);
        return atsi_divided_us(t, &d, hit_rate, &uneven_us) + (d.gpu_slots[0] < n_used ? t->handover_us : 0);
    }
    struct atsi_slot_times all = t->first;
    atsi_slot_times_add(&all, &t->last);
    uint32_t k = atsi_best_slots(&all, n_used, hit_rate);
    return atsi_slots_us(&all, k, n_used, hit_rate) + (k < n_used ? 2 * t->handover_us : 0);
}

static void price_router(struct atsi_expert_router *r, const struct atsi_plan *plan, const struct atsi_objective *o,
                         bool streamed) {
    struct router_times t = times_of(plan, r->unit);
    double hit_rate = 0, none_us = decode_us_of(&t.token, r->n_used, 0),
           chunk_us = streamed ? t.streamed_us - t.gpu_us : 0;
    r->saved_us[0] = 0;
    for (uint32_t n = 1; n < r->n_experts; n++) {
        hit_rate = fmin(1, hit_rate + r->shares[n - 1]);
        r->saved_us[n] = atsi_objective_us(o, plan, none_us - decode_us_of(&t.token, r->n_used, hit_rate),
                                           chunk_us * n / r->n_experts);
    }
    r->saved_us[r->n_experts] = atsi_objective_us(o, plan, none_us - t.token.first.gpu_us - t.token.last.gpu_us,
                                                  (streamed ? t.streamed_us : t.cpu_us) - t.gpu_us);
}

void atsi_hot_experts_price(struct atsi_hot_experts *h, const struct atsi_plan *plan,
                            const struct atsi_objective *objective, bool streamed) {
    for (uint32_t i = 0; i < h->n_routers; i++) price_router(&h->routers[i], plan, objective, streamed);
}

// ---- how many of each ---------------------------------------------------------------------------------------------

static uint64_t bytes_of(const struct atsi_expert_router *r, uint32_t n) {
    uint64_t whole_bytes = n == r->n_experts ? r->beside_bytes : 0;
    return n ? r->table_bytes + n * r->expert_bytes + whole_bytes : 0;
}

static uint32_t granules_of(const struct atsi_hot_experts *h, uint64_t bytes) {
    return (uint32_t)((bytes + h->granule_bytes - 1) / h->granule_bytes);
}

// What the first n_routers routers save at most, by granules.
static double *best_of(const struct atsi_hot_experts *h, uint32_t n_routers) {
    return h->best_us + n_routers * ((size_t)h->n_granules + 1);
}

// One number of residents, for n budgets: nothing but maxima, several of which a processor takes at once.
static void raise_to(double *restrict with, const double *restrict without, size_t n, double saved_us) {
    for (size_t x = 0; x < n; x++) {
        double us = without[x] + saved_us;
        with[x] = us > with[x] ? us : with[x];
    }
}

// One router more.
static void add_router(const struct atsi_hot_experts *h, uint32_t i_router) {
    const struct atsi_expert_router *r = &h->routers[i_router];
    const double *without = best_of(h, i_router);
    double *with = best_of(h, i_router + 1);
    memcpy(with, without, ((size_t)h->n_granules + 1) * sizeof *with);
    for (uint32_t n = 1; n <= r->n_experts; n++) {
        uint64_t size = granules_of(h, bytes_of(r, n));
        if (size <= h->n_granules) raise_to(with + size, without, h->n_granules + 1 - size, r->saved_us[n]);
    }
}

// How many of a router's experts the best with so many granules has: those whose sum it is.
static uint32_t n_taken(const struct atsi_hot_experts *h, uint32_t i_router, uint64_t granules) {
    const struct atsi_expert_router *r = &h->routers[i_router];
    const double *without = best_of(h, i_router);
    double us = best_of(h, i_router + 1)[granules];
    for (uint32_t n = 1; n <= r->n_experts && us != without[granules]; n++) {
        uint64_t size = granules_of(h, bytes_of(r, n));
        if (size <= granules && without[granules - size] + r->saved_us[n] == us) return n;
    }
    return 0;
}

// ---- what no numbers exceed ---------------------------------------------------------------------------------------
// If any part of an expert may be resident, what bytes save is concave and made of straight pieces: those of the least concave functions
// above what each router's numbers save, the steepest first.

struct corner {
    double bytes, us;
};

// From one corner to the next: the pieces of one router, by rising bytes. Returns how many.
static uint32_t list_pieces(const struct atsi_expert_router *r, struct corner *pieces) {
    uint32_t n = 0;
    for (uint32_t k = 1, last = 0; k <= r->n_experts; last = k++) {
        struct corner c = {(double)(bytes_of(r, k) - bytes_of(r, last)), r->saved_us[k] - r->saved_us[last]};
        while (n > 0 && c.us * pieces[n - 1].bytes >= pieces[n - 1].us * c.bytes) { // steeper than the one before it
            c.bytes += pieces[n - 1].bytes;
            c.us += pieces[n - 1].us;
            n--;
        }
        pieces[n++] = c;
    }
    while (n > 0 && pieces[n - 1].us <= 0) n--;
    return n;
}

static int compare_slopes(const void *a, const void *b) {
    const struct corner *x = a, *y = b;
    double left = x->us * y->bytes, right = y->us * x->bytes;
    return (left < right) - (left > right);
}

// The corners of the sum, from the first behind 0 on. NULL without memory.
static struct corner *list_corners(const struct atsi_hot_experts *h, uint32_t *n_corners) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < h->n_routers; i++) n += h->routers[i].n_experts;
    struct corner *corners = calloc((size_t)n + 1, sizeof *corners);
    *n_corners = 0;
    for (uint32_t i = 0; corners && i < h->n_routers; i++)
        *n_corners += list_pieces(&h->routers[i], corners + *n_corners);
    if (corners) qsort(corners, *n_corners, sizeof *corners, compare_slopes);
    for (uint32_t i = 1; i < *n_corners; i++) {
        corners[i].bytes += corners[i - 1].bytes;
        corners[i].us += corners[i - 1].us;
    }
    return corners;
}

// How far the corners between two points lie above the line between these; *next is the first behind `from`, and moves on to the first
// behind `to`.
static double bulge_of(const struct corner *corners, uint32_t n, uint32_t *next, struct corner from, struct corner to) {
    double most_us = 0;
    for (; *next < n && corners[*next].bytes <= to.bytes; ++*next) {
        double part = (corners[*next].bytes - from.bytes) / (to.bytes - from.bytes);
        most_us = fmax(most_us, corners[*next].us - from.us - part * (to.us - from.us));
    }
    return most_us;
}

// The function at `bytes`, behind corner i - 1 and not behind corner i.
static double value_at(const struct corner *corners, uint32_t n, uint32_t i, double bytes) {
    struct corner before = i > 0 ? corners[i - 1] : (struct corner){0, 0};
    if (i == n) return before.us;
    return before.us + (corners[i].us - before.us) * (bytes - before.bytes) / fmax(1, corners[i].bytes - before.bytes);
}

// A block ends at its part of the value or of the bytes, so that neither the hottest nor the coldest are in one too coarse.
static void make_blocks(struct atsi_hot_experts *h, const struct corner *corners, uint32_t n) {
    const uint32_t n_parts = ATSI_EXPERT_BLOCKS_MAX / 2 - 1; // by value and by bytes
    struct corner from = {0, 0}, end = {.bytes = (double)h->n_granules * (double)h->granule_bytes};
    uint32_t next = 0, i = 0, last = 0;
    while (last < n && corners[last].bytes < end.bytes) last++;
    end.us = value_at(corners, n, last, end.bytes);
    h->n_blocks = 0;
    for (uint32_t x = 1; x <= h->n_granules; x++) {
        struct corner to = {.bytes = (double)x * (double)h->granule_bytes};
        while (i < n && corners[i].bytes < to.bytes) i++;
        to.us = value_at(corners, n, i, to.bytes);
        double gain_us = to.us - from.us, bytes = to.bytes - from.bytes;
        bool ends = gain_us * n_parts >= end.us || bytes * n_parts >= end.bytes || x == h->n_granules;
        if (!(gain_us > 0) || !ends) continue;
        h->blocks[h->n_blocks++] =
            (struct atsi_expert_block){(uint64_t)bytes, gain_us, bulge_of(corners, n, &next, from, to)};
        from = to;
    }
}

// ---- the best numbers for every budget ----------------------------------------------------------------------------

static void set_granules(struct atsi_hot_experts *h, uint64_t most_bytes, uint64_t granule_bytes) {
    uint64_t all_bytes = 0;
    for (uint32_t i = 0; i < h->n_routers; i++) // with room for rounding each of them up
        all_bytes += bytes_of(&h->routers[i], h->routers[i].n_experts) + granule_bytes;
    if (most_bytes > all_bytes) most_bytes = all_bytes;
    h->granule_bytes = granule_bytes;
    while (most_bytes / h->granule_bytes > ATSI_EXPERT_GRANULES_MAX) h->granule_bytes *= 2;
    h->n_granules = (uint32_t)(most_bytes / h->granule_bytes);
}

enum atsi_status atsi_hot_experts_solve(struct atsi_hot_experts *h, uint64_t most_bytes, uint64_t granule_bytes,
                                        struct atsi_error *err) {
    set_granules(h, most_bytes, granule_bytes);
    size_t n = (size_t)h->n_granules + 1;
    free(h->best_us);
    h->best_us = calloc(n * (h->n_routers + 1), sizeof *h->best_us);
    uint32_t n_corners;
    struct corner *corners = list_corners(h, &n_corners);
    bool complete = h->best_us && corners;
    for (uint32_t i = 0; complete && i < h->n_routers; i++) add_router(h, i);
    if (complete) make_blocks(h, corners, n_corners);
    free(corners);
    return complete ? ATSI_OK : no_memory(err);
}

// Adds single experts while one that saves anything fits, the best by bytes first.
static void fill_rest(struct atsi_hot_experts *h, uint64_t left_bytes) {
    for (;;) {
        struct atsi_expert_router *best = NULL;
        double best_rate = 0;
        for (uint32_t i = 0; i < h->n_routers; i++) {
            struct atsi_expert_router *r = &h->routers[i];
            uint32_t n = h->n_resident[i];
            if (n == r->n_experts || bytes_of(r, n + 1) - bytes_of(r, n) > left_bytes) continue;
            double rate = (r->saved_us[n + 1] - r->saved_us[n]) / (double)r->expert_bytes;
            if (rate <= best_rate) continue;
            best_rate = rate;
            best = r;
        }
        if (!best) return;
        uint32_t *n = &h->n_resident[best - h->routers];
        left_bytes -= bytes_of(best, *n + 1) - bytes_of(best, *n);
        ++*n;
    }
}

double atsi_hot_experts_choose(struct atsi_hot_experts *h, uint64_t budget_bytes) {
    uint64_t left_bytes = budget_bytes, x = budget_bytes / h->granule_bytes;
    double saved_us = 0;
    if (x > h->n_granules) x = h->n_granules;
    for (uint32_t i = h->n_routers; i-- > 0;) {
        const struct atsi_expert_router *r = &h->routers[i];
        h->n_resident[i] = n_taken(h, i, x);
        x -= granules_of(h, bytes_of(r, h->n_resident[i]));
        left_bytes -= bytes_of(r, h->n_resident[i]);
    }
    fill_rest(h, left_bytes);
    for (uint32_t i = 0; i < h->n_routers; i++) saved_us += h->routers[i].saved_us[h->n_resident[i]];
    return saved_us;
}

// ---- in the plan --------------------------------------------------------------------------------------------------

static void move_to_gpu(struct atsi_plan *plan, uint32_t router_unit) {
    for (uint32_t u = 0; u < plan->program.n_units; u++)
        if (plan->program.units[u].router_unit == (int32_t)router_unit) plan->program.units[u].backend = ATSI_GPU;
}

// Of n residents.
static double hit_rate_of(const struct atsi_hot_experts *h, const struct atsi_expert_router *r, uint32_t n,
                          enum atsi_hit_rates rates) {
    double hit_rate = 0;
    if (rates == ATSI_HITS_EVEN) return (double)n / r->n_experts;
    if (!h->counted) return guessed_share(n, r->n_experts, ATSI_GUESS_BOLD);
    for (uint32_t i = 0; i < n; i++) hit_rate += r->shares[i];
    return fmin(1, hit_rate);
}

static enum atsi_status apply_router(const struct atsi_expert_router *r, uint32_t n, double hit_rate,
                                     struct atsi_resident_experts *out, struct atsi_error *err) {
    out->ids = malloc(n * sizeof *out->ids);
    if (!out->ids) return no_memory(err);
    memcpy(out->ids, r->ids, n * sizeof *out->ids);
    out->n = n;
    out->hit_rate = (float)hit_rate;
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
        ATSI_TRY(apply_router(r, n, hit_rate_of(h, r, n, rates), &plan->resident_experts[r->unit], err));
    }
    return ATSI_OK;
}
