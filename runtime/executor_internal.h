// executor_internal.h: what executor.c (memory, states, assignments) and executor_round.c (rounds) share; private to both.
#ifndef ATSI_RUNTIME_EXECUTOR_INTERNAL_H
#define ATSI_RUNTIME_EXECUTOR_INTERNAL_H

#include "runtime/executor.h"
#include "runtime/script.h"
#include "runtime/side.h"
#include "runtime/transfers.h"

// What the host writes for a round and a device copies: the struct, the token ids and the output rows, as one row of int32.
struct atsi_staging {
    int32_t *host;      // mapped
    const int32_t *dev; // its device address
    int32_t *device;    // the copy that kernels read
    uint32_t n_ints;
};

// A run of device actions in this round, for the trace.
struct atsi_traced_run {
    struct atsi_event *began, *ended; // made when first needed
    uint32_t n;                       // actions; 0: not run since the last report
};

struct atsi_executor {
    const struct atsi_plan *plan;
    const struct atsi_program *p;
    uint32_t n_ctx;
    struct atsi_pool *pool;
    struct atsi_cpu *cpu;
    struct atsi_device *device; // NULL: CPU only
    struct atsi_stream *stream;
    struct atsi_event *arrived;
    struct atsi_side sides[2];
    void *host_compute_dev; // device address of the CPU's compute region
    void **host_states;     // [n_states] host blocks, NULL where the state is on the device
    void **device_states;   // [n_states]
    bool states_placed;
    struct atsi_staging staging;
    struct atsi_script script;
    struct atsi_op_call *calls;   // [script.n_steps]
    struct atsi_call_part *parts; // [script.n_steps], used where a step is a part of an operation
    void **
        graphs; // [script.n_actions] captured decode rounds of the runs of device actions that start there, NULL until first needed
    enum atsi_backend *backends;      // [n_units]
    bool *prefetched;                 // [n_units]
    enum atsi_promotion *promotions;  // [n_units]
    const void *const *mapped;        // [n_tensors]
    struct atsi_transfers *transfers; // NULL without a temporary region
    const void **
        promoted_tensors; // [n_tensors] what promoted units read: small tensors resident, the others in the region or in place
    struct atsi_round *round; // in staging
    struct atsi_trace *trace;
    struct atsi_traced_run *traced; // [script.n_actions] only with a trace: events around each run of device actions
    struct atsi_event *round_began;
    double round_began_us;
    uint64_t host_bytes;
};

#endif
