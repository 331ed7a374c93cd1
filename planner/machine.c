#include "planner/machine.h"

#include <stdlib.h>
#include <string.h>

#include "formats/base/size.h"
#include "planner/measure.h"
#include "planner/profile_cache.h"

#ifdef ATSI_CUDA
#include "kernels/cuda/cuda_device.h"
#endif

static const uint64_t reserve_bytes = 256 << 20; // left to the desktop when no budget is given

static void take_default_budget(struct atsi_machine *m, uint64_t free_bytes, const struct atsi_console *console) {
    char budget[32], reserve[32];
    m->vram_bytes = free_bytes > reserve_bytes ? free_bytes - reserve_bytes : 0;
    atsi_say(console, "--vram %s: what is free less %s", atsi_size_format(budget, sizeof budget, m->vram_bytes),
             atsi_size_format(reserve, sizeof reserve, reserve_bytes));
}

// ---- a stored profile ---------------------------------------------------------------------------------------------

static enum atsi_status use_stored(const struct atsi_plan_options *o, const struct atsi_console *console,
                                   struct atsi_machine *m, struct atsi_error *err) {
    ATSI_TRY(atsi_device_profile_read(o->device_path, &m->profile, err));
    if (!m->profile.has_gpu) {
        if (o->vram_given && o->vram_bytes)
            return atsi_fail(err, ATSI_BAD_INPUT, "--vram: the profile %s has no GPU", o->device_path);
        return ATSI_OK;
    }
    m->use_gpu = true;
    m->vram_bytes = o->vram_bytes;
    if (!o->vram_given) take_default_budget(m, m->profile.gpu_bytes, console);
    return ATSI_OK;
}

// ---- this machine -------------------------------------------------------------------------------------------------

// The GPU, or NULL with the reason.
static struct atsi_device *open_gpu(struct atsi_error *why) {
    struct atsi_device *device = NULL;
#ifdef ATSI_CUDA
    if (atsi_cuda_open(&device, why) != ATSI_OK) device = NULL;
#else
    atsi_fail(why, ATSI_FAILED, "this program was built without CUDA");
#endif
    return device;
}

static enum atsi_status measure(const struct atsi_plan_options *o, const struct atsi_plan *plan,
                                const struct atsi_console *console, struct atsi_machine *m,
                                const struct atsi_measure_options *options, struct atsi_error *err) {
    struct atsi_measure_result result;
    char *cache = atsi_profile_cache_path(&m->profile);
    if (cache && !o->reprofile) atsi_profile_cache_load(cache, &m->profile);
    enum atsi_status status = atsi_measure(plan, options, &m->profile, &result, err);
    atsi_progress_end(options->user);
    struct atsi_error why;
    if (status == ATSI_OK && result.n_measured) {
        atsi_say(console, "profiled %u operations (%u noisy, %u left out for lack of time)", result.n_measured,
                 result.n_noisy, result.n_skipped);
        if (cache && atsi_profile_cache_save(cache, &m->profile, &why) != ATSI_OK)
            atsi_say(console, "note: the profile is not kept: %s", why.text);
    }
    free(cache);
    if (status == ATSI_OK && o->save_profile_path) status = atsi_profile_save(o->save_profile_path, &m->profile, err);
    return status;
}

static enum atsi_status use_this(const struct atsi_plan_options *o, const struct atsi_plan *plan,
                                 const struct atsi_console *console, struct atsi_machine *m, struct atsi_error *err) {
    struct atsi_progress_bar bar = {.console = console, .label = "profiling"};
    struct atsi_measure_options options = {.n_threads = (int)o->n_threads,
                                           .device = m->device,
                                           .all_chunks = o->chunk == 0,
                                           .seconds_max = o->profile_seconds,
                                           .progress = atsi_progress_report,
                                           .user = &bar,
                                           .stop = console->stop};
    ATSI_TRY(atsi_measure_identify(&options, &m->profile, err));
    if (m->device) {
        struct atsi_device_info info;
        ATSI_TRY(m->device->ops->info(m->device, &info, err));
        m->use_gpu = true;
        m->vram_bytes = o->vram_bytes;
        if (!o->vram_given) take_default_budget(m, info.free_bytes + info.used_by_process_bytes, console);
    }
    return measure(o, plan, console, m, &options, err);
}

enum atsi_status atsi_machine_find(const struct atsi_plan_options *o, const struct atsi_plan *plan,
                                   const struct atsi_console *console, struct atsi_machine *machine,
                                   struct atsi_error *err) {
    struct atsi_error why = {.text = ""};
    bool cpu_only = o->vram_given && o->vram_bytes == 0;
    memset(machine, 0, sizeof *machine);
    if (o->device_path) return cpu_only ? ATSI_OK : use_stored(o, console, machine, err);
    if (!cpu_only) machine->device = open_gpu(&why);
    if (!machine->device && !cpu_only && o->vram_given)
        return atsi_fail(err, ATSI_BAD_INPUT,
                         "--vram: no GPU can be used here (%s); give --device FILE.json to plan for another machine",
                         why.text);
    return machine->device || o->save_profile_path ? use_this(o, plan, console, machine, err) : ATSI_OK;
}

void atsi_machine_free(struct atsi_machine *machine) {
    if (machine->device) machine->device->ops->close(machine->device);
    atsi_device_profile_free(&machine->profile);
    memset(machine, 0, sizeof *machine);
}
