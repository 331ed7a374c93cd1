#include "runtime/assigner.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "formats/base/clock.h"

enum state {
    IDLE,
    ASKED,
    DONE
};

// Assignments that have been replaced. Freeing one takes the driver a millisecond or two, for which the hand-over that replaced it would
// wait: the thread does it a while later, or before the next job.
enum {
    REPLACED_MAX = 4,
    FREED_AFTER_MS = 100
};

struct atsi_assigner {
    struct atsi_executor *executor;
    struct atsi_dispatcher *dispatcher;
    bool beside;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    // under the lock
    enum state state;
    bool stopping;
    struct atsi_assigner_result result; // .job is the job
    struct atsi_prepared_round *replaced[REPLACED_MAX];
    uint32_t n_replaced;
};

// The assignment of a job for a use, and what its rounds should take.
static enum atsi_status decide(struct atsi_assigner *a, const struct atsi_assigner_job *job, enum atsi_link_use use,
                               struct atsi_assignment *out, double *forecast_us, struct atsi_error *err) {
    ATSI_TRY(atsi_dispatcher_decide(a->dispatcher, job->n_tokens, use, &job->wish.scales, job->factors, out, err));
    return atsi_executor_forecast(a->executor, out, &job->now, forecast_us, err);
}

// Decides for the use whose rounds should be the shortest. A decision stands until the next, so one that is not the last is made again.
static enum atsi_status choose(struct atsi_assigner *a, struct atsi_assigner_job *job, struct atsi_assignment *out,
                               double *forecast_us, struct atsi_error *err) {
    double best_us = INFINITY;
    for (int use = ATSI_LINK_USES - 1; use >= 0; use--) { // streams take the longest to decide
        ATSI_TRY(decide(a, job, (enum atsi_link_use)use, out, forecast_us, err));
        if (*forecast_us > best_us) continue;
        best_us = *forecast_us;
        job->wish.use = (enum atsi_link_use)use;
    }
    bool stands = job->wish.use == ATSI_LINK_STREAMS;
    return stands ? ATSI_OK : decide(a, job, job->wish.use, out, forecast_us, err);
}

static enum atsi_status prepare(struct atsi_assigner *a, struct atsi_assigner_result *r, struct atsi_error *err) {
    struct atsi_assignment assignment;
    if (r->job.residents) atsi_dispatcher_take_residents(a->dispatcher, r->job.residents);
    ATSI_TRY(r->job.choose ? choose(a, &r->job, &assignment, &r->forecast_us, err)
                           : decide(a, &r->job, r->job.wish.use, &assignment, &r->forecast_us, err));
    r->decision = atsi_dispatcher_last(a->dispatcher);
    // Capturing launches takes most of the time by far: only what is wanted is captured.
    if (r->job.most_us > 0 && r->forecast_us > r->job.most_us) return ATSI_OK;
    return atsi_executor_prepare(a->executor, &assignment, &r->prepared, err);
}

static void work(struct atsi_assigner *a, struct atsi_assigner_result *r) {
    r->began_us = atsi_clock_us();
    r->prepared = NULL;
    r->forecast_us = 0;
    memset(&r->err, 0, sizeof r->err);
    r->err.status = prepare(a, r, &r->err);
    r->took_us = atsi_clock_us() - r->began_us;
}

// Lock held on entry and exit.
static void free_replaced(struct atsi_assigner *a) {
    while (a->n_replaced > 0) {
        struct atsi_prepared_round *replaced = a->replaced[--a->n_replaced];
        pthread_mutex_unlock(&a->lock);
        atsi_prepared_round_free(replaced);
        pthread_mutex_lock(&a->lock);
    }
}

// Waits for a job, or until what was replaced is to be freed.
static void rest(struct atsi_assigner *a) {
    if (a->n_replaced == 0) {
        pthread_cond_wait(&a->changed, &a->lock);
        return;
    }
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += FREED_AFTER_MS * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    bool is_over = pthread_cond_timedwait(&a->changed, &a->lock, &until) == ETIMEDOUT;
    if (is_over && a->state != ASKED) free_replaced(a);
}

static void *thread_main(void *context) {
    struct atsi_assigner *a = context;
    pthread_mutex_lock(&a->lock);
    while (!a->stopping || a->state == ASKED) {
        if (a->state == ASKED) {
            free_replaced(a);
            struct atsi_assigner_result r = a->result;
            pthread_mutex_unlock(&a->lock);
            work(a, &r);
            pthread_mutex_lock(&a->lock);
            a->result = r;
            a->state = DONE;
            pthread_cond_broadcast(&a->changed);
        } else {
            rest(a);
        }
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

enum atsi_status atsi_assigner_create(struct atsi_executor *executor, struct atsi_dispatcher *dispatcher, bool beside,
                                      struct atsi_assigner **out, struct atsi_error *err) {
    struct atsi_assigner *a = calloc(1, sizeof *a);
    *out = NULL;
    if (!a) return atsi_fail(err, ATSI_FAILED, "out of memory while creating the assigner");
    a->executor = executor;
    a->dispatcher = dispatcher;
    a->beside = beside;
    pthread_mutex_init(&a->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&a->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    int failure = beside ? pthread_create(&a->thread, NULL, thread_main, a) : 0;
    if (beside && !failure) atsi_executor_keep_off(executor, a->thread);
    if (failure) {
        a->beside = false;
        atsi_assigner_free(a);
        return atsi_fail(err, ATSI_FAILED, "cannot start the thread that decides: %s", strerror(failure));
    }
    *out = a;
    return ATSI_OK;
}

void atsi_assigner_free(struct atsi_assigner *a) {
    if (!a) return;
    if (a->beside) {
        pthread_mutex_lock(&a->lock);
        a->stopping = true;
        pthread_cond_broadcast(&a->changed);
        pthread_mutex_unlock(&a->lock);
        pthread_join(a->thread, NULL);
    }
    if (a->state == DONE) atsi_prepared_round_free(a->result.prepared);
    for (uint32_t i = 0; i < a->n_replaced; i++) atsi_prepared_round_free(a->replaced[i]);
    pthread_cond_destroy(&a->changed);
    pthread_mutex_destroy(&a->lock);
    free(a);
}

void atsi_assigner_ask(struct atsi_assigner *a, const struct atsi_assigner_job *job) {
    if (!a->beside) {
        a->result.job = *job;
        work(a, &a->result);
        a->state = DONE;
        return;
    }
    pthread_mutex_lock(&a->lock);
    a->result.job = *job;
    a->state = ASKED;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

bool atsi_assigner_is_busy(struct atsi_assigner *a) {
    pthread_mutex_lock(&a->lock);
    bool busy = a->state != IDLE;
    pthread_mutex_unlock(&a->lock);
    return busy;
}

bool atsi_assigner_take(struct atsi_assigner *a, bool wait, struct atsi_assigner_result *out) {
    pthread_mutex_lock(&a->lock);
    while (wait && a->state == ASKED) pthread_cond_wait(&a->changed, &a->lock);
    bool taken = a->state == DONE;
    if (taken) {
        *out = a->result;
        a->state = IDLE;
    }
    pthread_mutex_unlock(&a->lock);
    return taken;
}

void atsi_assigner_discard(struct atsi_assigner *a, struct atsi_prepared_round *prepared) {
    if (!prepared) return;
    if (!a->beside) {
        atsi_prepared_round_free(prepared);
        return;
    }
    pthread_mutex_lock(&a->lock);
    bool has_room = a->n_replaced < REPLACED_MAX;
    if (has_room) a->replaced[a->n_replaced++] = prepared;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
    if (!has_room) atsi_prepared_round_free(prepared); // more in a while than decisions make
}
