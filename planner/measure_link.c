// measure_link.c: what it costs to get data and control from one side to the other.
#include <math.h>
#include <string.h>

#include "formats/base/clock.h"
#include "planner/bench.h"
#include "planner/measure.h"

enum {
    SAMPLES = 9
};
static const uint64_t small_copy = 4 << 10, large_copy = 64 << 20;

struct link {
    const struct atsi_device_ops *ops;
    struct atsi_device *device;
    struct atsi_stream *stream;
    struct atsi_event *event;
    void *host, *host_dev, *dev; // large_copy bytes each
};

static enum atsi_status finish(struct link *l, struct atsi_error *err) {
    ATSI_TRY(l->ops->event_record(l->event, l->stream, err));
    return l->ops->event_sync(l->event, err);
}

enum what {
    TO_DEVICE,
    TO_HOST,
    HAND_OVER
};

// One row there and back through mapped memory, as activations go.
static enum atsi_status hand_over(struct link *l, struct atsi_error *err) {
    enum {
        WIDTH = 1024
    };
    ATSI_TRY(l->ops->copy_rows(l->stream, l->dev, WIDTH, l->host_dev, WIDTH, WIDTH, 1, err));
    ATSI_TRY(l->ops->copy_rows(l->stream, l->host_dev, WIDTH, l->dev, WIDTH, WIDTH, 1, err));
    return finish(l, err);
}

static enum atsi_status run(struct link *l, enum what what, uint64_t bytes, struct atsi_error *err) {
    if (what == HAND_OVER) return hand_over(l, err);
    if (what == TO_DEVICE)
        ATSI_TRY(l->ops->copy_to_device(l->stream, l->dev, l->host, bytes, err));
    else
        ATSI_TRY(l->ops->copy_to_host(l->stream, l->host, l->dev, bytes, err));
    return finish(l, err);
}

static enum atsi_status time_it(struct link *l, enum what what, uint64_t bytes, double *us, struct atsi_error *err) {
    double samples[SAMPLES], spread;
    ATSI_TRY(run(l, what, bytes, err)); // warms clocks and pages
    for (int i = 0; i < SAMPLES; i++) {
        double start = atsi_clock_us();
        ATSI_TRY(run(l, what, bytes, err));
        samples[i] = atsi_clock_us() - start;
    }
    *us = atsi_median(samples, SAMPLES, &spread);
    return ATSI_OK;
}

static enum atsi_status time_direction(struct link *l, enum what what, struct atsi_profile_link *out,
                                       struct atsi_error *err) {
    double small_us, large_us;
    ATSI_TRY(time_it(l, what, small_copy, &small_us, err));
    ATSI_TRY(time_it(l, what, large_copy, &large_us, err));
    out->bytes_per_us = fmax(1, (double)(large_copy - small_copy) / fmax(large_us - small_us, 1));
    out->fixed_us = fmax(0, small_us - (double)small_copy / out->bytes_per_us);
    return ATSI_OK;
}

static enum atsi_status open_link(struct link *l, struct atsi_error *err) {
    ATSI_TRY(l->ops->stream_create(l->device, &l->stream, err));
    ATSI_TRY(l->ops->event_create(l->device, false, &l->event, err));
    ATSI_TRY(l->ops->host_alloc(l->device, large_copy, &l->host, &l->host_dev, err));
    memset(l->host, 0, large_copy);
    return l->ops->alloc(l->device, large_copy, &l->dev, err);
}

static void close_link(struct link *l) {
    if (l->stream) l->ops->stream_sync(l->stream, NULL);
    if (l->dev) l->ops->free(l->device, l->dev);
    if (l->host) l->ops->host_free(l->device, l->host);
    if (l->event) l->ops->event_destroy(l->event);
    if (l->stream) l->ops->stream_destroy(l->stream);
}

static enum atsi_status measure_all(struct link *l, struct atsi_device_profile *profile, struct atsi_error *err) {
    double round_trip_us;
    ATSI_TRY(open_link(l, err));
    ATSI_TRY(time_direction(l, TO_DEVICE, &profile->to_device, err));
    ATSI_TRY(time_direction(l, TO_HOST, &profile->to_host, err));
    ATSI_TRY(time_it(l, HAND_OVER, 0, &round_trip_us, err));
    profile->switch_us = round_trip_us / 2; // a switch goes one way
    profile->contention = ATSI_CONTENTION_DEFAULT;
    return ATSI_OK;
}

// Context, modules and handles: what the process holds, or what is gone from the card when the driver does not tell.
static enum atsi_status measure_context(struct atsi_device *device, struct atsi_device_profile *profile,
                                        struct atsi_error *err) {
    struct atsi_device_info info;
    ATSI_TRY(device->ops->info(device, &info, err));
    profile->context_bytes =
        info.used_by_process_bytes ? info.used_by_process_bytes : info.total_bytes - info.free_bytes;
    return ATSI_OK;
}

enum atsi_status atsi_measure_link(struct atsi_device *device, struct atsi_device_profile *profile,
                                   struct atsi_error *err) {
    struct link l = {.ops = device->ops, .device = device};
    ATSI_TRY(measure_context(device, profile, err));
    enum atsi_status status = measure_all(&l, profile, err);
    close_link(&l);
    return status;
}
