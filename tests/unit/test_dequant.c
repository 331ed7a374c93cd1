// Dequantised values against golden data (random blocks with the values that ggml gives), bit for bit.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/dequant.h"
#include "kernels/cpu/quant.h"
#include "tests/support/check.h"
#include "tests/support/test_data.h"
#include "tests/support/test_temp.h"

static char unpacked[TEMP_ROOT_CAP]; // folder of the unpacked golden data
static bool has_data;

static int unpack_golden(void **state) {
    (void)state;
    temp_folder(unpacked);
    has_data = test_data_unpack("dequant.tar.zst", unpacked);
    return 0;
}

static int remove_golden(void **state) {
    (void)state;
    temp_remove(unpacked);
    return 0;
}

static bool read_golden(const char *type, const char *suffix, struct bytes *out) {
    char path[TEMP_PATH_CAP];
    snprintf(path, sizeof path, "%s/dequant/%s.%s", unpacked, type, suffix);
    return bytes_read(path, out);
}

// False when there is no golden data for the type.
static bool check_type(enum atsi_dtype dtype) {
    struct bytes blocks, golden;
    if (!read_golden(atsi_dtype_name(dtype), "blk", &blocks)) {
        print_message("no golden data for %s\n", atsi_dtype_name(dtype));
        return false;
    }
    assert_true(read_golden(atsi_dtype_name(dtype), "f32", &golden));
    uint64_t n = golden.size / sizeof(float);
    assert_int_equal(atsi_dtype_row_bytes(dtype, n), blocks.size);
    const float *wanted = (const float *)golden.data;
    float *got = malloc(golden.size);
    atsi_dequant(dtype, blocks.data, n, got);
    for (uint64_t i = 0; i < n; i++)
        if (memcmp(&got[i], &wanted[i], sizeof(float)) != 0)
            fail_msg("%s weight %llu: got %a, expected %a", atsi_dtype_name(dtype), (unsigned long long)i,
                     (double)got[i], (double)wanted[i]);
    free(got);
    bytes_free(&golden);
    bytes_free(&blocks);
    return true;
}

static void test_golden(void **state) {
    (void)state;
    if (!has_data) test_data_skip("dequant.tar.zst");
    int n_checked = 0;
    for (uint32_t id = 0; id < ATSI_DTYPE_LIMIT; id++) {
        enum atsi_dtype dtype = (enum atsi_dtype)id;
        if (!atsi_dequant_supported(dtype)) continue;
        if (atsi_quant_type(dtype) != NULL || dtype == ATSI_BF16) n_checked += check_type(dtype);
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
