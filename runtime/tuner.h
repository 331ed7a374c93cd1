// tuner.h: finds by trying which use of the link makes decode rounds faster, and tries again when their time changes. Pure.
//
// Each use runs for a few rounds (the first is not counted: its launches are captured then); the one with the lowest median stays.
// The paper's rule for trying again (Algorithm 3): the recent time deviates from that of the last decision by more than
// epsilon = 15 % and at least tau = 5 times the time a token takes has passed since.
#ifndef ATSI_RUNTIME_TUNER_H
#define ATSI_RUNTIME_TUNER_H

#include "runtime/dispatcher.h"

enum {
    ATSI_TUNER_ROUNDS = 5
}; // tau is as many

struct atsi_tuner {
    bool has_choice; // else the first use, streaming, stays for ever
    bool settled;
    enum atsi_link_use use;             // of the coming round
    uint32_t n_rounds;                  // since this use began
    double times_us[ATSI_TUNER_ROUNDS]; // of this use; after settling a ring of the last rounds
    double median_us[ATSI_LINK_USES];   // 0: not tried since the last change of load
    uint32_t n_watched;                 // rounds since settling
};

void atsi_tuner_start(struct atsi_tuner *t, bool has_choice);
// Takes the time of a decode round. Returns true when `use` has changed, so that a new assignment is due.
bool atsi_tuner_record(struct atsi_tuner *t, double round_us);

#endif
