// driver.cu: calls of the driver that the runtime does not wrap; and what only the driver's management library knows: the memory
// that it counts for this process, and the card's free memory without asking the CUDA context.
//
// libnvidia-ml comes with the driver and may be missing, so it is opened at run time; the few declarations below are its
// stable C interface (nvml.h).
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

#include "kernels/cuda/internal.h"

namespace {

typedef struct nvml_device_opaque *nvml_device;
struct nvml_process {
    unsigned pid;
    unsigned long long used_bytes;
    unsigned gpu_instance, compute_instance;
};
enum {
    NVML_OK = 0,
    N_PROCESSES_CAP = 256
};
struct nvml_memory {
    unsigned long long total_bytes, free_bytes, used_bytes;
};
typedef int init_fn(void);
typedef int memory_fn(nvml_device device, struct nvml_memory *out);
typedef int by_pci_fn(const char *pci, nvml_device *out);
typedef int processes_fn(nvml_device device, unsigned *n, struct nvml_process *out);

bool find_device(const struct cuda_device *d, nvml_device *device) {
    by_pci_fn *by_pci = (by_pci_fn *)dlsym(d->nvml, "nvmlDeviceGetHandleByPciBusId_v2");
    char pci[32];
    if (by_pci == NULL || cudaDeviceGetPCIBusId(pci, sizeof pci, d->ordinal) != cudaSuccess) return false;
    return by_pci(pci, device) == NVML_OK;
}

} // namespace

void *cuda_driver_call(const char *name, unsigned version) {
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    void *address = NULL;
    cudaError_t status = cudaGetDriverEntryPointByVersion(name, &address, version, cudaEnableDefault, &found);
    if (status != cudaSuccess) (void)cudaGetLastError();
    return status == cudaSuccess && found == cudaDriverEntryPointSuccess ? address : NULL;
}

struct nvml_card {
    nvml_device device;
    memory_fn *memory;
};

// Where the library counts another card than the runtime does (a part of one, a virtual one), the runtime is asked.
static bool agrees_with_runtime(const struct cuda_device *d) {
    const uint64_t tolerance = 256 << 20; // others may allocate between the two looks
    size_t free_bytes = 0, total_bytes = 0;
    uint64_t counted = 0;
    if (!nvml_free_bytes(d, &counted) || cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess) return false;
    return counted <= free_bytes + tolerance && free_bytes <= counted + tolerance;
}

static void open_card(struct cuda_device *d) {
    struct nvml_card card = {NULL, (memory_fn *)dlsym(d->nvml, "nvmlDeviceGetMemoryInfo")};
    if (card.memory == NULL || !find_device(d, &card.device)) return;
    d->nvml_card = (struct nvml_card *)malloc(sizeof card);
    if (d->nvml_card == NULL) return;
    *d->nvml_card = card;
    if (agrees_with_runtime(d)) return;
    free(d->nvml_card);
    d->nvml_card = NULL;
}

void nvml_open(struct cuda_device *d) {
    d->nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (d->nvml == NULL) return;
    init_fn *init = (init_fn *)dlsym(d->nvml, "nvmlInit_v2");
    if (init != NULL && init() == NVML_OK) {
        open_card(d);
        return;
    }
    dlclose(d->nvml);
    d->nvml = NULL;
}

bool nvml_free_bytes(const struct cuda_device *d, uint64_t *bytes) {
    struct nvml_memory memory = {};
    if (d->nvml_card == NULL || d->nvml_card->memory(d->nvml_card->device, &memory) != NVML_OK) return false;
    *bytes = memory.free_bytes;
    return true;
}

void nvml_close(struct cuda_device *d) {
    if (d->nvml == NULL) return;
    free(d->nvml_card);
    d->nvml_card = NULL;
    init_fn *shutdown = (init_fn *)dlsym(d->nvml, "nvmlShutdown");
    if (shutdown != NULL) (void)shutdown();
    dlclose(d->nvml);
    d->nvml = NULL;
}

uint64_t nvml_process_bytes(const struct cuda_device *d) {
    if (d->nvml == NULL) return 0;
    processes_fn *processes = (processes_fn *)dlsym(d->nvml, "nvmlDeviceGetComputeRunningProcesses_v3");
    nvml_device device = NULL;
    if (processes == NULL || !find_device(d, &device)) return 0;
    static const unsigned long long NOT_AVAILABLE = ~0ull;
    struct nvml_process list[N_PROCESSES_CAP];
    unsigned n = N_PROCESSES_CAP;
    if (processes(device, &n, list) != NVML_OK) return 0;
    for (unsigned i = 0; i < n; i++)
        if (list[i].pid == (unsigned)getpid() && list[i].used_bytes != NOT_AVAILABLE) return list[i].used_bytes;
    return 0;
}
