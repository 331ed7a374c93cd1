// pool.h: the thread pool of the CPU side. Below planner and runtime, so that what is profiled is what runs.
//
// A dispatch is one of two kinds, and returns when all is done (the caller is thread 0):
// - A job runs once on every thread. Inside it threads meet at atsi_pool_barrier().
// - Work in phases: any thread does any item of the phase, the next phase starts when all items are done. Each thread begins with a share
//   of its own, items that follow each other, and helps the others with what is left of theirs then: whoever reads weights reads on
//   where it was, which keeps the memory's prefetchers at work. Only items are waited for,
//   not threads: one that sleeps, wakes late or lost its core between two items holds nobody up, and one that lost it in the
//   middle of an item stands back for some milliseconds, so that a crowded machine costs what it takes, not a multiple.
// Threads that wait spin briefly (the others are a few microseconds behind), then yield, then sleep.
#ifndef ATSI_KERNELS_CPU_POOL_H
#define ATSI_KERNELS_CPU_POOL_H

#include <stdint.h>

#include "formats/base/error.h"

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

// A pool is driven by one thread at a time.
typedef void atsi_pool_job(void *context, int i_thread, int n_threads);
void atsi_pool_run(struct atsi_pool *pool, atsi_pool_job *job, void *context);
void atsi_pool_barrier(struct atsi_pool *pool); // only inside a job, by every thread the same number of times

struct atsi_pool_work {
    uint32_t n_phases;
    // How many items the phase has (below 2^32 - 2^16). Called once a phase, by any one thread, when the phases before are done.
    uint32_t (*begin)(void *context, uint32_t phase);
    void (*item)(void *context, uint32_t phase, uint32_t item, int i_thread);
};
void atsi_pool_share(struct atsi_pool *pool, const struct atsi_pool_work *work, void *context);

// Work sharing inside a job: atsi_pool_next hands out 0, 1, 2, ... each once. The start of a job and every barrier reset it.
int atsi_pool_next(struct atsi_pool *pool);

#endif
