// Products of a token as a job: each item by itself, in any order, twice and from copies of inputs that are written over meanwhile,
// gives the bits of the whole product; what does not fit is refused.
#include <string.h>

#include "kernels/cpu/matmul_impl.h"
#include "kernels/cpu/products.h"
#include "tests/support/matmul_problem.h"

enum {
    MOST_TILES = 512 // of an item
};

static void *make_job(const struct atsi_repeat_kind *kind, const struct atsi_matmul_kernels *k, size_t in_bytes) {
    void *job = problem_memory(kind->job_bytes);
    memset(job, 0xff, kind->job_bytes);
    atsi_products_clear(job, k, in_bytes);
    return job;
}

static size_t in_bytes_of(const struct atsi_matmul_args *a) {
    return atsi_input_part_bytes(atsi_matmul_input(a->dtype), a->n_cols);
}

// From the last item to the first, each kept once and computed once more behind that.
static void run_items(const struct atsi_repeat_kind *kind, const void *job, uint32_t n_items) {
    void *result = problem_memory(kind->result_bytes);
    for (uint32_t i = n_items; i-- > 0;) {
        kind->compute(job, i, result);
        kind->keep(job, i, result, 0);
        kind->compute(job, i, result);
    }
    free(result);
}

// Two products of one input, the second with bias and added to what is there.
static void check_type(const struct atsi_matmul_kernels *k, enum atsi_dtype dtype, uint32_t n_rows, uint32_t tiles,
                       struct quant_rng *rng) {
    uint32_t n_cols = 2 * atsi_dtype_info(dtype)->block_elems;
    if (n_cols < 64) n_cols = 64;
    struct problem p = problem_make(dtype, QUANT_RANDOM, n_rows, n_cols, 1, rng, k);
    size_t in_bytes = in_bytes_of(&p.args);
    struct atsi_repeat_kind kind = atsi_products_kind(in_bytes);
    void *job = make_job(&kind, k, in_bytes);
    float *expected = problem_memory(2 * n_rows * sizeof(float)), *found = problem_memory(2 * n_rows * sizeof(float));
    for (uint32_t i = 0; i < 2 * n_rows; i++) expected[i] = found[i] = (float)i;
    struct atsi_matmul_args plain = p.args, added = p.args;
    plain.out = found;
    added.out = found + n_rows;
    added.bias = p.bias;
    added.add = true;
    problem_run(k, plain, expected);
    problem_run(k, added, expected + n_rows);
    assert_true(atsi_products_add(job, &plain, in_bytes, tiles));
    assert_true(atsi_products_add(job, &added, in_bytes, tiles)); // needs no room of its own
    memset((void *)(uintptr_t)p.args.in, 0xff, in_bytes);
    run_items(&kind, job, 2 * ((atsi_matmul_tiles(n_rows) + tiles - 1) / tiles));
    if (memcmp(found, expected, 2 * n_rows * sizeof(float)) != 0)
        fail_msg("%s %s: %u rows by %u tiles differ", atsi_isa_name(k->isa), atsi_dtype_name(dtype), n_rows, tiles);
    free(job);
    free(expected);
    free(found);
    problem_free(&p);
}

static void items_have_the_bits_of_the_product(void **state) {
    (void)state;
    struct quant_rng rng = {5};
    for (int isa = 0; isa < ATSI_ISA_LIMIT; isa++) {
        struct atsi_matmul_kernels k;
        if (!atsi_isa_supported((enum atsi_isa)isa)) continue;
        atsi_matmul_kernels_init(&k, (enum atsi_isa)isa);
        for (int i = 0; i < QUANT_DATA_N_TYPES; i++) {
            check_type(&k, QUANT_DATA_TYPES[i], 1, 1, &rng);
            check_type(&k, QUANT_DATA_TYPES[i], 90, 1, &rng);
            check_type(&k, QUANT_DATA_TYPES[i], 128, 3, &rng);
        }
    }
}

// The inputs begin at the same place: the first is a part of the second.
static void a_wider_input_is_copied_too(void **state) {
    (void)state;
    enum {
        N_ROWS = 20,
        N_COLS = 96
    };
    struct quant_rng rng = {7};
    struct atsi_matmul_kernels k;
    atsi_matmul_kernels_init(&k, ATSI_ISA_REFERENCE);
    struct problem wide = problem_make(ATSI_F32, QUANT_RANDOM, N_ROWS, N_COLS, 1, &rng, &k),
                   narrow = problem_make(ATSI_F32, QUANT_RANDOM, N_ROWS, N_COLS / 3, 1, &rng, &k);
    struct atsi_repeat_kind kind = atsi_products_kind(2 * in_bytes_of(&wide.args));
    void *job = make_job(&kind, &k, 2 * in_bytes_of(&wide.args));
    float expected[2 * N_ROWS], found[2 * N_ROWS];
    narrow.args.in = wide.args.in;
    narrow.args.out = found;
    wide.args.out = found + N_ROWS;
    problem_run(&k, narrow.args, expected);
    problem_run(&k, wide.args, expected + N_ROWS);
    assert_true(atsi_products_add(job, &narrow.args, in_bytes_of(&narrow.args), 1));
    assert_true(atsi_products_add(job, &wide.args, in_bytes_of(&wide.args), 1));
    memset(wide.in, 0xff, in_bytes_of(&wide.args));
    run_items(&kind, job, 4);
    assert_memory_equal(found, expected, sizeof expected);
    free(job);
    problem_free(&wide);
    problem_free(&narrow);
}

static void what_does_not_fit_is_refused(void **state) {
    (void)state;
    struct atsi_matmul_kernels k;
    float in[2][32] = {{0}}, out[1];
    struct atsi_matmul_args args = {
        .dtype = ATSI_F32, .n_rows = 16 * 4000, .n_cols = 32, .n_tokens = 1, .in = in[0], .out = out};
    struct atsi_repeat_kind kind = atsi_products_kind(sizeof in[0]);
    atsi_matmul_kernels_init(&k, ATSI_ISA_REFERENCE);
    void *job = make_job(&kind, &k, sizeof in[0]);
    assert_false(atsi_products_add(job, &args, sizeof in[0], MOST_TILES + 1));
    assert_true(atsi_products_add(job, &args, sizeof in[0], 1));
    args.n_rows = 16 * 97;
    assert_false(atsi_products_add(job, &args, sizeof in[0], 1)); // 4097 items
    args.n_rows = 16;
    args.in = in[1];
    assert_false(atsi_products_add(job, &args, sizeof in[1], 1)); // no room for another input
    args.in = in[0];
    uint32_t n = 1;
    while (n <= ATSI_REPEAT_ITEMS_MAX && atsi_products_add(job, &args, sizeof in[0], 1)) n++;
    assert_in_range(n, 16, ATSI_REPEAT_ITEMS_MAX - 4000 + 1);
    free(job);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(items_have_the_bits_of_the_product),
        cmocka_unit_test(a_wider_input_is_copied_too),
        cmocka_unit_test(what_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
