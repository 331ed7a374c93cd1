// measure.h: profiling this machine with the kernels that the runtime runs.
#ifndef ATSI_PLANNER_MEASURE_H
#define ATSI_PLANNER_MEASURE_H

#include <signal.h>

#include "formats/device_profile.h"
#include "kernels/device.h"
#include "planner/bench.h"

struct atsi_measure_options {
    int n_threads;              // 0: the default
    struct atsi_device *device; // NULL: the CPU alone; borrowed
    bool all_chunks;            // prefill on the device also at the largest chunk that a placement may choose (chunk.h)
    double seconds_max;         // no operation is started after so long; what is left is priced by fitted lines
    void (*progress)(void *user, uint64_t done, uint64_t total);
    void *user;
    const volatile sig_atomic_t *stop; // not 0: give up (ATSI_INTERRUPTED); NULL: never
};

struct atsi_measure_result {
    uint32_t n_measured, n_noisy, n_skipped; // operations; noisy: spread over 8 % in every try; skipped: out of time
};

// Names the machine: host, GPU, driver, memory. A zeroed profile.
enum atsi_status atsi_measure_identify(const struct atsi_measure_options *options, struct atsi_device_profile *profile,
                                       struct atsi_error *err);

// Times every distinct operation of the plan on every side in both phases that *profile has no point of yet, the link when there is
// a device and no figures for it, contention when it is the default and time is left, and fits the lines anew.
enum atsi_status atsi_measure(const struct atsi_plan *plan, const struct atsi_measure_options *options,
                              struct atsi_device_profile *profile, struct atsi_measure_result *result,
                              struct atsi_error *err);

// Copies both ways, the hand-over between the sides, and what the driver takes of the card (measure_link.c). The device is
// prepared for the plan and holds nothing else of this process.
enum atsi_status atsi_measure_link(struct atsi_device *device, struct atsi_device_profile *profile,
                                   struct atsi_error *err);

// What of a divisible operation's time in a round of one token does not shrink with the part of its rows or slots that is computed: a line
// through the times of its parts (measure_parts.c). *found: whether it has parts. `side` is open for the plan.
enum atsi_status atsi_measure_fixed(struct atsi_bench_side *side, const struct atsi_plan *plan, uint32_t i_op,
                                    double *fixed_us, bool *found, struct atsi_error *err);
// What a list of operations takes the CPU beside them: one that stands alone after a pause against many in one list. Without divisible
// operations *start_us stays.
enum atsi_status atsi_measure_start(struct atsi_bench_side *cpu, const struct atsi_plan *plan, double *start_us,
                                    struct atsi_error *err);

// How much less an operation without a big matrix takes the device among others of a layer than alone, on average: the layer's operations in a
// row against the sum of their points in the profile. Where one has no point *joined_us stays.
enum atsi_status atsi_measure_joined(struct atsi_bench_side *gpu, const struct atsi_plan *plan,
                                     const struct atsi_device_profile *profile, double *joined_us,
                                     struct atsi_error *err);

// How much slower the CPU, copies and reading in place are at the same time than alone (formats/plan.h), with the largest matrix of the plan
// that can be promoted; without one *profile stays. `cpu` is where the CPU computes, open for the plan. Afterwards: the matrix has a
// point on the GPU, if there was time for one.
enum atsi_status atsi_measure_contention(const struct atsi_plan *plan, struct atsi_bench_side *cpu,
                                         struct atsi_device *device, struct atsi_device_profile *profile,
                                         struct atsi_error *err);

// What is timed for it: one matrix on the CPU, a copy of copied_bytes, and the matrix computed by the device from the host's memory.
struct atsi_contention_times {
    double cpu_us, cpu_beside_us;   // the CPU alone, and beside copies
    double copy_us, copy_beside_us; // a copy alone, and beside the CPU
    double in_place_us;             // the device beside the CPU, matrix in the host's memory
    double resident_us;             // the device alone, matrix in its own memory; 0: not known
    double matrix_bytes, copied_bytes;
};
// Factors from 1 to 10: more is a mistake of the measurement. Reading in place costs what it takes longer than a resident matrix.
struct atsi_contention atsi_contention_of(const struct atsi_contention_times *times);

#endif
