// place.h: which units live on the GPU under a hard budget (docs/placement.md).
#ifndef ATSI_PLANNER_PLACE_H
#define ATSI_PLANNER_PLACE_H

#include "formats/device_profile.h"
#include "formats/plan.h"
#include "planner/solve/baseline.h"

struct atsi_pin {
    const char *pattern; // POSIX extended regular expression over unit names, matched anywhere
    enum atsi_backend side;
};

struct atsi_place_options {
    uint64_t vram_bytes;   // the most that the process may hold
    double prefill_weight; // 0..1: weight of prefill time a token in what is minimised, the rest is decode time
    const struct atsi_pin *pins;
    uint32_t n_pins;
    uint64_t scratch_bytes; // of the GPU's kernels for this plan; 0: an estimate, for a device that is elsewhere
    double certify_seconds; // most that the cross-check by GLPK may take; 0: none
};

// Everything that counts against --vram, in bytes. They add up to vram.
struct atsi_budget {
    uint64_t vram;
    uint64_t driver;   // context, modules, handles
    uint64_t compute;  // activations and kernel scratch at the planned chunk
    uint64_t states;   // caches of the units on the GPU
    uint64_t temp;     // temporary region for promoted units
    uint64_t resident; // weights of the units on the GPU, and all small tensors
    uint64_t spare;
};

enum atsi_place_method {
    ATSI_PLACE_UNDIVIDED = 0, // all units together
    ATSI_PLACE_PARTITION = 1  // the paper's Algorithm 1
};

struct atsi_placement {
    struct atsi_budget budget;
    enum atsi_place_method method;
    bool streamed;           // the placement was solved with the times that streaming leaves of the CPU side
    double other_decode_us;  // predicted for the other method's placement; 0 for a model without experts
    double decode_us;        // predicted: a token, with dynamic transfer
    double prefill_us;       // predicted: a chunk
    double decode_static_us; // the same without dynamic transfer
    double prefill_static_us;
    uint32_t n_estimated; // operations priced by a fitted line
};

// Bytes on the GPU that no placement can do without: driver, activations, scratch, small tensors. In whole MiB.
uint64_t atsi_place_least_vram(const struct atsi_plan *plan, const struct atsi_device_profile *profile,
                               uint64_t scratch_bytes);
// Bytes that a unit takes on the GPU: its matrices and states, aligned as the runtime allocates them.
uint64_t atsi_place_unit_bytes(const struct atsi_plan *plan, const struct atsi_unit *unit);

// Places the units of *plan: sets their backends, vram and temp limits, times, certificate, device name and predictions. The
// temporary region's size is searched. ATSI_BAD_INPUT when the budget is under atsi_place_least_vram (the message names
// the smallest budget that works), a pattern matches nothing, or pinned units do not fit. Sizes are whole MiB in the solver.
enum atsi_status atsi_place(struct atsi_plan *plan, const struct atsi_device_profile *profile,
                            const struct atsi_place_options *options, struct atsi_placement *out,
                            struct atsi_error *err);

// What a placement as others make it would take (planner/solve/baseline.h), without dynamic transfer and without a temporary
// region. *plan is placed (its times are used) and stays as it is.
enum atsi_status atsi_place_baseline(const struct atsi_plan *plan, const struct atsi_device_profile *profile,
                                     const struct atsi_place_options *options, enum atsi_baseline baseline,
                                     double *decode_us, double *prefill_us, struct atsi_error *err);

#endif
