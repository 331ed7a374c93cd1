#include "runtime/open_device.h"

#include <stdio.h>
#include <string.h>

#include "formats/base/size.h"
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

// ---- the simulated card ---------------------------------------------------------------------------------------------

// What other programs hold, as a size in a file that may change during the run; nothing when it cannot be read.
static uint64_t read_others(void *context) {
    char text[64] = "";
    uint64_t bytes = 0;
    FILE *f = fopen(context, "r");
    if (!f) return 0;
    if (fgets(text, sizeof text, f)) text[strcspn(text, "\n")] = 0;
    fclose(f);
    return atsi_size_parse(text, &bytes) ? bytes : 0;
}

// One word behind the profile's name.
static enum atsi_status take_sim_word(const char *word, size_t n, struct atsi_sim_params *params,
                                      struct atsi_error *err) {
    static const char pinned[] = "pinned=", others[] = "others=";
    char size[32];
    if (n == strlen("no-register") && !strncmp(word, "no-register", n)) {
        params->refuse_register = true;
        return ATSI_OK;
    }
    if (!strncmp(word, others, strlen(others))) {
        params->taken_bytes = read_others;
        params->taken_context = (void *)(uintptr_t)(word + strlen(others));
        return ATSI_OK;
    }
    snprintf(size, sizeof size, "%.*s", n > strlen(pinned) ? (int)(n - strlen(pinned)) : 0, word + strlen(pinned));
    if (!strncmp(word, pinned, strlen(pinned)) && atsi_size_parse(size, &params->pinned_bytes)) return ATSI_OK;
    return atsi_fail(err, ATSI_BAD_INPUT,
                     "--device sim: \"%.*s\" is not no-register, pinned=SIZE, or others=FILE at the end", (int)n, word);
}

// "FILE.json[,no-register][,pinned=SIZE][,others=FILE]"
static enum atsi_status parse_sim(const char *text, char *path, size_t cap, struct atsi_sim_params *params,
                                  struct atsi_error *err) {
    size_t n = strcspn(text, ",");
    if (n >= cap) return atsi_fail(err, ATSI_BAD_INPUT, "--device sim: the name is too long");
    memcpy(path, text, n);
    path[n] = 0;
    while (text[n] && !params->taken_bytes) {
        const char *word = text + n + 1;
        size_t length = strcspn(word, ",");
        ATSI_TRY(take_sim_word(word, length, params, err));
        n += length + 1;
    }
    return ATSI_OK;
}

// A card with the memory and the link of a profile. What the driver takes counts as taken, and the plan's budget is a limit.
static void describe_sim(const struct atsi_device_profile *profile, const struct atsi_plan *plan,
                         struct atsi_sim_params *params) {
    uint64_t limit = plan->limits.vram_bytes ? plan->limits.vram_bytes : profile->gpu_bytes;
    params->memory_bytes = limit > profile->context_bytes ? limit - profile->context_bytes : 0;
    params->card_bytes = profile->gpu_bytes > profile->context_bytes ? profile->gpu_bytes - profile->context_bytes : 0;
    params->h2d_bytes_per_us = profile->to_device.bytes_per_us;
    params->d2h_bytes_per_us = profile->to_host.bytes_per_us;
    params->copy_latency_us = profile->to_device.fixed_us;
}

static enum atsi_status open_sim(const char *text, bool reference, const struct atsi_plan *plan,
                                 struct atsi_device **device, struct atsi_error *err) {
    struct atsi_sim_params params = {.reference_kernels = reference};
    struct atsi_device_profile profile;
    char path[4096];
    ATSI_TRY(parse_sim(text, path, sizeof path, &params, err));
    enum atsi_status status = atsi_device_profile_read(path, &profile, err);
    if (status == ATSI_OK && !profile.has_gpu) status = atsi_fail(err, ATSI_BAD_INPUT, "%s describes no GPU", path);
    if (status == ATSI_OK) describe_sim(&profile, plan, &params);
    if (status == ATSI_OK) status = atsi_sim_open(&params, device, err);
    atsi_device_profile_free(&profile);
    return status;
}

// ---- which one ------------------------------------------------------------------------------------------------------

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
