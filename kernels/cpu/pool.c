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
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "formats/base/clock.h"
#include "kernels/cpu/topology.h"

enum {
    CACHE_LINE = 128, // two lines: the neighbour is prefetched with it on x86
    NO_ITEM = UINT32_MAX
};

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
// Of some 0.5 us, by which threads with equal shares differ.
enum {
    SPINS_BEFORE_HELP = 16
};
// A yield that took this long has given the core to somebody else for a time slice. Who sleeps gets it back sooner when woken.
static const double CROWDED_US = 200;

// A worker that lost its core in the middle of an item has made all others wait for a time slice of somebody else's, and would do so
// again and again: it stands back for a while, longer each time that it happens soon after.
// An item that took this much longer than the one before, with the core taken away meanwhile.
static const double LOST_US = 2000;
static const double STAND_BACK_US = 10e3, STAND_BACK_MOST_US = 640e3;
static const double SOON_US = 500e3;

// A word that threads wait on until it changes, and the number that sleep on it.
struct gate {
    _Atomic uint32_t value, n_sleeping;
};

// What is taken of a thread's share of the items: the phase's number << 32 | items. Of an older number, nothing of the present phase is.
// (Numbers come round after 2^32 phases, in days, and every phase with enough items renews all of them.)
struct share {
    alignas(CACHE_LINE) _Atomic uint64_t taken;
};

struct worker {
    struct atsi_pool *pool;
    pthread_t thread;
    int index;
    long n_switches; // times that the core was taken away, when last looked
    double item_us;  // the last item's time
    double pause_us; // of the last standing back, which ended at
    double back_us;
};

struct atsi_pool {
    // What starts work stands in one cache line: those who wait for it then have all that they need.
    alignas(CACHE_LINE) struct gate news; // moves with every job, phase and end of a dispatch
    // Written before `news` moves, or before the offer that leads to reading them.
    _Atomic uint32_t n_jobs; // dispatches of jobs so far
    uint32_t phase;
    _Atomic uint64_t offer; // the phase's number << 32 | how many items it has
    _Atomic int starter;    // the thread whose share is the first
    _Atomic bool finished;  // no phase is left
    _Atomic bool ending;
    const struct atsi_pool_work *work;
    void *context;
    atsi_pool_job *job;
    alignas(CACHE_LINE) struct gate
        summons; // moves with what a thread that stands back must not miss: jobs and the pool's end
    alignas(CACHE_LINE) struct gate barrier; // counts barriers
    alignas(CACHE_LINE) _Atomic int n_arrived;
    alignas(CACHE_LINE) _Atomic int next_item;
    alignas(CACHE_LINE) _Atomic uint32_t n_done; // items of the phase
    alignas(CACHE_LINE) struct share *shares;    // [n_threads]
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

static void futex(_Atomic uint32_t *word, int operation, uint32_t value, const struct timespec *timeout) {
    syscall(SYS_futex, word, operation, value, timeout, NULL, 0);
}

static bool has_moved(struct gate *gate, uint32_t old) {
    return atomic_load_explicit(&gate->value, memory_order_acquire) != old;
}

// Returns when the gate's value is no longer `old`; whether spinning was enough.
static bool gate_wait(struct gate *gate, uint32_t old, const struct patience *patience) {
    for (int i = 0; i < patience->n_spins; i++) {
        if (has_moved(gate, old)) return true;
        cpu_pause();
    }
    double start_us = atsi_clock_us(), before_us = start_us, now_us = start_us;
    while (now_us - start_us <= patience->yield_us && now_us - before_us <= CROWDED_US) {
        if (has_moved(gate, old)) return false;
        sched_yield();
        before_us = now_us;
        now_us = atsi_clock_us();
    }
    // The sleeper counts itself before the kernel compares the value; the opener moves the value before it reads the count:
    // in every order of the two, one sees the other.
    atomic_fetch_add(&gate->n_sleeping, 1);
    while (atomic_load(&gate->value) == old) futex(&gate->value, FUTEX_WAIT_PRIVATE, old, NULL);
    atomic_fetch_sub(&gate->n_sleeping, 1);
    return false;
}

// Sleeps until the gate's value is no longer `old` or the time is over.
static void gate_sleep(struct gate *gate, uint32_t old, double time_us) {
    struct timespec timeout = {.tv_sec = (time_t)(time_us * 1e-6)};
    timeout.tv_nsec = (long)((time_us - (double)timeout.tv_sec * 1e6) * 1e3);
    atomic_fetch_add(&gate->n_sleeping, 1);
    if (atomic_load(&gate->value) == old) futex(&gate->value, FUTEX_WAIT_PRIVATE, old, &timeout);
    atomic_fetch_sub(&gate->n_sleeping, 1);
}

static void gate_open(struct gate *gate) {
    atomic_fetch_add(&gate->value, 1);
    if (atomic_load(&gate->n_sleeping) != 0) futex(&gate->value, FUTEX_WAKE_PRIVATE, INT_MAX, NULL);
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

// Room for a set of ATSI_CPUS_CAP CPUs, on the stack: a dispatch allocates nothing.
union cpu_mask {
    cpu_set_t set;
    unsigned long words[ATSI_CPUS_CAP / (8 * sizeof(unsigned long))];
};

// Binding is an optimisation: a CPU that was taken away meanwhile leaves the thread where the system puts it.
static void bind_thread(pthread_t thread, int cpu) {
    union cpu_mask mask;
    CPU_ZERO_S(sizeof mask, &mask.set);
    CPU_SET_S((size_t)cpu, sizeof mask, &mask.set);
    pthread_setaffinity_np(thread, sizeof mask, &mask.set);
}

// Workers keep their cores busy, so a caller that wakes up on one of them would fight with its owner until the system notices.
// It is moved to the core that was left for it, but not held there: threads that it starts later must not inherit a mask of one.
static void go_to_own_core(const struct atsi_pool *pool) {
    if (pool->cpus == NULL || pool->n_threads == 1 || sched_getcpu() == pool->cpus[0]) return;
    union cpu_mask before;
    if (sched_getaffinity(0, sizeof before, &before.set) != 0) return;
    bind_thread(pthread_self(), pool->cpus[0]);
    sched_setaffinity(0, sizeof before, &before.set);
}

// ---- jobs -----------------------------------------------------------------------------------------------------------

void atsi_pool_run(struct atsi_pool *pool, atsi_pool_job *job, void *context) {
    go_to_own_core(pool);
    pool->job = job;
    pool->context = context;
    atomic_fetch_add(&pool->n_jobs, 1);
    gate_open(&pool->news);
    gate_open(&pool->summons);
    job(context, 0, pool->n_threads);
    atsi_pool_barrier(pool); // all are done, and the counter is reset for the next dispatch
}

// ---- work in phases -------------------------------------------------------------------------------------------------

// Starts the next phase that has something to share; the thread that ended the last one calls it. A single item is done at once.
static void next_phase(struct atsi_pool *pool, int i_thread) {
    const struct atsi_pool_work *work = pool->work;
    for (uint32_t phase = pool->phase + 1; phase < work->n_phases; phase++) {
        uint32_t n_items = work->begin(pool->context, phase);
        if (n_items == 1) work->item(pool->context, phase, 0, i_thread);
        if (n_items <= 1) continue;
        uint64_t number = (atomic_load_explicit(&pool->offer, memory_order_relaxed) >> 32) + 1;
        atomic_store_explicit(&pool->n_done, 0, memory_order_relaxed);
        atomic_store_explicit(&pool->starter, i_thread, memory_order_relaxed);
        pool->phase = phase;
        atomic_store_explicit(&pool->offer, number << 32 | n_items, memory_order_release);
        gate_open(&pool->news);
        return;
    }
    atomic_store_explicit(&pool->finished, true, memory_order_release);
    gate_open(&pool->news);
}

// What is offered, as a thread found it: share i has `each` items, the first n_larger shares one more.
struct offer {
    uint32_t number, n_items;
    uint32_t each, n_larger;
};

static struct offer look_at_offer(struct atsi_pool *pool) {
    uint64_t offer = atomic_load_explicit(&pool->offer, memory_order_acquire);
    uint32_t n_threads = (uint32_t)pool->n_threads, n_items = (uint32_t)offer;
    return (struct offer){offer >> 32, n_items, n_items / n_threads, n_items % n_threads};
}

// The next item of share i, NO_ITEM: all are taken. An item that is taken binds the phase, and with it all that next_phase writes,
// until it is counted as done. Who comes with the offer of a phase that is over finds nothing: all its items are taken, so every
// share that had some has that phase's number or a later one.
static uint32_t take_item(struct atsi_pool *pool, const struct offer *offer, uint32_t i) {
    struct share *share = &pool->shares[i];
    uint32_t size = offer->each + (i < offer->n_larger);
    if (size == 0) return NO_ITEM;
    uint64_t taken = atomic_load_explicit(&share->taken, memory_order_relaxed);
    for (;;) {
        uint32_t number = taken >> 32, n = number == offer->number ? (uint32_t)taken : 0;
        if (n == size || (int32_t)(number - offer->number) > 0) return NO_ITEM;
        if (atomic_compare_exchange_weak_explicit(&share->taken, &taken, (uint64_t)offer->number << 32 | (n + 1),
                                                  memory_order_relaxed, memory_order_relaxed))
            return offer->each * i + (i < offer->n_larger ? i : offer->n_larger) + n;
    }
}

// Whether that ended the phase.
static bool count_done(struct atsi_pool *pool, const struct offer *offer, uint32_t n, int i_thread) {
    if (n == 0 || atomic_fetch_add_explicit(&pool->n_done, n, memory_order_acq_rel) + n < offer->n_items) return false;
    next_phase(pool, i_thread);
    return true;
}

static long times_preempted(void) {
    struct rusage usage;
    return getrusage(RUSAGE_THREAD, &usage) == 0 ? usage.ru_nivcsw : 0;
}

// Whether the worker's core was taken away during the item that it has just done.
static bool lost_core(struct worker *worker, double item_us) {
    bool is_long = item_us > LOST_US + 4 * worker->item_us;
    worker->item_us = item_us;
    if (!is_long) return false;
    long before = worker->n_switches;
    worker->n_switches = times_preempted();
    return worker->n_switches > before;
}

static void stand_back(struct worker *worker) {
    struct gate *summons = &worker->pool->summons;
    uint32_t seen = atomic_load_explicit(&summons->value, memory_order_acquire);
    bool soon = worker->pause_us > 0 && atsi_clock_us() - worker->back_us < SOON_US;
    worker->pause_us = soon ? worker->pause_us * 2 : STAND_BACK_US;
    if (worker->pause_us > STAND_BACK_MOST_US) worker->pause_us = STAND_BACK_MOST_US;
    if (atomic_load(&worker->pool->ending)) return;
    gate_sleep(summons, seen, worker->pause_us);
    worker->back_us = atsi_clock_us();
    worker->n_switches = times_preempted();
}

// Does what is left of share i. worker NULL: the calling thread of the dispatch. Returns whether there is nothing more to look for: the phase
// is at its end, or the worker has stood back.
static bool do_share(struct atsi_pool *pool, struct worker *worker, const struct offer *offer, uint32_t i) {
    int me = worker != NULL ? worker->index : 0;
    uint32_t item = take_item(pool, offer, i), n_done = 0;
    if (item == NO_ITEM) return false;
    double start_us = worker != NULL ? atsi_clock_us() : 0;
    for (; item != NO_ITEM; item = take_item(pool, offer, i)) {
        pool->work->item(pool->context, pool->phase, item, me);
        n_done++;
        if (worker == NULL) continue;
        double now_us = atsi_clock_us();
        if (lost_core(worker, now_us - start_us)) {
            count_done(pool, offer, n_done, me);
            stand_back(worker);
            return true;
        }
        start_us = now_us;
    }
    return count_done(pool, offer, n_done, me);
}

// Does items of the phase: its own share, then what others have left of theirs. Mostly they are about to end too, and looking into all
// shares would hold them up, so that comes a little later. seen: the value of `news` before. Returns whether to come again at once.
static bool do_items(struct atsi_pool *pool, struct worker *worker, uint32_t seen) {
    uint32_t n_threads = (uint32_t)pool->n_threads, me = worker != NULL ? (uint32_t)worker->index : 0;
    struct offer offer = look_at_offer(pool);
    uint32_t starter = (uint32_t)atomic_load_explicit(&pool->starter, memory_order_relaxed);
    uint32_t own = me >= starter ? me - starter : me + n_threads - starter;
    if (do_share(pool, worker, &offer, own)) return true;
    for (int i = 0; i < SPINS_BEFORE_HELP; i++) {
        if (has_moved(&pool->news, seen)) return true;
        cpu_pause();
    }
    for (uint32_t i = 1; i < n_threads; i++)
        if (do_share(pool, worker, &offer, own + i < n_threads ? own + i : own + i - n_threads)) return true;
    return false;
}

void atsi_pool_share(struct atsi_pool *pool, const struct atsi_pool_work *work, void *context) {
    go_to_own_core(pool);
    pool->work = work;
    pool->context = context;
    pool->phase = UINT32_MAX; // the one before the first
    atomic_store_explicit(&pool->finished, false, memory_order_relaxed);
    next_phase(pool, 0);
    for (;;) {
        uint32_t seen = atomic_load_explicit(&pool->news.value, memory_order_acquire);
        if (atomic_load_explicit(&pool->finished, memory_order_acquire)) return;
        if (!do_items(pool, NULL, seen)) gate_wait(&pool->news, seen, pool->cpus != NULL ? &AT_BARRIER : &UNBOUND);
    }
}

// ---- threads --------------------------------------------------------------------------------------------------------

static const struct patience *worker_patience(const struct atsi_pool *pool) {
    if (pool->cpus == NULL) return &UNBOUND;
    return atomic_load_explicit(&pool->finished, memory_order_relaxed) ? &IDLE : &AT_BARRIER;
}

static void *worker_main(void *argument) {
    struct worker *worker = argument;
    struct atsi_pool *pool = worker->pool;
    for (uint32_t n_jobs = 0;;) {
        uint32_t seen = atomic_load_explicit(&pool->news.value, memory_order_acquire);
        if (atomic_load(&pool->ending)) return NULL;
        if (atomic_load(&pool->n_jobs) != n_jobs) { // one more: no job ends without this thread
            n_jobs++;
            pool->job(pool->context, worker->index, pool->n_threads);
            atsi_pool_barrier(pool);
        } else if (!do_items(pool, worker, seen) && !gate_wait(&pool->news, seen, worker_patience(pool))) {
            worker->n_switches = times_preempted(); // yielding counts there too
        }
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
    pool->finished = true;
    pool->workers = calloc((size_t)n_threads, sizeof *pool->workers);
    pool->shares = aligned_alloc(CACHE_LINE, (size_t)n_threads * sizeof *pool->shares);
    if (cpus != NULL) pool->cpus = calloc((size_t)n_threads, sizeof *pool->cpus);
    if (pool->workers == NULL || pool->shares == NULL || (cpus != NULL && pool->cpus == NULL)) {
        atsi_pool_free(pool);
        return atsi_fail(err, ATSI_FAILED, "out of memory for a pool of %d threads", n_threads);
    }
    memset(pool->shares, 0, (size_t)n_threads * sizeof *pool->shares);
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
    atomic_store(&pool->ending, true);
    gate_open(&pool->news);
    gate_open(&pool->summons);
    for (int i = 0; i < pool->n_started; i++) pthread_join(pool->workers[i].thread, NULL);
    free(pool->cpus);
    free(pool->shares);
    free(pool->workers);
    free(pool);
}
