// Experts that are resident one by one in a plan: their way through JSON, entries that no plan may have, and who finds them.
#include <math.h>
#include <stdlib.h>

#include "formats/plan.h"
#include "tests/support/check.h"
#include "tests/support/program_builder.h"

enum {
    ROUTER_UNIT = 5, // of program_builder.h
    EXPERTS_UNIT = 6
};

static void make_plan(struct atsi_plan *plan) {
    test_build_plan(plan);
    plan->contention = ATSI_CONTENTION_DEFAULT;
    plan->resident_experts = calloc(plan->program.n_units, sizeof *plan->resident_experts);
    struct atsi_resident_experts *r = &plan->resident_experts[ROUTER_UNIT];
    *r = (struct atsi_resident_experts){.n = 3, .ids = malloc(3 * sizeof *r->ids), .hit_rate = 0.8125f};
    memcpy(r->ids, (uint16_t[]){2, 0, 3}, 3 * sizeof *r->ids);
}

static void the_round_trip_is_exact(void **state) {
    (void)state;
    struct atsi_plan plan, back;
    struct atsi_error err = {0};
    char *json, *again;
    size_t size, size_again;
    make_plan(&plan);
    check_ok(atsi_plan_to_json(&plan, &json, &size, &err), err);
    check_ok(atsi_plan_from_json(json, size, &back, &err), err);
    check_ok(atsi_plan_to_json(&back, &again, &size_again, &err), err);
    assert_string_equal(json, again);
    const struct atsi_resident_experts *r = &back.resident_experts[ROUTER_UNIT];
    assert_true(r->n == 3 && r->hit_rate == 0.8125f && r->ids[0] == 2 && r->ids[1] == 0 && r->ids[2] == 3);
    for (uint32_t u = 0; u < back.program.n_units; u++)
        if (u != ROUTER_UNIT) assert_int_equal(back.resident_experts[u].n, 0);
    free(json);
    free(again);
    atsi_plan_free(&plan);
    atsi_plan_free(&back);
}

static void a_plan_without_has_no_member(void **state) {
    (void)state;
    struct atsi_plan plan, back;
    struct atsi_error err = {0};
    char *json;
    size_t size;
    make_plan(&plan);
    atsi_plan_drop_resident_experts(&plan);
    atsi_plan_drop_resident_experts(&plan); // nothing left to drop
    check_ok(atsi_plan_to_json(&plan, &json, &size, &err), err);
    assert_null(strstr(json, "resident_experts"));
    check_ok(atsi_plan_from_json(json, size, &back, &err), err);
    assert_null(back.resident_experts);
    free(json);
    atsi_plan_free(&plan);
    atsi_plan_free(&back);
}

// The manifest with `entries` in place of its own.
static char *with_entries(const char *json, const char *entries) {
    static const char member[] = "\"resident_experts\":";
    const char *list = strstr(json, member) + sizeof member - 1, *rest = strstr(list, "}]") + 2;
    size_t size = strlen(json) + strlen(entries) + 1;
    char *changed = calloc(size, 1);
    memcpy(changed, json, (size_t)(list - json));
    strcat(strcat(changed, entries), rest);
    return changed;
}

static void entries_that_no_plan_may_have(void **state) {
    (void)state;
    static const struct {
        const char *entries, *word;
    } cases[] = {
        {"{}", "no list"},
        {"[5]", "unit"},
        {"[{}]", "unit"},
        {"[{\"ids\":[1],\"hit_rate\":0.5}]", "unit"},
        {"[{\"unit\":6,\"ids\":[1],\"hit_rate\":0.5}]", "unit"}, // holds no router
        {"[{\"unit\":99,\"ids\":[1],\"hit_rate\":0.5}]", "unit"},
        {"[{\"unit\":-1,\"ids\":[1],\"hit_rate\":0.5}]", "unit"},
        {"[{\"unit\":5.5,\"ids\":[1],\"hit_rate\":0.5}]", "unit"},
        {"[{\"unit\":\"5\",\"ids\":[1],\"hit_rate\":0.5}]", "unit"},
        {"[{\"unit\":5,\"ids\":[1],\"hit_rate\":0.5},{\"unit\":5,\"ids\":[2],\"hit_rate\":0.5}]", "twice"},
        {"[{\"unit\":5,\"hit_rate\":0.5}]", "ids"},
        {"[{\"unit\":5,\"ids\":7,\"hit_rate\":0.5}]", "ids"},
        {"[{\"unit\":5,\"ids\":[],\"hit_rate\":0.5}]", "ids"},
        {"[{\"unit\":5,\"ids\":[4],\"hit_rate\":0.5}]", "ids"},
        {"[{\"unit\":5,\"ids\":[-1],\"hit_rate\":0.5}]", "ids"},
        {"[{\"unit\":5,\"ids\":[1e99],\"hit_rate\":0.5}]", "ids"},
        {"[{\"unit\":5,\"ids\":[1,2,1],\"hit_rate\":0.5}]", "twice"},
        {"[{\"unit\":5,\"ids\":[0,1,2,3,0],\"hit_rate\":0.5}]", "5 of 4"},
        {"[{\"unit\":5,\"ids\":[\"1\"],\"hit_rate\":0.5}]", "ids"},
        {"[{\"unit\":5,\"ids\":[1]}]", "hit_rate"},
        {"[{\"unit\":5,\"ids\":[1],\"hit_rate\":1.01}]", "hit_rate"},
        {"[{\"unit\":5,\"ids\":[1],\"hit_rate\":-0.1}]", "hit_rate"},
        {"[{\"unit\":5,\"ids\":[1],\"hit_rate\":null}]", "hit_rate"},
    };
    struct atsi_plan plan, back;
    struct atsi_error err = {0};
    char *json;
    size_t size;
    make_plan(&plan);
    check_ok(atsi_plan_to_json(&plan, &json, &size, &err), err);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *changed = with_entries(json, cases[i].entries);
        memset(&err, 0, sizeof err);
        if (atsi_plan_from_json(changed, strlen(changed), &back, &err) != ATSI_BAD_INPUT)
            fail_msg("accepted: %s", cases[i].entries);
        check_message(err, "resident_experts", cases[i].word);
        atsi_plan_free(&back);
        free(changed);
    }
    free(json);
    atsi_plan_free(&plan);
}

// The router once more, in `unit` behind the one that there is.
static void repeat_router(struct atsi_program *p, uint32_t unit) {
    uint32_t at = p->units[EXPERTS_UNIT].first_op;
    struct atsi_op router = p->ops[at - 1];
    atsi_program_add_op(p, &router);
    memmove(&p->ops[at + 1], &p->ops[at], (p->n_ops - 1 - at) * sizeof *p->ops);
    p->ops[at] = router;
    p->units[unit].n_ops++;
    for (uint32_t u = unit + 1; u < p->n_units; u++) p->units[u].first_op++;
}
static void route_twice(struct atsi_program *p) { repeat_router(p, ROUTER_UNIT); }
static void route_elsewhere(struct atsi_program *p) { repeat_router(p, EXPERTS_UNIT); }

// One table and one block are found by their units: there they must be of that router's operation alone.
static void units_that_ask_for_others(void **state) {
    (void)state;
    static const struct {
        void (*change)(struct atsi_program *);
        const char *words;
    } cases[] = {{route_twice, "holds more than its router"}, {route_elsewhere, "other experts than its router's"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct atsi_plan plan, back;
        struct atsi_error err = {0};
        char *json;
        size_t size;
        make_plan(&plan);
        cases[i].change(&plan.program);
        check_ok(atsi_plan_to_json(&plan, &json, &size, &err), err);
        assert_int_equal(atsi_plan_from_json(json, size, &back, &err), ATSI_BAD_INPUT);
        check_message(err, "resident_experts", cases[i].words);
        atsi_plan_free(&back);
        free(json);
        atsi_plan_free(&plan);
    }
}

// They are those of a unit of experts on the CPU, and of no other.
static void who_finds_them(void **state) {
    (void)state;
    struct atsi_plan plan;
    make_plan(&plan);
    for (uint32_t u = 0; u < plan.program.n_units; u++) {
        const struct atsi_resident_experts *r = atsi_plan_resident_experts(&plan, u);
        assert_ptr_equal(r, u == EXPERTS_UNIT ? &plan.resident_experts[ROUTER_UNIT] : NULL);
    }
    struct atsi_resident_experts_sum sum = atsi_plan_sum_resident_experts(&plan);
    assert_true(sum.n == 3 && sum.n_of == 4 && sum.n_least == 3 && sum.n_most == 3 &&
                fabs(sum.hit_rate - 0.8125) < 1e-9);
    plan.program.units[EXPERTS_UNIT].backend = ATSI_GPU;
    assert_null(atsi_plan_resident_experts(&plan, EXPERTS_UNIT));
    plan.program.units[EXPERTS_UNIT].backend = ATSI_CPU;
    atsi_plan_drop_resident_experts(&plan);
    assert_null(atsi_plan_resident_experts(&plan, EXPERTS_UNIT));
    assert_int_equal(atsi_plan_sum_resident_experts(&plan).n, 0);
    assert_ptr_equal(atsi_unit_experts_op(&plan.program, &plan.program.units[EXPERTS_UNIT]),
                     &plan.program.ops[plan.program.units[EXPERTS_UNIT].first_op]);
    assert_null(atsi_unit_experts_op(&plan.program, &plan.program.units[ROUTER_UNIT]));
    atsi_plan_free(&plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_round_trip_is_exact),
        cmocka_unit_test(a_plan_without_has_no_member),
        cmocka_unit_test(entries_that_no_plan_may_have),
        cmocka_unit_test(units_that_ask_for_others),
        cmocka_unit_test(who_finds_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
