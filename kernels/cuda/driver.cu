// driver.cu: what only the driver's management library knows: the memory that it counts for this process.
//
// libnvidia-ml comes with the driver and may be missing, so it is opened at run time; the few declarations below are its
// stable C interface (nvml.h).
#include <dlfcn.h>
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
typedef int init_fn(void);
typedef int by_pci_fn(const char *pci, nvml_device *out);
typedef int processes_fn(nvml_device device, unsigned *n, struct nvml_process *out);

} // namespace

void nvml_open(struct cuda_device *d) {
    d->nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (d->nvml == NULL) return;
    init_fn *init = (init_fn *)dlsym(d->nvml, "nvmlInit_v2");
    if (init != NULL && init() == NVML_OK) return;
    dlclose(d->nvml);
    d->nvml = NULL;
}

void nvml_close(struct cuda_device *d) {
    if (d->nvml == NULL) return;
    init_fn *shutdown = (init_fn *)dlsym(d->nvml, "nvmlShutdown");
    if (shutdown != NULL) (void)shutdown();
    dlclose(d->nvml);
    d->nvml = NULL;
}

uint64_t nvml_process_bytes(const struct cuda_device *d) {
    if (d->nvml == NULL) return 0;
    by_pci_fn *by_pci = (by_pci_fn *)dlsym(d->nvml, "nvmlDeviceGetHandleByPciBusId_v2");
    processes_fn *processes = (processes_fn *)dlsym(d->nvml, "nvmlDeviceGetComputeRunningProcesses_v3");
    char pci[32];
    nvml_device device = NULL;
    if (by_pci == NULL || processes == NULL || cudaDeviceGetPCIBusId(pci, sizeof pci, d->ordinal) != cudaSuccess)
        return 0;
    if (by_pci(pci, &device) != NVML_OK) return 0;
    static const unsigned long long NOT_AVAILABLE = ~0ull;
    struct nvml_process list[N_PROCESSES_CAP];
    unsigned n = N_PROCESSES_CAP;
    if (processes(device, &n, list) != NVML_OK) return 0;
    for (unsigned i = 0; i < n; i++)
        if (list[i].pid == (unsigned)getpid() && list[i].used_bytes != NOT_AVAILABLE) return list[i].used_bytes;
    return 0;
}
