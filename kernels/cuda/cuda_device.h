// cuda_device.h: opens a CUDA device behind kernels/device.h.
#ifndef ATSI_KERNELS_CUDA_DEVICE_H
#define ATSI_KERNELS_CUDA_DEVICE_H

#include "kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif
// Opens the first CUDA device. ATSI_FAILED with one line when there is no driver or no card.
// Only in builds with ATSI_CUDA defined.
enum atsi_status atsi_cuda_open(struct atsi_device **out, struct atsi_error *err);
#ifdef __cplusplus
}
#endif
#endif
