// The launcher on the simulated device: marks are waited for, and a stream that fails or ends without its mark is an error, not a
// wait for ever.
#include <string.h>

#include "kernels/sim/sim_device.h"
#include "runtime/launcher.h"
#include "tests/support/check.h"

struct stage {
    struct atsi_device *device;
    struct atsi_stream *stream;
    struct atsi_launcher *launcher;
    int32_t *words; // [2] in mapped memory: what the host posts, what the stream posts
    char *words_dev;
    void *graph;
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
    assert_int_equal(atsi_launcher_create(s->stream, &s->launcher, NULL), ATSI_OK);
}

static void tear_down(struct stage *s) {
    atsi_launcher_free(s->launcher);
    ops_of(s)->stream_sync(s->stream, NULL);
    ops_of(s)->graph_destroy(s->device, s->graph);
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
    assert_int_equal(ops_of(s)->capture_end(s->stream, &s->graph, NULL), ATSI_OK);
}

static void host_and_stream_wait_for_each_other(void **state) {
    (void)state;
    struct stage s;
    set_up(&s);
    capture(&s, 1, true);
    atsi_launcher_start(s.launcher, s.graph, NULL);
    assert_int_equal(__atomic_load_n(&s.words[1], __ATOMIC_ACQUIRE), 0); // it waits for what has not been posted
    __atomic_store_n(&s.words[0], 1, __ATOMIC_RELEASE);
    assert_int_equal(atsi_launcher_await(s.launcher, &s.words[1], 1, NULL), ATSI_OK);
    assert_int_equal(atsi_launcher_finish(s.launcher, NULL), ATSI_OK);
    tear_down(&s);
}

static void a_stream_that_ends_without_its_mark_is_an_error(void **state) {
    (void)state;
    struct stage s;
    struct atsi_error err = {0};
    set_up(&s);
    capture(&s, 0, false);
    atsi_launcher_start(s.launcher, s.graph, NULL);
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
    atsi_launcher_start(s.launcher, s.graph, NULL);
    assert_int_equal(atsi_launcher_await(s.launcher, &s.words[1], 1, &err), ATSI_FAILED);
    assert_int_equal(atsi_launcher_finish(s.launcher, &err), ATSI_FAILED);
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
        cmocka_unit_test(a_stream_that_ends_without_its_mark_is_an_error),
        cmocka_unit_test(a_failed_launch_is_an_error),
        cmocka_unit_test(marks_wrap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
