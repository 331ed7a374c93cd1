// Bytes in pieces of any size and with gaps arrive in the file as they were given.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/page_writer.h"
#include "tests/support/check.h"
#include "tests/support/test_temp.h"

enum {
    PAGE = 2 << 20,
    FILE_BYTES = 5 * PAGE + 1000
};

struct piece {
    uint64_t offset, n_bytes;
};

// Ends, beginnings and gaps in a page, at its border and over several.
static const struct piece PIECES[] = {
    {4096, 100},         {4196, 1},
    {8192, PAGE - 8192}, {PAGE, PAGE},
    {2 * PAGE, 10},      {2 * PAGE + 4096, PAGE},
    {4 * PAGE - 5, 5},   {4 * PAGE + 900, 100},
    {5 * PAGE + 7, 20},
};

static void test_pieces(void **state) {
    (void)state;
    char folder[TEMP_ROOT_CAP], path[TEMP_PATH_CAP];
    struct atsi_error err;
    struct atsi_new_file file;
    struct atsi_page_writer writer = {0};
    uint8_t *want = calloc(1, FILE_BYTES), *bytes = malloc(FILE_BYTES), *got = malloc(FILE_BYTES);
    for (size_t i = 0; i < FILE_BYTES; i++) bytes[i] = (uint8_t)(1 + i * 7 % 251);
    temp_folder(folder);
    snprintf(path, sizeof path, "%s/file", folder);
    check_ok(atsi_new_file_create(&file, path, &err), err);
    for (size_t i = 0; i < sizeof PIECES / sizeof *PIECES; i++) {
        const struct piece *p = &PIECES[i];
        memcpy(want + p->offset, bytes + p->offset, p->n_bytes);
        check_ok(atsi_page_writer_append(&writer, &file, bytes + p->offset, p->n_bytes, p->offset, &err), err);
        // What does not end a page waits: pages are written whole.
        assert_int_equal(writer.n_bytes != 0, (p->offset + p->n_bytes) % PAGE != 0);
    }
    check_ok(atsi_page_writer_flush(&writer, &file, &err), err);
    atsi_page_writer_free(&writer);
    check_ok(atsi_new_file_commit(&file, FILE_BYTES, &err), err);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fread(got, 1, FILE_BYTES, f), FILE_BYTES);
    fclose(f);
    assert_memory_equal(got, want, FILE_BYTES);
    temp_remove(folder);
    free(want);
    free(bytes);
    free(got);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pieces)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
