#include "kernels/cpu/repeat.h"

#include <sched.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
    ALIGNMENT = 128,
    // What is known of an item: this bit once its result is kept, below it how often it was begun again.
    KEPT = 0x80
};

struct slot {
    // Threads that hold the slot, and times that an item was begun again less times that a result came too late: each repetition makes
    // one result that is not kept, so when a job is done this many threads are still at work on it.
    alignas(ALIGNMENT) _Atomic uint32_t n_inside;
    uint8_t *job;
    _Atomic uint8_t *items;
};

struct atsi_repeats {
    struct atsi_repeat_kind kind;
    uint32_t n_slots;
    struct slot *slots;
    uint8_t *memory, *results; // everything is carved from memory
    size_t job_bytes, result_bytes;
};

static size_t aligned(size_t bytes) { return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

struct atsi_repeats *atsi_repeats_create(const struct atsi_repeat_kind *kind, int n_threads) {
    struct atsi_repeats *r = calloc(1, sizeof *r);
    if (r == NULL) return NULL;
    r->kind = *kind;
    r->n_slots = n_threads < ATSI_REPEAT_SLOTS_MAX ? (uint32_t)n_threads + 1 : ATSI_REPEAT_SLOTS_MAX;
    r->job_bytes = aligned(kind->job_bytes);
    r->result_bytes = aligned(kind->result_bytes);
    size_t slot_bytes = r->job_bytes + ATSI_REPEAT_ITEMS_MAX, slots_bytes = r->n_slots * sizeof *r->slots;
    size_t bytes = slots_bytes + r->n_slots * slot_bytes + (size_t)n_threads * r->result_bytes;
    r->memory = aligned_alloc(ALIGNMENT, bytes);
    if (r->memory == NULL) {
        free(r);
        return NULL;
    }
    memset(r->memory, 0, bytes);
    r->slots = (struct slot *)r->memory;
    for (uint32_t i = 0; i < r->n_slots; i++) {
        r->slots[i].job = r->memory + slots_bytes + i * slot_bytes;
        r->slots[i].items = (_Atomic uint8_t *)(r->slots[i].job + r->job_bytes);
    }
    r->results = r->memory + slots_bytes + r->n_slots * slot_bytes;
    return r;
}

void atsi_repeats_free(struct atsi_repeats *r) {
    if (r == NULL) return;
    for (uint32_t i = 0; i < r->n_slots; i++)
        while (atomic_load(&r->slots[i].n_inside) != 0) sched_yield();
    free(r->memory);
    free(r);
}

uint32_t atsi_repeats_free_slot(const struct atsi_repeats *r) {
    for (uint32_t i = 0; i < r->n_slots; i++)
        if (atomic_load(&r->slots[i].n_inside) == 0) return i + 1;
    return 0;
}

void *atsi_repeats_job(const struct atsi_repeats *r, uint32_t slot) { return r->slots[slot - 1].job; }

void atsi_repeats_begin(struct atsi_repeats *r, uint32_t slot, uint32_t n_items) {
    _Atomic uint8_t *items = r->slots[slot - 1].items;
    for (uint32_t i = 0; i < n_items; i++) atomic_store_explicit(&items[i], 0, memory_order_relaxed);
}

bool atsi_repeats_do(struct atsi_repeats *r, uint32_t slot, uint32_t item, int i_thread) {
    struct slot *s = &r->slots[slot - 1];
    uint8_t *result = r->results + (size_t)i_thread * r->result_bytes;
    r->kind.compute(s->job, item, result);
    bool is_first = (atomic_fetch_or(&s->items[item], KEPT) & KEPT) == 0;
    if (is_first)
        r->kind.keep(s->job, item, result, i_thread);
    else
        atomic_fetch_sub(&s->n_inside, 1);
    return is_first;
}

void atsi_repeats_hold(struct atsi_repeats *r, uint32_t slot) { atomic_fetch_add(&r->slots[slot - 1].n_inside, 1); }

void atsi_repeats_let_go(struct atsi_repeats *r, uint32_t slot) { atomic_fetch_sub(&r->slots[slot - 1].n_inside, 1); }

bool atsi_repeats_do_again(struct atsi_repeats *r, uint32_t slot, uint32_t item, uint32_t n_times, int i_thread) {
    struct slot *s = &r->slots[slot - 1];
    uint8_t known = atomic_load(&s->items[item]);
    if ((known & KEPT) != 0 || known > n_times) return false;
    if (!atomic_compare_exchange_strong(&s->items[item], &known, known + 1)) return false;
    atomic_fetch_add(&s->n_inside, 1);
    return atsi_repeats_do(r, slot, item, i_thread);
}
