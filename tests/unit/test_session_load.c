// Whole sessions on a simulated device whose load seems to change all the time: assignments are decided and prepared beside the rounds
// and taken over in mid-text, and the logits stay those of the CPU alone, bit by bit. And what a steady round must not do.
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/session.h"
#include "tests/support/check.h"
#include "tests/support/mixed_session.h"
#include "tests/support/small_model.h"

enum {
    N_PROMPT = 13,
    N_DECODE = 36,
    N_TEXT = N_PROMPT + N_DECODE
};

// ---- texts --------------------------------------------------------------------------------------------------------

// Times that make the policy and the shares choose differently at different speeds.
static void invent_times(struct atsi_plan *plan, uint64_t *random) {
    uint32_t n = plan->program.n_units;
    plan->decode_times = calloc(n, sizeof *plan->decode_times);
    plan->prefill_times = calloc(n, sizeof *plan->prefill_times);
    plan->contention = ATSI_CONTENTION_DEFAULT;
    for (uint32_t u = 0; u < n; u++) {
        float cpu_us = 50 + (float)(test_random(random) % 100);
        plan->decode_times[u] = (struct atsi_unit_times){
            .cpu_us = cpu_us, .gpu_us = cpu_us / 8, .switch_us = 5, .transfer_us = cpu_us * 0.8f};
        plan->prefill_times[u] = (struct atsi_unit_times){
            .cpu_us = cpu_us * 8, .gpu_us = cpu_us / 4, .switch_us = 8, .transfer_us = cpu_us * 0.8f};
    }
}

static void choose_homes(const struct atsi_plan *plan, struct atsi_dispatcher *d, enum atsi_travel how,
                         uint64_t *random) {
    enum atsi_backend homes[TEST_MODEL_UNITS];
    enum atsi_travel travel[TEST_MODEL_UNITS];
    for (uint32_t u = 0; u < plan->program.n_units; u++) {
        homes[u] = test_random(random) % 3 ? ATSI_CPU : ATSI_GPU;
        travel[u] = how;
    }
    atsi_dispatcher_move_homes(d, homes, travel);
}

struct text {
    struct test_model *m;
    struct atsi_session *session;
    struct atsi_dispatcher *dispatcher; // the session's
    float *logits;                      // [N_TEXT, n_vocab]
};

static void open_text(struct text *t, struct test_model *m, struct atsi_device *d, struct atsi_pinned_ring *ring,
                      const struct atsi_rescheduler_params *rescheduling, uint64_t *random) {
    struct atsi_executor_params executor = test_model_params(m, d);
    executor.ring = ring;
    struct atsi_dispatcher_params dispatching = {.plan = &m->plan, .policy = ATSI_POLICY_FIFO, .has_device = d != NULL};
    struct atsi_session_params params = {.executor = &executor, .rescheduling = *rescheduling};
    *t = (struct text){.m = m, .logits = calloc((size_t)N_TEXT * m->plan.program.n_vocab, sizeof *t->logits)};
    assert_int_equal(atsi_dispatcher_create(&dispatching, &params.dispatcher, NULL), ATSI_OK);
    if (d) choose_homes(&m->plan, params.dispatcher, ring ? ATSI_TRAVELS_STAGED : ATSI_TRAVELS_PINNED, random);
    t->dispatcher = params.dispatcher;
    assert_int_equal(atsi_session_create(&params, &t->session, NULL), ATSI_OK);
}

static void close_text(struct text *t) {
    atsi_session_free(t->session);
    free(t->logits);
}

static void keep_rows(void *context, const float *logits, uint32_t first_output, uint32_t n_outputs) {
    struct text *t = context;
    size_t n_vocab = t->m->plan.program.n_vocab;
    memcpy(t->logits + (t->session->n_past + first_output) * n_vocab, logits, n_outputs * n_vocab * sizeof *logits);
}

static void append(struct text *t, uint32_t n) {
    int32_t ids[N_PROMPT] = {0};
    struct atsi_error err = {0};
    uint32_t before = t->session->n_past;
    size_t n_vocab = t->m->plan.program.n_vocab;
    for (uint32_t i = 0; i < n; i++) ids[i] = (int32_t)((before + i) * 11 % n_vocab);
    if (atsi_session_append(t->session, ids, n, n > 1 ? keep_rows : NULL, t, &err) != ATSI_OK) fail_msg("%s", err.text);
    if (n == 1) memcpy(t->logits + before * n_vocab, t->session->last_logits, n_vocab * sizeof *t->logits);
}

// What the recorder says is overwritten between rounds: any speed, for any number of rounds.
static void change_load(struct text *t, uint64_t *random) {
    struct atsi_scales *s = &atsi_executor_recorder(t->session->executor, test_random(random) % 2)->scales;
    if (test_random(random) % 8) return;
    s->cpu = 0.2 + (double)(test_random(random) % 40) / 10;
    s->gpu = 0.2 + (double)(test_random(random) % 40) / 10;
    s->link = 0.2 + (double)(test_random(random) % 40) / 10;
    s->handover_us = (double)(test_random(random) % 300);
}

// Or nothing would be decided any more.
static void check_that_something_answers(struct text *t) {
    const struct atsi_rescheduler *r = &t->session->rescheduler;
    assert_true(!r->tuner.asked || r->returns || atsi_assigner_is_busy(r->assigner));
}

static void run_loaded(struct text *t, uint64_t *random) {
    append(t, 8);
    append(t, 5);
    for (uint32_t i = 0; i < N_DECODE; i++) {
        change_load(t, random);
        append(t, 1);
        check_that_something_answers(t);
    }
}

static void run_once(const float *expected, uint64_t seed, uint32_t *n_adopted) {
    struct test_model m;
    struct text t;
    struct atsi_device *d = test_open_sim((uint32_t)seed + 1);
    uint64_t random = seed * 2654435761u + 7;
    struct atsi_rescheduler_params rescheduling = {.epsilon = 0.3, .tau = 1, .in_turn = seed % 4 == 0};
    test_model_build(&m);
    invent_times(&m.plan, &random);
    test_model_load(&m, d);
    open_text(&t, &m, d, NULL, &rescheduling, &random);
    run_loaded(&t, &random);
    *n_adopted += t.session->rescheduler.stats.n_adopted;
    size_t n_vocab = m.plan.program.n_vocab;
    for (uint32_t row = 0; row < N_TEXT; row++)
        if (memcmp(t.logits + row * n_vocab, expected + row * n_vocab, n_vocab * sizeof *expected) != 0)
            fail_msg("seed %llu: logits at position %u differ", (unsigned long long)seed, row);
    close_text(&t);
    test_model_unload(&m, d);
    atsi_plan_free(&m.plan);
}

static void any_load_gives_the_same_bits(void **state) {
    (void)state;
    struct test_model m;
    struct text t;
    const char *wanted = getenv("ATSI_SOAK_RUNS");
    uint64_t n_runs = wanted ? strtoull(wanted, NULL, 10) : 24;
    uint32_t n_adopted = 0;
    struct atsi_rescheduler_params rescheduling = {0};
    test_model_build(&m);
    open_text(&t, &m, NULL, NULL, &rescheduling, NULL);
    append(&t, 8);
    append(&t, 5);
    for (uint32_t i = 0; i < N_DECODE; i++) append(&t, 1);
    for (uint64_t seed = 1; seed <= n_runs; seed++) run_once(t.logits, seed, &n_adopted);
    assert_true(n_adopted > 3 * n_runs / 2); // or nothing was tested
    close_text(&t);
    test_model_free(&m);
}

// ---- moving nothing -----------------------------------------------------------------------------------------------

static double forecast(struct text *t, const struct atsi_assignment *a, const struct atsi_scales *scales) {
    double us;
    assert_int_equal(atsi_executor_forecast(t->session->executor, a, scales, &us, NULL), ATSI_OK);
    return us;
}

static double forecast_of_rest(struct text *t, const struct atsi_plan *plan, const struct atsi_scales *scales) {
    enum atsi_backend *homes = calloc(plan->program.n_units, sizeof *homes);
    for (uint32_t u = 0; u < plan->program.n_units; u++) homes[u] = plan->program.units[u].backend;
    double us = forecast(t, &(struct atsi_assignment){.backends = homes, .n_tokens = 1}, scales);
    free(homes);
    return us;
}

// A decision for streams takes no longer, by its forecast, than rounds in which every unit stays at home: not even where the
// scheduler, which knows less than the forecast, promotes units.
static void streams_are_no_slower_than_moving_nothing(void **state) {
    (void)state;
    uint32_t n_resting = 0, n_moving = 0;
    for (uint64_t seed = 1; seed <= 16; seed++) {
        struct test_model m;
        struct text t;
        struct atsi_device *d = test_open_sim((uint32_t)seed);
        struct atsi_assigner *assigner;
        struct atsi_assigner_result result;
        struct atsi_assignment a;
        struct atsi_rescheduler_params rescheduling = {.in_turn = true};
        uint64_t random = seed;
        test_model_build(&m);
        invent_times(&m.plan, &random);
        test_model_load(&m, d);
        open_text(&t, &m, d, NULL, &rescheduling, &random);
        append(&t, 8);
        append(&t, 1);
        assert_int_equal(atsi_assigner_create(t.session->executor, t.dispatcher, false, &assigner, NULL), ATSI_OK);
        struct atsi_assigner_job job = {.n_tokens = 1, .wish = {ATSI_LINK_STREAMS, {1, 1, 0.1, 0}, false}};
        job.wish.scales.link *= (double)(1 + test_random(&random) % 30);
        job.now = job.wish.scales;
        const struct atsi_scales *scales = &job.wish.scales;
        double resting_us = forecast_of_rest(&t, &m.plan, scales);
        assert_int_equal(atsi_dispatcher_decide(t.dispatcher, 1, ATSI_LINK_STREAMS, scales, NULL, &a, NULL), ATSI_OK);
        double streaming_us = forecast(&t, &a, scales);
        atsi_assigner_ask(assigner, &job);
        assert_true(atsi_assigner_take(assigner, true, &result));
        assert_int_equal(result.err.status, ATSI_OK);
        assert_true(result.forecast_us > 0 && result.forecast_us <= resting_us && result.forecast_us == streaming_us);
        assert_true(streaming_us < resting_us || result.decision.n_promoted == 0);
        // Refined with the ring, the prices and the script that rounds will have.
        assert_float_equal(result.decision.refined_us, result.forecast_us, 1e-9 * result.forecast_us);
        n_resting += result.decision.n_promoted == 0;
        n_moving += streaming_us < resting_us;
        atsi_assigner_discard(assigner, result.prepared);
        atsi_assigner_free(assigner);
        close_text(&t);
        test_model_unload(&m, d);
        atsi_plan_free(&m.plan);
    }
    assert_true(n_resting > 0 && n_moving > 0); // or nothing was tested
}

// ---- a steady round -----------------------------------------------------------------------------------------------
// Allocations are counted in this program's own malloc, device calls in a copy of the device's table. What the simulated device itself
// allocates (its queue) does not count. Sanitizers bring a malloc of their own; there only device calls are counted.

static _Thread_local volatile bool counting, in_device;
static atomic_bool counting_everywhere; // also what launcher and pool do
static atomic_uint n_allocations, n_forbidden, n_stream_syncs, n_times_read, n_launches;
static const struct atsi_device_ops *real;

static bool counts(void) { return !in_device && (counting || counting_everywhere); }

static void start_counting(void) { n_allocations = n_forbidden = n_launches = 0; }

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
enum {
    COUNTS_ALLOCATIONS = 1
};
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t nmemb, size_t size);
void *__libc_realloc(void *ptr, size_t size);

void *malloc(size_t size) {
    if (counts()) n_allocations++;
    return __libc_malloc(size);
}

void *calloc(size_t nmemb, size_t size) {
    if (counts()) n_allocations++;
    return __libc_calloc(nmemb, size);
}

void *realloc(void *ptr, size_t size) {
    if (counts()) n_allocations++;
    return __libc_realloc(ptr, size);
}
#else
enum {
    COUNTS_ALLOCATIONS = 0
};
#endif

// Runs a call of the device without counting what it allocates inside.
#define UNCOUNTED(call)                    \
    do {                                   \
        bool was_in_device = in_device;    \
        in_device = true;                  \
        enum atsi_status status_ = (call); \
        in_device = was_in_device;         \
        return status_;                    \
    } while (0)

static enum atsi_status count_launch(struct atsi_stream *s, const struct atsi_op_call *call,
                                     const struct atsi_round *round, struct atsi_error *err) {
    UNCOUNTED(real->launch(s, call, round, err));
}

static enum atsi_status count_copy_rows(struct atsi_stream *s, void *dst, uint32_t dst_stride, const void *src,
                                        uint32_t src_stride, uint32_t width, uint32_t n_rows, struct atsi_error *err) {
    UNCOUNTED(real->copy_rows(s, dst, dst_stride, src, src_stride, width, n_rows, err));
}

static enum atsi_status count_copy_to_device(struct atsi_stream *s, void *dev, const void *host, uint64_t bytes,
                                             struct atsi_error *err) {
    UNCOUNTED(real->copy_to_device(s, dev, host, bytes, err));
}

static enum atsi_status count_event_record(struct atsi_event *e, struct atsi_stream *s, struct atsi_error *err) {
    UNCOUNTED(real->event_record(e, s, err));
}

static enum atsi_status count_stream_wait(struct atsi_stream *s, struct atsi_event *e, struct atsi_error *err) {
    UNCOUNTED(real->stream_wait(s, e, err));
}

static enum atsi_status count_graph_launch(struct atsi_stream *s, void *graph, struct atsi_error *err) {
    n_launches += counts();
    UNCOUNTED(real->graph_launch(s, graph, err));
}

static enum atsi_status count_stream_sync(struct atsi_stream *s, struct atsi_error *err) {
    n_stream_syncs += counts();
    UNCOUNTED(real->stream_sync(s, err));
}

static enum atsi_status count_elapsed(struct atsi_event *from, struct atsi_event *to, float *us,
                                      struct atsi_error *err) {
    n_times_read += counts();
    UNCOUNTED(real->event_elapsed_us(from, to, us, err));
}

// What takes or gives back memory waits for the whole device, and so does what asks for all of its figures.
static enum atsi_status forbid_alloc(struct atsi_device *d, uint64_t bytes, void **dev, struct atsi_error *err) {
    n_forbidden += counts();
    UNCOUNTED(real->alloc(d, bytes, dev, err));
}

static void forbid_free(struct atsi_device *d, void *dev) {
    n_forbidden += counts();
    real->free(d, dev);
}

static enum atsi_status forbid_host_alloc(struct atsi_device *d, uint64_t bytes, void **host, void **dev,
                                          struct atsi_error *err) {
    n_forbidden += counts();
    UNCOUNTED(real->host_alloc(d, bytes, host, dev, err));
}

static enum atsi_status forbid_event_create(struct atsi_device *d, bool timed, struct atsi_event **out,
                                            struct atsi_error *err) {
    n_forbidden += counts();
    UNCOUNTED(real->event_create(d, timed, out, err));
}

static enum atsi_status forbid_stream_create(struct atsi_device *d, struct atsi_stream **out, struct atsi_error *err) {
    n_forbidden += counts();
    UNCOUNTED(real->stream_create(d, out, err));
}

static enum atsi_status forbid_info(struct atsi_device *d, struct atsi_device_info *out, struct atsi_error *err) {
    n_forbidden += counts();
    UNCOUNTED(real->info(d, out, err));
}

static enum atsi_status forbid_range_back(struct atsi_device *d, struct atsi_range *r, uint64_t bytes,
                                          struct atsi_error *err) {
    n_forbidden += counts();
    UNCOUNTED(real->range_back(d, r, bytes, err));
}

static void forbid_host_free(struct atsi_device *d, void *host) {
    n_forbidden += counts();
    real->host_free(d, host);
}

static void forbid_event_destroy(struct atsi_event *e) {
    n_forbidden += counts();
    real->event_destroy(e);
}

static void forbid_graph_destroy(struct atsi_device *d, void *graph) {
    n_forbidden += counts();
    real->graph_destroy(d, graph);
}

static enum atsi_status forbid_capture(struct atsi_stream *s, struct atsi_error *err) {
    n_forbidden += counts();
    UNCOUNTED(real->capture_begin(s, err));
}

static enum atsi_status count_post_mark(struct atsi_stream *s, void *word, const int32_t *base, int32_t offset,
                                        struct atsi_error *err) {
    UNCOUNTED(real->post_mark(s, word, base, offset, err));
}

static enum atsi_status count_await_mark(struct atsi_stream *s, const void *word, const int32_t *base, int32_t offset,
                                         struct atsi_error *err) {
    UNCOUNTED(real->await_mark(s, word, base, offset, err));
}

static struct atsi_device_ops count_calls(struct atsi_device *d) {
    real = d->ops;
    struct atsi_device_ops ops = *d->ops;
    ops.launch = count_launch;
    ops.copy_rows = count_copy_rows;
    ops.copy_to_device = count_copy_to_device;
    ops.event_record = count_event_record;
    ops.stream_wait = count_stream_wait;
    ops.graph_launch = count_graph_launch;
    ops.post_mark = count_post_mark;
    ops.await_mark = count_await_mark;
    ops.stream_sync = count_stream_sync;
    ops.event_elapsed_us = count_elapsed;
    ops.alloc = forbid_alloc;
    ops.free = forbid_free;
    ops.host_alloc = forbid_host_alloc;
    ops.host_free = forbid_host_free;
    ops.event_create = forbid_event_create;
    ops.event_destroy = forbid_event_destroy;
    ops.graph_destroy = forbid_graph_destroy;
    ops.stream_create = forbid_stream_create;
    ops.info = forbid_info;
    ops.range_back = forbid_range_back;
    ops.capture_begin = forbid_capture;
    return ops;
}

// A text behind its prompt on a device whose calls are counted.
struct counted_text {
    struct test_model m;
    struct text t;
    struct atsi_device_ops ops;
    uint64_t random;
};

static void open_counted_text(struct counted_text *c, struct atsi_device *d, uint64_t random,
                              const struct atsi_rescheduler_params *rescheduling) {
    c->random = random;
    c->ops = count_calls(d);
    d->ops = &c->ops;
    test_model_build(&c->m);
    invent_times(&c->m.plan, &c->random);
    test_model_load(&c->m, d);
    open_text(&c->t, &c->m, d, NULL, rescheduling, &c->random);
    append(&c->t, N_PROMPT - 5);
    append(&c->t, 1); // the first token waits for its assignment
}

static void close_counted_text(struct counted_text *c, struct atsi_device *d) {
    close_text(&c->t);
    test_model_unload(&c->m, d);
    atsi_plan_free(&c->m.plan);
}

// Rounds in the middle of a text, some with their device work timed, while assignments change: the thread that decides may allocate,
// the rounds may not.
static void a_steady_round_allocates_nothing_and_never_waits_for_the_device(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 8; seed++) {
        struct counted_text c;
        struct atsi_device *d = test_open_sim(0);
        struct atsi_rescheduler_params rescheduling = {.epsilon = 0.3, .tau = 1};
        open_counted_text(&c, d, seed * 2654435761u + 7, &rescheduling);
        start_counting();
        for (uint32_t i = 0; i < N_DECODE; i++) {
            change_load(&c.t, &c.random);
            n_times_read = n_stream_syncs = 0;
            counting = true;
            append(&c.t, 1);
            counting = false;
            assert_true(n_stream_syncs <= (n_times_read > 0)); // for the last event, before the times are read
        }
        if (COUNTS_ALLOCATIONS) assert_int_equal(n_allocations, 0);
        assert_int_equal(n_forbidden, 0);
        close_counted_text(&c, d);
    }
}

// Nor does any other thread that a round is made of: the one that launches, and the pool's. Nothing is decided meanwhile.
static void no_thread_of_a_round_allocates_or_waits_for_the_device(void **state) {
    (void)state;
    struct counted_text c;
    struct atsi_device *d = test_open_sim(0);
    struct atsi_rescheduler_params rescheduling = {.never = true};
    open_counted_text(&c, d, 3, &rescheduling);
    usleep(500000); // the assignment of the prompt is freed a while after it was replaced
    start_counting();
    counting_everywhere = true;
    for (uint32_t i = 0; i < N_DECODE; i++) {
        n_times_read = n_stream_syncs = 0;
        append(&c.t, 1);
        assert_true(n_stream_syncs <= (n_times_read > 0));
    }
    counting_everywhere = false;
    assert_true(n_launches > 0); // by a thread of their own, or nothing was tested
    if (COUNTS_ALLOCATIONS) assert_int_equal(n_allocations, 0);
    assert_int_equal(n_forbidden, 0);
    close_counted_text(&c, d);
}

// Experts change places ahead of every token.
static void an_exchange_allocates_nothing_and_waits_for_nobody(void **state) {
    (void)state;
    static const struct atsi_exchange_params forced = {.part = 1e9, .sigmas = -1e9};
    struct mixed_session s;
    struct atsi_sim_params sim = {.memory_bytes = 64 << 20, .chunk_bytes = 64 << 10, .reference_kernels = true};
    struct atsi_device *d;
    int32_t id = 5;
    assert_int_equal(atsi_sim_open(&sim, &d, NULL), ATSI_OK);
    struct atsi_device_ops ops = count_calls(d);
    d->ops = &ops;
    mixed_session_open(&s, d, false, &forced);
    check_ok(atsi_session_append(s.loaded.session, &id, 1, NULL, NULL, &s.err), s.err);
    uint32_t n_before = atsi_exchange_figures(s.loaded.session->exchange).n_exchanged;
    start_counting();
    for (uint32_t i = 0; i < N_DECODE; i++) {
        id = (int32_t)(i % 40);
        n_times_read = n_stream_syncs = 0;
        counting = true;
        enum atsi_status status = atsi_session_append(s.loaded.session, &id, 1, NULL, NULL, &s.err);
        counting = false;
        check_ok(status, s.err);
        assert_true(n_stream_syncs <= (n_times_read > 0));
    }
    if (COUNTS_ALLOCATIONS) assert_int_equal(n_allocations, 0);
    assert_int_equal(n_forbidden, 0);
    assert_true(atsi_exchange_figures(s.loaded.session->exchange).n_exchanged >= n_before + N_DECODE);
    mixed_session_close(&s);
}

// Chunks of a prompt whose weights go through the pinned ring.
static void a_chunk_through_the_ring_allocates_nothing(void **state) {
    (void)state;
    struct test_model m;
    struct text t;
    struct atsi_device *d = test_open_sim(0);
    uint64_t random = 7;
    struct atsi_rescheduler_params rescheduling = {0};
    struct atsi_pinned_ring_params params = {.device = d, .slot_bytes = 16 << 10, .n_slots = 4, .n_threads = 2};
    struct atsi_pinned_ring *ring;
    test_model_build(&m);
    invent_times(&m.plan, &random);
    test_model_load(&m, d);
    for (uint32_t i = 0; i < m.plan.program.n_tensors; i++) m.mapped[i] = NULL;
    assert_int_equal(atsi_pinned_ring_create(&params, &ring, NULL), ATSI_OK);
    struct atsi_device_ops ops = count_calls(d);
    d->ops = &ops;
    open_text(&t, &m, d, ring, &rescheduling, &random);
    append(&t, 8);
    uint64_t sent_before = atsi_pinned_ring_figures(ring).sent_bytes;
    start_counting();
    counting = true;
    append(&t, 8);
    append(&t, 8);
    counting = false;
    assert_true(atsi_pinned_ring_figures(ring).sent_bytes > sent_before);
    if (COUNTS_ALLOCATIONS) assert_int_equal(n_allocations, 0);
    assert_int_equal(n_forbidden, 0);
    close_text(&t);
    atsi_pinned_ring_free(ring);
    test_model_unload(&m, d);
    atsi_plan_free(&m.plan);
}

static void the_counting_hook_counts(void **state) {
    (void)state;
    n_allocations = 0;
    counting = true;
    void *volatile block = malloc(10);
    counting = false;
    free(block);
    if (COUNTS_ALLOCATIONS) assert_int_equal(n_allocations, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_load_gives_the_same_bits),
        cmocka_unit_test(streams_are_no_slower_than_moving_nothing),
        cmocka_unit_test(the_counting_hook_counts),
        cmocka_unit_test(a_steady_round_allocates_nothing_and_never_waits_for_the_device),
        cmocka_unit_test(no_thread_of_a_round_allocates_or_waits_for_the_device),
        cmocka_unit_test(an_exchange_allocates_nothing_and_waits_for_nobody),
        cmocka_unit_test(a_chunk_through_the_ring_allocates_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
