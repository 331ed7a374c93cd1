// Plan files written and read back: contents, encodings, alignment, big tensors in pieces, verification.
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/check.h"
#include "tests/support/plan_builder.h"
#include "tests/support/test_temp.h"

static char path[TEMP_PATH_CAP];

static int make_path(void **state) {
    (void)state;
    char folder[TEMP_ROOT_CAP];
    temp_folder(folder);
    snprintf(path, sizeof path, "%s/x.atsp", folder);
    return 0;
}

static int remove_path(void **state) {
    (void)state;
    unlink(path);
    *strrchr(path, '/') = 0;
    return rmdir(path); // fails when anything was left behind
}

// Frame by frame, the last one first: none needs another, and together they are the tensor.
static void check_frames(const struct atsi_plan_file *file, const struct atsi_plan_blob *b, const uint8_t *want) {
    struct atsi_error err;
    struct atsi_plan_frame *frames;
    struct atsi_plan_unpacker *unpacker;
    size_t n_frames;
    uint64_t bytes = 0;
    uint8_t *got = malloc(4 << 20);
    check_ok(atsi_plan_file_frames(file, b, &frames, &n_frames, &err), err);
    check_ok(atsi_plan_unpacker_new(&unpacker, &err), err);
    for (size_t i = n_frames; i-- > 0;) {
        assert_in_range(frames[i].raw_bytes, 1, 4 << 20);
        check_ok(atsi_plan_file_unpack(file, b, &frames[i], unpacker, got, &err), err);
        assert_memory_equal(got, want + frames[i].raw_offset, frames[i].raw_bytes);
        bytes += frames[i].raw_bytes;
    }
    assert_int_equal(bytes, b->tensor.size_bytes);
    atsi_plan_unpacker_free(unpacker);
    free(frames);
    free(got);
}

static void check_blob(const struct atsi_plan_file *file, uint32_t index, uint32_t seed) {
    struct atsi_error err;
    const struct atsi_plan_blob *b = atsi_plan_file_blob(file, index);
    uint8_t *want = malloc(b->tensor.size_bytes), *got = malloc(b->tensor.size_bytes);
    pb_fill(&b->tensor, seed, want);
    check_ok(atsi_plan_file_read(file, b, 1, got, &err), err);
    assert_memory_equal(got, want, b->tensor.size_bytes);
    memset(got, 0, b->tensor.size_bytes);
    check_ok(atsi_plan_file_read(file, b, 3, got, &err), err);
    assert_memory_equal(got, want, b->tensor.size_bytes);
    if (b->encoding == ATSI_PLAN_RAW)
        assert_memory_equal(atsi_plan_file_stored(file, b), want, b->tensor.size_bytes);
    else
        check_frames(file, b, want);
    assert_int_equal(b->offset % 256, 0);
    check_ok(atsi_plan_file_verify_blob(file, b, &err), err);
    free(want);
    free(got);
}

static void test_round_trip(void **state) {
    (void)state;
    struct atsi_plan_file *file;
    struct atsi_error err;
    check_ok(pb_write(path, false, &err), err);
    check_ok(atsi_plan_file_open(&file, path, &err), err);
    assert_string_equal(atsi_plan_file_path(file), path);
    assert_true(atsi_plan_file_has_weights(file) && !atsi_plan_file_is_shipped(file));
    assert_true(atsi_str_is(atsi_plan_file_manifest(file), pb_manifest));
    assert_string_equal(atsi_plan_file_manifest(file).data, pb_manifest);
    assert_true(atsi_str_is(atsi_plan_file_tokenizer(file), pb_tokenizer));
    assert_int_equal(atsi_plan_file_n_blobs(file), 5);
    for (uint32_t i = 0; i < 5; i++) check_blob(file, i, i);

    const struct atsi_plan_blob *b = atsi_plan_file_find(file, "blk.0.ffn_up_exps.weight");
    assert_ptr_equal(b, atsi_plan_file_blob(file, 2));
    assert_int_equal(b->tensor.dtype, ATSI_Q4_0);
    assert_true(b->tensor.ne[0] == 64 && b->tensor.ne[1] == 4 && b->tensor.ne[2] == 3 && b->tensor.ne[3] == 1);
    assert_int_equal(b->section, ATSI_PLAN_PINNED);
    assert_int_equal(b->encoding, ATSI_PLAN_RAW); // random bits: asked to compress, but it does not pay
    assert_int_equal(atsi_plan_file_blob(file, 0)->encoding, ATSI_PLAN_ZSTD_PLANES);
    assert_true(atsi_plan_file_blob(file, 0)->stored_bytes * 100 <
                atsi_plan_file_blob(file, 0)->tensor.size_bytes * 97);
    assert_int_equal(atsi_plan_file_blob(file, 1)->encoding, ATSI_PLAN_RAW);
    assert_null(atsi_plan_file_find(file, "blk.0.ffn_up_exps"));
    char long_name[200];
    memset(long_name, 'a', sizeof long_name);
    long_name[199] = 0;
    assert_null(atsi_plan_file_find(file, long_name));

    uint64_t size;
    const uint8_t *resident = atsi_plan_file_section(file, ATSI_PLAN_RESIDENT, &size);
    assert_ptr_equal(resident, atsi_plan_file_stored(file, atsi_plan_file_blob(file, 0)));
    const uint8_t *pinned = atsi_plan_file_section(file, ATSI_PLAN_PINNED, &size);
    assert_int_equal((uintptr_t)pinned % 4096, 0);
    assert_ptr_equal(pinned, atsi_plan_file_stored(file, b));
    assert_ptr_equal(pinned + size, atsi_plan_file_stored(file, atsi_plan_file_blob(file, 4)) + 28);
    check_ok(atsi_plan_file_verify(file, 3, NULL, &err), err);
    atsi_plan_file_close(file);
    atsi_plan_file_close(NULL);
}

static void test_without_weights(void **state) {
    (void)state;
    struct atsi_plan_file *file;
    struct atsi_error err;
    uint8_t byte;
    uint64_t size;
    check_ok(pb_write(path, true, &err), err);
    check_ok(atsi_plan_file_open(&file, path, &err), err);
    assert_false(atsi_plan_file_has_weights(file));
    assert_int_equal(atsi_plan_file_n_blobs(file), 5);
    assert_true(atsi_plan_file_size_bytes(file) < 8192);
    const struct atsi_plan_blob *b = atsi_plan_file_find(file, "output_norm.weight");
    assert_int_equal(b->tensor.size_bytes, 28);
    assert_null(atsi_plan_file_stored(file, b));
    assert_null(atsi_plan_file_section(file, ATSI_PLAN_PINNED, &size));
    assert_int_equal(atsi_plan_file_read(file, b, 1, &byte, &err), ATSI_FAILED);
    check_message(err, path, "output_norm.weight", "--attach");
    check_ok(atsi_plan_file_verify(file, 1, NULL, &err), err);
    atsi_plan_file_close(file);
}

// A plan that only tokenises has no tensors at all.
static void test_no_tensors(void **state) {
    (void)state;
    struct atsi_plan_file *file;
    struct atsi_plan_writer *w;
    struct atsi_error err;
    check_ok(atsi_plan_writer_create(&w, path, NULL, &err), err);
    check_ok(atsi_plan_writer_finish(w, atsi_str_of("{}"), (struct atsi_str){0}, &err), err);
    atsi_plan_writer_free(w);
    check_ok(atsi_plan_file_open(&file, path, &err), err);
    assert_int_equal(atsi_plan_file_n_blobs(file), 0);
    assert_int_equal(atsi_plan_file_tokenizer(file).size, 0);
    assert_null(atsi_plan_file_find(file, "x"));
    check_ok(atsi_plan_file_verify(file, 4, NULL, &err), err);
    atsi_plan_file_close(file);
}

struct heard {
    uint64_t done, total;
    int n_calls;
};

static void hear(void *user, uint64_t done, uint64_t total) {
    struct heard *h = user;
    assert_true(done > h->done && done <= total);
    *h = (struct heard){done, total, h->n_calls + 1};
}

// Several frames, appended in pieces that fit nothing; the default alignment; the gap before it holds the small parts.
static void test_big_tensors(void **state) {
    (void)state;
    const struct atsi_tensor tensors[] = {pb_tensor("planes", ATSI_BF16, 4096, 1283, 1),
                                          pb_tensor("bits", ATSI_Q8_0, 4096, 2000, 1),
                                          pb_tensor("pinned", ATSI_F16, 100, 30000, 1)};
    struct atsi_plan_writer *w;
    struct atsi_error err;
    check_ok(atsi_plan_writer_create(&w, path, &(struct atsi_plan_writer_options){.shipped = true}, &err), err);
    for (uint32_t i = 0; i < 3; i++) {
        uint8_t *data = malloc(tensors[i].size_bytes);
        pb_fill(&tensors[i], i, data);
        check_ok(atsi_plan_writer_begin(w, &tensors[i], i < 2 ? ATSI_PLAN_RESIDENT : ATSI_PLAN_PINNED, i != 2, &err),
                 err);
        uint64_t piece = 1;
        for (uint64_t at = 0; at < tensors[i].size_bytes; at += piece, piece = piece * 3 + 1) {
            if (piece > tensors[i].size_bytes - at) piece = tensors[i].size_bytes - at;
            check_ok(atsi_plan_writer_append(w, data + at, piece, &err), err);
        }
        check_ok(atsi_plan_writer_append(w, NULL, 0, &err), err);
        check_ok(atsi_plan_writer_end(w, &err), err);
        assert_int_equal(atsi_plan_writer_n_blobs(w), i + 1);
        free(data);
    }
    assert_true(atsi_plan_writer_blob(w, 0)->stored_bytes < tensors[0].size_bytes * 9 / 10);
    check_ok(atsi_plan_writer_finish(w, atsi_str_of(pb_manifest), atsi_str_of(pb_tokenizer), &err), err);
    atsi_plan_writer_free(w);

    struct atsi_plan_file *file;
    check_ok(atsi_plan_file_open(&file, path, &err), err);
    assert_true(atsi_plan_file_is_shipped(file));
    for (uint32_t i = 0; i < 3; i++) check_blob(file, i, i);
    assert_int_equal(atsi_plan_file_blob(file, 0)->encoding, ATSI_PLAN_ZSTD_PLANES);
    assert_int_equal(atsi_plan_file_blob(file, 0)->offset, 2 << 20);
    assert_int_equal(atsi_plan_file_blob(file, 1)->offset % 4096, 0);
    assert_int_equal(atsi_plan_file_blob(file, 2)->offset % (2 << 20), 0);
    for (uint32_t n_threads = 0; n_threads < 5; n_threads++) {
        struct heard heard = {0};
        struct atsi_plan_progress progress = {hear, &heard};
        check_ok(atsi_plan_file_verify(file, n_threads, &progress, &err), err);
        assert_true(heard.n_calls == 3 && heard.done == heard.total);
    }
    const struct atsi_plan_blob *last = atsi_plan_file_blob(file, 2);
    assert_true(atsi_plan_file_size_bytes(file) - last->offset - last->stored_bytes <
                4096); // nothing behind the tensors
    atsi_plan_file_close(file);
}

// A damaged tensor opens (its bytes are not read) but does not verify, whichever thread meets it.
static void test_damage(void **state) {
    (void)state;
    struct bytes plan = pb_plan(false);
    struct atsi_plan_file *file;
    struct atsi_error err;
    for (uint32_t i = 0; i < 5; i++) {
        size_t offset = (size_t)pb_get(&plan, pb_record_offset(&plan, i) + 136, 8);
        plan.data[offset] ^= 0x10;
        check_ok(atsi_plan_file_open_memory(&file, plan.data, plan.size, "mem", &err), err);
        check_refused(atsi_plan_file_verify(file, 2, NULL, &err), err, "mem", atsi_plan_file_blob(file, i)->tensor.name,
                      "expected checksum", "found");
        atsi_plan_file_close(file);
        plan.data[offset] ^= 0x10;
    }
    bytes_free(&plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_round_trip, make_path, remove_path),
        cmocka_unit_test_setup_teardown(test_without_weights, make_path, remove_path),
        cmocka_unit_test_setup_teardown(test_no_tensors, make_path, remove_path),
        cmocka_unit_test_setup_teardown(test_big_tensors, make_path, remove_path),
        cmocka_unit_test(test_damage),
    };
    return cmocka_run_group_tests_name("plan_file", tests, NULL, NULL);
}
