// Every operation and every weight type on the card against the CPU kernels, and the device interface itself. Runs on a machine with
// a card only: tests/gpu/run.sh.
//   test_cuda [small] [PATTERN...]     small: for compute-sanitizer (cuda_suite.h); only tests whose names match one of the patterns,
//                                      so that '[a-m]*' and '[!a-m]*' are a run cut in two
#include <fcntl.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/cuda/cuda_device.h"
#include "tests/gpu/cuda_suite.h"
#include "tests/support/check.h"
#include "tests/support/division_case.h"
#include "tests/support/test_temp.h"

// ---- the interface ---------------------------------------------------------------------------------------------------------

static void refused_memory_is_not_sticky(void **state) {
    struct atsi_device *d = ((struct suite *)*state)->device;
    struct atsi_error err = {.status = ATSI_OK};
    void *dev = NULL;
    assert_int_equal(d->ops->alloc(d, (uint64_t)1 << 50, &dev, &err), ATSI_FAILED);
    check_message(err, "refused");
    check_ok(d->ops->alloc(d, 4096, &dev, &err), err);
    assert_int_equal((uintptr_t)dev % 256, 0);
    d->ops->free(d, dev);
}

// What is behind a range comes from the card and goes back to it, chunk by chunk; the beginning stays as it is and where it is.
static void ranges_give_memory_back(void **state) {
    enum {
        SIZE = 200 << 20,
        KEPT = 70 << 20,
        WORDS = 4
    };
    const struct suite *s = *state;
    const struct atsi_device_ops *ops = s->device->ops;
    struct atsi_error err = {.status = ATSI_OK};
    struct atsi_range *r;
    struct atsi_stream *stream;
    uint64_t at_first, full, less;
    uint32_t in[WORDS] = {1, 2, 3, 4}, out[WORDS] = {0};
    check_ok(ops->stream_create(s->device, &stream, &err), err);
    check_ok(ops->free_bytes(s->device, &at_first, &err), err);
    check_ok(ops->range_create(s->device, SIZE, &r, &err), err);
    check_ok(ops->range_back(s->device, r, SIZE, &err), err);
    assert_true(r->backed_bytes >= SIZE);
    check_ok(ops->free_bytes(s->device, &full, &err), err);
    char *last = (char *)r->dev + SIZE - sizeof in, *kept = (char *)r->dev + KEPT - sizeof in;
    check_ok(ops->copy_to_device(stream, last, in, sizeof in, &err), err);
    check_ok(ops->copy_to_device(stream, kept, in, sizeof in, &err), err);
    check_ok(ops->stream_sync(stream, &err), err);
    if (r->chunk_bytes) { // another program may use the card too, so the figures are no more than likely
        assert_in_range(at_first - full, SIZE / 2, 2 * (uint64_t)SIZE);
        check_ok(ops->range_back(s->device, r, KEPT, &err), err);
        check_ok(ops->free_bytes(s->device, &less, &err), err);
        assert_in_range(r->backed_bytes, KEPT, KEPT + r->chunk_bytes - 1);
        assert_in_range(less - full, (SIZE - KEPT) / 2, SIZE);
        check_ok(ops->range_back(s->device, r, SIZE, &err), err);
        check_ok(ops->copy_to_device(stream, last, in, sizeof in, &err), err);
    }
    assert_int_equal(ops->range_back(s->device, r, r->size_bytes + 1, &err), ATSI_FAILED); // not sticky
    check_ok(ops->copy_to_host(stream, out, kept, sizeof out, &err), err);
    check_ok(ops->stream_sync(stream, &err), err);
    assert_memory_equal(in, out, sizeof in);
    ops->range_destroy(s->device, r);
    ops->stream_destroy(stream);
}

// A read-only shared mapping of a file without write permission becomes pinned memory that a copy reads.
static void mapped_file_is_registered(void **state) {
    enum {
        BYTES = 1 << 20
    };
    struct atsi_device *d = ((struct suite *)*state)->device;
    struct atsi_error err = {.status = ATSI_OK};
    struct atsi_device_info info;
    check_ok(d->ops->info(d, &info, &err), err);
    printf("# %s: %.1f GiB, %.1f free, process %.0f MiB, %d copy engines, registers files: %s\n", info.name,
           info.total_bytes / 0x1p30, info.free_bytes / 0x1p30, info.used_by_process_bytes / 0x1p20,
           info.n_copy_engines, info.can_register_host ? "yes" : "no");
    if (!info.can_register_host) skip();
    char path[TEMP_ROOT_CAP];
    temp_file(path);
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    unlink(path);
    uint32_t *written = malloc(BYTES), *back = calloc(1, BYTES);
    for (uint32_t i = 0; i < BYTES / 4; i++) written[i] = i * 2654435761u;
    assert_int_equal(write(fd, written, BYTES), BYTES);
    void *map = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(map, MAP_FAILED);
    const void *registered = NULL;
    struct atsi_stream *s = NULL;
    void *dev = NULL;
    check_ok(d->ops->host_register(d, map, BYTES, &registered, &err), err);
    check_ok(d->ops->stream_create(d, &s, &err), err);
    check_ok(d->ops->alloc(d, BYTES, &dev, &err), err);
    check_ok(d->ops->copy_to_device(s, dev, map, BYTES, &err), err);
    check_ok(d->ops->copy_to_host(s, back, dev, BYTES, &err), err);
    check_ok(d->ops->stream_sync(s, &err), err);
    assert_memory_equal(back, written, BYTES);
    d->ops->host_unregister(d, map);
    d->ops->free(d, dev);
    d->ops->stream_destroy(s);
    munmap(map, BYTES);
    close(fd);
    free(written);
    free(back);
}

static void rows_move_through_mapped_memory(void **state) {
    enum {
        WIDTH = 37,
        ROWS = 11,
        STRIDE = 50
    };
    struct atsi_device *d = ((struct suite *)*state)->device;
    struct atsi_error err = {.status = ATSI_OK};
    struct atsi_stream *s = NULL;
    struct atsi_event *e = NULL;
    void *host = NULL, *mapped = NULL, *dev = NULL;
    check_ok(d->ops->stream_create(d, &s, &err), err);
    check_ok(d->ops->event_create(d, false, &e, &err), err);
    check_ok(d->ops->event_sync(e, &err), err); // never recorded: passed
    check_ok(d->ops->host_alloc(d, 2 * ROWS * STRIDE * 4, &host, &mapped, &err), err);
    check_ok(d->ops->alloc(d, ROWS * STRIDE * 4, &dev, &err), err);
    float *from = host, *to = from + ROWS * STRIDE;
    for (int i = 0; i < ROWS * STRIDE; i++) from[i] = (float)i, to[i] = -1;
    check_ok(d->ops->copy_rows(s, dev, WIDTH, mapped, STRIDE, WIDTH, ROWS, &err), err);
    check_ok(d->ops->copy_rows(s, (float *)mapped + ROWS * STRIDE, STRIDE, dev, WIDTH, WIDTH, ROWS, &err), err);
    check_ok(d->ops->event_record(e, s, &err), err);
    check_ok(d->ops->event_sync(e, &err), err);
    for (int i = 0; i < ROWS * STRIDE; i++) assert_true(to[i] == (i % STRIDE < WIDTH ? (float)i : -1));
    d->ops->host_free(d, host);
    d->ops->free(d, dev);
    d->ops->event_destroy(e);
    d->ops->stream_destroy(s);
}

static void slots_move_through_mapped_memory(void **state) {
    division_case_check_copies(((struct suite *)*state)->device);
}

// A weight without a kernel (Q4_0 in plain rows) is refused by name and leaves the device usable.
static void unsupported_type_is_named(void **state) {
    struct suite *s = *state;
    struct atsi_error err = {.status = ATSI_OK};
    struct atsi_stream *stream = NULL;
    struct atsi_tensor weight = {
        .name = "blk.0.w", .dtype = ATSI_Q4_0, .layout = ATSI_LAYOUT_PLAIN, .ne = {256, 16, 1, 1}};
    struct atsi_op op = {.kind = ATSI_OP_MATMUL};
    struct atsi_op_call call = {.op = &op, .in = {{&op, 256, 256}}, .out = {{&op, 16, 16}}, .tensor = {{&op, &weight}}};
    struct atsi_round round = {.n_tokens = 1};
    check_ok(s->device->ops->stream_create(s->device, &stream, &err), err);
    assert_int_equal(s->device->ops->launch(stream, &call, &round, &err), ATSI_FAILED);
    check_message(err, "Q4_0", "blk.0.w");
    check_ok(s->device->ops->stream_sync(stream, &err), err);
    s->device->ops->stream_destroy(stream);
}

static bool is_wanted(const char *name, char **patterns) {
    if (*patterns == NULL) return true;
    for (; *patterns != NULL; patterns++)
        if (fnmatch(*patterns, name, 0) == 0) return true;
    return false;
}

int main(int argc, char **argv) {
    struct suite suite = {.small = argc > 1 && strcmp(argv[1], "small") == 0};
    char **patterns = argv + 1 + suite.small;
    struct atsi_error err = {.status = ATSI_OK};
    if (atsi_cuda_open(&suite.device, &err) != ATSI_OK) {
        fprintf(stderr, "test_cuda: %s\n", err.text);
        return 1;
    }
    struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(refused_memory_is_not_sticky, &suite),
        cmocka_unit_test_prestate(ranges_give_memory_back, &suite),
        cmocka_unit_test_prestate(mapped_file_is_registered, &suite),
        cmocka_unit_test_prestate(rows_move_through_mapped_memory, &suite),
        cmocka_unit_test_prestate(slots_move_through_mapped_memory, &suite),
        cmocka_unit_test_prestate(unsupported_type_is_named, &suite),
        cmocka_unit_test_prestate(norms, &suite),
        cmocka_unit_test_prestate(rows_ops, &suite),
        cmocka_unit_test_prestate(expert_sums, &suite),
        cmocka_unit_test_prestate(ropes, &suite),
        cmocka_unit_test_prestate(routers, &suite),
        cmocka_unit_test_prestate(embeddings, &suite),
        cmocka_unit_test_prestate(matrices, &suite),
        cmocka_unit_test_prestate(not_a_number_survives, &suite),
        cmocka_unit_test_prestate(chains, &suite),
        cmocka_unit_test_prestate(experts, &suite),
        cmocka_unit_test_prestate(divided_experts, &suite),
        cmocka_unit_test_prestate(convolutions, &suite),
        cmocka_unit_test_prestate(delta_rules, &suite),
        cmocka_unit_test_prestate(attention, &suite),
        cmocka_unit_test_prestate(heads, &suite),
        cmocka_unit_test_prestate(scores_and_routers, &suite),
        cmocka_unit_test_prestate(sums_and_norms, &suite),
        cmocka_unit_test_prestate(heads_in_order, &suite),
        cmocka_unit_test_prestate(layers_of_experts, &suite),
        cmocka_unit_test_prestate(activations_of_experts, &suite),
        cmocka_unit_test_prestate(copies_and_marks, &suite),
    };
    size_t n_wanted = 0;
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (is_wanted(tests[i].name, patterns)) tests[n_wanted++] = tests[i];
    if (n_wanted == 0) fprintf(stderr, "test_cuda: no test has such a name\n");
    int n_failed = n_wanted > 0 ? _cmocka_run_group_tests("cuda", tests, n_wanted, NULL, NULL) : 1;
    suite.device->ops->close(suite.device);
    return n_failed;
}
