// rescheduler.h: keeps the executor's assignment fit for the rounds at hand: another one when rounds change their kind, and another one
// when the machine's load changes (tuner.h), decided and prepared beside the rounds (assigner.h).
#ifndef ATSI_RUNTIME_RESCHEDULER_H
#define ATSI_RUNTIME_RESCHEDULER_H

#include "runtime/assigner.h"
#include "runtime/decision_log.h"
#include "runtime/experts.h"
#include "runtime/trace.h"

struct atsi_rescheduler_params {
    double epsilon;               // Algorithm 3: relative deviation that asks for a decision; 0: 0.15
    double tau;                   // and recent times of a token that must have passed since the last one; 0: 5
    bool never;                   // the first assignment of each kind stays, as the plan's times have it
    bool in_turn;                 // decides between rounds instead of beside them: the same decisions in every run
    struct atsi_output_file *log; // borrowed; NULL: none
    const struct atsi_experts *experts; // resident one by one now, borrowed; NULL: those of the plan
};

// For --stats.
struct atsi_rescheduler_stats {
    uint32_t n_decided, n_adopted; // decode assignments; n_decided - n_adopted were no better than the one at work
    double most_took_us;           // of deciding and preparing one, beside the rounds
    double most_handover_us;       // of what a round pays for one
    double waited_us;              // of first tokens for their assignment, all together
    struct atsi_decision decision; // of the assignment at work
    struct atsi_scales scales;     // that it was decided for
    const char *reason;
};

struct atsi_rescheduler {
    struct atsi_executor *executor;
    struct atsi_dispatcher *dispatcher;
    struct atsi_assigner *assigner;
    struct atsi_trace *trace; // NULL: none
    struct atsi_rescheduler_params params;
    struct atsi_tuner tuner;
    struct atsi_unit_factors *factors; // [n_units] as recorded so far
    struct atsi_resident_experts
        *residents; // [n_units] as they were when a decision was asked for; NULL: those of the plan
    struct atsi_prepared_round *at_work; // the executor's
    uint32_t assigned_for;               // tokens of a round that it was decided for; 0: none yet
    bool has_ahead;                      // `ahead` is a decode assignment for when the prompt has been read
    struct atsi_assigner_result ahead;
    struct atsi_assigner_result best; // of the trials so far, kept to return to it at once
    bool has_best, returns;           // returns: before the next round
    struct atsi_rescheduler_stats stats;
};

// Executor, dispatcher and trace are borrowed. Free with atsi_rescheduler_close, before the executor, whether it succeeds or not.
enum atsi_status atsi_rescheduler_open(struct atsi_rescheduler *r, struct atsi_executor *executor,
                                       struct atsi_dispatcher *dispatcher, struct atsi_trace *trace,
                                       const struct atsi_rescheduler_params *params, struct atsi_error *err);
void atsi_rescheduler_close(struct atsi_rescheduler *r);

// Sees to it that the executor's assignment suits a round of n_tokens. Waits only where there is none at all that does.
enum atsi_status atsi_rescheduler_before_round(struct atsi_rescheduler *r, uint32_t n_tokens, struct atsi_error *err);
// A round of n_tokens took this long.
void atsi_rescheduler_after_round(struct atsi_rescheduler *r, uint32_t n_tokens, double round_us);

// Where units are at home is about to change: nothing is under way when this returns. Afterwards atsi_rescheduler_restart, once the
// dispatcher knows the new homes: everything is decided anew.
enum atsi_status atsi_rescheduler_pause(struct atsi_rescheduler *r, struct atsi_error *err);
void atsi_rescheduler_restart(struct atsi_rescheduler *r);

#endif
