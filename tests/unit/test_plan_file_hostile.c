// Broken and hostile plan files: refused in one line, or harmless. Most cases repair the checksums after the change, so
// that the checks behind them are met too.
#include <stdio.h>
#include <stdlib.h>

#include "tests/support/check.h"
#include "tests/support/plan_builder.h"

// Opens and, if that succeeds, reads all that a user could; what is read may be anything.
static enum atsi_status open_and_walk(const struct bytes *plan, struct atsi_error *err) {
    struct atsi_plan_file *file;
    volatile uint64_t sum = 0;
    enum atsi_status status = atsi_plan_file_open_memory(&file, plan->data, plan->size, "x", err);
    if (status != ATSI_OK) return status;
    sum += strlen(atsi_plan_file_manifest(file).data);
    struct atsi_str tokenizer = atsi_plan_file_tokenizer(file);
    for (uint64_t i = 0; i < tokenizer.size; i++) sum += (uint8_t)tokenizer.data[i];
    for (uint32_t i = 0; i < atsi_plan_file_n_blobs(file); i++) {
        const struct atsi_plan_blob *b = atsi_plan_file_blob(file, i);
        assert_ptr_equal(atsi_plan_file_find(file, b->tensor.name), b);
        if (b->tensor.size_bytes < (64 << 20)) {
            uint8_t *data = malloc(b->tensor.size_bytes);
            if (atsi_plan_file_read(file, b, 1, data, NULL) == ATSI_OK) sum += data[b->tensor.size_bytes - 1];
            free(data);
        }
        atsi_plan_file_verify_blob(file, b, NULL);
    }
    atsi_plan_file_verify(file, 1, NULL, NULL);
    atsi_plan_file_close(file);
    return ATSI_OK;
}

// One number changed in a sound plan, checksums repaired.
static struct bytes patched(const struct bytes *plan, size_t offset, uint64_t value, unsigned size) {
    struct bytes copy = bytes_exact(plan, plan->size);
    bytes_set_le(&copy, offset, value, size);
    pb_fix_checksums(&copy);
    return copy;
}

#define check_patch_refused(plan, offset, value, n_bytes, ...)                                             \
    do {                                                                                                   \
        struct atsi_error err_;                                                                            \
        struct bytes bad_ = patched(plan, offset, value, n_bytes);                                         \
        struct atsi_plan_file *file_;                                                                      \
        enum atsi_status status_ = atsi_plan_file_open_memory(&file_, bad_.data, bad_.size, "bad", &err_); \
        check_refused(status_, err_, "bad: ", __VA_ARGS__);                                                \
        assert_null(file_);                                                                                \
        bytes_free(&bad_);                                                                                 \
    } while (0)

static void test_truncated_everywhere(void **state) {
    (void)state;
    for (int no_weights = 0; no_weights < 2; no_weights++) {
        struct bytes plan = pb_plan(no_weights);
        for (size_t size = 0; size < plan.size; size++) {
            struct bytes cut = bytes_exact(&plan, size);
            struct atsi_error err;
            if (open_and_walk(&cut, &err) != ATSI_BAD_INPUT) fail_msg("cut at %zu was accepted", size);
            check_message(err, "x: truncated");
            bytes_free(&cut);
        }
        struct bytes longer = {0};
        struct atsi_error err;
        bytes_append(&longer, plan.data, plan.size);
        bytes_fill(&longer, 0, 1);
        check_refused(open_and_walk(&longer, &err), err, "bytes follow the plan");
        bytes_free(&longer);
        bytes_free(&plan);
    }
}

// Without repair every changed byte of header, manifest, index and tokenizer is noticed at opening, and every one of the tensors by
// verification; padding may change.
static void test_flipped_bytes(void **state) {
    (void)state;
    struct bytes plan = pb_plan(false), work = bytes_exact(&plan, plan.size);
    struct atsi_error err;
    for (size_t at = 0; at < plan.size; at++) {
        struct atsi_plan_file *file;
        work.data[at] ^= (uint8_t)(1 << at % 8);
        bool is_open = atsi_plan_file_open_memory(&file, work.data, work.size, "x", &err) == ATSI_OK;
        bool is_guarded = at < PB_HEADER_BYTES;
        for (int part = PB_MANIFEST; part <= PB_TOKENIZER; part++) {
            size_t start = pb_part_offset(&plan, (enum pb_part)part);
            is_guarded |= at >= start && at < start + pb_get(&plan, PB_AT_PARTS + (size_t)part * PB_PART_BYTES + 8, 8);
        }
        if (is_guarded && is_open) fail_msg("byte %zu changed unnoticed", at);
        for (uint32_t i = 0; i < 5 && is_open; i++) {
            const struct atsi_plan_blob *b = atsi_plan_file_blob(file, i);
            bool inside = at >= b->offset && at < b->offset + b->stored_bytes;
            if (inside) assert_int_equal(atsi_plan_file_verify_blob(file, b, &err), ATSI_BAD_INPUT);
        }
        if (is_open) atsi_plan_file_close(file);
        work.data[at] = plan.data[at];
    }
    bytes_free(&plan);
    bytes_free(&work);
}

// Every number of header and index, with hostile values, behind right checksums.
static void test_patched_fields(void **state) {
    (void)state;
    static const uint64_t values[] = {0,
                                      1,
                                      2,
                                      3,
                                      64,
                                      4095,
                                      4096,
                                      UINT64_C(1) << 31,
                                      UINT64_C(1) << 32,
                                      UINT64_C(1) << 62,
                                      UINT64_C(1) << 63,
                                      UINT64_MAX,
                                      UINT64_MAX - 63};
    for (int no_weights = 0; no_weights < 2; no_weights++) {
        struct bytes plan = pb_plan(no_weights);
        size_t index = pb_part_offset(&plan, PB_INDEX);
        for (size_t k = 0; k < 512 + 5 * PB_RECORD_BYTES; k += 4)
            for (size_t v = 0; v < sizeof values / sizeof *values; v++)
                for (unsigned size = 4; size <= 8; size += 4) {
                    struct atsi_error err;
                    struct bytes bad = patched(&plan, k < 512 ? k : index + k - 512, values[v], size);
                    open_and_walk(&bad, &err);
                    bytes_free(&bad);
                }
        bytes_free(&plan);
    }
}

static void test_header(void **state) {
    (void)state;
    struct bytes plan = pb_plan(false);
    struct atsi_error err;
    struct atsi_plan_file *file;
    check_refused(atsi_plan_file_open_memory(&file, "JUNK\3\0\0\0\0", 9, "x", &err), err, "no plan file", "JUNK\\x03");
    check_refused(atsi_plan_file_open_memory(&file, "GGUF\3\0\0\0\0", 9, "x", &err), err, "GGUF model", "atsi-plan");
    check_refused(atsi_plan_file_open_memory(&file, NULL, 0, "x", &err), err, "truncated at offset 0");
    check_patch_refused(&plan, PB_AT_VERSION, 2, 4, "version", "expected 1", "found 2");
    check_patch_refused(&plan, PB_AT_FLAGS, 4, 4, "flags", "found 4");
    check_patch_refused(&plan, PB_AT_FILE_BYTES, plan.size + 1, 8, "truncated", "expected");
    check_patch_refused(&plan, PB_AT_SECTION_ALIGNMENT, 0, 8, "alignment", "found 0");
    check_patch_refused(&plan, PB_AT_SECTION_ALIGNMENT, 4097, 8, "alignment", "4097");
    check_patch_refused(&plan, PB_AT_SECTION_ALIGNMENT, 2048, 8, "alignment", "2048");
    check_patch_refused(&plan, PB_AT_SECTION_ALIGNMENT, UINT64_C(1) << 32, 8, "alignment");
    check_patch_refused(&plan, PB_AT_N_BLOBS, 6, 4, "tensor index", "for 6");
    check_patch_refused(&plan, PB_AT_N_BLOBS, UINT32_MAX, 4, "tensor index", "4294967295");
    check_patch_refused(&plan, 40, 1, 4, "header"); // reserved bytes
    check_patch_refused(&plan, 4000, 1, 4, "header");
    bytes_free(&plan);
}

static void test_ranges(void **state) {
    (void)state;
    struct bytes plan = pb_plan(false);
    static const char *const names[] = {"manifest", "tensor index", "tokenizer", "resident", "pinned"};
    for (size_t part = 0; part < 5; part++) {
        size_t at = PB_AT_PARTS + part * PB_PART_BYTES;
        uint64_t offset = pb_get(&plan, at, 8);
        check_patch_refused(&plan, at, 0, 8, names[part]);
        check_patch_refused(&plan, at, UINT64_MAX - 63, 8, names[part], "expected a range");
        check_patch_refused(&plan, at, offset + 32, 8, names[part], "at a multiple");
        check_patch_refused(&plan, at + 8, UINT64_MAX, 8, names[part], "expected a range");
        check_patch_refused(&plan, at + 8, 0, 8, names[part]);
        if (part != PB_MANIFEST) check_patch_refused(&plan, at + 16, 1, 8, names[part], "raw bytes");
        size_t other = PB_AT_PARTS + (part + 1) % 3 * PB_PART_BYTES; // over another range
        if (part < 3) check_patch_refused(&plan, other, offset, 8, "overlap");
    }
    bytes_free(&plan);
}

static void test_manifest(void **state) {
    (void)state;
    struct bytes plan = pb_plan(false);
    size_t at = PB_AT_PARTS;
    uint64_t raw = pb_get(&plan, at + 16, 8), stored = pb_get(&plan, at + 8, 8);
    check_patch_refused(&plan, at + 16, raw + 1, 8, "manifest", "one zstd frame");
    check_patch_refused(&plan, at + 16, UINT64_C(1) << 40, 8, "manifest", "at most");
    check_patch_refused(&plan, at + 8, stored - 1, 8, "manifest", "one zstd frame");
    check_patch_refused(&plan, pb_part_offset(&plan, PB_MANIFEST), 0, 4, "manifest", "one zstd frame");
    check_patch_refused(&plan, pb_part_offset(&plan, PB_MANIFEST) + stored - 4, 0, 4,
                        "manifest"); // the frame's own checksum
    bytes_free(&plan);
}

static void test_records(void **state) {
    (void)state;
    struct bytes plan = pb_plan(false);
    size_t q = pb_record_offset(&plan, 0), up = pb_record_offset(&plan, 2), embd = pb_record_offset(&plan, 3);
    enum {
        DTYPE = 80,
        LAYOUT = 84,
        NE = 88,
        RAW = 120,
        SECTION = 128,
        ENCODING = 132,
        OFFSET = 136,
        STORED = 144
    };
    check_patch_refused(&plan, q, 0, 1, "record 0", "name");
    check_patch_refused(&plan, q + 79, 'x', 1, "record 0", "name");
    struct bytes twin = bytes_exact(&plan, plan.size);
    memcpy(twin.data + q, twin.data + up, 80);
    check_patch_refused(&twin, 0, pb_get(&twin, 0, 1), 1, "tensor \"blk.0.ffn_up_exps.weight\"", "twice");
    bytes_free(&twin);
    check_patch_refused(&plan, q + DTYPE, 4, 4, "blk.0.attn_q.weight", "unknown tensor type 4");
    check_patch_refused(&plan, q + DTYPE, UINT32_MAX, 4, "blk.0.attn_q.weight", "type -1");
    check_patch_refused(&plan, up + LAYOUT, 99, 4, "blk.0.ffn_up_exps.weight", "layout");
    check_patch_refused(&plan, up + LAYOUT, 1, 4, "blk.0.ffn_up_exps.weight", "size for its type");
    check_patch_refused(&plan, up + NE, 33, 8, "blk.0.ffn_up_exps.weight", "do not fit");
    check_patch_refused(&plan, up + NE + 8, UINT64_C(1) << 62, 8, "blk.0.ffn_up_exps.weight", "do not fit");
    check_patch_refused(&plan, up + NE + 8, 0, 8, "blk.0.ffn_up_exps.weight");
    check_patch_refused(&plan, up + RAW, 1, 8, "blk.0.ffn_up_exps.weight", "size for its type");
    check_patch_refused(&plan, up + SECTION, 2, 4, "blk.0.ffn_up_exps.weight", "section");
    check_patch_refused(&plan, up + SECTION, 0, 4, "blk.0.ffn_up_exps.weight", "in its section");
    check_patch_refused(&plan, up + ENCODING, 3, 4, "blk.0.ffn_up_exps.weight", "encoding");
    check_patch_refused(&plan, q + ENCODING, 0, 4, "blk.0.attn_q.weight", "stored bytes");
    check_patch_refused(&plan, up + OFFSET, pb_get(&plan, up + OFFSET, 8) + 8, 8, "blk.0.ffn_up_exps.weight",
                        "a multiple of");
    check_patch_refused(&plan, up + OFFSET, 0, 8, "blk.0.ffn_up_exps.weight", "in its section");
    check_patch_refused(&plan, up + OFFSET, UINT64_MAX - 63, 8, "blk.0.ffn_up_exps.weight", "in its section");
    check_patch_refused(&plan, embd + OFFSET, pb_get(&plan, up + OFFSET, 8), 8, "token_embd.weight",
                        "after the tensor before");
    check_patch_refused(&plan, up + STORED, 1 << 20, 8, "blk.0.ffn_up_exps.weight", "stored bytes");
    check_patch_refused(&plan, q + STORED, UINT64_MAX, 8, "blk.0.attn_q.weight", "stored bytes");
    check_patch_refused(&plan, q + STORED, 0, 8, "blk.0.attn_q.weight", "stored bytes");
    bytes_free(&plan);
    plan = pb_plan(true);
    check_patch_refused(&plan, pb_record_offset(&plan, 1) + STORED, 4, 8, "without weights");
    bytes_free(&plan);
}

// Frames that promise more than they hold, or the wrong amount: an error from reading, and no write outside dst.
static void test_bad_frames(void **state) {
    (void)state;
    struct bytes plan = pb_plan(false);
    uint64_t offset = pb_get(&plan, pb_record_offset(&plan, 0) + 136, 8),
             stored = pb_get(&plan, pb_record_offset(&plan, 0) + 144, 8);
    for (uint64_t at = offset; at < offset + stored; at++)
        for (int value = 0; value < 256; value += 51) {
            struct bytes bad = bytes_exact(&plan, plan.size);
            struct atsi_error err;
            bad.data[at] = (uint8_t)value;
            check_ok(open_and_walk(&bad, &err), err);
            bytes_free(&bad);
        }
    // The tensor one row longer than its frames.
    struct bytes longer = bytes_exact(&plan, plan.size);
    size_t record = pb_record_offset(&plan, 0);
    struct atsi_plan_file *file;
    struct atsi_error err;
    bytes_set_le(&longer, record + 96, 33, 8);
    bytes_set_le(&longer, record + 120, 64 * 33 * 2, 8);
    pb_fix_checksums(&longer);
    check_ok(atsi_plan_file_open_memory(&file, longer.data, longer.size, "x", &err), err);
    uint8_t *dst = malloc(64 * 33 * 2);
    check_refused(atsi_plan_file_read(file, atsi_plan_file_blob(file, 0), 1, dst, &err), err, "blk.0.attn_q.weight",
                  "expected 4224", "found 4096");
    free(dst);
    atsi_plan_file_close(file);
    // One row shorter.
    bytes_set_le(&longer, record + 96, 31, 8);
    bytes_set_le(&longer, record + 120, 64 * 31 * 2, 8);
    pb_fix_checksums(&longer);
    check_ok(atsi_plan_file_open_memory(&file, longer.data, longer.size, "x", &err), err);
    dst = malloc(64 * 31 * 2);
    check_refused(atsi_plan_file_read(file, atsi_plan_file_blob(file, 0), 1, dst, &err), err, "blk.0.attn_q.weight",
                  "another size");
    free(dst);
    atsi_plan_file_close(file);
    bytes_free(&longer);
    bytes_free(&plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_truncated_everywhere),
        cmocka_unit_test(test_flipped_bytes),
        cmocka_unit_test(test_patched_fields),
        cmocka_unit_test(test_header),
        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_manifest),
        cmocka_unit_test(test_records),
        cmocka_unit_test(test_bad_frames),
    };
    return cmocka_run_group_tests_name("plan_file_hostile", tests, NULL, NULL);
}
