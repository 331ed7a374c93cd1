#include "tests/support/small_model.h"

#include <stdlib.h>
#include <string.h>

#include "tests/support/check.h"

uint64_t test_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

void test_model_build(struct test_model *m) {
    uint64_t random = 88172645463325252u;
    memset(m, 0, sizeof *m);
    test_build_gated_plan(&m->plan);
    m->plan.limits.temp_bytes = 1700 << 10; // room for the experts of a unit or for four matrices
    for (uint32_t t = 0; t < m->plan.program.n_tensors; t++) {
        uint64_t n = m->plan.program.tensors[t].size_bytes / sizeof(float);
        float *values = m->host[t] = aligned_alloc(64, (n * sizeof(float) + 63) / 64 * 64);
        for (uint64_t i = 0; i < n; i++) values[i] = (float)(int64_t)(test_random(&random) >> 40) / 0x1p24f - 0.5f;
    }
}

void test_model_free(struct test_model *m) {
    for (uint32_t t = 0; t < m->plan.program.n_tensors; t++) free(m->host[t]);
    atsi_plan_free(&m->plan);
}

void test_model_load(struct test_model *m, struct atsi_device *d) {
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
        assert_int_equal(d->ops->alloc(d, bytes, &m->blocks[t], NULL), ATSI_OK);
        assert_int_equal(d->ops->copy_to_device(s, m->blocks[t], pinned, bytes, NULL), ATSI_OK);
        m->device[t] = m->blocks[t];
    }
    assert_int_equal(d->ops->stream_sync(s, NULL), ATSI_OK);
    d->ops->stream_destroy(s);
}

static uint32_t router_unit_of(const struct test_model *m) {
    const struct atsi_program *p = &m->plan.program;
    uint32_t u = 0;
    while (!atsi_unit_find_op(p, &p->units[u], ATSI_OP_ROUTER)) u++;
    return u;
}

// An expert of a unit, NULL when the unit has none.
static char *expert_of(const struct test_model *m, uint32_t unit, uint32_t id, uint64_t *bytes) {
    const struct atsi_op *op = atsi_unit_experts_op(&m->plan.program, &m->plan.program.units[unit]);
    if (!op) return NULL;
    *bytes = m->plan.program.tensors[op->tensor[0]].size_bytes / TEST_MODEL_EXPERTS;
    return (char *)m->host[op->tensor[0]] + id * *bytes;
}

static void draw_residents(struct test_model *m, uint64_t *random) {
    uint32_t set = 1 + (uint32_t)(test_random(random) % ((1 << TEST_MODEL_EXPERTS) - 2)); // neither none nor all
    for (uint32_t e = 0; e < TEST_MODEL_EXPERTS; e++) {
        m->slots[e] = set >> e & 1 ? (int32_t)m->n_resident : -1;
        if (m->slots[e] >= 0) m->ids[m->n_resident++] = (uint16_t)e;
    }
}

static void fill_residents(struct test_model *m, struct atsi_device *d, struct atsi_stream *s, uint32_t unit,
                           int32_t *mine) {
    uint64_t bytes;
    if (!expert_of(m, unit, 0, &bytes)) return;
    assert_int_equal(d->ops->alloc(d, TEST_MODEL_EXPERTS * bytes, &m->residents[unit], NULL), ATSI_OK);
    for (uint32_t i = 0; i < m->n_resident; i++)
        assert_int_equal(d->ops->copy_to_device(s, (char *)m->residents[unit] + i * bytes,
                                                expert_of(m, unit, m->ids[i], &bytes), bytes, NULL),
                         ATSI_OK);
    m->host_experts[unit].slots = m->slots;
    m->device_experts[unit] =
        (struct atsi_experts_ref){.slots = m->slots_dev, .data = m->residents[unit], .mine = mine};
}

void test_model_reside(struct test_model *m, struct atsi_device *d, uint64_t *random) {
    uint32_t router = router_unit_of(m);
    uint64_t table_bytes = TEST_MODEL_EXPERTS * sizeof *m->slots;
    uint64_t all_bytes = atsi_router_table_bytes(TEST_MODEL_EXPERTS, TEST_MODEL_USED);
    struct atsi_stream *s;
    void *slots, *dev;
    assert_int_equal(d->ops->stream_create(d, &s, NULL), ATSI_OK);
    assert_int_equal(d->ops->host_alloc(d, table_bytes, &slots, &dev, NULL), ATSI_OK);
    assert_int_equal(d->ops->alloc(d, all_bytes, &m->slots_dev, NULL), ATSI_OK);
    m->slots = slots;
    draw_residents(m, random);
    int32_t *mine = (int32_t *)m->slots_dev + TEST_MODEL_EXPERTS;
    for (uint32_t u = 0; u < m->plan.program.n_units; u++) fill_residents(m, d, s, u, mine);
    assert_int_equal(d->ops->copy_to_device(s, m->slots_dev, m->slots, table_bytes, NULL), ATSI_OK);
    assert_int_equal(d->ops->stream_sync(s, NULL), ATSI_OK);
    d->ops->stream_destroy(s);
    m->host_experts[router].slots = m->slots;
    m->device_experts[router].slots = m->slots_dev;
    m->device_experts[router].mine = mine;
}

void test_model_exchange(struct test_model *m, struct atsi_executor *x, uint64_t *random) {
    uint64_t bytes, place = test_random(random) % m->n_resident;
    uint32_t in = (uint32_t)(test_random(random) % TEST_MODEL_EXPERTS);
    while (m->slots[in] >= 0) in = (in + 1) % TEST_MODEL_EXPERTS;
    m->slots[m->ids[place]] = -1;
    m->slots[in] = (int32_t)place;
    m->ids[place] = (uint16_t)in;
    for (uint32_t u = 0; u < m->plan.program.n_units; u++) {
        const char *host = expert_of(m, u, in, &bytes);
        if (!host) continue;
        assert_int_equal(atsi_executor_copy(x, (char *)m->residents[u] + place * bytes, host, bytes, NULL), ATSI_OK);
    }
    assert_int_equal(atsi_executor_copy(x, m->slots_dev, m->slots, TEST_MODEL_EXPERTS * sizeof *m->slots, NULL),
                     ATSI_OK);
}

void test_model_unload(struct test_model *m, struct atsi_device *d) {
    for (uint32_t t = 0; t < m->plan.program.n_tensors; t++) {
        d->ops->free(d, m->blocks[t]);
        d->ops->host_free(d, m->host[t]);
        m->host[t] = NULL;
    }
    if (m->slots) {
        for (uint32_t u = 0; u < m->plan.program.n_units; u++)
            if (m->residents[u]) d->ops->free(d, m->residents[u]);
        d->ops->free(d, m->slots_dev);
        d->ops->host_free(d, m->slots);
    }
    assert_int_equal(atsi_sim_n_alive(d), 0);
    d->ops->close(d);
}

struct atsi_device *test_open_sim(uint32_t delay_seed) {
    struct atsi_device *d;
    struct atsi_sim_params sim = {.memory_bytes = 256 << 20,
                                  .h2d_bytes_per_us = 2000,
                                  .d2h_bytes_per_us = 2000,
                                  .copy_latency_us = 1,
                                  .delay_seed = delay_seed,
                                  .delay_max_us = 60,
                                  .reference_kernels = true};
    assert_int_equal(atsi_sim_open(&sim, &d, NULL), ATSI_OK);
    return d;
}

struct atsi_executor_params test_model_params(const struct test_model *m, struct atsi_device *d) {
    return (struct atsi_executor_params){.plan = &m->plan,
                                         .host_tensors = (const void *const *)m->host,
                                         .device_tensors = d ? m->device : NULL,
                                         .mapped_tensors = d ? m->mapped : NULL,
                                         .host_experts = d ? m->host_experts : NULL,
                                         .device_experts = d ? m->device_experts : NULL,
                                         .n_ctx = 64,
                                         .n_threads = 2,
                                         .isa = "reference",
                                         .device = d};
}
