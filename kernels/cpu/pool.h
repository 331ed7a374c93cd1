// pool.h: the thread pool of the CPU side. Below planner and runtime, so that what is profiled is what runs.
//
// A dispatch runs `job` once on every thread (the caller is thread 0) and returns when all are done. Inside a job threads
// meet at atsi_pool_barrier(): they spin briefly (the other threads are a few microseconds behind), then yield, then sleep,
// so that an oversubscribed machine still makes progress. Between dispatches idle threads spin for a short time and then sleep.
#ifndef ATSI_KERNELS_CPU_POOL_H
#define ATSI_KERNELS_CPU_POOL_H

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

// Work sharing inside a job: atsi_pool_next hands out 0, 1, 2, ... each once. The start of a job and every barrier reset it.
int atsi_pool_next(struct atsi_pool *pool);

#endif
