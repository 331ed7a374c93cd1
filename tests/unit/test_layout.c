// Packed layouts: the drawn positions, padding, pieces, and the way back.
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/dequant.h"
#include "kernels/layout.h"
#include "tests/support/check.h"
#include "tests/support/quant_data.h"

static uint64_t packed_bytes(enum atsi_dtype dtype, uint64_t n_rows, uint64_t n_cols) {
    const uint64_t ne[4] = {n_cols, n_rows, 1, 1};
    return atsi_layout_bytes(dtype, atsi_layout_of(dtype), ne);
}

static void check_round_trip(enum atsi_dtype dtype, uint64_t n_rows, uint64_t n_cols, struct quant_rng *rng) {
    uint64_t bytes = n_rows * atsi_dtype_row_bytes(dtype, n_cols), n_packed = packed_bytes(dtype, n_rows, n_cols);
    enum atsi_layout layout = atsi_layout_of(dtype);
    uint8_t *src = malloc(bytes), *packed = malloc(n_packed), *back = malloc(bytes);
    quant_fill_weights(dtype, QUANT_RANDOM, rng, n_rows * n_cols, src);
    memset(packed, 0xaa, n_packed);
    atsi_layout_pack(dtype, layout, src, n_rows, n_cols, packed);
    atsi_layout_unpack(dtype, layout, packed, n_rows, n_cols, back);
    assert_memory_equal(src, back, bytes);

    // In two pieces, the first a whole number of tiles.
    if (n_rows > 16) {
        uint8_t *pieces = malloc(n_packed);
        uint64_t row_bytes = bytes / n_rows;
        atsi_layout_pack(dtype, layout, src, 16, n_cols, pieces);
        atsi_layout_pack(dtype, layout, src + 16 * row_bytes, n_rows - 16, n_cols, pieces + 16 * row_bytes);
        assert_memory_equal(packed, pieces, n_packed);
        free(pieces);
    }
    // A single row by look-up.
    float *all = malloc(n_rows * n_cols * sizeof(float)), *one = malloc(n_cols * sizeof(float));
    atsi_dequant(dtype, src, n_rows * n_cols, all);
    for (uint64_t row = 0; row < n_rows; row++) {
        atsi_dequant_row(dtype, layout, packed, n_cols, row, one);
        assert_memory_equal(all + row * n_cols, one, n_cols * sizeof(float));
    }
    free(all);
    free(one);
    free(src);
    free(packed);
    free(back);
}

static void test_round_trip(void **state) {
    (void)state;
    struct quant_rng rng = {1};
    for (int i = 0; i < QUANT_DATA_N_TYPES; i++) {
        enum atsi_dtype dtype = QUANT_DATA_TYPES[i];
        uint64_t block = atsi_dtype_info(dtype)->block_elems;
        static const uint64_t rows[] = {1, 15, 16, 17, 48};
        for (unsigned r = 0; r < sizeof rows / sizeof rows[0]; r++) {
            check_round_trip(dtype, rows[r], 256, &rng);
            check_round_trip(dtype, rows[r], 3 * block, &rng);
        }
    }
}

static void test_bytes_equal_gguf(void **state) {
    (void)state;
    for (int i = 0; i < QUANT_DATA_N_TYPES; i++) {
        enum atsi_dtype dtype = QUANT_DATA_TYPES[i];
        assert_int_equal(packed_bytes(dtype, 32, 512), 32 * atsi_dtype_row_bytes(dtype, 512));
        if (atsi_layout_of(dtype) == ATSI_LAYOUT_TILE16) {
            assert_int_equal(packed_bytes(dtype, 17, 512), 32 * atsi_dtype_row_bytes(dtype, 512));
        }
    }
}

// The offsets of the drawing, probed with marked source bytes: field byte `src` of row 5 lands at `at`.
static void check_place(enum atsi_dtype dtype, size_t src, size_t at, uint8_t stored) {
    size_t block = atsi_dtype_info(dtype)->block_bytes;
    uint8_t *rows = calloc(16, block), *tile = malloc(16 * block);
    rows[5 * block + src] = 0x5a;
    atsi_layout_pack(dtype, ATSI_LAYOUT_TILE16, rows, 16, atsi_dtype_info(dtype)->block_elems, tile);
    assert_int_equal(tile[at], stored);
    free(rows);
    free(tile);
}

static void test_drawn_places(void **state) {
    (void)state;
    const size_t row = 5 * 4; // row 5 in a word part
    check_place(ATSI_Q8_0, 2 + 4 * 3 + 1, ATSI_TILE_Q8_0_QS + 3 * 64 + row + 1, 0xda);
    check_place(ATSI_Q4_0, 2 + 4 * 3 + 1, ATSI_TILE_Q4_0_QS + 3 * 64 + row + 1, 0x5a);
    check_place(ATSI_Q4_1, 2, ATSI_TILE_Q4_1_M + 10, 0x5a);
    check_place(ATSI_Q4_1, 4 + 5, ATSI_TILE_Q4_1_QS + 64 + row + 1, 0x5a);
    check_place(ATSI_Q5_0, 6 + 5, ATSI_TILE_Q5_0_QS + 64 + row + 1, 0x5a);
    check_place(ATSI_Q5_0, 2, ATSI_TILE_Q5_0_QH + row + 1, 0x01); // bit 1 of qh: weight 4 * 0 + 1
    check_place(ATSI_Q5_1, 8 + 5, ATSI_TILE_Q5_1_QS + 64 + row + 1, 0x5a);
    check_place(ATSI_Q5_1, 4, ATSI_TILE_Q5_1_QH + row + 3, 0x01); // bit 3: weight 4 * 0 + 3
    check_place(ATSI_IQ4_NL, 2 + 5, ATSI_TILE_IQ4_NL_QS + 64 + row + 1, 0x5a);
    check_place(ATSI_MXFP4, 0, 5, 0x5a);
    check_place(ATSI_MXFP4, 1 + 5, ATSI_TILE_MXFP4_QS + 64 + row + 1, 0x5a);
    check_place(ATSI_Q2_K, 82, ATSI_TILE_Q2_K_DMIN + 10, 0x5a);
    check_place(ATSI_Q2_K, 7, ATSI_TILE_Q2_K_SCALES + 7 * 16 + 5, 0x5a);
    check_place(ATSI_Q2_K, 16 + 33, ATSI_TILE_Q2_K_QS + 8 * 64 + row + 1, 0x5a);
    check_place(ATSI_Q3_K, 96 + 11, ATSI_TILE_Q3_K_SCALES + 11 * 16 + 5, 0x5a);
    check_place(ATSI_Q3_K, 9, ATSI_TILE_Q3_K_HMASK + 2 * 64 + row + 1, 0x5a);
    check_place(ATSI_Q3_K, 32 + 9, ATSI_TILE_Q3_K_QS + 2 * 64 + row + 1, 0x5a);
    check_place(ATSI_Q4_K, 2, ATSI_TILE_Q4_K_DMIN + 10, 0x5a);
    check_place(ATSI_Q4_K, 4 + 9, ATSI_TILE_Q4_K_SCALES + 9 * 16 + 5, 0x5a);
    check_place(ATSI_Q4_K, 16 + 35, ATSI_TILE_Q4_K_QS + 8 * 64 + row + 3, 0x5a);
    check_place(ATSI_Q5_K, 16 + 9, ATSI_TILE_Q5_K_QH + 2 * 64 + row + 1, 0x5a);
    check_place(ATSI_Q5_K, 48 + 9, ATSI_TILE_Q5_K_QS + 2 * 64 + row + 1, 0x5a);
    check_place(ATSI_Q6_K, 192 + 3, ATSI_TILE_Q6_K_SCALES + 3 * 16 + 5, 0x5a);
    check_place(ATSI_Q6_K, 64 + 32 + 9, ATSI_TILE_Q6_K_QS + (3 * 10 + 1) * 64 + row + 1, 0x5a); // h 1, g 1, k 2
    check_place(ATSI_Q6_K, 128 + 32 + 9, ATSI_TILE_Q6_K_QS + (3 * 10 + 2) * 64 + row + 1, 0x5a);
    check_place(ATSI_IQ4_XS, 2, ATSI_TILE_IQ4_XS_SCALES_H + 10, 0x5a);
    check_place(ATSI_IQ4_XS, 4 + 3, ATSI_TILE_IQ4_XS_SCALES_L + 3 * 16 + 5, 0x5a);
    check_place(ATSI_IQ4_XS, 8 + 9, ATSI_TILE_IQ4_XS_QS + 2 * 64 + row + 1, 0x5a);
}

static void test_layout_of_types(void **state) {
    (void)state;
    assert_int_equal(atsi_layout_of(ATSI_F16), ATSI_LAYOUT_PLAIN);
    assert_int_equal(atsi_layout_of(ATSI_IQ2_S), ATSI_LAYOUT_PLAIN);
    assert_int_equal(atsi_layout_of(ATSI_Q4_K), ATSI_LAYOUT_TILE16);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_bytes_equal_gguf),
        cmocka_unit_test(test_drawn_places),
        cmocka_unit_test(test_layout_of_types),
    };
    return cmocka_run_group_tests_name("layout", tests, NULL, NULL);
}
