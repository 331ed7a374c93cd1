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
    uint32_t experts; // unit
};

static void open_round(struct round *r, bool resident) {
    memset(r, 0, sizeof *r);
    test_build_plan(&r->plan);
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
            double one = resident && u == r.experts ? 1 - h : 1, more = resident && u == r.experts ? 3.0 / EXPERTS : 1;
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

// The share of the experts' unit, the only one that may be shared; its router is on the given side.
static float share_experts(struct round *r, enum atsi_backend router_side) {
    uint32_t router = (uint32_t)r->plan.program.units[r->experts].router_unit;
    atsi_round_units(&r->plan, 1, 1 << 20, NULL, r->units);
    r->units[router].home = r->backends[router] = router_side;
    memset(r->share, 0, sizeof r->share);
    r->share[r->experts] = 1;
    uint32_t n = atsi_share_units(&r->plan, r->units, NULL, r->share, r->divisions);
    assert_int_equal(n, r->share[r->experts] > 0);
    assert_int_equal(r->divisions[router].n_used, router_side == ATSI_GPU && r->plan.resident_experts ? USED : 0);
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
            float share = share_experts(&r, ATSI_CPU);
            assert_true(fabs(share - (float)best / USED) < 1e-6);
        }
    assert_true(share_experts(&none, ATSI_GPU) == atsi_share_of(&none.plan.contention, &none.units[none.experts], 1));
    atsi_plan_free(&r.plan);
    atsi_plan_free(&none.plan);
}

struct fixed {
    double start_us, cpu_us, gpu_us;
};

static uint32_t count_cpu_actions(const struct atsi_script *script) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < script->n_actions; i++) n += script->actions[i].kind == ATSI_ACTION_CPU;
    return n;
}

// Behind a router on the GPU slots are divided by how many of a token's experts are resident: means over none, one and two of two.
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

static void check_means(const struct fixed *fixed) {
    static const double chances[USED + 1] = {(1 - h) * (1 - h), 2 * h * (1 - h), h * h};
    struct round r;
    open_round(&r, true);
    r.plan.cpu_start_us = fixed->start_us;
    r.plan.decode_times[r.experts].cpu_fixed_us = fixed->cpu_us;
    r.plan.decode_times[r.experts].gpu_fixed_us = fixed->gpu_us;
    uint32_t n_uneven = 0;
    for (int link_us = 1; link_us < 2000; link_us *= 3) {
        struct atsi_script script;
        struct atsi_script_cost cost;
        double cpu_us = 0, gpu_us = 0, over_us = 0, longer_us = 0, slots = 0;
        r.plan.decode_times[r.experts].transfer_us = (float)link_us;
        float share = share_experts(&r, ATSI_GPU);
        const uint8_t *gpu_slots = r.divisions[r.plan.program.units[r.experts].router_unit].gpu_slots;
        for (uint32_t n = 0; n <= USED; n++) {
            double c = fixed->start_us + fixed->cpu_us + (100 * 1.25 - fixed->cpu_us) * (USED - gpu_slots[n]) / USED,
                   g = fixed->gpu_us + (10 - fixed->gpu_us) * gpu_slots[n] / USED,
                   l = link_us * 1.1 * (gpu_slots[n] - n) / USED;
            if (gpu_slots[n] == USED) c = 0;
            if (gpu_slots[n] == 0) g = 0;
            cpu_us += chances[n] * c;
            gpu_us += chances[n] * g;
            over_us += chances[n] * l;
            longer_us += chances[n] * fmax(c, g + l);
            slots += chances[n] * gpu_slots[n];
        }
        assert_true(fabs(share - slots / USED) < 1e-6);
        if (share >= 1 - 1e-6) continue; // all of it on the GPU
        build(&r, &script, &cost);
        struct atsi_script_terms terms = atsi_script_terms_of(&script, &cost);
        double others_us =
            (count_cpu_actions(&script) - 1) * fixed->start_us; // what has no experts costs what it costs
        double others_gpu_us = 0;
        for (uint32_t u = 0; u < r.plan.program.n_units; u++) {
            if (u == r.experts) continue;
            others_us += r.backends[u] == ATSI_CPU ? 100 * 1.25 : 0;
            others_gpu_us += r.backends[u] == ATSI_GPU ? 10 : 0;
        }
        assert_true(fabs(terms.cpu_us - others_us - cpu_us) < 1e-2 && fabs(terms.link_us - over_us) < 1e-2);
        assert_true(fabs(terms.gpu_us - others_gpu_us - gpu_us) < 1e-2);
        assert_true(fabs(cost.uneven_us - (longer_us - fmax(cpu_us, gpu_us + over_us))) < 1e-2);
        n_uneven += cost.uneven_us > 1;
        check_most(&script, &cost, 100 * 1.25, 10 + link_us * 1.1);
        atsi_script_cost_free(&cost);
        atsi_script_free(&script);
    }
    assert_true(n_uneven > 1);
    atsi_plan_free(&r.plan);
}

static void slots_divided_by_token_cost_their_means(void **state) {
    (void)state;
    check_means(&(struct fixed){0});
    check_means(&(struct fixed){.cpu_us = 30, .gpu_us = 4, .start_us = 3});
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
