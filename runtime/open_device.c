#include "runtime/open_device.h"

#include <stdio.h>
#include <string.h>

#include "formats/device_profile.h"
#include "kernels/sim/sim_device.h"

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

// A simulated card with the memory and the link of a profile. What the driver takes counts as taken.
static enum atsi_status open_sim(const char *path, bool reference, const struct atsi_plan *plan,
                                 struct atsi_device **device, struct atsi_error *err) {
    struct atsi_device_profile profile;
    enum atsi_status status = atsi_device_profile_read(path, &profile, err);
    if (status == ATSI_OK && !profile.has_gpu) status = atsi_fail(err, ATSI_BAD_INPUT, "%s describes no GPU", path);
    if (status == ATSI_OK) {
        uint64_t limit = plan->limits.vram_bytes ? plan->limits.vram_bytes : profile.gpu_bytes;
        struct atsi_sim_params params = {.memory_bytes =
                                             limit > profile.context_bytes ? limit - profile.context_bytes : 0,
                                         .h2d_bytes_per_us = profile.to_device.bytes_per_us,
                                         .d2h_bytes_per_us = profile.to_host.bytes_per_us,
                                         .copy_latency_us = profile.to_device.fixed_us,
                                         .reference_kernels = reference};
        status = atsi_sim_open(&params, device, err);
    }
    atsi_device_profile_free(&profile);
    return status;
}

static bool plan_uses_gpu(const struct atsi_plan *plan) {
    for (uint32_t u = 0; u < plan->program.n_units; u++)
        if (plan->program.units[u].backend == ATSI_GPU) return true;
    return plan->limits.temp_bytes > 0;
}

enum atsi_status atsi_open_device(const struct atsi_run_options *o, const struct atsi_plan *plan,
                                  struct atsi_device **device, struct atsi_error *fallback, struct atsi_error *err) {
    *device = NULL;
    *fallback = (struct atsi_error){0};
    if (o->device && !strncmp(o->device, "sim:", 4))
        return open_sim(o->device + 4, o->isa && !strcmp(o->isa, "reference"), plan, device, err);
    if (o->device && strcmp(o->device, "cpu") != 0 && strcmp(o->device, "cuda") != 0)
        return atsi_fail(err, ATSI_BAD_INPUT, "--device: \"%s\" is not cpu, cuda or sim:FILE.json", o->device);
    if (o->device && !strcmp(o->device, "cuda")) return open_cuda(device, err);
    if (o->device || !plan_uses_gpu(plan)) return ATSI_OK;
    open_cuda(device, fallback);
    return ATSI_OK;
}

bool atsi_is_planned_device(const char *planned_for, const char *card_name) {
    char word[ATSI_TEXT_CAP];
    if (!planned_for[0]) return true;
    while (*card_name) {
        size_t n = strcspn(card_name, " ");
        if (n > 0 && n < sizeof word) {
            memcpy(word, card_name, n);
            word[n] = 0;
            if (strpbrk(word, "0123456789") && !strstr(planned_for, word)) return false;
        }
        card_name += n + (card_name[n] == ' ');
    }
    return true;
}

void atsi_describe_mismatch(const struct atsi_plan *plan, const struct atsi_device_info *info, char *text, size_t cap) {
    uint64_t mib = 1 << 20, may_hold = info->free_bytes + info->used_by_process_bytes;
    text[0] = 0;
    if (!atsi_is_planned_device(plan->device, info->name))
        snprintf(text, cap, "the plan was made for %s, this is %s; atsi-plan MODEL.gguf --vram %lluM plans for it",
                 plan->device, info->name, (unsigned long long)(plan->limits.vram_bytes / mib));
    else if (may_hold < plan->limits.vram_bytes)
        snprintf(
            text, cap,
            "%llu MiB of the card are free and the plan may take %llu; atsi-plan MODEL.gguf --vram %lluM plans for it",
            (unsigned long long)(may_hold / mib), (unsigned long long)(plan->limits.vram_bytes / mib),
            (unsigned long long)(may_hold / mib));
}
