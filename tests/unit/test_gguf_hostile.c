// Broken and hostile GGUF files: each is refused in one line that names key or tensor, offset, expected and found, at
// once and without memory to match its claims. Rows are those of the collected bug reports of other readers.
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "formats/gguf.h"
#include "tests/support/check.h"
#include "tests/support/gguf_builder.h"

#define check_bad(g, ...)                                                                        \
    do {                                                                                         \
        struct atsi_error err_;                                                                  \
        struct atsi_gguf *gguf_;                                                                 \
        struct bytes file_ = gb_finish(g);                                                       \
        gb_free(g);                                                                              \
        check_refused(atsi_gguf_open_memory(&gguf_, file_.data, file_.size, "bad", &err_), err_, \
                      "bad: ", __VA_ARGS__);                                                     \
        assert_null(gguf_);                                                                      \
        bytes_free(&file_);                                                                      \
    } while (0)

// Opens and, if that succeeds, reads whatever a user of the reader would. Returns the status.
static enum atsi_status open_and_walk(const uint8_t *data, size_t size, struct atsi_error *err) {
    struct atsi_gguf *gguf;
    volatile uint64_t sum = 0;
    enum atsi_status status = atsi_gguf_open_memory(&gguf, data, size, "x", err);
    if (status != ATSI_OK) return status;
    for (uint64_t i = 0; i < atsi_gguf_n_tensors(gguf); i++) {
        const struct atsi_gguf_tensor *t = atsi_gguf_tensor_at(gguf, i);
        if (t->size_bytes) sum += t->data[0] + t->data[t->size_bytes - 1];
    }
    struct atsi_str *strings;
    uint64_t n, hash;
    if (atsi_gguf_strings(gguf, "tokens", ATSI_GGUF_ANY_LENGTH, &strings, &n, NULL) == ATSI_OK) {
        for (uint64_t i = 0; i < n; i++)
            for (uint64_t k = 0; k < strings[i].size; k++) sum += (uint8_t)strings[i].data[k];
        free(strings);
    }
    assert_int_equal(atsi_gguf_identity_hash(gguf, &hash, NULL), ATSI_OK);
    atsi_gguf_close(gguf);
    return ATSI_OK;
}

static struct bytes base_file(struct gguf_builder *g) {
    gb_base(g);
    struct bytes file = gb_finish(g);
    gb_free(g);
    return file;
}

// A file cut anywhere is refused (each cut in an allocation of its own size).
static void test_truncated_everywhere(void **state) {
    (void)state;
    struct gguf_builder g;
    struct bytes file = base_file(&g);
    for (size_t size = 0; size < file.size; size++) {
        struct bytes cut = bytes_exact(&file, size);
        struct atsi_error err;
        struct atsi_gguf *gguf;
        enum atsi_status status = atsi_gguf_open_memory(&gguf, cut.data, cut.size, "cut", &err);
        if (status != ATSI_BAD_INPUT) fail_msg("cut at %zu was accepted", size);
        if (size < 24) {
            char where[40];
            snprintf(where, sizeof where, "truncated at offset %zu in the header", size);
            check_message(err, where);
        }
        bytes_free(&cut);
    }
    bytes_free(&file);
}

// Every count, length, dimension, type and offset in turn, with hostile values.
static void test_patched_fields(void **state) {
    (void)state;
    static const uint64_t values[] = {
        0,          UINT64_C(1) << 30, UINT64_C(1) << 31, UINT64_C(1) << 32, UINT64_C(1) << 62, UINT64_C(1) << 63,
        UINT64_MAX, UINT64_MAX - 49};
    struct gguf_builder g;
    struct bytes file = base_file(&g);
    for (unsigned f = 0; f < g.n_fields + 2; f++) {
        struct gb_field field = f < g.n_fields ? g.fields[f] : (struct gb_field){f == g.n_fields ? 8 : 16, 8, false};
        for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
            struct bytes bad = bytes_exact(&file, file.size);
            struct atsi_error err;
            bytes_set_le(&bad, field.offset, values[v], field.size);
            bool changed = memcmp(bad.data, file.data, file.size) != 0;
            enum atsi_status status = open_and_walk(bad.data, bad.size, &err);
            if (changed && values[v] && status != ATSI_BAD_INPUT && (field.size == 8 || values[v] < UINT64_C(1) << 32))
                fail_msg("field at %zu set to %llu was accepted", field.offset, (unsigned long long)values[v]);
            bytes_free(&bad);
        }
    }
    bytes_free(&file);
}

// The same values at every byte of the directory: anything may come out but a fault.
static void test_patched_anywhere(void **state) {
    (void)state;
    static const uint64_t values[] = {0, 1, 255, UINT64_C(1) << 31, UINT64_C(1) << 63, UINT64_MAX};
    struct gguf_builder g;
    struct bytes file = base_file(&g);
    for (size_t at = 0; at + 8 <= file.size; at++)
        for (size_t v = 0; v < sizeof values / sizeof *values; v++)
            for (unsigned size = 1; size <= 8; size *= 2) {
                struct bytes bad = bytes_exact(&file, file.size);
                struct atsi_error err;
                bytes_set_le(&bad, at, values[v], size);
                open_and_walk(bad.data, bad.size, &err);
                bytes_free(&bad);
            }
    bytes_free(&file);
}

static void test_magic_and_version(void **state) {
    (void)state;
    struct atsi_error err;
    struct atsi_gguf *gguf;
    static const struct {
        uint32_t version;
        const char *words[2];
    } cases[] = {{0, {"expected 2 or 3", "found 0"}},       {1, {"expected 2 or 3", "found 1"}},
                 {4, {"expected 2 or 3", "found 4"}},       {0x03000000, {"big-endian", "version 3"}},
                 {0x02000000, {"big-endian", "version 2"}}, {UINT32_MAX, {"expected 2 or 3", "4294967295"}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct gguf_builder g;
        gb_base(&g);
        g.version = cases[i].version;
        check_bad(&g, "offset 4", cases[i].words[0], cases[i].words[1]);
    }
    check_refused(atsi_gguf_open_memory(&gguf, "FUGG\3\0\0\0", 8, "x", &err), err, "\"GGUF\"", "offset 0",
                  "46 55 47 47");
    check_refused(atsi_gguf_open_memory(&gguf,
                                        "\x89"
                                        "ATSP\r\n\x1a",
                                        8, "x", &err),
                  err, "a plan", "atsi-run");
    check_refused(atsi_gguf_open_memory(&gguf, NULL, 0, "x", &err), err, "truncated at offset 0");
}

// Dimensions whose product or size wraps.
static void test_dimension_overflow(void **state) {
    (void)state;
    static const struct {
        uint32_t dtype, n_dims;
        uint64_t ne[4];
    } cases[] = {{0, 2, {UINT64_C(1) << 33, UINT64_C(1) << 31}},
                 {0, 2, {UINT64_MAX, 2}},
                 {0, 2, {INT64_MAX, 2}},
                 {0, 1, {UINT64_C(1) << 62}},
                 {0, 4, {UINT64_C(1) << 16, UINT64_C(1) << 16, UINT64_C(1) << 16, UINT64_C(1) << 16}},
                 {0, 4, {1, UINT64_C(1) << 32, UINT64_C(1) << 32, 1}},
                 {8, 2, {UINT64_C(1) << 40, UINT64_C(1) << 24}},
                 {24, 2, {UINT64_C(1) << 32, (UINT64_C(1) << 32) - 1}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct gguf_builder g;
        gb_init(&g);
        gb_tensor_info(&g, "huge", 4, cases[i].dtype, cases[i].n_dims, cases[i].ne, 0);
        bytes_fill(&g.data, 0, 64);
        check_bad(&g, "tensor \"huge\"", "expected", "found");
    }
    struct gguf_builder g; // each fits 64 bits, all together do not
    gb_init(&g);
    for (int i = 0; i < 8; i++)
        gb_tensor_info(&g, (char[]){'a' + (char)i}, 1, 0, 1, (const uint64_t[]){UINT64_C(1) << 60}, (uint64_t)i << 62);
    check_bad(&g, "tensor \"a\"", "missing");
}

// Dimensions of 0, negative ones, too few and too many.
static void test_bad_dimensions(void **state) {
    (void)state;
    static const uint64_t bad[][2] = {{8, 0}, {0, 8}, {0, 0}, {UINT64_MAX, 1}, {8, UINT64_C(1) << 63}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct gguf_builder g;
        gb_init(&g);
        gb_tensor_info(&g, "flat", 4, 0, 2, bad[i], 0);
        bytes_fill(&g.data, 0, 64);
        check_bad(&g, "tensor \"flat\"", "dimension", "at offset", "expected 1 or more", "found");
    }
    static const uint32_t counts[] = {0, 5, 100, UINT32_MAX};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        struct gguf_builder g;
        gb_init(&g);
        gb_tensor_info(&g, "odd", 3, 0, 1, (const uint64_t[]){8}, 0);
        bytes_set_le(&g.infos, 8 + 3, counts[i], 4);
        bytes_fill(&g.data, 0, 64);
        check_bad(&g, "tensor \"odd\"", "number of dimensions", "1 to 4");
    }
    struct gguf_builder g;
    gb_init(&g);
    gb_tensor_info(&g, "ragged", 6, 12, 2, (const uint64_t[]){128, 2}, 0);
    bytes_fill(&g.data, 0, 288);
    check_bad(&g, "tensor \"ragged\"", "multiple of 256", "Q4_K", "128");
}

// Insane alignments.
static void test_bad_alignment(void **state) {
    (void)state;
    static const uint64_t values[] = {
        0, 1, 3, 4, 24, 33, 1u << 21, 1u << 30, UINT64_C(1) << 31, UINT64_C(1) << 63, UINT64_MAX};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        struct gguf_builder g;
        gb_base(&g);
        gb_int(&g, "general.alignment", GB_U64, values[i]);
        check_bad(&g, "general.alignment", "at offset", "power of two", "found");
    }
    struct gguf_builder g;
    gb_base(&g);
    gb_int(&g, "general.alignment", GB_I32, (uint64_t)-32);
    check_bad(&g, "general.alignment", "found -32");
    gb_base(&g);
    gb_str(&g, "general.alignment", "32");
    check_bad(&g, "general.alignment", "an integer", "string");
    gb_base(&g);
    gb_f32(&g, "general.alignment", 32);
    check_bad(&g, "general.alignment", "an integer", "f32");
    gb_base(&g);
    gb_ints(&g, "general.alignment", GB_U32, 1, (const int64_t[]){32});
    check_bad(&g, "general.alignment", "an integer", "array");
}

// Unknown tensor types name tensor and number; known ones open even where nothing can compute with them.
static void test_tensor_types(void **state) {
    (void)state;
    static const struct {
        uint32_t type;
        const char *number;
    } bad[] = {
        {UINT32_MAX, "type -1"}, {4, "type 4"},   {5, "type 5"},   {31, "type 31"},   {36, "type 36"},
        {43, "type 43"},         {63, "type 63"}, {64, "type 64"}, {105, "type 105"}, {1u << 31, "type -2147483648"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct gguf_builder g;
        gb_init(&g);
        gb_tensor_info(&g, "odd", 3, bad[i].type, 1, (const uint64_t[]){256}, 0);
        bytes_fill(&g.data, 0, 4096);
        check_bad(&g, "tensor \"odd\"", bad[i].number, "at offset", "expected");
    }
    for (uint32_t type = 0; type < ATSI_DTYPE_LIMIT; type++) {
        if (!atsi_dtype_info(type)) continue;
        struct gguf_builder g;
        struct atsi_error err;
        gb_init(&g);
        gb_tensor_info(&g, "known", 5, type, 1, (const uint64_t[]){256}, 0);
        bytes_fill(&g.data, 0, 256 / atsi_dtype_info(type)->block_elems * atsi_dtype_info(type)->block_bytes);
        struct bytes file = gb_finish(&g);
        gb_free(&g);
        check_ok(open_and_walk(file.data, file.size, &err), err);
        bytes_free(&file);
    }
}

// Data past the end of the file, or not where it may be.
static void test_data_bounds(void **state) {
    (void)state;
    static const struct {
        uint64_t offset;
        const char *words[2];
    } cases[] = {{32, {"bytes are missing", "32 bytes of data"}},
                 {1, {"multiple of 32", "offset 1"}},
                 {UINT64_MAX - 49, {"multiple of 32", "18446744073709551566"}},
                 {UINT64_MAX - 31, {"bytes are missing", "18446744073709551584"}},
                 {UINT64_C(1) << 63, {"bytes are missing", "9223372036854775808"}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct gguf_builder g;
        gb_init(&g);
        gb_tensor_info(&g, "away", 4, 0, 1, (const uint64_t[]){8}, cases[i].offset);
        bytes_fill(&g.data, 0, 32);
        check_bad(&g, "tensor \"away\"", cases[i].words[0], cases[i].words[1]);
    }
    struct gguf_builder g;
    struct atsi_error err;
    struct atsi_gguf *gguf;
    struct bytes file = base_file(&g);
    check_refused(atsi_gguf_open_memory(&gguf, file.data, file.size - 1, "cut", &err), err,
                  "cut: tensor \"output_norm.weight\"", "expected 32 bytes", "(1 bytes are missing");
    check_refused(atsi_gguf_open_memory(&gguf, file.data, file.size - 170, "cut", &err), err,
                  "tensor \"blk.0.attn_q.weight\"");
    bytes_free(&file);

    gb_init(&g);
    gb_tensor_info(&g, "one", 3, 0, 1, (const uint64_t[]){16}, 0);
    gb_tensor_info(&g, "two", 3, 0, 1, (const uint64_t[]){8}, 32);
    bytes_fill(&g.data, 0, 64);
    check_bad(&g, "tensor \"two\"", "inside tensor \"one\"");
    gb_init(&g);
    gb_tensor_info(&g, "two", 3, 0, 1, (const uint64_t[]){8}, 0);
    gb_tensor_info(&g, "one", 3, 0, 1, (const uint64_t[]){8}, 0);
    bytes_fill(&g.data, 0, 64);
    check_bad(&g, "inside tensor", "\"one\"", "\"two\"");
}

// Two tensors or two keys of one name.
static void test_duplicates(void **state) {
    (void)state;
    struct gguf_builder g;
    gb_base(&g);
    gb_tensor(&g, "output_norm.weight", 0, 1, (const uint64_t[]){8}, 32, 0x55);
    check_bad(&g, "tensor \"output_norm.weight\"", "twice", "offsets");
    gb_base(&g);
    gb_int(&g, "llama.block_count", GB_U64, 3);
    check_bad(&g, "key \"llama.block_count\"", "twice", "offsets");
}

static void test_bad_values(void **state) {
    (void)state;
    struct gguf_builder g;
    static const uint32_t types[] = {13, 14, 255, UINT32_MAX};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        gb_base(&g);
        gb_key(&g, "odd", 3, types[i]);
        bytes_le(&g.kv, 0, 8);
        check_bad(&g, "key \"odd\"", "value type at offset", "0 to 12");
        gb_base(&g);
        gb_array(&g, "odd", types[i], 1);
        bytes_le(&g.kv, 0, 8);
        check_bad(&g, "key \"odd\"", "element type at offset", "0 to 12");
    }
    gb_base(&g);
    gb_int(&g, "flag2", GB_BOOL, 2);
    check_bad(&g, "key \"flag2\"", "0 or 1", "found 2");
    gb_base(&g);
    gb_key(&g, "deep", 4, GB_ARR);
    for (int depth = 0; depth < 100; depth++) {
        bytes_le(&g.kv, GB_ARR, 4);
        bytes_le(&g.kv, 1, 8);
    }
    check_bad(&g, "key \"deep\"", "nested deeper");
    gb_base(&g);
    gb_array(&g, "many", GB_F64, UINT64_C(1) << 61); // times 8 is 2^64
    check_bad(&g, "key \"many\"", "2305843009213693952", "hold at most");
}

// Whole parts joined by cat.
static void test_joined_files(void **state) {
    (void)state;
    for (int padding = 0; padding < 40; padding += 8) {
        struct gguf_builder g;
        struct bytes one = base_file(&g), two = {0};
        struct atsi_error err;
        struct atsi_gguf *gguf;
        bytes_append(&two, one.data, one.size);
        bytes_fill(&two, 0, (size_t)padding);
        bytes_append(&two, one.data, one.size);
        check_refused(atsi_gguf_open_memory(&gguf, two.data, two.size, "joined", &err), err, "second GGUF file",
                      "offset");
        bytes_free(&one);
        bytes_free(&two);
    }
}

// Claims of exabytes are refused without memory to match: the child may take 64 MB in all.
static void test_memory_limit(void **state) {
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    print_message("skipped: sanitizers reserve address space of their own\n");
    skip();
#endif
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct rlimit limit = {64 << 20, 64 << 20};
        setrlimit(RLIMIT_AS, &limit);
        alarm(1);
        struct gguf_builder g;
        gb_base(&g);
        gb_array(&g, "many", GB_STR, UINT64_C(1) << 30);
        bytes_fill(&g.kv, 0, 1 << 20);
        struct bytes file = gb_finish(&g);
        struct atsi_error err;
        int n_refused = 0;
        for (unsigned f = 0; f < g.n_fields; f++) {
            struct bytes bad = bytes_exact(&file, file.size);
            bytes_set_le(&bad, g.fields[f].offset, UINT64_C(1) << 30, g.fields[f].size);
            n_refused += open_and_walk(bad.data, bad.size, &err) == ATSI_BAD_INPUT;
            bytes_free(&bad);
        }
        _exit(n_refused == (int)g.n_fields ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_truncated_everywhere), cmocka_unit_test(test_patched_fields),
        cmocka_unit_test(test_patched_anywhere),     cmocka_unit_test(test_magic_and_version),
        cmocka_unit_test(test_dimension_overflow),   cmocka_unit_test(test_bad_dimensions),
        cmocka_unit_test(test_bad_alignment),        cmocka_unit_test(test_tensor_types),
        cmocka_unit_test(test_data_bounds),          cmocka_unit_test(test_duplicates),
        cmocka_unit_test(test_bad_values),           cmocka_unit_test(test_joined_files),
        cmocka_unit_test(test_memory_limit),
    };
    return cmocka_run_group_tests_name("gguf_hostile", tests, NULL, NULL);
}
