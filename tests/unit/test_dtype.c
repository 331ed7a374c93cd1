// The tensor type table against figures derived from the layout of each block (scales, mins and packed quants), and
// against the published list of ids that are not in use.
#include "formats/dtype.h"
#include "tests/support/check.h"

struct expected {
    uint32_t id;
    const char *name;
    uint32_t elems, bytes;
};

static const struct expected expected[] = {
    {0, "F32", 1, 4},
    {1, "F16", 1, 2},
    {2, "Q4_0", 32, 2 + 16},
    {3, "Q4_1", 32, 2 + 2 + 16},
    {6, "Q5_0", 32, 2 + 4 + 16},
    {7, "Q5_1", 32, 2 + 2 + 4 + 16},
    {8, "Q8_0", 32, 2 + 32},
    {9, "Q8_1", 32, 2 + 2 + 32},
    {10, "Q2_K", 256, 16 + 64 + 2 + 2},
    {11, "Q3_K", 256, 32 + 64 + 12 + 2},
    {12, "Q4_K", 256, 2 + 2 + 12 + 128},
    {13, "Q5_K", 256, 2 + 2 + 12 + 32 + 128},
    {14, "Q6_K", 256, 128 + 64 + 16 + 2},
    {15, "Q8_K", 256, 4 + 256 + 32},
    {16, "IQ2_XXS", 256, 2 + 64},
    {17, "IQ2_XS", 256, 2 + 64 + 8},
    {18, "IQ3_XXS", 256, 2 + 64 + 32},
    {19, "IQ1_S", 256, 2 + 32 + 16},
    {20, "IQ4_NL", 32, 2 + 16},
    {21, "IQ3_S", 256, 2 + 64 + 8 + 32 + 4},
    {22, "IQ2_S", 256, 2 + 64 + 8 + 8},
    {23, "IQ4_XS", 256, 2 + 2 + 4 + 128},
    {24, "I8", 1, 1},
    {25, "I16", 1, 2},
    {26, "I32", 1, 4},
    {27, "I64", 1, 8},
    {28, "F64", 1, 8},
    {29, "IQ1_M", 256, 32 + 16 + 8},
    {30, "BF16", 1, 2},
    {34, "TQ1_0", 256, 48 + 4 + 2},
    {35, "TQ2_0", 256, 64 + 2},
    {39, "MXFP4", 32, 1 + 16},
    {40, "NVFP4", 64, 4 + 32},
    {41, "Q1_0", 128, 2 + 16},
    {42, "Q2_0", 64, 2 + 16},
};
enum {
    N_EXPECTED = sizeof expected / sizeof *expected
};

static const struct expected *find_expected(uint32_t id) {
    for (int i = 0; i < N_EXPECTED; i++)
        if (expected[i].id == id) return &expected[i];
    return NULL;
}

static void test_table(void **state) {
    (void)state;
    for (uint32_t id = 0; id < 300; id++) {
        const struct expected *want = find_expected(id);
        const struct atsi_dtype_info *info = atsi_dtype_info(id);
        assert_int_equal(want != NULL, info != NULL);
        if (!want) {
            assert_string_equal(atsi_dtype_name(id), "unknown");
            continue;
        }
        assert_string_equal(info->name, want->name);
        assert_int_equal(info->block_elems, want->elems);
        assert_int_equal(info->block_bytes, want->bytes);
        assert_int_equal(atsi_dtype_find(want->name), (int)id);
    }
}

static void test_hostile_ids(void **state) {
    (void)state;
    const uint32_t ids[] = {UINT32_MAX, 1u << 31, 105, ATSI_DTYPE_LIMIT, ATSI_DTYPE_LIMIT - 1, 4, 5, 31, 33, 36, 38};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        assert_null(atsi_dtype_info(ids[i]));
        assert_int_equal(atsi_dtype_row_bytes(ids[i], 256), 0);
    }
    assert_int_equal(atsi_dtype_find("q4_k"), ATSI_Q4_K);
    assert_int_equal(atsi_dtype_find("Q4"), -1);
    assert_int_equal(atsi_dtype_find(""), -1);
}

static void test_row_bytes(void **state) {
    (void)state;
    assert_int_equal(atsi_dtype_row_bytes(ATSI_F16, 7), 14);
    assert_int_equal(atsi_dtype_row_bytes(ATSI_Q4_K, 512), 288);
    assert_int_equal(atsi_dtype_row_bytes(ATSI_Q4_K, 128), 0);
    assert_int_equal(atsi_dtype_row_bytes(ATSI_F32, UINT64_MAX / 4 + 1), 0);
    assert_true(atsi_dtype_row_bytes(ATSI_F32, UINT64_MAX / 4) == UINT64_MAX / 4 * 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_hostile_ids),
        cmocka_unit_test(test_row_bytes),
    };
    return cmocka_run_group_tests_name("dtype", tests, NULL, NULL);
}
