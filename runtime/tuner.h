// tuner.h: when to decide anew about decode rounds, and for which use of the link (the paper's Algorithm 3, docs/load.md). Pure.
//
// A decision is asked for when the recorded speeds deviate by epsilon from those of the last decision, or the time of a round from
// what it was, and tau has passed since the assignment at work was taken over. What is faster is found by trying: each candidate runs
// for a few rounds (the first is not counted; more where rounds differ much among themselves), and the one with the lowest median stays. At the
// start the use of the link that the plan's times favour is tried as they have it, then as decided for what that showed, then the other use
// likewise. What came out of that is at home. When speeds change, the use at work is tried as decided for the new ones, then the other use, then
// what is at home; what was at work returns if it was faster. The next best is tried again when what is at work turns out slower than that was.
#ifndef ATSI_RUNTIME_TUNER_H
#define ATSI_RUNTIME_TUNER_H

#include "runtime/dispatcher.h"

enum {
    ATSI_TUNER_ROUNDS = 5,       // of a trial, and of a median
    ATSI_TUNER_MANY_ROUNDS = 14, // where rounds differ much among themselves
    ATSI_TUNER_TRIALS = 4,       // at most, one after the other
    ATSI_TUNER_CERTAIN = 4,      // rounds in a row that deviate are a change
    ATSI_TUNER_PATIENCE = 64,    // rounds before the other use is tried again at speeds like those of its last trial
    ATSI_TUNER_LONGEST = 512,    // and in any case
    ATSI_TUNER_SECOND = 16,      // rounds before the next best is tried again, at first
};

struct atsi_tuner_params {
    bool is_dynamic; // else nothing is ever asked for
    bool has_choice; // both uses are possible; else units only stream
    double epsilon;  // relative deviation
    double tau;      // in recent times of a token, that is in rounds
};

// What an assignment is decided for.
struct atsi_tuner_wish {
    enum atsi_link_use use;
    struct atsi_scales scales;
    bool by_unit; // also for what single units were recorded to take against these speeds
};

struct atsi_tuner_result {
    struct atsi_tuner_wish wish;
    double median_us;
};

struct atsi_tuner {
    struct atsi_tuner_params params;
    // What is at work, and what is asked for.
    struct atsi_tuner_wish at_work;
    struct atsi_tuner_wish wish;          // of the assignment at work, or of the one asked for
    struct atsi_scales reference;         // recorded when what is wished for was decided
    struct atsi_scales at_work_reference; // and what is at work
    double most_ratio; // of the predicted times of the wish and of what is at work; above it the wish is to be declined
    double reference_us;                     // what rounds at work take; 0: not known yet
    const char *reason;                      // of the newest wish, for people
    double times_us[ATSI_TUNER_MANY_ROUNDS]; // ring
    // Trials: those going on, and the last that compared any.
    struct atsi_tuner_result results[ATSI_TUNER_TRIALS], finished[ATSI_TUNER_TRIALS];
    struct atsi_tuner_result second; // the next best of the last trials; median 0: none
    struct atsi_tuner_wish home;     // the fastest of the first trials
    struct atsi_scales home_scales;  // recorded under it; cpu 0: not yet
    struct atsi_scales other_scales; // recorded when the use that is not at work was last tried
    struct atsi_scales steady;       // what speeds have stayed near to, for n_steady rounds
    // Rounds: since the assignment was taken over; in a row that deviate, or are slower than the next best was; since the trials ended;
    // without a trial of the other use; that speeds have been steady.
    uint32_t n_rounds, n_deviating, n_behind, n_settled, n_since_other, n_steady;
    uint32_t polish_wait, second_wait; // before what is at work may be decided once more, and the next best tried again
    uint32_t n_results, n_finished, i_newest;    // the newest result is at work when the trials end
    uint32_t n_left[ATSI_LINK_USES];             // trials of each use that may come yet
    bool asked;                                  // nothing is counted until atsi_tuner_begun
    bool has_begun, trying, has_home, home_left; // home_left: it is to be tried yet
    bool is_noisy, was_noisy;                    // the last rounds are; they were when the trials began
};

void atsi_tuner_start(struct atsi_tuner *t, const struct atsi_tuner_params *params);
// Takes the time of a decode round and the speeds recorded so far. Returns true when a decision is due: for t->wish.
bool atsi_tuner_record(struct atsi_tuner *t, double round_us, const struct atsi_scales *scales);
// What was asked for is not taken over, its prediction being over most_ratio. Returns true when another decision is due: for t->wish.
bool atsi_tuner_declined(struct atsi_tuner *t, const struct atsi_scales *scales);
// What was asked for last is at work from the coming round on. `use`: that of the wish, but for the first assignment of all, whose use is free.
void atsi_tuner_begun(struct atsi_tuner *t, enum atsi_link_use use);
// Whether what is at work is the fastest of those tried so far, while something else is about to be tried.
bool atsi_tuner_may_return(const struct atsi_tuner *t);
bool atsi_tuner_is_settled(const struct atsi_tuner *t);
// Of the last rounds under the assignment at work; 0 before there are enough.
double atsi_tuner_recent_us(const struct atsi_tuner *t);
// The last round took so much longer or shorter than those before that the devices should be looked at.
bool atsi_tuner_is_surprised(const struct atsi_tuner *t);

#endif
