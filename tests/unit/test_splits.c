// Splits: played over random assignments by an independent model of the two memories.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/splits.h"
#include "tests/support/program_builder.h"

// version[side][buffer]: which write's rows a side holds; an op must always read the newest version on its own side.
struct memories {
    int version[2][ATSI_MAX_BUFFERS];
    int newest[ATSI_MAX_BUFFERS];
};

static void play_op(struct memories *m, const struct atsi_op *op, enum atsi_backend side, int stamp) {
    for (int i = 0; i < ATSI_OP_MAX_IN && op->in[i].buffer != ATSI_NONE; i++)
        assert_int_equal(m->version[side][op->in[i].buffer], m->newest[op->in[i].buffer]);
    for (int i = 0; i < ATSI_OP_MAX_OUT && op->out[i].buffer != ATSI_NONE; i++) {
        int32_t b = op->out[i].buffer;
        if (op->add) assert_int_equal(m->version[side][b], m->newest[b]);
        m->version[side][b] = m->newest[b] = stamp;
    }
}

static void play(const struct atsi_program *p, const struct atsi_splits *s, bool tail, struct memories *m, uint32_t *ops_seen) {
    for (uint32_t i = 0; i < s->n_splits; i++) {
        const struct atsi_split *split = &s->splits[i];
        if (split->tail != tail) continue;
        for (uint32_t k = 0; k < split->n_crossings; k++) {
            uint32_t b = s->crossings[split->first_crossing + k].buffer;
            m->version[split->backend][b] = m->version[!split->backend][b];
        }
        for (uint32_t k = 0; k < split->n_ops; k++)
            play_op(m, &p->ops[split->first_op + k], split->backend, (int)(1000 * (tail + 1) + split->first_op + k));
        *ops_seen += split->n_ops;
    }
}

// Whether a promoted split covers unit u and nothing else.
static bool starts_alone(const struct atsi_program *p, const struct atsi_splits *s, uint32_t u) {
    for (uint32_t i = 0; i < s->n_splits; i++)
        if (s->splits[i].promoted && s->splits[i].first_op == p->units[u].first_op) return s->splits[i].n_ops == p->units[u].n_ops;
    return false;
}

static void every_read_finds_the_newest_rows(void **state) {
    (void)state;
    struct atsi_plan plan;
    test_build_plan(&plan);
    const struct atsi_program *p = &plan.program;
    for (uint32_t mask = 0; mask < 1u << p->n_units; mask++) {
        enum atsi_backend backends[16];
        bool promoted[16];
        struct atsi_splits s;
        struct memories m;
        uint32_t n_ops = 0;
        for (uint32_t u = 0; u < p->n_units; u++) {
            backends[u] = (mask >> u) & 1 ? ATSI_GPU : ATSI_CPU;
            promoted[u] = backends[u] == ATSI_GPU && (mask * 2654435761u >> u) % 3 == 0;
        }
        assert_int_equal(atsi_splits_build(p, backends, promoted, &s, NULL), ATSI_OK);
        for (uint32_t u = 0; u < p->n_units; u++) assert_int_equal(starts_alone(p, &s, u), promoted[u]);
        memset(&m, 0, sizeof m);
        play(p, &s, false, &m, &n_ops);
        play(p, &s, true, &m, &n_ops);
        assert_int_equal(n_ops, p->n_ops);
        assert_int_equal(m.version[ATSI_CPU][p->logits], m.newest[p->logits]);
        play(p, &s, true, &m, &n_ops); // a second group of output rows
        assert_int_equal(m.version[ATSI_CPU][p->logits], m.newest[p->logits]);
        atsi_splits_free(&s);
    }
    atsi_plan_free(&plan);
}

static void one_backend_means_no_crossing(void **state) {
    (void)state;
    struct atsi_plan plan;
    struct atsi_splits s;
    enum atsi_backend backends[16] = {ATSI_CPU};
    test_build_plan(&plan);
    assert_int_equal(atsi_splits_build(&plan.program, backends, NULL, &s, NULL), ATSI_OK);
    assert_int_equal(s.n_splits, 2); // body and tail
    assert_int_equal(s.n_crossings, 0);
    atsi_splits_free(&s);
    atsi_plan_free(&plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_read_finds_the_newest_rows),
        cmocka_unit_test(one_backend_means_no_crossing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
