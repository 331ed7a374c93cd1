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

#endif
