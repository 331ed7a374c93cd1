// resident.h: in which order the GPU's resident weights stand, and so which are given back first when the card is short of memory. Pure.
//
// The resident range begins with what always stays: small tensors, tables of experts' places, and the matrices of units whose state lives
// on the GPU. Behind them stand the items that can leave, the most valuable first: the first k of them are resident, the others have left,
// and memory is given back from the range's end. An item is a unit that can run on either side, or the experts that are resident one by
// one behind a router (runtime/experts.h).
#ifndef ATSI_RUNTIME_RESIDENT_H
#define ATSI_RUNTIME_RESIDENT_H

#include "runtime/experts.h"

#define ATSI_NOT_RESIDENT UINT64_MAX

struct atsi_resident_item {
    uint32_t unit;
    bool experts; // not the unit itself: the experts behind the router that it holds
};

struct atsi_resident {
    uint64_t *offsets; // [the program's n_tensors] in the range, ATSI_NOT_RESIDENT for tensors that only the CPU reads
    uint64_t *
        tables; // [n_units of the program] of the table of places of the router that a unit holds, or ATSI_NOT_RESIDENT
    uint64_t
        *blocks; // [n_units of the program] of the experts of a unit that are resident one by one, or ATSI_NOT_RESIDENT
    uint32_t *tensors;                // [n_tensors] those that have an offset, by offset
    struct atsi_resident_item *items; // [n_items] that can leave, the last one first
    uint64_t *end_bytes;              // [n_items + 1] of the range when the first k items are resident
    uint32_t n_tensors, n_items;
};

// For the units that `homes` [n_units of the program] has on the GPU, and for `experts`. Value: the decode time that residency saves, per
// byte. Values within a quarter of each other count as equal and stand in execution order, so that neighbours leave together and fewer
// hand-overs arise. Free with atsi_resident_free whether it succeeds or not.
enum atsi_status atsi_resident_arrange(struct atsi_resident *r, const struct atsi_plan *plan,
                                       const enum atsi_backend *homes, const struct atsi_experts *experts,
                                       struct atsi_error *err);
void atsi_resident_free(struct atsi_resident *r);

// The most items of which `bytes` hold everything; 0 also when not even what always stays fits.
uint32_t atsi_resident_fit(const struct atsi_resident *r, uint64_t bytes);

#endif
