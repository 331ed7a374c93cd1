// sim_device.h: a device made of ordinary memory and threads, for machines and tests without a GPU.
//
// It keeps the promises of kernels/device.h and no others, and it is strict about how it is used:
// - A device address is the memory's own with one bit set that no host address has: the host faults when it touches it, and
//   arithmetic on it works as usual. Every address that is handed in is looked up; one outside a live block, a host address,
//   or a write to read-only registered memory is a sticky error.
// - Every stream is a thread. Nothing orders two streams, or a stream and the host, but events and synchronisation; the
//   thread sanitizer sees what is missing. Copies read and write at the end of their modelled time, so a source that is
//   changed too early or a result that is read too early gives wrong data.
// - New device memory holds NaNs. Freeing memory waits for the streams, as CUDA does.
// - A copy from host memory that is not pinned has read it when the call returns; one to such memory is done when it returns.
// - A range's addresses without memory behind them fault, for stream threads too.
// - A stream takes ATSI_SIM_QUEUE_ITEMS; then a launch waits for room. That, and the building and freeing of a graph, which wait for all
//   streams, keep other threads' launches out meanwhile, as a driver may.
// - Operations run on one thread, with the kernels that the CPU side uses. Their scratch is host memory and not counted.
#ifndef ATSI_KERNELS_SIM_DEVICE_H
#define ATSI_KERNELS_SIM_DEVICE_H

#include "kernels/device.h"

enum {
    ATSI_SIM_QUEUE_ITEMS = 2 // so few that small tests meet the limit; a driver's streams take some hundreds
};

struct atsi_sim_params {
    uint64_t memory_bytes; // allocations beyond it fail
    uint64_t card_bytes;   // of the whole card, which others use too; 0: memory_bytes
    // What other programs hold of the card, asked at every allocation and look at the free memory; NULL: nothing. Called from the
    // thread that drives the device.
    uint64_t (*taken_bytes)(void *context);
    void *taken_context;
    uint64_t chunk_bytes;    // of ranges, a power of two from the page size up; 0: 256 KiB
    bool refuse_register;    // no host memory can be registered
    uint64_t pinned_bytes;   // most pinned host memory that can be allocated; 0: no limit
    double h2d_bytes_per_us; // copy times; 0: instantly
    double d2h_bytes_per_us;
    double copy_latency_us;
    // Not 0: every stream item is delayed by a random time, and so is the return from launching a graph (tests of the event rules).
    uint32_t delay_seed;
    uint32_t delay_max_us;
    bool reference_kernels; // the reference CPU kernels whatever the host can do
};
enum atsi_status atsi_sim_open(const struct atsi_sim_params *params, struct atsi_device **out, struct atsi_error *err);

// Blocks of memory (host and device), streams and events that are alive: 0 before a clean close.
uint32_t atsi_sim_n_alive(struct atsi_device *device);

#endif
