// resident.h: in which order the GPU's resident weights stand, and so which are given back first when the card is short of memory. Pure.
//
// The resident range begins with what always stays: small tensors, and the matrices of units whose state lives on the GPU. Behind
// them stand the units that can run on either side, the most valuable first: the first k of them are resident, the others have left,
// and memory is given back from the range's end.
#ifndef ATSI_RUNTIME_RESIDENT_H
#define ATSI_RUNTIME_RESIDENT_H

#include "formats/plan.h"

#define ATSI_NOT_RESIDENT UINT64_MAX

struct atsi_resident {
    uint64_t *offsets; // [the program's n_tensors] in the range, ATSI_NOT_RESIDENT for tensors that only the CPU reads
    uint32_t *tensors; // [n_tensors] those that have an offset, by offset
    uint32_t *units;   // [n_units] that can leave, the last one first
    uint64_t *end_bytes; // [n_units + 1] of the range when the first k units are resident
    uint32_t n_tensors, n_units;
};

// For the units that `homes` [n_units of the program] has on the GPU. Value: the decode time that residency saves, per byte. Values within
// a quarter of each other count as equal and stand in execution order, so that neighbours leave together and fewer hand-overs arise.
// Free with atsi_resident_free whether it succeeds or not.
enum atsi_status atsi_resident_arrange(struct atsi_resident *r, const struct atsi_plan *plan,
                                       const enum atsi_backend *homes, struct atsi_error *err);
void atsi_resident_free(struct atsi_resident *r);

// The most units of which `bytes` hold all tensors; 0 also when not even what always stays fits.
uint32_t atsi_resident_fit(const struct atsi_resident *r, uint64_t bytes);

#endif
