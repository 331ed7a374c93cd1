// tuner.h: when to decide anew about decode rounds, and for which use of the link (the paper's Algorithm 3, docs/load.md). Pure.
//
// A decision is asked for when rounds take another time than they did, by epsilon, or a resource has become that much faster, and tau has
// passed since the assignment at work was taken over. Speeds and times are medians of rounds. What is asked for has to promise more than a
// switch costs and rounds differ by luck, by forecasts that are all of the speeds of now; else it is declined. Then it runs for a few rounds (the
// first is not counted; more where rounds differ much among themselves), and what was at work returns if it was faster. Where nothing
// better was found is remembered. When speeds change what is at home is asked for first, then the use at work as decided for the new ones, then
// the other use.
//
// At home is what comes out of the first trials: of the use of the link that the plan's times favour, as they have it, then as decided for
// what that showed if that promises enough, and of the other use likewise if its forecast is near.
#ifndef ATSI_RUNTIME_TUNER_H
#define ATSI_RUNTIME_TUNER_H

#include "runtime/dispatcher.h"

enum {
    ATSI_TUNER_ROUNDS = 5,       // of a trial at the start
    ATSI_TUNER_MORE_ROUNDS = 9,  // and later
    ATSI_TUNER_MANY_ROUNDS = 14, // where rounds differ much among themselves, and of a median that is watched
    ATSI_TUNER_SPEEDS = 9,       // rounds whose medians are the speeds of now
    ATSI_TUNER_TRIALS = 4,       // at most, one after the other
    ATSI_TUNER_CERTAIN = 8,      // rounds in a row whose median deviates are a change
    ATSI_TUNER_SURPRISE = 16,    // for so many it is looked at what the devices take
    ATSI_TUNER_PATIENCE = 64,    // rounds before what is at work is decided once more
    ATSI_TUNER_LONGEST =
        512, // before the other use is tried although nothing has changed; what is remembered is forgotten
    ATSI_TUNER_SECOND = 16, // before the next best is tried again, at first
    ATSI_TUNER_MEMORY = 8
};

struct atsi_tuner_params {
    bool is_dynamic; // else nothing is ever asked for
    bool has_choice; // both uses are possible; else units only stream
    double epsilon;  // relative deviation
    double tau;      // in recent times of a token, that is in rounds
};

// Of some rounds, one after the other.
struct atsi_tuner_summary {
    double median_us, spread; // (longest - shortest) / median
    double luck;              // standard error of the median, by the median
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
    double promised; // by the forecasts, of what was at work before; 0: unknown
};

// Nothing better than `wish` was found at these speeds.
struct atsi_tuner_memory {
    struct atsi_tuner_wish wish;
    struct atsi_scales speeds;
    uint64_t round; // n_recorded then; 0: free
    bool tried;     // and it took longer; else nothing was promised enough to be tried
};

// What was forecast of a use by what was at work, at which speeds.
struct atsi_tuner_behind {
    double ratio; // 0: not yet
    struct atsi_scales speeds;
    uint64_t round; // n_recorded then
};

struct atsi_tuner {
    struct atsi_tuner_params params;
    // What is at work, and what is asked for.
    struct atsi_tuner_wish at_work;
    struct atsi_tuner_wish wish; // of the assignment at work, or of the one asked for
    struct atsi_scales now;      // recorded lately under what is at work: what forecasts are to be of
    double
        most_ratio; // of the forecasts of the wish and of what is at work, at the speeds of now; above it the wish is to be declined
    const char *reason, *change; // of the newest wish, of the newest trials for changed speeds; for people
    // What changes count from: speeds and times of rounds under what is at work.
    struct atsi_scales asked_at, reference;
    enum atsi_link_use recorded_under; // the use at work when `reference` was recorded, at first
    double asked_us, reference_us;     // 0: not known yet
    double known_us; // what rounds took when it had lasted long enough to be no surprise; 0: nothing has
    double times_us[ATSI_TUNER_MANY_ROUNDS];      // ring
    struct atsi_scales speeds[ATSI_TUNER_SPEEDS]; // ring
    struct atsi_tuner_summary few, many; // the last ATSI_TUNER_ROUNDS and _MANY_ROUNDS, where there are so many
    // Trials: those going on, and the last that compared any.
    struct atsi_tuner_result results[ATSI_TUNER_TRIALS], finished[ATSI_TUNER_TRIALS];
    struct atsi_tuner_result second;  // the next best of the last trials; median 0: none
    struct atsi_scales second_scales; // recorded when they ended
    struct atsi_scales began_at;      // and when they began
    struct atsi_tuner_wish home;      // the fastest of the first trials
    struct atsi_scales home_scales;   // recorded under it; cpu 0: not yet
    double home_us;                   // and what its rounds took then
    struct atsi_scales steady;        // what speeds have stayed near to, for n_steady rounds
    double part;                      // of a change of speeds, that is decided for
    double luck;                      // of the rounds before the trials, as a part of what they took
    double promised;                  // by the forecasts, what is on trial takes of what was at work before; 0: unknown
    double error[ATSI_LINK_USES];     // what rounds of a use take by their forecast, against each other
    struct atsi_tuner_behind behind[ATSI_LINK_USES]; // of each use, when it was declined last
    struct atsi_tuner_memory memory[ATSI_TUNER_MEMORY];
    // Rounds: in all; since the assignment was taken over; in a row that deviate, or are slower than the next best was; since the trials
    // ended; without a trial of the other use; that speeds have been steady; in a row whose last few are off.
    uint64_t n_recorded;
    uint32_t n_rounds, n_deviating, n_behind, n_settled, n_since_other, n_steady, n_off;
    // Before what is at work may be decided once more, the next best tried again, and a resource that has become faster looked at again
    // that no round tells of: twice as long each time in vain.
    uint32_t polish_wait, polish_step, second_wait, follow_wait;
    uint32_t n_results, n_finished, i_newest;    // the newest result is at work when the trials end
    uint32_t i_memory;                           // the oldest
    uint32_t n_left[ATSI_LINK_USES];             // trials of each use that may come yet
    bool asked;                                  // nothing is counted until atsi_tuner_begun
    bool has_reference;                          // from rounds under what is at work
    bool has_begun, trying, has_home, home_left; // home_left: it is to be tried yet
    bool follows;                                // the trials are for changed speeds
    bool is_noisy, was_noisy;                    // the last rounds are; they were when the trials began
};

void atsi_tuner_start(struct atsi_tuner *t, const struct atsi_tuner_params *params);
// Takes the time of a decode round and the speeds recorded so far. Returns true when a decision is due: for t->wish.
bool atsi_tuner_record(struct atsi_tuner *t, double round_us, const struct atsi_scales *scales);
// What was asked for is not taken over, its forecast being over most_ratio. `promised`: as below. Returns true when another decision is
// due: for t->wish.
bool atsi_tuner_declined(struct atsi_tuner *t, double promised);
// What was asked for last is at work from the coming round on. `use`: that of the wish, but for the first assignment of all, whose use is free.
// `promised`: its forecast by that of what was at work before, at the speeds of now; 0: unknown.
void atsi_tuner_begun(struct atsi_tuner *t, enum atsi_link_use use, double promised);
// Whether what is at work is the fastest of those tried so far, while something else is about to be tried.
bool atsi_tuner_may_return(const struct atsi_tuner *t);
bool atsi_tuner_is_settled(const struct atsi_tuner *t);
// Of the last rounds under the assignment at work; 0 before there are enough.
double atsi_tuner_recent_us(const struct atsi_tuner *t);
// The last rounds took so much longer or shorter than those before that the devices should be looked at. A single one is luck, and what
// lasts is known.
bool atsi_tuner_is_surprised(const struct atsi_tuner *t);

#endif
