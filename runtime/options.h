// options.h: the command line of atsi-run.
#ifndef ATSI_RUNTIME_OPTIONS_H
#define ATSI_RUNTIME_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/sampler.h"

enum atsi_run_mode {
    ATSI_RUN_GENERATE,
    ATSI_RUN_TOKENIZE,
    ATSI_RUN_DETOKENIZE,
    ATSI_RUN_HELP,
    ATSI_RUN_VERSION
};

enum {
    ATSI_MAX_STOPS = 16
};

struct atsi_run_options {
    enum atsi_run_mode mode;
    const char *plan_path;
    const char *prompt;      // -p; NULL: from prompt_path, tokens_path or standard input
    const char *prompt_path; // -f
    const char *tokens_path; // --tokens-in
    const char *logits_path; // --logits
    const char *detokenize;  // ids as text
    const char *device;      // "cpu", "cuda", "sim:FILE.json", NULL: the default
    const char *isa;
    const char *policy;
    const char *trace_path;
    const char *decisions_path; // --decisions
    const char *routing_path;   // --save-routing
    const char *chat_format;    // --chat-format, NULL: the plan's
    const char *system_prompt;  // --system
    const char *stops[ATSI_MAX_STOPS];
    uint32_t n_stops;
    int64_t n_predict; // -1: until end of sequence or context
    uint32_t n_ctx;    // 0: the plan's
    uint32_t chunk;    // 0: the plan's
    uint32_t n_lookup; // guesses in a round (lookup.h); 0: none
    int n_threads;     // 0: the plan's
    uint64_t vram_reserve_bytes;
    bool chat, parse_special, ignore_eos, print_ids, stats, json, quiet, seed_given, strict;
    bool no_async, no_split_rows, no_reschedule, reschedule_in_turn, no_exchange, no_large_exchange, no_repeats;
    float reschedule_threshold, reschedule_interval; // 0: the defaults
    struct atsi_sampler_params sampling;
};

// Parses and checks; ATSI_BAD_INPUT names the option. Strings point into argv.
enum atsi_status atsi_run_options_parse(int argc, char **argv, struct atsi_run_options *out, struct atsi_error *err);
const char *atsi_run_usage(void);

#endif
