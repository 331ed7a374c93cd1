// Weights that cannot be pinned go through a bounded ring: every byte arrives where it belongs whatever is delayed, sessions whose weights all
// go through it give the bits of the CPU alone, and nothing waits for ever when the device fails.
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/pinned_ring.h"
#include "runtime/session.h"
#include "tests/support/check.h"
#include "tests/support/small_model.h"

enum {
    SLOT = 16 << 10
};

// ---- the ring alone -----------------------------------------------------------------------------------------------

enum {
    PLACE = 5 * SLOT, // room for one thing that is sent
    N_SENT = 40
};

struct bench {
    struct atsi_device *device;
    struct atsi_stream *stream;
    struct atsi_pinned_ring *ring;
    uint8_t *source, *found; // [N_SENT * PLACE] unpinned
    char *dev;               // as many bytes
};

static void open_bench(struct bench *b, struct atsi_sim_params sim, uint32_t n_slots, uint32_t n_threads) {
    struct atsi_error err = {0};
    uint64_t random = 77;
    void *dev;
    sim.memory_bytes = 64 << 20;
    check_ok(atsi_sim_open(&sim, &b->device, &err), err);
    check_ok(b->device->ops->stream_create(b->device, &b->stream, &err), err);
    check_ok(b->device->ops->alloc(b->device, N_SENT * PLACE, &dev, &err), err);
    struct atsi_pinned_ring_params params = {b->device, SLOT, n_slots, n_threads};
    check_ok(atsi_pinned_ring_create(&params, &b->ring, &err), err);
    b->dev = dev;
    b->source = malloc(N_SENT * PLACE);
    b->found = malloc(N_SENT * PLACE);
    for (size_t i = 0; i < N_SENT * PLACE; i++) b->source[i] = (uint8_t)test_random(&random);
}

static void close_bench(struct bench *b) {
    b->device->ops->stream_sync(b->stream, NULL);
    atsi_pinned_ring_free(b->ring);
    b->device->ops->free(b->device, b->dev);
    b->device->ops->stream_destroy(b->stream);
    assert_int_equal(atsi_sim_n_alive(b->device), 0);
    b->device->ops->close(b->device);
    free(b->source);
    free(b->found);
}

static uint64_t size_of(uint32_t i) {
    static const uint64_t sizes[] = {1, SLOT, SLOT + 1, PLACE, 3 * SLOT - 7, 100, 0, 2 * SLOT};
    return sizes[i % (sizeof sizes / sizeof *sizes)];
}

static void send(struct bench *b, uint32_t i) {
    struct atsi_error err = {0};
    check_ok(atsi_pinned_ring_send(b->ring, b->stream, b->dev + (size_t)i * PLACE, b->source + (size_t)i * PLACE,
                                   size_of(i), &err),
             err);
}

static void check_arrived(struct bench *b, uint32_t i) {
    struct atsi_error err = {0};
    if (!size_of(i)) return;
    check_ok(b->device->ops->copy_to_host(b->stream, b->found, b->dev + (size_t)i * PLACE, size_of(i), &err), err);
    assert_memory_equal(b->found, b->source + (size_t)i * PLACE, size_of(i));
}

static void everything_arrives(void **state) {
    (void)state;
    for (uint32_t seed = 0; seed < 8; seed++) {
        struct bench b;
        struct atsi_sim_params sim = {
            .h2d_bytes_per_us = 2000, .delay_seed = seed, .delay_max_us = 200, .pinned_bytes = 8 * SLOT};
        open_bench(&b, sim, 1 + seed % 7, 1 + seed % 3);
        if (seed % 2) atsi_pinned_ring_measure(b.ring, b.source, PLACE);
        for (uint32_t i = 0; i < N_SENT; i++) send(&b, i);
        for (uint32_t i = 0; i < N_SENT; i++) check_arrived(&b, i);
        struct atsi_pinned_ring_figures f = atsi_pinned_ring_figures(b.ring);
        assert_int_equal(f.ring_bytes, (1 + seed % 7) * SLOT);
        assert_int_equal(f.bytes_per_us > 0, seed % 2);
        close_bench(&b);
    }
}

// More jobs than the list holds, so that sending waits for the threads.
static void a_full_list_of_jobs_waits(void **state) {
    (void)state;
    struct bench b;
    open_bench(&b, (struct atsi_sim_params){0}, 2, 2);
    for (int n = 0; n < 20; n++)
        for (uint32_t i = 0; i < N_SENT; i++) send(&b, i);
    for (uint32_t i = 0; i < N_SENT; i++) check_arrived(&b, i);
    close_bench(&b);
}

// What nobody needs any more holds nobody up, and what comes afterwards is complete.
static void what_is_forgotten_is_not_read(void **state) {
    (void)state;
    struct bench b;
    open_bench(&b, (struct atsi_sim_params){.delay_seed = 5, .delay_max_us = 100}, 3, 2);
    for (int n = 0; n < 10; n++) {
        for (uint32_t i = 0; i < N_SENT / 2; i++) send(&b, i);
        atsi_pinned_ring_forget(b.ring);
        for (uint32_t i = N_SENT / 2; i < N_SENT; i++) send(&b, i);
        for (uint32_t i = N_SENT / 2; i < N_SENT; i++) check_arrived(&b, i);
    }
    close_bench(&b);
}

static void a_failed_device_ends_it(void **state) {
    (void)state;
    struct bench b;
    struct atsi_error err = {0};
    open_bench(&b, (struct atsi_sim_params){.delay_seed = 9, .delay_max_us = 100}, 2, 2);
    alarm(60); // kills a test that waits for ever
    for (uint32_t i = 0; i < N_SENT; i++) send(&b, i);
    assert_int_equal(b.device->ops->post_mark(b.stream, b.source, NULL, 1, &err), ATSI_FAILED); // nobody's address
    enum atsi_status status = ATSI_OK;
    for (uint32_t i = 0; i < N_SENT && status == ATSI_OK; i++)
        status = atsi_pinned_ring_send(b.ring, b.stream, b.dev, b.source, PLACE, &err);
    assert_int_equal(status, ATSI_FAILED);
    close_bench(&b);
    alarm(0);
}

static void the_ring_is_as_large_as_can_be_had(void **state) {
    (void)state;
    static const struct {
        uint64_t limit, weights, least, most;
    } cases[] = {{0, 1000, 1 << 20, 1 << 20},
                 {0, (uint64_t)1 << 40, 64 << 20, 64 << 20},
                 {40 << 20, (uint64_t)1 << 40, 30 << 20, 32 << 20},
                 {3 << 20, 10 << 20, 2 << 20, 5 << 19},
                 {1 << 20, 10 << 20, 0, 0}}; // the marks do not fit
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct atsi_device *d;
        struct atsi_sim_params sim = {.memory_bytes = 1 << 20, .pinned_bytes = cases[i].limit};
        assert_int_equal(atsi_sim_open(&sim, &d, NULL), ATSI_OK);
        struct atsi_pinned_ring *ring = atsi_pinned_ring_open(d, cases[i].weights);
        uint64_t bytes = ring ? atsi_pinned_ring_figures(ring).ring_bytes : 0;
        assert_true(bytes >= cases[i].least && bytes <= cases[i].most);
        atsi_pinned_ring_free(ring);
        assert_int_equal(atsi_sim_n_alive(d), 0);
        d->ops->close(d);
    }
}

static void the_slower_of_link_and_threads_sets_the_pace(void **state) {
    (void)state;
    struct bench b;
    struct test_model m;
    open_bench(&b, (struct atsi_sim_params){0}, 4, 2);
    test_model_build(&m);
    uint32_t n = m.plan.program.n_units;
    m.plan.prefill_times = calloc(n, sizeof *m.plan.prefill_times);
    assert_true(atsi_pinned_ring_slowdown(NULL, &m.plan) == 1);
    assert_true(atsi_pinned_ring_slowdown(b.ring, &m.plan) == 1);
    atsi_pinned_ring_measure(b.ring, b.source, 4 * SLOT);
    double rate = atsi_pinned_ring_figures(b.ring).bytes_per_us;
    for (int twice = 0; twice < 2; twice++) {
        for (uint32_t u = 0; u < n; u++)
            m.plan.prefill_times[u].transfer_us =
                (float)((double)m.plan.program.units[u].weight_bytes / rate / (twice ? 2 : 0.5));
        double slowdown = atsi_pinned_ring_slowdown(b.ring, &m.plan);
        assert_true(twice ? slowdown > 1.99 && slowdown < 2.01 : slowdown == 1);
    }
    test_model_free(&m);
    close_bench(&b);
}

// ---- sessions -----------------------------------------------------------------------------------------------------

enum {
    N_PROMPT = 36, // chunks of 7, and one token that is left
    CHUNK = 7,
    N_DECODE = 6,
    N_TEXT = N_PROMPT + N_DECODE
};

struct text {
    struct test_model model;
    struct atsi_session *session;
    float *logits; // [N_TEXT, n_vocab]
};

static void keep_rows(void *context, const float *logits, uint32_t first_output, uint32_t n_outputs) {
    struct text *t = context;
    size_t n_vocab = t->model.plan.program.n_vocab;
    memcpy(t->logits + (size_t)first_output * n_vocab, logits, n_outputs * n_vocab * sizeof *logits);
}

// A card on which every unit is worth its transfer, for a token as well.
static void invent_times(struct atsi_plan *plan) {
    uint32_t n = plan->program.n_units;
    plan->decode_times = calloc(n, sizeof *plan->decode_times);
    plan->prefill_times = calloc(n, sizeof *plan->prefill_times);
    plan->contention = ATSI_CONTENTION_DEFAULT;
    for (uint32_t u = 0; u < n; u++) {
        plan->decode_times[u] =
            (struct atsi_unit_times){.cpu_us = 1000, .gpu_us = 10, .switch_us = 1, .transfer_us = 20};
        plan->prefill_times[u] =
            (struct atsi_unit_times){.cpu_us = 8000, .gpu_us = 20, .switch_us = 1, .transfer_us = 20};
    }
}

// Everything is at home on the CPU and travels as it is told.
static void open_text(struct text *t, struct atsi_device *d, struct atsi_pinned_ring *ring, enum atsi_travel travel) {
    enum atsi_backend homes[TEST_MODEL_UNITS] = {ATSI_CPU};
    enum atsi_travel travels[TEST_MODEL_UNITS];
    struct atsi_executor_params executor = test_model_params(&t->model, d);
    struct atsi_dispatcher_params dispatching = {.plan = &t->model.plan,
                                                 .policy = ATSI_POLICY_FIFO,
                                                 .has_device = d != NULL,
                                                 .staged_slowdown = atsi_pinned_ring_slowdown(ring, &t->model.plan)};
    struct atsi_session_params params = {.executor = &executor, .chunk = CHUNK};
    for (uint32_t u = 0; u < TEST_MODEL_UNITS; u++) travels[u] = travel;
    executor.ring = ring;
    assert_int_equal(atsi_dispatcher_create(&dispatching, &params.dispatcher, NULL), ATSI_OK);
    atsi_dispatcher_move_homes(params.dispatcher, homes, travels);
    assert_int_equal(atsi_session_create(&params, &t->session, NULL), ATSI_OK);
    t->logits = calloc((size_t)N_TEXT * t->model.plan.program.n_vocab, sizeof *t->logits);
}

static enum atsi_status append(struct text *t, uint32_t n, struct atsi_error *err) {
    int32_t ids[N_PROMPT];
    size_t n_vocab = t->model.plan.program.n_vocab;
    for (uint32_t i = 0; i < n; i++) ids[i] = (int32_t)((t->session->n_past + i) * 11 % n_vocab);
    ATSI_TRY(atsi_session_append(t->session, ids, n, n > 1 ? keep_rows : NULL, t, err));
    if (n == 1)
        memcpy(t->logits + (t->session->n_past - 1) * n_vocab, t->session->last_logits, n_vocab * sizeof *t->logits);
    return ATSI_OK;
}

// *n_promoted: units of the prompt's last chunk, and of the last token.
static void run_text(struct text *t, uint32_t n_promoted[2]) {
    struct atsi_error err = {0};
    check_ok(append(t, N_PROMPT - 1, &err), err);
    n_promoted[0] = t->session->rescheduler.stats.decision.n_promoted;
    check_ok(append(t, 1, &err), err);
    for (uint32_t i = 0; i < N_DECODE; i++) check_ok(append(t, 1, &err), err);
    n_promoted[1] = t->session->rescheduler.stats.decision.n_promoted + t->session->rescheduler.stats.decision.n_shared;
}

static void close_text(struct text *t) {
    atsi_session_free(t->session);
    free(t->logits);
}

static struct atsi_pinned_ring *small_ring(struct atsi_device *d) {
    struct atsi_pinned_ring *ring;
    struct atsi_pinned_ring_params params = {d, SLOT, 3, 2};
    assert_int_equal(atsi_pinned_ring_create(&params, &ring, NULL), ATSI_OK);
    return ring;
}

static void load(struct text *t, struct atsi_device *d) {
    test_model_build(&t->model);
    invent_times(&t->model.plan);
    test_model_load(&t->model, d);
    for (uint32_t i = 0; i < t->model.plan.program.n_tensors; i++)
        if (!atsi_tensor_is_small(&t->model.plan.program.tensors[i])) t->model.mapped[i] = t->model.device[i] = NULL;
}

static void unload(struct text *t, struct atsi_device *d) {
    test_model_unload(&t->model, d);
    atsi_plan_free(&t->model.plan);
}

static void check_travel(const float *expected, enum atsi_travel travel, uint32_t seed) {
    struct atsi_device *d = test_open_sim(seed);
    struct text t;
    uint32_t n_promoted[2];
    load(&t, d);
    struct atsi_pinned_ring *ring = small_ring(d);
    open_text(&t, d, ring, travel);
    run_text(&t, n_promoted);
    assert_int_equal(n_promoted[0] > 3, travel == ATSI_TRAVELS_STAGED);
    assert_int_equal(n_promoted[1], 0);
    assert_int_equal(atsi_pinned_ring_figures(ring).sent_bytes > 0, travel == ATSI_TRAVELS_STAGED);
    assert_memory_equal(t.logits, expected, N_TEXT * t.model.plan.program.n_vocab * sizeof *expected);
    close_text(&t);
    atsi_pinned_ring_free(ring);
    unload(&t, d);
}

static void a_prompt_goes_through_the_ring_and_tokens_do_not(void **state) {
    (void)state;
    struct text t;
    uint32_t n_promoted[2];
    test_model_build(&t.model);
    open_text(&t, NULL, NULL, ATSI_TRAVELS_NOT);
    run_text(&t, n_promoted);
    alarm(300); // kills a test that waits for ever
    for (uint32_t seed = 0; seed < 6; seed++) check_travel(t.logits, ATSI_TRAVELS_STAGED, seed);
    check_travel(t.logits, ATSI_TRAVELS_NOT, 1);
    alarm(0);
    close_text(&t);
    test_model_free(&t.model);
}

static uint32_t n_promoted_at(const struct atsi_plan *plan, double slowdown) {
    struct atsi_dispatcher_params params = {
        .plan = plan, .policy = ATSI_POLICY_FIFO, .has_device = true, .staged_slowdown = slowdown};
    struct atsi_dispatcher *dispatcher;
    struct atsi_assignment assignment;
    enum atsi_backend homes[TEST_MODEL_UNITS] = {ATSI_CPU};
    enum atsi_travel travels[TEST_MODEL_UNITS];
    struct atsi_error err = {0};
    for (uint32_t u = 0; u < TEST_MODEL_UNITS; u++) travels[u] = ATSI_TRAVELS_STAGED;
    check_ok(atsi_dispatcher_create(&params, &dispatcher, &err), err);
    atsi_dispatcher_move_homes(dispatcher, homes, travels);
    static const struct atsi_scales as_planned = {1, 1, 1, 0};
    check_ok(atsi_dispatcher_decide(dispatcher, CHUNK, ATSI_LINK_STREAMS, &as_planned, NULL, &assignment, &err), err);
    uint32_t n = atsi_dispatcher_last(dispatcher).n_promoted;
    atsi_dispatcher_free(dispatcher);
    return n;
}

static void a_ring_that_is_too_slow_is_not_used(void **state) {
    (void)state;
    struct test_model m;
    test_model_build(&m);
    invent_times(&m.plan);
    assert_true(n_promoted_at(&m.plan, 1) > n_promoted_at(&m.plan, 1000));
    assert_int_equal(n_promoted_at(&m.plan, 10000), 0);
    test_model_free(&m);
}

// In the middle of a prompt: an error, and everything is given back.
static void a_device_that_fails_in_a_prompt(void **state) {
    (void)state;
    struct atsi_device *d = test_open_sim(3);
    struct atsi_stream *s;
    struct atsi_error err = {0};
    struct text t;
    load(&t, d);
    struct atsi_pinned_ring *ring = small_ring(d);
    open_text(&t, d, ring, ATSI_TRAVELS_STAGED);
    alarm(60);
    check_ok(append(&t, CHUNK, &err), err);
    check_ok(d->ops->stream_create(d, &s, &err), err);
    assert_int_equal(d->ops->post_mark(s, t.logits, NULL, 1, NULL), ATSI_FAILED); // nobody's address
    assert_int_equal(append(&t, 2 * CHUNK, &err), ATSI_FAILED);
    d->ops->stream_destroy(s);
    close_text(&t);
    atsi_pinned_ring_free(ring);
    unload(&t, d);
    alarm(0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_arrives),
        cmocka_unit_test(a_full_list_of_jobs_waits),
        cmocka_unit_test(what_is_forgotten_is_not_read),
        cmocka_unit_test(a_failed_device_ends_it),
        cmocka_unit_test(the_ring_is_as_large_as_can_be_had),
        cmocka_unit_test(the_slower_of_link_and_threads_sets_the_pace),
        cmocka_unit_test(a_prompt_goes_through_the_ring_and_tokens_do_not),
        cmocka_unit_test(a_ring_that_is_too_slow_is_not_used),
        cmocka_unit_test(a_device_that_fails_in_a_prompt),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
