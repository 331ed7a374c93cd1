// The moving budget: when it gives memory back and when it takes it again, by a clock of the test's own; and that a text does not notice.
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/clock.h"
#include "kernels/sim/sim_device.h"
#include "runtime/executor_internal.h"
#include "runtime/session.h"
#include "tests/support/check.h"
#include "tests/support/model_file.h"
#include "tests/support/small_model.h"

enum {
    CHUNK = 64 << 10,
    CARD = 16 << 20,
    RESERVE = 1 << 20
};
static const double second = 1e6;

struct bench {
    struct model_file file;
    struct atsi_device *device;
    struct atsi_weights weights;
    struct atsi_reserve reserve;
    _Atomic uint64_t others;  // read by the thread that decides, too
    _Atomic uint32_t n_asked; // what others hold
    _Atomic bool flickers;    // others hold everything every third time that they are asked for
    double now_us;
    struct atsi_reserve_move told;
    uint32_t n_told;
    struct atsi_error err;
};

static uint64_t others_hold(void *context) {
    struct bench *b = context;
    return b->flickers && atomic_fetch_add(&b->n_asked, 1) % 3 == 2 ? UINT64_MAX : b->others;
}

static void hear(void *context, const struct atsi_reserve_move *move) {
    struct bench *b = context;
    b->told = *move;
    b->n_told++;
}

static void open_bench(struct bench *b, uint32_t delay_seed) {
    memset(b, 0, sizeof *b);
    struct atsi_sim_params sim = {.memory_bytes = CARD,
                                  .chunk_bytes = CHUNK,
                                  .taken_bytes = others_hold,
                                  .taken_context = b,
                                  .delay_seed = delay_seed,
                                  .delay_max_us = 50,
                                  .reference_kernels = true};
    model_file_open(&b->file, ATSI_GPU, false);
    check_ok(atsi_sim_open(&sim, &b->device, &b->err), b->err);
    struct atsi_weights_params params = {.model = &b->file.model, .device = b->device, .reserve_bytes = RESERVE};
    check_ok(atsi_weights_load(&b->weights, &params, &b->err), b->err);
    b->reserve = (struct atsi_reserve){.weights = &b->weights, .bytes = RESERVE, .tell = hear, .context = b};
    b->now_us = 5 * second;
}

static void close_bench(struct bench *b) {
    atsi_weights_free(&b->weights);
    assert_int_equal(atsi_sim_n_alive(b->device), 0);
    b->device->ops->close(b->device);
    model_file_close(&b->file);
}

static uint64_t free_bytes(struct bench *b) {
    uint64_t bytes;
    check_ok(b->device->ops->free_bytes(b->device, &bytes, &b->err), b->err);
    return bytes;
}

// Others take or give memory so that this much is free now.
static void leave_free(struct bench *b, uint64_t bytes) {
    b->others = 0;
    b->others = free_bytes(b) - bytes;
}

// Polls every 10 ms for a while. Returns the number of changes, which are applied.
static uint32_t watch(struct bench *b, double us) {
    uint32_t n = 0;
    for (double end_us = b->now_us + us; b->now_us < end_us; b->now_us += 1e4) {
        enum atsi_reserve_change change;
        b->reserve.wait_us = 0; // how long a look takes is the machine's
        check_ok(atsi_reserve_poll(&b->reserve, b->now_us, &change, &b->err), b->err);
        n += change != ATSI_RESERVE_STAYS;
        check_ok(atsi_reserve_apply(&b->reserve, &b->err), b->err);
    }
    return n;
}

// A bench whose units have all left, while there would be room for them.
static void open_emptied(struct bench *b) {
    open_bench(b, 0);
    b->reserve.bytes = CARD;
    assert_int_equal(watch(b, 1e4), 1);
    assert_int_equal(b->weights.n_resident, 0);
    b->reserve.bytes = RESERVE;
}

static void nothing_moves_while_there_is_room(void **state) {
    (void)state;
    struct bench b;
    open_bench(&b, 0);
    leave_free(&b, RESERVE);
    assert_int_equal(watch(&b, 5 * second), 0);
    assert_int_equal(b.n_told, 0);
    assert_int_equal(b.weights.n_resident, 3);
    close_bench(&b);
}

// As much as is missing leaves, no more, the least valuable first; within one look.
static void what_is_missing_is_given_back(void **state) {
    (void)state;
    static const struct {
        uint64_t missing;
        uint32_t n_left;
    } cases[] = {{1, 2}, {1 << 20, 2}, {(1600 << 10) + CHUNK, 1}, {(2000 << 10) + CHUNK, 0}, {RESERVE, 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bench b;
        open_bench(&b, 0);
        uint64_t missing = cases[i].missing;
        if (missing > RESERVE) { // more than the reserve can only be missing when it is larger
            b.reserve.bytes = missing;
            leave_free(&b, 0);
        } else {
            leave_free(&b, RESERVE - missing);
        }
        assert_int_equal(watch(&b, 1), 1);
        assert_int_equal(b.weights.n_resident, cases[i].n_left);
        assert_int_equal(b.told.change, ATSI_RESERVE_SHRINKS);
        assert_int_equal(b.told.n_units, 3 - cases[i].n_left);
        assert_int_equal(b.told.n_resident, cases[i].n_left);
        assert_true(free_bytes(&b) >= b.reserve.bytes);
        assert_int_equal(watch(&b, 5 * second), 0);
        close_bench(&b);
    }
}

static void nothing_more_to_give_is_no_trouble(void **state) {
    (void)state;
    struct bench b;
    open_bench(&b, 0);
    b.reserve.bytes = CARD;
    assert_int_equal(watch(&b, second), 1);
    assert_int_equal(b.weights.n_resident, 0);
    assert_int_equal(b.weights.range->backed_bytes % CHUNK, 0);
    assert_true(b.weights.range->backed_bytes > 0); // small tensors stay
    close_bench(&b);
}

static void it_comes_back_when_there_is_room_for_a_while(void **state) {
    (void)state;
    struct bench b;
    open_bench(&b, 0);
    leave_free(&b, 0);
    assert_int_equal(watch(&b, 0.1 * second), 1);
    assert_int_equal(b.weights.n_resident, 2);
    b.others = 0;
    assert_int_equal(watch(&b, 0.8 * second), 0); // not at once
    b.others = CARD;
    assert_int_equal(watch(&b, 0.02 * second), 1); // all the rest leaves
    assert_int_equal(b.weights.n_resident, 0);
    b.others = 0;
    assert_int_equal(watch(&b, 0.9 * second), 0);
    assert_int_equal(watch(&b, second), 1);
    assert_int_equal(b.weights.n_resident, 3);
    assert_int_equal(b.told.change, ATSI_RESERVE_GROWS);
    assert_int_equal(b.told.n_units, 3);
    close_bench(&b);
}

// Room for one of two units: that one comes back. The margin is not used up.
static void it_comes_back_as_far_as_there_is_room(void **state) {
    (void)state;
    struct bench b;
    open_emptied(&b);
    leave_free(&b, RESERVE + RESERVE / 4 + (500 << 10)); // "o" takes 400 KiB
    assert_int_equal(watch(&b, 3 * second), 1);
    assert_int_equal(b.weights.n_resident, 1);
    leave_free(&b, RESERVE + RESERVE / 4 + (300 << 10));
    assert_int_equal(watch(&b, 3 * second), 0);
    assert_true(free_bytes(&b) >= RESERVE + RESERVE / 4);
    close_bench(&b);
}

// Memory that others take while tensors come back ends that; nothing of what a round uses has changed.
static void others_are_faster(void **state) {
    (void)state;
    struct bench b;
    open_emptied(&b);
    uint64_t before = b.weights.filled_bytes;
    bool refused;
    check_ok(atsi_weights_refill(&b.weights, 3, 0, &refused, &b.err), b.err);
    assert_true(b.weights.filled_bytes > before);
    leave_free(&b, 0);
    assert_int_equal(watch(&b, 2e4), 0);
    assert_int_equal(b.weights.filled_bytes, before);
    assert_int_equal(b.weights.n_resident, 0);
    close_bench(&b);
}

// A program that comes and goes: each time it takes what has just come back, the next return waits longer.
static void it_learns_to_wait(void **state) {
    (void)state;
    struct bench b;
    double waits[4];
    open_bench(&b, 0);
    for (int i = 0; i < 4; i++) {
        leave_free(&b, 0);
        assert_int_equal(watch(&b, 1e4), 1);
        b.others = 0;
        double began_us = b.now_us;
        while (b.weights.n_resident < 3) watch(&b, 1e4);
        waits[i] = b.now_us - began_us;
    }
    assert_true(waits[0] < 1.2 * second);
    for (int i = 1; i < 4; i++) assert_true(waits[i] > 1.8 * waits[i - 1]);
    close_bench(&b);
}

// Memory that the run has still to take is not there for weights.
static void what_is_pending_is_not_free(void **state) {
    (void)state;
    struct bench b;
    open_bench(&b, 0);
    leave_free(&b, RESERVE + (RESERVE / 2));
    b.reserve.pending_bytes = RESERVE;
    assert_int_equal(watch(&b, 1e4), 1);
    assert_int_equal(b.told.change, ATSI_RESERVE_SHRINKS);
    b.reserve.pending_bytes = CARD;
    b.others = 0;
    assert_int_equal(watch(&b, 1e4), 1);
    assert_int_equal(watch(&b, 3 * second), 0);
    b.reserve.pending_bytes = 0;
    assert_int_equal(watch(&b, 3 * second), 1);
    assert_int_equal(b.weights.n_resident, 3);
    close_bench(&b);
}

static void it_does_not_look_all_the_time(void **state) {
    (void)state;
    struct bench b;
    enum atsi_reserve_change change;
    open_bench(&b, 0);
    for (int i = 0; i < 1000; i++) check_ok(atsi_reserve_poll(&b.reserve, b.now_us + i * 1000, &change, &b.err), b.err);
    assert_in_range(b.reserve.n_polls, 10, 100);
    close_bench(&b);
}

static void without_a_reserve_it_never_looks(void **state) {
    (void)state;
    struct bench b;
    open_bench(&b, 0);
    b.reserve.bytes = 0;
    b.others = CARD;
    assert_int_equal(watch(&b, second), 0);
    assert_int_equal(b.reserve.n_polls, 0);
    close_bench(&b);
}

// ---- a text does not notice ---------------------------------------------------------------------------------------------

enum {
    N_TOKENS = 40
};

// Some units leave or come back, as the budget would have it.
static void move_at_random(struct bench *b, uint64_t *random) {
    uint32_t n = (uint32_t)(test_random(random) % 4);
    bool refused;
    if (n < b->weights.n_resident) {
        check_ok(atsi_weights_release(&b->weights, n, &b->err), b->err);
    } else {
        check_ok(atsi_weights_refill(&b->weights, n, test_random(random) % 2 ? 1e18 : 0, &refused, &b->err), b->err);
        check_ok(atsi_weights_settle(&b->weights, &b->err), b->err);
    }
}

static bool is_launched_ahead(const struct atsi_session *s) { return s->executor->now->ahead[0].n_pieces > 0; }

// The logits of every token of a text, in a prompt of 16 and single tokens behind it. With moves others sometimes take all that is left, so
// that there is no memory for graphs either. Returns the number of single tokens whose round was not launched ahead.
static uint32_t write_text(struct bench *b, bool moves, uint64_t seed, float *logits) {
    const struct atsi_plan *plan = &b->file.model.plan;
    struct atsi_executor_params params = {.plan = plan,
                                          .host_tensors = b->weights.host,
                                          .device_tensors = b->weights.device,
                                          .mapped_tensors = b->weights.mapped,
                                          .n_threads = 1,
                                          .isa = "reference",
                                          .device = b->device};
    struct atsi_dispatcher_params dispatching = {.plan = plan, .policy = ATSI_POLICY_FIFO, .has_device = true};
    struct atsi_session_params session_params = {.executor = &params, .rescheduling = {.in_turn = seed % 2 != 0}};
    struct atsi_session *session;
    uint64_t random = seed;
    uint32_t n_piece_by_piece = 0;
    check_ok(atsi_dispatcher_create(&dispatching, &session_params.dispatcher, &b->err), b->err);
    check_ok(atsi_session_create(&session_params, &session, &b->err), b->err);
    b->reserve.bytes = 0; // moved by hand
    atsi_session_follow(session, &b->reserve);
    for (uint32_t i = 0; i < N_TOKENS;) {
        int32_t ids[16];
        uint32_t n = i == 0 ? 16 : 1;
        for (uint32_t k = 0; k < n; k++) ids[k] = (int32_t)((i + k) * 7 % plan->program.n_vocab);
        if (moves && test_random(&random) % 2) {
            check_ok(atsi_rescheduler_pause(&session->rescheduler, &b->err), b->err);
            move_at_random(b, &random);
            b->others = test_random(&random) % 3 ? 0 : UINT64_MAX;
            b->flickers = test_random(&random) % 2; // so that some graphs of a round find memory and others do not
            atsi_session_follow(session, &b->reserve);
        }
        check_ok(atsi_session_append(session, ids, n, NULL, NULL, &b->err), b->err);
        memcpy(logits + (size_t)i * plan->program.n_vocab, session->last_logits,
               plan->program.n_vocab * sizeof *logits);
        n_piece_by_piece += n == 1 && !is_launched_ahead(session);
        i += n;
    }
    b->flickers = false;
    b->others = 0;
    atsi_session_free(session);
    return n_piece_by_piece;
}

static void logits_are_the_same_bits(void **state) {
    (void)state;
    struct bench b;
    open_bench(&b, 0);
    size_t n = (size_t)N_TOKENS * b.file.model.plan.program.n_vocab;
    float *wanted = calloc(n, sizeof *wanted), *found = calloc(n, sizeof *found);
    assert_int_equal(write_text(&b, false, 1, wanted), 0);
    close_bench(&b);
    uint32_t n_piece_by_piece = 0;
    for (uint32_t seed = 1; seed <= 8; seed++) {
        open_bench(&b, seed);
        n_piece_by_piece += write_text(&b, true, seed * 2654435761u + 7, found);
        assert_memory_equal(wanted, found, n * sizeof *wanted);
        close_bench(&b);
    }
    assert_true(n_piece_by_piece > 0);
    free(wanted);
    free(found);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_moves_while_there_is_room),
        cmocka_unit_test(what_is_missing_is_given_back),
        cmocka_unit_test(nothing_more_to_give_is_no_trouble),
        cmocka_unit_test(it_comes_back_when_there_is_room_for_a_while),
        cmocka_unit_test(it_comes_back_as_far_as_there_is_room),
        cmocka_unit_test(others_are_faster),
        cmocka_unit_test(it_learns_to_wait),
        cmocka_unit_test(what_is_pending_is_not_free),
        cmocka_unit_test(it_does_not_look_all_the_time),
        cmocka_unit_test(without_a_reserve_it_never_looks),
        cmocka_unit_test(logits_are_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
