// cpu.c: the load generator's threads on the CPU: arithmetic for a share of the time, reading memory at a rate.
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/clock.h"
#include "tools/load/load.h"

enum {
    READ_PIECE_BYTES = 256 << 10,
    READ_BUFFER_BYTES = 64 << 20 // a thread; all of them together exceed any cache
};

struct worker {
    pthread_t thread;
    struct load_cpu *load;
    bool reads; // memory, else arithmetic
    void *memory;
    double busy_us;
    uint64_t read_bytes;
};

struct load_cpu {
    const struct load_params *params;
    const atomic_bool *stop;
    double thread_bytes_per_us; // of reading; 0: unhindered
    double started_us;
    int n_workers;
    atomic_bool measured;  // the end of measuring how fast memory is read unhindered
    _Atomic uint64_t sink; // keeps the compiler from leaving out work whose result nobody reads
    struct worker workers[];
};

void load_sleep_until_us(double time_us) {
    struct timespec t = {.tv_sec = (time_t)(time_us * 1e-6)};
    t.tv_nsec = (long)((time_us - (double)t.tv_sec * 1e6) * 1e3);
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR) {}
}

static uint64_t compute_piece(uint64_t x) {
    for (int i = 0; i < 4096; i++) x = x * 6364136223846793005u + 1442695040888963407u;
    return x;
}

static void compute(struct worker *w) {
    const struct load_params *p = w->load->params;
    uint64_t x = 1;
    // Threads that begin together leave all processors free together, until they have drifted apart some seconds later.
    double phase = (double)(compute_piece((uint64_t)(w - w->load->workers) + 1) >> 11) * 0x1p-53;
    load_sleep_until_us(atsi_clock_us() + phase * LOAD_PERIOD_US);
    while (!atomic_load(w->load->stop)) {
        double began_us = atsi_clock_us(), now_us = began_us;
        for (; now_us - began_us < p->cpu_share * LOAD_PERIOD_US; now_us = atsi_clock_us()) x = compute_piece(x);
        w->busy_us += now_us - began_us;
        // A piece that others have held up is followed by a longer sleep, so that the share stays.
        if (p->cpu_share < 1) load_sleep_until_us(began_us + (now_us - began_us) / p->cpu_share);
    }
    atomic_fetch_xor(&w->load->sink, x);
}

static uint64_t read_piece(const void *memory) {
    typedef uint64_t vec __attribute__((vector_size(64)));
    const vec *p = memory;
    vec a = {0}, b = {0};
    for (size_t i = 0; i < READ_PIECE_BYTES / sizeof(vec); i += 2) {
        a ^= p[i];
        b ^= p[i + 1];
    }
    a ^= b;
    return a[0] ^ a[1] ^ a[2] ^ a[3] ^ a[4] ^ a[5] ^ a[6] ^ a[7];
}

// Reads until *end, no faster than bytes_per_us (0: no limit). Returns how much was read.
static uint64_t read_at_rate(struct worker *w, double bytes_per_us, const atomic_bool *end) {
    double began_us = atsi_clock_us();
    uint64_t n_bytes = 0, x = 0;
    while (!atomic_load(end)) {
        x ^= read_piece((const char *)w->memory + n_bytes % READ_BUFFER_BYTES);
        n_bytes += READ_PIECE_BYTES;
        double ahead_us = bytes_per_us > 0 ? (double)n_bytes / bytes_per_us - (atsi_clock_us() - began_us) : 0;
        if (ahead_us > 200) load_sleep_until_us(atsi_clock_us() + ahead_us);
    }
    atomic_fetch_xor(&w->load->sink, x);
    return n_bytes;
}

static void *work(void *context) {
    struct worker *w = context;
    if (!w->reads)
        compute(w);
    else
        w->read_bytes = read_at_rate(w, w->load->thread_bytes_per_us,
                                     w->load->thread_bytes_per_us > 0 ? w->load->stop : &w->load->measured);
    return NULL;
}

static void join(struct load_cpu *l) {
    for (int i = 0; i < l->n_workers; i++) pthread_join(l->workers[i].thread, NULL);
}

// Starts n workers of one kind behind those that are there.
static enum atsi_status start(struct load_cpu *l, int n, bool reads, struct atsi_error *err) {
    for (int i = 0; i < n; i++) {
        struct worker *w = &l->workers[l->n_workers];
        w->load = l;
        w->reads = reads;
        if (reads && !w->memory) {
            w->memory = aligned_alloc(64, READ_BUFFER_BYTES);
            if (!w->memory) return atsi_fail(err, ATSI_FAILED, "out of memory for %d threads that read", n);
            memset(w->memory, i + 1, READ_BUFFER_BYTES);
        }
        if (pthread_create(&w->thread, NULL, work, w) != 0)
            return atsi_fail(err, ATSI_FAILED, "thread %d of %d does not start: %s", i + 1, n, strerror(errno));
        l->n_workers++;
    }
    return ATSI_OK;
}

// How fast all threads together read when nothing holds them back, in bytes a microsecond.
static enum atsi_status measure(struct load_cpu *l, double *bytes_per_us, struct atsi_error *err) {
    enum {
        MEASURE_US = 300000
    };
    double began_us = atsi_clock_us();
    enum atsi_status status = start(l, l->params->n_threads, true, err);
    if (status == ATSI_OK) load_sleep_until_us(atsi_clock_us() + MEASURE_US);
    atomic_store(&l->measured, true);
    join(l);
    uint64_t n_bytes = 0;
    for (int i = 0; i < l->n_workers; i++) n_bytes += l->workers[i].read_bytes;
    l->n_workers = 0;
    *bytes_per_us = (double)n_bytes / (atsi_clock_us() - began_us);
    return status;
}

static enum atsi_status start_all(struct load_cpu *l, struct atsi_error *err) {
    const struct load_params *p = l->params;
    double bytes_per_us = p->memory_gb_s * 1e3;
    if (p->memory_share > 0) {
        ATSI_TRY(measure(l, &bytes_per_us, err));
        bytes_per_us *= p->memory_share;
    }
    l->thread_bytes_per_us = bytes_per_us / p->n_threads;
    l->started_us = atsi_clock_us();
    if (bytes_per_us > 0) ATSI_TRY(start(l, p->n_threads, true, err));
    if (p->cpu_share > 0) ATSI_TRY(start(l, p->n_threads, false, err));
    return ATSI_OK;
}

enum atsi_status load_cpu_start(struct load_cpu **out, const struct load_params *params, const atomic_bool *stop,
                                struct atsi_error *err) {
    struct load_cpu *l = *out = calloc(1, sizeof *l + 2 * (size_t)params->n_threads * sizeof *l->workers);
    if (!l) return atsi_fail(err, ATSI_FAILED, "out of memory for %d threads", params->n_threads);
    l->params = params;
    l->stop = stop;
    return start_all(l, err);
}

void load_cpu_finish(struct load_cpu *l, struct load_result *result) {
    if (!l) return;
    join(l);
    double took_us = atsi_clock_us() - l->started_us;
    for (int i = 0; i < l->n_workers; i++) {
        result->cpu_share += l->workers[i].busy_us / took_us / l->params->n_threads;
        result->memory_gb_s += (double)l->workers[i].read_bytes / took_us * 1e-3;
    }
    for (int i = 0; i < 2 * l->params->n_threads; i++) free(l->workers[i].memory);
    free(l);
}
