// Dequantised values against golden data (random blocks with the values that ggml gives), bit for bit.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "kernels/cpu/dequant.h"
#include "kernels/cpu/quant.h"

enum {
    PATH_CAP = 512
};

static char unpacked[PATH_CAP]; // folder of the unpacked golden data; empty when there is none

static int unpack_golden(void **state) {
    (void)state;
    const char *data = getenv("ATSI_TEST_DATA");
    char archive[PATH_CAP], command[3 * PATH_CAP], folder[] = "/tmp/atsi-dequant-XXXXXX";
    snprintf(archive, sizeof archive, "%s/dequant.tar.zst", data != NULL ? data : "../shared");
    if (access(archive, R_OK) != 0 || mkdtemp(folder) == NULL) return 0;
    snprintf(command, sizeof command, "tar -C '%s' -I zstd -xf '%s'", folder, archive);
    if (system(command) != 0) return -1;
    snprintf(unpacked, sizeof unpacked, "%s", folder);
    return 0;
}

static int remove_golden(void **state) {
    (void)state;
    char command[2 * PATH_CAP];
    snprintf(command, sizeof command, "rm -r '%s'", unpacked);
    return unpacked[0] != 0 ? system(command) : 0;
}

static void *read_all(const char *type, const char *suffix, size_t *size) {
    char path[2 * PATH_CAP];
    snprintf(path, sizeof path, "%s/dequant/%s.%s", unpacked, type, suffix);
    FILE *f = fopen(path, "rb");
    if (f == NULL) return NULL;
    fseek(f, 0, SEEK_END);
    *size = (size_t)ftell(f);
    rewind(f);
    void *bytes = malloc(*size);
    assert_int_equal(fread(bytes, 1, *size, f), *size);
    fclose(f);
    return bytes;
}

static void check_type(enum atsi_dtype dtype) {
    size_t n_blocks_bytes, n_golden_bytes;
    void *blocks = read_all(atsi_dtype_name(dtype), "blk", &n_blocks_bytes);
    if (blocks == NULL) {
        print_message("no golden data for %s\n", atsi_dtype_name(dtype));
        return;
    }
    float *golden = read_all(atsi_dtype_name(dtype), "f32", &n_golden_bytes);
    assert_non_null(golden);
    uint64_t n = n_golden_bytes / sizeof(float);
    assert_int_equal(atsi_dtype_row_bytes(dtype, n), n_blocks_bytes);
    float *got = malloc(n_golden_bytes);
    atsi_dequant(dtype, blocks, n, got);
    for (uint64_t i = 0; i < n; i++)
        if (memcmp(&got[i], &golden[i], sizeof(float)) != 0)
            fail_msg("%s weight %llu: got %a, expected %a", atsi_dtype_name(dtype), (unsigned long long)i,
                     (double)got[i], (double)golden[i]);
    free(got);
    free(golden);
    free(blocks);
}

static void test_golden(void **state) {
    (void)state;
    if (unpacked[0] == 0) {
        print_message("skipped: no dequant.tar.zst in $ATSI_TEST_DATA or ../shared\n");
        skip();
    }
    int n_checked = 0;
    for (uint32_t id = 0; id < ATSI_DTYPE_LIMIT; id++) {
        enum atsi_dtype dtype = (enum atsi_dtype)id;
        if (!atsi_dequant_supported(dtype)) continue;
        if (atsi_quant_type(dtype) != NULL || dtype == ATSI_BF16) {
            check_type(dtype);
            n_checked++;
        }
    }
    assert_true(n_checked >= 21);
}

// The block sizes that the kernels assume are those of the table of types.
static void test_sizes(void **state) {
    (void)state;
    for (uint32_t id = 0; id < ATSI_DTYPE_LIMIT; id++) {
        const struct atsi_quant_type *type = atsi_quant_type((enum atsi_dtype)id);
        if (type == NULL) continue;
        assert_int_equal(type->block_bytes, atsi_dtype_info(id)->block_bytes);
        assert_int_equal(type->block_elems, atsi_dtype_info(id)->block_elems);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_sizes),
    };
    return cmocka_run_group_tests_name("dequant", tests, unpack_golden, remove_golden);
}
