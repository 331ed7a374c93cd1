// options.h: the command line of atsi-plan.
#ifndef ATSI_PLANNER_OPTIONS_H
#define ATSI_PLANNER_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "formats/base/error.h"
#include "formats/dtype.h"
#include "planner/place.h"

enum atsi_plan_mode {
    ATSI_PLAN_MAKE,     // from a model
    ATSI_PLAN_ATTACH,   // complete a plan that was made without weights
    ATSI_PLAN_INFO,     // --info PLAN
    ATSI_PLAN_VERIFY,   // --verify PLAN
    ATSI_PLAN_SOLVE,    // --solve FILE
    ATSI_PLAN_SCHEDULE, // --schedule FILE
    ATSI_PLAN_HELP,
    ATSI_PLAN_VERSION
};

enum {
    ATSI_PLAN_MAX_PINS = 64
};

struct atsi_plan_options {
    enum atsi_plan_mode mode;
    const char *input_path;  // the model, or the file of the mode
    const char *output_path; // -o; NULL: the model's name with .atsp in the current folder
    const char *attach_path; // --attach: the model whose tensors complete the plan input_path
    const char *decision;    // the last option given that a plan to complete has decided already, as --ctx; NULL: none
    bool vram_given;
    uint64_t vram_bytes; // --vram
    uint32_t n_ctx;      // 0: the model's, at most 4096
    uint32_t chunk;      // 0: chosen with the placement; without a GPU the default
    uint32_t n_threads;  // 0: chosen when the plan runs
    enum atsi_dtype kv_type;
    const char *device_path;       // --device: a stored device profile
    const char *save_profile_path; // --save-profile
    const char *report_path;       // --report
    const char *routing_path;      // --routing FILE
    bool no_routing;               // --routing none
    enum atsi_experts_way experts; // --experts
    double profile_seconds;        // --profile-seconds
    double prefill_weight;         // --objective: decode 0, prefill 1
    struct atsi_pin pins[ATSI_PLAN_MAX_PINS];
    uint32_t n_pins;
    enum atsi_place_goal goal; // --placement
    bool vocab_only, no_weights, ship, reprofile, explain, what_if, json, quiet;
};

// Parses and checks; ATSI_BAD_INPUT names the option. Strings point into argv, whose --pin values are cut at their "=".
enum atsi_status atsi_plan_options_parse(int argc, char **argv, struct atsi_plan_options *out, struct atsi_error *err);
const char *atsi_plan_usage(void);

#endif
