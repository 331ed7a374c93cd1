#include "planner/machine.h"

#include <string.h>

#include "formats/base/size.h"

static const uint64_t reserve_bytes = 256 << 20; // left to the desktop when no budget is given

static void take_default_budget(struct atsi_machine *m, uint64_t free_bytes, const struct atsi_console *console) {
    char budget[32], reserve[32];
    m->vram_bytes = free_bytes > reserve_bytes ? free_bytes - reserve_bytes : 0;
    atsi_say(console, "--vram %s: what is free less %s", atsi_size_format(budget, sizeof budget, m->vram_bytes),
             atsi_size_format(reserve, sizeof reserve, reserve_bytes));
}

static enum atsi_status use_profile(const struct atsi_plan_options *o, const struct atsi_console *console,
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

enum atsi_status atsi_machine_find(const struct atsi_plan_options *o, const struct atsi_console *console,
                                   struct atsi_machine *machine, struct atsi_error *err) {
    memset(machine, 0, sizeof *machine);
    if (o->vram_given && o->vram_bytes == 0) return ATSI_OK;
    if (o->device_path) return use_profile(o, console, machine, err);
    if (o->vram_given)
        return atsi_fail(err, ATSI_BAD_INPUT, "--vram: there is no GPU here; give --device FILE.json to plan for another machine");
    return ATSI_OK;
}

void atsi_machine_free(struct atsi_machine *machine) {
    atsi_device_profile_free(&machine->profile);
    memset(machine, 0, sizeof *machine);
}
