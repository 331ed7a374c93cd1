// Lists of steps: random steps over overlapping memory must leave what running them one after the other leaves, whatever groups and
// chains they were put into; and steps that are apart must not wait for each other.
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/steps.h"
#include "tests/support/check.h"
#include "tests/support/op_case.h"

enum {
    WORDS = 4096,
    STEPS = 60,
    PIECES = 5
};

// out row i = mix of the rows i (row-wise) or of everything (else) of two inputs.
struct move {
    struct atsi_span in[2], out; // data: as offsets into the memory, in words
    bool by_row;
};

static struct move moves[STEPS];
static uint32_t *memory; // that the steps of the running list work on

static uint32_t *row_of(const struct atsi_span *span, uint32_t row) {
    return memory + (uintptr_t)span->data + (size_t)row * span->stride;
}

static uint32_t mix(uint32_t a, uint32_t b) { return (a ^ b * 2654435761u) * 2246822519u + 1; }

static uint32_t digest(const struct atsi_span *span, uint32_t first_row, uint32_t n_rows, uint32_t seed) {
    for (uint32_t r = first_row; r < first_row + n_rows; r++)
        for (uint32_t i = 0; i < span->width; i++) seed = mix(seed, row_of(span, r)[i]);
    return seed;
}

static void run_by_row(struct atsi_cpu *cpu, const struct atsi_step *step, uint32_t row, int i_thread) {
    (void)cpu, (void)i_thread;
    const struct move *m = &moves[step->arg[0]];
    uint32_t value = digest(&m->in[1], row, 1, digest(&m->in[0], row, 1, step->arg[0]));
    for (uint32_t i = 0; i < m->out.width; i++) row_of(&m->out, row)[i] = mix(value, i);
}

// Item: some of the columns of all rows. The inputs do not meet the output.
static void run_across(struct atsi_cpu *cpu, const struct atsi_step *step, uint32_t item, int i_thread) {
    (void)cpu, (void)i_thread;
    const struct move *m = &moves[step->arg[0]];
    uint32_t value = digest(&m->in[1], 0, m->in[1].n_rows, digest(&m->in[0], 0, m->in[0].n_rows, step->arg[0]));
    for (uint32_t r = 0; r < m->out.n_rows; r++)
        for (uint32_t i = item; i < m->out.width; i += PIECES) row_of(&m->out, r)[i] = mix(value, r * 1000 + i);
}

// A view of one of a few buffers that partly share memory, as placed buffers do.
static struct atsi_span random_view(struct test_random *r, uint32_t n_rows) {
    static const uint32_t STARTS[] = {0, 0, 400, 500, 1000, 1040, 1500}, WIDTHS[] = {20, 33, 20, 20, 48, 16, 20};
    uint32_t b = test_random_below(r, 7), width = 1 + test_random_below(r, WIDTHS[b]),
             offset = test_random_below(r, WIDTHS[b] - width + 1);
    return (struct atsi_span){
        .data = (void *)(uintptr_t)(STARTS[b] + offset), .stride = WIDTHS[b], .width = width, .n_rows = n_rows};
}

static bool overlap(struct atsi_span a, struct atsi_span b) {
    a.data = memory + (uintptr_t)a.data;
    b.data = memory + (uintptr_t)b.data;
    return atsi_spans_overlap(&a, &b);
}

// Row-wise steps may read and write the same rows, but a row must not meet another row of its own step.
static bool is_row_local(const struct atsi_span *in, const struct atsi_span *out) {
    return !overlap(*in, *out) || (in->data == out->data && in->stride == out->stride);
}

static void invent_moves(struct test_random *r, uint32_t n_rows) {
    for (uint32_t i = 0; i < STEPS;) {
        struct move m = {.in = {random_view(r, n_rows), random_view(r, n_rows)},
                         .out = random_view(r, n_rows),
                         .by_row = test_random_below(r, 4) != 0};
        m.out.write = true;
        bool valid = true;
        for (int k = 0; k < 2; k++) valid &= m.by_row ? is_row_local(&m.in[k], &m.out) : !overlap(m.in[k], m.out);
        if (valid) moves[i++] = m;
    }
}

static void add_moves(struct atsi_steps *steps) {
    for (uint32_t i = 0; i < STEPS; i++) {
        const struct move *m = &moves[i];
        struct atsi_span spans[3] = {m->in[0], m->in[1], m->out};
        for (int k = 0; k < 3; k++) spans[k].data = memory + (uintptr_t)spans[k].data;
        struct atsi_step step = {.run = m->by_row ? run_by_row : run_across,
                                 .n_items = m->by_row ? m->out.n_rows : PIECES,
                                 .by_row = m->by_row,
                                 .arg = {i}};
        atsi_steps_add(steps, &step, spans, 3);
    }
}

static void run_in_order(void) {
    for (uint32_t i = 0; i < STEPS; i++) {
        struct atsi_step step = {.arg = {i}};
        for (uint32_t item = 0; item < (moves[i].by_row ? moves[i].out.n_rows : PIECES); item++)
            (moves[i].by_row ? run_by_row : run_across)(NULL, &step, item, 0);
    }
}

static void random_lists_keep_their_order(void **state) {
    (void)state;
    struct test_random r = {1};
    struct atsi_error err;
    struct atsi_pool *pool;
    struct atsi_steps *steps = atsi_steps_create(STEPS);
    uint32_t *wanted = calloc(WORDS, sizeof *wanted), *found = calloc(WORDS, sizeof *found);
    assert_non_null(steps);
    check_ok(atsi_pool_create_unbound(3, &pool, &err), err);
    for (int round = 0; round < 150; round++) {
        memory = wanted;
        invent_moves(&r, round % 3 == 0 ? 1 : 1 + test_random_below(&r, 12));
        for (int i = 0; i < WORDS; i++) wanted[i] = found[i] = test_random_u32(&r);
        run_in_order();
        memory = found;
        add_moves(steps);
        atsi_steps_run(steps, NULL, round % 2 ? pool : NULL);
        assert_memory_equal(wanted, found, WORDS * sizeof *wanted);
    }
    atsi_steps_free(steps);
    atsi_pool_free(pool);
    free(wanted);
    free(found);
}

static void views_of_a_buffer(void **state) {
    (void)state;
    float m[100];
    struct atsi_span left = {.data = m, .stride = 10, .width = 4, .n_rows = 10},
                     right = {.data = m + 4, .stride = 10, .width = 6, .n_rows = 10};
    struct atsi_span middle = {.data = m + 3, .stride = 10, .width = 2, .n_rows = 10},
                     other = {.data = m + 4, .stride = 9, .width = 5, .n_rows = 10};
    assert_false(atsi_spans_overlap(&left, &right));
    assert_true(atsi_spans_overlap(&left, &middle));
    assert_true(atsi_spans_overlap(&middle, &right));
    assert_true(atsi_spans_overlap(&left, &other)); // other rows: counts as met
    struct atsi_span absent = {.data = NULL, .width = 4, .n_rows = 10};
    assert_false(atsi_spans_overlap(&left, &absent));
    struct atsi_span large = atsi_span_bytes(m, 40ull << 30, true);
    assert_true(large.n_rows > 1 && (uint64_t)large.n_rows * large.width * 4 >= 40ull << 30);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_lists_keep_their_order),
                                       cmocka_unit_test(views_of_a_buffer)};
    return cmocka_run_group_tests_name("steps", tests, NULL, NULL);
}
