// temp_ring.h: where each promoted unit of a round lies in the temporary region, and whose space it takes over. Pure.
//
// Transfers happen in unit order and so does their consumption, round after round, so the region is a ring: slots follow each
// other and start again at 0 where the next one does not fit. A slot may be filled once the last slot that overlaps it,
// counting back through the rounds, has been consumed.
#ifndef ATSI_RUNTIME_TEMP_RING_H
#define ATSI_RUNTIME_TEMP_RING_H

#include <stdint.h>

#include "formats/program.h"

struct atsi_temp_slot {
    uint64_t offset;    // 256-byte aligned
    uint64_t bytes;     // rounded up to 256
    uint32_t waits_for; // 1..n: the transfer this many before it must have been consumed (n: itself, a round ago)
};

enum {
    ATSI_TRAVELLING_TENSORS = 4 // of a unit
};

// A tensor of a promoted unit.
struct atsi_travelling_tensor {
    uint32_t tensor;
    uint64_t offset; // in what the unit has of the region
};

// What a unit has of the region: its big tensors, each once, one behind the other (small ones stand on both sides anyway). Returns their number
// and leaves the bytes of all of it.
uint32_t atsi_temp_ring_list(const struct atsi_program *p, const struct atsi_unit *u,
                             struct atsi_travelling_tensor tensors[ATSI_TRAVELLING_TENSORS], uint64_t *bytes);

// bytes [n], each at most `capacity` after rounding, else ATSI_FAILED. Fills slots [n].
enum atsi_status atsi_temp_ring_plan(const uint64_t *bytes, uint32_t n, uint64_t capacity, struct atsi_temp_slot *slots,
                                     struct atsi_error *err);

#endif
