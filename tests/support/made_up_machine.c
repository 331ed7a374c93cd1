#include "tests/support/made_up_machine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/sort.h"
#include "runtime/temp_ring.h"
#include "tests/support/check.h"
#include "tests/support/small_model.h"

// ---- rounds under an assignment ------------------------------------------------------------------------------------

struct promotions {
    bool *promoted, *prefetched; // [n_units]
    uint32_t *waits_for;         // [n_prefetched]
    uint32_t n_prefetched;
};

static struct promotions list_promotions(const struct made_up_machine *m, const struct atsi_assignment *a) {
    const struct atsi_program *p = &m->plan->program;
    struct promotions out = {.promoted = calloc(p->n_units, 1), .prefetched = calloc(p->n_units, 1)};
    struct atsi_travelling_tensor travelling[ATSI_TRAVELLING_TENSORS];
    uint64_t *bytes = calloc(p->n_units, sizeof *bytes);
    for (uint32_t u = 0; u < p->n_units; u++) {
        out.promoted[u] = a->promotions[u] != ATSI_NOT_PROMOTED;
        out.prefetched[u] = a->promotions[u] == ATSI_PREFETCHED;
        if (out.prefetched[u]) atsi_temp_ring_list(p, &p->units[u], travelling, &bytes[out.n_prefetched++]);
    }
    struct atsi_temp_slot *slots = calloc(out.n_prefetched + 1, sizeof *slots);
    out.waits_for = calloc(out.n_prefetched + 1, sizeof *out.waits_for);
    assert_int_equal(atsi_temp_ring_plan(bytes, out.n_prefetched, m->plan->limits.temp_bytes, slots, NULL), ATSI_OK);
    for (uint32_t i = 0; i < out.n_prefetched; i++) out.waits_for[i] = slots[i].waits_for;
    free(slots);
    free(bytes);
    return out;
}

static void free_promotions(struct promotions *p) {
    free(p->promoted);
    free(p->prefetched);
    free(p->waits_for);
}

static void build_rounds(struct made_up_machine *m, const struct atsi_assignment *a, struct made_up_rounds *out) {
    struct promotions p = list_promotions(m, a);
    struct atsi_decision decision = atsi_dispatcher_last(m->dispatcher);
    struct atsi_script_params params = {.program = &m->plan->program,
                                        .backends = a->backends,
                                        .promoted = p.promoted,
                                        .prefetched = p.prefetched,
                                        .gpu_share = a->gpu_share,
                                        .n_tokens_max = m->plan->limits.chunk,
                                        .n_outputs_max = m->plan->limits.n_outputs};
    struct atsi_ring_waits ring = {p.n_prefetched, p.waits_for};
    assert_int_equal(atsi_script_build(&params, &out->script, NULL), ATSI_OK);
    for (int i = 0; i < 2; i++)
        assert_int_equal(
            atsi_script_cost_build(m->plan, &out->script, m->units, 1, &ring, i ? &out->drawn : &out->cost, NULL),
            ATSI_OK);
    out->recent_us = calloc(out->script.n_actions, sizeof *out->recent_us);
    out->n_promoted = decision.n_promoted;
    out->n_shared = decision.n_shared;
    free_promotions(&p);
}

static void decide(struct made_up_machine *m, const struct atsi_tuner_wish *wish, struct made_up_rounds *out) {
    struct atsi_assignment a;
    const struct atsi_unit_factors *factors = wish->by_unit ? m->factors : NULL;
    assert_int_equal(atsi_dispatcher_decide(m->dispatcher, 1, wish->use, &wish->scales, factors, &a, NULL), ATSI_OK);
    build_rounds(m, &a, out);
}

static void forget(struct made_up_rounds *r) {
    free(r->recent_us);
    atsi_script_cost_free(&r->cost);
    atsi_script_cost_free(&r->drawn);
    atsi_script_free(&r->script);
}

static double time_of(const struct made_up_rounds *r, const struct atsi_scales *scales) {
    return atsi_script_time(&r->script, &r->cost, scales);
}

double made_up_time(struct made_up_machine *m, const struct atsi_tuner_wish *wish, const struct atsi_scales *scales) {
    struct made_up_rounds r;
    decide(m, wish, &r);
    double us = time_of(&r, scales);
    forget(&r);
    return us;
}

double made_up_best_us(struct made_up_machine *m, const struct atsi_scales *scales) {
    double best = INFINITY;
    for (int use = 0; use < ATSI_LINK_USES; use++)
        best = fmin(best, made_up_time(m, &(struct atsi_tuner_wish){(enum atsi_link_use)use, *scales, false}, scales));
    return best;
}

static const double weather_us = 300000;  // what wanders has another value after that
static const double forecast_part = 0.08; // of the time that a decision takes, until it is known what it promises

// ---- what a round takes --------------------------------------------------------------------------------------------

static double draw(struct made_up_machine *m) { return (double)(test_random(&m->random) >> 11) / (double)(1ull << 53); }

static double shaken(struct made_up_machine *m, double value, double by) {
    return value * (1 + by * (2 * draw(m) - 1));
}

static double stall(struct made_up_machine *m, const struct made_up_load *load, double chance) {
    return draw(m) < chance ? draw(m) * load->stall_us : 0;
}

static double chance_of(double stalls, double us) { return 1 - exp(-stalls * us * 1e-3); }

static float draw_cpu(struct made_up_machine *m, const struct made_up_load *load, double us) {
    double chance = load->stalled_starts + chance_of(load->stalls, us);
    return (float)(us > 0 ? shaken(m, us, 0.1) + stall(m, load, chance) : 0);
}

static float draw_device(struct made_up_machine *m, const struct made_up_load *load, double us) {
    return (float)(us > 0 ? shaken(m, us, 0.05) + stall(m, load, chance_of(load->device_stalls, us)) : 0);
}

// Between -1 and 1, by time: two machines of one weather have the same, whatever their rounds take.
static double weather_at(const struct made_up_machine *m, uint64_t i) {
    uint64_t state = (m->weather + i + 1) * 0x9e3779b97f4a7c15u;
    for (int k = 0; k < 3; k++) test_random(&state);
    return (double)(state >> 11) / (double)(1ull << 52) - 1;
}

static double weather_now(const struct made_up_machine *m) {
    double t = m->now_us / weather_us, part = t - floor(t);
    return (1 - part) * weather_at(m, (uint64_t)t) + part * weather_at(m, (uint64_t)t + 1);
}

static bool is_transfer(const struct made_up_rounds *r, uint32_t i) {
    return r->script.actions[i].kind == ATSI_ACTION_AWAIT;
}

static struct atsi_round_times run_round(struct made_up_machine *m, const struct made_up_load *load) {
    struct made_up_rounds *r = &m->at_work;
    const struct atsi_scales *s = &load->scales;
    struct atsi_scales now = {shaken(m, s->cpu, load->shaking) * (1 + load->wandering * weather_now(m)),
                              shaken(m, s->gpu, load->shaking), shaken(m, s->link, load->shaking), s->handover_us};
    now.cpu *= 1 + load->recoil * fmax(0, (double)r->n_promoted - m->n_promoted_first);
    if (m->tuner.asked && m->slowed_deciding > 0) now.cpu *= m->slowed_deciding;
    for (uint32_t i = 0; i < r->cost.n_actions; i++) {
        const struct atsi_split_cost *c = &r->cost.splits[i];
        r->drawn.splits[i] =
            (struct atsi_split_cost){.cpu_us = draw_cpu(m, load, c->cpu_us * now.cpu),
                                     .gpu_us = draw_device(m, load, c->gpu_us * now.gpu),
                                     .link_us = draw_device(m, load, shaken(m, c->link_us * now.link, load->uneven))};
        if (is_transfer(r, i)) r->drawn.splits[i].link_us *= (float)(1 + load->turns);
    }
    return atsi_script_times(&r->script, &r->drawn, &(struct atsi_scales){1, 1, 1, now.handover_us});
}

static double most_us(const struct atsi_split_cost *c) { return 2 * (c->gpu_us + c->link_us); }

static void record(struct made_up_machine *m, const struct made_up_load *load, const struct atsi_round_times *took) {
    struct made_up_rounds *r = &m->at_work;
    bool times_device = atsi_recorder_times_device(&m->recorder);
    for (uint32_t i = 0; i < r->cost.n_actions; i++) {
        const struct atsi_split_cost *c = &r->drawn.splits[i];
        double device_us = (c->gpu_us + c->link_us) / (is_transfer(r, i) ? 1 + load->turns : 1);
        if (c->cpu_us > 0)
            atsi_recorder_note_cpu(&m->recorder, &r->recent_us[i], c->cpu_us, 0);
        else if (device_us > 0 && times_device)
            atsi_recorder_note_device(&m->recorder, &r->recent_us[i], device_us,
                                      load->uneven > 0 ? most_us(&r->cost.splits[i]) : 0);
    }
    atsi_recorder_end_round(&m->recorder, &r->cost, r->recent_us);
    struct atsi_recorder_round round = atsi_recorder_explain(&m->recorder, &r->script, &r->cost, took);
    atsi_recorder_note_round(&m->recorder, &round);
}

// ---- decisions -----------------------------------------------------------------------------------------------------

static void tell(const struct made_up_machine *m, const char *verdict, const struct made_up_rounds *next,
                 double next_us, double at_work_us) {
    const struct atsi_scales *w = &m->tuner.wish.scales, *n = &m->tuner.now;
    if (!m->tells) return;
    fprintf(stderr,
            "%8.3f %s (%s): %s for %.2f %.2f %.2f +%.0f, recorded %.2f %.2f %.2f +%.0f; %u + %u, forecast %.1f / %.1f, "
            "took %.1f (%u rounds)\n",
            m->now_us * 1e-6, verdict, m->tuner.reason, atsi_link_use_name(m->tuner.wish.use), w->cpu, w->gpu, w->link,
            w->handover_us, n->cpu, n->gpu, n->link, n->handover_us, next->n_promoted, next->n_shared, next_us * 1e-3,
            at_work_us * 1e-3, atsi_tuner_recent_us(&m->tuner) * 1e-3, m->tuner.n_rounds);
}

static bool is_best(const struct made_up_machine *m) {
    const struct atsi_tuner_wish *a = &m->best_wish, *b = &m->tuner.wish;
    return m->has_best && a->use == b->use && a->by_unit == b->by_unit &&
           atsi_scales_deviation(&a->scales, &b->scales) == 0;
}

static void drop_best(struct made_up_machine *m) {
    if (m->has_best) forget(&m->best);
    m->has_best = false;
}

static void put_aside(struct made_up_machine *m, struct made_up_rounds *old) {
    if (!atsi_tuner_may_return(&m->tuner)) {
        forget(old);
        return;
    }
    drop_best(m);
    m->best = *old;
    m->best_wish = m->tuner.at_work;
    m->has_best = true;
}

static void take_over(struct made_up_machine *m, struct made_up_rounds *next, const char *verdict) {
    double at_work_us = time_of(&m->at_work, &m->tuner.now), next_us = time_of(next, &m->tuner.now);
    struct made_up_rounds old = m->at_work;
    tell(m, verdict, next, next_us, at_work_us);
    m->at_work = *next;
    put_aside(m, &old);
    atsi_tuner_begun(&m->tuner, m->tuner.wish.use, next_us / at_work_us);
    atsi_recorder_adopted(&m->recorder);
    m->n_taken_over++;
}

// As the rescheduler: what promises too little is declined. False when nothing else is asked for.
static bool forecast(struct made_up_machine *m) {
    m->n_decided++;
    decide(m, &m->tuner.wish, &m->next);
    double at_work_us = time_of(&m->at_work, &m->tuner.now), next_us = time_of(&m->next, &m->tuner.now);
    m->has_next = next_us <= at_work_us * m->tuner.most_ratio;
    if (m->has_next) return false;
    tell(m, "declined", &m->next, next_us, at_work_us);
    forget(&m->next);
    return atsi_tuner_declined(&m->tuner, next_us / at_work_us);
}

// What is kept returns at once.
static void answer(struct made_up_machine *m) {
    struct made_up_rounds best = m->best;
    double took_us = m->now_us - m->asked_us;
    if (is_best(m)) {
        m->has_best = false;
        m->n_decided++;
        take_over(m, &best, "returned");
    } else if (m->has_next && took_us >= m->deciding_us) {
        m->has_next = false;
        take_over(m, &m->next, "taken over");
    } else if (!m->has_next && took_us >= forecast_part * m->deciding_us && forecast(m)) {
        m->asked_us = m->now_us;
    }
}

static void ask(struct made_up_machine *m) {
    m->asked_us = m->now_us;
    atsi_script_unit_factors(m->plan, &m->at_work.script, &m->at_work.cost, m->at_work.recent_us, &m->recorder.scales,
                             m->factors);
}

static void go_on(struct made_up_machine *m, double round_us) {
    bool is_wanted = !m->never && (!m->stays || !atsi_tuner_is_settled(&m->tuner));
    if (m->tuner.asked)
        answer(m);
    else if (is_wanted && atsi_tuner_record(&m->tuner, round_us, &m->recorder.scales))
        ask(m);
    if (!m->tuner.asked && atsi_tuner_is_settled(&m->tuner)) drop_best(m);
    if (atsi_tuner_is_surprised(&m->tuner)) atsi_recorder_look(&m->recorder);
}

static double run_one(struct made_up_machine *m, const struct made_up_load *load) {
    struct atsi_round_times took = run_round(m, load);
    m->now_us += took.round_us;
    record(m, load, &took);
    go_on(m, took.round_us);
    return took.round_us;
}

double made_up_run(struct made_up_machine *m, const struct made_up_load *load, double us) {
    enum {
        MOST = 8192
    };
    double *times = calloc(MOST, sizeof *times), end_us = m->now_us + us;
    uint32_t n = 0;
    while (m->now_us < end_us && n < MOST) times[n++] = run_one(m, load);
    atsi_sort_doubles(times, n);
    double median = times[n / 2];
    free(times);
    return median;
}

double made_up_run_rounds(struct made_up_machine *m, const struct made_up_load *load, uint32_t n) {
    double us = 0;
    for (uint32_t i = 0; i < n; i++) us += run_one(m, load);
    return us;
}

void made_up_open(struct made_up_machine *m, struct atsi_plan *plan, const enum atsi_backend *homes, uint64_t seed,
                  uint64_t weather) {
    uint32_t n = plan->program.n_units;
    *m = (struct made_up_machine){.plan = plan, .random = seed, .weather = weather, .deciding_us = 60000};
    m->units = calloc(n, sizeof *m->units);
    m->factors = calloc(n, sizeof *m->factors);
    for (uint32_t u = 0; u < n; u++) m->factors[u] = (struct atsi_unit_factors){1, 1};
    atsi_round_units(plan, 1, plan->limits.temp_bytes, NULL, m->units);
    struct atsi_dispatcher_params params = {.plan = plan, .policy = ATSI_POLICY_FIFO, .has_device = true};
    enum atsi_travel *travel = calloc(n, sizeof *travel);
    assert_int_equal(atsi_dispatcher_create(&params, &m->dispatcher, NULL), ATSI_OK);
    for (uint32_t u = 0; u < n; u++) travel[u] = ATSI_TRAVELS_PINNED;
    atsi_dispatcher_move_homes(m->dispatcher, homes, travel);
    free(travel);
    struct atsi_tuner_params tuning = {true, atsi_dispatcher_has_choice(m->dispatcher), 0.15, 5};
    atsi_tuner_start(&m->tuner, &tuning);
    atsi_recorder_start(&m->recorder);
    double streams_us =
               made_up_time(m, &(struct atsi_tuner_wish){ATSI_LINK_STREAMS, {1, 1, 1, 0}, false}, &m->tuner.now),
           shares_us = made_up_time(m, &(struct atsi_tuner_wish){ATSI_LINK_SHARES, {1, 1, 1, 0}, false}, &m->tuner.now);
    m->tuner.wish.use = tuning.has_choice && shares_us < streams_us ? ATSI_LINK_SHARES : ATSI_LINK_STREAMS;
    decide(m, &m->tuner.wish, &m->at_work);
    m->n_promoted_first = m->at_work.n_promoted;
    atsi_tuner_begun(&m->tuner, m->tuner.wish.use, 0);
}

void made_up_close(struct made_up_machine *m) {
    drop_best(m);
    if (m->has_next) forget(&m->next);
    forget(&m->at_work);
    atsi_dispatcher_free(m->dispatcher);
    free(m->units);
    free(m->factors);
}
