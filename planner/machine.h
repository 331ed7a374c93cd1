// machine.h: the device profile that a plan is made with.
#ifndef ATSI_PLANNER_MACHINE_H
#define ATSI_PLANNER_MACHINE_H

#include "formats/device_profile.h"
#include "planner/console.h"
#include "planner/options.h"

struct atsi_machine {
    bool use_gpu;        // false: everything on the CPU, no profile
    uint64_t vram_bytes; // the budget
    struct atsi_device_profile profile;
};

// --device FILE: that profile. Else this machine's GPU. *machine says that there is none to use when --vram is 0 or there is no GPU
// and no --vram; --vram without a GPU is ATSI_BAD_INPUT and the message names --device. Without --vram the budget is what is
// free less a reserve, said in one line. Free with atsi_machine_free whether it succeeds or not.
enum atsi_status atsi_machine_find(const struct atsi_plan_options *options, const struct atsi_console *console,
                                   struct atsi_machine *machine, struct atsi_error *err);
void atsi_machine_free(struct atsi_machine *machine);

#endif
