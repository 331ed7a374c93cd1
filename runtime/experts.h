// experts.h: which experts are resident on the GPU one by one, now: at first as the plan has them (formats/plan.h), later as they are
// exchanged. Owned by the weights, whose resident range holds them and the device's tables of their places.
#ifndef ATSI_RUNTIME_EXPERTS_H
#define ATSI_RUNTIME_EXPERTS_H

#include "kernels/device.h"
#include "runtime/model.h"

struct atsi_resident;

// Of one router, and so of all operations behind it.
struct atsi_router_experts {
    uint32_t unit;              // that holds the router
    uint32_t n_experts, n_used; // of the router
    uint32_t n;                 // resident
    uint16_t *ids;              // [n] in the order in which they stand
    int32_t *slots;             // [n_experts] the host's table (kernels/op_call.h, struct atsi_experts_ref)
    bool are_there;             // they have their memory now
    float hit_rate;             // of a token's experts, the part that is expected among them
};

struct atsi_experts {
    struct atsi_device *device;
    struct atsi_router_experts *routers; // [n_routers] in execution order
    uint32_t n_routers;
    int32_t *tables; // of all routers, one behind the other
    bool tables_are_pinned;
    struct atsi_experts_ref
        *refs[2]; // [side][the program's n_units] what calls of a unit's operations get; NULL without routers
};

// Every router for which the plan has resident experts, unless the file holds some of them compressed: then they stay on the CPU. Without a
// device: none. Free with atsi_experts_free whether it succeeds or not.
enum atsi_status atsi_experts_open(struct atsi_experts *e, const struct atsi_model *model, struct atsi_device *device,
                                   struct atsi_error *err);
void atsi_experts_free(struct atsi_experts *e); // fine on a zeroed one; nothing may be under way

// The router that unit i_unit holds, NULL when it holds none of these.
const struct atsi_router_experts *atsi_experts_behind(const struct atsi_experts *e, uint32_t i_unit);
// Whether unit i_unit multiplies with experts that r chooses and that are resident one by one.
bool atsi_router_experts_has(const struct atsi_plan *plan, const struct atsi_router_experts *r, uint32_t i_unit);
// Bytes of one expert of such a unit, and of those that are resident.
uint64_t atsi_expert_bytes(const struct atsi_program *p, uint32_t i_unit);
uint64_t atsi_router_experts_block_bytes(const struct atsi_plan *plan, const struct atsi_router_experts *r,
                                         uint32_t i_unit);

// The first n_resident items of `r` have their memory, which begins at `range` for the device: renews are_there and refs.
void atsi_experts_place(struct atsi_experts *e, const struct atsi_plan *plan, const struct atsi_resident *r,
                        const char *range, uint32_t n_resident);

// As a plan would have them now, for decisions: residents [n_units] at the units that hold a router, n 0 where they are not there.
// The ids are borrowed.
void atsi_experts_describe(const struct atsi_experts *e, struct atsi_resident_experts *residents);

#endif
