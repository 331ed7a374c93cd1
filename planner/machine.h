// machine.h: the machine that a plan is made for, and its profile.
#ifndef ATSI_PLANNER_MACHINE_H
#define ATSI_PLANNER_MACHINE_H

#include "formats/device_profile.h"
#include "kernels/device.h"
#include "planner/console.h"
#include "planner/options.h"

struct atsi_machine {
    bool use_gpu;        // false: everything on the CPU; then there is a profile only if one was asked for
    uint64_t vram_bytes; // the budget
    struct atsi_device_profile profile;
    struct atsi_device *device; // this machine's, while it is open
};

// --device FILE: that profile. Else this machine, measured with the plan's operations where its cached profile has no figures for them,
// and saved where --save-profile says. *machine says that no GPU is used when --vram is 0 or there is no GPU and no --vram; --vram
// without a GPU is ATSI_BAD_INPUT and the message names --device. Without --vram the budget is what is free less a
// reserve, said in one line. Free with atsi_machine_free whether it succeeds or not.
enum atsi_status atsi_machine_find(const struct atsi_plan_options *options, const struct atsi_plan *plan,
                                   const struct atsi_console *console, struct atsi_machine *machine,
                                   struct atsi_error *err);
void atsi_machine_free(struct atsi_machine *machine);

#endif
