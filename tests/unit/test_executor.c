// Rounds on CPU and simulated device under random assignments, promotions and stream delays: the same bits as on the CPU alone.
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/sim/sim_device.h"
#include "runtime/executor.h"
#include "tests/support/program_builder.h"

enum {
    N_PROMPT = 13,
    N_DECODE = 4,
    N_UNITS_MAX = 16,
    N_TENSORS_MAX = 32
};

static uint64_t next_random(uint64_t *state) { // xorshift64
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

struct model {
    struct atsi_plan plan;
    void *host[N_TENSORS_MAX];
    const void *device[N_TENSORS_MAX], *mapped[N_TENSORS_MAX];
};

static void build_model(struct model *m) {
    uint64_t random = 88172645463325252u;
    memset(m, 0, sizeof *m);
    test_build_plan(&m->plan);
    for (uint32_t t = 0; t < m->plan.program.n_tensors; t++) {
        uint64_t n = m->plan.program.tensors[t].size_bytes / sizeof(float);
        float *values = m->host[t] = aligned_alloc(64, (n * sizeof(float) + 63) / 64 * 64);
        for (uint64_t i = 0; i < n; i++) values[i] = (float)(int64_t)(next_random(&random) >> 40) / 0x1p24f - 0.5f;
    }
}

static void free_model(struct model *m) {
    for (uint32_t t = 0; t < m->plan.program.n_tensors; t++) free(m->host[t]);
    atsi_plan_free(&m->plan);
}

struct rows {
    float *at;
    uint32_t n_vocab;
};
static void keep_rows(void *context, const float *logits, uint32_t first_output, uint32_t n_outputs) {
    struct rows *rows = context;
    memcpy(rows->at + (size_t)first_output * rows->n_vocab, logits, (size_t)n_outputs * rows->n_vocab * sizeof *logits);
}

// A prompt in chunks of 8 and 5 with all logits, then single tokens; `reassign` gets its turn before every round.
static void run_text(struct model *m, struct atsi_executor *x, void (*reassign)(void *, struct atsi_executor *),
                     void *context, float *logits) {
    struct rows rows = {logits, m->plan.program.n_vocab};
    uint32_t done = 0;
    while (done < N_PROMPT + N_DECODE) {
        uint32_t n = done == 0 ? 8 : done < N_PROMPT ? 5 : 1;
        int32_t ids[8], outputs[8];
        for (uint32_t i = 0; i < n; i++) {
            ids[i] = (int32_t)((done + i) * 11 % m->plan.program.n_vocab);
            outputs[i] = (int32_t)i;
        }
        struct atsi_round_request r = {ids, n, done, outputs, n, keep_rows, &rows};
        struct atsi_error err = {0};
        reassign(context, x);
        if (atsi_executor_round(x, &r, &err) != ATSI_OK) fail_msg("%s", err.text);
        rows.at += (size_t)n * rows.n_vocab;
        done += n;
    }
}

static void assign(struct atsi_executor *x, const struct atsi_assignment *a) {
    struct atsi_error err = {0};
    if (atsi_executor_assign(x, a, &err) != ATSI_OK) fail_msg("%s", err.text);
}

static void stay_on_cpu(void *context, struct atsi_executor *x) {
    static const enum atsi_backend backends[N_UNITS_MAX];
    struct atsi_assignment a = {.backends = backends};
    (void)context;
    assign(x, &a);
}

struct shuffle {
    const struct model *m;
    uint64_t random;
    enum atsi_backend backends[N_UNITS_MAX];
    enum atsi_promotion promotions[N_UNITS_MAX];
    float gpu_share[N_UNITS_MAX];
    bool assigned, beside; // beside: the next assignment is prepared in another thread while a round runs
    pthread_t thread;
    struct atsi_executor *executor;
    struct atsi_prepared_round *next;
};

// Any unit on either side, resident, prefetched or read in place, or shared in any proportion.
static struct atsi_assignment draw(struct shuffle *s) {
    for (uint32_t u = 0; u < s->m->plan.program.n_units; u++) {
        s->backends[u] = next_random(&s->random) % 3 ? ATSI_GPU : ATSI_CPU;
        s->promotions[u] = (enum atsi_promotion)(next_random(&s->random) % 3);
        s->gpu_share[u] = (float)(next_random(&s->random) % 5) / 4;
        if (s->m->plan.program.units[u].kind == ATSI_UNIT_HEAD && s->promotions[u] == ATSI_PREFETCHED)
            s->promotions[u] = ATSI_IN_PLACE;
    }
    return (struct atsi_assignment){s->backends, s->promotions, s->gpu_share, 1 + next_random(&s->random) % 2};
}

static void *prepare_next(void *context) {
    struct shuffle *s = context;
    struct atsi_assignment a = draw(s);
    return (void *)(intptr_t)atsi_executor_prepare(s->executor, &a, &s->next, NULL);
}

static void take_next(struct shuffle *s) {
    struct atsi_prepared_round *old;
    void *status;
    assert_int_equal(pthread_join(s->thread, &status), 0);
    assert_int_equal((intptr_t)status, ATSI_OK);
    assert_int_equal(atsi_executor_adopt(s->executor, s->next, &old, NULL), ATSI_OK);
    atsi_prepared_round_free(old);
}

// About every second round keeps what it has, in runs that do not prepare beside them.
static void shuffle_units(void *context, struct atsi_executor *x) {
    struct shuffle *s = context;
    if (s->assigned && s->beside) take_next(s);
    if (!s->assigned || (!s->beside && next_random(&s->random) % 2)) {
        struct atsi_assignment a = draw(s);
        assign(x, &a);
    }
    s->assigned = true;
    s->executor = x;
    if (s->beside) assert_int_equal(pthread_create(&s->thread, NULL, prepare_next, s), 0);
}

// Every tensor in pinned memory and on the device.
static void load_device(struct model *m, struct atsi_device *d, void **blocks) {
    struct atsi_stream *s;
    assert_int_equal(d->ops->stream_create(d, &s, NULL), ATSI_OK);
    for (uint32_t t = 0; t < m->plan.program.n_tensors; t++) {
        uint64_t bytes = m->plan.program.tensors[t].size_bytes;
        void *pinned, *dev;
        assert_int_equal(d->ops->host_alloc(d, bytes, &pinned, &dev, NULL), ATSI_OK);
        memcpy(pinned, m->host[t], bytes);
        free(m->host[t]);
        m->host[t] = pinned;
        m->mapped[t] = dev;
        assert_int_equal(d->ops->alloc(d, bytes, &blocks[t], NULL), ATSI_OK);
        assert_int_equal(d->ops->copy_to_device(s, blocks[t], pinned, bytes, NULL), ATSI_OK);
        m->device[t] = blocks[t];
    }
    assert_int_equal(d->ops->stream_sync(s, NULL), ATSI_OK);
    d->ops->stream_destroy(s);
}

static void unload_device(struct model *m, struct atsi_device *d, void **blocks) {
    for (uint32_t t = 0; t < m->plan.program.n_tensors; t++) {
        d->ops->free(d, blocks[t]);
        d->ops->host_free(d, m->host[t]);
        m->host[t] = NULL;
    }
    assert_int_equal(atsi_sim_n_alive(d), 0);
    d->ops->close(d);
}

static void run_shuffled(const float *expected, size_t n_logits, uint64_t seed, float *found) {
    struct model m;
    struct atsi_device *d;
    struct atsi_executor *x;
    void *blocks[N_TENSORS_MAX] = {0};
    struct atsi_sim_params sim = {.memory_bytes = 256 << 20,
                                  .h2d_bytes_per_us = 2000,
                                  .d2h_bytes_per_us = 2000,
                                  .copy_latency_us = 1,
                                  .delay_seed = (uint32_t)seed + 1,
                                  .delay_max_us = 60,
                                  .reference_kernels = true};
    build_model(&m);
    m.plan.limits.temp_bytes = 1700 << 10; // room for the experts or for four matrices
    assert_int_equal(atsi_sim_open(&sim, &d, NULL), ATSI_OK);
    load_device(&m, d, blocks);
    struct atsi_executor_params params = {.plan = &m.plan,
                                          .host_tensors = (const void *const *)m.host,
                                          .device_tensors = m.device,
                                          .mapped_tensors = m.mapped,
                                          .n_ctx = 64,
                                          .n_threads = 2,
                                          .isa = "reference",
                                          .device = d};
    assert_int_equal(atsi_executor_create(&params, &x, NULL), ATSI_OK);
    struct shuffle s = {.m = &m, .random = seed * 2654435761u + 7, .beside = seed % 2};
    run_text(&m, x, shuffle_units, &s, found);
    if (s.beside) take_next(&s);
    for (size_t i = 0; i < n_logits; i++)
        if (memcmp(&found[i], &expected[i], sizeof found[i]))
            fail_msg("seed %llu: logit %zu differs", (unsigned long long)seed, i);
    atsi_executor_free(x);
    unload_device(&m, d, blocks);
    atsi_plan_free(&m.plan);
}

static void random_assignments_give_the_same_bits(void **state) {
    (void)state;
    struct model m;
    struct atsi_executor *x;
    const char *wanted = getenv("ATSI_SOAK_RUNS");
    uint64_t n_runs = wanted ? strtoull(wanted, NULL, 10) : 40;
    build_model(&m);
    size_t n_logits = (size_t)(N_PROMPT + N_DECODE) * m.plan.program.n_vocab;
    float *expected = calloc(n_logits, sizeof *expected), *found = calloc(n_logits, sizeof *found);
    struct atsi_executor_params params = {
        .plan = &m.plan, .host_tensors = (const void *const *)m.host, .n_ctx = 64, .n_threads = 2, .isa = "reference"};
    assert_int_equal(atsi_executor_create(&params, &x, NULL), ATSI_OK);
    run_text(&m, x, stay_on_cpu, NULL, expected);
    atsi_executor_free(x);
    for (uint64_t seed = 1; seed <= n_runs; seed++) run_shuffled(expected, n_logits, seed, found);
    free(expected);
    free(found);
    free_model(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_assignments_give_the_same_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
