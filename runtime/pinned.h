// pinned.h: host memory that a device copies from at full speed and reads in place: pieces of the mapped plan file that are registered
// with the driver, and a block of its own for what cannot be.
#ifndef ATSI_RUNTIME_PINNED_H
#define ATSI_RUNTIME_PINNED_H

#include "kernels/device.h"

enum {
    ATSI_PINNED_PIECES_MAX = 8
};

struct atsi_pinned {
    struct atsi_device *device; // NULL: nothing is pinned
    struct atsi_pinned_piece {
        const uint8_t *host;
        const uint8_t *dev; // address for the device
        uint64_t bytes;
    } pieces[ATSI_PINNED_PIECES_MAX];
    uint32_t n_pieces;
    uint8_t *block; // pinned allocation, a piece too; NULL: none
};

// Registers n bytes from `host` (page aligned, of a shared file mapping). Pinned pages cannot be paged out, so an eighth of the host's free
// memory must be left. False when it is not, or when the driver refuses, which is normal.
bool atsi_pinned_register(struct atsi_pinned *p, const uint8_t *host, uint64_t bytes);
// Allocates the block, under the same rule.
bool atsi_pinned_allocate(struct atsi_pinned *p, uint64_t bytes);
void atsi_pinned_free(struct atsi_pinned *p); // nothing may use it any more

// The device's address of host memory that lies in one piece, else NULL.
const void *atsi_pinned_address(const struct atsi_pinned *p, const void *host, uint64_t bytes);
// How many of the bytes from `host` on are of one kind: in one piece (*pinned), or in none.
uint64_t atsi_pinned_run(const struct atsi_pinned *p, const void *host, uint64_t bytes, bool *pinned);

#endif
