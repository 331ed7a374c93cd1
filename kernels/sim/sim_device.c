#include "kernels/sim/sim_device.h"

#include <stdio.h>
#include <stdlib.h>

#include "kernels/sim/sim_internal.h"

enum atsi_status sim_state(struct sim_device *d, struct atsi_error *err) {
    pthread_mutex_lock(&d->lock);
    enum atsi_status status = d->failure.status;
    if (status != ATSI_OK && err != NULL) *err = d->failure;
    pthread_mutex_unlock(&d->lock);
    return status;
}

enum atsi_status sim_poison(struct sim_device *d, const struct atsi_error *failure, struct atsi_error *err) {
    pthread_mutex_lock(&d->lock);
    if (d->failure.status == ATSI_OK) d->failure = *failure;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
    return sim_state(d, err);
}

static enum atsi_status info(struct atsi_device *device, struct atsi_device_info *out, struct atsi_error *err) {
    struct sim_device *d = sim_of(device);
    ATSI_TRY(sim_state(d, err));
    *out = (struct atsi_device_info){.total_bytes =
                                         d->params.card_bytes != 0 ? d->params.card_bytes : d->params.memory_bytes,
                                     .used_by_process_bytes = d->used_bytes,
                                     .n_copy_engines = 2,
                                     .can_register_host = !d->params.refuse_register};
    snprintf(out->name, sizeof out->name, "simulated device");
    return sim_free_bytes(device, &out->free_bytes, err);
}

static uint64_t scratch_bytes(const struct atsi_program *p, uint32_t n_tokens_max, uint32_t n_outputs_max,
                              uint32_t n_ctx) {
    (void)p, (void)n_tokens_max, (void)n_outputs_max, (void)n_ctx;
    return 0; // the CPU kernels keep theirs in host memory
}

static enum atsi_status prepare(struct atsi_device *device, const struct atsi_program *p, uint32_t n_tokens_max,
                                uint32_t n_outputs_max, uint32_t n_ctx, struct atsi_error *err) {
    struct sim_device *d = sim_of(device);
    ATSI_TRY(sim_state(d, err));
    sim_drain_all(d);
    atsi_cpu_free(d->cpu);
    d->cpu = NULL;
    return atsi_cpu_create(d->params.reference_kernels ? "reference" : NULL, p, n_tokens_max, n_outputs_max, n_ctx, 1,
                           &d->cpu, err);
}

static void close_device(struct atsi_device *device) {
    struct sim_device *d = sim_of(device);
    while (d->streams != NULL) sim_stream_destroy(&d->streams->base);
    while (d->events != NULL) sim_event_destroy(&d->events->base);
    sim_free_all(d);
    atsi_cpu_free(d->cpu);
    pthread_mutex_destroy(&d->kernel_lock);
    pthread_mutex_destroy(&d->driver);
    pthread_cond_destroy(&d->changed);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

uint32_t atsi_sim_n_alive(struct atsi_device *device) {
    struct sim_device *d = sim_of(device);
    pthread_mutex_lock(&d->lock);
    uint32_t n = d->n_blocks; // a range is one
    for (struct sim_event *e = d->events; e != NULL; e = e->next) n++;
    for (struct sim_stream *s = d->streams; s != NULL; s = s->next) n++;
    pthread_mutex_unlock(&d->lock);
    return n;
}

static const struct atsi_device_ops SIM_OPS = {
    .close = close_device,
    .info = info,
    .alloc = sim_alloc,
    .free = sim_free,
    .free_bytes = sim_free_bytes,
    .range_create = sim_range_create,
    .range_back = sim_range_back,
    .range_destroy = sim_range_destroy,
    .host_alloc = sim_host_alloc,
    .host_free = sim_host_free,
    .host_register = sim_host_register,
    .host_unregister = sim_host_unregister,
    .stream_create = sim_stream_create,
    .stream_destroy = sim_stream_destroy,
    .stream_sync = sim_stream_sync,
    .stream_query = sim_stream_query,
    .event_create = sim_event_create,
    .event_destroy = sim_event_destroy,
    .event_record = sim_event_record,
    .stream_wait = sim_stream_wait,
    .event_sync = sim_event_sync,
    .event_passed = sim_event_passed,
    .event_elapsed_us = sim_event_elapsed_us,
    .copy_to_device = sim_copy_to_device,
    .copy_to_host = sim_copy_to_host,
    .copy_rows = sim_copy_rows,
    .copy_slots = sim_copy_slots,
    .post_mark = sim_post_mark,
    .await_mark = sim_await_mark,
    .fetch_experts = sim_fetch_experts,
    .launch = sim_launch,
    .scratch_bytes = scratch_bytes,
    .prepare = prepare,
    .capture_begin = sim_capture_begin,
    .capture_end = sim_capture_end,
    .graph_launch = sim_graph_launch,
    .graph_destroy = sim_graph_destroy,
    .capture_stream_create = sim_stream_create,
};

enum atsi_status atsi_sim_open(const struct atsi_sim_params *params, struct atsi_device **out, struct atsi_error *err) {
    *out = NULL;
    struct sim_device *d = calloc(1, sizeof *d);
    if (d == NULL) return atsi_fail(err, ATSI_FAILED, "out of memory for the simulated device");
    d->base.ops = &SIM_OPS;
    d->params = *params;
    pthread_mutex_init(&d->lock, NULL);
    pthread_mutex_init(&d->kernel_lock, NULL);
    pthread_mutex_init(&d->driver, NULL);
    pthread_cond_init(&d->changed, NULL);
    *out = &d->base;
    return ATSI_OK;
}
