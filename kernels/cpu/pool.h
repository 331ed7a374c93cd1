// pool.h: the thread pool of the CPU side. Below planner and runtime, so that what is profiled is what runs.
//
// A dispatch is one of two kinds, and returns when all is done (the caller is thread 0):
// - A job runs once on every thread. Inside it threads meet at atsi_pool_barrier().
// - Work in phases: any thread does any item of the phase, the next phase starts when all items are done. Each thread begins with a share
//   of its own, items that follow each other, and helps the others with what is left of theirs then: whoever reads weights reads on
//   where it was, which keeps the memory's prefetchers at work. Only items are waited for,
//   not threads: one that sleeps, wakes late or lost its core between two items holds nobody up.
// Threads that wait spin briefly (the others are a few microseconds behind), then yield, then sleep.
//
// A machine is crowded from when threads have lost their cores in the middle of items twice in half a second until that has not happened for a while. All others
// would wait a time slice of somebody else's for such an item, again and again. Then items are repeated by other threads, in phases that can be
// (kernels/cpu/repeat.h); in those that cannot, a thread to which it happened stands back for some milliseconds, so
// that a crowded machine costs what it takes, not a multiple. And threads that wait go to sleep soon: who has slept gets a core at once.
#ifndef ATSI_KERNELS_CPU_POOL_H
#define ATSI_KERNELS_CPU_POOL_H

#include <pthread.h>
#include <stdint.h>

#include "formats/base/error.h"
#include "kernels/cpu/repeat.h"

struct atsi_pool;

// Threads to use by default: physical cores of the fastest kind within the affinity mask and the cgroup's CPU quota; >= 1.
int atsi_pool_default_threads(void);
// n_threads 0: the default. More than the usable CPUs are clamped to them (atsi_pool_n_threads says how many); a negative
// number is ATSI_BAD_INPUT. Threads 1.. are bound to one core each; a dispatch moves the caller to the core left for it.
enum atsi_status atsi_pool_create(int n_threads, struct atsi_pool **out, struct atsi_error *err);
// Exactly n_threads >= 1, bound to nothing and sleeping soon: for simulated devices and tests.
enum atsi_status atsi_pool_create_unbound(int n_threads, struct atsi_pool **out, struct atsi_error *err);
void atsi_pool_free(struct atsi_pool *pool); // NULL fine; not inside a job
int atsi_pool_n_threads(const struct atsi_pool *pool);

// Keeps a thread that is not of the pool off the core that is left for the caller, if it may run on another.
void atsi_pool_keep_off(const struct atsi_pool *pool, pthread_t thread);

// A pool is driven by one thread at a time.
typedef void atsi_pool_job(void *context, int i_thread, int n_threads);
void atsi_pool_run(struct atsi_pool *pool, atsi_pool_job *job, void *context);
void atsi_pool_barrier(struct atsi_pool *pool); // only inside a job, by every thread the same number of times

// How a phase is done on a crowded machine.
enum atsi_pool_way {
    ATSI_POOL_SHARES,  // as ever: every item once
    ATSI_POOL_ALONE,   // by the thread that begins it: it is short
    ATSI_POOL_REPEATS, // by its job, which describes the same items
};

struct atsi_pool_work {
    uint32_t n_phases;
    // How many items the phase has (below 2^26). Called once a phase, by any one thread, when the phases before are done.
    uint32_t (*begin)(void *context, uint32_t phase);
    void (*item)(void *context, uint32_t phase, uint32_t item, int i_thread);
    // NULL: no phase is ever repeated. Made for at least as many threads as the pool has, and freed after the pool, or when a job
    // (atsi_pool_run) has been run on it since: a thread may be late to see that there is nothing to repeat.
    struct atsi_repeats *repeats;
    // Asked behind `begin`, which found more than one item, on a crowded machine. Fills job (of `repeats`; NULL: it cannot be repeated now)
    // where the answer is ATSI_POOL_REPEATS. NULL with repeats NULL.
    enum atsi_pool_way (*crowded_way)(void *context, uint32_t phase, void *job);
};
void atsi_pool_share(struct atsi_pool *pool, const struct atsi_pool_work *work, void *context);
// What a crowded machine has brought about so far.
struct atsi_pool_crowding {
    uint64_t n_lost;     // times that a worker lost its core in the middle of an item
    uint64_t n_repeated; // items that another thread did once more, and sooner
};
struct atsi_pool_crowding atsi_pool_crowding(struct atsi_pool *pool);
// For comparisons: from now on no machine is taken for crowded. Before any work.
void atsi_pool_ignore_crowds(struct atsi_pool *pool);
// Takes the machine for crowded for so long from now on, whatever is seen of it: for tests.
void atsi_pool_assume_crowded(struct atsi_pool *pool, double time_us);

// Work sharing inside a job: atsi_pool_next hands out 0, 1, 2, ... each once. The start of a job and every barrier reset it.
int atsi_pool_next(struct atsi_pool *pool);

#endif
