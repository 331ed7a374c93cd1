// What of an operation's time does not shrink with a part of it: from a profile into units, plans and predicted rounds.
#include <math.h>
#include <stdlib.h>

#include "formats/plan.h"
#include "planner/cost.h"
#include "planner/place.h"
#include "planner/profile_fit.h"
#include "tests/support/check.h"
#include "tests/support/program_builder.h"
#include "tests/support/tiny_plan.h"

// ---- prices -------------------------------------------------------------------------------------------------------

struct fixture {
    struct tiny_plan tiny;
    struct atsi_device_profile profile; // says nothing of parts
};

static void set_up(struct fixture *f) {
    struct atsi_error err = {0};
    tiny_plan_open(&f->tiny, "qwen3moe", NULL, 32);
    for (uint32_t i = 0; i < f->tiny.plan.program.n_tensors; i++) // as large as those of real models: they are divided
        f->tiny.plan.program.tensors[i].size_bytes += ATSI_SMALL_TENSOR_BYTES;
    check_ok(atsi_device_profile_read("plans/rtx3060-i7-11800h.json", &f->profile, &err), err);
    f->profile.switch_us = 0.1;
}

static void tear_down(struct fixture *f) {
    atsi_device_profile_free(&f->profile);
    tiny_plan_close(&f->tiny);
}

static struct atsi_price price_of(const struct fixture *f, enum atsi_backend side, const struct atsi_op *op) {
    struct atsi_work w = atsi_work_of_op(&f->tiny.plan, op, ATSI_DECODE);
    return atsi_device_profile_price(&f->profile, side, op->kind, w.dtype, ATSI_DECODE, w.bytes, w.flops);
}

// A point for every divisible operation, which takes `whole` times what it took; of what it took the given part is fixed.
static void add_parts(struct fixture *f, enum atsi_backend side, double fixed, double whole) {
    const struct atsi_program *p = &f->tiny.plan.program;
    struct atsi_error err = {0};
    for (uint32_t i = 0; i < p->n_ops; i++) {
        struct atsi_work w = atsi_work_of_op(&f->tiny.plan, &p->ops[i], ATSI_DECODE);
        if (!atsi_op_is_divisible(p, &p->ops[i]) ||
            atsi_profile_has_point(&f->profile, side, p->ops[i].kind, w.dtype, ATSI_DECODE, w.bytes, w.flops))
            continue;
        double us = price_of(f, side, &p->ops[i]).us;
        struct atsi_profile_point point = {
            .bytes = w.bytes, .flops = w.flops, .us = whole * us, .has_fixed = true, .fixed_us = fixed * us};
        check_ok(atsi_profile_add_point(&f->profile, side, p->ops[i].kind, w.dtype, ATSI_DECODE, point, &err), err);
    }
}

static bool is_behind(const struct fixture *f, const struct atsi_op *op) {
    static const char *const names[] = {"attn_k.weight", "attn_v.weight", "ffn_up_exps.weight"};
    if (op->kind != ATSI_OP_MATMUL && op->kind != ATSI_OP_EXPERTS) return false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strstr(f->tiny.plan.program.tensors[op->tensor[0]].name, names[i])) return true;
    return false;
}

// What an operation takes on the CPU less in a round of one token: k and v share q's phase and up shares gate's, and gate and up, of one type here,
// are activated in it.
static double saved_us(const struct fixture *f, enum atsi_backend side, const struct atsi_op *op,
                       const struct atsi_price *price) {
    if (side == ATSI_GPU) return 0;
    return op->kind == ATSI_OP_GLU ? price->alone_us : is_behind(f, op) ? price->fixed_us : 0;
}

struct unit_price {
    double us, fixed_us;
};

// Of a profile whose divisible operations have the given part fixed.
static struct unit_price price_of_unit(const struct fixture *f, enum atsi_backend side, const struct atsi_unit *u,
                                       double fixed) {
    const struct atsi_program *p = &f->tiny.plan.program;
    struct unit_price sum = {0, 0};
    for (uint32_t i = u->first_op; i < u->first_op + u->n_ops; i++) {
        struct atsi_price price = price_of(f, side, &p->ops[i]);
        double saved = saved_us(f, side, &p->ops[i], &price);
        sum.us += price.us - saved;
        sum.fixed_us += atsi_op_is_divisible(p, &p->ops[i]) ? fixed * price.us - saved : price.us - saved;
    }
    if (!atsi_unit_is_promotable(u)) sum.fixed_us = 0;
    return sum;
}

static void check_price(float us, float fixed_us, struct unit_price price) {
    assert_float_equal(us, price.us, 1e-4);
    assert_float_equal(fixed_us, price.fixed_us, 1e-4);
    assert_true(fixed_us <= us);
}

static void units_know_what_is_fixed(void **state) {
    (void)state;
    struct fixture f;
    set_up(&f);
    uint32_t n = f.tiny.plan.program.n_units, n_fixed = 0;
    struct atsi_unit_times *before = calloc(n, sizeof *before), *after = calloc(n, sizeof *after);
    atsi_cost_units(&f.tiny.plan, &f.profile, ATSI_DECODE, before, NULL);
    for (int side = ATSI_CPU; side <= ATSI_GPU; side++) add_parts(&f, (enum atsi_backend)side, 0.25, 1);
    atsi_cost_units(&f.tiny.plan, &f.profile, ATSI_DECODE, after, NULL);
    for (uint32_t i = 0; i < n; i++) {
        const struct atsi_unit *u = &f.tiny.plan.program.units[i];
        assert_true(before[i].cpu_fixed_us == 0 && before[i].gpu_fixed_us == 0);
        check_price(after[i].cpu_us, after[i].cpu_fixed_us, price_of_unit(&f, ATSI_CPU, u, 0.25));
        check_price(after[i].gpu_us, after[i].gpu_fixed_us, price_of_unit(&f, ATSI_GPU, u, 0.25));
        assert_true(after[i].cpu_us < before[i].cpu_us + 1e-4 && fabs(after[i].gpu_us - before[i].gpu_us) < 1e-4);
        n_fixed += after[i].cpu_fixed_us > 0;
    }
    assert_true(n_fixed > 4);
    atsi_cost_units(&f.tiny.plan, &f.profile, ATSI_PREFILL, after, NULL);
    for (uint32_t i = 0; i < n; i++) assert_true(after[i].cpu_fixed_us == 0 && after[i].gpu_fixed_us == 0);
    free(before);
    free(after);
    tear_down(&f);
}

// ---- what shares a phase ----------------------------------------------------------------------------------------------

static struct atsi_op *product_with(struct fixture *f, const char *tensor) {
    struct atsi_op *op = f->tiny.plan.program.ops;
    while (op->tensor[0] == ATSI_NONE || strcmp(f->tiny.plan.program.tensors[op->tensor[0]].name, tensor)) op++;
    return op;
}

static struct atsi_unit_times times_of_unit_with(const struct fixture *f, const struct atsi_op *op) {
    const struct atsi_program *p = &f->tiny.plan.program;
    struct atsi_unit_times *times = calloc(p->n_units, sizeof *times);
    atsi_cost_units(&f->tiny.plan, &f->profile, ATSI_DECODE, times, NULL);
    struct atsi_unit_times found = times[atsi_program_unit_of(p, (uint32_t)(op - p->ops))];
    free(times);
    return found;
}

// k shares q's phase as long as both are large products of one input; v, of the same input, shares that of either.
static void products_of_other_inputs_have_phases_of_their_own(void **state) {
    (void)state;
    enum {
        AS_IT_IS,
        OTHER_COLUMNS, // of the same buffer
        MADE_BETWEEN,
        SMALL_BEFORE, // is no product that is shared out
        SMALL,
        N_CASES
    };
    for (int c = AS_IT_IS; c < N_CASES; c++) {
        struct fixture f;
        set_up(&f);
        add_parts(&f, ATSI_CPU, 0.25, 1);
        struct atsi_op *q = product_with(&f, "blk.0.attn_q.weight"), *k = product_with(&f, "blk.0.attn_k.weight"),
                       *v = product_with(&f, "blk.0.attn_v.weight");
        struct atsi_unit_times of_k = times_of_unit_with(&f, k), of_v = times_of_unit_with(&f, v);
        struct atsi_price price = price_of(&f, ATSI_CPU, k);
        double others_us = of_k.cpu_us - (price.us - price.fixed_us);
        assert_true(q < k && k < v && price.fixed_us > 0.1 && others_us > -1e-3);
        if (c == OTHER_COLUMNS) k->in[0].offset += 1;
        if (c == MADE_BETWEEN) q->out[1].buffer = k->in[0].buffer;
        if (c == SMALL_BEFORE) f.tiny.plan.program.tensors[q->tensor[0]].size_bytes = 1024;
        if (c == SMALL) f.tiny.plan.program.tensors[k->tensor[0]].size_bytes = 1024;
        price = price_of(&f, ATSI_CPU, k);
        assert_float_equal(times_of_unit_with(&f, k).cpu_us,
                           others_us + price.us - (c == AS_IT_IS ? price.fixed_us : 0), 1e-3);
        assert_float_equal(times_of_unit_with(&f, v).cpu_us, of_v.cpu_us, 1e-3);
        tear_down(&f);
    }
}

static void check_unit(const struct fixture *f, const struct atsi_unit *u, enum atsi_phase phase,
                       const struct atsi_unit_times *t, double joined_us) {
    double us[2] = {0, 0};
    for (uint32_t i = u->first_op; i < u->first_op + u->n_ops; i++)
        for (int side = ATSI_CPU; side <= ATSI_GPU; side++) {
            const struct atsi_op *op = &f->tiny.plan.program.ops[i];
            struct atsi_work w = atsi_work_of_op(&f->tiny.plan, op, phase);
            struct atsi_price price = atsi_device_profile_price(&f->profile, (enum atsi_backend)side, op->kind, w.dtype,
                                                                phase, w.bytes, w.flops);
            double alone_us = price.us;
            if (phase == ATSI_DECODE) alone_us -= saved_us(f, (enum atsi_backend)side, op, &price);
            bool joins = side == ATSI_GPU && phase == ATSI_DECODE && !atsi_op_is_divisible(&f->tiny.plan.program, op);
            us[side] += joins ? fmax(0, alone_us - joined_us) : alone_us;
        }
    assert_float_equal(t->cpu_us, us[ATSI_CPU], 1e-5 * (1 + us[ATSI_CPU]));
    assert_float_equal(t->gpu_us, us[ATSI_GPU], 1e-5 * (1 + us[ATSI_GPU]));
}

static double shares_us(struct fixture *f) {
    struct atsi_pin pin = {"ffn_.*_exps", ATSI_CPU};
    struct atsi_place_options o = {
        .vram_bytes = f->profile.gpu_bytes, .prefill_weight = 0.2, .pins = &pin, .n_pins = 1};
    struct atsi_placement p;
    struct atsi_error err = {0};
    check_ok(atsi_place(&f->tiny.plan, &f->profile, &o, &p, &err), err);
    return p.decode.shares_us;
}

// Small operations of the device take less among others, and no less than nothing; matrices, chunks and the CPU take what they took, but for
// GLU, which begins and ends with its products there.
static void small_operations_are_joined(void **state) {
    (void)state;
    struct fixture f;
    set_up(&f);
    const struct atsi_program *p = &f.tiny.plan.program;
    struct atsi_unit_times *t = calloc(p->n_units, sizeof *t);
    for (double joined_us = 0; joined_us < 1e3; joined_us = 3 * joined_us + 0.5) {
        f.profile.gpu_joined_us = joined_us;
        for (int phase = ATSI_DECODE; phase <= ATSI_PREFILL; phase++) {
            atsi_cost_units(&f.tiny.plan, &f.profile, (enum atsi_phase)phase, t, NULL);
            for (uint32_t u = 0; u < p->n_units; u++)
                check_unit(&f, &p->units[u], (enum atsi_phase)phase, &t[u], joined_us);
        }
    }
    struct atsi_op *glu = p->ops;
    while (glu->kind != ATSI_OP_GLU) glu++;
    struct atsi_price price = price_of(&f, ATSI_CPU, glu);
    assert_true(price.alone_us > 0 && price.alone_us < price.us);
    free(t);
    tear_down(&f);
}

// The more is fixed on top of what was there, the longer a divided round; what a list takes to begin counts only beside parts that are known.
static void predictions_rise_with_what_is_fixed(void **state) {
    (void)state;
    double last_us = 0;
    static const double fixed[] = {-1, 0.1, 0.3, 0.6};
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++) {
        struct fixture f;
        set_up(&f);
        f.profile.cpu_start_us = 50;
        for (int side = ATSI_CPU; side <= ATSI_GPU && fixed[i] >= 0; side++)
            add_parts(&f, (enum atsi_backend)side, fixed[i], 1 + fixed[i]);
        double us = shares_us(&f);
        assert_true(f.tiny.plan.cpu_start_us == (fixed[i] < 0 ? 0 : 50));
        assert_true(isfinite(us) && us > last_us);
        last_us = us;
        tear_down(&f);
    }
}

// ---- in the plan --------------------------------------------------------------------------------------------------

static void make_plan(struct atsi_plan *plan) {
    test_build_plan(plan);
    uint32_t n = plan->program.n_units;
    plan->contention = ATSI_CONTENTION_DEFAULT;
    plan->decode_times = calloc(n, sizeof *plan->decode_times);
    for (uint32_t u = 0; u < n; u++)
        plan->decode_times[u] = (struct atsi_unit_times){.cpu_us = 10, .gpu_us = 2, .switch_us = 1, .transfer_us = 5};
}

static void a_plan_keeps_it(void **state) {
    (void)state;
    struct atsi_plan plan, back;
    struct atsi_error err = {0};
    char *json, *again;
    size_t size;
    make_plan(&plan);
    check_ok(atsi_plan_to_json(&plan, &json, &size, &err), err);
    assert_null(strstr(json, "fixed")); // as plans of earlier versions
    check_ok(atsi_plan_from_json(json, size, &back, &err), err);
    assert_true(back.cpu_start_us == 0 && back.decode_times[0].cpu_fixed_us == 0);
    atsi_plan_free(&back);
    free(json);

    plan.cpu_start_us = 6.25;
    plan.decode_times[1].cpu_fixed_us = 3.3f;
    plan.decode_times[2].gpu_fixed_us = 2;
    check_ok(atsi_plan_to_json(&plan, &json, &size, &err), err);
    check_ok(atsi_plan_from_json(json, size, &back, &err), err);
    assert_true(back.cpu_start_us == 6.25);
    assert_memory_equal(back.decode_times, plan.decode_times, plan.program.n_units * sizeof *plan.decode_times);
    check_ok(atsi_plan_to_json(&back, &again, &size, &err), err);
    assert_string_equal(json, again);
    free(json);
    free(again);
    atsi_plan_free(&plan);
    atsi_plan_free(&back);
}

static void parts_over_the_whole_are_refused(void **state) {
    (void)state;
    struct atsi_plan plan;
    make_plan(&plan);
    plan.decode_times[1].cpu_fixed_us = 10.5f;
    check_plan_refused(&plan, "decode_fixed");
    plan.decode_times[1].cpu_fixed_us = 1;
    plan.decode_times[2].gpu_fixed_us = -1;
    check_plan_refused(&plan, "decode_fixed");
    plan.decode_times[2].gpu_fixed_us = 1;
    plan.cpu_start_us = -1;
    check_plan_refused(&plan, "cpu_start_us");
    atsi_plan_free(&plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(units_know_what_is_fixed),
        cmocka_unit_test(products_of_other_inputs_have_phases_of_their_own),
        cmocka_unit_test(small_operations_are_joined),
        cmocka_unit_test(predictions_rise_with_what_is_fixed),
        cmocka_unit_test(a_plan_keeps_it),
        cmocka_unit_test(parts_over_the_whole_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
