// Tensors of a plan file on their way to a simulated card, by several threads at once: larger than all buffers together, stored and
// compressed in several frames, with and without pinned memory; failures at any moment.
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "kernels/sim/sim_device.h"
#include "runtime/weights_pieces.h"
#include "tests/support/check.h"
#include "tests/support/plan_builder.h"
#include "tests/support/test_temp.h"

enum {
    N_TENSORS = 4,
    N_THREADS = 4
};

struct bench {
    char path[TEMP_ROOT_CAP];
    struct atsi_plan_file *file;
    uint8_t *want[N_TENSORS];
    struct atsi_device *device;
    struct atsi_pinned pinned;
    struct atsi_upload upload;
    struct atsi_pool *pool;
    void *dev[N_TENSORS];
    struct weights_pieces pieces;
    uint64_t told_bytes, most_bytes; // more than most_bytes are not wanted
    struct atsi_error err;
};

// "planes" has three frames, "bits" fills more buffers than four threads have.
static void write_file(struct bench *b) {
    const struct atsi_tensor tensors[N_TENSORS] = {
        pb_tensor("planes", ATSI_BF16, 4096, 1283, 1), pb_tensor("bits", ATSI_Q8_0, 4096, 2503, 1),
        pb_tensor("small", ATSI_F32, 7, 1, 1), pb_tensor("odd", ATSI_F16, 1111, 999, 1)};
    struct atsi_plan_writer_options options = {.section_alignment = 4096};
    struct atsi_plan_writer *w;
    temp_file(b->path);
    check_ok(atsi_plan_writer_create(&w, b->path, &options, &b->err), b->err);
    for (uint32_t i = 0; i < N_TENSORS; i++) {
        b->want[i] = malloc(tensors[i].size_bytes);
        pb_fill(&tensors[i], i, b->want[i]);
        check_ok(atsi_plan_writer_add(w, &tensors[i], ATSI_PLAN_RESIDENT, i == 0, b->want[i], &b->err), b->err);
    }
    check_ok(atsi_plan_writer_finish(w, atsi_str_of(pb_manifest), atsi_str_of(pb_tokenizer), &b->err), b->err);
    atsi_plan_writer_free(w);
}

static const struct atsi_plan_blob *blob(const struct bench *b, uint32_t i) { return atsi_plan_file_blob(b->file, i); }

static void open_bench(struct bench *b, struct atsi_sim_params sim) {
    memset(b, 0, sizeof *b);
    b->most_bytes = UINT64_MAX;
    write_file(b);
    sim.memory_bytes = 64 << 20;
    check_ok(atsi_plan_file_open(&b->file, b->path, &b->err), b->err);
    check_ok(atsi_sim_open(&sim, &b->device, &b->err), b->err);
    check_ok(atsi_pool_create_unbound(N_THREADS, &b->pool, &b->err), b->err);
    check_ok(atsi_upload_open(&b->upload, b->device, &b->pinned, b->file, N_THREADS, &b->err), b->err);
    b->pieces.file = b->file;
    for (uint32_t i = 0; i < N_TENSORS; i++)
        check_ok(b->device->ops->alloc(b->device, blob(b, i)->tensor.size_bytes, &b->dev[i], &b->err), b->err);
}

static void close_bench(struct bench *b) {
    weights_pieces_free(&b->pieces);
    atsi_upload_close(&b->upload);
    atsi_pinned_free(&b->pinned);
    for (uint32_t i = 0; i < N_TENSORS; i++) {
        b->device->ops->free(b->device, b->dev[i]);
        free(b->want[i]);
    }
    assert_int_equal(atsi_sim_n_alive(b->device), 0);
    b->device->ops->close(b->device);
    atsi_pool_free(b->pool);
    atsi_plan_file_close(b->file);
    unlink(b->path);
}

static enum atsi_status hear(void *context, uint64_t bytes, struct atsi_error *err) {
    struct bench *b = context;
    if (b->told_bytes + bytes > b->most_bytes) return atsi_fail(err, ATSI_INTERRUPTED, "enough");
    b->told_bytes += bytes;
    return ATSI_OK;
}

static enum atsi_status bring(struct bench *b) {
    struct weights_pieces_run run = {.pool = b->pool, .upload = &b->upload, .advance = hear, .context = b};
    return weights_pieces_bring(&b->pieces, &run, &b->err);
}

static enum atsi_status bring_all(struct bench *b) {
    for (uint32_t i = 0; i < N_TENSORS; i++)
        check_ok(weights_pieces_add(&b->pieces, blob(b, i), b->dev[i], &b->err), b->err);
    return bring(b);
}

static void check_arrived(struct bench *b, uint32_t i, uint64_t from, uint64_t bytes) {
    uint8_t *got = malloc(bytes);
    check_ok(b->device->ops->copy_to_host(b->upload.stream, got, (char *)b->dev[i] + from, bytes, &b->err), b->err);
    assert_memory_equal(got, b->want[i] + from, bytes);
    free(got);
}

static uint64_t all_bytes(const struct bench *b) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < N_TENSORS; i++) bytes += blob(b, i)->tensor.size_bytes;
    return bytes;
}

static void all_arrives(void **state) {
    (void)state;
    static const struct atsi_sim_params cards[] = {{0}, {.delay_seed = 7, .delay_max_us = 500}, {.pinned_bytes = 1}};
    for (size_t i = 0; i < sizeof cards / sizeof *cards; i++) {
        struct bench b;
        open_bench(&b, cards[i]);
        check_ok(bring_all(&b), b.err);
        assert_int_equal(b.told_bytes, all_bytes(&b));
        struct atsi_upload_times times = atsi_upload_times(&b.upload);
        assert_int_equal(times.bytes, cards[i].pinned_bytes ? 0 : all_bytes(&b));
        check_ok(atsi_upload_rest(&b.upload, &b.err), b.err);
        assert_null(b.upload.ring);
        for (uint32_t t = 0; t < N_TENSORS; t++) check_arrived(&b, t, 0, blob(&b, t)->tensor.size_bytes);
        close_bench(&b);
    }
}

// What lies in pinned memory travels by itself, whatever lies around it through buffers; after a rest there is one lane.
static void pinned_bytes_need_no_buffer(void **state) {
    (void)state;
    struct bench b;
    const uint64_t page = 4096;
    open_bench(&b, (struct atsi_sim_params){0});
    const uint8_t *stored = atsi_plan_file_stored(b.file, blob(&b, 1)),
                  *first = stored + (page - (uintptr_t)stored % page);
    uint64_t bytes = blob(&b, 1)->tensor.size_bytes;
    b.pinned.device = b.device;
    assert_true(atsi_pinned_register(&b.pinned, first, 3 << 20));
    check_ok(atsi_upload_rest(&b.upload, &b.err), b.err);
    check_ok(atsi_upload_add(&b.upload, 0, b.dev[1], stored, bytes, &b.err), b.err);
    check_ok(atsi_upload_finish(&b.upload, &b.err), b.err);
    assert_int_equal(atsi_upload_times(&b.upload).bytes, bytes - (3 << 20));
    check_arrived(&b, 1, 0, bytes);
    close_bench(&b);
}

// Pages are mapped, nothing is copied; what is compressed has no pages to map.
static void mapping_copies_nothing(void **state) {
    (void)state;
    struct bench b;
    open_bench(&b, (struct atsi_sim_params){0});
    for (uint32_t i = 0; i < N_TENSORS; i++) check_ok(weights_pieces_add(&b.pieces, blob(&b, i), NULL, &b.err), b.err);
    check_ok(bring(&b), b.err);
    assert_int_equal(b.told_bytes, all_bytes(&b) - blob(&b, 0)->tensor.size_bytes);
    assert_int_equal(atsi_upload_times(&b.upload).bytes, 0);
    assert_int_equal(b.pieces.n_pieces, 0);
    close_bench(&b);
}

static void it_can_end_at_any_moment(void **state) {
    (void)state;
    struct bench b;
    open_bench(&b, (struct atsi_sim_params){0});
    for (uint64_t most = 0; most < all_bytes(&b); most += 8 << 20) {
        b.told_bytes = 0;
        b.most_bytes = most;
        assert_int_equal(bring_all(&b), ATSI_INTERRUPTED);
        assert_string_equal(b.err.text, "enough");
        assert_true(b.told_bytes <= most);
    }
    close_bench(&b);
}

// Damaged between the look at the frames' headers and their unpacking: blocks of a kind that does not exist.
static void a_damaged_frame_is_named(void **state) {
    (void)state;
    struct bench b;
    open_bench(&b, (struct atsi_sim_params){0});
    check_ok(weights_pieces_add(&b.pieces, blob(&b, 0), b.dev[0], &b.err), b.err);
    FILE *f = fopen(b.path, "r+b");
    assert_int_equal(fseek(f, (long)(blob(&b, 0)->offset + blob(&b, 0)->stored_bytes / 2), SEEK_SET), 0);
    for (int i = 0; i < 300 << 10; i++) fputc(0xff, f);
    fclose(f);
    check_refused(bring(&b), b.err, b.path, "planes", "zstd frame");
    close_bench(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_arrives),
        cmocka_unit_test(pinned_bytes_need_no_buffer),
        cmocka_unit_test(mapping_copies_nothing),
        cmocka_unit_test(it_can_end_at_any_moment),
        cmocka_unit_test(a_damaged_frame_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
