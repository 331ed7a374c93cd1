// hot_experts.h: what routing statistics (formats/routing.h) say about a placed plan: how many experts rounds touch, and what it would
// bring to keep single experts on the GPU, those that are chosen most often, instead of whole operations.
#ifndef ATSI_PLANNER_HOT_EXPERTS_H
#define ATSI_PLANNER_HOT_EXPERTS_H

#include "formats/plan.h"
#include "formats/routing.h"

struct atsi_hot_experts {
    double eighth_share;     // of all choices that go to the hottest eighth of the experts, mean over the layers
    double reused_share;     // of a token's experts that the token before had chosen too
    double chunk_share;      // of the experts that a chunk of the plan touches
    uint64_t resident_bytes; // of experts that the plan has on the GPU
    double host_bytes;       // of experts that a decoded token reads from the host as placed
    double hot_host_bytes;   // the same with resident_bytes given to the experts chosen most often
    double saved_us;         // what that would take off a decoded token, CPU and link working together
};

// *plan is placed. ATSI_BAD_INPUT when a layer of the plan is not in the statistics (the message names it).
enum atsi_status atsi_hot_experts_of(const struct atsi_plan *plan, const struct atsi_routing_stats *stats,
                                     struct atsi_hot_experts *out, struct atsi_error *err);

#endif
