// device.cu: memory, streams, events, copies and graphs of a CUDA device behind kernels/device.h.
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/cuda/waiting.h"

struct cuda_event {
    struct atsi_event base;
    cudaEvent_t handle;
};

enum atsi_status cuda_healthy(const struct cuda_device *d, struct atsi_error *err) {
    if (d->sticky.status == ATSI_OK) return ATSI_OK;
    return atsi_fail(err, d->sticky.status, "%s", d->sticky.text);
}

enum atsi_status cuda_check(struct cuda_device *d, cudaError_t status, const char *what, struct atsi_error *err) {
    ATSI_TRY(cuda_healthy(d, err));
    if (status == cudaSuccess) return ATSI_OK;
    atsi_fail(&d->sticky, ATSI_FAILED, "GPU: %s: %s", what, cudaGetErrorString(status));
    return cuda_healthy(d, err);
}

static cudaStream_t handle_of(struct atsi_stream *s) { return ((struct cuda_stream *)s)->handle; }
static struct cuda_device *device_of(struct atsi_stream *s) { return cuda_device_of(s->device); }

// ---- memory -----------------------------------------------------------------------------------------------------------

// A refusal leaves the runtime's "last error" set, where the next launch check would find it.
static enum atsi_status refused(cudaError_t status, const char *what, uint64_t bytes, struct atsi_error *err) {
    (void)cudaGetLastError();
    return atsi_fail(err, ATSI_FAILED, "GPU: %s of %.1f MiB refused: %s", what, (double)bytes / 1048576.0,
                     cudaGetErrorString(status));
}

static enum atsi_status device_alloc(struct atsi_device *base, uint64_t bytes, void **dev, struct atsi_error *err) {
    *dev = NULL;
    ATSI_TRY(cuda_healthy(cuda_device_of(base), err));
    cudaError_t status = cudaMalloc(dev, bytes != 0 ? bytes : 1);
    return status == cudaSuccess ? ATSI_OK : refused(status, "allocation", bytes, err);
}

static void device_free(struct atsi_device *, void *dev) {
    if (dev != NULL) (void)cudaFree(dev);
}

static enum atsi_status device_free_bytes(struct atsi_device *base, uint64_t *bytes, struct atsi_error *err) {
    size_t free_bytes = 0, total_bytes = 0;
    ATSI_TRY(cuda_healthy(cuda_device_of(base), err));
    if (nvml_free_bytes(cuda_device_of(base), bytes)) return ATSI_OK;
    enum atsi_status status =
        cuda_check(cuda_device_of(base), cudaMemGetInfo(&free_bytes, &total_bytes), "reading the free memory", err);
    *bytes = free_bytes;
    return status;
}

static enum atsi_status host_alloc(struct atsi_device *base, uint64_t bytes, void **host, void **dev,
                                   struct atsi_error *err) {
    *host = *dev = NULL;
    ATSI_TRY(cuda_healthy(cuda_device_of(base), err));
    cudaError_t status = cudaHostAlloc(host, bytes != 0 ? bytes : 1, cudaHostAllocMapped | cudaHostAllocPortable);
    if (status != cudaSuccess) return refused(status, "pinned allocation", bytes, err);
    status = cudaHostGetDevicePointer(dev, *host, 0);
    if (status == cudaSuccess) return ATSI_OK;
    (void)cudaFreeHost(*host);
    *host = NULL;
    return refused(status, "mapping of pinned memory", bytes, err);
}

static void host_free(struct atsi_device *, void *host) {
    if (host != NULL) (void)cudaFreeHost(host);
}

static bool can_register(int ordinal) {
    int register_read_only = 0;
    if (cudaDeviceGetAttribute(&register_read_only, cudaDevAttrHostRegisterReadOnlySupported, ordinal) == cudaSuccess)
        return register_read_only != 0;
    (void)cudaGetLastError();
    return false;
}

// The ReadOnly flag is what makes a shared mapping of a file without write permission acceptable. The caller must not pass a
// private read-only mapping: drivers were seen not to come back from that.
static enum atsi_status host_register(struct atsi_device *base, const void *host, uint64_t bytes, const void **dev,
                                      struct atsi_error *err) {
    struct cuda_device *d = cuda_device_of(base);
    *dev = NULL;
    ATSI_TRY(cuda_healthy(d, err));
    if (!can_register(d->ordinal))
        return atsi_fail(err, ATSI_FAILED, "GPU: the driver cannot pin read-only file mappings");
    cudaError_t status = cudaHostRegister((void *)host, bytes, cudaHostRegisterMapped | cudaHostRegisterReadOnly);
    if (status != cudaSuccess) return refused(status, "pinning a file mapping", bytes, err);
    status = cudaHostGetDevicePointer((void **)dev, (void *)host, 0);
    if (status == cudaSuccess) return ATSI_OK;
    (void)cudaHostUnregister((void *)host);
    return refused(status, "mapping of a pinned file", bytes, err);
}

static void host_unregister(struct atsi_device *, const void *host) {
    if (host != NULL) (void)cudaHostUnregister((void *)host);
}

// ---- streams and events -----------------------------------------------------------------------------------------------

// Where experts are fetched beside what is launched behind that, until something needs them.
struct branch {
    cudaStream_t handle;
    cudaEvent_t leaves, returns;
    bool is_out; // something was launched there for which the stream has not waited
};

struct stream_memory {
    struct cuda_stream stream; // first: freed by its address
    struct waiting waiting;
    struct branch branch;
};

static struct branch *branch_of(struct atsi_stream *s) { return &((struct stream_memory *)s)->branch; }

static void destroy_branch(struct branch *b) {
    if (b->handle != NULL) (void)cudaStreamDestroy(b->handle);
    if (b->leaves != NULL) (void)cudaEventDestroy(b->leaves);
    if (b->returns != NULL) (void)cudaEventDestroy(b->returns);
}

// Its kernels come first where both have blocks to start: they are the longer ones.
static enum atsi_status create_branch(struct cuda_device *d, struct branch *b, struct atsi_error *err) {
    int least = 0, greatest = 0;
    cudaError_t status = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    if (status == cudaSuccess) status = cudaStreamCreateWithPriority(&b->handle, cudaStreamNonBlocking, greatest);
    if (status == cudaSuccess) status = cudaEventCreateWithFlags(&b->leaves, cudaEventDisableTiming);
    if (status == cudaSuccess) status = cudaEventCreateWithFlags(&b->returns, cudaEventDisableTiming);
    return cuda_check(d, status, "creating a stream", err);
}

static enum atsi_status leave(struct atsi_stream *s, struct atsi_error *err) {
    struct branch *b = branch_of(s);
    cudaError_t status = cudaEventRecord(b->leaves, handle_of(s));
    if (status == cudaSuccess) status = cudaStreamWaitEvent(b->handle, b->leaves, 0);
    if (status == cudaSuccess) b->is_out = true;
    return cuda_check(device_of(s), status, "ordering streams", err);
}

static enum atsi_status come_back(struct atsi_stream *s, struct atsi_error *err) {
    struct branch *b = branch_of(s);
    if (!b->is_out) return ATSI_OK;
    b->is_out = false;
    cudaError_t status = cudaEventRecord(b->returns, b->handle);
    if (status == cudaSuccess) status = cudaStreamWaitEvent(handle_of(s), b->returns, 0);
    return cuda_check(device_of(s), status, "ordering streams", err);
}

// Before anything that others wait for, or that a graph ends with: all that was asked of the stream is in it.
static enum atsi_status settle(struct atsi_stream *s, struct atsi_error *err) {
    enum atsi_status status = cuda_flush(s, err); // a capture must come back in any case
    ATSI_TRY(come_back(s, status == ATSI_OK ? err : NULL));
    return status;
}

static void stream_destroy(struct atsi_stream *base) {
    if (base == NULL) return;
    destroy_branch(branch_of(base));
    if (handle_of(base) != NULL) (void)cudaStreamDestroy(handle_of(base));
    if (((struct cuda_stream *)base)->owns_device) free(base->device);
    free(base);
}

static enum atsi_status stream_create(struct atsi_device *base, struct atsi_stream **out, struct atsi_error *err) {
    struct cuda_device *d = cuda_device_of(base);
    *out = NULL;
    ATSI_TRY(cuda_healthy(d, err));
    struct stream_memory *memory = (struct stream_memory *)calloc(1, sizeof *memory);
    if (memory == NULL) return atsi_fail(err, ATSI_FAILED, "out of memory for a GPU stream");
    struct cuda_stream *s = &memory->stream;
    s->base.ops = base->ops;
    s->base.device = base;
    s->waiting = &memory->waiting;
    enum atsi_status status =
        cuda_check(d, cudaStreamCreateWithFlags(&s->handle, cudaStreamNonBlocking), "creating a stream", err);
    if (status == ATSI_OK) status = create_branch(d, &memory->branch, err);
    if (status != ATSI_OK)
        stream_destroy(&s->base);
    else
        *out = &s->base;
    return status;
}

// What launches keep on the device (which inputs scratch holds, the sticky error) belongs to one thread. The stream's thread gets a copy
// of its own; scratch memory and limits are the same and stay what `prepare` made them.
static enum atsi_status capture_stream_create(struct atsi_device *base, struct atsi_stream **out,
                                              struct atsi_error *err) {
    struct cuda_device *own = (struct cuda_device *)malloc(sizeof *own);
    *out = NULL;
    if (own == NULL) return atsi_fail(err, ATSI_FAILED, "out of memory for a GPU stream");
    *own = *cuda_device_of(base);
    enum atsi_status status = stream_create(&own->base, out, err);
    if (status != ATSI_OK)
        free(own);
    else
        ((struct cuda_stream *)*out)->owns_device = true;
    return status;
}

// Once the host has waited it may rewrite mapped rows that scratch still holds in quantised form.
static void forget_all_acts(struct cuda_device *d) { d->acts.data = NULL; }

static enum atsi_status stream_sync(struct atsi_stream *s, struct atsi_error *err) {
    ATSI_TRY(settle(s, err));
    forget_all_acts(device_of(s));
    return cuda_check(device_of(s), cudaStreamSynchronize(handle_of(s)), "waiting for the stream", err);
}

// Launches nothing that waits (waiting.h): what is asked from another thread are streams of graphs, before which all is launched.
static enum atsi_status stream_query(struct atsi_stream *s, bool *idle, struct atsi_error *err) {
    cudaError_t status = cudaStreamQuery(handle_of(s));
    *idle = status != cudaErrorNotReady;
    return *idle ? cuda_check(device_of(s), status, "waiting for the GPU", err) : cuda_healthy(device_of(s), err);
}

static enum atsi_status event_create(struct atsi_device *base, bool timed, struct atsi_event **out,
                                     struct atsi_error *err) {
    struct cuda_device *d = cuda_device_of(base);
    *out = NULL;
    ATSI_TRY(cuda_healthy(d, err));
    struct cuda_event *e = (struct cuda_event *)calloc(1, sizeof *e);
    if (e == NULL) return atsi_fail(err, ATSI_FAILED, "out of memory for a GPU event");
    e->base.ops = base->ops;
    e->base.device = base;
    unsigned flags = timed ? cudaEventDefault : cudaEventDisableTiming;
    enum atsi_status status = cuda_check(d, cudaEventCreateWithFlags(&e->handle, flags), "creating an event", err);
    if (status != ATSI_OK)
        free(e);
    else
        *out = &e->base;
    return status;
}

static void event_destroy(struct atsi_event *base) {
    if (base == NULL) return;
    (void)cudaEventDestroy(((struct cuda_event *)base)->handle);
    free(base);
}

// In a capture the event becomes a node that every replay records, instead of a dependency of the captured work.
static enum atsi_status event_record(struct atsi_event *e, struct atsi_stream *s, struct atsi_error *err) {
    ATSI_TRY(settle(s, err));
    unsigned flags = ((struct cuda_stream *)s)->capturing ? cudaEventRecordExternal : cudaEventRecordDefault;
    return cuda_check(device_of(s), cudaEventRecordWithFlags(((struct cuda_event *)e)->handle, handle_of(s), flags),
                      "recording an event", err);
}

static enum atsi_status stream_wait(struct atsi_stream *s, struct atsi_event *e, struct atsi_error *err) {
    ATSI_TRY(settle(s, err));
    return cuda_check(device_of(s), cudaStreamWaitEvent(handle_of(s), ((struct cuda_event *)e)->handle, 0),
                      "ordering streams", err);
}

// A hand-over is a few microseconds away, so polling comes first; then other threads get the core; a wait that has lasted
// longer than any hand-over sleeps.
static enum atsi_status event_sync(struct atsi_event *base, struct atsi_error *err) {
    enum {
        N_POLLS = 200,
        N_YIELDS = 2000
    };
    struct cuda_event *e = (struct cuda_event *)base;
    cudaError_t status = cudaErrorNotReady;
    forget_all_acts(cuda_device_of(base->device));
    for (unsigned i = 0; (status = cudaEventQuery(e->handle)) == cudaErrorNotReady; i++) {
        if (i < N_POLLS) continue;
        if (i < N_POLLS + N_YIELDS) {
            sched_yield();
        } else {
            struct timespec nap = {0, 50000};
            nanosleep(&nap, NULL);
        }
    }
    return cuda_check(cuda_device_of(base->device), status, "waiting for an event", err);
}

static bool event_passed(struct atsi_event *e) {
    return cudaEventQuery(((struct cuda_event *)e)->handle) != cudaErrorNotReady;
}

static enum atsi_status event_elapsed_us(struct atsi_event *from, struct atsi_event *to, float *us,
                                         struct atsi_error *err) {
    float ms = 0;
    cudaError_t status =
        cudaEventElapsedTime(&ms, ((struct cuda_event *)from)->handle, ((struct cuda_event *)to)->handle);
    *us = ms * 1000.0f;
    return cuda_check(cuda_device_of(from->device), status, "reading an event's time", err);
}

// ---- copies -----------------------------------------------------------------------------------------------------------

static enum atsi_status copy_to_device(struct atsi_stream *s, void *dev, const void *host, uint64_t bytes,
                                       struct atsi_error *err) {
    ATSI_TRY(cuda_healthy(device_of(s), err));
    ATSI_TRY(settle(s, err));
    forget_acts(device_of(s), dev, bytes);
    return cuda_check(device_of(s), cudaMemcpyAsync(dev, host, bytes, cudaMemcpyHostToDevice, handle_of(s)),
                      "copying to the GPU", err);
}

static enum atsi_status copy_to_host(struct atsi_stream *s, void *host, const void *dev, uint64_t bytes,
                                     struct atsi_error *err) {
    ATSI_TRY(cuda_healthy(device_of(s), err));
    ATSI_TRY(settle(s, err));
    return cuda_check(device_of(s), cudaMemcpyAsync(host, dev, bytes, cudaMemcpyDeviceToHost, handle_of(s)),
                      "copying from the GPU", err);
}

// Copies of few rows wait for others, and for the mark behind them (waiting.h).
static enum atsi_status hold_copy(struct atsi_stream *s, const struct copy *c, struct atsi_error *err) {
    struct waiting *w = ((struct cuda_stream *)s)->waiting;
    if (waiting_has_copies(w) && copies_join(&w->copies, c)) return ATSI_OK;
    ATSI_TRY(cuda_flush(s, err));
    (void)copies_join(&w->copies, c); // alone: there is room
    return ATSI_OK;
}

static enum atsi_status copy_rows(struct atsi_stream *s, void *dst, uint32_t dst_stride, const void *src,
                                  uint32_t src_stride, uint32_t width, uint32_t n_rows, struct atsi_error *err) {
    struct cuda_device *d = device_of(s);
    struct copy c = {(float *)dst, (const float *)src, NULL, dst_stride, src_stride, width, 1, n_rows, false};
    ATSI_TRY(cuda_healthy(d, err));
    if (n_rows == 0 || width == 0) return ATSI_OK;
    forget_acts(d, dst, rows_bytes(dst_stride, width, n_rows));
    if (n_rows <= VECTOR_ROWS) return hold_copy(s, &c, err);
    ATSI_TRY(cuda_flush(s, err));
    launch_copy_rows(launch_stream_of(s), dst, dst_stride, src, src_stride, width, n_rows);
    return cuda_check(d, cudaGetLastError(), "copying activations", err);
}

static enum atsi_status copy_slots(struct atsi_stream *s, void *dst, uint32_t dst_stride, const void *src,
                                   uint32_t src_stride, uint32_t slot_width, uint32_t n_slots, const int32_t *mine,
                                   bool to_device, uint32_t n_rows, struct atsi_error *err) {
    struct cuda_device *d = device_of(s);
    struct copy c = {(float *)dst, (const float *)src, mine, dst_stride, src_stride, slot_width, n_slots,
                     n_rows,       to_device};
    ATSI_TRY(cuda_healthy(d, err));
    if (n_rows == 0 || n_slots == 0 || slot_width == 0) return ATSI_OK;
    forget_acts(d, dst, rows_bytes(dst_stride, n_slots * slot_width, n_rows));
    if (n_rows <= VECTOR_ROWS) return hold_copy(s, &c, err);
    ATSI_TRY(cuda_flush(s, err));
    launch_copy_slots(launch_stream_of(s), dst, dst_stride, src, src_stride, slot_width, n_slots, mine, to_device,
                      n_rows);
    return cuda_check(d, cudaGetLastError(), "copying experts' results", err);
}

static enum atsi_status fetch_experts(struct atsi_stream *s, const struct atsi_op_call *call, struct atsi_error *err) {
    struct cuda_device *d = device_of(s);
    ATSI_TRY(cuda_healthy(d, err));
    ATSI_TRY(cuda_flush(s, err));
    ATSI_TRY(leave(s, err));
    launch_fetch_experts(branch_of(s)->handle, call);
    return cuda_check(d, cudaGetLastError(), "fetching experts", err);
}

static enum atsi_status launch(struct atsi_stream *s, const struct atsi_op_call *call, const struct atsi_round *round,
                               struct atsi_error *err) {
    if (call->op->kind == ATSI_OP_EXPERTS && call->resident.fetched != NULL) ATSI_TRY(settle(s, err));
    return cuda_launch(s, call, round, err);
}

// ---- graphs -----------------------------------------------------------------------------------------------------------

// A replayed piece starts from unknown scratch contents and leaves others behind, so neither side may rely on them.
static enum atsi_status capture_begin(struct atsi_stream *s, struct atsi_error *err) {
    ATSI_TRY(cuda_healthy(device_of(s), err));
    ATSI_TRY(settle(s, err));
    forget_all_acts(device_of(s));
    ATSI_TRY(cuda_check(device_of(s), cudaStreamBeginCapture(handle_of(s), cudaStreamCaptureModeThreadLocal),
                        "starting a capture", err));
    ((struct cuda_stream *)s)->capturing = true;
    return ATSI_OK;
}

static enum atsi_status capture_end(struct atsi_stream *s, void **graph, struct atsi_error *err) {
    struct cuda_device *d = device_of(s);
    *graph = NULL;
    enum atsi_status flushed = settle(s, err); // a capture is ended in any case
    ((struct cuda_stream *)s)->capturing = false;
    forget_all_acts(d);
    cudaGraph_t recorded = NULL;
    ATSI_TRY(cuda_check(d, cudaStreamEndCapture(handle_of(s), &recorded), "ending a capture", err));
    if (flushed != ATSI_OK) {
        (void)cudaGraphDestroy(recorded);
        return flushed;
    }
    cudaGraphExec_t exec = NULL;
    cudaError_t status = cudaGraphInstantiate(&exec, recorded, 0);
    if (status == cudaSuccess) status = cudaGraphUpload(exec, handle_of(s)); // its memory is taken now, not in a round
    (void)cudaGraphDestroy(recorded);
    if (status == cudaErrorMemoryAllocation) { // another program has taken what was left
        (void)cudaGetLastError();
        if (exec != NULL) (void)cudaGraphExecDestroy(exec);
        return ATSI_OK;
    }
    ATSI_TRY(cuda_check(d, status, "building a graph", err));
    *graph = exec;
    return ATSI_OK;
}

static enum atsi_status graph_launch(struct atsi_stream *s, void *graph, struct atsi_error *err) {
    ATSI_TRY(cuda_healthy(device_of(s), err));
    ATSI_TRY(settle(s, err));
    forget_all_acts(device_of(s));
    return cuda_check(device_of(s), cudaGraphLaunch((cudaGraphExec_t)graph, handle_of(s)), "launching a graph", err);
}

static void graph_destroy(struct atsi_device *, void *graph) {
    if (graph != NULL) (void)cudaGraphExecDestroy((cudaGraphExec_t)graph);
}

// ---- the device -------------------------------------------------------------------------------------------------------

static enum atsi_status device_info(struct atsi_device *base, struct atsi_device_info *out, struct atsi_error *err) {
    struct cuda_device *d = cuda_device_of(base);
    memset(out, 0, sizeof *out);
    struct cudaDeviceProp properties;
    ATSI_TRY(cuda_check(d, cudaGetDeviceProperties(&properties, d->ordinal), "reading the card's properties", err));
    size_t free_bytes = 0, total_bytes = 0;
    ATSI_TRY(cuda_check(d, cudaMemGetInfo(&free_bytes, &total_bytes), "reading the card's memory", err));
    snprintf(out->name, sizeof out->name, "%.127s", properties.name);
    out->total_bytes = total_bytes;
    out->free_bytes = free_bytes;
    out->n_copy_engines = properties.asyncEngineCount;
    out->can_register_host = can_register(d->ordinal);
    // A profiler or debugger in the process runs launches one by one; work that waits for the host would never end.
    const char *blocking = getenv("CUDA_LAUNCH_BLOCKING");
    out->launches_block = (blocking != NULL && strcmp(blocking, "1") == 0) || getenv("CUDA_INJECTION64_PATH") != NULL ||
                          getenv("NV_SANITIZER_INJECTION_PORT_BASE") != NULL;
    out->used_by_process_bytes = nvml_process_bytes(d);
    return ATSI_OK;
}

static void device_close(struct atsi_device *base) {
    if (base == NULL) return;
    struct cuda_device *d = cuda_device_of(base);
    (void)cudaFree(d->scratch.base);
    nvml_close(d);
    (void)cudaDeviceReset(); // frees what callers left and the context itself
    free(d);
}

static const struct atsi_device_ops OPS = {
    device_close,    device_info,           device_alloc, device_free,   device_free_bytes, cuda_range_create,
    cuda_range_back, cuda_range_destroy,    host_alloc,   host_free,     host_register,     host_unregister,
    stream_create,   stream_destroy,        stream_sync,  stream_query,  event_create,      event_destroy,
    event_record,    stream_wait,           event_sync,   event_passed,  event_elapsed_us,  cuda_post_mark,
    cuda_await_mark, copy_to_device,        copy_to_host, copy_rows,     copy_slots,        fetch_experts,
    launch,          cuda_scratch_bytes,    cuda_prepare, capture_begin, capture_end,       graph_launch,
    graph_destroy,   capture_stream_create,
};

static enum atsi_status no_device(cudaError_t status, struct atsi_error *err) {
    (void)cudaGetLastError();
    if (status == cudaErrorInsufficientDriver) {
        int driver = 0;
        (void)cudaDriverGetVersion(&driver);
        if (driver == 0) return atsi_fail(err, ATSI_FAILED, "no NVIDIA driver on this machine");
        return atsi_fail(err, ATSI_FAILED,
                         "the NVIDIA driver speaks CUDA %d.%d, this program needs %d.%d: update the driver",
                         driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    }
    return atsi_fail(err, ATSI_FAILED, "no usable NVIDIA GPU: %s", cudaGetErrorString(status));
}

static enum atsi_status read_capabilities(struct cuda_device *d, struct atsi_error *err) {
    struct cudaDeviceProp properties;
    cudaError_t status = cudaGetDeviceProperties(&properties, d->ordinal);
    if (status != cudaSuccess) return no_device(status, err);
    if (properties.major * 10 + properties.minor < 75)
        return atsi_fail(err, ATSI_FAILED, "%s has compute capability %d.%d, this program needs 7.5 or newer",
                         properties.name, properties.major, properties.minor);
    d->capability = properties.major * 10 + properties.minor;
    d->n_multiprocessors = properties.multiProcessorCount;
    d->max_shared_bytes = (int)properties.sharedMemPerBlockOptin;
    return ATSI_OK;
}

extern "C" enum atsi_status atsi_cuda_open(struct atsi_device **out, struct atsi_error *err) {
    *out = NULL;
    int n_devices = 0;
    // Streams beyond the hardware's queues share them, and what waits for a mark would hold up the stream that is to post it. Read
    // by the driver when it starts; who has set it knows better.
    (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    cudaError_t status = cudaGetDeviceCount(&n_devices);
    if (status != cudaSuccess || n_devices == 0)
        return no_device(status != cudaSuccess ? status : cudaErrorNoDevice, err);
    struct cuda_device *d = (struct cuda_device *)calloc(1, sizeof *d);
    if (d == NULL) return atsi_fail(err, ATSI_FAILED, "out of memory for the GPU's record");
    d->base.ops = &OPS;
    enum atsi_status outcome = read_capabilities(d, err);
    if (outcome == ATSI_OK) {
        // Creates the context now, so that what it takes is visible to the caller's first look at the free memory.
        status = cudaSetDevice(d->ordinal);
        if (status == cudaSuccess) status = cudaFree(NULL);
        if (status != cudaSuccess) outcome = no_device(status, err);
    }
    if (outcome != ATSI_OK) {
        free(d);
        return outcome;
    }
    nvml_open(d);
    open_marks(d);
    *out = &d->base;
    return ATSI_OK;
}
