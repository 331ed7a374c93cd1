// Models in several files: found from any part; parts that are missing, empty, swapped, renamed or foreign are refused
// by name.
#include <stdio.h>
#include <unistd.h>

#include "formats/gguf.h"
#include "tests/support/check.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/test_temp.h"

enum {
    N_PARTS = 3
};

struct set {
    char folder[TEMP_ROOT_CAP];
    struct bytes parts[N_PARTS];
};

static void part_name(char *out, size_t size, int part) {
    snprintf(out, size, "m-%05d-of-%05d.gguf", part + 1, N_PARTS);
}

static void part_path(const struct set *set, char *out, size_t size, int part) {
    char name[32];
    part_name(name, sizeof name, part);
    snprintf(out, size, "%s/%s", set->folder, name);
}

// Part 0 has the metadata and no tensor, the others one tensor each.
static struct bytes build_part(int part, uint32_t int_type, int n_tensors, const char *arch) {
    struct gguf_builder g;
    gb_init(&g);
    if (part == 0 || strcmp(arch, "llama") != 0) gb_str(&g, "general.architecture", arch);
    gb_int(&g, "split.no", int_type, (uint64_t)part);
    gb_int(&g, "split.count", int_type, N_PARTS);
    gb_int(&g, "split.tensors.count", int_type, (uint64_t)n_tensors);
    char name[] = "t0";
    name[1] = (char)('0' + part);
    if (part) gb_tensor(&g, name, 0, 1, (const uint64_t[]){8}, 32, (uint8_t)part);
    struct bytes file = gb_finish(&g);
    gb_free(&g);
    return file;
}

static void write_part(const struct set *set, int part) {
    char name[32];
    part_name(name, sizeof name, part);
    bytes_write(&set->parts[part], set->folder, name);
}

static void replace_part(struct set *set, int part, struct bytes file) {
    bytes_free(&set->parts[part]);
    set->parts[part] = file;
    write_part(set, part);
}

static void make_set(struct set *set, uint32_t int_type) {
    temp_folder(set->folder);
    for (int i = 0; i < N_PARTS; i++) {
        set->parts[i] = build_part(i, int_type, N_PARTS - 1, "llama");
        write_part(set, i);
    }
}

static void remove_set(struct set *set) {
    for (int i = 0; i < N_PARTS; i++) {
        char path[TEMP_PATH_CAP];
        part_path(set, path, sizeof path, i);
        unlink(path);
        bytes_free(&set->parts[i]);
    }
    assert_int_equal(rmdir(set->folder), 0);
}

#define check_set_refused(set, part, ...)                                       \
    do {                                                                        \
        char path_[TEMP_PATH_CAP];                                              \
        struct atsi_gguf *gguf_;                                                \
        struct atsi_error err_;                                                 \
        part_path(set, path_, sizeof path_, part);                              \
        check_refused(atsi_gguf_open(&gguf_, path_, &err_), err_, __VA_ARGS__); \
    } while (0)

static void test_any_part(void **state) {
    (void)state;
    static const uint32_t types[] = {GB_U8, GB_U16, GB_I32, GB_U64};
    for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
        struct set set;
        make_set(&set, types[k]);
        for (int i = 0; i < N_PARTS; i++) {
            char path[TEMP_PATH_CAP];
            struct atsi_gguf *gguf;
            struct atsi_error err;
            struct atsi_str arch;
            part_path(&set, path, sizeof path, i);
            check_ok(atsi_gguf_open(&gguf, path, &err), err);
            assert_int_equal(atsi_gguf_n_parts(gguf), N_PARTS);
            assert_int_equal(atsi_gguf_n_tensors(gguf), 2);
            check_ok(atsi_gguf_str(gguf, "general.architecture", &arch, &err), err);
            assert_int_equal(atsi_gguf_find_tensor(gguf, "t1")->data[31], 1);
            assert_int_equal(atsi_gguf_find_tensor(gguf, "t2")->data[0], 2);
            assert_int_equal(atsi_gguf_find_tensor(gguf, "t2")->part, 2);
            atsi_gguf_prefetch(gguf, atsi_gguf_find_tensor(gguf, "t2"));
            atsi_gguf_drop(gguf, atsi_gguf_find_tensor(gguf, "t2"));
            assert_int_equal(atsi_gguf_size_bytes(gguf), set.parts[0].size + set.parts[1].size + set.parts[2].size);
            assert_non_null(strstr(atsi_gguf_part_path(gguf, 1), "00002-of-00003"));
            atsi_gguf_close(gguf);
        }
        remove_set(&set);
    }
}

static void test_missing_and_empty(void **state) {
    (void)state;
    struct set set;
    char path[TEMP_PATH_CAP];
    make_set(&set, GB_U16);
    part_path(&set, path, sizeof path, 1);
    unlink(path);
    check_set_refused(&set, 0, "m-00002-of-00003.gguf is missing", "3 parts");
    check_set_refused(&set, 2, "m-00002-of-00003.gguf is missing");
    replace_part(&set, 1, (struct bytes){0});
    check_set_refused(&set, 0, "m-00002-of-00003.gguf: truncated at offset 0");
    check_set_refused(&set, 1, "m-00002-of-00003.gguf: truncated at offset 0");
    replace_part(&set, 1, build_part(1, GB_U16, 2, "llama"));
    part_path(&set, path, sizeof path, 0);
    unlink(path);
    check_set_refused(&set, 1, "m-00001-of-00003.gguf is missing");
    remove_set(&set);
}

static void test_foreign_parts(void **state) {
    (void)state;
    struct set set;
    make_set(&set, GB_U16);
    replace_part(&set, 1, build_part(2, GB_U16, 2, "llama")); // swapped
    check_set_refused(&set, 0, "m-00002-of-00003.gguf", "split.no", "expected 1", "found 2");
    check_set_refused(&set, 1, "m-00002-of-00003.gguf", "split.no", "expected 1", "found 2");
    replace_part(&set, 1, build_part(1, GB_U16, 7, "llama")); // of a model with more tensors
    check_set_refused(&set, 0, "m-00002-of-00003.gguf", "split.tensors.count", "expected 2", "found 7");
    replace_part(&set, 1, build_part(1, GB_U16, 2, "qwen3")); // of another family
    check_set_refused(&set, 0, "m-00002-of-00003.gguf", "general.architecture", "another model");
    struct gguf_builder g; // a whole model under a part's name
    gb_base(&g);
    replace_part(&set, 1, gb_finish(&g));
    gb_free(&g);
    check_set_refused(&set, 0, "m-00002-of-00003.gguf", "split.count", "expected 3", "found 0");
    gb_init(&g); // a tensor that another part has
    gb_int(&g, "split.no", GB_U16, 1);
    gb_int(&g, "split.count", GB_U16, N_PARTS);
    gb_int(&g, "split.tensors.count", GB_U16, 2);
    gb_tensor(&g, "t2", 0, 1, (const uint64_t[]){8}, 32, 1);
    replace_part(&set, 1, gb_finish(&g));
    gb_free(&g);
    check_set_refused(&set, 0, "tensor \"t2\"", "twice", "00002-of-00003", "00003-of-00003");
    for (int i = 0; i < N_PARTS; i++)
        replace_part(&set, i, build_part(i, GB_U16, 9, "llama")); // all promise more than there is
    check_set_refused(&set, 0, "split.tensors.count", "expected 9", "found 2");
    remove_set(&set);
}

static void test_renamed_and_joined(void **state) {
    (void)state;
    struct set set;
    char path[TEMP_PATH_CAP];
    struct atsi_gguf *gguf;
    struct atsi_error err;
    make_set(&set, GB_U16);
    bytes_write(&set.parts[1], set.folder, "model.gguf");
    snprintf(path, sizeof path, "%s/model.gguf", set.folder);
    check_refused(atsi_gguf_open(&gguf, path, &err), err, "model.gguf is part 2 of 3", "NAME-00002-of-00003.gguf");
    struct bytes joined = {0};
    for (int i = 0; i < N_PARTS; i++) bytes_append(&joined, set.parts[i].data, set.parts[i].size);
    bytes_write(&joined, set.folder, "model.gguf");
    check_refused(atsi_gguf_open(&gguf, path, &err), err, "model.gguf", "second GGUF file");
    unlink(path);
    bytes_write(&set.parts[1], set.folder, "m-00002-of-00009.gguf");
    snprintf(path, sizeof path, "%s/m-00002-of-00009.gguf", set.folder);
    check_refused(atsi_gguf_open(&gguf, path, &err), err, "m-00002-of-00009.gguf", "split.count", "found 3");
    unlink(path);
    bytes_write(&set.parts[1], set.folder, "m-00000-of-00003.gguf");
    snprintf(path, sizeof path, "%s/m-00000-of-00003.gguf", set.folder);
    check_refused(atsi_gguf_open(&gguf, path, &err), err, "m-00000-of-00003.gguf");
    unlink(path);
    check_refused(atsi_gguf_open_memory(&gguf, set.parts[1].data, set.parts[1].size, "mem", &err), err, "mem",
                  "part 2 of 3");
    bytes_free(&joined);
    remove_set(&set);
}

// A file cut by bytes (split(1)) under the usual names.
static void test_cut_by_bytes(void **state) {
    (void)state;
    struct set set;
    char path[TEMP_PATH_CAP];
    struct atsi_gguf *gguf;
    struct atsi_error err;
    struct gguf_builder g;
    make_set(&set, GB_U16);
    gb_base(&g);
    struct bytes file = gb_finish(&g);
    gb_free(&g);
    file.size /= 2;
    bytes_write(&file, set.folder, "model.gguf.part1of2");
    snprintf(path, sizeof path, "%s/model.gguf.part1of2", set.folder);
    check_refused(atsi_gguf_open(&gguf, path, &err), err, "model.gguf.part1of2", "join the pieces");
    unlink(path);
    bytes_free(&file);
    remove_set(&set);
}

static void test_bad_split_keys(void **state) {
    (void)state;
    struct gguf_builder g;
    struct atsi_error err;
    struct atsi_gguf *gguf;
    for (int i = 0; i < 3; i++) {
        gb_base(&g);
        if (i == 0) gb_f32(&g, "split.count", 2);
        if (i == 1) gb_int(&g, "split.count", GB_I32, (uint64_t)-1);
        if (i == 2) gb_int(&g, "split.count", GB_U64, UINT64_MAX);
        struct bytes file = gb_finish(&g);
        gb_free(&g);
        check_refused(atsi_gguf_open_memory(&gguf, file.data, file.size, "x", &err), err, "\"split.count\"", "expected",
                      "found");
        bytes_free(&file);
    }
    gb_base(&g); // a set of one is an ordinary file
    gb_int(&g, "split.count", GB_U16, 1);
    struct bytes file = gb_finish(&g);
    gb_free(&g);
    check_ok(atsi_gguf_open_memory(&gguf, file.data, file.size, "x", &err), err);
    atsi_gguf_close(gguf);
    bytes_free(&file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_part),      cmocka_unit_test(test_missing_and_empty),
        cmocka_unit_test(test_foreign_parts), cmocka_unit_test(test_renamed_and_joined),
        cmocka_unit_test(test_cut_by_bytes),  cmocka_unit_test(test_bad_split_keys),
    };
    return cmocka_run_group_tests_name("gguf_split", tests, NULL, NULL);
}
