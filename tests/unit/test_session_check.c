// Tokens that are read several at once and partly taken back: the logits of the text stay those of reading it one by one, bit by bit, whatever
// wrong tokens were there in between; where attention sees a window only and keeps its positions in a ring, too.
#include <stdlib.h>
#include <string.h>

#include "runtime/session.h"
#include "tests/support/check.h"
#include "tests/support/random.h"
#include "tests/support/small_model.h"

enum {
    N_TEXT = 60,
    MOST = 8 // tokens of a check, and of a chunk
};

struct fixture {
    struct test_model m;
    struct atsi_session *session;
    size_t n_vocab;
};

static void open_session(struct fixture *f, uint32_t window) {
    test_model_build(&f->m);
    struct atsi_program *p = &f->m.plan.program;
    struct atsi_plan_limits *l = &f->m.plan.limits;
    for (uint32_t i = 0; i < p->n_states; i++) p->states[i].window = window;
    l->n_outputs = MOST;
    assert_int_equal(l->chunk, MOST);
    assert_int_equal(atsi_program_place_buffers(p, l->chunk, l->n_outputs, &l->compute_bytes, NULL), ATSI_OK);
    struct atsi_executor_params executor = test_model_params(&f->m, NULL);
    struct atsi_dispatcher_params dispatching = {.plan = &f->m.plan, .policy = ATSI_POLICY_FIFO};
    struct atsi_session_params params = {.executor = &executor};
    assert_int_equal(atsi_dispatcher_create(&dispatching, &params.dispatcher, NULL), ATSI_OK);
    assert_int_equal(atsi_session_create(&params, &f->session, NULL), ATSI_OK);
    f->n_vocab = p->n_vocab;
}

static void close_session(struct fixture *f) {
    atsi_session_free(f->session);
    test_model_free(&f->m);
}

static void read_one_by_one(struct fixture *f, const int32_t *text, float *logits) {
    for (uint32_t i = 0; i < N_TEXT; i++) {
        assert_int_equal(atsi_session_append(f->session, &text[i], 1, NULL, NULL, NULL), ATSI_OK);
        memcpy(logits + i * f->n_vocab, f->session->last_logits, f->n_vocab * sizeof *logits);
    }
    assert_true(atsi_session_truncate(f->session, 0));
}

// n tokens from the text's i-th on, of which the first n_right are the text's. Returns how many are kept.
static uint32_t check_some(struct fixture *f, const int32_t *text, uint32_t i, uint32_t n, uint32_t n_right,
                           const float *logits) {
    int32_t ids[MOST];
    const float *rows;
    for (uint32_t k = 0; k < n; k++) ids[k] = k < n_right ? text[i + k] : (text[i + k] + 1) % (int32_t)f->n_vocab;
    assert_int_equal(atsi_session_check(f->session, ids, n, &rows, NULL), ATSI_OK);
    assert_memory_equal(rows, logits + i * f->n_vocab, n_right * f->n_vocab * sizeof *logits);
    assert_int_equal(f->session->n_past, i + n);
    assert_true(atsi_session_truncate(f->session, i + n_right));
    return n_right;
}

static void checked_tokens_are_as_read_one_by_one(void **state) {
    (void)state;
    static const uint32_t windows[] = {0, 3, 16}; // all positions; rings of 11 and 24
    uint64_t random = 3;
    for (size_t w = 0; w < sizeof windows / sizeof *windows; w++) {
        struct fixture f;
        int32_t text[N_TEXT];
        open_session(&f, windows[w]);
        float *logits = calloc(N_TEXT * f.n_vocab, sizeof *logits);
        assert_int_equal(atsi_session_most_checked(f.session), MOST);
        for (uint32_t i = 0; i < N_TEXT; i++) text[i] = (int32_t)test_below(&random, f.n_vocab);
        read_one_by_one(&f, text, logits);
        for (int run = 0; run < 20; run++) {
            for (uint32_t i = 0; i < N_TEXT;) {
                uint32_t most = N_TEXT - i < MOST ? N_TEXT - i : MOST, n = 1 + (uint32_t)test_below(&random, most),
                         n_right = 1 + (uint32_t)test_below(&random, n);
                i += check_some(&f, text, i, n, n_right, logits);
            }
            assert_true(atsi_session_truncate(f.session, 0));
        }
        free(logits);
        close_session(&f);
    }
}

// A ring goes back as far as nothing is overwritten that an older position saw; what is whole goes back anywhere.
static void a_ring_goes_back_by_a_chunk(void **state) {
    (void)state;
    struct fixture f;
    int32_t text[N_TEXT] = {0};
    open_session(&f, 3);
    assert_int_equal(atsi_session_append(f.session, text, 11, NULL, NULL, NULL),
                     ATSI_OK); // the ring is full, but whole
    assert_true(atsi_session_truncate(f.session, 1));
    assert_int_equal(atsi_session_append(f.session, text, 29, NULL, NULL, NULL), ATSI_OK);
    assert_false(atsi_session_truncate(f.session, 30 - MOST - 1));
    assert_int_equal(f.session->n_past, 30);
    assert_true(atsi_session_truncate(f.session, 30 - MOST));
    assert_true(atsi_session_truncate(f.session, 0));
    close_session(&f);
}

static void what_does_not_fit_is_refused(void **state) {
    (void)state;
    struct fixture f;
    struct atsi_error err = {0};
    int32_t text[N_TEXT] = {0};
    const float *rows;
    open_session(&f, 0);
    assert_int_equal(atsi_session_append(f.session, text, N_TEXT, NULL, NULL, NULL), ATSI_OK);
    check_refused(atsi_session_check(f.session, text, 5, &rows, &err), err, "do not fit");
    assert_int_equal(atsi_session_check(f.session, text, 4, &rows, NULL), ATSI_OK); // to the last position
    close_session(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(checked_tokens_are_as_read_one_by_one),
                                       cmocka_unit_test(a_ring_goes_back_by_a_chunk),
                                       cmocka_unit_test(what_does_not_fit_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
