// recorder.h: what the splits of recent rounds took, reduced to how much slower than planned each resource is. Pure.
//
// CPU splits are timed in every round (two clock reads each). Splits of the device and transfers need two events each, so they are
// timed in a few rounds after an assignment changes, then in every ATSI_RECORDER_PERIOD-th, and when asked for
// (atsi_recorder_look). Each split keeps an exponentially weighted time; one sample counts for at most ATSI_RECORDER_CLIP times what
// its split took before, so that a hiccup is not taken for a load. Where slots are divided token by token a split takes some microseconds
// when all experts are resident and ten times that when one crosses the link: there a sample counts whole up to what all slots would take,
// or the mean of both kinds would come out too low, and for less, since both kinds alternate.
#ifndef ATSI_RUNTIME_RECORDER_H
#define ATSI_RUNTIME_RECORDER_H

#include "runtime/schedule/script_cost.h"

enum {
    ATSI_RECORDER_PERIOD = 8,
    ATSI_RECORDER_CLIP = 3
};

struct atsi_recorder {
    struct atsi_scales scales; // of the newest rounds; 1 each before the first
    uint32_t n_rounds;         // since the assignment changed
    uint32_t n_looks;          // coming rounds in which the device is timed in any case
};

void atsi_recorder_start(struct atsi_recorder *r);
// The coming rounds run under another assignment; scales stay until these have been timed.
void atsi_recorder_adopted(struct atsi_recorder *r);
void atsi_recorder_look(struct atsi_recorder *r);
// Whether the device is to be timed in the coming round.
bool atsi_recorder_times_device(const struct atsi_recorder *r);

// A split took us in this round. *recent_us: what it took lately, 0 at first; the first round after a change is not counted. most_us: of its
// cost (script_cost.h).
void atsi_recorder_note_cpu(const struct atsi_recorder *r, float *recent_us, double us, double most_us);
void atsi_recorder_note_device(const struct atsi_recorder *r, float *recent_us, double us, double most_us);
// The round is over. Renews the scales: for each resource the recent times of its splits by what the plan says of them. A split that uses two
// resources counts for each in proportion to its cost at the scales before. What hardly runs says little: a resource's
// scale leans on the one before as if 1 % of the round had shown it again. One that is not seen at all slowly returns to 1, or nobody
// would notice when it is free again. recent_us [cost->n_actions].
void atsi_recorder_end_round(struct atsi_recorder *r, const struct atsi_script_cost *cost, const float *recent_us);

// A round took round_us where its splits explain expected_us at r->scales, and would explain prompt_us if hand-overs took no longer than
// planned: what is left is put on its n_handovers, which no split shows, over some rounds. As far as the round would be as long without
// them, since both sides wait for something else, they are not seen and slowly forgotten. Not for the first round after a change.
void atsi_recorder_note_round(struct atsi_recorder *r, double round_us, double expected_us, double prompt_us,
                              uint32_t n_handovers);

// Algorithm 3's deviation: the largest relative change of a resource between two moments; of hand-overs against half a millisecond.
double atsi_scales_deviation(const struct atsi_scales *from, const struct atsi_scales *to);

#endif
