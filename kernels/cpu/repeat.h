// repeat.h: items of work that more than one thread may do.
//
// On a crowded machine a thread loses its core in the middle of an item for a time slice of somebody else's, some milliseconds, and
// an operation of a hundred microseconds waits for it. Items that can be repeated are done once more by a thread that has nothing
// left; whichever result is there first is kept. For that an item may read nothing but its job, a description that stands still
// (and what never changes, as weights do), and may write nothing but memory of its thread's own; the first to come puts it where it belongs.
//
// Jobs stand in slots. A thread that comes late, perhaps long after, still reads its slot's job, so the slot is not taken for another before
// that thread has returned. A thread works in one slot at a time: one slot more than there are threads, and one is always free.
#ifndef ATSI_KERNELS_CPU_REPEAT_H
#define ATSI_KERNELS_CPU_REPEAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    ATSI_REPEAT_ITEMS_MAX = 4096, // of a job
    ATSI_REPEAT_SLOTS_MAX = 63
};

struct atsi_repeat_kind {
    size_t job_bytes, result_bytes;
    // Computes an item from its job alone.
    void (*compute)(const void *job, uint32_t item, void *result);
    // Puts its result where it belongs. Once an item.
    void (*keep)(const void *job, uint32_t item, const void *result, int i_thread);
};

struct atsi_repeats;

// Slots for jobs of one kind, done by threads 0..n_threads - 1. NULL when out of memory.
struct atsi_repeats *atsi_repeats_create(const struct atsi_repeat_kind *kind, int n_threads);
void atsi_repeats_free(struct atsi_repeats *repeats); // NULL fine; waits for threads that are late

// A slot that nobody works in, from 1; 0: none (there are more threads than slots). By whoever begins jobs, one thread at a time, when the
// job before is done and is no longer offered to anybody.
uint32_t atsi_repeats_free_slot(const struct atsi_repeats *repeats);
// [job_bytes], 64-byte aligned, to be filled before the slot is offered.
void *atsi_repeats_job(const struct atsi_repeats *repeats, uint32_t slot);
// Forgets what was done of the slot's job before. n_items <= ATSI_REPEAT_ITEMS_MAX.
void atsi_repeats_begin(struct atsi_repeats *repeats, uint32_t slot, uint32_t n_items);

// Does an item that was given to this thread. Whether its result was kept: then it counts as done, else another thread was faster.
bool atsi_repeats_do(struct atsi_repeats *repeats, uint32_t slot, uint32_t item, int i_thread);

// Who looks for items that others are late with holds the slot meanwhile, and then makes sure that it is still offered.
void atsi_repeats_hold(struct atsi_repeats *repeats, uint32_t slot);
void atsi_repeats_let_go(struct atsi_repeats *repeats, uint32_t slot);
// Does an item once more unless it is done or was repeated n_times already. Whether its result was kept.
bool atsi_repeats_do_again(struct atsi_repeats *repeats, uint32_t slot, uint32_t item, uint32_t n_times, int i_thread);

#endif
