// Rounds on CPU and simulated device under random assignments, promotions and stream delays, with weights of which some are not pinned and
// experts that are resident one by one and exchanged between rounds: the same bits as on the CPU alone. And what is noted and traced of them.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/clock.h"
#include "runtime/executor_internal.h"
#include "tests/support/check.h"
#include "tests/support/small_model.h"
#include "tests/support/test_temp.h"

enum {
    N_PROMPT = 13,
    N_CHUNKS = 2, // of the prompt
    N_DECODE = 6
};

struct rows {
    float *at;
    uint32_t n_vocab;
};
static void keep_rows(void *context, const float *logits, uint32_t first_output, uint32_t n_outputs) {
    struct rows *rows = context;
    memcpy(rows->at + (size_t)first_output * rows->n_vocab, logits, (size_t)n_outputs * rows->n_vocab * sizeof *logits);
}

// A prompt in chunks of 8 and 5 with all logits, then single tokens; `reassign` gets its turn before every round. The machine is taken for
// crowded in most of them: it may become that and be it no longer at any time.
static void run_text(struct test_model *m, struct atsi_executor *x, void (*reassign)(void *, struct atsi_executor *),
                     void *context, float *logits) {
    struct rows rows = {logits, m->plan.program.n_vocab};
    uint32_t done = 0;
    while (done < N_PROMPT + N_DECODE) {
        uint32_t n = done == 0 ? 8 : done < N_PROMPT ? 5 : 1;
        int32_t ids[8], outputs[8];
        for (uint32_t i = 0; i < n; i++) {
            ids[i] = (int32_t)((done + i) * 11 % m->plan.program.n_vocab);
            outputs[i] = (int32_t)i;
        }
        struct atsi_round_request r = {ids, n, done, outputs, n, keep_rows, &rows};
        struct atsi_error err = {0};
        reassign(context, x);
        atsi_pool_assume_crowded(x->pool, done % 4 == 3 ? 0 : 60e6);
        if (atsi_executor_round(x, &r, &err) != ATSI_OK) fail_msg("%s", err.text);
        rows.at += (size_t)n * rows.n_vocab;
        done += n;
    }
}

static void assign(struct atsi_executor *x, const struct atsi_assignment *a) {
    struct atsi_error err = {0};
    if (atsi_executor_assign(x, a, &err) != ATSI_OK) fail_msg("%s", err.text);
}

static void stay_on_cpu(void *context, struct atsi_executor *x) {
    static const enum atsi_backend backends[TEST_MODEL_UNITS];
    struct atsi_assignment a = {.backends = backends};
    (void)context;
    assign(x, &a);
}

struct shuffle {
    struct test_model *m;
    uint32_t n_tokens; // that the assignment at work is for
    uint64_t random;
    enum atsi_backend backends[TEST_MODEL_UNITS];
    enum atsi_promotion promotions[TEST_MODEL_UNITS];
    float gpu_share[TEST_MODEL_UNITS];
    struct atsi_slot_division divisions[TEST_MODEL_UNITS];
    uint32_t i_round;      // that comes next
    bool assigned, beside; // beside: the next assignment is prepared in another thread while a round runs
    pthread_t thread;
    struct atsi_executor *executor;
    struct atsi_prepared_round *next;
};

static bool is_pinned(const struct test_model *m, uint32_t u) {
    uint32_t cursor = 0, t;
    while (atsi_unit_next_big_tensor(&m->plan.program, &m->plan.program.units[u], &cursor, &t))
        if (!m->mapped[t]) return false;
    return true;
}

// What is not pinned can only be prefetched.
static void restrict_unit(struct shuffle *s, uint32_t u) {
    bool is_head = s->m->plan.program.units[u].kind == ATSI_UNIT_HEAD, pinned = is_pinned(s->m, u);
    if (is_head && s->promotions[u] == ATSI_PREFETCHED) s->promotions[u] = ATSI_IN_PLACE;
    if (!pinned && s->promotions[u] == ATSI_IN_PLACE) s->promotions[u] = is_head ? ATSI_NOT_PROMOTED : ATSI_PREFETCHED;
    if (!pinned) s->gpu_share[u] = 0;
}

// Slots in any proportion that leaves the device what is resident there.
static void divide_slots(struct shuffle *s, uint32_t router) {
    struct atsi_slot_division *d = &s->divisions[router];
    d->n_used = TEST_MODEL_USED;
    d->last_on_gpu = test_random(&s->random) % 2;
    for (uint32_t r = 0; r <= d->n_used; r++)
        d->gpu_slots[r] = (uint8_t)(r + test_random(&s->random) % (d->n_used - r + 1));
}

// Any unit on either side, resident, prefetched or read in place, or shared in any proportion; slots also token by token, once all
// rounds to come are of one token.
static struct atsi_assignment draw(struct shuffle *s, uint32_t i_round) {
    bool divides = s->m->slots && i_round >= N_CHUNKS && test_random(&s->random) % 4;
    bool as_planned =
        divides && test_random(&s->random) % 3 == 0; // experts shared, all else on the device, nothing prefetched
    for (uint32_t u = 0; divides && u < s->m->plan.program.n_units; u++)
        if (s->m->plan.program.units[u].router_unit != ATSI_NONE)
            divide_slots(s, (uint32_t)s->m->plan.program.units[u].router_unit);
    for (uint32_t u = 0; u < s->m->plan.program.n_units; u++) {
        s->backends[u] = test_random(&s->random) % 3 ? ATSI_GPU : ATSI_CPU;
        s->promotions[u] = (enum atsi_promotion)(test_random(&s->random) % 3);
        s->gpu_share[u] = (float)(test_random(&s->random) % 5) / 4;
        if (as_planned) {
            bool has_experts = s->m->plan.program.units[u].kind == ATSI_UNIT_EXPERTS;
            s->backends[u] = has_experts ? ATSI_CPU : ATSI_GPU;
            s->promotions[u] = ATSI_NOT_PROMOTED;
            s->gpu_share[u] = 0.5f;
        }
        restrict_unit(s, u);
    }
    s->n_tokens = 1 + test_random(&s->random) % 2;
    const struct atsi_slot_division *divisions = divides ? s->divisions : NULL;
    return (struct atsi_assignment){s->backends, s->promotions, s->gpu_share, divisions, s->n_tokens, NULL};
}

static void *prepare_next(void *context) {
    struct shuffle *s = context;
    struct atsi_assignment a = draw(s, s->i_round);
    return (void *)(intptr_t)atsi_executor_prepare(s->executor, &a, &s->next, NULL);
}

static void take_next(struct shuffle *s) {
    struct atsi_prepared_round *old;
    void *status;
    assert_int_equal(pthread_join(s->thread, &status), 0);
    assert_int_equal((intptr_t)status, ATSI_OK);
    assert_int_equal(atsi_executor_adopt(s->executor, s->next, &old, NULL), ATSI_OK);
    atsi_prepared_round_free(old);
}

// About every second round keeps what it has, in runs that do not prepare beside them.
static void shuffle_units(void *context, struct atsi_executor *x) {
    struct shuffle *s = context;
    if (s->assigned && s->beside) take_next(s);
    bool assigns = !s->assigned || (!s->beside && test_random(&s->random) % 2);
    // What was prepared for several tokens brings what was not resident then.
    if (s->m->slots && (assigns || s->n_tokens == 1)) test_model_exchange(s->m, x, &s->random);
    if (assigns) {
        struct atsi_assignment a = draw(s, s->i_round);
        assign(x, &a);
    }
    s->assigned = true;
    s->i_round++;
    s->executor = x;
    if (s->beside) assert_int_equal(pthread_create(&s->thread, NULL, prepare_next, s), 0);
}

// The device as it is under a debugging tool: nothing may be launched ahead, so decode rounds go run by run.
static const struct atsi_device_ops *plain;
static enum atsi_status info_of_blocking(struct atsi_device *d, struct atsi_device_info *out, struct atsi_error *err) {
    enum atsi_status status = plain->info(d, out, err);
    out->launches_block = true;
    return status;
}

// Half of the runs have about half of their tensors in memory that the device cannot reach, and a ring of small slots.
static struct atsi_pinned_ring *unpin(struct test_model *m, struct atsi_device *d, uint64_t seed) {
    struct atsi_pinned_ring_params params = {
        .device = d, .slot_bytes = 48 << 10, .n_slots = 2 + seed % 3, .n_threads = 1 + seed % 2};
    struct atsi_pinned_ring *ring;
    uint64_t random = seed * 40503 + 3;
    if (seed / 4 % 2) return NULL;
    assert_int_equal(atsi_pinned_ring_create(&params, &ring, NULL), ATSI_OK);
    for (uint32_t t = 0; t < m->plan.program.n_tensors; t++)
        if (test_random(&random) % 2) m->mapped[t] = NULL;
    return ring;
}

static void run_shuffled(const float *expected, size_t n_logits, uint64_t seed, float *found) {
    struct test_model m;
    struct atsi_device *d = test_open_sim((uint32_t)seed + 1);
    struct atsi_device_ops blocking = *d->ops;
    struct atsi_executor *x;
    plain = d->ops;
    blocking.info = info_of_blocking;
    if (seed % 4 >= 2) d->ops = &blocking;
    test_model_build(&m);
    test_model_load(&m, d);
    struct atsi_executor_params params = test_model_params(&m, d);
    struct shuffle s = {.m = &m, .random = seed * 2654435761u + 7, .beside = seed % 2};
    params.ring = unpin(&m, d, seed);
    if (seed % 3) test_model_reside(&m, d, &s.random);
    assert_int_equal(atsi_executor_create(&params, &x, NULL), ATSI_OK);
    run_text(&m, x, shuffle_units, &s, found);
    if (s.beside) take_next(&s);
    for (size_t i = 0; i < n_logits; i++)
        if (memcmp(&found[i], &expected[i], sizeof found[i]))
            fail_msg("seed %llu: logit %zu differs", (unsigned long long)seed, i);
    atsi_executor_free(x);
    atsi_pinned_ring_free(params.ring);
    test_model_unload(&m, d);
    atsi_plan_free(&m.plan);
}

static void random_assignments_give_the_same_bits(void **state) {
    (void)state;
    struct test_model m;
    struct atsi_executor *x;
    const char *wanted = getenv("ATSI_SOAK_RUNS");
    uint64_t n_runs = wanted ? strtoull(wanted, NULL, 10) : 40;
    test_model_build(&m);
    size_t n_logits = (size_t)(N_PROMPT + N_DECODE) * m.plan.program.n_vocab;
    float *expected = calloc(n_logits, sizeof *expected), *found = calloc(n_logits, sizeof *found);
    struct atsi_executor_params params = test_model_params(&m, NULL);
    assert_int_equal(atsi_executor_create(&params, &x, NULL), ATSI_OK);
    run_text(&m, x, stay_on_cpu, NULL, expected);
    atsi_executor_free(x);
    for (uint64_t seed = 1; seed <= n_runs; seed++) run_shuffled(expected, n_logits, seed, found);
    free(expected);
    free(found);
    test_model_free(&m);
}

// What calls are told: the router and the device's products which slots are its own, the host's products which to leave out. (That the host
// computes no more than that changes no bit of a result.) Where the device has the last products, which of their experts are fetched.
static void check_divided_calls(const struct atsi_prepared_round *p, bool last_on_gpu) {
    uint32_t n_calls = 0, n_cpu_actions = 0;
    for (uint32_t i = 0; i < p->script.n_steps; i++) {
        const struct atsi_step *s = &p->script.steps[i];
        const struct atsi_op_call *call = &p->calls[i];
        const struct atsi_experts_ref *told = &call->resident;
        bool routes = call->op->kind == ATSI_OP_ROUTER, multiplies = call->op->kind == ATSI_OP_EXPERTS;
        if (!routes && !multiplies) continue;
        bool is_last = multiplies && last_on_gpu && call->op->u.experts.in_per_slot;
        n_calls++;
        assert_int_equal(s->by_token, multiplies && !is_last);
        assert_int_equal(told->mine != NULL, s->backend == ATSI_GPU && !is_last);
        assert_int_equal(told->gpu_slots != NULL, routes || s->backend == ATSI_CPU);
        assert_int_equal(s->fetches || s->fetched, is_last);
        assert_int_equal(told->fetched != NULL, is_last);
        if (is_last) assert_int_equal(s->fetches, n_calls == 2); // right behind the router
    }
    assert_int_equal(n_calls, 1 + 2 * TEST_MODEL_EXPERT_UNITS);
    for (uint32_t i = 0; i < p->script.n_actions; i++) n_cpu_actions += p->script.actions[i].kind == ATSI_ACTION_CPU;
    assert_int_equal(n_cpu_actions, 1); // all of the CPU's part is done in one go
}

// A division has room for one token: a round of more under it is refused and runs nothing.
static void check_division(bool fetches) {
    struct test_model m;
    struct atsi_device *d = test_open_sim(1);
    struct atsi_executor *x;
    struct atsi_error err = {0};
    uint64_t random = 5;
    float logits[64];
    struct rows rows = {logits, 0};
    test_model_build(&m);
    test_model_load(&m, d);
    test_model_reside(&m, d, &random);
    struct atsi_executor_params params = test_model_params(&m, d);
    assert_int_equal(atsi_executor_create(&params, &x, NULL), ATSI_OK);
    struct shuffle s = {.m = &m};
    for (uint32_t u = 0; u < m.plan.program.n_units; u++) {
        bool has_experts = m.plan.program.units[u].kind == ATSI_UNIT_EXPERTS;
        s.backends[u] = has_experts ? ATSI_CPU : ATSI_GPU;
        s.gpu_share[u] = has_experts ? 0.5f : 0;
        if (has_experts)
            s.divisions[m.plan.program.units[u].router_unit] =
                (struct atsi_slot_division){.n_used = TEST_MODEL_USED, .gpu_slots = {1, 1, 2}, .last_on_gpu = fetches};
    }
    struct atsi_assignment a = {s.backends, s.promotions, s.gpu_share, s.divisions, 1, NULL};
    assign(x, &a);
    check_divided_calls(x->now, fetches);
    const int32_t ids[2] = {1, 2}, outputs[1] = {0};
    struct atsi_round_request r = {ids, 2, 0, outputs, 1, keep_rows, &rows};
    rows.n_vocab = m.plan.program.n_vocab;
    assert_int_equal(atsi_executor_round(x, &r, &err), ATSI_FAILED);
    assert_non_null(strstr(err.text, "2 tokens"));
    r.n_tokens = 1;
    assert_int_equal(atsi_executor_round(x, &r, &err), ATSI_OK);
    atsi_executor_free(x);
    test_model_unload(&m, d);
    atsi_plan_free(&m.plan);
}

static void a_division_for_one_token_refuses_more(void **state) {
    (void)state;
    check_division(false);
    check_division(true);
}

// ---- waits and transfers ----------------------------------------------------------------------------------------------

// Rounds of one token in which two matrices travel over a slow link (or stand on the device already); the head is on the device.
struct slow_link {
    struct test_model m;
    struct atsi_device *d;
    struct atsi_device_ops blocking;
    struct atsi_executor *x;
    struct atsi_unit_times times[TEST_MODEL_UNITS];
    float logits[64];
    uint32_t n_done;
};

static const char *const travelling[] = {"q", "o"};

static void assign_matrices(struct slow_link *s, enum atsi_promotion promotion) {
    enum atsi_backend backends[TEST_MODEL_UNITS] = {ATSI_CPU};
    enum atsi_promotion promotions[TEST_MODEL_UNITS] = {ATSI_NOT_PROMOTED};
    for (uint32_t u = 0; u < s->m.plan.program.n_units; u++) {
        const char *name = s->m.plan.program.units[u].name;
        if (!strcmp(name, "output")) backends[u] = ATSI_GPU;
        for (size_t i = 0; i < sizeof travelling / sizeof *travelling; i++) {
            if (strcmp(name, travelling[i])) continue;
            backends[u] = ATSI_GPU;
            promotions[u] = promotion;
        }
    }
    struct atsi_assignment a = {backends, promotions, NULL, NULL, 1, NULL};
    assign(s->x, &a);
}

static void open_slow_link(struct slow_link *s, bool blocks, struct atsi_trace *trace) {
    struct atsi_sim_params sim = {.memory_bytes = 256 << 20,
                                  .h2d_bytes_per_us = 50,
                                  .d2h_bytes_per_us = 2000,
                                  .delay_seed = 3,
                                  .delay_max_us = 60,
                                  .reference_kernels = true};
    memset(s, 0, sizeof *s);
    test_model_build(&s->m);
    assert_int_equal(atsi_sim_open(&sim, &s->d, NULL), ATSI_OK);
    s->blocking = *s->d->ops;
    s->blocking.info = info_of_blocking;
    plain = s->d->ops;
    if (blocks) s->d->ops = &s->blocking;
    test_model_load(&s->m, s->d);
    for (uint32_t u = 0; u < s->m.plan.program.n_units; u++)
        s->times[u] = (struct atsi_unit_times){.cpu_us = 100, .gpu_us = 10, .switch_us = 1, .transfer_us = 100};
    s->m.plan.decode_times = s->m.plan.prefill_times = s->times;
    s->m.plan.contention = ATSI_CONTENTION_DEFAULT;
    struct atsi_executor_params params = test_model_params(&s->m, s->d);
    params.trace = trace;
    assert_int_equal(atsi_executor_create(&params, &s->x, NULL), ATSI_OK);
}

static void close_slow_link(struct slow_link *s) {
    atsi_executor_free(s->x);
    test_model_unload(&s->m, s->d);
    s->m.plan.decode_times = s->m.plan.prefill_times = NULL;
    atsi_plan_free(&s->m.plan);
}

static double run_token(struct slow_link *s) {
    const int32_t ids[1] = {1}, outputs[1] = {0};
    struct rows rows = {s->logits, s->m.plan.program.n_vocab};
    struct atsi_round_request r = {ids, 1, s->n_done++, outputs, 1, keep_rows, &rows};
    double started_us = atsi_clock_us();
    assert_int_equal(atsi_executor_round(s->x, &r, NULL), ATSI_OK);
    return atsi_clock_us() - started_us;
}

// What the CPU waited in a round, and of that for what has a transfer before it, decides whether the link or the hand-overs are taken to be slow.
static void waits_for_transfers_are_told_from_others(void **state) {
    (void)state;
    struct slow_link s;
    open_slow_link(&s, false, NULL);
    struct atsi_recorder *recorder = atsi_executor_recorder(s.x, true);
    for (int travels = 0; travels < 2; travels++) {
        uint32_t n_of_transfers = 0;
        assign_matrices(&s, travels ? ATSI_PREFETCHED : ATSI_NOT_PROMOTED);
        for (int i = 0; i < 8; i++) {
            atsi_recorder_start(recorder);
            recorder->n_rounds = 2 * ATSI_RECORDER_PERIOD; // as if nothing was to be timed
            double round_us = run_token(&s);
            assert_true(s.x->waits_us > 0 && s.x->waits_us < round_us);
            assert_true(travels || s.x->transfer_waits_us == 0);
            assert_true(s.x->transfer_waits_us < s.x->waits_us);
            atsi_executor_note_round(s.x, atsi_prepared_round_time(s.x->now, &recorder->scales) + 1);
            n_of_transfers += recorder->queued > 1;
            assert_true((recorder->queued > 1) != (recorder->scales.handover_us > 0));
        }
        // Where something else runs beside the test, other waits may be as long in a round.
        assert_true(travels ? n_of_transfers > 0 : n_of_transfers == 0);
    }
    close_slow_link(&s);
}

// Whether a transfer's time was noted in a round of one token, that is itself timed or not.
static bool notes_transfers(struct slow_link *s, bool times) {
    const struct atsi_prepared_round *p = s->x->now;
    struct atsi_recorder *recorder = atsi_executor_recorder(s->x, true);
    bool any = false;
    for (uint32_t i = 0; i < p->script.n_actions; i++) p->recent_us[i] = 0;
    recorder->n_rounds = 2 * ATSI_RECORDER_PERIOD;
    if (times) atsi_recorder_look(recorder);
    run_token(s);
    recorder->n_looks = 0;
    for (uint32_t i = 0; i < p->script.n_actions; i++)
        any |= p->script.actions[i].kind == ATSI_ACTION_AWAIT && p->recent_us[i] > 0;
    return any;
}

// Those of a round that is timed, in it and, what travelled ahead in it, in the next one.
static void transfers_are_noted_once(void **state) {
    (void)state;
    struct slow_link s;
    open_slow_link(&s, true, NULL);
    assign_matrices(&s, ATSI_PREFETCHED);
    assert_false(notes_transfers(&s, false));
    for (int i = 0; i < 2; i++) {
        notes_transfers(&s, true);
        assert_true(notes_transfers(&s, true));
        assert_true(notes_transfers(&s, false));
        for (int k = 0; k < 3; k++) assert_false(notes_transfers(&s, false));
    }
    close_slow_link(&s);
}

// A copy ahead of the next round's work, of what is there already.
static void hold_up_stream(struct slow_link *s) {
    uint32_t t = 0;
    while (strcmp(s->m.plan.program.tensors[t].name, "q")) t++;
    uint64_t bytes = s->m.plan.program.tensors[t].size_bytes;
    assert_int_equal(atsi_executor_copy(s->x, s->m.blocks[t], s->m.host[t], bytes, NULL), ATSI_OK);
}

// Of every round every transfer, one behind the other, also where a round's first event comes late.
static void check_traced(bool blocks) {
    enum {
        N_ROUNDS = 12
    };
    static const char span[] =
        "{\"ph\": \"X\", \"pid\": 1, \"name\": \"%63[^\"]\", \"tid\": 4, \"ts\": %lf, \"dur\": %lf}";
    char path[TEMP_ROOT_CAP], line[300], name[64];
    struct slow_link s;
    struct atsi_trace *trace;
    uint32_t n = 0;
    double ended_us = 0, began_us, took_us;
    temp_file(path);
    assert_int_equal(atsi_trace_open(&trace, path, NULL), ATSI_OK);
    open_slow_link(&s, blocks, trace);
    assign_matrices(&s, ATSI_PREFETCHED);
    for (int i = 0; i < N_ROUNDS; i++) {
        if (i % 2) hold_up_stream(&s);
        run_token(&s);
    }
    assert_int_equal(atsi_trace_close(trace, NULL), ATSI_OK);
    close_slow_link(&s);
    FILE *f = fopen(path, "r");
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, span, name, &began_us, &took_us) != 3) continue;
        assert_string_equal(name, travelling[n++ % 2]);
        assert_true(took_us > 500 && began_us >= ended_us - 0.02); // written to hundredths
        ended_us = began_us + took_us;
    }
    fclose(f);
    assert_int_equal(n, 2 * N_ROUNDS);
    assert_int_equal(remove(path), 0);
}

static void transfers_are_traced(void **state) {
    (void)state;
    check_traced(false);
    check_traced(true);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_assignments_give_the_same_bits),
        cmocka_unit_test(a_division_for_one_token_refuses_more),
        cmocka_unit_test(waits_for_transfers_are_told_from_others),
        cmocka_unit_test(transfers_are_noted_once),
        cmocka_unit_test(transfers_are_traced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
