#include "runtime/pinned_ring.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "formats/base/clock.h"
#include "kernels/cpu/pool.h"
#include "runtime/schedule/round_units.h"

enum {
    N_JOBS = 256,
    MARKS_APART_BYTES = 256
};

// What one call has sent: pieces of a slot's size, numbered through all jobs.
struct job {
    const uint8_t *host;
    uint64_t bytes, first_piece;
};

struct piece {
    const uint8_t *host;
    uint64_t bytes, number;
};

struct atsi_pinned_ring {
    struct atsi_device *device;
    uint64_t slot_bytes;
    uint32_t n_slots;
    uint8_t *slots;            // [n_slots * slot_bytes], the block's beginning; the marks follow
    int32_t *filled, *drained; // [n_slots], and one
    char *filled_dev, *drained_dev;
    pthread_t *threads; // [n_threads]
    uint32_t n_threads;
    double bytes_per_us;

    pthread_mutex_t turn; // held by the thread that waits for a piece and its slot
    pthread_mutex_t lock; // of what follows
    pthread_cond_t changed;
    struct job jobs[N_JOBS];      // a ring
    uint64_t n_begun, n_queued;   // jobs: those before n_begun have been taken
    uint64_t n_taken, n_sent;     // pieces
    uint64_t sent_bytes;          // for the report
    _Atomic uint64_t n_forgotten; // pieces before it are not needed
    _Atomic bool stopping;
};

static int32_t mark_of(uint64_t piece) { return (int32_t)(uint32_t)(piece + 1); }

static bool reached(const int32_t *word, int32_t value) {
    return atsi_mark_reached(__atomic_load_n(word, __ATOMIC_ACQUIRE), value);
}

static void set_mark(int32_t *word, int32_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }

// The engine takes some hundred microseconds for a slot.
static void wait_a_little(unsigned n_times) {
    enum {
        N_YIELDS = 100
    };
    if (n_times < N_YIELDS)
        sched_yield();
    else
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
}

// ---- filling ------------------------------------------------------------------------------------------------------

// Lock held, and there is a job.
static struct piece next_piece(struct atsi_pinned_ring *s) {
    const struct job *job = &s->jobs[s->n_begun % N_JOBS];
    uint64_t offset = (s->n_taken - job->first_piece) * s->slot_bytes, left = job->bytes - offset;
    struct piece piece = {
        .host = job->host + offset, .bytes = left < s->slot_bytes ? left : s->slot_bytes, .number = s->n_taken++};
    if (piece.bytes == left) s->n_begun++;
    return piece;
}

static bool await_piece(struct atsi_pinned_ring *s, struct piece *piece) {
    pthread_mutex_lock(&s->lock);
    while (s->n_begun == s->n_queued && !s->stopping) pthread_cond_wait(&s->changed, &s->lock);
    bool is_wanted = !s->stopping;
    if (is_wanted) *piece = next_piece(s);
    pthread_mutex_unlock(&s->lock);
    return is_wanted;
}

// Until what was in the slot before has gone.
static bool await_slot(struct atsi_pinned_ring *s, uint64_t number) {
    if (number < s->n_slots) return true;
    int32_t value = mark_of(number - s->n_slots);
    for (unsigned n = 0; !reached(s->drained, value); n++) {
        if (s->stopping) return false;
        wait_a_little(n);
    }
    return true;
}

static void fill(struct atsi_pinned_ring *s, const struct piece *piece) {
    uint64_t slot = piece->number % s->n_slots;
    if (piece->number >= s->n_forgotten) memcpy(s->slots + slot * s->slot_bytes, piece->host, piece->bytes);
    set_mark(&s->filled[slot], mark_of(piece->number));
}

static void *fill_slots(void *context) {
    struct atsi_pinned_ring *s = context;
    for (;;) {
        struct piece piece;
        pthread_mutex_lock(&s->turn);
        bool goes_on = await_piece(s, &piece) && await_slot(s, piece.number);
        pthread_mutex_unlock(&s->turn);
        if (!goes_on) return NULL;
        fill(s, &piece);
    }
}

// ---- the ring -----------------------------------------------------------------------------------------------------

static enum atsi_status take_memory(struct atsi_pinned_ring *s, struct atsi_error *err) {
    uint64_t slots_bytes = s->n_slots * s->slot_bytes, filled_bytes = atsi_aligned(s->n_slots * sizeof *s->filled);
    void *host, *dev;
    ATSI_TRY(s->device->ops->host_alloc(s->device, slots_bytes + filled_bytes + MARKS_APART_BYTES, &host, &dev, err));
    s->slots = host;
    s->filled = (int32_t *)(s->slots + slots_bytes);
    s->drained = (int32_t *)(s->slots + slots_bytes + filled_bytes);
    s->filled_dev = (char *)dev + slots_bytes;
    s->drained_dev = s->filled_dev + filled_bytes;
    memset(s->filled, 0, filled_bytes + MARKS_APART_BYTES);
    return ATSI_OK;
}

static enum atsi_status start_threads(struct atsi_pinned_ring *s, uint32_t n_threads, struct atsi_error *err) {
    s->threads = calloc(n_threads, sizeof *s->threads);
    if (!s->threads) return atsi_fail(err, ATSI_FAILED, "out of memory while creating the pinned ring");
    for (; s->n_threads < n_threads; s->n_threads++) {
        int failure = pthread_create(&s->threads[s->n_threads], NULL, fill_slots, s);
        if (failure)
            return atsi_fail(err, ATSI_FAILED, "cannot start a thread of the pinned ring: %s", strerror(failure));
    }
    return ATSI_OK;
}

enum atsi_status atsi_pinned_ring_create(const struct atsi_pinned_ring_params *params, struct atsi_pinned_ring **out,
                                         struct atsi_error *err) {
    struct atsi_pinned_ring *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s) return atsi_fail(err, ATSI_FAILED, "out of memory while creating the pinned ring");
    s->device = params->device;
    s->slot_bytes = params->slot_bytes;
    s->n_slots = params->n_slots;
    pthread_mutex_init(&s->turn, NULL);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    enum atsi_status status = take_memory(s, err);
    if (status == ATSI_OK) status = start_threads(s, params->n_threads, err);
    if (status == ATSI_OK)
        *out = s;
    else
        atsi_pinned_ring_free(s);
    return status;
}

// A quarter of the threads: enough for most links, and the CPU goes on computing what it has of the round.
static uint32_t choose_n_threads(void) {
    int n = atsi_pool_default_threads() / 4;
    return n < 1 ? 1 : n > 4 ? 4 : (uint32_t)n;
}

struct atsi_pinned_ring *atsi_pinned_ring_open(struct atsi_device *device, uint64_t bytes) {
    enum {
        MOST_BYTES = 64 << 20, // some milliseconds of copying; the temporary region evens out what takes longer
        LEAST_BYTES = 1 << 20,
        MOST_SLOT_BYTES = 4 << 20, // two marks a slot are little beside its copy
        LEAST_SLOT_BYTES = 256 << 10,
        N_SLOTS = 16
    };
    struct atsi_pinned_ring *s = NULL;
    bytes = bytes < LEAST_BYTES ? LEAST_BYTES : bytes > MOST_BYTES ? MOST_BYTES : bytes;
    for (; bytes >= LEAST_BYTES && !s; bytes /= 2) {
        uint64_t slot = bytes / N_SLOTS / LEAST_SLOT_BYTES * LEAST_SLOT_BYTES;
        slot = slot < LEAST_SLOT_BYTES ? LEAST_SLOT_BYTES : slot > MOST_SLOT_BYTES ? MOST_SLOT_BYTES : slot;
        struct atsi_pinned_ring_params params = {device, slot, (uint32_t)(bytes / slot), choose_n_threads()};
        atsi_pinned_ring_create(&params, &s, NULL);
    }
    return s;
}

void atsi_pinned_ring_free(struct atsi_pinned_ring *s) {
    if (!s) return;
    pthread_mutex_lock(&s->lock);
    s->stopping = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    for (uint32_t i = 0; i < s->n_threads; i++) pthread_join(s->threads[i], NULL);
    if (s->slots) s->device->ops->host_free(s->device, s->slots);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    pthread_mutex_destroy(&s->turn);
    free(s->threads);
    free(s);
}

// ---- sending ------------------------------------------------------------------------------------------------------

// False when the list is full. *first_piece: the number of its first piece.
static bool queue_job(struct atsi_pinned_ring *s, const void *host, uint64_t bytes, uint64_t *first_piece) {
    pthread_mutex_lock(&s->lock);
    bool has_room = s->n_queued - s->n_begun < N_JOBS;
    if (has_room) {
        *first_piece = s->n_sent;
        s->jobs[s->n_queued++ % N_JOBS] = (struct job){host, bytes, s->n_sent};
        s->n_sent += (bytes + s->slot_bytes - 1) / s->slot_bytes;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    return has_room;
}

// All that the jobs before wait for has been given to the stream, so there is room soon, unless the device has failed.
static enum atsi_status await_room(struct atsi_pinned_ring *s, struct atsi_stream *stream, const void *host,
                                   uint64_t bytes, uint64_t *first_piece, struct atsi_error *err) {
    for (unsigned n = 0; !queue_job(s, host, bytes, first_piece); n++) {
        bool idle;
        ATSI_TRY(s->device->ops->stream_query(stream, &idle, err));
        wait_a_little(n);
    }
    return ATSI_OK;
}

static enum atsi_status move_on(struct atsi_pinned_ring *s, struct atsi_stream *stream, void *dev, uint64_t number,
                                uint64_t bytes, struct atsi_error *err) {
    const struct atsi_device_ops *ops = s->device->ops;
    uint64_t slot = number % s->n_slots;
    ATSI_TRY(ops->await_mark(stream, s->filled_dev + slot * sizeof *s->filled, NULL, mark_of(number), err));
    ATSI_TRY(ops->copy_to_device(stream, dev, s->slots + slot * s->slot_bytes, bytes, err));
    return ops->post_mark(stream, s->drained_dev, NULL, mark_of(number), err);
}

enum atsi_status atsi_pinned_ring_send(struct atsi_pinned_ring *s, struct atsi_stream *stream, void *dev,
                                       const void *host, uint64_t bytes, struct atsi_error *err) {
    uint64_t number;
    if (bytes == 0) return ATSI_OK;
    ATSI_TRY(await_room(s, stream, host, bytes, &number, err));
    s->sent_bytes += bytes;
    for (uint64_t done = 0; done < bytes; done += s->slot_bytes) {
        uint64_t n = bytes - done < s->slot_bytes ? bytes - done : s->slot_bytes;
        ATSI_TRY(move_on(s, stream, (char *)dev + done, number++, n, err));
    }
    return ATSI_OK;
}

void atsi_pinned_ring_forget(struct atsi_pinned_ring *s) { s->n_forgotten = s->n_sent; }

// ---- figures ------------------------------------------------------------------------------------------------------

void atsi_pinned_ring_measure(struct atsi_pinned_ring *s, const void *host, uint64_t bytes) {
    uint64_t number, most = s->n_slots * s->slot_bytes;
    if (bytes > most) bytes = most;
    double started_us = atsi_clock_us();
    if (bytes == 0 || !queue_job(s, host, bytes, &number)) return;
    for (; number < s->n_sent; number++)
        for (unsigned n = 0; !reached(&s->filled[number % s->n_slots], mark_of(number)); n++) wait_a_little(n);
    double rate = (double)bytes / (atsi_clock_us() - started_us);
    if (rate > s->bytes_per_us) s->bytes_per_us = rate;
    set_mark(s->drained, mark_of(s->n_sent - 1)); // nobody wants what is in the slots
}

struct atsi_pinned_ring_figures atsi_pinned_ring_figures(const struct atsi_pinned_ring *s) {
    return (struct atsi_pinned_ring_figures){.ring_bytes = s->n_slots * s->slot_bytes,
                                             .sent_bytes = s->sent_bytes,
                                             .bytes_per_us = s->bytes_per_us,
                                             .n_threads = s->n_threads};
}

double atsi_pinned_ring_slowdown(const struct atsi_pinned_ring *s, const struct atsi_plan *plan) {
    double bytes = 0, link_us = 0;
    if (!s || s->bytes_per_us <= 0 || !plan->prefill_times) return 1;
    for (uint32_t u = 0; u < plan->program.n_units; u++)
        if (atsi_unit_is_promotable(&plan->program.units[u])) {
            bytes += (double)plan->program.units[u].weight_bytes;
            link_us += plan->prefill_times[u].transfer_us;
        }
    double slowdown = link_us > 0 ? bytes / s->bytes_per_us / link_us : 1;
    return slowdown > 1 ? slowdown : 1;
}
