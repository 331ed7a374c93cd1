#include "runtime/schedule/script_cost.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/schedule/shares.h"

#include "runtime/schedule/hits.h"

uint32_t atsi_script_device_run(const struct atsi_script *s, uint32_t first) {
    uint32_t n = 0, end = first < s->tail ? s->tail : s->n_actions;
    while (first + n < end &&
           (s->actions[first + n].kind == ATSI_ACTION_CROSS || s->actions[first + n].kind == ATSI_ACTION_GPU))
        n++;
    return n;
}

bool atsi_script_waits_for_transfers(const struct atsi_script *s, uint32_t i) {
    while (i > 0 && s->actions[i].kind != ATSI_ACTION_RECORD) i--;
    while (i-- > 0 && s->actions[i].kind != ATSI_ACTION_RECORD)
        if (s->actions[i].kind == ATSI_ACTION_AWAIT) return true;
    return false;
}

// ---- costs --------------------------------------------------------------------------------------------------------

static double big_bytes(const struct atsi_program *p, const struct atsi_op *op) {
    double bytes = 0;
    for (int k = 0; k < ATSI_OP_MAX_TENSORS; k++)
        if (op->tensor[k] != ATSI_NONE && !atsi_tensor_is_small(&p->tensors[op->tensor[k]]))
            bytes += (double)p->tensors[op->tensor[k]].size_bytes;
    return bytes;
}

static double unit_bytes(const struct atsi_program *p, const struct atsi_unit *u) {
    double bytes = 0;
    for (uint32_t i = u->first_op; i < u->first_op + u->n_ops; i++) bytes += big_bytes(p, &p->ops[i]);
    return bytes;
}

struct builder {
    const struct atsi_plan *plan;
    const struct atsi_script *script;
    const struct atsi_schedule_unit *units;
    uint32_t n_tokens;
    double beside_link, in_place, beside_cpu; // how much slower both sides are for sharing the host's memory
    bool waits_for_transfer;                  // the steps at hand read what an AWAIT brought
    uint32_t unit;                            // of the step at hand
    double unit_bytes;                        // of its matrices
    struct atsi_script_cost *out;
};

static bool is_in_unit(const struct atsi_unit *u, uint32_t i_op) {
    return i_op - u->first_op < u->n_ops; // unsigned: one before wraps
}

// Most steps are of the unit of the step before, or of the next one.
static uint32_t find_unit(struct builder *b, uint32_t i_op) {
    const struct atsi_program *p = &b->plan->program;
    if (is_in_unit(&p->units[b->unit], i_op)) return b->unit;
    bool is_next = b->unit + 1 < p->n_units && is_in_unit(&p->units[b->unit + 1], i_op);
    b->unit = is_next ? b->unit + 1 : atsi_program_unit_of(p, i_op);
    b->unit_bytes = unit_bytes(p, &p->units[b->unit]);
    return b->unit;
}

// The part of the time of the unit at hand that an operation takes: by bytes where the unit has matrices, else alike.
static double weight_in_unit(const struct builder *b, uint32_t i_op) {
    const struct atsi_program *p = &b->plan->program;
    return b->unit_bytes > 0 ? big_bytes(p, &p->ops[i_op]) / b->unit_bytes : 1.0 / p->units[b->unit].n_ops;
}

static bool uses_link(const struct atsi_script *s) {
    for (uint32_t i = 0; i < s->n_steps; i++)
        if (s->steps[i].promoted) return true;
    return false;
}

// Of a whole unit that is promoted.
static double bytes_over_link(const struct builder *b, uint32_t u) {
    const struct atsi_program *p = &b->plan->program;
    return (double)atsi_transfer_bytes(p, &p->units[u], b->n_tokens) * atsi_absent_part(b->plan, u, b->n_tokens);
}

// What slots that are divided token by token give each side on average.
static struct atsi_divided_work divided_work(const struct builder *b, uint32_t i_unit) {
    const struct atsi_resident_experts *r = atsi_plan_resident_experts(b->plan, i_unit);
    const struct atsi_slot_division *d = &b->script->divisions[b->plan->program.units[i_unit].router_unit];
    return atsi_divided_work(d, r ? r->hit_rate : 0);
}

// What a step does of an operation: the part of its output, and how likely there is any.
struct step_work {
    double part, any;
    double absent_part; // of the absent weights, for a step that is divided token by token
};

static struct step_work work_of_step(const struct builder *b, const struct atsi_step *s, uint32_t i_unit) {
    if (!s->by_token)
        return (struct step_work){(double)(s->end - s->begin) / b->plan->program.ops[s->op].out[0].width, 1, 0};
    struct atsi_divided_work work = divided_work(b, i_unit);
    if (s->backend == ATSI_CPU) return (struct step_work){1 - work.gpu_part, work.any_on_cpu, 0};
    return (struct step_work){work.gpu_part, work.any_on_gpu, work.absent_part};
}

// What it takes of an operation that takes whole_us, fixed_us of it for any part of its output.
static double step_us(const struct step_work *work, double whole_us, double fixed_us) {
    return work->any * fixed_us + work->part * (whole_us - fixed_us);
}

// The part of an operation's absent weights that a step reads: of one token's experts those come last that are not resident.
static double absent_in_step(const struct builder *b, const struct atsi_step *s, uint32_t i_unit,
                             const struct step_work *work) {
    const struct atsi_op *op = &b->plan->program.ops[s->op];
    const struct atsi_resident_experts *r = atsi_plan_resident_experts(b->plan, i_unit);
    double width = op->out[0].width;
    if (s->by_token) return work->absent_part;
    if (!r || b->n_tokens > 1 || op->kind != ATSI_OP_EXPERTS) return (s->end - s->begin) / width;
    uint32_t n_used = op->u.experts.n_used, rows = op->out[0].width / n_used;
    double all = atsi_expected_misses(n_used, n_used, r->hit_rate);
    double here = atsi_expected_misses(s->end / rows, n_used, r->hit_rate) -
                  atsi_expected_misses(s->begin / rows, n_used, r->hit_rate);
    return all > 0 ? here / all : 0;
}

// What a token takes all of whose slots are on the step's side, and none of them resident.
static double all_slots_us(const struct builder *b, const struct atsi_step *s, uint32_t i_unit) {
    struct atsi_slot_times t = atsi_slot_times_of(b->plan, i_unit, &b->units[i_unit], 1);
    return s->backend == ATSI_CPU ? t.cpu_us : s->fetches ? t.fetch_us : t.gpu_us + t.link_us;
}

// *fetch_us: what a step fetches takes the link for, beside the steps behind it.
static void add_step(struct builder *b, const struct atsi_step *s, struct atsi_split_cost *cost, double *fetch_us) {
    uint32_t u = find_unit(b, s->op);
    double weight = weight_in_unit(b, s->op);
    const struct atsi_schedule_unit *unit = &b->units[u];
    struct step_work work = work_of_step(b, s, u);
    if (s->backend == ATSI_CPU)
        cost->cpu_us += (float)(weight * step_us(&work, unit->t_cpu_us * b->beside_link, unit->cpu_fixed_us));
    else if (!s->fetches)
        cost->gpu_us += (float)(weight * step_us(&work, unit->t_gpu_us, unit->gpu_fixed_us));
    if (s->by_token || s->fetches) cost->most_us += (float)(weight * all_slots_us(b, s, u));
    if (!s->promoted || s->fetched || b->waits_for_transfer) return;
    double absent = absent_in_step(b, s, u, &work) * weight;
    double link_us = absent * b->units[u].transfer_us * (s->fetches ? b->beside_cpu : b->in_place); // a fetch is a copy
    b->out->link_bytes += absent * bytes_over_link(b, u);
    if (s->fetches)
        *fetch_us += link_us;
    else
        cost->link_us += (float)link_us;
}

static void add_cpu_action(struct builder *b, uint32_t i_action) {
    const struct atsi_action *a = &b->script->actions[i_action];
    const struct atsi_step *first = &b->script->steps[a->first];
    double any = first->by_token ? divided_work(b, find_unit(b, first->op)).any_on_cpu : 1;
    b->out->splits[i_action].cpu_us = (float)(any * b->plan->cpu_start_us);
    double fetch_us = 0; // the CPU fetches nothing
    for (uint32_t i = a->first; i < a->first + a->n; i++)
        add_step(b, &b->script->steps[i], &b->out->splits[i_action], &fetch_us);
}

// The steps behind an AWAIT tell which unit it waits for.
static void add_transfer(struct builder *b, uint32_t i_action) {
    for (uint32_t i = i_action + 1; i < b->script->n_actions; i++)
        if (b->script->actions[i].kind == ATSI_ACTION_GPU) {
            uint32_t u = find_unit(b, b->script->steps[b->script->actions[i].first].op);
            b->out->splits[i_action].link_us = (float)(b->units[u].transfer_us * b->beside_cpu);
            b->out->link_bytes += bytes_over_link(b, u);
            return;
        }
}

// A run ends with what it fetches: what that takes longer than the steps behind it is the link's.
static void add_run(struct builder *b, uint32_t first, uint32_t n) {
    struct atsi_split_cost *cost = &b->out->splits[first];
    double fetch_us = 0, before_us = 0;
    for (uint32_t k = first; k < first + n; k++) {
        const struct atsi_action *a = &b->script->actions[k];
        if (a->kind != ATSI_ACTION_GPU) continue;
        for (uint32_t i = a->first; i < a->first + a->n; i++) {
            const struct atsi_step *s = &b->script->steps[i];
            if (s->fetches && fetch_us == 0) before_us = cost->gpu_us;
            add_step(b, s, cost, &fetch_us);
        }
    }
    double beside_us = cost->gpu_us - before_us;
    if (fetch_us > beside_us) cost->link_us += (float)(fetch_us - beside_us);
}

static void add_actions(struct builder *b) {
    const struct atsi_script *s = b->script;
    for (uint32_t i = 0, n; i < s->n_actions; i += n ? n : 1) {
        const struct atsi_action *a = &s->actions[i];
        n = atsi_script_device_run(s, i);
        if (n) add_run(b, i, n);
        if (a->kind == ATSI_ACTION_CPU) add_cpu_action(b, i);
        if (a->kind == ATSI_ACTION_AWAIT) add_transfer(b, i);
        b->waits_for_transfer =
            (b->waits_for_transfer || a->kind == ATSI_ACTION_AWAIT) && a->kind != ATSI_ACTION_CONSUMED;
    }
}

// By how much more the sides wait for each other where slots are divided token by token than their means tell.
static double sum_uneven_us(const struct builder *b) {
    const struct atsi_program *p = &b->plan->program;
    double sum = 0, uneven_us;
    int32_t router = ATSI_NONE;
    for (uint32_t i = 0; i < b->script->n_steps; i++) {
        const struct atsi_step *s = &b->script->steps[i];
        struct atsi_expert_times times;
        uint32_t n_used;
        if (!s->by_token || p->ops[s->op].kind != ATSI_OP_EXPERTS) continue;
        int32_t its_router = p->units[atsi_program_unit_of(p, s->op)].router_unit;
        if (its_router == router) continue;
        router = its_router;
        if (!atsi_expert_times_of(b->plan, (uint32_t)router, b->units, NULL, NULL, &times, &n_used)) continue;
        atsi_divided_us(&times, &b->script->divisions[router], b->plan->resident_experts[router].hit_rate, &uneven_us);
        sum += uneven_us;
    }
    return sum;
}

static double mean_switch_us(const struct builder *b) {
    double sum = 0;
    for (uint32_t u = 0; u < b->plan->program.n_units; u++) sum += b->units[u].switch_us;
    return sum / b->plan->program.n_units;
}

void atsi_script_cost_renew(const struct atsi_plan *plan, const struct atsi_script *script,
                            const struct atsi_schedule_unit *units, uint32_t n_tokens, struct atsi_script_cost *cost) {
    bool contended = uses_link(script);
    struct builder b = {.plan = plan,
                        .script = script,
                        .units = units,
                        .n_tokens = n_tokens,
                        .beside_link = contended ? plan->contention.cpu_beside_link : 1,
                        .in_place = plan->contention.link_in_place,
                        .beside_cpu = n_tokens == 1 ? plan->contention.link_beside_cpu : 1,
                        .unit_bytes = unit_bytes(&plan->program, &plan->program.units[0]),
                        .out = cost};
    memset(cost->splits, 0, cost->n_actions * sizeof *cost->splits);
    cost->link_bytes = 0;
    add_actions(&b);
    cost->handover_us = mean_switch_us(&b);
    cost->uneven_us = sum_uneven_us(&b);
    cost->n_handovers = 2 * atsi_script_terms_of(script, cost).n_waits;
}

enum atsi_status atsi_script_cost_build(const struct atsi_plan *plan, const struct atsi_script *script,
                                        const struct atsi_schedule_unit *units, uint32_t n_tokens,
                                        const struct atsi_ring_waits *ring, struct atsi_script_cost *out,
                                        struct atsi_error *err) {
    uint32_t n_transfers = ring ? ring->n_transfers : 0;
    *out = (struct atsi_script_cost){.n_actions = script->n_actions, .n_transfers = n_transfers};
    out->splits = calloc(script->n_actions + 1, sizeof *out->splits);
    out->waits_for = calloc(n_transfers + 1, sizeof *out->waits_for);
    out->consumed_us = calloc(n_transfers + 1, sizeof *out->consumed_us);
    if (!out->splits || !out->waits_for || !out->consumed_us)
        return atsi_fail(err, ATSI_FAILED, "out of memory while pricing a round");
    for (uint32_t u = 0; u < n_transfers; u++) out->waits_for[u] = ring->waits_for[u];
    if (units) atsi_script_cost_renew(plan, script, units, n_tokens, out);
    return ATSI_OK;
}

void atsi_script_cost_free(struct atsi_script_cost *cost) {
    free(cost->splits);
    free(cost->waits_for);
    free(cost->consumed_us);
    memset(cost, 0, sizeof *cost);
}

struct atsi_script_terms atsi_script_terms_of(const struct atsi_script *script, const struct atsi_script_cost *cost) {
    struct atsi_script_terms t = {0};
    for (uint32_t i = 0; i < script->n_actions; i++) {
        t.cpu_us += cost->splits[i].cpu_us;
        t.gpu_us += cost->splits[i].gpu_us;
        t.link_us += cost->splits[i].link_us;
        t.n_waits += script->actions[i].kind == ATSI_ACTION_WAIT;
    }
    return t;
}

double atsi_script_device_us(const struct atsi_script *script, const struct atsi_script_cost *cost,
                             const float *recent_us) {
    double us = 0;
    for (uint32_t i = 0; i < cost->n_actions; i++) {
        enum atsi_action_kind kind = script->actions[i].kind;
        if (kind == ATSI_ACTION_GPU || kind == ATSI_ACTION_CROSS) us += recent_us[i];
    }
    return us;
}

// ---- single units -------------------------------------------------------------------------------------------------

static float within(double value, double low, double high) {
    return (float)(value < low ? low : value > high ? high : value);
}

static void set_factors(const struct atsi_program *p, const struct atsi_script *s, const struct atsi_action *a,
                        double ratio, struct atsi_unit_factors *factors) {
    float factor = within(ratio, 0.5, 2); // more is a mistake of the measurement
    for (uint32_t i = a->first; i < a->first + a->n; i++) {
        const struct atsi_step *step = &s->steps[i];
        if (big_bytes(p, &p->ops[step->op]) == 0) continue;
        if (step->backend == ATSI_CPU)
            factors[atsi_program_unit_of(p, step->op)].cpu = factor;
        else if (step->promoted)
            factors[atsi_program_unit_of(p, step->op)].in_place = factor;
    }
}

void atsi_script_unit_factors(const struct atsi_plan *plan, const struct atsi_script *s,
                              const struct atsi_script_cost *cost, const float *recent_us,
                              const struct atsi_scales *scales, struct atsi_unit_factors *factors) {
    for (uint32_t i = 0, n; i < s->n_actions; i += n ? n : 1) {
        const struct atsi_split_cost *c = &cost->splits[i];
        double expected_us = c->cpu_us * scales->cpu + c->gpu_us * scales->gpu + c->link_us * scales->link;
        n = atsi_script_device_run(s, i);
        if (!(expected_us > 0) || !(recent_us[i] > 0)) continue;
        if (s->actions[i].kind == ATSI_ACTION_CPU)
            set_factors(&plan->program, s, &s->actions[i], recent_us[i] / expected_us, factors);
        for (uint32_t k = i; c->link_us > 0 && k < i + n; k++)
            if (s->actions[k].kind == ATSI_ACTION_GPU)
                set_factors(&plan->program, s, &s->actions[k], recent_us[i] / expected_us, factors);
    }
}

// ---- the whole round ----------------------------------------------------------------------------------------------

struct clocks {
    double host_us, device_us, engine_us;
    double mark_us;                     // the device's clock at the last RECORD
    bool has_awaited, mark_has_awaited; // a transfer, since the last RECORD and before it
    double waits_us, transfer_waits_us;
    uint64_t n_transferred, n_consumed;
};

static void run_split(struct clocks *c, const struct atsi_script_cost *cost, uint32_t i,
                      const struct atsi_scales *scales) {
    double us = cost->splits[i].gpu_us * scales->gpu + cost->splits[i].link_us * scales->link;
    double issued_us =
        c->host_us + cost->handover_us + scales->handover_us; // seen only by a device that has nothing to do
    c->device_us = (c->device_us > issued_us ? c->device_us : issued_us) + us;
}

static void await_transfer(struct clocks *c, const struct atsi_script_cost *cost, uint32_t i,
                           const struct atsi_scales *scales) {
    uint32_t n = cost->n_transfers;
    while (c->n_transferred <= c->n_consumed) { // costs of transfers ahead are those of their own AWAIT, one round long
        uint32_t back = cost->waits_for[c->n_transferred % n];
        double free_us = c->n_transferred >= back ? cost->consumed_us[(c->n_transferred - back) % n] : 0;
        c->engine_us = (c->engine_us > free_us ? c->engine_us : free_us) + cost->splits[i].link_us * scales->link;
        c->n_transferred++;
    }
    if (c->engine_us > c->device_us) c->device_us = c->engine_us;
    c->has_awaited = true;
}

static void wait_for_mark(struct clocks *c, double handover_us) {
    double began_us = c->host_us;
    if (c->mark_us > c->host_us) c->host_us = c->mark_us;
    c->host_us += handover_us;
    c->waits_us += c->host_us - began_us;
    if (c->mark_has_awaited) c->transfer_waits_us += c->host_us - began_us;
}

static void set_mark(struct clocks *c) {
    c->mark_us = c->device_us;
    c->mark_has_awaited = c->has_awaited;
    c->has_awaited = false;
}

static void run_once(struct clocks *c, const struct atsi_script *s, const struct atsi_script_cost *cost,
                     const struct atsi_scales *scales) {
    for (uint32_t i = 0, n; i < s->n_actions; i += n ? n : 1) {
        n = atsi_script_device_run(s, i);
        if (n) run_split(c, cost, i, scales);
        switch (n ? ATSI_ACTION_GPU : s->actions[i].kind) {
        case ATSI_ACTION_CPU: c->host_us += cost->splits[i].cpu_us * scales->cpu; break;
        case ATSI_ACTION_RECORD: set_mark(c); break;
        case ATSI_ACTION_WAIT: wait_for_mark(c, cost->handover_us + scales->handover_us); break;
        case ATSI_ACTION_AWAIT: await_transfer(c, cost, i, scales); break;
        case ATSI_ACTION_CONSUMED: cost->consumed_us[c->n_consumed++ % cost->n_transfers] = c->device_us; break;
        default: break;
        }
    }
    if (c->device_us > c->host_us) c->host_us = c->device_us;
    c->host_us += cost->uneven_us * (scales->cpu > scales->link ? scales->cpu : scales->link);
}

struct atsi_round_times atsi_script_times(const struct atsi_script *script, const struct atsi_script_cost *cost,
                                          const struct atsi_scales *scales) {
    struct clocks c = {0};
    run_once(&c, script, cost, scales); // fills the ring as the rounds before have
    double first_us = c.host_us;
    c.waits_us = c.transfer_waits_us = 0;
    run_once(&c, script, cost, scales);
    return (struct atsi_round_times){c.host_us - first_us, c.waits_us, c.transfer_waits_us};
}

double atsi_script_time(const struct atsi_script *script, const struct atsi_script_cost *cost,
                        const struct atsi_scales *scales) {
    return atsi_script_times(script, cost, scales).round_us;
}
