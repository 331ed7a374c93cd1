// sim_device.h: a device made of ordinary memory and threads, for machines and tests without a GPU.
#ifndef ATSI_KERNELS_SIM_DEVICE_H
#define ATSI_KERNELS_SIM_DEVICE_H

#include "kernels/device.h"

struct atsi_sim_params {
    uint64_t memory_bytes;        // allocations beyond it fail
    double h2d_bytes_per_us;      // copy times; 0: instantly
    double d2h_bytes_per_us;
    double copy_latency_us;
    uint32_t delay_seed;          // not 0: every stream item is delayed by a random time (tests of the event rules)
    uint32_t delay_max_us;
    bool reference_kernels;       // the reference CPU kernels whatever the host can do
};
enum atsi_status atsi_sim_open(const struct atsi_sim_params *params, struct atsi_device **out, struct atsi_error *err);

#endif
