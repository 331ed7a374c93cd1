// made_up_machine.h: rounds of a plan on a machine whose speeds a test knows and changes: dispatcher, script, costs, recorder and tuner as
// in a run, times that the costs say at the speeds of the moment, with noise and work that is held up for a time slice. Time passes as
// rounds take it, decisions come some rounds after they were asked for.
#ifndef ATSI_TESTS_SUPPORT_MADE_UP_MACHINE_H
#define ATSI_TESTS_SUPPORT_MADE_UP_MACHINE_H

#include "runtime/dispatcher.h"
#include "runtime/recorder.h"
#include "runtime/tuner.h"

struct made_up_load {
    struct atsi_scales scales;
    double shaking;        // of each of them, from round to round: 0.03 is up to 3 % either way
    double wandering;      // of the CPU's, within a second or so
    double stall_us;       // work of a processor that is held up waits as long, at most
    double stalls;         // how often that is in a millisecond of work on the CPU
    double stalled_starts; // and beside it, of its operations, however short they are
    double device_stalls;  // in a millisecond of work on the device
    double
        recoil; // work of the CPU takes that part longer for every unit that it has given away since the start: it waits more often
    double uneven; // what crosses the link for a split differs from token to token, by that part of it either way
    double turns;  // that part of its time a transfer waits for the turns of another's, before its beginning is seen
};

struct made_up_rounds { // under one assignment
    struct atsi_script script;
    struct atsi_script_cost cost, drawn; // drawn: of one round, with its noise
    float *recent_us;
    uint32_t n_promoted, n_shared;
};

struct made_up_machine {
    struct atsi_plan *plan;
    struct atsi_dispatcher *dispatcher;
    struct atsi_schedule_unit *units; // [n_units]
    uint32_t n_promoted_first;
    bool stays;             // what comes out of the first trials is kept
    bool never;             // the first assignment is
    double deciding_us;     // a decision that is taken over takes as long, beside the rounds
    double slowed_deciding; // work of the CPU takes as long as that meanwhile: the thread needs one of the cores
    struct atsi_tuner tuner;
    struct atsi_recorder recorder;
    struct atsi_unit_factors *factors;         // [n_units]
    struct made_up_rounds at_work, best, next; // best: of trials, to return to it; next: is being prepared
    struct atsi_tuner_wish best_wish;
    bool has_best, has_next;
    double now_us, asked_us;  // time; when the decision under way was asked for
    uint64_t random, weather; // weather: what wanders, by time
    uint32_t n_decided, n_taken_over;
    bool tells; // every decision, on stderr
};

// `plan` with times; borrowed. homes [n_units].
void made_up_open(struct made_up_machine *m, struct atsi_plan *plan, const enum atsi_backend *homes, uint64_t seed,
                  uint64_t weather);
void made_up_close(struct made_up_machine *m);
// Rounds for us of time; the median of what they took.
double made_up_run(struct made_up_machine *m, const struct made_up_load *load, double us);
// n rounds; the time of all of them.
double made_up_run_rounds(struct made_up_machine *m, const struct made_up_load *load, uint32_t n);
// What a round takes at these speeds under the assignment of a wish.
double made_up_time(struct made_up_machine *m, const struct atsi_tuner_wish *wish, const struct atsi_scales *scales);
// Decided by who knows the speeds: the better use of the link.
double made_up_best_us(struct made_up_machine *m, const struct atsi_scales *scales);

#endif
