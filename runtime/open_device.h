// open_device.h: which device a run uses (--device).
#ifndef ATSI_RUNTIME_OPEN_DEVICE_H
#define ATSI_RUNTIME_OPEN_DEVICE_H

#include "formats/plan.h"
#include "kernels/device.h"
#include "runtime/options.h"

// sim:FILE.json can be followed by words, for tests and trials: ",no-register" (the plan file cannot be pinned), ",pinned=SIZE" (most that can),
// and at the end ",others=FILE" (a size: what other programs hold of the card, read again whenever it matters).
//
// *device is NULL for a CPU run: with --device cpu, for a plan without GPU units, or, when nothing was asked for, where no
// CUDA device can be opened: *fallback then says why, else its text is empty. An explicit --device cuda that cannot be had is an error.
enum atsi_status atsi_open_device(const struct atsi_run_options *o, const struct atsi_plan *plan,
                                  struct atsi_device **device, struct atsi_error *fallback, struct atsi_error *err);

// Whether a card's name is that of the device a plan was made for: every word of it that holds a digit ("3060", "H200") stands in
// the plan's. True for a plan that names no device.
bool atsi_is_planned_device(const char *planned_for, const char *card_name);

#endif
