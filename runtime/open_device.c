#include "runtime/open_device.h"

#include <stdio.h>
#include <string.h>

#ifdef ATSI_CUDA
#include "kernels/cuda/cuda_device.h"
#endif

static enum atsi_status open_cuda(struct atsi_device **device, struct atsi_error *err) {
#ifdef ATSI_CUDA
    return atsi_cuda_open(device, err);
#else
    *device = NULL;
    return atsi_fail(err, ATSI_FAILED, "this program was built without CUDA");
#endif
}

static bool plan_uses_gpu(const struct atsi_plan *plan) {
    for (uint32_t u = 0; u < plan->program.n_units; u++)
        if (plan->program.units[u].backend == ATSI_GPU) return true;
    return false;
}

enum atsi_status atsi_open_device(const struct atsi_run_options *o, const struct atsi_plan *plan, struct atsi_device **device,
                                  struct atsi_error *err) {
    *device = NULL;
    if (o->device && strcmp(o->device, "cpu") != 0 && strcmp(o->device, "cuda") != 0)
        return atsi_fail(err, ATSI_BAD_INPUT, "--device: \"%s\" is not cpu or cuda", o->device);
    if (o->device && !strcmp(o->device, "cuda")) return open_cuda(device, err);
    if (o->device || !plan_uses_gpu(plan)) return ATSI_OK;
    struct atsi_error why;
    if (open_cuda(device, &why) != ATSI_OK && !o->quiet) fprintf(stderr, "running on the CPU: %s\n", why.text);
    return ATSI_OK;
}
