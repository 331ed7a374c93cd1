#include "kernels/cpu/pool.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "formats/base/clock.h"
#include "kernels/cpu/topology.h"

enum {
    CACHE_LINE = 128
}; // two lines: the neighbour is prefetched with it on x86

// Waiting is in three steps. Spinning covers what threads of one job differ by; yielding, which costs nothing while nobody else
// wants the core, covers a thread that lost its core for a moment, or the sampling of a token between two dispatches; sleeping covers
// the rest. Waking sleepers takes 50 us and more each, so sleep comes late where every thread has a core of its own.
struct patience {
    int n_spins;
    double yield_us;
};
static const struct patience AT_BARRIER = {2000, 1000}; // spins of some 20-50 ns
static const struct patience IDLE = {4000, 3000};
static const struct patience UNBOUND = {0, 0};

// A word that threads wait on until it changes, and the number that sleep on it.
struct gate {
    alignas(CACHE_LINE) _Atomic uint32_t value;
    alignas(CACHE_LINE) _Atomic uint32_t n_sleeping;
};

struct worker {
    struct atsi_pool *pool;
    pthread_t thread;
    int index;
};

struct atsi_pool {
    struct gate start;   // counts dispatches
    struct gate barrier; // counts barriers
    alignas(CACHE_LINE) _Atomic int n_arrived;
    alignas(CACHE_LINE) _Atomic int next_item;
    alignas(CACHE_LINE) atsi_pool_job *job; // written before `start` moves; NULL ends the threads
    void *context;
    int n_threads;
    int *cpus; // [n_threads] where each thread belongs, NULL for an unbound pool
    int n_started;
    struct worker *workers; // [n_threads - 1]
};

static void cpu_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void futex(_Atomic uint32_t *word, int operation, uint32_t value) {
    syscall(SYS_futex, word, operation, value, NULL, NULL, 0);
}

static bool has_moved(struct gate *gate, uint32_t old) {
    return atomic_load_explicit(&gate->value, memory_order_acquire) != old;
}

// Returns when the gate's value is no longer `old`.
static void gate_wait(struct gate *gate, uint32_t old, const struct patience *patience) {
    for (int i = 0; i < patience->n_spins; i++) {
        if (has_moved(gate, old)) return;
        cpu_pause();
    }
    for (double start_us = atsi_clock_us(); atsi_clock_us() - start_us <= patience->yield_us;) {
        if (has_moved(gate, old)) return;
        sched_yield();
    }
    // The sleeper counts itself before the kernel compares the value; the opener moves the value before it reads the count:
    // in every order of the two, one sees the other.
    atomic_fetch_add(&gate->n_sleeping, 1);
    while (atomic_load(&gate->value) == old) futex(&gate->value, FUTEX_WAIT_PRIVATE, old);
    atomic_fetch_sub(&gate->n_sleeping, 1);
}

static void gate_open(struct gate *gate) {
    atomic_fetch_add(&gate->value, 1);
    if (atomic_load(&gate->n_sleeping) != 0) futex(&gate->value, FUTEX_WAKE_PRIVATE, INT_MAX);
}

void atsi_pool_barrier(struct atsi_pool *pool) {
    uint32_t phase = atomic_load_explicit(&pool->barrier.value, memory_order_acquire);
    if (atomic_fetch_add(&pool->n_arrived, 1) + 1 < pool->n_threads) {
        gate_wait(&pool->barrier, phase, pool->cpus != NULL ? &AT_BARRIER : &UNBOUND);
        return;
    }
    atomic_store_explicit(&pool->n_arrived, 0, memory_order_relaxed);
    atomic_store_explicit(&pool->next_item, 0, memory_order_relaxed);
    gate_open(&pool->barrier);
}

int atsi_pool_next(struct atsi_pool *pool) {
    return atomic_fetch_add_explicit(&pool->next_item, 1, memory_order_relaxed);
}

int atsi_pool_n_threads(const struct atsi_pool *pool) { return pool->n_threads; }

// Binding is an optimisation: a CPU that was taken away meanwhile leaves the thread where the system puts it.
static void bind_thread(pthread_t thread, int cpu) {
    cpu_set_t *set = CPU_ALLOC(ATSI_CPUS_CAP);
    if (set == NULL) return;
    size_t set_bytes = CPU_ALLOC_SIZE(ATSI_CPUS_CAP);
    CPU_ZERO_S(set_bytes, set);
    CPU_SET_S(cpu, set_bytes, set);
    pthread_setaffinity_np(thread, set_bytes, set);
    CPU_FREE(set);
}

// Workers keep their cores busy, so a caller that wakes up on one of them would fight with its owner until the system notices.
// It is moved to the core that was left for it, but not held there: threads that it starts later must not inherit a mask of one.
static void go_to_own_core(const struct atsi_pool *pool) {
    if (pool->cpus == NULL || pool->n_threads == 1 || sched_getcpu() == pool->cpus[0]) return;
    cpu_set_t *before = CPU_ALLOC(ATSI_CPUS_CAP);
    if (before == NULL) return;
    if (sched_getaffinity(0, CPU_ALLOC_SIZE(ATSI_CPUS_CAP), before) == 0) {
        bind_thread(pthread_self(), pool->cpus[0]);
        sched_setaffinity(0, CPU_ALLOC_SIZE(ATSI_CPUS_CAP), before);
    }
    CPU_FREE(before);
}

void atsi_pool_run(struct atsi_pool *pool, atsi_pool_job *job, void *context) {
    go_to_own_core(pool);
    pool->job = job;
    pool->context = context;
    gate_open(&pool->start);
    job(context, 0, pool->n_threads);
    atsi_pool_barrier(pool); // all are done, and the counter is reset for the next dispatch
}

static void *worker_main(void *argument) {
    struct worker *worker = argument;
    struct atsi_pool *pool = worker->pool;
    for (uint32_t n_seen = 0;; n_seen++) {
        gate_wait(&pool->start, n_seen, pool->cpus != NULL ? &IDLE : &UNBOUND);
        if (pool->job == NULL) return NULL;
        pool->job(pool->context, worker->index, pool->n_threads);
        atsi_pool_barrier(pool);
    }
}

static enum atsi_status start_workers(struct atsi_pool *pool, struct atsi_error *err) {
    for (int i = 0; i < pool->n_threads - 1; i++) {
        struct worker *worker = &pool->workers[i];
        int failure = pthread_create(&worker->thread, NULL, worker_main, worker);
        if (failure != 0)
            return atsi_fail(err, ATSI_FAILED, "cannot start thread %d of %d: %s; use fewer threads", i + 2,
                             pool->n_threads, strerror(failure));
        pool->n_started++;
        if (pool->cpus != NULL) bind_thread(worker->thread, pool->cpus[i + 1]);
    }
    return ATSI_OK;
}

// cpus: where to bind threads 0.. (thread 0 is the caller and stays free), NULL: nowhere.
static enum atsi_status create(int n_threads, const int *cpus, struct atsi_pool **out, struct atsi_error *err) {
    *out = NULL;
    struct atsi_pool *pool = aligned_alloc(CACHE_LINE, sizeof *pool);
    if (pool == NULL) return atsi_fail(err, ATSI_FAILED, "out of memory for a pool of %d threads", n_threads);
    memset(pool, 0, sizeof *pool);
    pool->n_threads = n_threads;
    pool->workers = calloc((size_t)n_threads, sizeof *pool->workers);
    if (cpus != NULL) pool->cpus = calloc((size_t)n_threads, sizeof *pool->cpus);
    if (pool->workers == NULL || (cpus != NULL && pool->cpus == NULL)) {
        atsi_pool_free(pool);
        return atsi_fail(err, ATSI_FAILED, "out of memory for a pool of %d threads", n_threads);
    }
    if (cpus != NULL) memcpy(pool->cpus, cpus, (size_t)n_threads * sizeof *cpus);
    for (int i = 0; i < n_threads - 1; i++) pool->workers[i] = (struct worker){.pool = pool, .index = i + 1};
    enum atsi_status status = start_workers(pool, err);
    if (status != ATSI_OK) {
        atsi_pool_free(pool);
        return status;
    }
    *out = pool;
    return ATSI_OK;
}

static int default_threads(const struct atsi_topology *topology) {
    int n = topology->n_fast_cores;
    return topology->quota_cpus > 0 && topology->quota_cpus < n ? topology->quota_cpus : n;
}

int atsi_pool_default_threads(void) {
    struct atsi_topology topology;
    atsi_topology_read(&topology);
    return default_threads(&topology);
}

enum atsi_status atsi_pool_create(int n_threads, struct atsi_pool **out, struct atsi_error *err) {
    *out = NULL;
    if (n_threads < 0) return atsi_fail(err, ATSI_BAD_INPUT, "%d threads: expected 0 (automatic) or more", n_threads);
    struct atsi_topology topology;
    atsi_topology_read(&topology);
    int most = topology.n_cpus;
    if (topology.quota_cpus > 0 && topology.quota_cpus < most) most = topology.quota_cpus;
    if (n_threads == 0) n_threads = default_threads(&topology);
    return create(n_threads < most ? n_threads : most, topology.cpus, out, err);
}

enum atsi_status atsi_pool_create_unbound(int n_threads, struct atsi_pool **out, struct atsi_error *err) {
    *out = NULL;
    if (n_threads < 1) return atsi_fail(err, ATSI_BAD_INPUT, "%d threads: expected 1 or more", n_threads);
    return create(n_threads, NULL, out, err);
}

void atsi_pool_free(struct atsi_pool *pool) {
    if (pool == NULL) return;
    pool->job = NULL;
    gate_open(&pool->start);
    for (int i = 0; i < pool->n_started; i++) pthread_join(pool->workers[i].thread, NULL);
    free(pool->cpus);
    free(pool->workers);
    free(pool);
}
