#include "runtime/launcher.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/cpu/gate.h"

struct atsi_launcher {
    struct atsi_stream *stream;
    pthread_t thread;
    struct atsi_gate news; // for the thread: opened when one of the fields below has been set for it
    pthread_mutex_t lock;
    pthread_cond_t done; // the thread is at work no more
    // Guarded by lock.
    bool expected;                    // a round is soon to be launched
    const struct atsi_launch *round;  // to be launched, NULL: none
    struct atsi_transfers *transfers; // that it waits for
    bool look;                        // the stream is to be asked how it is
    bool busy, stop;                  // the thread is at work; it is to end
    bool idle;                        // what the last look found: nothing is left to do
    struct atsi_error outcome;        // of the launch and of looks; status ATSI_OK while all is well
};

static enum atsi_status launch_pieces(struct atsi_launcher *l, const struct atsi_launch *round,
                                      struct atsi_error *err) {
    for (uint32_t i = 0; i < round->n_pieces; i++) {
        const struct atsi_launch_piece *piece = &round->pieces[i];
        if (l->transfers) ATSI_TRY(atsi_transfers_issue_round(l->transfers, piece->n_consumed, err));
        ATSI_TRY(l->stream->ops->graph_launch(l->stream, piece->graph, err));
    }
    return l->transfers ? atsi_transfers_issue_round(l->transfers, UINT32_MAX, err) : ATSI_OK;
}

static void launch(struct atsi_launcher *l, const struct atsi_launch *round) {
    struct atsi_error err = {0};
    enum atsi_status status = launch_pieces(l, round, &err);
    pthread_mutex_lock(&l->lock);
    if (status != ATSI_OK) l->outcome = err;
    pthread_mutex_unlock(&l->lock);
}

static void look(struct atsi_launcher *l) {
    struct atsi_error err = {0};
    bool idle = false;
    enum atsi_status status = l->stream->ops->stream_query(l->stream, &idle, &err);
    pthread_mutex_lock(&l->lock);
    l->idle = idle;
    if (status != ATSI_OK) l->outcome = err;
    pthread_mutex_unlock(&l->lock);
}

static const struct atsi_patience LONG_WAIT = {0, 0}, SHORT_WAIT = {2000, 2000};

static void wait_for_news(struct atsi_launcher *l) { // with the lock held
    const struct atsi_patience *patience = l->expected ? &SHORT_WAIT : &LONG_WAIT;
    uint32_t known = atomic_load(&l->news.value);
    l->expected = false;
    pthread_mutex_unlock(&l->lock);
    atsi_gate_wait(&l->news, known, patience);
    pthread_mutex_lock(&l->lock);
}

static void *launcher_main(void *context) {
    struct atsi_launcher *l = context;
    pthread_mutex_lock(&l->lock);
    while (!l->stop) {
        const struct atsi_launch *round = l->round;
        bool looks = l->look;
        if (!round && !looks) {
            wait_for_news(l);
            continue;
        }
        pthread_mutex_unlock(&l->lock);
        if (round)
            launch(l, round);
        else
            look(l);
        pthread_mutex_lock(&l->lock);
        if (round)
            l->round = NULL;
        else
            l->look = false;
        l->busy = l->round || l->look;
        pthread_cond_broadcast(&l->done);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

static void destroy(struct atsi_launcher *l) {
    pthread_cond_destroy(&l->done);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

enum atsi_status atsi_launcher_create(struct atsi_stream *stream, const struct atsi_pool *pool,
                                      struct atsi_launcher **out, struct atsi_error *err) {
    struct atsi_launcher *l = calloc(1, sizeof *l);
    *out = NULL;
    if (!l) return atsi_fail(err, ATSI_FAILED, "out of memory while creating the launcher");
    l->stream = stream;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->done, NULL);
    int failure = pthread_create(&l->thread, NULL, launcher_main, l);
    if (failure) {
        destroy(l);
        return atsi_fail(err, ATSI_FAILED, "cannot start the launcher's thread: %s", strerror(failure));
    }
    if (pool) atsi_pool_keep_off(pool, l->thread);
    *out = l;
    return ATSI_OK;
}

void atsi_launcher_free(struct atsi_launcher *l) {
    if (!l) return;
    pthread_mutex_lock(&l->lock);
    l->stop = true;
    pthread_mutex_unlock(&l->lock);
    atsi_gate_open(&l->news);
    pthread_join(l->thread, NULL);
    destroy(l);
}

static void ask(struct atsi_launcher *l, const struct atsi_launch *round) {
    pthread_mutex_lock(&l->lock);
    if (round)
        l->round = round;
    else
        l->look = true;
    l->busy = true;
    pthread_mutex_unlock(&l->lock);
    atsi_gate_open(&l->news);
}

void atsi_launcher_expect(struct atsi_launcher *l) {
    pthread_mutex_lock(&l->lock);
    l->expected = true;
    pthread_mutex_unlock(&l->lock);
    atsi_gate_open(&l->news);
}

void atsi_launcher_start(struct atsi_launcher *l, const struct atsi_launch *round, struct atsi_transfers *transfers) {
    l->idle = false;
    l->transfers = transfers;
    ask(l, round);
}

enum atsi_status atsi_launcher_finish(struct atsi_launcher *l, struct atsi_error *err) {
    pthread_mutex_lock(&l->lock);
    while (l->busy) pthread_cond_wait(&l->done, &l->lock);
    struct atsi_error outcome = l->outcome;
    pthread_mutex_unlock(&l->lock);
    return outcome.status == ATSI_OK ? ATSI_OK : atsi_fail(err, outcome.status, "%s", outcome.text);
}

// ---- waiting for a mark -------------------------------------------------------------------------------------------

static bool reached(const int32_t *word, int32_t value) {
    return atsi_mark_reached(__atomic_load_n(word, __ATOMIC_ACQUIRE), value);
}

enum {
    N_POLLS = 5000, // a hand-over is a few microseconds away
    N_YIELDS = 2000,
    N_NAPS_PER_LOOK = 1000
};

// Gives the core away for longer and longer.
static void wait_a_little(uint32_t i) {
    if (i < N_POLLS) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    } else if (i < N_POLLS + N_YIELDS) {
        sched_yield();
    } else {
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    }
}

// What is known of the stream, without waiting for the launcher's thread, which may hang in the driver.
static enum atsi_status outcome_so_far(struct atsi_launcher *l, const int32_t *word, int32_t value,
                                       struct atsi_error *err) {
    pthread_mutex_lock(&l->lock);
    struct atsi_error outcome = l->outcome;
    bool ended = l->idle && !l->busy;
    pthread_mutex_unlock(&l->lock);
    if (outcome.status != ATSI_OK) return atsi_fail(err, outcome.status, "%s", outcome.text);
    if (ended && !reached(word, value))
        return atsi_fail(err, ATSI_FAILED, "the device's work ended without the mark that the CPU waits for");
    return ATSI_OK;
}

enum atsi_status atsi_launcher_await(struct atsi_launcher *l, const int32_t *word, int32_t value,
                                     struct atsi_error *err) {
    for (uint32_t i = 0; !reached(word, value); i++) {
        wait_a_little(i);
        if (i < N_POLLS + N_YIELDS || i % N_NAPS_PER_LOOK) continue;
        ATSI_TRY(outcome_so_far(l, word, value, err));
        ask(l, NULL);
    }
    return ATSI_OK;
}
