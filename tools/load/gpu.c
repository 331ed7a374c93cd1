// gpu.c: the load generator's part on the card, through the driver's library, which is opened when it is asked for: the
// program is built without CUDA and starts without a driver. The declarations are the driver's stable C interface (cuda.h).
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/clock.h"
#include "tools/load/load.h"

enum {
    DRIVER_OK = 0,
    OUT_OF_MEMORY = 2,
    N_PROCESSORS = 16, // attribute: multiprocessors of the card
    COPY_BYTES = 4 << 20,
    COPIES_AT_ONCE = 4,     // who waits for each copy before the next leaves the link to others in between
    BURN_BYTES = 256 << 20, // read by the kernel; a power of two over every cache
    BLOCK_THREADS = 256,
    BLOCKS_A_PROCESSOR = 4,
    VRAM_PIECE_BYTES = 32 << 20,
    MAX_PIECES = 1 << 14
};

typedef struct driver_context *context_handle;
typedef struct driver_module *module_handle;
typedef struct driver_function *function_handle;
typedef struct driver_stream *stream_handle;
typedef unsigned long long device_address;

struct driver {
    void *library;
    int (*init)(unsigned flags);
    int (*error_name)(int error, const char **name);
    int (*device)(int *device, int ordinal);
    int (*attribute)(int *value, int attribute, int device);
    int (*retain)(context_handle *context, int device);
    int (*release)(int device);
    int (*use)(context_handle context);
    int (*load)(module_handle *module, const void *image);
    int (*function)(function_handle *function, module_handle module, const char *name);
    int (*launch)(function_handle function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                  unsigned block_y, unsigned block_z, unsigned shared_bytes, stream_handle stream, void **params,
                  void **extra);
    int (*allocate)(device_address *address, size_t n_bytes);
    int (*free)(device_address address);
    int (*allocate_host)(void **memory, size_t n_bytes);
    int (*free_host)(void *memory);
    int (*memory_info)(size_t *free_bytes, size_t *all_bytes);
    int (*clear)(device_address address, unsigned value, size_t n_words);
    int (*create_stream)(stream_handle *stream, unsigned flags);
    int (*destroy_stream)(stream_handle stream);
    int (*copy_in)(device_address to, const void *from, size_t n_bytes, stream_handle stream);
    int (*wait)(stream_handle stream);
};

// Every thread walks over `data` with the stride of the whole grid and multiplies what it reads; the store never happens, but
// the compiler cannot know.
static const char burn_text[] = ".version 6.3\n.target sm_50\n.address_size 64\n"
                                ".visible .entry burn(.param .u64 data, .param .u32 mask, .param .u32 rounds)\n"
                                "{\n"
                                "  .reg .pred %p;\n  .reg .b32 %r<8>;\n  .reg .b64 %d<4>;\n  .reg .f32 %f<3>;\n"
                                "  ld.param.u64 %d0, [data];\n"
                                "  cvta.to.global.u64 %d0, %d0;\n"
                                "  ld.param.u32 %r0, [mask];\n"
                                "  ld.param.u32 %r1, [rounds];\n"
                                "  mov.u32 %r2, %ctaid.x;\n  mov.u32 %r3, %ntid.x;\n  mov.u32 %r4, %tid.x;\n"
                                "  mad.lo.u32 %r2, %r2, %r3, %r4;\n"
                                "  mov.u32 %r4, %nctaid.x;\n"
                                "  mul.lo.u32 %r3, %r3, %r4;\n"
                                "  mov.f32 %f0, 0f3F800000;\n"
                                "again:\n"
                                "  and.b32 %r5, %r2, %r0;\n"
                                "  mul.wide.u32 %d1, %r5, 4;\n"
                                "  add.s64 %d1, %d0, %d1;\n"
                                "  ld.global.f32 %f1, [%d1];\n"
                                "  fma.rn.f32 %f0, %f0, %f1, %f1;\n"
                                "  add.u32 %r2, %r2, %r3;\n"
                                "  sub.u32 %r1, %r1, 1;\n"
                                "  setp.ne.u32 %p, %r1, 0;\n"
                                "  @%p bra again;\n"
                                "  setp.eq.f32 %p, %f0, 0f7F7FFFFF;\n"
                                "  @%p st.global.f32 [%d0], %f0;\n"
                                "  ret;\n"
                                "}\n";

struct load_gpu {
    struct driver driver;
    const struct load_params *params;
    const atomic_bool *stop;
    context_handle context;
    int device;
    bool retained;
    double started_us;
    pthread_t kernel_thread, copy_thread, memory_thread;
    bool has_kernel_thread, has_copy_thread, has_memory_thread;
    function_handle burn;
    unsigned n_blocks;
    device_address burn_data, copy_target;
    void *copy_source;
    stream_handle kernel_stream, copy_streams[COPIES_AT_ONCE];
    double kernel_us; // spent in kernels
    uint64_t copied_bytes;
    _Atomic uint64_t taken_bytes; // of the card's memory
    int n_pieces;
    device_address pieces[MAX_PIECES];
};

bool load_needs_gpu(const struct load_params *p) {
    return p->gpu_share > 0 || p->link_share > 0 || p->vram_bytes > 0 || p->vram_leave_bytes != UINT64_MAX;
}

// ---- the driver ---------------------------------------------------------------------------------------------------

static enum atsi_status open_driver(struct driver *d, struct atsi_error *err) {
    const struct {
        const char *name;
        void *at;
    } names[] = {
        {"cuInit", &d->init},
        {"cuGetErrorName", &d->error_name},
        {"cuDeviceGet", &d->device},
        {"cuDeviceGetAttribute", &d->attribute},
        {"cuDevicePrimaryCtxRetain", &d->retain},
        {"cuDevicePrimaryCtxRelease_v2", &d->release},
        {"cuCtxSetCurrent", &d->use},
        {"cuModuleLoadData", &d->load},
        {"cuModuleGetFunction", &d->function},
        {"cuLaunchKernel", &d->launch},
        {"cuMemAlloc_v2", &d->allocate},
        {"cuMemFree_v2", &d->free},
        {"cuMemAllocHost_v2", &d->allocate_host},
        {"cuMemFreeHost", &d->free_host},
        {"cuMemGetInfo_v2", &d->memory_info},
        {"cuMemsetD32_v2", &d->clear},
        {"cuStreamCreate", &d->create_stream},
        {"cuStreamDestroy_v2", &d->destroy_stream},
        {"cuMemcpyHtoDAsync_v2", &d->copy_in},
        {"cuStreamSynchronize", &d->wait},
    };
    d->library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!d->library) return atsi_fail(err, ATSI_FAILED, "no NVIDIA driver is installed: %s", dlerror());
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *symbol = dlsym(d->library, names[i].name);
        if (!symbol) return atsi_fail(err, ATSI_FAILED, "the NVIDIA driver has no %s: it is too old", names[i].name);
        memcpy(names[i].at, &symbol, sizeof symbol);
    }
    return ATSI_OK;
}

static enum atsi_status check(const struct load_gpu *l, int code, const char *what, struct atsi_error *err) {
    const char *name = NULL;
    if (code == DRIVER_OK) return ATSI_OK;
    if (l->driver.error_name(code, &name) != DRIVER_OK || !name) name = "unknown error";
    return atsi_fail(err, ATSI_FAILED, "the card: %s: %s (%d)", what, name, code);
}

static enum atsi_status open_card(struct load_gpu *l, struct atsi_error *err) {
    const struct driver *d = &l->driver;
    int n_processors = 0;
    ATSI_TRY(open_driver(&l->driver, err));
    ATSI_TRY(check(l, d->init(0), "the driver does not start", err));
    ATSI_TRY(check(l, d->device(&l->device, 0), "there is none", err));
    ATSI_TRY(check(l, d->attribute(&n_processors, N_PROCESSORS, l->device), "its size", err));
    ATSI_TRY(check(l, d->retain(&l->context, l->device), "opening it", err));
    l->retained = true;
    l->n_blocks = (unsigned)n_processors * BLOCKS_A_PROCESSOR;
    return check(l, d->use(l->context), "opening it", err);
}

// ---- kernels ------------------------------------------------------------------------------------------------------

// Runs the kernel and waits. Its time in *took_us.
static int run_burn(struct load_gpu *l, unsigned n_rounds, double *took_us) {
    const struct driver *d = &l->driver;
    unsigned mask = BURN_BYTES / sizeof(float) - 1;
    void *params[] = {&l->burn_data, &mask, &n_rounds};
    double began_us = atsi_clock_us();
    int code = d->launch(l->burn, l->n_blocks, 1, 1, BLOCK_THREADS, 1, 1, 0, l->kernel_stream, params, NULL);
    if (code == DRIVER_OK) code = d->wait(l->kernel_stream);
    *took_us = atsi_clock_us() - began_us;
    return code;
}

static void *burn(void *context) {
    struct load_gpu *l = context;
    const unsigned max_rounds = 1u << 24;
    unsigned n_rounds = 64;
    int code = l->driver.use(l->context);
    while (code == DRIVER_OK && !atomic_load(l->stop)) {
        double began_us = atsi_clock_us(), busy_us = 0, took_us, wanted_us = l->params->gpu_share * LOAD_PERIOD_US;
        while (code == DRIVER_OK && busy_us < 0.95 * wanted_us) {
            code = run_burn(l, n_rounds, &took_us);
            busy_us += took_us;
            // One kernel should take about a quarter of the busy time: few launches, and the share is met closely.
            if (took_us < 0.15 * wanted_us && n_rounds < max_rounds) n_rounds *= 2;
            if (took_us > 0.4 * wanted_us && n_rounds > 1) n_rounds /= 2;
        }
        l->kernel_us += busy_us;
        load_sleep_until_us(began_us + (l->params->gpu_share < 1 ? busy_us / l->params->gpu_share : 0));
    }
    return NULL;
}

static enum atsi_status start_kernels(struct load_gpu *l, struct atsi_error *err) {
    const struct driver *d = &l->driver;
    module_handle module;
    ATSI_TRY(check(l, d->load(&module, burn_text), "loading the kernel", err));
    ATSI_TRY(check(l, d->function(&l->burn, module, "burn"), "loading the kernel", err));
    ATSI_TRY(check(l, d->allocate(&l->burn_data, BURN_BYTES), "memory for kernels", err));
    ATSI_TRY(check(l, d->clear(l->burn_data, 0, BURN_BYTES / 4), "memory for kernels", err));
    ATSI_TRY(check(l, d->create_stream(&l->kernel_stream, 1), "a stream", err));
    l->has_kernel_thread = pthread_create(&l->kernel_thread, NULL, burn, l) == 0;
    return l->has_kernel_thread ? ATSI_OK : atsi_fail(err, ATSI_FAILED, "a thread does not start");
}

// ---- copies -------------------------------------------------------------------------------------------------------

static int wait_for_copies(struct load_gpu *l) {
    int code = DRIVER_OK;
    for (int i = 0; i < COPIES_AT_ONCE && code == DRIVER_OK; i++) code = l->driver.wait(l->copy_streams[i]);
    return code;
}

static void *copy(void *context) {
    struct load_gpu *l = context;
    const struct driver *d = &l->driver;
    int code = d->use(l->context);
    while (code == DRIVER_OK && !atomic_load(l->stop)) {
        double began_us = atsi_clock_us(), busy_us = 0;
        for (unsigned i = 0; code == DRIVER_OK && busy_us < l->params->link_share * LOAD_PERIOD_US; i++) {
            stream_handle stream = l->copy_streams[i % COPIES_AT_ONCE];
            code = d->wait(stream);
            if (code == DRIVER_OK) code = d->copy_in(l->copy_target, l->copy_source, COPY_BYTES, stream);
            if (code == DRIVER_OK) l->copied_bytes += COPY_BYTES;
            busy_us = atsi_clock_us() - began_us;
        }
        if (code == DRIVER_OK) code = wait_for_copies(l);
        busy_us = atsi_clock_us() - began_us;
        load_sleep_until_us(began_us + (l->params->link_share < 1 ? busy_us / l->params->link_share : 0));
    }
    return NULL;
}

static enum atsi_status start_copies(struct load_gpu *l, struct atsi_error *err) {
    const struct driver *d = &l->driver;
    ATSI_TRY(check(l, d->allocate(&l->copy_target, COPY_BYTES), "memory for copies", err));
    ATSI_TRY(check(l, d->allocate_host(&l->copy_source, COPY_BYTES), "pinned memory for copies", err));
    for (int i = 0; i < COPIES_AT_ONCE; i++)
        ATSI_TRY(check(l, d->create_stream(&l->copy_streams[i], 1), "a stream", err));
    l->has_copy_thread = pthread_create(&l->copy_thread, NULL, copy, l) == 0;
    return l->has_copy_thread ? ATSI_OK : atsi_fail(err, ATSI_FAILED, "a thread does not start");
}

// ---- memory -------------------------------------------------------------------------------------------------------

// How much of the card's memory should be held now.
static uint64_t wanted_bytes(struct load_gpu *l) {
    size_t free_bytes = 0, all_bytes = 0;
    if (l->params->vram_leave_bytes == UINT64_MAX) return l->params->vram_bytes;
    if (l->driver.memory_info(&free_bytes, &all_bytes) != DRIVER_OK) return 0;
    uint64_t leave = l->params->vram_leave_bytes, taken = atomic_load(&l->taken_bytes);
    return free_bytes > leave ? taken + (free_bytes - leave) : taken;
}

// Takes what is free until all is taken that was asked for. False when there was no room just now.
static bool take_memory(struct load_gpu *l) {
    uint64_t wanted = wanted_bytes(l), taken;
    while ((taken = atomic_load(&l->taken_bytes)) < wanted && l->n_pieces < MAX_PIECES) {
        size_t n_bytes = wanted - taken < VRAM_PIECE_BYTES ? wanted - taken : VRAM_PIECE_BYTES;
        if (l->driver.allocate(&l->pieces[l->n_pieces], n_bytes) != DRIVER_OK) return false;
        l->n_pieces++;
        atomic_fetch_add(&l->taken_bytes, n_bytes);
    }
    return true;
}

// With "all but so much" what is free at the start is taken once; what others give back later is theirs.
static void *hold_memory(void *context) {
    struct load_gpu *l = context;
    bool done = l->driver.use(l->context) != DRIVER_OK;
    while (!done && !atomic_load(l->stop)) {
        done = take_memory(l);
        if (!done) load_sleep_until_us(atsi_clock_us() + LOAD_PERIOD_US);
    }
    return NULL;
}

static enum atsi_status start_memory(struct load_gpu *l, struct atsi_error *err) {
    if (take_memory(l)) return ATSI_OK;
    l->has_memory_thread = pthread_create(&l->memory_thread, NULL, hold_memory, l) == 0;
    return l->has_memory_thread ? ATSI_OK : atsi_fail(err, ATSI_FAILED, "a thread does not start");
}

// ---- all of it ----------------------------------------------------------------------------------------------------

enum atsi_status load_gpu_start(struct load_gpu **out, const struct load_params *params, const atomic_bool *stop,
                                struct atsi_error *err) {
    struct load_gpu *l = *out = calloc(1, sizeof *l);
    if (!l) return atsi_fail(err, ATSI_FAILED, "out of memory");
    l->params = params;
    l->stop = stop;
    ATSI_TRY(open_card(l, err));
    l->started_us = atsi_clock_us();
    if (params->gpu_share > 0) ATSI_TRY(start_kernels(l, err));
    if (params->link_share > 0) ATSI_TRY(start_copies(l, err));
    return start_memory(l, err);
}

void load_gpu_finish(struct load_gpu *l, struct load_result *result) {
    if (!l) return;
    const struct driver *d = &l->driver;
    if (l->has_kernel_thread) pthread_join(l->kernel_thread, NULL);
    if (l->has_copy_thread) pthread_join(l->copy_thread, NULL);
    if (l->has_memory_thread) pthread_join(l->memory_thread, NULL);
    double took_us = atsi_clock_us() - l->started_us;
    result->gpu_share = l->kernel_us / took_us;
    result->link_gb_s = (double)l->copied_bytes / took_us * 1e-3;
    result->vram_bytes = atomic_load(&l->taken_bytes);
    for (int i = 0; i < l->n_pieces; i++) (void)d->free(l->pieces[i]);
    if (l->copy_source) (void)d->free_host(l->copy_source);
    if (l->copy_target) (void)d->free(l->copy_target);
    if (l->burn_data) (void)d->free(l->burn_data);
    for (int i = 0; i < COPIES_AT_ONCE; i++)
        if (l->copy_streams[i]) (void)d->destroy_stream(l->copy_streams[i]);
    if (l->kernel_stream) (void)d->destroy_stream(l->kernel_stream);
    if (l->retained) (void)d->release(l->device);
    free(l); // the driver's library stays open: threads of its own may still run in it
}
