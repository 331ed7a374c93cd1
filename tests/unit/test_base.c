// Sizes, hashing, strings and file mapping.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "formats/base/grow.h"
#include "formats/base/hash.h"
#include "formats/base/map.h"
#include "formats/base/size.h"
#include "formats/base/sort.h"
#include "formats/base/str.h"
#include "formats/base/temp_file.h"
#include "tests/support/check.h"
#include "tests/support/test_temp.h"

static void test_size_parse(void **state) {
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {
        {"0", 0},
        {"1", 1},
        {"12345", 12345},
        {"1K", 1024},
        {"1M", 1 << 20},
        {"2G", UINT64_C(2) << 30},
        {"5.5G", (UINT64_C(11) << 30) / 2},
        {"1KiB", 1024},
        {"6GiB", UINT64_C(6) << 30},
        {"0.5MiB", 512 << 10},
        {"1.9", 1},
        {"9007199254740992", UINT64_C(1) << 53},
        {"8388608G", UINT64_C(1) << 53},
        {"0.333333333333333333333333G", 357913940}, // floor of 0.333333333 GiB
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        uint64_t bytes = 77;
        if (!atsi_size_parse(good[i].text, &bytes)) fail_msg("refused %s", good[i].text);
        if (bytes != good[i].bytes) fail_msg("%s gave %llu", good[i].text, (unsigned long long)bytes);
    }
    static const char *const bad[] = {"",
                                      " ",
                                      "6 G",
                                      " 6G",
                                      "6G ",
                                      "-1",
                                      "+1",
                                      "1e9",
                                      "G",
                                      ".5G",
                                      "5.",
                                      "5.G",
                                      "1.2.3G",
                                      "6g",
                                      "6GB",
                                      "6Gi",
                                      "6T",
                                      "0x10",
                                      "6G6",
                                      "inf",
                                      "nan",
                                      "1,5G",
                                      "9007199254740993",
                                      "8388609G",
                                      "8388608.1G",
                                      "1000000000000000000000000000000"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        uint64_t bytes = 77;
        if (atsi_size_parse(bad[i], &bytes)) fail_msg("accepted \"%s\"", bad[i]);
        assert_int_equal(bytes, 77);
    }
}

static void test_size_format(void **state) {
    (void)state;
    static const struct {
        uint64_t bytes;
        const char *text;
    } cases[] = {
        {0, "0 bytes"},
        {1, "1 byte"},
        {1023, "1023 bytes"},
        {1024, "1 KiB"},
        {1536, "1.5 KiB"},
        {10 * 1024 + 512, "10.5 KiB"},
        {UINT64_C(6) << 30, "6 GiB"},
        {(UINT64_C(1) << 20) - 1, "1 MiB"},
        {UINT64_MAX, "16 EiB"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[32];
        assert_string_equal(atsi_size_format(text, sizeof text, cases[i].bytes), cases[i].text);
    }
    char tiny[4];
    atsi_size_format(tiny, sizeof tiny, 1536);
    assert_true(strlen(tiny) < sizeof tiny);
}

static void test_hash(void **state) {
    (void)state;
    // XXH3-64 of the empty input and of "a", seed 0, as the xxHash command-line tool prints them.
    assert_true(atsi_hash("", 0) == UINT64_C(0x2D06800538D394C2));
    assert_true(atsi_hash("a", 1) == UINT64_C(0xE6C632B61E964E1F));
    uint8_t data[5000];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)(i * 7);
    struct atsi_hasher *hasher;
    struct atsi_error err;
    check_ok(atsi_hasher_new(&hasher, &err), err);
    for (int round = 0; round < 2; round++) {
        atsi_hasher_reset(hasher);
        atsi_hasher_update(hasher, data, 1);
        atsi_hasher_update(hasher, data + 1, 0);
        atsi_hasher_update(hasher, data + 1, sizeof data - 1);
        assert_true(atsi_hasher_digest(hasher) == atsi_hash(data, sizeof data));
    }
    atsi_hasher_free(hasher);
    atsi_hasher_free(NULL);
}

static void test_str(void **state) {
    (void)state;
    struct atsi_str nul = {"a\0b", 3}, empty = {NULL, 0};
    assert_true(atsi_str_is(atsi_str_of("abc"), "abc"));
    assert_false(atsi_str_is(nul, "a"));
    assert_true(atsi_str_is(empty, ""));
    assert_true(atsi_str_compare(empty, nul) < 0 && atsi_str_compare(nul, empty) > 0);
    assert_true(atsi_str_compare(atsi_str_of("ab"), atsi_str_of("abc")) < 0);
    assert_true(atsi_str_compare(atsi_str_of("b"), atsi_str_of("abc")) > 0);
    assert_string_equal(atsi_label(nul).text, "a\\x00b");
    assert_string_equal(atsi_label(empty).text, "");
}

static void test_map(void **state) {
    (void)state;
    char folder[TEMP_ROOT_CAP], path[TEMP_PATH_CAP];
    temp_folder(folder);
    struct atsi_map map;
    struct atsi_error err;
    check_refused(atsi_map_open(&map, folder, &err), err, folder, "folder", "regular file");
    snprintf(path, sizeof path, "%s/pipe", folder);
    assert_int_equal(mkfifo(path, 0600), 0);
    check_refused(atsi_map_open(&map, path, &err), err, path, "pipe");
    unlink(path);
    check_refused(atsi_map_open(&map, path, &err), err, path, "No such file");
    check_refused(atsi_map_open(&map, "/dev/zero", &err), err, "/dev/zero", "device");

    FILE *file = fopen(path, "wb");
    fclose(file);
    check_ok(atsi_map_open(&map, path, &err), err);
    assert_true(map.data == NULL && map.size_bytes == 0);
    atsi_map_advise(&map, 0, 10, ATSI_MAP_WILL_NEED);
    atsi_map_close(&map);

    file = fopen(path, "wb");
    fwrite("hello", 1, 5, file);
    fclose(file);
    check_ok(atsi_map_open(&map, path, &err), err);
    assert_int_equal(map.size_bytes, 5);
    assert_memory_equal(map.data, "hello", 5);
    atsi_map_advise(&map, 3, UINT64_MAX, ATSI_MAP_DONT_NEED);
    assert_memory_equal(map.data, "hello", 5);
    atsi_map_close(&map);
    atsi_map_close(&map);
    temp_remove(folder);
}

static void doubles_are_sorted(void **state) {
    (void)state;
    double values[] = {3, -1, INFINITY, 0, 3, -INFINITY, 1e-300};
    static const double sorted[] = {-INFINITY, -1, 0, 1e-300, 3, 3, INFINITY};
    atsi_sort_doubles(values, sizeof values / sizeof *values);
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) assert_true(values[i] == sorted[i]);
}

// $TMPDIR, else /tmp; a folder that is none, or has too long a name, is told.
static void temporary_files_stand_where_they_are_told_to(void **state) {
    (void)state;
    const char *usual = getenv("TMPDIR");
    char folder[TEMP_ROOT_CAP], path[ATSI_TEMP_PATH_CAP], inner[ATSI_TEMP_PATH_CAP],
        *kept = usual ? strdup(usual) : NULL;
    char too_long[2 * ATSI_TEMP_PATH_CAP] = "/";
    struct atsi_error err;
    struct stat st;
    temp_folder(folder);
    setenv("TMPDIR", folder, 1);
    check_ok(atsi_temp_file(path, &err), err);
    check_ok(atsi_temp_folder(inner, &err), err);
    assert_memory_equal(path, folder, strlen(folder));
    assert_true(stat(path, &st) == 0 && S_ISREG(st.st_mode) && st.st_size == 0);
    assert_memory_equal(inner, folder, strlen(folder));
    assert_true(stat(inner, &st) == 0 && S_ISDIR(st.st_mode));
    temp_remove(folder);
    assert_int_equal(atsi_temp_file(path, &err), ATSI_FAILED);
    check_message(err, folder, "No such file", "TMPDIR");
    assert_int_equal(atsi_temp_folder(path, &err), ATSI_FAILED);
    check_message(err, folder, "No such file", "TMPDIR");
    memset(too_long + 1, 'x', sizeof too_long - 2);
    setenv("TMPDIR", too_long, 1);
    assert_int_equal(atsi_temp_file(path, &err), ATSI_FAILED);
    check_message(err, "TMPDIR is too long");
    setenv("TMPDIR", "", 1);
    check_ok(atsi_temp_file(path, &err), err);
    assert_memory_equal(path, "/tmp/", 5);
    unlink(path);
    if (kept)
        setenv("TMPDIR", kept, 1);
    else
        unsetenv("TMPDIR");
    free(kept);
}

static void arrays_grow_by_doubling(void **state) {
    (void)state;
    int *items = NULL;
    size_t cap = 0;
    for (int i = 0; i < 1000; i++) {
        assert_true(atsi_grow((void **)&items, (size_t)i, &cap, sizeof *items));
        items[i] = i;
    }
    assert_int_equal(cap, 1024);
    for (int i = 0; i < 1000; i++) assert_int_equal(items[i], i);
    // A size that does not fit is refused before anything is lost.
    int *kept = items;
    assert_false(atsi_grow((void **)&items, cap, &cap, SIZE_MAX / 1024));
    assert_true(items == kept && cap == 1024);
    free(items);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_size_parse),    cmocka_unit_test(test_size_format),
        cmocka_unit_test(test_hash),          cmocka_unit_test(test_str),
        cmocka_unit_test(test_map),           cmocka_unit_test(arrays_grow_by_doubling),
        cmocka_unit_test(doubles_are_sorted), cmocka_unit_test(temporary_files_stand_where_they_are_told_to),
    };
    return cmocka_run_group_tests_name("base", tests, NULL, NULL);
}
