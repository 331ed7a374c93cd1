// search.h: the bounded search behind ATSI_POLICY_FIFO (docs/scheduling.md). Internal to runtime/schedule.
//
// A partial round is a label: the two clocks (end of the last unit, end of the last transfer) and the promotions so
// far. Labels that stand alike share a cell: same side, same recent decisions (what the region holds and gives back
// follows from them), same lag of the engine behind the compute clock. A cell keeps the label that is best at the
// price that the lower bound puts on the two clocks, and labels that provably cannot beat a known round are dropped.
// Time and memory are O(units * cells).
#ifndef ATSI_RUNTIME_SCHEDULE_SEARCH_H
#define ATSI_RUNTIME_SCHEDULE_SEARCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/schedule/schedule.h"

struct search_effort {
    size_t n_lags, n_recent; // cells of a side: n_lags << n_recent, at most the cells_max of search_create
    double clock_price;      // in [0, 1]: weight of the compute clock, the rest is the engine's
    double known_us;         // a round that ends at this time is known
};

struct search;
struct search *search_create(size_t n_units_max, size_t cells_max); // NULL without memory
void search_free(struct search *s);

// Writes an assignment and returns true, or returns false when everything was dropped: the search knows nothing
// better than known_us.
bool search_policy(struct search *s, const struct atsi_schedule_instance *inst, const struct search_effort *effort,
                   uint8_t *assignment);

#endif
