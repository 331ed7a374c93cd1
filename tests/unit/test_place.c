// Placement of small models: work counted by hand, the budget kept, pins, what a bigger budget brings.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "planner/content.h"
#include "planner/cost.h"
#include "planner/place.h"
#include "runtime/schedule/shares.h"
#include "tests/support/check.h"
#include "tests/support/tiny_plan.h"

struct fixture {
    struct tiny_plan tiny;
    struct atsi_device_profile profile;
};

static void set_up(struct fixture *f, const char *arch, const char *without) {
    struct atsi_error err;
    memset(f, 0, sizeof *f);
    tiny_plan_open(&f->tiny, arch, &(struct tiny_change){.drop_tensor = without}, 0);
    check_ok(atsi_device_profile_read("plans/rtx3060-i7-11800h.json", &f->profile, &err), err);
    f->profile.switch_us = 0.1; // so that a placement of so small units has something to win
}

static void tear_down(struct fixture *f) {
    atsi_device_profile_free(&f->profile);
    tiny_plan_close(&f->tiny);
}

static const struct atsi_op *first_of(const struct atsi_plan *plan, enum atsi_op_kind kind) {
    for (uint32_t i = 0; i < plan->program.n_ops; i++)
        if (plan->program.ops[i].kind == kind) return &plan->program.ops[i];
    fail_msg("no %s", atsi_op_name(kind));
    return NULL;
}

static void test_work_of_operations(void **state) {
    (void)state;
    struct fixture f;
    set_up(&f, "qwen3moe", NULL);
    struct atsi_work w = atsi_work_of_op(&f.tiny.plan, first_of(&f.tiny.plan, ATSI_OP_MATMUL), ATSI_DECODE);
    assert_true(w.bytes == 4 * TINY_EMBD * TINY_HEADS * TINY_DIM && w.flops == 2 * TINY_EMBD * TINY_HEADS * TINY_DIM);
    w = atsi_work_of_op(&f.tiny.plan, first_of(&f.tiny.plan, ATSI_OP_MATMUL),
                        ATSI_PREFILL); // the chunk is the context: 512
    assert_true(w.bytes == 4 * TINY_EMBD * TINY_HEADS * TINY_DIM &&
                w.flops == 512.0 * 2 * TINY_EMBD * TINY_HEADS * TINY_DIM);
    w = atsi_work_of_op(&f.tiny.plan, first_of(&f.tiny.plan, ATSI_OP_ATTENTION),
                        ATSI_DECODE); // 256 positions, f16 keys and values
    assert_true(w.bytes == 256 * TINY_KV_HEADS * 2 * TINY_DIM * 2 && w.flops == 2.0 * TINY_HEADS * 256 * 2 * TINY_DIM);
    w = atsi_work_of_op(&f.tiny.plan, first_of(&f.tiny.plan, ATSI_OP_EXPERTS), ATSI_DECODE); // 2 of 4 experts
    assert_true(w.bytes == 4.0 * TINY_EMBD * TINY_FF_EXP * TINY_USED &&
                w.flops == 2.0 * TINY_EMBD * TINY_FF_EXP * TINY_USED);
    w = atsi_work_of_op(&f.tiny.plan, first_of(&f.tiny.plan, ATSI_OP_EXPERTS), ATSI_PREFILL); // as good as all of them
    assert_true(fabs(w.bytes - 4.0 * TINY_EMBD * TINY_FF_EXP * TINY_EXPERTS) < 1);
    tear_down(&f);
}

static void test_active_experts(void **state) {
    (void)state;
    struct atsi_experts_params e = {.n_experts = 128, .n_used = 8};
    assert_true(fabs(atsi_active_experts(&e, 1) - 8.0 / 128) < 1e-12);
    assert_true(fabs(atsi_active_experts(&e, 2) - (1 - (120.0 / 128) * (120.0 / 128))) < 1e-12);
    e.n_used = 128;
    assert_true(atsi_active_experts(&e, 1) == 1);
}

static struct atsi_place_options options_of(uint64_t vram) {
    return (struct atsi_place_options){.vram_bytes = vram, .prefill_weight = 0.2, .certify_seconds = 5};
}

static uint64_t sum(const struct atsi_budget *b) {
    return b->driver + b->compute + b->states + b->temp + b->resident + b->experts + b->spare;
}

static void test_the_budget_adds_up_and_more_is_never_slower(void **state) {
    (void)state;
    static const char *const archs[] = {"llama", "qwen3moe", "gpt-oss", "qwen35"};
    for (unsigned a = 0; a < sizeof archs / sizeof *archs; a++) {
        struct fixture f;
        struct atsi_error err;
        struct atsi_placement p;
        double last = INFINITY;
        set_up(&f, archs[a], NULL);
        uint64_t least = atsi_budget_least(&f.tiny.plan, &f.profile, NULL);
        for (uint64_t extra = 0; extra <= 64; extra += 8) {
            struct atsi_place_options o = options_of(least + (extra << 20));
            check_ok(atsi_place(&f.tiny.plan, &f.profile, &o, &p, &err), err);
            assert_int_equal(sum(&p.budget), o.vram_bytes);
            assert_true(p.budget.spare <= o.vram_bytes);
            double score = 0.8 * p.decode_us + 0.2 * p.prefill_us / f.tiny.plan.limits.chunk;
            assert_true(score <= last * (1 + 1e-9));
            assert_true(p.decode_us <= p.decode_static_us * (1 + 1e-9));
            last = score;
        }
        for (uint32_t i = 0; i < f.tiny.plan.program.n_units; i++) // all of it fits by now
            assert_int_equal(f.tiny.plan.program.units[i].backend, ATSI_GPU);
        assert_string_equal(f.tiny.plan.certificate.milp_status, "optimal");
        assert_string_equal(f.tiny.plan.device, f.profile.name);
        tear_down(&f);
    }
}

// Weights on the card, tensor by tensor: small ones, and what an operation of a unit there reads; each once.
static uint64_t count_resident(const struct atsi_program *p) {
    uint64_t bytes = 0;
    for (uint32_t t = 0; t < p->n_tensors; t++) {
        bool there = p->tensors[t].size_bytes <= 256 << 10;
        for (uint32_t u = 0; u < p->n_units; u++)
            for (uint32_t i = 0; p->units[u].backend == ATSI_GPU && i < p->units[u].n_ops; i++)
                for (int k = 0; k < ATSI_OP_MAX_TENSORS; k++)
                    there |= p->ops[p->units[u].first_op + i].tensor[k] == (int32_t)t;
        if (there) bytes += (p->tensors[t].size_bytes + 255) / 256 * 256;
    }
    return bytes;
}

// Of models whose weights do not all fit, one of them with one matrix for embedding and head.
static void test_resident_weights_are_what_is_placed(void **state) {
    (void)state;
    static const struct { const char *arch, *without; } models[] = {{"qwen3moe", NULL}, {"qwen3", "output.weight"}};
    for (unsigned a = 0; a < sizeof models / sizeof *models; a++) {
        struct fixture f;
        struct atsi_error err;
        struct atsi_placement p;
        bool divided = false, whole = false;
        set_up(&f, models[a].arch, models[a].without);
        for (uint32_t i = 0; i < f.tiny.plan.program.n_tensors; i++)
            if (f.tiny.plan.program.tensors[i].ne[1] > 1) // a matrix
                f.tiny.plan.program.tensors[i].size_bytes += ATSI_SMALL_TENSOR_BYTES + 100 * i;
        uint64_t least = atsi_budget_least(&f.tiny.plan, &f.profile, NULL);
        for (uint64_t extra = 1; extra <= 64; extra *= 2) {
            struct atsi_place_options o = options_of(least + (extra << 20));
            check_ok(atsi_place(&f.tiny.plan, &f.profile, &o, &p, &err), err);
            assert_int_equal(p.budget.resident, count_resident(&f.tiny.plan.program));
            assert_true(p.budget.driver + p.budget.compute + p.budget.temp + p.budget.states + p.budget.resident <=
                        o.vram_bytes);
            uint32_t n_gpu = 0, n = f.tiny.plan.program.n_units;
            for (uint32_t i = 0; i < n; i++) n_gpu += f.tiny.plan.program.units[i].backend == ATSI_GPU;
            divided |= n_gpu > 0 && n_gpu < n;
            whole |= n_gpu == n;
        }
        assert_true(divided && whole);
        tear_down(&f);
    }
}

static void test_too_small_a_budget_names_the_smallest(void **state) {
    (void)state;
    struct fixture f;
    struct atsi_error err = {0};
    struct atsi_placement p;
    char least[32];
    set_up(&f, "llama", NULL);
    uint64_t least_vram = atsi_budget_least(&f.tiny.plan, &f.profile, NULL);
    snprintf(least, sizeof least, "(%lluM", (unsigned long long)(least_vram >> 20));
    struct atsi_place_options o = options_of(least_vram - 1);
    check_refused(atsi_place(&f.tiny.plan, &f.profile, &o, &p, &err), err, "--vram", least);
    o.vram_bytes = f.profile.gpu_bytes + 1;
    check_refused(atsi_place(&f.tiny.plan, &f.profile, &o, &p, &err), err, "--vram", "6 GiB");
    tear_down(&f);
}

static void test_pins(void **state) {
    (void)state;
    struct fixture f;
    struct atsi_error err = {0};
    struct atsi_placement p;
    set_up(&f, "qwen3moe", NULL);
    struct atsi_pin pins[] = {{"ffn_.*_exps", ATSI_CPU}, {"^output$", ATSI_GPU}};
    struct atsi_place_options o = options_of(atsi_budget_least(&f.tiny.plan, &f.profile, NULL) + (64 << 20));
    o.pins = pins;
    o.n_pins = 2;
    check_ok(atsi_place(&f.tiny.plan, &f.profile, &o, &p, &err), err);
    for (uint32_t i = 0; i < f.tiny.plan.program.n_units; i++) {
        const struct atsi_unit *u = &f.tiny.plan.program.units[i];
        if (u->kind == ATSI_UNIT_EXPERTS) assert_int_equal(u->backend, ATSI_CPU);
        if (u->kind == ATSI_UNIT_HEAD) assert_int_equal(u->backend, ATSI_GPU);
    }
    pins[0].pattern = "no_such_unit";
    check_refused(atsi_place(&f.tiny.plan, &f.profile, &o, &p, &err), err, "--pin", "no_such_unit");
    pins[0].pattern = "(";
    check_refused(atsi_place(&f.tiny.plan, &f.profile, &o, &p, &err), err, "--pin", "regular expression");
    pins[0].pattern = ".";
    pins[0].side = ATSI_GPU;
    f.tiny.plan.limits.n_ctx = 1 << 18; // caches of many MiB
    o.vram_bytes = atsi_budget_least(&f.tiny.plan, &f.profile, NULL) + (2 << 20);
    check_refused(atsi_place(&f.tiny.plan, &f.profile, &o, &p, &err), err, "--pin: what is pinned to the GPU takes",
                  "MiB for it at chunk", "or give --vram ");
    // The budget that the message names is the smallest one that works, though no temporary region fits beside what is pinned.
    uint64_t named_mib = strtoull(strstr(err.text, "give --vram ") + strlen("give --vram "), NULL, 10);
    o.vram_bytes = (named_mib - 1) << 20;
    check_refused(atsi_place(&f.tiny.plan, &f.profile, &o, &p, &err), err, "--pin");
    o.vram_bytes = named_mib << 20;
    check_ok(atsi_place(&f.tiny.plan, &f.profile, &o, &p, &err), err);
    for (uint32_t i = 0; i < f.tiny.plan.program.n_units; i++)
        assert_int_equal(f.tiny.plan.program.units[i].backend, ATSI_GPU);
    tear_down(&f);
}

// A unit whose type the GPU cannot compute with (a table of tokens in a grid type) stays on the CPU, is never worth moving, and cannot be
// pinned to the GPU.
static void test_types_without_gpu_kernels(void **state) {
    (void)state;
    struct fixture f;
    struct atsi_error err = {0};
    struct atsi_placement p;
    set_up(&f, "llama", NULL);
    struct atsi_unit *unit = &f.tiny.plan.program.units[0];
    assert_int_equal(unit->kind, ATSI_UNIT_EMBED);
    f.tiny.plan.program.tensors[f.tiny.plan.program.ops[unit->first_op].tensor[0]].dtype =
        ATSI_IQ2_XXS; // plain, and no float
    struct atsi_place_options o = options_of(f.profile.gpu_bytes);
    check_ok(atsi_place(&f.tiny.plan, &f.profile, &o, &p, &err), err);
    for (uint32_t i = 0; i < f.tiny.plan.program.n_units; i++)
        assert_int_equal(f.tiny.plan.program.units[i].backend,
                         &f.tiny.plan.program.units[i] == unit ? ATSI_CPU : ATSI_GPU);
    assert_true(p.decode_us < ATSI_NEVER_US && p.prefill_us < ATSI_NEVER_US);
    struct atsi_pin pin = {unit->name, ATSI_GPU};
    o.pins = &pin;
    o.n_pins = 1;
    check_refused(atsi_place(&f.tiny.plan, &f.profile, &o, &p, &err), err, unit->name);
    tear_down(&f);
}

static void plan_again(struct fixture *f, uint32_t n_ctx) {
    struct atsi_error err;
    atsi_plan_free(&f->tiny.plan);
    atsi_lowered_free(&f->tiny.lowered);
    check_ok(atsi_lower(f->tiny.gguf, &(struct atsi_lower_options){.n_ctx = n_ctx}, &f->tiny.lowered, &err), err);
    check_ok(atsi_content_make(f->tiny.gguf, &f->tiny.lowered,
                               &(struct atsi_content_options){.chunk = 32, .kv_type = ATSI_F16, .command = "test"},
                               &f->tiny.plan, &err),
             err);
}

// What is chosen is the best of what was tried, fits, and costs what placing at that chunk alone costs; without room for a
// larger chunk's activations the smallest stays.
static void test_the_chunk_is_chosen(void **state) {
    (void)state;
    struct fixture f;
    struct atsi_error err;
    struct atsi_placement p, alone;
    set_up(&f, "qwen3moe", NULL);
    plan_again(&f, 512);
    uint64_t least = atsi_budget_least(&f.tiny.plan, &f.profile, NULL);
    f.profile.to_device.fixed_us = 500; // streaming pays once a chunk
    struct atsi_place_options o = options_of(least + (4 << 20));
    o.choose_chunk = true;
    o.prefill_weight = 1;
    check_ok(atsi_place(&f.tiny.plan, &f.profile, &o, &p, &err), err);
    assert_int_equal(p.n_chunks, 4);
    assert_int_equal(sum(&p.budget), o.vram_bytes);
    const struct atsi_chunk_option *chosen = NULL;
    for (uint32_t i = 0; i < p.n_chunks; i++) {
        assert_int_equal(p.chunks[i].chunk, 32 << i);
        if (p.chunks[i].chunk == f.tiny.plan.limits.chunk) chosen = &p.chunks[i];
    }
    assert_true(chosen && chosen->fits && chosen->chunk > 32);
    for (uint32_t i = 0; i < p.n_chunks; i++)
        assert_true(!p.chunks[i].fits || chosen->objective_us <= p.chunks[i].objective_us);
    o.choose_chunk = false;
    check_ok(atsi_place(&f.tiny.plan, &f.profile, &o, &alone, &err), err);
    assert_true(alone.n_chunks == 1 && alone.prefill_us == p.prefill_us && alone.decode_us == p.decode_us);

    plan_again(&f, 512);
    o.choose_chunk = true;
    uint64_t base = atsi_budget_base(&f.tiny.plan, &f.profile, NULL);
    f.profile.context_bytes += least - base; // to the MiB
    o.vram_bytes = least;
    check_ok(atsi_place(&f.tiny.plan, &f.profile, &o, &p, &err), err);
    assert_true(f.tiny.plan.limits.chunk == 32 && p.chunks[0].fits && !p.chunks[3].fits);
    tear_down(&f);
}

// Operations on the same chosen experts get one share, the mean by bytes of those that can be shared.
static void check_experts_are_divided_alike(void) {
    struct atsi_unit units[6] = {
        {.weight_bytes = 9, .router_unit = ATSI_NONE}, {.weight_bytes = 9, .router_unit = ATSI_NONE},
        {.weight_bytes = 1, .router_unit = 1},         {.weight_bytes = 3, .router_unit = 1},
        {.weight_bytes = 5, .router_unit = 1},         {.weight_bytes = 2, .router_unit = 4}};
    float shares[6] = {0.1f, 0.2f, 0.4f, 0.8f, 0, 0.6f}; // the fifth cannot be shared
    atsi_shares_even_out(&(struct atsi_program){.units = units, .n_units = 6}, shares);
    static const float expected[6] = {0.1f, 0.2f, 0.7f, 0.7f, 0, 0.6f};
    for (int i = 0; i < 6; i++) assert_float_equal(shares[i], expected[i], 1e-6);
}

// Both parts of a shared unit end together, and a token is predicted in the fastest of the ways; with all on the GPU there is nothing
// to share.
static void test_shares_are_predicted(void **state) {
    (void)state;
    struct fixture f;
    struct atsi_error err;
    struct atsi_placement p;
    struct atsi_contention contention = {1.25, 1.5, 1.1};
    struct atsi_schedule_unit unit = {.t_cpu_us = 80, .t_gpu_us = 10, .transfer_us = 60};
    double share = atsi_share_of(&contention, &unit, 1);
    assert_true(fabs(share * (60 * 1.5 + 10) - (1 - share) * 80 * 1.25) < 1e-4);
    share = atsi_share_of(&contention, &unit, 2);
    assert_true(fabs(share * 2 * (60 * 1.5 + 10) - (1 - share) * 80 * 1.25) < 1e-4);
    assert_true(atsi_share_of(&contention, &(struct atsi_schedule_unit){.t_cpu_us = 0}, 1) == 0);
    unit.cpu_fixed_us = 30;
    unit.gpu_fixed_us = 5;
    share = atsi_share_of(&contention, &unit, 1); // both end together
    assert_true(fabs(5 + share * (60 * 1.5 + 10 - 5) - 30 - (1 - share) * (80 * 1.25 - 30)) < 1e-4);
    unit.t_cpu_us = 4;
    unit.cpu_fixed_us = 1;
    unit.gpu_fixed_us = 8;
    assert_true(atsi_share_of(&contention, &unit, 1) == 0); // done before the GPU has begun
    unit = (struct atsi_schedule_unit){.t_cpu_us = 80, .cpu_fixed_us = 60, .t_gpu_us = 50};
    assert_true(atsi_share_of(&contention, &unit, 1) == 1);
    check_experts_are_divided_alike();

    set_up(&f, "qwen3moe", NULL);
    struct atsi_pin pin = {"ffn_.*_exps", ATSI_CPU};
    struct atsi_place_options o = options_of(f.profile.gpu_bytes);
    o.pins = &pin;
    o.n_pins = 1;
    check_ok(atsi_place(&f.tiny.plan, &f.profile, &o, &p, &err), err);
    const struct atsi_decode_forecast *d = &p.decode;
    assert_true(isinf(d->shares_us)); // so small matrices stand on both sides
    assert_true(p.decode_us == fmin(d->static_us, d->streams_us));
    assert_true(d->terms.cpu_us > 0 && d->terms.gpu_us > 0 && d->terms.n_waits > 0 && d->handover_us > 0);
    for (uint32_t i = 0; i < f.tiny.plan.program.n_tensors; i++) // as large as those of real models, for the prediction
        f.tiny.plan.program.tensors[i].size_bytes += ATSI_SMALL_TENSOR_BYTES;
    check_ok(atsi_place(&f.tiny.plan, &f.profile, &o, &p, &err), err);
    assert_true(p.decode_us == fmin(d->static_us, fmin(d->streams_us, d->shares_us)) && isfinite(d->shares_us));
    assert_true(d->terms.link_us > 0);
    o.n_pins = 0;
    check_ok(atsi_place(&f.tiny.plan, &f.profile, &o, &p, &err), err);
    assert_true(isinf(d->shares_us) && d->terms.cpu_us == 0 && d->terms.link_us == 0);
    tear_down(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_work_of_operations),
        cmocka_unit_test(test_active_experts),
        cmocka_unit_test(test_the_budget_adds_up_and_more_is_never_slower),
        cmocka_unit_test(test_resident_weights_are_what_is_placed),
        cmocka_unit_test(test_too_small_a_budget_names_the_smallest),
        cmocka_unit_test(test_pins),
        cmocka_unit_test(test_types_without_gpu_kernels),
        cmocka_unit_test(test_the_chunk_is_chosen),
        cmocka_unit_test(test_shares_are_predicted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
