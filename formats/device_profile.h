// device_profile.h: what a machine's processors and link cost, as a JSON file (docs/device-profile.md).
//
// A cost is a straight line over a roofline: fixed_us + max(bytes / bytes_per_us, flops / flops_per_us), one for each
// (side, operation, type, phase); the points that it was fitted to stand beside it and win where they match exactly.
#ifndef ATSI_FORMATS_DEVICE_PROFILE_H
#define ATSI_FORMATS_DEVICE_PROFILE_H

#include <stdbool.h>
#include <stdint.h>

#include "formats/backend.h"
#include "formats/base/error.h"
#include "formats/plan.h"

enum atsi_phase {
    ATSI_DECODE = 0, // one token
    ATSI_PREFILL = 1 // a chunk
};

enum {
    ATSI_PROFILE_VERSION = 1,
    ATSI_PROFILE_ANY_OP = ATSI_OP_KIND_LIMIT,  // a cost for operations without one of their own
    ATSI_PROFILE_ANY_DTYPE = ATSI_DTYPE_LIMIT, // a cost for types without one of their own
    ATSI_PROFILE_MAX_COSTS = 4096,
    ATSI_PROFILE_MAX_POINTS = 4096, // of one cost
    ATSI_PROFILE_FILE_MAX = 16 << 20
};

struct atsi_profile_point {
    double bytes, flops, us;
    double spread; // (largest - smallest) / median of the repetitions; 0 for modelled points
    bool has_fixed;
    double fixed_us; // of us, what any part of the operation's rows or slots takes; 0 where it is not known
};

struct atsi_profile_cost {
    enum atsi_backend side;
    uint32_t op;    // enum atsi_op_kind or ATSI_PROFILE_ANY_OP
    uint32_t dtype; // of the weights (of the cache for attention); enum atsi_dtype or ATSI_PROFILE_ANY_DTYPE
    enum atsi_phase phase;
    double fixed_us, bytes_per_us, flops_per_us; // rates > 0
    struct atsi_profile_point *points;
    uint32_t n_points;
};

struct atsi_profile_link { // one direction
    double fixed_us, bytes_per_us;
};

struct atsi_device_profile {
    char name[ATSI_TEXT_CAP];
    bool is_modelled; // from published figures, not measured
    char *sources;    // one a line; NULL when there are none
    char cpu_name[ATSI_TEXT_CAP];
    uint32_t n_threads;
    uint64_t host_bytes;
    double cpu_start_us; // what a list of operations takes the CPU beside them; 0: not known
    bool has_gpu;        // else the fields below are zero and there are no GPU costs
    char gpu_name[ATSI_TEXT_CAP], driver[ATSI_NAME_CAP];
    uint64_t gpu_bytes;     // of the card
    uint64_t context_bytes; // what driver, modules and library handles take
    uint32_t n_copy_engines;
    double
        gpu_joined_us; // how much less an operation without a big matrix takes among others than alone, one token; 0: not known
    struct atsi_profile_link to_device, to_host; // large copies of pinned memory
    double switch_us;                            // hand-over between the sides beside the copied bytes
    struct atsi_contention contention;           // of the host's memory; the default where a profile has none
    struct atsi_profile_cost *costs;
    uint32_t n_costs;
};

// Strict: anything missing, mistyped or out of range is ATSI_BAD_INPUT and the message names file and field. Every
// side and phase has a cost for any operation of any type, so that everything can be priced. Zeroes *profile first; free with
// atsi_device_profile_free whether it succeeds or not.
enum atsi_status atsi_device_profile_read(const char *path, struct atsi_device_profile *profile,
                                          struct atsi_error *err);
enum atsi_status atsi_device_profile_parse(const char *json, uint64_t size, struct atsi_device_profile *profile,
                                           struct atsi_error *err);
// The text of a profile; freed with free().
enum atsi_status atsi_device_profile_to_json(const struct atsi_device_profile *profile, char **json,
                                             struct atsi_error *err);
void atsi_device_profile_free(struct atsi_device_profile *profile);

struct atsi_price {
    double us;
    bool is_measured; // a point of exactly this work
    double
        fixed_us; // of us, what a part of it takes however small it is, at most us; 0 where no point of the cost says it
    double
        alone_us; // of us, what the cost's line takes for no bytes at all: an operation by itself has to begin and to end
};
// The cost with the closest match: (op, dtype), then (op, any type), then any operation. Of a cost: a point of exactly this work;
// in prefill between points of the same operation on other numbers of tokens; else the line. What is fixed: of that point, else the mean of
// what the cost's points say.
struct atsi_price atsi_device_profile_price(const struct atsi_device_profile *profile, enum atsi_backend side,
                                            uint32_t op, uint32_t dtype, enum atsi_phase phase, double bytes,
                                            double flops);

// Whether any point of the side says what is fixed. Where none does, parts are priced in proportion.
bool atsi_device_profile_knows_parts(const struct atsi_device_profile *profile, enum atsi_backend side);

#endif
