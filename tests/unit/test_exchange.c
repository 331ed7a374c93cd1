// Texts while experts change places between rounds and the budget moves: the same bits as on the CPU alone; and that what a text wants
// becomes resident.
#include <stdlib.h>
#include <string.h>

#include "kernels/sim/sim_device.h"
#include "tests/support/check.h"
#include "tests/support/mixed_session.h"
#include "tests/support/small_model.h"

enum {
    CHUNK = 64 << 10,
    N_TOKENS = 60
};

static struct atsi_device *open_device(uint32_t delay_seed) {
    struct atsi_device *d;
    struct atsi_sim_params sim = {.memory_bytes = 64 << 20,
                                  .chunk_bytes = CHUNK,
                                  .delay_seed = delay_seed,
                                  .delay_max_us = 50,
                                  .reference_kernels = true};
    assert_int_equal(atsi_sim_open(&sim, &d, NULL), ATSI_OK);
    return d;
}

// What the device has of the experts and of the table is what the host's tables say.
static void check_residents(struct mixed_session *b) {
    const struct atsi_router_experts *r = &b->loaded.weights.experts.routers[0];
    uint32_t u = model_file_unit(&b->file, "exps"), n_found = 0;
    uint64_t bytes = atsi_expert_bytes(&b->file.model.plan.program, u);
    const uint8_t *experts = b->file.bytes[model_file_tensor(&b->file, "exps")];
    uint8_t *found = malloc(r->n * bytes);
    int32_t table[8];
    if (!r->are_there) {
        assert_null(b->loaded.weights.experts.refs[ATSI_GPU][u].data);
        assert_null(b->loaded.weights.experts.refs[ATSI_CPU][r->unit].slots);
    } else {
        struct atsi_stream *s = b->loaded.weights.upload.stream;
        check_ok(atsi_executor_settle(b->loaded.session->executor, &b->err), b->err);
        check_ok(b->device->ops->copy_to_host(s, found, b->loaded.weights.experts.refs[ATSI_GPU][u].data, r->n * bytes,
                                              &b->err),
                 b->err);
        check_ok(b->device->ops->copy_to_host(s, table, b->loaded.weights.experts.refs[ATSI_GPU][r->unit].slots,
                                              r->n_experts * sizeof *table, &b->err),
                 b->err);
        check_ok(b->device->ops->stream_sync(s, &b->err), b->err);
        assert_memory_equal(table, r->slots, r->n_experts * sizeof *table);
        for (uint32_t i = 0; i < r->n; i++) assert_memory_equal(found + i * bytes, experts + r->ids[i] * bytes, bytes);
        for (uint32_t e = 0; e < r->n_experts; e++) {
            n_found += r->slots[e] >= 0;
            if (r->slots[e] >= 0) assert_int_equal(r->ids[r->slots[e]], e);
        }
        assert_int_equal(n_found, r->n);
    }
    free(found);
}

// Some items leave or come back, as the budget would have it; every other time all come back, experts too.
static void move_at_random(struct mixed_session *b, uint64_t *random) {
    uint32_t n = b->loaded.weights.resident.n_items;
    if (test_random(random) % 2) n = (uint32_t)(test_random(random) % (n + 1));
    bool refused;
    check_ok(atsi_rescheduler_pause(&b->loaded.session->rescheduler, &b->err), b->err);
    if (n < b->loaded.weights.n_resident) {
        check_ok(atsi_weights_release(&b->loaded.weights, n, &b->err), b->err);
    } else {
        check_ok(atsi_weights_refill(&b->loaded.weights, n, test_random(random) % 2 ? 1e18 : 0, &refused, &b->err),
                 b->err);
        if (test_random(random) % 2) check_ok(atsi_weights_settle(&b->loaded.weights, &b->err), b->err);
    }
    atsi_session_follow(b->loaded.session, &b->loaded.reserve);
}

// Any speed makes the dispatcher divide the experts in another way.
static void change_speeds(struct mixed_session *b, uint64_t *random) {
    struct atsi_scales *s = &atsi_executor_recorder(b->loaded.session->executor, test_random(random) % 2)->scales;
    s->cpu = 0.2 + (double)(test_random(random) % 40) / 10;
    s->link = 0.2 + (double)(test_random(random) % 40) / 10;
}

// Short prompts, some longer than a chunk, and single tokens between them; the logits behind each.
static void write_text(struct mixed_session *b, bool moves, uint64_t seed, float *logits) {
    size_t n_vocab = b->file.model.plan.program.n_vocab;
    uint64_t lengths = 77, random = seed;
    for (uint32_t i = 0; i < N_TOKENS;) {
        int32_t ids[12];
        uint32_t n = test_random(&lengths) % 6 ? 1 : 2 + (uint32_t)(test_random(&lengths) % 11);
        if (n > N_TOKENS - i) n = N_TOKENS - i;
        for (uint32_t k = 0; k < n; k++)
            ids[k] = (int32_t)((i + k) / 12 * 7 % n_vocab); // what is wanted changes five times
        if (moves && test_random(&random) % 3 == 0) change_speeds(b, &random);
        if (moves && test_random(&random) % 4 == 0) move_at_random(b, &random);
        if (moves && test_random(&random) % 2)
            atsi_session_expect(b->loaded.session, (uint32_t)(test_random(&random) % 300));
        check_ok(atsi_session_append(b->loaded.session, ids, n, NULL, NULL, &b->err), b->err);
        memcpy(logits + i * n_vocab, b->loaded.session->last_logits, n_vocab * sizeof *logits);
        if (moves) check_residents(b);
        i += n;
    }
}

static void any_exchange_gives_the_same_bits(void **state) {
    (void)state;
    static const struct atsi_exchange_params forced = {.part = 1e9, .sigmas = -1e9}, large_only = {.part = 1e-9};
    const char *wanted_runs = getenv("ATSI_SOAK_RUNS");
    uint64_t n_runs = wanted_runs ? strtoull(wanted_runs, NULL, 10) : 12;
    struct mixed_session b;
    uint32_t n_exchanged = 0, n_large = 0;
    mixed_session_open(&b, NULL, false, &forced);
    size_t n = N_TOKENS * (size_t)b.file.model.plan.program.n_vocab;
    float *wanted = calloc(n, sizeof *wanted), *found = calloc(n, sizeof *found);
    assert_null(b.loaded.session->exchange);
    write_text(&b, false, 1, wanted);
    mixed_session_close(&b);
    for (uint64_t seed = 1; seed <= n_runs; seed++) {
        mixed_session_open(&b, open_device((uint32_t)seed), seed % 2, seed & 2 ? &large_only : &forced);
        memset(found, 0, n * sizeof *found);
        write_text(&b, true, seed * 2654435761u + 7, found);
        if (memcmp(wanted, found, n * sizeof *wanted) != 0) fail_msg("seed %llu", (unsigned long long)seed);
        n_exchanged += atsi_exchange_figures(b.loaded.session->exchange).n_exchanged;
        n_large += atsi_exchange_figures(b.loaded.session->exchange).large.n;
        mixed_session_close(&b);
    }
    assert_true(n_exchanged > 5 * n_runs && n_large > n_runs / 2); // or nothing was tested
    free(wanted);
    free(found);
}

// A text that goes on with one token wants the same experts all the time.
static void run_single_minded(struct mixed_session *b, bool never, struct atsi_exchange_figures *figures) {
    static const int32_t id = 3;
    struct atsi_exchange_params params = {.part = 1, .never = never};
    mixed_session_open(b, open_device(0), false, &params);
    for (int i = 0; i < 60; i++) check_ok(atsi_session_append(b->loaded.session, &id, 1, NULL, NULL, &b->err), b->err);
    *figures = atsi_exchange_figures(b->loaded.session->exchange);
}

static void experts_that_left_are_not_found(void **state) {
    (void)state;
    struct mixed_session b;
    struct atsi_exchange_params params = {.part = 1, .never = true};
    static const int32_t id = 3;
    mixed_session_open(&b, open_device(0), false, &params);
    check_ok(atsi_rescheduler_pause(&b.loaded.session->rescheduler, &b.err), b.err);
    check_ok(atsi_weights_release(&b.loaded.weights, 0, &b.err), b.err);
    atsi_session_follow(b.loaded.session, &b.loaded.reserve);
    for (int i = 0; i < 20; i++) check_ok(atsi_session_append(b.loaded.session, &id, 1, NULL, NULL, &b.err), b.err);
    struct atsi_exchange_figures f = atsi_exchange_figures(b.loaded.session->exchange);
    assert_int_equal(f.n_resident, 0);
    assert_true(f.hit_rate == 0 && f.hit_rate_lately == 0);
    mixed_session_close(&b);
}

static void what_a_text_wants_becomes_resident(void **state) {
    (void)state;
    struct mixed_session b;
    struct atsi_exchange_figures adaptive, fixed;
    run_single_minded(&b, true, &fixed);
    const struct atsi_routing_layer *l = &atsi_routing_stats_of(b.loaded.routing)->layers[0];
    uint64_t most = 0, all = 0, at_first = l->counts[2] + l->counts[0];
    for (uint32_t e = 0; e < l->n_experts; e++) {
        all += l->counts[e];
        for (uint32_t k = 0; k < e; k++)
            if (l->counts[e] + l->counts[k] > most) most = l->counts[e] + l->counts[k];
    }
    assert_true(at_first + all / 4 < most); // or there is nothing to gain
    assert_int_equal(fixed.n_exchanged, 0);
    assert_true(fixed.hit_rate == (double)at_first / (double)all && fixed.expected == (double)0.6f);
    mixed_session_close(&b);
    run_single_minded(&b, false, &adaptive);
    assert_in_range(adaptive.n_exchanged, 1, 4);
    assert_true(adaptive.hit_rate > fixed.hit_rate + 0.2);
    assert_true(adaptive.hit_rate_lately > fixed.hit_rate_lately);
    assert_int_equal(adaptive.resident_bytes, b.loaded.weights.resident.end_bytes[b.loaded.weights.resident.n_items] -
                                                  b.loaded.weights.resident.blocks[model_file_unit(&b.file, "exps")]);
    check_residents(&b);
    mixed_session_close(&b);
}

// A prompt of one token again and again, in chunks of 12; then at most n_to_come tokens of another one, of which two are read.
static struct atsi_large_exchanges read_prompt(struct mixed_session *b, uint32_t n_to_come, bool never_large) {
    struct atsi_exchange_params params = {.part = 1e-9, .never_large = never_large};
    int32_t ids[12];
    mixed_session_open(b, open_device(0), false, &params);
    for (int i = 0; i < 12; i++) ids[i] = 3;
    for (int i = 0; i < 5; i++) {
        uint32_t n = i < 4 ? 12 : 1; // the last chunk is one token, which is not the answer's
        check_ok(atsi_session_append(b->loaded.session, ids, n, NULL, NULL, &b->err), b->err);
    }
    assert_int_equal(atsi_exchange_figures(b->loaded.session->exchange).n_exchanged, 0);
    atsi_session_expect(b->loaded.session, n_to_come);
    for (int i = 0; i < 2; i++) check_ok(atsi_session_append(b->loaded.session, ids, 1, NULL, NULL, &b->err), b->err);
    check_residents(b);
    return atsi_exchange_figures(b->loaded.session->exchange).large;
}

// The router has chosen some experts more often than those that are resident: as many of them as have room are, once the prompt is read.
static void a_prompt_decides_what_is_resident(void **state) {
    (void)state;
    struct mixed_session b;
    struct atsi_large_exchanges l = read_prompt(&b, 100, false);
    const struct atsi_router_experts *r = &b.loaded.weights.experts.routers[0];
    const struct atsi_routing_layer *counted = &atsi_routing_stats_of(b.loaded.routing)->layers[0];
    uint64_t resident = 0, most[2] = {0, 0}, all = 0;
    for (uint32_t e = 0; e < counted->n_experts; e++) {
        uint64_t n = counted->counts[e];
        all += n;
        resident += r->slots[e] >= 0 ? n : 0;
        if (n > most[0]) {
            most[1] = most[0];
            most[0] = n;
        } else if (n > most[1]) {
            most[1] = n;
        }
    }
    assert_int_equal(r->n, 2);
    assert_true(resident == most[0] + most[1]);
    assert_true(l.n == 1 && l.n_exchanged >= 1 && l.n_exchanged <= 2 && l.took_us > 0 && l.longest_us == l.took_us);
    assert_int_equal(l.bytes,
                     l.n_exchanged * atsi_expert_bytes(&b.file.model.plan.program, model_file_unit(&b.file, "exps")));
    double found = (double)resident / (double)all;
    assert_true(l.hit_rate_after > l.hit_rate_before && l.hit_rate_after > found - 0.15 && l.hit_rate_after <= 1);
    mixed_session_close(&b);
}

static void few_tokens_are_not_worth_it(void **state) {
    (void)state;
    struct mixed_session b;
    static const uint32_t few[] = {0, 1, 5, 15};
    for (size_t i = 0; i < sizeof few / sizeof *few; i++) {
        assert_int_equal(read_prompt(&b, few[i], false).n, 0);
        mixed_session_close(&b);
    }
    assert_int_equal(read_prompt(&b, 1000, true).n, 0);
    mixed_session_close(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_exchange_gives_the_same_bits),   cmocka_unit_test(experts_that_left_are_not_found),
        cmocka_unit_test(what_a_text_wants_becomes_resident), cmocka_unit_test(a_prompt_decides_what_is_resident),
        cmocka_unit_test(few_tokens_are_not_worth_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
