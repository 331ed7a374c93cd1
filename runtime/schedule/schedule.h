// schedule.h: which CPU-resident units to promote to the GPU in one round (docs/scheduling.md).
//
// A pure library: no device, no I/O, no clock, no global state. The timing model is that of the instance files:
//  - Units run one after another. Unit i starts at max(end of i-1, plus switch_us if the sides differ; end of its own
//    transfer if promoted). The first unit pays no switch.
//  - Transfers of promoted units run in unit order on one engine. One starts as soon as the engine is free, its `after`
//    is over and its bytes fit beside those held: a promoted unit holds size_bytes from the start of its transfer to
//    the end of its compute, half open.
// Only units whose home is the CPU and that fit into temp_bytes alone can be promoted.
#ifndef ATSI_RUNTIME_SCHEDULE_SCHEDULE_H
#define ATSI_RUNTIME_SCHEDULE_SCHEDULE_H

#include <stddef.h>
#include <stdint.h>

#include "formats/backend.h"
#include "formats/base/error.h"

// What a transfer waits for besides engine and space; values >= 0 are the index of an earlier unit whose compute must
// end.
enum {
    ATSI_AFTER_START = -1,
    ATSI_AFTER_PREVIOUS = -2
};

struct atsi_schedule_unit {
    uint64_t size_bytes;                               // what a promotion moves and holds (experts: of the chosen ones)
    double t_cpu_us, t_gpu_us, switch_us, transfer_us; // finite, >= 0
    // Of t_cpu_us and t_gpu_us, what a part of the unit takes however small it is. Only where units are divided (shares.h): the
    // timing model above runs units whole.
    double cpu_fixed_us, gpu_fixed_us;
    int32_t after;
    enum atsi_backend home; // the static placement
};

struct atsi_schedule_instance {
    uint64_t temp_bytes;                    // capacity of the temporary region
    size_t n_units;                         // >= 1
    const struct atsi_schedule_unit *units; // in execution order; the caller's
};

// Where the times of a round go, n_units entries each. start_us and end_us are needed, the others may be NULL and are
// written for promoted units only. exposed_us is the part of a transfer that computing waits for.
struct atsi_schedule_timing {
    double *start_us, *end_us;
    double *transfer_start_us, *transfer_end_us, *exposed_us;
};

// The end of the last unit under the model. `assignment` holds n_units entries of enum atsi_backend and promotes only
// what may be promoted.
double atsi_schedule_time(const struct atsi_schedule_instance *inst, const uint8_t *assignment,
                          const struct atsi_schedule_timing *timing);

enum atsi_schedule_policy {
    ATSI_POLICY_NONE = 0,
    ATSI_POLICY_PAPER = 1,
    ATSI_POLICY_FIFO = 2
};

// The arrays belong to the scheduler and hold until its next run or its end.
struct atsi_schedule {
    const uint8_t *assignment;
    struct atsi_schedule_timing timing; // all arrays present
    double total_us;
    double lower_bound_us;     // no assignment ends earlier
    double paper_objective_us; // the paper's T of the assignment; only for ATSI_POLICY_PAPER
};

// A scheduler owns all memory that runs need: running allocates nothing. One run at a time a scheduler; different
// schedulers are independent and may run in different threads.
struct atsi_scheduler;
enum atsi_status atsi_scheduler_create(size_t n_units_max, struct atsi_scheduler **out, struct atsi_error *err);
void atsi_scheduler_free(struct atsi_scheduler *s); // NULL is fine

// Decides one round. `warm` (n_units entries or NULL) is an earlier assignment that the search of ATSI_POLICY_FIFO
// improves on; entries that may not be promoted any more are ignored. ATSI_POLICY_FIFO is optimal up to 12 promotable
// units in up to 64 units; beyond, a search of bounded effort whose result is never worse than that of the other
// policies or `warm` under the model. The result depends on the arguments only. ATSI_BAD_INPUT when the instance is
// malformed or has more than n_units_max units.
enum atsi_status atsi_scheduler_run(struct atsi_scheduler *s, const struct atsi_schedule_instance *inst,
                                    enum atsi_schedule_policy policy, const uint8_t *warm, struct atsi_schedule *out,
                                    struct atsi_error *err);

#endif
