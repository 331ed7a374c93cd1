// open_device.h: which device a run uses (--device).
#ifndef ATSI_RUNTIME_OPEN_DEVICE_H
#define ATSI_RUNTIME_OPEN_DEVICE_H

#include "formats/plan.h"
#include "kernels/device.h"
#include "runtime/options.h"

// *device is NULL for a CPU run: with --device cpu, for a plan without GPU units, or, when nothing was asked for, where no
// CUDA device can be opened: *fallback then says why, else its text is empty. An explicit --device cuda that cannot be had is an error.
enum atsi_status atsi_open_device(const struct atsi_run_options *o, const struct atsi_plan *plan,
                                  struct atsi_device **device, struct atsi_error *fallback, struct atsi_error *err);

// Whether a card's name is that of the device a plan was made for: every word of it that holds a digit ("3060", "H200") stands in
// the plan's. True for a plan that names no device.
bool atsi_is_planned_device(const char *planned_for, const char *card_name);
// What a user should know before running the plan here: another card than it was made for, or less free memory than it may take, each as
// one line with the command that plans again. Writes an empty string when all is well.
void atsi_describe_mismatch(const struct atsi_plan *plan, const struct atsi_device_info *info, char *text, size_t cap);

#endif
