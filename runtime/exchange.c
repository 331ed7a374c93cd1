#include "runtime/exchange.h"

#include <math.h>
#include <stdlib.h>

#include "formats/base/clock.h"
#include "runtime/wants.h"

static const double default_part = 0.02, default_sigmas = 2.5;
static const double unplanned_bytes_per_us = 1e4; // of the link, where the plan has no times
static const double noticeable_hits = 0.02;
static const double longest_us = 200e3; // of a large exchange: nobody should take it for an end of the text

enum {
    PRICING_ROUNDS = 16, // of one token, between two looks at whether rounds should take another time
    SAVED_ROUNDS = 50,   // whose time for exchanges may be saved
    BURST = 5,           // a round may take so many times its part
    MOST_EXCHANGES = 64, // between two rounds
    // Large exchanges: tokens to come below which none is worth its while, tokens that one counts on at most (texts end, and change), and
    // tokens of a text after which there is a second look.
    FEWEST_TOKENS = 16,
    MOST_TOKENS = 128,
    SECOND_LOOK = 32
};

// Of one router, beside weights->experts.routers.
struct exchanged_router {
    struct atsi_wants wants;
    uint32_t i_router;  // as the routing counts
    uint32_t end_unit;  // behind the last unit that it has experts in
    double planned;     // hit rate
    double priced;      // hit rate that rounds at work are priced for
    double exchange_us; // of one expert, by the plan
    double hit_us;      // that a token saves when it finds an expert
    double *rates;      // [n_experts] tokens that want each, as estimated for a large exchange
    struct atsi_wanted wanted;
    bool changed; // its device table is not that of the host
};

// One that has been begun.
struct large_exchange {
    bool is_under_way;
    double began_us, hit_rate; // hit_rate: expected before it
    uint32_t n_before;         // experts exchanged before it
    uint64_t bytes_before;
};

struct atsi_exchange {
    struct atsi_exchange_params params;
    struct atsi_experts *experts;
    struct exchanged_router *routers;        // [experts->n_routers]
    double credit_us;                        // that exchanges may take
    double round_us;                         // of the last round
    double dearest_us;                       // exchange
    struct atsi_resident_experts *residents; // [n_units] for pricing
    uint32_t n_rounds, n_exchanged;
    uint64_t exchanged_bytes;
    uint32_t n_to_come, n_since, next_look; // tokens; since what is to come was said, and when there is another look
    struct large_exchange began;
    struct atsi_large_exchanges large;
};

static const struct atsi_plan *plan_of(const struct atsi_exchange *x) { return &x->params.weights->model->plan; }

// The units behind a router that has experts in them, one by one: *cursor from 0, false at the end.
static bool next_unit(const struct atsi_exchange *x, uint32_t i, uint32_t *cursor, uint32_t *unit) {
    if (*cursor == 0) *cursor = x->experts->routers[i].unit + 1;
    for (; *cursor < x->routers[i].end_unit; (*cursor)++) {
        if (!atsi_router_experts_has(plan_of(x), &x->experts->routers[i], *cursor)) continue;
        *unit = (*cursor)++;
        return true;
    }
    return false;
}

// ---- opening ------------------------------------------------------------------------------------------------------

static uint32_t router_index(const struct atsi_program *p, uint32_t i_unit) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->units[i_unit].first_op; i++) n += p->ops[i].kind == ATSI_OP_ROUTER;
    return n;
}

static uint32_t find_end_unit(const struct atsi_exchange *x, uint32_t i) {
    uint32_t u = plan_of(x)->program.n_units;
    while (u > 0 && !atsi_router_experts_has(plan_of(x), &x->experts->routers[i], u - 1)) u--;
    return u;
}

// A token's experts take transfer_us over the link, all n_used of them.
static double exchange_us(const struct atsi_exchange *x, uint32_t i) {
    const struct atsi_plan *plan = plan_of(x);
    uint32_t cursor = 0, u;
    double us = 0;
    while (next_unit(x, i, &cursor, &u))
        us += plan->decode_times ? plan->decode_times[u].transfer_us / x->experts->routers[i].n_used
                                 : (double)atsi_expert_bytes(&plan->program, u) / unplanned_bytes_per_us;
    return us;
}

// Both sides read what is absent at once, each at its rate beside the other, so their rates add up.
static double hit_us(const struct atsi_exchange *x, uint32_t i) {
    const struct atsi_plan *plan = plan_of(x);
    uint32_t cursor = 0, u;
    double cpu_us = 0, link_us = 0;
    if (!plan->decode_times) return x->routers[i].exchange_us;
    while (next_unit(x, i, &cursor, &u)) {
        const struct atsi_unit_times *t = &plan->decode_times[u];
        cpu_us += (t->cpu_us - t->cpu_fixed_us) * plan->contention.cpu_beside_link;
        link_us += t->transfer_us * plan->contention.link_in_place;
    }
    return cpu_us > 0 && link_us > 0 ? 1 / (1 / cpu_us + 1 / link_us) / x->experts->routers[i].n_used : 0;
}

static enum atsi_status open_router(struct atsi_exchange *x, uint32_t i, struct atsi_error *err) {
    const struct atsi_router_experts *e = &x->experts->routers[i];
    struct exchanged_router *r = &x->routers[i];
    *r = (struct exchanged_router){.i_router = router_index(&plan_of(x)->program, e->unit),
                                   .end_unit = find_end_unit(x, i),
                                   .planned = e->hit_rate,
                                   .priced = e->hit_rate};
    r->exchange_us = exchange_us(x, i);
    r->hit_us = hit_us(x, i);
    r->rates = calloc(e->n_experts, sizeof *r->rates);
    if (!r->rates) return atsi_fail(err, ATSI_FAILED, "out of memory while creating the session");
    x->dearest_us = fmax(x->dearest_us, r->exchange_us);
    return atsi_wants_start(&r->wants, e->n_experts, e->n_used, e->slots, e->hit_rate, err);
}

enum atsi_status atsi_exchange_create(const struct atsi_exchange_params *params, struct atsi_exchange **out,
                                      struct atsi_error *err) {
    struct atsi_exchange *x = calloc(1, sizeof *x);
    *out = NULL;
    if (!x) return atsi_fail(err, ATSI_FAILED, "out of memory while creating the session");
    *x = (struct atsi_exchange){.params = *params, .experts = &params->weights->experts};
    if (x->params.part == 0) x->params.part = default_part;
    if (x->params.sigmas == 0) x->params.sigmas = default_sigmas;
    x->routers = calloc(x->experts->n_routers + 1, sizeof *x->routers);
    x->residents = calloc(plan_of(x)->program.n_units, sizeof *x->residents);
    enum atsi_status status =
        x->routers && x->residents ? ATSI_OK : atsi_fail(err, ATSI_FAILED, "out of memory while creating the session");
    for (uint32_t i = 0; status == ATSI_OK && i < x->experts->n_routers; i++) status = open_router(x, i, err);
    if (status == ATSI_OK)
        *out = x;
    else
        atsi_exchange_free(x);
    return status;
}

void atsi_exchange_free(struct atsi_exchange *x) {
    if (!x) return;
    for (uint32_t i = 0; x->routers && i < x->experts->n_routers; i++) {
        atsi_wants_free(&x->routers[i].wants);
        free(x->routers[i].rates);
    }
    free(x->routers);
    free(x->residents);
    free(x);
}

// ---- exchanging ---------------------------------------------------------------------------------------------------

static int32_t expert_tensor(const struct atsi_exchange *x, uint32_t u) {
    return atsi_unit_experts_op(&plan_of(x)->program, &plan_of(x)->program.units[u])->tensor[0];
}

// The copies do not stop anybody: everything is pinned.
static bool can_exchange(const struct atsi_exchange *x, uint32_t i) {
    uint32_t cursor = 0, u;
    if (!x->experts->routers[i].are_there || !x->experts->tables_are_pinned) return false;
    while (next_unit(x, i, &cursor, &u))
        if (!x->params.weights->mapped[expert_tensor(x, u)]) return false;
    return true;
}

static enum atsi_status bring(struct atsi_exchange *x, uint32_t i, uint32_t expert, uint32_t place,
                              struct atsi_error *err) {
    struct atsi_router_experts *e = &x->experts->routers[i];
    uint32_t cursor = 0, u;
    while (next_unit(x, i, &cursor, &u)) {
        uint64_t bytes = atsi_expert_bytes(&plan_of(x)->program, u);
        const char *host = (const char *)x->params.weights->host[expert_tensor(x, u)] + expert * bytes;
        char *dev = (char *)(uintptr_t)x->experts->refs[ATSI_GPU][u].data + place * bytes;
        ATSI_TRY(atsi_executor_copy(x->params.executor, dev, host, bytes, err));
        x->exchanged_bytes += bytes;
    }
    e->slots[e->ids[place]] = -1;
    e->slots[expert] = (int32_t)place;
    e->ids[place] = (uint16_t)expert;
    x->routers[i].changed = true;
    x->n_exchanged++;
    return ATSI_OK;
}

// A table is copied once it is as it will be in the coming round.
static enum atsi_status copy_tables(struct atsi_exchange *x, struct atsi_error *err) {
    for (uint32_t i = 0; i < x->experts->n_routers; i++) {
        const struct atsi_router_experts *e = &x->experts->routers[i];
        if (!x->routers[i].changed) continue;
        void *table = (void *)(uintptr_t)x->experts->refs[ATSI_GPU][e->unit].slots;
        ATSI_TRY(atsi_executor_copy(x->params.executor, table, e->slots, e->n_experts * sizeof *e->slots, err));
        x->routers[i].changed = false;
    }
    return ATSI_OK;
}

// Says what of a router is to be exchanged next: its `wanted`, gain 0 where nothing is.
typedef void look_fn(struct atsi_exchange *x, uint32_t i);

static void look(struct atsi_exchange *x, uint32_t i) {
    struct exchanged_router *r = &x->routers[i];
    r->wanted = atsi_wants_exchange(&r->wants, x->experts->routers[i].slots, x->params.sigmas);
}

// The router whose exchange saves most for its time, of those that can be paid for; NULL: none.
static struct exchanged_router *find_best(struct atsi_exchange *x, double left_us) {
    struct exchanged_router *best = NULL;
    for (uint32_t i = 0; i < x->experts->n_routers; i++) {
        struct exchanged_router *r = &x->routers[i];
        if (!(r->wanted.gain != 0) || r->exchange_us > left_us) continue;
        if (!best || r->wanted.gain > best->wanted.gain) best = r;
    }
    return best;
}

// The best exchanges that `look` finds, up to so many and as long as they can be paid for. Adds what they take to *spent_us.
static enum atsi_status exchange_best(struct atsi_exchange *x, look_fn *look_at, uint32_t most, double most_us,
                                      double *spent_us, struct atsi_error *err) {
    struct exchanged_router *best;
    *spent_us = 0;
    for (uint32_t i = 0; i < x->experts->n_routers; i++) {
        x->routers[i].wanted = (struct atsi_wanted){0};
        if (can_exchange(x, i)) look_at(x, i);
    }
    for (uint32_t k = 0; k < most && (best = find_best(x, most_us - *spent_us)) != NULL; k++) {
        uint32_t i = (uint32_t)(best - x->routers);
        ATSI_TRY(bring(x, i, best->wanted.expert, best->wanted.place, err));
        *spent_us += best->exchange_us;
        look_at(x, i);
    }
    return copy_tables(x, err);
}

// A hit saves about what bringing an expert takes, so the gain in hits is the gain by time.
static enum atsi_status exchange_some(struct atsi_exchange *x, struct atsi_error *err) {
    double most_us = fmin(x->credit_us, fmax(BURST * x->params.part * x->round_us, x->dearest_us)), spent_us;
    if (most_us < x->dearest_us) return ATSI_OK;
    enum atsi_status status = exchange_best(x, look, MOST_EXCHANGES, most_us, &spent_us, err);
    x->credit_us -= spent_us;
    return status;
}

// ---- large exchanges ----------------------------------------------------------------------------------------------

void atsi_exchange_expect(struct atsi_exchange *x, uint32_t n_tokens) {
    if (!x) return;
    x->n_to_come = n_tokens;
    x->n_since = x->next_look = 0;
}

// What is coming back piece by piece must not change meanwhile.
static bool may_exchange(const struct atsi_exchange *x) {
    const struct atsi_weights *w = x->params.weights;
    return !x->params.never && w->filled_bytes <= w->resident.end_bytes[w->n_resident];
}

static bool may_be_large(const struct atsi_exchange *x) {
    return !x->params.never_large && x->n_to_come >= FEWEST_TOKENS && x->n_since >= x->next_look;
}

// An exchange has to pay for itself with the tokens to come.
static void look_ahead(struct atsi_exchange *x, uint32_t i) {
    struct exchanged_router *r = &x->routers[i];
    double n_tokens = x->n_to_come < MOST_TOKENS ? x->n_to_come : MOST_TOKENS;
    r->wanted = atsi_wants_exchange_by(r->rates, r->wants.n_experts, x->experts->routers[i].slots);
    r->wanted.gain = fmax(0, r->wanted.gain * n_tokens * r->hit_us - r->exchange_us);
}

// Of what the router chooses, the part that is resident, by the estimated rates.
static double estimated_hit_rate(const struct atsi_exchange *x, uint32_t i) {
    const struct atsi_router_experts *e = &x->experts->routers[i];
    double hits = 0, all = 0;
    if (!e->are_there) return 0;
    for (uint32_t k = 0; k < e->n_experts; k++) {
        all += x->routers[i].rates[k];
        hits += e->slots[k] >= 0 ? x->routers[i].rates[k] : 0;
    }
    return all > 0 ? hits / all : 0;
}

static double mean_estimated_hit_rate(const struct atsi_exchange *x) {
    double sum = 0;
    for (uint32_t i = 0; i < x->experts->n_routers; i++) sum += estimated_hit_rate(x, i);
    return sum / x->experts->n_routers;
}

// Rounds at work take another time when more or fewer hits are to be expected: so that the recorder does not take that for another speed
// of the link.
static void price_again(struct atsi_exchange *x) {
    bool noticeable = false;
    for (uint32_t i = 0; i < x->experts->n_routers; i++)
        noticeable |= fabs(x->experts->routers[i].hit_rate - x->routers[i].priced) > noticeable_hits;
    if (!noticeable) return;
    for (uint32_t i = 0; i < x->experts->n_routers; i++) x->routers[i].priced = x->experts->routers[i].hit_rate;
    atsi_experts_describe(x->experts, x->residents);
    atsi_executor_reprice(x->params.executor, x->residents);
}

// Hit rates of what has left say nothing of what has come.
static void renew_hit_rates(struct atsi_exchange *x) {
    for (uint32_t i = 0; i < x->experts->n_routers; i++) {
        if (!x->experts->routers[i].are_there) continue;
        double hit_rate = estimated_hit_rate(x, i);
        atsi_wants_restart_hits(&x->routers[i].wants, hit_rate);
        x->experts->routers[i].hit_rate = (float)hit_rate;
    }
    price_again(x);
}

// Whatever pays for itself is exchanged at once; the copies are under way when this returns.
static enum atsi_status begin_large(struct atsi_exchange *x, struct atsi_error *err) {
    double spent_us;
    x->next_look = x->n_since < SECOND_LOOK ? SECOND_LOOK : 2 * x->n_since;
    for (uint32_t i = 0; i < x->experts->n_routers; i++)
        atsi_wants_estimate(&x->routers[i].wants, x->experts->routers[i].slots, x->routers[i].rates);
    x->began = (struct large_exchange){.is_under_way = true,
                                       .began_us = atsi_clock_us(),
                                       .hit_rate = mean_estimated_hit_rate(x),
                                       .n_before = x->n_exchanged,
                                       .bytes_before = x->exchanged_bytes};
    enum atsi_status status = exchange_best(x, look_ahead, UINT32_MAX, longest_us, &spent_us, err);
    x->began.is_under_way = x->n_exchanged > x->began.n_before;
    if (x->began.is_under_way) renew_hit_rates(x);
    return status;
}

// Waited for: rounds beside so many copies would be slow ones.
static enum atsi_status end_large(struct atsi_exchange *x, struct atsi_error *err) {
    struct atsi_large_exchanges *l = &x->large;
    if (!x->began.is_under_way) return ATSI_OK;
    x->began.is_under_way = false;
    ATSI_TRY(atsi_executor_settle(x->params.executor, err));
    double took_us = atsi_clock_us() - x->began.began_us;
    if (l->n == 0) l->hit_rate_before = x->began.hit_rate;
    l->n++;
    l->n_exchanged += x->n_exchanged - x->began.n_before;
    l->bytes += x->exchanged_bytes - x->began.bytes_before;
    l->took_us += took_us;
    l->longest_us = fmax(l->longest_us, took_us);
    l->hit_rate_after = mean_estimated_hit_rate(x);
    atsi_trace_span(x->params.trace, ATSI_LANE_DECISION, "large exchange of experts", x->began.began_us, took_us);
    return ATSI_OK;
}

enum atsi_status atsi_exchange_before_text(struct atsi_exchange *x, uint32_t n_tokens, struct atsi_error *err) {
    if (!x || n_tokens > 1 || x->n_since > 0 || !may_exchange(x) || !may_be_large(x)) return ATSI_OK;
    return begin_large(x, err);
}

enum atsi_status atsi_exchange_before_round(struct atsi_exchange *x, uint32_t n_tokens, struct atsi_error *err) {
    if (!x || n_tokens > 1 || !may_exchange(x)) return ATSI_OK;
    if (x->began.is_under_way) return end_large(x, err);
    if (!may_be_large(x)) return exchange_some(x, err);
    ATSI_TRY(begin_large(x, err));
    return end_large(x, err);
}

// ---- counting -----------------------------------------------------------------------------------------------------

static void count_router(struct atsi_exchange *x, uint32_t i, uint32_t n_tokens) {
    struct exchanged_router *r = &x->routers[i];
    const int32_t *ids = atsi_routing_chosen(x->params.routing, r->i_router);
    uint64_t n_hits = r->wants.n_hits;
    for (uint32_t t = 0; t < n_tokens; t++)
        atsi_wants_note(&r->wants, ids + (uint64_t)t * r->wants.n_used, x->experts->routers[i].slots);
    if (!x->experts->routers[i].are_there) r->wants.n_hits = n_hits; // recent ones say what their return is worth
    x->experts->routers[i].hit_rate = (float)atsi_wants_hit_rate(&r->wants);
}

static void pay(struct atsi_exchange *x, double round_us) {
    double us = x->params.part * round_us;
    x->round_us = round_us;
    x->credit_us = fmin(x->credit_us + us, SAVED_ROUNDS * us);
}

void atsi_exchange_after_round(struct atsi_exchange *x, uint32_t n_tokens, double round_us) {
    if (!x) return;
    for (uint32_t i = 0; i < x->experts->n_routers; i++) count_router(x, i, n_tokens);
    if (n_tokens > 1) return;
    pay(x, round_us);
    x->n_since++;
    if (x->n_to_come > 0) x->n_to_come--;
    if (++x->n_rounds % PRICING_ROUNDS == 0) price_again(x);
}

// ---- telling ------------------------------------------------------------------------------------------------------

struct atsi_exchange_figures atsi_exchange_figures(const struct atsi_exchange *x) {
    struct atsi_exchange_figures f = {
        .n_exchanged = x->n_exchanged, .exchanged_bytes = x->exchanged_bytes, .large = x->large};
    double n_hits = 0, n_chosen = 0;
    uint32_t n = x->experts->n_routers, u;
    for (uint32_t i = 0; i < n; i++) {
        const struct atsi_router_experts *e = &x->experts->routers[i];
        f.n_resident += e->are_there ? e->n : 0;
        f.n_experts += e->n_experts;
        f.expected += x->routers[i].planned / n;
        f.hit_rate_lately += e->are_there ? atsi_wants_seen_hit_rate(&x->routers[i].wants) / n : 0;
        n_hits += (double)x->routers[i].wants.n_hits;
        n_chosen += (double)x->routers[i].wants.n_chosen;
        for (uint32_t cursor = 0; e->are_there && next_unit(x, i, &cursor, &u);)
            f.resident_bytes += atsi_router_experts_block_bytes(plan_of(x), e, u);
    }
    f.hit_rate = n_chosen > 0 ? n_hits / n_chosen : 0;
    return f;
}

void atsi_exchange_report(FILE *f, const struct atsi_exchange *x) {
    struct atsi_exchange_figures s = atsi_exchange_figures(x);
    fprintf(
        f,
        "resident %u of %u experts one by one, %.1f MiB; of those chosen %.1f %% were among them, %.1f %% lately, %.1f "
        "%% were expected; %u exchanged, %.1f MiB\n",
        s.n_resident, s.n_experts, (double)s.resident_bytes / 0x1p20, 100 * s.hit_rate, 100 * s.hit_rate_lately,
        100 * s.expected, s.n_exchanged, (double)s.exchanged_bytes / 0x1p20);
    if (s.large.n == 0) return;
    fprintf(
        f,
        "exchange %u large ones ahead of a token: %u experts, %.1f MiB, in %.1f ms, the longest %.1f ms; %.1f %% of "
        "those chosen were expected to be resident, then %.1f %%\n",
        s.large.n, s.large.n_exchanged, (double)s.large.bytes / 0x1p20, s.large.took_us * 1e-3,
        s.large.longest_us * 1e-3, 100 * s.large.hit_rate_before, 100 * s.large.hit_rate_after);
}
