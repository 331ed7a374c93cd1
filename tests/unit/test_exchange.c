// Texts while experts change places between rounds and the budget moves: the same bits as on the CPU alone; and that what a text wants
// becomes resident.
#include <stdlib.h>
#include <string.h>

#include "kernels/sim/sim_device.h"
#include "runtime/session.h"
#include "tests/support/check.h"
#include "tests/support/model_file.h"
#include "tests/support/small_model.h"

enum {
    CHUNK = 64 << 10,
    N_TOKENS = 60
};

struct bench {
    struct model_file file;
    struct atsi_device *device; // NULL: CPU only
    struct atsi_weights weights;
    struct atsi_reserve reserve;
    struct atsi_routing *routing;
    struct atsi_session *session;
    struct atsi_error err;
};

static void open_bench(struct bench *b, uint32_t delay_seed, bool on_device,
                       const struct atsi_exchange_params *params) {
    struct atsi_sim_params sim = {.memory_bytes = 64 << 20,
                                  .chunk_bytes = CHUNK,
                                  .delay_seed = delay_seed,
                                  .delay_max_us = 50,
                                  .reference_kernels = true};
    memset(b, 0, sizeof *b);
    model_file_open_mixed(&b->file, false);
    const struct atsi_plan *plan = &b->file.model.plan;
    if (on_device) check_ok(atsi_sim_open(&sim, &b->device, &b->err), b->err);
    struct atsi_weights_params loading = {.model = &b->file.model, .device = b->device};
    check_ok(atsi_weights_load(&b->weights, &loading, &b->err), b->err);
    check_ok(atsi_routing_create(&plan->program, plan->limits.chunk, b->device, &b->routing, &b->err), b->err);
    struct atsi_executor_params executor = {.plan = plan,
                                            .host_tensors = b->weights.host,
                                            .device_tensors = b->weights.device,
                                            .mapped_tensors = b->weights.mapped,
                                            .host_experts = b->weights.experts.refs[ATSI_CPU],
                                            .device_experts = b->weights.experts.refs[ATSI_GPU],
                                            .n_threads = 2,
                                            .isa = "reference",
                                            .device = b->device,
                                            .routing = b->routing};
    struct atsi_dispatcher_params dispatching = {.plan = plan, .policy = ATSI_POLICY_FIFO, .has_device = on_device};
    struct atsi_session_params session = {
        .executor = &executor,
        .rescheduling = {.epsilon = 0.3, .tau = 1, .in_turn = delay_seed % 2, .experts = &b->weights.experts},
        .exchange = *params};
    session.exchange.weights = &b->weights;
    session.exchange.routing = b->routing;
    check_ok(atsi_dispatcher_create(&dispatching, &session.dispatcher, &b->err), b->err);
    check_ok(atsi_session_create(&session, &b->session, &b->err), b->err);
    b->reserve = (struct atsi_reserve){.weights = &b->weights}; // moved by hand
    if (on_device) atsi_session_follow(b->session, &b->reserve);
}

static void close_bench(struct bench *b) {
    atsi_session_free(b->session);
    atsi_routing_free(b->routing);
    atsi_weights_free(&b->weights);
    if (b->device) {
        assert_int_equal(atsi_sim_n_alive(b->device), 0);
        b->device->ops->close(b->device);
    }
    model_file_close(&b->file);
}

// What the device has of the experts and of the table is what the host's tables say.
static void check_residents(struct bench *b) {
    const struct atsi_router_experts *r = &b->weights.experts.routers[0];
    uint32_t u = model_file_unit(&b->file, "exps"), n_found = 0;
    uint64_t bytes = atsi_expert_bytes(&b->file.model.plan.program, u);
    const uint8_t *experts = b->file.bytes[model_file_tensor(&b->file, "exps")];
    uint8_t *found = malloc(r->n * bytes);
    int32_t table[8];
    if (!r->are_there) {
        assert_null(b->weights.experts.refs[ATSI_GPU][u].data);
        assert_null(b->weights.experts.refs[ATSI_CPU][r->unit].slots);
    } else {
        struct atsi_stream *s = b->weights.upload.stream;
        check_ok(atsi_executor_settle(b->session->executor, &b->err), b->err);
        check_ok(
            b->device->ops->copy_to_host(s, found, b->weights.experts.refs[ATSI_GPU][u].data, r->n * bytes, &b->err),
            b->err);
        check_ok(b->device->ops->copy_to_host(s, table, b->weights.experts.refs[ATSI_GPU][r->unit].slots,
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

// Some items leave or come back, as the budget would have it.
static void move_at_random(struct bench *b, uint64_t *random) {
    uint32_t n = (uint32_t)(test_random(random) % (b->weights.resident.n_items + 1));
    bool refused;
    check_ok(atsi_rescheduler_pause(&b->session->rescheduler, &b->err), b->err);
    if (n < b->weights.n_resident) {
        check_ok(atsi_weights_release(&b->weights, n, &b->err), b->err);
    } else {
        check_ok(atsi_weights_refill(&b->weights, n, test_random(random) % 2 ? 1e18 : 0, &refused, &b->err), b->err);
        if (test_random(random) % 2) check_ok(atsi_weights_settle(&b->weights, &b->err), b->err);
    }
    atsi_session_follow(b->session, &b->reserve);
}

// Any speed makes the dispatcher divide the experts in another way.
static void change_speeds(struct bench *b, uint64_t *random) {
    struct atsi_scales *s = &atsi_executor_recorder(b->session->executor, test_random(random) % 2)->scales;
    s->cpu = 0.2 + (double)(test_random(random) % 40) / 10;
    s->link = 0.2 + (double)(test_random(random) % 40) / 10;
}

// Short prompts, some longer than a chunk, and single tokens between them; the logits behind each.
static void write_text(struct bench *b, bool moves, uint64_t seed, float *logits) {
    size_t n_vocab = b->file.model.plan.program.n_vocab;
    uint64_t lengths = 77, random = seed;
    for (uint32_t i = 0; i < N_TOKENS;) {
        int32_t ids[12];
        uint32_t n = test_random(&lengths) % 6 ? 1 : 2 + (uint32_t)(test_random(&lengths) % 11);
        if (n > N_TOKENS - i) n = N_TOKENS - i;
        for (uint32_t k = 0; k < n; k++) ids[k] = (int32_t)((i + k) * 7 % n_vocab);
        if (moves && test_random(&random) % 3 == 0) change_speeds(b, &random);
        if (moves && test_random(&random) % 4 == 0) move_at_random(b, &random);
        check_ok(atsi_session_append(b->session, ids, n, NULL, NULL, &b->err), b->err);
        memcpy(logits + i * n_vocab, b->session->last_logits, n_vocab * sizeof *logits);
        if (moves) check_residents(b);
        i += n;
    }
}

static void any_exchange_gives_the_same_bits(void **state) {
    (void)state;
    static const struct atsi_exchange_params forced = {.part = 1e9, .sigmas = -1e9};
    const char *wanted_runs = getenv("ATSI_SOAK_RUNS");
    uint64_t n_runs = wanted_runs ? strtoull(wanted_runs, NULL, 10) : 12;
    struct bench b;
    uint32_t n_exchanged = 0;
    open_bench(&b, 0, false, &forced);
    size_t n = N_TOKENS * (size_t)b.file.model.plan.program.n_vocab;
    float *wanted = calloc(n, sizeof *wanted), *found = calloc(n, sizeof *found);
    assert_null(b.session->exchange);
    write_text(&b, false, 1, wanted);
    close_bench(&b);
    for (uint64_t seed = 1; seed <= n_runs; seed++) {
        open_bench(&b, (uint32_t)seed, true, &forced);
        memset(found, 0, n * sizeof *found);
        write_text(&b, true, seed * 2654435761u + 7, found);
        if (memcmp(wanted, found, n * sizeof *wanted) != 0) fail_msg("seed %llu", (unsigned long long)seed);
        n_exchanged += atsi_exchange_figures(b.session->exchange).n_exchanged;
        close_bench(&b);
    }
    assert_true(n_exchanged > 8 * n_runs); // or nothing was tested
    free(wanted);
    free(found);
}

// A text that goes on with one token wants the same experts all the time.
static void run_single_minded(struct bench *b, bool never, struct atsi_exchange_figures *figures) {
    static const int32_t id = 3;
    struct atsi_exchange_params params = {.part = 1, .never = never};
    open_bench(b, 0, true, &params);
    for (int i = 0; i < 60; i++) check_ok(atsi_session_append(b->session, &id, 1, NULL, NULL, &b->err), b->err);
    *figures = atsi_exchange_figures(b->session->exchange);
}

static void what_a_text_wants_becomes_resident(void **state) {
    (void)state;
    struct bench b;
    struct atsi_exchange_figures adaptive, fixed;
    run_single_minded(&b, true, &fixed);
    const struct atsi_routing_layer *l = &atsi_routing_stats_of(b.routing)->layers[0];
    uint64_t most = 0, all = 0, at_first = l->counts[2] + l->counts[0];
    for (uint32_t e = 0; e < l->n_experts; e++) {
        all += l->counts[e];
        for (uint32_t k = 0; k < e; k++)
            if (l->counts[e] + l->counts[k] > most) most = l->counts[e] + l->counts[k];
    }
    assert_true(at_first + all / 4 < most); // or there is nothing to gain
    assert_int_equal(fixed.n_exchanged, 0);
    assert_true(fixed.hit_rate == (double)at_first / (double)all && fixed.expected == (double)0.6f);
    close_bench(&b);
    run_single_minded(&b, false, &adaptive);
    assert_in_range(adaptive.n_exchanged, 1, 4);
    assert_true(adaptive.hit_rate > fixed.hit_rate + 0.2);
    assert_true(adaptive.hit_rate_lately > fixed.hit_rate_lately);
    assert_int_equal(adaptive.resident_bytes, b.weights.resident.end_bytes[b.weights.resident.n_items] -
                                                  b.weights.resident.blocks[model_file_unit(&b.file, "exps")]);
    check_residents(&b);
    close_bench(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_exchange_gives_the_same_bits),
        cmocka_unit_test(what_a_text_wants_becomes_resident),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
