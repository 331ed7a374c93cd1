// Streams of the simulated device: a thread and a queue each; events as counters that streams move and wait for.
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "formats/base/clock.h"
#include "kernels/sim/sim_internal.h"

static struct sim_stream *stream_of(struct atsi_stream *s) { return (struct sim_stream *)s; }
static struct sim_event *event_of(struct atsi_event *e) { return (struct sim_event *)e; }

// ---- events -----------------------------------------------------------------------------------------------------------

// Lock held.
static void release_fence(struct sim_fence *fence) {
    if (fence != NULL && --fence->n_references == 0) free(fence);
}

enum atsi_status sim_event_create(struct atsi_device *device, bool timed, struct atsi_event **out,
                                  struct atsi_error *err) {
    struct sim_device *d = sim_of(device);
    *out = NULL;
    ATSI_TRY(sim_state(d, err));
    struct sim_event *event = calloc(1, sizeof *event);
    if (event == NULL) return atsi_fail(err, ATSI_FAILED, "out of memory for an event");
    event->base = (struct atsi_event){.ops = device->ops, .device = device};
    event->timed = timed;
    pthread_mutex_lock(&d->lock);
    event->next = d->events;
    d->events = event;
    pthread_mutex_unlock(&d->lock);
    *out = &event->base;
    return ATSI_OK;
}

void sim_event_destroy(struct atsi_event *e) {
    if (e == NULL) return;
    struct sim_device *d = sim_of(e->device);
    pthread_mutex_lock(&d->lock);
    release_fence(event_of(e)->fence);
    struct sim_event **link = &d->events;
    while (*link != event_of(e)) link = &(*link)->next;
    *link = event_of(e)->next;
    pthread_mutex_unlock(&d->lock);
    free(e);
}

enum atsi_status sim_event_record(struct atsi_event *e, struct atsi_stream *s, struct atsi_error *err) {
    struct sim_device *d = sim_of(e->device);
    struct sim_item item = {.kind = SIM_ITEM_RECORD}, captured = {.kind = SIM_ITEM_EVENT, .u.event = e};
    ATSI_TRY(sim_state(d, err));
    if (stream_of(s)->capture) return sim_enqueue(s, &captured, err);
    item.u.fence = calloc(1, sizeof *item.u.fence);
    if (item.u.fence == NULL) return atsi_fail(err, ATSI_FAILED, "out of memory for the record of an event");
    item.u.fence->n_references = 2; // the event's and the item's
    pthread_mutex_lock(&d->lock);
    release_fence(event_of(e)->fence);
    event_of(e)->fence = item.u.fence;
    pthread_mutex_unlock(&d->lock);
    return sim_enqueue(s, &item, err);
}

enum atsi_status sim_stream_wait(struct atsi_stream *s, struct atsi_event *e, struct atsi_error *err) {
    struct sim_device *d = sim_of(e->device);
    struct sim_item item = {.kind = SIM_ITEM_WAIT};
    ATSI_TRY(sim_state(d, err));
    pthread_mutex_lock(&d->lock);
    item.u.fence = event_of(e)->fence;
    if (item.u.fence != NULL) item.u.fence->n_references++;
    pthread_mutex_unlock(&d->lock);
    return item.u.fence == NULL ? ATSI_OK : sim_enqueue(s, &item, err);
}

enum atsi_status sim_event_sync(struct atsi_event *e, struct atsi_error *err) {
    struct sim_device *d = sim_of(e->device);
    pthread_mutex_lock(&d->lock);
    const struct sim_fence *fence = event_of(e)->fence;
    while (fence != NULL && !fence->passed) pthread_cond_wait(&d->changed, &d->lock);
    pthread_mutex_unlock(&d->lock);
    return sim_state(d, err);
}

bool sim_event_passed(struct atsi_event *e) {
    struct sim_device *d = sim_of(e->device);
    pthread_mutex_lock(&d->lock);
    const struct sim_fence *fence = event_of(e)->fence;
    bool passed = fence == NULL || fence->passed;
    pthread_mutex_unlock(&d->lock);
    return passed;
}

// Lock held.
static bool has_time(const struct sim_event *event) {
    return event->timed && event->fence != NULL && event->fence->passed;
}

enum atsi_status sim_event_elapsed_us(struct atsi_event *from, struct atsi_event *to, float *us,
                                      struct atsi_error *err) {
    struct sim_device *d = sim_of(from->device);
    ATSI_TRY(sim_state(d, err));
    pthread_mutex_lock(&d->lock);
    bool ready = has_time(event_of(from)) && has_time(event_of(to));
    if (ready) *us = (float)(event_of(to)->fence->passed_us - event_of(from)->fence->passed_us);
    pthread_mutex_unlock(&d->lock);
    return ready ? ATSI_OK
                 : atsi_fail(err, ATSI_FAILED,
                             "simulated device: elapsed time of events that are not timed or not passed");
}

// ---- the stream's thread ------------------------------------------------------------------------------------------------

void sim_delay(struct sim_stream *stream) {
    struct sim_device *d = sim_of(stream->base.device);
    if (d->params.delay_seed == 0 || d->params.delay_max_us == 0) return;
    pthread_mutex_lock(&d->lock);
    stream->random = stream->random * 6364136223846793005u + 1442695040888963407u;
    uint64_t ns = (stream->random >> 33) % (d->params.delay_max_us * 1000ull + 1);
    pthread_mutex_unlock(&d->lock);
    nanosleep(&(struct timespec){.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)}, NULL);
}

// Lock held on entry and exit. After a failure streams do no work any more, but events still pass: nobody waits for ever.
static void process(struct sim_device *d, struct sim_item *item) {
    struct sim_fence *fence = item->u.fence;
    switch (item->kind) {
    case SIM_ITEM_WAIT:
        while (!fence->passed) pthread_cond_wait(&d->changed, &d->lock);
        release_fence(fence);
        return;
    case SIM_ITEM_RECORD:
        fence->passed = true;
        fence->passed_us = atsi_clock_us();
        release_fence(fence);
        return;
    default: break;
    }
    if (item->kind == SIM_ITEM_POST || item->kind == SIM_ITEM_AWAIT) {
        pthread_mutex_unlock(&d->lock);
        if (item->kind == SIM_ITEM_POST)
            sim_perform_post(item);
        else
            sim_perform_await(d, item);
        pthread_mutex_lock(&d->lock);
        return;
    }
    if (d->failure.status == ATSI_OK) {
        struct atsi_error failure;
        pthread_mutex_unlock(&d->lock);
        if (sim_perform(d, item, &failure) != ATSI_OK) sim_poison(d, &failure, NULL);
        pthread_mutex_lock(&d->lock);
    }
    if (item->kind == SIM_ITEM_COPY) free(item->u.copy.staged);
}

static void *stream_main(void *argument) {
    struct sim_stream *stream = argument;
    struct sim_device *d = sim_of(stream->base.device);
    pthread_mutex_lock(&d->lock);
    for (;;) {
        while (stream->first == NULL && !stream->stopping) pthread_cond_wait(&d->changed, &d->lock);
        if (stream->first == NULL) break;
        struct sim_item *item = stream->first;
        stream->first = item->next;
        if (stream->first == NULL) stream->last = &stream->first;
        stream->n_queued--;
        stream->busy = true;
        pthread_mutex_unlock(&d->lock);
        sim_delay(stream);
        pthread_mutex_lock(&d->lock);
        process(d, item);
        free(item);
        stream->busy = false;
        pthread_cond_broadcast(&d->changed);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

// Lock held.
static void drain(struct sim_device *d, const struct sim_stream *stream) {
    while (stream->first != NULL || stream->busy) pthread_cond_wait(&d->changed, &d->lock);
}

void sim_drain_all(struct sim_device *d) {
    pthread_mutex_lock(&d->lock);
    for (const struct sim_stream *s = d->streams; s != NULL; s = s->next) drain(d, s);
    pthread_mutex_unlock(&d->lock);
}

// ---- streams ----------------------------------------------------------------------------------------------------------

enum atsi_status sim_stream_create(struct atsi_device *device, struct atsi_stream **out, struct atsi_error *err) {
    struct sim_device *d = sim_of(device);
    *out = NULL;
    ATSI_TRY(sim_state(d, err));
    struct sim_stream *stream = calloc(1, sizeof *stream);
    if (stream == NULL) return atsi_fail(err, ATSI_FAILED, "out of memory for a stream");
    stream->base = (struct atsi_stream){.ops = device->ops, .device = device};
    stream->last = &stream->first;
    pthread_mutex_lock(&d->lock);
    stream->random = d->params.delay_seed;
    for (const struct sim_stream *s = d->streams; s != NULL; s = s->next) stream->random += 0x9e3779b97f4a7c15u;
    int failure = pthread_create(&stream->thread, NULL, stream_main, stream);
    if (failure == 0) {
        stream->next = d->streams;
        d->streams = stream;
    }
    pthread_mutex_unlock(&d->lock);
    if (failure != 0) {
        free(stream);
        return atsi_fail(err, ATSI_FAILED, "cannot start the thread of a stream: %s", strerror(failure));
    }
    *out = &stream->base;
    return ATSI_OK;
}

void sim_stream_destroy(struct atsi_stream *s) {
    if (s == NULL) return;
    struct sim_device *d = sim_of(s->device);
    struct sim_stream *stream = stream_of(s);
    pthread_mutex_lock(&d->lock);
    drain(d, stream);
    stream->stopping = true;
    struct sim_stream **link = &d->streams;
    while (*link != stream) link = &(*link)->next;
    *link = stream->next;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
    pthread_join(stream->thread, NULL);
    free(stream);
}

enum atsi_status sim_stream_sync(struct atsi_stream *s, struct atsi_error *err) {
    struct sim_device *d = sim_of(s->device);
    pthread_mutex_lock(&d->lock);
    drain(d, stream_of(s));
    pthread_mutex_unlock(&d->lock);
    return sim_state(d, err);
}

enum atsi_status sim_stream_query(struct atsi_stream *s, bool *idle, struct atsi_error *err) {
    struct sim_device *d = sim_of(s->device);
    pthread_mutex_lock(&d->lock);
    *idle = stream_of(s)->first == NULL && !stream_of(s)->busy;
    pthread_mutex_unlock(&d->lock);
    return sim_state(d, err);
}

enum atsi_status sim_enqueue(struct atsi_stream *s, const struct sim_item *item, struct atsi_error *err) {
    struct sim_device *d = sim_of(s->device);
    struct sim_stream *stream = stream_of(s);
    struct sim_item *copy = malloc(sizeof *copy);
    if (copy == NULL) {
        struct atsi_error failure;
        atsi_fail(&failure, ATSI_FAILED, "out of memory for an item of a stream");
        return sim_poison(d, &failure, err);
    }
    *copy = *item;
    copy->next = NULL;
    if (stream->capture) {
        sim_graph_append(stream->capture, copy);
        return ATSI_OK;
    }
    pthread_mutex_lock(&d->driver);
    pthread_mutex_lock(&d->lock);
    while (stream->n_queued == ATSI_SIM_QUEUE_ITEMS) pthread_cond_wait(&d->changed, &d->lock);
    stream->n_queued++;
    *stream->last = copy;
    stream->last = &copy->next;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
    pthread_mutex_unlock(&d->driver);
    return ATSI_OK;
}
