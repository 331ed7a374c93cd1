// Packing: what reaches the plan is the layout of the file's rows, in the recipe's order, whatever the number of threads and however
// the tensor is cut into batches.
#include <stdlib.h>

#include "formats/half.h"
#include "kernels/layout.h"
#include "planner/pack.h"
#include "tests/support/bytes.h"
#include "tests/support/check.h"
#include "tests/support/quant_data.h"

static enum atsi_status collect(void *user, const void *data, uint64_t size, struct atsi_error *err) {
    (void)err;
    bytes_append(user, data, size);
    return ATSI_OK;
}

static struct bytes pack(const struct atsi_tensor *t, const struct atsi_recipe *r, int n_threads) {
    struct atsi_pool *pool;
    struct atsi_error err;
    struct bytes packed = {0};
    check_ok(atsi_pool_create(n_threads, &pool, &err), err);
    check_ok(atsi_pack_tensor(pool, t, r, collect, &packed, &err), err);
    atsi_pool_free(pool);
    assert_int_equal(packed.size, t->size_bytes);
    return packed;
}

struct source {
    struct atsi_gguf_tensor gguf;
    struct atsi_tensor tensor;
    uint8_t *data;
};

static struct source make_source(enum atsi_dtype dtype, uint64_t ne0, uint64_t ne1, uint64_t ne2) {
    struct source s = {0};
    struct quant_rng rng = {7};
    uint64_t bytes = atsi_dtype_row_bytes(dtype, ne0) * ne1 * ne2;
    s.data = malloc(bytes);
    assert_non_null(s.data);
    quant_fill_weights(dtype, QUANT_RANDOM, &rng, ne0 * ne1 * ne2, s.data);
    s.gguf = (struct atsi_gguf_tensor){
        .dtype = dtype, .n_dims = 3, .ne = {ne0, ne1, ne2, 1}, .data = s.data, .size_bytes = bytes};
    s.tensor =
        (struct atsi_tensor){.name = "t", .dtype = dtype, .layout = atsi_layout_of(dtype), .ne = {ne0, ne1, ne2, 1}};
    s.tensor.size_bytes = atsi_layout_bytes(dtype, s.tensor.layout, s.tensor.ne);
    return s;
}

// Unpacks every matrix and compares it with the rows of the file in the wanted order.
static void check_rows(const struct source *s, const struct bytes *packed, const uint32_t *order) {
    uint64_t row_bytes = atsi_dtype_row_bytes(s->tensor.dtype, s->tensor.ne[0]), n_rows = s->tensor.ne[1];
    uint64_t matrix_bytes = packed->size / s->tensor.ne[2];
    uint8_t *rows = malloc(row_bytes * n_rows);
    assert_non_null(rows);
    for (uint64_t m = 0; m < s->tensor.ne[2]; m++) {
        atsi_layout_unpack(s->tensor.dtype, s->tensor.layout, packed->data + m * matrix_bytes, n_rows, s->tensor.ne[0],
                           rows);
        for (uint64_t r = 0; r < n_rows; r++)
            assert_memory_equal(rows + r * row_bytes, s->data + (m * n_rows + (order ? order[r] : r)) * row_bytes,
                                row_bytes);
    }
    free(rows);
}

static void test_every_type_and_thread_count(void **state) {
    (void)state;
    for (int i = 0; i < QUANT_DATA_N_TYPES; i++)
        for (int n_threads = 1; n_threads <= 2; n_threads++) {
            struct source s = make_source(QUANT_DATA_TYPES[i], 512, 37, 3); // the last tile of each matrix is not full
            struct atsi_recipe recipe = {.source = &s.gguf};
            struct bytes packed = pack(&s.tensor, &recipe, n_threads);
            check_rows(&s, &packed, NULL);
            bytes_free(&packed);
            free(s.data);
        }
}

static void test_rows_in_another_order(void **state) {
    (void)state;
    static const enum atsi_dtype types[] = {ATSI_F16, ATSI_Q8_0, ATSI_Q4_K};
    uint32_t order[70];
    for (uint32_t i = 0; i < 70; i++) order[i] = i * 13 % 70; // 13 and 70 share no factor
    for (unsigned i = 0; i < sizeof types / sizeof *types; i++) {
        struct source s = make_source(types[i], 256, 70, 1);
        struct atsi_recipe recipe = {.source = &s.gguf, .row_order = order};
        struct bytes packed = pack(&s.tensor, &recipe, 2);
        check_rows(&s, &packed, order);
        bytes_free(&packed);
        free(s.data);
    }
}

// More than a batch of 32 MiB and more than a piece of 1 MiB.
static void test_a_large_tensor(void **state) {
    (void)state;
    struct source s = make_source(ATSI_Q8_0, 4096, 8300, 1);
    struct atsi_recipe recipe = {.source = &s.gguf};
    struct bytes packed = pack(&s.tensor, &recipe, 2);
    check_rows(&s, &packed, NULL);
    bytes_free(&packed);
    free(s.data);
}

static void test_small_floats_are_widened(void **state) {
    (void)state;
    static const enum atsi_dtype types[] = {ATSI_F16, ATSI_BF16};
    for (unsigned i = 0; i < 2; i++) {
        struct source s = make_source(types[i], 48, 2, 1);
        struct atsi_recipe recipe = {.source = &s.gguf};
        s.tensor.dtype = ATSI_F32;
        s.tensor.layout = ATSI_LAYOUT_PLAIN;
        s.tensor.size_bytes = sizeof(float) * 48 * 2;
        struct bytes packed = pack(&s.tensor, &recipe, 1);
        for (int k = 0; k < 96; k++) {
            uint16_t bits;
            float got, want;
            memcpy(&bits, s.data + 2 * k, 2);
            memcpy(&got, packed.data + 4 * k, 4);
            want = types[i] == ATSI_F16 ? atsi_f16_to_f32(bits) : atsi_bf16_to_f32(bits);
            assert_true(got == want);
        }
        bytes_free(&packed);
        free(s.data);
    }
}

static void test_made_tables(void **state) {
    (void)state;
    float values[] = {1, 0.5f, 0.25f};
    struct atsi_tensor t = {
        .name = "rope.inv_freq.0", .dtype = ATSI_F32, .ne = {3, 1, 1, 1}, .size_bytes = sizeof values};
    struct atsi_recipe recipe = {.table = values};
    struct bytes packed = pack(&t, &recipe, 1);
    assert_memory_equal(packed.data, values, sizeof values);
    bytes_free(&packed);
}

static enum atsi_status refuse(void *user, const void *data, uint64_t size, struct atsi_error *err) {
    (void)user, (void)data, (void)size;
    return atsi_fail(err, ATSI_FAILED, "disk full");
}

static void test_a_failing_sink_stops_it(void **state) {
    (void)state;
    struct source s = make_source(ATSI_Q4_0, 64, 32, 4);
    struct atsi_recipe recipe = {.source = &s.gguf};
    struct atsi_pool *pool;
    struct atsi_error err;
    check_ok(atsi_pool_create(1, &pool, &err), err);
    assert_int_equal(atsi_pack_tensor(pool, &s.tensor, &recipe, refuse, NULL, &err), ATSI_FAILED);
    check_message(err, "disk full");
    atsi_pool_free(pool);
    free(s.data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_type_and_thread_count),
        cmocka_unit_test(test_rows_in_another_order),
        cmocka_unit_test(test_a_large_tensor),
        cmocka_unit_test(test_small_floats_are_widened),
        cmocka_unit_test(test_made_tables),
        cmocka_unit_test(test_a_failing_sink_stops_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
