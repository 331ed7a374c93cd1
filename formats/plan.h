// plan.h: the content of a plan file: the program, its limits and placement, and what the planner knows and proved.
// plan_file.h is the container (bytes); this is the manifest (JSON) in memory.
#ifndef ATSI_FORMATS_PLAN_H
#define ATSI_FORMATS_PLAN_H

#include "formats/program.h"

enum {
    ATSI_PLAN_MANIFEST_VERSION = 1,
    ATSI_TEXT_CAP = 256
};

// Everything that is fixed when a plan is made and that memory sizes follow from.
struct atsi_plan_limits {
    uint32_t n_ctx;          // most positions
    uint32_t chunk;          // most tokens of a round
    uint32_t n_outputs;      // most output rows of a round; more are computed in groups
    enum atsi_dtype kv_type; // F32, F16 or Q8_0
    uint32_t n_threads;      // 0: as many as there are physical cores
    uint64_t vram_bytes;     // --vram; 0 for a CPU-only plan
    uint64_t temp_bytes;     // temporary region on the GPU
    uint64_t compute_bytes;  // compute region of one side (atsi_program_place_buffers)
};

struct atsi_plan_model {
    char name[ATSI_TEXT_CAP]; // general.name, escaped
    char arch[ATSI_NAME_CAP];
    uint64_t n_params;
    uint64_t gguf_bytes; // identity of the source: size and a hash of header and sampled blocks
    uint64_t gguf_hash;
    uint32_t n_ctx_train;
};

// Times the planner measured or took from a device profile, one per unit and phase, in microseconds.
struct atsi_unit_times {
    float cpu_us, gpu_us, switch_us, transfer_us;
    // Of cpu_us and gpu_us of one token, what a part of the unit takes however small it is; 0 where a profile does not say it.
    float cpu_fixed_us, gpu_fixed_us;
};

// How much slower the two readers of the host's memory are at the same time than each alone, as factors of their times.
struct atsi_contention {
    double cpu_beside_link; // of CPU units, while the link moves weights
    double link_in_place;   // of weights that kernels read in place, beside a working CPU, against copies
    double link_beside_cpu; // of copies beside a working CPU; files of earlier versions lack it: as link_in_place
};
// What was measured on the machine of docs/performance.md: the CPU keeps 78 of 92 GB/s, the link 51 of 55.
#define ATSI_CONTENTION_DEFAULT ((struct atsi_contention){92.0 / 78.0, 55.0 / 51.0, 55.0 / 51.0})

// Experts that stay on the GPU one by one, those that are chosen most often, while the operations that they belong to are on the
// CPU (docs/placement.md): a copy of each beside the host's. Chosen for each router, and so the same in all operations behind it.
struct atsi_resident_experts {
    uint32_t n;     // 0: none
    uint16_t *ids;  // [n] distinct, in the order in which they stand on the GPU
    float hit_rate; // of the experts that a token chooses, the part that is expected among them
};

struct atsi_plan_certificate { // zero / "skipped" for a CPU-only plan
    char milp_status[16];
    double objective_us, milp_objective_us, bound_us, gap, dp_seconds, milp_seconds;
};

struct atsi_plan {
    bool vocab_only; // a tokenizer and nothing else: limits and program are zero
    struct atsi_plan_model model;
    struct atsi_plan_limits limits;
    struct atsi_program program;
    struct atsi_unit_times *decode_times;           // [n_units], NULL without a profile
    struct atsi_unit_times *prefill_times;          // [n_units] for a whole chunk, NULL without a profile
    struct atsi_resident_experts *resident_experts; // [n_units] at the units that hold a router; NULL: nowhere any
    struct atsi_contention contention;              // of the profile; the default where a plan has none
    double cpu_start_us; // what it takes the CPU to begin and end a piece of a round, beside its operations; 0 unknown
    struct atsi_plan_certificate certificate;
    char device[ATSI_TEXT_CAP];      // name of the profile it was planned for, "" for CPU only
    double predicted_decode_us;      // a token; 0 unknown
    double predicted_prefill_us;     // a chunk; 0 unknown
    char chat_format[ATSI_NAME_CAP]; // "" when the model has none that is known
    char *chat_template;             // the GGUF's template text (NUL-terminated), NULL when it has none
    char *notes;                     // provenance, one line a fact: planner version, time, command line; may be NULL
};

// The manifest text. *json is NUL-terminated and freed with free().
enum atsi_status atsi_plan_to_json(const struct atsi_plan *plan, char **json, size_t *size, struct atsi_error *err);
// Parses and checks a manifest of any origin (strict: unknown enum words, missing fields and bad shapes are ATSI_BAD_INPUT
// naming the field; the program passes atsi_program_check). Free with atsi_plan_free whether it succeeds or not.
enum atsi_status atsi_plan_from_json(const char *json, size_t size, struct atsi_plan *plan, struct atsi_error *err);
void atsi_plan_free(struct atsi_plan *plan); // NULL fine
// Frees plan->resident_experts and leaves NULL; nothing when there is none.
void atsi_plan_drop_resident_experts(struct atsi_plan *plan);

// The experts of unit i_unit that are resident one by one: NULL for units on the GPU, for units without experts, and where there are none.
const struct atsi_resident_experts *atsi_plan_resident_experts(const struct atsi_plan *plan, uint32_t i_unit);
// All of them together; zero where there are none.
struct atsi_resident_experts_sum {
    uint32_t n, n_of;         // resident ones, experts behind routers that have any
    uint32_t n_least, n_most; // of a router
    double hit_rate;          // mean over those routers
};
struct atsi_resident_experts_sum atsi_plan_sum_resident_experts(const struct atsi_plan *plan);
// Bytes of what the GPU holds for a router beside the experts themselves: where each of n_experts stands, and which of a token's n_used
// are its own (kernels/op_call.h).
uint64_t atsi_router_table_bytes(uint32_t n_experts, uint32_t n_used);
// Bytes of the experts that one token uses in an operation of kind EXPERTS.
uint64_t atsi_slots_bytes(const struct atsi_program *p, const struct atsi_op *op);
// The operation of a unit that multiplies with expert weights, NULL when it has none; a unit has one at most.
const struct atsi_op *atsi_unit_experts_op(const struct atsi_program *p, const struct atsi_unit *u);

#endif
