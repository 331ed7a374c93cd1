// load.h: what the load generator puts on a machine: the CPU part and the GPU part.
//
// A share is a fraction of the time, 0..1: within every period of LOAD_PERIOD_US a worker is busy for that part and sleeps for the
// rest. Workers look at *stop between pieces of work of at most a few milliseconds.
#ifndef ATSI_TOOLS_LOAD_H
#define ATSI_TOOLS_LOAD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "formats/base/error.h"

enum {
    LOAD_PERIOD_US = 10000
};

struct load_params {
    int n_threads;             // of the CPU part, >= 1
    double cpu_share;          // arithmetic on every thread
    double memory_gb_s;        // read by all threads together; 0: as memory_share says
    double memory_share;       // of what they read unhindered, measured at the start
    double gpu_share;          // kernels that read the card's memory on all its processors
    double link_share;         // copies to the card
    uint64_t vram_bytes;       // taken from the card in pieces, as they become free; 0: as vram_leave_bytes says
    uint64_t vram_leave_bytes; // all but so much is taken; UINT64_MAX: nothing
    double seconds;            // 0: until a signal comes
};

// What was reached, over the time from start to stop.
struct load_result {
    double cpu_share, memory_gb_s;
    double gpu_share, link_gb_s;
    uint64_t vram_bytes;
};

// Until atsi_clock_us() would say time_us; at once when that is past.
void load_sleep_until_us(double time_us);

// Threads for arithmetic and for memory, whichever the params ask for. *params and *stop outlive the load. With memory_share
// this measures for about 0.3 s first.
struct load_cpu;
enum atsi_status load_cpu_start(struct load_cpu **out, const struct load_params *params, const atomic_bool *stop,
                                struct atsi_error *err);
// Joins (*stop is set), writes cpu_share and memory_gb_s, frees. NULL is fine.
void load_cpu_finish(struct load_cpu *load, struct load_result *result);

// The first card: kernels, copies, memory, whichever the params ask for. ATSI_FAILED when there is no driver or no card. The driver's
// library is opened here, so that the program starts without one.
struct load_gpu;
enum atsi_status load_gpu_start(struct load_gpu **out, const struct load_params *params, const atomic_bool *stop,
                                struct atsi_error *err);
// Joins (*stop is set), writes the other results, frees. NULL is fine.
void load_gpu_finish(struct load_gpu *load, struct load_result *result);
bool load_needs_gpu(const struct load_params *params);

#endif
