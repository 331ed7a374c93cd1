// Scripts: played over random assignments by an independent model of two memories and a stream that lags as far as it may.
#include <stdlib.h>
#include <string.h>

#include "runtime/schedule/ranges.h"
#include "runtime/schedule/script.h"
#include "tests/support/check.h"
#include "tests/support/program_builder.h"

enum {
    N_BUFFERS_MAX = 24,
    N_COLUMNS_MAX = 1024
};

// Which write each side's copy of a column comes from. A step must read the newest on its own side.
static int held[2][N_BUFFERS_MAX][N_COLUMNS_MAX], newest[N_BUFFERS_MAX][N_COLUMNS_MAX];
// Copies to the CPU that it has not waited for, and copies from it that may still be reading.
struct copy {
    bool to_cpu;
    uint32_t buffer, begin, end;
};
static struct copy copies[1024];
static uint32_t n_copies, n_copies_at_record;
// Of the token that is played: the slots of a divided unit, and how many of them are the GPU's.
static uint32_t n_slots, n_gpu_slots;
static uint32_t fetched; // the operation whose absent experts have been, UINT32_MAX: none

static void read_columns(enum atsi_backend side, uint32_t buffer, uint32_t begin, uint32_t end) {
    for (uint32_t c = begin; c < end; c++) assert_int_equal(held[side][buffer][c], newest[buffer][c]);
    for (uint32_t i = 0; side == ATSI_CPU && i < n_copies; i++) // nothing that is still on its way
        assert_false(copies[i].to_cpu && copies[i].buffer == buffer && copies[i].begin < end && begin < copies[i].end);
}

static bool share_bytes(const struct atsi_plan *plan, uint32_t a, uint32_t b) {
    const struct atsi_buffer *x = &plan->program.buffers[a], *y = &plan->program.buffers[b];
    uint64_t x_rows = x->rows == ATSI_ROWS_TOKENS ? plan->limits.chunk : plan->limits.n_outputs;
    uint64_t y_rows = y->rows == ATSI_ROWS_TOKENS ? plan->limits.chunk : plan->limits.n_outputs;
    return x->offset_bytes < y->offset_bytes + y_rows * y->width * 4 &&
           y->offset_bytes < x->offset_bytes + x_rows * x->width * 4;
}

static void write_columns(const struct atsi_plan *plan, enum atsi_backend side, uint32_t buffer, uint32_t begin,
                          uint32_t end, int stamp) {
    for (uint32_t i = 0; side == ATSI_CPU && i < n_copies; i++) { // nothing that is still read or filled by the stream
        bool same = copies[i].buffer == buffer && copies[i].begin < end && begin < copies[i].end;
        assert_false(same || (copies[i].buffer != buffer && share_bytes(plan, buffer, copies[i].buffer)));
    }
    for (uint32_t c = begin; c < end; c++) held[side][buffer][c] = newest[buffer][c] = stamp;
}

// The columns that a step computes; of slots that are divided token by token those of its side.
static struct atsi_step columns_of(const struct atsi_plan *plan, const struct atsi_step *s) {
    struct atsi_step part = *s;
    if (!s->by_token) return part;
    uint32_t width = plan->program.ops[s->op].out[0].width, division = width / n_slots * n_gpu_slots;
    assert_true(s->begin == 0 && s->end == width);
    if (s->backend == ATSI_GPU)
        part.end = division;
    else
        part.begin = division;
    return part;
}

// The columns that a step touches, from the meaning of the operations.
static void play_step(const struct atsi_plan *plan, const struct atsi_step *step) {
    const struct atsi_step columns = columns_of(plan, step), *s = &columns;
    const struct atsi_op *op = &plan->program.ops[s->op];
    uint32_t width = op->out[0].width;
    for (int i = 0; i < ATSI_OP_MAX_IN && op->in[i].buffer != ATSI_NONE; i++) {
        uint32_t begin = 0, end = op->in[i].width;
        bool by_slot = op->kind == ATSI_OP_EXPERTS && (i == 1 || op->u.experts.in_per_slot);
        if (op->kind == ATSI_OP_GLU || op->kind == ATSI_OP_ADD) begin = s->begin, end = s->end;
        if (by_slot) {
            begin = (uint32_t)((uint64_t)s->begin * op->in[i].width / width);
            end = (uint32_t)((uint64_t)s->end * op->in[i].width / width);
        }
        read_columns(s->backend, (uint32_t)op->in[i].buffer, op->in[i].offset + begin, op->in[i].offset + end);
    }
    uint32_t at = op->out[0].offset;
    if (op->add) read_columns(s->backend, (uint32_t)op->out[0].buffer, at + s->begin, at + s->end);
    write_columns(plan, s->backend, (uint32_t)op->out[0].buffer, at + s->begin, at + s->end, 1 + (int)s->op);
    if (op->out[1].buffer != ATSI_NONE)
        write_columns(plan, s->backend, (uint32_t)op->out[1].buffer, op->out[1].offset,
                      op->out[1].offset + op->out[1].width, 1 + (int)s->op);
}

// Reads its operation's ids; one at a time, as there is one place.
static void play_fetch(const struct atsi_plan *plan, const struct atsi_step *s) {
    const struct atsi_op *op = &plan->program.ops[s->op];
    assert_true(s->backend == ATSI_GPU && s->promoted && !s->by_token && fetched == UINT32_MAX);
    read_columns(ATSI_GPU, (uint32_t)op->in[1].buffer, op->in[1].offset, op->in[1].offset + op->in[1].width);
    fetched = s->op;
}

static void play_cross(const struct atsi_plan *plan, const struct atsi_action *a) {
    uint32_t division = plan->program.buffers[a->buffer].width / n_slots * n_gpu_slots;
    uint32_t begin = a->offset, end = a->offset + a->width;
    if (a->slots_of != ATSI_NONE) {
        assert_int_equal(plan->program.ops[a->slots_of].kind, ATSI_OP_ROUTER);
        assert_true(begin == 0 && end == plan->program.buffers[a->buffer].width);
        if (a->backend == ATSI_GPU)
            begin = division;
        else
            end = division;
    }
    for (uint32_t c = begin; c < end; c++) held[a->backend][a->buffer][c] = held[!a->backend][a->buffer][c];
    copies[n_copies++] = (struct copy){a->backend == ATSI_CPU, a->buffer, a->offset, a->offset + a->width};
}

static void play(const struct atsi_plan *plan, const struct atsi_script *script, uint32_t first, uint32_t end,
                 uint32_t *columns_done) {
    for (uint32_t i = first; i < end; i++) {
        const struct atsi_action *a = &script->actions[i];
        if (a->kind == ATSI_ACTION_CROSS) play_cross(plan, a);
        if (a->kind == ATSI_ACTION_RECORD) n_copies_at_record = n_copies;
        if (a->kind == ATSI_ACTION_WAIT) {
            memmove(copies, copies + n_copies_at_record, (n_copies - n_copies_at_record) * sizeof *copies);
            n_copies -= n_copies_at_record;
            n_copies_at_record = 0;
        }
        for (uint32_t k = 0; (a->kind == ATSI_ACTION_GPU || a->kind == ATSI_ACTION_CPU) && k < a->n; k++) {
            const struct atsi_step *s = &script->steps[a->first + k];
            assert_int_equal(s->backend == ATSI_GPU, a->kind == ATSI_ACTION_GPU);
            if (s->fetches) {
                play_fetch(plan, s);
                continue;
            }
            assert_int_equal(s->fetched, fetched == s->op);
            if (s->fetched) fetched = UINT32_MAX;
            play_step(plan, s);
            struct atsi_step done = columns_of(plan, s);
            columns_done[s->op] += done.end - done.begin;
        }
    }
    n_copies = n_copies_at_record = 0; // the executor waits for the stream at the end
}

static void play_all(const struct atsi_plan *plan, const struct atsi_script *script, bool any_shared) {
    const struct atsi_program *p = &plan->program;
    uint32_t columns_done[64] = {0};
    memset(held, 0, sizeof held);
    memset(newest, 0, sizeof newest);
    n_copies = n_copies_at_record = 0;
    if (n_slots == 0) n_slots = 1;
    fetched = UINT32_MAX;
    play(plan, script, 0, script->tail, columns_done);
    play(plan, script, script->tail, script->n_actions, columns_done);
    for (uint32_t i = 0; i < p->n_ops; i++) { // everything was computed, twice only before a division
        assert_true(columns_done[i] == p->ops[i].out[0].width ||
                    (any_shared && columns_done[i] == 2 * p->ops[i].out[0].width));
    }
    read_columns(ATSI_CPU, (uint32_t)p->logits, 0, p->n_vocab);
    play(plan, script, script->tail, script->n_actions, columns_done); // a second group of output rows
    read_columns(ATSI_CPU, (uint32_t)p->logits, 0, p->n_vocab);
}

// The router's unit of a program that has one, and its experts a token.
static uint32_t find_router(const struct atsi_program *p, uint32_t *n_used) {
    uint32_t i = 0;
    while (p->ops[i].kind != ATSI_OP_ROUTER) i++;
    *n_used = p->ops[i].u.router.n_used;
    return atsi_program_unit_of(p, i);
}

static void every_read_finds_the_newest_columns(void **state) {
    (void)state;
    struct atsi_plan plan;
    uint32_t n_divided = 0, n_by_token = 0, n_slot_copies = 0, n_fetched = 0;
    struct atsi_slot_division divisions[16] = {{0}};
    test_build_gated_plan(&plan);
    uint32_t router = find_router(&plan.program, &n_slots);
    for (uint32_t run = 0; run < 4096; run++) {
        enum atsi_backend backends[16];
        bool promoted[16], prefetched[16];
        float gpu_share[16];
        struct atsi_script script;
        uint32_t random = run * 2654435761u;
        for (uint32_t u = 0; u < plan.program.n_units; u++) {
            random = random * 1664525u + 1013904223u;
            backends[u] = random >> 31 ? ATSI_GPU : ATSI_CPU;
            promoted[u] = backends[u] == ATSI_GPU && random >> 29 & 1;
            prefetched[u] = promoted[u] && random >> 28 & 1;
            gpu_share[u] = (float)(random >> 24 & 3) / 4;
        }
        divisions[router].n_used = run % 2 ? n_slots : 0;
        divisions[router].last_on_gpu = run / 2 % 2;
        for (uint32_t r = 0; r <= n_slots; r++)
            divisions[router].gpu_slots[r] = (uint8_t)(r + (n_slots - r) * (random >> (18 + r) & 1));
        n_gpu_slots = divisions[router].gpu_slots[(random >> 16) % (n_slots + 1)];
        struct atsi_script_params params = {.program = &plan.program,
                                            .backends = backends,
                                            .promoted = promoted,
                                            .prefetched = prefetched,
                                            .gpu_share = gpu_share,
                                            .divisions = divisions,
                                            .can_fetch = run / 4 % 4 > 0,
                                            .n_tokens_max = plan.limits.chunk,
                                            .n_outputs_max = plan.limits.n_outputs};
        assert_int_equal(atsi_script_build(&params, &script, NULL), ATSI_OK);
        play_all(&plan, &script, true);
        for (uint32_t i = 0; i < script.n_steps; i++) n_divided += script.steps[i].begin > 0;
        for (uint32_t i = 0; i < script.n_steps; i++) n_by_token += script.steps[i].by_token;
        for (uint32_t i = 0; i < script.n_steps; i++) n_fetched += script.steps[i].fetched;
        for (uint32_t i = 0; i < script.n_actions; i++)
            n_slot_copies += script.actions[i].kind == ATSI_ACTION_CROSS && script.actions[i].slots_of != ATSI_NONE;
        atsi_script_free(&script);
    }
    n_slots = 0;
    // The test has met what it is for.
    assert_true(n_divided > 1000 && n_by_token > 300 && n_slot_copies > 150 && n_fetched > 30);
    atsi_plan_free(&plan);
}

// Where no unit is shared: once for what is behind each change of sides, once more where the tail begins, once for the logits.
static void the_cpu_waits_once_a_turn(void **state) {
    (void)state;
    struct atsi_plan plan;
    test_build_gated_plan(&plan);
    for (uint32_t run = 0; run < 1024; run++) {
        enum atsi_backend backends[16];
        struct atsi_script script;
        uint32_t n_turns = 0, n_waits = 0;
        for (uint32_t u = 0; u < plan.program.n_units; u++) {
            backends[u] = run * 2654435761u >> (31 - u) & 1 ? ATSI_GPU : ATSI_CPU;
            n_turns += backends[u] == ATSI_CPU && u > 0 && backends[u - 1] == ATSI_GPU;
        }
        struct atsi_script_params params = {
            .program = &plan.program, .backends = backends, .n_tokens_max = 8, .n_outputs_max = 2};
        assert_int_equal(atsi_script_build(&params, &script, NULL), ATSI_OK);
        for (uint32_t i = 0; i < script.n_actions; i++) n_waits += script.actions[i].kind == ATSI_ACTION_WAIT;
        assert_true(n_waits <= n_turns + 2);
        atsi_script_free(&script);
    }
    atsi_plan_free(&plan);
}

static void one_side_alone_copies_and_waits_for_nothing(void **state) {
    (void)state;
    struct atsi_plan plan;
    struct atsi_script script;
    enum atsi_backend backends[16] = {ATSI_CPU};
    test_build_gated_plan(&plan);
    struct atsi_script_params params = {
        .program = &plan.program, .backends = backends, .n_tokens_max = 8, .n_outputs_max = 2};
    assert_int_equal(atsi_script_build(&params, &script, NULL), ATSI_OK);
    assert_int_equal(script.n_actions, 2); // body and tail
    assert_int_equal(script.tail, 1);
    atsi_script_free(&script);
    atsi_plan_free(&plan);
}

static void a_shared_matrix_runs_beside_the_cpu(void **state) {
    (void)state;
    struct atsi_plan plan;
    struct atsi_script script;
    enum atsi_backend backends[16] = {ATSI_CPU};
    float gpu_share[16] = {0};
    test_build_gated_plan(&plan);
    gpu_share[1] = 0.5f; // q
    assert_true(atsi_script_can_share(&plan.program, 1));
    struct atsi_script_params params = {
        .program = &plan.program, .backends = backends, .gpu_share = gpu_share, .n_tokens_max = 8, .n_outputs_max = 2};
    assert_int_equal(atsi_script_build(&params, &script, NULL), ATSI_OK);
    // Its GPU part is launched and the CPU's part runs without waiting for it.
    uint32_t i = 0;
    while (script.actions[i].kind != ATSI_ACTION_GPU) i++;
    assert_int_equal(script.actions[i + 1].kind, ATSI_ACTION_CPU);
    atsi_script_free(&script);
    atsi_plan_free(&plan);
}

// Against one flag a column and side; where the segments run out that is said and never passed over.
static void ranges_follow_every_column(void **state) {
    (void)state;
    enum {
        WIDTH = 200
    };
    uint32_t random = 1, n_overflowed = 0;
    for (int run = 0; run < 300; run++) {
        struct atsi_ranges r;
        bool plain[WIDTH][2] = {{false}};
        atsi_ranges_init(&r, WIDTH);
        for (int step = 0; step < 60 && !r.overflowed; step++) {
            random = random * 1664525u + 1013904223u;
            uint32_t begin = (random >> 8) % WIDTH, end = begin + 1 + (random >> 16) % (run % 2 ? 4 : WIDTH), from, to;
            enum atsi_backend side = random >> 31 ? ATSI_GPU : ATSI_CPU;
            if (end > WIDTH) end = WIDTH;
            bool both = random >> 30 & 1;
            if (step % 3) {
                atsi_ranges_write(&r, begin, end, side, both);
                for (uint32_t c = begin; c < end; c++) plain[c][side] = true, plain[c][!side] &= both;
            } else {
                while (atsi_ranges_fetch(&r, begin, end, side, &from, &to))
                    for (uint32_t c = from; c < to; c++) {
                        assert_true(plain[c][!side] && !plain[c][side]);
                        plain[c][side] = true;
                    }
            }
            for (uint32_t i = 0, c = 0; i < r.n && !r.overflowed; i++)
                for (; c < r.end[i]; c++) assert_true(r.held[i][0] == plain[c][0] && r.held[i][1] == plain[c][1]);
        }
        n_overflowed += r.overflowed;
    }
    assert_true(n_overflowed > 0 && n_overflowed < 300);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranges_follow_every_column),
        cmocka_unit_test(every_read_finds_the_newest_columns),
        cmocka_unit_test(the_cpu_waits_once_a_turn),
        cmocka_unit_test(one_side_alone_copies_and_waits_for_nothing),
        cmocka_unit_test(a_shared_matrix_runs_beside_the_cpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
