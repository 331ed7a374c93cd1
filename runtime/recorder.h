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
    struct atsi_scales scales; // of the newest rounds; 1 each before the first. Of the link: link x queued
    double link;               // how much slower than planned what crosses it is, from its beginning to its end
    double queued;     // how many times longer than that transfers take, as those who wait for them find; at least 1
    uint32_t n_rounds; // since the assignment changed
    uint32_t n_looks;  // coming rounds in which the device is timed in any case
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

// What a round took, and what its splits explain.
struct atsi_recorder_round {
    struct atsi_round_times took, expected; // expected: at r->scales
    double prompt_us;                       // of the round, if hand-overs took no longer than planned
    double unqueued_waits_us; // for transfers, if these took no longer than from their beginning to their end
    double transfers_us;      // all of them, at r->scales
    uint32_t n_handovers, n_waits, n_transfer_waits;
};
struct atsi_recorder_round atsi_recorder_explain(const struct atsi_recorder *r, const struct atsi_script *script,
                                                 const struct atsi_script_cost *cost,
                                                 const struct atsi_round_times *took);

// What the round took beyond what its splits explain is put, over some rounds, on what no split shows: that transfers do not begin when they
// could (another program's have their turn), as far as the CPU waited longer for them, and on hand-overs. As far as the round would be
// as long without either, since both sides wait for something else, it is not seen and slowly forgotten. Not for the first round after a change.
void atsi_recorder_note_round(struct atsi_recorder *r, const struct atsi_recorder_round *round);

// Algorithm 3's deviation: the largest relative change of a resource between two moments; of hand-overs against half a millisecond.
double atsi_scales_deviation(const struct atsi_scales *from, const struct atsi_scales *to);

#endif
