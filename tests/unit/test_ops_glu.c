// Products of one token with the GLU and the quantisation that follow their parts (kernels/cpu/steps.h): lists give the bits of the same
// operations one by one, whatever threads, instruction set and crowd; and they take the phases that they should.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/features.h"
#include "tests/support/check.h"
#include "tests/support/op_case.h"

enum {
    EXPERTS = 7,
    RUNS = 3
};

struct shape {
    uint32_t width, n_ff;
    uint32_t n_used; // 0: no experts
    bool quantised, biased, in_place, has_down;
    bool other_type; // up's weights are not of gate's type
    bool divided;    // some slots are left to a device
    bool partial;    // GLU of the first half of the columns only
    struct atsi_glu_params glu;
};

struct glu_case {
    struct op_case c;
    int32_t ids, gate, up, mid, down; // buffers; down ATSI_NONE: there is none
    uint32_t n_slots, n_ff, width;
};

static int32_t add_weight(struct op_case *c, const struct shape *s, bool quantised, uint32_t cols, uint32_t rows,
                          struct test_random *r) {
    uint32_t n = s->n_used ? EXPERTS : 1, packed = (rows + 15) / 16 * 16; // whole tiles
    int32_t w = quantised ? op_case_q8_0(c, cols, (uint64_t)n * packed, r, 0.2f)
                          : op_case_tensor(c, cols, (uint64_t)n * rows, 1, r, 0.2f);
    c->program.tensors[w].ne[1] = rows;
    c->program.tensors[w].ne[2] = n;
    return w;
}

static void add_product(struct glu_case *x, const struct shape *s, int32_t in, int32_t out, bool quantised,
                        bool is_down, struct test_random *r) {
    uint32_t cols = is_down ? s->n_ff : s->width, rows = is_down ? s->width : s->n_ff;
    int32_t weight = add_weight(&x->c, s, quantised, cols, rows, r);
    int32_t bias = s->biased ? op_case_tensor(&x->c, rows, s->n_used ? EXPERTS : 1, 1, r, 1.0f) : ATSI_NONE;
    struct atsi_op *op = op_case_op(&x->c, s->n_used ? ATSI_OP_EXPERTS : ATSI_OP_MATMUL);
    op->in[0] = op_case_view(&x->c, in);
    op->out[0] = op_case_view(&x->c, out);
    op->tensor[0] = weight;
    op->tensor[1] = bias;
    if (!s->n_used) return;
    op->in[1] = op_case_view(&x->c, x->ids);
    op->u.experts = (struct atsi_experts_params){EXPERTS, s->n_used, is_down};
}

static void add_glu(struct glu_case *x, const struct shape *s) {
    struct atsi_op *op = op_case_op(&x->c, ATSI_OP_GLU);
    op->in[0] = op_case_view(&x->c, x->gate);
    op->in[1] = op_case_view(&x->c, x->up);
    op->out[0] = op_case_view(&x->c, x->mid);
    op->u.glu = s->glu;
    if (!s->partial) return;
    op->in[0].width = op->in[1].width = op->out[0].width = x->n_slots * s->n_ff / 2;
}

static void build(struct glu_case *x, const struct shape *s, struct test_random *r) {
    x->n_slots = s->n_used ? s->n_used : 1;
    x->n_ff = s->n_ff;
    x->width = s->width;
    op_case_init(&x->c, 1, 0);
    struct op_case *c = &x->c;
    int32_t in = op_case_buffer(c, s->width, ATSI_ROWS_TOKENS, false, r, 1.0f);
    x->ids = op_case_buffer(c, x->n_slots, ATSI_ROWS_TOKENS, true, NULL, 0);
    x->gate = op_case_buffer(c, x->n_slots * s->n_ff, ATSI_ROWS_TOKENS, false, r, 1.0f);
    x->up = op_case_buffer(c, x->n_slots * s->n_ff, ATSI_ROWS_TOKENS, false, r, 1.0f);
    x->mid = s->in_place ? x->gate : op_case_buffer(c, x->n_slots * s->n_ff, ATSI_ROWS_TOKENS, false, r, 1.0f);
    x->down = s->has_down ? op_case_buffer(c, x->n_slots * s->width, ATSI_ROWS_TOKENS, false, r, 1.0f) : ATSI_NONE;
    uint32_t first = test_random_below(r, EXPERTS);
    for (uint32_t i = 0; i < x->n_slots; i++)
        ((int32_t *)c->buffers[x->ids])[i] = (int32_t)((first + 3 * i) % EXPERTS); // each once
    add_product(x, s, in, x->gate, s->quantised, false, r);
    add_product(x, s, in, x->up, s->quantised != s->other_type, false, r);
    add_glu(x, s);
    if (s->has_down) add_product(x, s, x->mid, x->down, s->quantised, true, r);
    if (!s->divided) return;
    op_case_make_resident(c, EXPERTS, 0.5f, r);
    op_case_divide(c, s->n_used, test_random_below(r, 2) != 0, 0, r);
}

// The slots that the host leaves out.
static uint32_t n_left_out(const struct glu_case *x) {
    uint32_t n_resident = 0;
    if (x->c.gpu_slots == NULL) return 0;
    for (uint32_t i = 0; i < x->n_slots; i++)
        n_resident += x->c.resident_slots[((const int32_t *)x->c.buffers[x->ids])[i]] >= 0;
    return x->c.gpu_slots[n_resident];
}

// ---- running --------------------------------------------------------------------------------------------------------

struct runner {
    struct atsi_cpu *cpu;
    struct atsi_pool *pool;
    struct atsi_round round;
    struct atsi_op_call calls[OP_CASE_CAP];
    int n_calls;
};

static void start(struct runner *run, struct glu_case *x, const char *isa, int n_threads) {
    struct atsi_error err;
    struct op_case_operands at = {
        .resident_slots = x->c.resident_slots, .token_ids = x->c.token_ids, .round = &run->round};
    *run = (struct runner){.round = {.n_tokens = 1}, .n_calls = (int)x->c.program.n_ops};
    memcpy(at.buffers, x->c.buffers, sizeof at.buffers);
    memcpy(at.tensors, x->c.tensors, sizeof at.tensors);
    memcpy(at.resident, x->c.resident, sizeof at.resident);
    for (int i = 0; i < run->n_calls; i++) run->calls[i] = op_case_call(&x->c, &at, &x->c.program.ops[i], 0);
    check_ok(atsi_cpu_create(isa, &x->c.program, 1, 0, 1, n_threads, &run->cpu, &err), err);
    if (n_threads > 1) check_ok(atsi_pool_create_unbound(n_threads, &run->pool, &err), err);
}

static void stop(struct runner *run) {
    atsi_pool_free(run->pool);
    atsi_cpu_free(run->cpu);
}

// What is left in a buffer, in slots of `width` columns. GLU by itself goes over the slots of others too.
static void check_buffer(const struct glu_case *x, int32_t buffer, uint32_t width, const float *before,
                         const float *wanted, const char *what) {
    size_t left_out = (size_t)n_left_out(x) * width, all = (size_t)x->n_slots * width;
    const float *found = x->c.buffers[buffer];
    if (buffer != x->mid && !test_same_bits(found, before, left_out * sizeof *found))
        fail_msg("%s: slots of others have changed", what);
    if (!test_same_bits(found + left_out, wanted + left_out, (all - left_out) * sizeof *found))
        fail_msg("%s: other bits", what);
}

enum {
    CHECKED = 4
};

struct kept {
    int32_t buffers[CHECKED];
    float *before[CHECKED], *wanted[CHECKED];
};

// Every operation by itself.
static void keep_wanted(struct glu_case *x, struct kept *k) {
    struct runner run;
    const int32_t buffers[CHECKED] = {x->gate, x->up, x->mid, x->down};
    memcpy(k->buffers, buffers, sizeof buffers);
    for (int b = 0; b < CHECKED; b++) k->before[b] = buffers[b] == ATSI_NONE ? NULL : op_case_copy(&x->c, buffers[b]);
    start(&run, x, "reference", 1);
    for (int i = 0; i < run.n_calls; i++) atsi_cpu_run(run.cpu, NULL, &run.calls[i], 1);
    stop(&run);
    for (int b = 0; b < CHECKED; b++) k->wanted[b] = buffers[b] == ATSI_NONE ? NULL : op_case_copy(&x->c, buffers[b]);
}

static void check_list(struct glu_case *x, const struct kept *k, const char *isa, int n_threads, const char *what) {
    struct runner run;
    start(&run, x, isa, n_threads);
    for (int i = 0; i < RUNS; i++) {
        for (int b = 0; b < CHECKED; b++)
            if (k->before[b] != NULL) op_case_restore(&x->c, k->buffers[b], k->before[b]);
        if (run.pool != NULL) atsi_pool_assume_crowded(run.pool, i % 2 == 0 ? 60e6 : 0);
        atsi_cpu_run(run.cpu, run.pool, run.calls, run.n_calls);
        for (int b = 0; b < CHECKED; b++)
            if (k->before[b] != NULL)
                check_buffer(x, k->buffers[b], k->buffers[b] == x->down ? x->width : x->n_ff, k->before[b],
                             k->wanted[b], what);
    }
    stop(&run);
}

static void check_shape(const struct shape *s, uint64_t seed) {
    static const char *const ISAS[] = {"reference", "avx2", "avxvnni", "avx512"};
    struct test_random r = {seed};
    struct glu_case x;
    struct kept k;
    enum atsi_isa isa;
    build(&x, s, &r);
    keep_wanted(&x, &k);
    for (size_t i = 0; i < sizeof ISAS / sizeof *ISAS; i++)
        for (int n_threads = 1; n_threads <= 5; n_threads += 2) {
            char what[128];
            if (atsi_isa_select(ISAS[i], &isa, NULL) != ATSI_OK) continue;
            snprintf(what, sizeof what, "case %u: %u x %u, %u slots, %s, %d threads", (unsigned)seed, s->n_ff, s->width,
                     s->n_used, ISAS[i], n_threads);
            check_list(&x, &k, ISAS[i], n_threads, what);
        }
    for (int b = 0; b < CHECKED; b++) {
        free(k.before[b]);
        free(k.wanted[b]);
    }
    op_case_free(&x.c);
}

#if defined(__SANITIZE_THREAD__)
enum {
    N_CASES = 6 // each takes a hundred times as long
};
#else
enum {
    N_CASES = 120
};
#endif

static struct shape random_shape(struct test_random *r) {
    static const uint32_t WIDTHS[] = {32, 64, 512, 1024}, FFS[] = {32, 64, 96, 160, 320, 736, 1120};
    bool experts = test_random_below(r, 3) != 0;
    struct shape s = {.width = WIDTHS[test_random_below(r, 4)],
                      .n_ff = FFS[test_random_below(r, 7)],
                      .n_used = experts ? 1 + test_random_below(r, 4) : 0,
                      .quantised = test_random_below(r, 4) != 0,
                      .biased = test_random_below(r, 2) != 0,
                      .in_place = test_random_below(r, 4) != 0,
                      .has_down = test_random_below(r, 2) != 0,
                      .other_type = test_random_below(r, 8) == 0,
                      .divided = experts && test_random_below(r, 2) != 0,
                      .glu = {(enum atsi_glu_act)test_random_below(r, 3), 1.702f, 1.0f}};
    s.partial = !s.divided && !s.has_down && test_random_below(r, 6) == 0;
    if (!s.has_down && !s.divided && test_random_below(r, 4) == 0) s.n_ff -= 8; // a last tile that is not full
    return s;
}

static void lists_have_the_bits_of_their_operations(void **state) {
    (void)state;
    struct test_random r = {11};
    for (uint64_t i = 0; i < N_CASES; i++) {
        struct shape s = random_shape(&r);
        check_shape(&s, i + 1);
    }
}

// ---- phases ---------------------------------------------------------------------------------------------------------

static uint32_t phases_of(const struct shape *s, int n_threads) {
    struct test_random r = {5};
    struct glu_case x;
    struct runner run;
    build(&x, s, &r);
    start(&run, &x, "reference", n_threads);
    atsi_cpu_run(run.cpu, run.pool, run.calls, run.n_calls);
    uint32_t n = atsi_cpu_n_phases(run.cpu);
    stop(&run);
    op_case_free(&x.c);
    return n;
}

// Of quantised weights the first phase prepares the input (and groups by expert).
static void glu_takes_no_phase(void **state) {
    (void)state;
    struct shape experts = {.width = 512, .n_ff = 320, .n_used = 3, .quantised = true, .in_place = true},
                 dense = {.width = 512, .n_ff = 1120, .quantised = true, .in_place = true};
    for (int n_threads = 1; n_threads <= 4; n_threads++) {
        struct shape s = experts;
        assert_int_equal(phases_of(&s, n_threads), 2);
        s.divided = s.biased = true;
        assert_int_equal(phases_of(&s, n_threads), 2);
        s.has_down = true;
        assert_int_equal(phases_of(&s, n_threads), 3);
        s = dense;
        assert_int_equal(phases_of(&s, n_threads), 2);
        s.in_place = false;
        s.has_down = true;
        assert_int_equal(phases_of(&s, n_threads), 3);
        s.quantised = false;
        assert_int_equal(phases_of(&s, n_threads), 2);
    }
}

// What is not cut alike waits: GLU of other columns than those that the products compute, products of two types.
static void other_parts_are_waited_for(void **state) {
    (void)state;
    struct shape s = {.width = 512, .n_ff = 1120, .quantised = true, .in_place = true, .partial = true};
    assert_int_equal(phases_of(&s, 3), 3);
    s.partial = false;
    s.other_type = true;
    assert_int_equal(phases_of(&s, 3), 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(lists_have_the_bits_of_their_operations),
                                       cmocka_unit_test(glu_takes_no_phase),
                                       cmocka_unit_test(other_parts_are_waited_for)};
    return cmocka_run_group_tests_name("products with GLU", tests, NULL, NULL);
}
