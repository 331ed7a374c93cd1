// What rounds should take, and how they are divided, when some experts are resident one by one: against the definition by what misses.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/schedule/script_cost.h"
#include "runtime/schedule/shares.h"
#include "tests/support/check.h"
#include "tests/support/small_model.h"

enum {
    EXPERTS = 4,
    USED = 2
};
static const double h = 0.7;

struct round {
    struct atsi_plan plan;
    struct atsi_schedule_unit units[TEST_MODEL_UNITS];
    enum atsi_backend backends[TEST_MODEL_UNITS];
    float share[TEST_MODEL_UNITS];
    struct atsi_slot_division divisions[TEST_MODEL_UNITS];
    uint32_t experts; // the last unit with experts, those of a slot's own input
};

static bool has_experts(const struct round *r, uint32_t u) {
    return r->plan.program.units[u].kind == ATSI_UNIT_EXPERTS;
}

static void open_round(struct round *r, bool resident) {
    memset(r, 0, sizeof *r);
    test_build_gated_plan(&r->plan);
    uint32_t n = r->plan.program.n_units;
    r->plan.contention = (struct atsi_contention){1.25, 1.1, 1.05};
    r->plan.decode_times = calloc(n, sizeof *r->plan.decode_times);
    r->plan.prefill_times = calloc(n, sizeof *r->plan.prefill_times);
    for (uint32_t u = 0; u < n; u++) {
        r->plan.decode_times[u] =
            (struct atsi_unit_times){.cpu_us = 100, .gpu_us = 10, .switch_us = 4, .transfer_us = 80};
        r->plan.prefill_times[u] =
            (struct atsi_unit_times){.cpu_us = 900, .gpu_us = 30, .switch_us = 4, .transfer_us = 160};
        if (r->plan.program.units[u].kind == ATSI_UNIT_EXPERTS) r->experts = u;
    }
    if (!resident) return;
    r->plan.resident_experts = calloc(n, sizeof *r->plan.resident_experts);
    struct atsi_resident_experts *e = &r->plan.resident_experts[r->plan.program.units[r->experts].router_unit];
    *e = (struct atsi_resident_experts){.n = 1, .ids = calloc(1, sizeof *e->ids), .hit_rate = (float)h};
}

static void build(struct round *r, struct atsi_script *script, struct atsi_script_cost *cost) {
    struct atsi_script_params params = {.program = &r->plan.program,
                                        .backends = r->backends,
                                        .gpu_share = r->share,
                                        .divisions = r->divisions,
                                        .can_fetch = true,
                                        .n_tokens_max = r->plan.limits.chunk,
                                        .n_outputs_max = r->plan.limits.n_outputs};
    atsi_round_units(&r->plan, 1, 1 << 20, NULL, r->units);
    assert_int_equal(atsi_script_build(&params, script, NULL), ATSI_OK);
    assert_int_equal(atsi_script_cost_build(&r->plan, script, r->units, 1, NULL, cost, NULL), ATSI_OK);
}

static void only_what_is_absent_travels(void **state) {
    (void)state;
    for (int resident = 0; resident < 2; resident++) {
        struct round r;
        open_round(&r, resident);
        for (uint32_t u = 0; u < r.plan.program.n_units; u++) {
            bool counts = resident && has_experts(&r, u);
            double one = counts ? 1 - h : 1, more = counts ? 3.0 / EXPERTS : 1;
            assert_true(fabs(atsi_absent_part(&r.plan, u, 1) - one) < 1e-6);
            assert_true(fabs(atsi_absent_part(&r.plan, u, 8) - more) < 1e-6);
            atsi_round_units(&r.plan, 1, 1 << 20, NULL, r.units);
            assert_true(fabs(r.units[u].transfer_us - 80 * one) < 1e-4);
            atsi_round_units(&r.plan, 8, 1 << 20, NULL, r.units);
            assert_true(fabs(r.units[u].transfer_us - 160 * more) < 1e-4);
        }
        assert_int_equal(r.units[r.experts].size_bytes, r.plan.program.units[r.experts].weight_bytes); // as it stands
        atsi_plan_free(&r.plan);
    }
}

// Of two slots none, one or both on the GPU: R of the two experts are resident with chances (1 - h)^2, 2 h (1 - h), h^2.
static void slots_of_the_gpu_cost_what_misses(void **state) {
    (void)state;
    static const double misses[USED + 1] = {0, (1 - h) * (1 - h), 2 * (1 - h) * (1 - h) + 2 * h * (1 - h)};
    struct round r;
    open_round(&r, true);
    for (uint32_t k = 0; k <= USED; k++) {
        struct atsi_script script;
        struct atsi_script_cost cost;
        double wanted_us = misses[k] / USED * 80 * r.plan.contention.link_in_place;
        r.share[r.experts] = (float)k / USED;
        build(&r, &script, &cost);
        struct atsi_script_terms terms = atsi_script_terms_of(&script, &cost);
        assert_true(fabs(terms.link_us - wanted_us) < 1e-3);
        assert_true(fabs(terms.gpu_us - 10.0 * k / USED) < 1e-3);
        uint64_t read = atsi_transfer_bytes(&r.plan.program, &r.plan.program.units[r.experts], 1);
        assert_true(fabs(cost.link_bytes - (double)read * misses[k] / USED) < 1e-6 * (double)read + 1e-6);
        atsi_script_cost_free(&cost);
        atsi_script_free(&script);
    }
    atsi_plan_free(&r.plan);
}

static void all_slots_on_the_gpu_is_a_unit_in_place(void **state) {
    (void)state;
    struct round r;
    struct atsi_script script;
    struct atsi_script_cost cost;
    open_round(&r, true);
    r.share[r.experts] = 1;
    build(&r, &script, &cost);
    for (uint32_t i = 0; i < script.n_steps; i++) {
        bool of_experts = atsi_program_unit_of(&r.plan.program, script.steps[i].op) == r.experts;
        assert_int_equal(script.steps[i].backend, of_experts ? ATSI_GPU : ATSI_CPU);
        assert_int_equal(script.steps[i].promoted, of_experts);
    }
    for (uint32_t i = 0; i < script.n_actions; i++) assert_true(script.actions[i].kind != ATSI_ACTION_AWAIT);
    atsi_script_cost_free(&cost);
    atsi_script_free(&script);
    atsi_plan_free(&r.plan);
}

// The share of the last unit with experts, where that alone or all of them may be shared; their router is on the given side.
static float share_experts(struct round *r, enum atsi_backend router_side, bool all) {
    uint32_t router = (uint32_t)r->plan.program.units[r->experts].router_unit, n_shared = 0;
    atsi_round_units(&r->plan, 1, 1 << 20, NULL, r->units);
    r->units[router].home = r->backends[router] = router_side;
    for (uint32_t u = 0; u < r->plan.program.n_units; u++) r->share[u] = u == r->experts || (all && has_experts(r, u));
    uint32_t n = atsi_share_units(&r->plan, r->units, NULL, r->share, r->divisions);
    for (uint32_t u = 0; u < r->plan.program.n_units; u++) n_shared += r->share[u] > 0;
    assert_int_equal(n, n_shared);
    bool divides = all && router_side == ATSI_GPU && r->plan.resident_experts;
    assert_int_equal(r->divisions[router].n_used, divides ? USED : 0);
    return r->share[r->experts];
}

// Behind a router on the CPU: the number of slots with which the longer side is shortest; without residents the old rule.
static void shares_are_whole_slots(void **state) {
    (void)state;
    static const float rates[] = {0, 0.2f, 0.5f, 0.8f, 1};
    struct round r, none;
    open_round(&r, true);
    open_round(&none, false);
    atsi_round_units(&none.plan, 1, 1 << 20, NULL, none.units);
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++)
        for (int link_us = 1; link_us < 2000; link_us *= 3) {
            double p = rates[i], absent[USED + 1] = {0, (1 - p) * (1 - p), 2 * (1 - p)}, best_us = INFINITY;
            uint32_t best = 0;
            r.plan.resident_experts[r.plan.program.units[r.experts].router_unit].hit_rate = rates[i];
            r.plan.decode_times[r.experts].transfer_us = (float)link_us;
            atsi_round_units(&r.plan, 1, 1 << 20, NULL, r.units);
            for (uint32_t k = 0; k <= USED; k++) {
                double cpu_us = 1.25 * 100 * (USED - k) / USED, gpu_us = (10 * k + 1.1 * link_us * absent[k]) / USED;
                double us = fmax(cpu_us, gpu_us);
                if (us < best_us - 1e-6) best = k;
                best_us = fmin(us, best_us);
            }
            float share = share_experts(&r, ATSI_CPU, false);
            assert_true(fabs(share - (float)best / USED) < 1e-6);
        }
    assert_true(share_experts(&none, ATSI_GPU, false) ==
                atsi_share_of(&none.plan.contention, &none.units[none.experts], 1));
    atsi_plan_free(&r.plan);
    atsi_plan_free(&none.plan);
}

struct fixed {
    double start_us, cpu_us, gpu_us; // of an action of the CPU, and of the last operation
};

static uint32_t count_cpu_actions(const struct atsi_script *script) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < script->n_actions; i++) n += script->actions[i].kind == ATSI_ACTION_CPU;
    return n;
}

// Only the splits of the divided experts say what all slots would take on their side.
static void check_most(const struct atsi_script *script, const struct atsi_script_cost *cost, double cpu_us,
                       double gpu_us) {
    double most_us = 0;
    for (uint32_t i = 0; i < script->n_actions; i++) {
        most_us += cost->splits[i].most_us;
        if (cost->splits[i].most_us > 0 && script->actions[i].kind == ATSI_ACTION_CPU)
            assert_float_equal(cost->splits[i].most_us, cpu_us, 1e-2);
    }
    assert_true(fabs(most_us - cpu_us - gpu_us) < 1e-2 * (1 + gpu_us / 100));
}

// What three operations with experts (100 us on the CPU, 10 on the GPU, of the last one some of it fixed) ask for with n of two slots resident,
// g on the GPU, and when they end: the last one with all slots on the GPU, what it lacks fetched beside the others, or divided as they are.
struct asked {
    double cpu_us, gpu_us, link_us, fetch_us, end_us, crossing_us;
};

static struct asked ask(uint32_t n, uint32_t g, bool last_on_gpu, double link_us, const struct fixed *f) {
    double of_cpu = (double)(USED - g) / USED, of_gpu = (double)g / USED, over_us = 1.1 * link_us * (g - n) / USED;
    double last_cpu_us = g < USED ? f->cpu_us + of_cpu * (125 - f->cpu_us) : 0;
    double last_gpu_us = g > 0 ? f->gpu_us + of_gpu * (10 - f->gpu_us) : 0;
    struct asked a = {.cpu_us = 2 * 125 * of_cpu + (g < USED ? f->start_us : 0),
                      .gpu_us = 2 * 10 * of_gpu,
                      .link_us = 2 * over_us,
                      .crossing_us = g < USED ? 4 : 0};
    if (last_on_gpu) {
        a.fetch_us = 1.05 * link_us * (USED - n) / USED; // a copy, not read in place
        a.end_us = fmax(a.cpu_us + a.crossing_us, a.link_us + fmax(a.gpu_us, a.fetch_us)) + 10;
        a.gpu_us += 10;
    } else {
        a.cpu_us += last_cpu_us;
        a.gpu_us += last_gpu_us;
        a.link_us += over_us;
        a.end_us = fmax(a.cpu_us + a.crossing_us, a.gpu_us + a.link_us);
    }
    return a;
}

static struct asked mean_asked(const struct atsi_slot_division *d, double link_us, const struct fixed *f,
                               double *slots) {
    static const double chances[USED + 1] = {(1 - h) * (1 - h), 2 * h * (1 - h), h * h};
    struct asked mean = {0};
    *slots = 0;
    for (uint32_t n = 0; n <= USED; n++) {
        struct asked a = ask(n, d->gpu_slots[n], d->last_on_gpu, link_us, f);
        mean.cpu_us += chances[n] * a.cpu_us;
        mean.gpu_us += chances[n] * a.gpu_us;
        mean.link_us += chances[n] * a.link_us;
        mean.fetch_us += chances[n] * a.fetch_us;
        mean.end_us += chances[n] * a.end_us;
        mean.crossing_us += chances[n] * a.crossing_us;
        *slots += chances[n] * d->gpu_slots[n];
    }
    return mean;
}

struct met {
    uint32_t n_uneven, n_fetching;
};

// Behind a router on the GPU slots are divided by how many of a token's experts are resident: means over none, one and two of two.
static void check_division_at(struct round *r, double link_us, const struct fixed *fixed, struct met *met) {
    double slots;
    for (uint32_t u = 0; u < r->plan.program.n_units; u++)
        if (has_experts(r, u)) r->plan.decode_times[u].transfer_us = (float)link_us;
    float share = share_experts(r, ATSI_GPU, true);
    const struct atsi_slot_division *d = &r->divisions[r->plan.program.units[r->experts].router_unit];
    struct asked mean = mean_asked(d, link_us, fixed, &slots);
    double after_us = d->last_on_gpu ? 10 : 0;
    double first_us = mean.gpu_us - after_us, beside_us = fmax(first_us, mean.fetch_us);
    double end_of_means_us = fmax(mean.cpu_us + mean.crossing_us, mean.link_us + beside_us) + after_us;
    assert_true(fabs(share - (d->last_on_gpu ? (2 * slots / USED + 1) / 3 : slots / USED)) < 1e-6);
    met->n_fetching += d->last_on_gpu;
    if (slots >= USED - 1e-6) return; // all of it on the GPU
    struct atsi_script script;
    struct atsi_script_cost cost;
    build(r, &script, &cost);
    struct atsi_script_terms terms = atsi_script_terms_of(&script, &cost);
    double others_us = (count_cpu_actions(&script) - 1) * fixed->start_us; // what has no experts costs what it costs
    double others_gpu_us = 0;
    for (uint32_t u = 0; u < r->plan.program.n_units; u++) {
        if (has_experts(r, u)) continue;
        others_us += r->backends[u] == ATSI_CPU ? 100 * 1.25 : 0;
        others_gpu_us += r->backends[u] == ATSI_GPU ? 10 : 0;
    }
    assert_true(fabs(terms.cpu_us - others_us - mean.cpu_us) < 1e-2 &&
                fabs(terms.link_us - mean.link_us - (beside_us - first_us)) < 1e-2);
    assert_true(fabs(terms.gpu_us - others_gpu_us - mean.gpu_us) < 1e-2);
    assert_true(fabs(cost.uneven_us - (mean.end_us - end_of_means_us)) < 1e-2);
    met->n_uneven += cost.uneven_us > 1;
    uint32_t n_divided = d->last_on_gpu ? 2 : 3; // and of the last one what is fetched
    check_most(&script, &cost, n_divided * 125,
               n_divided * 10 + (n_divided * 1.1 + (d->last_on_gpu ? 1.05 : 0)) * link_us);
    atsi_script_cost_free(&cost);
    atsi_script_free(&script);
}

static void check_means(bool has_region, const struct fixed *fixed) {
    struct round r;
    struct met met = {0};
    open_round(&r, true);
    r.plan.limits.temp_bytes = has_region ? 1 << 20 : 0;
    r.plan.cpu_start_us = fixed->start_us;
    r.plan.decode_times[r.experts].cpu_fixed_us = (float)fixed->cpu_us;
    r.plan.decode_times[r.experts].gpu_fixed_us = (float)fixed->gpu_us;
    for (int link_us = 1; link_us < 2000; link_us *= 3) check_division_at(&r, link_us, fixed, &met);
    assert_true(met.n_uneven > 1 && (met.n_fetching > 0) == has_region);
    atsi_plan_free(&r.plan);
}

static void slots_divided_by_token_cost_their_means(void **state) {
    (void)state;
    for (int has_region = 0; has_region < 2; has_region++) {
        check_means(has_region, &(struct fixed){0});
        check_means(has_region, &(struct fixed){.cpu_us = 30, .gpu_us = 4, .start_us = 3});
    }
}

// Pricing a script again gives what pricing it at first would have.
static void a_round_can_be_priced_again(void **state) {
    (void)state;
    struct round r;
    struct atsi_script script;
    struct atsi_script_cost at_first, again;
    open_round(&r, true);
    struct atsi_resident_experts *e = &r.plan.resident_experts[r.plan.program.units[r.experts].router_unit];
    r.share[r.experts] = 0.5f;
    build(&r, &script, &again);
    e->hit_rate = 0.1f;
    atsi_round_units(&r.plan, 1, 1 << 20, NULL, r.units);
    assert_int_equal(atsi_script_cost_build(&r.plan, &script, r.units, 1, NULL, &at_first, NULL), ATSI_OK);
    assert_true(at_first.link_bytes > again.link_bytes);
    atsi_script_cost_renew(&r.plan, &script, r.units, 1, &again);
    assert_memory_equal(at_first.splits, again.splits, script.n_actions * sizeof *again.splits);
    assert_true(at_first.link_bytes == again.link_bytes && at_first.n_handovers == again.n_handovers);
    atsi_script_cost_free(&at_first);
    atsi_script_cost_free(&again);
    atsi_script_free(&script);
    atsi_plan_free(&r.plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_what_is_absent_travels),
        cmocka_unit_test(slots_of_the_gpu_cost_what_misses),
        cmocka_unit_test(all_slots_on_the_gpu_is_a_unit_in_place),
        cmocka_unit_test(shares_are_whole_slots),
        cmocka_unit_test(slots_divided_by_token_cost_their_means),
        cmocka_unit_test(a_round_can_be_priced_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
