// measure_contention.c: CPU and link read the host's memory at the same time. The largest matrix that rounds of one token read is
// computed on the CPU over and over in a thread of its own, while this one copies, then lets the device compute from the host's memory.
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "formats/base/clock.h"
#include "planner/bench.h"
#include "planner/cost.h"
#include "planner/measure.h"
#include "planner/profile_fit.h"

enum {
    LEAST_BENCHES = 2, // of the CPU while the link is at work
    COPIES_A_TIME = 8
};
static const uint64_t most_copied_bytes = 32 << 20;

// ---- the CPU's part -----------------------------------------------------------------------------------------------

struct background {
    pthread_t thread;
    struct atsi_bench_side *side;
    const struct atsi_plan *plan;
    uint32_t i_op;
    atomic_bool stop;
    atomic_int n_done; // benches since `us` was last asked for
    _Atomic double us; // of the newest
    struct atsi_error err;
};

static void *compute(void *context) {
    struct background *b = context;
    while (!atomic_load(&b->stop)) {
        double us, spread;
        if (atsi_bench_op(b->side, b->plan, b->i_op, 1, &us, &spread, &b->err) != ATSI_OK) break;
        atomic_store(&b->us, us);
        atomic_fetch_add(&b->n_done, 1);
    }
    atomic_fetch_add(&b->n_done, LEAST_BENCHES); // nobody waits for one that failed
    return NULL;
}

static enum atsi_status begin_computing(struct background *b, struct atsi_error *err) {
    int failure = pthread_create(&b->thread, NULL, compute, b);
    return failure ? atsi_fail(err, ATSI_FAILED, "cannot start a thread to profile with: %s", strerror(failure))
                   : ATSI_OK;
}

static enum atsi_status end_computing(struct background *b, struct atsi_error *err) {
    atomic_store(&b->stop, true);
    pthread_join(b->thread, NULL);
    return b->err.status == ATSI_OK ? ATSI_OK : atsi_fail(err, b->err.status, "%s", b->err.text);
}

// ---- the link's part ----------------------------------------------------------------------------------------------

struct contention {
    const struct atsi_plan *plan;
    struct atsi_bench_side *device_side; // its weights stand in the host's memory
    struct background cpu;
    uint32_t i_op;
    void *on_device;       // copied_bytes
    uint64_t copied_bytes; // of a copy: a part of the device side's arena
};

// Copies from different places, so that no cache has them. *us of one.
static enum atsi_status copy_some(struct contention *c, double *us, struct atsi_error *err) {
    const struct atsi_bench_side *s = c->device_side;
    const struct atsi_device_ops *ops = s->device->ops;
    float elapsed_us;
    ATSI_TRY(ops->event_record(s->from, s->stream, err));
    for (int i = 0; i < COPIES_A_TIME; i++)
        ATSI_TRY(ops->copy_to_device(s->stream, c->on_device, (char *)s->mapped + (uint64_t)i * c->copied_bytes,
                                     c->copied_bytes, err));
    ATSI_TRY(ops->event_record(s->to, s->stream, err));
    ATSI_TRY(ops->event_sync(s->to, err));
    ATSI_TRY(ops->event_elapsed_us(s->from, s->to, &elapsed_us, err));
    *us = elapsed_us / COPIES_A_TIME;
    return ATSI_OK;
}

static enum atsi_status compute_in_place(struct contention *c, double *us, struct atsi_error *err) {
    double spread;
    return atsi_bench_op(c->device_side, c->plan, c->i_op, 1, us, &spread, err);
}

typedef enum atsi_status use_link(struct contention *c, double *us, struct atsi_error *err);

// Uses the link until the CPU has gone through LEAST_BENCHES beside it. *us: the last use; *cpu_us: what the CPU took meanwhile.
static enum atsi_status use_beside_cpu(struct contention *c, use_link *use, double *us, double *cpu_us,
                                       struct atsi_error *err) {
    ATSI_TRY(use(c, us, err)); // the CPU's bench of before may have begun alone
    atomic_store(&c->cpu.n_done, 0);
    while (atomic_load(&c->cpu.n_done) < LEAST_BENCHES) ATSI_TRY(use(c, us, err));
    *cpu_us = atomic_load(&c->cpu.us);
    return ATSI_OK;
}

// ---- both ---------------------------------------------------------------------------------------------------------

static enum atsi_status time_beside(struct contention *c, struct atsi_contention_times *t, struct atsi_error *err) {
    double ignored;
    ATSI_TRY(begin_computing(&c->cpu, err));
    enum atsi_status status = use_beside_cpu(c, copy_some, &t->copy_beside_us, &t->cpu_beside_us, err);
    if (status == ATSI_OK) status = use_beside_cpu(c, compute_in_place, &t->in_place_us, &ignored, err);
    enum atsi_status ended = end_computing(&c->cpu, status == ATSI_OK ? err : NULL);
    return status != ATSI_OK ? status : ended;
}

static enum atsi_status time_all(struct contention *c, struct atsi_contention_times *t, struct atsi_error *err) {
    double spread;
    c->copied_bytes = c->device_side->arena_bytes / COPIES_A_TIME;
    if (c->copied_bytes > most_copied_bytes) c->copied_bytes = most_copied_bytes;
    ATSI_TRY(c->device_side->device->ops->alloc(c->device_side->device, c->copied_bytes, &c->on_device, err));
    ATSI_TRY(copy_some(c, &t->copy_us, err)); // warms the link's clock
    ATSI_TRY(copy_some(c, &t->copy_us, err));
    ATSI_TRY(atsi_bench_op(c->cpu.side, c->plan, c->i_op, 1, &t->cpu_us, &spread, err));
    return time_beside(c, t, err);
}

static double factor(double beside_us, double alone_us) {
    return alone_us > 0 ? fmin(fmax(beside_us / alone_us, 1), 10) : 1;
}

struct atsi_contention atsi_contention_of(const struct atsi_contention_times *t) {
    double copied_us = t->copied_bytes > 0 ? t->copy_us * t->matrix_bytes / t->copied_bytes : 0;
    return (struct atsi_contention){.cpu_beside_link = factor(t->cpu_beside_us, t->cpu_us),
                                    .link_in_place = factor(t->in_place_us - t->resident_us, copied_us),
                                    .link_beside_cpu = factor(t->copy_beside_us, t->copy_us)};
}

// What the profile knows of the matrix, and what was copied.
static void add_known(const struct contention *c, const struct atsi_device_profile *p,
                      struct atsi_contention_times *t) {
    const struct atsi_op *op = &c->plan->program.ops[c->i_op];
    struct atsi_work w = atsi_work_of_op(c->plan, op, ATSI_DECODE);
    if (atsi_profile_has_point(p, ATSI_GPU, op->kind, w.dtype, ATSI_DECODE, w.bytes, w.flops))
        t->resident_us = atsi_device_profile_price(p, ATSI_GPU, op->kind, w.dtype, ATSI_DECODE, w.bytes, w.flops).us;
    t->matrix_bytes = w.bytes;
    t->copied_bytes = (double)c->copied_bytes;
}

// The largest matrix of a unit that can be promoted, as far as one token reads it; ATSI_NONE: there is none.
static int32_t largest_matrix(const struct atsi_plan *plan) {
    const struct atsi_program *p = &plan->program;
    double most_bytes = 0;
    int32_t best = ATSI_NONE;
    for (uint32_t u = 0; u < p->n_units; u++)
        for (uint32_t i = p->units[u].first_op; i < p->units[u].first_op + p->units[u].n_ops; i++) {
            bool reads = p->ops[i].kind == ATSI_OP_MATMUL || p->ops[i].kind == ATSI_OP_EXPERTS;
            if (!reads || !atsi_unit_is_promotable(&p->units[u])) continue;
            double bytes = atsi_work_of_op(plan, &p->ops[i], ATSI_DECODE).bytes;
            if (bytes <= most_bytes) continue;
            most_bytes = bytes;
            best = (int32_t)i;
        }
    return best;
}

enum atsi_status atsi_measure_contention(const struct atsi_plan *plan, struct atsi_bench_side *cpu,
                                         struct atsi_device *device, struct atsi_device_profile *profile,
                                         struct atsi_error *err) {
    int32_t i_op = largest_matrix(plan);
    struct atsi_bench_side gpu = {0};
    struct atsi_contention_times times = {0};
    if (i_op == ATSI_NONE) return ATSI_OK;
    struct contention c = {.plan = plan, .device_side = &gpu, .i_op = (uint32_t)i_op};
    c.cpu = (struct background){.side = cpu, .plan = plan, .i_op = (uint32_t)i_op};
    enum atsi_status status = atsi_bench_open_gpu(plan, device, &gpu, err);
    if (status == ATSI_OK) status = atsi_bench_map_weights(&gpu, plan, err);
    if (status == ATSI_OK) status = time_all(&c, &times, err);
    if (c.on_device) device->ops->free(device, c.on_device);
    atsi_bench_close(&gpu);
    ATSI_TRY(status);
    add_known(&c, profile, &times);
    profile->contention = atsi_contention_of(&times);
    return ATSI_OK;
}
