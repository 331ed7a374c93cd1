#include "runtime/executor.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "runtime/executor_internal.h"

enum {
    // Caches of this size are read faster in huge pages (docs/kernels-cpu.md); of smaller ones they would only fill more memory.
    HUGE_FROM_BYTES = 32 << 20
};

// ---- host memory --------------------------------------------------------------------------------------------------

// Zeroed memory that only counts once it is touched; mapped into the device where there is one.
static enum atsi_status host_alloc(struct atsi_executor *x, uint64_t bytes, void **host, void **dev,
                                   struct atsi_error *err) {
    *dev = NULL;
    if (!bytes) bytes = 1;
    if (x->device) {
        ATSI_TRY(x->device->ops->host_alloc(x->device, bytes, host, dev, err));
        memset(*host, 0, bytes);
    } else {
        *host = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (*host == MAP_FAILED) {
            *host = NULL;
            return atsi_fail(err, ATSI_FAILED, "no memory for %.1f MiB of buffers", (double)bytes / 0x1p20);
        }
        if (bytes >= HUGE_FROM_BYTES) madvise(*host, bytes, MADV_HUGEPAGE); // only a wish
    }
    x->host_bytes += bytes;
    return ATSI_OK;
}

static void host_free(struct atsi_executor *x, void *host, uint64_t bytes) {
    if (!host) return;
    if (x->device)
        x->device->ops->host_free(x->device, host);
    else
        munmap(host, bytes ? bytes : 1);
}

static uint64_t state_bytes(const struct atsi_executor *x, uint32_t i) {
    return atsi_side_state_bytes(&x->p->states[i], x->n_ctx, x->plan->limits.chunk, x->plan->limits.kv_type);
}

// ---- creation -----------------------------------------------------------------------------------------------------

static enum atsi_status create_staging(struct atsi_executor *x, struct atsi_error *err) {
    struct atsi_staging *s = &x->staging;
    uint32_t n_head = sizeof(struct atsi_round) / sizeof(int32_t);
    void *host, *dev;
    s->n_ints = n_head + x->plan->limits.chunk + x->plan->limits.n_outputs;
    ATSI_TRY(host_alloc(x, s->n_ints * sizeof(int32_t), &host, &dev, err));
    s->host = host;
    s->dev = dev;
    x->round = host;
    x->sides[ATSI_CPU].round =
        (struct atsi_round_ref){host, s->host + n_head, s->host + n_head + x->plan->limits.chunk};
    if (x->device) {
        void *device;
        ATSI_TRY(x->device->ops->alloc(x->device, s->n_ints * sizeof(int32_t), &device, err));
        s->device = device;
        x->sides[ATSI_GPU].round =
            (struct atsi_round_ref){device, s->device + n_head, s->device + n_head + x->plan->limits.chunk};
    }
    return ATSI_OK;
}

static enum atsi_status create_side_tables(struct atsi_executor *x, struct atsi_error *err) {
    uint32_t n_states = x->p->n_states ? x->p->n_states : 1;
    x->host_states = calloc(n_states, sizeof *x->host_states);
    x->device_states = calloc(n_states, sizeof *x->device_states);
    x->backends = calloc(x->p->n_units, sizeof *x->backends);
    bool complete = x->host_states && x->device_states && x->backends;
    for (int side = 0; side < 2; side++) {
        x->sides[side].state_k = calloc(n_states, sizeof(void *));
        x->sides[side].state_v = calloc(n_states, sizeof(void *));
        complete = complete && x->sides[side].state_k && x->sides[side].state_v;
    }
    return complete ? ATSI_OK : atsi_fail(err, ATSI_FAILED, "out of memory while creating the executor");
}

static enum atsi_status create_marks(struct atsi_executor *x, struct atsi_error *err) {
    enum {
        APART_BYTES = 256
    };
    struct atsi_device_info info;
    void *host, *dev;
    ATSI_TRY(x->device->ops->info(x->device, &info, err));
    ATSI_TRY(host_alloc(x, 2 * APART_BYTES, &host, &dev, err));
    x->marks = (struct atsi_marks){.cpu = host,
                                   .gpu = (int32_t *)((char *)host + APART_BYTES),
                                   .cpu_dev = dev,
                                   .gpu_dev = (char *)dev + APART_BYTES};
    return info.launches_block || x->no_overlap ? ATSI_OK : atsi_launcher_create(x->stream, x->pool, &x->launcher, err);
}

static enum atsi_status create_transfers(struct atsi_executor *x, struct atsi_error *err) {
    struct atsi_transfers_params params = {.device = x->device,
                                           .ring = x->ring,
                                           .temp_bytes = x->plan->limits.temp_bytes,
                                           .max_units = x->p->n_units,
                                           .no_overlap = x->no_overlap};
    return atsi_transfers_create(&params, &x->transfers, err);
}

static enum atsi_status create_device_side(struct atsi_executor *x, struct atsi_error *err) {
    const struct atsi_plan_limits *l = &x->plan->limits;
    void *compute;
    ATSI_TRY(x->device->ops->stream_create(x->device, &x->stream, err));
    ATSI_TRY(create_marks(x, err));
    ATSI_TRY(x->device->ops->event_create(x->device, false, &x->arrived, err));
    ATSI_TRY(x->device->ops->event_create(x->device, true, &x->round_began, err));
    ATSI_TRY(x->device->ops->alloc(x->device, l->compute_bytes, &compute, err));
    x->sides[ATSI_GPU].compute = compute;
    if (l->temp_bytes) ATSI_TRY(create_transfers(x, err));
    ATSI_TRY(x->device->ops->prepare(x->device, x->p, l->chunk, l->n_outputs, x->n_ctx, err));
    if (!x->device->ops->capture_stream_create) return ATSI_OK;
    return x->device->ops->capture_stream_create(x->device, &x->capture, err);
}

static enum atsi_status create(struct atsi_executor *x, const struct atsi_executor_params *params,
                               struct atsi_error *err) {
    const struct atsi_plan_limits *l = &x->plan->limits;
    void *compute;
    ATSI_TRY(atsi_pool_create(params->n_threads ? params->n_threads : (int)l->n_threads, &x->pool, err));
    if (params->no_repeats) atsi_pool_ignore_crowds(x->pool);
    ATSI_TRY(atsi_cpu_create(params->isa, x->p, l->chunk, l->n_outputs, x->n_ctx, atsi_pool_n_threads(x->pool), &x->cpu,
                             err));
    ATSI_TRY(create_side_tables(x, err));
    ATSI_TRY(create_staging(x, err));
    ATSI_TRY(host_alloc(x, l->compute_bytes, &compute, &x->host_compute_dev, err));
    x->sides[ATSI_CPU].compute = compute;
    x->sides[ATSI_CPU].tensors = params->host_tensors;
    x->sides[ATSI_GPU].tensors = params->device_tensors;
    x->sides[ATSI_CPU].experts = params->host_experts;
    x->sides[ATSI_GPU].experts = params->device_experts;
    x->mapped = params->mapped_tensors;
    return x->device ? create_device_side(x, err) : ATSI_OK;
}

enum atsi_status atsi_executor_create(const struct atsi_executor_params *params, struct atsi_executor **out,
                                      struct atsi_error *err) {
    struct atsi_executor *x = calloc(1, sizeof *x);
    *out = NULL;
    if (!x) return atsi_fail(err, ATSI_FAILED, "out of memory while creating the executor");
    x->plan = params->plan;
    x->p = &params->plan->program;
    x->n_ctx = params->n_ctx;
    x->device = params->device;
    x->ring = params->ring;
    x->trace = params->trace;
    x->routing = params->routing;
    x->no_overlap = params->no_overlap;
    for (int phase = 0; phase < 2; phase++) atsi_recorder_start(&x->recorders[phase]);
    enum atsi_status status = create(x, params, err);
    if (status == ATSI_OK)
        *out = x;
    else
        atsi_executor_free(x);
    return status;
}

static void free_device_side(struct atsi_executor *x) {
    const struct atsi_device_ops *ops = x->device->ops;
    atsi_launcher_free(x->launcher);
    if (x->stream) ops->stream_sync(x->stream, NULL); // nothing may still write what is freed now
    atsi_prepared_round_free(x->now);
    x->now = NULL;
    atsi_transfers_free(x->transfers);
    for (uint32_t i = 0; x->device_states && i < x->p->n_states; i++)
        if (x->device_states[i]) ops->free(x->device, x->device_states[i]);
    if (x->sides[ATSI_GPU].compute) ops->free(x->device, x->sides[ATSI_GPU].compute);
    if (x->staging.device) ops->free(x->device, x->staging.device);
    if (x->arrived) ops->event_destroy(x->arrived);
    if (x->round_began) ops->event_destroy(x->round_began);
    if (x->stream) ops->stream_destroy(x->stream);
    if (x->capture) ops->stream_destroy(x->capture);
}

void atsi_executor_free(struct atsi_executor *x) {
    if (!x) return;
    if (x->device) free_device_side(x);
    for (uint32_t i = 0; x->host_states && i < x->p->n_states; i++) host_free(x, x->host_states[i], state_bytes(x, i));
    host_free(x, x->sides[ATSI_CPU].compute, x->plan->limits.compute_bytes);
    host_free(x, x->staging.host, x->staging.n_ints * sizeof(int32_t));
    host_free(x, x->marks.cpu, 0);
    for (int side = 0; side < 2; side++) {
        free(x->sides[side].state_k);
        free(x->sides[side].state_v);
    }
    free(x->host_states);
    free(x->device_states);
    atsi_prepared_round_free(x->now);
    free(x->backends);
    atsi_pool_free(x->pool);
    atsi_cpu_free(x->cpu);
    free(x);
}

// ---- states -------------------------------------------------------------------------------------------------------

// From the host's activations, of which nothing is needed between texts: a driver that pins little may have nothing left.
static enum atsi_status zero_device_state(struct atsi_executor *x, uint32_t i, struct atsi_error *err) {
    uint64_t bytes = state_bytes(x, i), step = x->plan->limits.compute_bytes ? x->plan->limits.compute_bytes : 1;
    char *zeros = x->sides[ATSI_CPU].compute, *state = x->device_states[i];
    memset(zeros, 0, step < bytes ? step : bytes);
    for (uint64_t at = 0; at < bytes; at += step) {
        uint64_t n = bytes - at < step ? bytes - at : step;
        ATSI_TRY(x->device->ops->copy_to_device(x->stream, state + at, zeros, n, err));
    }
    return x->device->ops->stream_sync(x->stream, err);
}

static enum atsi_status place_state(struct atsi_executor *x, uint32_t i, enum atsi_backend backend,
                                    struct atsi_error *err) {
    const struct atsi_state *s = &x->p->states[i];
    uint64_t bytes = state_bytes(x, i);
    void *block, *dev;
    if (backend == ATSI_GPU) {
        ATSI_TRY(x->device->ops->alloc(x->device, bytes, &block, err));
        x->device_states[i] = block;
    } else {
        ATSI_TRY(host_alloc(x, bytes, &block, &dev, err));
        x->host_states[i] = block;
    }
    uint64_t v_offset =
        atsi_side_value_offset(s, atsi_state_capacity(s, x->n_ctx, x->plan->limits.chunk), x->plan->limits.kv_type);
    x->sides[backend].state_k[i] = block;
    x->sides[backend].state_v[i] = s->kind == ATSI_STATE_KV ? (char *)block + v_offset : NULL;
    return ATSI_OK;
}

enum atsi_status executor_place_states(struct atsi_executor *x, struct atsi_error *err) {
    for (uint32_t u = 0; u < x->p->n_units; u++)
        for (uint32_t i = x->p->units[u].first_op; i < x->p->units[u].first_op + x->p->units[u].n_ops; i++)
            if (x->p->ops[i].state != ATSI_NONE)
                ATSI_TRY(place_state(x, (uint32_t)x->p->ops[i].state, x->backends[u], err));
    x->states_placed = true;
    return atsi_executor_reset(x, err);
}

enum atsi_status atsi_executor_reset(struct atsi_executor *x, struct atsi_error *err) {
    for (uint32_t i = 0; i < x->p->n_states; i++) {
        if (x->p->states[i].kind == ATSI_STATE_KV) continue; // what lies beyond the position is never read
        if (x->host_states[i]) memset(x->host_states[i], 0, state_bytes(x, i));
        if (x->device_states[i]) ATSI_TRY(zero_device_state(x, i, err));
    }
    return ATSI_OK;
}

enum atsi_status atsi_executor_copy(struct atsi_executor *x, void *dev, const void *host, uint64_t bytes,
                                    struct atsi_error *err) {
    return x->device->ops->copy_to_device(x->stream, dev, host, bytes, err);
}

// ---- figures ------------------------------------------------------------------------------------------------------

uint64_t atsi_executor_host_bytes(const struct atsi_executor *x) { return x->host_bytes; }
uint32_t atsi_executor_n_handovers(const struct atsi_executor *x) {
    uint32_t n = 0;
    for (uint32_t i = 0; x->now && i < x->now->script.n_actions; i++)
        n += x->now->script.actions[i].kind == ATSI_ACTION_WAIT;
    return n;
}
struct atsi_divided_routers atsi_executor_divided_routers(const struct atsi_executor *x) {
    struct atsi_divided_routers routers = {0};
    const struct atsi_slot_division *divisions = x->now ? x->now->script.divisions : NULL;
    for (uint32_t u = 0; divisions && u < x->p->n_units; u++) {
        routers.n += divisions[u].n_used > 0;
        routers.n_last_on_gpu += divisions[u].n_used > 0 && divisions[u].last_on_gpu;
    }
    return routers;
}
const char *atsi_executor_isa(const struct atsi_executor *x) { return atsi_cpu_isa(x->cpu); }
bool atsi_executor_has_device(const struct atsi_executor *x) { return x->device != NULL; }

struct atsi_recorder *atsi_executor_recorder(struct atsi_executor *x, bool single_tokens) {
    return &x->recorders[single_tokens];
}
uint32_t atsi_executor_n_units(const struct atsi_executor *x) { return x->p->n_units; }
int atsi_executor_n_threads(const struct atsi_executor *x) { return atsi_pool_n_threads(x->pool); }

struct atsi_pool_crowding atsi_executor_crowding(const struct atsi_executor *x) {
    return atsi_pool_crowding(x->pool);
}

void atsi_executor_keep_off(const struct atsi_executor *x, pthread_t thread) { atsi_pool_keep_off(x->pool, thread); }
