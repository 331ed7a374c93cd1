// assigner.h: decides and prepares assignments beside the rounds, in a thread of its own, so that a round never waits for it.
//
// One job at a time: asked for between rounds, taken between two later ones. The thread has the dispatcher to itself while a job is
// under way. Without `beside` there is no thread and a job is done where it is asked for: the same results at the same rounds in every
// run, for tests, and nothing to pay where nothing is ever decided again.
#ifndef ATSI_RUNTIME_ASSIGNER_H
#define ATSI_RUNTIME_ASSIGNER_H

#include "runtime/dispatcher.h"
#include "runtime/tuner.h"

struct atsi_assigner;

struct atsi_assigner_job {
    uint32_t n_tokens; // of the rounds to come
    struct atsi_tuner_wish wish;
    struct atsi_scales now;                  // the speeds that forecasts are of, whatever the wish is decided for
    bool choose;                             // the use with the shorter forecast, whatever the wish says
    double most_us;                          // forecast of a round above which it is not prepared; 0: whatever it is
    const struct atsi_unit_factors *factors; // [n_units] unchanged until the result is taken; NULL: 1 each
    struct atsi_resident_experts *residents; // [n_units] as in a plan, unchanged likewise; NULL: those of the plan
};

struct atsi_assigner_result {
    struct atsi_assigner_job job;         // with the use that was decided for
    struct atsi_prepared_round *prepared; // the taker's; NULL when the job failed or the forecast was above most_us
    struct atsi_decision decision;
    double forecast_us;       // of a round at the speeds of now; 0: unknown
    double began_us, took_us; // of the whole job (atsi_clock_us)
    struct atsi_error err;    // status ATSI_OK: prepared or declined
};

// Executor and dispatcher are borrowed and outlive the assigner.
enum atsi_status atsi_assigner_create(struct atsi_executor *executor, struct atsi_dispatcher *dispatcher, bool beside,
                                      struct atsi_assigner **out, struct atsi_error *err);
// Waits for a job under way. NULL fine.
void atsi_assigner_free(struct atsi_assigner *a);

// Begins a job. No other may be under way or waiting to be taken.
void atsi_assigner_ask(struct atsi_assigner *a, const struct atsi_assigner_job *job);
// Whether a job is under way or waiting to be taken.
bool atsi_assigner_is_busy(struct atsi_assigner *a);
// Takes the result of the job that was asked for; with `wait` as soon as it is there, else only if it is. Returns whether it was taken.
bool atsi_assigner_take(struct atsi_assigner *a, bool wait, struct atsi_assigner_result *out);
// Frees what has been replaced, in the thread, a while later. NULL fine.
void atsi_assigner_discard(struct atsi_assigner *a, struct atsi_prepared_round *prepared);

#endif
