// Marks and captured graphs of the simulated device.
#include <stdlib.h>
#include <time.h>

#include "kernels/sim/sim_internal.h"

static struct sim_stream *stream_of(struct atsi_stream *s) { return (struct sim_stream *)s; }

// ---- marks ------------------------------------------------------------------------------------------------------------

static void nap(void) { nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL); }

static enum atsi_status enqueue_mark(struct atsi_stream *s, struct sim_item *item, const void *word_dev,
                                     const int32_t *base_dev, int32_t offset, struct atsi_error *err) {
    struct sim_device *d = sim_of(s->device);
    struct atsi_error failure;
    void *word, *base = NULL;
    ATSI_TRY(sim_state(d, err));
    bool writes = item->kind == SIM_ITEM_POST;
    if (sim_translate(d, word_dev, sizeof(int32_t), writes, &word, &failure) != ATSI_OK ||
        (base_dev && sim_translate(d, base_dev, sizeof *base_dev, false, &base, &failure) != ATSI_OK))
        return sim_poison(d, &failure, err);
    item->u.mark.word = word;
    item->u.mark.base = base;
    item->u.mark.offset = offset;
    return sim_enqueue(s, item, err);
}

enum atsi_status sim_post_mark(struct atsi_stream *s, void *word_dev, const int32_t *base_dev, int32_t offset,
                               struct atsi_error *err) {
    struct sim_item item = {.kind = SIM_ITEM_POST};
    return enqueue_mark(s, &item, word_dev, base_dev, offset, err);
}

enum atsi_status sim_await_mark(struct atsi_stream *s, const void *word_dev, const int32_t *base_dev, int32_t offset,
                                struct atsi_error *err) {
    struct sim_item item = {.kind = SIM_ITEM_AWAIT};
    return enqueue_mark(s, &item, word_dev, base_dev, offset, err);
}

static int32_t value_of(const struct sim_item *item) {
    return (int32_t)((item->u.mark.base ? (uint32_t)*item->u.mark.base : 0) + (uint32_t)item->u.mark.offset);
}

void sim_perform_post(const struct sim_item *item) {
    __atomic_store_n(item->u.mark.word, value_of(item), __ATOMIC_RELEASE);
}

void sim_perform_await(struct sim_device *d, const struct sim_item *item) {
    int32_t value = value_of(item);
    while (!atsi_mark_reached(__atomic_load_n(item->u.mark.word, __ATOMIC_ACQUIRE), value) &&
           sim_state(d, NULL) == ATSI_OK)
        nap();
}

// A driver may have to find or give back memory for a graph, for which it waits until nothing runs.
static void wait_as_a_driver_may(struct sim_device *d) {
    pthread_mutex_lock(&d->driver);
    sim_drain_all(d);
    pthread_mutex_unlock(&d->driver);
}

// ---- graphs -----------------------------------------------------------------------------------------------------------

enum {
    GRAPH_BYTES = 64 << 10 // with less than this left of the card none is built
};

void sim_graph_append(struct sim_graph *g, struct sim_item *item) {
    *g->last = item;
    g->last = &item->next;
}

enum atsi_status sim_capture_begin(struct atsi_stream *s, struct atsi_error *err) {
    ATSI_TRY(sim_state(sim_of(s->device), err));
    struct sim_graph *g = calloc(1, sizeof *g);
    if (g == NULL) return atsi_fail(err, ATSI_FAILED, "out of memory for a graph");
    g->last = &g->first;
    stream_of(s)->capture = g;
    return ATSI_OK;
}

enum atsi_status sim_capture_end(struct atsi_stream *s, void **graph, struct atsi_error *err) {
    struct sim_graph *g = stream_of(s)->capture;
    stream_of(s)->capture = NULL;
    *graph = NULL;
    bool fits = true;
    // These hold what only one run may use.
    for (const struct sim_item *item = g->first; item != NULL; item = item->next)
        fits &= item->kind != SIM_ITEM_WAIT && item->kind != SIM_ITEM_COPY;
    if (!fits) {
        sim_graph_destroy(s->device, g);
        return atsi_fail(err, ATSI_FAILED,
                         "simulated device: copies of weights and waits for events cannot be captured");
    }
    wait_as_a_driver_may(sim_of(s->device));
    if (sim_room(sim_of(s->device)) < GRAPH_BYTES)
        sim_graph_destroy(s->device, g);
    else
        *graph = g;
    return sim_state(sim_of(s->device), err);
}

enum atsi_status sim_graph_launch(struct atsi_stream *s, void *graph, struct atsi_error *err) {
    const struct sim_graph *g = graph;
    ATSI_TRY(sim_state(sim_of(s->device), err));
    for (const struct sim_item *item = g->first; item != NULL; item = item->next) {
        struct sim_item again = *item;
        if (item->kind == SIM_ITEM_EVENT) {
            ATSI_TRY(s->ops->event_record(item->u.event, s, err));
            continue;
        }
        if (item->kind == SIM_ITEM_LAUNCH) again.u.launch.replayed = true;
        ATSI_TRY(sim_enqueue(s, &again, err));
    }
    sim_delay(stream_of(s));
    return ATSI_OK;
}

void sim_graph_destroy(struct atsi_device *d, void *graph) {
    struct sim_graph *g = graph;
    wait_as_a_driver_may(sim_of(d));
    for (struct sim_item *item = g ? g->first : NULL, *next; item != NULL; item = next) {
        next = item->next;
        if (item->kind == SIM_ITEM_COPY) free(item->u.copy.staged);
        free(item);
    }
    free(g);
}
