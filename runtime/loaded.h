// loaded.h: an open model on its device, ready to read tokens: weights, a session over them, and what stands around both, as the options of
// atsi-run say. Two steps, since what loading met may be worth telling before the session is made.
#ifndef ATSI_RUNTIME_LOADED_H
#define ATSI_RUNTIME_LOADED_H

#include "runtime/decision_log.h"
#include "runtime/model.h"
#include "runtime/options.h"
#include "runtime/routing.h"
#include "runtime/session.h"

struct atsi_loaded {
    struct atsi_weights weights;
    struct atsi_reserve reserve;
    struct atsi_routing *routing; // NULL: experts are not counted
    struct atsi_session *session;
};

// Everything is borrowed and outlives the session.
struct atsi_loaded_params {
    const struct atsi_run_options *options;
    const struct atsi_model *model;
    struct atsi_device *device;   // NULL: the CPU alone
    bool counts_experts;          // of a model that has any; where some are resident one by one they are counted anyway
    atsi_load_progress *progress; // may be NULL
    void *progress_context;
    void (*tell_move)(void *context, const struct atsi_reserve_move *move); // may be NULL
    void *tell_context;
    struct atsi_trace *trace;              // may be NULL
    struct atsi_output_file *decisions;    // may be NULL
    double exchange_part, exchange_sigmas; // struct atsi_exchange_params; 0: the defaults
    const volatile sig_atomic_t *stop;     // NULL: never stops
};

// *l is zeroed first; atsi_loaded_free whatever the result.
enum atsi_status atsi_loaded_weights(struct atsi_loaded *l, const struct atsi_loaded_params *p, struct atsi_error *err);
// Once the weights are there, with the same parameters.
enum atsi_status atsi_loaded_session(struct atsi_loaded *l, const struct atsi_loaded_params *p, struct atsi_error *err);
void atsi_loaded_free(struct atsi_loaded *l); // also of a zeroed one

// A router, and so experts to count.
bool atsi_has_experts(const struct atsi_plan *plan);

#endif
