// The simulated device: the ordering rules between streams and host under random delays, what happens without them, the memory
// limit, misuse of addresses, modelled copy times, clean-up.
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "formats/base/clock.h"
#include "kernels/sim/sim_device.h"
#include "tests/support/check.h"
#include "tests/support/op_case.h"

enum {
    WIDTH = 64,
    BYTES = WIDTH * 4
};

// A device prepared for `out = a + b` of one row, its round in device memory, two streams.
struct bench {
    struct op_case program;
    struct atsi_device *device;
    const struct atsi_device_ops *ops;
    struct atsi_stream *compute, *transfer;
    struct atsi_round round;
    void *round_dev;
    struct atsi_error err;
};

static void open_bench(struct bench *b, struct atsi_sim_params params) {
    memset(b, 0, sizeof *b);
    op_case_init(&b->program, 1, 0);
    int32_t buffer = op_case_buffer(&b->program, WIDTH, ATSI_ROWS_TOKENS, false, NULL, 0);
    struct atsi_op *op = op_case_op(&b->program, ATSI_OP_ADD);
    op->in[0] = op->in[1] = op->out[0] = op_case_view(&b->program, buffer);
    if (params.memory_bytes == 0) params.memory_bytes = 1 << 20;
    check_ok(atsi_sim_open(&params, &b->device, &b->err), b->err);
    b->ops = b->device->ops;
    check_ok(b->ops->stream_create(b->device, &b->compute, &b->err), b->err);
    check_ok(b->ops->stream_create(b->device, &b->transfer, &b->err), b->err);
    check_ok(b->ops->prepare(b->device, &b->program.program, 1, 1, 1, &b->err), b->err);
    b->round = (struct atsi_round){.n_tokens = 1};
    check_ok(b->ops->alloc(b->device, sizeof b->round, &b->round_dev, &b->err), b->err);
    check_ok(b->ops->copy_to_device(b->compute, b->round_dev, &b->round, sizeof b->round, &b->err), b->err);
    check_ok(b->ops->stream_sync(b->compute, &b->err), b->err);
}

static void close_bench(struct bench *b) {
    b->ops->free(b->device, b->round_dev);
    b->ops->stream_destroy(b->compute);
    b->ops->stream_destroy(b->transfer);
    assert_int_equal(atsi_sim_n_alive(b->device), 0);
    b->ops->close(b->device);
    op_case_free(&b->program);
}

static void *device_memory(struct bench *b, uint64_t bytes) {
    void *dev;
    check_ok(b->ops->alloc(b->device, bytes, &dev, &b->err), b->err);
    return dev;
}

static float *pinned(struct bench *b, uint64_t bytes, void **dev) {
    void *host;
    check_ok(b->ops->host_alloc(b->device, bytes, &host, dev, &b->err), b->err);
    return host;
}

static struct atsi_event *event(struct bench *b) {
    struct atsi_event *e;
    check_ok(b->ops->event_create(b->device, true, &e, &b->err), b->err);
    return e;
}

static enum atsi_status launch_sum(struct bench *b, void *a, void *c, void *out) {
    struct atsi_op_call call = {.op = &b->program.program.ops[0], .round = {.round = b->round_dev}};
    call.in[0] = (struct atsi_rows_ref){a, WIDTH, WIDTH};
    call.in[1] = (struct atsi_rows_ref){c, WIDTH, WIDTH};
    call.out[0] = (struct atsi_rows_ref){out, WIDTH, WIDTH};
    return b->ops->launch(b->compute, &call, &b->round, &b->err);
}

static void fill(float *row, float value) {
    for (int i = 0; i < WIDTH; i++) row[i] = value;
}

// ---- ordering rules -----------------------------------------------------------------------------------------------------

enum {
    N_UNITS = 12,
    WAIT_ARRIVAL = 1,
    WAIT_CONSUMED = 2
};

// Weights 2^0, 2^1, ... pass through one temporary space and are summed up on the device; the sum comes back through mapped
// memory, as the runtime does it. Returns whether it is right.
static bool sum_through_temporary(struct atsi_sim_params params, int rules) {
    struct bench b;
    open_bench(&b, params);
    void *weights_dev, *result_dev, *space = device_memory(&b, BYTES), *total = device_memory(&b, BYTES);
    float *weights = pinned(&b, N_UNITS * BYTES, &weights_dev), *result = pinned(&b, BYTES, &result_dev);
    struct atsi_event *arrived[N_UNITS], *consumed[N_UNITS], *done = event(&b);
    fill(result, 0);
    check_ok(b.ops->copy_rows(b.compute, total, WIDTH, result_dev, WIDTH, WIDTH, 1, &b.err), b.err);
    for (int i = 0; i < N_UNITS; i++) {
        arrived[i] = event(&b);
        consumed[i] = event(&b);
        fill(weights + i * WIDTH, ldexpf(1, i));
        if (i > 0 && (rules & WAIT_CONSUMED)) check_ok(b.ops->stream_wait(b.transfer, consumed[i - 1], &b.err), b.err);
        check_ok(b.ops->copy_to_device(b.transfer, space, weights + i * WIDTH, BYTES, &b.err), b.err);
        check_ok(b.ops->event_record(arrived[i], b.transfer, &b.err), b.err);
        if (rules & WAIT_ARRIVAL) check_ok(b.ops->stream_wait(b.compute, arrived[i], &b.err), b.err);
        check_ok(launch_sum(&b, total, space, total), b.err);
        check_ok(b.ops->event_record(consumed[i], b.compute, &b.err), b.err);
    }
    check_ok(b.ops->copy_rows(b.compute, result_dev, WIDTH, total, WIDTH, WIDTH, 1, &b.err), b.err); // in stream order
    check_ok(b.ops->event_record(done, b.compute, &b.err), b.err);
    check_ok(b.ops->event_sync(done, &b.err), b.err); // device to host: after this the host may read
    bool right = true;
    for (int i = 0; i < WIDTH; i++) right &= result[i] == ldexpf(1, N_UNITS) - 1;
    check_ok(b.ops->stream_sync(b.transfer, &b.err), b.err);
    for (int i = 0; i < N_UNITS; i++) {
        b.ops->event_destroy(arrived[i]);
        b.ops->event_destroy(consumed[i]);
    }
    b.ops->event_destroy(done);
    b.ops->free(b.device, space);
    b.ops->free(b.device, total);
    b.ops->host_free(b.device, weights);
    b.ops->host_free(b.device, result);
    close_bench(&b);
    return right;
}

static void events_order_streams_and_host(void **state) {
    (void)state;
    assert_true(sum_through_temporary((struct atsi_sim_params){0}, WAIT_ARRIVAL | WAIT_CONSUMED));
    for (uint32_t seed = 1; seed <= 10; seed++) {
        struct atsi_sim_params params = {
            .delay_seed = seed, .delay_max_us = 300, .h2d_bytes_per_us = seed % 2 ? 10 : 0};
        assert_true(sum_through_temporary(params, WAIT_ARRIVAL | WAIT_CONSUMED));
    }
}

// The device shows it when a rule is left out. (Under the thread sanitizer this would be the race that it reports.)
static void a_missing_rule_is_noticed(void **state) {
    (void)state;
#ifdef __SANITIZE_THREAD__
    print_message("skipped: these are data races on purpose\n");
#else
    int n_wrong[4] = {0};
    for (uint32_t seed = 1; seed <= 5; seed++)
        for (int rules = 0; rules < 3; rules++)
            n_wrong[rules] +=
                !sum_through_temporary((struct atsi_sim_params){.delay_seed = seed, .delay_max_us = 500}, rules);
    for (int rules = 0; rules < 3; rules++) assert_true(n_wrong[rules] > 0);
#endif
}

// A wait means the record that was the latest when it was called, also when the event is recorded again or destroyed.
static void waits_mean_their_record(void **state) {
    (void)state;
    for (uint32_t seed = 1; seed <= 5; seed++) {
        struct bench b;
        open_bench(&b, (struct atsi_sim_params){.delay_seed = seed, .delay_max_us = 400});
        void *one_dev, *space = device_memory(&b, BYTES), *total = device_memory(&b, BYTES), *total_dev;
        float *one = pinned(&b, BYTES, &one_dev), *result = pinned(&b, BYTES, &total_dev);
        struct atsi_event *e = event(&b);
        fill(one, 1);
        check_ok(b.ops->copy_to_device(b.transfer, space, one, BYTES, &b.err), b.err);
        check_ok(b.ops->event_record(e, b.transfer, &b.err), b.err);
        check_ok(b.ops->stream_wait(b.compute, e, &b.err), b.err);
        check_ok(launch_sum(&b, space, space, total), b.err);
        check_ok(b.ops->event_record(e, b.compute, &b.err), b.err); // now it marks another point of another stream
        check_ok(b.ops->stream_wait(b.transfer, e, &b.err), b.err);
        b.ops->event_destroy(e);
        check_ok(b.ops->copy_to_host(b.transfer, result, total, BYTES, &b.err), b.err);
        check_ok(b.ops->stream_sync(b.transfer, &b.err), b.err);
        for (int i = 0; i < WIDTH; i++) assert_true(result[i] == 2);
        e = event(&b);
        check_ok(b.ops->event_sync(e, &b.err), b.err); // never recorded: passed
        check_ok(b.ops->stream_wait(b.compute, e, &b.err), b.err);
        b.ops->event_destroy(e);
        b.ops->free(b.device, space);
        b.ops->free(b.device, total);
        b.ops->host_free(b.device, one);
        b.ops->host_free(b.device, result);
        close_bench(&b);
    }
}

// Unpinned memory is read before copy_to_device returns and written before copy_to_host does.
static void unpinned_memory_is_synchronous(void **state) {
    (void)state;
    struct bench b;
    float in[WIDTH], out[WIDTH] = {0};
    open_bench(&b, (struct atsi_sim_params){.delay_seed = 3, .delay_max_us = 500});
    void *space = device_memory(&b, BYTES);
    fill(in, 5);
    check_ok(b.ops->copy_to_device(b.transfer, space, in, BYTES, &b.err), b.err);
    fill(in, 6);
    check_ok(b.ops->copy_to_host(b.transfer, out, space, BYTES, &b.err), b.err);
    assert_true(out[0] == 5 && out[WIDTH - 1] == 5);
    b.ops->free(b.device, space);
    close_bench(&b);
}

// Freeing waits for what still uses the memory.
static void free_waits_for_streams(void **state) {
    (void)state;
    struct bench b;
    void *dev;
    open_bench(&b, (struct atsi_sim_params){.delay_seed = 9, .delay_max_us = 2000});
    void *space = device_memory(&b, BYTES);
    float *row = pinned(&b, BYTES, &dev);
    fill(row, 1);
    for (int i = 0; i < 4; i++) check_ok(b.ops->copy_to_device(b.transfer, space, row, BYTES, &b.err), b.err);
    b.ops->free(b.device, space);
    b.ops->host_free(b.device, row);
    check_ok(b.ops->stream_sync(b.transfer, &b.err), b.err);
    close_bench(&b);
}

// ---- memory -----------------------------------------------------------------------------------------------------------

static void memory_is_limited(void **state) {
    (void)state;
    struct bench b;
    struct atsi_device_info info;
    void *more;
    open_bench(&b, (struct atsi_sim_params){.memory_bytes = 10000});
    void *space = device_memory(&b, 8000);
    assert_int_equal(b.ops->alloc(b.device, 4000, &more, &b.err), ATSI_FAILED);
    check_message(b.err, "no room for 4000 bytes", "of 10000");
    assert_int_equal(b.ops->alloc(b.device, UINT64_MAX, &more, &b.err), ATSI_FAILED);
    check_ok(b.ops->info(b.device, &info, &b.err), b.err); // not sticky
    assert_int_equal(info.total_bytes, 10000);
    assert_int_equal(info.free_bytes + info.used_by_process_bytes, 10000);
    assert_in_range(info.used_by_process_bytes, 8000 + sizeof b.round, 8000 + 512);
    b.ops->free(b.device, space);
    space = device_memory(&b, 8000);
    b.ops->free(b.device, space);
    close_bench(&b);
}

static uint64_t taken(void *context) { return *(const uint64_t *)context; }

// Ranges grow and shrink by chunks, within the process's limit and beside what others hold of the card.
static void ranges_are_backed_by_chunks(void **state) {
    (void)state;
    enum {
        CHUNK = 64 << 10
    };
    struct bench b;
    struct atsi_range *r;
    uint64_t others = 0, free_bytes;
    open_bench(&b, (struct atsi_sim_params){.memory_bytes = 5 * CHUNK,
                                            .card_bytes = 8 * CHUNK,
                                            .taken_bytes = taken,
                                            .taken_context = &others,
                                            .chunk_bytes = CHUNK});
    check_ok(b.ops->range_create(b.device, 6 * CHUNK - 5, &r, &b.err), b.err);
    assert_int_equal(r->size_bytes, 6 * CHUNK);
    assert_int_equal(r->backed_bytes, 0);
    assert_int_equal(b.ops->range_back(b.device, r, 5 * CHUNK, &b.err), ATSI_FAILED); // the bench holds some bytes
    check_message(b.err, "no room for", "are left");
    assert_int_equal(r->backed_bytes, 4 * CHUNK); // as far as it came; not sticky
    others = 3 * CHUNK;
    check_ok(b.ops->free_bytes(b.device, &free_bytes, &b.err), b.err);
    assert_in_range(free_bytes, 1, CHUNK);
    check_ok(b.ops->range_back(b.device, r, CHUNK + 1, &b.err), b.err);
    assert_int_equal(r->backed_bytes, 2 * CHUNK);
    others = 5 * CHUNK;
    assert_int_equal(b.ops->range_back(b.device, r, 3 * CHUNK, &b.err), ATSI_FAILED);
    others = 100 * CHUNK;
    check_ok(b.ops->free_bytes(b.device, &free_bytes, &b.err), b.err);
    assert_int_equal(free_bytes, 0);
    assert_int_equal(b.ops->range_back(b.device, r, 7 * CHUNK, &b.err), ATSI_FAILED);
    b.ops->range_destroy(b.device, r);
    close_bench(&b);
}

// What is written stays while the range shrinks behind it; what was given back is no memory of the device any more.
static void a_range_keeps_its_beginning(void **state) {
    (void)state;
    struct bench b;
    struct atsi_range *r;
    float in[WIDTH], out[WIDTH];
    open_bench(&b, (struct atsi_sim_params){
                       .memory_bytes = 1 << 20, .chunk_bytes = 4096, .delay_seed = 5, .delay_max_us = 300});
    check_ok(b.ops->range_create(b.device, 1 << 19, &r, &b.err), b.err);
    check_ok(b.ops->range_back(b.device, r, 3 * 4096, &b.err), b.err);
    char *low = r->dev, *high = low + 2 * 4096;
    fill(in, 7);
    check_ok(b.ops->copy_to_device(b.transfer, low, in, BYTES, &b.err), b.err);
    check_ok(b.ops->copy_to_device(b.transfer, high, in, BYTES, &b.err), b.err);
    check_ok(b.ops->range_back(b.device, r, 4096, &b.err), b.err); // waits for the copies
    check_ok(b.ops->range_back(b.device, r, 3 * 4096, &b.err), b.err);
    check_ok(b.ops->copy_to_host(b.transfer, out, low, BYTES, &b.err), b.err);
    assert_true(out[0] == 7 && out[WIDTH - 1] == 7);
    check_ok(b.ops->copy_to_host(b.transfer, out, high, BYTES, &b.err), b.err);
    assert_true(isnan(out[0])); // other memory
    check_ok(b.ops->range_back(b.device, r, 4096, &b.err), b.err);
    assert_int_equal(b.ops->copy_to_host(b.transfer, out, high, BYTES, &b.err), ATSI_FAILED);
    check_message(b.err, "not inside one block", "");
    b.ops->range_destroy(b.device, r);
    close_bench(&b);
}

static void refusals_of_the_host_side(void **state) {
    (void)state;
    struct bench b;
    struct atsi_device_info info;
    void *host, *dev, *more;
    const void *mapped;
    open_bench(&b, (struct atsi_sim_params){.refuse_register = true, .pinned_bytes = 8192});
    check_ok(b.ops->info(b.device, &info, &b.err), b.err);
    assert_false(info.can_register_host);
    check_ok(b.ops->host_alloc(b.device, 8000, &host, &dev, &b.err), b.err);
    assert_int_equal(b.ops->host_alloc(b.device, 8000, &more, &dev, &b.err), ATSI_FAILED);
    check_message(b.err, "can be pinned", "8192");
    assert_int_equal(b.ops->host_register(b.device, host, 4096, &mapped, &b.err), ATSI_FAILED);
    b.ops->host_free(b.device, host);
    check_ok(b.ops->host_alloc(b.device, 8000, &host, &dev, &b.err), b.err);
    b.ops->host_free(b.device, host);
    close_bench(&b);
}

static void registered_memory(void **state) {
    (void)state;
    struct bench b;
    const void *dev;
    void *row_dev, *space;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    float *file = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    open_bench(&b, (struct atsi_sim_params){0});
    space = device_memory(&b, BYTES);
    float *row = pinned(&b, BYTES, &row_dev);
    fill(file, 3);
    assert_int_equal(mprotect(file, 2 * page, PROT_READ), 0);
    assert_int_equal(b.ops->host_register(b.device, (char *)file + 8, page, &dev, &b.err), ATSI_FAILED); // not sticky
    check_ok(b.ops->host_register(b.device, file, 2 * page, &dev, &b.err), b.err);
    assert_int_equal(b.ops->host_register(b.device, (char *)file + page, page, &dev, &b.err), ATSI_FAILED);
    check_ok(b.ops->copy_to_device(b.compute, space, file, BYTES, &b.err), b.err);
    check_ok(b.ops->copy_rows(b.compute, row_dev, WIDTH, space, WIDTH, WIDTH, 1, &b.err), b.err);
    check_ok(b.ops->stream_sync(b.compute, &b.err), b.err);
    assert_true(row[0] == 3 && row[WIDTH - 1] == 3);
    b.ops->host_unregister(b.device, file);
    b.ops->free(b.device, space);
    b.ops->host_free(b.device, row);
    close_bench(&b);
    munmap(file, 2 * page);
}

static void the_host_cannot_touch_device_memory(void **state) {
    (void)state;
    struct bench b;
    open_bench(&b, (struct atsi_sim_params){0});
    volatile float *space = device_memory(&b, BYTES);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        signal(SIGBUS, SIG_DFL);
        space[0] = 1;
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_false(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    b.ops->free(b.device, (void *)space);
    close_bench(&b);
}

// ---- misuse -----------------------------------------------------------------------------------------------------------

enum misuse {
    HOST_ADDRESS,
    PAST_THE_END,
    FREED,
    READ_ONLY,
    DOUBLE_FREE,
    STALE_ROUND,
    N_MISUSES
};

static void commit(struct bench *b, enum misuse misuse, float *host, const void *registered, char *space, char *freed) {
    switch (misuse) {
    case HOST_ADDRESS: assert_int_equal(launch_sum(b, space, host, space), ATSI_FAILED); break;
    case PAST_THE_END: assert_int_equal(launch_sum(b, space, space + 4, space), ATSI_FAILED); break;
    case FREED: assert_int_equal(b->ops->copy_to_device(b->compute, freed, host, BYTES, &b->err), ATSI_FAILED); break;
    case READ_ONLY: assert_int_equal(launch_sum(b, space, space, (void *)(uintptr_t)registered), ATSI_FAILED); break;
    case DOUBLE_FREE: b->ops->free(b->device, freed); break;
    case STALE_ROUND: // the device still has the old one
        b->round.first_pos = 7;
        check_ok(launch_sum(b, space, space, space), b->err);
        break;
    default: break;
    }
}

static void misuse_is_a_sticky_error(void **state) {
    (void)state;
    static const char *const WORDS[N_MISUSES] = {
        "no device address", "not inside one block", "not inside one block", "read-only", "free of", "at 7"};
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    float *file = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int misuse = 0; misuse < N_MISUSES; misuse++) {
        struct bench b;
        const void *registered;
        struct atsi_error err;
        float host[WIDTH] = {0};
        void *more;
        open_bench(&b, (struct atsi_sim_params){0});
        char *space = device_memory(&b, BYTES), *freed = device_memory(&b, BYTES);
        b.ops->free(b.device, freed);
        check_ok(b.ops->host_register(b.device, file, page, &registered, &b.err), b.err);
        commit(&b, (enum misuse)misuse, host, registered, space, freed);
        assert_int_equal(b.ops->stream_sync(b.compute, &err), ATSI_FAILED);
        check_message(err, WORDS[misuse]);
        assert_int_equal(b.ops->alloc(b.device, 16, &more, &err), ATSI_FAILED); // the first message again
        check_message(err, WORDS[misuse]);
        b.ops->host_unregister(b.device, file);
        b.ops->free(b.device, space);
        close_bench(&b);
    }
    munmap(file, page);
}

// Nobody hangs on an event of a device that has failed.
static void failed_devices_let_go(void **state) {
    (void)state;
    struct bench b;
    struct atsi_error err;
    open_bench(&b, (struct atsi_sim_params){.delay_seed = 1, .delay_max_us = 1000});
    void *space = device_memory(&b, BYTES);
    struct atsi_event *e = event(&b);
    b.round.first_pos = 3; // fails on the stream's thread
    check_ok(launch_sum(&b, space, space, space), b.err);
    b.ops->event_record(e, b.compute, &err);
    b.ops->stream_wait(b.transfer, e, &err);
    assert_int_equal(b.ops->stream_sync(b.transfer, &err) == ATSI_OK ? b.ops->stream_sync(b.compute, &err)
                                                                     : ATSI_FAILED,
                     ATSI_FAILED);
    assert_int_equal(b.ops->event_sync(e, &err), ATSI_FAILED);
    b.ops->event_destroy(e);
    b.ops->free(b.device, space);
    close_bench(&b);
}

// ---- time and clean-up --------------------------------------------------------------------------------------------------

static void copies_take_modelled_time(void **state) {
    (void)state;
    enum {
        SIZE = 100000
    };
    struct bench b;
    void *dev;
    float us;
    open_bench(&b, (struct atsi_sim_params){.h2d_bytes_per_us = 20, .copy_latency_us = 1000});
    void *space = device_memory(&b, SIZE), *other = device_memory(&b, SIZE);
    float *host = pinned(&b, SIZE, &dev);
    struct atsi_event *before = event(&b), *after = event(&b);
    memset(host, 0, SIZE);
    assert_int_equal(b.ops->event_elapsed_us(before, after, &us, &b.err), ATSI_FAILED); // not recorded
    double start = atsi_clock_us();
    check_ok(b.ops->event_record(before, b.transfer, &b.err), b.err);
    check_ok(b.ops->copy_to_device(b.transfer, space, host, SIZE, &b.err), b.err); // 1 + 5 ms
    check_ok(b.ops->copy_to_device(b.compute, other, host, SIZE, &b.err), b.err);  // queues behind it in the engine
    check_ok(b.ops->event_record(after, b.transfer, &b.err), b.err);
    assert_true(atsi_clock_us() - start < 6000); // asynchronous
    check_ok(b.ops->event_sync(after, &b.err), b.err);
    check_ok(b.ops->event_elapsed_us(before, after, &us, &b.err), b.err);
    assert_true(us >= 5900);
    check_ok(b.ops->stream_sync(b.compute, &b.err), b.err);
    assert_true(atsi_clock_us() - start >= 11900);
    b.ops->event_destroy(before);
    b.ops->event_destroy(after);
    b.ops->free(b.device, space);
    b.ops->free(b.device, other);
    b.ops->host_free(b.device, host);
    close_bench(&b);
}

static void close_frees_what_is_left(void **state) {
    (void)state;
    struct bench b;
    void *dev;
    open_bench(&b, (struct atsi_sim_params){.delay_seed = 4, .delay_max_us = 1000});
    void *space = device_memory(&b, BYTES);
    float *row = pinned(&b, BYTES, &dev);
    fill(row, 1);
    for (int i = 0; i < 4; i++) check_ok(b.ops->copy_to_device(b.transfer, space, row, BYTES, &b.err), b.err);
    check_ok(b.ops->event_record(event(&b), b.transfer, &b.err), b.err);
    assert_int_equal(atsi_sim_n_alive(b.device), 2 + 3 + 1); // two streams; the round, the space, the row; an event
    b.ops->close(b.device);
    op_case_free(&b.program);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_order_streams_and_host),
        cmocka_unit_test(a_missing_rule_is_noticed),
        cmocka_unit_test(waits_mean_their_record),
        cmocka_unit_test(unpinned_memory_is_synchronous),
        cmocka_unit_test(free_waits_for_streams),
        cmocka_unit_test(memory_is_limited),
        cmocka_unit_test(ranges_are_backed_by_chunks),
        cmocka_unit_test(a_range_keeps_its_beginning),
        cmocka_unit_test(refusals_of_the_host_side),
        cmocka_unit_test(registered_memory),
        cmocka_unit_test(the_host_cannot_touch_device_memory),
        cmocka_unit_test(misuse_is_a_sticky_error),
        cmocka_unit_test(failed_devices_let_go),
        cmocka_unit_test(copies_take_modelled_time),
        cmocka_unit_test(close_frees_what_is_left),
    };
    return cmocka_run_group_tests_name("simulated device", tests, NULL, NULL);
}
