// The launcher on the simulated device: marks are waited for, and a stream that fails or ends without its mark is an error, not a
// wait for ever.
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "kernels/sim/sim_device.h"
#include "runtime/launcher.h"
#include "tests/support/check.h"

struct stage {
    struct atsi_device *device;
    struct atsi_stream *stream;
    struct atsi_launcher *launcher;
    int32_t *words; // [2] in mapped memory: what the host posts, what the stream posts
    char *words_dev;
    struct atsi_launch_piece piece;
    struct atsi_launch round; // of that piece
};

static const struct atsi_device_ops *ops_of(const struct stage *s) { return s->device->ops; }

static void set_up(struct stage *s) {
    struct atsi_sim_params params = {.memory_bytes = 1 << 20, .delay_seed = 7, .delay_max_us = 300};
    void *host, *dev;
    memset(s, 0, sizeof *s);
    assert_int_equal(atsi_sim_open(&params, &s->device, NULL), ATSI_OK);
    assert_int_equal(ops_of(s)->stream_create(s->device, &s->stream, NULL), ATSI_OK);
    assert_int_equal(ops_of(s)->host_alloc(s->device, 2 * sizeof(int32_t), &host, &dev, NULL), ATSI_OK);
    memset(host, 0, 2 * sizeof(int32_t));
    s->words = host;
    s->words_dev = dev;
    s->round = (struct atsi_launch){&s->piece, 1};
    assert_int_equal(atsi_launcher_create(s->stream, NULL, &s->launcher, NULL), ATSI_OK);
}

static void tear_down(struct stage *s) {
    atsi_launcher_free(s->launcher);
    ops_of(s)->stream_sync(s->stream, NULL);
    ops_of(s)->graph_destroy(s->device, s->piece.graph);
    ops_of(s)->stream_destroy(s->stream);
    ops_of(s)->host_free(s->device, s->words);
    ops_of(s)->close(s->device);
}

// The stream waits for the host's `awaited`, then posts 1 if `posts`.
static void capture(struct stage *s, int32_t awaited, bool posts) {
    assert_int_equal(ops_of(s)->capture_begin(s->stream, NULL), ATSI_OK);
    assert_int_equal(ops_of(s)->await_mark(s->stream, s->words_dev, NULL, awaited, NULL), ATSI_OK);
    if (posts)
        assert_int_equal(ops_of(s)->post_mark(s->stream, s->words_dev + sizeof(int32_t), NULL, 1, NULL), ATSI_OK);
    assert_int_equal(ops_of(s)->capture_end(s->stream, &s->piece.graph, NULL), ATSI_OK);
}

static void host_and_stream_wait_for_each_other(void **state) {
    (void)state;
    struct stage s;
    set_up(&s);
    capture(&s, 1, true);
    atsi_launcher_start(s.launcher, &s.round, NULL);
    assert_int_equal(__atomic_load_n(&s.words[1], __ATOMIC_ACQUIRE), 0); // it waits for what has not been posted
    __atomic_store_n(&s.words[0], 1, __ATOMIC_RELEASE);
    assert_int_equal(atsi_launcher_await(s.launcher, &s.words[1], 1, NULL), ATSI_OK);
    assert_int_equal(atsi_launcher_finish(s.launcher, NULL), ATSI_OK);
    tear_down(&s);
}

// Expected or not, soon or long after it was: a round is launched when it is started, and not before.
static void a_round_may_be_expected(void **state) {
    (void)state;
    struct stage s;
    set_up(&s);
    capture(&s, 1, true);
    s.words[0] = 1;
    for (int i = 0; i < 40; i++) {
        s.words[1] = 0;
        for (int k = 0; k < i % 3; k++) atsi_launcher_expect(s.launcher);
        usleep(i % 4 * 1500);
        assert_int_equal(__atomic_load_n(&s.words[1], __ATOMIC_ACQUIRE), 0);
        atsi_launcher_start(s.launcher, &s.round, NULL);
        assert_int_equal(atsi_launcher_await(s.launcher, &s.words[1], 1, NULL), ATSI_OK);
        assert_int_equal(atsi_launcher_finish(s.launcher, NULL), ATSI_OK);
        assert_int_equal(ops_of(&s)->stream_sync(s.stream, NULL), ATSI_OK);
    }
    atsi_launcher_expect(s.launcher); // in vain
    tear_down(&s);
}

static void a_stream_that_ends_without_its_mark_is_an_error(void **state) {
    (void)state;
    struct stage s;
    struct atsi_error err = {0};
    set_up(&s);
    capture(&s, 0, false);
    atsi_launcher_start(s.launcher, &s.round, NULL);
    assert_int_equal(atsi_launcher_await(s.launcher, &s.words[1], 1, &err), ATSI_FAILED);
    assert_non_null(strstr(err.text, "ended without the mark"));
    assert_int_equal(atsi_launcher_finish(s.launcher, NULL), ATSI_OK);
    tear_down(&s);
}

static void a_failed_launch_is_an_error(void **state) {
    (void)state;
    struct stage s;
    struct atsi_error err = {0};
    set_up(&s);
    capture(&s, 0, true);
    // An address that is nobody's poisons the device.
    assert_int_equal(ops_of(&s)->post_mark(s.stream, &s, NULL, 1, NULL), ATSI_FAILED);
    atsi_launcher_start(s.launcher, &s.round, NULL);
    assert_int_equal(atsi_launcher_await(s.launcher, &s.words[1], 1, &err), ATSI_FAILED);
    assert_int_equal(atsi_launcher_finish(s.launcher, &err), ATSI_FAILED);
    tear_down(&s);
}

// ---- beside a thread that builds graphs ------------------------------------------------------------------------------

struct builder {
    const struct stage *stage;
    bool stop;
};

static void *build_graphs(void *context) {
    struct builder *b = context;
    const struct atsi_device_ops *ops = ops_of(b->stage);
    struct atsi_stream *stream;
    assert_int_equal(ops->capture_stream_create(b->stage->device, &stream, NULL), ATSI_OK);
    while (!__atomic_load_n(&b->stop, __ATOMIC_ACQUIRE)) {
        void *graph;
        assert_int_equal(ops->capture_begin(stream, NULL), ATSI_OK);
        assert_int_equal(ops->capture_end(stream, &graph, NULL), ATSI_OK);
        ops->graph_destroy(b->stage->device, graph);
        usleep(100);
    }
    ops->stream_destroy(stream);
    return NULL;
}

// The simulated device lets nobody launch while it waits for all that runs, as a driver may when a graph is built. A piece that is
// launched before its transfers would wait for ever.
static void rounds_end_while_graphs_are_built(void **state) {
    (void)state;
    struct stage s;
    set_up(&s);
    struct atsi_transfers *transfers;
    struct atsi_transfer_plan *plan;
    static const int32_t weights;
    struct atsi_transfer_unit unit = {.pieces =
                                          &(struct atsi_transfer_piece){.host = &weights, .bytes = sizeof weights},
                                      .n_pieces = 1,
                                      .bytes = sizeof weights};
    struct atsi_transfers_params params = {.device = s.device, .temp_bytes = 4096, .max_units = 1};
    const int32_t *base_dev = (const int32_t *)s.words_dev;
    assert_int_equal(atsi_transfers_create(&params, &transfers, NULL), ATSI_OK);
    assert_int_equal(atsi_transfers_plan(transfers, &unit, 1, &plan, NULL), ATSI_OK);
    assert_int_equal(atsi_transfers_use(transfers, plan, s.stream, NULL), ATSI_OK);
    assert_int_equal(ops_of(&s)->capture_begin(s.stream, NULL), ATSI_OK);
    assert_int_equal(atsi_transfers_capture_await(transfers, s.stream, base_dev, 0, NULL), ATSI_OK);
    assert_int_equal(atsi_transfers_capture_consumed(transfers, s.stream, base_dev, 0, NULL), ATSI_OK);
    assert_int_equal(ops_of(&s)->post_mark(s.stream, s.words_dev + sizeof(int32_t), base_dev, 1, NULL), ATSI_OK);
    assert_int_equal(ops_of(&s)->capture_end(s.stream, &s.piece.graph, NULL), ATSI_OK);

    struct builder builder = {.stage = &s};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, build_graphs, &builder), 0);
    alarm(60); // kills a test that waits for ever
    for (int i = 0; i < 200; i++) {
        s.words[0] = atsi_transfers_mark(transfers);
        atsi_launcher_start(s.launcher, &s.round, transfers);
        assert_int_equal(atsi_launcher_await(s.launcher, &s.words[1], s.words[0] + 1, NULL), ATSI_OK);
        assert_int_equal(atsi_launcher_finish(s.launcher, NULL), ATSI_OK);
        atsi_transfers_round_done(transfers);
    }
    alarm(0);
    __atomic_store_n(&builder.stop, true, __ATOMIC_RELEASE);
    pthread_join(thread, NULL);
    ops_of(&s)->stream_sync(s.stream, NULL);
    atsi_transfers_free(transfers);
    atsi_transfer_plan_free(plan);
    tear_down(&s);
}

static void marks_wrap(void **state) {
    (void)state;
    assert_true(atsi_mark_reached(5, 5));
    assert_true(atsi_mark_reached(6, 5));
    assert_false(atsi_mark_reached(4, 5));
    assert_true(atsi_mark_reached(INT32_MIN, INT32_MAX)); // one further
    assert_false(atsi_mark_reached(INT32_MAX, INT32_MIN));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(host_and_stream_wait_for_each_other),
        cmocka_unit_test(a_round_may_be_expected),
        cmocka_unit_test(a_stream_that_ends_without_its_mark_is_an_error),
        cmocka_unit_test(a_failed_launch_is_an_error),
        cmocka_unit_test(rounds_end_while_graphs_are_built),
        cmocka_unit_test(marks_wrap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
