#include "kernels/cpu/pool.h"

#include <assert.h>
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
#include "kernels/cpu/gate.h"
#include "kernels/cpu/topology.h"

enum {
    CACHE_LINE = 128, // two lines: the neighbour is prefetched with it on x86
    ITEM_BITS = 26,
    NO_ITEM = UINT32_MAX
};
static_assert(ATSI_REPEAT_SLOTS_MAX < 1 << (32 - ITEM_BITS), "an offer has room for the number of a slot");

static const struct atsi_patience AT_BARRIER = {2000, 1000}; // spins of some 20-50 ns
static const struct atsi_patience IDLE = {4000, 3000};
static const struct atsi_patience UNBOUND = {0, 0}, CROWDED = {2000, 0};
// Of some 0.5 us, by which threads with equal shares differ.
enum {
    SPINS_BEFORE_HELP = 16
};

// A worker that lost its core in the middle of an item has made all others wait for a time slice of somebody else's, and would do so
// again and again: it stands back for a while, longer each time that it happens soon after.
// An item that took this much longer than the one before, with the core taken away meanwhile for a good part of that: interrupts and the
// system's own threads take it for some microseconds now and then, and the first long item behind short ones is mostly just long.
static const double LOST_US = 2000, AWAY_US = 1000;
static const double STAND_BACK_US = 10e3, STAND_BACK_MOST_US = 640e3;
static const double SOON_US = 500e3;
// For how long a machine is taken for crowded after a thread has lost its core in an item.
static const double STAYS_CROWDED_US = 1e6;

// Looking for items that others are late with begins when a thread has had nothing to do for as long as its items took, or this long if it
// had none, and comes this often, each time after twice as long.
static const double LATE_US = 15;
enum {
    LOOKS_FOR_LATE = 3,
    SLICE_NS = 100000
};

// What is taken of a thread's share of the items: the phase's number << 32 | items. Of an older number, nothing of the present phase is.
// (Numbers come round after 2^32 phases, in days, and every phase with enough items renews all of them.)
struct share {
    alignas(CACHE_LINE) _Atomic uint64_t taken;
};

// What the system has counted of a thread.
struct account {
    long n_preempted; // times that the core was taken away
    double away_us;   // time since some moment that it has not had one
};

// Each writes its own with every item.
struct worker {
    alignas(CACHE_LINE) struct atsi_pool *pool;
    pthread_t thread;
    int index;
    struct account account; // when last looked
    double item_us;         // the last item's time
    double longest_us;      // of the items since this was last 0
    double pause_us;        // of the last standing back, which ended at
    double back_us;
};

struct atsi_pool {
    // What starts work stands in one cache line: those who wait for it then have all that they need.
    alignas(CACHE_LINE) struct atsi_gate news; // moves with every job, phase and end of a dispatch
    // Written before `news` moves, or before the offer that leads to reading them.
    _Atomic uint32_t n_jobs; // dispatches of jobs so far
    uint32_t phase;
    // The phase's number << 32 | slot of its job << ITEM_BITS | how many items it has. Slot 0: items are done once.
    _Atomic uint64_t offer;
    _Atomic int starter;   // the thread whose share is the first
    _Atomic bool finished; // no phase is left
    _Atomic bool ending;
    const struct atsi_pool_work *work;
    void *context;
    // Of work. Threads that are late read it when work is another; acquired with it is that what they come for is over.
    _Atomic(struct atsi_repeats *) repeats;
    atsi_pool_job *job;
    _Atomic int64_t crowded_until_us, lost_us; // lost_us: when a worker last lost its core
    _Atomic uint64_t n_lost, n_repeated;
    bool ignores_crowds;
    alignas(CACHE_LINE) struct atsi_gate
        summons; // moves with what a thread that stands back must not miss: jobs and the pool's end
    alignas(CACHE_LINE) struct atsi_gate barrier; // counts barriers
    alignas(CACHE_LINE) _Atomic int n_arrived;
    alignas(CACHE_LINE) _Atomic int next_item;
    alignas(CACHE_LINE) _Atomic uint32_t n_done; // items of the phase
    alignas(CACHE_LINE) struct share *shares;    // [n_threads]
    int n_threads;
    int *cpus; // [n_threads] where each thread belongs, NULL for an unbound pool
    int n_started;
    struct worker *workers; // [n_threads], the first is whoever calls
};

void atsi_pool_barrier(struct atsi_pool *pool) {
    uint32_t phase = atomic_load_explicit(&pool->barrier.value, memory_order_acquire);
    if (atomic_fetch_add(&pool->n_arrived, 1) + 1 < pool->n_threads) {
        atsi_gate_wait(&pool->barrier, phase, pool->cpus != NULL ? &AT_BARRIER : &UNBOUND);
        return;
    }
    atomic_store_explicit(&pool->n_arrived, 0, memory_order_relaxed);
    atomic_store_explicit(&pool->next_item, 0, memory_order_relaxed);
    atsi_gate_open(&pool->barrier);
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

void atsi_pool_keep_off(const struct atsi_pool *pool, pthread_t thread) {
    union cpu_mask mask;
    if (pool->cpus == NULL || pool->n_threads == 1) return;
    if (pthread_getaffinity_np(thread, sizeof mask, &mask.set) != 0) return;
    CPU_CLR_S((size_t)pool->cpus[0], sizeof mask, &mask.set);
    if (CPU_COUNT_S(sizeof mask, &mask.set) > 0) pthread_setaffinity_np(thread, sizeof mask, &mask.set);
}

// ---- jobs -----------------------------------------------------------------------------------------------------------

void atsi_pool_run(struct atsi_pool *pool, atsi_pool_job *job, void *context) {
    go_to_own_core(pool);
    pool->job = job;
    pool->context = context;
    atomic_fetch_add(&pool->n_jobs, 1);
    atsi_gate_open(&pool->news);
    atsi_gate_open(&pool->summons);
    job(context, 0, pool->n_threads);
    atsi_pool_barrier(pool); // all are done, and the counter is reset for the next dispatch
}

// ---- a crowded machine ----------------------------------------------------------------------------------------------

static bool is_crowded(const struct atsi_pool *pool) {
    int64_t until_us = atomic_load_explicit(&pool->crowded_until_us, memory_order_relaxed);
    return until_us != 0 && !pool->ignores_crowds && (double)until_us > atsi_clock_us();
}

void atsi_pool_ignore_crowds(struct atsi_pool *pool) { pool->ignores_crowds = true; }

void atsi_pool_assume_crowded(struct atsi_pool *pool, double time_us) {
    atomic_store_explicit(&pool->crowded_until_us, (int64_t)(atsi_clock_us() + time_us), memory_order_relaxed);
}

// One alone is a hiccup; where a second follows soon there will be more.
static void note_lost_core(struct atsi_pool *pool) {
    int64_t now_us = (int64_t)atsi_clock_us(),
            before_us = atomic_exchange_explicit(&pool->lost_us, now_us, memory_order_relaxed);
    bool again =
        atomic_fetch_add_explicit(&pool->n_lost, 1, memory_order_relaxed) > 0 && (double)(now_us - before_us) < SOON_US;
    if (again || is_crowded(pool)) atsi_pool_assume_crowded(pool, STAYS_CROWDED_US);
}

struct atsi_pool_crowding atsi_pool_crowding(struct atsi_pool *pool) {
    return (struct atsi_pool_crowding){.n_lost = atomic_load(&pool->n_lost),
                                       .n_repeated = atomic_load(&pool->n_repeated)};
}

// How a phase with more than one item is done; *slot: of its job, 0 where it is not repeated.
static enum atsi_pool_way way_of(struct atsi_pool *pool, uint32_t phase, uint32_t n_items, uint32_t *slot) {
    const struct atsi_pool_work *work = pool->work;
    *slot = 0;
    if (work->repeats == NULL || pool->n_threads == 1 || !is_crowded(pool)) return ATSI_POOL_SHARES;
    if (n_items <= ATSI_REPEAT_ITEMS_MAX) *slot = atsi_repeats_free_slot(work->repeats);
    void *job = *slot != 0 ? atsi_repeats_job(work->repeats, *slot) : NULL;
    enum atsi_pool_way way = work->crowded_way(pool->context, phase, job);
    if (way == ATSI_POOL_REPEATS)
        atsi_repeats_begin(work->repeats, *slot, n_items);
    else
        *slot = 0;
    return way;
}

// ---- work in phases -------------------------------------------------------------------------------------------------

// A job that is done is offered no longer before slots are looked for: whoever takes hold of its slot then sees that it came too late.
static uint64_t close_offer(struct atsi_pool *pool) {
    uint64_t offer = atomic_load_explicit(&pool->offer, memory_order_relaxed), number = offer >> 32;
    if ((uint32_t)offer >> ITEM_BITS != 0) atomic_store(&pool->offer, number << 32);
    return number;
}

// Starts the next phase that has something to share; the thread that ended the last one calls it. A single item is done at once.
static void next_phase(struct atsi_pool *pool, int i_thread) {
    const struct atsi_pool_work *work = pool->work;
    uint64_t number = close_offer(pool) + 1;
    for (uint32_t phase = pool->phase + 1; phase < work->n_phases; phase++) {
        uint32_t n_items = work->begin(pool->context, phase), slot = 0;
        enum atsi_pool_way way = n_items > 1 ? way_of(pool, phase, n_items, &slot) : ATSI_POOL_ALONE;
        if (way == ATSI_POOL_ALONE) {
            for (uint32_t item = 0; item < n_items; item++) work->item(pool->context, phase, item, i_thread);
            continue;
        }
        atomic_store_explicit(&pool->n_done, 0, memory_order_relaxed);
        atomic_store_explicit(&pool->starter, i_thread, memory_order_relaxed);
        pool->phase = phase;
        atomic_store_explicit(&pool->offer, number << 32 | slot << ITEM_BITS | n_items, memory_order_release);
        atsi_gate_open(&pool->news);
        return;
    }
    atomic_store_explicit(&pool->finished, true, memory_order_release);
    atsi_gate_open(&pool->news);
}

// What is offered, as a thread found it: share i has `each` items, the first n_larger shares one more.
struct offer {
    uint64_t word; // as it was read
    uint32_t number, slot, n_items;
    uint32_t each, n_larger;
    struct atsi_repeats *repeats; // where slot is not 0
};

static struct offer look_at_offer(struct atsi_pool *pool) {
    uint64_t word = atomic_load_explicit(&pool->offer, memory_order_acquire);
    uint32_t n_threads = (uint32_t)pool->n_threads, n_items = (uint32_t)word & ((1u << ITEM_BITS) - 1);
    return (struct offer){.word = word,
                          .number = word >> 32,
                          .slot = (uint32_t)word >> ITEM_BITS,
                          .n_items = n_items,
                          .each = n_items / n_threads,
                          .n_larger = n_items % n_threads,
                          .repeats = atomic_load_explicit(&pool->repeats, memory_order_acquire)};
}

// The next item of share i, NO_ITEM: all are taken. An item that is taken binds the phase, and with it all that next_phase writes,
// until it is counted as done; one that others may repeat binds its job alone, until this thread has done it too. Who comes with the offer of a phase that is over finds nothing: all its items are taken, so every
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

static struct account read_account(void) {
    struct rusage usage = {0};
    struct timespec worked = {0};
    getrusage(RUSAGE_THREAD, &usage);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &worked);
    double worked_us = (double)worked.tv_sec * 1e6 + (double)worked.tv_nsec * 1e-3;
    return (struct account){usage.ru_nivcsw, atsi_clock_us() - worked_us};
}

// Whether the worker's core was taken away during the item that it has just done.
static bool lost_core(struct worker *worker, double item_us) {
    bool is_long = item_us > LOST_US + 4 * worker->item_us;
    worker->item_us = item_us;
    if (item_us > worker->longest_us) worker->longest_us = item_us;
    if (!is_long) return false;
    struct account before = worker->account;
    worker->account = read_account();
    return worker->account.n_preempted > before.n_preempted && worker->account.away_us - before.away_us > AWAY_US;
}

static void stand_back(struct worker *worker) {
    struct atsi_gate *summons = &worker->pool->summons;
    uint32_t seen = atomic_load_explicit(&summons->value, memory_order_acquire);
    bool soon = worker->pause_us > 0 && atsi_clock_us() - worker->back_us < SOON_US;
    worker->pause_us = soon ? worker->pause_us * 2 : STAND_BACK_US;
    if (worker->pause_us > STAND_BACK_MOST_US) worker->pause_us = STAND_BACK_MOST_US;
    if (atomic_load(&worker->pool->ending)) return;
    atsi_gate_sleep(summons, seen, worker->pause_us);
    worker->back_us = atsi_clock_us();
    worker->account = read_account();
}

// Does an item that this thread has taken. Whether the phase goes on with more for this thread; *n_done counts what it must report.
static bool do_taken(struct atsi_pool *pool, const struct offer *offer, uint32_t item, int me, uint32_t *n_done) {
    if (offer->slot == 0) {
        pool->work->item(pool->context, pool->phase, item, me);
        ++*n_done;
        return true;
    }
    // At once, not at the share's end: what is done and not counted would hold up the phase if the core went then.
    return atsi_repeats_do(offer->repeats, offer->slot, item, me) && !count_done(pool, offer, 1, me);
}

// What a thread did of a phase, to say how long an item takes it.
struct pace {
    double time_us;
    uint32_t n_items;
};

// Does what is left of share i. Returns whether there is nothing more to look for: the phase is at its end, or the worker has lost its core.
static bool do_share(struct atsi_pool *pool, struct worker *worker, const struct offer *offer, uint32_t i,
                     struct pace *pace) {
    int me = worker->index;
    uint32_t item = take_item(pool, offer, i), n_done = 0;
    if (item == NO_ITEM) return false;
    bool is_timed = pool->n_threads > 1, goes_on = true;
    double start_us = is_timed ? atsi_clock_us() : 0;
    for (; item != NO_ITEM; item = goes_on ? take_item(pool, offer, i) : NO_ITEM) {
        goes_on = do_taken(pool, offer, item, me, &n_done);
        if (!is_timed) continue;
        double now_us = atsi_clock_us();
        pace->time_us += now_us - start_us;
        pace->n_items++;
        if (lost_core(worker, now_us - start_us)) {
            note_lost_core(pool);
            count_done(pool, offer, n_done, me);
            if (offer->slot == 0 && me != 0) stand_back(worker);
            return true;
        }
        start_us = now_us;
    }
    return !goes_on || count_done(pool, offer, n_done, me);
}

// Waits for so long. Whether there is news.
static bool wait_for_news(struct atsi_pool *pool, uint32_t seen, double time_us) {
    for (double end_us = atsi_clock_us() + time_us; atsi_clock_us() < end_us; atsi_cpu_pause())
        if (atsi_gate_has_moved(&pool->news, seen)) return true;
    return atsi_gate_has_moved(&pool->news, seen);
}

// Does once more what others have taken and are late with, beginning with the own share. Whether the phase is at its end.
static bool do_late_items(struct atsi_pool *pool, const struct offer *offer, uint32_t own, uint32_t n_times, int me) {
    bool is_over = false;
    atsi_repeats_hold(offer->repeats, offer->slot);
    for (uint32_t i = 0; i < offer->n_items && !is_over; i++) {
        is_over = atomic_load(&pool->offer) != offer->word;
        uint32_t item = (uint32_t)((offer->each * own + (uint64_t)i) % offer->n_items);
        if (!is_over && atsi_repeats_do_again(offer->repeats, offer->slot, item, n_times, me)) {
            atomic_fetch_add_explicit(&pool->n_repeated, 1, memory_order_relaxed);
            is_over = count_done(pool, offer, 1, me);
        }
    }
    atsi_repeats_let_go(offer->repeats, offer->slot);
    return is_over;
}

static bool help_the_late(struct atsi_pool *pool, const struct offer *offer, uint32_t own, uint32_t seen,
                          const struct pace *pace, int me) {
    double wait_us = LATE_US;
    if (pace->n_items > 0 && pace->time_us > wait_us * pace->n_items) wait_us = pace->time_us / pace->n_items;
    for (uint32_t n_times = 0; n_times < LOOKS_FOR_LATE; n_times++, wait_us *= 2)
        if (wait_for_news(pool, seen, wait_us) || do_late_items(pool, offer, own, n_times, me)) return true;
    return false;
}

// Does items of the phase: its own share, then what others have left of theirs. Mostly they are about to end too, and looking into all
// shares would hold them up, so that comes a little later. seen: the value of `news` before. Returns whether to come again at once.
static bool do_items(struct atsi_pool *pool, struct worker *worker, uint32_t seen) {
    uint32_t n_threads = (uint32_t)pool->n_threads, me = (uint32_t)worker->index;
    struct offer offer = look_at_offer(pool);
    struct pace pace = {0};
    uint32_t starter = (uint32_t)atomic_load_explicit(&pool->starter, memory_order_relaxed);
    uint32_t own = me >= starter ? me - starter : me + n_threads - starter;
    if (do_share(pool, worker, &offer, own, &pace)) return true;
    for (int i = 0; i < SPINS_BEFORE_HELP; i++) {
        if (atsi_gate_has_moved(&pool->news, seen)) return true;
        atsi_cpu_pause();
    }
    for (uint32_t i = 1; i < n_threads; i++)
        if (do_share(pool, worker, &offer, own + i < n_threads ? own + i : own + i - n_threads, &pace)) return true;
    return offer.slot != 0 && help_the_late(pool, &offer, own, seen, &pace, (int)me);
}

static const struct atsi_patience *patience_of(const struct atsi_pool *pool, const struct atsi_patience *usual) {
    return pool->cpus == NULL ? &UNBOUND : is_crowded(pool) ? &CROWDED : usual;
}

// Between dispatches the caller yields and sleeps, which its account has, too. To read it every time would cost a decoded token some 50 us;
// where items are as short as a token's, one that takes long has lost its core whatever it says.
static void begin_dispatch(struct worker *caller) {
    if (caller->longest_us > AWAY_US) caller->account = read_account();
    caller->longest_us = 0;
}

void atsi_pool_share(struct atsi_pool *pool, const struct atsi_pool_work *work, void *context) {
    struct worker *caller = &pool->workers[0];
    go_to_own_core(pool);
    begin_dispatch(caller);
    pool->work = work;
    pool->context = context;
    atomic_store_explicit(&pool->repeats, work->repeats, memory_order_release);
    pool->phase = UINT32_MAX; // the one before the first
    atomic_store_explicit(&pool->finished, false, memory_order_relaxed);
    next_phase(pool, 0);
    for (;;) {
        uint32_t seen = atomic_load_explicit(&pool->news.value, memory_order_acquire);
        if (atomic_load_explicit(&pool->finished, memory_order_acquire)) return;
        if (!do_items(pool, caller, seen) && !atsi_gate_wait(&pool->news, seen, patience_of(pool, &AT_BARRIER)))
            caller->account = read_account();
    }
}

// ---- threads --------------------------------------------------------------------------------------------------------

static const struct atsi_patience *worker_patience(const struct atsi_pool *pool) {
    bool is_idle = atomic_load_explicit(&pool->finished, memory_order_relaxed);
    return patience_of(pool, is_idle ? &IDLE : &AT_BARRIER);
}

// What sched_getattr(2) and sched_setattr(2) exchange, as far as it is needed; the C library has no name for it.
struct scheduling {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t slice_ns, deadline_ns, period_ns;
};

// Since 6.12 Linux lets every thread choose how long its time slices are. Short ones make it no faster, but among threads of others who wants
// a core for a moment gets it sooner. An older kernel takes no notice.
static void ask_for_short_slices(void) {
    struct scheduling now;
    if (syscall(SYS_sched_getattr, 0, &now, sizeof now, 0) != 0 || now.policy != SCHED_OTHER) return;
    now.size = sizeof now;
    now.slice_ns = SLICE_NS;
    syscall(SYS_sched_setattr, 0, &now, 0);
}

static void *worker_main(void *argument) {
    struct worker *worker = argument;
    struct atsi_pool *pool = worker->pool;
    if (pool->cpus != NULL) ask_for_short_slices();
    for (uint32_t n_jobs = 0;;) {
        uint32_t seen = atomic_load_explicit(&pool->news.value, memory_order_acquire);
        if (atomic_load(&pool->ending)) return NULL;
        if (atomic_load(&pool->n_jobs) != n_jobs) { // one more: no job ends without this thread
            n_jobs++;
            pool->job(pool->context, worker->index, pool->n_threads);
            atsi_pool_barrier(pool);
        } else if (!do_items(pool, worker, seen) && !atsi_gate_wait(&pool->news, seen, worker_patience(pool))) {
            worker->account = read_account(); // yielding counts there too, and sleeping
        }
    }
}

static enum atsi_status start_workers(struct atsi_pool *pool, struct atsi_error *err) {
    for (int i = 1; i < pool->n_threads; i++) {
        struct worker *worker = &pool->workers[i];
        int failure = pthread_create(&worker->thread, NULL, worker_main, worker);
        if (failure != 0)
            return atsi_fail(err, ATSI_FAILED, "cannot start thread %d of %d: %s; use fewer threads", i + 1,
                             pool->n_threads, strerror(failure));
        pool->n_started++;
        if (pool->cpus != NULL) bind_thread(worker->thread, pool->cpus[i]);
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
    pool->workers = aligned_alloc(CACHE_LINE, (size_t)n_threads * sizeof *pool->workers);
    pool->shares = aligned_alloc(CACHE_LINE, (size_t)n_threads * sizeof *pool->shares);
    if (cpus != NULL) pool->cpus = calloc((size_t)n_threads, sizeof *pool->cpus);
    if (pool->workers == NULL || pool->shares == NULL || (cpus != NULL && pool->cpus == NULL)) {
        atsi_pool_free(pool);
        return atsi_fail(err, ATSI_FAILED, "out of memory for a pool of %d threads", n_threads);
    }
    memset(pool->shares, 0, (size_t)n_threads * sizeof *pool->shares);
    if (cpus != NULL) memcpy(pool->cpus, cpus, (size_t)n_threads * sizeof *cpus);
    for (int i = 0; i < n_threads; i++) pool->workers[i] = (struct worker){.pool = pool, .index = i};
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
    atsi_gate_open(&pool->news);
    atsi_gate_open(&pool->summons);
    for (int i = 1; i <= pool->n_started; i++) pthread_join(pool->workers[i].thread, NULL);
    free(pool->cpus);
    free(pool->shares);
    free(pool->workers);
    free(pool);
}
